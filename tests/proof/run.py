"""`make year`: the proof with all 336,776 departures of 2013, in about a quarter of an hour.

Ends with exit code 0 if everything was as it must be; an assertion says what was not.
"""

import argparse
import random
import shutil
import tempfile
import time
from pathlib import Path

from tests.proof.departures import YEAR, calls_of, read_departures
from tests.proof.node import Node
from tests.proof.proof import Proof


def main() -> None:
    """Run it, and print what it came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--departures", type=Path, default=YEAR, help="CSV, or CSV in xz")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long the play lasts")
    parser.add_argument("--clock", type=int, default=60, help="how much faster the clocks run")
    parser.add_argument("--lost", type=int, default=2000, help="facts that are taken out")
    parser.add_argument("--missing", type=int, default=500, help="messages that are taken out")
    parser.add_argument("--rate", type=int, default=200, help="of the repair that is killed")
    parser.add_argument("--seed", type=int, default=2013)
    parser.add_argument("--keep", type=Path, help="a directory for data, results and pages")
    options = parser.parse_args()
    began = time.monotonic()
    directory = options.keep or Path(tempfile.mkdtemp(prefix="delaywheel-year-"))
    directory.mkdir(parents=True, exist_ok=True)
    departures = read_departures(options.departures)
    calls = calls_of(
        departures,
        lasts_ms=round(options.seconds * options.clock * 1000),
        lead_days=(1.0, 60.0),
        chance=random.Random(options.seed),
    )
    _say(began, f"{len(calls):,} departures, played in {options.seconds:g} s")
    with Node(directory, options.clock) as node:
        proof = Proof(node, calls, seed=options.seed)
        proof.play()
        _say(began, "all delivered, all segments sealed")
        proof.check_clean()
        _say(began, "reconciled: nothing is wrong")
        proof.take_out(lost=options.lost, missing=options.missing)
        _say(began, "taken out, and exactly that was found")
        proof.repair(rate=options.rate)
        _say(began, "repaired: killed in the middle, resumed, delivered again")
        proof.check_repaired()
        _say(began, "reconciled with the audit: nothing is wrong")
        proof.check_unrepaired()
        _say(began, "without it, what was taken out is still lost")
    for name, value in proof.figures.shown().items():
        print(f"{name:<32}{value:>12}")  # noqa: T201 (its output)
    if options.keep is None:
        shutil.rmtree(directory)


def _say(began: float, text: str) -> None:
    print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True)  # noqa: T201 (its output)


if __name__ == "__main__":
    main()
