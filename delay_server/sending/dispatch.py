"""Moves due messages from the wheel to the sender, and outcomes from the sender to the facts."""

import contextlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import structlog
import trio

from delay_server.clock.pace import Pacer
from delay_server.distribution import Distribution
from delay_server.holding.wheel import Wheel
from delay_server.lanes.lanes import Lanes
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Executor
from storage.batch.entries import Entries
from storage.batch.facts import FactBlock, Outcome
from storage.disk.errors import StorageFullError
from storage.logs.dispatch_log import FactsJournal

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

JOURNAL_WORKER = "dispatch_log"
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
_FULL_RETRY_S = 1.0
_ON_TIME_MS_MAX = 1000
"""What became due in a longer span between two looks is a backlog as a whole."""


FACT_AGE_BUCKETS_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60,
)  # fmt: skip

OUTCOME_AGE_MAX_S: Final = 0.2
"""Age of the oldest outcome that is not durable at which sending pauses. A crash sends again what
has no durable outcome: at most this much of traffic, beside what is in flight, also while the disk
stalls."""

OUTCOMES_MAX: Final = 50_000
"""Outcomes that are not durable at which sending pauses."""

_GATE_RECHECK_S = 0.01


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


class FactRecorder:
    """Gathers outcomes and makes them facts: journal first, then the schedule_log learns of them.

    Many outcomes share one fsync, which begins at most `sync_ms_max` after the first of them. It
    does not wait for the schedule_log, which can be busy for seconds (a split, a load, a
    checkpoint): a message whose outcome is not durable is sent again after a crash.
    """

    def __init__(
        self,
        *,
        journal: FactsJournal,
        executor: Executor,
        pacer: Pacer,
        epoch: Callable[[], int],
        note_facts: Callable[[FactBlock, int], Awaitable[None]],
        sync_ms_max: int,
        on_behind: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_behind` hears when `is_behind` has changed."""
        self._journal = journal
        self._executor = executor
        self._pacer = pacer
        self._epoch = epoch
        self._note_facts = note_facts
        self._linger_s = sync_ms_max / 2000
        self._waiting: list[FactBlock] = []
        self._writing: list[FactBlock] = []
        self._durable: deque[tuple[FactBlock, int]] = deque()
        """Outcomes that the schedule_log lacks; the first of them may be under way."""
        self._more = Wakeup()
        self._more_durable = Wakeup()
        self._idle = trio.Event()
        self._since: list[tuple[float, int]] = []
        """When outcomes came that wait, and how many then."""
        self._since_of_writing: list[tuple[float, int]] = []
        """The same of those that are being written."""
        self._not_durable = 0
        self._on_behind = on_behind
        self.is_behind = False
        """Whether so much is not durable that nothing more should be sent."""
        self._first = Wakeup()
        self.ages = Distribution(FACT_AGE_BUCKETS_S)
        """How old outcomes are when they are durable, in seconds."""
        self.outcomes: Counter[Outcome] = Counter()
        self.syncs = 0

    def cross_off(self, entries: Entries, at_ms: int, target: str, outcome: Outcome) -> None:
        """Take the outcome of some messages."""
        count = len(entries)
        self.outcomes[outcome] += count
        self._waiting.append(
            FactBlock(
                sequence=entries["sequence"].copy(),
                minute=entries["minute"].copy(),
                at_ms=np.full(count, at_ms, np.int64),
                target=np.zeros(count, np.uint16),
                outcome=np.full(count, outcome, np.uint8),
                targets=[target.encode()],
            )
        )
        self._came(count)

    def add(self, facts: FactBlock) -> None:
        """Take facts that records of the message_log make."""
        for outcome, count in Counter(facts.outcome.tolist()).items():
            self.outcomes[Outcome(outcome)] += count
        self._waiting.append(facts)
        self._came(len(facts))

    def _came(self, count: int) -> None:
        self._since.append((trio.current_time(), count))
        self._not_durable += count
        self._more.wake()
        self._first.wake()
        self._look_at_gate()

    @property
    def waiting(self) -> int:
        """Facts that are not durable yet."""
        return sum(len(block) for block in self._waiting)

    def unnoted(self) -> list[npt.NDArray[np.int64]]:
        """Return the sequences of outcomes that the schedule_log may not have yet."""
        durable = (block for block, _ in self._durable)
        return [block.sequence for block in (*durable, *self._writing, *self._waiting)]

    def unnoted_count(self, *, beyond: int) -> int:
        """Return how many rows that are to be delivered have outcomes beyond that fact's number.

        Those that the schedule_log counts as pending, if it was told up to there.
        """
        durable = (block for block, last_number in self._durable if last_number > beyond)
        blocks = (*durable, *self._writing, *self._waiting)
        return sum(len(block) - int(np.count_nonzero(block.of_dead)) for block in blocks)

    async def run(self) -> None:
        """Write facts; ends only by an error of the disk or cancellation."""
        while True:
            if not self._waiting:
                self._tell_if_idle()
                await self._more.sleep()
                await trio.sleep(self._linger_s)
                continue
            self._writing, self._waiting = self._waiting, []
            self._since_of_writing, self._since = self._since, []
            self._durable.append(await self._append(self._writing))
            self.syncs += 1
            self._are_durable()
            self._writing = []
            self._more_durable.wake()

    def _are_durable(self) -> None:
        now = trio.current_time()
        for at, count in self._since_of_writing:
            self.ages.observe(now - at, count)
            self._not_durable -= count
        self._since_of_writing = []
        self._look_at_gate()

    @property
    def _oldest(self) -> float | None:
        """When the first came of the outcomes that are not durable; None if all are."""
        since = self._since_of_writing or self._since
        return since[0][0] if since else None

    def _look_at_gate(self) -> None:
        """Have sending pause while too much is not durable, or for too long."""
        oldest = self._oldest
        is_old = oldest is not None and trio.current_time() - oldest >= OUTCOME_AGE_MAX_S
        is_behind = is_old or self._not_durable >= OUTCOMES_MAX
        if is_behind != self.is_behind:
            self.is_behind = is_behind
            self._on_behind()

    async def run_gate(self) -> None:
        """Notice outcomes that take too long to become durable; ends as `run` does."""
        while True:
            oldest = self._oldest
            if oldest is None:
                await self._first.sleep()
                continue
            again = trio.current_time() + _GATE_RECHECK_S
            await trio.sleep_until(max(oldest + OUTCOME_AGE_MAX_S, again))
            self._look_at_gate()

    async def run_noting(self) -> None:
        """Tell the schedule_log of facts that are durable, in order; ends as `run` does."""
        while True:
            if not self._durable:
                self._tell_if_idle()
                await self._more_durable.sleep()
                continue
            await self._note_facts(*self._durable[0])
            self._durable.popleft()

    def _tell_if_idle(self) -> None:
        if not (self._waiting or self._writing or self._durable):
            self._idle.set()

    async def _append(self, blocks: list[FactBlock]) -> tuple[FactBlock, int]:
        while True:
            try:
                return await self._executor.run(
                    JOURNAL_WORKER, self._append_now, blocks, self._pacer.now_ms()
                )
            except StorageFullError as error:
                # The disk's floor leaves room for facts; somebody else has used it up.
                _log.error(
                    "no disk space for facts; a crash now would deliver twice", error=str(error)
                )
                await trio.sleep(_FULL_RETRY_S)

    def _append_now(self, blocks: list[FactBlock], now_ms: int) -> tuple[FactBlock, int]:
        return self._journal.append(blocks, append_ms=now_ms, epoch=self._epoch())

    async def stop(self) -> None:
        """Wait until every outcome given so far is a durable fact that the schedule_log knows."""
        while self._waiting or self._writing or self._durable:
            self._idle = trio.Event()
            self._more.wake()
            await self._idle.wait()

    async def flush(self) -> None:
        """Make durable what waits, once no task does that any more; the next opening reads it."""
        blocks = [*self._writing, *self._waiting]
        if blocks:
            with contextlib.suppress(StorageFullError):
                await self._executor.run(
                    JOURNAL_WORKER, self._append_now, blocks, self._pacer.now_ms()
                )
