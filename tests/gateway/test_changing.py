"""gateway.changing: messages that are cancelled and moved over HTTP, and why some are not."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
import structlog
from starlette.types import ASGIApp

from delay_client.testing import FakeCluster
from delay_server.admin.changes import ChangeAll
from delay_transport.http.problems import RequestError
from delay_transport.http.tokens import LOOPBACK
from gateway import changing as module
from gateway.changing import ChangedMessages
from gateway.cluster import Cluster, Json
from gateway.refusals import NoAnswerError
from tests.gateway.calls import answer_of
from tests.gateway.test_app import Answer, ask, play, post

HOUR_MS = 3_600_000


async def sent(app: ASGIApp, **headers: str) -> Json:
    headers = {"delaywheel_delay": "1h", "idempotency_key": "one"} | headers
    answer: Json = (await post(app, "/v1/messages/orders", b"x", **headers)).json
    return answer


async def moved(app: ASGIApp, path: str, due: object) -> Answer:
    return await ask(app, "PATCH", path, msgspec.json.encode({"due": due}), **JSON)


JSON = {"content_type": "application/json"}


@pytest.mark.parametrize("by", ["token", "names", "names and time"])
def test_a_message_is_cancelled_once(by: str) -> None:
    async def test(cluster: FakeCluster, app: ASGIApp) -> None:
        receipt = await sent(app)
        path, query = "/v1/messages/orders/one", ""
        if by == "token":
            path = f"/v1/messages/{receipt['cancel_token']}"
        elif by == "names and time":
            query = f"due={receipt['due']}"
        answer = await ask(app, "DELETE", path, query=query)
        assert (answer.code, answer.json["state"]) == (200, "cancelled")
        assert (answer.json["id"], answer.json["due_ms"]) == ("one", receipt["due_ms"])
        assert cluster.pending() == []
        again = await ask(app, "DELETE", path, query=query)
        assert (again.code, again.json["code"]) == (409, "already-cancelled-or-moved")

    play(test)


def test_who_cancelled_and_who_moved_a_message_is_in_the_log() -> None:
    async def test(_: FakeCluster, app: ASGIApp) -> None:
        receipt = await sent(app)
        with structlog.testing.capture_logs() as lines:
            answer = await moved(app, "/v1/messages/orders/one", receipt["due_ms"] // 1000 + 60)
            await ask(app, "DELETE", f"/v1/messages/{answer.json['cancel_token']}")
            await ask(app, "DELETE", "/v1/messages/orders/two")
        named = {"who": LOOPBACK, "subject": "orders", "id": "one", "log_level": "info"}
        named["due_ms"] = answer.json["due_ms"]
        assert lines == [
            named | {"event": "moved a message"},
            named | {"event": "cancelled a message"},
        ]

    play(test)


def test_a_message_is_moved_and_its_new_token_names_it() -> None:
    async def test(cluster: FakeCluster, app: ASGIApp) -> None:
        receipt = await sent(app)
        later_ms = receipt["due_ms"] + HOUR_MS
        answer = await moved(app, f"/v1/messages/{receipt['cancel_token']}", later_ms // 1000)
        assert (answer.code, answer.json["state"]) == (200, "moved")
        assert answer.json["due_ms"] == later_ms // 1000 * 1000
        [pending] = cluster.pending()
        assert (pending.id, pending.due_ms) == ("one", answer.json["due_ms"])
        gone = await ask(app, "DELETE", f"/v1/messages/{answer.json['cancel_token']}")
        assert (gone.code, cluster.pending()) == (200, [])

    play(test)


def test_what_was_delivered_or_is_being_delivered_is_not_cancelled() -> None:
    async def test(cluster: FakeCluster, app: ASGIApp) -> None:
        receipt = await sent(app)
        async with cluster.receiver("shop", subjects=["orders"]) as receiver:
            await cluster.advance(hours=1)
            async for message in receiver:
                path = f"/v1/messages/{receipt['cancel_token']}"
                flying = await ask(app, "DELETE", path)
                assert (flying.code, flying.json["code"]) == (409, "being-sent")
                assert int(flying.headers["retry-after"]) >= 1
                assert flying.json["changed"]["to"] == "shop"
                await message.done()
                await cluster.advance()
                break
            over = await moved(app, "/v1/messages/orders/one", receipt["due"])
        assert (over.code, over.json["code"]) == (409, "already-delivered")
        assert over.json["changed"]["at_ms"] >= receipt["due_ms"]
        assert over.json["detail"].startswith("it is already delivered, 20")
        assert "retry-after" not in over.headers

    play(test)


def test_what_is_unknown_is_told_from_what_is_in_doubt() -> None:
    async def test(cluster: FakeCluster, app: ASGIApp) -> None:
        unknown = await ask(app, "DELETE", "/v1/messages/orders/two")
        assert (unknown.code, unknown.json["code"]) == (404, "unknown")
        assert "what became of messages is known since" in unknown.json["detail"]
        with cluster.outage():
            doubt = await ask(app, "DELETE", "/v1/messages/orders/two")
        assert (doubt.code, doubt.json["code"]) == (503, "in-doubt")
        assert doubt.headers["retry-after"] == "1"

    play(test)


@pytest.mark.parametrize(
    ("request_line", "body", "refusal", "why"),
    [
        ("DELETE AAAA", b"", (400, "bad-value"), "cancel token"),
        ("GET AAAA", b"", (400, "bad-value"), "cancel token"),
        ("DELETE orders/one?due=soon", b"", (400, "bad-value"), "due"),
        ("DELETE orders/one?dry_run=true", b"", (400, "bad-value"), "no such field"),
        ("DELETE orders/one?due=1&due=2", b"", (400, "bad-value"), "once only"),
        ("DELETE orders/", b"", (400, "bad-value"), "names nothing"),
        ("PATCH orders/one", b"{}", (400, "bad-value"), "due"),
        ("PATCH orders/one", b"[", (400, "bad-value"), "JSON"),
        ("PATCH orders/one", b'{"due":"90s"}', (400, "bad-value"), "due: '90s'"),
        ("PATCH orders/one", b'{"due":1,"delay":"1s"}', (400, "bad-value"), "delay"),
        ("PATCH orders/one", b'{"due":99999999999}', (422, "refused"), "limit 730"),
    ],
)
def test_what_names_no_message_or_no_time_is_refused(
    request_line: str, body: bytes, refusal: tuple[int, str], why: str
) -> None:
    async def test(_: FakeCluster, app: ASGIApp) -> None:
        method, target = request_line.split(" ")
        path, query = (*target.split("?"), "")[:2]
        answer = await ask(app, method, f"/v1/messages/{path}", body, query=query, **JSON)
        assert (answer.code, answer.json["code"]) == refusal
        assert why in answer.json["detail"]

    play(test)


class Masters(Cluster):
    """Delay servers that change what a filter takes, two messages in a slice."""

    def __init__(self, **messages: int) -> None:
        super().__init__(["127.0.0.1:1"], {})
        self.left = messages
        self.bodies: list[Json] = []
        self.faults: dict[str, RequestError] = {}

    async def groups(self) -> Mapping[str, Any]:
        return self.left

    async def ask_master(self, group: str, *path: str, body: Json) -> Json:  # type: ignore[override]
        assert path == ("POST", "messages", "change-all")
        self.bodies.append(body)
        # It is what a delay server takes, but for the cursor.
        msgspec.convert(body | {"after": None}, ChangeAll)
        if group in self.faults and body["after"] is not None:
            raise self.faults[group]
        done = int(body["after"] or 0)
        count = min(2, self.left[group] - done)
        more = done + count < self.left[group]
        state = "moved" if "by_ms" in body else "cancelled"
        if body["dry_run"]:
            state = "pending"
        return {"states": {state: count}, "next": str(done + count) if more else None}


def cancelled(masters: Masters, **query: object) -> ChangedMessages:
    answer: ChangedMessages = answer_of(masters, "DELETE", "/messages", urlencode(query))
    return answer


def shifted(masters: Masters, body: Json, **query: object) -> ChangedMessages:
    asked = urlencode({"subject": "a"} | query)
    answer: ChangedMessages = answer_of(masters, "PATCH", "/messages", asked, body=body)
    return answer


def test_all_of_a_filter_is_cancelled_in_slices() -> None:
    masters = Masters(d1=5, d2=1)
    answer = cancelled(masters, subject="orders.*", due_after="1", due_before="2")
    assert answer.states == {"cancelled": 6}
    assert (answer.complete, answer.next, answer.away) == (True, {}, {})
    assert masters.bodies[0] == {
        "subject": "orders.*",
        "due_from": 1000,
        "due_to": 2000,
        "dry_run": False,
        "after": None,
    }
    assert cancelled(masters, due_before="2", dry_run=True).states == {"pending": 6}
    assert masters.bodies[-1]["dry_run"] is True


@pytest.mark.parametrize(("by", "ms"), [("1h", HOUR_MS), ("-90s", -90_000), ("PT0.5S", 500)])
def test_all_of_a_filter_is_moved_by_as_much(by: str, ms: int) -> None:
    masters = Masters(d1=5, d2=1)
    assert shifted(masters, {"by": by}).states == {"moved": 6}
    assert {body["by_ms"] for body in masters.bodies} == {ms}
    assert shifted(masters, {"by": by}, dry_run=True).states == {"pending": 6}
    with pytest.raises(RequestError, match="by: 'soon' is not allowed"):
        shifted(masters, {"by": "soon"})


def test_a_move_that_stops_on_the_way_goes_on_where_it_was() -> None:
    masters = Masters(d1=5, d2=1)
    masters.faults["d1"] = NoAnswerError("d1 went away")
    answer = shifted(masters, {"by": "1h"})
    assert (answer.states, answer.complete) == ({"moved": 3}, False)
    assert (answer.next, answer.away) == ({"d1": "2"}, {"d1": "d1 went away"})
    masters.faults.clear()
    answer = shifted(masters, {"by": "1h", "after": answer.next})
    assert (answer.states, answer.complete, answer.next) == ({"moved": 3}, True, {})


def test_a_group_that_fails_on_the_way_is_named_beside_what_was_done() -> None:
    masters = Masters(d1=5, d2=1)
    masters.faults["d1"] = NoAnswerError("d1 went away")
    answer = cancelled(masters, subject="a")
    assert answer.states == {"cancelled": 3}
    assert (answer.away, answer.complete) == ({"d1": "d1 went away"}, False)
    masters.faults["d1"] = RequestError(400, "bad-value", "subject: too long")
    with pytest.raises(RequestError, match="subject: too long"):
        cancelled(masters, subject="a")


def test_a_cancel_that_takes_long_says_that_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILTER_S", -1.0)
    answer = cancelled(Masters(d1=5), subject="a")
    assert (answer.states, answer.complete, answer.away) == ({}, False, {})


def test_a_cancel_needs_a_filter() -> None:
    masters = Masters(d1=5)
    for query in ({}, {"subject": "*"}, {"dry_run": True}):
        with pytest.raises(RequestError, match="give a filter") as refused:
            cancelled(masters, **query)
        assert (refused.value.code, refused.value.kind) == (400, "filter")
    assert masters.bodies == []
