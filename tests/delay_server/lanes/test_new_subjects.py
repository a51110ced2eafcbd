"""A flood of new subjects from one producer: it is put off, and others' subjects are on time."""

from collections import Counter

import pytest
import trio

from delay_protocol.basics.codes import ItemCode
from delay_server import mastership
from delay_server.admin.status import failing_checks, status_of
from delay_server.dead.reason import code_name, decode_reason
from delay_server.lanes.new_subjects import BURST, CONNECTION_SHARE
from delay_server.settings.config import RoutesConfig
from tests.delay_server.route_rig import RouteWorld, routed_config
from tests.delay_server.server_rig import MINUTE_MS, World, make_item, until

REQUEST_ITEMS = 500


async def flood(world: World, count: int, due_ms: int) -> Counter[int]:
    """Send messages of as many new subjects by one producer; return the item codes."""
    producer = await world.connect()
    codes: Counter[int] = Counter()
    for first in range(0, count, REQUEST_ITEMS):
        some = range(first, min(first + REQUEST_ITEMS, count))
        items = [make_item(f"f{n}", due_ms, subject=f"flood.{n}") for n in some]
        refused = await producer.send(*items)
        codes.update(code for code, _ in refused.values())
        codes[0] += len(items) - len(refused)
    return codes


async def test_a_flood_of_new_subjects_is_put_off_and_others_are_not() -> None:
    world = RouteWorld()
    share = int(BURST * CONNECTION_SHARE)
    async with world.routing() as (server, _):
        producer = await world.connect()
        known = [f"known.{n}" for n in range(5)]
        items = [make_item(f"a.{s}", world.now_ms, subject=s) for s in known]
        assert await producer.send(*items) == {}
        codes = await flood(world, 10_000, world.now_ms + 60 * MINUTE_MS)
        # What was refused is to be sent again.
        assert set(codes) == {0, ItemCode.STORE_ERROR}
        assert share <= codes[0] < 1.3 * share
        assert server.master.targets.new_subjects is not None
        assert server.master.targets.new_subjects.put_off_count >= codes[ItemCode.STORE_ERROR]
        assert not failing_checks(server.observe())
        # Not those that are known, of anybody; nor the new ones of another producer.
        due_ms = world.now_ms + 500
        subjects = [*known, *(f"new.{n}" for n in range(5))]
        items = [make_item(f"b.{s}", due_ms, subject=s) for s in subjects]
        assert await producer.send(*items) == {}
        await until(lambda: world.taken == 15, seconds=2)
        # After a while there is room for some more.
        await trio.sleep(200)
        assert (await flood(world, 1000, world.now_ms + 60 * MINUTE_MS))[0] == 1000


async def test_a_restarted_server_takes_the_subjects_whose_rows_it_holds() -> None:
    world = RouteWorld()
    count = int(BURST * CONNECTION_SHARE)
    async with world.routing():
        assert await flood(world, count, world.now_ms + 2 * MINUTE_MS) == {0: count}
    async with world.routing() as (server, _):
        await until(lambda: server.master.loader.held >= count)
        assert await flood(world, count, world.now_ms + 2 * MINUTE_MS) == {0: count}
        new = [make_item(f"n{n}", world.now_ms, subject=f"new.{n}") for n in range(100)]
        assert await (await world.connect()).send(*new) == {}


async def test_a_subject_that_the_meta_server_refuses_for_good_makes_dead_letters() -> None:
    world = RouteWorld()
    world.meta.refused.add("bad")
    async with world.routing() as (server, _):
        producer = await world.connect()
        items = [make_item(f"m{n}", world.now_ms, subject="bad") for n in range(2000)]
        assert await producer.send(*items, make_item("w", world.now_ms, subject="well")) == {}
        await until(lambda: server.master.dead_letters.pending == 2000, seconds=20)
        assert status_of(server.observe())["unrouted_subjects"] == 0
        await until(lambda: world.ids() == ["w"])
        await until(lambda: not server.master.lanes.parked.anyone_waits)
        letters = server.master.dead_letters
        await letters.until_read()
        text, *_ = await letters.read(letters.listed()[:1], lambda _, found: found.reason)
        reason = decode_reason((text or "").encode())
        assert reason is not None
        assert (reason.group, code_name(reason.code)) == ("meta server", "subject_not_assigned")
        # None comes back after a restart; what comes of it later goes the same way at once.
    async with world.routing() as (server, _):
        assert server.master.dead_letters.pending == 2000
        producer = await world.connect()
        assert await producer.send(make_item("n", world.now_ms, subject="bad")) == {}
        await until(lambda: server.master.dead_letters.pending == 2001, seconds=5)
        # The meta server changes its mind.
        world.meta.refused.clear()
        routes = server.master.targets.routes
        assert routes is not None
        await until(lambda: routes.routes == 1, seconds=70)
        assert await producer.send(make_item("o", world.now_ms, subject="bad")) == {}
        await until(lambda: world.ids() == ["w", "o"])


async def test_a_refused_subject_is_refused_as_long_as_it_comes_and_taken_once_it_is_entered() -> (
    None
):
    world = RouteWorld()
    world.meta.refused.add("bad")
    async with world.routing() as (server, _):
        producer, routes = await world.connect(), server.master.targets.routes
        assert routes is not None
        assert await producer.send(make_item("m", world.now_ms, subject="bad")) == {}
        await until(lambda: server.master.dead_letters.pending == 1)
        # For longer than a subject is kept that nobody uses.
        for number in range(20):
            await trio.sleep(60)
            item = make_item(f"m{number}", world.now_ms, subject="bad")
            beside = [make_item(f"w{number}", world.now_ms, subject="well")] * (number % 2)
            [(code, remark)] = (await producer.send(item, *beside)).values()
            assert code == ItemCode.SUBJECT_NOT_ASSIGNED
            assert "an operator has to enter it" in remark
        assert server.master.dead_letters.pending == 1
        world.meta.refused.clear()
        await trio.sleep(61)
        assert await producer.send(make_item("o", world.now_ms, subject="bad")) == {}
        await until(lambda: "o" in world.ids())


async def test_where_there_are_too_many_dead_letters_what_is_refused_waits_on_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mastership, "PENDING_MAX", 5)
    world = RouteWorld()
    world.meta.refused.add("bad")
    async with world.routing() as (server, _):
        producer = await world.connect()
        items = [make_item(f"m{n}", world.now_ms, subject="bad") for n in range(5)]
        more = [make_item(f"n{n}", world.now_ms + 2000, subject="bad") for n in range(5)]
        assert await producer.send(*items, *more) == {}
        await until(lambda: server.master.dead_letters.pending == 5)
        assert await producer.send(make_item("w", world.now_ms + 3000, subject="well")) == {}
        await until(lambda: world.ids() == ["w"])
        await trio.sleep(100)
        assert server.master.dead_letters.pending == 5
        assert status_of(server.observe())["unrouted_subjects"] == 0
        letters = server.master.dead_letters
        assert (await letters.drop(letters.listed()[:3])).done == 3
        await until(lambda: server.master.dead_letters.pending >= 5)


async def test_with_all_places_taken_the_node_says_so() -> None:
    world = RouteWorld()
    world.meta.rest = None
    config = routed_config(routes=RoutesConfig(subjects_max=20))
    async with world.routing(config) as (server, _):
        producer = await world.connect()
        items = [make_item(f"m{n}", world.now_ms, subject=f"s{n}") for n in range(9)]
        assert await producer.send(*items) == {}
        await until(lambda: status_of(server.observe())["unrouted_subjects"] == 9)
        assert failing_checks(server.observe()) == []
        assert await producer.send(make_item("m", world.now_ms, subject="s")) == {}
        await until(lambda: failing_checks(server.observe()))
        assert "10 subjects wait for a route" in failing_checks(server.observe())[0]
