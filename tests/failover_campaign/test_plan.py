"""A plan is its seed's, and each kind comes as often as any other."""

from collections import Counter

from tests.failover_campaign.faults import KINDS
from tests.failover_campaign.plan import CUTS_PER_ROUND, PER_ROUND, POWER, kinds_with, plan
from tests.failover_campaign.summary import BARS


def test_the_same_seed_is_the_same_plan() -> None:
    assert plan(1, 50, KINDS) == plan(1, 50, KINDS)
    assert plan(1, 50, KINDS) != plan(2, 50, KINDS)


def test_each_kind_comes_as_often_as_any_other() -> None:
    rounds = plan(1, 5 * len(KINDS), KINDS)
    counts = Counter(one.kind.name for failovers in rounds for one in failovers)
    assert counts == {kind.name: 5 for kind in KINDS}


def test_power_is_cut_in_rounds_of_their_own() -> None:
    for failovers in plan(1, 200, KINDS):
        needs = {one.kind.needs == POWER for one in failovers}
        assert len(needs) == 1
        assert len(failovers) <= (CUTS_PER_ROUND if needs == {True} else PER_ROUND)


def test_kinds_are_left_out_for_which_something_is_missing() -> None:
    assert {kind.needs for kind in kinds_with(())} == {""}
    assert kinds_with({"links", "fsync", "disk", POWER}) == list(KINDS)


def test_each_bar_is_that_of_a_kind() -> None:
    assert set(BARS) <= {kind.name for kind in KINDS}
