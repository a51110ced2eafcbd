"""Lanes take fair turns in any interleaving, each keeps its order, and nothing is lost or twice."""

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sender.queues.lanes import LaneQueue, late_of
from sender.queues.parcels import NOBODY, Batch, Parcel, first_try, joined
from tests.seeds import examples
from tests.sender.broker_rig import ENTRY

ANY_BYTES = 1 << 60


def parcel_of(
    sequences: Sequence[int], *, lane: int, size: int = 1, tries: int = 0, avoid: int = NOBODY
) -> Parcel:
    entries = np.zeros(len(sequences), ENTRY)
    entries["sequence"] = sequences
    entries["size"] = size
    return Parcel(entries, np.full(len(sequences), tries, np.uint32), lane, avoid)


def take(queue: LaneQueue, items_max: int) -> list[tuple[int, int]]:
    """Return the (lane, entries in a row) of a batch."""
    batch = queue.take(items_max=items_max, bytes_max=ANY_BYTES, any_size=False)
    return [] if batch is None else list(batch.lanes)


def test_a_lane_alone_is_not_cut_into_turns() -> None:
    queue = LaneQueue(turn_items=10)
    queue.append(parcel_of(range(100), lane=7))
    assert len(queue.take_alike(64)) == 64
    assert take(queue, 30) == [(7, 30)]


def test_a_parcel_taken_for_the_hand_out_ends_with_the_turn() -> None:
    queue = LaneQueue(turn_items=10)
    queue.append(parcel_of(range(100), lane=1, avoid=3))
    queue.append(parcel_of(range(5), lane=2))
    taken = [queue.take_alike(8) for _ in range(4)]
    assert [(parcel.lane, len(parcel), parcel.avoid) for parcel in taken] == [
        (1, 8, 3),
        (1, 2, 3),
        (2, 5, NOBODY),
        (1, 8, 3),
    ]


def test_what_there_is_little_of_leaves_before_what_there_is_much_of_and_nothing_else() -> None:
    queue = LaneQueue(turn_items=256)
    queue.append(parcel_of(range(5000), lane=1))
    queue.append(parcel_of(range(3), lane=2))
    queue.append(parcel_of(range(65), lane=3))
    queue.append(parcel_of(range(64), lane=4))

    def little() -> list[tuple[int, int]] | None:
        batch = queue.take_little(lane_items_max=64, items_max=256, bytes_max=ANY_BYTES)
        return None if batch is None else list(batch.lanes)

    assert little() == [(2, 3), (4, 64)]
    assert little() is None
    assert take(queue, 400) == [(1, 256), (3, 65), (1, 79)]
    queue.append(parcel_of(range(64), lane=5))
    assert [take(queue, 5000) for _ in range(2)] == [[(1, 256), (5, 64), (1, 4409)], []]
    queue.append(parcel_of(range(64), lane=5))
    queue.append(parcel_of(range(64), lane=6))
    assert little() is None, "there is nothing but little"


def test_what_is_late_is_not_little() -> None:
    queue = LaneQueue(turn_items=10)
    queue.append(parcel_of(range(100), lane=1))
    queue.append(parcel_of(range(3), lane=late_of(2)))
    assert queue.take_little(lane_items_max=4, items_max=10, bytes_max=ANY_BYTES) is None


def test_the_rest_of_a_turn_goes_with_the_lane_that_had_it() -> None:
    queue = LaneQueue(turn_items=10)
    queue.append(parcel_of(range(11), lane=1))
    queue.append(parcel_of(range(100), lane=2))
    assert take(queue, 8) == [(1, 8)]
    batch = queue.take_little(lane_items_max=4, items_max=10, bytes_max=ANY_BYTES)
    assert batch is not None
    assert list(batch.lanes) == [(1, 3)]
    queue.append(parcel_of(range(100), lane=3))
    assert take(queue, 20) == [(2, 10), (3, 10)]


def test_lanes_set_aside_come_back_in_their_order_and_are_cleared_with_the_rest() -> None:
    queue = LaneQueue(turn_items=2)
    for lane in (1, 2, 3):
        queue.append(parcel_of(range(10), lane=lane))
    for lane in (1, 2, 3):
        assert queue.next_lane == lane
        queue.set_aside(lane)
    assert queue.next_lane is None
    queue.bring_back_all()
    assert take(queue, 6) == [(1, 2), (2, 2), (3, 2)]
    queue.set_aside(1)
    assert sum(map(len, queue.clear())) == 24
    queue.append(parcel_of(range(3), lane=1))
    assert take(queue, 9) == [(1, 3)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 2)), min_size=1),
    st.randoms(use_true_random=False),
)
def test_what_comes_back_of_a_batch_finds_its_lane_its_tries_and_its_order(
    parts: list[tuple[int, int, int]], chance: random.Random
) -> None:
    parcels: list[Parcel] = []
    lane_of: dict[int, tuple[int, int]] = {}
    for lane, count, tries in parts:
        sequences = range(len(lane_of), len(lane_of) + count)
        parcels.append(parcel_of(sequences, lane=lane, tries=tries))
        lane_of.update(dict.fromkeys(sequences, (lane, tries)))
    batch: Batch = joined(parcels)
    mask = np.array([chance.random() < 0.5 for _ in lane_of], np.bool_)
    for chosen in (
        batch,
        batch.where(mask),
        batch.where(~mask),
        batch.where(mask).where(mask[mask]),
    ):
        back = chosen.by_lane() if len(chosen) else []
        assert len({parcel.lane for parcel in back}) == len(back)
        found: dict[int, tuple[int, int]] = {}
        for parcel in back:
            numbers = parcel.entries["sequence"].tolist()
            assert numbers == sorted(numbers)
            tries_of = parcel.tries.tolist()
            found.update({n: (parcel.lane, t) for n, t in zip(numbers, tries_of, strict=True)})
        numbers = chosen.entries["sequence"].tolist()
        assert numbers == sorted(numbers)
        assert found == {number: lane_of[number] for number in numbers}


# Anything in any order, against what fairness means.


@dataclass
class Model:
    """What must wait in each lane, and how much less it got than others while it waited."""

    turn: int
    waiting: dict[int, deque[int]] = field(default_factory=dict)
    aside: set[int] = field(default_factory=set)
    behind: dict[int, Counter[int]] = field(default_factory=dict)
    """For each lane with turns: how many more entries each other lane got since it was least."""
    due_within: dict[int, tuple[int, int]] = field(default_factory=dict)
    """For a lane that came with few: its entries left, and those of others that may go before."""

    def came(self, lane: int, numbers: Sequence[int], *, first: bool) -> None:
        if lane not in self.waiting or lane in self.aside:
            others = len(self.waiting.keys() - self.aside - {lane})
            self.behind[lane] = Counter()
            total = len(self.waiting.get(lane, ())) + len(numbers)
            if total <= self.turn:
                self.due_within[lane] = (total, others * self.turn)
        elif first and lane in self.due_within:
            del self.due_within[lane]
        self.aside.discard(lane)
        queue = self.waiting.setdefault(lane, deque())
        if first:
            queue.extendleft(reversed(numbers))
        else:
            queue.extend(numbers)

    def went(self, lane: int, number: int) -> None:
        assert lane not in self.aside
        assert number == self.waiting[lane].popleft(), "order within the lane"
        for other, ahead in self.behind.items():
            if other != lane:
                ahead[lane] += 1
                assert ahead[lane] <= self.turn, f"{lane} got more than its turn before {other}"
        for other in self.behind[lane]:
            self.behind[lane][other] = max(0, self.behind[lane][other] - 1)
        for other, (left, before) in list(self.due_within.items()):
            if other == lane:
                self.due_within[lane] = (left - 1, before)
                if left == 1:
                    del self.due_within[lane]
            else:
                assert before > 0, f"{left} of {other} wait for more than a turn of each other lane"
                self.due_within[other] = (left, before - 1)
        if not self.waiting[lane]:
            self.gone(lane)
            del self.waiting[lane]

    def went_between(self, lane: int, numbers: Sequence[int]) -> None:
        """Take what leaves without a turn, which is owed nothing and counts for nobody."""
        assert lane not in self.aside
        assert numbers == [self.waiting[lane].popleft() for _ in numbers], "order within the lane"
        if lane in self.due_within:
            left, before = self.due_within.pop(lane)
            if left > len(numbers):
                self.due_within[lane] = (left - len(numbers), before)
        if not self.waiting[lane]:
            self.gone(lane)
            del self.waiting[lane]

    def gone(self, lane: int) -> None:
        """Forget what a lane without turns is owed."""
        del self.behind[lane]
        self.due_within.pop(lane, None)

    def put_aside(self, lane: int, rest: Sequence[int]) -> None:
        self.waiting.setdefault(lane, deque()).extendleft(reversed(rest))
        self.behind.pop(lane, None)
        self.due_within.pop(lane, None)
        self.aside.add(lane)

    def back(self, lanes: Sequence[int]) -> None:
        for lane in lanes:
            self.aside.discard(lane)
            self.behind[lane] = Counter()


LANES = st.integers(0, 4)

CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), LANES, st.integers(0, 30)),
        st.tuples(st.just("append"), LANES, st.integers(0, 5)),
        st.tuples(st.just("prepend"), LANES, st.integers(0, 8)),
        st.tuples(st.just("take"), st.integers(1, 20), st.integers(1, 60)),
        st.tuples(st.just("take"), st.integers(1, 20), st.just(ANY_BYTES)),
        st.tuples(st.just("take little"), st.integers(1, 20), st.integers(1, 60)),
        st.tuples(st.just("take alike"), st.integers(1, 20), st.integers(0, 3)),
        st.tuples(st.just("set aside"), st.integers(1, 20), st.integers(0, 20)),
        st.tuples(st.just("bring back"), LANES, st.integers(0, 5)),
    ),
    max_size=60,
)


class Play:
    """A queue and its model, side by side."""

    def __init__(self, turn: int) -> None:
        self.queue = LaneQueue(turn_items=turn)
        self.model = Model(turn)
        self.put = 0

    def call(self, what: str, number: int, other: int) -> None:
        match what:
            case "append":
                self.queue.append(self._new(number, other, first=False))
            case "prepend":
                # In two parcels, the other one of another lane.
                lanes = [number, (number + 1) % 5]
                parcels = [self._new(lane, other // 2, first=True) for lane in lanes]
                self.queue.prepend(parcels)
            case "take":
                self._take(number, other)
            case "take little":
                self._take_little(number, other)
            case "take alike" | "set aside":
                if self.queue.next_lane is not None:
                    self._take_alike(number, None if what == "take alike" else other)
            case _:
                self._bring_back(number, all_of_them=other == 0)
        self._check()

    def _new(self, lane: int, count: int, *, first: bool) -> Parcel:
        numbers = range(self.put, self.put + count)
        self.put += count
        if count:
            self.model.came(lane, numbers, first=first)
        parcel = parcel_of(numbers, lane=lane)
        parcel.entries["size"] = [1 + n * 7 % 13 for n in numbers]
        return parcel

    def _take(self, items_max: int, bytes_max: int) -> None:
        batch = self.queue.take(items_max=items_max, bytes_max=bytes_max, any_size=True)
        if batch is None:
            assert not self.model.waiting.keys() - self.model.aside
            return
        size = int(batch.entries["size"].sum())
        assert 1 <= len(batch) <= items_max
        assert size <= bytes_max or len(batch) == 1
        lanes = [lane for lane, count in batch.lanes for _ in range(count)]
        for lane, number in zip(lanes, batch.entries["sequence"].tolist(), strict=True):
            self.model.went(lane, number)

    def _take_little(self, items_max: int, bytes_max: int) -> None:
        with_turns = self.model.waiting.keys() - self.model.aside
        little = {lane for lane in with_turns if len(self.model.waiting[lane]) <= 3}
        batch = self.queue.take_little(lane_items_max=3, items_max=items_max, bytes_max=bytes_max)
        if batch is None:
            # The first of them may be larger than that.
            assert not little or little == with_turns or bytes_max < 13
            return
        assert little != with_turns
        assert len(batch) <= items_max
        assert int(batch.entries["size"].sum()) <= bytes_max
        for parcel in batch.by_lane():
            assert parcel.lane in little
            self.model.went_between(parcel.lane, parcel.entries["sequence"].tolist())

    def _take_alike(self, items_max: int, keep: int | None) -> None:
        """Take of one lane; with `keep` all but so many go back and the lane is set aside."""
        lane = self.queue.next_lane
        parcel = self.queue.take_alike(items_max)
        assert parcel.lane == lane
        assert 1 <= len(parcel) <= items_max
        numbers: list[int] = parcel.entries["sequence"].tolist()
        kept = len(numbers) if keep is None else min(keep, len(numbers) - 1)
        for number in numbers[:kept]:
            self.model.went(lane, number)
        if keep is not None:
            assert numbers[kept:] == [self.model.waiting[lane].popleft() for _ in numbers[kept:]]
            self.queue.set_aside(lane, [parcel.part(kept, len(parcel))])
            self.model.put_aside(lane, numbers[kept:])

    def _bring_back(self, lane: int, *, all_of_them: bool) -> None:
        if all_of_them:
            self.model.back(list(self.model.aside))
            self.queue.bring_back_all()
        else:
            was_aside = lane in self.model.aside
            self.model.back([lane] if was_aside else [])
            assert self.queue.bring_back(lane) == was_aside

    def _check(self) -> None:
        counts = {lane: len(numbers) for lane, numbers in self.model.waiting.items()}
        assert self.queue.counts() == counts
        assert self.queue.count == sum(counts.values())
        assert all(self.queue.count_of(lane) == counts.get(lane, 0) for lane in range(5))
        with_turns = counts.keys() - self.model.aside
        next_lane = self.queue.next_lane
        assert next_lane in with_turns if with_turns else next_lane is None


@given(st.integers(1, 7), CALLS)
@examples(400)
def test_no_lane_gets_less_than_its_share_but_for_one_turn_and_nothing_is_lost_or_twice(
    turn: int, calls: list[tuple[str, int, int]]
) -> None:
    play = Play(turn)
    for what, number, other in calls:
        play.call(what, number, other)
    left: dict[int, list[int]] = {}
    for parcel in play.queue.clear():
        left.setdefault(parcel.lane, []).extend(parcel.entries["sequence"].tolist())
    assert left == {lane: list(numbers) for lane, numbers in play.model.waiting.items()}
    play.queue.append(first_try(parcel_of([1, 2], lane=0).entries, lane=9))
    assert take(play.queue, 5) == [(9, 2)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=30),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
)
def test_what_is_taken_out_of_a_lane_is_what_was_wanted_and_the_rest_keeps_its_order(
    offers: list[tuple[int, int]], lane: int, rest: int, put_aside: bool
) -> None:
    queue = LaneQueue(turn_items=4)
    first, put = 0, Counter[int]()
    for to, count in offers:
        queue.append(parcel_of(range(first, first + count), lane=to))
        put[to] += count
        first += count
    if put_aside and queue.next_lane is not None:
        queue.set_aside(queue.next_lane)
    taken = queue.take_where(lane, lambda entries: entries["sequence"] % 4 == rest)
    sequences = [sequence for part in taken for sequence in part["sequence"].tolist()]
    assert all(sequence % 4 == rest for sequence in sequences)
    assert sequences == sorted(sequences)
    assert queue.count == first - len(sequences)
    queue.bring_back_all()
    left: dict[int, list[int]] = {}
    while queue.count:
        parcel = queue.take_alike(100)
        left.setdefault(parcel.lane, []).extend(parcel.entries["sequence"].tolist())
    assert all(found == sorted(found) for found in left.values())
    assert all(sequence % 4 != rest for sequence in left.get(lane, []))
    assert {to: len(found) for to, found in left.items() if to != lane} == {
        to: count for to, count in put.items() if to != lane
    }
    assert len(left.get(lane, [])) + len(sequences) == put[lane]
