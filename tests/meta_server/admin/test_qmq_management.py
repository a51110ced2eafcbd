"""QMQ's management calls: the forms of its answers, our tokens, and the same audit."""

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from delay_protocol.meta.requests import ClientType, OnlineState
from delay_transport.http.tokens import Role
from meta_server.admin.qmq_management import ACTIONS
from meta_server.known.model import Contents, Route
from meta_server.settings.config import AdminConfig
from tests.meta_server.admin.test_api import with_tokens
from tests.meta_server.http_rig import Http
from tests.meta_server.memory_store import Medium
from tests.meta_server.meta_rig import World, broker, make_config, names

FORM = {"content-type": "application/x-www-form-urlencoded"}
TOKEN = {"x-api-token": "a"}
BROKER = {
    "brokerGroup": "g1",
    "role": "0",
    "hostname": "h1",
    "ip": "10.0.0.1",
    "servePort": "20881",
    "syncPort": "20882",
}


async def manage(
    http: Http,
    action: str,
    *,
    headers: Any = None,  # noqa: ANN401 (a dict; its neighbours are texts)
    **parameters: str,
) -> Any:  # noqa: ANN401 (whatever it is)
    """Return what an action is answered, its parameters in a form."""
    raw = urlencode({"action": action, **parameters}).encode()
    lines = TOKEN if headers is None else headers
    answer = await http.ask("POST", "/management", raw=raw, headers={**FORM, **lines})
    assert answer.code == 200, answer.body
    return answer.json


def ok(data: object) -> dict[str, object]:
    return {"status": 0, "message": "", "data": data}


async def test_a_broker_is_added_listed_and_replaced_as_in_qmq() -> None:
    world = World()
    row = {
        "group": "g1",
        "role": "MASTER",
        "hostname": "h1",
        "ip": "10.0.0.1",
        "servePort": 20881,
        "syncPort": 20882,
    }
    async with world.serving() as server:
        http = Http(server)
        assert await manage(http, "AddBroker", **BROKER) == ok(row)
        again = await manage(http, "AddBroker", **BROKER)
        assert (again["status"], again["data"]) == (-1, None)
        assert (await (await world.connect()).acquire("h1", 20881)).code == 0
        assert await manage(http, "ListBrokers") == ok([row])
        assert await manage(http, "ListBrokers", brokerGroup="g9") == ok([])
        # What it was before, as in QMQ.
        moved = BROKER | {"hostname": "h2"}
        assert await manage(http, "ReplaceBroker", **moved) == ok(row)
        assert (await manage(http, "ListBrokers"))["data"][0]["hostname"] == "h2"
        backup = BROKER | {"role": "4", "hostname": "h3", "syncPort": ""}
        assert (await manage(http, "AddBroker", **backup))["data"]["syncPort"] == 0
    assert [entry.entry.action for entry in world.medium.audit] == [
        "broker.add",
        "broker.replace",
        "broker.add",
    ]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"brokerGroup": ""}, "brokerGroup"),
        ({"role": "2"}, "role"),
        ({"role": "x"}, "role"),
        ({"role": ""}, "role"),
        ({"servePort": "x"}, "serve_port"),
        ({"servePort": "0"}, "serve_port"),
        ({"servePort": "20882"}, "sync_port"),
        ({"syncPort": "x"}, "syncPort"),
        ({"ip": "here"}, "ip"),
        ({"hostname": ""}, "hostname"),
    ],
)
async def test_a_bad_parameter_is_named(more: dict[str, str], words: str) -> None:
    world = World()
    async with world.serving() as server:
        answer = await manage(Http(server), "AddBroker", **(BROKER | more))
        assert (answer["status"], answer["data"]) == (-1, None)
        assert words in answer["message"]
    assert not world.medium.contents.brokers


async def test_parameters_may_stand_in_the_query_too_and_the_first_counts() -> None:
    world = World()
    async with world.serving() as server:
        http = Http(server)
        query = {"action": "AddBroker", **BROKER, "hostname": ["first", "second"]}
        answer = await http.ask("POST", "/management", headers=TOKEN, query=query)
        assert answer.json["data"]["hostname"] == "first"


async def test_groups_and_routes_are_listed_as_qmq_does() -> None:
    routes = tuple(Route(name=f"s{number:04}", groups=("g1",)) for number in range(1200))
    world = World(medium=Medium(Contents(routes=routes)))
    async with world.serving() as server:
        http = Http(server)
        await (await world.connect()).broker(broker("g1"))
        [group] = await manage(http, "ListBrokerGroups")
        assert (group["groupName"], group["master"], group["brokerState"], group["kind"]) == (
            "g1",
            "10.0.0.1:20881",
            "RW",
            "NORMAL",
        )
        found = await manage(http, "ListSubjectRoutes")
        assert sorted(row["subject"] for row in found) == [route.name for route in routes]
        assert min(found, key=lambda row: row["subject"]) == {
            "subject": "s0000",
            "brokerGroups": ["g1"],
            "version": 1,
            "updateTime": 0,
        }


async def test_a_list_without_routes_is_an_empty_list() -> None:
    world = World()
    async with world.serving() as server:
        assert await manage(Http(server), "ListSubjectRoutes") == []


async def test_routes_are_extended_and_reduced_and_clients_learn_of_it() -> None:
    world = World()
    async with world.serving() as server:
        http = Http(server)
        peer = await world.connect()
        await peer.broker(broker("g1"))
        assert names((await peer.register("a")).groups) == ["g1"]
        await http.change("POST", "/broker-groups", {"name": "g2", "address": "h:2", "weight": 0})
        route = await manage(http, "AddSubjectBrokerGroup", subject="a", brokerGroup="g2")
        assert (route["subject"], route["brokerGroups"]) == ("a", ["g1", "g2"])
        assert names((await peer.pushed()).groups) == ["g1", "g2"]
        assert await manage(http, "RemoveSubjectBrokerGroup", subject="a", brokerGroup="g1") == ok(
            {}
        )
        assert names((await peer.pushed()).groups) == ["g2"]
        last = await manage(http, "RemoveSubjectBrokerGroup", subject="a", brokerGroup="g2")
        assert (last["status"], list(last["data"])) == (-1, ["a"])
        extended = await manage(
            http,
            "ExtendSubjectRoute",
            relatedSubject="*",
            relatedBrokerGroup="g2",
            newBrokerGroup="g1",
        )
        assert extended == ok("1 routes were extended")
        assert names((await peer.pushed()).groups) == ["g2", "g1"]
        reduced = await manage(http, "RemoveSubjectBrokerGroup", subject="*", brokerGroup="g2")
        assert reduced == ok({})


async def test_errors_about_one_route_come_bare_as_in_qmq() -> None:
    world = World()
    async with world.serving() as server:
        http = Http(server)
        for parameters in ({}, {"subject": "a"}, {"subject": "a", "brokerGroup": "g1"}):
            answer = await manage(http, "AddSubjectBrokerGroup", **parameters)
            assert list(answer) == ["error"]
        missing = await manage(http, "RemoveSubjectBrokerGroup", subject="a", brokerGroup="g1")
        assert missing["status"] == -1


async def test_a_subject_is_added_once() -> None:
    world = World()
    async with world.serving() as server:
        http = Http(server)
        added = await manage(http, "AddNewSubject", subject="a", tag="t")
        assert (added["data"]["name"], added["data"]["tag"]) == ("a", "t")
        again = await manage(http, "AddNewSubject", subject="a", tag="u")
        assert (list(again), again["data"]["tag"]) == (["error", "data"], "t")
        assert list(await manage(http, "AddNewSubject", subject="a b", tag="t")) == ["error"]
        absent = await manage(http, "AddNewSubject", subject="b")
        assert absent == {"error": "tag has to be given"}
        empty = await manage(http, "AddNewSubject", subject="b", tag="")
        assert empty == {"error": "tag is empty: it has to have a value"}
        nobody = await manage(http, "ListBrokers", brokerGroup="")
        assert nobody["status"] == 0


async def test_a_group_is_marked_and_unmarked() -> None:
    world = World()
    async with world.serving() as server:
        http = Http(server)
        peer = await world.connect()
        await peer.broker(broker("g1"))
        await peer.register("a")
        for subject in ("a", "*"):
            parameters = {"subject": subject, "brokerGroup": "g1"}
            assert await manage(http, "MarkReadonlyBrokerGroup", **parameters) == ok("success")
            assert names((await peer.pushed()).groups) == []
            assert await manage(http, "UnMarkReadonlyBrokerGroup", **parameters) == ok("success")
            assert names((await peer.pushed()).groups) == ["g1"]
        unknown = await manage(http, "MarkReadonlyBrokerGroup", subject="a", brokerGroup="g9")
        assert unknown["status"] == -1


@pytest.mark.parametrize(("action", "words"), [("AddDb", "databases"), ("ResetOffset", "offsets")])
async def test_what_this_meta_server_does_not_do_is_refused_clearly(
    action: str, words: str
) -> None:
    world = World()
    async with world.serving() as server:
        answer = await manage(Http(server), action, subject="a")
        assert (answer["status"], answer["data"]) == (-1, None)
        assert words in answer["message"]


async def test_an_action_that_there_is_not_is_said_as_qmq_does() -> None:
    world = World()
    async with world.serving() as server:
        http = Http(server)
        for raw in (b"", b"action=Nonsense"):
            answer = await http.ask("POST", "/management", raw=raw, headers={**FORM, **TOKEN})
            assert answer.code == 200
            assert b"action" in answer.body
        assert (await http.ask("GET", "/management")).code == 405


@pytest.mark.parametrize("action", sorted(ACTIONS))
async def test_whoever_has_no_token_of_ours_may_nothing(action: str, tmp_path: Path) -> None:
    world = World()
    async with world.serving(make_config(admin=with_tokens(tmp_path))) as server:
        http = Http(server, peer="10.0.0.9")
        for token in ({}, {"x-api-token": "wrong"}):
            answer = await manage(http, action, headers=token, **BROKER)
            assert (answer["status"], answer["data"]) == (-1, None)
        answer = await manage(http, action, headers={"x-api-token": "r"}, **BROKER)
        refused = isinstance(answer, dict) and "needs the role admin" in answer.get("message", "")
        assert refused is (ACTIONS[action].needed is Role.ADMIN)
    assert world.medium.audit == []


async def test_the_audit_has_the_name_of_the_token(tmp_path: Path) -> None:
    world = World()
    async with world.serving(make_config(admin=with_tokens(tmp_path))) as server:
        http = Http(server, peer="10.0.0.9")
        assert (await manage(http, "AddBroker", **BROKER))["status"] == 0
    assert [row.entry.actor for row in world.medium.audit] == ["alice"]


async def test_a_form_that_a_page_sends_from_elsewhere_changes_nothing() -> None:
    world = World()
    async with world.serving() as server:
        http = Http(server)
        for headers in ({}, {"origin": "http://evil.example", **TOKEN}):
            answer = await manage(http, "AddBroker", headers=headers, **BROKER)
            assert answer["status"] == -1
        update = {"operation": "update", "clientId": "*", "subject": "a", "consumerGroup": "cg"}
        for headers in ({}, {"sec-fetch-site": "cross-site", **TOKEN}):
            query = {**update, "state": "1"}
            answer = (await http.ask("GET", "/onoffline", headers=headers, query=query)).json
            assert answer["status"] == -1
    assert world.medium.contents.brokers == ()
    assert world.medium.contents.offline == ()


async def test_consumers_are_taken_off_line_and_brought_back_as_in_qmq() -> None:
    world = World()
    query = {"operation": "update", "clientId": "c1", "subject": "a", "consumerGroup": "cg"}
    async with world.serving() as server:
        http = Http(server, headers=TOKEN)
        peer = await world.connect()
        await peer.broker(broker("g1"))
        await peer.register("a", ClientType.CONSUMER, client_id="c1", consumer_group="cg")

        async def update(**more: str) -> dict[str, Any]:
            answer: dict[str, Any] = (
                await http.ask("GET", "/onoffline", query={**query, **more})
            ).json
            return answer

        done = {"status": 0, "message": "ok", "data": None}
        assert await update(state="1") == done
        assert (await peer.pushed()).online_state is OnlineState.OFFLINE
        assert (await update(state="1", operation="query"))["message"] == "OFF"
        # With client * all of the group come back.
        assert await update(state="0", clientId="*") == done
        assert (await peer.pushed()).online_state is OnlineState.ONLINE
        for more in ({"state": "2"}, {"state": "1", "operation": "x"}, {"state": ""}):
            assert (await update(**more))["status"] == -1
        assert (await update(state="1", subject="a b"))["status"] == -1


async def test_the_store_being_away_is_minus_1_and_a_long_form_is_refused() -> None:
    world = World()
    config = make_config(admin=AdminConfig(body_bytes_max=1024))
    async with world.serving(config) as server:
        http = Http(server)
        many = "&".join(f"p{number}=1" for number in range(60)).encode()
        for raw in (b"x=" + b"y" * 2000, many, b"a=\xff"):
            answer = await http.ask("POST", "/management", raw=raw, headers={**FORM, **TOKEN})
            assert answer.json["status"] == -1
        world.medium.is_down = True
        assert (await manage(http, "AddBroker", **BROKER))["status"] == -1
        assert await manage(http, "ListBrokers") == ok([])
