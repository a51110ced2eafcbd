"""Why a message was not delivered, where it is a dead letter or becomes one."""

import math
import random
from collections import Counter
from typing import Any

import trio

from delay_protocol.basics.codes import ResponseCode
from delay_server.admin.explain import _split, _why_on_disk, counts, lane_look, surroundings
from delay_server.admin.http import application
from delay_server.admin.reasons import Reason, reason_of_lane
from delay_server.lanes.lanes import Unrouted
from delay_server.settings.config import RoutesConfig, WheelConfig
from tests.delay_server.admin.test_admin_http import Caller
from tests.delay_server.dead_rig import bury, explained, fill_disk, refuse_all, send
from tests.delay_server.route_rig import RouteWorld, routed_config
from tests.delay_server.server_rig import World, make_config, make_item, until


async def test_a_dead_letter_is_explained_by_its_id_and_by_both_its_numbers() -> None:
    world = World()
    async with world.serving() as server:
        operator = await bury(world, server, "m")
        (row,) = await explained(operator, "id=m")
        assert (row["reason"], row["subject"], row["dead_letter"]) == ("dead", "s", True)
        code, letter = await operator.ask("GET", f"/dead/{row['sequence']}")
        assert (code, letter["message_id"]) == (200, "m")
        assert letter["of_sequence"] == row["of_sequence"] != row["sequence"]
        for number in (row["sequence"], row["of_sequence"]):
            assert await explained(operator, f"sequence={number}") == [row]
        _, status = await operator.ask("GET", "/status")
        assert status["undelivered"]["dead"] == 1
        await operator.ask("POST", "/dead/requeue", {"sequences": [row["sequence"]]})
        await until(lambda: world.broker.ids == ["m"])
        await trio.sleep(5)
        for query in ("id=m", f"sequence={row['of_sequence']}"):
            assert {one["reason"] for one in await explained(operator, query)} == {"done"}
        assert server.dead_letters.pending == 0


async def test_what_is_given_up_and_finds_no_space_says_so_and_keeps_a_drain_from_its_end() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server))
        refuse_all(world)
        world.broker.answer_after_s = 0.5
        await send(world, "m")
        await until(lambda: len(world.broker.requests) == 1)
        capacity_bytes = world.disk.capacity_bytes
        fill_disk(world)
        await until(lambda: server.burying.count == 1)
        (row,) = await explained(operator, "id=m")
        assert (row["reason"], row["dead_letter"]) == ("dead_being_recorded", False)
        _, status = await operator.ask("GET", "/status")
        found = status["undelivered"]
        assert (found["dead_being_recorded"], sum(found.values()), status["late"]) == (1, 1, 1)
        world.disk.capacity_bytes = capacity_bytes
        await until(lambda: not server.burying.count)
        assert server.dead_letters.pending == 1
        assert (await explained(operator, "id=m"))[0]["reason"] == "dead"


async def test_what_was_acknowledged_a_moment_ago_is_found_once_it_is_filed() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server))
        producer = await world.connect()
        async with trio.open_nursery() as nursery, server.filing.taking:
            # Nothing is filed meanwhile.
            await producer.send(make_item("m", world.now_ms + 60_000))
            assert server.filing.backlog_rows == 1
            code, answer = await operator.ask("GET", "/explain?id=m")
            assert (code, answer["messages"], answer["complete"]) == (200, [], False)
            found: list[dict[str, Any]] = []

            async def ask() -> None:
                found.extend(await explained(operator, "id=m"))

            nursery.start_soon(ask)
            await trio.sleep(1)
            server.filing.taking.release()
            await until(lambda: found)
            await server.filing.taking.acquire()
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
        await server.filing.drain()
        async with server.filing.taking:
            # As while something is on its way from disk.
            found = counts(server)
        assert found["waiting"] == sum(found.values()) == 4
        schedule = server.store.schedule
        await server.filing.run(schedule.flush, world.now_ms)
        assert schedule.pending_from(world.now_ms + 2 * hour_ms) == 0
        assert schedule.pending_from(world.now_ms + 4 * hour_ms) == 2


async def test_what_came_by_a_lane_of_its_own_is_counted_as_paused_when_that_is_closed() -> None:
    world = World()
    wheel = WheelConfig(entries_max=80, lane_entries_min=1, lanes_max=2)
    async with world.serving(make_config(wheel=wheel)) as server:
        operator = Caller(application(server))
        await operator.ask("PUT", "/controls/subjects/a", {"rate_per_s": 0.05})
        producer = await world.connect()
        due_ms = world.now_ms + 1000
        await producer.send(*(make_item(f"m{n}", due_ms, subject="a") for n in range(10)))
        await trio.sleep(5)
        assert server.lanes.opened
        # These lie before what the lane has loaded, and the wheel never sees them.
        await producer.send(*(make_item(f"n{n}", due_ms, subject="a") for n in range(10)))
        await trio.sleep(60)
        sent = len(world.broker.deliveries)
        await operator.ask("PUT", "/controls/subjects/a", {"paused": True})
        await trio.sleep(120)
        found = counts(server)
        assert found["paused_subject"] == sum(found.values()) == 20 - sent


async def test_what_nobody_has_counted_is_shared_out_by_what_each_reason_left() -> None:
    world = World()
    wheel = WheelConfig(entries_max=80, lane_entries_min=1, lanes_max=4)
    async with world.serving(make_config(wheel=wheel)) as server:
        operator = Caller(application(server))
        await operator.ask("PUT", "/controls/subjects/a", {"rate_per_s": 0.01})
        world.broker.answer_after_s = 3
        producer = await world.connect()
        due_ms = world.now_ms + 1000
        for subject, count in (("a", 30), ("b", 60), ("c", 30)):
            items = (make_item(f"{subject}{n}", due_ms, subject=subject) for n in range(count))
            await producer.send(*items)
        await trio.sleep(3)
        around = surroundings(server)
        left: Counter[Reason] = Counter()
        for lane, count in server.lanes.dropped_by_lane().items():
            kind, groups = lane_look(server, lane, None)
            left[reason_of_lane(kind, groups, around)] += count
        assert min(left[Reason.RATE_LIMITED], left[Reason.QUEUED]) > 0
        paused, unrouted = server.lanes.paused(0), server.lanes.unrouted(0)
        assert _why_on_disk(server, left, paused, unrouted, around) == left
        none = Counter(dict.fromkeys(left, 0))
        assert not set(_why_on_disk(server, none, paused, unrouted, around)) & set(left)
        found = counts(server)
        assert sum(found.values()) == 120 - len(world.broker.taken)


async def test_what_is_on_disk_of_paused_and_unrouted_subjects_counts_for_both() -> None:
    world = World()
    async with world.serving() as server:
        await trio.sleep(1)
        around = surroundings(server)

        def waits(subjects: int, messages: int) -> Unrouted:
            return Unrouted(
                subjects=subjects, messages=messages, oldest_due_ms=None, forgotten=0, numbers=[]
            )

        none = Counter[Reason]()
        both = _why_on_disk(server, none, waits(2, 30), waits(1, 10), around)
        assert both == {Reason.PAUSED_SUBJECT: 30, Reason.NO_ROUTE: 10}
        unseen = _why_on_disk(server, none, waits(2, 0), waits(0, 0), around)
        assert unseen == {Reason.PAUSED_SUBJECT: 1}
        nothing = _why_on_disk(server, none, waits(0, 0), waits(0, 0), around)
        assert not nothing
        lanes = Counter({Reason.CIRCUIT_OPEN: 9, Reason.RATE_LIMITED: 10})
        beside = _why_on_disk(server, lanes, waits(1, 1), waits(0, 0), around)
        # Lanes come by what is there; what is paused has been seen.
        assert beside == lanes


async def test_what_was_left_of_too_many_subjects_without_a_route_is_to_be_loaded_anew() -> None:
    world = RouteWorld()
    world.meta.rest = ()
    config = routed_config(routes=RoutesConfig(doubt_ms=0, subjects_max=10, unused_ms=300_000))
    async with world.routing(config) as (server, _):
        producer = await world.connect()
        due_ms = world.now_ms + 1000
        await producer.send(*(make_item(f"m{n}", due_ms, subject=f"s{n}") for n in range(50)))
        await producer.send(make_item("later", due_ms + 3_600_000, subject="s0"))
        await trio.sleep(10)
        assert {k: n for k, n in counts(server).items() if n} == {"no_route": 50, "waiting": 1}
        world.meta.rest = ("g0",)
        # Those that had a place get their routes, and the rest is not loaded yet.
        await world.meta.push(*(f"s{n}" for n in range(5)))
        await until(lambda: world.taken == 5)
        await trio.sleep(5)
        assert server.lanes.forgotten == 45
        assert {k: n for k, n in counts(server).items() if n} == {"loading": 45, "waiting": 1}


def test_what_is_shared_out_is_shared_to_the_last_one_and_near_its_part() -> None:
    chance = random.Random(6)
    for _ in range(500):
        drawn = chance.sample(list(Reason), chance.randint(1, 5))
        weights = Counter({reason: chance.randint(1, 10**9) for reason in drawn})
        count = chance.choice((0, 1, 2, chance.randint(0, 10**7)))
        parts = _split(count, weights)
        assert parts.total() == count
        for reason, weight in weights.items():
            assert abs(parts[reason] * weights.total() - count * weight) < weights.total()
        assert set(+parts) <= set(drawn)


async def test_no_more_is_counted_as_backlog_than_is_due() -> None:
    world = World()
    wheel = WheelConfig(entries_max=80, lane_entries_min=1, lanes_max=2)
    async with world.serving(make_config(wheel=wheel)) as server:
        operator = Caller(application(server))
        await operator.ask("PUT", "/controls/subjects/a", {"rate_per_s": 0.05})
        producer = await world.connect()
        now_ms = world.now_ms
        await producer.send(*(make_item(f"m{n}", now_ms + 1000, subject="a") for n in range(10)))
        await producer.send(*(make_item(f"n{n}", now_ms + 9 * 3_600_000) for n in range(5)))
        await trio.sleep(5)
        before = counts(server)
        assert before["waiting"] == 5
        # As if what came from disk had only then left the wheel, and been left to the lane again.
        number = server.store.schedule.subjects.ids[b"a"]
        server.lanes._dropped[number] += 3
        assert counts(server) == before


async def test_damaged_messages_of_a_subject_are_why_nothing_of_it_comes() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server))
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
        await operator.ask("PUT", "/controls/subjects/a", {"paused": True})
        _, about = await operator.ask("GET", "/explain?subject=a")
        assert (about["reason"], about["damaged"]) == ("paused_subject", 1)


async def test_what_is_delivered_has_no_reason_before_the_schedule_log_hears_of_it() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server))
        await operator.ask("PUT", "/controls/subjects/held", {"paused": True})
        producer = await world.connect()
        now_ms = world.now_ms
        await producer.send(make_item("held", now_ms, subject="held"))
        await producer.send(*(make_item(f"m{n}", now_ms + 5000) for n in range(50)))
        await producer.send(*(make_item(f"n{n}", now_ms + 3_600_000) for n in range(3)))
        await trio.sleep(4)
        async with server.filing.taking:
            await until(lambda: len(world.broker.deliveries) == 50)
            await until(lambda: server.sender.unsent().total == 0)
            for step_s in (0.0, 0.01, 1.0):
                await trio.sleep(step_s)
                assert server.store.schedule.pending == 54
                found = {reason: count for reason, count in counts(server).items() if count}
                assert found == {"paused_subject": 1, "waiting": 3}
        await trio.sleep(1)
        assert server.store.schedule.pending == 4
        assert counts(server)["waiting"] == 3


async def test_what_waits_behind_a_half_open_circuit_waits_for_it_to_close() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server))
        await trio.sleep(1)
        world.broker.answer_after_s = math.inf
        await send(world, "m1")
        await until(lambda: server.sender.in_flight == 1)
        await send(world, *(f"n{n}" for n in range(20)))
        seen: Counter[str] = Counter()
        # Until the first request is given up nobody knows.
        await trio.sleep(6)
        for _ in range(300):
            (group,) = server.sender.status()
            seen[group.circuit.value] += 1
            found = {reason for reason, count in counts(server).items() if count}
            assert found <= {"circuit_open", "in_flight", "retry_backoff"}, (group.circuit, found)
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
        operator = Caller(application(server))
        await send(world, "m1")
        await trio.sleep(10)
        assert {reason for reason, count in counts(server).items() if count} == {"fenced"}
        assert [one["reason"] for one in await explained(operator, "id=m1")] == ["fenced"]
        _, status = await operator.ask("GET", "/status")
        group = status["brokers"]["g1"]
        assert (group["state"], group["circuit"], group["fenced"]) == ("fenced", "open", 1)
        assert "never tried again" in group["circuit_reason"]


async def test_a_subject_all_of_which_is_dead_says_so() -> None:
    world = World()
    async with world.serving() as server:
        operator = await bury(world, server, "m1", "m2", "m3")
        _, about = await operator.ask("GET", "/explain?subject=s")
        assert (about["reason"], about["dead"], about["dead_complete"]) == ("dead", 3, True)
        _, about = await operator.ask("GET", "/explain?subject=other")
        assert (about["reason"], about["dead"]) == (None, 0)
        producer = await world.connect()
        await producer.send(make_item("later", world.now_ms + 60_000, subject="s"))
        await until(lambda: len(server.wheel))
        _, about = await operator.ask("GET", "/explain?subject=s")
        assert (about["reason"], about["in_wheel"], about["dead"]) == ("waiting", 1, 3)
        await operator.ask("PUT", "/controls/subjects/s", {"paused": True})
        _, about = await operator.ask("GET", "/explain?subject=s")
        assert (about["reason"], about["dead"]) == ("paused_subject", 3)


async def test_the_age_of_the_first_dead_letter_is_known_at_once() -> None:
    world = World()
    async with world.serving() as server:
        await trio.sleep(60)
        await bury(world, server, "m1")
        await trio.sleep(0.2)
        assert server.dead_letters.oldest_ms is not None
        assert world.now_ms - server.dead_letters.oldest_ms < 1000


async def test_a_subject_that_still_has_a_lane_and_nothing_in_it_waits_for_nothing() -> None:
    world = World()
    config = make_config(wheel=WheelConfig(lane_entries_min=10))
    world.broker.fails = lambda message_id: 3 if message_id.startswith(b"bad") else 0
    async with world.serving(config) as server:
        operator = Caller(application(server))
        producer = await world.connect()
        due_ms = world.now_ms + 1000
        for subject in ("bad", "good"):
            items = [make_item(f"{subject}{n}", due_ms, subject=subject) for n in range(300)]
            await producer.send(*items)
        await until(lambda: server.dead_letters.pending == 300)
        await until(lambda: len(world.broker.deliveries) == 300)
        found = {}
        for subject in ("bad", "good"):
            _, about = await operator.ask("GET", f"/explain?subject={subject}")
            assert about["lane"] is not None, "it was hot a moment ago"
            found[subject] = (about["reason"], about["held"], about["dead"])
        assert found == {"bad": ("dead", 0, 300), "good": (None, 0, 0)}


async def test_a_broker_that_is_away_is_named_though_there_is_a_limit() -> None:
    world = World()
    async with world.serving(has_broker=False) as server:
        operator = Caller(application(server))
        await operator.ask("PUT", "/controls/subjects/s", {"rate_per_s": 10_000})
        due_ms = world.now_ms + 500
        producer = await world.connect()
        for first in range(0, 4000, 500):
            items = [make_item(f"m{n}", due_ms, subject="s") for n in range(first, first + 500)]
            await producer.send(*items)
        await trio.sleep(600)
        found = {reason: count for reason, count in counts(server).items() if count}
        reasons = [(await explained(operator, f"id={one}"))[0]["reason"] for one in ("m0", "m3999")]
        assert (reasons, found) == (["circuit_open"] * 2, {"circuit_open": 4000})
