"""What operations do and what they refuse, of each kind of row, in the words of the API."""

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
import trio

from delay_protocol.meta.requests import BrokerRole
from delay_protocol.nodes.registration import (
    NodeRegistered,
    Refused,
    Told,
)
from meta_server.known import model
from meta_server.settings.config import AdminConfig, RegistrationConfig
from tests.kit.operator import OperationRefusedError, Operator, refusal_of
from tests.meta_server.memory_store import contents_of
from tests.meta_server.meta_rig import World, group, make_config, node, record, uuid, world_with

Operation = Callable[[Operator], Awaitable[Any]]

PLACE = {"hostname": "h", "ip": "10.0.0.1", "serve_port": 1, "sync_port": 2}
MASTER = {"group": "g1", "role": "MASTER", **PLACE}


def delay_group(
    *others: str, in_sync: Sequence[str] = ("n1",), min_isr: int = 1, has_master: bool = True
) -> dict[str, Any]:
    """Return rows of a delay group d1 with the nodes n1 and others."""
    names = ("n1", *others)
    disks = {name: uuid(100 + names.index(name)) for name in in_sync}
    known = record(4, 9, master="n1" if has_master else None, min_isr=min_isr, **disks)
    nodes = tuple(
        model.DelayNode(
            cluster="c1",
            group="d1",
            node_id=name,
            log_uuid=uuid(1),
            storage_uuid=uuid(100 + number),
            incarnation=1,
            boot_id=uuid(200 + number),
            last_sequence=1,
            address=f"10.0.0.{number}:20801",
        )
        for number, name in enumerate(names)
    )
    kind = model.GroupKind.DELAY
    return {
        "broker_groups": (group("d1", kind=kind, master="10.0.0.0:20801"),),
        "delay_nodes": nodes,
        "delay_groups": (
            model.DelayGroup(name="d1", cluster="c1", log_uuid=uuid(1), record=known),
        ),
    }


@pytest.fixture
def world() -> World:
    """Return a world in which there is something of each kind."""
    rows = delay_group()
    rows["broker_groups"] += (
        group("g1", master="h:1", is_static=True),
        group("speaks"),
        group("old", is_retired=True),
    )
    rows["brokers"] = (
        model.Broker(group="g1", role=BrokerRole.MASTER, hostname="h", serve_port=1, ip="10.0.0.1"),
    )
    rows["routes"] = (
        model.Route(name="mine", groups=("g1",), is_chosen=False),
        model.Route(name="chosen", groups=("g1", "speaks")),
        model.Route(name="p.", is_prefix=True, groups=("g1",), is_chosen=False),
    )
    rows["subjects"] = tuple(model.Subject(name=name) for name in ("mine", "chosen"))
    return world_with(**rows)


@pytest.fixture
async def operator(world: World) -> AsyncIterator[Operator]:
    config = make_config(
        registration=RegistrationConfig(groups_max=6, subjects_max=3),
        admin=AdminConfig(prefix_routes_max=1),
    )
    async with world.serving(config) as server:
        yield Operator(server)


# What is refused


def _broker(**more: object) -> Operation:
    return lambda do: do.add_broker(**(MASTER | {"group": "g2", "hostname": "k"} | more))


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        *((lambda do, n=name: do.add_group(n), "name") for name in ("a b", "ä" * 200)),
        *(
            (lambda do, a=address: do.add_group("g", address=a), "address")
            for address in ("nowhere", "x..y:5", f"{'x' * 64}:5", "h:70000", "[::1]:1")
        ),
        (lambda do: do.change_group("g1", address="here"), "address"),
        (lambda do: do.change_group("g1", address=""), "address"),
        (lambda do: do.change_group("g1", kind="delay"), "kind"),
        (_broker(ip="h1"), "ip"),
        (_broker(hostname="a b"), "hostname"),
        (_broker(hostname="a:b"), "hostname"),
        (_broker(sync_port=0), "sync_port"),
        (_broker(group="a b"), "group"),
        *(
            (lambda do, s=subject: do.set_route(s, ["g1"]), "pattern")
            for subject in ("a b", "%RETRY%a%g", "x" * 256)
        ),
        *(
            (lambda do, g=groups: do.set_route("a", g), "groups")
            for groups in (["g1", "g1"], ["nowhere"], ["d1"], ["old"], [f"g{n}" for n in range(65)])
        ),
        (lambda do: do.extend_routes("g1", "nowhere"), "new_group"),
        (lambda do: do.operate("PUT", "/route/a", {}), "groups"),
        (lambda do: do.set_route("a", []), "groups"),
        (lambda do: do.set_route("a", ["g1", 5]), "groups[1]"),
        (lambda do: do.add_group("g", weight=-1), "weight"),
        (lambda do: do.replace_broker("g1", "KING"), "role"),
        (lambda do: do.subjects(limit=0), "limit"),
        (lambda do: do.groups(kind="x"), "kind"),
    ],
)
async def test_what_a_row_cannot_be_is_refused_by_field(
    operator: Operator, operation: Operation, field: str
) -> None:
    code, error = await refusal_of(operation(operator))
    assert (code, error["code"], error["field"]) == (400, "bad-value", field)
    assert error["allowed"]
    assert field in error["message"]


async def test_a_value_that_is_none_of_a_few_names_them(operator: Operator) -> None:
    _, error = await refusal_of(operator.add_group("g", kind="x"))
    assert (error["field"], error["allowed"]) == ("kind", "one of normal, delay")


_OURS = "is the address of the delay server"


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (lambda do: do.change_group("d1", address="10.0.0.9:1"), "record"),
        (lambda do: do.change_group("g1", address="10.0.0.9:1"), "replace that broker"),
        (lambda do: do.retire_group("g1"), "read-only"),
        # A broker group at the address of a delay server.
        (lambda do: do.add_group("g", address="10.0.0.0:20801"), _OURS),
        (lambda do: do.change_group("speaks", address="10.0.0.0:20801"), _OURS),
        (_broker(hostname="10.0.0.0", serve_port=20801), _OURS),
        (_broker(ip="10.0.0.0", serve_port=20801), _OURS),
        (
            lambda do: do.replace_broker(
                "g1", "MASTER", **(PLACE | {"hostname": "10.0.0.0", "serve_port": 20801})
            ),
            _OURS,
        ),
        (_broker(group="g1", role="BACKUP", hostname="h", sync_port=0), "is entered as MASTER"),
        (_broker(group="g1", role="DELAY_MASTER"), "NORMAL, not of DELAY"),
        (lambda do: do.set_prefix("q.", ["g1"]), "limit"),
    ],
)
async def test_what_the_state_of_a_row_does_not_allow_is_refused_and_it_is_said_why(
    operator: Operator, operation: Operation, words: str
) -> None:
    code, error = await refusal_of(operation(operator))
    assert (code, error["code"]) == (409, "conflict")
    assert words in error["message"]


@pytest.mark.parametrize(
    ("operation", "found"),
    [
        (lambda do: do.add_group("g1"), "1"),
        (lambda do: do.change_group("g1", weight=9, version=4), "1"),
        (lambda do: do.remove_group("old", version=2), "1"),
        (lambda do: do.remove_broker("g1", "MASTER", version=2), "1"),
        (lambda do: do.set_route("new", ["g1"], version=1), None),
        (lambda do: do.set_prefix("p.", ["speaks"], version=2), "1"),
        (lambda do: do.add_subject("mine", version=0), "1"),
        (lambda do: do.act("delay-group", "d1", action="elect", version="4.8"), "4.9"),
        (lambda do: do.remove("delay-node", "d1", "n1", version=2), "1"),
        (lambda do: do.change_rule("c1", "groups", group="g1", weight=2, version=1), None),
    ],
)
async def test_a_row_of_another_version_than_expected_stays_as_it_is(
    operator: Operator, operation: Operation, found: str | None
) -> None:
    code, error = await refusal_of(operation(operator))
    assert (code, error["code"]) == (412, "version")
    there = "there is no such row" if found is None else f"with version {found}"
    assert there in error["message"] or f"it has version {found}" in error["message"]
    assert (await operator.audit())["items"] == []


async def test_a_row_comes_with_its_version(operator: Operator) -> None:
    for path, etag in (("broker-group/g1", "1"), ("delay-group/d1", "4.9"), ("route/x", "0")):
        answer = await operator.ask("GET", f"/api/v1/{path}")
        assert answer.headers["etag"] == f'"{etag}"'


async def test_there_is_a_limit_to_groups_and_subjects_and_brokers_of_a_group(
    operator: Operator,
) -> None:
    for name in ("g5", "g6"):
        await operator.add_group(name)
    with pytest.raises(OperationRefusedError, match="6 broker groups, which is the limit"):
        await operator.add_group("g7")
    await operator.add_subject("third")
    for operation in (operator.add_subject("one.more"), operator.set_route("x", ["g1"])):
        with pytest.raises(OperationRefusedError, match="3 subjects, which is the limit"):
            await operation
    for role, sync_port in (("SLAVE", 2), ("BACKUP", 0)):
        more = {"role": role, "hostname": role, "sync_port": sync_port}
        await operator.add_broker(**(MASTER | more))
    assert len((await operator.brokers(prefix="g1/"))["items"]) == 3


# What is done


async def test_a_group_without_an_address_is_away_until_it_registers(operator: Operator) -> None:
    shown = await operator.add_group("g")
    assert (shown["state"], shown["address"], shown["entered"]) == ("NRW", "", True)


async def test_what_is_left_out_of_a_change_stays(operator: Operator) -> None:
    before = await operator.group("g1")
    after = await operator.change_group("g1", weight=9, version=1)
    changed = {"weight": 9, "version": 2, "entered": True}
    assert after == before | changed | {"since_ms": after["since_ms"]}
    [entry] = (await operator.audit(limit=1))["items"]
    assert (entry["before"]["weight"], entry["after"]["weight"]) == (100, 9)


async def test_a_group_is_retired_once_it_is_read_only(operator: Operator) -> None:
    await operator.set_read_only("g1", True)
    assert (await operator.retire_group("g1", version=2))["retired"]
    assert not (await operator.restore_group("g1", version=3))["retired"]


@pytest.mark.parametrize("hostname", ["h", "elsewhere"])
async def test_a_broker_is_replaced_at_its_place_or_at_another(
    operator: Operator, hostname: str
) -> None:
    place = PLACE | {"hostname": hostname, "ip": "10.0.0.2"}
    await operator.replace_broker("g1", "MASTER", **place)
    [shown] = (await operator.brokers())["items"]
    assert (shown["hostname"], shown["ip"]) == (hostname, "10.0.0.2")
    [entry] = (await operator.audit())["items"]
    assert (entry["action"], entry["target"]) == ("broker.change", "g1/MASTER")
    assert (entry["before"]["ip"], entry["after"]["hostname"]) == ("10.0.0.1", hostname)
    await operator.replace_broker("g1", "MASTER", **place)
    assert len((await operator.audit())["items"]) == 1


async def test_a_route_of_an_operators_stays_as_it_is_and_makes_its_subject_known(
    world: World, operator: Operator
) -> None:
    await operator.set_route("new", ["speaks"])
    await operator.set_route("chosen", ["g1", "speaks"])
    assert not (await operator.route("chosen"))["chosen"]
    peer = await world.connect()
    await peer.register("new")
    assert (await operator.route("new"))["groups"] == ["speaks"]
    assert (await operator.subject("new"))["name"] == "new"


async def test_a_group_that_was_taken_out_of_a_route_does_not_come_back_by_itself(
    world: World, operator: Operator
) -> None:
    await operator.set_route("chosen", ["g1"])
    peer = await world.connect()
    await peer.register("chosen")
    assert (await operator.route("chosen"))["groups"] == ["g1"]
    # It joins those routes again that have another one.
    await operator.extend_routes("g1", "speaks")
    shown = await operator.route("chosen")
    assert shown["groups"] == ["g1", "speaks"]


# Delay servers


@pytest.mark.parametrize(
    ("others", "rows", "node_id", "words"),
    [
        (("n2", "n3"), {"min_isr": 2}, "n3", "n3 is in sync: stop it, and the master (n1) drops"),
        (("n2", "n3"), {"has_master": False}, "n3", "and the master (nobody now) drops it"),
        (("n2",), {"min_isr": 2}, "n2", "n2 is one of 2 members in sync, and min_isr of d1 is 2"),
        ((), {}, "n1", "only disk with the messages of d1"),
    ],
)
async def test_a_disk_in_sync_is_not_removed_and_what_to_do_first_is_said(
    others: tuple[str, ...], rows: dict[str, Any], node_id: str, words: str
) -> None:
    world = world_with(**delay_group(*others, in_sync=("n1", *others), **rows))
    async with world.serving() as server:
        code, error = await refusal_of(Operator(server).remove_node("d1", node_id))
    assert (code, words in error["message"]) == (409, True)


async def test_one_of_several_copies_is_given_up_only_where_no_master_could_drop_it() -> None:
    members = delay_group("n2", "n3", in_sync=("n1", "n2", "n3"), min_isr=2, has_master=False)
    world = world_with(**members)
    async with world.serving() as server:
        operator = Operator(server)
        await trio.sleep(16)
        shown = await operator.give_up_node("d1", "n3")
        assert (shown["epoch"], sorted(shown["in_sync"])) == (4, ["n1", "n2"])
        with pytest.raises(OperationRefusedError, match=r"min_isr of d1 is 2: .* min-isr d1 1`"):
            await operator.give_up_node("d1", "n2", lose_messages=True)


async def test_a_node_that_is_not_in_sync_is_removed_and_nothing_is_given_up_for_it() -> None:
    async with world_with(**delay_group("n2")).serving() as server:
        operator = Operator(server)
        await trio.sleep(16)
        with pytest.raises(OperationRefusedError, match=r"nothing has to be given up: .* d1/n2`"):
            await operator.give_up_node("d1", "n2", lose_messages=True)
        shown = await operator.remove_node("d1", "n2")
        assert [row["node_id"] for row in shown["nodes"]] == ["n1"]
        entry = (await operator.audit())["items"][0]
        assert (entry["action"], entry["target"]) == ("delay-node.remove", "d1/n2")


async def test_an_older_directory_is_taken_only_if_messages_may_be_lost_and_the_newer_is_dead() -> (
    None
):
    world = world_with(**delay_group())
    older = node(storage=100, last_sequence=0, address="10.0.0.0:20801", incarnation=2)
    async with world.serving() as server:
        operator, peer = Operator(server), await world.connect()
        with pytest.raises(OperationRefusedError, match=r"409 n1 at .* was heard lately"):
            await operator.accept_older("d1", "n1", lose_messages=True)
        await trio.sleep(16)
        answer = await peer.node(older)
        assert isinstance(answer, Refused)
        assert "older copy" in answer.reason
        [step] = (await operator.topology())["next_steps"]
        assert step["step"].startswith("n1 is refused: this directory is an older copy")
        with pytest.raises(OperationRefusedError, match="n1 had record 1 in epoch 0: what an old"):
            await operator.accept_older("d1", "n1")
        with pytest.raises(OperationRefusedError, match="404"):
            await operator.accept_older("d1", "n9", lose_messages=True)
        for _ in range(2):
            await operator.accept_older("d1", "n1", lose_messages=True)
        assert len((await operator.audit(action="delay-node.approve"))["items"]) == 1
        assert isinstance(await peer.node(older), NodeRegistered)
        assert (await operator.topology())["next_steps"] == []


async def test_nothing_of_a_group_is_changed_whose_newest_record_the_store_lacks() -> None:
    rows = delay_group("n2")
    newer = msgspec.structs.replace(rows["delay_groups"][0].record, epoch=7)
    async with (world := world_with(**rows)).serving() as server:
        operator, peer = Operator(server), await world.connect()
        told = Told(record=newer, nodes=("n1",))
        again = node(storage=100, address="10.0.0.0:20801", incarnation=2, told=told)
        with pytest.raises(AssertionError, match="n1 was told epoch 7"):
            await peer.node(again)
        [lost] = (await operator.topology())["next_steps"]
        assert (lost["group"], "n1 was told epoch 7" in lost["step"]) == ("d1", True)
        await peer.stream.aclose()
        await trio.sleep(16)
        for operation in (
            operator.elect("d1"),
            operator.hand_over("d1"),
            operator.set_min_isr("d1", 2),
            operator.remove_node("d1", "n2"),
            operator.give_up_node("d1", "n1", lose_messages=True),
        ):
            with pytest.raises(OperationRefusedError, match="409 d1: n1 was told epoch 7"):
                await operation
        assert (await operator.recover("d1", lose_messages=True))["epoch"] > 7


# Whatever comes


def _drawn(chance: random.Random, do: Operator) -> Awaitable[Any]:
    """Return what an operator may ask for, sense or not."""
    name, other = chance.choices(["g1", "g2", "g3", "d1"], k=2)
    subject = chance.choice(["a", "b", "a.b", "%RETRY%a%g"])
    version = {} if chance.random() < 0.7 else {"version": chance.randint(1, 3)}
    role, lose = chance.choice(["MASTER", "SLAVE", "DELAY_MASTER"]), chance.random() < 0.5
    place = PLACE | {"hostname": chance.choice("xyz"), "sync_port": chance.randint(2, 3)}
    kind, address = "delay" if name == "d1" else "normal", chance.choice(["h:1", "h:2"])
    drawn: list[Callable[[], Awaitable[Any]]] = [
        lambda: do.add_group(name, kind=kind, **({"address": address} if lose else {})),
        lambda: do.change_group(name, address=address, static=lose, **version),
        lambda: do.change_group(name, weight=chance.randint(0, 2), **version),
        lambda: do.retire_group(name, lose_messages=lose, **version),
        lambda: do.restore_group(name),
        lambda: do.set_read_only(name, lose),
        lambda: do.add_broker(group=name, role=role, **place),
        lambda: do.replace_broker(name, role, **place),
        lambda: do.remove_broker(name, role, **version),
        lambda: do.set_route(subject, [name, other], **version),
        lambda: do.set_prefix(subject, [name], **version),
        lambda: do.remove_route(subject, **version),
        lambda: do.remove_prefix(subject, **version),
        lambda: do.extend_routes(name, other),
        lambda: do.add_subject(subject, **version),
        lambda: do.remove_group(name, lose_messages=lose),
    ]
    return chance.choice(drawn)()


@pytest.mark.parametrize("seed", range(4))
async def test_an_operation_is_refused_or_does_what_its_entry_says(seed: int) -> None:
    world, chance = World(), random.Random(seed)
    async with world.serving(make_config(admin=AdminConfig(prefix_routes_max=2))) as server:
        operator, registry = Operator(server), server.registry
        for _ in range(250):
            before, entries = contents_of(registry), len(world.medium.audit)
            with contextlib.suppress(OperationRefusedError):
                await _drawn(chance, operator)
            added = world.medium.audit[entries:]
            assert bool(added) is (contents_of(registry) != before)
            assert all(one.entry.before != one.entry.after for one in added)
            assert len(registry.prefixes) <= 2
            for route in (*registry.routes.values(), *registry.prefixes.values()):
                assert len(set(route.groups)) == len(route.groups) > 0
                assert all(
                    registry.groups[name].kind is model.GroupKind.NORMAL for name in route.groups
                )
            for row in registry.groups.values():
                assert row.master or not row.is_static
                assert len(registry.brokers_in(row.name)) <= 3
