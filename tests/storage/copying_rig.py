"""Stores whose log is a copy of another's: grown, applied as far as it is committed, compared."""

import random
from dataclasses import replace

import numpy as np
import pytest

from storage.batch.batches import BatchHeader, LogBatch
from storage.batch.columns import RecordKind
from storage.disk.disk import Disk
from storage.logs.message_log import Draft
from storage.node.store import Store, StoreSettings
from tests.storage.small_logs import messages
from tests.storage.small_segments import delivered
from tests.storage.store_rig import SETTINGS, START_MS

MINUTE = START_MS // 60_000


def unapplied(disk: Disk, *, settings: StoreSettings = SETTINGS) -> Store:
    """Open a directory, with nothing of its log's end applied."""
    store, summary = Store.open(
        disk,
        replace(settings, begins_new_log=False),
        chance=random.Random(1),
        now_ms=START_MS,
        on_damage=lambda damage: pytest.fail(f"{damage}"),
    )
    assert not summary.damages
    return store


def grow(store: Store, chance: random.Random, steps: int) -> None:
    """Append to the log of a store: messages, outcomes of some, epochs, floors."""
    log = store.message_log
    for _ in range(steps):
        floor = log.last_floor_minute + chance.choice([0, 0, 0, 1])
        match chance.randrange(6):
            case 0:
                store.begin_epoch(log.last_epoch + 1, now_ms=START_MS)
            case 1 | 2:
                told = sorted(chance.sample(range(1, log.next_sequence), 1))
                facts = delivered(told, minute=MINUTE, at_ms=START_MS)
                draft = Draft(
                    kind=RecordKind.FACTS,
                    count=len(told),
                    names=facts.targets,
                    arrays=facts.arrays,
                )
                log.append([draft], floor_minute=floor, append_ms=START_MS)
            case _:
                items = [bytes(chance.randrange(200)) for _ in range(chance.randint(1, 5))]
                draft = messages(items)
                draft.arrays["due_ms"][:] = START_MS
                log.append([draft], floor_minute=floor, append_ms=START_MS)


def headers_from(store: Store, sequence: int) -> list[BatchHeader]:
    """Return the headers of the log from the batch that holds a record on."""
    found = []
    for batch in store.message_log.read(sequence):
        assert isinstance(batch, LogBatch)
        found.append(batch.header)
    return found


def committed_in(store: Store, chance: random.Random) -> int:
    """Return the end of some batch that was not applied yet, or where these begin."""
    first = store.schedule.last_filed + 1
    ends = [first, *(header.next_sequence for header in headers_from(store, first))]
    return chance.choice(ends)


def checkpoint(store: Store, now_ms: int = START_MS) -> None:
    """Write a checkpoint."""
    work = store.prepare_checkpoint(now_ms)
    work.write()
    store.finish_checkpoint(work)


def told_of(store: Store) -> dict[str, object]:
    """Return all that a store says of its log, and what it knows of the end of it."""
    log, schedule = store.message_log, store.schedule
    sequences = np.arange(1, 2000, dtype=np.int64)
    return {
        "epochs": store.epoch_starts(),
        "next": log.next_sequence,
        "epoch": log.last_epoch,
        "floor": log.last_floor_minute,
        "crc": log.crc_before(log.next_sequence),
        "files": [file.path for file in log.files()],
        "applied": (schedule.last_filed, schedule.epoch, schedule.floor_minute, schedule.pending),
        "known": (store.recovery.known, schedule.facts.has_unapplied_outcomes),
        "outcomes": sequences[schedule.facts.has_outcome(sequences)].tolist(),
    }


def begun(disk: Disk, chance: random.Random, *, settings: StoreSettings = SETTINGS) -> Store:
    """Return a store whose log has a beginning, some of it applied and some checkpointed."""
    store = unapplied(disk, settings=settings)
    store.apply_tail(1, now_ms=START_MS)
    store.begin_epoch(1, now_ms=START_MS)
    grow(store, chance, 12)
    store.apply_tail(committed_in(store, chance), now_ms=START_MS)
    if chance.random() < 0.7:
        checkpoint(store)
    return store
