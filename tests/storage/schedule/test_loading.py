"""Each row is in memory at most once, whatever readings, lanes and cursors do to one another.

The model is what a server does with entries: a wheel, a sender that may hold rows for long, lanes
of subjects whose rows are given back when they are popped, facts that are applied late.
"""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import pytest

from storage.batch.batches import Damage
from storage.batch.columns import Columns, RecordKind
from storage.batch.entries import Entries
from storage.batch.facts import FactBlock
from storage.disk.spans import MINUTE_MS
from storage.limits import StorageLimits
from storage.schedule.handout import Handout, held_rows
from storage.schedule.keys import Key
from storage.schedule.loading import DrainJob, LoadJob
from storage.schedule.schedule_log import ScheduleLog
from storage.schedule.segment import Segment, SegmentBatch
from tests.seeds import seeds_in_parts
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Action, Trap
from tests.storage.small_logs import facts_batch, log_batch
from tests.storage.small_segments import delivered

LOG_UUID = UUID(int=7)
START_MS = 29_000_000 * MINUTE_MS
SUBJECTS = 4
NOWHERE = 9
"""A lane from which nothing is read, of subjects that may not leave."""


@dataclass(frozen=True)
class Row:
    """A message as the producer sent it and as it was filed."""

    sequence: int
    subject: int
    due_ms: int
    minute: int

    @property
    def key(self) -> Key:
        return max(self.due_ms, self.minute * MINUTE_MS), self.sequence


class Model:
    """A schedule log and the server's memory around it."""

    def __init__(self, chance: random.Random, *, eio_read: float = 0.0) -> None:
        self.chance = chance
        self.eio_read = eio_read
        self.disk = SimDisk(random.Random(0))
        for name in ("schedule_log", "dispatch_log"):
            self.disk.make_directory(name)
        self.damages: list[Damage] = []
        self.now_ms = START_MS
        self.rows: dict[int, Row] = {}
        self.next_sequence = 1
        self.floor = START_MS // MINUTE_MS
        self.wheel: dict[int, Row] = {}
        self.sender: dict[int, Row] = {}
        self.unnoted: dict[int, Row] = {}
        self.outside: set[int] = set()
        """Of these, the ones that an earlier mastership held: nobody has their entries."""
        self.done: set[int] = set()
        self.forgotten = False
        self.lane_of: dict[int, int] = {}
        """The lane of each subject that is not in lane 0."""
        self.entries: dict[int, Entries] = {}
        """The entry of each row that is held."""
        self.sweeping = False
        self.job: LoadJob | None = None
        self.lane_job: DrainJob | None = None
        self.drain_room = 0
        """How many more rows the reading of a lane was asked for."""
        self.counts: Counter[str] = Counter()
        self.handout: Handout
        self.log = self._new_log()

    def _new_log(self) -> ScheduleLog:
        log = ScheduleLog(
            self.disk,
            LOG_UUID,
            limits=StorageLimits(gather_bytes_max=3000),
            on_damage=self.damages.append,
        )
        log.splits.begin(self.now_ms)
        self.handout = log.hand_out()
        return log

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let reads fail as often as they are to."""
        if self.eio_read:
            trap = Trap(
                action=Action.EIO,
                kinds=frozenset({"open_read", "size", "read"}),
                when=lambda *_: self.chance.random() < self.eio_read,
            )
            self.disk.arm(trap, trap, trap)
        try:
            yield
        finally:
            self.disk.disarm()

    def number(self, subject: int) -> int:
        return self.log.subjects.number(b"s%d" % subject)

    def subject(self, number: int) -> int:
        return int(self.log.subjects.names[number][1:])

    def file(self, due_ms: list[int], subjects: list[int]) -> None:
        self.floor = max(self.floor, self.now_ms // MINUTE_MS)
        first = self.next_sequence
        self.next_sequence += len(due_ms)
        for place, (due, subject) in enumerate(zip(due_ms, subjects, strict=True)):
            row = Row(first + place, subject, due, max(due // MINUTE_MS, self.floor))
            self.rows[row.sequence] = row
        if self.chance.random() < 0.1:
            full = Trap(action=Action.FULL, kinds=frozenset({"write", "create"}))
            self.disk.arm(*[full] * self.chance.choice([1, 1, 2, 9]))
            self.counts["full"] += 1
        names = list(dict.fromkeys(subjects))
        entries = self.log.apply(
            log_batch(
                RecordKind.MESSAGE,
                first,
                floor_minute=self.floor,
                columns=Columns(
                    names=[b"s%d" % subject for subject in names],
                    arrays={
                        "due_ms": np.array(due_ms, np.int64),
                        "id_hash": np.zeros(len(due_ms), np.uint64),
                        "size": np.ones(len(due_ms), np.uint32),
                        "subject": np.array(list(map(names.index, subjects)), np.uint16),
                    },
                ),
                blob=b"x" * len(due_ms),
            ),
            now_ms=self.now_ms,
        ).entries
        if self.log.pile_is_full:
            self.log.flush(self.now_ms)
        self.disk.disarm()
        self.take(entries)

    def _hold(self, entries: Entries) -> list[Row]:
        """Note that rows are in memory from now on; none may be there already."""
        rows = []
        for place, (sequence, number) in enumerate(entries[["sequence", "subject"]].tolist()):
            for where in (self.entries, self.unnoted, self.done):
                assert sequence not in where, f"{sequence} was handed out twice"
            row = self.rows[sequence]
            assert self.subject(number) == row.subject
            self.entries[sequence] = entries[place : place + 1]
            rows.append(row)
        return rows

    def take(self, entries: Entries) -> None:
        """Put entries into the wheel."""
        for row in self._hold(entries):
            self.wheel[row.sequence] = row

    def give_back(self, sequences: list[int]) -> None:
        if sequences:
            entries = np.concatenate([self.entries.pop(sequence) for sequence in sequences])
            self.forgotten = self.chance.random() < 0.1
            self.handout.give_back(entries, is_forgotten=self.forgotten)
            self.counts["forgotten"] += self.forgotten

    def throw_out(self, sequence: int) -> None:
        """Give a row in the wheel back."""
        del self.wheel[sequence]
        self.handout.give_back(self.entries.pop(sequence))

    def load(self, ahead_ms: int, rows_max: int, step: int) -> None:
        if self.job is None:
            self.job = self.handout.begin_load(
                self.now_ms + ahead_ms, rows_max=rows_max, now_ms=self.now_ms
            )
        if self.job is None:
            return
        with self.reading():
            entries, done = self.job.step(step)
        for sequence in entries["sequence"].tolist():
            assert self.job.begin < self.rows[sequence].key
        self.take(entries)
        if done:
            self.counts["loads"] += self.job.started
            self.job = None

    def pop(self, count: int) -> None:
        """Send what is due; what should wait on disk is given back."""
        due = [row for row in self.wheel.values() if row.due_ms <= self.now_ms]
        waits = []
        for row in sorted(due, key=lambda row: (row.due_ms, row.sequence))[:count]:
            del self.wheel[row.sequence]
            if row.subject in self.lane_of:
                waits.append(row.sequence)
            else:
                self.sender[row.sequence] = row
        self.give_back(waits)
        self.counts["left"] += len(waits)

    def withdraw(self, share: float) -> None:
        """Take rows back from the sender that nobody may send."""
        found = [
            sequence
            for sequence, row in self.sender.items()
            if row.subject in self.lane_of and self.chance.random() < share
        ]
        for sequence in found:
            del self.sender[sequence]
        self.give_back(found)

    def deliver(self, share: float) -> None:
        for sequence in list(self.sender):
            if self.chance.random() < share:
                self.unnoted[sequence] = self.sender.pop(sequence)

    def facts_of(self, rows: list[Row]) -> FactBlock:
        sequences = [row.sequence for row in rows]
        return delivered(sequences, minute=[row.minute for row in rows], at_ms=self.now_ms)

    def note(self, share: float) -> None:
        """Apply facts, then let go of the rows."""
        rows = [row for row in self.unnoted.values() if self.chance.random() < share]
        if not rows:
            return
        self.log.apply(
            facts_batch(self.next_sequence, self.facts_of(rows), floor_minute=self.floor),
            now_ms=self.now_ms,
        )
        self.next_sequence += len(rows)
        held = [row for row in rows if row.sequence not in self.outside]
        if held:
            entries = np.concatenate([self.entries.pop(row.sequence) for row in held])
            self.handout.settle(held_rows(entries))
        for row in rows:
            self.done.add(row.sequence)
            self.outside.discard(row.sequence)
            del self.unnoted[row.sequence]

    def evict(self) -> None:
        """Throw the latest rows out of the wheel."""
        if not self.wheel:
            return
        key = self.chance.choice(list(self.wheel.values())).key
        key = (key[0], self.chance.choice([0, key[1] - 1]))
        gone = [sequence for sequence, row in self.wheel.items() if row.key > key]
        for sequence in gone:
            del self.wheel[sequence]
        self.give_back(gone)
        self.handout.cap(key)
        self.counts["evictions"] += 1

    def assign(self) -> None:
        """Put subjects into a lane, together or alone, or back into lane 0."""
        count = self.chance.choice([1, 1, 2, SUBJECTS])
        subjects = self.chance.sample(range(SUBJECTS), count)
        lane = self.chance.choice([0, 0, 1, 2, 3, NOWHERE])
        self.put(subjects, lane)

    def put(self, subjects: list[int], lane: int) -> None:
        """Put subjects into a lane."""
        self.handout.assign(np.array(list(map(self.number, subjects))), lane)
        self.counts["joined"] += lane in self.lane_of.values()
        for subject in subjects:
            self.counts["moved"] += subject in self.lane_of and bool(lane)
            if lane:
                self.lane_of[subject] = lane
            else:
                self.counts["closed"] += subject in self.lane_of
                self.lane_of.pop(subject, None)

    def serve_lane(self, rows_max: int, step: int) -> None:
        """Go on with reading a lane."""
        lanes = sorted(set(self.lane_of.values()) - {NOWHERE})
        if self.lane_job is None and lanes:
            number = self.chance.choice(lanes)
            self.lane_job = self.handout.begin_drain(number, self.now_ms, rows_max=rows_max)
            self.drain_room = rows_max
        if self.lane_job is None:
            return
        job = self.lane_job
        with self.reading():
            entries, done = job.step(step)
        self.drain_room -= len(entries)
        assert self.drain_room >= 0, "a lane gave more than was wanted"
        rows = self._hold(entries)
        keys = [(row.due_ms, row.sequence) for row in rows]
        assert keys == sorted(keys)
        for row in rows:
            assert row.due_ms <= self.now_ms
            self.sender[row.sequence] = row
        if done:
            self.handout.give_back(job.surplus)
            self.counts["surplus"] += len(job.surplus)
            self.counts["drains"] += job.started
            self.lane_job = None

    def collect(self, step: int) -> None:
        """Go on with a collection of names; what holds a number must find its name unchanged."""
        if self.sweeping:
            self.sweeping = not self.log.subjects.sweep(step)
            self.counts["collections"] += not self.sweeping
        else:
            held = self.log.condemn_subjects()
            by_number = np.zeros(len(held), np.bool_)
            by_number[[n for n in map(self.number, self.lane_of) if n < len(held)]] = True
            self.log.subjects.spare(by_number)
            self.sweeping = True
        for sequence, entry in self.entries.items():
            assert self.subject(int(entry["subject"][0])) == self.rows[sequence].subject

    def demote(self) -> None:
        """End the mastership and begin another one, with the store open.

        Of what is durable, and not applied yet, the next one knows.
        """
        for sequence in list(self.unnoted):
            if sequence not in self.outside and self.chance.random() < 0.5:
                del self.unnoted[sequence]
        if self.unnoted:
            rows = list(self.unnoted.values())
            facts = self.facts_of(rows)
            facts.record[:] = self.next_sequence + 10**6
            self.log.facts.know(facts)
            self.outside = set(self.unnoted)
        self.log.handout = None
        self.handout = self.log.hand_out()
        self._forget()
        self.counts["demotions"] += 1

    def _forget(self) -> None:
        self.wheel.clear()
        self.sender.clear()
        self.entries.clear()
        self.lane_of.clear()
        self.job = self.lane_job = None
        self.sweeping = False

    def restart(self) -> None:
        """Forget what is in memory; what has a fact has one."""
        self.take(self.log.flush_near(self.now_ms))
        self.log.flush(self.now_ms)
        self.note(1)
        self.log.file_facts(self.now_ms)
        assert self.log.replayed_sequence() == self.log.last_filed
        before, self.log = self.log, self._new_log()
        for code, segment in before.segments.items():
            self.log.segments[code] = Segment.of_state(self.disk, LOG_UUID, segment.state())
        before.close()
        self.log.splits.hour_mark = before.splits.hour_mark
        self.log.splits.day_mark = before.splits.day_mark
        self.log.floor_minute, self.log.last_filed = before.floor_minute, before.last_filed
        self._forget()
        self.counts["restarts"] += 1

    def finish(self) -> None:
        """Let everything become due and be delivered; no row may be forgotten."""
        self.eio_read = 0
        if self.damages:
            self.counts["damages"] += len(self.damages)
            # What could not be read comes after the next start.
            self.restart()
        damages = len(self.damages)
        if NOWHERE in self.lane_of.values():
            leave = [subject for subject, lane in self.lane_of.items() if lane == NOWHERE]
            self.handout.assign(np.array(list(map(self.number, leave))), 3)
            self.lane_of.update(dict.fromkeys(leave, 3))
        for _ in range(3000):
            if len(self.done) == len(self.rows):
                break
            self.now_ms += 10_000
            self.log.splits.begin(self.now_ms)
            self.handout.remember()
            self.take(self.log.flush_near(self.now_ms))
            self.load(60_000, self.chance.choice([4, 100]), 10_000)
            self.pop(10**6)
            self.serve_lane(self.chance.choice([4, 100]), 10_000)
            self.deliver(1)
            self.note(1)
            self.collect(10)
        assert self.done == self.rows.keys()
        assert not self.damages[damages:]
        self.check_segments()
        self.check_flags()

    def check_flags(self) -> None:
        """With nothing in memory no minute is open, and nothing is counted as held."""
        for job in (self.job, self.lane_job):
            while job is not None and not job.step(10**6)[1]:
                pass
        self.handout.heed()
        assert not self.handout._minutes
        assert not self.handout._held_of.any()
        assert self.handout._open_rows == 0

    def check_segments(self) -> None:
        """Each row lies on disk with the name of its own subject."""
        for segment in self.log.segments.values():
            for batch in segment.read_rows(self.disk, segment.file.length):
                assert isinstance(batch, SegmentBatch)
                names = [batch.columns.names[i] for i in batch.columns.arrays["subject"]]
                for sequence, name in zip(batch.sequence.tolist(), names, strict=True):
                    assert name == b"s%d" % self.rows[sequence].subject

    def act(self) -> None:
        chance = self.chance
        action = chance.randrange(17)
        if action <= 2:
            spread = chance.choice([1, 3, 2000, 3 * MINUTE_MS])
            first = self.now_ms + chance.choice([-2 * MINUTE_MS, -500, 0, 0, 30_000])
            count = chance.randrange(1, 25)
            # Those from SUBJECTS on do not come again.
            once = [SUBJECTS + len(self.rows) + place for place in range(3)]
            subjects = chance.choice([[0], [0, 1], list(range(SUBJECTS)), [0, *once]])
            self.file(
                [first + chance.randrange(spread) for _ in range(count)],
                [chance.choice(subjects) for _ in range(count)],
            )
        elif action == 3:
            self.now_ms += chance.choice([1, 100, 20_000])
            if self.log.full:
                self.take(self.log.flush_near(self.now_ms))
        elif action <= 6:
            self.load(
                chance.choice([0, 30_000, 120_000]),
                chance.choice([1, 3, 20, 10**6]),
                chance.choice([1, 10, 1000]),
            )
        elif action <= 8:
            self.pop(chance.choice([3, 50]))
        elif action == 9:
            self.deliver(chance.choice([0.1, 0.9]))
        elif action == 10:
            self.note(chance.choice([0.3, 1]))
            if chance.random() < 0.3:
                self.log.file_facts(self.now_ms)
        elif action == 11:
            if chance.random() < 0.4:
                self.evict()
            elif chance.random() < 0.3:
                self.withdraw(0.5)
            elif chance.random() < 0.1:
                self.handout.remember()
            elif chance.random() < 0.3:
                self.handout.heed()
                self.handout._thin_out()
                self.counts["thinned"] += 1
        elif action == 12:
            if chance.random() < 0.4:
                self.assign()
        elif action <= 14:
            self.serve_lane(chance.choice([1, 5, 10**6]), chance.choice([1, 10, 1000]))
        elif chance.random() < 0.03:
            chance.choice([self.restart, self.demote])()
        else:
            self.collect(chance.choice([1, 5, 1000]))


@seeds_in_parts(300, quick=20, part=20)
def test_whatever_interleaves_every_row_is_in_memory_at_most_once_and_leaves(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        model = Model(random.Random(seed))
        for _ in range(300):
            model.act()
        model.finish()
        counts += model.counts
    # A test in which nothing happens proves nothing.
    assert min(counts[name] for name in ("loads", "evictions", "drains", "left")) > 50
    assert min(counts[name] for name in ("moved", "closed", "joined", "forgotten")) > 8
    assert counts["collections"] > 50
    assert min(counts[name] for name in ("full", "thinned")) > 8
    # What a lane read beyond its room is rare: the first part is enough of a proof.
    assert counts["surplus"] > 8 or seeds[0]
    assert counts["restarts"]
    assert counts["demotions"]


@seeds_in_parts(200, quick=20, part=20)
def test_what_the_disk_cannot_read_is_handed_out_once_at_the_latest_after_the_next_start(
    seeds: range,
) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        chance = random.Random(seed)
        model = Model(chance, eio_read=chance.choice([0.02, 0.1, 0.5]))
        for _ in range(300):
            model.act()
        model.finish()
        counts += model.counts
    assert min(counts[name] for name in ("loads", "evictions", "moved", "drains")) > 20
    assert min(counts[name] for name in ("closed", "joined", "restarts")) > 2
    assert counts["damages"] > 200


def _with_a_lane() -> Model:
    """Return a model of whose lane, of subject 0, six rows are on disk and two have been taken."""
    model = Model(random.Random(0))
    model.put([0], 1)
    model.file([START_MS + second * 1000 for second in range(1, 7)], [0] * 6)
    model.load(MINUTE_MS, 10, 10)
    model.now_ms += 20_000
    model.serve_lane(2, 100)
    assert (sorted(model.sender), model.lane_job) == ([1, 2], None)
    return model


def test_a_lane_hands_out_no_more_than_was_wanted_though_more_came_since_the_plan() -> None:
    model = _with_a_lane()
    model.serve_lane(2, 1)
    model.file([START_MS + 3500], [0])
    model.serve_lane(2, 100)
    assert (sorted(model.sender), model.lane_job) == ([1, 2, 3, 7], None)
    model.finish()


def test_what_came_since_the_plan_and_before_the_cursor_of_its_lane_is_come_by() -> None:
    model = _with_a_lane()
    model.serve_lane(2, 1)
    model.file([START_MS + 500], [0])
    model.finish()


def test_a_subject_that_joins_a_lane_of_one_is_read_with_it_though_that_was_planned() -> None:
    model = Model(random.Random(0))
    model.put([0], 1)
    model.put([1], 2)
    for subject in (1, 0):
        model.file([START_MS + second * 1000 for second in range(1, 4)], [subject] * 3)
        model.log.flush(START_MS)
    model.load(MINUTE_MS, 10, 10)
    model.now_ms += 20_000
    model.lane_job = model.handout.begin_drain(1, model.now_ms, rows_max=2)
    model.drain_room = 2
    model.serve_lane(2, 1)
    assert model.lane_job is not None
    model.put([1], 1)
    model.handout.heed()
    model.finish()


def test_a_lane_does_not_pass_what_lane_0_has_not_reached() -> None:
    model = Model(random.Random(0))
    model.put([0], 1)
    model.file([START_MS + 1000], [0])
    model.load(MINUTE_MS, 10, 10)
    model.file([START_MS + MINUTE_MS + 2000], [0])
    model.now_ms += MINUTE_MS + 20_000
    assert model.log.pile_earliest_ms == START_MS + MINUTE_MS + 2000
    model.serve_lane(10, 100)
    assert (sorted(model.sender), model.lane_job) == ([1], None)
    model.finish()


def test_what_waits_to_be_written_is_come_by_by_a_lane_that_is_beyond_it() -> None:
    model = _with_a_lane()
    model.serve_lane(10, 100)
    model.file([START_MS], [1])
    # Lane 0 is behind the other one from now on, and what is due after its cursor is not written.
    model.throw_out(7)
    model.file([START_MS + 500], [0])
    assert model.log.pile_earliest_ms == START_MS + 500
    model.finish()


def _with_half_a_load() -> Model:
    """Return a model whose load has come by one of two batches, each of another subject."""
    model = Model(random.Random(0))
    for subject, due_ms in enumerate((START_MS + 2000, START_MS + 1000)):
        model.file([due_ms], [subject])
        model.log.flush(START_MS)
    model.load(MINUTE_MS, 10, 1)
    assert sorted(model.wheel) == [1]
    return model


def test_what_a_load_that_is_capped_had_yet_to_come_by_is_loaded() -> None:
    model = Model(random.Random(0))
    for due_ms in (2000, 1000, 1800):
        model.file([START_MS + due_ms], [0])
        model.log.flush(START_MS)
    model.load(MINUTE_MS, 10, 1)
    assert sorted(model.wheel) == [1]
    model.handout.cap((START_MS + 1500, 0))
    while model.job is not None:
        model.load(MINUTE_MS, 10, 100)
    assert sorted(model.wheel) == [1, 2]
    model.finish()


def test_a_subject_that_gets_a_lane_during_a_load_comes_by_it_with_all_its_rows() -> None:
    model = _with_half_a_load()
    model.put([1], 1)
    model.handout.heed()
    model.load(MINUTE_MS, 10, 100)
    assert (sorted(model.wheel), model.job) == ([1], None)
    model.finish()


def test_what_is_given_back_while_a_load_is_planned_is_loaded() -> None:
    model = Model(random.Random(0))
    model.file([START_MS + 1000], [0])
    model.load(1500, 10, 10)
    model.file([START_MS + 2000 + place for place in range(9)], [0] * 9)
    model.load(MINUTE_MS, 5, 1)
    assert model.job is not None
    assert not model.job.started
    model.throw_out(1)
    model.handout.heed()
    model.finish()


def test_what_finds_no_space_is_not_passed_by_a_load() -> None:
    model = Model(random.Random(0))
    model.file([START_MS + 1000], [0])
    model.log.flush(START_MS)
    model.file([START_MS + MINUTE_MS], [0])
    is_full = Trap(action=Action.FULL, kinds=frozenset({"write", "create"}), when=lambda *_: True)
    model.disk.arm(*[is_full] * 9)
    model.load(3 * MINUTE_MS, 10, 10)
    model.disk.disarm()
    assert (sorted(model.wheel), model.job) == ([1], None)
    model.finish()


def test_a_load_does_not_pass_what_has_to_be_split_first() -> None:
    model = Model(random.Random(0))
    model.file([START_MS + 360 * MINUTE_MS], [0])
    model.load(720 * MINUTE_MS, 10, 10)
    model.now_ms += 300 * MINUTE_MS
    while (split := model.log.splits.begin(model.now_ms)) is not None:
        while not split.step(model.now_ms):
            pass
    model.finish()


def test_a_lane_that_is_behind_opens_no_further_minute_while_many_rows_are_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.schedule.handout.PLACES_MAX", 2)
    model = Model(random.Random(0))
    model.put([0], 1)
    for minute in range(2):
        model.file([START_MS + minute * MINUTE_MS + place for place in range(3)], [0] * 3)
    model.load(2 * MINUTE_MS, 10, 10)
    model.now_ms += 2 * MINUTE_MS
    for _ in range(3):
        model.serve_lane(3, 100)
        assert sorted(model.sender) == [1, 2, 3]
    model.finish()
