"""A delay server does what its group's record says, and goes on when nobody can be asked."""

import dataclasses
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
import trio
import trio.testing

from delay_protocol.nodes.registration import (
    GroupRecord,
    Master,
    NodeRegistered,
    NodeRole,
    Phase,
    Refused,
)
from delay_server.admin.status import failing_checks, status_of
from delay_server.server import DelayServer, serve
from delay_server.settings.config import (
    StorageConfig,
)
from delay_server.settings.errors import NodeRefusedError
from sender.groups.group import Group
from storage.batch.batches import Damage
from storage.batch.columns import RecordKind
from tests.delay_server.meta_stub import FakeMeta, meta_config, record_of
from tests.delay_server.server_rig import (
    HOST,
    PORT,
    Producer,
    World,
    make_item,
    until,
)
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Action, PowerCut, Stage, Trap, running

HOUR_MS = 3_600_000


def epochs_of(server: DelayServer) -> list[int]:
    """Return the epochs of all EPOCH_START records in the log."""
    return [
        batch.header.epoch
        for batch in server.node.store.message_log.read(1)
        if not isinstance(batch, Damage) and batch.header.kind is RecordKind.EPOCH_START
    ]


@asynccontextmanager
async def starting(world: World, server: DelayServer) -> AsyncIterator[trio.Event]:
    """Serve during the block, ready or not; then kill it."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: world.broker.run(task_status=task_status))
        nursery.start_soon(serve, server, stop)
        yield stop
        nursery.cancel_scope.cancel()


async def ended(server: DelayServer, kind: type[Exception]) -> Exception:
    """Serve until it ends by an error of this kind; return that."""
    with pytest.RaisesGroup(kind, flatten_subgroups=True, allow_unwrapped=True) as caught:
        await serve(server, trio.Event())
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        [error] = error.exceptions
    assert isinstance(error, kind)
    return error


async def held_until_51(world: World) -> None:
    """Send a message, which must be held for 4 s and then be answered 51."""
    producer = await world.connect()
    began = trio.current_time()
    answer = await producer.answer(await producer.post(make_item("held", world.now_ms + 1)))
    assert answer.code == 51
    assert answer.body
    assert 4 <= trio.current_time() - began < 4.2


# -- the master ------------------------------------------------------------------------------


async def test_the_first_node_becomes_the_master_and_begins_epoch_one() -> None:
    world = World()
    node = dataclasses.replace(meta_config().node, cluster="c1", group="d1", node_id="n1")
    async with FakeMeta(world).running() as meta, world.serving(meta_config(node=node)) as server:
        [first, *_] = meta.nodes
        identity = server.node.store.identity
        assert (first.cluster, first.group, first.node_id) == ("c1", "d1", "n1")
        assert first.log_uuid == identity.log_uuid
        assert first.storage_uuid == identity.storage_uuid
        assert (first.incarnation, first.last_sequence, first.last_epoch) == (1, 0, 0)
        assert first.address == f"{HOST}:{PORT}"
        assert epochs_of(server) == [1]
        await world.keep(make_item("m", world.now_ms + 500))
        await until(lambda: world.broker.ids == ["m"])
        assert failing_checks(server.observe()) == []
        meta_status = status_of(server.observe())["meta"]
        assert meta_status["server"] == f"{HOST}:20880"
        assert (meta_status["role"], meta_status["master"]) == ("master", "n1")
        assert (meta_status["accepts"], meta_status["in_sync"]) == (True, ["n1"])
        assert meta_status["trouble"] == ""


async def test_each_start_begins_an_epoch_that_is_durable_before_anything_is_accepted() -> None:
    world = World()
    async with FakeMeta(world).running() as meta:
        for life in range(1, 4):
            async with world.serving(meta_config()) as server:
                starts = {node.boot_id for node in meta.nodes if node.incarnation == life}
                first, *_, last = [node for node in meta.nodes if node.boot_id in starts]
                assert (len(starts), first.last_epoch) == (1, life - 1)
                # It was told of the epoch, too, before anything was accepted.
                assert (last.last_epoch, last.last_sequence) == (life, 2 * life - 1)
                assert epochs_of(server) == list(range(1, life + 1))
                assert status_of(server.observe())["epoch"] == life
                await world.keep(make_item(f"m{life}", world.now_ms + HOUR_MS))


async def test_what_a_broker_is_told_is_the_epoch_of_this_start() -> None:
    world = World()
    async with FakeMeta(world).running() as meta:
        meta.say = lambda node: NodeRegistered(
            role=NodeRole.MASTER, record=record_of(node, epoch=41), again_ms=3000
        )
        async with world.serving(meta_config()) as server:
            assert server.master.hello().epoch == 41
            group = server.master.sender._groups.in_use[0]
            assert isinstance(group, Group)
            assert group._hello.epoch == 41


@pytest.mark.parametrize(
    ("again_ms", "least_s", "most_s"), [(1, 0.09, 0.12), (1000, 0.85, 1.05), (2**31 - 1, 26, 31)]
)
async def test_a_node_asks_when_it_is_told_to_but_neither_too_often_nor_too_rarely(
    again_ms: int, least_s: float, most_s: float
) -> None:
    world = World()
    async with FakeMeta(world, again_ms=again_ms).running() as meta, world.serving(meta_config()):
        await trio.sleep(100)
        # But at first: that its epoch has begun, and that it may vote, it says at once.
        asked_at = [at for at in meta.asked_at if at > meta.asked_at[0] + 4]
        pauses = [b - a for a, b in itertools.pairwise(asked_at)]
        assert least_s <= min(pauses)
        assert max(pauses) <= most_s
        assert meta.asks_http == 1


# -- waiting ---------------------------------------------------------------------------------


async def test_without_a_meta_server_it_waits_and_says_for_what() -> None:
    world = World()
    server = world.server(meta_config())
    async with starting(world, server):
        await trio.sleep(90)
        await held_until_51(world)
        assert not server.ready.is_set()
        [why] = failing_checks(server.observe())
        assert "no role yet: no meta server found by GET /meta/address" in why
        meta_status = status_of(server.observe())["meta"]
        assert (meta_status["role"], meta_status["accepts"]) == (None, False)
        assert 90_000 < meta_status["away_ms"] < 100_000
        assert epochs_of(server) == []
        async with FakeMeta(world).running() as meta:
            with trio.fail_after(3.1):
                await server.ready.wait()
            assert [node.last_epoch for node in meta.nodes] == [0, 1]
            await world.keep(make_item("m", world.now_ms))


async def test_another_role_accepts_nothing_delivers_nothing_and_writes_nothing() -> None:
    world = World()
    async with world.serving():
        producer = await world.connect()
        await producer.send(make_item("before", world.now_ms + 10_000))
    server = world.server(meta_config())
    async with FakeMeta(world, role=NodeRole.SLAVE).running() as meta:
        meta.changed(master=Master(node_id="other", incarnation=9))
        async with starting(world, server):
            await until(lambda: meta.nodes)
            await trio.sleep(20)
            producer = await world.connect()
            answer = await producer.answer(await producer.post(make_item("m1", world.now_ms)))
            assert (answer.code, answer.body) == (51, b"the master of this group is other")
            assert world.broker.ids == []
            assert epochs_of(server) == [1]
            assert meta.given_states == []
            [why] = failing_checks(server.observe())
            assert why == "this node does not follow its master: it has not asked yet"
            status = status_of(server.observe())
            assert status["meta"]["role"] == "slave"
            assert (status["pending"], status["last_sequence"]) == (1, 2)
            meta.say = lambda node: NodeRegistered(
                role=NodeRole.MASTER, record=record_of(node, epoch=3), again_ms=3000
            )
            await server.ready.wait()
            await until(lambda: world.broker.ids == ["before"])
            assert epochs_of(server) == [1, 3]


# -- no use ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "trouble"),
    [
        (51, "answered 51: told to"),
        (3, "is none of delaywheel"),
        (b"", "truncated"),
        (b"\xc1nonsense", "MessagePack"),
        (None, "no answer from 127.0.0.1:20880 to request code 1010 within 2 s"),
    ],
)
async def test_an_answer_that_is_none_is_said_and_asked_for_again(
    said: bytes | int | None, trouble: str
) -> None:
    world = World()
    server = world.server(meta_config())
    async with FakeMeta(world).running() as meta:
        meta.say = lambda _: said
        async with starting(world, server):
            await trio.sleep(30)
            assert trouble in status_of(server.observe())["meta"]["trouble"]
            assert trouble in failing_checks(server.observe())[0]
            assert 8 <= len(meta.nodes) <= 60
            assert meta.asks_http == len(meta.nodes)
            meta.say = None
            await server.ready.wait()
            assert status_of(server.observe())["meta"]["trouble"] == ""


@pytest.mark.parametrize(("epoch", "version"), [(5, 6), (4, 9), (0, 0)])
async def test_a_record_older_than_one_told_before_changes_nothing(
    epoch: int, version: int
) -> None:
    world = World()
    async with FakeMeta(world).running() as meta:
        meta.say = lambda node: NodeRegistered(
            role=NodeRole.MASTER, record=record_of(node, epoch=5, version=7), again_ms=3000
        )
        async with world.serving(meta_config()) as server:
            old = GroupRecord(
                epoch=epoch,
                version=version,
                master=Master(node_id="n2", incarnation=1),
                in_sync={"n2": UUID(int=9)},
                min_isr=1,
                phase=Phase.ACTIVE,
            )
            meta.say = lambda _: NodeRegistered(role=NodeRole.SLAVE, record=old, again_ms=3000)
            await trio.sleep(10)
            assert server.fenced is None
            assert (
                "this node has seen epoch 5, version 7"
                in status_of(server.observe())["meta"]["trouble"]
            )
            await world.keep(make_item("m", world.now_ms))
            await until(lambda: world.broker.ids == ["m"])


# -- the meta server away --------------------------------------------------------------------


async def test_the_master_goes_on_while_no_meta_server_can_be_asked() -> None:
    world = World()
    async with FakeMeta(world).running() as meta, world.serving(meta_config()) as server:
        await until(lambda: meta.given_states)
        meta.kill()
        producer = await world.connect()
        for number in range(60):
            assert await producer.send(make_item(f"m{number}", world.now_ms)) == {}
            await trio.sleep(2)
        assert len(world.broker.deliveries) == 60
        assert failing_checks(server.observe()) == []
        meta_status = status_of(server.observe())["meta"]
        assert (meta_status["server"], meta_status["role"]) == (None, "master")
        assert 115_000 < meta_status["away_ms"] < 125_000
        assert "no meta server found" in meta_status["trouble"]
        asked = len(meta.nodes)
        async with meta.running():
            await until(lambda: len(meta.nodes) > asked, seconds=4)
            assert meta.nodes[-1].state == "RW"
            assert (meta.nodes[-1].incarnation, meta.nodes[-1].last_epoch) == (1, 1)
            assert status_of(server.observe())["meta"]["away_ms"] == 0
            assert epochs_of(server) == [1]


async def test_a_stop_does_not_wait_for_a_meta_server_that_is_away() -> None:
    world = World()
    async with FakeMeta(world).running() as meta, world.serving(meta_config()):
        await until(lambda: meta.given_states)
        meta.say = lambda _: None
        began = trio.current_time()
    assert trio.current_time() - began < 2.5


# -- fenced and refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "record"),
    [
        (NodeRole.SLAVE, {"master": Master(node_id="n2", incarnation=1)}),
        (NodeRole.MASTER, {"master": None, "phase": Phase.ELECTING}),
    ],
    ids=["another master", "an election"],
)
async def test_who_is_told_of_another_epoch_or_master_stops_at_once(
    role: NodeRole, record: dict[str, object]
) -> None:
    world = World()
    async with FakeMeta(world).running() as meta:
        server = world.server(meta_config())
        async with starting(world, server):
            await server.ready.wait()
            producer = await world.connect()
            now_ms = world.now_ms
            await producer.send(*(make_item(f"m{n}", now_ms + n * 100) for n in range(100)))
            meta.role = role
            meta.changed(epoch=2, **record)
            asked = len(meta.nodes)
            await until(lambda: len(meta.nodes) > asked, step_s=0.0005)
            await until(lambda: server.fenced, step_s=0.0005)
            delivered = len(world.broker.deliveries)
            # Nothing new is accepted or sent from this moment on.
            opaque = await producer.post(make_item("late", world.now_ms))
            assert "epoch 1 has ended" in str(server.fenced)
            await trio.sleep(6)
            assert server.is_open
            assert not server.is_master
            assert len(world.broker.deliveries) == delivered < 50
            assert "late" not in world.broker.ids
            with pytest.raises((AssertionError, trio.BrokenResourceError)):
                assert (await producer.answer(opaque)).code == 0
            # What was delivered is known to the next mastership, in the same process.
            meta.changed(epoch=9)
            meta.role = NodeRole.MASTER
            await until(lambda: len(world.broker.deliveries) >= 100, seconds=30)
            await trio.sleep(5)
            assert sorted(world.broker.ids) == sorted(f"m{n}" for n in range(100))
            assert server.demotions == 1


def logs_of(disk: SimDisk) -> dict[str, bytes]:
    """Return what is durable, but for what each start writes: its number, and the durable end."""
    rewritten = ("identity", "durable_end", "lock")
    return {
        path: data
        for path, data in disk.contents(durable=True).items()
        if path.rpartition("/")[2] not in rewritten
    }


async def test_a_refused_node_ends_with_the_reason_and_leaves_its_log_as_it_was() -> None:
    world = World()
    async with world.serving():
        await world.keep(make_item("m", world.now_ms + HOUR_MS))
    before = logs_of(world.disk)
    async with FakeMeta(world).running() as meta:
        meta.say = lambda _: Refused(reason="it has records of another log")
        error = await ended(world.server(meta_config()), NodeRefusedError)
        assert "refuses node-" in str(error)
        assert str(error).endswith("of default: it has records of another log")
    assert len(before) >= 3
    assert logs_of(world.disk) == before


async def test_a_refusal_while_it_serves_ends_it_too() -> None:
    world = World()
    async with FakeMeta(world).running() as meta:
        server = world.server(meta_config())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ended, server, NodeRefusedError)
            await server.ready.wait()
            meta.say = lambda _: Refused(reason="a newer start has registered")
            await until(lambda: server.fenced, seconds=2)
            assert "a newer start" in "; ".join(failing_checks(server.observe()))
        assert meta.given_states == ["RW"]


@pytest.mark.parametrize("kind", ["create", "write", "sync"])
@pytest.mark.parametrize("stage", Stage)
async def test_a_power_cut_while_an_epoch_begins_costs_an_epoch_and_nothing_else(
    kind: str, stage: Stage
) -> None:
    world = World()
    async with FakeMeta(world).running() as meta:
        server = world.server(meta_config())
        begins = running("Store.start_epoch")
        world.disk.arm(Trap(action=Action.POWER_CUT, kinds={kind}, when=begins, stage=stage))
        with pytest.RaisesGroup(PowerCut, flatten_subgroups=True):
            await serve(server, trio.Event())
        assert not server.ready.is_set()
        world.network.cut("server", PowerCut("told to"))
        async with world.serving(meta_config()) as server:
            first, second = meta.nodes[:2]
            assert (first.incarnation, second.incarnation) == (1, 2)
            assert (first.last_epoch, second.last_epoch) in {(0, 0), (0, 1)}
            assert epochs_of(server) in ([2], [1, 2])
            await world.keep(make_item("m", world.now_ms))


# -- what clients are told -------------------------------------------------------------------


async def test_producers_see_the_group_when_it_serves_and_until_it_stops() -> None:
    world = World()
    world.broker.answer_after_s = 3600
    async with FakeMeta(world).running() as meta:
        async with world.serving(meta_config()) as server:
            await world.keep(make_item("in flight", world.now_ms))
            await trio.sleep(35)
            assert meta.given_states == ["RW"]
            assert status_of(server.observe())["meta"]["announced"] == "RW"
            began = trio.current_time()
        assert trio.current_time() - began > 3
        assert meta.given_states == ["RW", "NRW"]
        at = meta.asked_at[[one.state for one in meta.nodes].index("NRW")]
        assert at < began + 0.01


@pytest.mark.parametrize(("answer_after_s", "seconds"), [(0.0, 0.1), (0.5, 2)])
async def test_clients_are_told_that_the_disk_is_full_and_that_it_is_not_one_after_the_other(
    answer_after_s: float, seconds: float
) -> None:
    world = World()
    async with FakeMeta(world).running() as meta, world.serving(meta_config()) as server:
        await until(lambda: meta.given_states)
        meta.answer_after_s = answer_after_s
        server.node.budget.full = True
        server.node.upkeep.note_disk()
        await until(lambda: meta.given_states[-1] == "R", seconds=seconds)
        server.node.budget.full = False
        server.node.upkeep.note_disk()
        await until(lambda: meta.given_states[-1] == "RW", seconds=seconds)
        assert meta.given_states == ["RW", "R", "RW"]


async def test_a_disk_that_is_full_from_the_start_is_never_called_writable() -> None:
    world = World()
    world.disk.medium.used = world.disk.capacity_bytes - (1 << 20)
    full = StorageConfig(disk_free_bytes_min=1 << 21, disk_free_share_min=0.9999)
    async with FakeMeta(world).running() as meta, world.serving(meta_config(storage=full)):
        await trio.sleep(12)
        assert meta.given_states == ["R"]


async def test_a_meta_server_that_restarts_is_found_again_long_before_the_lease_is_over() -> None:
    world = World()
    async with FakeMeta(world, again_ms=90_000).running() as meta, world.serving(meta_config()):
        await until(lambda: meta.given_states)
        await trio.sleep(1)
        asked = len(meta.nodes)
        meta.kill()
        await trio.sleep(1)
        async with meta.running():
            await until(lambda: len(meta.nodes) > asked, seconds=4)
            assert meta.nodes[-1].state == "RW"


# -- retired, read-only ------------------------------------------------------------------------


async def refuses_messages(world: World, server: DelayServer, producer: Producer, why: str) -> None:
    """Wait until messages are refused, and check what is said of it."""
    await until(lambda: server.duty().remark, seconds=3)
    refused = await producer.send(make_item("after", world.now_ms))
    assert refused == {b"after": (4, f"BROKER_READ_ONLY: {why}")}
    assert failing_checks(server.observe()) == [f"{why}: messages are refused, delivery goes on"]


async def test_a_retired_group_refuses_messages_for_good_and_delivers_what_it_has() -> None:
    world = World()
    async with FakeMeta(world).running() as meta, world.serving(meta_config()) as server:
        producer = await world.connect()
        assert await producer.send(make_item("before", world.now_ms + 8000)) == {}
        meta.is_retired = True
        await refuses_messages(world, server, producer, "the group was retired")
        status = status_of(server.observe())["meta"]
        assert (status["closed"], status["accepts"]) == ("the group was retired", False)
        await until(lambda: world.broker.ids == ["before"])
        await trio.sleep(20)
        # Producers have other routes: it gives no state any more.
        assert meta.nodes[-1].state is None
        meta.is_retired = False
        await until(lambda: not server.duty().remark, seconds=3)
        assert await producer.send(make_item("again", world.now_ms)) == {}
        await until(lambda: meta.nodes[-1].state == "RW", seconds=3)


async def test_a_read_only_group_refuses_messages_until_it_is_open_again() -> None:
    world = World()
    async with FakeMeta(world).running() as meta, world.serving(meta_config()) as server:
        producer = await world.connect()
        assert await producer.send(make_item("before", world.now_ms + 8000)) == {}
        meta.is_read_only = True
        await refuses_messages(world, server, producer, "read-only by an operator")
        # It is there, as the meta server is told.
        await until(lambda: meta.nodes[-1].state == "R", seconds=3)
        await until(lambda: world.broker.ids == ["before"])
        meta.is_read_only = False
        await until(lambda: not server.duty().remark, seconds=3)
        assert await producer.send(make_item("again", world.now_ms)) == {}
        await until(lambda: meta.nodes[-1].state == "RW", seconds=3)
