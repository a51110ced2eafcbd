"""A campaign: many seeds of the whole server's simulation, and what they came to.

    python -m tests.simulation.run --seeds 500 --first 1 --jobs 2

Prints each failing seed with what was wrong, then the ledger: faults by kind, crash points hit,
seeds a second. The exit code is 1 if a seed failed.
"""

import argparse
import contextlib
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.simulation.world import NAMED_POINTS, WorldResult, run_world

_SPANS = ("minute", "hour", "day")


@dataclass(slots=True)
class Ledger:
    """What the seeds of a campaign came to, added up."""

    seeds: int = 0
    failed: list[WorldResult] = field(default_factory=list)
    messages: int = 0
    messages_min: int | None = None
    segments: Counter[str] = field(default_factory=Counter)
    segments_min: int | None = None
    lacking_a_span: list[int] = field(default_factory=list)
    """Seeds that had no segment of a minute, of an hour or of a day."""
    crashes: int = 0
    twice: int = 0
    points: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, result: WorldResult) -> None:
        """Enter one seed."""
        self.seeds += 1
        if result.violations:
            self.failed.append(result)
            return
        segments = result.segments.total()
        self.messages += result.messages
        self.messages_min = min(self.messages_min or result.messages, result.messages)
        self.segments.update(result.segments)
        self.segments_min = min(self.segments_min or segments, segments)
        if not all(result.segments[span] for span in _SPANS):
            self.lacking_a_span.append(result.seed)
        self.crashes += result.crashes
        self.twice += result.twice
        self.points.update(result.points)
        self.faults.update(result.faults)

    @property
    def points_missed(self) -> list[str]:
        """Named crash points that no seed has hit."""
        return [name for name in NAMED_POINTS if not self.points[name]]

    def lines(self) -> Iterator[str]:
        """Yield the account for people."""
        yield (
            f"{self.seeds} seeds, {len(self.failed)} failed; {self.messages} messages "
            f"(at least {self.messages_min} a seed), {self.crashes} crashes, "
            f"{self.twice} delivered twice within the window"
        )
        spans = ", ".join(f"{self.segments[name]} {name}" for name in _SPANS)
        yield f"segments: {spans} (at least {self.segments_min} a seed)"
        yield "faults: " + _counts(self.faults)
        yield "crash points: " + _counts(self.points)
        if self.points_missed:
            yield "crash points never hit: " + ", ".join(self.points_missed)


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items())) or "none"


def run_seeds(seeds: Iterable[int], *, jobs: int = 1) -> Iterator[WorldResult]:
    """Yield the result of each seed, in order; `jobs` processes work at it."""
    if jobs == 1:
        yield from map(run_world, seeds)
        return
    # Spawned and not forked: a seed must not depend on what ran before it.
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(run_world, seeds, chunksize=4)


def main() -> int:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(prog="tests.simulation.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args()
    ledger = Ledger()
    began = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    with contextlib.suppress(KeyboardInterrupt):
        for result in run_seeds(seeds, jobs=options.jobs):
            ledger.add(result)
            for violation in result.violations:
                sys.stdout.write(f"seed {result.seed}: {violation}\n")
                sys.stdout.flush()
    seconds = time.monotonic() - began
    for line in ledger.lines():
        sys.stdout.write(line + "\n")
    sys.stdout.write(f"{ledger.seeds / seconds:.2f} seeds a second\n")
    if ledger.failed:
        numbers = ", ".join(str(result.seed) for result in ledger.failed)
        sys.stdout.write(f"failed: {numbers}\n")
    return 1 if ledger.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
