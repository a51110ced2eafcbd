"""Every filed message enters the wheel once, however filing, loading and splitting interleave."""

import random
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from storage import (
    Columns,
    Damage,
    DirectoryDisk,
    Entries,
    FactBlock,
    ItemReader,
    LoadJob,
    Outcome,
    ScheduleLimits,
    ScheduleLog,
    SplitJob,
    SubjectTable,
)
from storage.spans import MINUTE_MS, Span
from tests.storage.qmq_items import qmq_item

LOG_UUID = UUID(int=7)
START_MINUTE = 29_000_000
START_MS = START_MINUTE * MINUTE_MS


class Bench:
    """A schedule log with a hand-cranked clock, and all that it gave to the wheel."""

    def __init__(self, root: Path, limits: ScheduleLimits | None = None) -> None:
        for name in ("schedule_log", "dispatch_log"):
            (root / name).mkdir()
        self.disk = DirectoryDisk(root)
        self.damages: list[Damage] = []
        self.log = ScheduleLog(
            self.disk,
            LOG_UUID,
            limits=limits or ScheduleLimits(minute_horizon_minutes=2, hour_horizon_minutes=180),
            subjects=SubjectTable(),
            on_damage=self.damages.append,
        )
        self.now_ms = START_MS
        self.next_sequence = 1
        self.due: dict[int, int] = {}
        self.wheel: list[Entries] = []

    def file(self, due_ms: list[int], floor: int | None = None) -> None:
        items = [qmq_item(due, b"s%d" % (due % 3), b"id") for due in due_ms]
        subjects = [b"s0", b"s1", b"s2"]
        columns = Columns(
            names=subjects,
            arrays={
                "due_ms": np.array(due_ms, np.int64),
                "id_hash": np.arange(len(due_ms), dtype=np.uint64),
                "size": np.array([len(item) for item in items], np.uint32),
                "subject": np.array([due % 3 for due in due_ms], np.uint16),
            },
        )
        minute = self.now_ms // MINUTE_MS
        floor = min(minute, self.log.hour_mark - 1) if floor is None else floor
        entries = self.log.file(
            base_sequence=self.next_sequence,
            floor_minute=max(floor, 0),
            epoch=1,
            columns=columns,
            blob=b"".join(items),
            append_ms=self.now_ms,
        )
        for due in due_ms:
            self.due[self.next_sequence] = due
            self.next_sequence += 1
        self.wheel.append(entries)

    def split_all(self) -> None:
        while (job := self.log.begin_split(self.now_ms)) is not None:
            while not job.step(self.now_ms):
                pass

    def load_all(self, until_ms: int, rows_max: int = 10**9) -> None:
        while (
            job := self.log.begin_load(until_ms, rows_max=rows_max, now_ms=self.now_ms)
        ) is not None:
            done = False
            while not done:
                entries, done = job.step(1000)
                self.wheel.append(entries)

    def loaded(self) -> list[int]:
        return sorted(np.concatenate(self.wheel)["sequence"].tolist()) if self.wheel else []

    def cross_off(self, sequences: list[int]) -> None:
        entries = np.concatenate(self.wheel)
        picked = entries[np.isin(entries["sequence"], sequences)]
        count = len(picked)
        self.log.note_facts(
            FactBlock(
                sequence=picked["sequence"].copy(),
                minute=picked["minute"].copy(),
                at_ms=np.full(count, self.now_ms, np.int64),
                target=np.zeros(count, np.uint16),
                outcome=np.full(count, Outcome.DELIVERED, np.uint8),
                targets=[b"g1"],
            )
        )


def test_rows_of_all_three_spans_come_out_once_as_time_passes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    chance = random.Random(1)
    bench.split_all()
    bench.file([START_MS + chance.randrange(5 * 24 * 60 * MINUTE_MS) for _ in range(500)])
    bench.log.flush(bench.now_ms)
    spans = {segment.key.span for segment in bench.log.segments.values()}
    assert spans >= {Span.HOUR, Span.DAY}
    while bench.now_ms < START_MS + 6 * 24 * 60 * MINUTE_MS:
        bench.now_ms += 30 * MINUTE_MS
        bench.split_all()
        bench.load_all(bench.now_ms)
    assert bench.loaded() == sorted(bench.due)
    assert not bench.damages


def test_entries_point_at_their_items(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.split_all()
    bench.file([START_MS + 1000 * place for place in range(300)])
    bench.load_all(START_MS + 60 * MINUTE_MS)
    bench.file([START_MS + 7, START_MS + 8])  # Straight in.
    found: list[tuple[str, int, str]] = []
    reader = ItemReader(bench.disk, lambda *what: found.append(what))
    entries = np.concatenate(bench.wheel)
    items, damaged = reader.read(entries)
    assert damaged is None
    assert len(items) == len(bench.due)
    for entry, item in zip(entries, items, strict=True):
        due = bench.due[int(entry["sequence"])]
        assert int(entry["due_ms"]) == due
        assert bytes(item) == qmq_item(due, b"s%d" % (due % 3), b"id")
        assert bench.log.subjects.names[int(entry["subject"])] == b"s%d" % (due % 3)


def test_a_row_for_a_minute_that_is_being_loaded_enters_exactly_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.split_all()
    bench.file([START_MS + 500 * place for place in range(100)])
    job = bench.log.begin_load(START_MS + MINUTE_MS, rows_max=10**6, now_ms=bench.now_ms)
    assert job is not None
    # Between the cursor's move and the end of the load: same minute, and the next one.
    bench.file([START_MS + 10, START_MS + MINUTE_MS + 10])
    done = False
    while not done:
        entries, done = job.step(10)
        bench.wheel.append(entries)
        bench.file([START_MS + 20])
    bench.load_all(START_MS + 2 * MINUTE_MS)
    assert bench.loaded() == sorted(bench.due)


@pytest.mark.parametrize("seed", range(40))
def test_any_interleaving_of_filing_loading_and_splitting_loads_each_row_once(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    bench = Bench(
        tmp_path,
        ScheduleLimits(minute_horizon_minutes=2, hour_horizon_minutes=120, gather_bytes_max=20_000),
    )
    bench.split_all()
    loads: list[LoadJob] = []
    splits: list[SplitJob] = []
    for _ in range(250):
        action = chance.randrange(8)
        if action <= 2:
            spread = chance.choice([1000, 3 * MINUTE_MS, 120 * MINUTE_MS, 2000 * MINUTE_MS])
            count = chance.randrange(1, 20)
            bench.file([bench.now_ms + chance.randrange(-MINUTE_MS, spread) for _ in range(count)])
        elif action == 3:
            bench.now_ms += chance.choice([100, 20_000, 20 * MINUTE_MS])
        elif action == 4 and not splits:
            job = bench.log.begin_split(bench.now_ms)
            splits += [job] if job is not None else []
        elif action == 5 and splits:
            if splits[0].step(bench.now_ms):
                splits.clear()
        elif action == 6 and not loads:
            ahead = bench.now_ms + chance.choice([1, 30_000, 120_000])
            rows = chance.choice([3, 50, 10**6])
            load = bench.log.begin_load(ahead, rows_max=rows, now_ms=bench.now_ms)
            loads += [load] if load is not None else []
        elif action == 7 and loads:
            entries, done = loads[0].step(chance.choice([1, 20, 1000]))
            bench.wheel.append(entries)
            if done:
                loads.clear()
    for job in splits:
        while not job.step(bench.now_ms):
            pass
    for load in loads:
        done = False
        while not done:
            entries, done = load.step(1000)
            bench.wheel.append(entries)
    for _ in range(200):
        bench.now_ms += 20 * MINUTE_MS
        bench.split_all()
        bench.load_all(bench.now_ms, rows_max=chance.choice([5, 1000]))
    assert bench.loaded() == sorted(bench.due)
    assert bench.log.pending == len(bench.due)


def test_a_message_due_in_the_past_is_filed_in_the_floors_minute(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.split_all()
    bench.load_all(START_MS + 2 * MINUTE_MS)
    bench.file([START_MS - 5 * MINUTE_MS, 1], floor=START_MINUTE)
    entries = bench.wheel[-1]
    assert entries["minute"].tolist() == [START_MINUTE, START_MINUTE]
    assert entries["due_ms"].tolist() == [START_MS - 5 * MINUTE_MS, 1]


def test_crossed_off_rows_are_not_loaded(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.split_all()
    bench.file([START_MS + place for place in range(10)])
    bench.load_all(START_MS + 2 * MINUTE_MS)
    bench.cross_off([1, 2, 3])
    assert bench.log.pending == 7
    bench.log.file_facts(bench.now_ms)
    bench.cross_off([4])
    segment = next(iter(bench.log.segments.values()))
    assert sorted(bench.log.crossed_off(segment).tolist()) == [1, 2, 3, 4]
