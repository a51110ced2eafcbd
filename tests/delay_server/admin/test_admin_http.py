"""Rules, planned stops and reasons, as an operator asks for them over HTTP."""

import math
from typing import Any

import pytest
import trio
from starlette.applications import Starlette

from delay_protocol.nodes.controls import GroupControl
from delay_server.admin.access import BODY_BYTES_MAX
from delay_server.admin.http import application
from tests import asgi
from tests.delay_server.server_rig import World, have_rules, make_item, until


class Caller:
    """A caller of the node's port, with its headers."""

    def __init__(self, app: Starlette, *, peer: str = "127.0.0.1", **headers: str) -> None:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        lines = {"host": "127.0.0.1:20811", **asgi.JSON, **given}
        self._caller = asgi.Caller(app, peer=peer, headers=lines)

    async def ask(
        self, method: str, target: str, body: object = None, *, raw: bytes | None = None
    ) -> tuple[int, Any]:
        path, _, query = target.partition("?")
        answer = await self._caller.ask(method, path, body, raw=raw, query=query)
        return answer.code, answer.json if answer.kind == "application/json" else answer.body


async def test_a_subject_is_paused_explained_and_resumed() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        await have_rules(server, "a.*")
        await world.keep(make_item("m1", world.now_ms + 500))
        await trio.sleep(2)
        _, answer = await operator.ask("GET", "/explain?id=m1")
        (message,) = answer["messages"]
        assert (message["reason"], message["subject"], message["group"]) == ("paused", "a.b", None)
        _, about = await operator.ask("GET", "/explain?subject=a.b")
        assert (about["reason"], about["rule"], about["left_on_disk"]) == ("paused", "a.*", 1)
        _, status = await operator.ask("GET", "/status")
        assert sum(status["undelivered"].values()) == 1
        assert (status["paused"]["messages"], status["paused"]["examples"]) == (1, ["a.b"])
        await have_rules(server)
        await until(lambda: world.broker.ids == ["m1"])
        _, controls = await operator.ask("GET", "/controls")
        assert (controls["version"], controls["subjects"]) == (2, {})
        assert controls["group_states"]["g1"]["state"] == "up"


async def test_what_a_broker_did_not_answer_for_is_in_doubt_until_one_answers() -> None:
    world = World()
    world.broker.answer_after_s = math.inf
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        await world.keep(*(make_item(f"m{n}", world.now_ms) for n in range(20)))
        await until(lambda: server.master.sender.in_flight == 20)
        _, about = await operator.ask("GET", "/explain?subject=a.b")
        assert (about["reason"], about["held"]) == ("in_flight", 20)
        assert server.master.sender.unsent().in_doubt == 0
        await have_rules(server, "a.b")
        await until(lambda: not server.master.sender.in_flight)
        assert server.master.sender.unsent().in_doubt == 20
        world.broker.answer_after_s = 0
        await have_rules(server)
        await until(lambda: not server.master.sender.unsent().total)
        assert server.master.sender.unsent().in_doubt == 0


async def test_a_node_that_has_not_begun_says_why() -> None:
    world = World()
    async with world.serving() as server:
        server._mastership, kept = None, server.master
        answer = await Caller(application(server.administered())).ask("GET", "/controls")
        server._mastership = kept
    assert (answer[0], answer[1]["error"]["code"]) == (503, "starting")
    assert "this node is not the master now: " in answer[1]["error"]["message"]


async def test_a_rate_of_a_group_holds_as_soon_as_it_is_set() -> None:
    world = World()
    async with world.serving() as server:
        await have_rules(server, groups={"g1": GroupControl(rate_per_s=2)})
        await world.keep(*(make_item(f"m{n}", world.now_ms) for n in range(60)))
        await trio.sleep(5)
        before = len(world.broker.deliveries)
        await trio.sleep(10)
        assert 18 <= len(world.broker.deliveries) - before <= 22
        await have_rules(server)
        await trio.sleep(2)
        assert len(world.broker.deliveries) == 60


@pytest.mark.parametrize(
    ("method", "target", "body", "code"),
    [
        ("GET", "/explain", None, 400),
        ("GET", "/explain?id=a&subject=b", None, 400),
        ("GET", "/explain?id=a&minute=-1", None, 400),
        ("GET", f"/explain?id=a&minute={2**63}", None, 400),
        ("POST", "/drain", {"seconds": 10**400}, 400),
        ("POST", "/drain", {"seconds": -1}, 400),
        ("POST", "/drain", {"seconds": 1e9}, 400),
        ("POST", "/drain", {"minutes": 1}, 400),
    ],
)
async def test_what_makes_no_sense_is_refused_with_a_reason_and_changes_nothing(
    method: str, target: str, body: object, code: int
) -> None:
    async with World().serving() as server:
        operator = Caller(application(server.administered()))
        found, answer = await operator.ask(method, target, body)
        assert found == code
        assert answer["error"]["message"]
        assert not server.stopping


async def test_a_body_that_is_no_json_or_too_long_is_refused() -> None:
    async with World().serving() as server:
        operator = Caller(application(server.administered()))
        assert (await operator.ask("POST", "/drain", raw=b"{"))[0] == 400
        too_long = b" " * (BODY_BYTES_MAX + 1)
        assert (await operator.ask("POST", "/drain", raw=too_long))[0] == 413


async def test_a_drain_stops_a_node_once_what_is_in_flight_is_answered() -> None:
    world = World()
    world.broker.answer_after_s = 0.5
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        await world.keep(
            make_item("m1", world.now_ms + 100), make_item("m2", world.now_ms + 600_000)
        )
        await trio.sleep(0.3)
        assert server.master.sender.in_flight == 1
        assert (await operator.ask("POST", "/drain", {"seconds": -1}))[0] == 400
        code, answer = await operator.ask("POST", "/drain", {"seconds": 2})
        assert (code, answer) == (200, {"stops": True, "in_flight": 1})
        await until(lambda: server.stopping)
        _, ready = await operator.ask("GET", "/readyz")
        assert "the server is stopping" in ready["failing"]
        await until(lambda: world.broker.ids == ["m1"])
