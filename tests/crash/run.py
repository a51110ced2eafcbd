"""Real crashes: `python -m tests.crash.run --kills 500 --cuts 200 --seed 1`.

Two campaigns. In the first, servers are killed (SIGKILL) at drawn points; the page cache survives.
In the second they run on a layer that writes down what they do to files, and most deaths are power
cuts: what was not fsynced is dropped, torn and reordered. Ends with exit code 1 if a promise was
broken; with `--break`, if none was.
"""

import argparse
import concurrent.futures
import functools
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.breaks import BREAKS, NEED_POWER_LOSS
from tests.crash.campaign_round import Outcome, Round, cycles_of_round
from tests.crash.disk_layer import Unavailable, build_layer
from tests.crash.plan import CYCLES_PER_ROUND, plan_round

_tell = functools.partial(print, flush=True)


def run_round(
    directory: Path,
    *,
    seed: int,
    number: int,
    cycles: int,
    library: Path | None,
    broken: str | None,
) -> Outcome:
    """Run one round; its directory stays if something is wrong."""
    power = library is not None
    kind = "power" if power else "kill"
    place = directory / f"{kind}-{number}"
    one = Round(place, name=f"{kind} round {number}", library=library, broken=broken, tell=_tell)
    outcome = one.run(plan_round(seed, number, power=power, cycles=cycles))
    if not outcome.violations:
        shutil.rmtree(place)
    return outcome


def run_campaign(
    directory: Path,
    *,
    seed: int,
    cycles: int,
    library: Path | None = None,
    broken: str | None = None,
    jobs: int = 1,
) -> Outcome:
    """Run rounds until `cycles` are done; of a broken server, until it is caught."""
    total = Outcome()
    count = -(-cycles // CYCLES_PER_ROUND)
    with concurrent.futures.ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        rounds = [
            pool.submit(
                run_round,
                directory,
                seed=seed,
                number=number,
                cycles=cycles_of_round(number, cycles),
                library=library,
                broken=broken,
            )
            for number in range(count)
        ]
        for done in concurrent.futures.as_completed(rounds):
            if done.cancelled():
                continue
            total.add(done.result())
            if total.violations and broken is not None:
                pool.shutdown(wait=True, cancel_futures=True)
    return total


def describe(title: str, outcome: Outcome, seconds: float) -> str:
    """Return the figures of a campaign, for people."""
    lines = [f"{title}: {outcome.cycles} cycles in {seconds:.0f} s"]
    lines[0] += f", {len(outcome.violations)} violations"
    lines.append(
        f"  messages: {outcome.acknowledged} acknowledged, {outcome.delivered} delivered, "
        f"{outcome.lost} lost, {outcome.early} early, {outcome.refused} refused"
    )
    lines.append(
        f"  delivered twice: {outcome.twice}, the oldest {outcome.oldest_twice_s * 1000:.0f} ms "
        f"before a death (window: at most {outcome.window_s * 1000:.0f} ms)"
    )
    if outcome.ready_s:
        lines.append(
            f"  restarts: {len(outcome.ready_s)} became ready, the slowest after "
            f"{max(outcome.ready_s):.2f} s; longest recovery "
            f"{max(outcome.recovery_s, default=0):.3f} s"
        )
    if outcome.cuts:
        did = ", ".join(f"{name} {count}" for name, count in sorted(outcome.tally.items()))
        lines.append(f"  power cuts: {outcome.cuts} ({did})")
        lines.append(f"  slowest fsync: {outcome.slowest_sync_s * 1000:.0f} ms")
    for name in sorted(outcome.reached | outcome.missed):
        missed = outcome.missed[name]
        note = f" (and {missed} lives that ended before they got there)" if missed else ""
        lines.append(f"  {outcome.reached[name]:5} {name}{note}")
    lines += [f"  VIOLATION {text}" for text in outcome.violations[:10]]
    return "\n".join(lines)


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.run", description=__doc__)
    parser.add_argument("--kills", type=int, default=500, help="SIGKILL cycles")
    parser.add_argument("--cuts", type=int, default=200, help="cycles with power loss")
    parser.add_argument("--seed", type=int, default=1, help="of the plan")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="rounds at a time")
    parser.add_argument("--break", dest="broken", choices=sorted(BREAKS), help="take out a rule")
    parser.add_argument("--work", type=Path, help="directory on the disk to use")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="delaywheel-crash-", dir=options.work))
    failed = False
    for title, cycles, power in (
        ("SIGKILL", options.kills, False),
        ("power loss", options.cuts, True),
    ):
        if not cycles:
            continue
        if options.broken in NEED_POWER_LOSS and not power:
            _tell(f"{title}: skipped. It cannot show that '{options.broken}' is missing")
            continue
        try:
            library = build_layer(directory) if power else None
        except Unavailable as reason:
            _tell(f"{title}: skipped. {reason}")
            continue
        began = time.monotonic()
        outcome = run_campaign(
            directory,
            seed=options.seed,
            cycles=cycles,
            library=library,
            broken=options.broken,
            jobs=options.jobs,
        )
        _tell(describe(title, outcome, time.monotonic() - began))
        if options.broken is not None:
            caught = "caught" if outcome.violations else "NOT caught"
            _tell(f"  without the rule '{options.broken}': {caught}")
        failed |= bool(outcome.violations) != (options.broken is not None)
    if failed:
        _tell(f"what there was is in {directory}")
    else:
        shutil.rmtree(directory)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
