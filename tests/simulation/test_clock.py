"""Virtual time jumps from deadline to deadline, and the wall can be set while it does."""

import trio
from trio.testing import wait_all_tasks_blocked

from tests.simulation.clock import EPOCH_MS, EventClock, SimClock
from tests.simulation.determinism import run_deterministic


def test_time_stands_still_while_tasks_run_and_while_others_wait_for_all_to_block() -> None:
    async def main() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 10)
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked()
            assert trio.current_time() == 5.0
        return trio.current_time()

    assert run_deterministic(1, main, clock=EventClock(5.0)) == 15.0


def test_the_wall_never_reads_a_time_before_the_one_slept_for() -> None:
    async def main() -> None:
        clock = SimClock(epoch_ms=EPOCH_MS)
        for step in range(1, 20_000):
            due_ms = EPOCH_MS + step * 37
            await trio.sleep((due_ms - clock.now_ms()) / 1000)
            assert clock.now_ms() == due_ms

    run_deterministic(1, main)


def test_the_wall_steps_and_drifts_while_the_boot_clock_does_not() -> None:
    async def main() -> None:
        clock = SimClock(epoch_ms=1_000_000)
        await trio.sleep(10)
        assert (clock.now_ms(), clock.boot_ms()) == (1_010_000, 10_000)
        clock.step(-60_000)
        assert (clock.now_ms(), clock.boot_ms()) == (950_000, 10_000)
        clock.set_drift(0.01)
        await trio.sleep(100)
        assert (clock.now_ms(), clock.boot_ms()) == (1_051_000, 110_000)
        clock.set_drift(0)
        await trio.sleep(1)
        assert clock.now_ms() == 1_052_000
        assert clock.boot_id() == "boot 1"
        clock.reboot()
        assert clock.boot_id() == "boot 2"
        assert (clock.now_ms(), clock.boot_ms()) == (1_052_000, 0)
        assert clock.synchronised()
        clock.is_synchronised = False
        assert not clock.synchronised()

    run_deterministic(1, main)
