"""Pauses, limits, planned stops and reasons, as an operator asks for them over HTTP."""

import math
from typing import Any

import pytest
import trio
from starlette.applications import Starlette

from delay_protocol.nodes.controls import GroupControl, SubjectControl
from delay_server.admin.access import BODY_BYTES_MAX
from delay_server.admin.http import application
from storage.state.audit_file import audit_path
from tests import asgi
from tests.delay_server.server_rig import World, make_item, until


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


async def test_a_subject_is_paused_explained_and_resumed_and_the_audit_says_by_whom() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        code, answer = await operator.ask("PATCH", "/controls/subjects/a.*", {"paused": True})
        assert (code, answer["version"], answer["rule"]["paused"]) == (200, 1, True)
        await world.keep(make_item("m1", world.now_ms + 500))
        await trio.sleep(2)
        code, answer = await operator.ask("GET", "/explain?id=m1")
        (message,) = answer["messages"]
        assert (message["reason"], message["subject"], message["group"]) == ("paused", "a.b", None)
        _, about = await operator.ask("GET", "/explain?subject=a.b")
        assert (about["reason"], about["rule"], about["left_on_disk"]) == ("paused", "a.*", 1)
        _, status = await operator.ask("GET", "/status")
        assert sum(status["undelivered"].values()) == 1
        assert (status["paused"]["messages"], status["paused"]["examples"]) == (1, ["a.b"])
        code, answer = await operator.ask("DELETE", "/controls/subjects/a.*")
        assert (code, answer["rule"]) == (200, None)
        await until(lambda: world.broker.ids == ["m1"])
        _, controls = await operator.ask("GET", "/controls")
        assert (controls["version"], controls["subjects"]) == (2, {})
        assert controls["group_states"]["g1"]["state"] == "up"
        _, audit = await operator.ask("GET", "/controls/audit?limit=5")
        first = audit["items"][0]
        assert (first["who"], first["peer"], first["action"], first["target"]) == (
            "loopback",
            "127.0.0.1",
            "remove subject",
            "a.*",
        )
        assert (first["before"]["paused"], first["after"]) == (True, None)
        assert len(audit["items"]) == 2


async def test_fields_that_are_not_named_stay_and_a_whole_rule_replaces() -> None:
    async with World().serving() as server:
        operator = Caller(application(server.administered()))
        rule = "/controls/subjects/a"
        await operator.ask("PUT", rule, {"rate_per_s": 5})
        await operator.ask("PATCH", rule, {"paused": True})
        expected = SubjectControl(paused=True, rate_per_s=5)
        assert server.master.outlet.applied.subjects == {"a": expected}
        await operator.ask("PATCH", rule, {"rate_per_s": None})
        assert server.master.outlet.applied.subjects == {"a": SubjectControl(paused=True)}
        await operator.ask("PUT", rule, {"rate_per_s": 7})
        assert server.master.outlet.applied.subjects == {"a": SubjectControl(rate_per_s=7)}
        group = "/controls/groups/g1"
        await operator.ask("PUT", group, {"weight": 2.5, "paused": True})
        (status,) = server.master.sender.status()
        assert (status.name, status.weight, status.rule.paused) == ("g1", 2.5, True)
        await operator.ask("DELETE", group)
        assert server.master.outlet.applied.groups == {}
        (status,) = server.master.sender.status()
        assert (status.weight, status.rule.paused) == (1.0, False)


async def test_to_take_away_a_limit_that_is_none_excepts_from_no_pause() -> None:
    async with World().serving() as server:
        operator = Caller(application(server.administered()))
        await operator.ask("PUT", "/controls/subjects/a.*", {"paused": True})
        pause = {"a.*": SubjectControl(paused=True)}
        code, answer = await operator.ask("PATCH", "/controls/subjects/a.b", {"rate_per_s": None})
        assert (code, answer["rule"]) == (200, None)
        assert server.master.outlet.applied.subjects == pause
        await operator.ask("PATCH", "/controls/subjects/a.b", {"paused": False})
        excepted = pause | {"a.b": SubjectControl()}
        assert server.master.outlet.applied.subjects == excepted
        await operator.ask("PATCH", "/controls/subjects/a.b", {"rate_per_s": None})
        assert server.master.outlet.applied.subjects == excepted
        await operator.ask("PATCH", "/controls/subjects/a.*", {"paused": False})
        assert server.master.outlet.applied.subjects == {}


async def test_a_subject_that_was_paused_leaves_no_faster_than_its_prefix_when_resumed() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        await operator.ask("PUT", "/controls/subjects/a.*", {"rate_per_s": 5})
        await operator.ask("PATCH", "/controls/subjects/a.b", {"paused": True})
        await world.keep(*(make_item(f"m{n}", world.now_ms) for n in range(100)))
        await trio.sleep(1)
        await operator.ask("PATCH", "/controls/subjects/a.b", {"paused": False})
        await trio.sleep(4)
        assert 10 <= len(world.broker.ids) <= 40


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
        await operator.ask("PUT", "/controls/subjects/a.b", {"paused": True})
        await until(lambda: not server.master.sender.in_flight)
        assert server.master.sender.unsent().in_doubt == 20
        world.broker.answer_after_s = 0
        await operator.ask("DELETE", "/controls/subjects/a.b")
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
        operator = Caller(application(server.administered()))
        await operator.ask("PUT", "/controls/groups/g1", {"rate_per_s": 2})
        await world.keep(*(make_item(f"m{n}", world.now_ms) for n in range(60)))
        await trio.sleep(5)
        before = len(world.broker.deliveries)
        await trio.sleep(10)
        assert 18 <= len(world.broker.deliveries) - before <= 22
        await operator.ask("PATCH", "/controls/groups/g1", {"rate_per_s": None})
        await trio.sleep(2)
        assert len(world.broker.deliveries) == 60


@pytest.mark.parametrize(
    ("method", "target", "body", "code"),
    [
        ("PUT", "/controls/subjects/a", {"paused": 1}, 400),
        ("PUT", "/controls/subjects/a", {"pausd": True}, 400),
        ("PUT", "/controls/subjects/a", {"rate_per_s": 0}, 400),
        ("PUT", "/controls/subjects/a", {"rate_per_s": -1}, 400),
        ("PUT", "/controls/subjects/a", [], 400),
        ("PUT", "/controls/subjects/" + "a" * 3000, {"paused": True}, 400),
        ("PUT", "/controls/subjects/", {"paused": True}, 400),
        ("PUT", "/controls/groups/g", {"weight": 0}, 400),
        ("PATCH", "/controls/groups/g", {"version": 3}, 400),
        ("DELETE", "/controls/subjects/nobody", None, 404),
        ("PUT", "/controls/subjects/a?version=7", {"paused": True}, 409),
        ("PUT", "/controls/subjects/a?version=x", {"paused": True}, 400),
        ("GET", "/explain", None, 400),
        ("GET", "/explain?id=a&subject=b", None, 400),
        ("GET", "/explain?id=a&minute=-1", None, 400),
        ("GET", "/controls/audit?limit=9999999", None, 400),
        ("GET", f"/explain?id=a&minute={2**63}", None, 400),
        ("PUT", f"/controls/subjects/a?version={10**30}", {"paused": True}, 400),
        ("PUT", "/controls/subjects/a", {"rate_per_s": 10**400}, 400),
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
        assert server.master.outlet.applied.version == 0
        assert not server.stopping


@pytest.mark.parametrize("name", ["\0\n", "x\ny", "\n", "order.*\n", "a/b"])
async def test_a_rule_is_that_of_exactly_the_name_in_the_path(name: str) -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        code, answer = await operator.ask("PUT", f"/controls/subjects/{name}", {"paused": True})
        assert (code, answer["subject"]) == (200, name)
        _, controls = await operator.ask("GET", "/controls")
        assert list(controls["subjects"]) == [name]
        assert server.master.lane_rules.is_paused(name)
        code, _ = await operator.ask("PATCH", f"/controls/subjects/{name}", {"paused": False})
        assert (code, server.master.outlet.applied.subjects) == (200, {})


async def test_a_rule_for_a_group_that_is_not_there_is_kept_and_said() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        for name, is_known in (("nope", False), ("g1", True)):
            _, answer = await operator.ask("PATCH", f"/controls/groups/{name}", {"paused": True})
            assert (answer["rule"]["paused"], answer["is_known"]) == (True, is_known)
        assert server.master.outlet.applied.groups.keys() == {"nope", "g1"}


async def test_damaged_lines_of_the_audit_are_told_at_the_start_and_beside_the_others() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        for name in "abc":
            await operator.ask("PUT", f"/controls/subjects/{name}", {"paused": True})
        assert server.damages.count == 0
    place = world.disk.contents()[audit_path(1)].index(b'"target":"b"')
    world.disk.damage(audit_path(1), place, b"X")
    async with world.serving() as server:
        assert (server.damages.count, server.damages.first[0].path) == (1, audit_path(1))
        operator = Caller(application(server.administered()))
        for _ in range(3):
            _, audit = await operator.ask("GET", "/controls/audit")
            assert [one["target"] for one in audit["items"]] == ["c", "a"]
            [damage] = audit["damages"]
            assert damage["position"] <= place < damage["position"] + damage["bytes"]
        assert server.damages.count == 1


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e400", b'"nan"'])
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_a_number_that_is_none_takes_no_limit_and_no_weight_away(
    method: str, number: bytes
) -> None:
    async with World().serving() as server:
        operator = Caller(application(server.administered()))
        for path, name in (
            ("/controls/subjects/a", "rate_per_s"),
            ("/controls/groups/g1", "rate_per_s"),
            ("/controls/groups/g1", "weight"),
        ):
            await operator.ask("PATCH", path, {name: 7})
            raw = b'{"%s":%s}' % (name.encode(), number)
            assert (await operator.ask(method, path, raw=raw))[0] == 400
        assert server.master.outlet.applied.subjects["a"] == SubjectControl(rate_per_s=7)
        assert server.master.outlet.applied.groups["g1"] == GroupControl(rate_per_s=7, weight=7)
        raw = b'{"seconds":%s}' % number
        assert (await operator.ask("POST", "/drain", raw=raw))[0] == 400


async def test_a_body_that_is_no_json_or_too_long_is_refused() -> None:
    async with World().serving() as server:
        operator = Caller(application(server.administered()))
        assert (await operator.ask("PUT", "/controls/subjects/a", raw=b"{"))[0] == 400
        too_long = b" " * (BODY_BYTES_MAX + 1)
        assert (await operator.ask("PUT", "/controls/subjects/a", raw=too_long))[0] == 413


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
    async with world.serving() as server:
        _, audit = await Caller(application(server.administered())).ask("GET", "/controls/audit")
        assert [row["action"] for row in audit["items"]] == ["drain"]
