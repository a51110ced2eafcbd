"""Faults that the simulation has found, told directly: what led to them, and what holds now."""

import random

import numpy as np

from storage.batch.columns import Columns, RecordKind
from storage.batch.facts import FactBlock, Outcome
from storage.disk.spans import MINUTE_MS, SegmentKey, Span
from storage.node.store import Store, StoreSettings
from storage.state.checkpoint import CHECKPOINT_PATH
from tests.simulation.determinism import derive
from tests.simulation.disk import SimDisk
from tests.simulation.faults import HARSH
from tests.storage.small_logs import facts_batch, log_batch
from tests.storage.starting import start


def _open(disk: SimDisk) -> Store:
    store, _ = start(
        disk, StoreSettings(), chance=random.Random(1), now_ms=1_000_000, on_damage=lambda _: None
    )
    return store


def test_a_crash_between_the_first_seal_and_the_first_checkpoint_cannot_be_mistaken() -> None:
    # Without a checkpoint nobody can say which segments are sealed, and the node refuses to start:
    # so there has to be one, durable, before the first seal.
    disk = SimDisk(derive(1, "disk"), plan=HARSH)
    _open(disk)
    disk.power_cut()
    disk = disk.revive()
    assert disk.exists(CHECKPOINT_PATH)
    _open(disk)


def test_facts_that_are_known_before_their_rows_are_written_are_counted() -> None:
    # After a restart facts are applied while replayed rows still wait in memory.
    store = _open(SimDisk(derive(1, "disk")))
    store.schedule.apply(
        log_batch(
            RecordKind.MESSAGE,
            2,
            floor_minute=50,
            columns=Columns(
                names=[b"s"],
                arrays={
                    "due_ms": np.full(2, 50 * MINUTE_MS, np.int64),
                    "id_hash": np.zeros(2, np.uint64),
                    "size": np.zeros(2, np.uint32),
                    "subject": np.zeros(2, np.uint16),
                },
            ),
            blob=b"",
        ),
        now_ms=0,
    )
    facts = FactBlock(
        sequence=np.array([2, 3], np.int64),
        minute=np.array([50, 50], np.uint32),
        at_ms=np.zeros(2, np.int64),
        target=np.zeros(2, np.uint16),
        outcome=np.full(2, Outcome.DELIVERED, np.uint8),
        record=np.zeros(2, np.int64),
        targets=[b"g1"],
    )
    store.schedule.apply(facts_batch(4, facts, floor_minute=50), now_ms=0)
    segment = store.schedule._segment(SegmentKey(50, Span.MINUTE))
    assert segment.facts_seen == 2
    assert store.schedule.pending == 0
