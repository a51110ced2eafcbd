"""A role that changes in the middle of something leaves nothing behind, and nothing hangs."""

from unittest import mock

import msgspec
import trio

from delay_server.membership.registration import GroupNews
from delay_server.replicas import Replica
from replication.core.follower import Cut
from tests.failover.group_rig import GROUP, Group, Machine
from tests.kit.plans import act


async def operate(group: Group, what: str, to: str = "") -> None:
    """Hand over or set min ISR as an operator does; raises why that is refused."""
    if what == "handover":
        await act(group.meta_server, "delay-group", what, GROUP, to=to)
    else:
        await act(group.meta_server, "delay-group", "min-isr", GROUP, min_isr=int(what))


def others_than(group: Group, master: Machine) -> list[Machine]:
    return [one for one in group.machines.values() if one is not master]


async def in_sync(group: Group) -> Machine:
    await group.until_in_sync(*group.machines)
    return await group.until_master(*group.machines)


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
