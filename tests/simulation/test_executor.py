"""Calls of a lane happen one after another in their order, each at once, its result later."""

import pytest
import trio

from tests.simulation.determinism import derive, run_deterministic
from tests.simulation.executor import ExecutorPlan, SimExecutor
from tests.simulation.faults import Kill

SLOW = ExecutorPlan(delay_s=(1.0, 1.0), stall_chance=0, late_chance=0)


def test_calls_of_one_lane_run_in_order_and_lanes_do_not_wait_for_each_other() -> None:
    async def main(seed: int) -> tuple[list[tuple[str, int]], float]:
        executor = SimExecutor(derive(seed, "executor"), plan=SLOW)
        called: list[tuple[str, int]] = []

        def call(lane: str, number: int) -> int:
            called.append((lane, number))
            return number

        async def ask(lane: str, number: int) -> None:
            assert await executor.run(lane, call, lane, number) == number

        async with trio.open_nursery() as nursery:
            for number in range(10):
                for lane in ("a", "b"):
                    nursery.start_soon(ask, lane, number)
                await trio.sleep(0.01)
        return called, trio.current_time()

    for seed in range(5):
        called, seconds = run_deterministic(seed, main, seed)
        for lane in ("a", "b"):
            assert [number for name, number in called if name == lane] == list(range(10))
        assert 10 <= seconds < 10.1


def test_a_call_takes_effect_before_its_result_comes() -> None:
    async def main(late_chance: float) -> tuple[float, float]:
        plan = ExecutorPlan(delay_s=(1.0, 1.0), stall_chance=0, late_chance=late_chance)
        executor = SimExecutor(derive(3, "executor"), plan=plan)
        effect_s = await executor.run("log", trio.current_time)
        return effect_s, trio.current_time()

    assert run_deterministic(1, main, 0.0) == (0.0, 1.0)
    effect_s, result_s = run_deterministic(1, main, 1.0)
    assert 0 < effect_s < 1
    assert result_s == pytest.approx(1.0)


def test_errors_come_after_the_delay_and_free_the_lane() -> None:
    async def main() -> None:
        executor = SimExecutor(derive(1, "executor"), plan=SLOW)
        with pytest.raises(ValueError, match="invalid literal"):
            await executor.run("log", int, "x")
        assert trio.current_time() == 1
        assert await executor.run("log", int, "7") == 7

    run_deterministic(1, main)


def test_cancelled_before_its_turn_it_is_not_called_and_after_that_it_is_waited_for() -> None:
    async def main() -> list[str]:
        executor = SimExecutor(derive(1, "executor"), plan=SLOW)
        called: list[str] = []

        async def first() -> None:
            with trio.move_on_after(0.5) as scope:
                await executor.run("log", called.append, "first")
                assert trio.current_time() == 1
            assert not scope.cancelled_caught

        async def second() -> None:
            with trio.move_on_after(0.5):
                await executor.run("log", called.append, "second")
            assert trio.current_time() == 0.5

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await trio.lowlevel.checkpoint()
            nursery.start_soon(second)
        with trio.CancelScope() as scope:
            scope.cancel()
            await executor.run("log", called.append, "third")
        return called

    assert run_deterministic(1, main) == ["first"]


def test_a_death_ends_waits_at_once_and_later_calls_never_happen() -> None:
    async def main() -> None:
        plan = ExecutorPlan(delay_s=(100, 100), stall_chance=0, late_chance=1)
        executor = SimExecutor(derive(1, "executor"), plan=plan)
        called: list[int] = []
        deaths: list[Kill] = []

        async def ask(number: int) -> None:
            try:
                await executor.run("log", called.append, number)
            except Kill as death:
                deaths.append(death)

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(ask, number)
            await trio.sleep(0.001)
            executor.cut(Kill("gone"))
        assert trio.current_time() == 0.001
        assert called == []
        assert len(deaths) == 3

    run_deterministic(1, main)
