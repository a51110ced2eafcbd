"""The real meta server, seed by seed: what peers are told is right, stable, kept and bounded."""

import pytest

from tests.seeds import again, long_seeds_of_the_day, seeds_of_the_day
from tests.simulation.meta_campaign import MetaCampaign
from tests.simulation.meta_world import run_meta_world
from tests.simulation.other_processes import printed

SEEDS = 4
LONG_SEEDS = 30
PART = 10

_PRINT_DIGESTS = """
from tests.simulation.meta_world import run_meta_world
print(run_meta_world(3).digest)
"""


@pytest.mark.slow
@seeds_of_the_day(SEEDS)
def test_promises_hold_whatever_happens_to_the_meta_server(seed: int) -> None:
    result = run_meta_world(seed)
    assert result.violations == [], again("meta", seed)
    assert result.lives >= 1
    assert result.counts["answers"] >= 50
    assert result.counts["broker registrations"] >= 50
    assert result.counts["node registrations"] >= 50


@pytest.mark.long
@pytest.mark.parametrize("seeds", long_seeds_of_the_day(LONG_SEEDS, part=PART), ids=str)
def test_promises_hold_in_many_more_seeds(seeds: range) -> None:
    campaign = MetaCampaign()
    for seed in seeds:
        campaign.add(run_meta_world(seed))
    failures = [f"{again('meta', one.seed)}: {one.violations}" for one in campaign.failed]
    assert not failures, "\n".join(failures)
    assert campaign.counts["lives of the meta server"] >= 2 * PART
    assert campaign.counts["pushes"] >= 10 * PART


@pytest.mark.long
def test_one_seed_gives_one_trace_in_every_process() -> None:
    one, other = printed(_PRINT_DIGESTS)
    assert one == other
    assert len(one) == 1
