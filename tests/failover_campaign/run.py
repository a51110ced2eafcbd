"""Failovers of a real group: `python -m tests.failover_campaign.run --failovers 200 --seed 1`.

One line of JSON for each failover, then a summary. Ends with exit code 1 if a promise was broken
or one of the bars does not hold.
"""

import argparse
import functools
import math
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.crash.disk_layer import Unavailable, build_layer
from tests.failover_campaign.campaign_round import Reckoning, Round
from tests.failover_campaign.drawing import draw
from tests.failover_campaign.network import INSIDE, Loopback, Namespaces, enter, why_no_namespaces
from tests.failover_campaign.plan import CALM_S, POWER, QUICK_CALM_S, kinds_with, plan
from tests.failover_campaign.summary import broken_bars, describe

PICTURE: Final = Path(__file__).parents[2] / "build" / "failovers.svg"
_SOAK_S: Final = 900.0
"""Seconds of load on a group without failovers, before its directories are looked at."""

_tell = functools.partial(print, flush=True)


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.failover_campaign.run", description=__doc__
    )
    parser.add_argument("--failovers", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the plan")
    parser.add_argument("--rate", type=float, default=1000.0, help="messages a second")
    parser.add_argument("--only", default="", help="kinds with one of these words in their names")
    parser.add_argument(
        "--soak",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help="before the failovers: groups that nothing strikes are to elect nobody for so long",
    )
    parser.add_argument("--output", type=Path, help="also append the lines to this file")
    parser.add_argument("--work", type=Path, help="directory on the disk to use")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="kinds that are soon over, one after the other; no bars",
    )
    parser.add_argument("--keep", action="store_true", help="keep the directories of all rounds")
    options = parser.parse_args()
    if INSIDE not in os.environ:
        reason = why_no_namespaces()
        if not reason:
            return enter(["-m", "tests.failover_campaign.run", *sys.argv[1:]])
        _tell(f"kinds that break links are skipped: {reason}")
    try:
        return _run(options)
    except KeyboardInterrupt:
        _tell("interrupted: all processes are ended")
        return 130


def _run(options: argparse.Namespace) -> int:
    directory = Path(tempfile.mkdtemp(prefix="delaywheel-failover-", dir=options.work))
    has: set[str] = set()
    network: Loopback = Loopback()
    if INSIDE in os.environ:
        network = Namespaces()
        has |= {"links", "disk"}
    library = None
    try:
        library = build_layer(directory)
        has |= {"fsync", POWER}
    except Unavailable as reason:
        _tell(f"kinds that fail fsyncs are skipped: {reason}")
    words = options.only.split()
    kinds = [
        kind
        for kind in kinds_with(has)
        if (not words or any(word in kind.name for word in words))
        and (kind.is_quick or not options.quick)
    ]
    calm_s = QUICK_CALM_S if options.quick else CALM_S
    calm_rounds = math.ceil(options.soak * 60 / _SOAK_S)
    rounds = plan(options.seed, options.failovers, kinds, calm_s)
    rounds[:0] = [[] for _ in range(calm_rounds)]
    total, began = Reckoning(), time.monotonic()
    try:
        for number, failovers in enumerate(rounds, 1):
            folder = directory / f"round-{number}"
            one = Round(
                folder,
                network,
                rate=options.rate,
                library=library,
                cuts_power=any(one.kind.needs == POWER for one in failovers),
                tell=_teller(options),
            )
            found = one.run(failovers, soak_s=0.0 if failovers else _SOAK_S)
            total.add(found)
            network.leave_disks()
            for violation in found.violations[:10]:
                _tell(f"VIOLATION {violation}")
            if not found.violations and not options.keep:
                shutil.rmtree(folder)
    except KeyboardInterrupt:
        network.leave_disks()
        shutil.rmtree(directory)
        raise
    broken = [] if options.quick else broken_bars(total)
    _tell(describe(total, broken, time.monotonic() - began))
    draw(total.failovers, PICTURE)
    _tell(f"the picture: {PICTURE.relative_to(PICTURE.parents[1])}")
    if total.violations or options.keep:
        _tell(f"what there was is in {directory}")
    else:
        shutil.rmtree(directory)
    return int(bool(total.violations or broken))


def _teller(options: argparse.Namespace) -> "functools.partial[None]":
    return functools.partial(_write, options.output)


def _write(output: Path | None, line: str) -> None:
    _tell(line)
    if output is not None:
        with output.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
