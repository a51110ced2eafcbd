"""Disturbances are drawn of all kinds, and whatever they began they end."""

import dataclasses
from collections import Counter

import pytest
import trio

from tests.simulation.determinism import derive, run_deterministic
from tests.simulation.disturbances import Disturbances
from tests.simulation.faults import HARSH
from tests.simulation.world import World, planned_ends

KINDS = (
    "broker_outage",
    "set_clock",
    "leap",
    "drift",
    "fill_disk",
    "half_open",
    "reset",
    "rot",
    "second_start",
)


def disturbances(world: World, kind: str, seed: int = 1) -> Disturbances:
    return Disturbances(
        world,
        derive(seed, "disturbances"),
        length_s=3600,
        faults=world.result.faults,
        weights={kind: 1},
        rounds=3,
    )


def test_every_kind_is_drawn_many_times_in_200_seeds() -> None:
    world = World(1)
    drawn: Counter[str] = Counter()
    for seed in range(200):
        made = Disturbances(
            world, derive(seed, "disturbances"), length_s=1, faults=world.result.faults
        )
        drawn.update(getattr(one, "__name__", "").removeprefix("_") for one in made._rounds)
    assert set(drawn) == set(KINDS)
    assert min(drawn.values()) >= 15


def test_every_kind_of_disk_is_drawn_many_times_in_500_seeds() -> None:
    drawn: Counter[str] = Counter()
    for seed in range(500):
        for end in planned_ends(seed, 10_000):
            for field in dataclasses.fields(end.plan):
                if getattr(end.plan, field.name) != getattr(HARSH, field.name):
                    drawn[field.name] += 1
    for name in ("eio_read", "eio_write", "eio_sync", "full", "full_sync", "short_write"):
        assert drawn[name] >= 20, drawn
    assert drawn["slow_sync"] >= 20
    assert not drawn["sync_lies"] + drawn["misdirected"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_begun_is_ended(kind: str) -> None:
    async def main() -> None:
        world = World(1)
        disk = world.node.disk
        capacity = disk.capacity_bytes
        made = disturbances(world, kind)
        async with trio.open_nursery() as nursery:
            for broker in world.brokers:
                await nursery.start(broker.run)
            nursery.start_soon(made.run)
            for _ in range(200):
                await trio.sleep(10)
            made.stop()
            await trio.sleep(1)
            assert disk.capacity_bytes == capacity
            assert world.clock.is_synchronised
            assert world.witness.unconfirmed_ms == 0
            assert not any(world.network.is_cut_off("server", name) for name in ("g1", "p1"))
            for broker in world.brokers:
                stream = await world.network.node(f"caller of {broker.name}").connect(
                    *broker.address
                )
                await stream.aclose()
            nursery.cancel_scope.cancel()

    run_deterministic(1, main)
