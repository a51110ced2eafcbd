"""Every rule can still be taken away, and the simulation notices some of them."""

import ast
import random
import subprocess
import sys
from dataclasses import replace
from uuid import UUID

import pytest

from storage.batch.batches import log_seed
from storage.batch.file_header import LogKind
from tests.seeds import day
from tests.simulation import mutant_list, mutants
from tests.simulation.mutant_list import MUTANTS
from tests.simulation.mutants import (
    Verdict,
    chosen,
    recorded,
)
from tests.simulation.mutation import (
    ROOT,
    Edit,
    MutationError,
    after,
    before,
    drop,
    in_force,
    places,
    prepared,
    put,
    swap,
)

_QUICK = "append without fsync"

_OF_THE_DAY = {"server": 2, "meta": 2, "group": 1}
"""How many mutants of each world `make test` tries, of those that a seed is known to catch."""

_PART = 10
"""How many a long test tries."""

_DAYS = 3
"""Days in which the long tests try all: in one they would take half of an hour."""


def test_every_mutant_fits_the_code() -> None:
    faults = []
    for mutant in MUTANTS:
        try:
            assert prepared(mutant.edits)
        except MutationError as error:
            faults.append(f"{mutant.name}: {error}")
    assert not faults, "\n".join(faults)


def test_the_list_has_every_world_and_names_each_mutant_once() -> None:
    assert len(MUTANTS) >= 174
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.section[0] for mutant in MUTANTS} >= {"4", "5", "6", "8"}
    assert len([mutant for mutant in MUTANTS if mutant.world == "meta"]) >= 45
    assert len([mutant for mutant in MUTANTS if mutant.world == "cluster"]) >= 20
    assert len([mutant for mutant in MUTANTS if mutant.world == "group"]) >= 12
    scenarios = {mutant.scenario.name: mutant.scenario for mutant in MUTANTS}
    assert all(scenarios[mutant.scenario.name] is mutant.scenario for mutant in MUTANTS)


_CODE = """
def f(a, b):
    g(a, key=b)  # A comment.
    if a < b and a:
        h(
            a
        )
        return a
    return b
"""


@pytest.mark.parametrize(
    ("edit", "old", "new"),
    [
        (drop("f", "h(a)"), "h(a)\n", "pass\n"),
        (drop("f", "g(...)"), "g(a, key=b)\n", "pass\n"),
        (drop("f", "if a < b and a:\n    ..."), None, "def f(a, b):\n    g(a, key=b)\n    pass\n"),
        (swap("f", "a < b", "a<=b"), "a < b", "a <= b"),
        (swap("f", "a < b", "_ or g(_)"), "a < b", "if (a < b or g(a < b)) and a:"),
        (swap("f", "... and a", "b"), "if a < b and a:", "if b:"),
        (swap("f", "key", "b"), None, None),
        (swap("f", "h(a); return a", "return 1; h(b)"), "h(a)\n        return a", "return 1"),
        (swap("f", "return b", "raise b"), "return b", "raise b"),
        (before("f", "return a", "a = 1"), "h(a)\n", "h(a)\n        a = 1\n"),
        (after("f", "h(a)", "a = 1"), "h(a)\n", "h(a)\n        a = 1\n"),
        (drop("f", "return ..."), None, None),
        (drop("f", "h(b)"), None, None),
    ],
    ids=str,
)
def test_an_edit_changes_a_place_that_is_there_once(
    edit: Edit, old: str | None, new: str | None
) -> None:
    [function] = ast.parse(_CODE).body
    text = ast.unparse(function)
    found = list(places(function, edit))
    if new is None:
        assert len(found) != 1
        return
    [place] = found
    put(edit, place)
    assert ast.unparse(ast.parse(ast.unparse(function))) == ast.unparse(function)
    if old is None:
        assert (ast.unparse(function) + "\n").startswith(new)
    else:
        assert ast.unparse(function).startswith(text[: text.index(old)])
        assert new.strip() in ast.unparse(function)


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (
            drop("MessageLog.no_such", "self._settle(end)"),
            "no function MessageLog.no_such .*sync_w",
        ),
        (drop("MessageLog._write", "self._settle(end)"), "has no 'self._settle.*is in MessageLog"),
        (drop("MessageLog._write", "no_such()"), "has no 'no_such.*nor anywhere else"),
        (drop("MessageLog.no_such", "no_such()"), "no function .*nor anywhere else"),
        (swap("MessageLog._write", "self", "None"), "is in storage.* say more of what is around"),
        (swap("LogTail.sync", "file.sync()", "no_such()"), "does not know no_such"),
        (drop("meta_server:LogTail.sync", "file.sync()"), "no function meta_server:Log"),
    ],
)
def test_an_edit_that_does_not_fit_says_what_to_do(edit: Edit, text: str) -> None:
    with pytest.raises(MutationError, match=text):
        prepared((edit,))


def test_new_code_that_fails_by_itself_proves_nothing() -> None:
    [mutant] = chosen([_QUICK])
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1, in sync\n    x\n{}: no x'
    assert mutants.fails_by_itself(mutant, trace.format("AttributeError"))
    assert not mutants.fails_by_itself(mutant, trace.format("ValueError"))
    assert not mutants.fails_by_itself(
        mutant, trace.replace("sync", "_other").format("AttributeError")
    )


def test_an_edit_is_in_force_in_a_block_only() -> None:
    [change] = prepared((swap("log_seed", "zlib.crc32(...)", "0"),))
    assert log_seed(UUID(int=1), LogKind.MESSAGE_LOG) != 0
    with in_force((change,)):
        assert log_seed(UUID(int=1), LogKind.MESSAGE_LOG) == 0
    assert log_seed(UUID(int=1), LogKind.MESSAGE_LOG) != 0


def test_seeds_are_written_down() -> None:
    text = (ROOT / "tests/simulation/mutant_list.py").read_text(encoding="utf-8")
    known = [Verdict(mutant, seed=mutant.seed) for mutant in MUTANTS]
    assert recorded(text, known) == text
    place = next(place for place, mutant in enumerate(MUTANTS) if mutant.seed is not None)
    one = MUTANTS[place]
    changed = recorded(text, [replace(known[place], seed=1234)])
    assert changed.replace("seed=1234", f"seed={one.seed}") == text
    assert text.count("seed=1234") == 0
    assert mutant_list.__file__ == str(ROOT / "tests/simulation/mutant_list.py")


def _command(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "tests.simulation.mutants"]
    return subprocess.run(
        [sys.executable, *start, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )


def _of_the_day(world: str) -> list[str]:
    known = [
        one.name for one in MUTANTS if one.world == world and (one.seed is not None or one.test)
    ]
    return random.Random(f"{day()} {world}").sample(known, _OF_THE_DAY[world])


def _tried(names: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    done = _command("--exactly", "--jobs", "1", *options, *names)
    assert f"\n{len(names)} mutants, " in done.stdout, done.stdout + done.stderr
    return done


@pytest.mark.slow
@pytest.mark.parametrize("world", _OF_THE_DAY)
def test_the_simulation_notices_rules_taken_away(world: str) -> None:
    """By the seeds that are known: a long test looks for others where worlds have changed."""
    done = _tried(_of_the_day(world), "--seeds", "2")
    assert "NOT TOLD" not in done.stdout, done.stdout
    assert "without the edit" not in done.stdout, done.stdout
    assert (
        done.stdout.count(" caught by ") - done.stdout.count("NOT caught") >= _OF_THE_DAY[world] / 2
    ), done.stdout


@pytest.mark.long
@pytest.mark.parametrize("part", range(-(-len(MUTANTS) // (_DAYS * _PART))))
def test_the_simulation_notices_every_rule_taken_away(part: int) -> None:
    """All of them in some days; `make simulate-mutants` tries all at once."""
    names = [mutant.name for mutant in MUTANTS[day().toordinal() % _DAYS :: _DAYS]]
    done = _tried(names[part * _PART :][:_PART])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_mutant_that_hangs_is_stopped() -> None:
    code = "from tests.simulation import mutants; mutants.SEED_CPU_S = 0.05; exit(mutants.main())"
    done = _command(_QUICK, code=code)
    assert done.returncode == 1
    assert "a seed hangs" in done.stdout
    assert done.stdout.splitlines()[-1] == f"to look at: {_QUICK}"
