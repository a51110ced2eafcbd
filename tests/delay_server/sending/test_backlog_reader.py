"""Memory stays within its setting whatever is due, and a hot subject makes nobody else wait."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio

from delay_server.holding.wheel import WheelConfig
from delay_server.server import DelayServer
from delay_server.settings.config import DelayServerConfig
from sender.settings.config import SenderConfig
from tests.delay_server.server_rig import MINUTE_MS, World, make_config, make_item, until

BOUND = 4000
REQUEST_ITEMS = 500
"""What arrives at once, and may exceed the bound for a moment."""


@dataclass
class Watch:
    """What was seen of the server's memory."""

    step_s: float = 0.001
    most: int = 0


async def _watch(server: DelayServer, watch: Watch) -> None:
    while True:
        held = len(server.master.wheel) + server.master.sender.unsent().total
        watch.most = max(watch.most, held)
        await trio.sleep(watch.step_s)


@asynccontextmanager
async def watched(server: DelayServer, *, step_s: float = 0.001) -> AsyncIterator[Watch]:
    watch = Watch(step_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, server, watch)
        yield watch
        nursery.cancel_scope.cancel()


def small_config(bound: int = BOUND) -> DelayServerConfig:
    return make_config(
        wheel=WheelConfig(entries_max=bound, lane_entries_min=200),
        sender=SenderConfig(heartbeat_s=3600, batch_items=64, reconnect_max_s=100),
    )


@pytest.mark.parametrize(
    ("count", "lead_ms", "spread_ms"),
    [
        (12_000, 40_000, 1),
        pytest.param(50_000, 40_000, 10_000, marks=pytest.mark.long),
        pytest.param(20_000, 5 * MINUTE_MS, 1, marks=pytest.mark.long),
        pytest.param(50_000, 5 * MINUTE_MS, 10_000, marks=pytest.mark.long),
    ],
)
async def test_a_subject_with_far_more_due_than_fits_waits_on_disk_and_the_others_do_not(
    count: int, lead_ms: int, spread_ms: int
) -> None:
    """Arriving straight into the wheel or loaded in slices, due in one ms or not."""
    world = World()
    world.broker.answer_after_s = 0.02  # 64 messages at a time, one request after another.
    others = 300
    due_ms = world.now_ms + lead_ms
    hot = [make_item(f"h{n}", due_ms + n * spread_ms // count, subject="hot") for n in range(count)]
    cold = [
        make_item(f"c{n}", due_ms + n * 10_000 // others, subject=f"cold{n % 30}")
        for n in range(others)
    ]
    async with world.serving(small_config()) as server, watched(server) as watch:
        await world.keep(*hot[: count // 2])
        await world.keep(*cold)
        await world.keep(*hot[count // 2 :])
        assert world.now_ms < due_ms
        await until(lambda: len(world.broker.deliveries) == count + others, seconds=400)
        assert watch.most <= BOUND + REQUEST_ITEMS
        await until(lambda: not server.node.store.schedule.pending)
        await until(lambda: not server.master.lanes.parked.waiting, seconds=400)
        assert server.master.lanes.parked.opened >= 1
        assert not len(server.master.handout.lanes)
    assert set(Counter(world.broker.ids).values()) == {1}
    late = {d.message_id: d.at_ms - d.due_ms for d in world.broker.deliveries}
    assert max(late[f"c{n}"] for n in range(others)) < 1000
    # What is due at once takes its time.
    assert max(late[f"h{n}"] for n in range(count)) > 1500


async def test_a_flood_of_messages_due_at_once_to_many_subjects_stays_within_the_bound() -> None:
    """No subject is hot, the broker is slow: all wait, on disk too, and each comes once."""
    world = World()
    world.broker.answer_after_s = 0.02
    count = 20_000
    due_ms = world.now_ms + 10_000
    items = [make_item(f"m{n}", due_ms + n // 10, subject=f"s{n % 400}") for n in range(count)]
    async with world.serving(small_config()) as server, watched(server) as watch:
        await world.keep(*items)
        await until(lambda: len(world.broker.deliveries) == count, seconds=400)
        assert watch.most <= BOUND + REQUEST_ITEMS
        assert server.master.loader.evicted
    assert set(Counter(world.broker.ids).values()) == {1}


@pytest.mark.long
async def test_a_broker_that_is_away_for_a_week_finds_everything_when_it_is_back() -> None:
    world = World()
    bound, sent = 60, 0
    async with (
        world.serving(small_config(bound), has_broker=False) as server,
        watched(server, step_s=60) as watch,
    ):
        for hour in range(7 * 24):
            items = [
                make_item(f"m{sent + n}", world.now_ms + 300_000 * n, subject=f"s{hour % 3}")
                for n in range(10)
            ]
            await world.keep(*items)
            sent += len(items)
            await trio.sleep(3600)
        assert server.master.late_now == sent
        assert server.master.lanes.parked.waiting
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: world.broker.run(task_status=task_status))
            await until(lambda: len(world.broker.deliveries) == sent, seconds=600)
            await until(lambda: not server.node.store.schedule.pending)
            nursery.cancel_scope.cancel()
        assert watch.most <= bound + 10
    assert set(Counter(world.broker.ids).values()) == {1}


async def test_what_is_being_read_for_a_lane_has_its_place_in_the_sender() -> None:
    world = World()
    async with world.serving(has_broker=False) as server:
        master = server.master
        producer = await world.connect()
        free = 3
        master.backlog_reader.reserved = master.sender.room - free
        await producer.send(*(make_item(f"m{n}", world.now_ms + 500) for n in range(10)))
        await trio.sleep(5)
        assert (master.sender.unsent().total, len(master.wheel)) == (free, 10 - free)
        master.backlog_reader.reserved = 0
        master.dispatch.room_has_grown()
        await until(lambda: master.sender.unsent().total == 10)
