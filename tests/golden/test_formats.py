"""A directory of the present format is read and written alike; one of the first is refused."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from storage.batch.batches import Damage
from storage.batch.facts import Outcome
from storage.disk.disk import DirectoryDisk
from storage.disk.errors import UnsupportedFormatError
from storage.disk.spans import MINUTE_MS
from storage.node.store import Store
from storage.readers.item_reader import ItemReader
from storage.tools.inspect import verify_files
from tests.golden.directory import (
    DIRECTORIES,
    GOLDEN,
    decoded,
    dumped,
    ends_by_newest_slot,
    records_in,
    written,
)
from tests.storage.starting import start
from tests.storage.store_rig import SETTINGS, START_MS

HEX = GOLDEN / "format-2.hex"
DUMP = list(records_in("format-2"))

MESSAGES = [record for record in DUMP if record["kind"] == "MESSAGE"]
FACTS = [record for record in DUMP if record["kind"] == "FACTS"]
DELIVERED = {record["sequence"] for record in FACTS if record["outcome"] == Outcome.DELIVERED}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_today_the_same_directory_is_written_byte_for_byte(name: str) -> None:
    golden = ends_by_newest_slot(decoded((GOLDEN / f"{name}.hex").read_text()))
    today = ends_by_newest_slot(DIRECTORIES[name]())
    assert sorted(today) == sorted(golden)
    assert [path for path in golden if today[path] != golden[path]] == []


def test_every_kind_of_file_is_among_them() -> None:
    kinds = Counter(
        (path.partition("/")[0], path.rpartition(".")[2] if "." in path else path.split("/")[-1])
        for path in decoded(HEX.read_text())
    )
    assert {
        ("message_log", "log"),
        ("message_log", "durable_end"),
        ("schedule_log", "minute"),
        ("schedule_log", "hour"),
        ("schedule_log", "day"),
        ("dispatch_log", "minute"),
        ("seals", "log"),
        ("checkpoint", "checkpoint"),
        ("identity", "identity"),
    } <= set(kinds)
    assert kinds["message_log", "log"] > 2
    assert len(MESSAGES) > 100
    assert len(DELIVERED) > 20
    stated = {fact["sequence"] for fact in FACTS if fact["file"].startswith("message_log")}
    filed = {fact["sequence"] for fact in FACTS if fact["file"].startswith("dispatch_log")}
    assert filed < stated, "some are in the message_log only"


@pytest.mark.parametrize("name", DIRECTORIES)
def test_what_the_dump_said_then_it_says_now(name: str, tmp_path: Path) -> None:
    root = written(decoded((GOLDEN / f"{name}.hex").read_text()), tmp_path)
    said = [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]
    assert [json.loads(line) for line in dumped(root)] == said
    assert [record["damage"] for record in verify_files(root) if record["damage"]] == []


def test_a_node_starts_on_it_and_delivers_what_was_not_delivered(tmp_path: Path) -> None:
    disk = DirectoryDisk(written(decoded(HEX.read_text()), tmp_path))
    damages: list[Damage] = []
    now_ms = START_MS + 90 * 24 * 60 * MINUTE_MS
    store, summary = start(
        disk, SETTINGS, chance=random.Random(1), now_ms=now_ms, on_damage=damages.append
    )
    schedule = store.schedule
    handout = schedule.hand_out()
    while (split := schedule.splits.begin(now_ms)) is not None:
        while not split.step(now_ms):
            pass
    found = []
    while (job := handout.begin_load(now_ms, rows_max=1000, now_ms=now_ms)) is not None:
        done = False
        while not done:
            entries, done = job.step(1000)
            found.append(entries)
    entries = np.concatenate(found)
    items, damaged = ItemReader(disk, damages.append).read(entries)
    store.close()
    assert damages == []
    assert summary.message_log.cut == []
    assert summary.facts, "of records that the checkpoint does not cover"
    assert damaged is None
    pending = {
        record["sequence"]: record for record in MESSAGES if record["sequence"] not in DELIVERED
    }
    assert sorted(entries["sequence"].tolist()) == sorted(pending)
    for entry, item in zip(entries.tolist(), items, strict=True):
        record = pending[entry[0]]
        assert len(item) == record["size"]
        assert record["message id"].encode() in bytes(item)
        assert record["subject"].encode() in bytes(item)


def test_a_directory_of_the_first_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    files = decoded((GOLDEN / "format-1.hex").read_text())
    root = written(files, tmp_path)
    with pytest.raises(UnsupportedFormatError, match=r"version 1 .*start .* on an empty data dir"):
        Store.open(
            DirectoryDisk(root),
            SETTINGS,
            chance=random.Random(1),
            now_ms=START_MS,
            on_damage=lambda damage: pytest.fail(str(damage)),
        )
    assert {path: (root / path).read_bytes() for path in files} == files
    assert {path.name for path in root.rglob("*") if path.is_file()} - {"lock"} == {
        path.rpartition("/")[2] for path in files
    }
