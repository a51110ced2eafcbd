"""A campaign: many seeds of the whole server's simulation, and what they came to.

    python -m tests.simulation.run --seeds 500 --first 1 --jobs 2
    python -m tests.simulation.run --world meta             the meta server's simulation
    python -m tests.simulation.run --world cluster          that of both together
    python -m tests.simulation.run --world schedule         the core of replication alone
    python -m tests.simulation.run --world group            three servers and a meta server

Prints each failing seed with what was wrong and how to see it again, then the account: faults by
kind, crash points hit, seeds a second. `--ledger docs/campaigns.jsonl` appends a
line for it. The exit code is 1 if a seed failed.
"""

import argparse
import contextlib
import gc
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.simulation.campaign import Campaign
from tests.simulation.cluster_campaign import ClusterCampaign
from tests.simulation.cluster_world import run_cluster_world
from tests.simulation.ledger import Account
from tests.simulation.meta_campaign import MetaCampaign
from tests.simulation.meta_world import MetaResult, run_meta_world
from tests.simulation.schedule.group import (
    STORIES,
    GroupResult,
    ScheduleCampaign,
    run_schedule,
)
from tests.simulation.story.group import STORIES as TOLD
from tests.simulation.story.group import StoryCampaign, StoryResult, run_story
from tests.simulation.world import WorldResult, run_world

Result = TypeVar("Result", WorldResult, MetaResult, GroupResult, StoryResult)


def run_seeds(
    run_one: Callable[[int], Result], seeds: Iterable[int], *, jobs: int = 1
) -> Iterator[tuple[Result, float]]:
    """Yield the result of each seed and its CPU seconds, in order; `jobs` processes work at it."""
    timed = partial(_time, run_one)
    if jobs == 1:
        _collect_seldom()
        yield from map(timed, seeds)
        return
    # Spawned and not forked: a seed must not depend on what ran before it.
    with multiprocessing.get_context("spawn").Pool(jobs, _collect_seldom) as pool:
        yield from pool.imap(timed, seeds, chunksize=4)


def _collect_seldom() -> None:
    """Have the garbage collector take a twentieth of the time and not a sixth."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _time(run_one: Callable[[int], Result], seed: int) -> tuple[Result, float]:
    began_s = time.process_time()
    return run_one(seed), time.process_time() - began_s


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
    parser.add_argument(
        "--world", choices=("server", "meta", "cluster", *STORIES, *TOLD), default="server"
    )
    options = parser.parse_args()
    if options.world == "meta":
        return _run_campaign(options, MetaCampaign(), run_meta_world)
    if options.world == "cluster":
        return _run_campaign(options, ClusterCampaign(), run_cluster_world)
    if options.world in STORIES:
        return _run_campaign(
            options, ScheduleCampaign(), partial(run_schedule, world=options.world)
        )
    if options.world in TOLD:
        return _run_campaign(options, StoryCampaign(), partial(run_story, world=options.world))
    return _run_campaign(options, Campaign(), run_world)


def _run_campaign(
    options: argparse.Namespace, campaign: Account[Result], run_one: Callable[[int], Result]
) -> int:
    began_s = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    with contextlib.suppress(KeyboardInterrupt):
        for result, cpu_s in run_seeds(run_one, seeds, jobs=options.jobs):
            campaign.add(result, cpu_s)
            for violation in result.violations:
                sys.stdout.write(f"seed {result.seed}: {violation}\n")
            if result.violations:
                again = f"make simulate WORLD={options.world} SEEDS=1 FIRST={result.seed}"
                sys.stdout.write(f"    again: {again}\n")
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
            line = campaign.line(
                world=options.world,
                date=options.date,
                commit=_commit(),
                first=options.first,
                seconds=seconds,
            )
            with options.ledger.open("a", encoding="utf-8") as file:
                file.write(line)
    if campaign.failed:
        numbers = ", ".join(str(result.seed) for result in campaign.failed)
        sys.stdout.write(f"failed: {numbers}\n")
    return 1 if campaign.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
