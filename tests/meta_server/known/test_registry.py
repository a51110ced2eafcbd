"""The registry has what changes say, refuses what does not fit, and then changes nothing at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from delay_protocol.meta.requests import BrokerRole
from meta_server.known import model
from meta_server.known.errors import ConflictError
from meta_server.known.registry import Registry
from tests.meta_server.memory_store import contents_of
from tests.meta_server.meta_rig import record, uuid

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
    boot_id=uuid(3),
    last_sequence=0,
    address="10.0.0.5:1",
)


def delay_group(
    name: str = "d1", *, epoch: int = 1, version: int = 1, log: int = 1
) -> model.DelayGroup:
    known = record(epoch, version, n1=uuid(2))
    return model.DelayGroup(name=name, cluster="c1", log_uuid=uuid(log), record=known)


ENTRY = model.AuditEntry(at_ms=1, actor="me", action="do", target="it")

CHANGES: list[model.Change] = [
    model.Save(GROUP),
    model.Save(replace(GROUP, version=2, weight=5)),
    model.Remove(replace(GROUP, version=2)),
    model.Save(BROKER),
    model.Save(replace(BROKER, group="g2")),
    model.Save(replace(BROKER, version=2, serve_port=2)),
    model.Remove(BROKER),
    model.Remove(replace(BROKER, version=2)),
    model.Save(model.Subject(name="a")),
    model.Save(model.Subject(name="a", created_ms=2, version=2)),
    model.Remove(model.Subject(name="a")),
    model.Remove(model.Subject(name="a", created_ms=2, version=2)),
    model.Save(ROUTE),
    model.Save(replace(ROUTE, version=2, groups=("g1", "g2"))),
    model.Remove(ROUTE),
    model.Save(PREFIX),
    model.Remove(PREFIX),
    model.Save(NODE),
    model.Save(replace(NODE, version=2, incarnation=2)),
    model.Remove(NODE),
    model.Save(delay_group()),
    model.Save(delay_group(epoch=2, version=2), over="1.1"),
    model.Save(delay_group("d2")),
    model.Save(delay_group("d3", log=3)),
    model.Remove(delay_group("d3", log=3)),
    model.RaiseTimestamp(5),
    model.RaiseTimestamp(3),
    model.Audit(ENTRY),
]


def state_of(registry: Registry) -> object:
    """Return everything that can be seen, independent of the order of rows."""
    contents = contents_of(registry)
    return (
        frozenset(map(repr, contents.rows)),
        contents.timestamp_ms,
        {name: sorted(map(repr, registry.brokers_in(name))) for name in ("g1", "g2")},
        sorted(map(repr, registry.nodes_in("c1", "d1"))),
        repr(registry.prefix_route("a.b")),
    )


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
        assert state_of(Registry(contents_of(registry))) == state_of(registry)


@pytest.mark.parametrize(
    "changes",
    [
        [model.Save(replace(GROUP, version=2))],
        [model.Save(BROKER), model.Remove(replace(BROKER, version=2))],
        [model.Remove(ROUTE)],
        [model.Save(ROUTE), model.Save(PREFIX), model.Save(PREFIX)],
        [model.Save(delay_group()), model.Remove(delay_group(epoch=2))],
        [model.Save(delay_group(), over="1.1")],
        [model.Save(delay_group()), model.Save(delay_group(epoch=2), over="1.2")],
        [model.Save(delay_group()), model.Save(delay_group("d2"))],
    ],
)
def test_what_does_not_fit_is_a_conflict(changes: list[model.Change]) -> None:
    registry = Registry(model.Contents())
    with pytest.raises(ConflictError):
        registry.apply(changes)
    assert state_of(registry) == state_of(Registry(model.Contents()))


def test_a_conflict_says_what_was_found() -> None:
    with pytest.raises(ConflictError) as caught:
        Registry(model.Contents()).apply([model.Save(replace(GROUP, version=4))])
    assert str(caught.value) == "broker-group g1: expected version 3, found None"


def test_a_broker_that_moved_is_found_in_its_new_group_only() -> None:
    registry = Registry(model.Contents())
    moved = model.Save(replace(BROKER, group="g2"))
    registry.apply([model.Save(BROKER), model.Remove(BROKER), moved])
    found = registry.claimed(model.Broker, ("h", 1))
    assert found is not None
    assert found.group == "g2"
    assert registry.brokers_in("g1") == ()
    assert registry.broker_with_role("g2", BrokerRole.SLAVE, BrokerRole.MASTER) is not None
    assert registry.broker_with_role("g2", BrokerRole.SLAVE) is None


def test_the_longest_prefix_counts() -> None:
    registry = Registry(model.Contents())
    for name in ("", "a.", "a.b.c"):
        registry.apply([model.Save(replace(PREFIX, name=name))])
    found = [registry.prefix_route(subject) for subject in ("x", "a.b", "a.b.c.d")]
    assert [route.name for route in found if route] == ["", "a.", "a.b.c"]


def test_taking_over_another_registry_never_lowers_the_timestamp() -> None:
    registry = Registry(model.Contents(timestamp_ms=9, rows=(model.Subject(name="a"),)))
    registry.adopt(Registry(model.Contents(timestamp_ms=5, rows=(GROUP,))))
    assert (registry.timestamp_ms, list(registry.groups), list(registry.subjects)) == (
        9,
        ["g1"],
        [],
    )
