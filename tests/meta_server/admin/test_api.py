"""The administration's API: what is answered, when, and what connected clients learn of it."""

import base64

import msgspec
import pytest
import trio

from delay_protocol.meta.requests import BrokerRequestType, BrokerState, ClientType
from meta_server.known.model import BrokerGroup, GroupKind, Route, Subject
from meta_server.server import MetaServer
from meta_server.settings.config import AdminConfig
from tests.kit.operator import Operator, refusal_of
from tests.meta_server.memory_store import Fault
from tests.meta_server.meta_rig import (
    World,
    at_once,
    broker,
    make_config,
    names,
    node,
    state_of,
    until,
    world_with,
)
from tests.meta_server.wire.test_group_changes import three
from tests.simulation.executor import ExecutorPlan


async def add_groups(operator: Operator, *group_names: str) -> None:
    for number, name in enumerate(group_names):
        await operator.add_group(name, address=f"10.0.0.{number}:20881")


# What a change is


async def test_a_change_is_answered_when_it_is_stored_with_its_audit_in_the_same_commit(
    world: World, server: MetaServer, operator: Operator
) -> None:
    shown = await operator.add_group("g1", address="h:1")
    assert (shown["name"], shown["state"], shown["version"]) == ("g1", "RW", 1)
    assert server.parts.changes == {"broker-group.add": 1}
    [stored] = [commit for commit in world.medium.commits if len(commit) > 1]
    assert [type(change).__name__ for change in stored] == ["Save", "Audit"]
    [row] = world.medium.audit
    told = (row.entry.actor, row.entry.action, row.entry.target)
    assert told == ("loopback", "broker-group.add", "g1")


@pytest.mark.parametrize("config", [make_config(admin=AdminConfig(prefix_routes_max=5))])
async def test_a_limit_holds_however_many_ask_at_once(
    server: MetaServer, operator: Operator
) -> None:
    await add_groups(operator, "g1")
    paths = [f"/api/v1/route/p{number}.*" for number in range(20)]
    answers = await at_once(operator.ask("PUT", path, {"groups": ["g1"]}) for path in paths)
    assert sorted(one.code for one in answers) == [200] * 5 + [409] * 15
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
    assert (await operator.route("a.b"))["follows"] == "a.*"
    await operator.remove_prefix("a.")
    assert names((await peer.pushed()).groups) == []


async def test_read_only_is_pushed_to_producers_and_a_retired_group_is_taken_from_everybody(
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
    code, _ = await refusal_of(operator.retire_group("g1"))
    assert code == 409
    await operator.retire_group("g1", lose_messages=True)
    for peer in (producer, consumer):
        assert names((await peer.pushed()).groups) == ["g2"]
    await operator.restore_group("g1")
    assert sorted(names((await consumer.pushed()).groups)) == ["g1", "g2"]


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


async def test_a_broker_is_told_who_it_is_as_soon_as_it_is_entered(
    world: World, operator: Operator
) -> None:
    body = {"group": "g1", "role": "MASTER", "hostname": "b1", "ip": "10.0.0.1"}
    ports = {"serve_port": 20881, "sync_port": 20882}
    peer = await world.connect()
    unknown = await peer.acquire("b1", 20881)
    assert (unknown.code, unknown.body) == (51, b"")
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
        await operator.add_group(name, address="h:1", static=static)
    await trio.sleep(31)
    states = {row["name"]: row["state"] for row in (await operator.groups())["items"]}
    assert states == {"late": "NRW", "static": "RW"}
    assert [row["name"] for row in (await operator.groups(prefix="l"))["items"]] == ["late"]


# Delay servers


async def test_a_delay_server_that_is_stopped_is_removed_and_a_dead_disk_is_given_up(
    world: World, operator: Operator
) -> None:
    peer = await world.registered(node())
    slave = node("n2", storage=2, last_sequence=0, address="10.0.0.6:20801")
    other = await world.registered(slave)
    code, error = await refusal_of(operator.remove_node("d1", "n2"))
    assert (code, "is alive" in error["message"]) == (409, True)
    await other.stream.aclose()
    await trio.sleep(1)
    shown = await operator.remove_node("d1", "n2")
    assert [row["node_id"] for row in shown["nodes"]] == ["n1"]
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
        await group.members[0].register_again(last_sequence=40, committed=30, uncommitted=7)
        for member in group.members[1:]:
            await member.register_again()
        shown = await operator.delay_group("d1")
        assert (shown["phase"], shown["election"]) == ("active", "")
        first = shown["nodes"][0]
        assert (first["role"], first["in_sync"]) == ("master", True)
        ends = [first[name] for name in ("last_sequence", "committed", "uncommitted")]
        assert ends == [40, 30, 7]
        assert (shown["nodes"][1]["role"], shown["nodes"][1]["in_sync"]) == ("slave", True)
        shown = await operator.set_min_isr("d1", 2)
        assert shown["min_isr"] == 2
        await group.members[0].news()
        await operator.hand_over("d1", to="n3")
        assert (await group.members[0].news()).hand_over_to == "n3"
        assert not (await group.members[1].news()).hand_over_to
        began = trio.current_time()
        assert (await group.members[0].news()).hand_over_to == ""
        assert 9.9 < trio.current_time() - began < 10.4
        code, error = await refusal_of(operator.hand_over("d1", to="n3"))
        assert (code, "n3 is none of those in sync beside n1" in error["message"]) == (409, True)
        shown = await operator.elect("d1")
        assert (shown["phase"], shown["epoch"], shown["master"]) == ("electing", 2, None)
        assert (await group.members[1].news()).vote_epoch == 2
        shown = await operator.elect("d1")
        assert (shown["phase"], shown["epoch"]) == ("electing", 2)
        found = [row["action"] for row in (await operator.audit())["items"]]
        assert found[:3] == ["delay-group.elect", "delay-group.handover", "delay-group.min-isr"]


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
    await operator.set_route("routed", ["g1"])
    for subject, code, reason in (
        ("used", 409, "is used by a connected client"),
        ("retried", 409, "is used by a connected client"),
        ("routed", 409, "has a route that an operator set"),
        ("nobody", 404, "there is no subject"),
    ):
        found, error = await refusal_of(operator.remove_subject(subject))
        assert found == code
        assert reason in error["message"]
    assert await operator.remove_subject("typo") == {"changed": True}
    assert sorted(server.registry.subjects) == ["retried", "routed", "used"]
    assert "typo" not in server.registry.routes
    removed = world.medium.audit[-1].entry
    assert (removed.action, removed.actor) == ("subject.remove", "loopback")
    assert "typo" in removed.before
    # Whoever uses it again has it made anew.
    assert names((await peer.register("typo")).groups) == ["g1"]


# Lists


async def test_routes_are_paged_found_by_beginning_and_group_and_counted_by_group() -> None:
    count = 3000
    names_ = [f"s.{number * 7919 % count:06}" for number in range(count)]
    rows = [Subject(name=name) for name in names_]
    routes = [
        Route(name=name, groups=("g1",) if number % 2 else ("g2", "g1"))
        for number, name in enumerate(names_)
    ]
    async with world_with(subjects=rows, routes=routes).serving() as server:
        operator = Operator(server)
        for ask in (operator.subjects, operator.routes):
            first = await ask(limit=1000)
            second = await ask(after=first["next"], limit=1000)
            seen = [row.get("name") or row["pattern"] for row in first["items"] + second["items"]]
            assert seen == [f"s.{number:06}" for number in range(2000)]
        some = await operator.routes(prefix="s.00299", group="g2", limit=1000)
        assert some["next"] is None
        assert 0 < len(some["items"]) < 10
        assert all("g2" in row["groups"] for row in some["items"])
        topology = await operator.topology()
        assert topology["routes_by_group"] == {"g1": count, "g2": count // 2}


async def test_an_after_that_no_page_ended_with_is_refused(operator: Operator) -> None:
    packed = [
        base64.urlsafe_b64encode(msgspec.msgpack.encode(key)).decode()
        for key in ({"a": 1}, [7], ["a", "b"], [])
    ]
    for after in ("x", "äöü", "////", *packed):
        code, error = await refusal_of(operator.subjects(after=after))
        assert (code, error["field"]) == (400, "after")


async def test_the_audit_is_filtered_and_paged_and_tells_before_and_after(
    operator: Operator,
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


async def test_a_long_audit_is_looked_through_page_by_page(operator: Operator) -> None:
    for number in range(999):
        await operator.add_subject(f"s{number}")
    await add_groups(operator, "g1")
    assert (await operator.audit(limit=1))["next"] == 1000
    first = await operator.audit(target="s0")
    assert ([row["number"] for row in first["items"]], first["next"]) == ([1], 1)
    assert await operator.audit(target="s0", before=1) == {"items": [], "next": None}
    await operator.add_subject("last")
    first = await operator.audit(target="s0")
    assert first == {"items": [], "next": 2}
    oldest = await operator.audit(target="s0", before=first["next"])
    assert ([row["number"] for row in oldest["items"]], oldest["next"]) == ([1], None)
    [row] = (await operator.audit(action="broker-group", limit=1))["items"]
    assert row["target"] == "g1"


async def test_everything_is_there_at_a_glance(world: World, operator: Operator) -> None:
    peer = await world.registered(node())
    await add_groups(operator, "g1")
    await peer.register("a.b")
    await operator.add_subject("entered")
    found = await operator.topology()
    assert [row["name"] for row in found["broker_groups"]] == ["d1", "g1"]
    [group] = found["delay_groups"]
    assert (group["master"], group["nodes"][0]["in_sync"]) == ("n1", True)
    assert found["routes_by_group"] == {"g1": 1}
    [unserved] = found["unserved"]
    assert unserved.pop("why") == "it has no route: no broker group could be given to it"
    assert unserved == {"patterns": 1, "examples": ["entered"]}
    assert (found["failing"], found["next_steps"]) == ([], [])


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
    assert (await operator.topology())["unserved"] == []
    assert (await operator.route("s1"))["unserved"] == ""
    await operator.retire_group("g1", lose_messages=True)
    [retired] = (await operator.topology())["unserved"]
    assert (retired["why"], retired["patterns"]) == ("g1 is retired", 7)
    assert retired["examples"] == [f"s{number}" for number in range(5)]
    await operator.set_read_only("g2", True)
    found = await operator.topology()
    assert {row["why"]: row["examples"] for row in found["unserved"]} == {
        "g1 is retired": retired["examples"],
        "g1 is retired, g2 is read-only": ["both"],
        "g2 is read-only": ["p.*"],
    }
    why = {name: (await operator.route(name))["unserved"] for name in ("s1", "p.a")}
    assert why == {
        "s1": "g1 is retired",
        "p.a": "g2 is read-only",
    }


async def test_who_is_known_counts_as_heard_for_a_time_out_after_a_restart() -> None:
    world = World()
    async with world.serving() as server:
        peer = await world.registered(node())
        await peer.broker(broker("g1"))
        await peer.broker(broker("g2"))
        await trio.sleep(3)
        assert await _liveness(server) == [3] * 3
    await trio.sleep(1000)
    async with world.serving() as server:
        peer = await world.connect()
        await peer.broker(broker("g2", what=BrokerRequestType.HEARTBEAT))
        await trio.sleep(3)
        assert await _liveness(server) == [3] * 3
        await trio.sleep(31)
        assert await _liveness(server) == [None] * 3


async def _liveness(server: MetaServer) -> list[int | None]:
    """Return how g1, g2 and n1 are shown."""
    found = await Operator(server).topology()
    rows = {row["name"]: row for row in found["broker_groups"]}
    since = "heard_seconds_ago"
    return [
        None if row[since] is None else int(row[since])
        for row in (rows["g1"], rows["g2"], found["delay_groups"][0]["nodes"][0])
    ]


async def test_many_routes_are_changed_in_one_request_and_each_is_in_the_audit() -> None:
    rows = tuple(Route(name=f"s{number:04}", groups=("g1",)) for number in range(500))
    world = world_with(routes=rows)
    async with world.serving() as server:
        operator = Operator(server)
        await add_groups(operator, "g1", "g2")
        changed = await operator.extend_routes("g1", "g2")
        assert changed == {"changed": 500, "left": 0, "complete": True}
        assert all(route.groups == ("g1", "g2") for route in server.registry.routes.values())
        again = await operator.extend_routes("g1", "g2")
        assert again == {"changed": 0, "left": 0, "complete": True}
    actions = [row.entry.action for row in world.medium.audit]
    assert actions.count("route.extend") == 500


# What is refused


async def test_what_is_not_there_is_404(operator: Operator) -> None:
    await add_groups(operator, "g1")
    for operation in (
        operator.group("g9"),
        operator.change_group("g9"),
        operator.retire_group("g9"),
        operator.subject("a"),
        operator.prefix("a"),
        operator.remove_route("a"),
        operator.remove_prefix("a"),
        operator.remove_broker("g1", "MASTER"),
        operator.remove_rule("c9", "groups", group="g1"),
        operator.change_rule("c9", "groups", group="g1", weight=2),
        operator.delay_group("d9"),
        operator.remove_node("d9", "n"),
        operator.give_up_node("d9", "n", lose_messages=True),
        operator.accept_older("d9", "n", lose_messages=True),
        operator.elect("d9"),
    ):
        assert (await refusal_of(operation))[0] == 404
    code, error = await refusal_of(operator.route("a\nb"))
    assert (code, error["field"]) == (400, "pattern")


# The store


async def test_while_the_store_is_away_reading_goes_on_and_changes_are_503(
    world: World, server: MetaServer, operator: Operator
) -> None:
    await add_groups(operator, "g1")
    world.medium.is_down = True
    code, error = await refusal_of(operator.change_group("g1", weight=1))
    assert (code, error["code"]) == (503, "store")
    assert (await operator.group("g1"))["weight"] == 100
    assert (await operator.topology())["failing"]
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
        assert server.parts.changes == {"broker-group.add": 1}


async def test_nothing_is_answered_before_the_store_is_loaded() -> None:
    operator = Operator(World().server())
    code, error = await refusal_of(operator.groups())
    assert (code, error["code"]) == (503, "starting")
