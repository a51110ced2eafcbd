"""Rules, planned stops and reasons, as an operator asks for them; who may, and what the log has."""

import math
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from delay_protocol.messages.items import decode_item
from delay_protocol.nodes.controls import GroupControl
from delay_server.admin.http import application
from tests.delay_server.dead_rig import Caller, bury, tokens
from tests.delay_server.server_rig import World, have_rules, make_config, make_item, until


async def test_a_subject_is_paused_explained_and_resumed() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        await have_rules(server, "a.*")
        await world.keep(make_item("m1", world.now_ms + 500))
        await trio.sleep(2)
        _, answer = await operator.ask("GET", "/find?id=m1")
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
    assert (answer[0], answer[1]["code"]) == (503, "starting")
    assert "this node is not the master now: " in answer[1]["detail"]


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
        ("GET", "/explain?id=a", None, 400),
        ("GET", "/find?id=a&minute=-1", None, 400),
        ("GET", f"/find?id=a&minute={2**63}", None, 400),
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
        assert answer["detail"]
        assert not server.stopping


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


async def test_every_endpoint_but_health_wants_a_token_for_what_it_does(tmp_path: Path) -> None:
    world = World()
    async with world.serving(make_config(admin=tokens(tmp_path / "tokens"))) as server:
        server.http_access.tokens.read()
        await bury(world, server, "m1", "m2")
        app = application(server.administered())
        callers = {
            "nobody": Caller(app),
            "wrong": Caller(app, authorization="Bearer x"),
            "reader": Caller(app, peer="10.0.0.9", authorization="Bearer r"),
            "admin": Caller(app, peer="10.0.0.9", host="n7:20811", authorization="Bearer a"),
        }
        reads, changes = (401, 401, 200, 200), (401, 401, 403, 200)
        for method, target, body, codes in (
            ("GET", "/livez", None, (200, 200, 200, 200)),
            ("GET", "/readyz", None, (200, 200, 200, 200)),
            ("GET", "/status", None, reads),
            ("GET", "/metrics", None, reads),
            ("GET", "/controls", None, reads),
            ("GET", "/dead", None, reads),
            ("GET", "/find?id=m1", None, reads),
            ("GET", "/find?id=m1&body=true", None, changes),
            ("GET", "/explain?subject=s", None, reads),
            ("GET", "/list?subject=s", None, reads),
            ("GET", "/count", None, reads),
            ("POST", "/dead/requeue", {"subject": "s"}, changes),
            ("POST", "/dead/drop", {"subject": "s"}, changes),
            ("POST", "/clock/accept", {}, changes),
            ("POST", "/controls/follow", {}, (401, 401, 403, 409)),
            ("POST", "/drain", {"seconds": 0}, changes),
        ):
            found = [(await caller.ask(method, target, body))[0] for caller in callers.values()]
            assert found == list(codes), target


async def test_the_log_says_who_requeued_and_dropped_what_and_how_many(tmp_path: Path) -> None:
    world = World()
    config = make_config(admin=tokens(tmp_path / "tokens"))
    with capture_logs() as lines:
        async with world.serving(config) as server:
            server.http_access.tokens.read()
            await bury(world, server, *(f"m{number}" for number in range(30)))
            operator = Caller(
                application(server.administered()), peer="10.0.0.9", authorization="Bearer a"
            )
            first = (await operator.ask("GET", "/dead", None))[1]["items"][0]["sequence"]
            sequences = [first, *range(1000, 1198)]
            _, answer = await operator.ask("POST", "/dead/requeue", {"sequences": sequences})
            assert (answer["done"], answer["missing"]) == (1, sequences[1:])
            assert (await operator.ask("POST", "/dead/drop", {"subject": "s"}))[1]["done"] == 29
    named = " ".join(map(str, sequences[:20])) + " and 179 more"
    assert [
        (line["who"], line["peer"], line["event"], line["meant"], line.get("count"))
        for line in lines
        if "who" in line
    ] == [
        ("adam", "10.0.0.9", "requeue dead letters", named, None),
        ("adam", "10.0.0.9", "requeued dead letters", named, 1),
        ("adam", "10.0.0.9", "drop dead letters", "subject s", None),
        ("adam", "10.0.0.9", "dropped dead letters", "subject s", 29),
    ]


async def test_dead_letters_are_requeued_for_a_time_and_a_rate() -> None:
    world = World()
    async with world.serving() as server:
        ids = [f"m{number}" for number in range(6)]
        operator = await bury(world, server, *ids)
        begun_ms = world.now_ms
        first_ms = begun_ms + 3_600_000
        horizon_ms = server.config.admission.horizon_ms
        for bad in (
            {"due_ms": begun_ms + horizon_ms + 1000},
            {"due_ms": 10**30},
            {"due_ms": -1},
            {"rate_per_s": 1e-9},
            {"rate_per_s": 0},
        ):
            code, answer = await operator.ask("POST", "/dead/requeue", {"subject": "s", **bad})
            assert (code, answer["code"]) == (400, "bad-value"), bad
        # Dropping knows neither.
        code, _ = await operator.ask("POST", "/dead/drop", {"subject": "s", "due_ms": first_ms})
        assert code == 400
        assert server.master.dead_letters.pending == 6

        meant = {"subject": "s", "due_ms": first_ms, "rate_per_s": 4}
        assert (await operator.ask("POST", "/dead/requeue", meant))[1]["done"] == 6
        await trio.sleep(3599)
        assert world.broker.ids == []
        await trio.sleep(3)
        arrived = world.broker.deliveries
        dues = [first_ms + 250 * place for place in range(6)]
        assert sorted(one.message_id for one in arrived) == ids
        assert sorted(decode_item(one.data).due_ms for one in arrived) == dues
        assert all(one.due_ms <= one.at_ms <= one.due_ms + 100 for one in arrived)

        # A rate alone begins now.
        operator = await bury(world, server, "n0", "n1")
        await operator.ask("POST", "/dead/requeue", {"subject": "s", "rate_per_s": 0.1})
        await until(lambda: "n0" in world.broker.ids, seconds=2)
        await trio.sleep(8)
        assert "n1" not in world.broker.ids
        await until(lambda: "n1" in world.broker.ids, seconds=4)
