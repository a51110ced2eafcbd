"""The real server, seed by seed, under crashes: promises 1 to 5 and 7 hold, and every seed repeats.

Seeds are a fixed list, so a failure here is a failure everywhere; `make simulate` runs others.
"""

import os
import subprocess
import sys

import pytest

from tests.simulation.run import Ledger
from tests.simulation.world import CRASH_POINTS, planned_ends, run_world

CHUNKS = 24
SEEDS_PER_CHUNK = 15
"""360 seeds: about three minutes of one core."""

REGRESSIONS = {
    1: "facts known before the rows they tell of were written: the segment was never sealed",
    15: "killed after the first seal and before the first checkpoint: never started again",
}
"""Seeds that have found a fault, as worlds were then; the faults have tests of their own too."""

CANARIES = (3, 15)

_PRINT_DIGESTS = """
from tests.simulation.world import run_world
for seed in {seeds}:
    print(run_world(seed).digest)
"""


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_promises_hold_whatever_crashes(chunk: int) -> None:
    ledger = Ledger()
    first = 1000 + chunk * SEEDS_PER_CHUNK
    for seed in range(first, first + SEEDS_PER_CHUNK):
        ledger.add(run_world(seed))
    failures = [f"seed {result.seed}: {result.violations}" for result in ledger.failed]
    assert not failures, "\n".join(failures)
    assert ledger.messages_min is not None
    assert ledger.messages_min >= 200
    assert ledger.segments_min is not None
    assert ledger.segments_min >= 30
    assert ledger.lacking_a_span == []
    assert ledger.crashes >= 2 * SEEDS_PER_CHUNK


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_seed_that_found_a_fault_finds_none(seed: int) -> None:
    assert run_world(seed).violations == []


def test_every_crash_point_has_its_turn_many_times_in_500_seeds() -> None:
    turns = dict.fromkeys(CRASH_POINTS, 0)
    for seed in range(500):
        for end in planned_ends(seed, 10_000):
            turns[end.point] += 1
    assert min(turns.values()) >= 30, turns


def test_one_seed_gives_one_trace_in_every_process() -> None:
    program = _PRINT_DIGESTS.format(seeds=CANARIES)
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.getcwd()},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(digests) == 1
    [lines] = digests
    assert len(set(lines.split())) == len(CANARIES)
