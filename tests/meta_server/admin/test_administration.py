"""Groups that nobody entered: who lets them in, how many there may be, and who removes them."""

import pytest
import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta.requests import BrokerRequestType, BrokerRole, ClientType
from delay_protocol.nodes.registration import NodeRegistered, encode_node_register
from delay_protocol.receivers import masters
from meta_server.server import MetaServer
from meta_server.settings.config import (
    ListenerConfig,
    RegistrationConfig,
)
from meta_server.wire.admission import (
    NEW_GROUPS_ADDRESS_SHARE,
    NEW_GROUPS_BURST_SECONDS,
    NEW_GROUPS_PER_SECOND,
)
from tests.kit.operator import Operator, refusal_of
from tests.meta_server.meta_rig import World, broker, entered, make_config, names, node

AT_ONCE = NEW_GROUPS_PER_SECOND * NEW_GROUPS_BURST_SECONDS * NEW_GROUPS_ADDRESS_SHARE
DELAY_PRODUCER = ClientType.DELAY_PRODUCER
HEARTBEAT, OFFLINE = BrokerRequestType.HEARTBEAT, BrokerRequestType.OFFLINE


@pytest.mark.parametrize(
    ("address", "advertised", "groups", "is_open"),
    [
        ("127.0.0.1:20880", "", "", True),
        ("[::1]:20880", "", "", True),
        ("0.0.0.0:20880", "", "", False),
        ("127.0.0.1:20880", "meta1:20880", "", False),
        ("meta1:20880", "", "open", True),
        ("127.0.0.1:20880", "", "entered", False),
    ],
)
def test_beyond_this_machine_groups_have_to_be_entered(
    address: str, advertised: str, groups: str, is_open: bool
) -> None:
    config = make_config(
        listener=ListenerConfig(address=address, advertised=advertised),
        registration=RegistrationConfig(groups=groups),  # type: ignore[arg-type]
    )
    assert config.is_open is is_open


async def test_unknown_groups_of_all_kinds_wait_serve_nobody_and_are_let_in() -> None:
    world, delay = World(), BrokerRole.DELAY_MASTER
    async with world.serving(entered()) as server:
        operator, peer, client = Operator(server), await world.connect(), await world.connect()
        for what in (BrokerRequestType.ONLINE, HEARTBEAT):
            answer = await peer.broker(broker("g1", what=what))
            assert answer.code == 51
            assert b"delaywheel admin approve g1" in answer.body
        assert (await peer.broker(broker("q1", role=delay))).code == 51
        with pytest.raises(AssertionError, match="waits for an operator"):
            await peer.node(node(group="d1"))
        assert (await client.register("a.b", DELAY_PRODUCER)).groups == ()
        assert (await client.register("a.b")).groups == ()
        await trio.sleep(2)
        steps = {row["group"]: row["step"] for row in (await operator.topology())["next_steps"]}
        assert list(steps) == ["g1", "q1", "d1"]
        assert "asks from 127.0.0.1" in steps["g1"]
        assert "approve g1 --address 10.0.0.1:20881`" in steps["g1"]
        # The second as for a receiver, which it is not.
        for address in ("10.6.6.6:20881", ""):
            wrong = await refusal_of(operator.approve_group("g1", address=address))
            assert (wrong[0], wrong[1]["code"]) == (409, "conflict")
        shown = await operator.approve_group("g1", address="10.0.0.1:20881")
        assert (shown["address"], shown["state"]) == ("10.0.0.1:20881", "NRW")
        assert shown["entered"]
        assert (await peer.broker(broker("g1", what=HEARTBEAT))).code == 0
        assert names((await client.pushed()).groups) == ["g1"]
        for name in ("q1", "d1"):
            await operator.approve_group(name)
        assert (await peer.broker(broker("q1", role=delay))).code == 0
        # Another one of its servers may be the first that comes then.
        await world.registered(node("n2", group="d1", address="10.0.0.6:20801", storage=7))
        assert server.registry.groups["d1"].master == "10.0.0.6:20801"
        assert (await operator.topology())["next_steps"] == []
        actions = [row.entry.action for row in world.medium.audit]
        assert actions == ["broker-group.approve"] * 3 + ["node.register"]
    # They are known, and entered, after a restart as well.
    async with world.serving(entered()) as server:
        assert (await (await world.connect()).broker(broker("g1", what=HEARTBEAT))).code == 0
        assert (await refusal_of(Operator(server).approve_group("g9")))[0] == 404


async def test_beside_delay_servers_of_ours_an_unknown_one_of_qmqs_waits_where_all_may_join(
    world: World, operator: Operator
) -> None:
    client, stranger, role = await world.connect(), await world.connect(), BrokerRole.DELAY_MASTER
    # Where there are only QMQ's, they come as its meta server has them come.
    assert (await stranger.broker(broker("q0", role=role))).code == 0
    await stranger.broker(broker("q0", role=role, what=OFFLINE))
    await (await world.registered(node())).state("RW")
    answer = await stranger.broker(broker("q1", address="10.6.6.6:1", role=role))
    assert b"waits for an operator" in answer.body
    for subject in ("a.b", "a.c", "a.d"):
        assert names((await client.register(subject, DELAY_PRODUCER)).groups) == ["d1"]
    await operator.approve_group("q1")
    assert (await stranger.broker(broker("q1", address="10.6.6.6:1", role=role))).code == 0


@pytest.mark.parametrize("config", [entered()])
async def test_who_is_entered_needs_no_approval(world: World, operator: Operator) -> None:
    peer = await world.connect()
    await operator.add_group("g1")
    place = {"hostname": "b2", "ip": "10.0.0.2", "serve_port": 1, "sync_port": 2}
    await operator.add_broker(group="g2", role="MASTER", **place)
    assert (await peer.broker(broker("g1"))).code == 0
    assert (await peer.broker(broker("g2", address="10.0.0.2:1"))).code == 0


async def test_one_peer_takes_few_places_of_groups_at_once_and_others_come_later(
    world: World, server: MetaServer
) -> None:
    peer, receiver = await world.connect(), masters.ReceiverRegister(name="mail", patterns=())
    for number in range(300):
        await peer.broker(broker(f"flood{number}"))
    assert len(server.registry.groups) <= AT_ONCE + 2
    why = b"too many groups are new from this address; try again later"
    asked = masters.encode_receiver_register(receiver)
    for refused in (
        await peer.broker(broker("good")),
        await peer.ask(CommandCode.RECEIVER_REGISTER, asked),
        await peer.ask(CommandCode.NODE_REGISTER, encode_node_register(node())),
    ):
        assert why in refused.body
    await trio.sleep(10)
    assert (await peer.broker(broker("good"))).code == 0
    # Those that are known are no newcomers.
    assert (await peer.broker(broker("flood0", what=HEARTBEAT))).code == 0


async def test_a_group_that_is_not_in_use_is_removed_and_leaves_chosen_routes(
    world: World, server: MetaServer, operator: Operator
) -> None:
    peer, client = await world.connect(), await world.connect()
    await peer.broker(broker("bad", address="10.6.6.6:1"))
    await client.register("a.b")
    code, error = await refusal_of(operator.remove_group("bad"))
    assert (code, error["message"]) == (409, "bad speaks: stop it, and wait for the time-out")
    await peer.broker(broker("bad", address="10.6.6.6:1", what=OFFLINE))
    await trio.sleep(31)
    _, error = await refusal_of(operator.remove_group("bad"))
    assert error["message"].startswith("1 subjects are routed to bad, and messages in it")
    await peer.broker(broker("g1"))
    answer = await operator.remove_group("bad", lose_messages="true")
    assert answer == {"changed": True}
    assert list(server.registry.groups) == ["g1"]
    # The client is told by a push or two.
    await trio.sleep(1)
    client = await world.connect()
    assert names((await client.register("a.b")).groups) == ["g1"]
    actions = [row.entry.action for row in world.medium.audit]
    assert actions == ["broker-group.remove"]
    # The name is free: whoever takes it gets nothing of what there is.
    assert (await peer.broker(broker("bad", address="10.6.6.6:1"))).code == 0
    assert names((await client.register("a.b")).groups) == ["g1"]
    assert (await refusal_of(operator.remove_group("nobody")))[0] == 404


async def test_a_group_that_somebody_holds_is_not_removed(
    world: World, server: MetaServer, operator: Operator
) -> None:
    peer = await world.connect()

    async def why(name: str) -> str:
        return (await refusal_of(operator.remove_group(name)))[1]["message"]

    await operator.add_group("static", address="h:1")
    assert await why("static") == "static takes messages: retire it first"
    await operator.set_route("a.b", ["static"])
    retired = {"lose_messages": True}
    await operator.retire_group("static", **retired)
    assert await why("static") == ("an operator has routed a.b to static: change that first")
    await operator.remove_route("a.b")
    await operator.remove_group("static")
    assert isinstance(await peer.node(node()), NodeRegistered)
    assert await why("d1") == "d1 has brokers or delay servers: remove those first"
    await trio.sleep(31)
    await operator.give_up_node("d1", "n1", **retired)
    await operator.remove_group("d1")
    assert not server.registry.groups
    assert not server.registry.delay_groups
    assert isinstance(await peer.node(node(incarnation=2)), NodeRegistered)
