"""A campaign: many seeds of the whole server's simulation, and what they came to.

    python -m tests.simulation.run --seeds 500 --first 1 --jobs 2

Prints each failing seed with what was wrong and how to see it again, then the account: faults by
kind, crash points hit, seeds a second. `--ledger FILE` appends the account to a ledger
(campaign.py). The exit code is 1 if a seed failed.
"""

import argparse
import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.simulation.campaign import Campaign
from tests.simulation.world import WorldResult, run_world


def run_seeds(seeds: Iterable[int], *, jobs: int = 1) -> Iterator[tuple[WorldResult, float]]:
    """Yield the result of each seed and its CPU seconds, in order; `jobs` processes work at it."""
    if jobs == 1:
        yield from map(_run_one, seeds)
        return
    # Spawned and not forked: a seed must not depend on what ran before it.
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_run_one, seeds, chunksize=4)


def _run_one(seed: int) -> tuple[WorldResult, float]:
    began_s = time.process_time()
    return run_world(seed), time.process_time() - began_s


def _commit() -> str:
    """Return the commit that is checked out, with a + if the tree is not as committed."""

    def git(*words: str) -> str:
        found = subprocess.run(["git", *words], capture_output=True, text=True, check=False)  # noqa: S607 (whichever git there is)
        return found.stdout.strip()

    return (git("rev-parse", "--short=9", "HEAD") or "unknown") + "+" * bool(
        git("status", "--porcelain", "--untracked-files=no")
    )


def main() -> int:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(prog="tests.simulation.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--ledger", type=Path, help="append the account to this file")
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d", time.gmtime()))
    options = parser.parse_args()
    campaign = Campaign()
    began_s = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    with contextlib.suppress(KeyboardInterrupt):
        for result, cpu_s in run_seeds(seeds, jobs=options.jobs):
            campaign.add(result, cpu_s)
            for violation in result.violations:
                sys.stdout.write(f"seed {result.seed}: {violation}\n")
            if result.violations:
                sys.stdout.write(f"    again: make simulate SEEDS=1 FIRST={result.seed}\n")
                sys.stdout.flush()
    seconds = time.monotonic() - began_s
    for line in campaign.lines():
        sys.stdout.write(line + "\n")
    if campaign.seeds:
        sys.stdout.write(
            f"{campaign.seeds / seconds:.2f} seeds a second with {options.jobs} processes, "
            f"{campaign.cpu_s / campaign.seeds:.2f} CPU seconds a seed\n"
        )
        if options.ledger is not None:
            campaign.entry(
                date=options.date, commit=_commit(), first=options.first, seconds=seconds
            ).append_to(options.ledger)
    if campaign.failed:
        numbers = ", ".join(str(result.seed) for result in campaign.failed)
        sys.stdout.write(f"failed: {numbers}\n")
    return 1 if campaign.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
