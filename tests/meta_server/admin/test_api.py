"""The administration's API: what is answered, when, and what connected clients learn of it."""

import base64
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import trio

from delay_protocol.meta.requests import BrokerRequestType, BrokerState, ClientType
from delay_transport.http.tokens import Role, Token, digest_of, encode_tokens
from meta_server.known.model import BrokerGroup, Contents, GroupKind, Route, Subject
from meta_server.server import MetaServer
from meta_server.settings.config import AdminConfig
from tests.asgi import JSON
from tests.kit.operator import Operator, refusal_of
from tests.meta_server.memory_store import Fault, Medium
from tests.meta_server.meta_rig import World, broker, make_config, names, node, state_of, until
from tests.meta_server.wire.test_group_changes import three
from tests.simulation.executor import ExecutorPlan

ADMIN = {"authorization": "Bearer a"}
READER = {"authorization": "Bearer r"}


def with_tokens(path: Path, **settings: int) -> AdminConfig:
    """Return settings with a file of two tokens: `a` may change, `r` may read."""
    file = path / "tokens.json"
    file.write_bytes(
        encode_tokens(
            [
                Token(name="alice", role=Role.ADMIN, sha256=digest_of("a")),
                Token(name="rob", role=Role.READ, sha256=digest_of("r")),
            ]
        )
    )
    file.chmod(0o600)
    return replace(AdminConfig(token_file=str(file)), **settings)  # type: ignore[arg-type]


async def add_groups(operator: Operator, *group_names: str) -> None:
    for number, name in enumerate(group_names):
        await operator.add_group(name, address=f"10.0.0.{number}:20881")


# What a change is


async def test_a_change_is_answered_when_it_is_stored_with_its_audit_in_the_same_commit(
    world: World, server: MetaServer, operator: Operator
) -> None:
    shown = await operator.add_group("g1", address="h:1")
    assert (shown["name"], shown["state"], shown["version"]) == ("g1", "RW", 1)
    assert server.administration.changes == {"broker-group.add": 1}
    [stored] = [commit for commit in world.medium.commits if len(commit) > 1]
    assert [type(change).__name__ for change in stored] == ["SaveBrokerGroup", "Audit"]
    [row] = world.medium.audit
    assert (row.entry.actor, row.entry.action, row.entry.target) == (
        "loopback",
        "broker-group.add",
        "g1",
    )


async def test_what_changes_nothing_is_stored_nowhere(world: World, operator: Operator) -> None:
    await add_groups(operator, "g1")
    before = len(world.medium.audit)
    shown = await operator.change_group("g1", weight=100)
    assert shown["version"] == 1
    assert len(world.medium.audit) == before


async def test_two_who_change_the_same_version_do_not_both_succeed() -> None:
    world = World()
    codes: list[int] = []
    async with world.serving() as server:
        operator = Operator(server)
        await add_groups(operator, "g1")

        async def change(weight: int) -> None:
            body = {"weight": weight, "version": 1}
            answer = await operator.ask("PATCH", "/api/v1/broker-groups/g1", body)
            codes.append(answer.code)

        async with trio.open_nursery() as nursery:
            for weight in range(10):
                nursery.start_soon(change, weight)
        assert sorted(codes) == [200] + [409] * 9
        assert server.registry.groups["g1"].version == 2


async def test_every_change_of_many_at_once_is_kept(
    world: World, server: MetaServer, operator: Operator
) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(operator.add_group, f"g{number}")
    assert len(server.registry.groups) == 30
    assert len(world.medium.audit) == 30
    assert len(world.medium.contents.broker_groups) == 30


async def test_a_limit_holds_however_many_ask_at_once() -> None:
    world = World()
    codes: list[int] = []
    async with world.serving(make_config(admin=AdminConfig(prefix_routes_max=5))) as server:
        operator = Operator(server)
        await add_groups(operator, "g1")

        async def lead(number: int) -> None:
            path = f"/api/v1/prefix-routes/p{number}."
            codes.append((await operator.ask("PUT", path, {"groups": ["g1"]})).code)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(lead, number)
        assert sorted(codes) == [200] * 5 + [409] * 15
        assert len(server.registry.prefixes) == 5


# What connected clients learn


async def test_a_route_that_is_set_reaches_connected_clients_at_once(
    world: World, operator: Operator
) -> None:
    await add_groups(operator, "g1", "g2")
    peer = await world.connect()
    await operator.set_route("a.b", ["g1"])
    assert names((await peer.register("a.b")).groups) == ["g1"]
    began = trio.current_time()
    await operator.set_route("a.b", ["g2"])
    assert names((await peer.pushed()).groups) == ["g2"]
    assert trio.current_time() - began < 0.2


async def test_a_prefix_route_reaches_those_without_a_route_of_their_own(
    world: World, operator: Operator
) -> None:
    peer = await world.connect()
    assert names((await peer.register("a.b")).groups) == []
    await operator.add_group("g1", weight=0, address="h:1")
    await operator.set_prefix("a.", ["g1"])
    pushed = await peer.pushed()
    assert names(pushed.groups) == ["g1"]
    assert (await operator.route("a.b"))["source"] == "prefix"
    await operator.remove_prefix("a.")
    assert names((await peer.pushed()).groups) == []


async def test_the_route_of_a_prefix_tells_whom_it_reaches_and_who_keeps_its_own(
    world: World, operator: Operator
) -> None:
    peer = await world.connect()
    await add_groups(operator, "g1", "g2")
    for number in range(8):
        await peer.register(f"a.{number}")
    await peer.register("b")
    shown = await operator.set_prefix("a.", ["g1"])
    assert (shown["subjects"], shown["kept"], len(shown["kept_examples"])) == (0, 8, 5)
    await operator.remove_route("a.3")
    await operator.remove_route("a.5")
    await peer.register("a.new")
    await trio.sleep(1)
    longer = await operator.set_prefix("a.3", ["g2"])
    assert (longer["subjects"], longer["kept"], longer["kept_examples"]) == (1, 0, [])
    shown = await operator.prefix("a.")
    assert (shown["subjects"], shown["kept"]) == (2, 6)


async def test_read_only_is_pushed_to_producers_and_not_to_consumers(
    world: World, operator: Operator
) -> None:
    await add_groups(operator, "g1", "g2")
    producer, consumer = await world.connect(), await world.connect()
    await producer.register("a.b")
    await consumer.register("a.b", ClientType.CONSUMER, consumer_group="cg")
    await operator.set_read_only("g1", True)
    assert names((await producer.pushed()).groups) == ["g2"]
    await operator.set_read_only("g1", False)
    assert sorted(names((await producer.pushed()).groups)) == ["g1", "g2"]
    with trio.move_on_after(5) as scope:
        await consumer.pushed()
    assert scope.cancelled_caught


async def test_a_replaced_master_is_pushed_and_has_a_time_out_to_be_heard(
    world: World, server: MetaServer, operator: Operator
) -> None:
    peer, speaker = await world.connect(), await world.connect()
    await speaker.broker(broker("g1", address="10.0.0.1:1"))
    await peer.register("a.b")
    await trio.sleep(25)
    body = {"address": "10.0.0.2:1", "version": 1}
    await operator.change_group("g1", **body)
    assert (await peer.pushed()).groups[0].master == "10.0.0.2:1"
    await trio.sleep(25)
    assert state_of(server, "g1") is BrokerState.RW
    await trio.sleep(10)
    assert state_of(server, "g1") is BrokerState.NRW


async def test_a_retired_group_is_taken_from_everybody(world: World, operator: Operator) -> None:
    await add_groups(operator, "g1", "g2")
    peer = await world.connect()
    await peer.register("a.b", ClientType.CONSUMER, consumer_group="cg")
    code, _ = await refusal_of(operator.retire_group("g1"))
    assert code == 409
    await operator.retire_group("g1", lose_messages=True)
    assert names((await peer.pushed()).groups) == ["g2"]
    await operator.restore_group("g1")
    assert sorted(names((await peer.pushed()).groups)) == ["g1", "g2"]


async def test_a_broker_is_told_who_it_is_as_soon_as_it_is_entered() -> None:
    world = World()
    body = {"group": "g1", "role": "MASTER", "hostname": "b1", "ip": "10.0.0.1"}
    ports = {"serve_port": 20881, "sync_port": 20882}
    async with world.serving() as server:
        operator = Operator(server)
        peer = await world.connect()
        assert (await peer.acquire("b1", 20881)).code == 51
        await operator.add_broker(**(body | ports))
        assert (await peer.acquire("b1", 20881)).code == 0
        place = {"hostname": "b2", "ip": "10.0.0.2", **ports}
        await operator.replace_broker("g1", "MASTER", **place)
        assert (await peer.acquire("b1", 20881)).code == 51
        assert (await peer.acquire("b2", 20881)).code == 0
        await operator.remove_broker("g1", "MASTER")
        assert (await peer.acquire("b2", 20881)).code == 51
        assert (await operator.brokers())["items"] == []


async def test_an_entered_group_with_a_time_out_to_register_falls_silent(
    operator: Operator,
) -> None:
    for name, static in (("late", False), ("static", True)):
        body = {"name": name, "address": "h:1", "static": static}
        await operator.add_group(**body)
    await trio.sleep(31)
    states = {row["name"]: row["state"] for row in (await operator.groups())["items"]}
    assert states == {"late": "NRW", "static": "RW"}


# Delay servers


async def test_a_delay_server_that_is_stopped_is_removed_and_a_dead_disk_is_given_up(
    world: World, operator: Operator
) -> None:
    peer, other = await world.connect(), await world.connect()
    await peer.node(node())
    slave = node("n2", storage=2, last_sequence=0, address="10.0.0.6:20801")
    await other.node(slave)
    code, error = await refusal_of(operator.remove_node("d1", "n2"))
    assert (code, "is alive" in error["message"]) == (409, True)
    await other.stream.aclose()
    await trio.sleep(1)
    shown = await operator.remove_node("d1", "n2")
    assert [row["node_id"] for row in shown["nodes"]] == ["n1"]
    code, error = await refusal_of(operator.remove_node("d1", "n1"))
    assert (code, "only disk" in error["message"]) == (409, True)
    code, error = await refusal_of(operator.give_up_node("d1", "n1", lose_messages=True))
    assert (code, "was heard lately" in error["message"]) == (409, True)
    await trio.sleep(16)
    code, error = await refusal_of(operator.give_up_node("d1", "n1"))
    assert (code, "only disk" in error["message"]) == (409, True)
    shown = await operator.give_up_node("d1", "n1", lose_messages=True)
    assert (shown["nodes"], shown["in_sync"], shown["master"]) == ([], [], None)
    # The group begins again with another disk.
    fresh = node("n1", storage=9, log=9, last_sequence=0, incarnation=1)
    registered = await peer.node(fresh)
    assert registered.role.value == "master"  # type: ignore[union-attr]
    again = await operator.delay_group("d1")
    assert (again["master"], again["epoch"]) == ("n1", 3)


async def test_operators_elect_hand_over_and_set_how_many_have_to_be_in_sync() -> None:
    world = World()
    async with three(world) as group:
        operator = Operator(group.server)
        await group.members[0].register(last_sequence=40, committed=30, uncommitted=7)
        for member in group.members[1:]:
            await member.register()
        shown = await operator.delay_group("d1")
        assert (shown["phase"], shown["election"]) == ("active", "")
        first = shown["nodes"][0]
        assert (first["role"], first["in_sync"], first["accepts"]) == ("master", True, True)
        ends = [first[name] for name in ("last_sequence", "committed", "uncommitted")]
        assert ends == [40, 30, 7]
        assert shown["nodes"][1]["note"].startswith("in sync: ")
        shown = await operator.set_min_isr("d1", 2)
        assert shown["min_isr"] == 2
        await group.members[0].news()
        await operator.hand_over("d1", to="n3")
        assert (await group.members[0].news()).hand_over_to == "n3"
        assert not (await group.members[1].news()).hand_over_to
        began = trio.current_time()
        assert (await group.members[0].news()).hand_over_to == ""
        assert 9.9 < trio.current_time() - began < 10.2
        code, error = await refusal_of(operator.hand_over("d1", to="n3"))
        assert (code, "n3 is none of those in sync beside n1" in error["message"]) == (409, True)
        shown = await operator.elect("d1")
        assert (shown["phase"], shown["epoch"], shown["master"]) == ("electing", 2, None)
        assert (await group.members[1].news()).vote_epoch == 2
        shown = await operator.elect("d1")
        assert (shown["phase"], shown["epoch"]) == ("electing", 2)
        found = [row["action"] for row in (await operator.audit())["items"]]
        assert found[:3] == ["delay-group.elect", "delay-group.hand-over", "delay-group.min-isr"]


async def test_a_subject_that_nobody_uses_is_removed_or_it_is_said_why_not(
    world: World, server: MetaServer, operator: Operator
) -> None:
    await add_groups(operator, "g1")
    gone = await world.connect()
    await gone.register("typo")
    await gone.stream.aclose()
    peer = await world.connect()
    await peer.register("used")
    await peer.register("%RETRY%retried%cg", ClientType.CONSUMER, consumer_group="cg")
    await operator.tag_subject("tagged", "t")
    await operator.set_route("routed", ["g1"])
    for subject, code, reason in (
        ("used", 409, "is used by a connected client"),
        ("retried", 409, "is used by a connected client"),
        ("tagged", 409, "has the tag t"),
        ("routed", 409, "has a route that an operator set"),
        ("nobody", 404, "was never used"),
        ("typo?version=7", 409, "has version 1, not 7"),
    ):
        name, _, version = subject.partition("?version=")
        query = {"version": version} if version else {}
        found, error = await refusal_of(operator.remove_subject(name, **query))
        assert found == code
        assert reason in error["message"]
    assert await operator.remove_subject("typo") == {"changed": True}
    assert sorted(server.registry.subjects) == ["retried", "routed", "tagged", "used"]
    assert "typo" not in server.registry.routes
    removed = world.medium.audit[-1].entry
    assert (removed.action, removed.actor) == ("subject.remove", "loopback")
    assert "typo" in removed.before
    # Whoever uses it again has it made anew.
    assert names((await peer.register("typo")).groups) == ["g1"]


# Lists


async def test_a_hundred_thousand_subjects_are_paged_through_without_holding_up_the_loop() -> None:
    count = 100_000
    subjects = tuple(Subject(name=f"s.{number * 7919 % count:06}") for number in range(count))
    routes = tuple(
        Route(name=subject.name, groups=("g1",) if number % 2 else ("g2", "g1"))
        for number, subject in enumerate(subjects)
    )
    world = World(medium=Medium(Contents(subjects=subjects, routes=routes)))
    async with world.serving() as server:
        operator = Operator(server)
        for ask in (operator.subjects, operator.routes):
            after, seen = "", []
            for _ in range(5):
                page = await ask(after=after, limit=1000)
                seen += [row["name"] for row in page["items"]]
                after = page["next"]
            assert seen == [f"s.{number:06}" for number in range(5000)]
        some = await operator.routes(prefix="s.09999", group="g2", limit=1000)
        assert some["next"] is None
        assert 0 < len(some["items"]) < 10
        assert all("g2" in row["groups"] for row in some["items"])
        summary = await operator.route_summary()
        assert summary["subjects_by_group"] == {"g1": count, "g2": count // 2}
        assert (summary["routes"], summary["without_route"]) == (count, 0)


async def test_the_last_page_says_so_and_what_comes_meanwhile_moves_nothing(
    operator: Operator,
) -> None:
    await add_groups(operator, "b", "d", "f")
    first = await operator.groups(limit=2)
    assert [row["name"] for row in first["items"]] == ["b", "d"]
    await add_groups(operator, "a", "c", "e")
    second = await operator.groups(limit=2, after=first["next"])
    assert [row["name"] for row in second["items"]] == ["e", "f"]
    assert second["next"] is None
    only = await operator.groups(kind="delay")
    assert only == {"items": [], "next": None}


async def test_an_after_that_no_page_ended_with_is_refused() -> None:
    world = World()
    packed = [
        base64.urlsafe_b64encode(msgspec.msgpack.encode(key)).decode()
        for key in ({"a": 1}, [7], ["a", "b"], [])
    ]
    async with world.serving() as server:
        operator = Operator(server)
        for after in ("x", "äöü", "////", *packed):
            code, error = await refusal_of(operator.subjects(after=after))
            assert (code, error["field"]) == (400, "after")


async def test_the_audit_is_filtered_and_paged_and_tells_before_and_after(
    world: World, operator: Operator
) -> None:
    await add_groups(operator, "g1", "g2")
    for weight in range(5):
        await operator.change_group("g1", weight=weight)
    first = await operator.audit(action="broker-group.change", limit=2)
    assert [row["after"]["weight"] for row in first["items"]] == [4, 3]
    assert [row["before"]["weight"] for row in first["items"]] == [3, 2]
    rest = await operator.audit(action="broker-group.change", before=first["next"])
    assert [row["after"]["weight"] for row in rest["items"]] == [2, 1, 0]
    assert rest["next"] is None
    kinds = await operator.audit(action="broker-group")
    assert len(kinds["items"]) == 7
    assert (await operator.audit(action="broker"))["items"] == []
    assert (await operator.audit(actor="nobody"))["items"] == []
    assert len((await operator.audit(target="g2"))["items"]) == 1
    now_ms = world.clock.now_ms()
    assert (await operator.audit(since_ms=now_ms + 1))["items"] == []
    assert (await operator.audit(until_ms=0))["items"] == []


async def test_a_long_audit_is_looked_through_in_steps(operator: Operator) -> None:
    for number in range(520):
        await operator.tag_subject(f"s{number}", "t")
    await add_groups(operator, "g1")
    await operator.tag_subject("last", "t")
    [row] = (await operator.audit(action="broker-group", limit=1))["items"]
    assert row["target"] == "g1"
    oldest = await operator.audit(target="s0")
    assert [row["number"] for row in oldest["items"]] == [1]


async def test_everything_is_there_at_a_glance(world: World, operator: Operator) -> None:
    peer = await world.connect()
    await peer.node(node())
    await add_groups(operator, "g1")
    await peer.register("a.b")
    await operator.tag_subject("tagged", "t")
    found = await operator.topology()
    assert [row["name"] for row in found["broker_groups"]] == ["d1", "g1"]
    [group] = found["delay_groups"]
    assert (group["master"], group["nodes"][0]["in_sync"]) == ("n1", True)
    assert found["routes"] == {
        "subjects": 2,
        "routes": 1,
        "prefixes": 0,
        "without_route": 1,
        "subjects_by_group": {"g1": 1},
        "unserved": 1,
        "unserved_why": [
            {
                "why": "it has no route: no broker group could be given to it",
                "subjects": 1,
                "examples": ["tagged"],
            }
        ],
    }
    assert (found["ready"], found["failing"]) == (True, [])


async def test_subjects_that_no_group_takes_messages_of_are_shown_with_the_reason(
    world: World, operator: Operator
) -> None:
    peer = await world.connect()
    await add_groups(operator, "g1", "g2")
    for number in range(7):
        await operator.set_route(f"s{number}", ["g1"])
    await operator.set_route("both", ["g1", "g2"])
    await operator.set_prefix("p.", ["g2"])
    await peer.register("p.a")
    await peer.register("%RETRY%p.a%group1", ClientType.CONSUMER, consumer_group="group1")
    await trio.sleep(1)
    assert (await operator.route_summary())["unserved_why"] == []
    assert (await operator.route("s1"))["unserved"] == ""
    await operator.retire_group("g1", lose_messages=True)
    found = await operator.route_summary()
    [retired] = found["unserved_why"]
    assert (retired["why"], retired["subjects"]) == ("g1 is retired", 7)
    assert (len(retired["examples"]), found["unserved"], found["without_route"]) == (5, 7, 0)
    await operator.set_read_only("g2", True)
    found = await operator.topology()
    assert {row["why"]: row["examples"] for row in found["routes"]["unserved_why"]} == {
        "g1 is retired": retired["examples"],
        "g1 is retired, g2 is read-only": ["both"],
        "g2 is read-only": ["p.a"],
    }
    why = {name: (await operator.route(name))["unserved"] for name in ("s1", "p.a")}
    assert why == {
        "s1": "g1 is retired",
        "p.a": "g2 is read-only",
    }


async def test_who_was_not_heard_since_a_restart_is_not_said_to_have_been() -> None:
    world = World()
    request = node()
    async with world.serving() as server:
        peer = await world.connect()
        await peer.broker(broker("g1"))
        await peer.broker(broker("g2"))
        await peer.node(request)
        await trio.sleep(3)
        assert await _liveness(server) == [("heard", 3), ("heard", 3)]
    await trio.sleep(1000)
    async with world.serving() as server:
        peer = await world.connect()
        await peer.broker(broker("g2", what=BrokerRequestType.HEARTBEAT))
        await trio.sleep(3)
        assert await _liveness(server) == [("assumed", None), ("heard", 3)]
        [group] = (await Operator(server).topology())["delay_groups"]
        [seen] = group["nodes"]
        assert (seen["liveness"], seen["heard_seconds_ago"]) == ("assumed", None)
        await trio.sleep(31)
        assert await _liveness(server) == [("none", None), ("none", None)]


async def _liveness(server: MetaServer) -> list[tuple[str, int | None]]:
    found = await Operator(server).topology()
    status = (await Operator(server).ask("GET", "/status")).json
    rows = [
        {
            row["name"]: (
                row["liveness"],
                None if row["heard_seconds_ago"] is None else int(row["heard_seconds_ago"]),
            )
            for row in several
        }
        for several in (found["broker_groups"], status["groups"])
    ]
    assert rows[0] == rows[1]
    return [rows[0]["g1"], rows[0]["g2"]]


async def test_many_routes_are_changed_in_one_request_and_each_is_in_the_audit() -> None:
    rows = tuple(Route(name=f"s{number:04}", groups=("g1",)) for number in range(500))
    world = World(medium=Medium(Contents(routes=rows)))
    async with world.serving() as server:
        operator = Operator(server)
        await add_groups(operator, "g1", "g2")
        body = {"group": "g1", "new_group": "g2"}
        changed = await operator.extend_routes(**body)
        assert changed == {"changed": 500, "left": 0, "complete": True}
        assert all(route.groups == ("g1", "g2") for route in server.registry.routes.values())
        await operator.set_route("s0001", ["g1"])
        changed = await operator.reduce_routes("g1")
        assert changed == {"changed": 499, "left": 1, "complete": True}
        one = await operator.reduce_routes("g2", subject="s0002")
        assert one == {"changed": 0, "left": 1, "complete": True}
        code, error = await refusal_of(operator.extend_routes(**(body | {"new_group": "g9"})))
        assert (code, error["field"], error["value"]) == (400, "new_group", "'g9'")
        code, _ = await refusal_of(operator.reduce_routes("g1", subject="no"))
        assert code == 404
    actions = [row.entry.action for row in world.medium.audit]
    assert (actions.count("route.extend"), actions.count("route.reduce")) == (500, 499)


# What is refused


@pytest.mark.parametrize(
    ("operation", "field", "value"),
    [
        (lambda do: do.add_group(7), "name", "7"),
        (lambda do: do.operate("POST", "/broker-groups", {}), "name", "None"),
        (lambda do: do.add_group("g", wieght=1), "wieght", "1"),
        (lambda do: do.add_group("g", weight=-1), "weight", "-1"),
        (lambda do: do.add_group("g", weight="1"), "weight", "'1'"),
        (lambda do: do.add_group("g", kind="x"), "kind", "'x'"),
        (lambda do: do.operate("POST", "/broker-groups", []), "body", "[]"),
        (lambda do: do.set_route("a", []), "groups", "[]"),
        (lambda do: do.set_route("a", ["g1", 5]), "groups[1]", "5"),
        (lambda do: do.set_route("a b", ["g1"]), "subject", "'a b'"),
        (lambda do: do.replace_broker("g1", "KING"), "role", "'KING'"),
        (lambda do: do.change_group("g1", version=0), "version", "0"),
        (lambda do: do.subjects(limit=0), "limit", "'0'"),
        (lambda do: do.subjects(limit="x"), "limit", "'x'"),
        (lambda do: do.subjects(nonsense=1), "nonsense", "'1'"),
        (lambda do: do.subjects(limit=[1, 2]), "limit", "'2'"),
        (lambda do: do.groups(kind="x"), "kind", "'x'"),
        (lambda do: do.remove_route("a", version="x"), "version", "'x'"),
        (lambda do: do.give_up_node("d", "n", lose_messages=1), "lose_messages", "1"),
    ],
)
async def test_a_bad_value_is_answered_with_field_value_and_what_is_allowed(
    operator: Operator, operation: Callable[[Operator], Awaitable[object]], field: str, value: str
) -> None:
    code, error = await refusal_of(operation(operator))
    assert (code, error["code"], error["field"]) == (400, "bad-value", field)
    assert error["value"] == value
    assert error["allowed"]
    assert field in error["message"]


async def test_what_is_not_there_is_404(operator: Operator) -> None:
    await add_groups(operator, "g1")
    place = {"hostname": "h", "ip": "10.0.0.1", "serve_port": 1, "sync_port": 2}
    for operation in (
        operator.group("g9"),
        operator.change_group("g9"),
        operator.retire_group("g9"),
        operator.subject("a"),
        operator.prefix("a"),
        operator.remove_route("a"),
        operator.remove_prefix("a"),
        operator.reduce_routes("g1", subject="a"),
        operator.remove_broker("g1", "MASTER"),
        operator.replace_broker("g1", "MASTER", **place),
        operator.delay_group("d9"),
        operator.remove_node("d9", "n"),
        operator.give_up_node("d9", "n", lose_messages=True),
        operator.accept_older("d9", "n", lose_messages=True),
        operator.elect("d9"),
        operator.operate("GET", "/nonsense"),
        operator.operate("GET", "/nonsense\n"),
    ):
        assert (await refusal_of(operation))[0] == 404
    code, error = await refusal_of(operator.operate("POST", "/audit", {}))
    assert (code, error["code"]) == (405, "method")
    code, error = await refusal_of(operator.route("a\nb"))
    assert (code, error["field"]) == (400, "subject")


@pytest.mark.parametrize(
    ("raw", "field"),
    [(b"", "body"), (b"{", "body"), (b"\xff", "body"), (b"[" * 50_000, "body"), (b"nan", "body")],
)
async def test_a_body_that_is_no_json_is_refused(
    server: MetaServer, raw: bytes, field: str
) -> None:
    answer = await Operator(server).ask("POST", "/api/v1/broker-groups", raw=raw, headers=JSON)
    assert (answer.code, answer.error["field"]) == (400, field)


async def test_a_change_must_say_that_it_is_json(operator: Operator) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = await operator.ask(
            "POST",
            "/api/v1/broker-groups",
            raw=b'{"name":"g1"}',
            headers={"content-type": kind},
        )
        assert (answer.code, answer.error["code"]) == (415, "media-type")
    kind = "Application/JSON; charset=utf-8"
    raw = b'{"name":"g1"}'
    headers = {"content-type": kind}
    assert (
        await operator.ask("POST", "/api/v1/broker-groups", raw=raw, headers=headers)
    ).code == 201


async def test_a_body_is_bounded_whatever_its_header_says() -> None:
    world = World()
    config = make_config(admin=AdminConfig(body_bytes_max=1024))
    long = b'{"name":"' + b"x" * 2000 + b'"}'
    async with world.serving(config) as server:
        operator = Operator(server)
        path = "/api/v1/broker-groups"
        assert (await operator.ask("POST", path, raw=long, headers=JSON)).code == 413
        assert (await operator.ask("POST", path, pieces=[b"x" * 600] * 3, headers=JSON)).code == 413
        lying = {**JSON, "content-length": "-5"}
        assert (await operator.ask("POST", path, raw=b"{}", headers=lying)).code == 413
        pieces = [b'{"name"', b':"g1"}']
        assert (await operator.ask("POST", path, pieces=pieces, headers=JSON)).code == 201


async def test_a_body_that_does_not_come_is_not_waited_for_long(
    server: MetaServer, operator: Operator
) -> None:
    began = trio.current_time()
    answer = await operator.ask(
        "POST", "/api/v1/broker-groups", raw=b"{}", headers=JSON, stall_s=60
    )
    assert (answer.code, answer.error["code"]) == (408, "slow")
    assert trio.current_time() - began < 6
    assert server.entrance.busy == 0


async def test_too_much_at_a_time_is_refused_and_ends() -> None:
    world = World()
    config = make_config(admin=AdminConfig(requests_max=2))
    codes: list[int] = []
    async with world.serving(config) as server:
        operator = Operator(server)

        async def slow() -> None:
            path = "/api/v1/broker-groups"
            answer = await operator.ask("POST", path, raw=b"{}", headers=JSON, stall_s=3)
            codes.append(answer.code)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(slow)
        assert sorted(codes) == [400, 400, 503]
        assert (await operator.groups())["items"] == []


# Who may


async def test_without_a_token_nothing_is_answered_but_what_is_for_everybody(
    tmp_path: Path,
) -> None:
    world = World()
    async with world.serving(make_config(admin=with_tokens(tmp_path))) as server:
        operator = Operator(server, peer="10.0.0.9")
        for method, path in (
            ("GET", "/api/v1/broker-groups"),
            ("POST", "/api/v1/broker-groups"),
            ("GET", "/api/v1/audit"),
            ("GET", "/status"),
        ):
            answer = await operator.ask(method, path)
            assert (answer.code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
        for path in ("/meta/address", "/livez", "/readyz", "/metrics"):
            assert (await operator.ask("GET", path)).code == 200
        assert (await operator.ask("GET", "/api/v1/openapi.json")).code == 200


async def test_who_may_read_may_not_change_and_the_audit_has_the_name(tmp_path: Path) -> None:
    world = World()
    async with world.serving(make_config(admin=with_tokens(tmp_path))) as server:
        reader = Operator(server, peer="10.0.0.9", headers=READER)
        admin = Operator(server, peer="10.0.0.9", headers=ADMIN)
        body = {"name": "g1", "address": "h:1"}
        code, error = await refusal_of(reader.add_group(**body))
        assert (code, error["code"]) == (403, "role")
        await admin.add_group(**body)
        [entry] = (await reader.audit())["items"]
        assert entry["actor"] == "alice"
        assert (await reader.ask("GET", "/status")).code == 200


async def test_a_token_that_is_taken_away_counts_no_more_within_a_second(tmp_path: Path) -> None:
    world = World()
    settings = with_tokens(tmp_path)
    async with world.serving(make_config(admin=settings)) as server:
        admin = Operator(server, headers=ADMIN)
        await admin.brokers()
        new = tmp_path / "new"
        new.write_bytes(encode_tokens([Token(name="rob", role=Role.READ, sha256=digest_of("r"))]))
        new.chmod(0o600)
        new.replace(settings.token_file)
        await trio.sleep(1.1)
        assert (await refusal_of(admin.brokers()))[0] == 401
        await Operator(server, headers=READER).brokers()
        os.unlink(settings.token_file)
        await trio.sleep(1.1)
        code, error = await refusal_of(Operator(server, headers=READER).brokers())
        assert (code, error["code"]) == (503, "tokens")


async def test_a_page_of_another_place_cannot_change_anything(
    server: MetaServer, operator: Operator
) -> None:
    await add_groups(operator, "g1")
    for headers in (
        {"origin": "http://evil.example"},
        {"host": "evil.example"},
        {"sec-fetch-site": "cross-site"},
    ):
        for method, path, body in (
            ("POST", "/api/v1/broker-groups", {"name": "g2"}),
            ("PATCH", "/api/v1/broker-groups/g1", {"weight": 1}),
            ("DELETE", "/api/v1/routes/a", None),
        ):
            assert (await operator.ask(method, path, body, headers=headers)).code == 403
    assert list(server.registry.groups) == ["g1"]


# The store


async def test_while_the_store_is_away_reading_goes_on_and_changes_are_503(
    world: World, server: MetaServer, operator: Operator
) -> None:
    await add_groups(operator, "g1")
    world.medium.is_down = True
    code, error = await refusal_of(operator.change_group("g1", weight=1))
    assert (code, error["code"]) == (503, "store")
    code, error = await refusal_of(operator.change_group("g1", weight=1))
    assert code == 503
    assert (await operator.group("g1"))["weight"] == 100
    assert (await operator.topology())["ready"] is False
    code, error = await refusal_of(operator.audit())
    assert (code, "away" in error["message"]) == (503, True)
    world.medium.is_down = False
    await until(lambda: not server.committer.is_stale)
    assert (await operator.change_group("g1", weight=1))["weight"] == 1
    assert (await operator.audit())["items"]


async def test_a_commit_whose_end_is_not_known_is_told_so_and_can_be_looked_up(
    world: World, server: MetaServer, operator: Operator
) -> None:
    await add_groups(operator, "g1")
    world.medium.next_faults = [Fault.KEPT]
    code, error = await refusal_of(operator.change_group("g1", weight=1))
    assert (code, "check whether" in error["message"]) == (503, True)
    await until(lambda: not server.committer.is_stale)
    assert (await operator.group("g1"))["weight"] == 1


async def test_somebody_else_in_the_store_is_a_conflict_and_nothing_is_kept(
    world: World, server: MetaServer, operator: Operator
) -> None:
    await add_groups(operator, "g1")
    world.medium.tables.groups["g1"] = BrokerGroup(
        name="g1", kind=GroupKind.NORMAL, master="h:9", version=5
    )
    code, error = await refusal_of(operator.change_group("g1", weight=1))
    assert (code, error["code"]) == (409, "conflict")
    await until(lambda: not server.committer.is_stale)
    assert (await operator.group("g1"))["version"] == 5


async def test_a_slow_store_is_504_and_the_change_is_there_later() -> None:
    world = World()
    world.plan = ExecutorPlan(delay_s=(2.0, 2.0), stall_chance=0)
    config = make_config(admin=AdminConfig(answer_ms_max=100))
    async with world.serving(config) as server:
        operator = Operator(server)
        began = trio.current_time()
        code, error = await refusal_of(operator.add_group("g1"))
        assert (code, error["code"]) == (504, "unknown")
        assert trio.current_time() - began < 1
        await until(lambda: "g1" in server.registry.groups)
        assert server.administration.changes == {"broker-group.add": 1}


async def test_nothing_is_answered_before_the_store_is_loaded() -> None:
    operator = Operator(World().server())
    code, error = await refusal_of(operator.groups())
    assert (code, error["code"]) == (503, "starting")


async def test_a_bug_ends_one_request_and_is_told_in_the_log(
    server: MetaServer, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.registry, "groups", None)
    code, error = await refusal_of(operator.groups())
    assert (code, error["code"]) == (500, "bug")
    monkeypatch.undo()
    await operator.groups()
    assert server.entrance.busy == 0


async def test_names_with_anything_in_them_come_back_as_they_are(operator: Operator) -> None:
    for name in ("ä%41", "a?b#c", "..", "%2F", "a+b", "<b>&\"'"):
        await operator.add_group(name, address="h:1")
        assert (await operator.group(name))["name"] == name
        await operator.set_route(name, [name])
        assert (await operator.route(name))["groups"] == [name]


async def test_a_head_is_a_get_and_an_offline_broker_shows(
    world: World, operator: Operator
) -> None:
    peer = await world.connect()
    await peer.broker(broker("g1"))
    await peer.broker(broker("g1", what=BrokerRequestType.OFFLINE))
    assert (await operator.ask("HEAD", "/api/v1/broker-groups")).code == 200
    [row] = (await operator.groups(state="NRW"))["items"]
    assert row["name"] == "g1"
