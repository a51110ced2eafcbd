"""One rule for the port: who may do what, and what the log says of it."""

from pathlib import Path

from structlog.testing import capture_logs

from delay_server.admin.http import application
from tests.delay_server.admin.test_admin_http import Caller
from tests.delay_server.dead_rig import bury, tokens
from tests.delay_server.server_rig import World, make_config


async def test_every_endpoint_but_health_wants_a_token_for_what_it_does(tmp_path: Path) -> None:
    world = World()
    async with world.serving(make_config(admin=tokens(tmp_path / "tokens"))) as server:
        server.tokens.read()
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
            ("GET", "/explain?id=m1", None, reads),
            ("POST", "/dead/requeue", {"subject": "s"}, changes),
            ("POST", "/dead/drop", {"subject": "s"}, changes),
            ("POST", "/clock/accept", {}, changes),
            ("POST", "/controls/follow", {}, (401, 401, 403, 409)),
            ("POST", "/drain", {"seconds": 0}, changes),
        ):
            found = [(await caller.ask(method, target, body))[0] for caller in callers.values()]
            assert found == list(codes), target


async def test_without_tokens_only_this_machine_may_and_no_page_of_another_place() -> None:
    async with World().serving() as server:
        app = application(server.administered())
        page = Caller(app, origin="http://evil.example")
        for stranger in (Caller(app, peer="10.0.0.9"), Caller(app, host="evil.example"), page):
            assert (await stranger.ask("POST", "/controls/follow", {}))[0] == 403
            assert (await stranger.ask("POST", "/clock/accept"))[0] == 403
            assert (await stranger.ask("GET", "/readyz"))[0] == 200
        form = Caller(app, content_type="text/plain")
        assert (await form.ask("POST", "/drain", raw=b'{"seconds": 0}'))[0] == 415
        assert not server.stopping


async def test_the_log_says_who_requeued_and_dropped_what_and_how_many(tmp_path: Path) -> None:
    world = World()
    config = make_config(admin=tokens(tmp_path / "tokens"))
    with capture_logs() as lines:
        async with world.serving(config) as server:
            server.tokens.read()
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
