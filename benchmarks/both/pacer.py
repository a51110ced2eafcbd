"""A producer that keeps to a rate: `python -m benchmarks.both.pacer PORT RATE SECONDS DIRECTORY`.

It builds all requests beforehand, in a file in DIRECTORY, and prints `ready`; then it sends them to
PORT, RATE messages a second for SECONDS. Requests are planned for ticks of 2 ms. One that cannot be
sent in time, since too many are unanswered, is sent as soon as that is possible, and its answer
counts from the planned time: whoever stalls the producer is charged with it. At the end it prints
one JSON line: start_ms (wall clock, a whole second), refused (requests) and cpu_seconds (without
the building), and DIRECTORY/answers.npy has two rows: for each request the planned time and that of
its answer, in seconds from the start.
"""

import json
import os
import selectors
import socket
import sys
import time
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.load import build_load
from delay_protocol.wire.frames import Frame, FrameDecoder

PER_REQUEST: Final = 20
"""Messages of a request."""
DUE_AFTER_MS: Final = 2000
"""From the planned time of a message until it is due, give or take a part of the load."""
_PARTS: Final = 10
"""In which a second of the load is built: its messages are due within as long a time."""
_CONNECTIONS: Final = 2
_TICK_S: Final = 0.002
_UNANSWERED_MAX: Final = 40_000 // PER_REQUEST
"""Requests: what 100,000 messages/s are in 0.4 s, so that nothing but a stall gets so far."""
_WAIT_S: Final = 0.05
_LEAD_S: Final = 2.0
_LEAD_FACTOR: Final = 1.5
"""How much longer building all may take than building the first second's load lets expect."""
_FRAME_MAX: Final = 1 << 20

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How many messages a second are sent, and for how many seconds."""

    rate: int
    seconds: int

    @property
    def requests(self) -> int:
        """Requests in all."""
        return self.rate * self.seconds // PER_REQUEST

    def times(self) -> Seconds:
        """Return when each request is to be sent, in seconds from the start."""
        ticks = np.arange(self.requests) * (PER_REQUEST / self.rate / _TICK_S)
        times: Seconds = np.floor(ticks + 1e-6) * _TICK_S
        return times


class Requests:
    """The file of requests, which all have one length."""

    def __init__(self, path: Path, plan: Plan) -> None:
        """Build them; raise SystemExit if that takes longer than was thought."""
        self._plan = plan
        self.file: FileIO = path.open("wb+", buffering=0)
        began = time.perf_counter()
        self.size = self._write_second(0, 0)
        expected_s = (time.perf_counter() - began) * plan.seconds
        self.file.seek(0)
        self.start_ms = (int(time.time() + expected_s * _LEAD_FACTOR + _LEAD_S) + 1) * 1000
        for second in range(plan.seconds):
            self._write_second(second, self.start_ms)
        late_s = time.time() + 0.2 - self.start_ms / 1000
        if late_s > 0:
            raise SystemExit(
                f"building {expected_s:.1f} s of requests took {late_s:.1f} s longer than it may"
            )

    def _write_second(self, second: int, start_ms: int) -> int:
        """Write what is sent within a second, durably; return the bytes of a request.

        Durably, since a file system that writes it later does so while the server's fsyncs wait.
        """
        size = 0
        messages = self._plan.rate // _PARTS
        part_ms = 1000 // _PARTS
        for part in range(second * _PARTS, (second + 1) * _PARTS):
            load = build_load(
                messages,
                per_request=PER_REQUEST,
                due_from_ms=start_ms + part * part_ms + DUE_AFTER_MS,
                spread_ms=part_ms,
                seed=part,
                first_number=part * messages,
                first_opaque=part * messages // PER_REQUEST,
            )
            size = len(load.frames[0])
            assert load.bytes == size * len(load.frames), "requests of more than one length"
            data = b"".join(load.frames)
            assert self.file.write(data) == len(data), "the disk is full"
        os.fdatasync(self.file.fileno())
        return size


class Line:
    """One connection to the server, and the bytes of the file that are on their way over it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.stream = socket.create_connection(address)
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream.settimeout(0)
        self._decoder = FrameDecoder(frame_bytes_max=_FRAME_MAX)
        self._place = self._end = 0

    @property
    def is_free(self) -> bool:
        """Whether all that it was given to send is sent."""
        return self._place == self._end

    def give(self, place: int, end: int) -> None:
        """Have these bytes of the file sent."""
        self._place, self._end = place, end

    def send(self, file: FileIO) -> None:
        """Send what the kernel takes now."""
        while not self.is_free:
            try:
                self._place += os.sendfile(
                    self.stream.fileno(), file.fileno(), self._place, self._end - self._place
                )
            except BlockingIOError:
                return

    def answers(self) -> list[Frame]:
        """Return the answers that have come."""
        data = self.stream.recv(1 << 20)
        if not data:
            raise SystemExit("the server closed the connection")
        self._decoder.feed(data)
        return list(self._decoder.frames())


class Pacing:
    """Sends requests when they are planned, and keeps when each was answered."""

    def __init__(self, address: tuple[str, int], requests: Requests, planned: Seconds) -> None:
        self._requests = requests
        self._planned = planned
        self.answered: Seconds = np.zeros(len(planned))
        self.refused = 0
        self._sent = self._done = 0
        self._lines = [Line(address) for _ in range(_CONNECTIONS)]
        # epoll counts in whole milliseconds, select in microseconds.
        self._selector = selectors.SelectSelector()
        for line in self._lines:
            self._selector.register(line.stream, selectors.EVENT_READ, line)

    def run(self) -> None:
        """Wait for the start, and send until everything is answered."""
        start_s = self._requests.start_ms / 1000
        time.sleep(max(start_s - time.time(), 0))
        began = time.perf_counter() - (time.time() - start_s)
        while self._done < len(self._planned):
            now = time.perf_counter() - began
            due = int(np.searchsorted(self._planned, now, side="right"))
            self._send_until(min(due, self._done + _UNANSWERED_MAX))
            now = time.perf_counter() - began
            for key, _ in self._selector.select(self._pause(due, now)):
                self._take(key.data.answers(), time.perf_counter() - began)

    def _send_until(self, number: int) -> None:
        """Send requests up to this one, shared among the connections that have nothing to send."""
        free = [line for line in self._lines if line.is_free]
        for left, line in zip(range(len(free), 0, -1), free, strict=True):
            count = -(-max(number - self._sent, 0) // left)
            size = self._requests.size
            line.give(self._sent * size, (self._sent + count) * size)
            self._sent += count
        for line in self._lines:
            line.send(self._requests.file)

    def _pause(self, due: int, now: float) -> float:
        """Return how long nothing can be done unless an answer comes, in seconds."""
        if not all(line.is_free for line in self._lines):
            return _TICK_S
        if due == len(self._planned) or self._sent < due:
            return _WAIT_S
        return max(float(self._planned[due]) - now, 0.0)

    def _take(self, answers: list[Frame], now: float) -> None:
        self.answered[[answer.opaque for answer in answers]] = now
        self.refused += sum(1 for answer in answers if answer.code or answer.body)
        self._done += len(answers)


def main(port: int, plan: Plan, directory: Path) -> None:
    """Build, send, and tell what was answered when."""
    path = directory / "requests"
    requests = Requests(path, plan)
    path.unlink()
    planned = plan.times()
    pacing = Pacing(("127.0.0.1", port), requests, planned)
    print("ready", flush=True)
    before = time.process_time()
    pacing.run()
    cpu_seconds = time.process_time() - before
    np.save(directory / "answers.npy", np.stack([planned, pacing.answered]))
    told = {
        "start_ms": requests.start_ms,
        "refused": pacing.refused,
        "cpu_seconds": cpu_seconds,
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        Plan(rate=int(sys.argv[2]), seconds=int(sys.argv[3])),
        Path(sys.argv[4]),
    )
