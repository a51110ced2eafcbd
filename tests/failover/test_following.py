"""What a master asks of who wants to follow it, and what a vote is worth."""

from typing import Any
from unittest import mock
from uuid import UUID

import msgspec
import pytest
import trio

from delay_protocol.nodes.following import (
    Asked,
    Follow,
    FollowRefused,
    LogDiverges,
    Matches,
)
from delay_protocol.nodes.registration import GroupRecord
from delay_server.replicas import question_of as followed_by
from delay_server.settings.errors import FencedError
from meta_server.groups.elections import GroupState, Voted
from replication.leading import Leading
from storage.disk.errors import DamagedError
from storage.logs.message_log import MessageLog
from storage.state.promise_file import PromiseFile
from tests.failover.group_rig import Group, Machine


def question_of(slave: Machine, at: int, **changed: object) -> Follow:
    """Return what a slave asks the master of an epoch, or a slave that is otherwise."""
    log = slave.opened.store.message_log
    end = log.next_sequence
    asked = Asked(sequence=end, epoch=log.last_epoch, crc=log.crc_before(end) or 0)
    return msgspec.structs.replace(followed_by(slave.replica._register(), at, asked), **changed)


def leading_of(master: Machine | None) -> Leading:
    """Return who serves slaves."""
    assert master is not None
    assert master.opened.leading is not None
    return master.opened.leading


async def master_and_slave(group: Group) -> tuple[Machine, Machine]:
    """Return the master and one slave of three members in sync that keep three messages."""
    await group.until_in_sync("a", "b", "c")
    await group.send(3)
    master = await group.until_master("a", "b", "c")
    return master, next(one for one in group.machines.values() if one is not master)


async def test_bytes_that_differ_at_one_place_of_one_epoch_are_no_match() -> None:
    group = Group()
    async with group.running():
        master, slave = await master_and_slave(group)
        follow = question_of(slave, group.record.epoch)
        leading = leading_of(master)
        assert await leading.questions.answer(follow) == Matches(asked=follow.asked)
        other = msgspec.structs.replace(follow.asked, crc=follow.asked.crc ^ 1)
        reply = await leading.questions.answer(msgspec.structs.replace(follow, asked=other))
        assert reply == LogDiverges(asked=other, epoch=other.epoch, end=other.sequence - 1)
        empty = msgspec.structs.replace(follow, asked=Asked(sequence=1, epoch=0, crc=1))
        assert await leading.questions.answer(empty) == FollowRefused(
            reason="an empty log ends with no batch, and so with no CRC"
        )


async def test_what_a_master_cannot_read_for_a_slave_is_damage_and_it_hands_over() -> None:
    group = Group()
    async with group.running():
        master, slave = await master_and_slave(group)
        asked = Asked(sequence=1, epoch=0, crc=0)
        follow = msgspec.structs.replace(question_of(slave, group.record.epoch), asked=asked)
        leading, gone = leading_of(master), DamagedError(path="x", position=0, reason="gone")
        with mock.patch.object(MessageLog, "crc_before", side_effect=gone):
            reply = await leading.questions.answer(follow)
        assert isinstance(reply, FollowRefused)
        assert reply.reason.startswith("the master cannot read its log: ")
        before = master.storage_uuid()
        await group.until(lambda: master.storage_uuid() != before)
        await group.until_in_sync("a", "b", "c")


OTHER = UUID(int=7, version=4)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"incarnation": 1}, "is registered by another start"),
        ({"boot_id": OTHER}, "is registered by another start"),
        ({"storage_uuid": OTHER}, "is registered by another start"),
        ({"node_id": "d"}, "d is not registered"),
        ({"group": "delay-2"}, "not delay-2"),
        ({"log_uuid": OTHER}, "its log is"),
        ({"epoch": 99}, "this node is the master of epoch 1; it asks the meta server for a later"),
        ({"epoch": 99, "boot_id": OTHER}, "is registered by another start"),
        ({"epoch": 99, "node_id": "d"}, "d is not registered"),
    ],
    ids=str,
)
async def test_whoever_does_not_belong_here_does_not_follow(
    changed: dict[str, Any], reason: str
) -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master = await group.until_master("a", "b", "c")
        slave = next(one for one in group.machines.values() if one is not master)
        await slave.kill()
        slave.start()
        await group.until(lambda: slave.server is not None and slave.server.is_open)
        await group.until(lambda: slave.replica.following is not None)
        follow = question_of(slave, group.record.epoch, **changed)
        reply = await leading_of(master).questions.answer(follow)
        assert isinstance(reply, FollowRefused)
        assert reason in reply.reason
        # Of an epoch that is newer the meta server alone is believed.
        await trio.sleep(2)
        assert master.is_master


async def test_a_slave_that_asks_while_a_mastership_ends_is_refused() -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master = await group.until_master("a", "b", "c")
        slave = next(one for one in group.machines.values() if one is not master)
        follow = question_of(slave, group.record.epoch)
        leading, replies = leading_of(master), list[object]()
        assert master.server is not None
        master.server.lose(FencedError(node=master.name, epoch=1, reason="another one was elected"))
        for _ in range(50):
            leading.follows(mock.Mock(is_closed=False), follow, replies.append)
            leading.begin_snapshot(mock.Mock(is_closed=False), follow, replies.append)
            await trio.lowlevel.checkpoint()
        assert FollowRefused(reason="this master has not begun its epoch") in replies


async def test_a_vote_that_has_come_is_a_promise_that_is_durable() -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master = await group.until_master("a", "b", "c")
        await master.kill()
        promised: list[bool] = []
        count = GroupState.voted

        def voted(
            state: GroupState, record: GroupRecord, node: str, vote: Voted, *, now: float
        ) -> str:
            store = group[node].opened.store
            kept = PromiseFile(store.disk, store.identity.storage_uuid).read()
            promised.append(kept.epoch >= vote.vote.epoch)
            return count(state, record, node, vote, now=now)

        with mock.patch.object(GroupState, "voted", voted):
            await group.elect()
            await group.until_master("a", "b", "c")
        # Who is asked again before its vote has come votes again.
        assert len(promised) >= 2
        assert all(promised)
