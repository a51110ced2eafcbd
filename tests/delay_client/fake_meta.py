"""A scripted meta server on loopback, in threads: HTTP for discovery, and a listener behind it."""

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta.requests import (
    BrokerGroupInfo,
    BrokerState,
    ClientRegister,
    ClientRegisterReply,
    OnlineState,
    decode_client_register,
    encode_client_register_reply,
)
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_frame, encode_response


def group(name: str, address: str, state: BrokerState = BrokerState.RW) -> BrokerGroupInfo:
    """Return a group as clients see it."""
    return BrokerGroupInfo(name=name, master=address, updated_ms=1, state=state)


@dataclass
class FakeMeta:
    """Answers by `routes`; tests change them, and what else it does, while it runs."""

    routes: dict[str, list[BrokerGroupInfo]] = field(default_factory=dict)
    default: list[BrokerGroupInfo] = field(default_factory=list)
    """The route of subjects that are not named."""
    timestamp_ms: int = 1_000
    asked: list[ClientRegister] = field(default_factory=list)
    connections: int = 0
    discoveries: int = 0
    levels: str = "7s 9s"

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._told: list[tuple[socket.socket, ClientRegister]] = []
        self._http = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._tcp = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.http_port: int = self._http.getsockname()[1]
        self.tcp_port: int = self._tcp.getsockname()[1]
        self.address = f"127.0.0.1:{self.http_port}"
        for listener, serve in ((self._http, self._serve_http), (self._tcp, self._serve_tcp)):
            threading.Thread(target=self._accept, args=(listener, serve), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Die: listeners and connections go."""
        for listener in (self._http, self._tcp):
            _hang_up(listener)
        with self._lock:
            for plug in self._open:
                _hang_up(plug)
            self._open.clear()
            self._told.clear()

    def set_default(self, *groups: BrokerGroupInfo) -> None:
        """Change the route of all subjects that are not named, and push it."""
        self.default = list(groups)
        self.push()

    def push(self) -> None:
        """Tell everybody who asked the route that is right now."""
        with self._lock:
            told = {(id(plug), asked.subject): (plug, asked) for plug, asked in self._told}
        for plug, asked in told.values():
            body = encode_client_register_reply(self.reply(asked))
            self._write(plug, encode_frame(Frame(0, 9, 0, 1, CommandCode.CLIENT_REGISTER, body)))

    def reply(self, asked: ClientRegister) -> ClientRegisterReply:
        """Return the answer to a question."""
        self.timestamp_ms += 1
        return ClientRegisterReply(
            timestamp_ms=self.timestamp_ms,
            subject=asked.subject,
            consumer_group=asked.consumer_group,
            online_state=OnlineState.ONLINE,
            client_type=asked.client_type,
            groups=tuple(self.routes.get(asked.subject, self.default)),
        )

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        while True:
            try:
                plug, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.append(plug)
            threading.Thread(target=serve, args=(plug,), daemon=True).start()

    def _serve_http(self, plug: socket.socket) -> None:
        with contextlib.suppress(OSError):
            data = b""
            while b"\r\n\r\n" not in data:
                more = plug.recv(4096)
                if not more:
                    return
                data += more
            self.discoveries += 1
            assert data.startswith(b"GET /meta/address HTTP/1.0\r\n")
            text = f"127.0.0.1:{self.tcp_port}"
            head = f"Delaywheel-Levels: {self.levels}\r\ncontent-length: {len(text)}"
            plug.sendall(f"HTTP/1.1 200 \r\n{head}\r\n\r\n{text}".encode())
        _hang_up(plug)

    def _serve_tcp(self, plug: socket.socket) -> None:
        self.connections += 1
        decoder = FrameDecoder(frame_bytes_max=1 << 20)
        with contextlib.suppress(OSError):
            while data := plug.recv(65536):
                decoder.feed(data)
                for frame in decoder.frames():
                    self._take(plug, frame)
        _hang_up(plug)

    def _take(self, plug: socket.socket, frame: Frame) -> None:
        asked = decode_client_register(frame.body)
        with self._lock:
            self.asked.append(asked)
            self._told.append((plug, asked))
        body = encode_client_register_reply(self.reply(asked))
        self._write(plug, encode_response(frame, code=0, body=body))

    @staticmethod
    def _write(plug: socket.socket, data: bytes) -> None:
        with contextlib.suppress(OSError):
            plug.sendall(data)


def _hang_up(plug: socket.socket) -> None:
    with contextlib.suppress(OSError):
        plug.shutdown(socket.SHUT_RDWR)
    plug.close()
