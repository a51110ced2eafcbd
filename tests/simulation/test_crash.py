"""A node can die at any step; what it does while it dies has no effect; then it lives again."""

import pytest
import trio

from tests.simulation.crash import Ending, Life, SimNode
from tests.simulation.determinism import derive, run_deterministic
from tests.simulation.disk import SimDisk
from tests.simulation.executor import ExecutorPlan
from tests.simulation.faults import CALM, Action, Death, Kill, PowerCut, Stage, Trap
from tests.simulation.network import SimNetwork


def make_node(seed: int = 1) -> SimNode:
    return SimNode(
        "node",
        disk=SimDisk(derive(seed, "disk"), plan=CALM),
        network=SimNetwork(derive(seed, "network")),
        chance=derive(seed, "node"),
        executor_plan=ExecutorPlan(stall_chance=0),
    )


async def count(life: Life) -> None:
    """Write the number of each turn, and try to save a last word on the way out."""
    file = life.disk.open(f"life{life.number}", create=True)

    def write(number: int) -> None:
        file.write_at(file.size(), [bytes([number])])
        file.sync()

    turn = 0
    try:
        while True:
            await life.executor.run("log", write, turn)
            turn += 1
    finally:
        with trio.CancelScope(shield=True):
            await life.executor.run("log", write, 255)
        file.close()


async def crash_later(node: SimNode, seconds: float, kind: type[Death]) -> None:
    await trio.sleep(seconds)
    assert node.crash(kind)
    assert not node.crash(kind)


@pytest.mark.parametrize("kind", [Kill, PowerCut])
def test_a_crash_from_outside_lets_no_last_word_through(kind: type[Death]) -> None:
    async def main() -> None:
        node = make_node()
        for life in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(crash_later, node, 0.1, kind)
                ending = await node.live(count)
            assert type(ending.death) is kind
            assert node.lives == life + 1
        for data in node.disk.contents().values():
            assert len(data) > 5
            assert data == bytes(range(len(data)))

    run_deterministic(1, main, limit_s=1000)


def test_a_trap_in_the_disk_takes_the_network_down_at_the_same_instant() -> None:
    async def main() -> None:
        node = make_node()
        network = node._network
        peer = network.node("peer")
        node.revive().arm(Trap(action=Action.KILL, kinds={"sync"}, skip=5, stage=Stage.BEFORE))

        async def program(life: Life) -> None:
            listener = await life.network.listen("h", 1)

            async def greet() -> None:
                stream = await listener.accept()
                try:
                    await trio.sleep_forever()
                finally:
                    with trio.CancelScope(shield=True):
                        await stream.send_all(b"a last word")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(count, life)
                nursery.start_soon(greet)

        async with trio.open_nursery() as nursery:
            endings: list[Ending] = []

            async def live() -> None:
                endings.append(await node.live(program))

            nursery.start_soon(live)
            await trio.sleep(0.001)
            stream = await peer.connect("h", 1)
            assert await stream.receive_some() == b""
        assert isinstance(endings[0].death, Kill)
        assert node.disk.contents() == {"life0": bytes(range(6))}
        assert node.swallowed == []

    run_deterministic(1, main, limit_s=1000)


def test_every_step_is_a_place_to_die() -> None:
    async def steps_of_a_full_life() -> int:
        node = make_node()

        async def ten(life: Life) -> None:
            with trio.move_on_after(0.2):
                await count(life)

        return (await node.live(ten, count_steps=True)).steps

    steps = run_deterministic(1, steps_of_a_full_life)
    assert steps > 50
    lengths = []
    for step in range(steps):

        async def main(step: int) -> int:
            node = make_node()
            node.crash_at_step(step, PowerCut)
            ending = await node.live(count)
            assert isinstance(ending.death, PowerCut)
            # The step itself still runs, against dead handles.
            assert ending.steps >= step
            data = node.disk.contents().get("life0", b"")
            assert data == bytes(range(len(data)))
            return len(data)

        lengths.append(run_deterministic(1, main, step, limit_s=1000))
    assert lengths == sorted(lengths)
    assert lengths[0] == 0
    assert lengths[-1] > 10


def test_a_power_cut_restarts_the_boot_clock_and_a_kill_does_not() -> None:
    async def main() -> list[int]:
        node = make_node()
        times: list[int] = []

        async def look(life: Life) -> None:
            times.append(life.runtime.clock.boot_ms())
            await trio.sleep_forever()

        for kind in (Kill, PowerCut, Kill):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(crash_later, node, 1, kind)
                await node.live(look)
        return times

    assert run_deterministic(1, main) == [0, 1000, 0]
