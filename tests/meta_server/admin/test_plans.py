"""What follows from an administrator's word: changes with their audit, or a refusal and why."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from delay_protocol.meta.requests import BrokerRole, BrokerState
from delay_protocol.nodes.registration import GroupRecord, Master, NodeRole, Phase, Stands, Told
from meta_server.admin.admin_types import (
    BrokerGroupChange,
    BrokerGroupNew,
    BrokerNew,
    BrokerReplacement,
    ReadOnlyChange,
    RouteSet,
    SubjectSet,
)
from meta_server.admin.plans import (
    Desk,
    accept_older_node,
    add_broker,
    add_group,
    ask_to_hand_over,
    change_group,
    elect_master,
    extend_route,
    give_up_node,
    recover_group,
    reduce_route,
    remove_broker,
    remove_node,
    remove_route,
    replace_broker,
    restore_group,
    retire_group,
    set_group_min_isr,
    set_read_only,
    set_route,
    set_subject,
)
from meta_server.groups.broker_groups import plan_register
from meta_server.groups.elections import GroupState, Heard, Wish
from meta_server.groups.roles import Registered, plan_node
from meta_server.groups.routing import RoutingLimits, plan_route
from meta_server.known.errors import BadValueError, NotFoundError, RefusedError, StateError
from meta_server.known.model import (
    Audit,
    BrokerGroup,
    Change,
    Contents,
    DelayGroup,
    DelayNode,
    GroupKind,
    Route,
)
from meta_server.known.registry import Registry
from meta_server.known.set_back import SetBacks
from meta_server.settings.config import AdminConfig, RegistrationConfig
from tests.meta_server.meta_rig import broker, node, uuid
from tests.seeds import examples


def desk_on(registry: Registry, **limits: int) -> Desk:
    return Desk(
        registry=registry,
        set_backs=SetBacks(registry, unproven=(), groups_max=8),
        registration=RegistrationConfig(groups_max=8, subjects_max=20),
        limits=replace(AdminConfig(), **limits),  # type: ignore[arg-type]
        actor="alice",
        now_ms=77,
    )


def registry_with(**rows: object) -> Registry:
    return Registry(Contents(**rows))  # type: ignore[arg-type]


def group(name: str = "g1", **more: object) -> BrokerGroup:
    row: dict[str, Any] = {
        "name": name,
        "kind": GroupKind.NORMAL,
        "master": "10.0.0.1:1",
        "state": BrokerState.RW,
        **more,
    }
    return BrokerGroup(**row)


def delay_group(name: str = "d1") -> BrokerGroup:
    return group(name, kind=GroupKind.DELAY)


def applied(registry: Registry, changes: Sequence[Change]) -> Registry:
    registry.apply(changes)
    return registry


def entry_of(changes: Sequence[Change]) -> tuple[str, str, Any, Any]:
    """Return action, target, before and after of the one entry in the audit."""
    [entry] = [change.entry for change in changes if isinstance(change, Audit)]
    assert (entry.actor, entry.at_ms) == ("alice", 77)
    before, after = (
        None if not text else msgspec.json.decode(text) for text in (entry.before, entry.after)
    )
    return entry.action, entry.target, before, after


# Broker groups


def test_a_group_with_an_address_takes_messages_and_need_not_register() -> None:
    registry = registry_with()
    changes = add_group(desk_on(registry), BrokerGroupNew(name="g1", address="10.0.0.1:20881"))
    added = applied(registry, changes).groups["g1"]
    assert (added.state, added.master, added.is_watched) == (
        BrokerState.RW,
        "10.0.0.1:20881",
        False,
    )
    action, target, before, after = entry_of(changes)
    assert (action, target, before, after["master"]) == (
        "broker-group.add",
        "g1",
        None,
        "10.0.0.1:20881",
    )


def test_a_group_can_be_made_to_register_within_a_time_out() -> None:
    registry = registry_with()
    new = BrokerGroupNew(name="g1", address="10.0.0.1:20881", static=False)
    assert applied(registry, add_group(desk_on(registry), new)).groups["g1"].is_watched


def test_a_group_without_an_address_is_away_until_it_registers() -> None:
    registry = registry_with()
    added = applied(registry, add_group(desk_on(registry), BrokerGroupNew(name="g1"))).groups["g1"]
    assert (added.state, added.master, added.ext) == (
        BrokerState.NRW,
        "",
        {"entered": "true"},
    )


@pytest.mark.parametrize(
    ("new", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "*"}, "name"),
        ({"name": "ä" * 200}, "name"),
        ({"name": "g", "address": "nowhere"}, "address"),
        ({"name": "g", "address": "x..y:5"}, "address"),
        ({"name": "g", "address": f"{'x' * 64}:5"}, "address"),
        ({"name": "g", "address": "h:70000"}, "address"),
        ({"name": "g", "address": "[::1]:1"}, "address"),
        ({"name": "g", "tag": "a\nb"}, "tag"),
        ({"name": "g", "static": True}, "static"),
        ({"name": "g", "ext": {"static": "x"}}, "ext.static"),
        ({"name": "g", "ext": {"a": "\x1b"}}, "ext.a"),
    ],
)
def test_what_a_group_cannot_be_is_refused_by_field(new: dict[str, Any], field: str) -> None:
    with pytest.raises(BadValueError) as caught:
        add_group(desk_on(registry_with()), BrokerGroupNew(**new))
    assert caught.value.field == field


def test_a_group_is_added_once_and_there_is_a_limit() -> None:
    registry = registry_with(broker_groups=(group(),))
    with pytest.raises(StateError, match="already"):
        add_group(desk_on(registry), BrokerGroupNew(name="g1"))
    full = registry_with(broker_groups=tuple(group(f"g{n}") for n in range(8)))
    with pytest.raises(StateError, match="limit"):
        add_group(desk_on(full), BrokerGroupNew(name="new"))


def test_what_is_left_out_of_a_change_stays() -> None:
    before = group(ext={"a": "b", "static": "true"}, tag="t", weight=5)
    registry = registry_with(broker_groups=(before,))
    changes = change_group(desk_on(registry), "g1", BrokerGroupChange(weight=9))
    after = applied(registry, changes).groups["g1"]
    ext = {**before.ext, "entered": "true"}
    assert after == replace(before, weight=9, version=2, updated_ms=77, ext=ext)
    assert change_group(desk_on(registry), "g1", BrokerGroupChange(weight=9)) == ()


def test_a_group_is_changed_only_in_the_version_that_was_expected() -> None:
    registry = registry_with(broker_groups=(group(version=3),))
    for version in (2, 4):
        with pytest.raises(StateError, match="version 3"):
            change_group(desk_on(registry), "g1", BrokerGroupChange(weight=9, version=version))
    assert change_group(desk_on(registry), "g1", BrokerGroupChange(weight=9, version=3))


def test_the_state_of_a_group_that_registers_is_its_own() -> None:
    registry = registry_with(broker_groups=(group(),))
    with pytest.raises(StateError, match="not static"):
        change_group(desk_on(registry), "g1", BrokerGroupChange(state="R"))
    change = BrokerGroupChange(state="R", static=True)
    after = applied(registry, change_group(desk_on(registry), "g1", change)).groups["g1"]
    assert (after.state, after.is_watched) == (BrokerState.R, False)


def test_no_broker_group_is_entered_at_a_delay_servers_address() -> None:
    registry = cluster()
    address = registry.groups["d1"].master
    assert address
    with pytest.raises(StateError, match=f"{address} is the address of the delay server"):
        add_group(desk_on(registry), BrokerGroupNew(name="g1", address=address))
    registry = applied(registry, add_group(desk_on(registry), BrokerGroupNew(name="g1")))
    with pytest.raises(StateError, match="is the address of the delay server"):
        change_group(desk_on(registry), "g1", BrokerGroupChange(address=address))
    host, _, port = address.rpartition(":")
    for hostname, ip in ((host, "10.9.9.9"), ("h", host)):
        at = entered(hostname=hostname, ip=ip, serve_port=int(port), sync_port=1)
        with pytest.raises(StateError, match="is the address of the delay server"):
            add_broker(desk_on(registry), at)
    registry.apply(add_broker(desk_on(registry), entered()))
    place = BrokerReplacement(hostname=host, ip=host, serve_port=int(port), sync_port=1)
    with pytest.raises(StateError, match="is the address of the delay server"):
        replace_broker(desk_on(registry), "g1", "MASTER", place)
    assert change_group(desk_on(registry), "g1", BrokerGroupChange(address="10.0.0.1:20881"))


def test_an_address_is_not_set_where_a_registration_would_take_it_back() -> None:
    registry = registry_with(broker_groups=(group(),))
    new = BrokerNew(
        group="g1", role="MASTER", hostname="h", ip="10.0.0.1", serve_port=1, sync_port=2
    )
    registry.apply(add_broker(desk_on(registry), new))
    change = BrokerGroupChange(address="10.0.0.9:1")
    with pytest.raises(StateError, match="replace that broker"):
        change_group(desk_on(registry), "g1", change)
    assert change_group(desk_on(registry), "g1", BrokerGroupChange(address="h:1"))
    ours = cluster()
    with pytest.raises(StateError, match="record"):
        change_group(desk_on(ours), "d1", change)


def test_a_group_that_takes_messages_is_not_retired_at_once() -> None:
    registry = registry_with(broker_groups=(group(),))
    desk = desk_on(registry)
    with pytest.raises(StateError, match="read-only"):
        retire_group(desk, "g1", version=None, lose_messages=False)
    registry.apply(set_read_only(desk, "g1", ReadOnlyChange(read_only=True)))
    registry.apply(retire_group(desk, "g1", version=2, lose_messages=False))
    assert registry.groups["g1"].is_retired
    registry.apply(restore_group(desk, "g1", version=3))
    assert not registry.groups["g1"].is_retired


def test_a_group_may_be_retired_at_once_if_messages_may_be_lost() -> None:
    registry = registry_with(broker_groups=(group(),))
    assert retire_group(desk_on(registry), "g1", version=None, lose_messages=True)
    ours = cluster()
    # Its nodes are told, and deliver what they have: nothing is lost.
    assert retire_group(desk_on(ours), "d1", version=None, lose_messages=False)


# Brokers


def entered(role: str = "MASTER", **more: object) -> BrokerNew:
    row: dict[str, Any] = {
        "group": "g1",
        "role": role,
        "hostname": f"h-{role}",
        "ip": "10.0.0.1",
        "serve_port": 20881,
        "sync_port": 20882,
        **more,
    }
    return BrokerNew(**row)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"ip": "h1"}, "ip"),
        ({"ip": "::1"}, "ip"),
        ({"ip": "10.0.0.256"}, "ip"),
        ({"hostname": "a b"}, "hostname"),
        ({"hostname": "a:b"}, "hostname"),
        ({"sync_port": 0}, "sync_port"),
        ({"sync_port": 20881}, "sync_port"),
        ({"group": "a b"}, "group"),
    ],
)
def test_what_a_broker_cannot_be_is_refused_by_field(more: dict[str, Any], field: str) -> None:
    with pytest.raises(BadValueError) as caught:
        add_broker(desk_on(registry_with()), entered(**more))
    assert caught.value.field == field


def test_a_group_has_one_broker_of_a_role_and_three_in_all() -> None:
    registry = registry_with()
    desk = desk_on(registry)
    for role in ("MASTER", "SLAVE"):
        registry.apply(add_broker(desk, entered(role)))
        with pytest.raises(StateError, match="replace it"):
            add_broker(desk, entered(role, hostname="other"))
    with pytest.raises(StateError, match="is entered as MASTER"):
        add_broker(desk, entered("BACKUP", hostname="h-MASTER", sync_port=0))
    with pytest.raises(StateError, match="another kind"):
        add_broker(desk, entered("DELAY_MASTER"))
    registry.apply(add_broker(desk, entered("BACKUP", sync_port=0)))
    assert len(registry.brokers_in("g1")) == 3


@pytest.mark.parametrize("place", ["h-MASTER", "elsewhere"])
def test_a_broker_is_replaced_at_its_place_or_at_another(place: str) -> None:
    registry = registry_with()
    desk = desk_on(registry)
    registry.apply(add_broker(desk, entered()))
    wanted = BrokerReplacement(hostname=place, ip="10.0.0.2", serve_port=20881, sync_port=7)
    changes = replace_broker(desk, "g1", "MASTER", wanted)
    registry.apply(changes)
    [now] = registry.brokers_in("g1")
    assert (now.hostname, now.ip, now.sync_port) == (place, "10.0.0.2", 7)
    action, target, before, after = entry_of(changes)
    assert (action, target, before["hostname"], after["hostname"]) == (
        "broker.replace",
        "g1/MASTER",
        "h-MASTER",
        place,
    )
    assert replace_broker(desk, "g1", "MASTER", wanted) == ()


def test_what_is_not_entered_cannot_be_replaced_or_removed() -> None:
    registry = registry_with()
    desk = desk_on(registry)
    wanted = BrokerReplacement(hostname="h", ip="10.0.0.2", serve_port=1, sync_port=7)
    with pytest.raises(NotFoundError):
        replace_broker(desk, "g1", "MASTER", wanted)
    with pytest.raises(NotFoundError):
        remove_broker(desk, "g1", "MASTER", version=None)
    registry.apply(add_broker(desk, entered()))
    with pytest.raises(StateError, match="version"):
        remove_broker(desk, "g1", "MASTER", version=2)
    registry.apply(remove_broker(desk, "g1", "MASTER", version=1))
    assert not registry.brokers


# Routes and subjects


def test_a_route_of_an_operators_is_left_alone_and_makes_its_subject_known() -> None:
    registry = registry_with(broker_groups=(group("g1"), group("g2")))
    changes = set_route(desk_on(registry), "a.b", RouteSet(groups=("g2",)), is_prefix=False)
    registry.apply(changes)
    assert registry.routes["a.b"].groups == ("g2",)
    assert "a.b" in registry.subjects
    assert plan_route(registry, "a.b", RoutingLimits(), now_ms=99) == []
    again = set_route(desk_on(registry), "a.b", RouteSet(groups=("g2",)), is_prefix=False)
    assert again == ()


def test_a_route_that_was_chosen_becomes_an_operators_though_its_groups_stay() -> None:
    registry = registry_with(
        broker_groups=(group("g1"),), routes=(Route(name="a", groups=("g1",)),)
    )
    registry.apply(set_route(desk_on(registry), "a", RouteSet(groups=("g1",)), is_prefix=False))
    assert not registry.routes["a"].is_chosen


@pytest.mark.parametrize(
    ("subject", "groups", "field"),
    [
        ("a b", ("g1",), "subject"),
        ("a/b", ("g1",), "subject"),
        ("%RETRY%a%g", ("g1",), "subject"),
        ("x" * 256, ("g1",), "subject"),
        ("a", ("g1", "g1"), "groups"),
        ("a", ("g1", "nowhere"), "groups"),
        ("a", ("d1",), "groups"),
        ("a", ("old",), "groups"),
        ("a", tuple(f"g{n}" for n in range(9)), "groups"),
    ],
)
def test_what_a_route_cannot_be_is_refused_by_field(
    subject: str, groups: tuple[str, ...], field: str
) -> None:
    registry = registry_with(
        broker_groups=(group("g1"), delay_group("d1"), group("old", is_retired=True))
    )
    desk = desk_on(registry, route_groups_max=8)
    with pytest.raises(BadValueError) as caught:
        set_route(desk, subject, RouteSet(groups=groups), is_prefix=False)
    assert caught.value.field == field


def test_routes_have_versions_and_none_has_version_zero() -> None:
    registry = registry_with(broker_groups=(group("g1"), group("g2")))
    desk = desk_on(registry)
    with pytest.raises(StateError, match="does not exist"):
        set_route(desk, "a", RouteSet(groups=("g1",), version=1), is_prefix=False)
    registry.apply(set_route(desk, "a", RouteSet(groups=("g1",), version=0), is_prefix=False))
    with pytest.raises(StateError, match="version 1"):
        set_route(desk, "a", RouteSet(groups=("g2",), version=0), is_prefix=False)
    with pytest.raises(StateError):
        remove_route(desk, "a", is_prefix=False, version=2)
    registry.apply(remove_route(desk, "a", is_prefix=False, version=1))
    with pytest.raises(NotFoundError):
        remove_route(desk, "a", is_prefix=False, version=None)


def test_there_is_a_limit_to_prefixes_and_to_subjects() -> None:
    registry = registry_with(broker_groups=(group("g1"),))
    desk = desk_on(registry, prefix_routes_max=1)
    wanted = RouteSet(groups=("g1",))
    registry.apply(set_route(desk, "a.", wanted, is_prefix=True))
    with pytest.raises(StateError, match="limit"):
        set_route(desk, "b.", wanted, is_prefix=True)
    for number in range(20):
        registry.apply(set_subject(desk, f"s{number}", SubjectSet()))
    with pytest.raises(StateError, match="20 subjects"):
        set_subject(desk, "one.more", SubjectSet())
    with pytest.raises(StateError, match="20 subjects"):
        set_route(desk, "one.more", wanted, is_prefix=False)


def test_a_group_that_was_taken_out_of_a_route_does_not_come_back_by_itself() -> None:
    registry = registry_with(
        broker_groups=(group("g1"), group("g2")),
        routes=(Route(name="a", groups=("g1", "g2")),),
    )
    desk = desk_on(registry)
    registry.apply(reduce_route(desk, "a", "g2"))
    registry.apply(plan_route(registry, "a", RoutingLimits(), now_ms=99))
    assert registry.routes["a"].groups == ("g1",)
    with pytest.raises(StateError, match="only broker group"):
        reduce_route(desk, "a", "g1")
    assert reduce_route(desk, "a", "g2") == ()


def test_a_group_joins_those_routes_that_have_another_one() -> None:
    registry = registry_with(
        broker_groups=(group("g1"), group("g2")), routes=(Route(name="a", groups=("g1",)),)
    )
    desk = desk_on(registry, route_groups_max=2)
    assert extend_route(desk, "a", "g2", "g1") == ()
    with pytest.raises(BadValueError, match="add it first"):
        extend_route(desk, "a", "g1", "nowhere")
    registry.apply(extend_route(desk, "a", "g1", "g2"))
    assert registry.routes["a"].groups == ("g1", "g2")
    assert registry.routes["a"].is_chosen
    with pytest.raises(StateError, match="limit"):
        extend_route(desk, "a", "g1", "g3")


def test_a_tag_is_set_and_stays_for_whoever_sets_it_again() -> None:
    registry = registry_with()
    desk = desk_on(registry)
    registry.apply(set_subject(desk, "a", SubjectSet(tag="t", version=0)))
    assert set_subject(desk, "a", SubjectSet(tag="t")) == ()
    with pytest.raises(StateError):
        set_subject(desk, "a", SubjectSet(tag="u", version=0))
    registry.apply(set_subject(desk, "a", SubjectSet(tag="u", version=1)))
    assert registry.subjects["a"].tag == "u"


# Delay servers


def cluster(*others: str, in_sync: Sequence[str] = ("n1",), min_isr: int = 1) -> Registry:
    """Return a delay group d1 with the master n1 and others, as the model has them."""
    names = ("n1", *others)
    nodes = tuple(
        DelayNode(
            cluster="c1",
            group="d1",
            node_id=name,
            log_uuid=uuid(1),
            storage_uuid=uuid(100 + number),
            incarnation=1,
            last_sequence=1,
            address=f"10.0.0.{number}:20801",
        )
        for number, name in enumerate(names)
    )
    record = GroupRecord(
        epoch=4,
        version=9,
        master=Master(node_id="n1", incarnation=1),
        in_sync={name: uuid(100 + names.index(name)) for name in in_sync},
        min_isr=min_isr,
        phase=Phase.ACTIVE,
    )
    return registry_with(
        broker_groups=(group("d1", kind=GroupKind.DELAY, master="10.0.0.0:20801"),),
        delay_nodes=nodes,
        delay_groups=(DelayGroup(name="d1", cluster="c1", log_uuid=uuid(1), record=record),),
    )


def given_up(registry: Registry, node_id: str, *, lose: bool = False) -> tuple[Change, ...]:
    return give_up_node(desk_on(registry), "d1", node_id, is_heard=False, lose_messages=lose)


def removed(registry: Registry, node_id: str) -> tuple[Change, ...]:
    return remove_node(desk_on(registry), "d1", node_id, is_connected=False)


def test_a_node_that_is_not_in_sync_is_removed_and_nothing_is_given_up_for_it() -> None:
    registry = cluster("n2")
    before = registry.delay_groups["d1"]
    with pytest.raises(StateError, match=r"nothing has to be given up: .* remove d1 n2`"):
        given_up(registry, "n2", lose=True)
    with pytest.raises(StateError, match=r"n2 at .* is alive, and would register again: stop it"):
        remove_node(desk_on(registry), "d1", "n2", is_connected=True)
    changes = removed(registry, "n2")
    registry.apply(changes)
    assert [row.node_id for row in registry.nodes.values()] == ["n1"]
    assert registry.delay_groups["d1"] == before
    assert entry_of(changes)[:2] == ("node.remove", "c1/d1/n2")


def test_a_disk_in_sync_is_not_removed_and_what_to_do_first_is_said() -> None:
    registry = cluster("n2", "n3", in_sync=("n1", "n2", "n3"), min_isr=2)
    for node_id, reason in (
        ("n1", "n1 is the master: have it hand over by .* handover d1`"),
        ("n3", "n3 is in sync: stop it, and the master n1 drops it within seconds"),
    ):
        with pytest.raises(StateError, match=reason):
            removed(registry, node_id)
    registry.apply(elected(registry))
    with pytest.raises(StateError, match="no master who could drop it: wait for the election"):
        removed(registry, "n3")
    registry = cluster("n2", in_sync=("n1", "n2"), min_isr=2)
    with pytest.raises(StateError, match="n2 is one of 2 members in sync, and min_isr of d1 is 2"):
        removed(registry, "n2")
    registry = cluster()
    with pytest.raises(StateError, match=r"only disk with the messages of d1.* give-up d1 n1`"):
        removed(registry, "n1")


def test_a_node_that_lives_is_not_given_up() -> None:
    registry = cluster("n2")
    with pytest.raises(StateError, match="was heard lately"):
        give_up_node(desk_on(registry), "d1", "n1", is_heard=True, lose_messages=True)
    for name, node_id in (("d9", "n1"), ("d1", "n9")):
        with pytest.raises(NotFoundError):
            give_up_node(desk_on(registry), name, node_id, is_heard=False, lose_messages=True)
        with pytest.raises(NotFoundError):
            remove_node(desk_on(registry), name, node_id, is_connected=False)


def test_the_only_copy_is_given_up_only_if_messages_may_be_lost() -> None:
    registry = cluster("n2")
    with pytest.raises(StateError, match="only disk"):
        given_up(registry, "n1")
    registry.apply(given_up(registry, "n1", lose=True))
    record = registry.delay_groups["d1"].record
    assert (record.epoch, record.version, record.master) == (5, 10, None)
    assert (record.in_sync, record.phase) == ({}, Phase.ELECTING)
    assert (registry.groups["d1"].master, registry.groups["d1"].state) == ("", BrokerState.NRW)


def test_after_that_the_next_node_begins_the_group_again_in_a_later_epoch() -> None:
    registry = cluster("n2")
    registry.apply(given_up(registry, "n1", lose=True))
    request = node("n2", log=2, storage=101, last_epoch=3, address="10.0.0.1:20801", incarnation=2)
    registered = plan_node(
        registry,
        request,
        is_heard=False,
        is_present=False,
        why_behind=lambda _: "",
        groups_max=9,
        now_ms=5,
    )
    registry.apply(registered.changes)
    assert registered.role is NodeRole.MASTER
    assert (registered.record.epoch, list(registered.record.in_sync)) == (6, ["n2"])
    assert registry.delay_groups["d1"].log_uuid == uuid(2)
    # The one that was given up comes back with its messages: they are not the group's any more.
    old = node("n1", log=1, storage=100, last_epoch=4, address="10.0.0.0:20801", incarnation=2)
    with pytest.raises(RefusedError, match="it has records of the log"):
        plan_node(
            registry,
            old,
            is_heard=False,
            is_present=False,
            why_behind=lambda _: "",
            groups_max=9,
            now_ms=6,
        )


def older_taken(
    registry: Registry, *, node_id: str = "n1", is_heard: bool = False, lose: bool = True
) -> tuple[Change, ...]:
    return accept_older_node(
        desk_on(registry), "d1", node_id, is_heard=is_heard, lose_messages=lose
    )


def test_an_older_directory_is_taken_only_if_messages_may_be_lost_and_the_newer_is_dead() -> None:
    registry = cluster()
    older = node(storage=100, last_sequence=0, address="10.0.0.0:20801", incarnation=2)

    def plan() -> Registered:
        return plan_node(
            registry,
            older,
            is_heard=False,
            is_present=False,
            why_behind=lambda _: "",
            groups_max=9,
            now_ms=5,
        )

    with pytest.raises(RefusedError, match="older copy"):
        plan()
    with pytest.raises(StateError, match="was heard lately"):
        older_taken(registry, is_heard=True)
    with pytest.raises(StateError, match="n1 had record 1 in epoch 0: what an older"):
        older_taken(registry, lose=False)
    with pytest.raises(NotFoundError):
        older_taken(registry, node_id="n9")
    changes = older_taken(registry)
    assert entry_of(changes)[:2] == ("node.accept-older", "c1/d1/n1")
    registry.apply(changes)
    assert older_taken(registry) == ()
    registered = plan()
    assert (registered.role, registered.record.epoch) == (NodeRole.MASTER, 5)
    registry.apply(registered.changes)
    begun = msgspec.structs.replace(older, last_epoch=5, last_sequence=1)
    again = plan_node(
        registry,
        begun,
        is_heard=True,
        is_present=False,
        why_behind=lambda _: "",
        groups_max=9,
        now_ms=6,
    )
    registry.apply(again.changes)
    # The newer directory, with all that it had, is refused from now on.
    newer = msgspec.structs.replace(
        older, incarnation=3, boot_id=uuid(77), last_epoch=4, last_sequence=99
    )
    with pytest.raises(RefusedError, match="it lacks that epoch"):
        plan_node(
            registry,
            newer,
            is_heard=False,
            is_present=False,
            why_behind=lambda _: "",
            groups_max=9,
            now_ms=7,
        )


def test_one_of_several_copies_is_given_up_only_where_no_master_could_drop_it() -> None:
    registry = cluster("n2", "n3", in_sync=("n1", "n2", "n3"), min_isr=2)
    with pytest.raises(StateError, match=r"another one elected by .* elect d1"):
        given_up(registry, "n1", lose=True)
    with pytest.raises(StateError, match="stop it, and the master n1 drops it within seconds"):
        given_up(registry, "n3")
    registry.apply(elected(registry))
    registry.apply(given_up(registry, "n3"))
    record = registry.delay_groups["d1"].record
    assert (record.epoch, record.version, sorted(record.in_sync)) == (5, 11, ["n1", "n2"])
    with pytest.raises(StateError, match=r"min_isr of d1 is 2: .* set d1 --min-isr 1`"):
        given_up(registry, "n2", lose=True)


NOBODY = GroupState(-100.0)


def elected(registry: Registry, state: GroupState = NOBODY) -> tuple[Change, ...]:
    return elect_master(desk_on(registry), "d1", state, now=0.0)


def test_an_election_begins_unless_the_master_may_send_and_a_second_one_joins_it() -> None:
    registry = cluster("n2", in_sync=("n1", "n2"))
    state = GroupState(-100.0)
    hears = Stands(hears=registry.delay_groups["d1"].record.epoch, hears_sender=True)
    state.was_heard("n2", Heard(0.0, uuid(101), 1, 50, 0, stands=hears))
    with pytest.raises(StateError, match="n1 is the master, and may send: have it hand"):
        elected(registry, state)
    changes = elected(registry)
    assert entry_of(changes)[:2] == ("delay-group.elect", "c1/d1")
    registry.apply(changes)
    record = registry.delay_groups["d1"].record
    assert (record.epoch, record.version, record.master) == (5, 10, None)
    assert registry.groups["d1"].state is BrokerState.NRW
    assert elected(registry, state) == ()
    with pytest.raises(NotFoundError):
        elect_master(desk_on(registry), "d9", state, now=0.0)


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        ("n1", "n1 is none of those in sync beside n1 that were heard within 2.5 s"),
        ("n4", "n4 is none of those in sync beside n1 that were heard within 2.5 s .n2.: start it"),
        ("n3", "n3 is none of those in sync beside n1 that were heard within 2.5 s .n2.: start it"),
    ],
)
def test_a_handover_that_cannot_be_is_refused_with_what_to_do(to: str, reason: str) -> None:
    registry = cluster("n2", "n3", "n4", in_sync=("n1", "n2", "n3"))
    state = GroupState(-100.0)
    with pytest.raises(StateError, match="nobody in sync beside n1 was heard"):
        ask_to_hand_over(desk_on(registry), "d1", state, to=None, now=9.0)
    state.was_heard("n2", Heard(9.0, uuid(101), 1, 50, 0))
    with pytest.raises(StateError, match=reason):
        ask_to_hand_over(desk_on(registry), "d1", state, to=to, now=9.0)
    assert not state.forget_wish(99.0), "there is none"
    changes = ask_to_hand_over(desk_on(registry), "d1", state, to=None, now=9.0)
    assert entry_of(changes)[:2] == ("delay-group.hand-over", "c1/d1")
    assert state.wish == Wish(4, "n2", "an operator asked", until=19.0)
    assert (state.forget_wish(18.9), state.forget_wish(19.1)) == (False, True)
    registry.apply(elected(registry))
    with pytest.raises(StateError, match="an election is under way"):
        ask_to_hand_over(desk_on(registry), "d1", state, to=None, now=9.0)


def test_the_least_size_of_the_in_sync_set_is_no_more_than_there_are() -> None:
    registry = cluster("n2", in_sync=("n1", "n2"))
    with pytest.raises(StateError, match="3 disks cannot be required while 2 are in sync: n1, n2"):
        set_group_min_isr(desk_on(registry), "d1", 3)
    assert set_group_min_isr(desk_on(registry), "d1", 1) == ()
    changes = set_group_min_isr(desk_on(registry), "d1", 2)
    assert entry_of(changes)[:2] == ("delay-group.min-isr", "c1/d1")
    registry.apply(changes)
    record = registry.delay_groups["d1"].record
    assert (record.epoch, record.version, record.min_isr) == (4, 10, 2)


# Whatever comes


NAMES = st.sampled_from(["g1", "g2", "g3", "d1"])
SUBJECTS = st.sampled_from(["a", "b", "a.b", "%RETRY%a%g"])
VERSIONS = st.none() | st.integers(0, 3)
ROLES: Any = st.sampled_from(["MASTER", "SLAVE", "DELAY_MASTER", "BACKUP"])


class Administrators(RuleBasedStateMachine):
    """Operators, brokers and clients: a plan is refused, or does just what its entry says."""

    @initialize()
    def begin(self) -> None:
        self.registry = Registry(Contents())
        self.desk = desk_on(self.registry, prefix_routes_max=2)

    def carry_out(self, plan: Any, *arguments: Any, **more: Any) -> None:  # noqa: ANN401
        with contextlib.suppress(RefusedError):
            changes = plan(self.desk, *arguments, **more)
            entries = [change for change in changes if isinstance(change, Audit)]
            assert len(entries) == bool(changes)
            before = self.registry.contents()
            # A plan that would conflict with what it was made on raises here.
            self.registry.apply(changes)
            if changes:
                assert self.registry.contents() != before
                assert entries[0].entry.before != entries[0].entry.after

    @rule(name=NAMES, address=st.sampled_from(["", "h:1"]), static=st.none() | st.booleans())
    def add(self, name: str, address: str, static: bool | None) -> None:
        kind: Any = "delay" if name == "d1" else "normal"
        new = BrokerGroupNew(name=name, kind=kind, address=address, static=static)
        self.carry_out(add_group, new)

    @rule(
        name=NAMES,
        fields=st.fixed_dictionaries(
            {},
            optional={
                "address": st.sampled_from(["", "h:2"]),
                "state": st.sampled_from(["RW", "R", "NRW"]),
                "static": st.booleans(),
                "weight": st.integers(0, 2),
                "ext": st.just({"k": "v"}),
                "version": VERSIONS.filter(lambda version: version != 0),
            },
        ),
    )
    def change(self, name: str, fields: dict[str, Any]) -> None:
        self.carry_out(change_group, name, BrokerGroupChange(**fields))

    @rule(name=NAMES, lose=st.booleans(), version=VERSIONS)
    def retire(self, name: str, lose: bool, version: int | None) -> None:
        self.carry_out(retire_group, name, version=version, lose_messages=lose)

    @rule(name=NAMES)
    def restore(self, name: str) -> None:
        self.carry_out(restore_group, name, version=None)

    @rule(name=NAMES, on=st.booleans())
    def read_only(self, name: str, on: bool) -> None:
        self.carry_out(set_read_only, name, ReadOnlyChange(read_only=on))

    @rule(name=NAMES, role=ROLES, host=st.sampled_from(["x", "y", "z"]))
    def enter(self, name: str, role: Any, host: str) -> None:  # noqa: ANN401
        sync = 0 if role == "BACKUP" else 2
        new = BrokerNew(
            group=name, role=role, hostname=host, ip="10.0.0.1", serve_port=1, sync_port=sync
        )
        self.carry_out(add_broker, new)

    @rule(name=NAMES, role=ROLES, host=st.sampled_from(["x", "y", "z"]), port=st.integers(2, 3))
    def put(self, name: str, role: str, host: str, port: int) -> None:
        place = BrokerReplacement(hostname=host, ip="10.0.0.2", serve_port=1, sync_port=port)
        self.carry_out(replace_broker, name, role, place)

    @rule(name=NAMES, role=ROLES, version=VERSIONS)
    def leave(self, name: str, role: str, version: int | None) -> None:
        self.carry_out(remove_broker, name, role, version=version)

    @rule(
        subject=SUBJECTS,
        groups=st.lists(NAMES, min_size=1, max_size=3),
        prefix=st.booleans(),
        version=VERSIONS,
    )
    def route(self, subject: str, groups: list[str], prefix: bool, version: int | None) -> None:
        wanted = RouteSet(groups=tuple(groups), version=version)
        self.carry_out(set_route, subject, wanted, is_prefix=prefix)

    @rule(subject=SUBJECTS, prefix=st.booleans(), version=VERSIONS)
    def unroute(self, subject: str, prefix: bool, version: int | None) -> None:
        self.carry_out(remove_route, subject, is_prefix=prefix, version=version)

    @rule(subject=SUBJECTS, one=NAMES, other=NAMES)
    def extend(self, subject: str, one: str, other: str) -> None:
        self.carry_out(extend_route, subject, one, other)

    @rule(subject=SUBJECTS, name=NAMES)
    def reduce(self, subject: str, name: str) -> None:
        self.carry_out(reduce_route, subject, name)

    @rule(subject=SUBJECTS, tag=st.sampled_from(["", "t"]), version=VERSIONS)
    def tag(self, subject: str, tag: str, version: int | None) -> None:
        self.carry_out(set_subject, subject, SubjectSet(tag=tag, version=version))

    @rule(name=NAMES, address=st.sampled_from(["h:1", "h:2", "10.0.0.1:1"]))
    def register(self, name: str, address: str) -> None:
        with contextlib.suppress(RefusedError):
            role = BrokerRole.DELAY_MASTER if name == "d1" else BrokerRole.MASTER
            request = broker(name, address=address, role=role)
            heard = plan_register(
                self.registry,
                request,
                where="",
                is_heard=True,
                groups_max=8,
                now_ms=self.desk.now_ms,
            )
            self.registry.apply(heard.changes)

    @rule(subject=st.sampled_from(["a", "b", "a.b"]))
    def use(self, subject: str) -> None:
        self.registry.apply(plan_route(self.registry, subject, RoutingLimits(), now_ms=1))

    @invariant()
    def limits_hold(self) -> None:
        registry = self.registry
        assert len(registry.prefixes) <= 2
        for route in (*registry.routes.values(), *registry.prefixes.values()):
            assert route.groups
            assert len(set(route.groups)) == len(route.groups)
            assert all(registry.groups[name].kind is GroupKind.NORMAL for name in route.groups)
        for name in registry.groups:
            assert len(registry.brokers_in(name)) <= 3

    @invariant()
    def what_is_static_has_an_address(self) -> None:
        for row in self.registry.groups.values():
            assert row.master or "static" not in row.ext


TestAdministrators = Administrators.TestCase
TestAdministrators.settings = examples(60, stateful_step_count=40)


def test_nothing_of_a_group_is_changed_whose_newest_record_the_store_lacks() -> None:
    registry = cluster("n2")
    newer = msgspec.structs.replace(registry.delay_groups["d1"].record, epoch=7)
    desk = desk_on(registry)
    desk.set_backs.told(msgspec.structs.replace(node(), told=Told(record=newer, nodes=("n1",))))
    state = GroupState(0.0)
    plans: tuple[Callable[[], object], ...] = (
        lambda: elect_master(desk, "d1", state, now=0.0),
        lambda: ask_to_hand_over(desk, "d1", state, to=None, now=0.0),
        lambda: set_group_min_isr(desk, "d1", 2),
        lambda: remove_node(desk, "d1", "n2", is_connected=False),
        lambda: give_up_node(desk, "d1", "n1", is_heard=False, lose_messages=True),
    )
    for plan in plans:
        with pytest.raises(StateError, match="d1: n1 was told epoch 7"):
            plan()
    assert recover_group(desk, "d1", lose_messages=True)
