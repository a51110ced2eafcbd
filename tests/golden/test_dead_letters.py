"""A directory with dead letters is read and written alike."""

import random
from pathlib import Path

from storage.batch.batches import Damage
from storage.batch.facts import Outcome
from storage.disk.disk import DirectoryDisk
from storage.disk.spans import Span
from storage.readers.dead_reader import read_dead_item
from tests.golden.directory import GOLDEN, decoded, records_in, written
from tests.storage.starting import start
from tests.storage.store_rig import SETTINGS, START_MS

HEX = GOLDEN / "format-2-dead.hex"
DUMP = list(records_in("format-2-dead"))

DEAD = {record["sequence"]: record for record in DUMP if record["kind"] == "DEAD"}
SETTLED = {record["old_sequence"] for record in DUMP if record["kind"] in {"MOVE", "CANCEL"}}


def test_every_kind_of_record_and_file_is_among_them() -> None:
    kinds = {record["kind"] for record in DUMP}
    assert {"DEAD", "MOVE", "CANCEL", "ROWS"} <= kinds
    outcomes = {Outcome.DEAD, Outcome.MOVED, Outcome.DROPPED}
    assert outcomes <= {record.get("outcome") for record in DUMP}
    paths = [path for path in decoded(HEX.read_text()) if path.endswith(".dead")]
    assert {path.partition("/")[0] for path in paths} == {"schedule_log", "dispatch_log"}
    assert Span.DEAD in {record["span"] for record in DUMP if record["kind"] == "SEALS"}


def test_a_node_starts_on_it_and_finds_the_dead_letters_that_nobody_settled(
    tmp_path: Path,
) -> None:
    disk = DirectoryDisk(written(decoded(HEX.read_text()), tmp_path))
    damages: list[Damage] = []
    store, summary = start(
        disk,
        SETTINGS,
        chance=random.Random(1),
        now_ms=START_MS + 10**9,
        on_damage=damages.append,
    )
    assert summary.facts, "records are there whose facts are in no file"
    schedule = store.schedule
    schedule.read_dead()
    for row in schedule.dead.rows.values():
        record, found = DEAD[row.sequence], read_dead_item(disk, row)
        assert (row.old_sequence, row.size) == (record["old_sequence"], record["size"])
        assert (found.reason, found.fault) == (record["reason"], "")
    store.close()
    assert damages == []
    assert schedule.dead.rows.keys() == DEAD.keys() - SETTLED
