"""The plan of a campaign comes from its seed alone, and reaches every place there is."""

from collections import Counter

import pytest

from tests.crash.plan import plan_round
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


def test_every_point_names_functions_and_disk_operations_that_exist() -> None:
    operations = {name for names in DISK_OPERATIONS.values() for name in names}
    for point in POINTS.values():
        for place in point.functions:
            owner, name = _resolve(place)
            assert callable(getattr(owner, name)), place
        assert operations.issuperset(point.operations)
    for owner, names in DISK_OPERATIONS.items():
        assert all(callable(getattr(owner, name)) for name in names)
