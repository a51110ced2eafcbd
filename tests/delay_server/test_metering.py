"""Limited entries leave at their rate, in their order, and none is lost, whatever the rhythm."""

import random
from collections import Counter

import numpy as np
import pytest

from delay_server.metering import Meters
from storage import ENTRY, Entries


def entries_of(first: int, count: int) -> Entries:
    entries = np.zeros(count, ENTRY)
    entries["sequence"] = np.arange(first, first + count)
    return entries


@pytest.mark.parametrize("seed", range(40))
def test_what_leaves_is_within_rate_and_burst_over_any_time_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    burst_s = chance.choice([0.01, 0.1, 2.0])
    meters = Meters(burst_s=burst_s)
    rates = {"a": chance.choice([0.5, 7.0, 300.0]), "b*": chance.choice([1.0, 10_000.0])}
    meters.set_rates(rates)
    lanes = {10: "a", 11: "b*", 12: "b*"}
    now, sent, left, queued = 1000.0, 0, Counter[int](), Counter[int]()
    times: dict[str, list[tuple[float, int]]] = {"a": [], "b*": []}
    last: dict[int, int] = {}
    put: Counter[int] = Counter()
    for _ in range(400):
        now += chance.choice([0.0, 0.001, 0.01, 0.5, 20.0])
        if chance.random() < 0.4:
            lane, count = chance.choice(list(lanes)), chance.choice([1, 5, 400])
            meters.put(lane, lanes[lane], entries_of(sent, count))
            put[lane] += count
            sent += count
        for lane, part in meters.take(now, lambda lane: queued[lane]):
            assert part["sequence"][0] > last.get(lane, -1)
            assert np.all(np.diff(part["sequence"]) > 0)
            last[lane] = int(part["sequence"][-1])
            left[lane] += len(part)
            queued[lane] += len(part)
            times[lanes[lane]].append((now, len(part)))
        if chance.random() < 0.8:
            queued.clear()
        assert meters.count == sum(map(meters.count_of, lanes)) == put.total() - left.total()
        assert meters.next_at(now) >= now
    for pattern, rate in rates.items():
        burst = max(1.0, rate * burst_s)
        for first, (began, _) in enumerate(times[pattern]):
            total = 0
            for at, count in times[pattern][first:]:
                total += count
                assert total <= rate * (at - began) + burst + 1
    # With nothing in its way all of it leaves, at the rate.
    began, rest = now, meters.count_of(10)
    while meters.count:
        now = max(meters.next_at(now), now + 1e-4)
        for lane, part in meters.take(now, lambda _: 0):
            left[lane] += len(part)
    assert left == put
    assert now - began <= rest / rates["a"] + max(put[11] + put[12], 1) / rates["b*"] + 3


def test_nothing_is_given_on_while_a_burst_waits_at_the_sender() -> None:
    meters = Meters(burst_s=0.1)
    meters.set_rates({"a": 100.0})
    meters.put(5, "a", entries_of(0, 1000))
    assert sum(len(part) for _, part in meters.take(0.0, lambda _: 0)) == 10
    for second in range(1, 100):
        assert not list(meters.take(float(second), lambda _: 10))
    assert sum(len(part) for _, part in meters.take(100.0, lambda _: 3)) == 7


def test_what_comes_back_goes_first_and_a_lane_can_be_taken_as_a_whole() -> None:
    meters = Meters(burst_s=1.0)
    meters.set_rates({"a": 10.0})
    meters.put(5, "a", entries_of(100, 3))
    meters.put_first(5, "a", entries_of(50, 2))
    assert meters.take_lane(5)["sequence"].tolist() == [50, 51, 100, 101, 102]
    assert (meters.count, meters.lanes) == (0, [])
    assert not len(meters.take_lane(5))


def test_setting_a_rate_again_and_again_lets_no_more_pass() -> None:
    meters = Meters(burst_s=0.1)
    meters.set_rates({"a": 10.0})
    meters.put(5, "a", entries_of(0, 1000))
    passed = 0
    for step in range(1000):
        meters.set_rates({"a": 10.0, f"other{step}": 1.0})
        passed += sum(len(part) for _, part in meters.take(step * 0.01, lambda _: 0))
    assert passed <= 10 * 10 + 2
