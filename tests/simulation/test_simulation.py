"""The real server, seed by seed, under crashes: promises 1 to 5 and 7 hold, and every seed repeats.

Seeds are a fixed list, so a failure here is a failure everywhere; `make simulate` runs others.
"""

import dataclasses

import pytest

from tests.simulation.campaign import Campaign
from tests.simulation.faults import HARSH, FaultPlan
from tests.simulation.other_processes import printed
from tests.simulation.world import CRASH_POINTS, planned_ends, run_world

CHUNKS = 9
SEEDS_PER_CHUNK = 12
"""108 seeds: two and a half to three minutes of one core. Campaigns have many more."""

REGRESSIONS = {
    1: "facts known before the rows they tell of were written: the segment was never sealed",
    15: "killed after the first seal and before the first checkpoint: never started again",
    704: "a torn append behind damage, its durable end lost: kept, since nobody knows what it is",
    1080: "what a leap of the clock made due was counted as paused beside lanes",
    1150: "what was read for a lane found its room in the sender taken",
    1338: "a clock that leapt made a message due in time that was to be refused",
    2125: "dead before its first step: no life of the server, and nothing it could have broken",
    7029: "a message_log file whose header never got to the disk, while bits rot",
    100057: "a seal damaged, and its file deleted for its age: its segment seemed lost",
    100379: "seals damaged, and facts of a sealed segment set aside: the checker missed the facts",
    200443: "a clock that leapt and was taken back made what is due at once due a day later",
    203664: "a mark of deleted files damaged: they were listed twice, and left early once",
    204723: "rows filed while a slice of a lane was planned: more than the sender has room for",
    208202: "a segment that could not be read was set aside unsynced, then the power went",
    209344: "a full disk: what is given up held its subject, and each second was read once more",
    209368: "the same: a letter that could not be recorded kept its subject waiting",
    210024: "facts about rows that are lost hid messages that nobody counted",
    210107: "what came by a lane that a pause closed was counted as waiting for its time",
    211375: "thrown out for its names by a clock ahead: nothing due was loaded when it was back",
    211483: "explain: nothing was said to be there while a segment was set aside",
    211740: "what a limited subject left on disk was counted as waiting for its time",
    211762: "bits rot, and a start cannot read another file: no refusal of the first",
    212530: "a damaged message that was come by twice was counted twice",
    212840: "what a start could not read was excused only when that life was over",
    214654: "seals damaged: a file that was then made again was taken for one set aside",
    214738: "what came from disk before it left the wheel was counted in its lane once more",
    219266: "seals that were cut came back by a power cut, in a file closed since: they counted",
    300035: "a second start on a full disk was taken for an error of the simulation",
    300043: "what a closed lane left, due in this minute, was counted as waiting for its time",
}
"""Seeds that have found a fault, of the server or of the simulation, as worlds were then. A world
that grows tells other stories: what was wrong with the server has tests of its own (test_world.py).
"""

CANARIES = (3, 15)

_PRINT_DIGESTS = """
from tests.simulation.world import run_world
for seed in {seeds}:
    print(run_world(seed).digest)
"""


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_promises_hold_whatever_crashes(chunk: int) -> None:
    campaign = Campaign()
    first = 1000 + chunk * SEEDS_PER_CHUNK
    for seed in range(first, first + SEEDS_PER_CHUNK):
        campaign.add(run_world(seed))
    failures = [f"seed {result.seed}: {result.violations}" for result in campaign.failed]
    assert not failures, "\n".join(failures)
    assert campaign.messages_min is not None
    assert campaign.messages_min >= 200
    assert campaign.segments.total() >= 40 * SEEDS_PER_CHUNK
    # A clock that leaps, and is believed, files in one minute what was to be in many.
    assert campaign.segments_min is not None
    assert campaign.segments_min >= 20
    assert len(campaign.lacking_a_span) <= 2
    assert campaign.crashes >= 2 * SEEDS_PER_CHUNK


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_seed_that_found_a_fault_finds_none(seed: int) -> None:
    assert run_world(seed).violations == []


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
