"""What can be seen of replication: status, readiness and metrics of the nodes of a group."""

from typing import Any, Final

import msgspec
import trio

from delay_server.admin.http import application
from delay_server.admin.metrics import take
from delay_server.admin.status import status_of
from meta_server.groups.elections import set_min_isr
from tests.asgi import Caller
from tests.failover.group_rig import GROUP, Group, Machine

LEVEL: Final = {
    "standing": "in sync",
    "lag": 0,
    "lag_seconds": 0.0,
    "filing_lag_seconds": 0.0,
    "in_sync": 1,
    "drops": 0,
    "clock_ahead_seconds": 0.0,
}
"""The row of a disk that has all."""


def status(machine: Machine) -> dict[str, Any]:
    """Return the status of a node, as JSON would have it."""
    assert machine.server is not None
    found = status_of(machine.server.observe())
    assert msgspec.json.decode(msgspec.json.encode(found)) == found
    return found


def metrics(machine: Machine) -> dict[str, float]:
    """Return the samples of a node without the prefix."""
    assert machine.server is not None
    text = take(machine.server.observe()).render().decode()
    lines = [line for line in text.splitlines() if line and line[0] != "#"]
    samples = (line.removeprefix("delaywheel_").rpartition(" ") for line in lines)
    return {name: float(value) for name, _, value in samples}


async def readiness(machine: Machine) -> tuple[int, list[str]]:
    """Return the code of /readyz, and what is missing."""
    assert machine.server is not None
    answer = await Caller(application(machine.server.administered())).ask("GET", "/readyz")
    return answer.code, answer.json["failing"]


def roles(group: Group) -> tuple[Machine, list[Machine]]:
    """Return the master, and the slaves."""
    master = group.master()
    assert master is not None
    return master, [one for one in group.machines.values() if one is not master]


def part(group: Group, one: Machine, other: Machine) -> None:
    """Have two nodes not reach each other."""
    group.world.network.block(one.name, other.name)
    group.world.network.block(other.name, one.name)


async def test_a_master_says_how_each_other_disk_stands_and_a_slave_whom_it_follows() -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        await group.send(20)
        await trio.sleep(2)
        master, slaves = roles(group)
        seen = status(master)
        end = seen["last_sequence"]
        assert end == 21
        assert seen["replication"] == {
            "role": "master",
            "epoch": 1,
            "durable": end,
            "committed": end,
            "messages_held": "",
            "sending_held": "",
            "why_unfit": "",
            "why_behind": "",
        }
        assert set(seen["replicas"]) == {one.name for one in slaves}
        for name, row in seen["replicas"].items():
            assert row == LEVEL | {"sentence": f"keeps {name} in sync: 0.0 s behind, limit 2.5 s"}
        for slave in slaves:
            seen = status(slave)
            assert seen["replicas"] == {}
            copies = seen["replication"]
            assert 1000 < copies.pop("matched_ms") < 10_000
            assert copies == {
                "role": "slave",
                "epoch": 1,
                "follows": master.name,
                "trouble": "",
                "why_unfit": "",
                "why_behind": "",
                "durable": end,
                "applied": end,
                "committed": end,
            }
        for machine in group.machines.values():
            assert await readiness(machine) == (200, [])


async def test_a_slave_that_is_cut_off_is_not_ready_until_it_is_in_sync_again() -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master, (slave, other) = roles(group)
        part(group, master, slave)
        await group.until_in_sync(master.name, other.name)
        await group.send(3)
        code, [sentence] = await readiness(slave)
        assert code == 503
        assert sentence.startswith("this node does not follow its master: ")
        assert status(slave)["replication"]["trouble"] == sentence
        assert status(slave)["replication"]["matched_ms"] is None
        row = status(master)["replicas"][slave.name]
        assert (row["standing"], row["in_sync"], row["drops"]) == ("away", 0, 1)
        assert row["sentence"] == f"{slave.name} is not connected"
        assert row["lag"] == 3
        assert row["lag_seconds"] > 0
        assert await readiness(master) == await readiness(other) == (200, [])
        group.world.network.heal()
        await group.until_in_sync("a", "b", "c")
        await trio.sleep(1)
        assert await readiness(slave) == (200, [])
        row = status(master)["replicas"][slave.name]
        assert (row["standing"], row["in_sync"], row["drops"]) == ("in sync", 1, 1)


async def test_a_slave_that_follows_is_ready_only_once_its_disk_is_in_sync() -> None:
    group = Group()
    async with group.running("a"):
        master = await group.until_master("a")
        await group.send(3)
        slave = group["b"]
        seen = set()

        def joined() -> bool:
            if slave.server is not None and slave.server.is_open:
                copy = status(slave)
                seen.add((copy["replication"]["role"], *copy["failing"]))
            return "b" in group.record.in_sync

        slave.start()
        await group.until(joined)
        reason = "the disk of this node is not in sync with its group"
        assert ("slave", f"{reason}: the status of the master says why") in seen
        await trio.sleep(1)
        assert await readiness(slave) == (200, [])
        assert status(master)["replicas"]["b"]["standing"] == "in sync"


async def test_a_master_without_enough_replicas_is_not_ready_and_says_who_is_missing() -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        await require(group, 2)
        master, slaves = roles(group)
        for slave in slaves:
            await slave.kill()
        await trio.sleep(3)
        code, failing = await readiness(master)
        assert code == 503
        held = status(master)["replication"]["messages_held"]
        assert held.startswith("2 disks must be in sync, and 1 are heard; nothing was heard of ")
        assert f"messages are held: {held}" in failing
        rows = status(master)["replicas"]
        kept = [name for name, row in rows.items() if row["standing"] == "kept"]
        assert len(kept) == 2, "all or none"
        assert rows[kept[0]]["sentence"].startswith(
            f"keeps {kept[0]} in sync, since min_isr is 2: its connection broke"
        )
        for slave in slaves:
            slave.start()
        await group.until_in_sync("a", "b", "c")
        await trio.sleep(1)
        assert await readiness(master) == (200, [])


async def require(group: Group, count: int) -> None:
    """Have so many disks be required, as an operator does, and the nodes hear of it."""
    groups = group.meta.medium.tables.delay_groups
    group.meta.kill()
    record = set_min_isr(group.record, count)
    groups[GROUP] = msgspec.structs.replace(groups[GROUP], record=record)
    await group.start_meta()
    await group.until(
        lambda: all(
            (known := machine.replica.record) is not None and known.min_isr == count
            for machine in group.machines.values()
        )
    )


async def test_a_master_has_metrics_of_each_other_node() -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master, slaves = roles(group)
        for machine in group.machines.values():
            values = metrics(machine)
            name = f'node_info{{cluster="c1",group="{GROUP}",node="{machine.name}"}}'
            assert values[name] == 1
            assert (values["in_sync"], values["min_isr"], values["replicas"]) == (3, 1, 3)
            assert values['role{role="master"}'] == (machine is master)
            assert {name for name in values if name.startswith("replica_")} == {
                f'replica_{name}{{node="{slave.name}"}}'
                for name in LEVEL.keys() - {"standing", "lag"}
                for slave in slaves
                if machine is master
            }


async def test_a_node_that_was_given_another_disk_is_shown_once_with_the_new_one() -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        await group.send(3)
        master, (slave, other) = roles(group)
        await slave.kill()
        await group.until_in_sync(master.name, other.name)
        slave.wipe()
        assert status(master)["replicas"][slave.name]["standing"] == "away"
        # Until then the meta server takes the old process for alive.
        await trio.sleep(20)
        slave.start()
        await group.until_in_sync("a", "b", "c")
        await trio.sleep(1)
        rows = status(master)["replicas"]
        assert set(rows) == {slave.name, other.name}
        assert (rows[slave.name]["standing"], rows[slave.name]["lag"]) == ("in sync", 0)


async def test_a_node_that_never_followed_in_this_epoch_is_shown_as_away() -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        master, (slave, _) = roles(group)
        await slave.kill()
        await group.until(lambda: slave.name not in group.record.in_sync)
        await master.kill()
        master.start()
        epoch = group.record.epoch
        await group.until(lambda: group.record.epoch > epoch and group.master() is not None)
        found = group.master()
        assert found is not None
        row = status(found)["replicas"][slave.name]
        assert row["sentence"] == f"{slave.name} is not connected"
        assert (row["standing"], row["lag"]) == ("away", None)
        values = metrics(found)
        assert values[f'replica_in_sync{{node="{slave.name}"}}'] == 0
        assert f'replica_lag_seconds{{node="{slave.name}"}}' not in values
