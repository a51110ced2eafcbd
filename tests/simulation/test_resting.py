"""Whoever sends or takes something while it is drained, or forgets that it is, is found out."""

from collections import Counter

import pytest

from delay_server.controls.controls_store import ControlsStore
from delay_server.membership.planned_stop import PlannedStop
from sender.sender import Sender
from tests.simulation.scenario import Scenario
from tests.simulation.world import World, judge

_RESTED = Scenario(
    name="drained", disturbances={"drift": 1}, gating=0.0, small_disk=0.0, resting=1.0
)
_SEEDS = range(1, 25)


def complaints(words: tuple[str, ...]) -> set[str]:
    """Return of which of these promises some seeds complain; of others they must not."""
    found: set[str] = set()
    for seed in _SEEDS:
        violations = judge(World(seed, scenario=_RESTED)).violations
        heads = {text.partition(":")[0] for text in violations}
        assert heads <= set(words), violations
        found |= heads
        if found:
            break
    return found


@pytest.mark.long
def test_a_node_that_is_drained_over_crashes_breaks_no_promise() -> None:
    tally: Counter[str] = Counter()
    for seed in range(1, 9):
        world = World(seed, scenario=_RESTED)
        assert judge(world).violations == []
        tally.update(world.result.faults)
    assert tally["operator: drained"] > 24
    assert tally["operator: started at rest"] >= 1


def test_what_leaves_while_the_node_rests_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sender, "pause", lambda _sender: None)
    assert complaints(("rest",)) == {"rest"}


def test_what_is_taken_while_the_node_rests_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlannedStop, "is_closed", property(lambda _stop: False))
    assert complaints(("rest",)) == {"rest"}


def test_a_drain_that_is_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    never = property(lambda _store: False, lambda _store, _value: None)
    monkeypatch.setattr(ControlsStore, "is_drained", never, raising=False)
    assert complaints(("rest kept", "rest")) >= {"rest kept"}
