"""Takes one rule after another out of the server, and has the simulation notice.

    python -m tests.simulation.mutants                       all of them
    python -m tests.simulation.mutants fsync "journal"       those with a word in their name
    python -m tests.simulation.mutants --list

Each mutant is a copy of the tree with its edits (`mutant_list.py`), in which seeds run from the
first on, in a process of its own, until one finds a broken promise or as many have run as the
mutant states. The exit code is 1 if a mutant survives, if one no longer fits the code, or if the
tree without any edit does not come out clean.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.cluster_mutants import CLUSTER_MUTANTS
from tests.simulation.meta_mutants import META_MUTANTS
from tests.simulation.mutant_list import MUTANTS, Mutant
from tests.simulation.scenario import Scenario

if TYPE_CHECKING:
    from tests.simulation.meta_world import MetaResult
    from tests.simulation.world import WorldResult

ROOT = Path(__file__).parents[2]
ALL = (*MUTANTS, *META_MUTANTS, *CLUSTER_MUTANTS)
"""Of all worlds."""
_START_S = 30
_WHOLE_SEEDS = 8
"""In each scenario, of the tree without any edit; campaigns run many more of the plain one."""
_SEED_CPU_S = 15
"""CPU seconds that a seed may take: a mutant that hangs is stopped, and counts as not caught."""
_BUSY = 8
"""How many times as long it may take by the clock, beside other work."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    seed: int | None = None
    """The one that caught it; None if it survived."""
    seeds: int = 0
    """How many ran."""
    promise: str = ""
    """Which is broken, in the words of the checkers."""
    finding: str = ""
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """The verdict as a line of the table."""
        mutant = self.mutant
        how = f"by seed {self.seed}" if self.seed is not None else "SURVIVED"
        if not mutant.edits:
            how = "clean" if self.seed is None else f"ALARM at {self.seed}"
        return (
            f"{mutant.section:<18} {mutant.name:<36} {how:>11} of {mutant.seeds:<3} "
            f"{self.promise:<12} {self.finding[:90]}"
        )


def row(verdict: Verdict) -> str:
    """Return the verdict as a row of the table in docs/reliability.md."""
    mutant = verdict.mutant
    seed = "none" if verdict.seed is None else verdict.seed
    return (
        f"| {mutant.section} | {mutant.rule} | {mutant.needs} | {mutant.scenario.name} | "
        f"{seed} of {mutant.seeds} | {verdict.promise} |"
    )


def scenarios(mutants: Sequence[Mutant] = MUTANTS) -> list[Scenario]:
    """Return the scenarios that mutants are tried in, each once; the plain one comes first."""
    return list({mutant.scenario.name: mutant.scenario for mutant in (_PLAIN, *mutants)}.values())


def unchanged(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Return the tree as it is, once for each world and scenario: it has to come out clean."""
    stories = {(mutant.world, mutant.scenario.name): mutant for mutant in mutants}
    return [
        replace(
            _PLAIN,
            name=f"nothing ({mutant.world}, {mutant.scenario.name})",
            scenario=mutant.scenario,
            world=mutant.world,
            seeds=_WHOLE_SEEDS,
        )
        for mutant in stories.values()
    ]


_PLAIN = Mutant(
    name="nothing",
    section="as it is",
    rule="The tree as it is breaks no promise.",
    needs="nothing",
    edits=(),
)


def fitting(mutant: Mutant, root: Path = ROOT) -> dict[str, str]:
    """Return the edited text of each file of a mutant; ValueError if an edit does not fit."""
    texts: dict[str, str] = {}
    for edit in mutant.edits:
        text = texts.get(edit.path) or (root / edit.path).read_text(encoding="utf-8")
        count = text.count(edit.old)
        if count != 1:
            raise ValueError(f"{mutant.name}: its text occurs {count} times in {edit.path}")
        texts[edit.path] = text.replace(edit.old, edit.new)
    return texts


def copy_tree(target: Path, root: Path = ROOT) -> None:
    """Copy what the simulation runs on."""
    packages = [path.parent.name for path in root.glob("*/__init__.py")]
    for name in [*packages, "tests/simulation", "tests/fuzz"]:
        # Compiled modules come along: they are valid as long as times are kept.
        shutil.copytree(root / name, target / name)


def hunt(world: str, name: str, first: int, count: int) -> None:
    """Run seeds of a scenario until one finds something; write a line of JSON about each."""
    # Only in the mutant's process.
    from tests.simulation.cluster_world import run_cluster_world  # noqa: PLC0415
    from tests.simulation.meta_world import run_meta_world  # noqa: PLC0415
    from tests.simulation.world import run_world  # noqa: PLC0415

    [scenario] = [scenario for scenario in scenarios() if scenario.name == name]
    run_one: Mapping[str, Callable[[int], WorldResult | MetaResult]] = {
        "server": partial(run_world, scenario=scenario),
        "meta": run_meta_world,
        "cluster": run_cluster_world,
    }
    for seed in range(first, first + count):
        violations = run_one[world](seed).violations
        sys.stdout.write(json.dumps({"seed": seed, "violations": violations}) + "\n")
        sys.stdout.flush()
        if violations:
            return


_HUNT = """
import resource
import sys
import storage
from tests.simulation import mutants
for module in (storage, mutants):
    assert module.__file__.startswith(sys.argv[1]), f"{module.__file__} is not of the mutant"
cpu_s = int(sys.argv[6])
resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
mutants.hunt(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
"""


def try_mutant(mutant: Mutant, *, first: int = 1, seeds: int | None = None) -> Verdict:
    """Return what the simulation makes of one mutant."""
    count = mutant.seeds if seeds is None else seeds
    story = (mutant.world, mutant.scenario.name)
    cpu_s = _START_S + _SEED_CPU_S * count
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder).resolve()
        copy_tree(tree)
        for path, text in fitting(mutant).items():
            (tree / path).write_text(text, encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, "-c", _HUNT, *map(str, (tree, *story, first, count, cpu_s))],
                cwd=tree,
                env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                check=False,
                timeout=_BUSY * cpu_s,
            )
        except subprocess.TimeoutExpired:
            return Verdict(mutant, promise="hangs", seconds=time.monotonic() - began)
        if done.returncode == -signal.SIGXCPU:
            return Verdict(mutant, promise="hangs", seconds=time.monotonic() - began)
    seconds = time.monotonic() - began
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or not runs:
        raise RuntimeError(f"{mutant.name}: {done.stderr or done.stdout}")
    last = runs[-1]
    if not last["violations"]:
        return Verdict(mutant, seeds=len(runs), seconds=seconds)
    promise, finding = broken_promise(last["violations"])
    return Verdict(mutant, last["seed"], len(runs), promise, finding, seconds)


def broken_promise(violations: Sequence[str]) -> tuple[str, str]:
    """Return the first promise that was found broken, and what was found.

    An exception that ends the world comes as its traceback: the server stopped serving.
    """
    first = violations[0]
    if "Traceback" in first:
        lines = [line.strip(" |+-") for line in first.splitlines()]
        return "serves", [line for line in lines if line and not line.startswith("...")][-1]
    promise, _, finding = first.partition(": ")
    return promise, finding


def try_all(mutants: Sequence[Mutant], *, jobs: int, seeds: int | None) -> Iterator[Verdict]:
    """Yield the verdict of each, in order."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda mutant: try_mutant(mutant, seeds=seeds), mutants)


def chosen(words: Sequence[str]) -> list[Mutant]:
    """Return the mutants whose world, section or name has one of these words; all for none."""
    return [
        mutant
        for mutant in ALL
        if not words
        or any(word in f"{mutant.world} {mutant.section} {mutant.name}" for word in words)
    ]


def main() -> int:
    """Try the mutants that the command line names."""
    parser = argparse.ArgumentParser(prog="tests.simulation.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="parts of names; all mutants without any")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seeds", type=int, help="instead of the number that each one states")
    parser.add_argument(
        "--no-whole",
        dest="whole",
        action="store_false",
        help="leave out the tree without any edit, which has to be clean in every scenario",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print rows for docs/reliability.md"
    )
    parser.add_argument("--list", action="store_true", help="only print rules and what they need")
    options = parser.parse_args()
    mutants = chosen(options.words)
    if options.list:
        for mutant in mutants:
            sys.stdout.write(f"{mutant.section:<18} {mutant.name:<36} {mutant.rule}\n")
            sys.stdout.write(f"{'':<56}needs {mutant.needs}; {mutant.seeds} seeds\n")
        return 0
    began = time.monotonic()
    verdicts: list[Verdict] = []
    false_alarms: list[str] = []
    whole = unchanged(mutants) if options.whole else []
    for verdict in try_all([*whole, *mutants], jobs=options.jobs, seeds=options.seeds):
        if verdict.mutant in whole:
            false_alarms += [verdict.mutant.name] * (verdict.seed is not None or not verdict.seeds)
        else:
            verdicts.append(verdict)
        sys.stdout.write(f"{row(verdict) if options.markdown else verdict.line}\n")
        sys.stdout.flush()
    survivors = [verdict.mutant.name for verdict in verdicts if verdict.seed is None]
    sys.stdout.write(
        f"{len(verdicts)} mutants, {len(survivors)} survived"
        f"{': ' if survivors else ''}{', '.join(survivors)}; "
        f"{sum(verdict.seeds for verdict in verdicts)} seeds, "
        f"{time.monotonic() - began:.0f} s\n"
    )
    if false_alarms:
        sys.stdout.write(f"false alarms: {', '.join(false_alarms)}\n")
    return 1 if survivors or false_alarms else 0


if __name__ == "__main__":
    raise SystemExit(main())
