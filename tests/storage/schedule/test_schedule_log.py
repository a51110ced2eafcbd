"""Every filed message enters the wheel once, however filing, loading and splitting interleave."""

import contextlib
import random
from uuid import UUID

import numpy as np

from storage.batch.batches import Damage
from storage.batch.columns import Columns, RecordKind
from storage.batch.entries import Entries
from storage.disk.errors import StorageFullError
from storage.disk.spans import MINUTE_MS
from storage.limits import StorageLimits
from storage.schedule.handout import held_rows
from storage.schedule.loading import LoadJob
from storage.schedule.schedule_log import ScheduleLog
from storage.schedule.splitting import SplitJob
from tests.seeds import each_seed
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Action, Trap
from tests.storage.qmq_items import qmq_item
from tests.storage.small_logs import facts_batch, log_batch
from tests.storage.store_rig import facts_of

LOG_UUID = UUID(int=7)
START_MINUTE = 29_000_000
START_MS = START_MINUTE * MINUTE_MS


class Bench:
    """A schedule log with a hand-cranked clock, and all that it gave to the wheel."""

    def __init__(self, limits: StorageLimits | None = None) -> None:
        self.disk = SimDisk(random.Random(0))
        for name in ("schedule_log", "dispatch_log"):
            self.disk.make_directory(name)
        self.damages: list[Damage] = []
        self.log = ScheduleLog(
            self.disk,
            LOG_UUID,
            limits=limits or StorageLimits(minute_horizon_minutes=2, hour_horizon_minutes=180),
            on_damage=self.damages.append,
        )
        self.handout = self.log.hand_out()
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
        entries = self.log.apply(
            log_batch(
                RecordKind.MESSAGE,
                self.next_sequence,
                floor_minute=max(floor, 0),
                columns=columns,
                blob=b"".join(items),
            ),
            now_ms=self.now_ms,
        ).entries
        for due in due_ms:
            self.due[self.next_sequence] = due
            self.next_sequence += 1
        self.wheel.append(entries)

    def split_all(self) -> None:
        while (job := self.log.splits.begin(self.now_ms)) is not None:
            while not job.step(self.now_ms):
                pass

    def load_all(self, until_ms: int, rows_max: int = 10**9) -> None:
        while (
            job := self.handout.begin_load(until_ms, rows_max=rows_max, now_ms=self.now_ms)
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
        facts = facts_of(picked, self.now_ms)
        self.log.apply(facts_batch(self.next_sequence, facts), now_ms=self.now_ms)
        self.handout.settle(held_rows(picked))
        self.next_sequence += len(picked)

    def cancel(self, sequence: int) -> None:
        minute = self.due[sequence] // MINUTE_MS
        arrays = {"old_sequence": np.array([sequence]), "old_minute": np.array([minute])}
        columns = Columns(names=[], arrays=arrays)
        batch = log_batch(
            RecordKind.CANCEL, self.next_sequence, floor_minute=START_MINUTE, columns=columns
        )
        self.log.apply(batch, now_ms=self.now_ms)
        self.next_sequence += 1


@each_seed(80)
def test_any_interleaving_of_filing_loading_and_splitting_loads_each_row_once(
    seed: int,
) -> None:
    chance = random.Random(seed)
    bench = Bench(
        StorageLimits(minute_horizon_minutes=2, hour_horizon_minutes=120, gather_bytes_max=20_000),
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
            job = bench.log.splits.begin(bench.now_ms)
            splits += [job] if job is not None else []
        elif action == 5 and splits:
            if splits[0].step(bench.now_ms):
                splits.clear()
        elif action == 6 and not loads:
            ahead = bench.now_ms + chance.choice([1, 30_000, 120_000])
            rows = chance.choice([3, 50, 10**6])
            load = bench.handout.begin_load(ahead, rows_max=rows, now_ms=bench.now_ms)
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


def test_a_flush_that_finds_space_does_not_say_that_nothing_waits() -> None:
    bench = Bench()
    bench.split_all()
    bench.load_all(START_MS + 2 * MINUTE_MS)
    bench.disk.arm(Trap(action=Action.FULL, kinds={"write", "create"}))
    bench.file([START_MS + 1, START_MS + 60 * MINUTE_MS])
    assert bench.log.flush(bench.now_ms)
    assert bench.log.full
    assert bench.loaded() == []


def test_no_row_overtakes_one_of_its_minute_that_waits_for_space() -> None:
    """Those that wait would be taken for filed, once a later one is."""
    bench = Bench()
    bench.split_all()
    bench.load_all(START_MS + 2 * MINUTE_MS)
    full = Trap(action=Action.FULL, kinds={"write", "create"})
    bench.disk.arm(*[full] * 4)
    bench.file([START_MS + place for place in range(20)])
    assert bench.loaded() == []
    # From now on what is due then waits in the pile, as far as the cursor says.
    bench.handout.cap((START_MS, 0))
    bench.disk.disarm()
    bench.disk.arm(full)
    bench.file([START_MS + 30])
    bench.disk.disarm()
    assert bench.log.flush(bench.now_ms)
    assert sum(map(len, bench.log.waiting.near)) == 21
    bench.wheel.append(bench.log.flush_near(bench.now_ms))
    assert not bench.log.full
    bench.load_all(START_MS + 2 * MINUTE_MS)
    assert bench.loaded() == list(range(1, 22))
    assert bench.log.pending == 21


def test_the_splits_memory_stays_bounded_while_the_disk_is_full() -> None:
    bench = Bench(
        StorageLimits(minute_horizon_minutes=2, hour_horizon_minutes=120, gather_bytes_max=2000)
    )
    bench.split_all()
    coarse_ms = START_MS + 100 * MINUTE_MS
    for _ in range(30):
        bench.file([coarse_ms + place for place in range(10)])
        bench.log.flush(bench.now_ms)
    bench.now_ms = coarse_ms
    job = bench.log.splits.begin(bench.now_ms)
    assert job is not None
    bench.disk.capacity_bytes = bench.disk.medium.used
    for _ in range(60):
        with contextlib.suppress(StorageFullError):
            assert not job.step(bench.now_ms)
    assert sum(block.weight for block in job.gathered) < 2 * 2000
    bench.disk.capacity_bytes = 1 << 40
    while not job.step(bench.now_ms):
        pass
    bench.split_all()
    bench.load_all(coarse_ms + MINUTE_MS)
    assert bench.loaded() == sorted(bench.due)


def test_a_fact_told_again_after_its_segment_was_sealed_is_dropped() -> None:
    bench = Bench()
    bench.split_all()
    bench.file([START_MS])
    bench.load_all(START_MS + MINUTE_MS)
    bench.cross_off([1])
    bench.log.file_facts(bench.now_ms)
    bench.log.drop_sealed([segment.key for segment in bench.log.segments.values()])
    bench.cross_off([1])
    bench.log.file_facts(bench.now_ms)
    assert bench.log.segments == {}
    assert bench.log.pending == 0
    assert bench.log.replayed_sequence() == bench.log.last_filed == 3


def test_the_next_load_is_that_of_the_first_row_that_is_not_in_the_wheel() -> None:
    bench = Bench()
    assert bench.handout.next_load_ms() is None
    bench.split_all()
    bench.file([START_MS + 7 * MINUTE_MS + 5, START_MS + 9 * MINUTE_MS])
    assert bench.handout.next_load_ms() == START_MS + 7 * MINUTE_MS + 5
    bench.log.flush(bench.now_ms)
    assert bench.handout.next_load_ms() == START_MS + 7 * MINUTE_MS + 5
    bench.load_all(START_MS + 8 * MINUTE_MS)
    assert bench.handout.next_load_ms() == START_MS + 9 * MINUTE_MS


def test_a_floor_is_wanted_when_all_rows_of_an_open_segment_have_facts() -> None:
    bench = Bench()
    bench.split_all()
    bench.file([START_MS, START_MS + MINUTE_MS])
    bench.load_all(START_MS + 2 * MINUTE_MS)
    assert bench.log.wants_floor() is None
    bench.cross_off([2])
    assert bench.log.wants_floor() == START_MINUTE + 2
    bench.cross_off([1])
    assert bench.log.wants_floor() == START_MINUTE + 1
    bench.log.apply(log_batch(RecordKind.FLOOR, 5, floor_minute=START_MINUTE + 1), now_ms=0)
    assert bench.log.wants_floor() == START_MINUTE + 2


def collect(bench: Bench) -> None:
    """Take away every name that the log does not hold."""
    bench.log.condemn_subjects()
    assert bench.log.subjects.sweep(1000)


def test_rows_on_their_way_through_a_split_keep_the_names_of_their_subjects() -> None:
    bench = Bench()
    hour_ms = START_MS - START_MS % (60 * MINUTE_MS) + 5 * 60 * MINUTE_MS
    bench.file([hour_ms])
    bench.log.flush(bench.now_ms)
    bench.now_ms = hour_ms - MINUTE_MS
    job = bench.log.splits.begin(bench.now_ms)
    assert job is not None
    collect(bench)
    assert not bench.log.subjects.ids
    assert not job.step(bench.now_ms)
    # What comes for it meanwhile is held as soon as there is a flush.
    bench.file([hour_ms + 1])
    bench.log.flush(bench.now_ms)
    assert bench.log.waiting.held
    collect(bench)
    assert set(bench.log.subjects.ids) == {b"s%d" % ((hour_ms + place) % 3) for place in (0, 1)}
    while not job.step(bench.now_ms):
        pass
    bench.log.flush(bench.now_ms)
    collect(bench)
    assert not bench.log.subjects.ids


def test_what_anybody_else_holds_keeps_its_name() -> None:
    bench = Bench()
    bench.log.subjects.numbers([b"a", b"b", b"c"])
    assert not bench.log.condemn_subjects().any()
    bench.log.subjects.spare(np.array([False, True]))
    assert bench.log.subjects.sweep(10)
    assert set(bench.log.subjects.ids) == {b"b"}


def test_only_names_of_which_a_row_is_given_out_get_a_number() -> None:
    bench = Bench()
    bench.split_all()
    bench.file([START_MS, START_MS + 1, START_MS + 2])
    bench.log.flush(bench.now_ms)
    collect(bench)
    bench.load_all(START_MS + 2)
    assert set(bench.log.subjects.ids) == {b"s%d" % ((START_MS + place) % 3) for place in (0, 1)}
    assert bench.loaded() == [1, 2]


def test_a_long_replay_does_not_gather_the_names_of_all_that_it_files() -> None:
    bench = Bench(StorageLimits(subjects_bytes_max=1024, gather_bytes_max=1))
    bench.log.handout = None
    for place in range(100):
        bench.log.subjects.number(b"once.%d" % place)
        bench.file([START_MS + place * MINUTE_MS])
        bench.log.flush(bench.now_ms)
    assert bench.log.subjects.collections > 50
    assert len(bench.log.subjects) < 6
    # As soon as rows are handed out, others may hold numbers: they have to be asked.
    bench.log.hand_out()
    collections = bench.log.subjects.collections
    bench.log.subjects.numbers([b"held.%d" % place for place in range(10)])
    bench.file([START_MS])
    assert bench.log.subjects.collections == collections


def test_rows_that_are_filed_already_are_counted_off_once_though_others_find_no_space() -> None:
    bench = Bench()
    bench.file([START_MS, START_MS + 3, START_MS + 6])
    assert bench.log.flush(bench.now_ms)
    assert bench.log.pending == 3
    # A replay that begins at the second row, with one that is new.
    bench.next_sequence = 2
    bench.file([START_MS + 3, START_MS + 6, START_MS + 9])
    used = bench.disk.medium.used
    bench.disk.capacity_bytes, capacity = used, bench.disk.capacity_bytes
    for _ in range(3):
        assert not bench.log.flush(bench.now_ms)
        assert bench.log.pending == 4
    bench.disk.capacity_bytes = capacity
    assert bench.log.flush(bench.now_ms)
    assert bench.log.pending == 4


def test_facts_are_filed_once_no_row_of_their_segment_waits() -> None:
    """A facts file would tell of a row that its segment does not have."""
    bench = Bench()
    bench.split_all()
    due_ms = START_MS + 2000 * MINUTE_MS
    bench.file([due_ms])
    bench.log.flush(bench.now_ms)
    bench.file([due_ms])
    (segment,) = bench.log.segments.values()
    assert (segment.rows, len(bench.log.unwritten())) == (1, 1)
    bench.cancel(2)
    bench.log.file_facts(bench.now_ms)
    assert (segment.facts_file.length, bench.log.replayed_sequence()) == (0, 1)
    bench.log.flush(bench.now_ms)
    bench.log.file_facts(bench.now_ms)
    assert (segment.rows, segment.facts, bench.log.pending) == (2, 1, 1)


def test_a_fact_about_a_row_that_waits_for_a_split_is_counted_once() -> None:
    bench = Bench()
    bench.split_all()
    minutes = [START_MS + minute * MINUTE_MS for minute in (130, 140)]
    bench.file(minutes[:1])
    bench.log.flush(bench.now_ms)
    bench.now_ms = minutes[0] - 5 * MINUTE_MS
    job = bench.log.splits.begin(bench.now_ms)
    assert job is not None
    bench.file(minutes[1:])
    bench.cancel(2)
    assert bench.log.pending == 1
    while not job.step(bench.now_ms):
        pass
    # The minute of the row that waited has no segment yet.
    assert len(bench.log.segments) == 1
    assert bench.log.pending == 1
    bench.log.flush(bench.now_ms)
    bench.log.file_facts(bench.now_ms)
    assert bench.log.pending == sum(one.pending for one in bench.log.segments.values()) == 1
