"""Fuzzes the decoders with atheris, one target after another, and says what came of it.

    python -m tests.fuzz.run --runs 1000000                   every target, so many inputs each
    python -m tests.fuzz.run --seconds 600                    every target, 600 s in all
    python -m tests.fuzz.run --target frames --target items   these only
    python -m tests.fuzz.run --seconds 600 --keep             and write what was found to the corpus

What was found is kept in a working directory (.fuzz), so the next run goes on from there. An input
that breaks a promise is made small and written to its `artefacts`; the exit code is 1 then. To see
what is wrong with one:

    python -m tests.fuzz.run --show .fuzz/artefacts/frames-1a2b3c4d5e6f
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from tests.fuzz.all_targets import TARGETS
from tests.fuzz.corpus import Entry, read_corpus, write_corpus
from tests.fuzz.seeds import inputs_of, tokens
from tests.fuzz.target import Target, execute

ROOT: Final = Path(__file__).parents[2]
SECONDS_PER_INPUT: Final = 10
"""An input that takes longer ends the run: libFuzzer says where it hangs."""
MEMORY_MB: Final = 2048
"""A child that grows beyond this is ended by libFuzzer."""
KEPT_PER_TARGET: Final = 14
"""Inputs of one target that go into the corpus, regressions aside."""
KEPT_BYTES: Final = 12 * 1024
"""Bytes of them in all, near enough."""

_STATUS = re.compile(rb"#(\d+)\s.*?\bcov: (\d+) ft: (\d+)")
_EXECUTED = re.compile(rb"stat::number_of_executed_units:\s+(\d+)")

Arc = tuple[CodeType, int, int]
"""Code, the line before and the line now."""


@dataclass(slots=True)
class Account:
    """What became of one target."""

    name: str
    inputs: int = 0
    seconds: float = 0.0
    coverage: int = 0
    corpus: int = 0
    broken: list[str] = field(default_factory=list)

    def line(self) -> str:
        rate = self.inputs / self.seconds if self.seconds else 0.0
        broken = "".join(f"\n    {one}" for one in self.broken)
        return (
            f"{self.name:14} {self.inputs:>12,} inputs {self.seconds:8.1f} s {rate:>8,.0f}/s "
            f"{self.coverage:>6} edges {self.corpus:>5} in corpus"
            f"{f'  {len(self.broken)} BROKEN' if self.broken else ''}{broken}"
        )


def fuzz(target: Target, work: Path, options: Sequence[str]) -> Account:
    """Run one target under atheris until its time or its inputs are up, or it breaks."""
    folder = work / "corpus" / target.name
    folder.mkdir(parents=True, exist_ok=True)
    for data in inputs_of(target.name):
        (folder / _digest(data)).write_bytes(data)
    found = work / "found" / target.name
    found.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    child = subprocess.run(
        [
            *(sys.executable, "-m", "tests.fuzz.atheris_child"),
            *(target.name, ",".join(target.packages)),
            str(folder),
            *options,
            *_dictionary(target, work),
            f"-max_len={target.size_max}",
            f"-timeout={SECONDS_PER_INPUT}",
            f"-rss_limit_mb={MEMORY_MB}",
            f"-artifact_prefix={found}/",
            "-print_final_stats=1",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        check=False,
    )
    account = Account(target.name, seconds=time.monotonic() - begin)
    _read_statistics(account, child.stdout)
    (work / f"{target.name}.log").write_bytes(child.stdout)
    for path in sorted(found.iterdir()):
        account.broken.append(_report(target, path, work))
        path.unlink()
    if child.returncode and not account.broken:
        account.broken.append(f"ended with {child.returncode}, see {work}/{target.name}.log")
    account.corpus = len(list(folder.iterdir()))
    return account


def _digest(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _dictionary(target: Target, work: Path) -> Iterator[str]:
    """Write the words a target knows, if it knows any, and yield the option that names them."""
    words = tokens(target.name)
    if words:
        path = work / f"{target.name}.words"
        lines = ("".join(f"\\x{byte:02x}" for byte in word) for word in words)
        path.write_text("".join(f'"{line}"\n' for line in lines), encoding="ascii")
        yield f"-dict={path}"


def _read_statistics(account: Account, output: bytes) -> None:
    for found in _STATUS.finditer(output):
        account.inputs, account.coverage = int(found[1]), int(found[2])
    for found in _EXECUTED.finditer(output):
        account.inputs = int(found[1])


def _report(target: Target, path: Path, work: Path) -> str:
    """Make a broken input small, put it beside the others and return a line about it."""
    data = path.read_bytes()
    fault = fault_in(target, data)
    if fault is not None and not path.name.startswith("timeout"):
        data = shrink(target, data, fault)
    kept = work / "artefacts" / f"{target.name}-{_digest(data)[:12]}"
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(data)
    return f"{kept}: {path.name.partition('-')[0]}, {fault or 'not seen again'}"


def fault_in(target: Target, data: bytes) -> str | None:
    """Return what an input breaks and where, or None: what stays the same while it shrinks."""
    try:
        execute(target, data, measure_memory=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what we look for
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}"
    return None


def shrink(target: Target, data: bytes, fault: str) -> bytes:
    """Return a smaller input that breaks the same in the same place."""
    step = max(len(data) // 2, 1)
    while True:
        smaller = next(
            (one for one in _smaller(data, step) if fault_in(target, one) == fault), None
        )
        if smaller is not None:
            data = smaller
        elif step == 1:
            return data
        else:
            step //= 2


def _smaller(data: bytes, step: int) -> Iterator[bytes]:
    for at in range(0, len(data), step):
        yield data[:at] + data[at + step :]
    for at in range(0, len(data), step):
        zeros = bytes(len(data[at : at + step]))
        if data[at : at + step] != zeros:
            yield data[:at] + zeros + data[at + step :]


def arcs_of(target: Target, data: bytes) -> set[Arc]:
    """Return the steps from line to line that an input makes in the target's packages."""
    roots = tuple(str(ROOT / package.replace(".", "/")) for package in target.packages)
    arcs: set[Arc] = set()
    before: dict[FrameType, int] = {}

    def follow(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if event == "call" and not code.co_filename.startswith(roots):
            return None
        if event in {"line", "return"}:
            arcs.add((code, before.get(frame, 0), frame.f_lineno))
            before[frame] = frame.f_lineno
        return follow

    sys.settrace(follow)
    try:
        target.run(data)
    finally:
        sys.settrace(None)
    return arcs


def smallest_cover(reached: dict[bytes, set[Arc]]) -> list[bytes]:
    """Return few and small inputs that reach what all of them reach, the most telling first."""
    chosen: list[bytes] = []
    missing = set().union(*reached.values()) if reached else set()
    while missing:
        best = max(reached, key=lambda data: (len(reached[data] & missing), -len(data), data))
        chosen.append(best)
        missing -= reached[best]
    return chosen


def keep(target: Target, work: Path) -> int:
    """Write the corpus of a target anew from what was found; return how many inputs it has."""
    regressions = [entry for entry in read_corpus(target.name) if entry.name]
    found = [path.read_bytes() for path in sorted((work / "corpus" / target.name).iterdir())]
    reached = {data: arcs_of(target, data) for data in found}
    entries = list(regressions)
    size = 0
    for data in smallest_cover(reached)[:KEPT_PER_TARGET]:
        if size + len(data) <= KEPT_BYTES:
            entries.append(Entry("", data))
            size += len(data)
    write_corpus(target.name, entries)
    return len(entries)


def show(path: Path) -> None:
    """Run one input outside of atheris, with its traceback."""
    target = TARGETS[path.name.partition("-")[0]]
    execute(target, path.read_bytes(), measure_memory=True)
    _say(f"{path.name}: nothing is wrong with it")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the targets asked for; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="repeatable")
    parser.add_argument("--runs", type=int, help="inputs for each target")
    parser.add_argument("--seconds", type=float, help="for all targets together")
    parser.add_argument("--work", type=Path, default=ROOT / ".fuzz", help="working directory")
    parser.add_argument("--keep", action="store_true", help="write the corpus anew")
    parser.add_argument("--show", type=Path, help="run one input of the artefacts")
    chosen = parser.parse_args(arguments)
    if chosen.show is not None:
        show(chosen.show)
        return 0
    if chosen.runs is None and chosen.seconds is None:
        parser.error("say how long: --runs or --seconds")
    targets = [TARGETS[name] for name in chosen.target or TARGETS]
    options = [] if chosen.runs is None else [f"-runs={chosen.runs}"]
    if chosen.seconds is not None:
        options.append(f"-max_total_time={max(1, round(chosen.seconds / len(targets)))}")
    accounts = []
    for target in targets:
        account = fuzz(target, chosen.work.resolve(), options)
        if chosen.keep:
            account.corpus = keep(target, chosen.work)
        _say(account.line())
        accounts.append(account)
    total = sum(account.inputs for account in accounts)
    broken = sum(len(account.broken) for account in accounts)
    _say(f"{total:,} inputs, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
