"""What a node may do, in every situation."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.meta.requests import BrokerState
from delay_server.duty import DISK_FULL_REMARK, RETIRED_REMARK, Admits, Situation, duty_of

REASONS = st.sampled_from(["", "a reason"])
SITUATIONS = st.builds(
    Situation,
    is_master=st.booleans(),
    is_recovered=st.booleans(),
    has_served=st.booleans(),
    is_stopping=st.booleans(),
    fenced=REASONS,
    not_accepting=REASONS,
    is_retired=st.booleans(),
    disk_is_full=st.booleans(),
    clock_reason=REASONS,
    outcomes_wait=st.sampled_from(["", "the disk stalls"]),
).filter(lambda now: now.is_master or not now.is_recovered)
WELL = Situation(is_master=True, is_recovered=True, has_served=True)


@pytest.mark.parametrize(
    ("now", "admits", "sends", "announces"),
    [
        (Situation(), Admits.HOLD, False, None),
        (Situation(is_master=True), Admits.HOLD, True, None),
        (WELL, Admits.SERVE, True, BrokerState.RW),
        (replace(WELL, has_served=False), Admits.SERVE, True, BrokerState.RW),
        (replace(WELL, not_accepting="no"), Admits.HOLD, True, BrokerState.NRW),
        (replace(WELL, not_accepting="no", has_served=False), Admits.HOLD, True, None),
        (replace(WELL, is_retired=True), Admits.REFUSE, True, None),
        (replace(WELL, disk_is_full=True), Admits.REFUSE, True, BrokerState.R),
        (replace(WELL, clock_reason="it leapt"), Admits.SERVE, False, BrokerState.RW),
        (replace(WELL, outcomes_wait="the disk stalls"), Admits.SERVE, False, BrokerState.RW),
        (replace(WELL, is_stopping=True), Admits.HOLD, True, BrokerState.NRW),
    ],
)
def test_the_table_holds(
    now: Situation, admits: Admits, sends: bool, announces: BrokerState | None
) -> None:
    duty = duty_of(now)
    assert (duty.admits, duty.sends, duty.announces) == (admits, sends, announces)


@given(SITUATIONS)
def test_whoever_does_not_do_all_of_it_says_why(now: Situation) -> None:
    duty = duty_of(now)
    does_all = duty.admits is Admits.SERVE and duty.sends
    assert does_all == (not duty.why)
    assert all(duty.why)
    assert (duty.admits is Admits.REFUSE) == bool(duty.remark)


@given(SITUATIONS)
def test_only_a_master_takes_and_sends_and_nothing_is_admitted_at_a_stop(now: Situation) -> None:
    duty = duty_of(now)
    assert now.is_master or not duty.sends
    assert now.is_recovered or duty.admits is Admits.HOLD
    if now.is_stopping or now.not_accepting:
        assert duty.admits is Admits.HOLD
    assert duty.clock_held == bool(now.clock_reason)
    assert duty.sends == (now.is_master and not (duty.clock_held or now.outcomes_wait))
    assert duty.leaves_due == now.is_stopping
    # Clients are never sent where messages are refused or held.
    if duty.announces in {BrokerState.RW, BrokerState.W}:
        assert duty.admits is Admits.SERVE


def test_a_retired_group_is_said_to_be_that_whatever_its_disk_is() -> None:
    for retired, full in product([True, False], repeat=2):
        duty = duty_of(replace(WELL, is_retired=retired, disk_is_full=full))
        wanted = RETIRED_REMARK if retired else DISK_FULL_REMARK if full else ""
        assert duty.remark == wanted
