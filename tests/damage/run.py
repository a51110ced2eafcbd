"""A campaign: many damages to populated directories, and what they came to.

    python -m tests.damage.run --count 200000 --seed 1 --jobs 2 --recover 0.4 --salvage 0.05

Every injection is verified; where verify says nothing a recovery shows that it was harmless. A
share of the rest is recovered too: opened, split, loaded, and every item read as for delivery.
Another share is salvaged. Injection number n is the same for the same seed whatever else runs:
`--first n --count 1 --recover 1` repeats one. The exit code is 1 if a promise was broken.
"""

import argparse
import multiprocessing
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

from tests.damage.directory import Populated, populated
from tests.damage.injections import Injection, Kind, draw
from tests.damage.judgement import Judge, ViolationError

DIRECTORIES = 24
"""Directories of a campaign; each has been through another story."""
_CHUNK = 100
"""Injections of one directory at a time."""
_HANG_S = 60
"""An injection that takes longer than this hangs."""
_TRIES = 40
_WEIGHTS = {
    "lock": 0.1,
    "identity": 1,
    "durable end": 1,
    "retired": 1,
    "controls": 1,
}
"""How often files of a kind are struck, 4 for all others; these hold little that counts."""


@dataclass(frozen=True, slots=True)
class Task:
    """Injections `first` to `first + count - 1` of a campaign."""

    seed: int
    first: int
    count: int
    recover: float
    salvage: float
    directories: int


@dataclass(slots=True)
class Ledger:
    """What injections came to, by the kind of the file that was struck and by what struck it."""

    injections: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    named: Counter[str] = field(default_factory=Counter)
    harmless: Counter[str] = field(default_factory=Counter)
    recovered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    salvaged: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: "Ledger") -> None:
        """Add what another part of the campaign came to."""
        for name in self.__slots__:
            mine, its = getattr(self, name), getattr(other, name)
            if isinstance(mine, Counter):
                mine.update(its)
            else:
                mine += its

    def lines(self) -> Iterator[str]:
        """Yield the account for people."""
        yield (
            f"{self.injections.total():,} injections, {len(self.failures)} broke a promise; "
            f"{self.named.total():,} named by verify, {self.harmless.total():,} harmless; "
            f"{self.recovered.total():,} recovered and delivered, of them "
            f"{self.refused.total():,} refused to start; {self.salvaged.total():,} salvaged"
        )
        yield "what struck: " + ", ".join(f"{kind} {count:,}" for kind, count in self._kinds())
        columns = {
            "injections": self.injections,
            "named": self.named,
            "harmless": self.harmless,
            "recovered": self.recovered,
            "refused": self.refused,
            "rows lost": self.lost,
            "sent again": self.again,
            "salvaged": self.salvaged,
        }
        yield f"{'struck file':<16}" + "".join(f"{head:>12}" for head in columns)
        for file in sorted(self.injections):
            yield f"{file:<16}" + "".join(f"{column[file]:>12,}" for column in columns.values())
        least = min(self.pairs.values(), default=0)
        yield f"each kind of file by each kind of damage: at least {least:,} of {len(self.pairs)}"
        if self.states:
            states = ", ".join(f"{state} {count:,}" for state, count in self.states.items())
            yield f"messages salvaged, all in all: {states}"

    def _kinds(self) -> list[tuple[str, int]]:
        return sorted(self.kinds.items())


def file_kind(directory: Populated, path: str) -> str:
    """Say what kind of file a path is, in words."""
    if path in directory.quarantined:
        return "quarantined"
    if path in directory.retired:
        return "retired"
    folder, _, name = path.rpartition("/")
    if name == "durable_end":
        return "durable end"
    if name.endswith(".dead"):
        return "dead segment" if folder == "schedule_log" else "dead facts"
    if folder == "schedule_log":
        return f"{name.rpartition('.')[2]} segment"
    names = {"": name, "message_log": "message log", "dispatch_log": "filed facts"}
    return names.get(folder, folder.rpartition("/")[2])


def inject(directory: Populated, chance: random.Random) -> tuple[str, Injection]:
    """Draw a damage: each kind of damage as likely as any other, files by _WEIGHTS."""
    files: dict[str, list[str]] = {}
    for path in sorted(directory.files):
        files.setdefault(file_kind(directory, path), []).append(path)
    kinds = sorted(files)
    weights = [_WEIGHTS.get(kind, 4) for kind in kinds]
    for _ in range(_TRIES):
        [kind_of_file] = chance.choices(kinds, weights)
        path = chance.choice(files[kind_of_file])
        found = draw(directory, path, chance.choice(list(Kind)), chance)
        if found is not None:
            return kind_of_file, found
    raise AssertionError("nothing could be damaged")


def run(task: Task) -> Ledger:
    """Do a part of a campaign in this process."""
    ledger = Ledger()
    for number in range(task.first, task.first + task.count):
        chance = random.Random(task.seed * 1_000_000_007 + number)
        judge = _judge(task.seed * 1000 + number // _CHUNK % task.directories)
        file, injection = inject(judge.directory, chance)
        full, salvage = chance.random() < task.recover, chance.random() < task.salvage
        ledger.injections[file] += 1
        ledger.kinds[injection.kind.value] += 1
        ledger.pairs[file, injection.kind.value] += 1
        try:
            with _no_hang():
                _enter(ledger, file, judge, injection, full=full, salvage=salvage)
        except ViolationError as error:
            ledger.failures.append(f"injection {number}: {error}")
    return ledger


_JUDGES: dict[int, Judge] = {}


def _judge(seed: int) -> Judge:
    if seed not in _JUDGES:
        _JUDGES[seed] = Judge(populated(seed))
        assert not _JUDGES[seed].judge_salvage(None)["in doubt"]
    return _JUDGES[seed]


def _enter(
    ledger: Ledger, file: str, judge: Judge, injection: Injection, *, full: bool, salvage: bool
) -> None:
    verdict = judge.judge(injection, full=full)
    ledger.named[file] += verdict.named
    ledger.harmless[file] += not verdict.named and not verdict.refused
    ledger.recovered[file] += verdict.recovered
    ledger.refused[file] += verdict.refused
    ledger.lost[file] += verdict.lost
    ledger.again[file] += verdict.again
    if salvage:
        ledger.states.update(judge.judge_salvage(injection))
        ledger.salvaged[file] += 1


class _no_hang:  # noqa: N801 (used as a statement)
    """Raises ViolationError in the middle of what takes too long."""

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, _hung)
        signal.setitimer(signal.ITIMER_REAL, _HANG_S)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _hung(_number: int, _frame: FrameType | None) -> None:
    raise ViolationError(f"hangs: not done after {_HANG_S} s")


def campaign(
    *,
    count: int,
    seed: int,
    first: int = 0,
    jobs: int = 1,
    directories: int = DIRECTORIES,
    recover: float,
    salvage: float,
    tell: Callable[[str], None],
) -> Ledger:
    """Run a campaign; `tell` hears how far it is."""
    tasks = [
        Task(seed, begin, min(_CHUNK, first + count - begin), recover, salvage, directories)
        for begin in range(first, first + count, _CHUNK)
    ]
    ledger = Ledger()
    began = time.monotonic()
    last = began

    def take(part: Ledger) -> None:
        nonlocal last
        for failure in part.failures:
            tell(failure)
        ledger.add(part)
        if time.monotonic() - last > 30:
            last = time.monotonic()
            done = ledger.injections.total()
            tell(f"{done:,} injections, {done / (last - began):.0f} a second")

    if jobs == 1:
        for task in tasks:
            take(run(task))
    else:
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            for part in pool.imap_unordered(run, tasks):
                take(part)
    return ledger


def main() -> int:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--recover", type=float, default=0.4, help="share that is recovered")
    parser.add_argument("--salvage", type=float, default=0.05, help="share that is salvaged")
    options = parser.parse_args()
    began = time.monotonic()
    ledger = campaign(
        count=options.count,
        seed=options.seed,
        first=options.first,
        jobs=options.jobs,
        recover=options.recover,
        salvage=options.salvage,
        tell=lambda line: print(line, flush=True),  # noqa: T201 (a command)
    )
    took = time.monotonic() - began
    for line in ledger.lines():
        print(line)  # noqa: T201 (a command)
    print(f"seed {options.seed}, {took:.0f} s, {options.count / took:.0f} a second")  # noqa: T201
    return 1 if ledger.failures else 0


if __name__ == "__main__":
    sys.exit(main())
