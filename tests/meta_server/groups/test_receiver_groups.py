"""A name of receivers gets its subscription, and takes neither a name nor a route from anybody."""

from itertools import chain

import pytest

from delay_protocol.meta.requests import BrokerRole, BrokerState
from meta_server.groups.receiver_groups import (
    NAMES_MAX,
    Room,
    hindrance,
    lacks,
    plan_receiver,
    received,
)
from meta_server.known import model
from meta_server.known.errors import RefusedError, StateError
from meta_server.known.registry import Registry

ROOM = Room(names=8, patterns=20)


def registry_of(*rows: model.Row, **more: tuple[model.Row, ...]) -> Registry:
    return Registry(model.Contents(rows=(*rows, *chain(*more.values()))))


def receiver(name: str, *patterns: str, **more: int) -> model.Receiver:
    return model.Receiver(name=name, patterns=patterns, **more)  # type: ignore[arg-type]


def route(name: str, *groups: str, is_chosen: bool = False, is_prefix: bool = False) -> model.Route:
    return model.Route(name=name, groups=groups, is_chosen=is_chosen, is_prefix=is_prefix)


def planned(
    registry: Registry,
    *patterns: str,
    name: str = "mail",
    room: Room = ROOM,
) -> model.Receiver | None:
    return plan_receiver(registry, name, patterns, room, now_ms=7)


def names_of(registry: Registry, subject: str) -> list[str]:
    return [row.name for row in registry.receivers_of(subject)]


def test_the_first_registration_makes_the_name_and_further_patterns_join() -> None:
    registry = registry_of()
    row = planned(registry, "orders.*", "paid", "orders.*")
    assert row == receiver("mail", "orders.*", "paid", updated_ms=7)
    registry.apply([model.Save(row)])
    assert planned(registry, "orders.*", "paid") is None
    # What it gets already needs no pattern of its own.
    assert planned(registry, "orders.eu.*", "orders.paid") is None
    more = planned(registry, "a")
    assert more == receiver("mail", "a", "orders.*", "paid", updated_ms=7, version=2)


def test_a_subject_goes_to_every_name_of_which_a_pattern_takes_it() -> None:
    registry = registry_of(
        receiver("a", "orders.*", "paid"), receiver("b", "orders.eu.*"), receiver("c", "paid", "o*")
    )
    assert names_of(registry, "orders.eu.1") == ["a", "b", "c"]
    assert names_of(registry, "orders.x") == ["a", "c"]
    assert names_of(registry, "paid") == ["a", "c"]
    assert names_of(registry, "pai") == []
    registry.apply([model.Save(receiver("a", "paid", version=2))])
    assert names_of(registry, "orders.eu.1") == ["b", "c"]
    registry.apply([model.Remove(registry.receivers["c"])])
    assert names_of(registry, "orders.eu.1") == ["b"]
    assert names_of(registry, "paid") == ["a"]


def test_chosen_routes_give_way_and_those_that_operators_set_do_not() -> None:
    registry = registry_of(
        route("paid", "g1", is_chosen=True),
        route("sent", "g1", "g2"),
        route("orders.", "g1", is_prefix=True),
    )
    row = planned(registry, "paid", "sent", "orders.*", "orders.eu.*", "orders.eu", "ord*")
    assert row is not None
    assert row.patterns == ("paid",)
    assert hindrance(registry, "mail", "sent") == (
        "pattern 'sent' has subjects in common with the route of sent to g1, g2: an operator can "
        "end that with `delaywheel admin remove route sent`"
    )
    for pattern in ("orders.eu", "ord*", "orders.eu.*"):
        assert "the route of orders.* to g1" in hindrance(registry, "mail", pattern)
    assert received(registry, "paid") is None
    registry.apply([model.Save(row)])
    assert received(registry, "pa*") == received(registry, "paid") == row


@pytest.mark.parametrize(
    ("known", "pattern", "is_free"),
    [
        (["s"] * NAMES_MAX, "s", False),
        (["s"] * NAMES_MAX, "s*", False),
        (["s*"] * NAMES_MAX, "s", False),
        (["s.*"] * NAMES_MAX, "s.*", False),
        (["s.*"] * 8 + ["s.eu"] * 8, "s*", False),
        (["s.*"] * 8 + ["s.eu"] * 8, "s.us", True),
        (["s.*"] * 8 + ["s."] * 8, "s.*", False),
        (["s"] * (NAMES_MAX - 1), "s", True),
        ([f"s.{number}" for number in range(100)], "s.*", True),
    ],
)
def test_a_seventeenth_name_of_a_subject_waits(
    known: list[str], pattern: str, *, is_free: bool
) -> None:
    registry = registry_of(*(receiver(f"r{n}", one) for n, one in enumerate(known)))
    why = hindrance(registry, "mail", pattern)
    assert (not why) == is_free
    assert is_free or f"that {NAMES_MAX} names receive already, the limit: r0, r1" in why
    # Those that are in stay.
    assert hindrance(registry, "r0", known[0]) == ""
    row = planned(registry, pattern, "other", room=Room(999, 999))
    assert row is not None
    assert (pattern in row.patterns) == is_free


@pytest.mark.parametrize("pattern", ["*", "a\n*", "a.*.b", "a**", "%RETRY%a%g", "%RETRY%a%g*"])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(RefusedError, match="a subject, or the beginning of subjects with a"):
        planned(registry_of(), "a", pattern)


@pytest.mark.parametrize("pattern", ["a b", "a/b*", "é" * 128 + "*"])
def test_a_pattern_that_no_subject_could_match_is_refused(pattern: str) -> None:
    with pytest.raises(RefusedError, match=r"an illegal subject|at most 255"):
        planned(registry_of(), pattern)


def test_what_an_operator_gave_for_all_subjects_takes_each() -> None:
    registry = registry_of(receiver("mail", "*"))
    assert lacks(registry, "mail", ["orders.*", "paid"]) == []
    assert names_of(registry, "anything") == ["mail"]


def test_a_name_that_is_taken_or_stands_in_retries_is_refused() -> None:
    group = model.BrokerGroup(
        name="mail", kind=model.GroupKind.NORMAL, master="", state=BrokerState.RW
    )
    entered = model.Broker(
        hostname="h", serve_port=1, ip="10.0.0.1", group="mail", role=BrokerRole.MASTER
    )
    for row in (group, entered):
        with pytest.raises(RefusedError, match="mail is a group of brokers: a receiver needs"):
            planned(registry_of(row))
    with pytest.raises(RefusedError, match="must have no blanks"):
        planned(registry_of(), name="a b")
    for name in ("%", "a%b"):
        with pytest.raises(RefusedError, match="has no %, which stands in retries"):
            planned(registry_of(), name=name)


def test_what_there_is_no_room_for_can_come_later() -> None:
    registry = registry_of(receiver("mail", "a.*"))
    with pytest.raises(StateError, match="there are 2 patterns of receivers, which is the limit"):
        planned(registry, "b", "c", room=Room(8, 2))
    with pytest.raises(StateError, match="there are 1 receivers, which is the limit"):
        planned(registry, name="other", room=Room(1, 9))
    assert planned(registry, "a.*", room=Room(1, 0)) is None
