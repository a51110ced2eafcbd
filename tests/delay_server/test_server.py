"""The whole server in virtual time: what it takes it keeps, and delivers when it is due, once."""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio
import trio.testing

from delay_protocol.basics.codes import ItemCode, ResponseCode
from delay_protocol.messages.items import FLAG_DELAY, FLAG_TAGS
from delay_protocol.wire.hello import decode_hello
from delay_server.accepting.duplicates import DuplicatesConfig
from delay_server.admin.status import status_of
from delay_server.holding.wheel import WheelConfig
from delay_server.server import DelayServer, serve
from delay_server.settings.config import StorageConfig
from delay_transport.seams.errors import ListenError
from storage.batch.batches import LogBatch
from storage.batch.entries import ENTRY
from storage.disk.errors import DataDirectoryError, FatalDiskError
from tests.delay_server.server_rig import (
    HOST,
    MINUTE_MS,
    PORT,
    ROOMY,
    Producer,
    World,
    all_sealed,
    make_config,
    make_item,
    until,
)
from tests.simulation.executor import ExecutorPlan
from tests.simulation.faults import Action, Death, Kill, PowerCut, Trap

HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


async def test_items_arrive_when_due_byte_for_byte_and_once() -> None:
    """The traps of the wire: tags, retry subjects, mixed subjects, many items, odd flags."""
    world = World()
    now_ms = world.now_ms
    items = [
        make_item("plain", now_ms + 3000),
        make_item("tags", now_ms + 3000, tags=("t1", "t2"), flag=FLAG_DELAY | FLAG_TAGS),
        make_item("retry", now_ms + 4000, subject="%RETRY%" + "long.subject" * 10 + "%group"),
        make_item("low", now_ms + 5000, flag=FLAG_DELAY | 1),
        make_item("no delay bit", now_ms + 900_000, flag=0),
        make_item("past", now_ms - 400 * DAY_MS),
        make_item("big", now_ms + 6000, attributes={"k": "ä" * 16_000, "é": "v"}),
        *(make_item(f"n{n}", now_ms + 7000 + n, subject=f"s{n % 7}") for n in range(60)),
    ]
    async with world.serving() as server:
        await world.keep(*items)
        await until(lambda: len(world.broker.deliveries) == len(items))
        await trio.sleep(10)
        by_id = {delivery.message_id: delivery for delivery in world.broker.deliveries}
        assert sorted(delivery.data for delivery in world.broker.deliveries) == sorted(items)
        for name in ("no delay bit", "past"):
            assert by_id[name].at_ms < now_ms + 100
        for delivery in world.broker.deliveries:
            if delivery.message_id not in {"no delay bit", "past"}:
                assert 0 <= delivery.at_ms - delivery.due_ms <= 5
        assert {request.frame.version for request in world.broker.requests} == {7}
        assert server.node.store.schedule.pending == 0


async def test_requests_of_a_server_that_starts_are_held_and_then_kept() -> None:
    world = World(plan=ExecutorPlan(delay_s=(0.9, 0.9), stall_chance=0))
    server = world.server(make_config())
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, server, stop)
        await until(lambda: server.listener)
        producer = await world.connect()
        opaques = [
            await producer.post(make_item(f"m{n}", world.now_ms + HOUR_MS)) for n in range(5)
        ]
        await trio.sleep(1)
        assert server.ingest.held_requests == 5
        assert not server.ready.is_set()
        for opaque in opaques:
            assert (await producer.answer(opaque)).code == 0
        assert server.ready.is_set()
        assert server.ingest.counts.expired == 0
        world.executor.plan = ExecutorPlan(delay_s=(0.001, 0.001), stall_chance=0)
        stop.set()


async def test_what_is_sent_again_is_confirmed_and_delivered_once_over_restarts() -> None:
    world = World()
    again = {b"m1": (ItemCode.MESSAGE_DUPLICATE, str(world.now_ms + 20_000))}
    item, other = (make_item(f"m{n}", world.now_ms + 20_000) for n in (1, 2))
    async with world.serving() as server:
        producer = await world.connect()
        assert await producer.send(item) == {}
        assert await producer.send(item, other) == again
        assert status_of(server.observe())["duplicates"] == 1
    async with world.serving() as server:
        producer = await world.connect()
        assert await producer.send(item) == again
        assert await producer.send(make_item("m1", world.now_ms + 21_000)) == {}
        await all_sealed(server)
        # What was delivered is known as well.
        assert await producer.send(item) == again
        assert server.node.store.schedule.pending == 0
    assert Counter(world.broker.ids) == {"m1": 2, "m2": 1}


async def test_a_window_of_nothing_keeps_every_copy() -> None:
    world = World()
    item = make_item("m1", world.now_ms + 60_000)
    async with world.serving(make_config(duplicates=DuplicatesConfig(window_ms=0))) as server:
        await world.keep(item, item)
        await trio.sleep(1)
        assert server.node.store.schedule.pending == 2


async def test_a_stop_loses_nothing_and_nothing_is_sent_again() -> None:
    world = World()
    world.broker.answer_after_s = 0.5
    async with world.serving():
        producer = await world.connect()
        now_ms = world.now_ms
        await producer.send(*(make_item(f"m{n}", now_ms + 100 * n) for n in range(100)))
        await trio.sleep(5.02)
    assert 40 < len(world.broker.deliveries) < 60
    first = len(world.broker.deliveries)
    async with world.serving():
        await trio.sleep(10)
    assert Counter(world.broker.ids) == Counter(f"m{n}" for n in range(100))
    assert len(world.broker.deliveries) > first


@pytest.mark.parametrize("has_broker", [True, False])
async def test_a_stop_takes_less_than_five_seconds_whatever_the_broker_does(
    has_broker: bool,
) -> None:
    world = World()
    world.broker.answer_after_s = 3600
    began = 0.0
    async with world.serving(has_broker=has_broker) as server:
        producer = await world.connect()
        await producer.send(*(make_item(f"m{n}", world.now_ms) for n in range(100)))
        await trio.sleep(2)
        opaque = await producer.post(make_item("last", world.now_ms + HOUR_MS))
        listener = server.listener
        assert listener is not None
        await until(lambda: listener.held_bytes, step_s=0.0001)
        assert server.ingest.counts.accepted == 100
        began = trio.current_time()
    assert trio.current_time() - began < 5
    assert (await producer.answer(opaque)).code == 0
    world.broker.answer_after_s = 0
    async with world.serving() as server:
        await until(lambda: len(world.broker.taken) == 100, seconds=20)
        await trio.sleep(1)
        assert server.node.store.schedule.pending == 1


async def test_a_kill_loses_nothing_that_was_acknowledged() -> None:
    world = World()
    server = world.server(make_config())
    with trio.CancelScope() as life:
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: world.broker.run(task_status=task_status))
            await nursery.start(
                lambda task_status: serve(server, trio.Event(), task_status=task_status)
            )
            producer = await world.connect()
            now_ms = world.now_ms
            for number in range(20):
                due = [now_ms + number * 1000, now_ms + number * HOUR_MS // 4 + 1]
                await producer.send(*(make_item(f"{number}/{d}", d) for d in due))
            await trio.sleep(10.5)
            world.disk.kill()
            life.cancel()
    delivered = list(world.broker.ids)
    assert 10 < len(delivered) < 40
    async with world.serving() as again:
        assert again.is_open
        await trio.sleep(5 * 3600)
    counts = Counter(world.broker.ids)
    assert len(counts) == 40
    # What was delivered in the last 20 ms may come again.
    assert sum(counts.values()) <= 41


async def test_a_broker_that_is_away_loses_nothing_and_what_waited_is_late() -> None:
    world = World()
    async with world.serving(has_broker=False) as server:
        producer = await world.connect()
        now_ms = world.now_ms
        await producer.send(*(make_item(f"m{n}", now_ms + 1000 * n) for n in range(200)))
        await trio.sleep(150)
        assert world.broker.ids == []
        assert server.master.late_now == 151
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: world.broker.run(task_status=task_status))
            await until(lambda: len(world.broker.deliveries) >= 151, seconds=30)
            await trio.sleep(100)
            assert Counter(world.broker.ids) == Counter(f"m{n}" for n in range(200))
            nursery.cancel_scope.cancel()


async def test_what_a_broker_left_many_hours_ago_is_delivered_after_a_restart() -> None:
    world = World()
    async with world.serving(has_broker=False):
        producer = await world.connect()
        now_ms = world.now_ms
        await producer.send(*(make_item(f"m{n}", now_ms + 600_000 * n) for n in range(24)))
        # Of four hours, in none of which anything was delivered.
        await trio.sleep(14_400)
    await trio.sleep(600)
    async with world.serving():
        await until(lambda: len(world.broker.deliveries) >= 24, seconds=60)
        assert Counter(world.broker.ids) == Counter(f"m{n}" for n in range(24))


async def test_below_the_floor_of_free_disk_messages_are_refused_and_delivered_on() -> None:
    world = World()
    storage = StorageConfig(disk_free_bytes_min=1 << 20, disk_free_share_min=0.9)
    async with world.serving(make_config(storage=storage)) as server:
        producer = await world.connect()
        now_ms = world.now_ms
        await producer.send(*(make_item(f"m{n}", now_ms + 1000 * n) for n in range(60)))
        await trio.sleep(5)
        world.disk.capacity_bytes = world.disk.medium.used + (1 << 20) + 10_000
        # The very next commit sees it.
        refused = await producer.send(make_item("a", now_ms), make_item("b", now_ms))
        assert {code for code, _ in refused.values()} == {ItemCode.BROKER_READ_ONLY}
        assert set(refused) == {b"a", b"b"}
        await trio.sleep(70)
        assert len(world.broker.deliveries) == 60
        # What was delivered is crossed off and sealed, floor records included.
        await trio.sleep(70)
        assert server.node.store.sealed == 1
        world.disk.capacity_bytes = 1 << 40
        await trio.sleep(1.5)
        assert await producer.send(make_item("a", now_ms)) == {}
        await until(lambda: "a" in world.broker.ids)


async def test_a_server_that_starts_on_a_full_disk_refuses_from_the_first_request_on() -> None:
    world = World()
    world.disk.medium.used = world.disk.capacity_bytes - (1 << 20)
    storage = StorageConfig(disk_free_bytes_min=1 << 21, disk_free_share_min=0.9999)
    async with world.serving(make_config(storage=storage)):
        producer = await world.connect()
        refused = await producer.send(make_item("a", world.now_ms))
        assert refused[b"a"][0] == ItemCode.BROKER_READ_ONLY


async def test_a_file_system_without_room_for_four_files_of_the_log_is_refused() -> None:
    world = World()
    world.disk.capacity_bytes = (1 << 30) - 1
    with pytest.RaisesGroup(
        pytest.RaisesExc(DataDirectoryError, match="1073741824 are needed"),
        flatten_subgroups=True,
        allow_unwrapped=True,
    ):
        async with world.serving():
            pytest.fail("it serves")


MIB = 1 << 20
_SHORT = StorageConfig(
    disk_free_bytes_min=MIB,
    disk_free_share_min=0.9,
    message_log_file_bytes_max=MIB,
    retired_grace_ms=12 * HOUR_MS,
)
"""A floor of one MiB on a disk of two."""


def log_of(server: DelayServer) -> list[LogBatch]:
    """Return the batches of a server's message_log."""
    return [one for one in server.node.store.message_log.read(1) if isinstance(one, LogBatch)]


def _newest(world: World) -> list[str]:
    """Return the newest file of each log that is numbered."""
    paths = sorted(path for path in world.disk.contents() if path.endswith(".log"))
    return list({path.rpartition("/")[0]: path for path in paths}.values())


async def _fill(world: World, producer: Producer, *, minutes: int) -> None:
    """Have messages delivered whose segments and log files nothing needs but for their age."""
    for minute in range(minutes):
        due_ms = world.now_ms + 1000
        items = [
            make_item(f"old {minute} {n}", due_ms, attributes={"k": "v" * 30_000}) for n in range(8)
        ]
        assert await producer.send(*items) == {}
        await trio.sleep(61)


async def test_a_disk_at_its_floor_frees_itself_of_what_is_only_old_and_takes_messages_again() -> (
    None
):
    world = World()
    async with world.serving(make_config(storage=_SHORT)) as server:
        producer = await world.connect()
        await _fill(world, producer, minutes=8)
        assert len(server.node.store.message_log.files()) > 1
        sealed = len(server.node.store.seals_log.live)
        assert sealed >= 6
        await trio.sleep(11 * 60)  # Beyond the window in which duplicates are recognised.
        assert len(server.node.store.seals_log.live) >= sealed
        assert server.node.store.message_log.first_sequence == 1
        producer = await world.connect()
        now_ms = world.now_ms
        ahead = [make_item(f"m{n}", now_ms + 100 * n) for n in range(20)]
        assert await producer.send(*ahead) == {}
        assert await producer.send(make_item("last", now_ms + 500)) == {}
        await trio.sleep(0.1)
        # Somebody else takes what is free: the next commit sees it.
        world.disk.capacity_bytes = world.disk.medium.used + MIB
        refused = await producer.send(make_item("a", now_ms))
        assert refused[b"a"][0] == ItemCode.BROKER_READ_ONLY
        assert server.node.upkeep.disk_is_full
        await until(lambda: not server.node.upkeep.disk_is_full, seconds=10)
        assert await producer.send(make_item("a", now_ms)) == {}
        # Dispatch and its facts never stopped.
        await until(lambda: {"a", "m19", "last"} <= set(world.broker.ids), seconds=5)
        await until(lambda: not server.master.fact_recorder.unapplied_count(beyond=0), seconds=5)
        first = server.node.store.message_log.first_sequence
        assert first > 1 or len(server.node.store.seals_log.live) < sealed
    before = Counter(world.broker.ids)
    async with world.serving(make_config(storage=_SHORT)) as server:
        assert server.node.store.message_log.first_sequence == first
        assert not server.damages.first
        await trio.sleep(60)
    assert Counter(world.broker.ids) == before
    assert set(before.values()) == {1}


async def test_a_disk_that_nothing_of_ours_can_free_waits_for_others_without_being_busy() -> None:
    world = World()
    async with world.serving(make_config(storage=_SHORT)) as server:
        producer = await world.connect()
        now_ms = world.now_ms
        assert await producer.send(*(make_item(f"m{n}", now_ms + 900 * n) for n in range(40))) == {}
        world.disk.capacity_bytes = world.disk.medium.used + MIB
        refused = await producer.send(make_item("one more", now_ms))
        assert refused[b"one more"][0] == ItemCode.BROKER_READ_ONLY
        assert server.node.upkeep.disk_is_full
        await until(lambda: len(world.broker.deliveries) == 40, seconds=60)
        await trio.sleep(30)
        assert server.node.upkeep.disk_is_full
        checkpoints, writes = server.node.checkpoints.written, world.disk.counts["write"]
        segments = server.node.store.seals_log.live["number"].tolist()
        await trio.sleep(20)
        assert server.node.checkpoints.written - checkpoints <= 1
        assert world.disk.counts["write"] - writes < 20
        assert server.node.store.seals_log.live["number"].tolist() == segments
        world.disk.capacity_bytes = 1 << 40
        await trio.sleep(1.5)
        assert await producer.send(make_item("a", now_ms)) == {}
        assert server.node.store.message_log.first_sequence == 1


async def test_a_clock_that_leaps_ahead_deletes_nothing_before_it_is_believed() -> None:
    world = World()
    world.clock.is_synchronised = False
    storage = dataclasses.replace(ROOMY, message_log_file_bytes_max=MIB)
    async with world.serving(make_config(storage=storage)) as server:
        producer = await world.connect()
        await _fill(world, producer, minutes=8)
        await trio.sleep(120)
        before = {path for path in world.disk.contents() if path.endswith((".minute", ".log"))}
        world.clock.step(400 * DAY_MS)
        await trio.sleep(60)
        assert server.duty().clock_held
        producer = await world.connect()
        assert await producer.send(make_item("meanwhile", world.now_ms)) == {}
        checkpoints = server.node.checkpoints.written
        await until(lambda: server.node.checkpoints.written > checkpoints, seconds=60)
        await trio.sleep(60)
        checkpoints = server.node.checkpoints.written
        await trio.sleep(3600)
        assert server.node.checkpoints.written == checkpoints, (
            "nothing is old enough to be looked at"
        )
        assert not server.node.store.checkpoint.retired
        assert before <= world.disk.contents().keys()
        world.clock.step(-400 * DAY_MS)
        await until(lambda: not server.duty().clock_held, seconds=600)
        assert before <= world.disk.contents().keys()
        world.clock.step(400 * DAY_MS)
        world.clock.is_synchronised = True
        for _ in range(2):
            # Nobody looks at the clock for the sake of old files alone.
            producer = await world.connect()
            assert await producer.send(make_item("now", world.now_ms)) == {}
            await trio.sleep(3700)
        assert not before & world.disk.contents().keys() - set(_newest(world))


@pytest.mark.parametrize(
    "path", ["message_log/0", "message_log/durable_end", "schedule_log/", "dispatch_log/"]
)
async def test_a_failed_fsync_ends_the_server_with_a_typed_error(path: str) -> None:
    world = World()
    answered = False
    with pytest.RaisesGroup(FatalDiskError, flatten_subgroups=True, allow_unwrapped=True):
        async with world.serving():
            producer = await world.connect()
            world.disk.arm(
                Trap(action=Action.EIO, kinds={"sync"}, when=lambda _k, p, _l: p.startswith(path))
            )
            request = await producer.post(make_item("m1", world.now_ms + 100))
            # What may be in the log is not answered: the connection is closed.
            with contextlib.suppress(AssertionError):
                answered = (await producer.answer(request)).code == ResponseCode.SUCCESS
            await trio.sleep(60)
    assert answered is not path.startswith("message_log/0")
    if answered:
        async with world.serving():
            await until(lambda: "m1" in world.broker.ids)


async def test_of_a_failure_beside_requests_nothing_else_is_raised() -> None:
    """Requests are under way, and further ones wait, while filing fails."""
    plan = ExecutorPlan(delay_s=(0.001, 0.05), stall_chance=0)
    for seed in range(10):
        world = World(seed=seed, plan=plan)
        with pytest.RaisesGroup(FatalDiskError, flatten_subgroups=True, allow_unwrapped=True):
            async with world.serving():
                producer = await world.connect()
                world.disk.arm(
                    Trap(
                        action=Action.EIO,
                        kinds={"write"},
                        when=lambda _k, p, _l: p.startswith("schedule_log/"),
                    )
                )
                for number in range(200):
                    await producer.post(make_item(f"m{number}", world.now_ms + 100))
                    await trio.sleep(0.003)


async def test_each_send_of_one_message_id_is_kept_and_delivered() -> None:
    world = World()
    async with world.serving():
        producer = await world.connect()
        for _ in range(4):
            assert await producer.send(make_item("m1", world.now_ms + 1000)) == {}
        await trio.sleep(60)
        assert world.broker.ids == ["m1"] * 4, "receivers tell copies by the message id"


async def test_an_address_that_is_taken_is_a_typed_error_and_the_data_stay_untouched() -> None:
    world = World()
    async with world.serving():
        second = world.server_beside(make_config())
        before = world.disk.operations
        with pytest.RaisesGroup(pytest.RaisesExc(ListenError, match=f"{HOST}:{PORT}")):
            await serve(second, trio.Event())
        assert world.disk.operations == before


@asynccontextmanager
async def serving_until_killed(world: World, death: Death) -> AsyncIterator[DelayServer]:
    """Serve during the block; then the process, or the machine, dies."""
    try:
        with trio.CancelScope() as life:
            async with world.serving() as server:
                yield server
                world.network.cut("server", death)
                if isinstance(death, PowerCut):
                    world.disk.power_cut()
                    world.clock.reboot()
                else:
                    world.disk.kill()
                life.cancel()
    except* Death:
        pass  # Of calls that wait for their turn.


@pytest.mark.parametrize("death", [Kill("at once"), PowerCut("at once")])
async def test_a_held_clock_is_held_after_a_crash_too(death: Death) -> None:
    world = World()
    world.clock.is_synchronised = False
    async with serving_until_killed(world, death) as server:
        producer = await world.connect()
        due_ms = world.now_ms + 200 * DAY_MS
        assert await producer.send(*(make_item(f"m{n}", due_ms) for n in range(50))) == {}
        await trio.sleep(30)
        world.clock.step(365 * DAY_MS)
        await until(lambda: server.duty().clock_held, seconds=70)
        await trio.sleep(0.5)
    async with world.serving() as server:
        await trio.sleep(300)
        assert world.broker.ids == []
        assert server.duty().clock_held
        world.clock.step(-365 * DAY_MS)
        # In another boot nobody knows that no more than this time has passed.
        server.pacer.accept()
        await trio.sleep(70)
        assert server.pacer.reason == ""
        assert world.broker.ids == []


async def test_the_durable_end_is_durable_soon_after_a_commit_and_then_it_rests() -> None:
    world = World()
    async with world.serving() as server:
        await world.keep(make_item("m1", world.now_ms + HOUR_MS))
        await trio.sleep(0.020)
        assert server.node.store.message_log.durable_end_synced
        await trio.sleep(10)
        syncs = world.disk.counts["sync"]
        await trio.sleep(100)
        assert world.disk.counts["sync"] == syncs


async def test_a_due_message_that_cannot_be_read_is_damaged_until_the_next_start() -> None:
    world = World()
    async with world.serving() as server:
        producer = await world.connect()
        await producer.send(*(make_item(f"m{n}", world.now_ms + 60_000) for n in range(2)))
        await trio.sleep(10)
        world.disk.arm(Trap(action=Action.EIO, kinds={"map"}))
        await trio.sleep(100)
        assert not world.broker.ids
        assert (server.master.undeliverable.count, server.damages.count) == (2, 2)
        assert server.node.store.schedule.pending == 2
    async with world.serving():
        await until(lambda: sorted(world.broker.ids) == ["m0", "m1"])


async def test_damaged_bytes_are_not_delivered_and_are_shown() -> None:
    world = World()
    async with world.serving() as server:
        producer = await world.connect()
        now_ms = world.now_ms
        await producer.send(*(make_item(f"m{n}", now_ms + 60_000) for n in range(10)))
        await trio.sleep(10)
        path = next(p for p in world.disk.contents(durable=True) if p.endswith(".minute"))
        data = world.disk.contents(durable=True)[path]
        place = data.index(b"m4")
        world.disk.damage(path, place, b"M")
        await trio.sleep(80)
        assert sorted(world.broker.ids) == [f"m{n}" for n in range(10) if n != 4]
        assert server.master.undeliverable.count == 1
        assert server.damages.count == 1
        assert server.damages.first[0].path == path
        assert server.damages.first[0].size > 0
        assert server.node.store.schedule.pending == 1
        # Come by again, as when a lane is begun anew, it is the same message.
        (sequence,) = server.master.undeliverable.sequences
        again = np.zeros(1, ENTRY)
        again["sequence"] = sequence
        server.master.undelivered(again)
        assert server.master.undeliverable.count == 1


async def test_a_kill_while_the_disk_stalls_sends_again_what_was_sent_in_a_fifth_of_a_second() -> (
    None
):
    world = World()
    rate, count = 500, 2000
    async with serving_until_killed(world, Kill("at once")):
        producer = await world.connect()
        due_ms = world.now_ms + 2000
        items = [make_item(f"m{n}", due_ms + n * 1000 // rate) for n in range(count)]
        assert await producer.send(*items) == {}
        await trio.sleep(3)
        assert 400 < len(world.broker.ids) < 600
        # From now on a call of the disk takes five seconds, and has its effect some time in them.
        world.executor.plan = ExecutorPlan(delay_s=(5, 5), stall_chance=0, late_chance=1)
        await trio.sleep(3)
        sent = len(world.broker.ids)
        assert sent < count / 2, "sending has paused"
    async with world.serving():
        await until(lambda: len(world.broker.taken) == count)
        await trio.sleep(10)
    again = len(world.broker.ids) - count
    assert 0 < again <= 0.2 * rate + 50


async def test_who_asks_who_it_is_is_told_what_the_clock_shows() -> None:
    world = World()
    async with world.serving():
        producer = await world.connect()
        for _ in range(2):
            answer = await producer.answer(await producer.post(code=1001))
            assert answer.code == 52
            assert decode_hello(answer.body).now_ms == world.now_ms
            await trio.sleep(10)


async def test_s8_a_restart_takes_no_more_into_memory_than_it_may_and_delivers_all() -> None:
    world = World()
    config = make_config(wheel=WheelConfig(entries_max=80, lane_entries_min=10, lanes_max=2))
    count = 40 * 80
    async with world.serving(config, has_broker=False):
        producer = await world.connect()
        now_ms = world.now_ms
        # All within the two hours that a start looks at; half of it is overdue by then.
        for first in range(0, count, 400):
            await producer.send(
                *(
                    make_item(f"m{n}", now_ms + 1000 + n * 36, subject=f"s{n % 3}")
                    for n in range(first, first + 400)
                )
            )
    await trio.sleep(60)
    async with world.serving(config) as server:
        most = 0
        with trio.fail_after(1200):
            while len(world.broker.deliveries) < count:
                most = max(most, server.master.loader.held)
                await trio.sleep(0.05)
        assert most <= 100
        assert sorted(world.broker.ids) == sorted(f"m{n}" for n in range(count))
