"""Damage on one replica of a running group of three, one after another, in virtual time.

    python -m tests.damage.replica --stories 10 --seed 1

A slave is killed, one damage is laid over a file of its directory, and it is started again. It has
to be in sync again, and whole: as another disk that copied all, or with bytes that were harmless.
Masters change in between. At the end of a story another node is the master alone, and all that was
acknowledged has been delivered, once, as it was sent, and not early. The exit code is 1 if not.
"""

import argparse
import random
import re
import sys
from collections import Counter
from typing import cast

from delay_server import damages, scrub
from delay_server.node import Node
from storage.node.scrub import files_to_look_through
from storage.node.store import Store
from storage.tools.inspect import verify_disk
from tests.damage.directory import Populated
from tests.damage.injections import Injection, Kind, draw
from tests.damage.overlay import OverlayDisk
from tests.failover.group_rig import Group, Machine
from tests.failover.test_snapshot import trim
from tests.kit.virtual_time import run_in_virtual_time
from tests.storage.store_rig import SETTINGS

INJECTIONS = 15
"""Of one story."""
DIRECTORIES = ("schedule_log/", "dispatch_log/", "message_log/", "seals/", "checkpoint/")
"""Of which files are struck."""
_GONE = re.compile(r"records \d+ to \d+ are (missing|in no file)")
REPAIRED_S = 120.0
"""Virtual seconds in which a node is in sync again."""


def drawn(machine: Machine, chance: random.Random) -> Injection:
    """Return a damage of one of a machine's files."""
    files = {
        path: data
        for path, data in machine.node.disk.contents(durable=True).items()
        if path.startswith(DIRECTORIES)
    }
    nothing: dict[int, bytes] = {}
    directory = Populated(
        files=files,
        older={},
        items=nothing,
        dead={},
        settled=frozenset(),
        crossed_off=frozenset(),
        retired=frozenset(),
        quarantined=frozenset(),
        now_ms=0,
        end_ms=0,
        settings=SETTINGS,
    )
    while True:
        found = draw(directory, chance.choice(sorted(files)), chance.choice(list(Kind)), chance)
        if found is not None:
            return found


def needed(store: Store) -> set[str]:
    """Return the files of which every byte counts."""
    return set(files_to_look_through(store))


def has_scrubbed(node: Node) -> bool:
    """Say if a node has looked through all its files."""
    return node.scrub is not None and node.scrub.rounds > 0


def damaged(machine: Machine) -> set[str]:
    """Return which of a machine's files `verify` finds damaged, themselves.

    That a file of the log before another one is gone is met when somebody reads on from there.
    """
    disk = OverlayDisk(machine.node.disk.contents(), {})
    return {
        str(found["file"])
        for found in verify_disk(disk)
        if [one for one in cast("list[str]", found["damage"]) if not _GONE.search(one)]
    }


async def story(seed: int, injections: int, tally: Counter[str]) -> None:
    """Run one; AssertionError if a promise is broken."""
    chance = random.Random(seed)
    group = Group(seed=seed, trims=True)

    async def send() -> None:
        await group.send(chance.randrange(1, 6), in_s=chance.uniform(5, 1500))

    async with group.running():
        await group.until_in_sync(*group.machines)
        await trim(group, await group.until_master(*group.machines), 10, in_s=900.0)
        for number in range(injections):
            what = await _strike_one(group, chance, tally)
            await send()
            if number % 4 == 3:
                others = [one.name for one in group.machines.values() if not one.is_master]
                await group.hand_over(chance.choice(others))
                await group.until_in_sync(*group.machines)
            sys.stdout.write(f"seed {seed}, {number}: {what}\n")
        last = chance.choice([one for one in group.machines.values() if not one.is_master])
        await group.hand_over(last.name)
        for machine in group.machines.values():
            if machine is not last:
                await machine.kill()
        await group.until(lambda: set(group.acknowledged) <= set(group.delivered()), seconds=3000)
        assert sorted(group.delivered()) == sorted(group.acknowledged), "delivered twice"
        assert all(one.at_ms >= one.due_ms for one in group.world.broker.deliveries), "early"
        tally["messages"] += len(group.acknowledged)


async def _strike_one(group: Group, chance: random.Random, tally: Counter[str]) -> str:
    slave = chance.choice([one for one in group.machines.values() if not one.is_master])
    before = slave.storage_uuid()
    await slave.kill()
    injection = drawn(slave, chance)
    for path, data in injection.struck.items():
        slave.node.disk.put(path, data)
    slave.start()

    def is_settled() -> bool:
        server = slave.server
        return (
            server is not None
            and server.is_open
            and set(group.record.in_sync) == set(group.machines)
            and slave.storage_uuid() in group.record.in_sync.values()
            and not server.damages.fault
            and (slave.storage_uuid() != before or has_scrubbed(server.node))
        )

    await group.until(is_settled, seconds=REPAIRED_S)
    left = damaged(slave) & needed(slave.opened.store)
    assert not left, f"{injection.what}: {left} is damaged, and the node is in sync"
    came_to = "copied anew" if slave.storage_uuid() != before else "harmless"
    tally[came_to] += 1
    tally[f"{injection.kind.value}: {came_to}"] += 1
    return f"{injection.what}: {came_to}"


def main() -> int:
    """Run a campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stories", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    scrub.FIRST_S = 0.5  # type: ignore[misc]
    damages.COPIED_AGAIN_S = 1.0  # type: ignore[misc]
    tally: Counter[str] = Counter()
    for seed in range(asked.seed, asked.seed + asked.stories):
        tally["stories"] += 1

        async def one(seed: int = seed) -> None:
            await story(seed, INJECTIONS, tally)

        run_in_virtual_time(one)
        sys.stdout.write(f"{dict(tally)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
