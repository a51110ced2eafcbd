"""One connection to a broker group: requests out, answers back, nothing remembered after its end.

A request is asked of the source only when it can be written at once: between the look at the clock
that the source takes and the first byte on the socket lies no queue. That is why the sender does
not use an out-buffer.
"""

import math
from enum import Enum
from typing import Final, Protocol

import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.basics.errors import RemoteProtocolError
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_request
from sender.outcomes.answers import Items
from sender.queues.parcels import Batch

SEND_VERSION: Final = 7
"""The header version QMQ's delay server delivers with."""

_RECEIVE_SIZE = 64 * 1024
_OPAQUE_MAX = 2**31 - 1


class End(Enum):
    """Why a connection ended; each but MOVED and DRAINED counts against the group."""

    UNREACHABLE = "unreachable"
    """It could not be made in time."""
    HELLO = "hello"
    """The HELLO was not answered, or with an error."""
    NO_BROKER = "no broker"
    """A delay server answered the HELLO: what it got could come back."""
    FENCED = "fenced"
    """The HELLO was refused: a newer epoch of this delay group has been seen there."""
    TIMEOUT = "timeout"
    """A request was not answered in time."""
    LOST = "lost"
    """The peer closed it, or the network did."""
    GARBAGE = "garbage"
    """What came was no frame, or no answer."""
    REFUSING = "refusing"
    """The broker refused one request after another."""
    MOVED = "moved"
    """The group has another address now."""
    DRAINED = "drained"
    """We closed it with nothing in flight."""


class Request:
    """A request in flight. What it was sent with is kept for its answer: a retry reads it anew."""

    __slots__ = (
        "batch",
        "is_beside",
        "items",
        "sent_at",
        "size",
    )

    def __init__(self, batch: Batch, items: Items, size: int, *, is_beside: bool = False) -> None:
        self.batch = batch
        self.items = items
        """As read, to find out whom an answer means; those of the batch are not empty."""
        self.size = size
        """Bytes of the items."""
        self.sent_at = 0.0
        """When the first byte went out, in trio's time."""
        self.is_beside = is_beside
        """Whether it is a small one between the large ones of a backlog."""


class RequestSource(Protocol):
    """Where requests come from and answers go. All calls are synchronous."""

    @property
    def send_at(self) -> float:
        """When to ask for the next request, in trio's time, if nobody wakes the connection."""

    def next_request(self) -> tuple[Request, bytes | memoryview] | None:
        """Return a request and its body, to be written now; None if there is none."""

    def answered(self, request: Request, answer: Frame) -> None:
        """Take the answer to a request."""

    def timed_out(self, request: Request | None) -> None:
        """Take the news that a request (None: a heartbeat) was not answered in time.

        An answer that still comes is dropped.
        """

    def stalled(self) -> None:
        """Take the news that what was sent `stall_s` ago is not answered; once for each request.

        It is told of the one that waits longest.
        """


class BrokerConnection:
    """Sends what its source has, and tells the source what came back. It decides nothing.

    Invariant: a request is in `in_flight` from before its first byte is written until its answer
    came or its time ran out; what is in there when run() returns may or may not have arrived.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        source: RequestSource,
        *,
        answer_bytes_max: int,
        request_timeout_s: float,
        stall_s: float,
        heartbeat_s: float,
    ) -> None:
        self.in_flight: dict[int, Request | None] = {}
        """By opaque, in the order of sending; None is a heartbeat."""
        self._stream = stream
        self._source = source
        self._decoder = FrameDecoder(frame_bytes_max=answer_bytes_max)
        self._request_timeout_s = request_timeout_s
        self._stall_s = stall_s
        self._heartbeat_s = heartbeat_s
        self._opaque = 0
        self._work = trio.Event()
        self._sent = trio.Event()
        self._heartbeat_sent_at = 0.0
        self._stalled_until = -math.inf
        """It has been told of what was sent up to then that it is not answered."""
        self._scope = trio.CancelScope()
        self._retiring: tuple[End, str] | None = None
        self._end: tuple[End, str] | None = None

    def waits_since(self) -> float | None:
        """Return when what waits longest for its answer was sent; None if nothing waits."""
        for oldest in self.in_flight.values():
            return self._heartbeat_sent_at if oldest is None else oldest.sent_at
        return None

    def wake(self) -> None:
        """Say that the source may have a request now."""
        self._work.set()

    def retire(self, end: End, detail: str) -> None:
        """End once nothing is in flight. The source must give no more requests."""
        if self._retiring is None:
            self._retiring = (end, detail)
        self._end_if_retired()

    async def greet(self, hello: bytes, *, timeout_s: float) -> Frame | None:
        """Send the HELLO and return its answer; None if there was none before the peer closed.

        Raises TooSlowError, OSError, BrokenResourceError or RemoteProtocolError.
        """
        opaque = self._next_opaque()
        request = encode_request(code=CommandCode.HELLO, opaque=opaque, body=hello)
        with trio.fail_after(timeout_s):
            await self._stream.send_all(request)
            while data := await self._stream.receive_some(_RECEIVE_SIZE):
                self._decoder.feed(data)
                for frame in self._decoder.frames():
                    if frame.is_response and frame.opaque == opaque:
                        return frame
                if self._decoder.fault is not None:
                    raise self._decoder.fault
        return None

    async def run(self) -> tuple[End, str]:
        """Send and receive until the connection ends; return why."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send)
                nursery.start_soon(self._receive)
                nursery.start_soon(self._watch)
        assert self._end is not None
        return self._end

    async def _send(self) -> None:
        """Write one request after another, each built when the one before has left."""
        while True:
            ready = self._source.next_request()
            if ready is not None:
                await self._write(ready[0], CommandCode.SEND_MESSAGE, ready[1])
                continue
            idle_at = trio.current_time() + self._heartbeat_s
            with trio.move_on_at(min(idle_at, self._source.send_at)):
                await self._work.wait()
            is_idle = not (self._work.is_set() or self.in_flight) and trio.current_time() >= idle_at
            self._work = trio.Event()
            if is_idle:
                await self._write(None, CommandCode.HEARTBEAT, b"")

    async def _write(
        self, request: Request | None, code: CommandCode, body: bytes | memoryview
    ) -> None:
        opaque = self._next_opaque()
        now = trio.current_time()
        if request is None:
            self._heartbeat_sent_at = now
        else:
            request.sent_at = now
        self.in_flight[opaque] = request
        self._sent.set()
        frame = encode_request(code=code, opaque=opaque, body=body, version=SEND_VERSION)
        try:
            await self._stream.send_all(frame)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._finish(End.LOST, _reason(error))
            # run() is cancelled; what another task might do before that must not come from here.
            await trio.sleep_forever()

    async def _receive(self) -> None:
        """Hand every answer to the source."""
        while True:
            try:
                data = await self._stream.receive_some(_RECEIVE_SIZE)
                self._decoder.feed(data)
                if not data:
                    self._decoder.finish()
                frames = self._decoder.frames()
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self._finish(End.LOST, _reason(error))
                return
            except RemoteProtocolError as error:
                self._finish(End.LOST if self._decoder.fault is None else End.GARBAGE, str(error))
                return
            self._match(frames)
            if self._decoder.fault is not None:
                self._finish(End.GARBAGE, str(self._decoder.fault))
                return
            if not data:
                self._finish(End.LOST, "closed by the peer")
                return

    def _match(self, frames: list[Frame]) -> None:
        for frame in frames:
            # Late answers, and what answers nothing, are dropped.
            if not frame.is_response or frame.opaque not in self.in_flight:
                continue
            request = self.in_flight.pop(frame.opaque)
            if request is not None:
                self._source.answered(request, frame)
        self._end_if_retired()
        self._work.set()

    async def _watch(self) -> None:
        """Tell of requests that wait long, and give up those whose time has run out.

        Sleeps through those answered in time.
        """
        while True:
            # Times ascend in the order of sending.
            while (oldest := self.waits_since()) is None:
                self._sent = trio.Event()
                await self._sent.wait()
            # What is told of may be answered any time, and then others are what waits longest.
            since = trio.current_time() if oldest <= self._stalled_until else oldest
            look_at = since + self._stall_s
            await trio.sleep_until(min(look_at, oldest + self._request_timeout_s))
            now = trio.current_time()
            while (oldest := self.waits_since()) is not None:
                if oldest + self._request_timeout_s > now:
                    break
                self._source.timed_out(self.in_flight.pop(next(iter(self.in_flight))))
            is_news = oldest is not None and oldest > self._stalled_until
            if oldest is not None and is_news and oldest + self._stall_s <= now:
                self._stalled_until = oldest
                self._source.stalled()
            self._end_if_retired()

    def _next_opaque(self) -> int:
        self._opaque = self._opaque % _OPAQUE_MAX + 1
        return self._opaque

    def _end_if_retired(self) -> None:
        if self._retiring is not None and not self.in_flight:
            self._finish(*self._retiring)

    def _finish(self, end: End, detail: str) -> None:
        if self._end is None:
            self._end = self._retiring or (end, detail)
        self._scope.cancel()


def _reason(error: BaseException) -> str:
    # trio wraps the system's error, which says more.
    cause = error.__cause__ or error
    return str(cause) or type(cause).__name__
