"""The registry has what changes say, refuses what does not fit, and then changes nothing at all."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.meta.requests import BrokerRole
from delay_protocol.nodes.registration import GroupRecord, Master, Phase
from meta_server.known.errors import ConflictError
from meta_server.known.model import (
    Audit,
    AuditEntry,
    Broker,
    BrokerGroup,
    Change,
    Contents,
    DelayGroup,
    DelayNode,
    GroupKind,
    RaiseTimestamp,
    RemoveBroker,
    RemoveBrokerGroup,
    RemoveDelayGroup,
    RemoveDelayNode,
    RemoveRoute,
    RemoveSubject,
    Route,
    SaveBroker,
    SaveBrokerGroup,
    SaveDelayGroup,
    SaveDelayNode,
    SaveRoute,
    SaveSubject,
    Subject,
)
from meta_server.known.registry import Registry
from tests.meta_server.meta_rig import uuid

GROUP = BrokerGroup(name="g1", kind=GroupKind.NORMAL, master="10.0.0.1:1")
BROKER = Broker(hostname="h", serve_port=1, ip="10.0.0.1", group="g1", role=BrokerRole.MASTER)
ROUTE = Route(name="a.", groups=("g1",))
PREFIX = replace(ROUTE, is_prefix=True)
NODE = DelayNode(
    cluster="c1",
    group="d1",
    node_id="n1",
    log_uuid=uuid(1),
    storage_uuid=uuid(2),
    incarnation=1,
    last_sequence=0,
    address="10.0.0.5:1",
)


def delay_group(name: str = "d1", *, epoch: int = 1, version: int = 1, log: int = 1) -> DelayGroup:
    return DelayGroup(
        name=name,
        cluster="c1",
        log_uuid=uuid(log),
        record=GroupRecord(
            epoch=epoch,
            version=version,
            master=Master(node_id="n1", incarnation=1),
            in_sync={"n1": uuid(2)},
            min_isr=1,
            phase=Phase.ACTIVE,
        ),
    )


ENTRY = AuditEntry(at_ms=1, actor="me", action="do", target="it")

CHANGES: list[Change] = [
    SaveBrokerGroup(GROUP),
    SaveBrokerGroup(replace(GROUP, version=2, weight=5)),
    RemoveBrokerGroup(replace(GROUP, version=2)),
    SaveBroker(BROKER),
    SaveBroker(replace(BROKER, version=2, group="g2")),
    RemoveBroker(BROKER),
    RemoveBroker(replace(BROKER, version=2)),
    SaveSubject(Subject(name="a")),
    SaveSubject(Subject(name="a", tag="t", version=2)),
    RemoveSubject(Subject(name="a")),
    RemoveSubject(Subject(name="a", tag="t", version=2)),
    SaveRoute(ROUTE),
    SaveRoute(replace(ROUTE, version=2, groups=("g1", "g2"))),
    SaveRoute(replace(ROUTE, version=2, groups=("r1",), is_brought=True)),
    RemoveRoute(ROUTE),
    SaveRoute(PREFIX),
    RemoveRoute(PREFIX),
    SaveDelayNode(NODE),
    SaveDelayNode(replace(NODE, version=2, incarnation=2)),
    RemoveDelayNode(NODE),
    SaveDelayGroup(delay_group(), None),
    SaveDelayGroup(delay_group(epoch=2, version=2), (1, 1)),
    SaveDelayGroup(delay_group("d2"), None),
    SaveDelayGroup(delay_group("d3", log=3), None),
    RemoveDelayGroup(delay_group("d3", log=3)),
    RaiseTimestamp(5),
    RaiseTimestamp(3),
    Audit(ENTRY),
]


def state_of(registry: Registry) -> object:
    """Return everything that can be seen, independent of the order of rows."""
    contents = registry.contents()
    return (
        {name: frozenset(map(repr, rows)) for name, rows in _tables(contents).items()},
        contents.timestamp_ms,
        {name: sorted(map(repr, registry.brokers_in(name))) for name in ("g1", "g2")},
        sorted(map(repr, registry.nodes_in("c1", "d1"))),
        repr(registry.prefix_route("a.b")),
        sorted(registry.brought),
    )


def _tables(contents: Contents) -> dict[str, tuple[object, ...]]:
    return {
        name: getattr(contents, name)
        for name in Contents.__dataclass_fields__
        if name != "timestamp_ms"
    }


@given(st.lists(st.lists(st.sampled_from(CHANGES), min_size=1, max_size=4), max_size=12))
def test_commits_are_all_or_nothing_and_what_is_loaded_is_what_was_there(
    commits: list[list[Change]],
) -> None:
    registry = Registry(Contents())
    for changes in commits:
        before = state_of(registry)
        try:
            registry.apply(changes)
        except ConflictError:
            assert state_of(registry) == before
        assert state_of(Registry(registry.contents())) == state_of(registry)


@pytest.mark.parametrize(
    "changes",
    [
        [SaveBrokerGroup(replace(GROUP, version=2))],
        [SaveBrokerGroup(GROUP), SaveBrokerGroup(GROUP)],
        [SaveBroker(BROKER), RemoveBroker(replace(BROKER, version=2))],
        [RemoveBroker(BROKER)],
        [SaveSubject(Subject(name="a", version=3))],
        [RemoveRoute(ROUTE)],
        [SaveRoute(ROUTE), SaveRoute(PREFIX), SaveRoute(PREFIX)],
        [RemoveDelayNode(NODE)],
        [RemoveBrokerGroup(GROUP)],
        [SaveDelayGroup(delay_group(), None), RemoveDelayGroup(delay_group(epoch=2))],
        [SaveDelayGroup(delay_group(), (1, 1))],
        [SaveDelayGroup(delay_group(), None), SaveDelayGroup(delay_group(), None)],
        [SaveDelayGroup(delay_group(), None), SaveDelayGroup(delay_group(epoch=2), (1, 2))],
        [SaveDelayGroup(delay_group(), None), SaveDelayGroup(delay_group("d2"), None)],
    ],
)
def test_what_does_not_fit_is_a_conflict(changes: list[Change]) -> None:
    registry = Registry(Contents())
    with pytest.raises(ConflictError):
        registry.apply(changes)
    assert state_of(registry) == state_of(Registry(Contents()))


def test_a_conflict_says_what_was_found() -> None:
    with pytest.raises(ConflictError) as caught:
        Registry(Contents()).apply([SaveBrokerGroup(replace(GROUP, version=4))])
    assert str(caught.value) == "broker group g1: expected version 3, found version 0"


def test_a_broker_that_moved_is_found_in_its_new_group_only() -> None:
    registry = Registry(Contents())
    registry.apply([SaveBroker(BROKER), SaveBroker(replace(BROKER, version=2, group="g2"))])
    assert registry.brokers_in("g1") == ()
    assert registry.broker_with_role("g2", BrokerRole.SLAVE, BrokerRole.MASTER) is not None
    assert registry.broker_with_role("g2", BrokerRole.SLAVE) is None


def test_the_longest_prefix_counts() -> None:
    registry = Registry(Contents())
    for name in ("", "a.", "a.b.c"):
        registry.apply([SaveRoute(replace(PREFIX, name=name))])
    found = [registry.prefix_route(subject) for subject in ("x", "a.b", "a.b.c.d")]
    assert [route.name for route in found if route] == ["", "a.", "a.b.c"]


def test_a_registry_can_be_dropped_little_by_little() -> None:
    registry = Registry(Contents(subjects=tuple(Subject(name=str(n)) for n in range(25))))
    assert [registry.dismantle(10) for _ in range(4)] == [True, True, True, False]
    assert registry.contents() == Contents()


def test_taking_over_another_registry_never_lowers_the_timestamp() -> None:
    registry = Registry(Contents(timestamp_ms=9, subjects=(Subject(name="a"),)))
    registry.adopt(Registry(Contents(timestamp_ms=5, broker_groups=(GROUP,))))
    assert (registry.timestamp_ms, list(registry.groups), list(registry.subjects)) == (
        9,
        ["g1"],
        [],
    )
