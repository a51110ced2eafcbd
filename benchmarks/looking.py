"""Looks at many pending messages: how long a page and a count take, and how late others are beside.

The messages are written by storage's own code, due over 46 days, with items that do not compress.
Then a server begins on that directory, and messages that are due soon are sent and delivered while
it is asked over HTTP, again and again.
"""

import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.processes import DelayServer, Receiver
from benchmarks.replicas.rates import send_second_by_second
from storage.batch.columns import RecordKind
from storage.disk.disk import DirectoryDisk
from storage.logs.message_log import Draft
from storage.node.store import Store, StoreSettings
from tests.storage.qmq_items import qmq_item

_SUBJECTS = tuple(b"some.service.subject.%d" % number for number in range(20))
_DAY_MS = 86_400_000
_SPREAD_MS = 46 * _DAY_MS
_PER_BATCH = 10_000
_PER_CHECKPOINT = 1_000_000
_SECONDS = 30
_TRIES = 7


def measure(directory: Path, scale: float) -> Iterator[tuple[str, object]]:
    """Write what is pending, and yield the figures."""
    messages = int(10_000_000 * scale)
    _write(directory / "data", messages)
    receiver = Receiver(directory)
    server = DelayServer(directory, broker_port=receiver.port)
    day_ms = int(time.time() * 1000) + 20 * _DAY_MS
    common = "list?subject=some.service.subject.3&limit=1000"
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
    for query in ("count?by=subject", f"{common}&due_from={day_ms}&ids=true"):
        receiver = Receiver(directory)
        server.stop()
        server = DelayServer(directory, broker_port=receiver.port)
        yield f"  beside {query.partition('&')[0]}", _late(server, receiver, query)
    server.stop()


def _late(server: DelayServer, receiver: Receiver, query: str | None) -> object:
    """Return the lateness while messages are delivered and a query is asked again and again."""
    is_over = threading.Event()

    def ask() -> None:
        while query is not None and not is_over.is_set():
            _seconds(server, query)

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


def _write(directory: Path, messages: int) -> None:
    """Write a data directory with so many pending messages."""
    directory.mkdir()
    disk = DirectoryDisk(directory)
    now_ms = int(time.time() * 1000)
    store, _ = Store.open(
        disk, StoreSettings(), chance=random.Random(), now_ms=now_ms, on_damage=print
    )
    store.apply_tail(store.message_log.next_sequence, now_ms=now_ms)
    chance = np.random.default_rng(1)
    template = np.frombuffer(qmq_item(0, _SUBJECTS[0], b"%013d" % 0, bytes(100)), np.uint8)
    for begin in range(0, messages, _PER_BATCH):
        numbers = np.arange(begin, begin + _PER_BATCH)
        items = np.repeat(template[np.newaxis], _PER_BATCH, axis=0)
        items[:, -100:] = chance.integers(0, 256, (_PER_BATCH, 100), np.uint8)
        due_ms = now_ms + 1_800_000 + chance.integers(0, _SPREAD_MS, _PER_BATCH)
        draft = Draft(
            kind=RecordKind.MESSAGE,
            count=_PER_BATCH,
            names=list(_SUBJECTS),
            arrays={
                "due_ms": due_ms,
                "id_hash": numbers.astype(np.uint64),
                "size": np.full(_PER_BATCH, len(template), np.uint32),
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
