"""Disturbances are drawn of all kinds, and whatever they began they end."""

import dataclasses
from collections import Counter

import pytest
import trio

from delay_protocol.basics.codes import ItemCode
from tests.delay_server.server_rig import Producer, make_item
from tests.simulation.broker import Outage
from tests.simulation.clock import EPOCH_MS
from tests.simulation.determinism import derive, run_deterministic
from tests.simulation.disturbances import Disturbances
from tests.simulation.faults import HARSH
from tests.simulation.scenario import Scenario
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


@pytest.mark.parametrize("outage", [Outage.SLOW, Outage.REJECTING])
def test_a_group_that_is_ill_answers_so_and_is_not_counted_on_until_it_is_well(
    outage: Outage,
) -> None:
    async def main() -> None:
        world = World(1, scenario=Scenario(groups=(1,)))
        witness, (broker,) = world.witness, world.brokers
        broker.failing = 0.0

        async def send(producer: Producer, name: str) -> tuple[float, dict[bytes, tuple[int, str]]]:
            """Return after how long an item was answered, and how if it was refused."""
            began_s = trio.current_time()
            refused = await producer.send(make_item(name, EPOCH_MS))
            return trio.current_time() - began_s, refused

        async with trio.open_nursery() as nursery:
            await nursery.start(broker.run)
            producer = Producer(await world.network.node("caller").connect(*broker.address))
            broker.fail(outage)
            began_s = trio.current_time()
            broker.fail(Outage.DOWN)
            after_s, failures = await send(producer, "m1")
            await trio.sleep(1)
            assert not witness.some_broker_was_calm(["g1"], began_s, trio.current_time())
            assert witness.any_trouble(began_s, trio.current_time())
            assert not witness.is_down_since("g1", trio.current_time())
            assert witness.known_brokers() == ["g1"]
            broker.recover()
            await trio.sleep(1)
            now_s = trio.current_time()
            assert witness.some_broker_was_calm(["g1"], now_s - 0.5, now_s)
            assert not witness.some_broker_was_calm(["g1"], began_s, now_s)
            well_s, of_well = await send(producer, "m2")
            nursery.cancel_scope.cancel()
        assert (well_s < 1, of_well) == (True, {})
        if outage is Outage.SLOW:
            assert 4.9 <= after_s < 5.1
            assert (failures, witness.received) == ({}, {b"m1", b"m2"})
            assert not witness.receipts_of[b"m1"][0].sure
        else:
            assert after_s < 1
            assert list(failures) == [b"m1"]
            assert failures[b"m1"][0] not in {ItemCode.SUBJECT_NOT_ASSIGNED, ItemCode.BLOCK}
            assert witness.received == {b"m2"}
        assert world.result.faults[f"broker {outage.value}"] == 1
        assert not world.result.faults["broker down"]

    run_deterministic(1, main)
