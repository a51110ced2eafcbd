"""A node that gains and loses its role in one process: nothing is lost, early or leaked."""

import gc
import os
from collections import Counter
from dataclasses import dataclass

import msgspec
import pytest
import trio

from delay_protocol.nodes.registration import (
    GroupRecord,
    Master,
    NodeRegister,
    NodeRegistered,
    NodeRole,
)
from delay_server.mastership import Mastership
from delay_server.node import Node
from delay_server.server import serve
from tests.delay_server.meta_stub import FakeMeta, meta_config, record_of
from tests.delay_server.server_rig import World, make_item, until

ROUNDS = 20
PACE_S = 0.05
AT_ONCE = 10


@dataclass
class Elections:
    """Makes the node master and slave in turns, each time in a new epoch."""

    is_master: bool = True
    epoch: int = 0
    record: GroupRecord | None = None

    def say(self, node: NodeRegister) -> NodeRegistered:
        """Return what the node is told."""
        own = Master(node_id=node.node_id, incarnation=node.incarnation)
        master = own if self.is_master else Master(node_id="n2", incarnation=1)
        if self.record is None or self.record.master != master:
            self.epoch += 1
            record = record_of(node, epoch=self.epoch, version=self.epoch)
            self.record = msgspec.structs.replace(record, master=master)
        role = NodeRole.MASTER if self.is_master else NodeRole.SLAVE
        return NodeRegistered(role=role, record=self.record, again_ms=1000)


def held() -> tuple[int, int]:
    """Return how many descriptors this process has, and objects of nodes and masterships."""
    gc.collect()
    objects = sum(isinstance(one, Node | Mastership) for one in gc.get_objects())
    return len(os.listdir("/proc/self/fd")), objects


@pytest.mark.long
async def test_a_node_is_promoted_and_demoted_twenty_times_under_load() -> None:
    world, elections = World(), Elections()
    world.broker.answer_after_s = 0.02
    accepted: dict[str, int] = {}
    under_way = 0
    async with FakeMeta(world, say=elections.say).running(), trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: world.broker.run(task_status=task_status))
        server, stop = world.server(meta_config()), trio.Event()
        nursery.start_soon(serve, server, stop)
        await server.ready.wait()
        producing = trio.CancelScope()

        async def produce() -> None:
            producer, number = await world.connect(), 0
            with producing:
                while True:
                    due = {f"m{number + n}": world.now_ms + 100 * n for n in range(AT_ONCE)}
                    number += AT_ONCE
                    items = [make_item(name, due_ms) for name, due_ms in due.items()]
                    try:
                        answer = await producer.answer(await producer.post(*items))
                    except (AssertionError, trio.BrokenResourceError):
                        # What was appended when the role was lost has no answer.
                        producer = await world.connect()
                        continue
                    if answer.code == 0:
                        accepted.update(due)
                    await trio.sleep(PACE_S)

        nursery.start_soon(produce)
        before, tasks = None, 0
        for _ in range(ROUNDS):
            await until(lambda: server.is_master and not server.duty().why, seconds=30)
            await trio.sleep(1)
            under_way += server.master.sender.unsent().in_flight
            elections.is_master = False
            await until(lambda: server.fenced is not None, seconds=10)
            await until(lambda: server.is_open and not server.is_master, seconds=10)
            await trio.sleep(0.5)
            before = before or held()
            tasks = tasks or trio.lowlevel.current_statistics().tasks_living
            assert held() == before
            # The producer has a connection, of two tasks, or is about to have one.
            assert trio.lowlevel.current_statistics().tasks_living <= tasks + 2
            elections.is_master = True
        await until(lambda: server.is_master and not server.duty().why, seconds=30)
        producing.cancel()
        await until(lambda: accepted.keys() <= set(world.broker.ids), seconds=60)
        await trio.sleep(5)
        assert server.node.store.schedule.pending == 0
        stop.set()
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert server.demotions == ROUNDS
    assert len(accepted) > ROUNDS * 100
    assert [one for one in world.broker.deliveries if one.at_ms < one.due_ms] == []
    twice = sum(count - 1 for count in Counter(world.broker.ids).values())
    # What was in flight, and 200 ms of traffic, each time.
    assert twice <= under_way + ROUNDS * AT_ONCE * 0.2 / PACE_S


async def test_a_node_that_waits_for_its_role_stops_when_it_is_told_to() -> None:
    world, elections = World(), Elections(is_master=False)
    async with FakeMeta(world, say=elections.say).running(), trio.open_nursery() as nursery:
        server, stop, ended = world.server(meta_config()), trio.Event(), trio.Event()

        async def live() -> None:
            await serve(server, stop)
            ended.set()

        nursery.start_soon(live)
        await until(lambda: server.registration and server.registration.permission)
        await trio.sleep(5)
        assert not server.is_master
        stop.set()
        with trio.fail_after(5):
            await ended.wait()
