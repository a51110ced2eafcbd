"""Real delay server processes, a producer on a real socket, and a broker that records.

Processes are ended by their own pid, and every wait has an end.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import msgspec

from bridges.broker_end import Refusal, Request
from delay_protocol.basics.codes import ItemCode
from delay_protocol.messages.items import FLAG_DELAY, Item, encode_item
from delay_protocol.messages.send_message import decode_send_reply
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_request
from tests.brokers import ThreadedBroker

ROOT = Path(__file__).parents[2]
READY = re.compile(r"ready listen=(\S+):(\d+) http=(\S+)\n")
READY_S = 30.0
STOP_S = 5.0


def wall_ms() -> int:
    """Return the wall clock of this machine, which the server shares."""
    return time.time_ns() // 1_000_000


def make_item(message_id: str, due_ms: int, *, subject: str = "a.b", value: str = "v") -> bytes:
    """Return the bytes of one item."""
    return encode_item(
        Item(
            flag=FLAG_DELAY,
            create_ms=wall_ms(),
            due_ms=due_ms,
            subject=subject,
            message_id=message_id,
            tags=(),
            attributes={"k": value},
        )
    )


@dataclass(frozen=True, slots=True)
class Delivery:
    """One item that reached the broker."""

    at_ms: int
    message_id: str
    due_ms: int
    data: bytes
    crc_ok: bool


class RecordingBroker(ThreadedBroker):
    """Takes everything and keeps it, in threads of the test's own process."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.blocked: set[str] = set()
        """Subjects of which every item is refused for good."""
        super().__init__(lambda: self._take)

    @property
    def ids(self) -> list[str]:
        """Ids of all deliveries, in order."""
        return [delivery.message_id for delivery in list(self.deliveries)]

    def _take(self, request: Request) -> bytes:
        if not request.has_items:
            return request.answer()
        at_ms = wall_ms()
        scan = request.scan
        refusals: list[Refusal] = []
        for index, message_id in enumerate(scan.ids):
            if scan.subjects[index].decode() in self.blocked:
                refusals.append((message_id, ItemCode.SUBJECT_NOT_ASSIGNED, "blocked"))
                continue
            what = (message_id.decode(), scan.due_ms[index], request.item(index))
            self.deliveries.append(Delivery(at_ms, *what, scan.crc_ok[index]))
        return request.answer(refusals)


class Producer:
    """One blocking connection."""

    def __init__(self, port: int, *, timeout_s: float = 10.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._decoder = FrameDecoder(frame_bytes_max=1 << 26)
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._socket.close()

    def send(self, items: Sequence[bytes]) -> dict[bytes, tuple[int, str]] | None:
        """Send items and wait; return those refused, or None if the request was not taken."""
        self._opaque += 1
        self._socket.sendall(encode_request(code=10, opaque=self._opaque, body=b"".join(items)))
        while True:
            for frame in self._decoder.frames():
                assert frame.opaque == self._opaque
                return None if frame.code else decode_send_reply(frame.body)
            data = self._socket.recv(1 << 20)
            if not data:
                raise ConnectionResetError("closed by the server")
            self._decoder.feed(data)


class Asker:
    """One blocking connection that asks and is told things without having asked."""

    def __init__(self, port: int, *, timeout_s: float = 10.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._decoder = FrameDecoder(frame_bytes_max=1 << 26)
        self._frames: list[Frame] = []
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._socket.close()

    def ask(self, code: int, body: bytes) -> Frame:
        """Send a request and return the next frame."""
        self._opaque += 1
        self._socket.sendall(encode_request(code=code, opaque=self._opaque, body=body))
        return self.receive()

    def receive(self) -> Frame:
        """Return the next frame."""
        while not self._frames:
            data = self._socket.recv(1 << 20)
            if not data:
                raise ConnectionResetError("closed by the server")
            self._decoder.feed(data)
            self._frames += self._decoder.frames()
        return self._frames.pop(0)


class ServerProcess:
    """One life of a server, a delay server unless told otherwise."""

    def __init__(
        self,
        data: Path,
        *,
        broker_port: int | None = None,
        command: str = "delay-server",
        options: Sequence[str] = (),
        wrapper: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        log: Path | None = None,
    ) -> None:
        """Start it; `wrapper` is a command that runs it, in another network namespace, say."""
        self.log_path = log or data.parent / "server.log"
        brokers = () if broker_port is None else ("--broker", f"g1=127.0.0.1:{broker_port}")
        with self.log_path.open("ab") as log_file:
            self.process = subprocess.Popen(
                [
                    *(*wrapper, sys.executable, "-m", "delaywheel", command),
                    *("--data", str(data)),
                    *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
                    *brokers,
                    *options,
                ],
                cwd=ROOT,
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                stderr=log_file,
                text=True,
            )
        self.port = 0
        self.http = ""
        self.token = ""
        """Shown with every question over HTTP, if there is one."""

    def wait_ready(self) -> Self:
        """Wait for the line that begins with `ready`."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(READY_S, self.process.kill)
        watchdog.start()
        try:
            line = self.process.stdout.readline()
        finally:
            watchdog.cancel()
        match = READY.fullmatch(line)
        assert match, f"no ready line but {line!r}; the log ends with:\n{self.log()[-3000:]}"
        self.port, self.http = int(match[2]), match[3]
        return self

    def log(self) -> str:
        """Return what the processes of this directory wrote to standard error."""
        return self.log_path.read_text(errors="replace")

    def sentence(self) -> str:
        """Return the only line in which a process of this directory said why it ended."""
        [line] = [line for line in self.log().splitlines() if line.startswith("Error: ")]
        assert "Traceback" not in self.log()
        return line

    def get(self, path: str) -> tuple[int, bytes]:
        """Ask over HTTP."""
        shown = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(f"http://{self.http}{path}", headers=shown)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def status(self) -> dict[str, Any]:
        """Return the status."""
        code, body = self.get("/status")
        assert code == 200
        return msgspec.json.decode(body, type=dict[str, Any])

    def topology(self) -> dict[str, Any]:
        """Return the topology, of a meta server."""
        code, body = self.get("/api/v1/topology")
        assert code == 200
        return msgspec.json.decode(body, type=dict[str, Any])

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.kill()
        self.wait(STOP_S)

    def terminate(self) -> float:
        """End it by SIGTERM; return the seconds that it took. It must end well."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.wait(STOP_S + 10)
        assert code == 0, f"exit code {code}; the log ends with:\n{self.log()[-3000:]}"
        return time.monotonic() - began

    def wait(self, seconds: float) -> int:
        """Wait for its end; return the exit code."""
        code = self.process.wait(seconds)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def delaywheel(*words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run the command in the checkout."""
    return subprocess.run(
        [sys.executable, "-m", "delaywheel", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@contextlib.contextmanager
def server(
    data: Path, *, broker_port: int | None = None, options: Sequence[str] = ()
) -> Iterator[ServerProcess]:
    """Run a delay server; whatever happens, it is gone afterwards."""
    with _running(ServerProcess(data, broker_port=broker_port, options=options)) as process:
        yield process


@contextlib.contextmanager
def meta_server(data: Path, *, options: Sequence[str] = ()) -> Iterator[ServerProcess]:
    """Run a meta server; whatever happens, it is gone afterwards."""
    with _running(ServerProcess(data, command="meta-server", options=options)) as process:
        yield process


@contextlib.contextmanager
def _running(process: ServerProcess) -> Iterator[ServerProcess]:
    try:
        yield process
    finally:
        process.kill()


def until(condition: Any, *, seconds: float) -> bool:  # noqa: ANN401 (any callable)
    """Wait until a condition holds; return whether it does."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())
