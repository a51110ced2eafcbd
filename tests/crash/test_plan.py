"""The plan of a campaign comes from its seed alone, and reaches every place there is."""

from collections import Counter

import pytest

from tests.crash.life_clock import LifeClock
from tests.crash.plan import DAY_MS, EIO, HOUR_HORIZON_MS, HOUR_MS, MINUTE_HORIZON_MS, plan_round
from tests.crash.points import DISK_OPERATIONS, POINTS, _resolve


@pytest.mark.parametrize("power", [False, True])
def test_a_seed_tells_the_same_story_and_another_one_another(power: bool) -> None:
    assert plan_round(1, 3, power=power, cycles=20) == plan_round(1, 3, power=power, cycles=20)
    assert plan_round(1, 3, power=power, cycles=20) != plan_round(1, 4, power=power, cycles=20)
    assert plan_round(1, 3, power=power, cycles=20) != plan_round(2, 3, power=power, cycles=20)
    # A shorter campaign is the beginning of a longer one.
    assert plan_round(1, 3, power=power, cycles=5) == plan_round(1, 3, power=power, cycles=20)[:5]


def test_five_hundred_cycles_aim_at_every_point_many_times() -> None:
    cycles = [cycle for n in range(25) for cycle in plan_round(1, n, power=False, cycles=20)]
    aimed = Counter(cycle.point for cycle in cycles)
    assert set(POINTS) < set(aimed)
    assert min(aimed.values()) >= 15
    assert not any(cycle.fault or cycle.cuts_power for cycle in cycles)


def test_power_is_cut_after_most_lives_and_some_disks_fail_or_fill_up() -> None:
    cycles = [cycle for n in range(10) for cycle in plan_round(1, n, power=True, cycles=20)]
    assert sum(cycle.cuts_power for cycle in cycles) > 140
    faults = Counter((cycle.fault or "none").split()[0] for cycle in cycles)
    assert min(faults["eio"], faults["enospc"]) >= 5
    assert all((cycle.fault or "").startswith("eio") == (cycle.point == EIO) for cycle in cycles)


def test_every_point_names_functions_and_disk_operations_that_exist() -> None:
    operations = {name for names in DISK_OPERATIONS.values() for name in names}
    for point in POINTS.values():
        for place in point.functions:
            owner, name = _resolve(place)
            assert callable(getattr(owner, name)), place
        assert operations.issuperset(point.operations)
    for owner, names in DISK_OPERATIONS.items():
        assert all(callable(getattr(owner, name)) for name in names)


def test_a_clock_that_is_set_for_a_split_is_just_before_one_and_never_goes_back() -> None:
    for number in range(50):
        for cycle in plan_round(1, number, power=False, cycles=20):
            before_ms = 1_795_262_400_000 + number * 977_000
            wall_ms = cycle.wall_ms(before_ms)
            assert wall_ms >= before_ms
            assert wall_ms - before_ms <= DAY_MS
            later_ms = wall_ms + 1000 * cycle.rate
            if cycle.jump == "hour":
                split = (later_ms + MINUTE_HORIZON_MS) // HOUR_MS
                assert split == (wall_ms + MINUTE_HORIZON_MS) // HOUR_MS + 1
            elif cycle.jump == "day":
                split = (later_ms + HOUR_HORIZON_MS) // DAY_MS
                assert split == (wall_ms + HOUR_HORIZON_MS) // DAY_MS + 1


def test_the_clock_of_a_life_runs_at_its_rate() -> None:
    clock = LifeClock(life=1, began_ns=5_000_000, wall_ms=100, rate=60)
    assert clock.at(5_000_000) == 100
    assert clock.at(1_005_000_000) == 60_100
