"""Routes: the same for everybody at all times, spread by weight, never shorter than they were."""

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from delay_protocol.meta.requests import BrokerGroupInfo, BrokerRole, BrokerState, ClientType
from meta_server.groups import routing
from meta_server.known.errors import RefusedError
from meta_server.known.model import (
    Broker,
    BrokerGroup,
    Contents,
    GroupKind,
    Receiver,
    Remove,
    Route,
    Row,
    Save,
    Subject,
)
from meta_server.known.registry import Registry
from tests.meta_server.meta_rig import names

LIMITS = routing.RoutingLimits()
PRODUCER, CONSUMER, OTHER, DELAY_PRODUCER = (
    ClientType.PRODUCER,
    ClientType.CONSUMER,
    ClientType.OTHER,
    ClientType.DELAY_PRODUCER,
)
RW, R, W, NRW = BrokerState.RW, BrokerState.R, BrokerState.W, BrokerState.NRW


def group(
    name: str, state: BrokerState = RW, *, kind: GroupKind = GroupKind.NORMAL, **more: object
) -> BrokerGroup:
    return BrokerGroup(
        **{"name": name, "kind": kind, "master": f"{name}:1", "state": state, **more}  # type: ignore[arg-type]
    )


def delay(name: str, state: BrokerState = RW, **more: object) -> BrokerGroup:
    return group(name, state, kind=GroupKind.DELAY, **more)


def registry_of(*groups: BrokerGroup, **rows: tuple[Row, ...]) -> Registry:
    return Registry(Contents(rows=(*groups, *chain(*rows.values()))))


def routed(
    registry: Registry, subject: str, *, now_ms: int = 0, limits: routing.RoutingLimits = LIMITS
) -> tuple[str, ...]:
    """Have a subject's route chosen and return it."""
    registry.apply(routing.plan_route(registry, subject, limits, now_ms=now_ms))
    route = registry.routes.get(subject)
    return () if route is None else route.groups


def groups_for(
    registry: Registry,
    subject: str,
    client_type: int,
    limits: routing.RoutingLimits,
) -> tuple[BrokerGroupInfo, ...] | None:
    found = routing.RouteAnswers(registry, limits).find(subject, client_type)
    return None if found is None else found.groups


def delay_groups_for(registry: Registry, subject: str) -> tuple[BrokerGroupInfo, ...]:
    found = groups_for(registry, subject, DELAY_PRODUCER, LIMITS)
    assert found is not None
    return found


def told(registry: Registry, subject: str, client_type: int) -> list[str] | None:
    found = groups_for(registry, subject, client_type, LIMITS)
    return None if found is None else names(found)


@pytest.mark.parametrize(
    ("sent", "real"),
    [
        ("a.b", "a.b"),
        ("%RETRY%a.b%g", "a.b"),
        ("%DEAD_RETRY%a.b%g", "a.b"),
    ],
)
def test_retry_subjects_are_routed_as_the_real_one(sent: str, real: str) -> None:
    assert routing.routed_subject(sent) == real


def test_limits_are_on_the_real_subject_and_on_the_group_of_a_retry() -> None:
    assert routing.routed_subject("%RETRY%a%" + "g" * 255) == "a"
    for sent in ("x" * 256, "%RETRY%" + "x" * 256 + "%g", "%RETRY%a%" + "g" * 290, "é" * 128):
        with pytest.raises(RefusedError, match=r"at most 255|more than 255"):
            routing.routed_subject(sent)


@given(st.text(max_size=20), st.lists(st.integers(0, 9), unique=True, max_size=8))
def test_a_ranking_depends_on_nothing_but_subject_and_groups(
    subject: str, numbers: list[int]
) -> None:
    groups = [group(f"g{n}") for n in numbers]
    first = routing.ranked(subject, groups)
    assert routing.ranked(subject, reversed(groups)) == first
    for gone in groups:
        assert routing.ranked(subject, [g for g in groups if g is not gone]) == [
            g for g in first if g is not gone
        ]


def test_a_ranking_stays_the_same_from_version_to_version() -> None:
    groups = [delay(f"d{n}") for n in range(6)]
    assert [g.name for g in routing.ranked("a.b", groups)] == ["d5", "d0", "d3", "d1", "d2", "d4"]


def test_subjects_spread_by_weight() -> None:
    groups = [group("g1"), group("g2"), group("g3", weight=200), group("g4", weight=0)]
    first = Counter(routing.ranked(f"subject.{n}", groups)[0].name for n in range(8000))
    assert 1800 < first["g1"] < 2200
    assert 1800 < first["g2"] < 2200
    assert 3700 < first["g3"] < 4300
    assert first["g4"] == 0


@pytest.mark.parametrize(
    ("groups", "first"),
    [
        ([delay("d1", R), delay("d2", is_read_only=True)], ["d1"]),
        ([delay("d1", master="")], []),
    ],
)
def test_trap_4_never_an_empty_list_for_a_delay_producer(
    groups: list[BrokerGroup], first: list[str]
) -> None:
    found = delay_groups_for(registry_of(*groups), "a.b")
    assert names(found) == first
    assert all(info.state is RW for info in found)


@given(
    st.lists(
        st.tuples(st.sampled_from(list(BrokerState)), st.booleans(), st.booleans()), max_size=6
    ),
    st.text(min_size=1, max_size=5),
)
def test_trap_4_holds_for_any_states(
    states: list[tuple[BrokerState, bool, bool]], subject: str
) -> None:
    groups = [
        delay(f"d{n}", state, is_read_only=read_only, is_retired=retired)
        for n, (state, read_only, retired) in enumerate(states)
    ]
    found = delay_groups_for(registry_of(*groups), subject)
    known = {g.name for g in groups if not g.is_retired}
    assert len(found) <= 2
    assert bool(found) == bool(known)
    assert set(names(found)) <= known
    # A Java producer drops every other state.
    assert all(info.state in {RW, W} for info in found)
    writable = {g.name for g in groups if g.name in known and g.state in {RW, W}}
    open_to_it = {g.name for g in groups if g.name in known and not g.is_read_only}
    assert set(names(found)) <= (writable & open_to_it or open_to_it or known)
    # Where none takes messages all are shown as if they did.
    assert writable & open_to_it or all(info.state is RW for info in found)


def test_a_delay_group_that_fails_moves_its_own_subjects_only() -> None:
    groups = [delay(f"d{n}") for n in range(6)]
    before = registry_of(*groups)
    after = registry_of(*[replace(g, state=NRW) if g.name == "d0" else g for g in groups])
    for number in range(300):
        subject = f"s{number}"
        had = told(before, subject, DELAY_PRODUCER)
        has = told(after, subject, DELAY_PRODUCER)
        assert had is not None
        assert has is not None
        if "d0" in had:
            assert set(had) - {"d0"} < set(has)
        else:
            assert has == had


def test_a_route_is_chosen_once_and_kept_whatever_groups_come() -> None:
    registry = registry_of(group("g1"), group("g2"), group("g3"))
    first = routed(registry, "a.b")
    assert len(first) == 2
    registry.apply(tuple(Save(group(f"h{n}")) for n in range(20)))
    assert routed(registry, "a.b") == first
    assert told(registry, "a.b", PRODUCER) == list(first)


def test_a_subject_without_any_group_is_made_and_gets_its_route_when_one_comes() -> None:
    registry = registry_of()
    assert told(registry, "a.b", PRODUCER) is None
    assert routed(registry, "a.b", now_ms=7) == ()
    assert registry.subjects["a.b"].created_ms == 7
    assert routing.plan_route(registry, "a.b", LIMITS, now_ms=0) == []
    registry.apply((Save(group("g1")),))
    assert routed(registry, "a.b") == ("g1",)
    # One that nobody entered gets nothing of a subject that has a route.
    stranger = group("g2")
    registry.apply((Save(stranger),))
    assert told(registry, "a.b", PRODUCER) == ["g1"]
    assert routed(registry, "a.b") == ("g1",)
    assert set(routed(registry, "new")) == {"g1", "g2"}
    registry.apply((Save(replace(stranger, is_entered=True, version=2)),))
    assert told(registry, "a.b", PRODUCER) is None
    assert routed(registry, "a.b") == ("g1", "g2")
    assert registry.routes["a.b"].version == 2


def test_groups_that_are_away_are_left_out_but_stay_in_the_route() -> None:
    registry = registry_of(group("g1", NRW), group("g2", R))
    registry.apply((Save(Route(name="a.b", groups=("g1", "g2", "gone"))),))
    found = groups_for(registry, "a.b", PRODUCER, LIMITS)
    assert found is not None
    assert [(info.name, info.state) for info in found] == [("g2", R)]


def test_a_route_gets_others_for_groups_that_are_retired_or_gone_and_not_for_those_away() -> None:
    registry = registry_of(group("g1", NRW), group("g2", NRW), group("g3"), group("g4"))
    broker = Broker(hostname="h", serve_port=1, ip="10.0.0.3", group="g3", role=BrokerRole.MASTER)
    registry.apply((Save(broker), Save(Route(name="a.b", groups=("g1", "g2")))))
    registry.apply((Save(Route(name="given", groups=("gone",), is_chosen=False)),))
    assert told(registry, "a.b", PRODUCER) == []
    registry.apply((Save(group("g1", NRW, is_retired=True, version=2)),))
    assert told(registry, "a.b", PRODUCER) is None
    # Of those that nobody entered none joins.
    assert routed(registry, "a.b") == ("g1", "g2", "g3")
    assert told(registry, "a.b", PRODUCER) == ["g3"]
    registry.apply((Remove(registry.groups["g2"]), Save(group("g4", is_entered=True, version=2))))
    assert routed(registry, "a.b") == ("g1", "g2", "g3", "g4")
    assert routed(registry, "given") == ("gone",)


def test_new_routes_leave_out_what_is_read_only_retired_weightless_or_for_delay() -> None:
    registry = registry_of(
        group("g1", is_read_only=True), group("g2", is_retired=True), group("g3", weight=0),
        group("g4", NRW), delay("d1"), group("g5"),
    )  # fmt: skip
    assert routed(registry, "a.b") == ("g5",)


def test_a_prefix_routes_subjects_that_have_no_route_of_their_own() -> None:
    registry = registry_of(
        group("g1"), group("g2"), group("g3"),
        routes=(
            Route(name="a.", is_prefix=True, groups=("g1",), is_chosen=False),
            Route(name="a.b.", is_prefix=True, groups=("g2",), is_chosen=False),
            Route(name="a.own", groups=("g3",), is_chosen=False),
        ),
    )  # fmt: skip
    assert told(registry, "a.x", PRODUCER) == ["g1"]
    assert told(registry, "a.b.x", PRODUCER) == ["g2"]
    assert told(registry, "a.own", PRODUCER) == ["g3"]
    assert told(registry, "b", PRODUCER) is None


@pytest.mark.parametrize("client_type", [CONSUMER, OTHER, 77])
def test_whoever_is_no_producer_sees_read_only_groups_too(client_type: int) -> None:
    registry = registry_of(group("g1", is_read_only=True), group("g2"))
    registry.apply((Save(Route(name="a.b", groups=("g1", "g2"))),))
    assert told(registry, "a.b", client_type) == ["g1", "g2"]
    assert told(registry, "a.b", PRODUCER) == ["g2"]


@pytest.mark.parametrize("client_type", [PRODUCER, CONSUMER, OTHER, -1, 77])
def test_delay_servers_alone_are_told_of_receivers_and_nobody_of_brokers_beside_them(
    client_type: int,
) -> None:
    rows = (Receiver(name="r2", patterns=("a*",)), Receiver(name="r1", patterns=("a", "b")))
    registry = registry_of(
        group("g1"), routes=(Route(name="a", groups=("g1",)), Route(name="ab", groups=("g1",)))
    )
    registry.apply([Save(row) for row in rows])
    answers = routing.RouteAnswers(registry, LIMITS)
    for asked, found in (
        (client_type, []),
        (ClientType.DELAY_SERVER, ["r1", "r2"]),
        (client_type, []),
    ):
        answer = answers.find("a", asked)
        assert answer is not None
        assert names(answer.groups) == found
    assert answers.find("ab", ClientType.DELAY_SERVER) == (
        (BrokerGroupInfo(name="r2", master="", updated_ms=0, state=RW),),
        (("r2", "", int(RW)),),
    )
    assert routing.plan_route(registry, "a", LIMITS, now_ms=1) == [
        Save(Subject(name="a", created_ms=1))
    ]


def test_an_answer_is_kept_until_the_registry_changes() -> None:
    chosen = Route(name="a", groups=("g1",))
    registry = registry_of(
        group("g1", is_entered=True), routes=(chosen,), subjects=(Subject(name="a"),)
    )
    answers = routing.RouteAnswers(registry, LIMITS)
    first = answers.find("a", PRODUCER)
    assert first is not None
    assert answers.find("a", PRODUCER) is first
    registry.apply((Save(group("g1", R, version=2)),))
    assert answers.find("a", PRODUCER) != first
    registry.apply((Save(group("g2", is_entered=True)),))
    assert answers.find("a", PRODUCER) is None
