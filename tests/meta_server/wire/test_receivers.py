"""Receivers over the wire: told where to attach, given a group and routes, or told what to do."""

from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta.requests import BrokerGroupInfo, BrokerRole, BrokerState, ClientType
from delay_protocol.nodes.auth import receiver_token
from delay_protocol.nodes.registration import Refused
from delay_protocol.receivers import masters
from meta_server.server import MetaServer
from meta_server.settings.config import RegistrationConfig
from meta_server.wire.admission import WAITING_PER_ADDRESS_MAX
from tests.kit.operator import Operator, refusal_of
from tests.meta_server.memory_store import Fault
from tests.meta_server.meta_rig import (
    Peer,
    World,
    asking,
    at_once,
    broker,
    entered,
    make_config,
    names,
    node,
    until,
)

SERVER, PRODUCER, CONSUMER = ClientType.DELAY_SERVER, ClientType.PRODUCER, ClientType.CONSUMER


async def asked(
    peer: Peer, *patterns: str, name: str = "mail", told: int = 0, token: str = ""
) -> masters.ReceiverReply:
    request = masters.ReceiverRegister(name=name, patterns=patterns, told=told, token=token)
    frame = await peer.ask(CommandCode.RECEIVER_REGISTER, masters.encode_receiver_register(request))
    assert frame.code == 0, frame.body
    return masters.decode_receiver_reply(frame.body)


async def registered(peer: Peer, *patterns: str, **more: Any) -> masters.ReceiverRegistered:  # noqa: ANN401
    reply = await asked(peer, *patterns, **more)
    assert isinstance(reply, masters.ReceiverRegistered), reply
    return reply


async def delay_server(world: World) -> Peer:
    peer = await world.registered(node())
    await peer.state("RW")
    return peer


async def test_a_receiver_gets_a_subscription_of_which_delay_servers_alone_are_told() -> None:
    world = World()
    async with world.serving() as server:
        receiver, client = await world.connect(), await world.connect()
        await delay_server(world)
        await client.broker(broker("g1"))
        told = await registered(receiver, "orders.*", "paid")
        assert told.masters == (masters.MasterInfo(group="d1", address="10.0.0.5:20801"),)
        assert (told.version > 0, told.waits) == (True, "")
        row = server.registry.receivers["mail"]
        for subject in ("orders.sent", "paid", "%RETRY%paid%mail"):
            assert (await client.register(subject, SERVER)).groups == (
                BrokerGroupInfo(
                    name="mail", master="", updated_ms=row.updated_ms, state=BrokerState.RW
                ),
            )
            for client_type in (PRODUCER, CONSUMER, ClientType.OTHER, 77):
                assert (await client.register(subject, client_type)).groups == ()
            assert names((await client.register(subject, ClientType.DELAY_PRODUCER)).groups) == [
                "d1"
            ]
        # Of everything else a delay server is told what a producer is.
        assert names((await client.register("other", SERVER)).groups) == ["g1"]
        found = await Operator(server).topology()
        (shown,) = found["receivers"]
        assert (shown["name"], shown["patterns"]) == ("mail", ["orders.*", "paid"])
        assert (shown["entered"], shown["connected"]) == (False, 1)
        assert [row["name"] for row in found["broker_groups"]] == ["d1", "g1"]
        assert found["next_steps"] == []
        # A second name gets the same subjects, and what it takes, beside the first.
        asked = await world.connect()
        assert names((await asked.register("orders.sent", SERVER)).groups) == ["mail"]
        await registered(await world.connect(), "orders.s*", name="audit")
        assert names((await asked.pushed()).groups) == ["audit", "mail"]
        assert names((await asked.register("orders.x", SERVER)).groups) == ["mail"]
    # Nobody was attached for long, and the server was started again.
    async with world.serving() as server:
        await trio.sleep(3700)
        steps = {
            row["group"]: row["step"] for row in (await Operator(server).topology())["next_steps"]
        }
        assert steps["mail"].startswith("nobody receives under its name: start a receiver")
        client = await world.connect()
        assert names((await client.register("orders.paid", SERVER)).groups) == ["mail"]


async def test_who_asks_again_and_again_writes_nothing_and_several_may_have_a_name(
    world: World, server: MetaServer
) -> None:
    peers = [await world.connect() for _ in range(3)]
    await at_once(registered(peer, "orders.*", "paid") for peer in peers)
    commits = server.committer.commits
    assert server.committer.conflicts == 0
    for peer in peers:
        await registered(peer, "orders.*", "paid")
    assert server.committer.commits == commits
    [entry] = [row.entry for row in world.medium.audit]
    assert (entry.actor, entry.action) == ("receiver at 127.0.0.1", "receiver.register")
    row = msgspec.json.decode(entry.after)
    assert (entry.target, row["patterns"]) == ("mail", ["orders.*", "paid"])


async def test_a_request_is_answered_when_a_master_is_another_one_or_after_a_while() -> None:
    world = World()
    async with world.serving():
        receiver, brokers = await world.connect(), await world.connect()
        first = await registered(receiver)
        assert first.masters == ()
        began = trio.current_time()
        assert await registered(receiver, told=first.version) == first
        assert masters.HOLD_S <= trio.current_time() - began < masters.HOLD_S + 1
        async with asking(lambda: registered(receiver, told=first.version)) as news:
            await trio.sleep(1)
            # This changes nothing that a receiver is told of.
            await brokers.broker(broker("g1"))
            await trio.sleep(1)
            assert not news
            began = trio.current_time()
            await delay_server(world)
        assert trio.current_time() - began < 0.1
        [second] = news
        assert second.version != first.version
        assert second.masters == (masters.MasterInfo(group="d1", address="10.0.0.5:20801"),)
        # The version says what is told, so another meta server's is the same.
    async with world.serving():
        again = await registered(await world.connect())
        assert again == second


async def test_a_name_is_for_receivers_or_for_brokers(
    world: World, server: MetaServer, operator: Operator
) -> None:
    receiver, peer = await world.connect(), await world.connect()
    await peer.broker(broker("g1"))
    refused = await asked(receiver, name="g1")
    assert refused == masters.ReceiverRefused(
        reason="g1 is a group of brokers: a receiver needs another name"
    )
    assert isinstance(await asked(receiver, "a b"), masters.ReceiverRefused)
    assert "mail" not in server.registry.receivers
    await registered(receiver)
    for role in (BrokerRole.MASTER, BrokerRole.DELAY_MASTER):
        answer = await peer.broker(broker("mail", address="10.0.0.9:1", role=role))
        assert answer.code == 51
        assert b"mail is a name of receivers: a broker group needs another" in answer.body
    assert await peer.node(node(group="mail")) == Refused(reason="mail is a name of receivers")
    body = {"group": "mail", "role": "MASTER", "hostname": "b", "ip": "10.0.0.2"}
    ports = {"serve_port": 1, "sync_port": 2}
    assert (await refusal_of(operator.add_broker(**(body | ports))))[0] == 400
    assert (await refusal_of(operator.add_group(name="mail")))[0] == 400
    assert (await refusal_of(operator.put("receiver", "g1")))[0] == 400
    for what in ("d1", "g2"):
        assert (await peer.acquire(what, 1)).code == 51


@pytest.mark.parametrize("config", [entered()])
async def test_where_groups_are_entered_an_operator_lets_a_receiver_in(
    world: World, server: MetaServer, operator: Operator
) -> None:
    receiver, client = await world.connect(), await world.connect()
    await operator.add_group("A", address="10.0.0.1:1")
    await operator.set_route("paid", ["A"])
    patterns = ("orders.*", "sent", "paid")
    told = await registered(receiver, *patterns)
    elsewhere = "pattern 'paid' has subjects in common with the route of paid to A: an operator "
    elsewhere += "can end that with `delaywheel admin remove route paid`"
    remedy = "delaywheel admin set receiver mail 'patterns=orders.*,sent'"
    assert told.waits == f"mail is not known: it waits for an operator ({remedy}); {elsewhere}"
    [waiting] = (await operator.topology())["next_steps"]
    assert waiting["group"] == "mail"
    assert waiting["step"].endswith(f"asks from 127.0.0.1; if it is yours, let it in: `{remedy}`")
    async with asking(lambda: registered(receiver, *patterns, told=told.version)) as news:
        await trio.sleep(1)
        await operator.put("receiver", "mail", patterns=["orders.*", "sent"])
        assert server.registry.receivers["mail"].is_entered
    assert news[0].waits == elsewhere
    assert (await operator.topology())["next_steps"] == []
    for subject in ("orders.x", "sent"):
        assert names((await client.register(subject, SERVER)).groups) == ["mail"]
    assert world.medium.audit[-1].entry.action == "receiver.add"
    # What a set route leads elsewhere stays there, as what a name gets stays its own.
    assert (await refusal_of(operator.set_prefix("orders.eu", ["A"])))[0] == 409
    assert (await registered(receiver, *patterns)).waits == elsewhere
    assert (await operator.topology())["next_steps"] == []
    # Further patterns wait as well, and another receiver of the name does not hide it.
    told = await registered(receiver, "orders.*", "more.*")
    remedy = "delaywheel admin set receiver mail 'patterns=more.*,orders.*,sent'"
    assert told.waits == f"mail wants further subjects: it waits for an operator ({remedy})"
    await operator.put("receiver", "mail", patterns=["more.*", "orders.*", "sent"])
    assert (await registered(receiver, "orders.*", "more.*")).waits == ""


@pytest.mark.parametrize("config", [entered()])
async def test_those_that_wait_are_few_and_one_that_an_operator_set_waits_for_the_rest(
    world: World, operator: Operator
) -> None:
    receiver = await world.connect()
    for number in range(WAITING_PER_ADDRESS_MAX):
        await registered(receiver, name=f"r{number}")
    told = await registered(receiver, "orders.*")
    assert "too many groups wait for an operator" in told.waits
    assert "`delaywheel admin set receiver mail 'patterns=orders.*'`" in told.waits
    assert b"too many groups wait for an operator" in (await receiver.broker(broker("g1"))).body
    await trio.sleep(30)
    shown = await operator.put("receiver", "mail", patterns=["*"])
    assert (shown["patterns"], shown["entered"], shown["connected"]) == (["*"], True, 1)
    assert (await registered(receiver, "orders.*")).waits == ""
    await operator.put("receiver", "mail", patterns=["paid"])
    assert (await registered(receiver, "orders.*")).waits.startswith("mail wants further")
    assert (await registered(receiver)).waits == ""


async def test_what_cannot_be_read_or_stored_is_refused_with_a_reason(
    world: World, server: MetaServer
) -> None:
    receiver, other = await world.connect(), await world.connect()
    for body in (b"", b"\x80", msgspec.msgpack.encode({"name": 1})):
        answer = await receiver.ask(CommandCode.RECEIVER_REGISTER, body)
        assert (answer.code, bool(answer.body)) == (51, True)
    told = await registered(receiver, "orders.*")
    world.medium.next_faults = [Fault.LOST]
    request = masters.encode_receiver_register(masters.ReceiverRegister(name="other"))
    assert (await other.ask(CommandCode.RECEIVER_REGISTER, request)).code == 51
    # Who is known is answered from memory.
    assert await registered(receiver, "orders.*") == told
    await until(lambda: not server.committer.is_stale)
    await registered(other, name="other")


async def test_who_has_no_name_is_told_of_the_masters_alone(
    world: World, server: MetaServer
) -> None:
    client = await world.connect()
    commits = server.committer.commits
    first = await registered(client, name="")
    assert (first.masters, first.waits) == ((), "")
    async with asking(lambda: registered(client, name="", told=first.version)) as news:
        await trio.sleep(1)
        assert server.committer.commits == commits
        assert server.registry.receivers == {}
        await delay_server(world)
    assert news[0].masters == (masters.MasterInfo(group="d1", address="10.0.0.5:20801"),)


async def test_one_request_waits_on_a_connection_and_is_forgotten_with_it(
    world: World, server: MetaServer
) -> None:
    receiver = await world.connect()
    told = await registered(receiver)
    body = masters.encode_receiver_register(
        masters.ReceiverRegister(name="mail", told=told.version)
    )
    with trio.move_on_after(1):
        await receiver.ask(CommandCode.RECEIVER_REGISTER, body)
    assert len(server.handlers.held) == 1
    answer = await receiver.ask(CommandCode.RECEIVER_REGISTER, body)
    assert answer.code == 51
    assert b"waits on this connection already" in answer.body
    await receiver.stream.aclose()
    await until(lambda: not len(server.handlers.held))


async def test_a_registration_and_an_operator_do_not_get_into_each_others_way(
    world: World, server: MetaServer, operator: Operator
) -> None:
    peers = [await world.connect() for _ in range(4)]
    await peers[0].broker(broker("g1"))
    await registered(peers[0])
    asks: list[Awaitable[object]] = [
        registered(peers[0], "a.*", "b"),
        operator.set_prefix("a.", ["g1"]),
        peers[1].register("b"),
        registered(peers[2], "a.*", "b", "d", name="other"),
        operator.set_prefix("c.", ["g1"]),
        registered(peers[3], "c.*", name="third"),
    ]
    await at_once(asks)
    assert server.committer.conflicts == 0
    # Whoever came first.
    assert [server.registry.prefixes[name].groups for name in ("a.", "c.")] == [("g1",)] * 2
    receivers = server.registry.receivers
    assert {name: row.patterns for name, row in receivers.items()} == {
        "mail": ("b",),
        "other": ("b", "d"),
        "third": (),
    }


async def test_a_receiver_is_told_how_an_operator_wants_its_messages_tried(
    world: World, operator: Operator
) -> None:
    receiver = await world.connect()
    told = await registered(receiver, "a")
    assert told.retries == masters.Retries()
    async with asking(lambda: registered(receiver, "a", told=told.version)) as news:
        await trio.sleep(1)
        await operator.put(
            "receiver", "mail", patterns=["a"], tries=16, waits="10s 1m", unsettled_tries=5
        )
    assert news[0].retries == masters.Retries(tries=16, waits="10s 1m", unsettled_tries=5)
    for wrong, field in (
        ({"tries": 0}, "tries"),
        ({"unsettled_tries": 0}, "unsettled_tries"),
        ({"waits": "1y"}, "waits"),
        ({"waits": "365d"}, "waits"),
        ({"first_level": 0}, "first_level"),
        ({"first_level": 3, "waits": "1s"}, "first_level"),
    ):
        status, problem = await refusal_of(operator.put("receiver", "mail", **wrong))
        assert (status, field in str(problem)) == (400, True), problem
    shown = await operator.put("receiver", "mail", patterns=["a"], first_level=3)
    assert (shown["tries"], shown["waits"], shown["first_level"]) == (None, "", 3)


async def test_a_name_that_nobody_has_is_removed(
    world: World, server: MetaServer, operator: Operator
) -> None:
    receiver = await world.connect()
    await registered(receiver, "a.*", "b")
    status, problem = await refusal_of(operator.remove("receiver", "mail"))
    assert status == 409
    assert problem["message"] == "a receiver of mail is connected: stop it first"
    await receiver.stream.aclose()
    await until(lambda: not list(server.handlers.sessions))
    await operator.remove("receiver", "mail")
    assert "mail" not in server.registry.receivers


async def test_where_a_secret_is_needed_a_receiver_needs_the_token_of_its_name(
    tmp_path: Path,
) -> None:
    file = tmp_path / "secret"
    file.write_text("s" * 32)
    file.chmod(0o600)
    world = World()
    for is_needed in (True, False):
        registration = RegistrationConfig(secret_file=str(file), secret_needed=is_needed)
        async with world.serving(make_config(registration=registration)) as server:
            peer = await world.connect()
            reply = await asked(peer, "orders.*", token=receiver_token(b"s" * 32, "other"))
            if is_needed:
                assert isinstance(reply, masters.ReceiverRefused)
                assert "the token is not that of receivers of 'mail'" in reply.reason
                assert not server.registry.groups
                await registered(peer, "orders.*", token=receiver_token(b"s" * 32, "mail"))
            else:
                assert isinstance(reply, masters.ReceiverRegistered)
