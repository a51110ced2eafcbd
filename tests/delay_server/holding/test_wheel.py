"""Every entry leaves the wheel once, in order, when its time has come and never before.

The wheel is compared with the simplest thing that could be right: a heap of (due_ms, sequence).
"""

import heapq
import tracemalloc
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_server.holding import sorted_runs, wheel
from delay_server.holding.wheel import Wheel
from storage.batch.entries import ENTRY, Entries
from tests.seeds import examples

NOON = 1_700_000_000_000


def entries_due(*due_ms: int, sequence: int = 0, subject: int = 0) -> Entries:
    """Return entries due at these times, numbered upwards from `sequence`."""
    entries = np.zeros(len(due_ms), ENTRY)
    entries["due_ms"] = due_ms
    entries["sequence"] = np.arange(sequence, sequence + len(due_ms))
    entries["position"] = 7 * entries["sequence"]
    entries["size"] = 100 + entries["sequence"] % 50
    entries["minute"] = entries["due_ms"] // 60_000
    entries["subject"] = subject
    return entries


def random_entries(
    chance: np.random.Generator, count: int, first_ms: int, last_ms: int, sequence: int = 0
) -> Entries:
    entries = entries_due(*chance.integers(first_ms, last_ms + 1, count).tolist())
    entries["sequence"] += sequence
    entries["subject"] = chance.integers(0, 300, count)
    chance.shuffle(entries)
    return entries


def in_order(entries: Entries) -> Entries:
    return entries[np.lexsort((entries["sequence"], entries["due_ms"]))]


def pop_all(due_wheel: Wheel, now_ms: int, limit: int) -> Iterator[Entries]:
    while len(due := due_wheel.pop_due(now_ms, limit)):
        yield due


def popped_between(due_wheel: Wheel, after_ms: int, now_ms: int, limit: int) -> Entries:
    """Return what is popped, whatever the number of steps."""
    *steps, due = due_wheel.pop_between(after_ms, now_ms, limit)
    assert due is not None
    assert all(step is None for step in steps)
    assert not due_wheel.is_popping
    return due


class HeapWheel:
    """The model: one Python heap."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, tuple[int, ...]]] = []
        self.behind: set[int] = set()

    def add(self, entries: Entries) -> None:
        for entry in entries.tolist():
            heapq.heappush(self.heap, (entry[1], entry[0], entry))

    def pop_due(self, now_ms: int, limit: int) -> list[tuple[int, ...]]:
        due: list[tuple[int, ...]] = []
        while self.heap and self.heap[0][0] <= now_ms and len(due) < limit:
            due.append(heapq.heappop(self.heap)[2])
        return due

    def pop_between(self, after_ms: int, now_ms: int, limit: int) -> list[tuple[int, ...]]:
        span = sorted(one for one in self.heap if after_ms < one[0] <= now_ms)
        counts = Counter(entry[5] for _, _, entry in span if entry[5] not in self.behind)
        goes: set[int] = set()
        for subject, count in sorted(counts.items(), key=lambda pair: (pair[1], pair[0])):
            limit -= count
            (goes if limit >= 0 else self.behind).add(subject)
        self.heap = [one for one in self.heap if one not in span or one[2][5] not in goes]
        heapq.heapify(self.heap)
        return [entry for _, _, entry in span if entry[5] in goes]

    def begin_backlog(self, until_ms: int) -> None:
        self.behind = {entry[5] for due_ms, _, entry in self.heap if due_ms <= until_ms}

    def pending(self) -> Counter[int]:
        return Counter(entry[5] for _, _, entry in self.heap)


@pytest.fixture(params=["as it is", "small sizes"])
def _sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the real sizes, and with sizes that a few rows exceed."""
    if request.param == "small sizes":
        monkeypatch.setattr(sorted_runs, "FRONT_ROWS", 4)
        monkeypatch.setattr(sorted_runs, "RUN_ROWS_MAX", 12)
        monkeypatch.setattr(sorted_runs, "STEP_ROWS", 3)
        monkeypatch.setattr(wheel, "STEP_ROWS", 3)
        monkeypatch.setattr(wheel, "FRESH_ROWS", 5)
        monkeypatch.setattr(wheel, "_SLOT_BYTES", 4 * ENTRY.itemsize)


times = st.integers(-300, 300)
adds = st.tuples(st.just("add"), st.lists(st.tuples(times, st.integers(0, 90)), max_size=40))
pops = st.tuples(st.just("pop"), st.tuples(times, st.integers(0, 30)))
spans = st.tuples(st.just("span"), st.tuples(times, st.integers(0, 200), st.integers(0, 30)))
ends = st.tuples(st.just("end"), st.none())
begins = st.tuples(st.just("begin"), times)
sequences = st.permutations(range(40))


@pytest.mark.usefixtures("_sizes")
@examples(150)
@given(
    steps=st.lists(st.one_of(adds, pops, spans, begins, ends), max_size=40),
    slot_ms=st.sampled_from([1, 7, 64]),
    start_ms=st.none() | times,
    shuffled=sequences,
)
def test_the_wheel_does_what_a_heap_does_whichever_way_time_steps(
    steps: list[tuple[str, object]], slot_ms: int, start_ms: int | None, shuffled: list[int]
) -> None:
    now_ms = None if start_ms is None else NOON + start_ms
    real, model = Wheel(slot_ms=slot_ms, now_ms=now_ms), HeapWheel()
    added = 0
    for step, argument in steps:
        if step == "add":
            assert isinstance(argument, list)
            entries = entries_due(*[NOON + due for due, _ in argument])
            entries["sequence"] = added + np.array(shuffled[: len(entries)], np.int64)
            entries["subject"] = [subject for _, subject in argument]
            added += 40
            real.add(entries)
            model.add(entries)
            entries["due_ms"] = 0  # The caller may do with its array what it likes.
        elif step == "span":
            assert isinstance(argument, tuple)
            after, length, limit = argument
            span = NOON + after, NOON + after + length
            due = popped_between(real, *span, limit)
            assert due.tolist() == model.pop_between(*span, limit)
            assert due.dtype == ENTRY
            due["due_ms"] = 0
        elif step == "end":
            real.end_backlog()
            model.behind = set()
        elif step == "begin":
            assert isinstance(argument, int)
            for _ in real.begin_backlog(NOON + argument):
                assert real.is_popping
            assert not real.is_popping
            model.begin_backlog(NOON + argument)
        else:
            assert isinstance(argument, tuple)
            now, limit = argument
            due = real.pop_due(NOON + now, limit)
            assert due.tolist() == model.pop_due(NOON + now, limit)
            assert due.dtype == ENTRY
            due["due_ms"] = 0  # What was handed out is the caller's own.
        assert len(real) == len(model.heap)
        assert real.next_due_ms() == (model.heap[0][0] if model.heap else None)
        pending = model.pending()
        assert {subject: real.pending_of(subject) for subject in pending} == pending
    assert real.pop_due(NOON + 1000, 10_000).tolist() == model.pop_due(NOON + 1000, 10_000)
    assert len(real) == 0


def test_a_strided_array_can_be_added() -> None:
    due_wheel = Wheel()
    due_wheel.add(entries_due(*range(NOON, NOON + 10))[::-2])
    assert due_wheel.pop_due(NOON + 10, 10)["sequence"].tolist() == [1, 3, 5, 7, 9]


def test_due_times_and_sequences_too_far_apart_for_one_number_are_ordered_too() -> None:
    due_wheel = Wheel(now_ms=NOON)
    entries = entries_due(NOON, -(2**62), 0, NOON, 2**61)
    entries["sequence"] = [2**62, 1, 2, 0, 3]
    due_wheel.add(entries)
    assert due_wheel.pop_due(NOON, 10)["sequence"].tolist() == [1, 2, 0, 2**62]
    assert due_wheel.next_due_ms() == 2**61


def test_subjects_are_counted_up_and_down_however_high_their_numbers() -> None:
    due_wheel = Wheel()
    due_wheel.add(entries_due(NOON, NOON + 1, subject=3))
    due_wheel.add(entries_due(NOON, subject=70_000))
    assert [due_wheel.pending_of(subject) for subject in (3, 4, 70_000, 10**6)] == [2, 0, 1, 0]
    due_wheel.pop_due(NOON, 10)
    assert [due_wheel.pending_of(subject) for subject in (3, 70_000)] == [1, 0]


class Sorting:
    """Notes how many rows each sort sorts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: list[int] = []
        self._sorted_rows = sorted_runs.sorted_rows
        monkeypatch.setattr(sorted_runs, "sorted_rows", self)
        monkeypatch.setattr(wheel, "sorted_rows", self)

    def __call__(self, rows: sorted_runs.Rows) -> object:
        self.counts.append(len(rows))
        return self._sorted_rows(rows)


def test_a_backlog_is_not_sorted_again_for_every_few_entries_that_come_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = np.random.default_rng(7)
    sorting = Sorting(monkeypatch)
    due_wheel = Wheel(now_ms=NOON)
    for part in range(20):
        due_wheel.add(random_entries(chance, 20_000, NOON - 3_600_000, NOON, part * 20_000))
    due_wheel.pop_due(NOON, 1)
    assert max(sorting.counts) <= sorted_runs.RUN_ROWS_MAX
    sorting.counts.clear()
    for i in range(20):
        due_wheel.add(entries_due(NOON - 7_200_000 + i, sequence=1_000_000 + i))
        assert len(due_wheel.pop_due(NOON, 100)) == 100
    assert sum(sorting.counts) < 20 * 3 * sorted_runs.FRONT_ROWS


def test_no_pop_sorts_more_than_a_few_thousand_rows_of_a_backlog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    due_wheel = Wheel(now_ms=NOON)
    for part in range(20):
        overlapping = entries_due(*[NOON - 1000] * 20_000)
        overlapping["sequence"] = np.arange(part, 400_000, 20)
        due_wheel.add(overlapping)
    due_wheel.add(entries_due(*[NOON - 2000] * 600, sequence=1_000_000))
    due_wheel._spread_reached()
    sorting = Sorting(monkeypatch)
    assert len(np.concatenate(list(pop_all(due_wheel, NOON, 4096)))) == 400_600
    assert max(sorting.counts) <= 2 * sorted_runs.FRONT_ROWS


def test_a_backlog_of_years_makes_no_slots() -> None:
    chance = np.random.default_rng(15)
    for now_ms in (None, NOON):
        due_wheel = Wheel(now_ms=now_ms)
        empty = due_wheel.memory_bytes
        for part in range(5):
            due_wheel.add(random_entries(chance, 20_000, 0, NOON, part * 20_000))
        assert due_wheel.memory_bytes - empty < 44 * len(due_wheel)


def test_what_was_popped_holds_no_memory_but_its_own() -> None:
    due_wheel = Wheel(now_ms=NOON)
    due_wheel.add(entries_due(*range(NOON - 20_000, NOON)))
    due = due_wheel.pop_due(NOON, 10)
    assert due.flags.writeable
    assert due.base is not None
    assert due.base.nbytes == due.nbytes


def test_a_long_sleep_is_caught_up_with_slot_by_slot() -> None:
    due_wheel = Wheel(now_ms=NOON)
    due_wheel.add(random_entries(np.random.default_rng(9), 60_000, NOON + 64, NOON + 60_000))
    assert len(due_wheel.pop_due(NOON + 3_600_000, 100)) == 100
    # Only the slots that were needed have been opened.
    assert len(due_wheel._runs) < 200


def test_memory_stays_near_36_bytes_an_entry_and_is_told_truly() -> None:
    chance = np.random.default_rng(11)
    tracemalloc.start()
    due_wheel = Wheel(now_ms=NOON)
    for part in range(100):
        due_wheel.add(random_entries(chance, 2000, NOON, NOON + 120_000, part * 2000))
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    fixed = wheel.FRESH_ROWS * ENTRY.itemsize
    assert used - fixed < 48 * len(due_wheel)
    assert 0.8 < due_wheel.memory_bytes / used < 1.2


def test_memory_is_given_back_when_all_have_left() -> None:
    due_wheel = Wheel(now_ms=NOON)
    empty = due_wheel.memory_bytes
    due_wheel.add(random_entries(np.random.default_rng(13), 100_000, NOON, NOON + 10_000))
    due_wheel.pop_due(NOON + 10_000, 100_000)
    assert due_wheel.memory_bytes < empty + 300 * 8 + 1000


MINUTE_START = NOON - NOON % 60_000
"""A row due before this is filed here if the floor moves it."""

evictions = st.tuples(st.just("evict"), st.integers(0, 60))
moved_adds = st.tuples(
    st.just("add"), st.lists(st.tuples(times, st.booleans(), st.integers(0, 5)), max_size=40)
)


@pytest.mark.usefixtures("_sizes")
@examples(200)
@given(
    steps=st.lists(st.one_of(moved_adds, moved_adds, pops, evictions), max_size=30),
    slot_ms=st.sampled_from([1, 7, 64]),
    shuffled=sequences,
)
def test_what_is_thrown_out_is_exactly_what_comes_after_the_key(
    steps: list[tuple[str, object]], slot_ms: int, shuffled: list[int]
) -> None:
    real = Wheel(slot_ms=slot_ms, now_ms=MINUTE_START)
    model: dict[int, tuple[int, ...]] = {}
    added = 1
    for step, argument in steps:
        if step == "add":
            assert isinstance(argument, list)
            entries = entries_due(*[MINUTE_START + due for due, _, _ in argument])
            entries["sequence"] = added + np.array(shuffled[: len(entries)], np.int64)
            entries["subject"] = [subject for _, _, subject in argument]
            is_moved = np.array([moved for _, moved, _ in argument], np.bool_)
            entries["minute"][is_moved] = MINUTE_START // 60_000
            added += 40
            real.add(entries)
            model |= {entry[0]: entry for entry in entries.tolist()}
        elif step == "pop":
            assert isinstance(argument, tuple)
            for entry in real.pop_due(MINUTE_START + argument[0], argument[1]).tolist():
                assert model.pop(entry[0]) == entry
        elif isinstance(argument, int) and len(real) > argument:
            key = real.eviction_key(argument)
            gone: dict[int, tuple[int, ...]] = {}
            for removed in real.evict(key):
                assert real.is_evicting
                real.next_due_ms()
                assert gone.keys().isdisjoint(removed["sequence"].tolist())
                gone.update({entry[0]: entry for entry in removed.tolist()})
            for sequence, entry in list(model.items()):
                if (max(entry[1], entry[4] * 60_000), sequence) > key:
                    assert gone.pop(sequence) == model.pop(sequence)
            assert not gone, "what comes before the key was thrown out"
            assert len(model) <= argument
        assert len(real) == len(model)
        assert real.next_due_ms() == min((entry[1] for entry in model.values()), default=None)
        counts = Counter(entry[5] for entry in model.values())
        assert all(real.pending_of(s) == counts[s] for s in range(400))
    left = np.concatenate([real.pop_due(2**60, 10**9), np.empty(0, ENTRY)]).tolist()
    assert left == sorted(model.values(), key=lambda entry: (entry[1], entry[0]))


def test_throwing_out_a_part_keeps_the_rest_and_frees_the_memory() -> None:
    chance = np.random.default_rng(3)
    for reached_ms in (NOON - 1, NOON + 200_000):
        due_wheel = Wheel(now_ms=reached_ms)
        for first in range(0, 200_000, 20_000):
            due_wheel.add(random_entries(chance, 20_000, NOON, NOON + 120_000, sequence=first))
        before = due_wheel.memory_bytes
        for _ in due_wheel.evict(due_wheel.eviction_key(150_000)):
            pass
        assert 120_000 < len(due_wheel) <= 150_000
        assert due_wheel.memory_bytes < 0.85 * before


@pytest.mark.usefixtures("_sizes")
@examples(60)
@given(
    held=st.lists(st.tuples(times, st.integers(0, 9)), min_size=20, max_size=60),
    added=st.lists(st.tuples(times, st.integers(0, 9)), min_size=20, max_size=60),
    limit=st.integers(0, 30),
)
def test_what_is_added_between_the_steps_of_a_pop_stays_and_none_is_lost(
    held: list[tuple[int, int]], added: list[tuple[int, int]], limit: int
) -> None:
    real, model = Wheel(slot_ms=7, now_ms=NOON - 300), HeapWheel()
    entries = entries_due(*[NOON + due for due, _ in held])
    entries["subject"] = [subject for _, subject in held]
    real.add(entries)
    model.add(entries)
    later = entries_due(*[NOON + due for due, _ in added], sequence=1000)
    later["subject"] = [subject for _, subject in added]
    for _ in real.begin_backlog(NOON - 200):
        pass
    popped: list[Entries | None] = []
    put = 0
    for step in real.pop_between(NOON - 200, NOON, limit):
        popped.append(step)
        real.add(later[put : put + 7])
        put += 7
    model.begin_backlog(NOON - 200)
    due = popped[-1]
    assert due is not None
    assert due.tolist() == model.pop_between(NOON - 200, NOON, limit)
    real.add(later[put:])
    model.add(later)
    left = [one for part in pop_all(real, NOON + 1000, 7) for one in part.tolist()]
    assert left == model.pop_due(NOON + 1000, 1000)
    assert real.next_due_ms() is None


def test_what_is_popped_in_steps_is_not_thrown_out_meanwhile() -> None:
    due_wheel = Wheel(now_ms=NOON)
    due_wheel.add(entries_due(*[NOON + 5] * 200_000))
    popping = due_wheel.pop_between(NOON, NOON + 10, 5)
    assert next(popping) is None
    assert due_wheel.is_popping
    with pytest.raises(AssertionError):
        next(due_wheel.evict((NOON, 0)))
    *_, due = popping
    assert due is not None
    assert len(due) == 0
    for _ in due_wheel.evict((NOON, 0)):
        pass
    assert len(due_wheel) == 0
