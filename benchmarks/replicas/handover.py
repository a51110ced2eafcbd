"""Handing a group over under load: how long nobody answers, and nothing is delivered."""

import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.ailing import now_ms
from benchmarks.load import build_load
from benchmarks.processes import Ailing
from benchmarks.replicas.group import GROUP, Group
from delay_protocol.wire.frames import FrameDecoder

Figures = Iterator[tuple[str, object]]

_PER_REQUEST: Final = 20
_PERIOD_S: Final = 0.02
"""Between requests: 1,000 messages a second."""
_DUE_AFTER_MS: Final = 2000
_BETWEEN_S: Final = 3.0
_WINDOW_MS: Final = 3000
_TIMEOUT_S: Final = 6.0


class Producer(threading.Thread):
    """Sends one request at a time to whichever node takes it, until it is stopped."""

    def __init__(self, addresses: list[tuple[str, int]]) -> None:
        super().__init__()
        self._addresses = addresses
        self._place = 0
        self._stream: socket.socket | None = None
        self._is_over = threading.Event()
        self.answered_ms: list[float] = []
        """When requests were taken, wall clock."""
        self.accepted: list[int] = []
        """The numbers of messages that were acknowledged."""
        self.unknown: set[int] = set()
        """Those that were sent, and perhaps taken, without an answer."""

    def run(self) -> None:
        """Send."""
        number = 0
        while not self._is_over.is_set():
            began = time.perf_counter()
            load = build_load(
                _PER_REQUEST,
                per_request=_PER_REQUEST,
                due_from_ms=int(now_ms()) + _DUE_AFTER_MS,
                spread_ms=1,
                first_number=number,
            )
            numbers = range(number, number + _PER_REQUEST)
            number += _PER_REQUEST
            while not self._is_taken(load.frames[0]):
                self.unknown.update(numbers)
                self._next()
            self.answered_ms.append(now_ms())
            self.accepted += numbers
            time.sleep(max(_PERIOD_S - (time.perf_counter() - began), 0))

    def stop(self) -> None:
        """Let it end."""
        self._is_over.set()
        self.join()

    def _next(self) -> None:
        """Go to the next node, after a short time once all were asked."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._place = (self._place + 1) % len(self._addresses)
        if not self._place:
            time.sleep(0.005)

    def _is_taken(self, request: bytes) -> bool:
        try:
            if self._stream is None:
                self._stream = socket.create_connection(self._addresses[self._place], _TIMEOUT_S)
                self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._stream.sendall(request)
            decoder = FrameDecoder(frame_bytes_max=1 << 20)
            while True:
                data = self._stream.recv(1 << 16)
                if not data:
                    return False
                decoder.feed(data)
                for frame in decoder.frames():
                    return not frame.code and not frame.body
        except OSError:
            return False


def measure(directory: Path, scale: float) -> Figures:
    """Hand a group of three over, 20 times, under 1,000 messages a second."""
    times = max(int(20 * scale), 2)
    broker = Ailing(directory, "broker", fault="well", from_ms=0, until_ms=0)
    asked_ms: list[float] = []
    with Group(directory / "handover", 3, broker_ports=[broker.port]) as group:
        producer = Producer([node.address for node in group.nodes])
        producer.start()
        time.sleep(5)
        for _ in range(times):
            epoch = group.record()["epoch"] + 1
            asked_ms.append(now_ms())
            group.hand_over()
            group.until(partial(_is_in, group, epoch), 10)
            group.until_in_sync(30)
            time.sleep(_BETWEEN_S)
        producer.stop()
        time.sleep(_DUE_AFTER_MS / 1000 + 5)
    came = broker.record()
    answered, arrived = np.array(producer.answered_ms), np.sort(came["arrived_ms"])
    yield f"{times} handovers of {GROUP} under 1,000 messages/s", ""
    for name, moments in (("answers", answered), ("deliveries", arrived)):
        gaps = np.array([_gap(moments, at) for at in asked_ms])
        p50, p99, most = np.percentile(gaps, [50, 99, 100])
        yield f"  no {name} for, ms", f"p50 {p50:.0f}, p99 {p99:.0f}, at the most {most:.0f}"
    ids = came["id"]
    lost = np.setdiff1d(np.array(producer.accepted), ids)
    known = ids[~np.isin(ids, np.array(sorted(producer.unknown)))]
    yield (
        "  accepted, lost, early, delivered twice",
        [
            len(producer.accepted),
            len(lost),
            int((came["arrived_ms"] < came["due_ms"]).sum()),
            len(known) - len(np.unique(known)),
        ],
    )
    yield "  messages whose request had to be sent again", len(producer.unknown)


def _is_in(group: Group, epoch: int) -> bool:
    record = group.record()
    return record["epoch"] >= epoch and record["master"] is not None


def _gap(moments: np.ndarray, at_ms: float) -> float:
    """Return the longest time between two of these in the seconds from a moment on."""
    around = moments[(moments >= at_ms - 200) & (moments < at_ms + _WINDOW_MS)]
    return float(np.diff(around).max(initial=0)) if len(around) > 1 else float(_WINDOW_MS)
