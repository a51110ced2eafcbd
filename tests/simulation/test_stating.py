"""Whoever states a reason that cannot be true, or counts what is not there, is found out."""

import dataclasses
from collections.abc import Callable

import pytest

from delay_server.admin.explain import Explained, counts, find
from delay_server.admin.parts import Parts
from delay_server.admin.reasons import Reason
from storage.readers.looking import FindLook
from tests.seeds import first_of
from tests.simulation import stating
from tests.simulation.scenario import Scenario
from tests.simulation.world import World, judge

_SEEDS = range(1, 41)
_QUIET = Scenario(name="quiet", disturbances={"drift": 1}, gating=0.0, small_disk=0.0)
_POISONED = dataclasses.replace(_QUIET, name="quiet, with poison", poison=1.0)
_GATED = dataclasses.replace(_QUIET, name="an operator", gating=1.0, hot_ahead_s=(10, 600))

_Counts = dict[str, int]


def _is_noticed(scenario: Scenario) -> bool:
    """Say whether one of some seeds complains of what was stated, and of nothing else."""
    for seed in _SEEDS:
        violations = judge(World(seed, scenario=scenario)).violations
        assert all(text.startswith("stated") for text in violations), violations
        if violations:
            return True
    return False


def _without(place: str) -> Callable[[_Counts], _Counts]:
    return lambda found: found | {place: 0}


def _as_if(place: str, other: str) -> Callable[[_Counts], _Counts]:
    return lambda found: found | {place: 0, other: found[place] + found[other]}


@pytest.mark.parametrize(
    ("lie", "scenario"),
    first_of(
        [
            (_without("on_disk"), _QUIET),
            (_without("dead"), _POISONED),
            (_as_if("on_disk", "on_disk_due"), _QUIET),
            (_as_if("on_disk", "damaged"), _QUIET),
            (_as_if("on_disk", "set_back"), _QUIET),
            (_as_if("in_wheel", "set_back"), _QUIET),
            (_as_if("in_flight", "dead"), _QUIET),
            (lambda found: found | {"queued": 1000}, _QUIET),
        ],
        3,
    ),
)
def test_counts_that_cannot_be_are_noticed(
    lie: Callable[[_Counts], _Counts], scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stating, "counts", lambda parts: lie(counts(parts)))
    assert _is_noticed(scenario)


@pytest.mark.parametrize(
    ("said", "instead_of", "scenario"),
    first_of(
        [
            (None, Reason.WAITING, _QUIET),
            (None, Reason.DEAD, _POISONED),
            (Reason.IN_FLIGHT, Reason.WAITING, _QUIET),
            (Reason.DEAD, Reason.WAITING, _POISONED),
            (Reason.NO_ROUTE, Reason.WAITING, _QUIET),
            (Reason.WAITING, Reason.PAUSED, _GATED),
            (Reason.QUEUED, Reason.PAUSED, _GATED),
            (Reason.RATE_LIMITED, Reason.PAUSED, _GATED),
        ],
        2,
    ),
)
def test_a_reason_that_cannot_be_is_noticed(
    said: Reason | None,
    instead_of: Reason,
    scenario: Scenario,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lie(parts: Parts, *, message_id: bytes) -> tuple[list[Explained], FindLook]:
        found, search = await find(parts, message_id=message_id)
        return [
            dataclasses.replace(one, reason=said) if one.reason is instead_of else one
            for one in found
        ], search

    monkeypatch.setattr(stating, "find", lie)
    assert _is_noticed(scenario)


@pytest.mark.long
def test_every_world_asks_and_hears_several_reasons() -> None:
    heard: set[str] = set()
    for seed in range(1, 5):
        world = World(seed, scenario=_GATED)
        assert not judge(world).violations
        assert world.stating.looks >= 3
        heard |= set(world.stating.asked)
    assert {"waiting", "paused"} <= heard
