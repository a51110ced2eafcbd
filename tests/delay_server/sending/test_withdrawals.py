"""One message is withdrawn from wherever it is, and is sent by nobody until it is released."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import trio

from delay_protocol.basics.codes import ItemCode
from delay_server.admin.http import application
from delay_server.sending.withdrawals import Answer, Withdrawn
from delay_server.server import DelayServer
from sender.settings.config import SenderConfig
from storage.batch.columns import RecordKind
from storage.disk.errors import StorageFullError
from storage.disk.spans import MINUTE_MS
from storage.logs.message_log import Draft
from tests.delay_server.admin.test_admin_http import Caller
from tests.delay_server.server_rig import World, make_config, make_item, until

HOUR_MS = 60 * MINUTE_MS


class Desk:
    """A server to which messages are sent, each with its sequence known."""

    def __init__(self, world: World, server: DelayServer) -> None:
        self.world = world
        self.server = server
        self.where: dict[str, tuple[int, int]] = {}
        """By id: sequence and filed minute."""

    async def send(self, name: str, after_ms: int, *, subject: str = "s") -> None:
        log = self.server.node.store.message_log
        sequence, due_ms = log.next_sequence, self.world.now_ms + after_ms
        producer = await self.world.connect()
        await producer.send(make_item(name, due_ms, subject=subject))
        assert log.next_sequence == sequence + 1
        self.where[name] = sequence, due_ms // MINUTE_MS
        await self.server.node.filer.drain()

    async def withdraw(self, name: str) -> tuple[Answer, Withdrawn | None]:
        return await self.server.master.withdrawals.withdraw(*self.where[name])

    async def withdrawn(self, name: str) -> Withdrawn:
        """Withdraw what can be."""
        answer, found = await self.withdraw(name)
        assert answer is Answer.WITHDRAWN
        assert found is not None
        assert found.sequence == self.where[name][0]
        return found


async def nothing_but(world: World, *names: str, within_s: float = 300) -> None:
    """Wait, and see that these messages were sent, once, and no other one."""
    await trio.sleep(within_s)
    assert Counter(world.broker.ids) == dict.fromkeys(names, 1)


async def test_what_is_on_disk_is_withdrawn_whether_it_is_written_or_waits_in_memory() -> None:
    world = World()
    async with world.serving() as server:
        desk = Desk(world, server)
        await desk.send("piled", 20 * MINUTE_MS)
        await desk.send("written", 20 * MINUTE_MS)
        await desk.send("left", 20 * MINUTE_MS)
        schedule = server.node.store.schedule
        assert schedule.pile_bytes
        await desk.withdrawn("piled")
        assert not schedule.pile_bytes
        found = await desk.withdrawn("written")
        await trio.sleep(19 * 60)
        await nothing_but(world, "left")
        server.master.withdrawals.release(found)
        await nothing_but(world, "left", "written")


async def test_what_is_in_a_segment_of_hours_or_days_is_sent_by_nobody_once_it_is_loaded() -> None:
    world = World()
    async with world.serving() as server:
        desk = Desk(world, server)
        for name in ("gone", "back"):
            await desk.send(name, 5 * HOUR_MS)
        assert not len((await desk.withdrawn("gone")).entries)
        found = await desk.withdrawn("back")
        server.master.withdrawals.release(found)
        await trio.sleep(5 * 3600)
        await nothing_but(world, "back")


async def test_what_is_in_the_wheel_is_withdrawn_or_sent_after_all_when_it_is_released() -> None:
    world = World()
    async with world.serving() as server:
        desk = Desk(world, server)
        for name in ("gone", "early back", "late back", "left"):
            await desk.send(name, 5000)
        await until(lambda: len(server.master.wheel) == 4)
        await desk.withdrawn("gone")
        early, late = await desk.withdrawn("early back"), await desk.withdrawn("late back")
        server.master.withdrawals.release(early)
        await nothing_but(world, "early back", "left")
        # By now nobody has it any more.
        server.master.withdrawals.release(late)
        await nothing_but(world, "early back", "late back", "left")
        assert server.master.sender.unsent().total == 0
        assert server.master.lanes.held(0) == 0


async def test_what_waits_in_a_lane_is_withdrawn() -> None:
    """Paused, it is on disk only; in the sender it waits for a broker."""
    world = World()
    async with world.serving(has_broker=False) as server:
        desk = Desk(world, server)
        operator = Caller(application(server.administered()))
        await operator.ask("PUT", "/controls/subjects/paused", {"paused": True})
        await desk.send("parked", 100, subject="paused")
        await desk.send("queued", 100)
        await desk.send("left", 100)
        await trio.sleep(1)
        assert server.master.lanes.backlog.total == 1
        assert server.master.sender.unsent().total == 2
        await desk.withdrawn("parked")
        await desk.withdrawn("queued")
        await operator.ask("PUT", "/controls/subjects/paused", {"paused": False})
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: world.broker.run(task_status=task_status))
            await nothing_but(world, "left")
            nursery.cancel_scope.cancel()
        assert server.master.sender.unsent().total == 0


async def test_what_the_sender_gives_back_to_disk_is_not_read_again_while_it_is_withdrawn() -> None:
    world = World()
    async with world.serving(has_broker=False) as server:
        desk = Desk(world, server)
        operator = Caller(application(server.administered()))
        for name in ("gone", "back", "left"):
            await desk.send(name, 100, subject="a")
        await trio.sleep(1)
        await desk.withdrawn("gone")
        found = await desk.withdrawn("back")
        await operator.ask("PUT", "/controls/subjects/a", {"paused": True})
        assert server.master.sender.unsent().total == 0
        server.master.withdrawals.release(found)
        await operator.ask("PUT", "/controls/subjects/a", {"paused": False})
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: world.broker.run(task_status=task_status))
            await nothing_but(world, "back", "left")
            nursery.cancel_scope.cancel()


async def test_what_waits_for_its_rate_is_withdrawn() -> None:
    world = World()
    async with world.serving() as server:
        desk = Desk(world, server)
        operator = Caller(application(server.administered()))
        await operator.ask("PUT", "/controls/subjects/slow", {"rate_per_s": 0.1})
        for n in range(4):
            await desk.send(f"m{n}", 100, subject="slow")
        await until(lambda: server.master.rate_limits.count == 1)
        [waiting] = server.master.rate_limits.parts()
        [name] = [name for name, (n, _) in desk.where.items() if n == waiting["sequence"][0]]
        await desk.withdrawn(name)
        await nothing_but(world, *(desk.where.keys() - {name}))


async def test_what_is_being_retried_is_withdrawn() -> None:
    world = World()
    world.broker.fails = lambda name: ItemCode.BROKER_BUSY if name != b"left" else 0
    async with world.serving(make_config(sender=SenderConfig(retry_base_s=5, retry_max_s=5))) as s:
        desk = Desk(world, s)
        await desk.send("refused", 100)
        await until(lambda: s.master.sender.unsent().retrying == 1)
        await desk.withdrawn("refused")
        world.broker.fails = lambda _: 0
        await desk.send("left", 100)
        await nothing_but(world, "left")
        assert s.master.sender.unsent().total == 0


async def test_of_what_is_in_a_request_the_outcome_is_to_be_asked_for() -> None:
    world = World()
    world.broker.answer_after_s = 2
    async with world.serving() as server:
        desk = Desk(world, server)
        await desk.send("m", 100)
        await until(lambda: server.master.sender.in_flight == 1)
        assert await desk.withdraw("m") == (Answer.BEING_SENT, None)
        await until(lambda: world.broker.ids == ["m"])
        await trio.sleep(1)
        assert await desk.withdraw("m") == (Answer.DONE, None)


async def test_what_has_an_outcome_that_is_not_durable_yet_is_done() -> None:
    world = World()
    async with world.serving() as server:
        desk = Desk(world, server)
        await desk.send("m", 100)
        recorder = server.master.fact_recorder
        await until(lambda: recorder.waiting == 1, seconds=5, step_s=0.0005)
        assert await desk.withdraw("m") == (Answer.DONE, None)
        await nothing_but(world, "m")


async def test_what_is_being_recorded_dead_is_withdrawn_until_its_record_is_made() -> None:
    world = World()
    world.broker.fails = lambda _: ItemCode.SUBJECT_NOT_ASSIGNED
    async with world.serving() as server:
        recorder, desk = server.master.dead_recorder, Desk(world, server)
        await desk.send("gone", 100)
        await until(lambda: len(recorder._waiting) == 1, seconds=60, step_s=0.001)
        await desk.withdrawn("gone")
        await trio.sleep(10)
        assert (recorder.count, server.master.dead_letters.pending) == (0, 0)
        commit = recorder._committer.commit_records

        async def slowly(draft: Draft, **told: Any) -> bool:  # noqa: ANN401
            await trio.sleep(2)
            return await commit(draft, **told)

        recorder._committer.commit_records = slowly  # type: ignore[method-assign]
        await desk.send("dead", 100)
        await until(lambda: recorder._unfiled.is_appending, seconds=60)
        assert await desk.withdraw("dead") == (Answer.DYING, None)
        await until(lambda: server.master.dead_letters.pending == 1)
        assert await desk.withdraw("dead") == (Answer.DONE, None)


async def test_a_row_is_withdrawn_by_one_at_a_time() -> None:
    world = World()
    async with world.serving() as server:
        desk = Desk(world, server)
        for name, after_ms in (("wheel", 5000), ("disk", 20 * MINUTE_MS)):
            await desk.send(name, after_ms)
        await until(lambda: len(server.master.wheel) == 1)
        for name in ("wheel", "disk"):
            found = await desk.withdrawn(name)
            assert await desk.withdraw(name) == (Answer.TAKEN, None)
            server.master.withdrawals.release(found)
            server.master.withdrawals.release(await desk.withdrawn(name))
        await trio.sleep(20 * 60)
        await nothing_but(world, "wheel", "disk")
        assert server.master.withdrawals._withdrawn == {}
        await until(lambda: not server.master.handout._held_of.any(), seconds=30)


async def test_what_waits_for_disk_space_is_neither_withdrawn_nor_said_to_be_done() -> None:
    world = World()
    async with world.serving() as server:
        desk = Desk(world, server)
        schedule = server.node.store.schedule
        schedule.owed.keep_free, free = (lambda: 1 << 60), schedule.owed.keep_free
        await desk.send("m", 5000)
        with pytest.raises(StorageFullError, match="waits in memory"):
            await desk.withdraw("m")
        schedule.owed.keep_free = free
        await nothing_but(world, "m")


async def test_what_there_is_not_is_done_with() -> None:
    world = World()
    async with world.serving() as server:
        desk = Desk(world, server)
        await desk.send("m", 5000)
        sequence, minute = desk.where["m"]
        withdraw = server.master.withdrawals.withdraw
        assert await withdraw(sequence + 1, minute) == (Answer.DONE, None)
        assert await withdraw(sequence, minute + 3) == (Answer.DONE, None)


async def test_what_its_record_has_settled_never_comes_again() -> None:
    """The row is named in a record, which is applied, and let go of then."""
    world = World()
    async with world.serving() as server:
        desk = Desk(world, server)
        for name in ("wheel", "disk"):
            await desk.send(name, 5000 if name == "wheel" else 20 * MINUTE_MS)
        for name in ("wheel", "disk"):
            found = await desk.withdrawn(name)
            sequence, minute = desk.where[name]
            cancel = Draft(
                kind=RecordKind.CANCEL,
                count=1,
                names=[],
                arrays={
                    "old_sequence": np.array([sequence], np.int64),
                    "old_minute": np.array([minute], np.uint32),
                },
            )
            assert await server.master.committer.commit_records(cancel)
            await server.node.filer.drain()
            await server.master.withdrawals.settle(found)
            assert await desk.withdraw(name) == (Answer.DONE, None)
        await trio.sleep(20 * 60)
        assert world.broker.ids == []
        assert server.master.withdrawals._withdrawn == {}
        await until(lambda: not server.master.handout._held_of.any(), seconds=30)
