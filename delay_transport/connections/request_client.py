"""The asking side of the wire: one connection, many requests in flight.

There are two ways to ask. `submit` only puts the request into the out-buffer; its answer comes as
a call of `on_reply`, and the end of the connection as one call of `on_lost`: no task, event or
await per request. `request` waits for the one answer and is for whoever asks now and then.

    async with trio.open_nursery() as nursery:
        connection = RequestConnection(on_reply=..., on_lost=...)
        await nursery.start(connection.run, network, address)

run() returns when the connection is lost; who wants another one makes a new RequestConnection.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.basics.errors import RemoteProtocolError
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_one_way, encode_request
from delay_transport.connections.limits import RequestLimits
from delay_transport.seams.errors import (
    ConnectError,
    ConnectionLostError,
    RequestTimeoutError,
    TooManyInFlightError,
)
from delay_transport.seams.outbox import OutBox
from delay_transport.seams.runtime import Address, Network, format_address

_OPAQUE_MAX = 2**31 - 1

OnReply = Callable[[int, Frame], None]
OnPush = Callable[[Frame], None]
OnLost = Callable[[ConnectionLostError], None]


class _Waiter:
    """A task that waits for one answer."""

    __slots__ = ("ended", "error", "frame")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.frame: Frame | None = None
        self.error: ConnectionLostError | None = None


class _To(Enum):
    """Where an answer goes that no task waits for."""

    CALLBACK = "callback"
    NOBODY = "nobody"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class RequestCounts:
    """What happened on one connection so far; numbers only grow."""

    requests: int = 0
    """Sent or to be sent, heartbeats included."""
    replies: int = 0
    """Answers that belonged to a request."""
    replies_dropped: int = 0
    """Frames that answer nothing we wait for: given up meanwhile, unknown, or no answers at all."""
    heartbeats: int = 0


def _ignore_reply(_opaque: int, _frame: Frame) -> None:
    """Take an answer nobody asked to see."""


def _ignore_push(_frame: Frame) -> None:
    """Take what nobody asked for."""


def _ignore_loss(_error: ConnectionLostError) -> None:
    """Take the news nobody asked for."""


class RequestConnection:
    """One connection to one peer; usable from nursery.start(run) until it is lost.

    Callbacks are called by the reader, must be short and must not raise; they may submit. What the
    peer sends unasked, with opaque 0 or as a one-way request, goes to `on_push`.
    """

    def __init__(
        self,
        *,
        on_reply: OnReply = _ignore_reply,
        on_lost: OnLost = _ignore_loss,
        on_push: OnPush = _ignore_push,
        limits: RequestLimits | None = None,
    ) -> None:
        self.counts = RequestCounts()
        """What happened so far."""
        self.peer = "nobody yet"
        """Who it is, for logs: host:port."""
        self._limits = limits or RequestLimits()
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._on_push = on_push
        self._decoder = FrameDecoder(frame_bytes_max=self._limits.frame_bytes_max)
        self._outbox: OutBox | None = None
        # In the order of asking, so that what a lost connection reports is oldest first.
        self._pending: dict[int, _Waiter | _To] = {}
        self._opaque = 0
        self._loss: str | None = None
        self._watch = trio.CancelScope()
        self._room = trio.lowlevel.ParkingLot()
        # Times are trio's.
        self._received_at = self._heartbeat_at = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether requests can be made."""
        return self._outbox is not None and self._loss is None

    @property
    def in_flight(self) -> int:
        """Requests that wait for their answer."""
        return len(self._pending)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of requests that the peer has not taken yet."""
        return 0 if self._outbox is None else self._outbox.unsent_bytes

    @property
    def has_room(self) -> bool:
        """Whether `submit` would be let through by the limits."""
        return (
            len(self._pending) < self._limits.in_flight_requests_max
            and self.unsent_bytes < self._limits.unsent_bytes_max
        )

    def submit(self, code: int, body_parts: Sequence[bytes]) -> int:
        """Queue a request and return its opaque; `on_reply` is called with it and the answer.

        The body is the parts one after another. Raises ConnectionLostError when the connection is
        not open and TooManyInFlightError when a limit is reached; nothing is queued then.
        """
        if not self.has_room and self.is_open:
            raise TooManyInFlightError(
                peer=self.peer, requests=len(self._pending), unsent_bytes=self.unsent_bytes
            )
        return self._put(code, b"".join(body_parts), _To.CALLBACK)

    async def request(self, code: int, body: bytes, *, timeout_s: float) -> Frame:
        """Send a request, waiting for room if need be, and return its answer, whatever its code.

        Raises RequestTimeoutError or ConnectionLostError; what the peer did is unknown after both.
        """
        with trio.move_on_after(timeout_s):
            while self.is_open and not self.has_room:
                await self._room.park()
            waiter = _Waiter()
            opaque = self._put(code, body, waiter)
            try:
                await waiter.ended.wait()
            finally:
                # If it is still there we stop waiting before it is answered.
                self.abandon(opaque)
            if waiter.error is not None:
                raise waiter.error
            assert waiter.frame is not None
            return waiter.frame
        raise RequestTimeoutError(peer=self.peer, code=code, seconds=timeout_s)

    def tell(self, code: int, *parts: bytes | memoryview) -> None:
        """Queue a request that wants no answer; its body is the parts one after another.

        Raises ConnectionLostError. Nothing bounds what is told: who tells much looks at
        `unsent_bytes`.
        """
        if self._outbox is None or self._loss is not None:
            raise ConnectionLostError(peer=self.peer, reason=self._loss or "not connected")
        self.counts.requests += 1
        self._outbox.put(encode_one_way(code, *parts))

    def abandon(self, opaque: int) -> bool:
        """Wait no longer for this answer; False if it was not awaited. A late one is dropped."""
        if self._pending.pop(opaque, None) is None:
            return False
        self._made_room()
        return True

    def close(self, reason: str = "closed by us") -> None:
        """End the connection now; requests unanswered are lost. run() returns soon after."""
        self._lose(reason)

    async def run(
        self,
        network: Network,
        address: Address,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Connect, tell the starter, and serve until the connection is lost or closed.

        Raises ConnectError if it never stood. Once started it only returns, after `on_lost` was
        called exactly once; so it is when cancelled.
        """
        self.peer = format_address(address)
        stream = await self._connect(network, address)
        try:
            self._outbox = OutBox(
                stream,
                step_bytes=self._limits.send_step_bytes,
                on_sending=self._sending,
                on_sent=self._sent,
            )
            self._received_at = trio.current_time()
            task_status.started()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, self._outbox)
                await self._read(stream, self._outbox)
                nursery.cancel_scope.cancel()
        finally:
            self._fail_pending()
            await trio.aclose_forcefully(stream)

    async def _connect(self, network: Network, address: Address) -> trio.abc.Stream:
        host, port = address
        try:
            with trio.fail_after(self._limits.connect_seconds_max):
                return await network.connect(host, port)
        except trio.TooSlowError as error:
            seconds = self._limits.connect_seconds_max
            raise ConnectError(
                address=self.peer, reason=f"no connection within {seconds:g} s"
            ) from error
        except OSError as error:
            raise ConnectError(address=self.peer, reason=str(error)) from error

    def _put(self, code: int, body: bytes, asker: _Waiter | _To) -> int:
        if self._outbox is None or self._loss is not None:
            raise ConnectionLostError(peer=self.peer, reason=self._loss or "not connected")
        self._opaque = opaque = self._opaque + 1 if self._opaque < _OPAQUE_MAX else 1
        self._pending[opaque] = asker
        self.counts.requests += 1
        self._outbox.put(encode_request(code=code, opaque=opaque, body=body))
        return opaque

    def _made_room(self) -> None:
        if self._room:
            self._room.unpark()

    def _lose(self, reason: str) -> None:
        if self._loss is None:
            self._loss = reason
        self._watch.cancel()

    def _fail_pending(self) -> None:
        """Tell everybody who waits, each once."""
        reason = self._loss = self._loss or "cancelled"
        pending, self._pending = self._pending, {}
        submitted = tuple(opaque for opaque, to in pending.items() if to is _To.CALLBACK)
        for asker in pending.values():
            if isinstance(asker, _Waiter):
                asker.error = ConnectionLostError(peer=self.peer, reason=reason)
                asker.ended.set()
        self._room.unpark_all()
        self._on_lost(ConnectionLostError(peer=self.peer, reason=reason, unanswered=submitted))

    # Writing

    async def _write(self, outbox: OutBox) -> None:
        try:
            await outbox.run()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._lose(str(error.__cause__ or error))

    def _sending(self, now: float) -> None:
        deadline = now + self._limits.send_seconds_max
        if deadline < self._watch.deadline:  # noqa: PLR1730 (assigning costs, and is rare)
            self._watch.deadline = deadline

    def _sent(self, _size: int) -> None:
        self._made_room()

    # Reading

    async def _read(self, stream: trio.abc.Stream, outbox: OutBox) -> None:
        """Read until the connection is lost; deadlines are watched as in connection.py."""
        while self._loss is None:
            with trio.CancelScope(deadline=self._next_look(outbox)) as self._watch:
                await self._receive_all(stream)
            if self._loss is None:
                self._act_on_silence(outbox, trio.current_time())

    async def _receive_all(self, stream: trio.abc.Stream) -> None:
        decoder = self._decoder
        receive_bytes = self._limits.receive_bytes
        try:
            while self._loss is None:
                data = await stream.receive_some(receive_bytes)
                if not data:
                    decoder.finish()
                    self._lose("closed by the peer")
                    return
                self._received_at = trio.current_time()
                decoder.feed(data)
                self._take(decoder.frames())
                if decoder.fault is not None:
                    raise decoder.fault
        except (RemoteProtocolError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._lose(str(error.__cause__ or error))

    def _take(self, frames: list[Frame]) -> None:
        pending = self._pending
        on_reply = self._on_reply
        for frame in frames:
            is_answer = frame.is_response
            if not frame.opaque or (frame.is_one_way and not is_answer):
                self._on_push(frame)
                continue
            asker = pending.pop(frame.opaque, _To.UNKNOWN) if is_answer else _To.UNKNOWN
            if asker is _To.UNKNOWN:
                self.counts.replies_dropped += 1
                continue
            self.counts.replies += 1
            if asker is _To.CALLBACK:
                on_reply(frame.opaque, frame)
            elif isinstance(asker, _Waiter):
                asker.frame = frame
                asker.ended.set()
            self._made_room()

    def _next_look(self, outbox: OutBox) -> float:
        """Return when silence must be acted on, if nothing happens until then."""
        limits = self._limits
        when = min(self._heartbeat_due(), self._received_at + limits.idle_seconds_max)
        if outbox.sending_since is not None:
            when = min(when, outbox.sending_since + limits.send_seconds_max)
        return when

    def _heartbeat_due(self) -> float:
        """Return when to send a HEARTBEAT, counted from the last receive or heartbeat."""
        return max(self._received_at, self._heartbeat_at) + self._limits.heartbeat_seconds

    def _act_on_silence(self, outbox: OutBox, now: float) -> None:
        limits = self._limits
        since = outbox.sending_since
        if since is not None and now >= since + limits.send_seconds_max:
            self._lose(f"nothing sent for {limits.send_seconds_max:g} s")
        elif now >= self._received_at + limits.idle_seconds_max:
            self._lose(f"nothing received for {limits.idle_seconds_max:g} s")
        elif now >= self._heartbeat_due():
            self._heartbeat_at = now
            self.counts.heartbeats += 1
            self._put(CommandCode.HEARTBEAT, b"", _To.NOBODY)
