"""Discovery, health and status, as any HTTP client gets them."""

from typing import Any

import pytest
import trio
from starlette.applications import Starlette

from delay_transport.seams.errors import ListenError
from meta_server.process import serve_http
from meta_server.server import MetaServer
from meta_server.settings.config import HttpConfig, ListenerConfig
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


async def test_the_address_is_plain_text_without_a_newline(server: MetaServer) -> None:
    assert await text(server, "/meta/address") == "127.0.0.1:20880"


@pytest.mark.parametrize(
    ("listener", "address"),
    [
        (ListenerConfig(address="0.0.0.0:20880"), "10.0.0.7:20880"),
        (ListenerConfig(address="[::]:20880"), "10.0.0.7:20880"),
        (ListenerConfig(advertised="meta.example:99"), "meta.example:99"),
    ],
)
async def test_what_is_advertised_is_what_others_can_reach(
    listener: ListenerConfig, address: str
) -> None:
    world = World()
    async with world.serving(make_config(listener=listener)) as server:
        assert await text(server, "/meta/address") == address


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


async def test_readiness_says_that_all_places_are_taken() -> None:
    world = World()
    few = ListenerConfig(address=f"{HOST}:{PORT}", connections_max=3)
    async with world.serving(make_config(listener=few)) as server:
        _idle = [await world.connect() for _ in range(3)]
        listener = server.listener
        assert listener is not None
        await until(lambda: listener.open_connections == 3)
        code, body = await get(app_of(server), "/readyz")
        assert (code, "all 3 connections" in body["failing"][0]) == (503, True)


async def test_what_is_nearly_a_path_leads_nowhere(server: MetaServer) -> None:
    for path in ("/status/", "/meta/address/", "/api/v1/", "/api/v1/broker-groups/"):
        assert (await Caller(app_of(server)).ask("GET", path)).code == 404


async def test_the_status_says_who_is_alive_and_who_accepts_nothing(
    world: World, server: MetaServer
) -> None:
    peer = await world.connect()
    await peer.broker(broker())
    await peer.node(node())
    await peer.node(node("n2", storage=2, last_sequence=0, address="10.0.0.6:20801"))
    await peer.register("a.b")
    code, status = await get(app_of(server), "/status")
    assert code == 200
    assert (status["subjects"], status["routes"], status["subscriptions"]) == (1, 1, 1)
    assert status["listen"] == "127.0.0.1:20880"
    states = {group["name"]: (group["kind"], group["state"]) for group in status["groups"]}
    assert states == {"g1": ("normal", "RW"), "d1": ("delay", "NRW")}
    [group] = status["delay_groups"]
    assert (group["epoch"], group["master"], group["in_sync"], group["min_isr"]) == (
        1,
        "n1",
        ["n1"],
        1,
    )
    first, second = group["nodes"]
    assert (first["role"], first["in_sync"], first["accepts"]) == ("master", True, True)
    assert (second["role"], second["in_sync"], second["accepts"]) == ("slave", False, False)
    assert "may lack messages" in second["note"]


async def test_nothing_is_changed_where_something_is_asked(server: MetaServer) -> None:
    assert (await Caller(app_of(server)).ask("POST", "/meta/address")).code == 405


def test_it_is_served_on_a_real_socket_and_an_address_in_use_is_said() -> None:
    async def main() -> None:
        server = World().server()
        async with trio.open_nursery() as nursery:
            address = await nursery.start(serve_http, server, HttpConfig(address="127.0.0.1:0"))
            host, port = address.rsplit(":", 1)
            answer = b""
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await stream.send_all(
                    b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                )
                while data := await stream.receive_some():
                    answer += data
            assert answer.startswith(b"HTTP/1.1 200")
            with pytest.raises(ListenError):
                await nursery.start(serve_http, server, HttpConfig(address=address))
            nursery.cancel_scope.cancel()

    trio.run(main)
