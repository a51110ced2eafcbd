"""A scripted delay server on loopback, in threads, so that every kind of client can talk to it."""

import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import pytest

from delay_client import ClientConfig
from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.basics.errors import RemoteProtocolError
from delay_protocol.messages.items import Item, ItemScan, decode_item, scan_items
from delay_protocol.messages.send_message import encode_send_reply
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_response
from delay_protocol.wire.hello import Hello, encode_hello
from tests.ports import closed_port

FAST: Final = ClientConfig(backoff_min_s=0.001, backoff_max_s=0.004, timeout_s=10.0)
"""A client that does not make a test wait."""

HELLO: Final = Frame(CommandCode.HELLO, 9, 0, 0, 0, b"")
"""What each connection of a client begins with, as far as an answer repeats it."""


def hello_reply(frame: Frame = HELLO) -> bytes:
    """Return what a delay server answers to a HELLO."""
    body = encode_hello(Hello(group="g1", epoch=1, node_id="n1", log_uuid="u1"))
    return encode_response(frame, code=ResponseCode.BROKER_REJECT, body=body)


def broker_reply(frame: Frame = HELLO) -> bytes:
    """Return what our loopback broker answers to a HELLO."""
    body = encode_hello(Hello(group="b1", epoch=0, node_id="loopback"))
    return encode_response(frame, code=ResponseCode.SUCCESS, body=body)


DROP: Final = b"drop"
"""What a script returns to close the connection."""
SILENCE: Final = b""
"""What a script returns to give no answer."""


@dataclass(frozen=True)
class Request:
    """One request as a script sees it."""

    frame: Frame
    items: list[bytes]
    number: int
    """Counts the requests of the server from 0."""
    connection: int
    """Counts its connections from 0."""

    @property
    def ids(self) -> list[str]:
        return [decode_item(item).message_id for item in self.items]

    def accept(self) -> bytes:
        return encode_response(self.frame, code=0)

    def answer(self, code: int) -> bytes:
        return encode_response(self.frame, code=code)

    def fail_items(self, *failures: tuple[str, int, str]) -> bytes:
        body = encode_send_reply([(name.encode(), code, remark) for name, code, remark in failures])
        return encode_response(self.frame, code=0, body=body)


Script = Callable[[Request], bytes]


@dataclass
class ScriptedServer:
    """Answers requests as its script says, and remembers them."""

    script: Script
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    ended: int = 0
    """Connections that were closed."""
    hello: Callable[[Frame], bytes] = hello_reply
    """Answers who it is."""
    _sockets: list[socket.socket] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def items(self) -> list[Item]:
        """Return all items received, in order, those sent again included."""
        return [decode_item(item) for request in self.requests for item in request.items]

    def close(self) -> None:
        # Closing alone would not wake a thread that waits in accept().
        _hang_up(self._listener)
        self.drop_connections()

    def drop_connections(self) -> None:
        with self._lock:
            for plug in self._sockets:
                _hang_up(plug)
            self._sockets.clear()

    def _accept(self) -> None:
        while True:
            try:
                plug, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._sockets.append(plug)
                number = self.connections
                self.connections += 1
            threading.Thread(target=self._serve, args=(plug, number), daemon=True).start()

    def _serve(self, plug: socket.socket, connection: int) -> None:
        decoder = FrameDecoder(frame_bytes_max=1 << 24)
        try:
            while data := plug.recv(65536):
                decoder.feed(data)
                for frame in decoder.frames():
                    if frame.code == CommandCode.HELLO:
                        plug.sendall(self.hello(frame))
                        continue
                    scan = ItemScan()
                    scan_items(frame.body, scan)
                    items = [
                        frame.body[start : start + size]
                        for start, size in zip(scan.starts, scan.sizes, strict=True)
                    ]
                    with self._lock:
                        request = Request(frame, items, len(self.requests), connection)
                        self.requests.append(request)
                    answer = self.script(request)
                    if answer == DROP:
                        _hang_up(plug)
                        return
                    plug.sendall(answer)
        except (OSError, RemoteProtocolError):
            pass
        finally:
            plug.close()
            self.ended += 1


def _hang_up(plug: socket.socket) -> None:
    with contextlib.suppress(OSError):
        plug.shutdown(socket.SHUT_RDWR)
    plug.close()


StartServer = Callable[[Script], ScriptedServer]
Run = Callable[[Callable[[], Awaitable[Any]]], Any]


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run an async function on a backend, for 20 s at most; return what it returns."""

    def run_on_backend(fn: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 (whatever it is)
        async def limited() -> Any:  # noqa: ANN401 (whatever it is)
            with anyio.fail_after(20):
                return await fn()

        return anyio.run(limited, backend=request.param)

    return run_on_backend


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Start servers that end with the test."""
    servers: list[ScriptedServer] = []

    def start(script: Script) -> ScriptedServer:
        server = ScriptedServer(script)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def unused_address() -> str:
    """Return an address where nobody listens."""
    return f"127.0.0.1:{closed_port()}"
