"""The order of tasks and all chance come from the seed: a canary for trio's private switch."""

import pytest
import trio

from tests.simulation.determinism import SimulationStuckError, derive, run_deterministic


def test_the_order_of_tasks_is_the_seeds() -> None:
    async def order() -> tuple[int, ...]:
        finished: list[int] = []

        async def task(number: int) -> None:
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            finished.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(task, number)
        return tuple(finished)

    orders = [run_deterministic(seed, order) for seed in range(10)]
    assert [run_deterministic(seed, order) for seed in range(10)] == orders
    assert len(set(orders)) == 10


def test_a_run_in_which_everybody_waits_is_stopped() -> None:
    with pytest.raises(SimulationStuckError, match="seed 7"):
        run_deterministic(7, trio.sleep_forever)
    with pytest.raises(SimulationStuckError, match="10 virtual seconds"):
        run_deterministic(7, trio.sleep, 11, limit_s=10)


def test_each_concern_has_chance_of_its_own() -> None:
    draws = {derive(seed, name).random() for seed in (1, 2) for name in ("disk", "network")}
    assert len(draws) == 4
    assert derive(1, "disk").random() == derive(1, "disk").random()
