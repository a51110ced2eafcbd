"""A campaign of the meta server's world adds its seeds up."""

from collections import Counter

from tests.simulation.meta_campaign import MetaCampaign
from tests.simulation.meta_world import MetaResult


def result(seed: int, *, violations: tuple[str, ...] = ()) -> MetaResult:
    return MetaResult(
        seed,
        violations=list(violations),
        counts=Counter(answers=500 + seed, pushes=50),
        faults=Counter({"PowerCut": 2}),
        lives=3,
        commits=100,
        virtual_s=600.0,
    )


def campaign() -> MetaCampaign:
    made = MetaCampaign()
    made.add(result(1), 0.25)
    made.add(result(2, violations=("right: no",)), 0.25)
    made.add(result(3), 0.5)
    return made


def test_seeds_are_added_up_and_failed_ones_only_counted() -> None:
    made = campaign()
    assert made.seeds == 3
    assert [one.seed for one in made.failed] == [2]
    assert made.counts["answers"] == 1004
    assert made.counts["lives of the meta server"] == 6
    assert made.counts["virtual minutes"] == 20
    assert made.faults == {"PowerCut": 4}
    assert "3 seeds, 1 failed" in "\n".join(made.lines())
