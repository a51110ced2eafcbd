"""Load for benchmarks: requests built beforehand, so that sending them costs next to nothing."""

import random
import socket
import struct
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from delay_protocol.messages.items import ItemScan, scan_items
from delay_protocol.wire.frames import FrameDecoder, encode_request

BODY_BYTES = 100
_SUBJECTS = tuple(b"bench.subject%d" % number for number in range(10))
_FRAME_MAX = 16 * 1024 * 1024
_HEAD = struct.Struct(">Bqq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Encoded requests and what is in them."""

    frames: list[bytes]
    messages: int

    @property
    def bytes(self) -> int:
        """Bytes on the wire."""
        return sum(map(len, self.frames))


def seconds_left(until_ms: float, *, at_least_s: float = 0.0) -> float:
    """Return the seconds until a wall time, ms since 1970; SystemExit if fewer are left."""
    left_s = until_ms / 1000 - time.time()
    if left_s < at_least_s:
        raise SystemExit("the machine is too slow for this lead time, use a smaller --scale")
    return left_s


def build_load(
    messages: int,
    *,
    per_request: int,
    due_from_ms: int,
    spread_ms: int,
    seed: int = 1,
    first_number: int = 0,
    first_opaque: int = 0,
    attributes: Mapping[str, str] = MappingProxyType({}),
    subjects: Sequence[bytes] = _SUBJECTS,
) -> Load:
    """Return requests whose items have 100-byte bodies and due times spread evenly.

    `attributes` stand before the body, as QMQ's Java client writes its own.

    Message ids count from `first_number`, requests from `first_opaque`; subjects take turns.
    """
    chance = random.Random(seed)
    prefixes = [struct.pack(">h", len(name)) + name for name in subjects]
    body = b"".join(
        struct.pack(">h", len(part)) + part.encode() for pair in attributes.items() for part in pair
    )
    body += b"\0\4body" + struct.pack(">h", BODY_BYTES - 8) + b"x" * (BODY_BYTES - 8)
    tail = struct.pack(">i", len(body)) + body
    created = int(time.time() * 1000)
    frames = []
    number = 0
    for opaque in range(first_opaque, first_opaque + messages // per_request):
        items = []
        for _ in range(per_request):
            due_ms = due_from_ms + int(chance.random() * spread_ms)
            rest = b"%b%b\0\x0d%013d%b" % (
                _HEAD.pack(2, created, due_ms),
                prefixes[number % len(prefixes)],
                first_number + number,
                tail,
            )
            items.append(struct.pack(">q", zlib.crc32(rest)))
            items.append(rest)
            number += 1
        frames.append(encode_request(code=10, opaque=opaque, body=b"".join(items)))
    return Load(frames=frames, messages=number)


def send_load(address: tuple[str, int], load: Load, *, connections: int = 1) -> float:
    """Send everything, pipelined, until every request is answered; return the seconds it took."""
    began = time.perf_counter()
    with ThreadPoolExecutor(connections) as threads:
        parts = [load.frames[place::connections] for place in range(connections)]
        # What goes wrong in one of them goes wrong here: a refused load is no figure.
        list(threads.map(partial(_send, address), parts))
    return time.perf_counter() - began


def _send(address: tuple[str, int], frames: Sequence[bytes]) -> None:
    with socket.create_connection(address) as stream:
        sender = threading.Thread(target=stream.sendall, args=(b"".join(frames),))
        sender.start()
        decoder = FrameDecoder(frame_bytes_max=_FRAME_MAX)
        answered = 0
        while answered < len(frames):
            data = stream.recv(1 << 20)
            if not data:
                raise SystemExit("the server closed the connection")
            decoder.feed(data)
            for frame in decoder.frames():
                if frame.code or frame.body:
                    raise SystemExit(f"refused: code {frame.code}, body {frame.body[:100]!r}")
                answered += 1
        sender.join()


def codec_seconds(load: Load) -> float:
    """Return the CPU seconds of a plain codec loop over the same bytes: the floor of any server."""
    data = b"".join(load.frames)
    decoder = FrameDecoder(frame_bytes_max=_FRAME_MAX)
    items = 0
    began = time.process_time()
    for start in range(0, len(data), 64 * 1024):
        decoder.feed(data[start : start + 64 * 1024])
        for frame in decoder.frames():
            scan = ItemScan()
            scan_items(frame.body, scan)
            items += len(scan)
    seconds = time.process_time() - began
    assert items == load.messages
    return seconds
