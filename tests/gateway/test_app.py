"""gateway.app: requests to a cluster over HTTP, and what they are answered."""

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from starlette.types import ASGIApp, Message

from delay_client import Overloaded, TimedOut
from delay_client.messages.cancel_tokens import Place, encode_token
from delay_client.testing import FakeCluster
from delay_transport.http.access import HttpAccess, HttpLimits
from delay_transport.http.problems import RequestError
from delay_transport.http.tokens import Role, Token, Tokens, digest_of, encode_tokens
from gateway.api import Parts
from gateway.app import LIMITS, application
from gateway.cluster import Cluster
from gateway.overview import Live
from gateway.webhooks.following import Webhooks
from tests.gateway.calls import parts_of

JSON = "application/json"
TYPE = {"content_type": JSON}


class Answer(NamedTuple):
    code: int
    headers: Mapping[str, str]
    json: Any


async def post(app: ASGIApp, path: str, body: bytes = b"", **headers: str) -> Answer:
    return await ask(app, "POST", path, body, **headers)


async def ask(
    app: ASGIApp,
    method: str,
    path: str,
    *parts: bytes,
    query: str = "",
    peer: str = "127.0.0.1",
    **headers: str,
) -> Answer:
    """Send a request whose body comes in these parts; `_` in names of headers stands for `-`."""
    given = {"host": "127.0.0.1"} | {name.replace("_", "-"): v for name, v in headers.items()}
    answered: list[Message] = []
    left = list(parts or (b"",))

    async def receive() -> Message:
        if not left:
            # The caller stays.
            await asyncio.Event().wait()
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Message) -> None:
        answered.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        "client": (peer, 1),
        "server": ("127.0.0.1", 8700),
    }
    await app(scope, receive, send)
    start, *bodies = answered
    body = b"".join(one.get("body", b"") for one in bodies)
    return Answer(
        start["status"],
        {name.decode(): value.decode() for name, value in start["headers"]},
        msgspec.json.decode(body) if b"json" in dict(start["headers"])[b"content-type"] else body,
    )


def play(
    test: Callable[[FakeCluster, ASGIApp], Awaitable[None]],
    tokens: Path | None = None,
    limits: HttpLimits = LIMITS,
) -> None:
    """Run a test with a cluster and a gateway in front of it."""

    async def main() -> None:
        cluster = FakeCluster()
        async with cluster.client() as client:
            known = Tokens(tokens)
            known.read()
            access = HttpAccess(known, own_address="127.0.0.1:8700", limits=limits)
            async with Cluster(["127.0.0.1:1"], {}) as servers:
                await test(cluster, application(parts_of(servers, client), access))

    asyncio.run(main())


def test_a_message_is_kept_as_it_came_and_comes_when_it_is_due() -> None:
    async def test(cluster: FakeCluster, app: ASGIApp) -> None:
        answer = await post(
            app,
            "/v1/messages/orders.paid",
            b"\xff\x00",
            content_type="image/png",
            delaywheel_delay="90s",
            idempotency_key="order-7",
            delaywheel_header_name="Jürgen",
        )
        assert (answer.code, answer.json["id"]) == (202, "order-7")
        assert answer.json["outcome"] == "accepted"
        async with cluster.receiver("shop", subjects=["orders.*"]) as receiver:
            await cluster.advance(seconds=90)
            async for message in receiver:
                assert (message.id, message.data) == ("order-7", b"\xff\x00")
                assert message.due_ms == answer.json["due_ms"]
                assert message.content_type == "image/png"
                assert message.headers["name"] == "Jürgen"
                await message.done()
                break

    play(test)


def test_each_message_of_a_list_has_its_outcome() -> None:
    async def test(_: FakeCluster, app: ASGIApp) -> None:
        messages = [
            {"subject": "a", "id": "one"},
            {"subject": "a/b", "id": "two"},
            {"subject": "a", "delay": "soon"},
            {"subject": "a", "id": "four", "delay": "1h"},
            {"subject": "a", "id": ""},
            "a",
        ]
        answer = await post(
            app,
            "/v1/messages",
            msgspec.json.encode(messages),
            content_type="application/json; charset=utf-8",
        )
        assert (answer.code, answer.json["accepted"], answer.json["refused"]) == (202, 2, 4)
        results = answer.json["results"]
        assert [one.get("id") for one in results] == ["one", "two", "", "four", "", ""]
        assert [one.get("code") for one in results] == [
            *(None, "subject", "bad-value", None, "bad-value", "bad-value")
        ]
        single = await post(
            app, "/v1/messages", b'{"subject":"a"}', content_type="application/json"
        )
        assert (single.code, single.json["outcome"]) == (202, "accepted")

    play(test)


@pytest.mark.parametrize(
    ("path", "body", "headers", "code", "kind"),
    [
        ("/v1/messages/a b", b"", {}, 422, "subject"),
        ("/v1/messages/a/b", b"", {}, 405, "method"),
        ("/v1/messages/a", b"x" * 2_000_000, {}, 413, "too-large"),
        ("/v1/messages/a", b"", {"delaywheel_delay": "9999d"}, 422, "too-far"),
        ("/v1/messages/a", b"", {"delaywheel_delay": "9"}, 400, "bad-value"),
        ("/v1/messages/a", b"", {"content_length": "5000000000"}, 413, "too-large"),
        ("/v1/messages/a", b"", {"content_length": "-1"}, 413, "too-large"),
        ("/v1/messages", b"{}", {}, 415, "media-type"),
        ("/v1/messages", b"{}", {"content_type": "application/json"}, 400, "bad-value"),
        ("/v1/messages", b'{"subject": "a"}', {**TYPE, "delaywheel_delay": "1h"}, 400, "bad-value"),
        ("/v1/message", b"", {}, 404, "not-found"),
        ("/v1/openapi.json", b"", {}, 405, "method"),
        ("/v1/messages/a", b"", {"origin": "http://evil.example"}, 403, "origin"),
        ("/v1/messages/a", b"", {"host": "evil.example"}, 403, "host"),
    ],
)
def test_what_is_wrong_is_answered_as_a_problem(
    path: str, body: bytes, headers: dict[str, str], code: int, kind: str
) -> None:
    async def test(_: FakeCluster, app: ASGIApp) -> None:
        answer = await post(app, path, body, **headers)
        assert (answer.code, answer.json["code"]) == (code, kind)
        assert answer.headers["content-type"] == "application/problem+json"
        assert len(answer.json["detail"]) > 20

    play(test)


def test_a_body_that_grows_beyond_its_bound_is_not_read_on() -> None:
    async def test(_: FakeCluster, app: ASGIApp) -> None:
        answer = await ask(app, "POST", "/v1/messages/a", *[b"x" * 60] * 1000)
        assert (answer.code, answer.json["code"]) == (413, "too-large")
        assert answer.headers["connection"] == "close"

    play(test, limits=replace(LIMITS, body_bytes_max=100))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Overloaded("too fast", message_id="m"), 429),
        (TimedOut("no answer", message_id="m", maybe_kept=True), 503),
    ],
)
def test_what_passes_is_to_be_sent_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    async def test(_: FakeCluster, app: ASGIApp) -> None:
        async def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("delay_client.Client.send", fail)
        answer = await post(app, "/v1/messages/a")
        assert (answer.code, answer.headers["retry-after"]) == (code, "1")
        assert (answer.json["id"], answer.json["maybe_kept"]) == ("m", code == 503)

    play(test)


@pytest.mark.parametrize(("limit", "code"), [("bodies_bytes_max", 202), ("requests_max", 429)])
def test_too_many_requests_and_too_many_bytes_are_to_come_later(limit: str, code: int) -> None:
    async def test(_: FakeCluster, app: ASGIApp) -> None:
        answer = await post(app, "/v1/messages/a", b"four")
        assert (answer.code, answer.json["code"]) == (429, "busy")
        assert answer.headers["retry-after"] == "1"
        # What was answered counts no more.
        for _again in range(2):
            assert (await post(app, "/v1/messages/a", b"two")).code == code

    play(test, limits=replace(LIMITS, **{limit: 3 if code == 202 else 0}))


def test_a_token_may_do_what_its_role_and_its_subjects_say(tmp_path: Path) -> None:
    def token(name: str, role: Role, *subjects: str) -> Token:
        return Token(name=name, role=role, sha256=digest_of(name), subjects=subjects)

    path = tmp_path / "tokens.json"
    path.write_bytes(
        encode_tokens(
            [
                token("shop", Role.SEND, "orders.*", "paid"),
                token("see", Role.READ),
                token("all", Role.CHANGE),
                token("boss", Role.ADMIN),
            ]
        )
    )

    async def test(_: FakeCluster, app: ASGIApp) -> None:
        async def code(name: str, subject: str) -> int:
            headers = {"authorization": f"Bearer {name}"} if name else {}
            path = f"/v1/messages/{subject}"
            return (await ask(app, "POST", path, peer="10.0.0.9", **headers)).code

        assert await code("", "paid") == 401
        assert await code("wrong", "paid") == 401
        assert [await code("shop", one) for one in ("paid", "orders.x", "paid.x", "x")] == [
            *(202, 202, 403, 403)
        ]
        assert [await code(one, "x") for one in ("see", "all", "boss")] == [403, 202, 202]
        several, shop = b'[{"subject":"paid"},{"subject":"x"}]', {"authorization": "Bearer shop"}
        listed = await post(app, "/v1/messages", several, content_type=JSON, **shop)
        assert [one.get("status") for one in listed.json["results"]] == [None, 403]
        single = await post(app, "/v1/messages", b'{"subject":"x"}', content_type=JSON, **shop)
        assert (single.code, single.json["code"]) == (403, "role")
        refused = await ask(app, "GET", "/metrics", authorization="Bearer shop")
        assert refused.code == 403
        seen = await ask(app, "GET", "/metrics", authorization="Bearer see")
        assert b"delaywheel_gateway_messages_total 5.0" in seen.json

    play(test, path)


def test_without_tokens_others_are_refused() -> None:
    async def test(_: FakeCluster, app: ASGIApp) -> None:
        answer = await ask(app, "POST", "/v1/messages/a", peer="10.0.0.9")
        assert (answer.code, answer.json["code"]) == (403, "peer")

    play(test)


def test_what_a_role_may_do_with_messages_that_wait(tmp_path: Path) -> None:
    def token(name: str, role: Role, *subjects: str) -> Token:
        return Token(name=name, role=role, sha256=digest_of(name), subjects=subjects)

    path = tmp_path / "tokens.json"
    roles = [token(role.value, role) for role in Role]
    path.write_bytes(encode_tokens([*roles, token("some", Role.CHANGE, "orders.*")]))
    named, at = "/v1/messages/orders.paid/one", b'{"due": "2026-12-24T18:00:00Z"}'
    token_of_other = encode_token(Place(0, 1, "paid", "one"))
    calls = {
        "list": ("GET", "/v1/messages", b"", "subject=orders.*"),
        "find": ("GET", named, b"", ""),
        "cancel": ("DELETE", named, b"", ""),
        "move": ("PATCH", named, at, ""),
        "cancel all": ("DELETE", "/v1/messages", b"", "subject=orders.*"),
        "list others": ("GET", "/v1/messages", b"", "subject=order*"),
        "list all": ("GET", "/v1/messages", b"", "due_after=0"),
        "cancel other": ("DELETE", f"/v1/messages/{token_of_other}", b"", ""),
        "move other": ("PATCH", f"/v1/messages/{token_of_other}", at, ""),
        "cancel others": ("DELETE", "/v1/messages", b"", "subject=*&due_after=0"),
    }

    async def test(_: FakeCluster, app: ASGIApp) -> None:
        async def allowed(name: str) -> set[str]:
            headers = {"authorization": f"Bearer {name}", "content_type": "application/json"}
            found = set()
            for call, (method, path, body, query) in calls.items():
                answer = await ask(app, method, path, body, query=query, **headers)
                # There is no such message, and nobody to be asked for lists.
                assert answer.code in {403, 404, 503}, (call, answer)
                if answer.code != 403:
                    found.add(call)
            return found

        looks = {"list", "find", "list others", "list all"}
        changes = {"cancel", "move", "cancel other", "move other"}
        assert await allowed("read") == looks
        assert await allowed("send") == changes
        assert await allowed("change") == await allowed("admin") == calls.keys()
        assert await allowed("some") == {"list", "find", "cancel", "move", "cancel all"}

    play(test, path)


def test_the_document_has_each_route_and_its_curl() -> None:
    async def test(_: FakeCluster, app: ASGIApp) -> None:
        document = (await ask(app, "GET", "/v1/openapi.json")).json
        listed = {
            (re.sub(r"\{\w+\}", "x", path), method.upper())
            for path, methods in document["paths"].items()
            for method in methods
        }
        for path, method in itertools.product({path for path, _ in listed}, _METHODS):
            answer = await ask(app, method, path)
            assert (answer.code != 405) is ((path, method) in listed), (method, path)
        for path, methods in document["paths"].items():
            for method, call in methods.items():
                curl = call["description"].splitlines()[1]
                sent = "-X" in curl or "-d" in curl or "--json" in curl
                assert curl.startswith("curl ")
                assert sent is (method != "get")
                names = {one["name"] for one in call["parameters"] if one["in"] == "path"}
                assert names == set(re.findall(r"\{(\w+)\}", path))
        posted = document["paths"]["/v1/messages"]["post"]["requestBody"]["content"][JSON]
        one = {"$ref": "#/components/schemas/JsonMessage"}
        assert [part.get("items", part) for part in posted["schema"]["anyOf"]] == [one, one]
        text = msgspec.json.encode(document).decode()
        named = set(re.findall(r"#/components/schemas/(\w+)", text))
        assert named <= document["components"]["schemas"].keys()
        # OpenAPI tells no two paths apart that differ in the names of their parts alone.
        assert len({re.sub(r"\{\w+\}", "{}", path) for path in document["paths"]}) == 10

    play(test)


_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def test_a_url_that_no_webhook_allows_is_refused_and_one_that_is_goes_along() -> None:
    class Hooks(Webhooks):
        def check_url(self, subject: str, url: str) -> None:
            if "good" not in url:
                raise RequestError(422, "url", f"{url} is not allowed for {subject}")

    async def main() -> None:
        cluster = FakeCluster()
        async with cluster.client() as client:
            access = HttpAccess(Tokens(None), own_address="127.0.0.1:8700", limits=LIMITS)
            servers = Cluster(["127.0.0.1:1"], {})
            parts = Parts(client, servers, Hooks(servers), Live(servers))
            app = application(parts, access)
            answer = await post(app, "/v1/messages/a", Delaywheel_Url="https://bad/")
            assert (answer.code, answer.json["code"]) == (422, "url")
            answer = await post(app, "/v1/messages/a", Delaywheel_Url="https://good/")
            assert answer.code == 202
            several = [{"subject": "a", "url": f"https://{host}/"} for host in ("bad", "good")]
            answer = await post(
                app, "/v1/messages", msgspec.json.encode(several), content_type="application/json"
            )
            assert [one["outcome"] for one in answer.json["results"]] == ["refused", "accepted"]
            one = msgspec.json.encode(several[0])
            answer = await post(app, "/v1/messages", one, content_type="application/json")
            assert answer.code == 422
        assert [one.headers for one in cluster.sent] == [{"delaywheel-url": "https://good/"}] * 2

    asyncio.run(main())
