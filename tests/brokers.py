"""Brokers of tests: one on trio's streams, one in threads. What they do with items, others say."""

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import trio

from bridges.broker_end import Request
from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.messages.items import FLAG_DELAY
from delay_protocol.wire.hello import Hello, decode_hello
from tests.kit.broker_end import BrokerEnd


@dataclass(frozen=True)
class Received(Request):
    """A SEND_MESSAGE as it came in, and when."""

    at_ms: int


class SharedStream:
    """A stream that many tasks may send to."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._lock = trio.Lock()
        self.receive_some = stream.receive_some

    async def send_all(self, data: bytes) -> None:
        async with self._lock:
            await self._stream.send_all(data)

    async def close(self) -> None:
        await trio.aclose_forcefully(self._stream)


class StreamBroker:
    """A broker on streams. Fails if anything comes early, broken or empty."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.hello_code: int | None = ResponseCode.UNKNOWN_CODE
        """None: the HELLO is never answered."""
        self.hello_body = b""
        """With the answer to the HELLO."""
        self.is_deaf = False
        """Nothing is read from connections."""
        self.requests: list[Received] = []
        self.hellos: list[Hello] = []
        self.heartbeats: list[float] = []
        self._now_ms = now_ms
        self._open: list[trio.abc.Stream] = []

    async def take(self, stream: SharedStream, request: Received, nursery: trio.Nursery) -> None:
        """Decide what becomes of the items, and answer or have a task do it."""
        raise NotImplementedError

    @property
    def is_silent(self) -> bool:
        """Whether it answers no HEARTBEAT."""
        return False

    async def hang_up(self) -> None:
        """Close all connections."""
        for stream in self._open:
            await trio.aclose_forcefully(stream)
        self._open.clear()

    async def serve(self, connection: trio.abc.Stream) -> None:
        """Serve one connection."""
        self._open.append(connection)
        end, stream = BrokerEnd(), SharedStream(connection)
        try:
            async with trio.open_nursery() as nursery:
                while not self.is_deaf and (data := await stream.receive_some()):
                    for request in end.receive(data):
                        await self._handle(stream, request, nursery)
                if self.is_deaf:
                    await trio.sleep_forever()
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(connection)

    async def _handle(self, stream: SharedStream, request: Request, nursery: trio.Nursery) -> None:
        if request.has_items:
            received = Received(request.frame, self._now_ms())
            assert received.ids, "an empty SEND_MESSAGE"
            assert all(received.scan.crc_ok)
            for due_ms, flag in zip(received.scan.due_ms, received.scan.flags, strict=True):
                assert due_ms <= received.at_ms or not flag & FLAG_DELAY, "sent before its time"
            self.requests.append(received)
            await self.take(stream, received, nursery)
        elif request.frame.code == CommandCode.HELLO:
            self.hellos.append(decode_hello(request.frame.body))
            if self.hello_code is not None:
                await stream.send_all(request.answer(code=self.hello_code, body=self.hello_body))
        else:
            assert request.frame.code == CommandCode.HEARTBEAT
            self.heartbeats.append(trio.current_time())
            if not self.is_silent:
                await stream.send_all(request.answer())


class ThreadedBroker:
    """A broker on a port of the loopback, with a thread for each connection.

    `handler` is called for each connection, in its thread, and returns what answers its requests.
    """

    def __init__(self, handler: Callable[[], Callable[[Request], bytes]]) -> None:
        self._handler = handler
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._closing = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._closing = True
        # close() alone would leave the threads in accept() and recv().
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        end, answer = BrokerEnd(), self._handler()
        # A server that was killed ends it.
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(1 << 20):
                for request in end.receive(data):
                    connection.sendall(answer(request))
