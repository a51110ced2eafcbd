"""Discovery, health and status, as any HTTP client gets them."""

from typing import Any

import pytest
from starlette.applications import Starlette

from meta_server.server import MetaServer
from meta_server.settings.config import DelayConfig, ListenerConfig, MetaServerConfig
from tests.asgi import Caller
from tests.kit.operator import app_of, starting_app
from tests.meta_server.meta_rig import HOST, PORT, World, broker, make_config, node, until


async def get(app: Starlette, path: str, **query: str) -> tuple[int, Any]:
    """Return code and value of a JSON answer."""
    answer = await Caller(app).ask("GET", path, query=query)
    assert answer.kind == "application/json"
    return answer.code, answer.json


async def text(server: MetaServer, path: str, **query: str) -> str:
    """Return a plain text."""
    caller = Caller(app_of(server), server="10.0.0.7")
    answer = await caller.ask("GET", path, query=query)
    assert (answer.code, answer.kind) == (200, "text/plain; charset=utf-8")
    return answer.body.decode()


def listening(**listener: Any) -> MetaServerConfig:  # noqa: ANN401 (fields of a section)
    """Return the settings of a server that listens so."""
    return make_config(listener=ListenerConfig(**listener))


@pytest.mark.parametrize(
    ("config", "address"),
    [
        (listening(), "127.0.0.1:20880"),
        (listening(address="0.0.0.0:20880"), "10.0.0.7:20880"),
        (listening(address="[::]:20880"), "10.0.0.7:20880"),
        (listening(advertised="meta.example:99"), "meta.example:99"),
    ],
)
async def test_what_is_advertised_is_what_others_can_reach(
    server: MetaServer, address: str
) -> None:
    assert await text(server, "/meta/address") == address


@pytest.mark.parametrize("config", [make_config(delay=DelayConfig(levels="1s 5m"))])
async def test_the_delays_of_levels_are_told_with_the_address(server: MetaServer) -> None:
    answer = await Caller(app_of(server)).ask("GET", "/meta/address")
    assert (answer.code, answer.headers["delaywheel-levels"]) == (200, "1s 5m")


async def test_a_server_that_starts_lives_but_is_not_ready_and_tells_no_address() -> None:
    app = starting_app()
    assert await get(app, "/livez") == (200, {"live": True})
    code, body = await get(app, "/readyz")
    assert (code, body["failing"]) == (503, ["the store has not been loaded"])
    assert (await Caller(app).ask("GET", "/meta/address")).code == 503
    assert (await get(app, "/status"))[0] == 200
    assert (await Caller(app).ask("GET", "/metrics")).code == 200


async def test_readiness_says_that_the_store_is_away(world: World, server: MetaServer) -> None:
    app = app_of(server)
    assert await get(app, "/readyz") == (200, {"ready": True, "failing": []})
    world.medium.is_down = True
    await until(lambda: server.committer.is_stale)
    code, body = await get(app, "/readyz")
    assert code == 503
    assert "known routes are served" in body["failing"][0]


@pytest.mark.parametrize("config", [listening(address=f"{HOST}:{PORT}", connections_max=3)])
async def test_readiness_says_that_all_places_are_taken(world: World, server: MetaServer) -> None:
    _idle = [await world.connect() for _ in range(3)]
    listener = server.listener
    assert listener is not None
    await until(lambda: listener.open_connections == 3)
    code, body = await get(app_of(server), "/readyz")
    assert (code, "all 3 connections" in body["failing"][0]) == (503, True)


async def test_the_status_has_figures_and_where_it_listens(
    world: World, server: MetaServer
) -> None:
    peer = await world.registered(node())
    await peer.broker(broker())
    await peer.node(node("n2", storage=2, last_sequence=0, address="10.0.0.6:20801"))
    await peer.register("a.b")
    code, status = await get(app_of(server), "/status")
    assert code == 200
    assert (status["subjects"], status["routes"], status["subscriptions"]) == (1, 1, 1)
    assert status["listen"] == "127.0.0.1:20880"
    assert (status["ready"], status["delay_nodes"]) == (True, 2)
