"""A role that changes in the middle of something leaves nothing behind, and nothing hangs."""

import dataclasses
from unittest import mock

import msgspec
import trio

from delay_protocol.nodes.registration import GroupRecord, Phase
from delay_server.membership.registration import GroupNews
from delay_server.replicas import Replica
from meta_server.admin.plans import (
    Desk,
    ask_to_hand_over,
    set_group_min_isr,
)
from meta_server.groups.elections import GroupState
from meta_server.known.model import Change
from meta_server.known.record_file import VERSIONS_SKIPPED
from replication.core.follower import Cut
from tests.failover.group_rig import GROUP, Group, Machine
from tests.meta_server.memory_store import Fault


async def operate(group: Group, what: str, to: str = "") -> None:
    """Hand over or set min ISR as an operator does; raises why that is refused."""
    server = group.meta_server
    changes = server.handlers.group_changes

    def plan(desk: Desk) -> tuple[Change, ...]:
        state, now = changes.state_of(GROUP), trio.current_time()
        if what == "handover":
            return ask_to_hand_over(desk, GROUP, state, to=to, now=now)
        return set_group_min_isr(desk, GROUP, int(what))

    await server.administration.carry_out("op", plan, ("group", GROUP), stored=changes.news)


def others_than(group: Group, master: Machine) -> list[Machine]:
    return [one for one in group.machines.values() if one is not master]


async def in_sync(group: Group) -> Machine:
    await group.until_in_sync(*group.machines)
    return await group.until_master(*group.machines)


async def test_an_election_whose_votes_were_forgotten_is_voted_for_again() -> None:
    group = Group()
    async with group.running():
        master = await in_sync(group)
        await group.send(5)
        choose = GroupState.choose
        lost: list[GroupRecord] = []

        def lose_once(state: GroupState, record: GroupRecord, *, now: float) -> object:
            found = choose(state, record, now=now)
            if isinstance(found, GroupRecord) and not lost:
                lost.append(found)
                group.meta.medium.next_faults.append(Fault.LOST)
            return found

        with mock.patch.object(GroupState, "choose", lose_once):
            await master.kill()
            master.start()
            await group.until(lambda: bool(lost))
            await group.until(lambda: group.master() is not None)


async def test_a_cut_in_the_middle_of_which_the_master_changes_is_not_forgotten() -> None:
    group = Group()
    async with group.running():
        old = await in_sync(group)
        await group.send(3, in_s=40)
        kept, named = others_than(group, old)
        network = group.world.network
        for one, other in ((old.name, named.name), (kept.name, "meta")):
            network.block(one, other)
            network.block(other, one)
        # These reach `kept` alone, and nobody hears that they are kept.
        with trio.move_on_after(1.2):
            await group.send(4, in_s=40)
        lost = set(group.delivered())
        await old.kill()
        await group.until_master(named.name)
        cut = Replica._cut
        cuts: list[Cut] = []

        async def struck(replica: Replica, wanted: Cut, committed: int) -> range:
            if replica.own.node == kept.name:
                cuts.append(wanted)
                # What news of another master do.
                group.nursery.start_soon(_cancel, replica)
            return await cut(replica, wanted, committed)

        with mock.patch.object(Replica, "_cut", struck):
            network.heal()
            await group.until(lambda: bool(cuts))
            await group.until_in_sync(kept.name, named.name)
        await group.send(6, in_s=30)
        await operate(group, "handover", kept.name)
        await group.until_master(kept.name)
        await group.until(lambda: set(group.acknowledged) <= set(group.delivered()), seconds=120)
        assert set(group.delivered()) == set(group.acknowledged) | lost


async def _cancel(replica: Replica) -> None:
    replica._scope.cancel()


async def test_a_node_that_still_files_when_it_is_named_follows_whoever_is_named_next() -> None:
    group = Group()
    async with group.running():
        old = await in_sync(group)
        await group.send(3, in_s=40)
        slow, other = others_than(group, old)
        filer = slow.opened.filer
        filer.backlog_bytes += 1
        await operate(group, "handover", slow.name)
        await group.until(
            lambda: (found := group.record.master) is not None and found.node_id == slow.name
        )
        group.world.network.block(slow.name, "meta")
        group.world.network.block("meta", slow.name)
        await group.until_master(old.name, other.name)
        group.world.network.heal()
        await group.send(2)
        await group.until(lambda: slow.replica.following is not None, seconds=30)
        await group.until_in_sync("a", "b", "c")


async def test_planned_moves_while_messages_are_sent_lose_none_and_send_none_twice() -> None:
    """Planned moves: what was acknowledged with acks=1 was lost by them (KAFKA-20554)."""
    group = Group()
    async with group.running():
        master = await in_sync(group)

        async def move() -> None:
            nonlocal master
            for _ in range(6):
                await trio.sleep(0.7)
                [target, _] = others_than(group, master)
                await operate(group, "handover", target.name)
                await group.until_master(target.name)
                await group.until_in_sync(*group.machines)
                master = target

        async with trio.open_nursery() as nursery:
            nursery.start_soon(move)
            for _ in range(60):
                await group.send(1, in_s=1.0)
                await trio.sleep(0.1)
        acknowledged = sorted(group.acknowledged)
        await group.until(lambda: set(acknowledged) <= set(group.delivered()))
        assert sorted(group.delivered()) == acknowledged
        assert {machine.messages() for machine in group.machines.values()} == {60}


async def test_an_older_record_or_another_of_the_same_version_is_not_believed() -> None:
    group = Group()
    async with group.running():
        await in_sync(group)
        newest = group.record
        for machine in group.machines.values():
            replica = machine.replica
            assert replica.registration is not None
            for changed in ({"version": newest.version - 1}, {"min_isr": 3}):
                older = msgspec.structs.replace(newest, **changed)
                replica.told(GroupNews(older, replica.registration.members))
        await trio.sleep(1)
        for machine in group.machines.values():
            assert machine.replica.record == newest
            assert machine.replica.newest is not None
            assert machine.replica.newest.record == newest
        assert group.record == newest


async def test_a_store_that_is_set_back_takes_the_newest_record_that_a_node_was_told() -> None:
    group = Group()
    async with group.running():
        master = await in_sync(group)
        await master.kill()
        master.start()
        await group.until(lambda: group.record.epoch == 2 and group.master() is not None)
        await group.until_in_sync("a", "b", "c")
        await group.send(3)
        newest = group.record
        for machine in group.machines.values():
            await machine.kill()
        group.meta.kill()
        # A backup of the time when this epoch's election had begun, restored as documented.
        tables = group.meta.medium.tables
        older = msgspec.structs.replace(
            newest, version=newest.version - 2, master=None, phase=Phase.ELECTING
        )
        tables.delay_groups[GROUP] = dataclasses.replace(tables.delay_groups[GROUP], record=older)
        group.meta.record_file.document = None
        await group.start_meta()
        group.machines["a"].start()
        group.machines["b"].start()
        await trio.sleep(12)
        assert group.record == older, "it may be that only c knows what is newest"
        group.machines["c"].start()
        await group.until(lambda: group.master() is not None, seconds=30)
        assert group.record.epoch > newest.epoch
        assert group.record.version > newest.version + VERSIONS_SKIPPED
        await group.until_in_sync("a", "b", "c")
        assert {machine.messages() for machine in group.machines.values()} == {3}
