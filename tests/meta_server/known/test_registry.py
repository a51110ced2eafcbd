"""The registry has what changes say, refuses what does not fit, and then changes nothing at all."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.meta.requests import BrokerRole
from delay_protocol.nodes.registration import GroupRecord, Master, Phase
from meta_server.known import model
from meta_server.known.errors import ConflictError
from meta_server.known.registry import Registry
from tests.meta_server.meta_rig import uuid

GROUP = model.BrokerGroup(name="g1", kind=model.GroupKind.NORMAL, master="10.0.0.1:1")
BROKER = model.Broker(hostname="h", serve_port=1, ip="10.0.0.1", group="g1", role=BrokerRole.MASTER)
ROUTE = model.Route(name="a.", groups=("g1",))
PREFIX = replace(ROUTE, is_prefix=True)
NODE = model.DelayNode(
    cluster="c1",
    group="d1",
    node_id="n1",
    log_uuid=uuid(1),
    storage_uuid=uuid(2),
    incarnation=1,
    last_sequence=0,
    address="10.0.0.5:1",
)


def delay_group(
    name: str = "d1", *, epoch: int = 1, version: int = 1, log: int = 1
) -> model.DelayGroup:
    return model.DelayGroup(
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


ENTRY = model.AuditEntry(at_ms=1, actor="me", action="do", target="it")

CHANGES: list[model.Change] = [
    model.SaveBrokerGroup(GROUP),
    model.SaveBrokerGroup(replace(GROUP, version=2, weight=5)),
    model.RemoveBrokerGroup(replace(GROUP, version=2)),
    model.SaveBroker(BROKER),
    model.SaveBroker(replace(BROKER, version=2, group="g2")),
    model.RemoveBroker(BROKER),
    model.RemoveBroker(replace(BROKER, version=2)),
    model.SaveSubject(model.Subject(name="a")),
    model.SaveSubject(model.Subject(name="a", tag="t", version=2)),
    model.RemoveSubject(model.Subject(name="a")),
    model.RemoveSubject(model.Subject(name="a", tag="t", version=2)),
    model.SaveRoute(ROUTE),
    model.SaveRoute(replace(ROUTE, version=2, groups=("g1", "g2"))),
    model.SaveRoute(replace(ROUTE, version=2, groups=("r1",), is_brought=True)),
    model.RemoveRoute(ROUTE),
    model.SaveRoute(PREFIX),
    model.RemoveRoute(PREFIX),
    model.SaveDelayNode(NODE),
    model.SaveDelayNode(replace(NODE, version=2, incarnation=2)),
    model.RemoveDelayNode(NODE),
    model.SaveDelayGroup(delay_group(), None),
    model.SaveDelayGroup(delay_group(epoch=2, version=2), (1, 1)),
    model.SaveDelayGroup(delay_group("d2"), None),
    model.SaveDelayGroup(delay_group("d3", log=3), None),
    model.RemoveDelayGroup(delay_group("d3", log=3)),
    model.RaiseTimestamp(5),
    model.RaiseTimestamp(3),
    model.Audit(ENTRY),
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


def _tables(contents: model.Contents) -> dict[str, tuple[object, ...]]:
    return {
        name: getattr(contents, name)
        for name in model.Contents.__dataclass_fields__
        if name != "timestamp_ms"
    }


@given(st.lists(st.lists(st.sampled_from(CHANGES), min_size=1, max_size=4), max_size=12))
def test_commits_are_all_or_nothing_and_what_is_loaded_is_what_was_there(
    commits: list[list[model.Change]],
) -> None:
    registry = Registry(model.Contents())
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
        [model.SaveBrokerGroup(replace(GROUP, version=2))],
        [model.SaveBrokerGroup(GROUP), model.SaveBrokerGroup(GROUP)],
        [model.SaveBroker(BROKER), model.RemoveBroker(replace(BROKER, version=2))],
        [model.RemoveBroker(BROKER)],
        [model.SaveSubject(model.Subject(name="a", version=3))],
        [model.RemoveRoute(ROUTE)],
        [model.SaveRoute(ROUTE), model.SaveRoute(PREFIX), model.SaveRoute(PREFIX)],
        [model.RemoveDelayNode(NODE)],
        [model.RemoveBrokerGroup(GROUP)],
        [model.SaveDelayGroup(delay_group(), None), model.RemoveDelayGroup(delay_group(epoch=2))],
        [model.SaveDelayGroup(delay_group(), (1, 1))],
        [model.SaveDelayGroup(delay_group(), None), model.SaveDelayGroup(delay_group(), None)],
        [
            model.SaveDelayGroup(delay_group(), None),
            model.SaveDelayGroup(delay_group(epoch=2), (1, 2)),
        ],
        [model.SaveDelayGroup(delay_group(), None), model.SaveDelayGroup(delay_group("d2"), None)],
    ],
)
def test_what_does_not_fit_is_a_conflict(changes: list[model.Change]) -> None:
    registry = Registry(model.Contents())
    with pytest.raises(ConflictError):
        registry.apply(changes)
    assert state_of(registry) == state_of(Registry(model.Contents()))


def test_a_conflict_says_what_was_found() -> None:
    with pytest.raises(ConflictError) as caught:
        Registry(model.Contents()).apply([model.SaveBrokerGroup(replace(GROUP, version=4))])
    assert str(caught.value) == "broker group g1: expected version 3, found version 0"


def test_a_broker_that_moved_is_found_in_its_new_group_only() -> None:
    registry = Registry(model.Contents())
    registry.apply(
        [model.SaveBroker(BROKER), model.SaveBroker(replace(BROKER, version=2, group="g2"))]
    )
    assert registry.brokers_in("g1") == ()
    assert registry.broker_with_role("g2", BrokerRole.SLAVE, BrokerRole.MASTER) is not None
    assert registry.broker_with_role("g2", BrokerRole.SLAVE) is None


def test_the_longest_prefix_counts() -> None:
    registry = Registry(model.Contents())
    for name in ("", "a.", "a.b.c"):
        registry.apply([model.SaveRoute(replace(PREFIX, name=name))])
    found = [registry.prefix_route(subject) for subject in ("x", "a.b", "a.b.c.d")]
    assert [route.name for route in found if route] == ["", "a.", "a.b.c"]


def test_a_registry_can_be_dropped_little_by_little() -> None:
    registry = Registry(
        model.Contents(subjects=tuple(model.Subject(name=str(n)) for n in range(25)))
    )
    assert [registry.dismantle(10) for _ in range(4)] == [True, True, True, False]
    assert registry.contents() == model.Contents()


def test_taking_over_another_registry_never_lowers_the_timestamp() -> None:
    registry = Registry(model.Contents(timestamp_ms=9, subjects=(model.Subject(name="a"),)))
    registry.adopt(Registry(model.Contents(timestamp_ms=5, broker_groups=(GROUP,))))
    assert (registry.timestamp_ms, list(registry.groups), list(registry.subjects)) == (
        9,
        ["g1"],
        [],
    )
