"""A replica that is not whole is not in sync, and takes a new copy by itself."""

import random
from uuid import UUID

import pytest
import trio
from structlog.testing import capture_logs

from storage.batch.batches import Damage
from storage.disk.errors import DamagedError
from storage.node.aside import ASIDE_DIRECTORY
from tests.failover.group_rig import GROUP, Group, Machine
from tests.failover.test_snapshot import other_than, pending_of, trim
from tests.kit.plans import act
from tests.simulation.faults import Action, Trap

BITS = 12
"""So many are flipped in a file."""


def strike(machine: Machine, directory: str, *, seed: int = 1) -> str:
    """Flip bits in the second half of the newest file of a directory; return its path."""
    disk, chance = machine.node.disk, random.Random(seed)
    files = disk.contents(durable=True)
    names = [one for one in files if one.startswith(f"{directory}/") and "durable" not in one]
    path = max(names, key=lambda one: (len(files[one]) > 200, one))
    size = len(files[path])
    for _ in range(BITS):
        at = chance.randrange(size // 2, size)
        disk.damage(path, at, bytes([files[path][at] ^ 1 << chance.randrange(8)]))
    return path


def files_aside(machine: Machine) -> list[str]:
    """Return what lies aside."""
    files = machine.node.disk.contents()
    return [path for path in files if path.startswith(f"{ASIDE_DIRECTORY}/")]


def find_damage(machine: Machine) -> None:
    """Damage a segment, and have it found as whoever reads it does."""
    assert machine.server is not None
    path = strike(machine, "schedule_log")
    machine.server.damages.note(Damage(path, 64, 100, "the batch fails its CRC"))


async def copied_anew(group: Group, machine: Machine, before: UUID | None) -> None:
    """Wait until a machine has another disk than before, and is in sync with it."""
    await group.until(lambda: machine.storage_uuid() not in {None, before})
    await group.until_in_sync(*group.machines)
    await group.until(lambda: not files_aside(machine))


async def all_is_delivered_by(group: Group, machine: Machine) -> None:
    """Hand over to a machine, end the others, and see all delivered, once and not early."""
    await group.hand_over(machine.name)
    for other in group.machines.values():
        if other is not machine:
            await other.kill()
    await group.until(lambda: set(group.acknowledged) <= set(group.delivered()), seconds=2000)
    assert sorted(group.delivered()) == sorted(group.acknowledged)
    for delivery in group.world.broker.deliveries:
        assert delivery.at_ms >= delivery.due_ms


async def test_a_slave_whose_newest_records_are_damaged_copies_all_anew() -> None:
    group = Group(trims=True)
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master = group.master()
        assert master is not None
        await group.send(40, in_s=900.0)
        await trim(group, master, 20, in_s=900.0)
        slave = other_than(group, master)
        before = slave.storage_uuid()
        await slave.kill()
        strike(slave, "message_log")
        slave.start()
        await copied_anew(group, slave, before)
        await group.until(lambda: pending_of(slave) == pending_of(master))
        await all_is_delivered_by(group, slave)


async def test_damage_that_nobody_reads_is_found_and_no_master_inherits_it() -> None:
    group = Group(trims=True)
    async with group.running():
        master, slave = await running_with_messages(group)
        before = slave.storage_uuid()
        await slave.kill()
        strike(slave, "schedule_log")
        slave.start()
        await copied_anew(group, slave, before)
        await all_is_delivered_by(group, slave)
        assert master.name not in group.record.in_sync


@pytest.mark.parametrize("path", ["checkpoint/checkpoint", "message_log/durable_end"])
async def test_a_directory_that_cannot_be_opened_is_given_up_where_others_are_in_sync(
    path: str,
) -> None:
    group = Group(trims=True)
    async with group.running():
        master, slave = await running_with_messages(group)
        before = slave.storage_uuid()
        await slave.kill()
        disk = slave.node.disk
        disk.put(path, None)
        strike(slave, "message_log")
        slave.start()
        await copied_anew(group, slave, before)
        await group.until(lambda: pending_of(slave) == pending_of(master))


async def test_a_directory_that_cannot_be_opened_stays_where_nobody_else_is_in_sync() -> None:
    group = Group(names=("a",))
    async with group.running():
        master = await group.until_master("a")
        await group.send(5, in_s=900.0)
        await trio.sleep(10)
        before = master.storage_uuid()
        await master.kill()
        master.node.disk.put("checkpoint/checkpoint", b"no checkpoint")
        master.start()
        await master.ended.wait()
        assert isinstance(master.errors.pop(), DamagedError)
        assert master.storage_uuid() == before


async def running_with_messages(group: Group) -> tuple[Machine, Machine]:
    """Have messages filed in a group of which the log has no beginning; return master and slave."""
    await group.until_in_sync(*group.machines)
    master = await group.until_master(*group.machines)
    await group.send(40, in_s=900.0)
    await trim(group, master, 20, in_s=900.0)
    return master, other_than(group, master)


async def test_a_master_with_damage_hands_over_and_copies_all_anew() -> None:
    group = Group(trims=True)
    async with group.running():
        master, _ = await running_with_messages(group)
        before = master.storage_uuid()
        find_damage(master)
        await group.until(lambda: master.storage_uuid() != before)
        await group.until_in_sync("a", "b", "c")
        await all_is_delivered_by(group, master)


async def test_who_is_needed_stays_and_says_so_and_copies_anew_when_it_is_not() -> None:
    group = Group(names=("a", "b"), trims=True)
    async with group.running():
        _, slave = await running_with_messages(group)

        async def at_least(count: int) -> None:
            await act(group.meta_server, "delay-group", "min-isr", GROUP, min_isr=count)

        await at_least(2)
        before = slave.storage_uuid()
        with capture_logs() as logs:
            find_damage(slave)
            await trio.sleep(10)
        assert slave.name in group.record.in_sync
        assert slave.storage_uuid() == before
        assert "is damaged at 64" in slave.replica.copy_fault
        said = [log["event"] for log in logs if log.get("standing") == "kept"]
        assert len(said) == 1
        assert "since min_isr is 2: schedule_log" in said[0]
        await group.send(5, in_s=900.0)
        await at_least(1)
        await group.until(lambda: slave.storage_uuid() != before)
        await group.until_in_sync("a", "b")
        assert slave.replica.copy_fault == ""
        await all_is_delivered_by(group, slave)


@pytest.mark.parametrize("action", [Action.KILL, Action.POWER_CUT])
async def test_a_death_at_any_moment_leaves_a_node_that_goes_on_with_its_copy(
    action: Action,
) -> None:
    group = Group(trims=True)
    async with group.running():
        master, slave = await running_with_messages(group)
        for calls in range(0, 160, 20):
            before = slave.storage_uuid()
            find_damage(slave)
            slave.node.disk.arm(Trap(action=action, skip=calls))
            await slave.ended.wait()
            slave.start()
            await group.until(lambda: slave.server is not None and slave.server.is_open)
            if slave.storage_uuid() == before:
                # It had not begun, and does not know any more that there is damage.
                find_damage(slave)
            await copied_anew(group, slave, before)
            await group.until(lambda: pending_of(slave) == pending_of(master))
        await all_is_delivered_by(group, slave)


async def test_what_is_damaged_at_the_master_too_is_copied_once_and_the_rest_stays_aside() -> None:
    group = Group(trims=True)
    async with group.running():
        master, slave = await running_with_messages(group)
        strike(master, "schedule_log")
        before = slave.storage_uuid()
        find_damage(slave)
        await group.until(lambda: slave.storage_uuid() != before)
        copied = slave.storage_uuid()
        await group.until_in_sync("a", "b", "c")
        await trio.sleep(30)
        assert slave.storage_uuid() == copied
        assert set(group.record.in_sync) == {"a", "b", "c"}
        assert any("/schedule_log/" in path for path in files_aside(slave))


async def test_a_node_alone_goes_on_with_what_is_whole() -> None:
    group = Group(names=("a",))
    async with group.running():
        await group.until_in_sync("a")
        master = await group.until_master("a")
        await group.send(5, in_s=900.0)
        await trio.sleep(10)
        before = master.storage_uuid()
        find_damage(master)
        await trio.sleep(5)
        assert (master.is_master, master.storage_uuid()) == (True, before)
        await group.send(1, in_s=1.0)
