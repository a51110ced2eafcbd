"""How long a good neighbour waits for its answers beside 3,000 hostile connections.

`python -m benchmarks hostile` measures alone, beside hostile connections from three other
addresses, from one other address, and from the neighbour's own. One address may have 2,000
connections, so the last two make some 1,000 connections anew all the time.

    standing     requests on one connection that stands, 50 a second
    newcomer     a connection for each request, 5 a second: connecting counts

A failure is a request that is refused, that is not answered within some seconds, or whose
connection is closed. The hostile connections are of all kinds (`peers.MIX`), run in one
process at the lowest priority, and are made anew when the server closes them.
"""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.hostile.neighbours import Peak, bad_peers
from benchmarks.load import build_load
from benchmarks.processes import DelayServer, Receiver
from delay_protocol.wire.frames import FrameDecoder

_CONNECTIONS = 3000
_SECONDS = 30
_HOUR_MS = 3_600_000
_STANDING_PER_SECOND = 50
_NEWCOMERS_PER_SECOND = 5
_ANSWER_S_MAX = 5.0
_FRAME_MAX = 1 << 20
_SOURCES = {
    "alone": "",
    "from three addresses": "127.0.0.2,127.0.0.3,127.0.0.4",
    "from another address": "127.0.0.2",
    "from its own": "127.0.0.1",
}
"""Where the hostile connections of each measurement come from."""


def _ask(stream: socket.socket, request: bytes) -> None:
    """Have one request answered; raise OSError if it is refused or not answered."""
    stream.sendall(request)
    decoder = FrameDecoder(frame_bytes_max=_FRAME_MAX)
    while True:
        data = stream.recv(1 << 16)
        if not data:
            raise OSError("the server closed the connection")
        decoder.feed(data)
        for frame in decoder.frames():
            if frame.code or frame.body:
                raise OSError(f"refused: code {frame.code}, body {frame.body[:100]!r}")
            return


def _connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=_ANSWER_S_MAX)


@dataclass
class Asked:
    """What one way to ask has met."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Tell of it."""
        p50, p99, highest = np.percentile(np.array(self.seconds) * 1000, [50, 99, 100])
        told = f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, max {highest:.0f} ms of {len(self.seconds):,}"
        return f"{told}, {len(self.failures)} failures {sorted(set(self.failures))[:3]}"


class Neighbour:
    """A good producer that asks in both ways at once."""

    def __init__(self, address: tuple[str, int], requests: Sequence[bytes]) -> None:
        self._address = address
        self._requests = requests
        self.standing = Asked()
        self.newcomers = Asked()

    def ask(self, seconds: float) -> None:
        """Ask for so long."""
        threads = [
            threading.Thread(target=self._ask_standing, args=(seconds,)),
            threading.Thread(target=self._ask_as_newcomers, args=(seconds,)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _ask_standing(self, seconds: float) -> None:
        stream = _connect(self._address)
        for request in self._paced(seconds, _STANDING_PER_SECOND):
            began = time.perf_counter()
            try:
                _ask(stream, request)
            except OSError as error:
                self.standing.failures.append(str(error))
                stream.close()
                stream = _connect(self._address)
            self.standing.seconds.append(time.perf_counter() - began)
        stream.close()

    def _ask_as_newcomers(self, seconds: float) -> None:
        for request in self._paced(seconds, _NEWCOMERS_PER_SECOND):
            began = time.perf_counter()
            try:
                with _connect(self._address) as stream:
                    _ask(stream, request)
            except OSError as error:
                self.newcomers.failures.append(str(error))
            self.newcomers.seconds.append(time.perf_counter() - began)

    def _paced(self, seconds: float, per_second: int) -> Iterator[bytes]:
        began = time.perf_counter()
        for number in range(int(seconds * per_second)):
            time.sleep(max(0.0, began + number / per_second - time.perf_counter()))
            yield self._requests[number % len(self._requests)]


def measure(directory: Path, scale: float) -> Iterator[tuple[str, str]]:
    """Yield a name and a figure each; the scale is that of the connections."""
    count = int(_CONNECTIONS * scale)
    receiver = Receiver(directory)
    server = DelayServer(directory, broker_port=receiver.port)
    requests = build_load(
        2000,
        per_request=1,
        due_from_ms=int(time.time() * 1000) + _HOUR_MS,
        spread_ms=_HOUR_MS,
    ).frames
    for name, source in _SOURCES.items():
        neighbour = Neighbour(server.address, requests)
        peak, cpu, began = Peak(server), server.cpu_seconds(), time.perf_counter()
        if source:
            with bad_peers(server.address, "mixed", count, source) as counts:
                neighbour.ask(_SECONDS)
        else:
            counts = {}
            neighbour.ask(_SECONDS)
        share = (server.cpu_seconds() - cpu) / (time.perf_counter() - began)
        beside = f"beside {count:,} {name}" if source else name
        yield beside, f"server {share:.0%} of a core, {peak.end():.0f} MiB; {counts}"
        yield "  standing", str(neighbour.standing)
        yield "  newcomers", str(neighbour.newcomers)
    for process in (server, receiver):
        process.kill()
