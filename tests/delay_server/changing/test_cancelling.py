"""Changes that race with due times, loads, pauses, evictions and restarts.

What was called
cancelled never comes afterwards, and all else comes, at its time."""

import random
from dataclasses import dataclass, field

import pytest
import trio

from delay_protocol.basics.codes import CommandCode, ItemCode, ResponseCode
from delay_protocol.messages.changes import (
    Change,
    ChangeRequest,
    ChangeState,
    decode_change_reply,
    encode_change,
)
from delay_server.holding.wheel import WheelConfig
from delay_server.server import DelayServer
from tests.delay_server.server_rig import (
    Producer,
    World,
    all_sealed,
    have_rules,
    make_config,
    make_item,
    until,
)
from tests.seeds import is_long

SEEDS = range(60 if is_long() else 4)
SPAN_MS = 150_000
MESSAGES = 300


@dataclass(slots=True)
class Oracle:
    """What may still happen to each id."""

    due_ms: dict[str, int] = field(default_factory=dict)
    """When each is due now."""
    cancelled: dict[str, int] = field(default_factory=dict)
    """When that was answered."""
    states: set[ChangeState] = field(default_factory=set)

    def check(self, world: World) -> None:
        """Fail if something came that was cancelled, or early, or did not come."""
        at: dict[str, list[int]] = {}
        for one in world.broker.deliveries:
            at.setdefault(one.message_id, []).append(one.at_ms)
            assert one.at_ms >= one.due_ms
        assert not set(at) & set(self.cancelled)
        missing = self.due_ms.keys() - set(at) - set(self.cancelled)
        assert not missing


async def _change_at_random(
    world: World, producer: Producer, oracle: Oracle, chance: random.Random
) -> None:
    ids = chance.sample(sorted(oracle.due_ms), chance.choice([1, 3, 40]))
    # Most of them race with their due times.
    ids.sort(key=lambda one: abs(oracle.due_ms[one] - world.now_ms))
    changes = []
    for one in ids[: chance.choice([1, 20])]:
        to_ms = world.now_ms + chance.randrange(SPAN_MS) if chance.random() < 0.3 else None
        due_ms = None if chance.random() < 0.1 else oracle.due_ms[one]
        changes.append(Change("a.b", one, due_ms, to_ms))
    body = encode_change(ChangeRequest(items=tuple(changes)))
    answer = await producer.answer(await producer.post(body, code=CommandCode.CHANGE))
    if answer.code != ResponseCode.SUCCESS:
        return
    taken = {one.message_id for one in world.broker.deliveries}
    for result in decode_change_reply(answer.body).results:
        name = changes[result.item].message_id
        oracle.states.add(result.state)
        if result.state is ChangeState.CANCELLED:
            assert name not in taken, f"{name} was delivered before"
            oracle.cancelled[name] = world.now_ms
        elif result.state is ChangeState.MOVED:
            assert result.due_ms is not None
            oracle.due_ms[name] = result.due_ms
        elif result.state is ChangeState.DELIVERED:
            assert name in taken
        elif result.state is ChangeState.CHANGED_BEFORE:
            # Without a time the row may be found that it had before it was moved.
            was_timed = changes[result.item].due_ms is not None
            assert name in oracle.cancelled or not was_timed


async def _disturb(world: World, server: DelayServer, chance: random.Random) -> None:
    world.broker.fails = lambda _: int(ItemCode.BROKER_BUSY) if chance.random() < 0.1 else 0
    while True:
        await trio.sleep(chance.uniform(1, 15))
        world.broker.answer_after_s = chance.choice([0, 0, 0.02, 0.3])
        world.broker.code = chance.choice([0, 0, 0, int(ResponseCode.BROKER_ERROR)])
        if chance.random() < 0.3:
            await have_rules(server, "a.b")
            await trio.sleep(chance.uniform(0, 10))
            await have_rules(server)
        async with server.master.loader.filling:
            if chance.random() < 0.3:
                await server.master.loader._throw_out(chance.randrange(20))


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_is_cancelled_never_comes_and_all_else_comes(seed: int) -> None:
    chance = random.Random(seed)
    world, oracle = World(seed=seed), Oracle()
    config = make_config(wheel=WheelConfig(entries_max=chance.choice([1000, 100_000])))
    for life in range(2):
        async with world.serving(config) as server:
            begin_ms = world.now_ms
            fresh = {f"m{life}-{n}": begin_ms + chance.randrange(SPAN_MS) for n in range(MESSAGES)}
            await world.keep(*(make_item(one, due_ms) for one, due_ms in fresh.items()))
            oracle.due_ms |= fresh
            producer = await world.connect()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_disturb, world, server, chance)
                while world.now_ms < begin_ms + SPAN_MS * 0.8:
                    await _change_at_random(world, producer, oracle, chance)
                    await trio.sleep(chance.uniform(0, 2))
                nursery.cancel_scope.cancel()
            world.broker.answer_after_s = world.broker.code = 0
            world.broker.fails = lambda _: 0
            await have_rules(server)
            if life:
                await all_sealed_within(server)
    oracle.check(world)
    assert {ChangeState.CANCELLED, ChangeState.MOVED, ChangeState.DELIVERED} <= oracle.states


async def all_sealed_within(server: DelayServer) -> None:
    """Wait until nothing is pending, nor held."""
    await until(lambda: not server.node.store.schedule.pending, seconds=600)
    await all_sealed(server)
    await until(lambda: not server.master.sender.unsent().total)
    await until(lambda: not server.master.cancelling.kept)
