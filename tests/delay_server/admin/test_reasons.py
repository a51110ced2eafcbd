"""Each undelivered message has one reason: the one that an operator can do something about."""

from dataclasses import replace
from itertools import product

import pytest

from delay_server.admin.reasons import GroupLook, Look, Reason, reason_of
from sender.queues.places import Where

UP, DOWN = GroupLook(), GroupLook(is_up=False)
PAUSED, LIMITED = GroupLook(is_paused=True), GroupLook(is_limited=True)
QUEUED = Look(where=Where.QUEUED, groups=(UP,))
ON_DISK = Look(groups=(UP,))


def test_there_are_at_most_12_reasons() -> None:
    assert len(Reason) <= 12


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ((), Reason.NO_ROUTE),
        ((UP,), Reason.QUEUED),
        ((DOWN, UP), Reason.QUEUED),
        ((DOWN,), Reason.GROUP_DOWN),
        ((PAUSED,), Reason.PAUSED),
        ((PAUSED, DOWN), Reason.GROUP_DOWN),
        ((PAUSED, UP), Reason.QUEUED),
        ((LIMITED, DOWN), Reason.RATE_LIMITED),
        ((LIMITED, UP), Reason.QUEUED),
    ],
)
def test_what_is_queued_waits_for_the_best_of_its_groups(
    groups: tuple[GroupLook, ...], expected: Reason
) -> None:
    assert reason_of(replace(QUEUED, groups=groups)) is expected


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (ON_DISK, Reason.LOADING),
        (replace(ON_DISK, is_parked=True), Reason.QUEUED),
        (replace(ON_DISK, is_parked=True, groups=(DOWN,)), Reason.GROUP_DOWN),
        (replace(ON_DISK, is_parked=True, is_paused=True), Reason.PAUSED),
        (replace(ON_DISK, is_paused=True, groups=()), Reason.PAUSED),
        (replace(ON_DISK, clock_held=True), Reason.CLOCK_HELD),
        (replace(ON_DISK, is_due=False, clock_held=True), Reason.CLOCK_HELD),
        (replace(ON_DISK, is_parked=True, is_damaged=True), Reason.DAMAGED),
        (replace(ON_DISK, is_given_up=True, is_paused=True), Reason.DEAD),
        (replace(ON_DISK, is_moved=True, is_due=False), Reason.IN_FLIGHT),
    ],
)
def test_what_is_due_says_what_stands_in_its_way(look: Look, expected: Reason) -> None:
    assert reason_of(look) is expected


@pytest.mark.parametrize("group", [UP, DOWN, PAUSED, LIMITED])
def test_what_is_sent_put_off_or_not_due_is_so_whatever_was_closed_since(group: GroupLook) -> None:
    for is_paused, is_parked in product((True, False), repeat=2):
        look = Look(groups=(group,), is_paused=is_paused, is_parked=is_parked)
        assert reason_of(replace(look, is_due=False)) is Reason.WAITING
        assert reason_of(look) is not Reason.WAITING
        for where, expected in (
            (Where.IN_FLIGHT, Reason.IN_FLIGHT),
            (Where.PUT_OFF, Reason.RETRYING),
            (Where.EARLY, Reason.CLOCK_HELD),
        ):
            assert reason_of(replace(look, where=where, is_due=False)) is expected
