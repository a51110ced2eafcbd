"""A lane that a group refuses is remembered until an item of it is taken, and risked seldom."""

import random

from delay_transport.seams.backoff import Backoff
from sender.health.refused_lanes import RefusedLanes


def lanes(items_max: int = 16) -> RefusedLanes:
    wait = Backoff(base_s=0.1, max_s=2.0)
    return RefusedLanes(items_max=items_max, wait=wait, chance=random.Random(1))


def test_a_lane_is_refused_after_so_many_items_in_a_row() -> None:
    found = lanes()
    assert not found.refused(3, 15, now=0.0)
    assert 3 not in found
    assert found.refused(3, 1, now=0.0)
    assert 3 in found
    assert 4 not in found
    # It is news once.
    assert not found.refused(3, 100, now=0.0)


def test_one_that_is_taken_makes_up_for_all() -> None:
    found = lanes()
    found.refused(3, 15, now=0.0)
    found.taken(3)
    assert not found.refused(3, 15, now=0.0)
    found.refused(3, 1, now=0.0)
    found.taken(3)
    assert 3 not in found
    assert len(found) == 0


def test_the_wait_until_one_is_risked_grows_to_its_ceiling() -> None:
    found = lanes()
    found.refused(3, 20, now=0.0)
    now, waits = 0.0, []
    for _ in range(10):
        began = now
        while not found.may_risk(3, now):
            now += 0.001
        waits.append(now - began)
        found.risked(3, now)
        assert not found.may_risk(3, now)
        # Its refusal is no further news, and does not make the wait longer.
        assert not found.refused(3, 1, now=now + 0.001)
    assert waits[0] <= 0.11
    assert all(0.9 <= wait_s <= 2.01 for wait_s in waits[6:])


def test_no_more_lanes_are_remembered_than_there_may_be() -> None:
    found = lanes()
    for lane in range(25_000):
        found.refused(lane, 16, now=0.0)
        assert len(found) <= 10_000
    assert 24_999 in found


def test_refusals_after_a_wait_make_the_next_one_longer_though_none_was_risked() -> None:
    found = lanes()
    now, waits = 0.0, []
    for _ in range(8):
        found.refused(3, 20, now=now)
        began = now
        while not found.may_risk(3, now):
            now += 0.001
        waits.append(now - began)
    assert waits[0] <= 0.11
    assert waits[-1] >= 0.9


def test_one_lane_too_many_forgets_all_and_a_known_one_none() -> None:
    found = lanes()
    for lane in range(10_000):
        found.refused(lane, 1, now=0.0)
    found.refused(5, 1, now=0.0)
    assert len(found) == 10_000
    found.refused(10_000, 1, now=0.0)
    assert len(found) == 1


def test_an_item_of_a_lane_that_is_not_refused_is_no_risk() -> None:
    found = lanes()
    found.refused(3, 15, now=0.0)
    found.risked(3, 0.0)
    assert found.may_risk(3, 0.0)
