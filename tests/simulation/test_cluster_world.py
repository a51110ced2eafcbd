"""The delay server, the meta server and broker groups together, seed by seed."""

import pytest

from tests.seeds import again, long_seeds_of_the_day, seeds_of_the_day
from tests.simulation.cluster_campaign import STRIKES, ClusterCampaign
from tests.simulation.cluster_world import run_cluster_world
from tests.simulation.other_processes import printed

SEEDS = 2
LONG_SEEDS = 20
PART = 10

_PRINT_DIGESTS = """
from tests.simulation.cluster_world import run_cluster_world
print(run_cluster_world(1).digest)
"""


@pytest.mark.slow
@seeds_of_the_day(SEEDS)
def test_promises_hold_whatever_happens_to_either_server(seed: int) -> None:
    result = run_cluster_world(seed)
    assert result.violations == [], again("cluster", seed)
    assert result.messages >= 200
    assert result.crashes >= 2
    assert result.counts["routes that clients knew at the end"] == 4


@pytest.mark.long
@pytest.mark.parametrize("seeds", long_seeds_of_the_day(LONG_SEEDS, part=PART), ids=str)
def test_promises_hold_in_many_more_seeds(seeds: range) -> None:
    campaign = ClusterCampaign()
    for seed in seeds:
        campaign.add(run_cluster_world(seed))
    failures = [f"{again('cluster', one.seed)}: {one.violations}" for one in campaign.failed]
    assert not failures, "\n".join(failures)
    assert len(campaign.never_struck) <= len(STRIKES) // 2
    assert campaign.counts["deliveries judged by routes of the last minutes"] >= 20 * PART
    assert campaign.counts["had to be on time"]


@pytest.mark.long
def test_one_seed_gives_one_trace_in_every_process() -> None:
    one, other = printed(_PRINT_DIGESTS)
    assert one == other
    assert len(one) == 1
