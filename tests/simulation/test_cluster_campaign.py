"""A campaign of the cluster's world adds its seeds up, and names what it has not seen."""

from collections import Counter

from tests.simulation.cluster_campaign import JUDGED, STRIKES, ClusterCampaign
from tests.simulation.world import WorldResult


def result(seed: int, *, violations: tuple[str, ...] = ()) -> WorldResult:
    return WorldResult(
        seed,
        violations=list(violations),
        messages=200 + seed,
        counts=Counter({JUDGED[0]: 500 + seed}),
        faults=Counter({STRIKES[0]: 2}),
    )


def campaign() -> ClusterCampaign:
    made = ClusterCampaign()
    made.add(result(1), 0.25)
    made.add(result(2, violations=("stuck: no",)), 0.25)
    made.add(result(3), 0.5)
    return made


def test_seeds_are_added_up_and_failed_ones_only_counted() -> None:
    made = campaign()
    assert made.seeds == 3
    assert [one.seed for one in made.failed] == [2]
    assert made.messages == 404
    assert made.counts == {JUDGED[0]: 1004}
    text = "\n".join(made.lines())
    assert "3 seeds, 1 failed" in text
    assert f"judged: {JUDGED[0]} 1004" in text
    assert made.never_struck == [*STRIKES[1:], *JUDGED[1:]]
    assert f"never struck: {STRIKES[1]}, " in text
