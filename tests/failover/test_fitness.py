"""A master that is not fit has another one in sync take its place, by itself and with a reason."""

import msgspec
import pytest
import trio

from storage.batch.batches import Damage
from tests.failover.group_rig import GROUP, Group, Machine
from tests.failover.test_seen import readiness, roles
from tests.simulation.faults import FaultPlan

FLOOR_BYTES = 1024 * 1024
"""The least floor of free disk that there is."""
DAMAGE = Damage("segments/minutes/1.data", 0, 1, "flipped")


def reasons(group: Group, action: str = "delay-group.handover") -> list[str]:
    """Return why the group was handed over, or had elections, by the audit."""
    entries = [row.entry for row in group.meta.medium.audit]
    return [msgspec.json.decode(one.after)["why"] for one in entries if one.action == action]


async def test_a_master_that_is_stopped_hands_over_first() -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master, slaves = roles(group)
        gap_s, sent_at = 0.0, trio.current_time()

        async def go_on_sending() -> None:
            nonlocal gap_s, sent_at
            while True:
                await group.send()
                gap_s, sent_at = max(gap_s, trio.current_time() - sent_at), trio.current_time()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on_sending)
            await trio.sleep(1)
            began = trio.current_time()
            await master.shut_down()
            assert trio.current_time() - began < 1.0
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        assert gap_s < 0.5
        # Nobody waits for the one that stopped.
        assert set(group.record.in_sync) == {one.name for one in slaves}
        assert (group.record.epoch, reasons(group)) == (2, ["it is being stopped"])
        master.start()
        await group.until_in_sync("a", "b", "c")


@pytest.mark.parametrize("missing", ["slaves", "meta"])
async def test_a_master_that_cannot_hand_over_stops_all_the_same(missing: str) -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master, slaves = roles(group)
        if missing == "meta":
            group.world.network.block(master.name, "meta")
        else:
            for slave in slaves:
                await slave.kill()
        began = trio.current_time()
        await master.shut_down()
        took_s = trio.current_time() - began
        assert 3.0 <= took_s < 6.0 if missing == "meta" else took_s < 1.0
        assert reasons(group) == []


def fill(machine: Machine) -> None:
    """Leave less free than the floor, and enough for what is no message."""
    medium = machine.node.disk.medium
    medium.used = medium.capacity_bytes - FLOOR_BYTES // 2


async def test_a_master_whose_disk_is_full_for_five_seconds_hands_over_to_one_with_room() -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master, (full, roomy) = roles(group)
        fill(full)
        fill(master)
        await trio.sleep(61)
        # It is looked at the disk once a minute where nothing is written.
        await group.until_master(roomy.name)
        assert reasons(group) == ["free disk has been below its floor for 5 s"]
        await group.send()
        master.node.disk.capacity_bytes = full.node.disk.capacity_bytes = 1 << 41
        await group.until_in_sync("a", "b", "c", seconds=120)


async def test_a_master_with_damaged_files_hands_over() -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master, slaves = roles(group)
        assert master.server is not None
        master.server.damages.note(DAMAGE)
        await group.until(lambda: group.master() in slaves)
        why = f"{DAMAGE.path} is damaged at 0: flipped"
        assert reasons(group) == [why]
        await group.until_in_sync("a", "b", "c")
        await group.send()


@pytest.mark.parametrize("sent", [0, 1])
async def test_a_master_whose_fsync_hangs_gives_its_role_up(sent: int) -> None:
    """The fsync of a commit, or of the durable end, behind which the next commit waits."""
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        await group.send(sent)
        master, slaves = roles(group)
        master.node.disk.plan = FaultPlan(slow_sync=1.0, slow_sync_s=(60.0, 60.0))
        # The durable end follows what was sent.
        await trio.sleep(sent)
        began = trio.current_time()
        with trio.move_on_after(1):
            await group.send()
        await trio.sleep(8)
        assert (group.master(), await readiness(master)) == (master, (200, []))
        await group.until(lambda: group.master() in slaves)
        assert 10.5 < trio.current_time() - began < 15.0
        begun, chosen = reasons(group, "delay-group.elect")
        assert begun == chosen
        assert begun.endswith(" s: nothing became durable for 10 s: its disk hangs")
        assert set(group.record.in_sync) == {one.name for one in slaves}
        await group.send()
        # When the fsync has ended it is a slave, and has what the others have.
        master.node.disk.plan = FaultPlan()
        await group.until_in_sync("a", "b", "c", seconds=120)


def clock_fault(group: Group, name: str) -> str:
    return group.meta_server.handlers.group_changes.state_of(GROUP).clock_fault(name)


@pytest.mark.parametrize("by_ms", [3_600_000, -3_600_000])
async def test_a_master_whose_clock_is_wrong_holds_and_hands_over(by_ms: int) -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master = group.master()
        assert master is not None
        await group.send(in_s=60)
        # Unless the kernel vouches for a step forward, nothing is sent until it is compared.
        master.node.clock.is_synchronised = False
        master.node.clock.step(by_ms)
        await group.until(lambda: clock_fault(group, master.name), seconds=10)
        await trio.sleep(1)
        code, failing = await readiness(master)
        assert code == 503
        held = clock_fault(group, master.name)
        assert f"messages are held: {held}" in failing
        assert any("delivery is held" in one for one in failing)
        await trio.sleep(2)
        assert group.master() is master, "it may have been set for a moment"
        await group.until_master(*group.machines.keys() - {master.name})
        assert group.delivered() == []
        await group.until(group.delivered, seconds=70)
        await group.send()
        master.node.clock.step(-by_ms)
        await group.until_in_sync("a", "b", "c")
        await trio.sleep(3)
        assert await readiness(master) == (200, [])
