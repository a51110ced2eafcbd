"""Health, status, metrics and the operator's word, as any HTTP client gets them."""

from typing import Any

import trio
from starlette.applications import Starlette

from delay_server.admin.http import application
from delay_server.settings.config import ListenerConfig
from tests.asgi import Caller
from tests.delay_server.server_rig import World, make_config, make_item, until


async def get(app: Starlette, path: str) -> tuple[int, Any]:
    """Return code and value of a JSON answer."""
    answer = await Caller(app).ask("GET", path)
    assert answer.kind == "application/json"
    return answer.code, answer.json


async def test_a_server_that_starts_lives_but_is_not_ready() -> None:
    app = application(World().server(make_config()).administered())
    assert await get(app, "/livez") == (200, {"live": True})
    assert await get(app, "/readyz") == (
        503,
        {"ready": False, "failing": ["recovery has not finished"]},
    )
    code, status = await get(app, "/status")
    assert (code, status["ready"]) == (200, False)
    answer = await Caller(app).ask("GET", "/metrics")
    assert (answer.code, answer.kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"delaywheel_accepted_total 0.0" in answer.body


async def test_a_server_that_serves_is_ready_and_shows_its_numbers() -> None:
    world = World()
    async with world.serving() as server:
        app = application(server.administered())
        assert await get(app, "/readyz") == (200, {"ready": True, "failing": []})
        await world.keep(make_item("m1", world.now_ms + 1000))
        await until(lambda: world.broker.ids == ["m1"])
        await trio.sleep(1)
        code, status = await get(app, "/status")
        assert (code, status["accepted"], status["dispatched"]) == (200, 1, {"delivered": 1})
        metrics = (await Caller(app).ask("GET", "/metrics")).body
        assert b'delaywheel_dispatched_total{outcome="delivered"} 1.0' in metrics


async def test_a_server_whose_places_are_taken_says_so_and_serves_who_comes() -> None:
    world = World()
    config = make_config(listener=ListenerConfig(connections_max=3))
    async with world.serving(config) as server:
        app = application(server.administered())
        _idle = [await world.connect() for _ in range(3)]
        await until(lambda: server.connections == 3)
        code, answer = await get(app, "/readyz")
        assert (code, "all 3 connections are taken" in answer["failing"][0]) == (503, True)
        await world.keep(make_item("m1", world.now_ms))
        await until(lambda: world.broker.ids == ["m1"])


async def test_an_operator_releases_a_clock_that_stepped_and_only_by_post() -> None:
    world = World()
    world.clock.is_synchronised = False
    async with world.serving() as server:
        app = application(server.administered())
        await world.keep(make_item("m1", world.now_ms + 90_000))
        await trio.sleep(5)
        world.clock.step(3_600_000)
        await trio.sleep(200)
        assert world.broker.ids == []
        code, answer = await get(app, "/readyz")
        assert code == 503
        assert "the clock is not trusted" in answer["failing"][0]
        assert (await Caller(app).ask("GET", "/clock/accept")).code == 405
        await trio.sleep(5)
        assert world.broker.ids == []
        accepted = await Caller(app).ask("POST", "/clock/accept")
        assert (accepted.code, accepted.json) == (200, {"clock_held": False})
        await until(lambda: world.broker.ids == ["m1"], seconds=2)
        assert (await get(app, "/readyz"))[0] == 200
