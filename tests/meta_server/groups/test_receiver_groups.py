"""A receiver gets a group and routes, and takes neither a name nor a route from anybody."""

from itertools import chain

import pytest

from delay_protocol.meta.requests import BrokerRole, BrokerState
from meta_server.groups.receiver_groups import Room, plan_receiver, routed_elsewhere, unrouted
from meta_server.known import model
from meta_server.known.errors import RefusedError, StateError
from meta_server.known.registry import Registry

ROOM = Room(groups=8, subjects=20, prefixes=20)


def group(
    name: str, kind: model.GroupKind = model.GroupKind.RECEIVER, **more: bool
) -> model.BrokerGroup:
    return model.BrokerGroup(name=name, kind=kind, master="", state=BrokerState.RW, **more)  # type: ignore[arg-type]


def registry_of(
    *routes: model.Route, groups: tuple[model.BrokerGroup, ...] = (), **rows: tuple[model.Row, ...]
) -> Registry:
    return Registry(model.Contents(rows=(*routes, *groups, *chain(*rows.values()))))


def route(name: str, *groups: str, is_chosen: bool = False, is_prefix: bool = False) -> model.Route:
    return model.Route(
        name=name, groups=groups, is_chosen=is_chosen, is_prefix=is_prefix, version=1 + is_chosen
    )


def set_route(name: str, *, is_prefix: bool = False, version: int = 1) -> model.Save:
    return model.Save(
        model.Route(
            name=name,
            is_prefix=is_prefix,
            groups=("mail",),
            is_chosen=False,
            version=version,
        )
    )


def planned(
    registry: Registry, *patterns: str, name: str = "mail", room: Room = ROOM
) -> list[model.Save]:
    return plan_receiver(registry, name, patterns, room, is_approved=False, now_ms=7)


def test_the_first_registration_makes_the_group_and_a_route_of_each_pattern() -> None:
    registry = registry_of()
    changes = planned(registry, "orders.*", "paid", "orders.*")
    assert changes == [
        model.Save(
            model.BrokerGroup(
                name="mail",
                kind=model.GroupKind.RECEIVER,
                master="",
                state=BrokerState.RW,
                updated_ms=7,
            )
        ),
        set_route("orders.", is_prefix=True),
        model.Save(model.Subject(name="paid", created_ms=7)),
        set_route("paid"),
    ]
    registry.apply(changes)
    assert not registry.groups["mail"].is_watched
    assert planned(registry, "orders.*", "paid") == []
    # What is led there already needs no route of its own.
    assert planned(registry, "orders.eu.*", "orders.paid") == []
    assert [type(change) for change in planned(registry, "sent.*")] == [model.Save]


def test_a_route_that_was_chosen_is_replaced_and_one_that_was_set_is_not() -> None:
    registry = registry_of(
        route("paid", "g1", is_chosen=True),
        route("sent", "g1", "g2"),
        route("both", "g1", "mail"),
        route("orders.", "g1", is_prefix=True),
        subjects=tuple(model.Subject(name=name) for name in ("paid", "sent", "both")),
        groups=(group("mail"),),
    )
    patterns = ("paid", "sent", "both", "orders.*", "orders.eu.*", "orders.eu", "ord*")
    assert unrouted(registry, patterns) == ["paid", "ord*"]
    assert planned(registry, *patterns) == [
        set_route("paid", version=3),
        set_route("ord", is_prefix=True),
    ]
    told = list(routed_elsewhere(registry, "mail", patterns).values())
    assert told[0] == (
        "pattern 'sent' is routed to g1, g2: an operator can change that with "
        "`delaywheel admin set route`"
    )
    assert [one.split("'")[1] for one in told[1:]] == ["orders.*", "orders.eu.*", "orders.eu"]


@pytest.mark.parametrize("pattern", ["*", "a\n*", "a.*.b", "a**", "%RETRY%a%g", "%RETRY%a%g*"])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(RefusedError, match="a subject, or the beginning of subjects with a"):
        planned(registry_of(), "a", pattern)


@pytest.mark.parametrize("pattern", ["a b", "a/b*", "é" * 128 + "*"])
def test_a_pattern_that_no_subject_could_match_is_refused(pattern: str) -> None:
    with pytest.raises(RefusedError, match=r"an illegal subject|at most 255"):
        planned(registry_of(), pattern)


@pytest.mark.parametrize("kind", [model.GroupKind.NORMAL, model.GroupKind.DELAY])
def test_a_name_that_is_taken_is_refused(kind: model.GroupKind) -> None:
    with pytest.raises(RefusedError, match="mail is a group of brokers: a receiver needs another"):
        planned(registry_of(groups=(group("mail", kind),)))
    entered = model.Broker(
        hostname="h", serve_port=1, ip="10.0.0.1", group="mail", role=BrokerRole.MASTER
    )
    with pytest.raises(RefusedError, match="mail is a group of brokers: a receiver needs another"):
        planned(registry_of(brokers=(entered,)))
    with pytest.raises(RefusedError, match="mail was retired"):
        planned(registry_of(groups=(group("mail", is_retired=True),)))
    with pytest.raises(RefusedError, match="must have no blanks"):
        planned(registry_of(), name="a b")


def test_what_there_is_no_room_for_can_come_later() -> None:
    registry = registry_of(route("a.", "mail", is_prefix=True), groups=(group("mail"),))
    for room, patterns, limit in (
        (Room(8, 20, 1), ("b.*",), "1 prefix routes"),
        (Room(8, 1, 9), ("b", "c"), "1 subjects"),
    ):
        with pytest.raises(StateError, match=f"there are {limit}, which is the limit"):
            planned(registry, *patterns, room=room)
    with pytest.raises(StateError, match="there are 1 broker groups, which is the limit"):
        planned(registry, name="other", room=Room(1, 9, 9))
    assert planned(registry, "a.*", room=Room(1, 0, 0)) == []
