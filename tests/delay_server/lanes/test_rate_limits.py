"""Limited entries leave at their rate, in their order, and none is lost, whatever the rhythm."""

import math
import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from delay_server.lanes.rate_limits import RateLimits
from storage.batch.entries import ENTRY, Entries
from tests.seeds import each_seed


def entries_of(first: int, count: int) -> Entries:
    entries = np.zeros(count, ENTRY)
    entries["sequence"] = np.arange(first, first + count)
    return entries


@each_seed(40)
def test_what_leaves_is_within_rate_and_burst_over_any_time_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    burst_s = chance.choice([0.01, 0.1, 2.0])
    limits = RateLimits(burst_s=burst_s)
    rates = {"a": chance.choice([0.5, 7.0, 300.0]), "b*": chance.choice([1.0, 10_000.0])}
    limits.set_rates(rates)
    lanes = {10: "a", 11: "b*", 12: "b*"}
    now, sent, left, queued = 1000.0, 0, Counter[int](), Counter[int]()
    times: dict[str, list[tuple[float, int]]] = {"a": [], "b*": []}
    last: dict[int, int] = {}
    put: Counter[int] = Counter()
    for _ in range(400):
        now += chance.choice([0.0, 0.001, 0.01, 0.5, 20.0])
        if chance.random() < 0.4:
            lane, count = chance.choice(list(lanes)), chance.choice([1, 5, 400])
            limits.put(lane, lanes[lane], entries_of(sent, count))
            put[lane] += count
            sent += count
        for lane, part in limits.take(now, lambda lane: queued[lane]):
            assert part["sequence"][0] > last.get(lane, -1)
            assert np.all(np.diff(part["sequence"]) > 0)
            last[lane] = int(part["sequence"][-1])
            left[lane] += len(part)
            queued[lane] += len(part)
            times[lanes[lane]].append((now, len(part)))
        if chance.random() < 0.8:
            queued.clear()
        assert limits.count == sum(map(limits.count_of, lanes)) == put.total() - left.total()
        assert limits.next_at(now) >= now
    for pattern, rate in rates.items():
        burst = max(1.0, rate * burst_s)
        for first, (began, _) in enumerate(times[pattern]):
            total = 0
            for at, count in times[pattern][first:]:
                total += count
                assert total <= rate * (at - began) + burst + 1
    # With nothing in its way all of it leaves, at the rate.
    began, rest = now, limits.count_of(10)
    while limits.count:
        now = max(limits.next_at(now), now + 1e-4)
        for lane, part in limits.take(now, lambda _: 0):
            left[lane] += len(part)
    assert left == put
    assert now - began <= rest / rates["a"] + max(put[11] + put[12], 1) / rates["b*"] + 3


def test_nothing_is_given_on_while_a_burst_waits_at_the_sender() -> None:
    limits = RateLimits(burst_s=0.1)
    limits.set_rates({"a": 100.0})
    limits.put(5, "a", entries_of(0, 1000))
    assert sum(len(part) for _, part in limits.take(0.0, lambda _: 0)) == 10
    for second in range(1, 100):
        assert not list(limits.take(float(second), lambda _: 10))
    assert sum(len(part) for _, part in limits.take(100.0, lambda _: 3)) == 7


def test_a_lane_that_is_held_up_at_the_sender_holds_up_no_other_one() -> None:
    limits = RateLimits(burst_s=0.1)
    limits.set_rates({"a": 1000.0})
    for lane in range(40):
        limits.put(lane, "a", entries_of(1000 * lane, 1000))
    queued = Counter(dict.fromkeys(range(1, 40), 1000))
    found = [(lane, len(part)) for lane, part in limits.take(0.0, lambda lane: queued[lane])]
    # Of its part of a burst, 2.5, it could not leave at the rate.
    assert found == [(0, 10)]
    assert limits.next_at(0.0) == 0.0, "there are tokens, and it may be gone already"


def test_what_came_one_by_one_leaves_as_well_as_what_came_at_once() -> None:
    limits = RateLimits(burst_s=0.1)
    limits.set_rates({"a": 1000.0})
    for number in range(1000):
        limits.put(number % 2, "a", entries_of(number, 1))
    found = [lane for lane, part in limits.take(0.0, lambda _: 0) for _ in part]
    assert found == [0, 1] * 50


def test_what_comes_back_goes_first_and_a_lane_can_be_taken_as_a_whole() -> None:
    limits = RateLimits(burst_s=1.0)
    limits.set_rates({"a": 10.0})
    limits.put(5, "a", entries_of(100, 3))
    limits.put_first(5, "a", entries_of(50, 2))
    assert limits.take_lane(5)["sequence"].tolist() == [50, 51, 100, 101, 102]
    assert (limits.count, limits.lanes) == (0, [])
    assert not len(limits.take_lane(5))


def test_setting_a_rate_again_and_again_lets_no_more_pass() -> None:
    limits = RateLimits(burst_s=0.1)
    limits.set_rates({"a": 10.0})
    limits.put(5, "a", entries_of(0, 1000))
    passed = 0
    for step in range(1000):
        limits.set_rates({"a": 10.0, f"other{step}": 1.0})
        passed += sum(len(part) for _, part in limits.take(step * 0.01, lambda _: 0))
    assert passed <= 10 * 10 + 2


class Drive:
    """Takes from limits whenever something is due, at a sender that has nothing unless told so."""

    def __init__(self, rate_limits: RateLimits, *, now: float = 1000.0) -> None:
        self.rate_limits = rate_limits
        self.now = now
        self.queued: Counter[int] = Counter()
        self.left: list[tuple[float, int, int]] = []
        """When, of which lane, and how many."""
        self.looks: list[tuple[float, int]] = []
        """When, and at which lane."""

    def _look(self, lane: int) -> int:
        self.looks.append((self.now, lane))
        return self.queued[lane]

    def take(self) -> None:
        for lane, part in self.rate_limits.take(self.now, self._look):
            self.left.append((self.now, lane, len(part)))

    def settle(self) -> None:
        """Take until nothing more is due now."""
        for _ in range(1000):
            if self.rate_limits.next_at(self.now) > self.now:
                return
            self.take()
        raise AssertionError("there is always something due")

    def run_until(self, end: float) -> None:
        self.settle()
        while (at := self.rate_limits.next_at(self.now)) <= end:
            self.now = at
            self.settle()
        self.now = end


@each_seed(20, quick=3)
def test_of_many_limits_nothing_stays_for_which_there_are_tokens_and_a_quantum_is_one_look(
    seed: int,
) -> None:
    chance = random.Random(seed)
    burst_s = chance.choice([0.01, 0.1])
    rates = {f"p{n}": chance.choice([0.2, 3.0, 150.0, 5000.0]) for n in range(200)}
    limits = RateLimits(burst_s=burst_s)
    limits.set_rates(rates)
    drive = Drive(limits)
    pattern_of = {lane: f"p{lane % 200}" for lane in range(1, 301)}
    burst = {pattern: max(1.0, rate * burst_s) for pattern, rate in rates.items()}
    quantum = {
        pattern: max(1.0, min(burst[pattern], rate * 0.01)) for pattern, rate in rates.items()
    }
    level, since = dict(burst), dict.fromkeys(rates, drive.now)
    sent = taken = 0
    for _ in range(150):
        for _ in range(chance.choice([1, 1, 100])):
            lane, count = chance.choice(list(pattern_of)), chance.choice([1, 3, 200])
            put = chance.choice([limits.put, limits.put, limits.put_first])
            put(lane, pattern_of[lane], entries_of(sent, count))
            sent += count
        if chance.random() < 0.3:
            lane = chance.choice(list(pattern_of))
            taken += len(limits.take_lane(lane))
        before = len(drive.left)
        drive.run_until(drive.now + chance.choice([0.0, 0.003, 0.01, 1.0, 7.0]))
        drive.settle()
        for at, lane, count in drive.left[before:]:
            pattern = pattern_of[lane]
            level[pattern] += (at - since[pattern]) * rates[pattern]
            level[pattern] = min(level[pattern], burst[pattern]) - count
            since[pattern] = at
            assert level[pattern] >= -0.01
        for pattern in {pattern_of[lane] for lane in limits.lanes}:
            tokens = level[pattern] + (drive.now - since[pattern]) * rates[pattern]
            assert min(tokens, burst[pattern]) <= quantum[pattern] + 0.01
        passed = sum(count for _, _, count in drive.left)
        assert limits.count == sent - taken - passed == sum(map(limits.count_of, limits.lanes))
    assert limits.count


def waiting(rates: dict[str, float], count: int = 5) -> Drive:
    """Return limits where so many wait of each limit, whose lanes are numbered from 0."""
    limits = RateLimits(burst_s=0.1)
    limits.set_rates(rates)
    for lane, pattern in enumerate(rates):
        limits.put(lane, pattern, entries_of(lane * count, count))
    return Drive(limits)


def test_of_a_thousand_limits_those_are_looked_at_whose_tokens_have_come() -> None:
    drive = waiting(dict.fromkeys([f"p{n}" for n in range(1000)], 1.0))
    drive.take()
    in_one_go = len(drive.left)
    drive.settle()
    assert in_one_go <= 100 < len(drive.left) == 1000
    drive.looks.clear()
    for _ in range(999):
        drive.now += 0.001
        assert not drive.rate_limits.room_has_grown()
        drive.take()
    assert not drive.looks
    drive.run_until(drive.now + 0.01)
    assert (len(drive.looks), len(drive.left)) == (1000, 2000)


def test_what_waits_for_the_sender_goes_on_as_soon_as_that_has_given_on_what_it_has() -> None:
    drive = waiting({"a": 10.0})
    drive.queued[0] = 1
    drive.run_until(drive.now + 0.4)
    # The time between two looks doubles, whatever happens at the sender.
    planned = drive.rate_limits.next_at(drive.now)
    looks = len(drive.looks)
    for _ in range(100):
        drive.rate_limits.room_has_grown()
        assert drive.rate_limits.next_at(drive.now) <= drive.now + 0.01
        drive.now += 0.001
        drive.take()
    assert 5 <= len(drive.looks) - looks <= 15
    drive.run_until(drive.now + 0.01)
    drive.looks.clear()
    drive.run_until(planned + 0.3)
    assert drive.looks == [(planned, 0)]
    drive.queued.clear()
    assert drive.rate_limits.room_has_grown()
    assert not drive.rate_limits.room_has_grown()
    drive.run_until(drive.now + 0.01)
    assert len(drive.left) == 1
    assert not drive.rate_limits.room_has_grown()


def test_a_thousand_that_wait_for_the_sender_are_looked_at_in_turn_a_few_at_a_time() -> None:
    drive = waiting(dict.fromkeys([f"p{n}" for n in range(1000)], 1000.0))
    drive.queued.update(dict.fromkeys(range(1000), 100))
    # Until all wait for as long as they ever do.
    drive.run_until(drive.now + 10)
    drive.looks.clear()
    for _ in range(400):
        drive.now += 0.001
        drive.rate_limits.room_has_grown()
        before = len(drive.looks)
        drive.take()
        assert len(drive.looks) - before <= 100
    assert {lane for _, lane in drive.looks} == set(range(1000))
    assert len(drive.looks) <= 40 * 32 + 1000


CHANGES: dict[str, Callable[[RateLimits], object]] = {
    "a higher rate": lambda limits: limits.set_rates({"a": 1000.0}),
    "another lane": lambda limits: limits.put(7, "a", entries_of(100, 1)),
    "one lane less": lambda limits: limits.take_lane(1),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_followed_at_once(what: str) -> None:
    rate = 0.001 if what == "a higher rate" else 20.0
    limits = RateLimits(burst_s=0.1)
    limits.set_rates({"a": rate})
    limits.put(0, "a", entries_of(0, 50))
    limits.put(1, "a", entries_of(50, 50))
    drive = Drive(limits)
    if rate == 20.0:
        # Each has its part of a burst of two there.
        drive.queued.update({0: 1, 1: 1})
    drive.run_until(drive.now + 20)
    before, drive.now = len(drive.left), drive.now + 0.02
    assert math.inf > limits.next_at(drive.now) > drive.now
    CHANGES[what](limits)
    drive.settle()
    assert len(drive.left) > before
