"""Where connections from addresses of bad standing wait until they have said something.

Most of what a connection costs is what is made for it: a stream, a task, a reader with its
deadlines, a line in the log. At the door it is a socket and the bytes that came, looked at now and
then by one task for all. So floods of connections that end at once, in the middle of a frame or
in random bytes cost a tenth, and a good client from the same address (behind the same NAT, or on
the same machine) enters with its first request.

    at the door           becomes
    a whole frame came    entered, with the bytes received
    door_bytes_max came   entered: the beginning of a longer frame
    door_seconds_max      entered, whatever came
    the end, a reset      turned away, unless a whole frame came before the end
    what is no frame      lingering: kept, not read, and turned away after linger_seconds_max, so
                          that who connects anew at each close has to wait
    too many there        the oldest lingering, else the oldest, is turned away
"""

import math
from collections.abc import Callable
from typing import Final

import trio

from delay_protocol.basics.errors import RemoteProtocolError
from delay_protocol.wire.frames import FrameDecoder
from delay_transport.connections.connection import CloseReason, ConnectionCounts, Shared
from delay_transport.connections.limits import ConnectionLimits
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Arrival

_ROUND_S: Final = 0.02
"""The task looks at those at the door at multiples of this."""
_LOOKS_PER_STEP: Final = 64
"""Looks in one turn of the loop: a few ms, whatever is found."""
_RECEIVES_PER_LOOK: Final = 3
_SUMMARY_S: Final = 10.0
"""A line in the log at most so often, about those turned away."""


class _Waiting:
    """One connection at the door."""

    __slots__ = ("arrival", "data", "since", "where")

    def __init__(self, arrival: Arrival, where: str, since: float) -> None:
        self.arrival = arrival
        self.where = where
        self.since = since
        self.data = b""


class Door:
    """Holds connections back until they are worth a task, or over."""

    def __init__(
        self,
        limits: ConnectionLimits,
        shared: Shared,
        counts: ConnectionCounts,
        *,
        enter: Callable[[Arrival, str, bytes], None],
    ) -> None:
        """Call `enter` with a connection that may enter, where it is from, and what it said."""
        self._limits = limits
        self._shared = shared
        self._counts = counts
        self._enter = enter
        # Dicts, for their order: the oldest first.
        self._waiting: dict[_Waiting, None] = {}
        self._lingering: dict[_Waiting, None] = {}
        self._rounds: dict[int, list[_Waiting]] = {}
        self._more = Wakeup()
        self._untold = 0
        self._told_at = -math.inf

    def __len__(self) -> int:
        """Return how many are there."""
        return len(self._waiting) + len(self._lingering)

    async def take(self, arrival: Arrival, where: str) -> None:
        """Let a connection wait, unless what it is can be seen at once."""
        waiting = _Waiting(arrival, where, trio.current_time())
        self._waiting[waiting] = None
        if len(self) > self._limits.door_connections_max:
            await self.make_room()
        await self._look(waiting)

    async def make_room(self) -> None:
        """Turn one away of those that are there."""
        oldest = next(iter(self._lingering or self._waiting))
        await self._turn_away(oldest, CloseReason.OVERLOAD)

    async def run(self) -> None:
        """Look at those who wait, again and again, until cancelled; then close them all."""
        try:
            while True:
                if not self._rounds:
                    await self._more.sleep()
                    continue
                first = min(self._rounds)
                with trio.move_on_at(first * _ROUND_S):
                    # Woken when somebody is to be looked at before that.
                    await self._more.sleep()
                if trio.current_time() >= first * _ROUND_S:
                    await self._look_at_all(self._rounds.pop(first))
        finally:
            with trio.CancelScope(shield=True):
                for waiting in [*self._waiting, *self._lingering]:
                    self._leave(waiting)
                    await waiting.arrival.aclose()

    async def _look_at_all(self, round_: list[_Waiting]) -> None:
        for place, waiting in enumerate(round_, 1):
            if waiting in self._lingering:
                await self._turn_away(waiting, CloseReason.PROTOCOL_ERROR)
            elif waiting in self._waiting:
                await self._look(waiting)
            if not place % _LOOKS_PER_STEP:
                await trio.lowlevel.checkpoint()

    async def _look(self, waiting: _Waiting) -> None:
        limits = self._limits
        now = trio.current_time()
        ended = self._receive(waiting)
        try:
            has_frame = self._has_whole_frame(waiting)
        except RemoteProtocolError:
            if ended is not None:
                await self._turn_away(waiting, CloseReason.PROTOCOL_ERROR)
                return
            del self._waiting[waiting]
            self._lingering[waiting] = None
            self._look_again(waiting, now + limits.linger_seconds_max)
            return
        enters_by = waiting.since + limits.door_seconds_max
        if has_frame and ended is not CloseReason.PEER_VANISHED:
            self._let_in(waiting)
        elif ended is not None:
            # In the middle of a frame the end is as good as a reset.
            await self._turn_away(waiting, CloseReason.PEER_VANISHED if waiting.data else ended)
        elif len(waiting.data) >= limits.door_bytes_max or now >= enters_by:
            self._let_in(waiting)
        else:
            # Ever more rarely: who waits for long costs little, and who is quick is soon seen.
            again = now + max(now - waiting.since, _ROUND_S)
            self._look_again(waiting, min(again, enters_by))

    def _let_in(self, waiting: _Waiting) -> None:
        data = waiting.data
        self._leave(waiting)
        self._enter(waiting.arrival, waiting.where, data)

    def _receive(self, waiting: _Waiting) -> CloseReason | None:
        """Take what has come; return why it ended, if it did."""
        bytes_max = self._limits.door_bytes_max
        try:
            for _ in range(_RECEIVES_PER_LOOK):
                if len(waiting.data) >= bytes_max:
                    break
                data = waiting.arrival.receive_now(bytes_max - len(waiting.data))
                if data is None:
                    break
                if not data:
                    return CloseReason.PEER_CLOSED
                waiting.data += data
                self._shared.add(len(data))
                self._counts.received_bytes += len(data)
        except OSError:
            return CloseReason.PEER_VANISHED
        return None

    def _has_whole_frame(self, waiting: _Waiting) -> bool:
        """Say whether a frame is complete; raise RemoteProtocolError if there will never be."""
        if not waiting.data:
            return False
        decoder = FrameDecoder(frame_bytes_max=self._limits.frame_bytes_max)
        decoder.feed(waiting.data)
        return decoder.next_frame() is not None

    def _look_again(self, waiting: _Waiting, when: float) -> None:
        number = math.ceil(when / _ROUND_S)
        if number * _ROUND_S <= trio.current_time():
            # Rounded to now it would be looked at again and again, without a moment passing.
            number += 1
        if number not in self._rounds:
            self._rounds[number] = []
            self._more.wake()
        self._rounds[number].append(waiting)

    def _leave(self, waiting: _Waiting) -> None:
        self._waiting.pop(waiting, None)
        self._lingering.pop(waiting, None)
        self._shared.add(-len(waiting.data))
        # Its round may still know it, for a second.
        waiting.data = b""

    async def _turn_away(self, waiting: _Waiting, reason: CloseReason) -> None:
        self._leave(waiting)
        self._counts.turned_away[reason] += 1
        self._shared.wasted(waiting.where)
        self._untold += 1
        now = trio.current_time()
        if now >= self._told_at + _SUMMARY_S:
            self._shared.warn(
                "connections turned away", count=self._untold, last_from=waiting.where
            )
            self._untold = 0
            self._told_at = now
        await waiting.arrival.aclose()
