"""Takes one rule after another out of the servers, and has the simulation notice.

    python -m tests.simulation.mutants                     all of them
    python -m tests.simulation.mutants fsync split         those with a word in their name
    python -m tests.simulation.mutants --record fsync      and write down the seeds that caught them

Everything is imported once. Each mutant is a forked child that edits its own functions
(`mutation.py`) and runs seeds until one finds a broken promise: the last that is known to, then the
first ones. Such a seed runs without the edit as well: if it is not clean then, it proves nothing
and the next one is tried. What worlds meet too seldom has a test in place of seeds, which runs in
the same way. The exit code is 1 if a mutant survives for which a seed or a test was known, if an
edit does not fit the code any more, or if a seed or test was not clean without the edit.
"""

import argparse
import contextlib
import gc
import io
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path

# One thread: the children are forked. Before numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis  # noqa: F401 (registers itself at trio, which a child could not do)
import pytest

import meta_server.sql.store  # noqa: F401 (in no world, but it has mutants)
from tests.simulation import mutant_list
from tests.simulation.cluster_world import run_cluster_world
from tests.simulation.meta_world import MetaResult, run_meta_world
from tests.simulation.mutant_list import MUTANTS, Mutant
from tests.simulation.mutation import ROOT, MutationError, in_force, prepared
from tests.simulation.schedule.group import STORIES, GroupResult, run_schedule
from tests.simulation.story.group import STORIES as TOLD
from tests.simulation.story.group import StoryResult, run_story
from tests.simulation.world import WorldResult, run_world

_Result = WorldResult | MetaResult | GroupResult | StoryResult

SEEDS = 60
"""Seeds from 1 on that are tried after the last known one."""
UNKNOWN_SEEDS = 10
"""The same where none is known: `--seeds 300 --record` looks for one."""
SEED_CPU_S = 60
"""CPU seconds that a seed may take; a mutant that hangs is stopped, and counts as not caught."""
_SEED_S = 600
"""The same by the clock, beside other work."""
_OF_A_BAD_EDIT = ("AttributeError", "NameError", "UnboundLocalError")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    seed: int | None = None
    """The one that caught it; None if it survived."""
    seeds: int = 0
    """How many ran."""
    finding: str = ""
    """The promise that is broken, in the words of the checkers, or how its test failed."""
    fault: str = ""
    """Why nothing can be said: the edit does not fit the code, or the child ended."""
    alarms: tuple[str, ...] = ()
    """What seeds have found without the edit."""
    seconds: float = 0.0

    @property
    def is_caught(self) -> bool:
        """Whether a seed or a test noticed."""
        return self.seed is not None or bool(self.finding)

    @property
    def is_bad(self) -> bool:
        """Whether somebody has to look at it."""
        is_known = self.mutant.seed is not None or bool(self.mutant.test)
        has_survived = is_known and not self.is_caught
        return bool(self.fault or self.alarms) or has_survived

    @property
    def line(self) -> str:
        """The verdict as a line of the table, and one for each false alarm."""
        mutant = self.mutant
        by = f"seed {self.seed}" if self.seed is not None else "its test"
        tried = "its test" if mutant.test else f"{self.seeds} seeds"
        what = f"caught by {by}" if self.is_caught else f"NOT caught by {tried}"
        if self.fault:
            what = "NOT TOLD"
        line = (
            f"{mutant.world:<8}{mutant.section:<18} {mutant.name:<38} {what:<22} "
            f"in {self.seconds:5.1f} s  {self.fault or self.finding[:90]}"
        )
        return "\n".join([line, *(f"        without the edit {alarm}" for alarm in self.alarms)])


def run_seed(mutant: Mutant, seed: int) -> list[str]:
    """Return the promises that a seed finds broken in a mutant's story."""
    run_one: Mapping[str, Callable[[int], _Result]] = {
        "server": partial(run_world, scenario=mutant.scenario),
        "meta": run_meta_world,
        "cluster": run_cluster_world,
        **{world: partial(run_schedule, world=world) for world in STORIES},
        **{world: partial(run_story, world=world) for world in TOLD},
    }
    return run_one[mutant.world](seed).violations


def broken_promise(violation: str) -> str:
    """Return a finding in a line; the end of a traceback if it ended the world."""
    if "Traceback" not in violation:
        return violation
    lines = [line.strip(" |+-") for line in violation.splitlines()]
    return "serves: " + [line for line in lines if line and not line.startswith("...")][-1]


def fails_by_itself(mutant: Mutant, violation: str) -> bool:
    """Say whether an edit is found out for names that the code does not have any more."""
    at = violation.rfind(", in ")
    where = violation[at:].split("\n", 1)[0]
    functions = {f", in {edit.target.rpartition(':')[2].split('.')[-1]}" for edit in mutant.edits}
    return where in functions and broken_promise(violation).startswith(
        tuple(f"serves: {error}" for error in _OF_A_BAD_EDIT)
    )


class _Failures:
    """A plugin of pytest that keeps how a test failed."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the error's line."""
        if report.failed:
            lines = [line for line in report.longreprtext.splitlines() if line.startswith("E  ")]
            self.lines.append(lines[0].removeprefix("E").strip() if lines else report.nodeid)


def run_test(test: str) -> str:
    """Run a test, or all cases of one, in this process; return how one failed, "" if none did.

    Raises MutationError if it cannot be run.
    """
    failures = _Failures()
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    os.environ.pop("PYTEST_ADDOPTS", None)
    with contextlib.redirect_stdout(io.StringIO()):
        code = pytest.main([str(ROOT / "tests" / test), *options], plugins=[failures])
    if code not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
        raise MutationError(f"pytest ended with {code} at {test}")
    return failures.lines[0] if failures.lines else ""


def _limit_time() -> None:
    """Have this process end unless it asks again within the time of a seed or of a test."""
    signal.setitimer(signal.ITIMER_PROF, SEED_CPU_S)
    signal.alarm(_SEED_S)


def _by_test(mutant: Mutant) -> Verdict:
    """Say what a mutant's test makes of it."""
    _limit_time()
    try:
        with in_force(prepared(mutant.edits)):
            finding = run_test(mutant.test)
        alarm = run_test(mutant.test)
    except MutationError as error:
        return Verdict(Mutant(), fault=str(error))
    alarms = (f"{mutant.test}: {alarm}",) if alarm else ()
    return Verdict(Mutant(), finding=finding, alarms=alarms)


def _by_seeds(mutant: Mutant, seeds: Sequence[int]) -> Verdict:
    """Run seeds until one finds something."""
    verdict = Verdict(Mutant())
    for seed in seeds:
        _limit_time()
        with in_force(prepared(mutant.edits)):
            violations = run_seed(mutant, seed)
        verdict = replace(verdict, seeds=verdict.seeds + 1)
        if not violations:
            continue
        alarms = run_seed(mutant, seed)
        if alarms:
            alarm = f"seed {seed} finds: {broken_promise(alarms[0])}"
            verdict = replace(verdict, alarms=(*verdict.alarms, alarm))
            continue
        finding, fault = broken_promise(violations[0]), ""
        if fails_by_itself(mutant, violations[0]):
            fault = f"its new code fails by itself, write it as the code is now: {finding}"
        return replace(verdict, seed=seed, finding=finding, fault=fault)
    return verdict


def _hunt(mutant: Mutant, seeds: Sequence[int], answer: Connection) -> None:
    """In a child: try a mutant, and say what came of it.

    The parent knows which one; not all of it can be sent.
    """
    began = time.monotonic()
    verdict = _by_test(mutant) if mutant.test else _by_seeds(mutant, seeds)
    answer.send(replace(verdict, seconds=time.monotonic() - began))


def seeds_of(mutant: Mutant, count: int | None = None) -> list[int]:
    """Return the seeds to try in order: the last known one first."""
    known = [] if mutant.seed is None else [mutant.seed]
    count = count or (SEEDS if known else UNKNOWN_SEEDS)
    return known + [seed for seed in range(1, count + 1) if seed != mutant.seed]


def try_all(tasks: Iterable[tuple[Mutant, Sequence[int]]], *, jobs: int) -> Iterator[Verdict]:
    """Yield what the simulation makes of each mutant, as they end."""
    forking = multiprocessing.get_context("fork")
    # What is imported by now is no garbage: no child need look at it.
    gc.freeze()
    waiting = iter(tasks)
    running: dict[object, tuple[Mutant, Connection, multiprocessing.process.BaseProcess]] = {}
    while True:
        for mutant, seeds in waiting:
            try:
                prepared(mutant.edits)
            except MutationError as error:
                yield Verdict(mutant, fault=str(error))
                continue
            here, there = forking.Pipe(duplex=False)
            child = forking.Process(target=_hunt, args=(mutant, seeds, there))
            child.start()
            there.close()
            running[here] = (mutant, here, child)
            if len(running) >= jobs:
                break
        if not running:
            return
        for ended in wait([here for _, here, _ in running.values()]):
            mutant, here, process = running.pop(ended)
            try:
                verdict = replace(here.recv(), mutant=mutant)
            except EOFError:
                process.join()
                hangs = process.exitcode in {-signal.SIGPROF, -signal.SIGALRM}
                why = "a seed hangs" if hangs else f"its process ended with {process.exitcode}"
                verdict = Verdict(mutant, fault=why)
            process.join()
            here.close()
            yield verdict


def chosen(words: Sequence[str], *, exactly: bool = False) -> list[Mutant]:
    """Return the mutants whose world, section or name has one of these words; all for none."""
    if exactly:
        names = {mutant.name: mutant for mutant in MUTANTS}
        if unknown := [word for word in words if word not in names]:
            raise ValueError(f"no mutant is called {', '.join(unknown)}")
        return [names[word] for word in words]
    return [
        mutant
        for mutant in MUTANTS
        if not words
        or any(word in f"{mutant.world} {mutant.section} {mutant.name}" for word in words)
    ]


def recorded(text: str, verdicts: Sequence[Verdict]) -> str:
    """Return the text of the list with the seeds that caught the mutants."""
    for verdict in verdicts:
        if verdict.seed is not None and not verdict.fault:
            begin = text.index(f'"{verdict.mutant.name}": mutant(')
            at = text.index("seed=", begin) + len("seed=")
            old = str(verdict.mutant.seed)
            assert text.startswith(old, at), f"the list has changed at {verdict.mutant.name}"
            text = f"{text[:at]}{verdict.seed}{text[at + len(old) :]}"
    return text


def main() -> int:
    """Try the mutants that the command line names."""
    parser = argparse.ArgumentParser(prog="tests.simulation.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="parts of names; all mutants without any")
    parser.add_argument("--exactly", action="store_true", help="words are whole names")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seeds", type=int, help="how many are tried beside the last known one")
    parser.add_argument("--record", action="store_true", help="write down what caught them")
    options = parser.parse_args()
    began = time.monotonic()
    mutants = chosen(options.words, exactly=options.exactly)
    tasks = [(mutant, seeds_of(mutant, options.seeds)) for mutant in mutants]
    verdicts: list[Verdict] = []
    for verdict in try_all(tasks, jobs=options.jobs):
        verdicts.append(verdict)
        sys.stdout.write(f"{verdict.line}\n")
        sys.stdout.flush()
    if options.record:
        path = Path(str(mutant_list.__file__))
        path.write_text(recorded(path.read_text(encoding="utf-8"), verdicts), encoding="utf-8")
    bad = [verdict.mutant.name for verdict in verdicts if verdict.is_bad]
    moved = [one for one in verdicts if one.seed not in {None, one.mutant.seed}]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    sys.stdout.write(
        f"{len(verdicts)} mutants, {sum(one.is_caught for one in verdicts)} caught, "
        f"{len(moved)} by other seeds than before; {time.monotonic() - began:.0f} s, "
        f"{used.ru_utime + used.ru_stime:.0f} CPU s\n"
    )
    if bad:
        sys.stdout.write(f"to look at: {', '.join(bad)}\n")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
