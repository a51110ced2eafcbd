"""Why a message was not delivered, where it is a dead letter or becomes one."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, TypeVarTuple

import trio

from delay_protocol.basics.codes import ResponseCode
from delay_server.admin.explain import counts
from delay_server.admin.http import application
from delay_server.filing.schedule_access import ScheduleAccess
from delay_server.holding.wheel import WheelConfig
from delay_server.server import DelayServer
from tests.delay_server.dead_rig import Caller, bury, explained, fill_disk, refuse_all, send
from tests.delay_server.server_rig import World, have_rules, make_config, make_item, until


async def test_a_dead_letter_is_explained_by_its_id() -> None:
    world = World()
    async with world.serving() as server:
        operator = await bury(world, server, "m")
        (row,) = await explained(operator, "id=m")
        assert (row["reason"], row["subject"], row["dead_letter"]) == ("dead", "s", True)
        code, letter = await operator.ask("GET", f"/dead/{row['sequence']}")
        assert (code, letter["message_id"]) == (200, "m")
        _, status = await operator.ask("GET", "/status")
        assert status["undelivered"]["dead"] == 1
        await operator.ask("POST", "/dead/requeue", {"sequences": [row["sequence"]]})
        await until(lambda: world.broker.ids == ["m"])
        await trio.sleep(5)
        assert {one["reason"] for one in await explained(operator, "id=m")} == {"done"}
        assert server.master.dead_letters.pending == 0


async def test_what_is_given_up_and_finds_no_space_says_so_and_keeps_a_drain_from_its_end() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        refuse_all(world)
        world.broker.answer_after_s = 0.5
        await send(world, "m")
        await until(lambda: len(world.broker.requests) == 1)
        capacity_bytes = world.disk.capacity_bytes
        fill_disk(world)
        await until(lambda: server.master.dead_recorder.count == 1)
        (row,) = await explained(operator, "id=m")
        assert (row["reason"], row["dead_letter"]) == ("dead", False)
        _, status = await operator.ask("GET", "/status")
        found = status["undelivered"]
        assert (found["being_recorded"], sum(found.values()), status["late"]) == (1, 1, 1)
        world.disk.capacity_bytes = capacity_bytes
        await until(lambda: not server.master.dead_recorder.count)
        assert server.master.dead_letters.pending == 1
        assert (await explained(operator, "id=m"))[0]["reason"] == "dead"


T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@contextmanager
def nothing_filed(server: DelayServer) -> Iterator[None]:
    """Have filing wait until the end of the block; other calls of the schedule_log go on."""
    filer, goes_on = server.node.filer, trio.Event()
    access = filer._access

    class Waits(ScheduleAccess):
        async def run(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
            await goes_on.wait()
            return await access.run(fn, *args)

    filer._access = Waits(server.runtime.executor)
    try:
        yield
    finally:
        filer._access = access
        goes_on.set()


async def test_what_was_acknowledged_a_moment_ago_is_found_once_it_is_filed() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        producer = await world.connect()
        found: list[dict[str, Any]] = []

        async def ask() -> None:
            found.extend(await explained(operator, "id=m"))

        async with trio.open_nursery() as nursery:
            with nothing_filed(server):
                await producer.send(make_item("m", world.now_ms + 60_000))
                assert server.node.filer.backlog_rows == 1
                code, answer = await operator.ask("GET", "/find?id=m")
                assert (code, answer["messages"], answer["complete"]) == (200, [], False)
                nursery.start_soon(ask)
                await trio.sleep(1)
                assert not found
            await until(lambda: found)
        assert [one["reason"] for one in found] == ["waiting"]


async def test_what_waits_for_its_time_is_not_counted_with_what_is_loaded() -> None:
    world = World()
    async with world.serving() as server:
        producer = await world.connect()
        hour_ms = 3_600_000
        for after_ms in (3 * hour_ms, 5 * hour_ms):
            await producer.send(
                *(make_item(f"{after_ms}.{n}", world.now_ms + after_ms) for n in "ab")
            )
        await server.node.filer.drain()
        with nothing_filed(server):
            # As while something is on its way from disk.
            found = counts(server.administered().parts())
        assert found["on_disk"] == sum(found.values()) == 4


async def test_damaged_messages_of_a_subject_are_why_nothing_of_it_comes() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        due_ms = world.now_ms + 60_000
        producer = await world.connect()
        await producer.send(*(make_item(name, due_ms, subject="a") for name in ("m1", "m2")))
        await producer.send(make_item("m3", due_ms, subject="b"))
        await trio.sleep(10)
        path = next(p for p in world.disk.contents(durable=True) if p.endswith(".minute"))
        data = world.disk.contents(durable=True)[path]
        world.disk.damage(path, data.index(b"m1"), b"M")
        await trio.sleep(80)
        assert sorted(world.broker.ids) == ["m2", "m3"]
        assert [one["reason"] for one in await explained(operator, "id=m1")] == ["damaged"]
        found = {}
        for subject in "ab":
            _, about = await operator.ask("GET", f"/explain?subject={subject}")
            found[subject] = (about["reason"], about["damaged"])
        assert found == {"a": ("damaged", 1), "b": (None, 0)}
        await have_rules(server, "a")
        _, about = await operator.ask("GET", "/explain?subject=a")
        assert (about["reason"], about["damaged"]) == ("paused", 1)


async def test_what_is_delivered_has_no_reason_before_the_schedule_log_hears_of_it() -> None:
    world = World()
    async with world.serving() as server:
        await have_rules(server, "held")
        producer = await world.connect()
        now_ms = world.now_ms
        await producer.send(make_item("held", now_ms, subject="held"))
        await producer.send(*(make_item(f"m{n}", now_ms + 5000) for n in range(50)))
        await producer.send(*(make_item(f"n{n}", now_ms + 3_600_000) for n in range(3)))
        await trio.sleep(4)
        with nothing_filed(server):
            await until(lambda: len(world.broker.deliveries) == 50)
            await until(lambda: server.master.sender.unsent().total == 0)
            for step_s in (0.0, 0.01, 1.0):
                await trio.sleep(step_s)
                assert server.node.store.schedule.pending == 54
                found = {
                    reason: count
                    for reason, count in counts(server.administered().parts()).items()
                    if count
                }
                assert found.pop("on_disk_due", 0) + found.pop("on_disk") == 4
                assert not found
        await trio.sleep(1)
        assert server.node.store.schedule.pending == 4
        assert (
            counts(server.administered().parts())["on_disk"]
            + counts(server.administered().parts())["on_disk_due"]
            == 4
        )


async def test_what_waits_behind_a_half_open_circuit_waits_for_it_to_close() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        await trio.sleep(1)
        world.broker.answer_after_s = math.inf
        await send(world, "m1")
        await until(lambda: server.master.sender.in_flight == 1)
        await send(world, *(f"n{n}" for n in range(20)))
        seen: Counter[str] = Counter()
        # Until the first request is given up nobody knows.
        await trio.sleep(6)
        for _ in range(300):
            (group,) = server.master.sender.status()
            seen[group.circuit.value] += 1
            found = {
                reason for reason, count in counts(server.administered().parts()).items() if count
            }
            assert found <= {"queued", "in_flight", "retrying"}, (group.circuit, found)
            _, status = await operator.ask("GET", "/status")
            shown = status["brokers"]["g1"]
            assert (shown["up"], shown["circuit"]) == (0, group.circuit.value)
            assert shown["effective_weight"] <= 0.01
            await trio.sleep(0.1)
        assert min(seen["open"], seen["half-open"]) > 10
        assert seen["closed"] == 0
        world.broker.answer_after_s = 0.0
        await until(lambda: len(world.broker.deliveries) >= 21, seconds=60)


async def test_a_group_that_fences_the_node_is_said_to() -> None:
    world = World()
    world.broker.hello_code = ResponseCode.BROKER_REJECT
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        await send(world, "m1")
        await trio.sleep(10)
        assert {
            place for place, count in counts(server.administered().parts()).items() if count
        } == {"queued"}
        assert [one["reason"] for one in await explained(operator, "id=m1")] == ["group_down"]
        _, status = await operator.ask("GET", "/status")
        group = status["brokers"]["g1"]
        assert (group["state"], group["circuit"], group["fenced"]) == ("fenced", "open", 1)
        assert "never tried again" in group["circuit_reason"]


async def test_a_subject_all_of_which_is_dead_says_so() -> None:
    world = World()
    async with world.serving() as server:
        operator = await bury(world, server, "m1", "m2", "m3")
        _, about = await operator.ask("GET", "/explain?subject=s")
        assert (about["reason"], about["dead"]) == ("dead", 3)
        _, about = await operator.ask("GET", "/explain?subject=other")
        assert (about["reason"], about["dead"]) == (None, 0)
        await world.keep(make_item("later", world.now_ms + 60_000, subject="s"))
        await until(lambda: len(server.master.wheel))
        _, about = await operator.ask("GET", "/explain?subject=s")
        assert (about["reason"], about["in_wheel"], about["dead"]) == ("waiting", 1, 3)
        await have_rules(server, "s")
        _, about = await operator.ask("GET", "/explain?subject=s")
        assert (about["reason"], about["dead"]) == ("paused", 3)


async def test_a_subject_that_still_has_a_lane_and_nothing_in_it_waits_for_nothing() -> None:
    world = World()
    config = make_config(wheel=WheelConfig(lane_entries_min=10))
    world.broker.fails = lambda message_id: 3 if message_id.startswith(b"bad") else 0
    async with world.serving(config) as server:
        operator = Caller(application(server.administered()))
        producer = await world.connect()
        due_ms = world.now_ms + 1000
        for subject in ("bad", "good"):
            items = [make_item(f"{subject}{n}", due_ms, subject=subject) for n in range(300)]
            await producer.send(*items)
        await until(lambda: server.master.dead_letters.pending == 300)
        await until(lambda: len(world.broker.deliveries) == 300)
        found = {}
        for subject in ("bad", "good"):
            _, about = await operator.ask("GET", f"/explain?subject={subject}")
            found[subject] = (about["reason"], about["held"], about["dead"])
        assert found == {"bad": ("dead", 0, 300), "good": (None, 0, 0)}


async def test_what_is_due_on_disk_is_counted_so_whatever_else_is_held() -> None:
    world = World()
    wheel = WheelConfig(entries_max=80, lane_entries_min=1, lanes_max=2)
    async with world.serving(make_config(wheel=wheel)) as server:
        await have_rules(server, "a")
        producer = await world.connect()
        now_ms = world.now_ms
        await producer.send(*(make_item(f"m{n}", now_ms + 1000, subject="a") for n in range(10)))
        await trio.sleep(150)
        producer = await world.connect()  # The first one was idle for too long.
        await producer.send(*(make_item(f"n{n}", world.now_ms + 90_000) for n in range(4)))
        await until(lambda: len(server.master.wheel) == 4)
        found = {k: v for k, v in counts(server.administered().parts()).items() if v}
        assert found == {"on_disk_due": 10, "in_wheel": 4}


async def test_what_the_sender_holds_is_not_counted_on_disk_once_more() -> None:
    world = World()
    async with world.serving(has_broker=False) as server:
        producer = await world.connect()
        now_ms = world.now_ms
        await producer.send(*(make_item(f"m{n}", now_ms + 1000) for n in range(4)))
        await producer.send(*(make_item(f"n{n}", now_ms + 9 * 3_600_000) for n in range(5)))
        await trio.sleep(150)
        found = {k: v for k, v in counts(server.administered().parts()).items() if v}
        assert found == {"queued": 4, "on_disk": 5}


async def test_a_message_of_a_complete_minute_is_found_with_its_fact_when_it_is_said_when() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        minute = world.now_ms // 60_000
        await send(world, "m")
        await until(lambda: world.broker.ids == ["m"])
        delivered_ms = world.now_ms
        await until(lambda: not list(server.node.store.schedule.of_time()), seconds=600, step_s=1)
        code, answer = await operator.ask("GET", "/find?id=m")
        assert (code, answer["messages"]) == (200, [])
        assert "--at" in answer["hint"]
        (row,) = await explained(operator, f"id=m&minute={minute}")
        assert (row["reason"], row["subject"], row["sequence"]) == ("done", "s", 2)
        assert (row["fact"]["outcome"], row["fact"]["group"]) == ("delivered", "g1")
        assert abs(row["fact"]["at_ms"] - delivered_ms) < 1000
        assert await explained(operator, f"id=m&minute={minute - 1}") == []


async def test_a_subject_of_which_nothing_came_is_told_from_one_of_which_nothing_waits() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        await send(world, "m")
        await until(lambda: world.broker.ids == ["m"])
        for subject, seen in (("s", True), ("misspelt", False)):
            code, answer = await operator.ask("GET", f"/explain?subject={subject}")
            assert (code, answer["seen"], answer["reason"]) == (200, seen, None)
