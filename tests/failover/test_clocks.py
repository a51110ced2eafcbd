"""Promise: a node with a wrong clock is seen, is not chosen, and as a master holds."""

import re

import pytest
import trio

from delay_protocol.nodes.clocks import difference
from meta_server.groups.elections import Refused
from tests.failover.group_rig import GROUP, Group
from tests.failover.test_fitness import fill
from tests.failover.test_seen import metrics, readiness, status
from tests.simulation.clock import SimClock

HOUR_MS = 3_600_000


def fault(group: Group, name: str) -> str:
    return group.meta_server.handlers.group_changes.state_of(GROUP).clock_fault(name)


def chosen(group: Group) -> str | Refused:
    """Return to whom a handover would go that names nobody."""
    state = group.meta_server.handlers.group_changes.state_of(GROUP)
    return state.ask_to_hand_over(group.record, None, now=trio.current_time())


@pytest.mark.parametrize("by_ms", [10_200, HOUR_MS, -HOUR_MS])
async def test_a_slave_whose_clock_is_wrong_is_not_chosen(by_ms: int) -> None:
    group = Group()
    # Its clock was set before its first start, so it has nothing to compare it with.
    group["c"].node.clock.step(by_ms)
    async with group.running("a", "b"):
        await group.until_master("a")
        await group.until_in_sync("a", "b")
        group["c"].start()
        await group.until_in_sync("a", "b", "c")
        await trio.sleep(3)
        said = difference(by_ms)
        assert re.fullmatch(
            f"c: {said}, and 0 of 3 other clocks agree with it: set it right .*", fault(group, "c")
        )
        assert await readiness(group["c"]) == (503, [fault(group, "c")])
        assert (await readiness(group["a"]))[0] == (await readiness(group["b"]))[0] == 200
        assert metrics(group["c"])["clock_ahead_seconds"] == pytest.approx(by_ms / 1000, abs=0.1)
        # The master's time that an ACK echoes may be half a second old.
        assert metrics(group["a"])['replica_clock_ahead_seconds{node="c"}'] == pytest.approx(
            by_ms / 1000, abs=0.6
        )
        assert status(group["a"])["replicas"]["b"]["clock_ahead_seconds"] == 0.0
        assert chosen(group) == "b"
        await group["a"].kill()
        await group.elect()
        await group.until_master("b")
        # Nobody else is there: it waits for one with a right clock.
        await group["b"].kill()
        await group.elect()
        await trio.sleep(10)
        assert group.master() is None
        sentence = group.meta_server.handlers.group_changes.sentence_of(GROUP)
        assert sentence == fault(group, "c")
        group["c"].node.clock.step(-by_ms)
        await group.until_master("c")
        assert (await readiness(group["c"]))[1] == []


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
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
        await group.until(lambda: fault(group, master.name), seconds=10)
        await trio.sleep(1)
        code, failing = await readiness(master)
        assert code == 503
        held = fault(group, master.name)
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


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
async def test_a_master_whose_clock_is_wrong_holds_where_nobody_takes_over(by_ms: int) -> None:
    group = Group(names=("a", "b"))
    async with group.running():
        await group.until_in_sync("a", "b")
        master = group.master()
        assert master is not None
        (slave,) = (one for one in group.machines.values() if one is not master)
        await group.send(in_s=60)
        fill(slave)
        await trio.sleep(8)
        master.node.clock.is_synchronised = False
        master.node.clock.step(by_ms)
        await group.until(lambda: fault(group, master.name), seconds=10)
        await trio.sleep(120)
        assert (group.master(), group.delivered()) == (master, [])
        master.node.clock.step(-by_ms)
        await group.until(group.delivered, seconds=30)
        await group.send()
        await trio.sleep(3)
        assert await readiness(master) == (200, [])


async def test_a_meta_server_whose_clock_is_wrong_stops_no_group() -> None:
    group = Group()
    async with group.running():
        await group.until_in_sync("a", "b", "c")
        clock = group.world.clock
        assert isinstance(clock, SimClock)
        clock.step(HOUR_MS)
        await trio.sleep(10)
        assert [fault(group, name) for name in group.machines] == ["", "", ""]
        assert metrics(group["a"])["clock_ahead_seconds"] == pytest.approx(-3600, abs=0.1)
        await group.send()
        await group["a"].kill()
        await group.elect()
        await group.until_master("b", "c")
