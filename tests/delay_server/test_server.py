"""The whole server in virtual time: what it takes it keeps, and delivers when it is due, once."""

import contextlib
import dataclasses
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from delay_protocol.basics.codes import ItemCode, ResponseCode
from delay_protocol.messages.items import FLAG_DELAY, FLAG_TAGS
from delay_protocol.wire.hello import decode_hello
from delay_server.accepting.admission import AdmissionConfig
from delay_server.holding.wheel import WheelConfig
from delay_server.server import DelayServer, serve
from delay_server.settings.config import ListenerConfig, StorageConfig
from delay_transport.seams.errors import ListenError
from sender.settings.config import SenderConfig
from storage.batch.batches import LogBatch
from storage.batch.columns import RecordKind
from storage.batch.entries import ENTRY
from storage.batch.file_header import FILE_HEADER_SIZE
from storage.disk.errors import DataDirectoryError, FatalDiskError, UnsupportedFormatError
from storage.disk.spans import Span
from tests.delay_server.server_rig import (
    HOST,
    MINUTE_MS,
    PORT,
    ROOMY,
    Producer,
    World,
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
        producer = await world.connect()
        assert await producer.send(*items) == {}
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


@pytest.mark.long
async def test_near_and_far_arrive_in_their_minute_hour_and_day() -> None:
    world = World()
    delays = (1000, 5 * MINUTE_MS, 50 * MINUTE_MS, 9 * HOUR_MS + 7, 26 * HOUR_MS, 30 * HOUR_MS)
    storage = dataclasses.replace(ROOMY, minute_horizon_minutes=10, hour_horizon_minutes=120)
    config = make_config(storage=storage, sender=SenderConfig(heartbeat_s=3600))
    async with world.serving(config) as server:
        producer = await world.connect()
        now_ms = world.now_ms
        await producer.send(*(make_item(f"m{delay}", now_ms + delay) for delay in delays))
        await trio.sleep(5)
        spans = Counter(
            segment.key.span for segment in server.node.store.schedule.segments.values()
        )
        assert spans == {Span.MINUTE: 3, Span.HOUR: 1, Span.DAY: 1}
        for count, delay in enumerate(delays, start=1):
            await trio.sleep(max(0.0, (now_ms + delay - world.now_ms) / 1000) + 0.1)
            assert len(world.broker.deliveries) == count
        assert all(d.at_ms - d.due_ms <= 5 for d in world.broker.deliveries)
        await trio.sleep(180)
        assert server.node.store.sealed == len(delays)
        assert server.node.store.schedule.segments == {}


async def test_what_cannot_be_kept_that_long_is_refused_for_good() -> None:
    world = World()
    async with world.serving(make_config(admission=AdmissionConfig(horizon_days=30))) as server:
        producer = await world.connect()
        refused = await producer.send(
            make_item("in", world.now_ms + 29 * DAY_MS),
            make_item("out", world.now_ms + 31 * DAY_MS),
        )
        assert {name: code for name, (code, _) in refused.items()} == {b"out": ItemCode.BLOCK}
        assert "limit 30.0" in refused[b"out"][1]
        await trio.sleep(0.1)
        assert server.node.store.schedule.pending == 1


async def test_requests_of_a_server_that_starts_are_held_and_then_kept() -> None:
    world = World(plan=ExecutorPlan(delay_s=(2, 2), stall_chance=0))
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


async def test_a_start_that_takes_long_answers_51_after_the_hold() -> None:
    world = World(plan=ExecutorPlan(delay_s=(10, 10), stall_chance=0))
    server = world.server(make_config())
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, server, stop)
        await until(lambda: server.listener)
        producer = await world.connect()
        began = trio.current_time()
        answer = await producer.answer(await producer.post(make_item("m", world.now_ms + HOUR_MS)))
        assert (answer.code, answer.body) == (51, b"recovery has not finished")
        assert 4 <= trio.current_time() - began < 4.1
        world.executor.plan = ExecutorPlan(delay_s=(0.001, 0.001), stall_chance=0)
        await server.ready.wait()
        assert server.node.store.schedule.pending == 0
        stop.set()


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


async def test_items_that_a_broker_refuses_are_tried_again_and_their_neighbours_are_not() -> None:
    world = World()
    tries: Counter[bytes] = Counter()

    def fail(message_id: bytes) -> int:
        tries[message_id] += 1
        if message_id == b"m1" and tries[message_id] < 4:
            return ItemCode.STORE_ERROR
        return ItemCode.MESSAGE_DUPLICATE if message_id == b"m2" else 0

    world.broker.fails = fail
    async with world.serving() as server:
        producer = await world.connect()
        await producer.send(*(make_item(f"m{n}", world.now_ms + 100) for n in range(5)))
        await until(lambda: "m1" in world.broker.ids)
        await trio.sleep(5)
        assert tries == {b"m0": 1, b"m1": 4, b"m2": 1, b"m3": 1, b"m4": 1}
        assert server.node.store.schedule.pending == 0


async def test_below_the_floor_of_free_disk_messages_are_refused_and_delivered_on() -> None:
    world = World()
    storage = StorageConfig(disk_free_bytes_min=1 << 20, disk_free_share_min=0.9)
    async with world.serving(make_config(storage=storage)) as server:
        producer = await world.connect()
        now_ms = world.now_ms
        await producer.send(*(make_item(f"m{n}", now_ms + 1000 * n) for n in range(60)))
        await trio.sleep(5)
        world.disk.capacity_bytes = world.disk.medium.used + (1 << 20) + 100_000
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
    world.disk.capacity_bytes = 1 << 20
    storage = StorageConfig(disk_free_bytes_min=1 << 21, disk_free_share_min=0.9999)
    async with world.serving(make_config(storage=storage)):
        producer = await world.connect()
        refused = await producer.send(make_item("a", world.now_ms))
        assert refused[b"a"][0] == ItemCode.BROKER_READ_ONLY


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
        assert server.node.store.retention.files_deleted > 1
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
        segments = server.node.store.seals_log.live.number.tolist()
        await trio.sleep(20)
        assert server.node.checkpoints.written - checkpoints <= 1
        assert world.disk.counts["write"] - writes < 20
        assert server.node.store.seals_log.live.number.tolist() == segments
        world.disk.capacity_bytes = 1 << 40
        await trio.sleep(1.5)
        assert await producer.send(make_item("a", now_ms)) == {}
        assert server.node.store.message_log.first_sequence == 1


@pytest.mark.long
async def test_a_server_deletes_what_is_old_though_nothing_happens_and_sleeps_meanwhile() -> None:
    world = World()
    storage = dataclasses.replace(
        ROOMY,
        message_log_file_bytes_max=MIB,
        message_log_keep_ms=3 * HOUR_MS,
        segments_keep_ms=5 * HOUR_MS,
        retired_grace_ms=HOUR_MS,
    )
    async with world.serving(make_config(storage=storage)) as server:
        producer = await world.connect()
        await _fill(world, producer, minutes=8)
        await trio.sleep(120)
        paths = {path for path in world.disk.contents() if path.endswith(".minute")}
        first_log = min(path for path in world.disk.contents() if path.startswith("message_log/0"))
        assert len(paths) == 16
        writes = world.disk.counts["write"]
        await trio.sleep(2.5 * 3600)
        assert world.disk.counts["write"] == writes, "nothing was to be done"
        assert first_log in world.disk.contents()
        await trio.sleep(2 * 3600)
        assert first_log not in world.disk.contents()
        assert paths <= world.disk.contents().keys()
        await trio.sleep(2 * 3600)
        assert not paths & world.disk.contents().keys()
        checkpoints = server.node.checkpoints.written
        writes = world.disk.counts["write"]
        looks = 0
        needs_checkpoint = server.node.store.needs_checkpoint

        def counted(now_ms: int) -> bool:
            nonlocal looks
            looks += 1
            return needs_checkpoint(now_ms)

        server.node.store.needs_checkpoint = counted  # type: ignore[method-assign]
        await trio.sleep(24 * 3600)
        assert looks == 0, "it does not poll"
        assert world.disk.counts["write"] == writes
        assert server.node.checkpoints.written == checkpoints


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


async def test_a_disk_that_runs_full_under_a_commit_refuses_it_whole_and_goes_on() -> None:
    world = World()
    async with world.serving():
        producer = await world.connect()
        await producer.send(make_item("first", world.now_ms + 1000))
        world.disk.arm(
            Trap(
                action=Action.FULL,
                kinds={"write"},
                when=lambda _kind, path, _label: path.startswith("message_log/0"),
            )
        )
        refused = await producer.send(*(make_item(f"m{n}", world.now_ms) for n in range(3)))
        assert {code for code, _ in refused.values()} == {ItemCode.BROKER_READ_ONLY}
        assert await producer.send(*(make_item(f"m{n}", world.now_ms) for n in range(3))) == {}
        await trio.sleep(5)
        assert sorted(world.broker.ids) == ["first", "m0", "m1", "m2"]


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


async def test_a_second_server_on_the_same_data_is_refused() -> None:
    world = World()
    async with world.serving():
        second = world.server_beside(
            make_config(listener=ListenerConfig(address=f"{HOST}:{PORT + 1}"))
        )
        with pytest.RaisesGroup(
            pytest.RaisesExc(DataDirectoryError, match="held by another process")
        ):
            await serve(second, trio.Event())


async def test_an_address_that_is_taken_is_a_typed_error_and_the_data_stay_untouched() -> None:
    world = World()
    async with world.serving():
        second = world.server_beside(make_config())
        before = world.disk.operations
        with pytest.RaisesGroup(pytest.RaisesExc(ListenError, match=f"{HOST}:{PORT}")):
            await serve(second, trio.Event())
        assert world.disk.operations == before


@pytest.mark.parametrize("name", ["cluster", "group", "node_id"])
async def test_data_of_another_cluster_group_or_node_is_refused(name: str) -> None:
    world = World()
    base = make_config().node

    def changed(value: str) -> dict[str, Any]:
        return {name: value}

    async with world.serving(make_config(node=dataclasses.replace(base, **changed("one")))):
        pass
    async with world.serving(make_config(node=base)) as server:
        assert getattr(server.node.store.identity, name) == "one"
    with pytest.RaisesGroup(
        pytest.RaisesExc(DataDirectoryError, match="one"), flatten_subgroups=True
    ):
        async with world.serving(
            make_config(node=dataclasses.replace(base, **changed("two"))), has_broker=False
        ):
            pytest.fail("it serves")


async def test_a_file_of_a_newer_format_is_refused() -> None:
    world = World()
    async with world.serving():
        producer = await world.connect()
        await producer.send(make_item("m1", world.now_ms + HOUR_MS))
    [path] = [name for name in world.disk.contents() if name.startswith("message_log/0")]
    world.disk = world.disk.revive()
    header = bytearray(world.disk.contents()[path][:FILE_HEADER_SIZE])
    # The version stands behind the magic, the header's CRC in its last four bytes.
    header[4] += 1
    header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "little")
    world.disk.damage(path, 0, bytes(header))
    with pytest.RaisesGroup(
        pytest.RaisesExc(UnsupportedFormatError, match="newer delaywheel"), flatten_subgroups=True
    ):
        async with world.serving(has_broker=False):
            pytest.fail("it serves")


async def test_a_large_step_of_the_clock_holds_delivery_and_a_word_releases_it() -> None:
    world = World()
    world.clock.is_synchronised = False
    async with world.serving() as server:
        producer = await world.connect()
        now_ms = world.now_ms
        await producer.send(*(make_item(f"m{n}", now_ms + n * 60_000) for n in range(1, 90)))
        await trio.sleep(130)
        assert world.broker.ids == ["m1", "m2"]
        world.clock.step(HOUR_MS)
        await trio.sleep(300)
        assert world.broker.ids == ["m1", "m2"]
        assert server.pacer.reason
        # Messages are taken meanwhile.
        producer = await world.connect()
        assert await producer.send(make_item("held", world.now_ms)) == {}
        await trio.sleep(5)
        assert "held" not in world.broker.ids
        server.pacer.accept()
        await until(lambda: len(world.broker.deliveries) > 60, seconds=5)
        assert not server.duty().clock_held
        assert "held" in world.broker.ids


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


async def test_a_leap_that_nobody_saw_before_a_kill_is_held_by_the_next_start() -> None:
    world = World()
    world.clock.is_synchronised = False
    async with serving_until_killed(world, Kill("at once")):
        producer = await world.connect()
        assert await producer.send(make_item("m1", world.now_ms + 20 * HOUR_MS)) == {}
        await trio.sleep(5)
        world.clock.step(21 * HOUR_MS)
    async with world.serving() as server:
        await trio.sleep(300)
        assert world.broker.ids == []
        assert server.duty().clock_held
        world.clock.step(-21 * HOUR_MS)
        await until(lambda: not server.duty().clock_held, seconds=70)


async def test_a_node_that_was_off_for_a_week_waits_for_a_word_and_goes_on_with_it() -> None:
    world = World()
    async with world.serving():
        producer = await world.connect()
        assert await producer.send(make_item("m1", world.now_ms + HOUR_MS)) == {}
    await trio.sleep(7 * DAY_MS / 1000)
    world.clock.reboot()
    world.clock.is_synchronised = False
    async with world.serving() as server:
        await trio.sleep(120)
        assert world.broker.ids == []
        assert server.duty().clock_held
        server.pacer.accept()
        await until(lambda: world.broker.ids == ["m1"], seconds=70)
        await trio.sleep(5)
    async with world.serving() as server:
        await trio.sleep(70)
        assert not server.duty().clock_held, "what was accepted is durable"


async def test_a_clock_that_went_back_and_comes_right_is_not_held() -> None:
    world = World()
    world.clock.is_synchronised = False
    async with serving_until_killed(world, Kill("at once")) as server:
        producer = await world.connect()
        due_ms = world.now_ms + 10 * MINUTE_MS
        assert await producer.send(make_item("m1", due_ms)) == {}
        await trio.sleep(70)
        world.clock.step(-2 * HOUR_MS)
        await trio.sleep(130)
    async with world.serving() as server:
        await trio.sleep(130)
        assert world.broker.ids == []
        world.clock.step(2 * HOUR_MS)
        await until(lambda: world.broker.ids == ["m1"], seconds=700)
        assert not server.duty().clock_held


async def test_a_clock_set_back_delays_and_sends_nothing_early_or_twice() -> None:
    world = World()
    async with world.serving():
        producer = await world.connect()
        now_ms = world.now_ms
        await producer.send(*(make_item(f"m{n}", now_ms + n * 1000) for n in range(60)))
        await trio.sleep(20.5)
        assert len(world.broker.deliveries) == 21
        world.clock.step(-300_000)
        await trio.sleep(299)
        assert len(world.broker.deliveries) == 21
        await trio.sleep(45)
        assert Counter(world.broker.ids) == Counter(f"m{n}" for n in range(60))


async def test_when_filing_lags_commits_wait_and_producers_are_slowed_down_not_dropped() -> None:
    world = World()
    storage = dataclasses.replace(ROOMY, filing_bytes_max=1 << 20)
    admission = AdmissionConfig(pending_bytes_max=1 << 20)
    config = make_config(storage=storage, admission=admission)
    async with world.serving(config) as server:
        producers = [await world.connect() for _ in range(4)]
        held = world.executor.run
        gate = trio.Event()

        async def slow(lane: str, fn: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401
            if fn.__name__ == "_file" and not gate.is_set():
                await gate.wait()
            return await held(lane, fn, *args)

        world.executor.run = slow  # type: ignore[method-assign, assignment]
        opaques = []
        due_ms = world.now_ms + HOUR_MS
        for number in range(200):
            data = make_item(f"m{number}", due_ms, attributes={"k": "v" * 30_000})
            producer = producers[number % 4]
            opaques.append((producer, await producer.post(data)))
        await trio.sleep(2)
        assert server.node.filer.backlog_bytes < 3 << 20
        assert server.ingest.held_requests > 50
        accepted = server.ingest.counts.accepted
        assert accepted < 150
        await trio.sleep(1)
        assert server.ingest.counts.accepted == accepted
        gate.set()
        for producer, opaque in opaques:
            assert (await producer.answer(opaque)).code == 0
        assert server.ingest.counts.accepted == 200


async def test_the_floor_is_recorded_once_a_minute_at_most_and_seals_what_is_complete() -> None:
    world = World()
    async with world.serving() as server:
        producer = await world.connect()
        await producer.send(*(make_item(f"m{n}", world.now_ms + n * 10_000) for n in range(60)))
        await trio.sleep(720)
        assert server.node.store.sealed == 10
        kinds = Counter(batch.header.kind for batch in log_of(server))
        assert kinds[RecordKind.FACTS] == 60
        # Facts have a floor as well; a minute that ends before the next of them needs its own.
        assert 1 <= kinds[RecordKind.FLOOR] <= 11
        assert server.node.store.schedule.segments == {}
        rested = server.node.store.message_log.next_sequence
        checkpoints = server.node.checkpoints.written
        operations, looks = world.disk.operations, world.disk.counts["require_in_place"]
        await trio.sleep(3600)
        assert server.node.store.message_log.next_sequence == rested
        assert server.node.checkpoints.written == checkpoints
        looks = world.disk.counts["require_in_place"] - looks
        assert 3500 < looks <= 3601
        assert world.disk.operations - operations - looks < 100


async def test_the_durable_end_is_durable_soon_after_a_commit_and_then_it_rests() -> None:
    world = World()
    async with world.serving() as server:
        producer = await world.connect()
        await producer.send(make_item("m1", world.now_ms + HOUR_MS))
        await trio.sleep(0.020)
        assert server.node.store.message_log.durable_end_synced
        await trio.sleep(10)
        syncs = world.disk.counts["sync"]
        await trio.sleep(100)
        assert world.disk.counts["sync"] == syncs


async def test_due_messages_that_cannot_be_read_just_now_are_delivered_once_when_they_can() -> None:
    world = World()
    async with world.serving() as server:
        producer = await world.connect()
        now_ms = world.now_ms
        await producer.send(*(make_item(f"m{n}", now_ms + 60_000) for n in range(10)))
        await trio.sleep(10)
        world.disk.arm(*[Trap(action=Action.EIO, kinds={"map"})] * 8)
        await trio.sleep(55)
        # After 12.7 s in which it could not be read; until then it counts as held, and as late.
        assert not world.broker.ids
        assert (
            server.master.read_retries.count,
            server.master.late_now,
            server.master.loader.held,
        ) == (10, 10, 10)
        await trio.sleep(40)
        assert sorted(world.broker.ids) == [f"m{n}" for n in range(10)]
        assert (
            server.master.read_retries.count
            == server.master.undeliverable.count
            == server.damages.count
            == 0
        )
        assert server.master.read_retries.failures == 80
        await trio.sleep(10)
        assert server.node.store.schedule.pending == 0


async def test_due_messages_that_cannot_be_read_for_long_are_told_as_damage() -> None:
    world = World()
    async with world.serving() as server:
        producer = await world.connect()
        await producer.send(make_item("m0", world.now_ms + 60_000))
        await trio.sleep(10)
        world.disk.arm(*[Trap(action=Action.EIO, kinds={"map"})] * 100)
        await trio.sleep(300)
        assert not world.broker.ids
        assert server.master.read_retries.failures == 12
        assert (
            server.master.read_retries.count,
            server.master.undeliverable.count,
            server.damages.count,
        ) == (0, 1, 1)
        assert server.node.store.schedule.pending == 1


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
        server.master._undeliverable(again)
        assert server.master.undeliverable.count == 1


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
