"""One accepted connection: frames in, answers out, every limit kept.

Two tasks serve a connection. The reader takes all complete frames of a receive and hands them to
the handler in one synchronous call; the writer, started with the first answer, sends all answers
that gathered meanwhile in one go. Nothing else is started, created or awaited per request.

    state      reads   leaves it when
    open       yes     the peer finishes or breaks a rule, the handler or the server closes
    draining   no      what was accepted is answered and sent, or drain_seconds_max passed
    closed     no      (answers that come now are dropped and counted)

Deadlines are watched by the reader alone, in one cancel scope whose deadline is only ever moved
nearer. When it passes, the reader looks at what is really overdue and goes on with a new scope, so
that a busy connection pays for its deadlines once in some seconds and not with each receive.
"""

import contextlib
import math
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

import structlog
import trio

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.basics.errors import RemoteProtocolError, TruncatedFrameError
from delay_protocol.wire.frames import FLAG_RESPONSE, Frame, FrameDecoder, encode_response
from delay_transport.connections.limits import ConnectionLimits
from delay_transport.seams.leaky_bucket import LeakyBucket
from delay_transport.seams.outbox import OutBox, Wakeup
from delay_transport.seams.read_turns import ReadTurns
from delay_transport.seams.runtime import set_receive_low_water

FAULT_SECONDS: Final = 0.002
"""Nothing is read from a connection for so long after each fault of it. A fault costs the server
some 10 us, and more where it is logged: 500 a second of one connection take 1 % of a core or so,
however many its peer sends."""
FAULTS_SECONDS_MAX: Final = 0.1
"""The longest pause for one request, whose items may each be a fault: 2,048 refused ones cost
10 ms, and a producer whose new subjects are put off is to be slowed, not stopped."""
_TRICKLE_S_MIN = 0.005
"""A frame that is younger is on its way; the pieces of an older one are left to gather."""
_DISCARD_PAUSE_S: Final = 0.05
"""Pause after each receive that is discarded: what a flood sends then is worth no time."""
_HEARTBEAT = int(CommandCode.HEARTBEAT)

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class CloseReason(Enum):
    """Why a connection ended; the value is the label in logs and metrics."""

    PEER_CLOSED = "peer closed"
    PEER_VANISHED = "peer vanished"
    PROTOCOL_ERROR = "protocol error"
    IDLE = "idle"
    SLOW_FRAME = "frame too slow"
    SLOW_READER = "answers not taken"
    MEMORY = "memory needed elsewhere"
    CROWDED = "silent, evicted for a new connection"
    CLOSED_BY_HANDLER = "closed by handler"
    SERVER_STOPPED = "server stopped"
    CANCELLED = "server cancelled"


_DRAINED = frozenset(
    {
        CloseReason.PEER_CLOSED,
        CloseReason.PROTOCOL_ERROR,
        CloseReason.IDLE,
        CloseReason.CLOSED_BY_HANDLER,
        CloseReason.SERVER_STOPPED,
    }
)
"""After these, requests accepted before are still answered."""

_ORDINARY = frozenset(
    {
        CloseReason.PEER_CLOSED,
        CloseReason.IDLE,
        CloseReason.SERVER_STOPPED,
        CloseReason.CANCELLED,
    }
)
"""These say nothing bad about the peer and are logged for debugging only."""


@dataclass(slots=True)
class ConnectionCounts:
    """What happened on all connections of a listener since it began; numbers only grow."""

    accepted: int = 0
    refused: int = 0
    """Closed at once because too many were open, and none of those silent."""
    heartbeats: int = 0
    responses_dropped: int = 0
    """Frames from a peer that claimed to be answers; a server asks nothing."""
    replies_dropped: int = 0
    """Answers that came after their connection was closed."""
    faults: int = 0
    """Requests and messages that were refused as wrong, and unexpected frames."""
    pauses: int = 0
    """How often reading stopped because a limit was reached."""
    closed: Counter[CloseReason] = field(default_factory=Counter)


_ENDINGS_AT_ONCE: Final = 16
"""Connections that close in one turn of the loop: of thousands that end at once, the others have to
wait, so that what is to be done for good peers comes in between."""


class Shared:
    """What all connections of a listener have in common: bytes held, turns, lines in the log.

    Bytes: those held for all connections, and who waits for them to become fewer.

    What is full becomes less full whatever peers do: handlers get done, unsent answers have a
    deadline. Unfinished frames alone, whose deadlines stand still while nobody reads, cannot fill
    it: they have a bound of their own, below that of all bytes, and the largest one gives way.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.held = 0
        """Requests in flight, unfinished frames and unsent answers."""
        self.unfinished = 0
        """The part of `held` that is unfinished frames."""
        self._bytes_max = limits.total_bytes_max
        self._unfinished_bytes_max = limits.unfinished_bytes_max
        self._warnings = LeakyBucket(
            rate=limits.warnings_per_second_max, size=limits.warnings_per_second_max * 10
        )
        self._warnings_left_out = 0
        self.turns = ReadTurns()
        """Who is read when."""
        self.endings = trio.CapacityLimiter(_ENDINGS_AT_ONCE)
        """Which connections may close, when many end at once."""
        # Dicts: woken in the order in which they began to wait, and of equally large frames the
        # one begun first gives way, in every process.
        self._waiting: dict[Wakeup, None] = {}
        self._unfinished: dict[Connection, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether nobody may receive."""
        return self.held >= self._bytes_max

    def add(self, size: int) -> None:
        """Hold `size` more bytes, or fewer if negative."""
        self.held += size
        if size < 0 and self._waiting and not self.is_full:
            for wakeup in self._waiting:
                wakeup.wake()

    def hold_unfinished(self, connection: "Connection", size: int) -> None:
        """Hold `size` bytes of a connection's unfinished frame, in place of what it held before.

        Beyond the bound the largest of all gives way before this returns, be it this one. That one
        has at least as much as just came, and at least its fair share: a peer with less than that
        is never closed for the frames of others, in whatever way they divide them.
        """
        grown = size - self._unfinished.get(connection, 0)
        if size:
            self._unfinished[connection] = size
        else:
            self._unfinished.pop(connection, None)
        self.unfinished += grown
        self.add(grown)
        if self.unfinished > self._unfinished_bytes_max:
            max(self._unfinished, key=self._unfinished.__getitem__).give_way()

    def warn(self, event: str, **details: object) -> None:
        """Log a warning within the rate limit; the next line has the number of those left out."""
        now = trio.current_time()
        if self._warnings.seconds_until_room(now):
            self._warnings_left_out += 1
            return
        self._warnings.pour(now, 1)
        left_out, self._warnings_left_out = self._warnings_left_out, 0
        if left_out:
            details["left_out"] = left_out
        _log.warning(event, **details)

    async def sleep(self, wakeup: Wakeup) -> None:
        """Sleep until `wakeup` is woken, by its owner or because there is room."""
        self._waiting[wakeup] = None
        try:
            await wakeup.sleep()
        finally:
            del self._waiting[wakeup]


class FrameHandler(Protocol):
    """What a server does with requests. Both calls are synchronous and must be short (10 ms)."""

    def frames(self, connection: "Connection", frames: list[Frame], /) -> None:
        """Take the requests of one receive, in order; never answers, heartbeats or none at all.

        Answer each by `connection.reply` or `connection.answer`, now or later. For what is
        answered later call `connection.begin` now and `connection.done` with its answer.
        """

    def closed(self, connection: "Connection", reason: CloseReason, /) -> None:
        """Learn that a connection is gone; what is still in flight needs `done` all the same."""


class Connection:
    """One peer of a listener, as its handler sees it."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        peer: str,
        where: str,
        handler: FrameHandler,
        limits: ConnectionLimits,
        shared: Shared,
        counts: ConnectionCounts,
    ) -> None:
        """Serve a peer from the source address `where`."""
        self.peer = peer
        """Who it is, for logs: host:port."""
        self.in_flight_requests = 0
        """Requests begun and not done."""
        self.in_flight_bytes = 0
        """Bytes of the requests begun and not done."""
        self._stream = stream
        self.where = where
        """The source address that it counts for; "" if it has none."""
        self._handler = handler
        self._limits = limits
        self._shared = shared
        self._counts = counts
        self._decoder = FrameDecoder(frame_bytes_max=limits.frame_bytes_max)
        self._outbox = OutBox(
            stream,
            step_bytes=limits.send_step_bytes,
            on_sending=self._sending,
            on_sent=self._sent,
        )
        self._nursery: trio.Nursery | None = None
        """Where the writer starts; None when it was started, or would be in vain."""
        self._watch = trio.CancelScope()
        self._room = Wakeup()
        self._low_water = 1
        """Bytes of which the socket is to have so many before the reader wakes."""
        self._read_again_at = -math.inf
        """Nothing is read before, because of faults."""
        self._ending: CloseReason | None = None
        self._detail = ""
        self._closed = False
        self._unfinished_bytes = 0
        # Times are trio's. Bytes received or sent are activity; a frame begins with the receive
        # that brought its first byte.
        self._active_at = self._frame_began_at = trio.current_time()
        self._paused_at: float | None = None

    @property
    def is_closed(self) -> bool:
        """Whether answers can no longer reach the peer."""
        return self._closed

    @property
    def is_silent(self) -> bool:
        """Whether nothing is under way: no request, no part of a frame, no answer."""
        return not (self.in_flight_requests or self._unfinished_bytes or self.unsent_bytes)

    @property
    def silent_since(self) -> float:
        """When a byte was received or sent last, in trio's time."""
        return self._active_at

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the peer has not taken yet."""
        return self._outbox.unsent_bytes

    def begin(self, requests: int, size: int) -> None:
        """Count requests that will be answered later and the bytes they keep in memory."""
        self.in_flight_requests += requests
        self.in_flight_bytes += size
        self._shared.add(size)

    def done(self, requests: int, size: int) -> None:
        """Take back what `begin` counted; to be called for every begin, also after the close."""
        self.in_flight_requests -= requests
        self.in_flight_bytes -= size
        assert self.in_flight_requests >= 0
        assert self.in_flight_bytes >= 0
        self._shared.add(-size)
        self._room.wake()

    def reply(self, data: bytes) -> None:
        """Send encoded answers, one frame or many in one piece; dropped if the peer is gone.

        One-way requests to the peer may be among them, at any time, and count as answers do.
        """
        if self._closed:
            self._counts.replies_dropped += 1
            return
        self._shared.add(len(data))
        self._outbox.put(data)
        if self._nursery is not None:
            self._nursery.start_soon(self._write)
            self._nursery = None
        if self._outbox.unsent_bytes > self._limits.unsent_bytes_max:
            self._end(
                CloseReason.SLOW_READER, f"{self._outbox.unsent_bytes} bytes of answers unsent"
            )

    def fault(self, count: int = 1) -> None:
        """Count faults of one request of the peer; nothing is read from it for a while after them.

        That is FAULT_SECONDS for each, FAULTS_SECONDS_MAX at the most.
        """
        self._counts.faults += count
        pause_s = min(count * FAULT_SECONDS, FAULTS_SECONDS_MAX)
        self._read_again_at = max(self._read_again_at, trio.current_time()) + pause_s

    def warn(self, event: str, **details: object) -> None:
        """Write a line about the peer to the log, unless there were too many of the kind."""
        self._shared.warn(event, peer=self.peer, **details)

    def answer(self, request: Frame, code: int, body: bytes = b"") -> None:
        """Answer one request, unless it is one-way."""
        if not request.is_one_way:
            self.reply(encode_response(request, code=code, body=body))

    def close(self, detail: str) -> None:
        """Read no more, send the answers of what was accepted, then close."""
        self._end(CloseReason.CLOSED_BY_HANDLER, detail)

    def stop(self) -> None:
        """Do what close() does, because the server stops."""
        self._end(CloseReason.SERVER_STOPPED, "")

    def give_way(self) -> None:
        """Close at once, because all unfinished frames are too much and this is the largest."""
        self._end(CloseReason.MEMORY, f"{self._unfinished_bytes} bytes into a frame")

    def evict(self) -> None:
        """Close at once, because a cap on connections is reached and this one is silent."""
        self._end(CloseReason.CROWDED, "")

    async def run(self) -> None:
        """Serve the connection until it ends, then close it; only bugs are raised."""
        reason = CloseReason.CANCELLED
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    await self._read()
                    await self._drain()
                    await self._shared.endings.acquire_on_behalf_of(self)
                finally:
                    self._nursery = None
                nursery.cancel_scope.cancel()
            # Without a reason only a bug gets here, and that is on its way up as an exception.
            assert self._ending is not None
            reason = self._ending
        finally:
            self._forget(reason)
            await trio.aclose_forcefully(self._stream)
            with contextlib.suppress(RuntimeError):
                self._shared.endings.release_on_behalf_of(self)

    def _end(self, reason: CloseReason, detail: str) -> None:
        """Let the first reason stand, unless answers were to be drained and now cannot be."""
        if self._ending is None or (self._ending in _DRAINED and reason not in _DRAINED):
            self._ending = reason
            self._detail = detail
        self._drop_unfinished()
        self._watch.cancel()
        self._room.wake()

    def _drop_unfinished(self) -> None:
        """Give back the memory of a frame that will never be complete."""
        if self._unfinished_bytes:
            self._decoder = FrameDecoder(frame_bytes_max=self._limits.frame_bytes_max)
            self._unfinished_bytes = 0
            self._shared.hold_unfinished(self, 0)

    def _forget(self, reason: CloseReason) -> None:
        self._closed = True
        self._drop_unfinished()
        self._shared.add(-self._outbox.unsent_bytes)
        self._counts.closed[reason] += 1
        log = _log.debug if reason in _ORDINARY else self._shared.warn
        log("connection closed", peer=self.peer, reason=reason.value, detail=self._detail)
        self._handler.closed(self, reason)

    # Writing

    async def _write(self) -> None:
        try:
            await self._outbox.run()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._end(CloseReason.PEER_VANISHED, str(error.__cause__ or error))

    def _sending(self, now: float) -> None:
        self._look_by(now + self._limits.send_seconds_max)

    def _sent(self, size: int) -> None:
        self._active_at = trio.current_time()
        self._shared.add(-size)
        self._room.wake()

    # Reading

    async def _read(self) -> None:
        """Read until the connection is to end; `_ending` says why."""
        while self._ending is None:
            with trio.CancelScope(deadline=self._next_look()) as self._watch:
                await self._receive_all()
            if self._ending is None:
                self._end_if_overdue(trio.current_time())

    async def _receive_all(self) -> None:
        receive_bytes = self._limits.receive_bytes
        stream = self._stream
        try:
            while self._ending is None:
                if self._paused_at is not None or self._is_over_limit():
                    await self._pause()
                data = await self._shared.turns.receive(stream, receive_bytes)
                if not data:
                    self._decoder.finish()
                    self._end(CloseReason.PEER_CLOSED, "")
                    return
                self._take(data)
        except TruncatedFrameError as error:
            self._end(CloseReason.PEER_VANISHED, str(error))
        except RemoteProtocolError as error:
            self._end(CloseReason.PROTOCOL_ERROR, str(error))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._end(CloseReason.PEER_VANISHED, str(error.__cause__ or error))

    def _take(self, data: bytes | bytearray) -> None:
        """Hand all frames that `data` completes to the handler; raise what is wrong after them."""
        if self._ending is not None:
            # Ended by somebody else, with this receive already under way.
            return
        decoder = self._decoder
        self._active_at = now = trio.current_time()
        decoder.feed(data)
        frames = decoder.frames()
        unfinished = decoder.buffered
        if unfinished != self._unfinished_bytes:
            if unfinished and (frames or not self._unfinished_bytes):
                self._frame_began_at = now
                self._look_by(now + self._limits.frame_grace_seconds)
            self._unfinished_bytes = unfinished
            self._shared.hold_unfinished(self, unfinished)
        if unfinished or self._low_water > 1:
            self._let_gather(now)
        if frames:
            requests = [
                frame
                for frame in frames
                if frame.code != _HEARTBEAT and not frame.flag & FLAG_RESPONSE
            ]
            if len(requests) != len(frames):
                self._take_others(frames)
            if requests:
                self._handler.frames(self, requests)
        if decoder.fault is not None:
            raise decoder.fault

    def _take_others(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.flag & FLAG_RESPONSE:
                self._counts.responses_dropped += 1
                self.fault()
            elif frame.code == _HEARTBEAT:
                self._counts.heartbeats += 1
                self.fault()
                self.answer(frame, ResponseCode.SUCCESS)

    # Limits

    def _let_gather(self, now: float) -> None:
        """Have the socket wait for more of a frame that comes in small pieces.

        Each receive costs the loop a turn, and a wait for the threads. What the socket keeps to
        itself is at most what a frame has to bring in a second.
        """
        size = 1
        if self._unfinished_bytes and now >= self._frame_began_at + _TRICKLE_S_MIN:
            size = min(self._decoder.missing, self._limits.frame_bytes_per_second_min)
        if size != self._low_water:
            self._low_water = size
            set_receive_low_water(self._stream, size)

    def _is_over_limit(self) -> bool:
        limits = self._limits
        return (
            self.in_flight_requests >= limits.in_flight_requests_max
            or self.in_flight_bytes >= limits.in_flight_bytes_max
            or self._outbox.unsent_bytes >= limits.unsent_bytes_pause
            or self._shared.is_full
            or trio.current_time() < self._read_again_at
        )

    async def _pause(self) -> None:
        """Wait for room. The peer's own deadlines stand still meanwhile: it is us who wait."""
        if self._paused_at is None:
            self._paused_at = trio.current_time()
            self._counts.pauses += 1
        while self._is_over_limit():
            if trio.current_time() < self._read_again_at:
                with trio.move_on_at(self._read_again_at):
                    await self._room.sleep()
            else:
                await self._shared.sleep(self._room)
        now = trio.current_time()
        self._active_at = now
        self._frame_began_at += now - self._paused_at
        self._paused_at = None
        self._look_by(self._next_look())

    def _look_by(self, when: float) -> None:
        """Have the reader look for what is overdue at `when`, if it would not do so before."""
        if when < self._watch.deadline:  # noqa: PLR1730 (assigning costs, and is rare)
            self._watch.deadline = when

    def _next_look(self) -> float:
        """Return when something can be overdue at the earliest, if nothing happens until then."""
        limits = self._limits
        when = math.inf
        if self._outbox.sending_since is not None:
            when = self._outbox.sending_since + limits.send_seconds_max
        if self._paused_at is not None:
            return when
        if self._unfinished_bytes:
            return min(when, self._frame_deadline())
        busy = self.in_flight_requests or self._outbox.unsent_bytes
        since = trio.current_time() if busy else self._active_at
        return min(when, since + limits.idle_seconds_max)

    def _frame_deadline(self) -> float:
        """Return when the unfinished frame is too slow if no more of it arrives."""
        limits = self._limits
        # What the socket keeps to itself may have come as well.
        bytes_come = self._unfinished_bytes + self._low_water - 1
        lasts = bytes_come / limits.frame_bytes_per_second_min
        return self._frame_began_at + min(
            limits.frame_seconds_max, max(limits.frame_grace_seconds, lasts)
        )

    def _end_if_overdue(self, now: float) -> None:
        """End the connection if a deadline has really passed."""
        limits = self._limits
        since = self._outbox.sending_since
        if since is not None and now >= since + limits.send_seconds_max:
            self._end(CloseReason.SLOW_READER, f"{self._outbox.unsent_bytes} bytes of answers left")
        elif self._paused_at is not None:
            return
        elif self._unfinished_bytes:
            if now >= self._frame_deadline():
                self._end(
                    CloseReason.SLOW_FRAME,
                    f"{self._unfinished_bytes} bytes in {now - self._frame_began_at:.1f} s",
                )
        elif (
            not self.in_flight_requests
            and not self._outbox.unsent_bytes
            and now >= self._active_at + limits.idle_seconds_max
        ):
            self._end(CloseReason.IDLE, "")

    # Ending

    async def _drain(self) -> None:
        """Let the answers of what was accepted reach the peer, as far as that can be."""
        if self._is_owed():
            with trio.move_on_after(self._limits.drain_seconds_max):
                while self._is_owed():
                    await self._room.sleep()
        if not self._is_draining() or self._ending is CloseReason.PEER_CLOSED:
            return
        if isinstance(self._stream, trio.abc.HalfCloseableStream) and not self.unsent_bytes:
            with trio.move_on_after(self._limits.linger_seconds_max):
                await self._discard_until_closed(self._stream)

    def _is_owed(self) -> bool:
        """Whether answers are under way and can still reach the peer."""
        return self._is_draining() and bool(self.in_flight_requests or self._outbox.unsent_bytes)

    def _is_draining(self) -> bool:
        return self._ending in _DRAINED

    async def _discard_until_closed(self, stream: trio.abc.HalfCloseableStream) -> None:
        try:
            await stream.send_eof()
            discarded = await stream.receive_some(self._limits.receive_bytes)
            while discarded:
                await trio.sleep(_DISCARD_PAUSE_S)
                discarded = await stream.receive_some(self._limits.receive_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
