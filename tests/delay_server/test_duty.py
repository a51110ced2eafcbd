"""What a node may do, in every situation."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.meta.requests import BrokerState
from delay_server.duty import DISK_FULL_REMARK, READ_ONLY, RETIRED, Admits, Situation, duty_of

REASONS = st.sampled_from(["", "a reason"])
SITUATIONS = st.builds(
    Situation,
    is_master=st.booleans(),
    is_recovered=st.booleans(),
    has_served=st.booleans(),
    is_stopping=st.booleans(),
    fenced=REASONS,
    not_accepting=REASONS,
    closed=st.sampled_from(["", RETIRED, READ_ONLY]),
    disk_is_full=st.booleans(),
    clock_reason=REASONS,
    outcomes_wait=st.sampled_from(["", "the disk stalls"]),
    master_elsewhere=st.sampled_from(["", "the master is b"]),
    copy_fault=REASONS,
    appends_wait=REASONS,
    replicas_wait=REASONS,
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
        (replace(WELL, closed=RETIRED), Admits.REFUSE, True, None),
        (replace(WELL, closed=READ_ONLY), Admits.REFUSE, True, BrokerState.R),
        (replace(WELL, disk_is_full=True), Admits.REFUSE, True, BrokerState.R),
        (replace(WELL, clock_reason="it leapt"), Admits.SERVE, False, BrokerState.RW),
        (replace(WELL, outcomes_wait="the disk stalls"), Admits.SERVE, False, BrokerState.RW),
        (replace(WELL, replicas_wait="no lease"), Admits.SERVE, False, BrokerState.RW),
        (replace(WELL, appends_wait="too few are heard"), Admits.HOLD, True, BrokerState.RW),
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
    assert (duty.admits in {Admits.REFUSE, Admits.ELSEWHERE}) == bool(duty.remark)


@given(SITUATIONS)
def test_only_a_master_takes_and_sends_and_nothing_is_admitted_at_a_stop(now: Situation) -> None:
    duty = duty_of(now)
    assert now.is_master or not duty.sends
    assert now.is_recovered or duty.admits in {Admits.HOLD, Admits.ELSEWHERE}
    if now.is_stopping or (now.is_master and now.not_accepting):
        assert duty.admits is Admits.HOLD
    assert duty.clock_held == bool(now.clock_reason)
    waits = now.outcomes_wait or now.replicas_wait
    assert duty.sends == (now.is_master and not (duty.clock_held or waits))
    assert duty.leaves_due == now.is_stopping
    # Clients are never sent where messages are refused or held; but where too few replicas are
    # heard no other node of the group takes them, and they are soon again.
    if duty.announces in {BrokerState.RW, BrokerState.W} and not now.appends_wait:
        assert duty.admits is Admits.SERVE


@given(SITUATIONS)
def test_a_slave_is_ready_while_its_copy_counts_and_anybody_else_while_it_does_all(
    now: Situation,
) -> None:
    duty = duty_of(now)
    if duty.admits is Admits.ELSEWHERE:
        assert duty.failing == ((now.copy_fault,) if now.copy_fault else ())
        assert duty.remark == now.master_elsewhere
    else:
        assert duty.failing == duty.why


def test_a_master_without_enough_replicas_is_not_ready_and_says_why() -> None:
    held = duty_of(replace(WELL, appends_wait="2 disks must be in sync, and 1 are heard"))
    assert held.admits is Admits.HOLD
    assert held.failing == ("messages are held: 2 disks must be in sync, and 1 are heard",)
    pauses = duty_of(replace(WELL, replicas_wait="no lease"))
    assert (pauses.admits, pauses.sends) == (Admits.SERVE, False)
    assert pauses.failing == ("delivery is held: no lease",)


def test_a_closed_group_is_said_to_be_that_whatever_its_disk_is() -> None:
    for closed, full in product([RETIRED, READ_ONLY, ""], [True, False]):
        duty = duty_of(replace(WELL, closed=closed, disk_is_full=full))
        wanted = DISK_FULL_REMARK if full else ""
        wanted = f"BROKER_READ_ONLY: {closed}" if closed else wanted
        assert duty.remark == wanted
