"""A broker with a fault: `python -m benchmarks.ailing PORT RECORD FAULT FROM_MS UNTIL_MS`.

Between the two times of the wall clock it does as FAULT says, else it takes everything:

well        takes everything all the time
refusing    closes its port and its connections
black-hole  accepts and reads, and never answers
slow        answers every request 4.9 s after it came
rejecting   answers every item with BROKER_READ_ONLY
blocking    answers every item with BLOCK, for good
poisoned    answers every item of the subject `bench.poison` with BLOCK, for good

Prints `ready`, and on SIGTERM writes RECORD (numpy's npy): a RECORD_ROW for every item that came.
"""

import heapq
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np

from bridges.broker_end import BrokerEnd, Request
from delay_protocol.basics.codes import ItemCode
from delay_protocol.messages.items import ItemScan, scan_items

FAULTS: Final = ("well", "refusing", "black-hole", "slow", "rejecting", "blocking", "poisoned")
POISON: Final = b"bench.poison"
TAKEN: Final = 0
UNANSWERED: Final = 1
REFUSED: Final = 2
RECORD_ROW: Final = np.dtype(
    [
        ("id", np.int64),
        ("subject", "S32"),
        ("due_ms", np.int64),
        ("arrived_ms", np.float64),
        ("outcome", np.int8),
    ]
)
"""An item that came; `outcome` is one of TAKEN, UNANSWERED and REFUSED."""
SLOW_S: Final = 4.9
_RECEIVE_BYTES: Final = 1 << 20


def now_ms() -> float:
    """Return the wall clock."""
    return time.time() * 1000


class Ailing:
    """The broker. What comes is kept as it came, and decoded only at the end."""

    def __init__(self, port: int, fault: str, from_ms: float, until_ms: float) -> None:
        self._port = port
        self._fault = fault
        self._changes = [] if fault == "well" else [from_ms, until_ms]
        """When it falls ill and gets well, as far as that is still to come."""
        self._is_ill = False
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, BrokerEnd] = {}
        self._listening: socket.socket | None = None
        self._arrived: list[tuple[float, bytes, int | None]] = []
        """When a request came, its items, and what became of all of them if that is the same."""
        self._later: list[tuple[float, int, socket.socket, bytes]] = []
        """Answers that are held back, by their time."""
        self._held_back = 0
        self._stopped = False

    def serve(self) -> None:
        """Serve until SIGTERM."""
        waking, woken = socket.socketpair()
        waking.settimeout(0)
        signal.set_wakeup_fd(waking.fileno())
        signal.signal(signal.SIGTERM, self._stop)
        self._selector.register(woken, selectors.EVENT_READ)
        self._listen()
        print("ready", flush=True)
        while not self._stopped:
            for key, _ in self._selector.select(self._until_next_s()):
                assert isinstance(key.fileobj, socket.socket)
                if key.fileobj is self._listening:
                    self._accept(key.fileobj)
                elif key.fileobj in self._peers:
                    self._receive(key.fileobj)
            self._on_time()

    def _stop(self, number: int, frame: object) -> None:
        del number, frame
        self._stopped = True

    def _listen(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", self._port))
        self._selector.register(self._listening, selectors.EVENT_READ)

    def _accept(self, listening: socket.socket) -> None:
        stream, _ = listening.accept()
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peers[stream] = BrokerEnd()
        self._selector.register(stream, selectors.EVENT_READ)

    def _close(self, stream: socket.socket) -> None:
        self._selector.unregister(stream)
        self._peers.pop(stream, None)
        stream.close()

    def _until_next_s(self) -> float | None:
        """Return for how long nothing is to be done that nobody asks for."""
        times = self._changes[:1] + [one[0] for one in self._later[:1]]
        return max(min(times) - now_ms(), 0.0) / 1000 if times else None

    def _on_time(self) -> None:
        """Do what is to be done by now."""
        now = now_ms()
        if self._changes and self._changes[0] <= now:
            self._changes.pop(0)
            self._is_ill = not self._is_ill
            if self._fault == "refusing":
                self._open_or_shut()
        while self._later and self._later[0][0] <= now:
            _, _, stream, answer = heapq.heappop(self._later)
            self._send(stream, answer)

    def _open_or_shut(self) -> None:
        if not self._is_ill:
            self._listen()
            return
        assert self._listening is not None
        self._selector.unregister(self._listening)
        self._listening.close()
        self._listening = None
        for stream in list(self._peers):
            self._close(stream)

    def _receive(self, stream: socket.socket) -> None:
        try:
            data = stream.recv(_RECEIVE_BYTES)
        except OSError:
            data = b""
        if not data:
            self._close(stream)
            return
        now = now_ms()
        requests = self._peers[stream].receive(data)
        answers = b"".join([self._answered(request, stream, now) for request in requests])
        if answers:
            self._send(stream, answers)

    def _send(self, stream: socket.socket, answer: bytes) -> None:
        if stream not in self._peers:
            return
        try:
            stream.sendall(answer)
        except OSError:
            self._close(stream)

    def _answered(self, request: Request, stream: socket.socket, now: float) -> bytes:
        """Note a request; return what is to be answered at once."""
        is_batch = request.has_items
        fault = self._fault if self._is_ill else "well"
        outcome: int | None = TAKEN
        answer = request.answer()
        if fault == "black-hole":
            outcome, answer = UNANSWERED, b""
        elif fault == "slow":
            self._held_back += 1
            later = (now + SLOW_S * 1000, self._held_back, stream, answer)
            heapq.heappush(self._later, later)
            answer = b""
        elif fault == "rejecting" and is_batch:
            outcome, answer = REFUSED, _refusal(request, ItemCode.BROKER_READ_ONLY)
        elif fault == "blocking" and is_batch:
            outcome, answer = REFUSED, _refusal(request, ItemCode.BLOCK)
        elif fault == "poisoned" and is_batch and POISON in request.frame.body:
            outcome, answer = None, _refusal(request, ItemCode.BLOCK, POISON)
        if is_batch:
            self._arrived.append((now, request.frame.body, outcome))
        return answer

    def record(self) -> np.ndarray:
        """Decode what came."""
        items = ItemScan()
        counts: list[int] = []
        for _, body, _ in self._arrived:
            before = len(items)
            scan_items(body, items)
            counts.append(len(items) - before)
        times = np.array([one[0] for one in self._arrived], np.float64)
        outcomes = np.array([-1 if one[2] is None else one[2] for one in self._arrived], np.int8)
        subjects = np.array(items.subjects, "S32")
        outcome = np.repeat(outcomes, counts)
        mixed = outcome == -1
        outcome[mixed] = np.where(subjects[mixed] == POISON, REFUSED, TAKEN)
        record = np.zeros(len(items), RECORD_ROW)
        record["id"] = np.array(items.ids, "S13").astype(np.int64)
        record["subject"] = subjects
        record["due_ms"] = items.due_ms
        record["arrived_ms"] = np.repeat(times, counts)
        record["outcome"] = outcome
        return record


def _refusal(request: Request, code: ItemCode, subject: bytes | None = None) -> bytes:
    """Return the answer that refuses all items, or those of one subject."""
    return request.answer(
        (one, int(code), code.name)
        for one, of_subject in zip(request.ids, request.scan.subjects, strict=True)
        if subject in {None, of_subject}
    )


def main(port: int, record: Path, fault: str, from_ms: float, until_ms: float) -> None:
    """Serve, then write what came."""
    broker = Ailing(port, fault, from_ms, until_ms)
    broker.serve()
    np.save(record, broker.record())


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]), float(sys.argv[5]))
