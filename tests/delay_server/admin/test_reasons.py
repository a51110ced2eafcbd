"""Each undelivered message has one reason: the one that an operator can do something about."""

from itertools import product

import pytest

from delay_server.admin.reasons import (
    GroupLook,
    LaneKind,
    Place,
    Reason,
    Surroundings,
    reason_of,
    reason_of_lane,
)

UP = GroupLook(is_paused=False, is_limited=False, is_up=True)
DOWN = GroupLook(is_paused=False, is_limited=False, is_up=False)
FENCED = GroupLook(is_paused=False, is_limited=False, is_up=False, is_fenced=True)
PAUSED = GroupLook(is_paused=True, is_limited=False, is_up=True)
LIMITED = GroupLook(is_paused=False, is_limited=True, is_up=True)


def around(
    *,
    clock_held: bool = False,
    stopping: bool = False,
    has_room: bool = True,
    **groups: GroupLook,
) -> Surroundings:
    return Surroundings(
        groups=groups, clock_held=clock_held, stopping=stopping, has_room=has_room, now_ms=1000
    )


def reason(
    place: Place,
    kind: LaneKind = LaneKind.FREE,
    *,
    due_ms: int = 500,
    is_damaged: bool = False,
    surroundings: Surroundings | None = None,
) -> Reason:
    found = surroundings or around(g=UP)
    return reason_of(
        place,
        due_ms=due_ms,
        kind=kind,
        groups=list(found.groups),
        is_damaged=is_damaged,
        around=found,
    )


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({}, Reason.NO_ROUTE),
        ({"a": UP}, Reason.QUEUED),
        ({"a": DOWN, "b": UP}, Reason.QUEUED),
        ({"a": DOWN}, Reason.CIRCUIT_OPEN),
        ({"a": PAUSED}, Reason.PAUSED_GROUP),
        ({"a": PAUSED, "b": DOWN}, Reason.CIRCUIT_OPEN),
        ({"a": PAUSED, "b": UP}, Reason.QUEUED),
        ({"a": FENCED}, Reason.FENCED),
        ({"a": FENCED, "b": DOWN}, Reason.CIRCUIT_OPEN),
        ({"a": FENCED, "b": PAUSED}, Reason.FENCED),
        ({"a": FENCED, "b": UP}, Reason.QUEUED),
        ({"a": LIMITED, "b": DOWN}, Reason.RATE_LIMITED),
        ({"a": LIMITED, "b": UP}, Reason.QUEUED),
    ],
)
def test_what_is_queued_waits_for_the_best_of_its_groups(
    groups: dict[str, GroupLook], expected: Reason
) -> None:
    found = Surroundings(
        groups=groups, clock_held=False, stopping=False, has_room=True, now_ms=1000
    )
    assert reason_of_lane(LaneKind.FREE, groups, found) is expected


def test_a_group_that_nobody_knows_counts_for_nothing() -> None:
    assert reason_of_lane(LaneKind.FREE, ["gone"], around(other=UP)) is Reason.NO_ROUTE


def test_what_is_not_due_waits_for_its_time_whatever_is_closed() -> None:
    for place, kind in product((Place.PARKED, Place.ELSEWHERE), LaneKind):
        assert reason(place, kind, due_ms=1001) is Reason.WAITING
    held = around(g=UP, clock_held=True)
    assert reason(Place.ELSEWHERE, due_ms=1001, surroundings=held) is Reason.CLOCK_HELD


def test_what_is_due_says_what_stands_in_its_way() -> None:
    assert reason(Place.PARKED, LaneKind.PAUSED) is Reason.PAUSED_SUBJECT
    assert reason(Place.PARKED, LaneKind.NO_ROUTE) is Reason.NO_ROUTE
    assert reason(Place.PARKED, LaneKind.PAUSED, surroundings=around(g=DOWN)) is (
        Reason.PAUSED_SUBJECT
    )
    assert reason(Place.PARKED) is Reason.BACKLOG
    assert reason(Place.PARKED, surroundings=around(g=DOWN)) is Reason.CIRCUIT_OPEN
    assert reason(Place.ELSEWHERE) is Reason.LOADING
    assert reason(Place.ELSEWHERE, surroundings=around(g=UP, has_room=False)) is Reason.NO_ROOM
    assert reason(Place.QUEUED, surroundings=around(g=UP, stopping=True)) is Reason.STOPPING
    assert reason(Place.QUEUED, surroundings=around(g=UP, clock_held=True)) is Reason.CLOCK_HELD
    assert reason(Place.PARKED, is_damaged=True) is Reason.DAMAGED


def test_what_is_sent_or_put_off_is_so_whatever_was_closed_since() -> None:
    for kind in LaneKind:
        assert reason(Place.IN_FLIGHT, kind) is Reason.IN_FLIGHT
        assert reason(Place.PUT_OFF, kind) is Reason.RETRY_BACKOFF
        assert reason(Place.EARLY, kind, due_ms=2000) is Reason.CLOCK_SET_BACK


LOOKS = (UP, DOWN, FENCED, PAUSED, LIMITED)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("place", Place)
@pytest.mark.parametrize("kind", LaneKind)
def test_only_what_is_not_due_is_said_to_wait_for_its_time(
    look: GroupLook, place: Place, kind: LaneKind
) -> None:
    for held, stopping, room in product((True, False), repeat=3):
        found = around(g=look, clock_held=held, stopping=stopping, has_room=room)
        waits = {Reason.WAITING, Reason.CLOCK_SET_BACK}
        of_due = reason(place, kind, due_ms=1000, surroundings=found)
        assert of_due not in waits or place is Place.EARLY
        of_later = reason(place, kind, due_ms=1001, surroundings=found)
        if place in {Place.PARKED, Place.ELSEWHERE}:
            assert of_later is (Reason.CLOCK_HELD if held else Reason.WAITING)
