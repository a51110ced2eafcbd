"""Brokers that do next to nothing while a burst runs: `python -m benchmarks.collector BYTES PORT…`.

Each port is a broker group. What comes is kept as it came, in memory that was touched beforehand,
and answered with success; it is decoded only at the end. BYTES is what there is place for, over all
connections. Prints `ready`, and on SIGTERM one JSON line: received, distinct, early, first_ms,
last_ms, lateness_ms, received_by_port, received_by_second (of the wall clock), and cpu_seconds,
which are those until the last arrival.
"""

import json
import selectors
import signal
import socket
import struct
import sys
import time
from typing import Final

import numpy as np

from benchmarks.quantiles import quantiles
from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.messages.items import ItemScan, scan_items
from delay_protocol.wire.frames import FRAME_OVERHEAD, Frame, encode_response

_HEADER: Final = struct.Struct(">ihIhhiih")
_RECEIVE_BYTES: Final = 1 << 20


class Arena:
    """The memory that everything received lies in, side by side."""

    def __init__(self, size: int) -> None:
        self._view = memoryview(bytearray(size))
        for position in range(0, size, 4096):
            self._view[position] = 1
        self._end = 0

    def receive(self, peer: socket.socket) -> memoryview:
        """Return what there is to read; empty if the peer has closed."""
        free = self._view[self._end : self._end + _RECEIVE_BYTES]
        if not len(free):
            raise SystemExit("more came than there is place for")
        count = peer.recv_into(free)
        self._end += count
        return free[:count]


class Peer:
    """One connection: its bytes, and where frames end in them."""

    def __init__(self, stream: socket.socket, port: int) -> None:
        self.stream = stream
        self.port = port
        self.pieces: list[memoryview] = []
        self.arrivals: list[tuple[int, int]] = []
        """Wall clock in ms, and how many frames were complete by then."""
        self.frames = 0
        self.cpu_seconds = 0.0
        """What the process had used when something came last."""
        self._head = b""
        self._left = 0

    def take(self, data: memoryview) -> None:
        """Keep what came, and answer the frames that it completes."""
        now_ms = int(time.time() * 1000)
        answers: list[bytes] = []
        place = 0
        while place < len(data):
            if len(self._head) < FRAME_OVERHEAD:
                piece = data[place : place + FRAME_OVERHEAD - len(self._head)]
                self._head += piece
                place += len(piece)
                if len(self._head) < FRAME_OVERHEAD:
                    break
                self._left = _HEADER.unpack(self._head)[0] + 4 - FRAME_OVERHEAD
            step = min(self._left, len(data) - place)
            self._left -= step
            place += step
            if not self._left:
                answers.append(self._answer())
                self._head = b""
        self.pieces.append(data)
        if answers:
            self.stream.sendall(b"".join(answers))
            self.frames += len(answers)
            self.arrivals.append((now_ms, self.frames))
            self.cpu_seconds = time.process_time()

    def _answer(self) -> bytes:
        _, _, _, code, version, opaque, flag, request_code = _HEADER.unpack(self._head)
        request = Frame(code, version, opaque, flag, request_code, b"")
        is_batch = code == CommandCode.SEND_MESSAGE
        outcome = ResponseCode.SUCCESS if is_batch else ResponseCode.UNKNOWN_CODE
        return encode_response(request, code=outcome)

    def scan(self) -> tuple[ItemScan, np.ndarray]:
        """Return all items, and the arrival of each."""
        data = b"".join(self.pieces)
        items = ItemScan()
        frame_of = []
        place = number = 0
        while place + FRAME_OVERHEAD <= len(data):
            header = _HEADER.unpack_from(data, place)
            end = place + 4 + header[0]
            if end > len(data):
                break
            if header[3] == CommandCode.SEND_MESSAGE:
                before = len(items)
                scan_items(data[place + FRAME_OVERHEAD : end], items)
                frame_of += [number] * (len(items) - before)
            place = end
            number += 1
        ends = np.array([frames for _, frames in self.arrivals], np.int64)
        times = np.array([now_ms for now_ms, _ in self.arrivals], np.int64)
        return items, times[np.searchsorted(ends, np.array(frame_of, np.int64), side="right")]


def summary(peers: list[Peer]) -> dict[str, object]:
    """Decode what was received and return what it was."""
    ids: set[bytes] = set()
    lateness = [np.zeros(0, np.int64)]
    arrivals = [np.zeros(0, np.int64)]
    by_port: dict[int, int] = {}
    for peer in peers:
        items, arrived_ms = peer.scan()
        ids.update(items.ids)
        lateness.append(arrived_ms - np.array(items.due_ms, np.int64))
        arrivals.append(arrived_ms)
        by_port[peer.port] = by_port.get(peer.port, 0) + len(items)
    late, arrived = np.concatenate(lateness), np.concatenate(arrivals)
    seconds, counts = np.unique(arrived // 1000, return_counts=True)
    return {
        "received": len(late),
        "distinct": len(ids),
        "early": int((late < 0).sum()),
        "first_ms": int(arrived.min(initial=2**62)),
        "last_ms": int(arrived.max(initial=0)),
        "lateness_ms": quantiles(late),
        "received_by_port": by_port,
        "received_by_second": dict(zip(seconds.tolist(), counts.tolist(), strict=True)),
        "cpu_seconds": max((peer.cpu_seconds for peer in peers), default=0.0),
    }


def main(size: int, ports: list[int]) -> None:
    """Serve until SIGTERM."""
    stopped: list[int] = []
    arena = Arena(size)
    selector = selectors.DefaultSelector()
    waking, woken = socket.socketpair()
    waking.settimeout(0)
    signal.set_wakeup_fd(waking.fileno())
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    selector.register(woken, selectors.EVENT_READ)
    for port in ports:
        listening = socket.create_server(("127.0.0.1", port))
        selector.register(listening, selectors.EVENT_READ, port)
    peers: list[Peer] = []
    print("ready", flush=True)
    began = time.process_time()
    while not stopped:
        for key, _ in selector.select():
            if isinstance(key.data, Peer):
                data = arena.receive(key.data.stream)
                if len(data):
                    key.data.take(data)
                else:
                    selector.unregister(key.data.stream)
            elif key.data is not None:
                assert isinstance(key.fileobj, socket.socket)
                stream, _ = key.fileobj.accept()
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peers.append(Peer(stream, key.data))
                selector.register(stream, selectors.EVENT_READ, peers[-1])
    found = summary(peers)
    found["cpu_seconds"] = max(float(str(found["cpu_seconds"])) - began, 0.0)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(port) for port in sys.argv[2:]])
