"""A burst of due messages to one broker group, or to several, and the limit it is compared with.

The limit is a plain process that has the same requests ready and does nothing but write them, to
the same brokers and with as many unanswered: what the kernel and the brokers take, whoever sends.
"""

import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.load import BODY_BYTES, build_load, seconds_left, send_load
from benchmarks.processes import Collector, DelayServer, delivering
from delay_protocol.wire.frames import FRAME_OVERHEAD
from sender.settings.config import SenderConfig

ITEM_BYTES_MAX: Final = BODY_BYTES + 100
"""Of a message of build_load, with its share of a request."""
SLACK_BYTES: Final = 8 << 20
"""What a collector needs beside the messages: probes, and requests of few messages."""
_SPREAD_MS: Final = 500
"""Within which all messages are due: a rate that is measured cannot be more than that allows."""


def measure(
    directory: Path,
    scale: float,
    *,
    groups: int,
    begin: Callable[[Path, Sequence[int]], DelayServer] = delivering,
) -> Iterator[tuple[str, object]]:
    """Yield the figures of a burst to so many groups, from a server that is begun."""
    messages = int(1_000_000 * scale)
    limit = _blast(directory, messages, groups)
    spread_ms = max(int(_SPREAD_MS * scale), 1)
    lead_ms = int(15_000 + 30_000 * scale)
    due_ms = int(time.time() * 1000) + lead_ms
    load = build_load(messages, per_request=100, due_from_ms=due_ms, spread_ms=spread_ms)
    collector = Collector(directory, groups=groups, size=messages * ITEM_BYTES_MAX + SLACK_BYTES)
    server = begin(directory, collector.ports)
    send_load(server.address, load, connections=2)
    time.sleep(seconds_left(due_ms - 500, at_least_s=2))
    before = server.cpu_seconds()
    while server.status()["pending"]:
        time.sleep(0.1)
    cpu = (server.cpu_seconds() - before) / messages
    server.stop()
    found = collector.summary()
    seconds = (found["last_ms"] - due_ms) / 1000
    rate = messages / seconds
    where = "one group" if groups == 1 else f"{groups} groups"
    yield f"{messages:,} due in {spread_ms} ms, to {where}", f"{rate:,.0f} messages/s"
    yield "  until the last had arrived", f"{seconds:.2f} s"
    yield "  limit: a plain process that writes them", f"{limit:,.0f} messages/s"
    yield "  of the limit", f"{rate / limit:.0%}"
    yield "  server CPU", f"{cpu * 1e6:.2f} us a message"
    yield "  broker CPU", f"{found['cpu_seconds'] / messages * 1e6:.2f} us a message"
    yield "  received, distinct, early", _counts(found)
    yield "  by group", list(found["received_by_port"].values())
    yield "  lateness, ms", found["lateness_ms"]


def _counts(found: dict[str, Any]) -> list[int]:
    return [found[name] for name in ("received", "distinct", "early")]


def _blast(directory: Path, messages: int, groups: int) -> float:
    """Return how many messages a second get to the brokers of one that has them ready."""
    config = SenderConfig()
    load = build_load(messages, per_request=config.batch_items, due_from_ms=0, spread_ms=1)
    size = messages * ITEM_BYTES_MAX + SLACK_BYTES
    collector = Collector(directory, groups=groups, size=size)
    streams = [socket.create_connection(("127.0.0.1", port)) for port in collector.ports]
    parts = [iter(load.frames[place::groups]) for place in range(groups)]
    selector = selectors.DefaultSelector()
    began = time.perf_counter()
    unanswered = 0
    for stream, part in zip(streams, parts, strict=True):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(stream, selectors.EVENT_READ, part)
        for _, frame in zip(range(config.in_flight_requests_max), part, strict=False):
            stream.sendall(frame)
            unanswered += 1
    while unanswered:
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            answers = len(key.fileobj.recv(1 << 16)) // FRAME_OVERHEAD
            unanswered -= answers
            for _, frame in zip(range(answers), key.data, strict=False):
                key.fileobj.sendall(frame)
                unanswered += 1
    seconds = time.perf_counter() - began
    for stream in streams:
        stream.close()
    received: int = collector.summary()["received"]
    assert received == load.messages, f"{received:,} of {load.messages:,} arrived"
    return received / seconds
