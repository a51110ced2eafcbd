"""Looks at many pending messages, and cancels some; how late others are beside that.

The messages are written by storage's own code, due over 46 days, with items that hardly compress.
Then a server begins on that directory, and messages that are due soon are sent and delivered while
it is asked over HTTP, or cancels, again and again.
"""

import json
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from benchmarks.processes import DelayServer, Receiver
from benchmarks.replicas.rates import send_second_by_second
from delay_client import BlockingClient, Changed, MessageName
from delay_protocol.messages.changes import ChangeState
from storage.batch.columns import RecordKind
from storage.disk.disk import DirectoryDisk
from storage.logs.message_log import Draft
from storage.node.store import Store, StoreSettings
from tests.storage.qmq_items import qmq_item

_SUBJECTS = tuple(b"some.service.subject.%02d" % number for number in range(20))
_DAY_MS = 86_400_000
_SPREAD_MS = 46 * _DAY_MS
_PER_BATCH = 10_000
_PER_CHECKPOINT = 1_000_000
_SECONDS = 30
_TRIES = 7
_CANCELLED = 100_000
_OF_AN_HOUR = 100
_VALUE = 94
"""Bytes of a message's only value."""
_LETTERS = np.arange(48, 112, dtype=np.uint8)


def measure(directory: Path, scale: float) -> Iterator[tuple[str, object]]:
    """Write what is pending, and yield the figures."""
    messages = int(10_000_000 * scale)
    due_ms = _write(directory / "data", messages)
    receiver = Receiver(directory)
    server = DelayServer(directory, broker_port=receiver.port)
    day_ms = int(time.time() * 1000) + 20 * _DAY_MS
    common = "list?subject=some.service.subject.03&limit=1000"
    for name, query in (
        (f"page of 1,000 of a subject, {messages:,} pending, s", common),
        ("  in 20 days", f"{common}&due_from={day_ms}"),
        ("  in 20 days, with message ids", f"{common}&due_from={day_ms}&ids=true"),
        ("count by subject, s", "count?by=subject"),
        ("count by group and day, s", "count?by=group&step=day"),
        ("one message by its id, s", "find?id=absent"),
    ):
        cpu_s = server.cpu_seconds()
        found = sorted(_seconds(server, query) for _ in range(_TRIES))
        cpu_s = (server.cpu_seconds() - cpu_s) / _TRIES
        yield name, f"{found[_TRIES // 2]:.3f} (least {found[0]:.3f}; CPU {cpu_s:.3f})"
    yield "memory, MiB", f"{server.memory_mib():.0f}"
    yield "lateness of 1,000 messages/s in ms, at rest", _late(server, receiver, None)
    pending = _Pending(due_ms)
    for name, work in (
        ("count?by=subject", lambda at: _seconds(at, "count?by=subject")),
        ("list in 20 days", lambda at: _seconds(at, f"{common}&due_from={day_ms}&ids=true")),
        ("cancels of 100", pending.cancel_an_hour),
    ):
        receiver = Receiver(directory)
        server.stop()
        server = DelayServer(directory, broker_port=receiver.port)
        yield f"  beside {name}", _late(server, receiver, work)
    receiver = Receiver(directory)
    server.stop()
    server = DelayServer(directory, broker_port=receiver.port)
    with _client_of(server) as client:
        yield from _cancel(server, client, pending, int(_CANCELLED * scale))
    server.stop()


class _Pending:
    """The messages that were written and not cancelled, by number."""

    def __init__(self, due_ms: npt.NDArray[np.int64]) -> None:
        self._due_ms = due_ms
        self._is_left = np.ones(len(due_ms), np.bool_)
        self._chance = np.random.default_rng(2)

    def of_an_hour(self, *, is_soon: bool = False) -> npt.NDArray[np.int64]:
        """Return some that are due in one hour, of which a file may be, or in one of later days."""
        begin = self._due_ms[self._chance.integers(len(self._due_ms))]
        if is_soon:
            begin = self._due_ms.min() + self._chance.integers(3_600_000, 12 * 3_600_000)
        in_it = (self._due_ms >= begin) & (self._due_ms < begin + 3_600_000) & self._is_left
        return np.flatnonzero(in_it)[:_OF_AN_HOUR]

    def cancel_an_hour(self, server: DelayServer) -> None:
        """Cancel some of an hour with a client of their own."""
        with _client_of(server) as client:
            self.cancel(client, self.of_an_hour())

    def some(self, count: int) -> npt.NDArray[np.int64]:
        """Return some of any time."""
        return self._chance.choice(np.flatnonzero(self._is_left), count, replace=False)

    def cancel(self, client: BlockingClient, numbers: npt.NDArray[np.int64]) -> float:
        """Cancel them with a client; return the seconds from call to answer."""
        self._is_left[numbers] = False
        names = [
            MessageName(
                _SUBJECTS[number % len(_SUBJECTS)].decode(),
                f"{number:013}",
                datetime.fromtimestamp(self._due_ms[number] / 1000, UTC),
            )
            for number in numbers.tolist()
        ]
        began = time.perf_counter()
        found = client.cancel_many(names)
        took = time.perf_counter() - began
        assert all(
            isinstance(one, Changed) and one.state is ChangeState.CANCELLED for one in found
        ), found[0]
        return took


def _client_of(server: DelayServer) -> BlockingClient:
    return BlockingClient([f"127.0.0.1:{server.port}"])


def _cancel(
    server: DelayServer, client: BlockingClient, pending: _Pending, many: int
) -> Iterator[tuple[str, object]]:
    """Cancel one, some of an hour, and many of all times, with one client as services do."""
    alone = [pending.cancel(client, pending.some(1)) for _ in range(_TRIES * 3)]
    yield "cancel of one, ms", f"{median(alone) * 1000:.1f} (most {max(alone) * 1000:.1f})"
    for when, is_soon in (("soon", True), ("any day", False)):
        costs = []
        for _ in range(_TRIES * 3):
            numbers, cpu_s = pending.of_an_hour(is_soon=is_soon), server.cpu_seconds()
            pending.cancel(client, numbers)
            costs.append((server.cpu_seconds() - cpu_s) / len(numbers))
        name = f"cancels of {_OF_AN_HOUR} in an hour, {when}, us of CPU each"
        yield name, f"{median(costs) * 1e6:.0f}"
    cpu_s = server.cpu_seconds()
    took = pending.cancel(client, pending.some(many))
    yield f"{many:,} cancels, s", f"{took:.1f} (CPU {server.cpu_seconds() - cpu_s:.1f})"


def _late(
    server: DelayServer, receiver: Receiver, work: Callable[[DelayServer], object] | None
) -> object:
    """Return the lateness while messages are delivered and something is done again and again."""
    is_over = threading.Event()

    def ask() -> None:
        while work is not None and not is_over.is_set():
            work(server)

    asking = threading.Thread(target=ask)
    asking.start()
    send_second_by_second(server.address, _SECONDS)
    time.sleep(4)
    is_over.set()
    asking.join()
    return receiver.summary()["lateness_ms"]


def _seconds(server: DelayServer, query: str) -> float:
    began = time.perf_counter()
    assert json.loads(server.ask(query))["complete"]
    return time.perf_counter() - began


def _write(directory: Path, messages: int) -> npt.NDArray[np.int64]:
    """Write a data directory with so many pending messages; return when each is due."""
    directory.mkdir()
    disk = DirectoryDisk(directory)
    now_ms = int(time.time() * 1000)
    store, _ = Store.open(
        disk, StoreSettings(), chance=random.Random(), now_ms=now_ms, on_damage=print
    )
    store.apply_tail(store.message_log.next_sequence, now_ms=now_ms)
    chance = np.random.default_rng(1)
    all_due_ms = now_ms + 1_800_000 + chance.integers(0, _SPREAD_MS, messages)
    body = b"\0\1k\0%c" % _VALUE + bytes(_VALUE)
    blank = [qmq_item(0, subject, b"%013d" % 0, body) for subject in _SUBJECTS]
    templates = np.array([np.frombuffer(item, np.uint8) for item in blank])
    id_at = blank[0].index(b"%013d" % 0)
    for begin in range(0, messages, _PER_BATCH):
        numbers = np.arange(begin, begin + _PER_BATCH)
        ids = [b"%013d" % number for number in numbers.tolist()]
        items = templates[numbers % len(_SUBJECTS)]
        items[:, id_at : id_at + 13] = np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 13)
        items[:, -_VALUE:] = _LETTERS[chance.integers(0, len(_LETTERS), (_PER_BATCH, _VALUE))]
        sums = [zlib.crc32(item) for item in items[:, 8:]]
        items[:, :8] = np.array(sums, ">u8").view(np.uint8).reshape(-1, 8)
        draft = Draft(
            kind=RecordKind.MESSAGE,
            count=_PER_BATCH,
            names=list(_SUBJECTS),
            arrays={
                "due_ms": all_due_ms[begin : begin + _PER_BATCH],
                "id_hash": np.array([xxh3_64_intdigest(one) for one in ids], np.uint64),
                "size": np.full(_PER_BATCH, len(blank[0]), np.uint32),
                "subject": (numbers % len(_SUBJECTS)).astype(np.uint16),
            },
            blob=[items.tobytes()],
        )
        store.message_log.append([draft], floor_minute=0, append_ms=now_ms)
        store.apply_tail(store.message_log.next_sequence, now_ms=now_ms)
        if store.schedule.pile_is_full:
            store.schedule.flush(now_ms)
        if not (begin + _PER_BATCH) % _PER_CHECKPOINT or begin + _PER_BATCH >= messages:
            work = store.prepare_checkpoint(now_ms)
            work.write()
            store.finish_checkpoint(work)
    store.close()
    return all_due_ms
