"""Nobody answers, applies, loads, sends or checkpoints what is durable here and not committed.

The commit point of the only node is held back, as it is where another node has to have the records
first.
"""

from unittest import mock

import pytest
import trio

from delay_server.server import DelayServer, serve
from replication.core.commit_point import CommitPoint
from storage.node.store import Store
from tests.delay_server.meta_stub import FakeMeta, meta_config
from tests.delay_server.server_rig import MINUTE_MS, Producer, World, make_config, make_item, until


async def nothing_is_answered(producer: Producer, opaque: int) -> bool:
    with trio.move_on_after(1):
        await producer.answer(opaque)
        return False
    return True


def applied(server: DelayServer) -> int:
    """Return the last sequence that the schedule_log knows."""
    return server.node.store.schedule.last_filed


async def test_nothing_goes_beyond_the_commit_point_and_all_of_it_goes_on_in_order() -> None:
    world = World()
    async with world.serving() as server:
        producer = await world.connect()
        await producer.send(make_item("before", world.now_ms + 1000))
        await until(lambda: world.broker.ids == ["before"])
        await trio.sleep(10)
        point, store = server.node.commit_point, server.node.store
        point.is_sole = False
        committed, last = point.committed, applied(server)
        opaques = []
        for number in range(6):
            # Due at once, soon, and in a minute that is loaded later.
            due_ms = world.now_ms + (0, 500, 3 * MINUTE_MS)[number % 3]
            opaques.append(await producer.post(make_item(f"m{number}", due_ms)))
            await trio.sleep(1)
        await trio.sleep(5 * 60)
        assert store.message_log.next_sequence >= committed + 6, "each of them is durable"
        assert point.durable == store.message_log.next_sequence
        assert server.master.committer.seconds.total >= 6
        assert await nothing_is_answered(producer, opaques[0])
        assert applied(server) == last
        assert (store.schedule.pending, len(server.master.wheel)) == (0, 0)
        assert world.broker.ids == ["before"]
        assert store.checkpoint.sequence <= last
        point.commit_to(committed + 2)
        server.master.committer.hand_on()
        for opaque in opaques[:2]:
            assert (await producer.answer(opaque)).code == 0
        assert await nothing_is_answered(producer, opaques[2])
        await until(lambda: len(world.broker.ids) == 3)
        assert applied(server) == committed + 1
        point.commit_to(point.durable)
        server.master.committer.hand_on()
        for opaque in opaques[2:]:
            assert (await producer.answer(opaque)).code == 0
        await until(lambda: len(world.broker.ids) == 7)
        await trio.sleep(60)
        assert sorted(world.broker.ids) == ["before", *(f"m{number}" for number in range(6))]
        assert store.checkpoint.sequence >= committed + 5


async def test_what_was_not_committed_is_there_after_a_start_that_commits_it() -> None:
    world = World()
    async with world.serving() as server:
        producer = await world.connect()
        server.node.commit_point.is_sole = False
        opaque = await producer.post(make_item("m", world.now_ms + MINUTE_MS))
        await trio.sleep(10)
        assert await nothing_is_answered(producer, opaque)
        # Nobody says whether it is kept: the connection ends, and the producer sends it again.
        server.ingest.drop()
        with pytest.raises(AssertionError, match="closed"):
            await producer.answer(opaque)
    async with world.serving(make_config()) as server:
        assert server.node.recovery.replayed
        await until(lambda: world.broker.ids == ["m"], seconds=100)


async def test_a_start_applies_what_is_beyond_the_checkpoint_when_its_role_has_told_a_commit() -> (
    None
):
    world = World()
    async with FakeMeta(world).running() as meta:
        patch = mock.patch.object(CommitPoint, "commit_to")
        async with world.serving(meta_config()) as server:
            producer = await world.connect()
            patch.start()
            await producer.post(make_item("m", world.now_ms + MINUTE_MS))
            await trio.sleep(10)
            server.ingest.drop()
        patch.stop()
        meta.say = lambda _: None
        server, stop = world.server(meta_config()), trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: world.broker.run(task_status=task_status))
            nursery.start_soon(serve, server, stop)
            await until(lambda: server.is_open)
            await trio.sleep(5 * 60)
            store = server.node.store
            assert (
                applied(server) == store.checkpoint.sequence < store.message_log.next_sequence - 1
            )
            assert store.schedule.pending == server.node.recovery.replayed == 0
            meta.say = None
            await until(lambda: world.broker.ids == ["m"])
            assert server.node.recovery.replayed
            stop.set()
            await until(lambda: not server.is_open)
            nursery.cancel_scope.cancel()


async def test_outcomes_that_no_other_node_has_count_for_not_sending_again() -> None:
    """The other node of two is dead: nothing more is committed, and what is due goes on leaving."""
    world = World()
    committed, count = 0, 400
    async with world.serving() as server:
        producer = await world.connect()
        due_ms = world.now_ms + 10_000
        await producer.send(*(make_item(f"m{number}", due_ms) for number in range(count)))
        await producer.send(make_item("last", due_ms + 10 * MINUTE_MS))
        await trio.sleep(5)
        point = server.node.commit_point
        point.is_sole = False
        committed = point.committed
        await until(lambda: len(world.broker.ids) == count)
        await trio.sleep(MINUTE_MS / 1000)
        assert (point.committed, applied(server)) == (committed, committed - 1)
        assert server.node.store.schedule.pending == count + 1
        assert server.master.fact_recorder.behind == ""
    apply_tail = Store.apply_tail

    def apply_what_is_committed(store: Store, _: int, *, now_ms: int) -> None:
        apply_tail(store, committed, now_ms=now_ms)

    with mock.patch.object(Store, "apply_tail", apply_what_is_committed):
        async with world.serving() as server:
            server.node.commit_point.is_sole = False
            assert server.node.recovery.known == count
            assert server.node.store.schedule.pending == count + 1
            await until(lambda: "last" in world.broker.ids, seconds=1000)
            await trio.sleep(MINUTE_MS / 1000)
            assert len(world.broker.ids) == count + 1, "each was sent once"
    async with world.serving() as server:
        await trio.sleep(MINUTE_MS / 1000)
        assert server.node.store.schedule.pending == 0
        assert len(world.broker.ids) == count + 1
