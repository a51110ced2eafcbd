"""Whoever states a reason that cannot be true, or counts what is not there, is found out."""

import dataclasses
from collections.abc import Callable

import pytest
import trio

from delay_server.admin.explain import Explained, counts, find
from delay_server.admin.parts import Parts
from delay_server.admin.reasons import Reason
from storage.readers.find_row import FindRow
from tests.seeds import first_of
from tests.simulation import stating
from tests.simulation.clock import SimClock
from tests.simulation.determinism import run_deterministic
from tests.simulation.scenario import Scenario
from tests.simulation.witness import Receipt, Witness
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
            (Reason.WAITING, Reason.PAUSED_SUBJECT, _GATED),
            (Reason.QUEUED, Reason.PAUSED_SUBJECT, _GATED),
            (Reason.RATE_LIMITED, Reason.PAUSED_SUBJECT, _GATED),
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
    async def lie(parts: Parts, *, message_id: bytes) -> tuple[list[Explained], FindRow]:
        found, search = await find(parts, message_id=message_id)
        return [
            dataclasses.replace(one, reason=said) if one.reason is instead_of else one
            for one in found
        ], search

    monkeypatch.setattr(stating, "find", lie)
    assert _is_noticed(scenario)


@pytest.mark.long
def test_what_is_delivered_and_said_to_be_in_flight_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lie(parts: Parts, *, message_id: bytes) -> tuple[list[Explained], FindRow]:
        found, search = await find(parts, message_id=message_id)
        return [
            dataclasses.replace(one, reason=one.reason or Reason.IN_FLIGHT) for one in found
        ], search

    monkeypatch.setattr(stating, "find", lie)
    assert _is_noticed(_GATED)


def test_every_world_asks_and_hears_several_reasons() -> None:
    heard: set[str] = set()
    for seed in range(1, 5):
        world = World(seed, scenario=_GATED)
        assert not judge(world).violations
        assert world.stating.looks >= 3
        heard |= set(world.stating.asked)
    assert {"waiting", "paused_subject"} <= heard


def test_a_broker_is_down_since_a_time_only_if_it_is_down_still() -> None:
    async def run() -> None:
        witness = Witness(SimClock())
        await trio.sleep(10)
        witness.broker_down("g1")
        await trio.sleep(10)
        assert witness.is_down_since("g1", 15)
        assert not witness.is_down_since("g1", 5)
        assert not witness.is_down_since("g2", 15)
        witness.broker_up("g1")
        assert not witness.is_down_since("g1", 15)

    run_deterministic(1, run)


@pytest.mark.parametrize("what", ["sure", "not sure", "died", "late facts", "just now"])
def test_a_delivery_is_settled_when_its_answer_was_heard_and_its_fact_had_time(what: str) -> None:
    async def run() -> bool:
        witness = Witness(SimClock())
        witness.server_started()
        await trio.sleep(100)
        receipt = Receipt(b"m", b"", trio.current_time(), 0, "g1", sure=what != "not sure")
        witness.take([receipt])
        assert witness.received == {b"m"}
        assert witness.receipts_by_id() == {b"m": [receipt]}
        await trio.sleep(1)
        if what == "died":
            witness.server_died()
        if what == "late facts":
            witness.facts_late(trio.current_time() + 1000)
        if what != "just now":
            await trio.sleep(100)
        return witness.is_settled_before(b"m", trio.current_time() - 20)

    assert run_deterministic(1, run) is (what == "sure")
