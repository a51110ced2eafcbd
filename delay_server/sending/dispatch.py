"""Moves due messages from the wheel to the sender."""

from collections.abc import Callable
from typing import Protocol

import trio

from delay_server.clock.pace import Pacer
from delay_server.holding.wheel import Wheel
from delay_server.lanes.lanes import Lanes
from delay_transport.seams.outbox import Wakeup
from storage.batch.entries import Entries

_HELD_RECHECK_S = 0.5
_SLEEP_MS_MAX = 5000
"""Longest sleep while something is in the wheel: a wall clock that is set forward by less than the
guard minds makes nothing later than this."""
_ROOM_RECHECK_S = 5.0
"""Longest sleep while the sender is full; whoever makes room in it says so."""
_SLICE_ENTRIES = 2048
"""Entries offered in one go; others run between two of them."""
_SLICE_BEHIND = 1024
"""The same of a backlog while others are on time, who wait for it."""
_TRICKLE_ENTRIES = 128
_TRICKLE_S = 0.001
"""The same of a backlog, and how often, while no group has use for more. Others of it may be for
groups that have; but what is offered faster than it leaves would go back to disk in the end."""
_ON_TIME_MS_MAX = 1000
"""What became due in a longer span between two looks is a backlog as a whole."""


class Offer(Protocol):
    """What gives entries to the sender."""

    def __call__(self, entries: Entries, *, lane: int, late: bool = False) -> None:
        """Offer entries as part of this lane; behind others of it if they are `late`."""


class Dispatch:
    """Takes due messages out of the wheel and offers them to the sender.

    If more messages become due at a time than one slice takes, the rest is a backlog. The backlog
    is offered as late, slice by slice, and before each slice the messages that have just become
    due. So messages that are on time do not wait for a backlog, be it of one subject or of
    thousands. A message that has just become due joins the backlog of its subject as long as some
    of that is in the wheel; it may leave before late messages that the sender holds already.
    """

    def __init__(
        self,
        *,
        wheel: Wheel,
        pacer: Pacer,
        lanes: Lanes,
        offer: Offer,
        room: Callable[[], int],
        is_hungry: Callable[[], bool],
        on_popped: Callable[[], None],
    ) -> None:
        self._wheel = wheel
        self._pacer = pacer
        self._lanes = lanes
        self._is_hungry = is_hungry
        self._on_popped = on_popped
        self._offer = offer
        self._room = room
        self._earlier = Wakeup()
        self._roomier = Wakeup()
        self._sleeps_until_ms: int | None = None
        self._reached_ms: int | None = None
        """What was due by then and is still in the wheel is a backlog; None while all has left."""

    def wheel_has_grown(self) -> None:
        """Wake up if something is due before the time that is slept for."""
        due_ms = self._wheel.next_due_ms()
        asleep_ms = self._sleeps_until_ms
        if due_ms is not None and (asleep_ms is None or due_ms < asleep_ms):
            self._earlier.wake()

    def room_has_grown(self) -> None:
        """Go on if the sender was full."""
        self._roomier.wake()

    async def run(self) -> None:
        """Offer each message when its time has come; sleep in between."""
        while True:
            if self._wheel.is_evicting:
                await trio.lowlevel.checkpoint()
                continue
            due_ms = self._wheel.next_due_ms()
            if due_ms is None:
                self._no_backlog()
                self._sleeps_until_ms = None
                await self._earlier.sleep()
                continue
            if not self._pacer.runs():
                await trio.sleep(_HELD_RECHECK_S)
                continue
            now_ms = self._pacer.trusted_ms()
            if due_ms > now_ms:
                self._no_backlog()
                self._sleeps_until_ms = due_ms
                wait_ms = min(due_ms - now_ms, _SLEEP_MS_MAX)
                with trio.move_on_after(wait_ms / 1000):
                    await self._earlier.sleep()
                continue
            reached_ms, self._reached_ms = self._reached_ms, now_ms
            is_backlog = reached_ms is not None and due_ms <= reached_ms
            slice_max = _SLICE_ENTRIES
            if reached_ms is not None and is_backlog:
                count = await self._pop_on_time(reached_ms, now_ms)
                slice_max = self._slice_beside(count)
                if count:
                    # Groups deliver what is on time before any of the backlog is taken out.
                    await trio.lowlevel.checkpoint()
            room = self._room()
            if not room:
                # The sender holds as much as it should; the rest waits here, in order.
                with trio.move_on_after(_ROOM_RECHECK_S):
                    await self._roomier.sleep()
                continue
            entries = self._wheel.pop_due(now_ms, min(room, slice_max))
            next_ms = self._wheel.next_due_ms()
            if is_backlog or next_ms is None or next_ms > now_ms:
                self._admit(entries, room, late=is_backlog)
            else:
                # More is due than that: so a backlog begins, behind what has little due.
                self._wheel.add(entries)
                since_ms = max(due_ms - 1, now_ms - _ON_TIME_MS_MAX)
                await self._begin_backlog(since_ms)
                await self._pop_between(since_ms, now_ms)
            self._on_popped()
            # Others run between slices of a large burst.
            await trio.sleep(_TRICKLE_S if slice_max == _TRICKLE_ENTRIES else 0)

    def _slice_beside(self, on_time: int) -> int:
        """Return how much of a backlog to offer beside so much that is on time."""
        if not self._is_hungry():
            return _TRICKLE_ENTRIES
        return _SLICE_BEHIND if on_time else _SLICE_ENTRIES

    async def _pop_on_time(self, reached_ms: int, now_ms: int) -> int:
        """Offer what has become due since the latest look, if that was just now.

        Return how much that was.
        """
        if now_ms > reached_ms + _ON_TIME_MS_MAX:
            await self._begin_backlog(now_ms)
        elif now_ms > reached_ms:
            return await self._pop_between(reached_ms, now_ms)
        return 0

    async def _begin_backlog(self, until_ms: int) -> None:
        """Have all that is due by then be the backlog; others run between the steps."""
        # What is begun has to be ended, or nobody may use the wheel any more.
        with trio.CancelScope(shield=True):
            for _ in self._wheel.begin_backlog(until_ms):
                await trio.lowlevel.checkpoint()

    async def _pop_between(self, after_ms: int, now_ms: int) -> int:
        """Offer what has become due in between of subjects with little of it, on time.

        Return how much that was.
        """
        count = 0
        limit = min(self._room(), _SLICE_ENTRIES)
        with trio.CancelScope(shield=True):
            for due in self._wheel.pop_between(after_ms, now_ms, limit):
                if due is None:
                    await trio.lowlevel.checkpoint()
                else:
                    count += len(due)
                    self._admit(due, self._room(), late=False)
        return count

    def _no_backlog(self) -> None:
        self._reached_ms = None
        self._wheel.end_backlog()

    def _admit(self, entries: Entries, room: int, *, late: bool) -> None:
        if not len(entries):
            return
        for lane, offered in self._lanes.admit(entries, room):
            # In a lane of its own a subject has nobody to stand before.
            self._offer(offered, lane=lane, late=late and self._lanes.subject_of(lane) is None)
