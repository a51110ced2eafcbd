"""Dead letters over HTTP: paging, filters, changes, and who is turned away."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette

from delay_protocol.basics.codes import ItemCode
from delay_server.admin.access import BODY_BYTES_MAX
from delay_server.admin.dead_http import SEQUENCES_MAX
from delay_server.admin.http import application
from delay_server.server import DelayServer
from tests.asgi import JSON, Caller
from tests.delay_server.server_rig import World, make_config, make_item, until


async def ask(
    app: Starlette,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    query: str = "",
    headers: Mapping[str, str] = JSON,
    peer: str = "127.0.0.1",
) -> tuple[int, Any]:
    """Return code and value of a JSON answer."""
    caller = Caller(app, peer=peer, headers=headers)
    # Without a length: how much it is shows only as it comes.
    answer = await caller.ask(method, path, query=query, pieces=[body])
    return answer.code, answer.json


async def post(app: Starlette, verb: str, body: object, **more: Any) -> tuple[int, Any]:  # noqa: ANN401
    """Ask for a change."""
    return await ask(app, "POST", f"/dead/{verb}", msgspec.json.encode(body), **more)


async def with_dead_letters(world: World, server: DelayServer, count: int) -> Starlette:
    """Have so many messages given up."""
    world.broker.fails = lambda _: ItemCode.SUBJECT_NOT_ASSIGNED
    producer = await world.connect()
    await producer.send(
        *(make_item(f"m{n}", world.now_ms, subject=f"s{n % 2}") for n in range(count))
    )
    await until(lambda: server.master.dead_letters.pending == count)
    world.broker.fails = lambda _: 0
    return application(server.administered())


async def test_pages_show_each_with_its_reason_and_go_on_where_they_stopped() -> None:
    world = World()
    async with world.serving() as server:
        app = await with_dead_letters(world, server, 25)
        seen: list[str] = []
        query = "limit=10"
        while True:
            code, page = await ask(app, "GET", "/dead", query=query)
            assert (code, page["pending"]) == (200, 25)
            seen += [row["message_id"] for row in page["items"]]
            if page["next"] is None:
                break
            query = f"limit=10&after={page['next']}"
        assert sorted(seen) == sorted(f"m{n}" for n in range(25))
        row = page["items"][0]
        assert (row["code"], row["code_name"], row["tries"]) == (3, "subject_not_assigned", 3)
        code, page = await ask(app, "GET", "/dead", query="subject=s1&code=subject_not_assigned")
        assert {row["subject"] for row in page["items"]} == {"s1"}
        assert len(page["items"]) == 12


async def test_one_is_shown_with_its_item_and_its_bytes_only_if_asked_for() -> None:
    world = World()
    async with world.serving() as server:
        app = await with_dead_letters(world, server, 1)
        _, page = await ask(app, "GET", "/dead")
        sequence = page["items"][0]["sequence"]
        code, shown = await ask(app, "GET", f"/dead/{sequence}")
        assert (code, shown["attributes"], shown["tries"]) == (200, {"k": "v"}, 3)
        assert "payload" not in shown
        _, shown = await ask(app, "GET", f"/dead/{sequence}", query="payload=1")
        assert shown["payload"]
        await post(app, "drop", {"sequences": [sequence]})
        for gone in (sequence, 999999):
            code, answer = await ask(app, "GET", f"/dead/{gone}")
            assert (code, answer["error"]["code"]) == (404, "unknown")


async def test_a_filter_changes_at_most_as_many_as_was_said_and_a_dry_run_none() -> None:
    world = World()
    async with world.serving() as server:
        app = await with_dead_letters(world, server, 10)
        asked = {"filter": {"subject": "s0"}, "max": 3}
        code, answer = await post(app, "requeue", asked | {"dry_run": True})
        assert (code, answer["matched"], answer["done"]) == (200, 3, 0)
        assert server.master.dead_letters.pending == 10
        code, answer = await post(app, "requeue", asked)
        assert (code, answer["matched"], answer["done"]) == (200, 3, 3)
        await until(lambda: len(world.broker.deliveries) == 3)
        _, answer = await post(app, "drop", {"filter": {}, "max": 2})
        behind = {"filter": {}, "max": 100, "after": answer["next"]}
        _, answer = await post(app, "drop", behind | {"dry_run": True})
        assert (answer["matched"], answer["next"]) == (5, None)
        code, answer = await post(app, "drop", behind)
        assert (answer["done"], answer["next"]) == (5, None)
        assert server.master.dead_letters.pending == 0


async def test_below_the_floor_of_free_disk_requeueing_is_refused_and_dropping_is_not() -> None:
    world = World()
    async with world.serving() as server:
        app = await with_dead_letters(world, server, 2)
        world.disk.capacity_bytes = sum(map(len, world.disk.contents().values())) + 5_000
        code, answer = await post(app, "requeue", {"filter": {}, "max": 1})
        assert (code, answer["error"]["code"], answer["done"]) == (507, "disk", 0)
        assert server.master.dead_letters.pending == 2
        code, answer = await post(app, "drop", {"filter": {}, "max": 2})
        assert (code, answer["done"]) == (200, 2)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, 400),
        ({"sequences": [1], "filter": {}}, 400),
        ({"filter": {}}, 400),
        ({"filter": {"color": "red"}, "max": 1}, 400),
        ({"filter": {"code": "nonsense"}, "max": 1}, 400),
        ({"filter": {}, "max": 0}, 400),
        ({"sequences": ["one"]}, 400),
        ({"sequences": list(range(SEQUENCES_MAX + 1))}, 400),
        ({"sequences": [2**63]}, 400),
        ({"sequences": [-1]}, 400),
        ({"sequences": [10**400]}, 400),
        ({"filter": {"due_from_ms": 2**63}, "max": 1}, 400),
        ({"filter": {"dead_until_ms": -1}, "max": 1}, 400),
        ({"filter": {"code": 10**400}, "max": 1}, 400),
        ({"filter": {"code": "9" * 5000}, "max": 1}, 400),
        ({"sequences": [1], "after": "elsewhere"}, 400),
        ({"sequences": [1], "after": 2**63}, 400),
        ({"sequences": [1], "padding": "x" * BODY_BYTES_MAX}, 413),
        ([], 400),
    ],
)
async def test_a_change_that_makes_no_sense_is_refused_with_a_sentence(
    body: object, code: int
) -> None:
    world = World()
    async with world.serving() as server:
        app = application(server.administered())
        for verb in ("drop", "requeue"):
            found, answer = await post(app, verb, body)
            assert found == code
            assert len(answer["error"]["message"]) > 10
        _, audit = await ask(app, "GET", "/controls/audit")
        assert audit["items"] == []


@pytest.mark.parametrize("number", ["99999999999999999999999", str(2**63), "9" * 5000, "x", "-1"])
async def test_a_number_that_no_dead_letter_has_is_refused(number: str) -> None:
    async with World().serving() as server:
        code, answer = await ask(application(server.administered()), "GET", f"/dead/{number}")
        assert (code, answer["error"]["code"]) == (400, "sequence")
        code, _ = await ask(application(server.administered()), "GET", f"/dead/{2**63 - 1}")
        assert code == 404


@pytest.mark.parametrize(
    "query",
    [
        *("limit=x", "colour=red", "after=1.2", "due_from_ms=-1"),
        *(f"due_until_ms={2**63}", f"after={2**63}", "code=" + "9" * 5000),
    ],
)
async def test_a_list_that_makes_no_sense_is_refused(query: str) -> None:
    async with World().serving() as server:
        code, _ = await ask(application(server.administered()), "GET", "/dead", query=query)
        assert code == 400


@pytest.mark.parametrize(
    ("headers", "peer", "code"),
    [
        ({"content-type": "text/plain"}, "127.0.0.1", 415),
        ({}, "127.0.0.1", 415),
        (JSON | {"origin": "http://evil.example"}, "127.0.0.1", 403),
        (JSON | {"host": "evil.example:20811"}, "127.0.0.1", 403),
        (JSON | {"sec-fetch-site": "cross-site"}, "127.0.0.1", 403),
        (JSON, "10.0.0.7", 403),
        (JSON | {"host": "localhost:20811", "origin": "http://localhost:20811"}, "::1", 200),
        (JSON | {"host": "[::1]:20811"}, "::ffff:127.0.0.1", 200),
    ],
)
async def test_only_this_machine_and_no_page_of_another_place_may_change_anything(
    headers: Mapping[str, str], peer: str, code: int
) -> None:
    async with World().serving() as server:
        app = application(server.administered())
        asked = {"filter": {}, "max": 1}
        found, _ = await post(app, "drop", asked, headers=headers, peer=peer)
        assert found == code


async def test_bodies_of_messages_are_shown_to_this_machine_only() -> None:
    async with World().serving() as server:
        app = application(server.administered())
        assert (await ask(app, "GET", "/dead", peer="10.0.0.7"))[0] == 403
        assert (await ask(app, "GET", "/dead", headers={"host": "evil.example"}))[0] == 403


async def test_before_it_has_recovered_a_server_says_so() -> None:
    app = application(World().server(make_config()).administered())
    code, answer = await ask(app, "GET", "/dead")
    assert (code, answer["error"]["code"]) == (503, "starting")


async def test_a_damaged_place_counts_once_however_often_it_is_looked_at() -> None:
    world = World()
    async with world.serving() as server:
        app = await with_dead_letters(world, server, 6)
        await server.node.checkpoints.write()
        path = next(p for p in world.disk.contents(durable=True) if p.endswith(".dead"))
        data = world.disk.contents(durable=True)[path]
        world.disk.damage(path, data.index(b"m4"), b"M")
        for _ in range(3):
            code, page = await ask(app, "GET", "/dead")
            assert (code, len(page["items"])) == (200, 6)
        code, answer = await post(app, "requeue", {"filter": {}, "max": 10})
        assert (code, len(answer["damaged"]) + answer["done"]) == (200, 6)
        assert answer["damaged"]
        assert server.damages.count == len(server.damages.first) == 1
