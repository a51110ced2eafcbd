"""Every rule can still be taken away, and the simulation notices the first of them."""

import ast
from dataclasses import replace

import pytest

from tests.simulation import mutants
from tests.simulation.mutant_list import Mutant
from tests.simulation.mutants import ALL, ROOT, broken_promise, chosen, fitting, try_mutant

_QUICK = ("append without fsync", "no look at the clock before sending")


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_every_mutant_fits_the_code(mutant: Mutant) -> None:
    for path, text in fitting(mutant).items():
        ast.parse(text)
        assert text != (ROOT / path).read_text(encoding="utf-8")


def test_the_list_has_a_rule_of_its_own_for_each_mutant() -> None:
    assert len(ALL) >= 100
    assert len([mutant for mutant in ALL if mutant.world == "meta"]) >= 12
    assert len([mutant for mutant in ALL if mutant.world == "cluster"]) >= 8
    assert len({mutant.name for mutant in ALL}) == len(ALL)
    assert len({mutant.rule for mutant in ALL}) == len(ALL)
    assert {mutant.section[0] for mutant in ALL} >= {"4", "5", "6", "8"}
    assert all(mutant.rule.endswith(".") and mutant.needs for mutant in ALL)
    assert max(mutant.seeds for mutant in ALL) <= 60


def test_a_mutant_that_does_not_fit_is_refused() -> None:
    [mutant] = chosen([_QUICK[0]])
    again = Mutant(
        name="again",
        section="4",
        rule="None.",
        needs="nothing",
        edits=mutant.edits + mutant.edits,
    )
    with pytest.raises(ValueError, match="0 times"):
        fitting(again)


def test_mutants_are_chosen_by_a_word() -> None:
    assert chosen([]) == list(ALL)
    assert _QUICK[0] in [mutant.name for mutant in chosen(["fsync"])]
    assert chosen(["no such rule"]) == []


def test_a_finding_is_told_by_its_promise() -> None:
    assert broken_promise(["kept: 2 messages", "whole: x"]) == ("kept", "2 messages")
    trace = "Traceback (most recent call last):\n  File\nValueError: it stopped\n"
    assert broken_promise([trace]) == ("serves", "ValueError: it stopped")


@pytest.mark.slow
@pytest.mark.parametrize("name", _QUICK)
def test_the_simulation_notices_a_rule_taken_away(name: str) -> None:
    [mutant] = chosen([name])
    verdict = try_mutant(mutant)
    assert verdict.seed is not None, verdict.line
    assert verdict.promise in {"kept", "whole", "never early"}


@pytest.mark.slow
def test_a_mutant_that_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "_START_S", 1)  # CPU seconds; less than imports and 20 seeds take.
    monkeypatch.setattr(mutants, "_SEED_CPU_S", 0)
    [mutant] = chosen([_QUICK[0]])
    verdict = try_mutant(replace(mutant, edits=()))
    assert (verdict.seed, verdict.promise) == (None, "hangs")
