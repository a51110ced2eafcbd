"""The real server, seed by seed, under crashes: promises 1 to 5 and 7 hold, and every seed repeats.

Seeds are others each day: a test that fails has its seed in its name, `make simulate` repeats it.
"""

import dataclasses

import pytest

from tests.seeds import again, long_seeds_of_the_day, seeds_of_the_day
from tests.simulation.campaign import Campaign
from tests.simulation.faults import HARSH, FaultPlan
from tests.simulation.other_processes import printed
from tests.simulation.world import CRASH_POINTS, planned_ends, run_world

SEEDS = 8
"""Of a CPU second each."""
LONG_SEEDS = 80
PART = 20

CANARIES = (1, 4)

_PRINT_DIGESTS = """
from tests.simulation.world import run_world
for seed in {seeds}:
    print(run_world(seed).digest)
"""


@pytest.mark.slow
@seeds_of_the_day(SEEDS)
def test_promises_hold_whatever_crashes(seed: int) -> None:
    result = run_world(seed)
    assert result.violations == [], again("server", seed)
    assert result.messages >= 200
    assert result.crashes >= 2
    # A clock that leaps, and is believed, files in one minute what was to be in many.
    assert result.segments.total() >= 20


@pytest.mark.long
@pytest.mark.parametrize("seeds", long_seeds_of_the_day(LONG_SEEDS, part=PART), ids=str)
def test_promises_hold_in_many_more_seeds(seeds: range) -> None:
    campaign = Campaign()
    for seed in seeds:
        campaign.add(run_world(seed))
    failures = [f"{again('server', one.seed)}: {one.violations}" for one in campaign.failed]
    assert not failures, "\n".join(failures)
    assert campaign.messages_min is not None
    assert campaign.messages_min >= 200
    assert campaign.segments.total() >= 40 * PART
    assert len(campaign.lacking_a_span) <= PART // 6
    assert campaign.crashes >= 2 * PART


@pytest.mark.parametrize(
    "plan",
    [dataclasses.replace(HARSH, sync_lies=0.2), dataclasses.replace(HARSH, misdirected=0.2)],
    ids=["an fsync that lies", "a write that goes elsewhere"],
)
def test_a_disk_that_breaks_its_word_is_found_out(plan: FaultPlan) -> None:
    assert all(run_world(seed, plan=plan).violations for seed in (1, 2))


def test_every_crash_point_has_its_turn_many_times_in_500_seeds() -> None:
    turns = dict.fromkeys(CRASH_POINTS, 0)
    for seed in range(500):
        for end in planned_ends(seed, 10_000):
            turns[end.point] += 1
    assert min(turns.values()) >= 30, turns


def test_one_seed_gives_one_trace_in_every_process() -> None:
    program = _PRINT_DIGESTS.format(seeds=CANARIES)
    one, other = printed(program)
    assert one == other
    assert len(set(one)) == len(CANARIES)
