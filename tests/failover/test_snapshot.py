"""A node that is new or wiped copies a snapshot, and is as good as the others then."""

from functools import partial

import pytest
import trio
from structlog.testing import capture_logs

from delay_transport.meta.talk import Talk
from replication import snapshots
from replication.snapshots import SnapshotCopy
from tests.failover.group_rig import Group, Machine
from tests.failover.test_seen import metrics
from tests.simulation.faults import PowerCut


def starts_of(machine: Machine) -> int:
    """Return the first record that its log keeps."""
    return machine.opened.store.message_log.first_sequence


async def trim(group: Group, master: Machine, beyond: int, *, in_s: float = 3600.0) -> None:
    """Send until the master keeps nothing of its log up to a record."""
    with trio.fail_after(120):
        while starts_of(master) <= beyond:
            await group.send(5, in_s=in_s)
            await trio.sleep(1)


def other_than(group: Group, master: Machine) -> Machine:
    return next(one for one in group.machines.values() if one is not master)


async def wiped_other_than(group: Group, master: Machine) -> Machine:
    """Return a slave with an empty disk that is not running."""
    machine = other_than(group, master)
    await machine.kill()
    await without(group, machine)
    machine.wipe()
    # Until then its node is alive with another disk.
    await trio.sleep(15)
    return machine


async def without(group: Group, away: Machine) -> None:
    """Wait until a machine that is away is not in sync, and nothing is kept for it."""
    await group.until(lambda: away.name not in group.record.in_sync)


def pending_of(machine: Machine) -> int:
    return machine.opened.store.schedule.pending


async def test_a_wiped_node_joins_though_the_log_has_no_beginning_and_sends_what_is_pending() -> (
    None
):
    group = Group(trims=True)
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master = group.master()
        assert master is not None
        ids = await group.send(40, in_s=300.0)
        wiped = await wiped_other_than(group, master)
        await trim(group, master, 60, in_s=300.0)
        wiped.start()
        await group.until_in_sync("a", "b", "c")
        await group.until(lambda: pending_of(wiped) == pending_of(master))
        assert starts_of(wiped) > 60
        await group.hand_over(wiped.name)
        ids += await group.send(5, in_s=300.0)
        for machine in group.machines.values():
            if machine is not wiped:
                await machine.kill()
        await group.until(lambda: set(group.acknowledged) <= set(group.delivered()), seconds=1000)
        assert sorted(group.delivered()) == sorted(group.acknowledged)
        for delivery in group.world.broker.deliveries:
            assert delivery.at_ms >= delivery.due_ms


async def test_a_node_that_is_far_behind_gives_its_directory_up_and_copies_all_anew() -> None:
    group = Group(trims=True)
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master = group.master()
        assert master is not None
        await group.send(20)
        behind = other_than(group, master)
        await behind.shut_down()
        await without(group, behind)
        await trim(group, master, master.opened.store.message_log.next_sequence + 50)
        before = behind.storage_uuid()
        behind.start()
        with capture_logs() as logs:
            await group.until_in_sync("a", "b", "c")
        assert behind.storage_uuid() != before
        (damage,) = [log["reason"] for log in logs if log["event"] == "damaged bytes"]
        assert damage.startswith("its log ends with record ")


@pytest.mark.parametrize("kills", [1, 3, 6])
async def test_a_copy_that_was_broken_off_begins_again(
    kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "READ_BYTES_MAX", 200)
    group = Group(trims=True)
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master = group.master()
        assert master is not None
        await group.send(60, in_s=600.0)
        wiped = await wiped_other_than(group, master)
        await trim(group, master, 100)
        for least in range(300, 300 * kills + 1, 300):
            wiped.start()
            await group.until(partial(has_copied, wiped, least))
            assert 0 < metrics(wiped)["replication_snapshot_seconds"] < 60
            assert wiped.name not in group.record.in_sync
            await wiped.kill(PowerCut)
        wiped.start()
        await group.until_in_sync("a", "b", "c")
        await group.until(lambda: pending_of(wiped) == pending_of(master))


def has_copied(machine: Machine, least: int) -> bool:
    """Say whether a node has copied so many bytes of a snapshot, and not all."""
    server = machine.server
    if server is None or not server.is_open or server.node.replica is None:
        return False
    snapshot = server.node.replica.snapshot
    return snapshot is not None and snapshot.copied_bytes >= least


async def test_renewals_and_acknowledgements_go_on_while_a_snapshot_is_copied_for_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A catch-up that silences heartbeats: strimzi 11736."""
    monkeypatch.setattr(snapshots, "READ_BYTES_MAX", 200)
    ask = snapshots.SnapshotCopy._ask

    async def ask_slowly(self: SnapshotCopy, talk: Talk, path: str, at: int, size: int) -> bytes:
        await trio.sleep(2)
        return await ask(self, talk, path, at, size)

    monkeypatch.setattr(snapshots.SnapshotCopy, "_ask", ask_slowly)
    group = Group(trims=True)
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master = group.master()
        assert master is not None
        await group.send(60, in_s=600.0)
        wiped = await wiped_other_than(group, master)
        await trim(group, master, 100)
        wiped.start()
        await group.until(lambda: has_copied(wiped, 1))
        seconds = 0
        while has_copied(wiped, 1):
            began_s = trio.current_time()
            await group.send(1)
            assert trio.current_time() - began_s < 1
            assert metrics(wiped)["meta_away_seconds"] < 2
            assert len(group.record.in_sync) == 2
            await trio.sleep(1)
            seconds += 1
        assert seconds > 60
        await group.until_in_sync("a", "b", "c")
        await group.until(lambda: pending_of(wiped) == pending_of(master))


async def test_a_slave_that_copies_while_much_is_sent_finds_the_log_where_it_goes_on() -> None:
    group = Group(trims=True)
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master = group.master()
        assert master is not None
        wiped = await wiped_other_than(group, master)
        await trim(group, master, 60)
        async with trio.open_nursery() as nursery:

            async def be_busy() -> None:
                while True:
                    await group.send(5)

            nursery.start_soon(be_busy)
            wiped.start()
            await group.until_in_sync("a", "b", "c", seconds=30)
            nursery.cancel_scope.cancel()


async def test_a_disk_that_is_in_sync_keeps_what_it_has_whatever_the_master_says() -> None:
    group = Group(trims=True)
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master = group.master()
        assert master is not None
        await group.send(20)
        member = other_than(group, master)
        # As if the master had lost the records that this one goes on from.
        log = master.opened.store.message_log
        await trio.sleep(5)
        log.drop_before(log.next_sequence + 1)
        assert member.replica.following is not None
        connections = group.world.network
        connections.reset_any()
        following = member.replica.following
        before = member.messages()
        for _ in range(40):
            connections.reset_any()
            await trio.sleep(0.1)
            if member.replica.following is not None:
                following = member.replica.following
            if "counts as in sync" in following.standing:
                break
        assert "counts as in sync" in following.standing
        assert member.replica.snapshot is None
        assert member.messages() == before
