"""Each row is given out exactly once, whatever slices, lanes and lowered cursors do to one another.

The model is what a server does with entries: a wheel that drops rows of subjects with a lane, a
sender that may hold rows for long, facts that are noted late.
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
from storage.batch.facts import FactBlock, Outcome
from storage.disk.errors import ReadFailedError
from storage.disk.spans import MINUTE_MS
from storage.schedule.loading import CloseJob, DrainJob, GivenOut, Key, LoadJob, SequenceSet
from storage.schedule.schedule_log import ScheduleLimits, ScheduleLog
from storage.schedule.segment import Segment, SegmentBatch
from tests.seeds import seeds_in_parts
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Action, Trap
from tests.storage.small_logs import facts_batch, log_batch

LOG_UUID = UUID(int=7)
START_MS = 29_000_000 * MINUTE_MS
SUBJECTS = 4


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
        self.unread_jobs: list[LoadJob | CloseJob] = []
        """Jobs of which only what could not be read is left."""
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
        self.done: set[int] = set()
        self.waiting: set[int] = set()
        """Subjects whose rows are dropped: they have a lane, or are about to."""
        self.numbers: dict[int, int] = {}
        """The subject number with which each row was given out last."""
        self.sweeping = False
        self.job: LoadJob | None = None
        self.lane_job: DrainJob | CloseJob | None = None
        self.lane_of: dict[int, int] = {}
        """The open lane of each subject that has one."""
        self.drain_room = 0
        """How many more rows the lane job that drains was asked for."""
        self.counts: Counter[str] = Counter()
        self.log = self._new_log()

    def _new_log(self) -> ScheduleLog:
        log = ScheduleLog(
            self.disk,
            LOG_UUID,
            limits=ScheduleLimits(gather_bytes_max=3000),
            on_damage=self.damages.append,
        )
        log.begin_split(self.now_ms)
        log.is_patient = True
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

    def read_failed(self, error: ReadFailedError) -> None:
        """Now and then take rows for damaged; what is known of facts is never given up here."""
        self.counts["unread"] += 1
        if error.path.startswith("schedule_log") and self.chance.random() < 0.2:
            self.log.give_up_on(error.path)
            self.counts["given up"] += 1

    def try_again(self) -> None:
        """Go on with a job of which something could not be read, and with lanes."""
        for lane in self.log.lanes:
            if self.lane_job is None or self.lane_job.lane != lane:
                self.log.retry_lane(lane)
        if self.unread_jobs:
            job = self.unread_jobs.pop(self.chance.randrange(len(self.unread_jobs)))
            done = False
            while not done:
                try:
                    with self.reading():
                        entries, done = job.step(10)
                except ReadFailedError as error:
                    self.read_failed(error)
                    self.unread_jobs.append(job)
                    return
                self.take(entries)

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
        self.take(entries)

    def _enter(self, sequence: int) -> Row:
        for place in (self.wheel, self.sender, self.unnoted, self.done):
            # A row of a lane that is still in the wheel will be dropped.
            if place is not self.wheel or self.rows[sequence].subject not in self.waiting:
                assert sequence not in place, f"{sequence} was given out twice"
        return self.rows[sequence]

    def take(self, entries: Entries) -> None:
        """Put entries into the wheel."""
        for sequence, number in entries[["sequence", "subject"]].tolist():
            assert self.subject(number) == self.rows[sequence].subject
            if self.rows[sequence].subject not in self.waiting:
                self.wheel[sequence] = self._enter(sequence)
                self.numbers[sequence] = number

    def load(self, ahead_ms: int, rows_max: int, step: int) -> None:
        if self.job is None:
            self.job = self.log.begin_load(
                self.now_ms + ahead_ms, rows_max=rows_max, now_ms=self.now_ms
            )
        if self.job is None:
            return
        try:
            with self.reading():
                entries, done = self.job.step(step)
        except ReadFailedError as error:
            self.read_failed(error)
            self.unread_jobs.append(self.job)
            self.job = None
            return
        for key in self.keys(entries):
            assert self.job.begin < key <= self.job.until
        self.take(entries)
        if done:
            self.counts["loads"] += self.job.started
            self.job = None

    def keys(self, entries: Entries) -> list[Key]:
        return [self.rows[sequence].key for sequence in entries["sequence"].tolist()]

    def pop(self, count: int) -> None:
        """Send what is due; what should wait on disk is forgotten."""
        due = [row for row in self.wheel.values() if row.due_ms <= self.now_ms]
        for row in sorted(due, key=lambda row: (row.due_ms, row.sequence))[:count]:
            del self.wheel[row.sequence]
            if row.subject not in self.waiting:
                self.sender[row.sequence] = row

    def deliver(self, share: float) -> None:
        for sequence in list(self.sender):
            if self.chance.random() < share:
                self.unnoted[sequence] = self.sender.pop(sequence)

    def note(self, share: float) -> None:
        rows = [row for row in self.unnoted.values() if self.chance.random() < share]
        if not rows:
            return
        count = len(rows)
        facts = FactBlock(
            sequence=np.array([row.sequence for row in rows], np.int64),
            minute=np.array([row.minute for row in rows], np.uint32),
            at_ms=np.full(count, self.now_ms, np.int64),
            target=np.zeros(count, np.uint16),
            outcome=np.full(count, Outcome.DELIVERED, np.uint8),
            record=np.zeros(count, np.int64),
            targets=[b"g1"],
        )
        self.log.apply(
            facts_batch(self.next_sequence, facts, floor_minute=self.floor), now_ms=self.now_ms
        )
        self.next_sequence += count
        for row in rows:
            self.done.add(row.sequence)
            del self.unnoted[row.sequence]

    def evict(self) -> None:
        """Throw the latest rows out of the wheel."""
        if not self.wheel:
            return
        key = self.chance.choice(list(self.wheel.values())).key
        key = (key[0], self.chance.choice([0, key[1] - 1]))
        for row in list(self.wheel.values()):
            if row.key > key:
                del self.wheel[row.sequence]
        given = [row.sequence for row in self.sender.values() if row.key > key]
        self.log.lower_cursor(key, np.array(given + list(self.unnoted), np.int64))
        self.counts["evictions"] += 1

    def mark_waiting(self, subject: int) -> None:
        self.waiting.add(subject)

    def open_lanes(self) -> None:
        """Open lanes for subjects that wait, one each or several together, or let them join."""
        without = sorted(self.waiting - self.lane_of.keys())
        while without:
            together = without[: self.chance.choice([1, 1, 9])]
            without = without[len(together) :]
            lane = self.chance.randrange(SUBJECTS)
            if self.lane_job is not None and self.lane_job.lane == lane:
                if not (isinstance(self.lane_job, CloseJob) and self.lane_job.started):
                    continue
                self.counts["opened again while closing"] += 1
            given = [row.sequence for row in self.sender.values() if row.subject in together]
            self.counts["joined"] += lane in self.log.lanes
            self.log.open_lane(
                lane,
                np.array(list(map(self.number, together))),
                np.array(given + list(self.unnoted), np.int64),
            )
            self.lane_of.update(dict.fromkeys(together, lane))
            self.counts["lanes"] += 1

    def leave_lane(self) -> None:
        """Take a subject out of its lane; it goes on waiting."""
        lanes = dict(self.lane_of)
        if self.lane_job is not None:
            lanes = {s: lane for s, lane in lanes.items() if lane != self.lane_job.lane}
        if lanes:
            subject = self.chance.choice(sorted(lanes))
            self.log.leave_lane(self.lane_of.pop(subject), np.array([self.number(subject)]))
            self.counts["left"] += 1

    def members(self, lane: int) -> set[int]:
        return {subject for subject, of in self.lane_of.items() if of == lane}

    def serve_lane(self, rows_max: int, step: int) -> None:
        """Go on with draining or closing a lane."""
        if self.lane_job is None and self.log.lanes:
            number = self.chance.choice(sorted(self.log.lanes))
            if any(row.subject in self.members(number) for row in self.wheel.values()):
                closable = False
            else:
                closable = self.chance.random() < 0.5
            if closable:
                self.lane_job = self.log.begin_close(number, rows_max=rows_max, now_ms=self.now_ms)
            else:
                self.lane_job = self.log.begin_drain(
                    number, self.now_ms, rows_max=rows_max, now_ms=self.now_ms
                )
                self.drain_room = rows_max
            if self.lane_job is not None and self.lane_job.started:
                self._note_closed()
        if self.lane_job is None:
            return
        job, was_started = self.lane_job, self.lane_job.started
        try:
            with self.reading():
                entries, done = job.step(step)
        except ReadFailedError as error:
            self.read_failed(error)
            assert isinstance(job, CloseJob)
            if not was_started:
                self._note_closed()
            self.unread_jobs.append(job)
            self.lane_job = None
            return
        if job.started and not was_started:
            self._note_closed()
        if isinstance(job, CloseJob):
            self.take(entries)
        else:
            self.drain_room -= len(entries)
            assert self.drain_room >= 0, "a lane gave more than was wanted"
            keys = [(row.due_ms, row.sequence) for row in self._offer(entries, job)]
            assert keys == sorted(keys)
        if done:
            if isinstance(job, DrainJob) and job.trouble is not None:
                self.read_failed(job.trouble)
            self.counts[type(job).__name__] += job.started
            self.lane_job = None

    def _note_closed(self) -> None:
        assert self.lane_job is not None
        if isinstance(self.lane_job, CloseJob):
            for subject in self.members(self.lane_job.lane):
                self.waiting.discard(subject)
                del self.lane_of[subject]

    def _offer(self, entries: Entries, job: DrainJob) -> list[Row]:
        numbers = dict(entries[["sequence", "subject"]].tolist())
        rows = [self._enter(sequence) for sequence in numbers]
        for row in rows:
            number = numbers[row.sequence]
            assert number in job.members
            assert row.subject == self.subject(number)
            assert row.due_ms <= self.now_ms
            self.numbers[row.sequence] = number
            self.sender[row.sequence] = row
        return rows

    def collect(self, step: int) -> None:
        """Go on with a collection of names; what holds a number must find its name unchanged."""
        if self.sweeping:
            self.sweeping = not self.log.subjects.sweep(step)
            self.counts["collections"] += not self.sweeping
        else:
            held = [self.numbers[sequence] for sequence in (*self.wheel, *self.sender)]
            held += map(self.number, self.waiting)
            by_number = np.zeros(len(self.log.subjects.names), np.bool_)
            by_number[held] = True
            self.log.condemn_subjects(by_number)
            self.sweeping = True
        for row in (*self.wheel.values(), *self.sender.values()):
            assert self.subject(self.numbers[row.sequence]) == row.subject

    def restart(self) -> None:
        """Forget what is in memory; what has a fact has one."""
        self.log.flush(self.now_ms)
        self.note(1)
        self.log.file_facts(self.now_ms)
        assert self.log.replayed_sequence() == self.log.last_filed
        before, self.log = self.log, self._new_log()
        for code, segment in before.segments.items():
            self.log.segments[code] = Segment.of_state(self.disk, LOG_UUID, segment.state())
        before.close()
        self.log.hour_mark, self.log.day_mark = before.hour_mark, before.day_mark
        self.log.floor_minute, self.log.last_filed = before.floor_minute, before.last_filed
        self.wheel.clear()
        self.sender.clear()
        self.waiting.clear()
        self.lane_of.clear()
        self.job = self.lane_job = None
        self.unread_jobs.clear()
        self.sweeping = False
        self.counts["restarts"] += 1

    def finish(self) -> None:
        """Let everything become due and be delivered; no row may be forgotten."""
        damages = len(self.damages)
        self.eio_read = 0
        for _ in range(3000):
            if len(self.done) == len(self.rows):
                break
            self.now_ms += 10_000
            self.log.begin_split(self.now_ms)
            self.open_lanes()
            self.try_again()
            self.load(60_000, self.chance.choice([4, 100]), 10_000)
            self.pop(10**6)
            self.serve_lane(self.chance.choice([4, 100]), 10_000)
            self.deliver(1)
            self.note(1)
            self.collect(10)
        assert self.done == self.rows.keys()
        while self.unread_jobs:
            self.try_again()
        assert not self.damages[damages:]
        assert self.damages == [] or self.counts["given up"]
        self.check_segments()

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
        action = chance.randrange(17 if self.eio_read else 16)
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
        elif action == 12:
            if chance.random() < 0.4:
                self.mark_waiting(chance.randrange(SUBJECTS))
            elif chance.random() < 0.3:
                self.leave_lane()
            self.open_lanes()
        elif action <= 14:
            self.serve_lane(chance.choice([1, 5, 10**6]), chance.choice([1, 10, 1000]))
        elif action == 16:
            self.try_again()
        elif chance.random() < 0.03:
            self.restart()
        else:
            self.collect(chance.choice([1, 5, 1000]))


@seeds_in_parts(300, quick=20, part=20)
def test_whatever_interleaves_every_row_is_given_out_exactly_once(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        model = Model(random.Random(seed))
        for _ in range(300):
            model.act()
        model.finish()
        counts += model.counts
    # A test in which nothing happens proves nothing.
    assert min(counts[name] for name in ("loads", "evictions", "lanes", "DrainJob")) > 50
    assert counts["CloseJob"] > 20
    assert min(counts[name] for name in ("joined", "left")) > 5
    assert counts["collections"] > 50
    assert counts["restarts"]


@seeds_in_parts(200, quick=20, part=20)
def test_what_the_disk_cannot_read_now_and_then_is_given_out_once_and_no_later_than_it_can(
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
    assert min(counts[name] for name in ("loads", "evictions", "lanes", "DrainJob")) > 20
    assert min(counts[name] for name in ("CloseJob", "joined", "restarts")) > 2
    assert counts["unread"] > 200
    assert counts["given up"] > 20


def test_a_slice_waits_for_nothing_but_the_segment_that_cannot_be_read() -> None:
    model = Model(random.Random(1))
    model.file([START_MS + place * MINUTE_MS for place in (5, 6, 7)], [0, 1, 2])
    model.log.flush(model.now_ms)
    unreadable = Trap(
        action=Action.EIO,
        kinds=frozenset({"open_read"}),
        when=lambda _kind, path, _label: path == model.log.segments[middle].key.path,
    )
    middle = sorted(model.log.segments)[1]
    model.disk.arm(unreadable, unreadable)
    job = model.log.begin_load(START_MS + 9 * MINUTE_MS, rows_max=10, now_ms=model.now_ms)
    assert job is not None
    entries, done = job.step(1000)
    assert (entries["sequence"].tolist(), done) == ([1, 3], False)
    with pytest.raises(ReadFailedError, match=model.log.segments[middle].key.name):
        job.step(1000)
    [unread] = model.log.unread.values()
    assert (unread.path, unread.errno) == (model.log.segments[middle].key.path, 5)
    # Others come meanwhile, and are loaded: nothing stands before them.
    model.file([START_MS + 20 * MINUTE_MS], [0])
    model.load(30 * MINUTE_MS, 10, 1000)
    assert sorted(model.wheel) == [4]
    entries, done = job.step(1000)
    assert (entries["sequence"].tolist(), done) == ([2], True)
    assert not model.log.unread
    assert not model.damages


def test_a_lane_comes_by_rows_that_are_filed_where_the_lowered_cursor_has_not_been() -> None:
    model = Model(random.Random(0))
    model.now_ms = START_MS + 3 * MINUTE_MS
    model.log.begin_split(model.now_ms)
    model.file([START_MS + 10, START_MS + MINUTE_MS], [1, 0])
    model.load(60_000, 100, 1000)
    model.mark_waiting(0)
    model.open_lanes()
    number = model.number(0)
    lane = model.lane_of[0]
    drain = model.log.begin_drain(lane, model.now_ms, rows_max=10, now_ms=model.now_ms)
    assert drain is not None
    done = False
    while not done:
        entries, done = drain.step(1000)
        assert set(entries["subject"].tolist()) <= {number}
        model._offer(entries, drain)
    assert model.sender.keys() == {2}
    # The lane has come further than the cursor, which is set back to the first row.
    model.wheel.clear()
    model.log.lower_cursor((START_MS, 0), np.array([2], np.int64))
    model.file([model.now_ms - 1000], [0])
    assert not model.wheel
    model.finish()


def test_a_slice_ends_inside_a_millisecond_in_which_too_much_is_due() -> None:
    model = Model(random.Random(0))
    model.file([START_MS + 5] * 100, [0] * 100)
    taken = []
    while model.log.cursor < (START_MS + 6, 0):
        before = len(model.wheel)
        model.load(1000, 30, 10_000)
        assert model.job is None
        taken.append(len(model.wheel) - before)
    assert taken == [30, 30, 30, 10]
    assert list(model.wheel) == list(range(1, 101))


def test_a_slice_is_drawn_by_rows_that_have_no_fact_yet() -> None:
    model = Model(random.Random(0))
    model.file([START_MS + place for place in range(100)], [0] * 100)
    model.load(1000, 1000, 10_000)
    model.now_ms += 90
    model.pop(90)
    model.deliver(1)
    model.note(1)
    model.wheel.clear()
    model.log.lower_cursor((START_MS, 0), np.empty(0, np.int64))
    model.load(1000, 9, 10_000)
    assert sorted(model.wheel) == list(range(91, 100))


def test_damage_that_several_slices_meet_is_reported_once() -> None:
    model = Model(random.Random(0))
    model.file([START_MS + 5] * 50, [0] * 50)
    model.log.flush(model.now_ms)
    model.file([START_MS + 5] * 50, [0] * 50)
    model.log.flush(model.now_ms)
    segment = next(iter(model.log.segments.values()))
    file = model.disk.open(segment.file.path)
    file.write_at(300, [b"damage"])
    for _ in range(10):
        model.load(1000, 10, 10_000)
    assert len(model.wheel) == 50
    assert len(model.damages) == 1


def test_a_lane_is_not_closed_while_what_is_to_come_of_it_does_not_fit() -> None:
    model = Model(random.Random(0))
    model.file([START_MS + 1000 + place for place in range(100)], [0] * 100)
    model.mark_waiting(0)
    model.open_lanes()
    model.load(60_000, 1000, 10_000)
    lane = model.lane_of[0]
    job = model.log.begin_close(lane, rows_max=99, now_ms=model.now_ms)
    assert job is not None
    assert job.step(10_000)[1]
    assert not job.started
    assert lane in model.log.lanes
    job = model.log.begin_close(lane, rows_max=100, now_ms=model.now_ms)
    assert job is not None
    assert job.started
    assert not model.log.lanes
    assert len(job.step(10_000)[0]) == 100


@pytest.mark.parametrize("spread", [1, 3, 1000, 10**9])
def test_a_set_of_sequences_knows_its_own_dense_or_not(spread: int) -> None:
    chance = np.random.default_rng(spread)
    own = np.unique(chance.integers(1, 500 * spread + 1, 500))
    asked = np.concatenate([own, own + 1, own - 1, [0, 2**62]])
    found = SequenceSet([own[:100], own[50:]]).contains(asked)
    assert found.tolist() == np.isin(asked, own).tolist()
    assert not SequenceSet([]).contains(asked).any()


def test_what_was_given_out_is_forgotten_when_it_has_a_fact_and_memory_stays_bounded() -> None:
    given = GivenOut()
    given.add(np.arange(10, 20))
    before = given.sequences
    for _ in range(100):
        given.forget(np.arange(0, 1000))
    assert before.tolist() == list(range(10, 20))
    given.add(np.array([5, 7, 5]))
    assert given.sequences.tolist() == [5, 7]
    given.forget(np.array([7]))
    given.add(np.array([9]))
    assert given.sequences.tolist() == [5, 9]


def test_a_load_under_way_leaves_out_a_lane_that_is_opened_and_closed_meanwhile() -> None:
    model = Model(random.Random(0))
    for place in range(4):
        model.file([START_MS + place], [0])
        model.log.flush(model.now_ms)
    model.load(1000, 100, 1)
    assert model.job is not None
    model.mark_waiting(0)
    model.open_lanes()
    model.wheel.clear()
    lane = model.lane_of[0]
    model.lane_job = model.log.begin_close(lane, rows_max=100, now_ms=model.now_ms)
    model._note_closed()
    while model.lane_job is not None:
        model.serve_lane(100, 1)
    assert list(model.wheel) == [1, 2, 3, 4]
    while model.job is not None:
        model.load(1000, 100, 1)
