"""What each request is answered, over a connection: the protocol's vectors, traps and refusals."""

from functools import partial
from itertools import chain

import pytest
import structlog
import trio
from msgspec.structs import replace

from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta import requests
from delay_protocol.nodes.registration import (
    NodeRegistered,
    Refused,
    encode_node_register,
)
from delay_protocol.wire.frames import Frame
from delay_transport.seams.trouble import KINDS_MAX
from meta_server.admin.administration import carry_out
from meta_server.known import model
from meta_server.known.commits import Intent
from meta_server.server import MetaServer
from meta_server.settings.config import RegistrationConfig
from tests.kit.plans import put
from tests.meta_server.memory_store import Fault
from tests.meta_server.meta_rig import (
    PROMPT,
    Peer,
    World,
    at_once,
    broker,
    group,
    make_config,
    names,
    node,
    state_of,
    until,
    world_with,
)
from tests.simulation.executor import ExecutorPlan

ONLINE, HEARTBEAT, OFFLINE = (
    requests.BrokerRequestType.ONLINE,
    requests.BrokerRequestType.HEARTBEAT,
    requests.BrokerRequestType.OFFLINE,
)
CONSUMER, DELAY_PRODUCER = requests.ClientType.CONSUMER, requests.ClientType.DELAY_PRODUCER


@pytest.mark.parametrize("register_type", requests.RegisterType)
async def test_a_subject_is_made_and_routed_at_its_first_use_and_keeps_its_route(
    register_type: requests.RegisterType,
) -> None:
    """Also where a client's first word is a heartbeat, as it is with QMQ's now and then."""
    world = world_with(broker_groups=(group("g1"), group("g2"), group("g3")))
    async with world.serving() as server:
        peer = await world.connect()
        first = await peer.register("a.b", register_type=register_type)
        assert len(first.groups) == 2
        consumer = await peer.register("a.b", CONSUMER, register_type=register_type)
        assert names(consumer.groups) == names(first.groups)
        assert server.handlers.sessions.uses == 2
    assert [subject.name for subject in world.medium.contents.of(model.Subject)] == ["a.b"]
    async with world.serving():
        again = await (await world.connect()).register("a.b", register_type=register_type)
        assert names(again.groups) == names(first.groups)


async def test_many_who_use_a_new_subject_at_once_get_the_same_route() -> None:
    world = world_with(broker_groups=tuple(group(f"g{n}") for n in range(5)))
    async with world.serving():
        peers = [await world.connect() for _ in range(50)]
        replies = await at_once(peer.register("a.b") for peer in peers)
    assert len({tuple(names(reply.groups)) for reply in replies}) == 1
    assert len(world.medium.contents.of(model.Route)) == 1


@pytest.mark.parametrize(
    "subject", ["%RETRY%a.b%group1", "%DEAD_RETRY%a.b%group1"], ids=["retry", "dead retry"]
)
async def test_trap_5_a_retry_subject_is_routed_as_the_real_one_and_echoed_as_it_is(
    subject: str,
) -> None:
    world = world_with(broker_groups=tuple(group(f"g{n}") for n in range(5)))
    async with world.serving():
        peer = await world.connect()
        real = await peer.register("a.b", CONSUMER, consumer_group="group1")
        retry = await peer.register(subject, CONSUMER, consumer_group="group1")
        assert retry.subject == subject
        assert (retry.consumer_group, retry.client_type) == ("group1", CONSUMER)
        assert retry.groups == real.groups
    assert [row.name for row in world.medium.contents.of(model.Subject)] == ["a.b"]


async def test_an_illegal_or_huge_subject_is_answered_minus_2_and_leaves_nothing_behind() -> None:
    world = world_with(broker_groups=(group("g1"),))
    with structlog.testing.capture_logs() as lines:
        async with world.serving() as server:
            peer = await world.connect()
            illegal = ("", "a b", "a/b", "%RETRY%a/b%g")
            for subject in (*illegal, "x" * 30_000, "%RETRY%" + "x" * 300 + "%g"):
                reply = await peer.register(subject)
                assert (reply.timestamp_ms, reply.groups, reply.subject) == (-2, (), subject)
                assert reply.online_state is requests.OnlineState.OFFLINE
            long_id = await peer.register("a.b", client_id="i" * 5000)
            assert long_id.timestamp_ms == -2
            assert server.handlers.sessions.uses == 0
            assert server.listener is not None
            assert server.listener.counts.faults == 7
    assert world.medium.contents.of(model.Subject) == ()
    # There is no room for a reason in what QMQ's clients are answered.
    refused = [line for line in lines if line["event"] == "refused"]
    assert {line["command"] for line in refused} == {"CLIENT_REGISTER"}
    assert [line["reason"] for line in refused[-3:]] == [
        "a subject of 30000 bytes, at most 255",
        "a subject of 300 bytes, at most 255",
        "a name of 5000 bytes, at most 512",
    ]


@pytest.mark.parametrize("client_type", requests.ClientType)
async def test_where_subjects_are_entered_another_one_is_refused_until_it_is(
    client_type: requests.ClientType,
) -> None:
    world = world_with(
        broker_groups=(group("g1"),),
        subjects=(model.Subject(name="known"),),
        routes=(model.Route(name="led.", is_prefix=True, groups=("g1",), is_chosen=False),),
    )
    config = make_config(registration=RegistrationConfig(subjects="entered"))
    with structlog.testing.capture_logs() as lines:
        async with world.serving(config) as server:
            peer = await world.connect()
            for subject in ("known", "%RETRY%known%g", "led.by.a.prefix"):
                assert (await peer.register(subject, client_type)).timestamp_ms > 0
            for subject in ("new", "%RETRY%new%g", "%known"):
                reply = await peer.register(subject, client_type)
                assert (reply.timestamp_ms, reply.groups) == (-2, ())
            assert set(server.registry.subjects) <= {"known", "led.by.a.prefix"}
            entered = put("subject", "new")
            await carry_out(server.parts.asked_by("alice"), entered)
            for subject in ("new", "%RETRY%new%g"):
                assert (await peer.register(subject, client_type)).timestamp_ms > 0
            assert "new" in server.registry.subjects
    assert "nobody entered the subject new" in [line.get("reason") for line in lines]


async def test_a_body_that_cannot_be_read_is_answered_51_with_the_reason(
    world: World, server: MetaServer
) -> None:
    peer = await world.connect()
    for code in (35, 40, 30, 1010):
        answer = await peer.ask(code, b"\x7f")
        assert answer.code == 51
        assert bool(answer.body) == (code != CommandCode.BROKER_ACQUIRE_META)
    assert server.listener is not None
    assert server.listener.counts.faults == 4
    assert (await peer.ask(11, b"")).code == 3


async def test_a_flood_of_new_subjects_is_refused_for_the_moment_and_known_ones_go_on() -> None:
    world = world_with(broker_groups=(group("g1"),))
    limits = RegistrationConfig(
        new_subjects_per_second_max=1, new_subjects_burst_seconds=3, new_subjects_address_share=1
    )
    async with world.serving(make_config(registration=limits)):
        peer = await world.connect()
        answers = [await peer.try_register(f"s{n}") for n in range(20)]
        assert [answer.code for answer in answers] == [0] * 4 + [51] * 16
        asked_again = (b"subjects are used for the first time", b"try again later")
        assert all(part in answer.body for answer in answers[4:] for part in asked_again)
        assert names((await peer.register("s0")).groups) == ["g1"]
        await trio.sleep(5)
        assert (await peer.try_register("later")).code == 0
    assert len(world.medium.contents.of(model.Subject)) == 5


@pytest.mark.parametrize("is_urgent", [True, False], ids=["something urgent", "many others"])
async def test_while_others_wait_for_the_store_clients_have_a_turn_now_and_then(
    world: World, server: MetaServer, monkeypatch: pytest.MonkeyPatch, *, is_urgent: bool
) -> None:
    monkeypatch.setattr("meta_server.wire.dispatch._TURN_S_MAX", 0)
    monkeypatch.setattr("meta_server.wire.dispatch._WAITING_MAX", 2 if is_urgent else 0)
    peers = [await world.connect() for _ in range(40)]
    await peers[0].register("a.b")
    world.executor.plan = ExecutorPlan(delay_s=(1.0, 1.0), stall_chance=0)
    for number in range(2):
        changes = (model.Save(model.Subject(name=f"other.{number}")),)
        plan = partial(tuple, changes)
        server.committer.submit(
            Intent(keys=(), plan=plan, done=lambda _: None, is_urgent=is_urgent)
        )
    began = trio.current_time()
    await at_once(peer.register("a.b") for peer in peers)
    assert 0.19 <= trio.current_time() - began < 0.4
    await until(lambda: not server.committer.unapplied)
    began = trio.current_time()
    await at_once(peer.register("a.b") for peer in peers)
    assert trio.current_time() - began < 0.1


async def test_there_are_no_more_subjects_than_allowed() -> None:
    """Subjects that are being stored count, too: some are, while the others come."""
    world = world_with(broker_groups=(group("g1"),))
    world.plan = ExecutorPlan(delay_s=(1, 1), stall_chance=0)
    async with world.serving(make_config(registration=RegistrationConfig(subjects_max=3))):
        peers = [await world.connect() for _ in range(6)]

        async def use(number: int) -> int:
            await trio.sleep(0.1 * number)
            return (await peers[number].try_register(f"s{number}")).code

        codes = await at_once(map(use, range(6)))
        assert sorted(codes) == [0, 0, 0, 51, 51, 51]
        assert b"limit" in (await peers[0].try_register("s9")).body
        assert (await peers[0].try_register("s9", DELAY_PRODUCER)).code == 0
    assert len(world.medium.contents.of(model.Subject)) == 3


async def test_a_subject_that_could_not_be_stored_needs_a_place_when_its_route_is_pushed() -> None:
    world = world_with(broker_groups=(group("g1"),))
    async with world.serving(
        make_config(registration=RegistrationConfig(subjects_max=3))
    ) as server:
        peer = await world.connect()
        world.medium.next_faults = [Fault.LOST]
        assert (await peer.try_register("lost")).code == 51
        await until(lambda: not server.committer.is_stale)
        codes = [(await (await world.connect()).try_register(f"s{n}")).code for n in range(3)]
        await trio.sleep(5)
        server.handlers.pusher.changed()
        await trio.sleep(5)
    # Its client had the first place, or comes too late.
    assert codes in ([0, 0, 0], [0, 0, 51])
    assert len(world.medium.contents.of(model.Subject)) == 3


async def test_trap_6_a_broker_is_answered_within_2_s_however_slow_the_store_is(
    world: World, server: MetaServer
) -> None:
    peer, other, client = [await world.connect() for _ in range(3)]
    await client.register("a.b")
    world.executor.plan = ExecutorPlan(delay_s=(7.0, 7.0), stall_chance=0)
    began = trio.current_time()
    answers = await at_once([peer.broker(broker("g1")), other.broker(broker("g2"))])
    assert 1.5 <= trio.current_time() - began < 2
    assert [answer.code for answer in answers] == [51, 51]
    assert b"slow" in answers[0].body
    # It is stored when the store can, told to clients, and nobody is answered twice.
    await until(lambda: set(server.registry.groups) == {"g1", "g2"})
    await until(lambda: "a.b" in server.registry.routes)
    world.executor.plan = PROMPT
    with trio.fail_after(30):
        while len((await client.pushed()).groups) < 2:
            pass
    assert (await peer.broker(broker("g1", what=HEARTBEAT))).code == 0
    await trio.sleep(25)
    assert state_of(server, "g1") is requests.BrokerState.RW
    assert server.handlers.dispatcher.refusals["BROKER_REGISTER"] == 2


async def test_roles_that_copy_are_answered_and_change_nothing(served: World) -> None:
    peer = await served.connect()
    for role in (1, 4, 6, 7):
        assert (await peer.broker(broker(role=requests.BrokerRole(role)))).code == 0
    assert served.medium.contents.of(model.BrokerGroup) == ()


async def test_wrong_roles_groups_and_addresses_are_refused_with_the_reason() -> None:
    world = world_with(broker_groups=(group("g1"),))
    async with world.serving() as server:
        peer = await world.connect()
        for request, reason in (
            (broker(role=requests.BrokerRole.STANDBY), b"STANDBY"),
            (broker(role=requests.BrokerRole.DELAY_MASTER), b"NORMAL"),
            (broker(address="nowhere"), b"host:port"),
            (broker("g 1"), b"blanks"),
            (broker("g" * 300), b"255"),
            (broker(what=OFFLINE, address="10.9.9.9:1"), b"10.0.0.1:20881"),
            (broker(what=HEARTBEAT, address="10.9.9.9:1"), b"heard"),
        ):
            answer = await peer.broker(request)
            assert answer.code == 51
            assert reason in answer.body
        assert server.handlers.dispatcher.refusals["BROKER_REGISTER"] == 7
    assert world.medium.contents.of(model.BrokerGroup) == (group("g1"),)


@pytest.mark.parametrize("config", [make_config(registration=RegistrationConfig(groups_max=3))])
async def test_a_flood_of_groups_ends_at_the_limit(served: World) -> None:
    peer = await served.connect()
    codes = [(await peer.broker(broker(f"g{n}"))).code for n in range(6)]
    assert codes == [0, 0, 0, 51, 51, 51]
    refused = await peer.node(node())
    assert isinstance(refused, Refused)
    assert len(served.medium.contents.of(model.BrokerGroup)) == 3


async def test_a_broker_elsewhere_is_refused_if_the_old_place_speaks_before_its_turn(
    world: World, server: MetaServer
) -> None:
    peer, moved, other = [await world.connect() for _ in range(3)]
    await peer.broker(broker(what=ONLINE))
    await trio.sleep(29)
    # Nothing else is stored meanwhile: what was decided on is the same but for who was heard.
    world.executor.plan = ExecutorPlan(delay_s=(6.0, 6.0), stall_chance=0)
    world.medium.next_faults = [Fault.REFUSED]
    answers: dict[str, Frame] = {}

    async def register(name: str, peer: Peer, request: requests.BrokerRegister) -> None:
        answers[name] = await peer.broker(request)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(register, "other", other, broker("g2"))
        await trio.sleep(2.5)
        elsewhere = broker(what=HEARTBEAT, address="10.0.0.9:20881")
        nursery.start_soon(register, "moved", moved, elsewhere)
        await trio.sleep(0.5)
        nursery.start_soon(register, "peer", peer, broker(what=HEARTBEAT))
    # The old place is answered that the store is slow.
    assert {name: answer.code for name, answer in answers.items()} == dict.fromkeys(answers, 51)
    await trio.sleep(10)
    assert server.registry.groups["g1"].master == "10.0.0.1:20881"
    assert list(server.registry.groups) == ["g1"]


async def test_a_broker_that_is_refused_again_and_again_has_one_line_in_the_log_a_minute() -> None:
    retired = group("g1", is_retired=True)
    world = world_with(broker_groups=(retired,))
    with structlog.testing.capture_logs() as lines:
        async with world.serving() as server:
            for _ in range(100):
                # As ours: it connects anew each time.
                peer = await world.connect()
                assert (await peer.broker(broker(what=ONLINE))).code == 51
                await peer.stream.aclose()
                await trio.sleep(1)
            peer = await world.connect()
            assert (await peer.broker(broker("g2", role=requests.BrokerRole.STANDBY))).code == 51
            assert server.handlers.dispatcher.refusals["BROKER_REGISTER"] == 101
    refused = [
        (line["reason"], line.get("repeated")) for line in lines if line["event"] == "refused"
    ]
    other = "a broker with the role STANDBY serves nobody"
    assert refused == [("g1 was retired", None), ("g1 was retired", 59), (other, None)]


async def test_refusals_without_end_for_ever_other_reasons_take_no_memory(
    world: World, server: MetaServer
) -> None:
    peer = await world.connect()
    for number in range(KINDS_MAX + 50):
        request = broker(f"g{number}", role=requests.BrokerRole.MASTER, address=f"x{number}")
        assert (await peer.broker(request)).code == 51
    assert len(server.handlers.dispatcher._trouble._kinds) == KINDS_MAX


async def test_a_restart_of_the_meta_server_flaps_nobody_and_notices_who_died_meanwhile() -> None:
    world = World()
    async with world.serving(kill=True):
        peer = await world.connect()
        await peer.broker(broker("lives", what=ONLINE))
        await peer.broker(broker("dies", what=ONLINE, address="10.0.0.2:20881"))
        first = await peer.register("a.b")
        assert sorted(names(first.groups)) == ["dies", "lives"]
    await trio.sleep(100)
    async with world.serving():
        client, peer = await world.connect(), await world.connect()
        reply = await client.register("a.b")
        assert names(reply.groups) == names(first.groups)
        began = trio.current_time()
        news = []

        async def listen() -> None:
            while True:
                told = names((await client.pushed()).groups)
                news.append((trio.current_time() - began, told))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            for _ in range(9):
                await trio.sleep(9)
                await peer.broker(broker("lives", what=HEARTBEAT))
            nursery.cancel_scope.cancel()
        assert [told for _, told in news] == [["lives"]]
        assert 29 < news[0][0] < 31


async def test_a_later_start_waits_while_the_one_before_is_connected_and_speaks(
    world: World, server: MetaServer
) -> None:
    living, other = await world.registered(node()), await world.connect()
    later = encode_node_register(node(incarnation=2))
    for _ in range(4):
        await trio.sleep(3)
        await living.node(node())
        answer = await other.ask(CommandCode.NODE_REGISTER, later)
        assert answer.code == 51
        assert b"is connected, by an earlier start" in answer.body
    # The process dies: its connection is closed, and the next start need not wait.
    await living.stream.aclose()
    await until(lambda: server.handlers.sessions.of_node(("c1", "d1", "n1")) is None, seconds=1)
    reply = await other.node(node(incarnation=2))
    assert isinstance(reply, NodeRegistered)
    assert reply.record.epoch == 2


async def test_how_far_a_log_goes_is_stored_now_and_then_and_kept_through_a_restart() -> None:
    world = World()
    async with world.serving() as server:
        peer = await world.registered(node(last_sequence=0))
        kept = len(world.medium.commits)
        await peer.node(node(last_epoch=1))
        # The epoch at once: it was stored before this was answered.
        assert len(world.medium.commits) == kept + 1
        for number in range(1, 301):
            await trio.sleep(0.101)
            await peer.node(node(last_epoch=1, last_sequence=10 * number))
        commits = chain(*world.medium.commits[kept + 1 :])
        nodes = model.saved(commits, model.DelayNode)
        assert [row.last_sequence for row in nodes] == [990, 1980, 2970]
        assert server.committer.waiting == 0
    async with world.serving():
        peer = await world.connect()
        older = await peer.node(node(incarnation=2, last_epoch=1, last_sequence=2969))
        assert isinstance(older, Refused)
        assert "1 records that it had are missing" in older.reason
        same = await peer.node(node(incarnation=2, last_epoch=1, last_sequence=2970))
        assert isinstance(same, NodeRegistered)


async def test_a_node_is_answered_while_the_store_cannot_be_told_how_far_its_log_goes(
    world: World, server: MetaServer
) -> None:
    peer = await world.registered(node())
    world.medium.is_down = True
    for number in range(2, 40):
        await trio.sleep(1)
        reply = await peer.node(node(last_sequence=number))
        assert isinstance(reply, NodeRegistered)
    world.medium.is_down = False
    await until(lambda: not server.committer.is_stale)
    await peer.node(node(last_sequence=100))
    await trio.sleep(11)
    await peer.node(node(last_sequence=101))
    await until(
        lambda: server.registry.nodes["c1", "d1", "n1"].last_sequence in {100, 101}, seconds=1
    )


@pytest.mark.parametrize("mark", ["is_retired", "is_read_only"])
async def test_a_node_is_told_that_its_group_takes_no_messages(
    world: World, server: MetaServer, mark: str
) -> None:
    peer = await world.connect()
    for is_so in (False, True, False):
        group = server.registry.groups.get("d1")
        if group is not None:
            change = replace(group, **{mark: is_so}, version=group.version + 1)
            server.registry.apply([model.Save(change)])
        reply = await peer.node(node())
        assert isinstance(reply, NodeRegistered)
        others = {"is_retired", "is_read_only"} - {mark}
        assert getattr(reply, mark) is is_so
        assert not any(getattr(reply, other) for other in others)


async def test_a_store_that_fails_refuses_changes_and_known_routes_are_served() -> None:
    world = world_with(
        broker_groups=(group("g1"), group("g2")),
        subjects=(model.Subject(name="known"),),
        routes=(model.Route(name="known", groups=("g1", "g2")),),
    )
    async with world.serving() as server:
        client, peer = await world.connect(), await world.connect()
        world.medium.is_down = True
        await until(lambda: server.committer.is_stale)
        for _ in range(60):
            assert names((await client.register("known")).groups) == ["g1", "g2"]
            await trio.sleep(1)
            await peer.broker(broker("g1"))
            await peer.broker(broker("g2", address="10.0.0.1:20881"))
        refusal = await client.try_register("new")
        assert refusal.code == 51
        assert b"store" in refusal.body
        world.medium.is_down = False
        await until(lambda: not server.committer.is_stale)
        # Whoever was refused learns the route now, without asking again.
        pushed = await client.pushed()
        assert (pushed.subject, sorted(names(pushed.groups))) == ("new", ["g1", "g2"])
