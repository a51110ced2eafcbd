"""A circuit follows its table: nothing is undefined, no group is given up for ever."""

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sender.health.circuit import (
    DOUBTFUL,
    TABLE,
    Change,
    Circuit,
    CircuitState,
    Event,
    Failure,
)
from sender.settings.config import SenderConfig
from tests.seeds import examples


class Watched(Circuit):
    """A circuit whose changes are kept."""

    def __init__(self, seed: int = 1) -> None:
        self.changes: list[Change] = []
        super().__init__(SenderConfig(), chance=random.Random(seed), on_change=self.changes.append)


def opened(at: float = 0.0) -> Watched:
    circuit = Watched()
    circuit.failed(at, Failure.LOST, "cut")
    return circuit


def test_every_event_has_a_place_in_every_state() -> None:
    assert set(TABLE) == {(state, event) for state in CircuitState for event in Event}


def test_an_open_circuit_leads_nowhere_but_to_probes_and_only_they_close_one() -> None:
    from_open = {TABLE[CircuitState.OPEN, event] for event in Event}
    assert from_open == {CircuitState.OPEN, CircuitState.HALF_OPEN}
    into_closed = {key for key, after in TABLE.items() if after is CircuitState.CLOSED}
    assert {event for state, event in into_closed if state is not CircuitState.CLOSED} == {
        Event.TAKEN
    }


@pytest.mark.parametrize("failure", [failure for failure in Failure if failure in DOUBTFUL])
def test_doubtful_failures_open_it_when_they_come_in_a_row(failure: Failure) -> None:
    circuit = Watched()
    for _ in range(2):
        circuit.failed(0.0, failure, "")
    circuit.taken(0.0)
    for _ in range(2):
        circuit.failed(0.0, failure, "")
    assert circuit.changes == []
    circuit.failed(0.0, failure, "")
    assert circuit.state is CircuitState.OPEN


def test_half_of_the_requests_is_borne() -> None:
    circuit = Watched()
    for number in range(1000):
        if number % 2:
            circuit.failed(number / 100, Failure.REFUSED, "")
        else:
            circuit.taken(number / 100)
    assert circuit.changes == []


def test_any_failure_of_a_probe_opens_it_again_and_the_wait_grows_to_its_ceiling() -> None:
    circuit = opened()
    waits = []
    at = 0.0
    for _ in range(12):
        waits.append(circuit.until - at)
        told = len(circuit.changes)
        circuit.waited(circuit.until - 0.001)
        assert len(circuit.changes) == told
        circuit.waited(circuit.until)
        at = circuit.until
        circuit.failed(at, Failure.REFUSED, "a single one")
        assert [change.after for change in circuit.changes[told:]] == [
            CircuitState.HALF_OPEN,
            CircuitState.OPEN,
        ]
    for number, wait_s in enumerate(waits):
        whole = min(0.1 * 2**number, 2.0)
        assert whole / 2 <= wait_s <= whole
    assert len({wait_s for wait_s in waits if wait_s > 1}) > 3


def test_one_that_opens_again_soon_waits_longer_and_after_a_calm_as_at_first() -> None:
    circuit = opened()
    circuit.waited(1.0)
    circuit.taken(1.0)
    circuit.failed(2.9, Failure.LOST, "")
    assert circuit.openings == 2
    circuit.waited(4.0)
    circuit.taken(4.0)
    circuit.failed(6.0, Failure.LOST, "")
    assert circuit.openings == 1


def test_a_new_address_is_tried_at_once_and_owes_nothing() -> None:
    circuit = opened()
    for _ in range(5):
        circuit.waited(circuit.until)
        circuit.failed(circuit.until, Failure.UNREACHABLE, "")
    circuit.moved(circuit.until - 0.5)
    assert (circuit.state, circuit.failures) == (CircuitState.HALF_OPEN, 0)
    circuit.taken(100.0)
    assert circuit.state is CircuitState.CLOSED


class Walk(RuleBasedStateMachine):
    """Anything may happen to a circuit at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.circuit = Watched(seed=3)
        self.told = 0
        self.known: CircuitState = CircuitState.CLOSED

    @rule(passed_s=st.sampled_from([0.0, 0.01, 0.3, 1.0, 3.0, 40.0]))
    def time_passes(self, passed_s: float) -> None:
        self.now += passed_s

    @rule(failure=st.sampled_from(Failure))
    def it_fails(self, failure: Failure) -> None:
        before = self.circuit.state
        self.circuit.failed(self.now, failure, "x")
        if before is not CircuitState.CLOSED or failure not in DOUBTFUL:
            assert self.circuit.state is CircuitState.OPEN

    @rule()
    def it_takes(self) -> None:
        before = self.circuit.state
        self.circuit.taken(self.now)
        after = CircuitState.OPEN if before is CircuitState.OPEN else CircuitState.CLOSED
        assert self.circuit.state is after

    @rule()
    def it_moves(self) -> None:
        self.circuit.moved(self.now)
        assert self.circuit.state is not CircuitState.OPEN

    @rule()
    def somebody_looks(self) -> None:
        before = self.circuit.state
        self.circuit.waited(self.now)
        is_over = before is CircuitState.OPEN and self.now >= self.circuit.until
        assert self.circuit.state is (CircuitState.HALF_OPEN if is_over else before)

    @precondition(lambda self: self.circuit.state is CircuitState.OPEN)
    @rule()
    def the_wait_ends(self) -> None:
        self.now = max(self.now, self.circuit.until)
        self.circuit.waited(self.now)
        assert self.circuit.state is CircuitState.HALF_OPEN

    @invariant()
    def every_opening_ends_within_the_ceiling(self) -> None:
        if self.circuit.state is CircuitState.OPEN:
            opened_at = self.circuit.changes[-1].at
            assert opened_at + 0.05 <= self.circuit.until <= opened_at + 2.0

    @invariant()
    def every_change_is_told_with_its_reason(self) -> None:
        for change in self.circuit.changes[self.told :]:
            assert change.before is self.known
            assert change.after in set(TABLE.values())
            assert change.before is not change.after
            assert change.reason
            self.known = change.after
        self.told = len(self.circuit.changes)
        assert self.known is self.circuit.state

    @invariant()
    def closed_after_a_failure_only_by_way_of_probes(self) -> None:
        for change in self.circuit.changes:
            if change.after is CircuitState.CLOSED:
                assert change.before is CircuitState.HALF_OPEN


TestWalk = Walk.TestCase
TestWalk.settings = examples(150, stateful_step_count=60)


def test_a_long_wait_for_a_probe_is_no_time_of_calm() -> None:
    circuit = opened()
    circuit.waited(circuit.until)
    circuit.failed(100.0, Failure.LOST, "cut")
    assert circuit.openings == 2


def test_the_openings_at_another_address_do_not_count() -> None:
    circuit = opened()
    circuit.moved(0.01)
    circuit.failed(0.02, Failure.LOST, "cut")
    assert circuit.openings == 1
