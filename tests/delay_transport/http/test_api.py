"""The kit by itself: an API of two operations, its versions, refusals and bugs."""

from typing import Annotated, Any, Literal

import pytest
import trio
from msgspec import Meta

from delay_transport.http.access import HttpAccess, HttpLimits
from delay_transport.http.api import Api, Refusal
from delay_transport.http.application import Health, make_server_application
from delay_transport.http.metric_families import Exposition, build_info
from delay_transport.http.openapi import document
from delay_transport.http.operations import Answer, Call, NoPath, NoQuery, Request
from delay_transport.http.problems import RequestError
from delay_transport.http.tokens import Role, Tokens
from tests import asgi
from tests.asgi import JSON, Caller
from tests.delay_transport.http.rig import answer_to, serving

Rows = dict[str, int]
"""Row names and their versions."""


class VersionError(Exception):
    """The row has another version."""


class RowPath(Request, frozen=True, kw_only=True):
    """A row."""

    name: Annotated[str, Meta(description="Its name.")]


class Note(Request, frozen=True, kw_only=True):
    """What is written."""

    text: Annotated[str, Meta(max_length=5000, description="It.")] = ""
    tags: Annotated[tuple[int, ...], Meta(description="Some.")] = ()
    kind: Annotated[Literal["", "a", "b"], Meta(description="One of these.")] = ""


class ColourQuery(Request, frozen=True, kw_only=True):
    """How it is shown."""

    depth: Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="So deep.")] = None


class Shown(Answer, frozen=True, kw_only=True):
    """A row."""

    version: Annotated[int, Meta(description="Its version.")]

    @property
    def etag(self) -> str:
        return str(self.version)


API = Api(
    title="rows",
    about="Rows.",
    prefix="/api",
    refusals=(Refusal(VersionError, 412, "version"), Refusal(KeyError, 404, "not-found", "look")),
    other_refusals=lambda error: (
        RequestError(422, "other", str(error)) if isinstance(error, LookupError) else None
    ),
)


@API.operation("GET", "/row/{name}")
async def show_row(call: Call[Rows, RowPath, ColourQuery, None]) -> Shown:
    """Show a row."""
    return Shown(version=call.context[call.path.name])


@API.operation("PUT", "/row/{name}", is_versioned=True)
async def put_row(call: Call[Rows, RowPath, NoQuery, Note]) -> Shown:
    """Write a row."""
    found = call.context.get(call.path.name)
    if fault := call.precondition.fault(None if found is None else str(found)):
        raise VersionError(fault)
    call.context[call.path.name] = (found or 0) + 1
    return Shown(version=call.context[call.path.name])


@API.operation("POST", "/fail")
async def fail(call: Call[Rows, NoPath, NoQuery, None]) -> Shown:
    """Fail."""
    raise ZeroDivisionError(call.peer)


class PairPath(Request, frozen=True, kw_only=True):
    """A row of two names."""

    one: Annotated[str, Meta(description="The first.")]
    two: Annotated[str, Meta(description="The second.")]


class Tag(Request, frozen=True, kw_only=True, rename={"tag": "X-Tag"}):
    """A header."""

    tag: Annotated[str | None, Meta(description="A tag.")] = None


class Length(Answer, frozen=True, kw_only=True):
    """A length."""

    length: Annotated[int, Meta(description="It.")]


@API.operation(
    "POST",
    "/raw/{name}",
    role=Role.SEND,
    header_type=Tag,
    example="curl -d x /api/raw/a",
    body_bytes_max=8,
)
@API.operation("POST", "/raw/{one}/{two:path}", name="put_raw_pair", role=Role.SEND)
async def put_raw(call: Call[Rows, RowPath | PairPath, NoQuery, bytes]) -> Shown | Length:
    """Take bytes."""
    if isinstance(call.path, PairPath):
        return Shown(version=call.context[call.path.two])
    if "x-other" in call.headers:
        raise LookupError(call.headers["x-other"])
    return Length(length=len(call.body))


class Asks(Caller):
    """Asks an application of the API."""

    def __init__(self, rows: Rows, limits: HttpLimits = HttpLimits()) -> None:  # noqa: B008
        self.access = HttpAccess(Tokens(None), own_address="", limits=limits)
        health = Health(
            failing=list,
            status=dict,
            metrics=lambda: Exposition([build_info()]),
            are_metrics_open=False,
        )
        super().__init__(make_server_application(API, self.access, lambda: rows, health))

    async def put(self, **how: Any) -> asgi.Answer:  # noqa: ANN401 (what asking takes)
        """Write the row a."""
        answer = await self.ask("PUT", "/api/row/a", **how)
        assert self.access.busy == 0
        return answer


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 200),
        ({"if-match": '"3"'}, 200),
        ({"if-match": '"2"'}, 412),
        ({"if-none-match": "*"}, 412),
        ({"if-match": "3"}, 400),
        ({"if-match": 'W/"3"'}, 400),
        ({"if-match": '"3", "4"'}, 400),
        ({"if-match": "*"}, 400),
        ({"if-none-match": '"3"'}, 400),
        ({"if-match": '"3"', "if-none-match": "*"}, 400),
    ],
)
async def test_a_row_is_written_over_the_version_that_was_expected_and_no_other(
    headers: dict[str, str], code: int
) -> None:
    rows = {"a": 3}
    answer = await Asks(rows).put(body={}, headers=headers)
    assert (answer.code, rows["a"]) == (code, 4 if code == 200 else 3)
    if code == 200:
        assert answer.headers["etag"] == '"4"'
    elif code == 412:
        assert "version 3" in answer.error["message"]
    else:
        assert answer.error["field"].startswith("If-")


async def test_a_row_that_is_expected_to_be_there_or_not_is_looked_for() -> None:
    caller = Asks({})
    answer = await caller.ask("PUT", "/api/row/a", {}, headers={"if-match": '"1"'})
    assert (answer.code, "no such row" in answer.error["message"]) == (412, True)
    answer = await caller.ask("PUT", "/api/row/a", {}, headers={"if-none-match": "*"})
    assert (answer.code, answer.json) == (200, {"version": 1})


async def test_a_version_is_refused_where_nobody_looks_at_it() -> None:
    answer = await Asks({}).ask("POST", "/api/fail", headers={"if-match": '"1"'})
    assert (answer.code, answer.error["field"]) == (400, "If-Match")


async def test_errors_are_answered_by_their_kind_and_a_body_without_bytes_has_no_fields() -> None:
    caller = Asks({})
    answer = await caller.ask("GET", "/api/row/a")
    assert (answer.code, answer.error["message"]) == (404, "'a'; look")
    assert (await caller.ask("PUT", "/api/row/a", raw=b"", headers=JSON)).code == 200
    assert (await caller.ask("POST", "/api/fail")).error["code"] == "internal"
    for method, path, code in (("GET", "/api/rows", 404), ("DELETE", "/api/row/a", 405)):
        answer = await caller.ask(method, path)
        assert (answer.code, "/api/openapi.json" in answer.error["message"]) == (code, True)


@pytest.mark.parametrize(
    ("how", "field", "value"),
    [
        ({"raw": b"{", "headers": JSON}, "body", "'{'"),
        ({"raw": b"\xff", "headers": JSON}, "body", "'\\ufffd'"),
        ({"raw": b"nan", "headers": JSON}, "body", "'nan'"),
        ({"body": []}, "body", "[]"),
        ({"body": {"text": 7}}, "text", "7"),
        ({"body": {"txet": ""}}, "txet", "''"),
        ({"body": {"tags": [1, "x"]}}, "tags[1]", "'x'"),
        ({"body": {"kind": "c"}}, "kind", "'c'"),
        ({"body": {}, "query": "a=1"}, "a", "'1'"),
        ({"body": {}, "query": "a=1&a=2"}, "a", "'2'"),
    ],
)
async def test_what_is_wrong_is_answered_with_field_value_and_what_is_allowed(
    how: dict[str, Any], field: str, value: str
) -> None:
    rows: Rows = {}
    answer = await Asks(rows).put(**how)
    error = answer.error
    assert (answer.code, error["code"], error["field"]) == (400, "bad-value", field)
    assert (error["value"], rows) == (value, {})
    assert error["allowed"] in error["message"]
    assert field != "kind" or error["allowed"] == "one of a, b"


async def test_parameters_are_text_that_is_read_as_what_it_is_to_be() -> None:
    asks = Asks({"a": 3})
    assert (await asks.ask("GET", "/api/row/a", query="depth=7")).code == 200
    for query in ("depth=-1", "depth=x", f"depth={'9' * 5000}"):
        answer = await asks.ask("GET", "/api/row/a", query=query)
        assert (answer.code, answer.error["field"]) == (400, "depth")


async def test_a_change_must_say_that_it_is_json() -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = await Asks({}).put(raw=b"{}", headers={"content-type": kind})
        assert (answer.code, answer.error["code"]) == (415, "media-type")
    kind = "Application/JSON; charset=utf-8"
    assert (await Asks({}).put(raw=b"{}", headers={"content-type": kind})).code == 200


async def test_a_body_is_bounded_in_bytes_and_time_whatever_its_header_says() -> None:
    asks = Asks({}, HttpLimits(body_bytes_max=1024))
    for how in (
        {"body": {"text": "x" * 2000}},
        {"pieces": [b"x" * 600] * 3, "headers": JSON},
        {"raw": b"{}", "headers": {**JSON, "content-length": "-5"}},
    ):
        assert (await asks.put(**how)).code == 413
    assert (await asks.put(pieces=[b'{"te', b'xt":""}'], headers=JSON)).code == 200
    began = trio.current_time()
    answer = await asks.put(body={}, stall_s=60)
    assert (answer.code, answer.error["code"]) == (408, "slow")
    assert trio.current_time() - began < 6


async def test_bytes_are_taken_as_they_are_and_bounded_by_their_operation() -> None:
    asks = Asks({"a/b": 7})
    answer = await asks.ask("POST", "/api/raw/a", raw=b"\xff{")
    assert (answer.code, answer.json) == (200, {"length": 2})
    answer = await asks.ask("POST", "/api/raw/a", raw=b"x" * 9)
    assert (answer.code, answer.error["code"]) == (413, "too-large")
    # The rest of such a body is not waited for.
    assert answer.headers["connection"] == "close"
    answer = await asks.ask("POST", "/api/raw/x/a/b", raw=b"x" * 9)
    assert (answer.code, answer.json) == (200, {"version": 7})
    answer = await asks.ask("POST", "/api/raw/a", raw=b"", headers={"x-other": "so"})
    assert (answer.code, answer.error["code"], answer.error["detail"]) == (422, "other", "so")
    assert asks.access.answered == {"200": 2, "413": 1, "422": 1}


async def test_bodies_of_requests_in_progress_are_bounded_together() -> None:
    asks, codes = Asks({}, HttpLimits(bodies_bytes_max=20, busy_code=429)), list[int]()

    async def ask() -> None:
        codes.append((await asks.ask("PUT", "/api/row/a", {"text": "x"})).code)

    await ask()
    assert asks.access.bodies_bytes == 0
    with asks.access.slot() as hold:
        hold(9)
        await ask()
    await ask()
    assert codes == [200, 429, 200]


async def test_a_body_counts_as_far_as_it_has_come_and_no_more_when_it_is_refused() -> None:
    asks, codes = Asks({}, HttpLimits(bodies_bytes_max=20, body_s=5)), list[int]()

    async def ask(first: bytes, stall_s: float) -> None:
        pieces = [first, b"{}"]
        answer = await asks.ask("PUT", "/api/row/a", pieces=pieces, headers=JSON, stall_s=stall_s)
        codes.append(answer.code)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, b" " * 15, 2)
        await trio.sleep(3)
        await ask(b" " * 4, 0)
        assert (asks.access.bodies_bytes, codes) == (15, [503])
        await ask(b"", 0)
    assert (asks.access.bodies_bytes, codes) == (0, [503, 200, 200])
    await ask(b" ", 3)
    assert (asks.access.bodies_bytes, codes[3:]) == (0, [408])


def test_the_document_has_the_example_the_headers_and_each_form_of_an_operation() -> None:
    paths = document(API)["paths"]
    one, pair = paths["/api/raw/{name}"]["post"], paths["/api/raw/{one}/{two}"]["post"]
    assert one["description"] == "```\ncurl -d x /api/raw/a\n```\nNeeds the role send."
    assert [(part["in"], part["name"]) for part in one["parameters"]] == [
        ("path", "name"),
        ("header", "X-Tag"),
    ]
    assert [part["name"] for part in pair["parameters"]] == ["one", "two"]
    assert (one["operationId"], pair["operationId"]) == ("put_raw", "put_raw_pair")
    assert list(one["requestBody"]["content"]) == ["*/*"]
    schema = one["responses"]["200"]["content"]["application/json"]["schema"]
    assert [part["$ref"].rpartition("/")[2] for part in schema["oneOf"]] == ["Shown", "Length"]


async def test_too_much_at_a_time_is_refused_and_ends() -> None:
    asks, codes = Asks({}, HttpLimits(requests_max=2)), []

    async def ask() -> None:
        answer = await asks.ask("PUT", "/api/row/a", {}, stall_s=3)
        codes.append(answer.code)
        if answer.code == 503:
            assert answer.error["detail"].startswith("2 requests are worked on, the most")

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
    assert codes == [503, 200, 200]
    assert (await asks.put(body={})).code == 200


async def test_a_page_of_another_place_cannot_change_anything() -> None:
    rows: Rows = {}
    for headers in (
        {"origin": "http://evil.example"},
        {"host": "evil.example"},
        {"sec-fetch-site": "cross-site"},
    ):
        assert (await Asks(rows).put(body={}, headers=headers)).code == 403
    assert rows == {}


async def test_names_with_anything_in_them_come_as_they_are_and_a_head_is_a_get() -> None:
    for name in ("ä%41", "a?b#c", "..", "%2F", "a+b", "<b>&\"'"):
        for method in ("GET", "HEAD"):
            assert (await Asks({name: 1}).ask(method, f"/api/row/{name}")).code == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_get_ends_when_its_caller_closes_the_connection_and_a_change_does_not(
    method: str,
) -> None:
    api = Api(title="slow", about="Slow.")
    begun, may_end, ends = trio.Event(), trio.Event(), list[str]()

    @api.operation(method, "/slow")
    async def slow(call: Call[Rows, NoPath, NoQuery, None]) -> dict[str, int]:
        """Wait."""
        begun.set()
        try:
            await may_end.wait()
            ends.append("done")
        except trio.Cancelled:
            ends.append("cancelled")
            raise
        return call.context

    access = HttpAccess(Tokens(None), own_address="")
    async with serving(*api.routes(access, lambda: {"a": 1})) as address:
        head = f"{method} /slow HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n"
        head += "Content-Type: application/json\r\nConnection: close\r\n\r\n"
        stream = await trio.open_tcp_stream(*address)
        await stream.send_all(head.encode())
        await begun.wait()
        await stream.aclose()
        await trio.sleep(0.2)
        assert ends == (["cancelled"] if method == "GET" else [])
        may_end.set()
        with trio.fail_after(5):
            while access.busy:  # noqa: ASYNC110 (it lasts for a moment)
                await trio.sleep(0.01)
        assert ends == ["cancelled" if method == "GET" else "done"]
        # Who stays is answered.
        assert b'{"a":1}' in await answer_to(address, head.encode())
