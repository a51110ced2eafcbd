"""Receivers at a master with replicas: what needs a record waits until enough disks may have it."""

import trio

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.receivers.delivering import Settled, Verdict, encode_settle
from tests.delay_server.server_rig import HOST
from tests.failover.group_rig import Group
from tests.failover.test_seen import require, roles
from tests.receiver_peer import ReceiverPeer, later_item


async def test_nothing_is_put_off_while_too_few_replicas_are_heard_and_all_else_is_done() -> None:
    group = Group(attached=("r",))
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        await require(group, 2)
        master, slaves = roles(group)
        stream = await group.clients.connect(HOST, master.port)
        peer = ReceiverPeer(stream, group.world.clock.now_ms)
        group.nursery.start_soon(peer.run)
        await peer.begin("r")
        # The broker gets half of them.
        await group.send(20, in_s=1.0)
        await group.until(lambda: len(peer.delivered) >= 3)
        for slave in slaves:
            await slave.kill()
        await trio.sleep(3)
        due_ms = group.world.now_ms + 20_000
        _, first = peer.delivered[0]
        later = Settled(first.sequence, Verdict.LATER, later_item(first.item, due_ms))
        answer = await peer.ask(CommandCode.SETTLE, encode_settle([later]))
        assert answer.code == ResponseCode.BROKER_ERROR
        assert b"2 disks must be in sync, and 1 are heard" in answer.body
        # What needs no record is answered, and a DONE once its outcome is on enough disks.
        assert await peer.settle([Settled(peer.sequences[2], Verdict.RELEASE)]) == 0
        answers: list[int] = []

        async def settle_done() -> None:
            answers.append(await peer.done([peer.sequences[1]]))

        group.nursery.start_soon(settle_done)
        await trio.sleep(5)
        assert not answers
        await peer.flow(100)
        for slave in slaves:
            slave.start()
        await group.until_in_sync("a", "b", "c")
        await trio.sleep(1)
        assert answers == [0]
        assert await peer.settle([later]) == 0
        await peer.flow(100)

        def arrived() -> list[int]:
            # The broker may be the next that gets it.
            deliveries = group.world.broker.deliveries
            return [at for at, one in peer.delivered if one.item == later.rest] + [
                one.at_ms for one in deliveries if one.data == later.rest
            ]

        await group.until(arrived)
        assert min(arrived()) >= due_ms
        await trio.aclose_forcefully(stream)
