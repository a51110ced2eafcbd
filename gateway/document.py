"""The OpenAPI document of a gateway; its schemas are the structs of requests and answers."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from delay_transport.http.openapi import content_of, document_of, parameters_of
from delay_transport.http.operations import NoQuery, Request
from delay_transport.http.problems import PROBLEM_TYPE, Problem
from gateway.changing import CancelledMessages, ChangedMessage, ChangeProblem
from gateway.incoming import (
    DELAY,
    FORWARDED,
    IDEMPOTENCY_KEY,
    KEY_LENGTH_MAX,
    LEVEL,
    MESSAGES_MAX,
    NOT_BEFORE,
    URL,
    JsonMessage,
)
from gateway.looking import Found, ListPage
from gateway.meant import CancelQuery, ListQuery, Move, NameQuery
from gateway.operating import OPERATIONS
from gateway.sending import Accepted, Accounted, SendProblem

DOCUMENT: Final = "/v1/openapi.json"
"""The path of the document."""

_ABOUT: Final = """\
Sends messages that are delivered later, and looks at, cancels and moves what waits. Bodies are kept
as they are. Give at most one of delay, moment and level; without one a message is due at once."""

_HEADERS: Final[Mapping[str, str]] = {
    DELAY: "Deliver this long after now: 90s, 1h52m, 2d, PT90S.",
    NOT_BEFORE: "Deliver at this moment: RFC 3339, or seconds since 1970.",
    LEVEL: "Deliver after the delay of this level of the cluster's table.",
    IDEMPOTENCY_KEY: f"Becomes the message's id, 1 to {KEY_LENGTH_MAX} characters.",
    URL: "Post it to this URL when it is due, where an operator has allowed the host.",
    f"{FORWARDED}NAME": "Goes along with the message as its header NAME.",
}

_NAMES: Final[Mapping[str, str]] = {
    "subject": "The subject that receivers take.",
    "id": "The message's id.",
    "subject_or_token": "Of POST the subject; else `cancel_token` of the answer to a POST.",
    "delay_group": "A group of delay servers.",
}
_PROBLEMS: Final = (Problem, SendProblem, ChangeProblem)
_ONE: Final = "/v1/messages/{subject_or_token}"
"""One path, as OpenAPI tells no two apart that differ in the names of their parts alone."""
_URL: Final = "http://127.0.0.1:8700/v1/messages"


class _Call(NamedTuple):
    method: str
    path: str
    name: str
    summary: str
    role: str
    curl: str
    answers: tuple[Any, ...]
    query: type[Request] = NoQuery
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = {}


def _calls() -> Iterator[_Call]:
    anything = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
    messages = Annotated[list[JsonMessage], msgspec.Meta(max_length=MESSAGES_MAX)]
    listed = '[{"subject": "hello", "body": "it works", "delay": "90s"}]'
    due = '{"due": "2026-12-24T18:00:00Z"}'
    yield _Call(
        *("POST", _ONE, "send", "Send a message.", "send"),
        f"curl -d 'it works' -H 'Delaywheel-Delay: 90s' {_URL}/hello",
        *((Accepted,), NoQuery, anything, _HEADERS),
    )
    yield _Call(
        *("POST", "/v1/messages", "send_json", "Send a message, or a list.", "send"),
        f"curl --json '{listed}' {_URL}",
        *((Accepted, Accounted), NoQuery, content_of(JsonMessage, messages)),
    )
    yield _Call(
        *("GET", "/v1/messages", "list", "List what waits, the first due first.", "read"),
        f"curl '{_URL}?subject=hello&limit=10'",
        *((ListPage,), ListQuery),
    )
    yield _Call(
        *("DELETE", "/v1/messages", "cancel_all", "Cancel all of a filter.", "change"),
        f"curl -X DELETE '{_URL}?subject=hello&dry_run=true'",
        *((CancelledMessages,), CancelQuery),
    )
    for path, url, by, query in (
        (_ONE, f"{_URL}/$TOKEN", "", NoQuery),
        ("/v1/messages/{subject}/{id}", f"{_URL}/hello/$ID", "_by_id", NameQuery),
    ):
        yield _Call(
            *("GET", path, f"find{by}", "Show what became of a message.", "read"),
            *(f"curl {url}", (Found,), query),
        )
        yield _Call(
            *("DELETE", path, f"cancel{by}", "Cancel a message: it never comes.", "send"),
            *(f"curl -X DELETE {url}", (ChangedMessage,), query),
        )
        yield _Call(
            *("PATCH", path, f"move{by}", "Deliver a message at another time.", "send"),
            *(f"curl -X PATCH --json '{due}' {url}", (ChangedMessage,), query, content_of(Move)),
        )
    yield from _operators_calls()


def _operators_calls() -> Iterator[_Call]:
    """Yield what operators look at and change."""
    for one in OPERATIONS:
        path = one.path.replace("{delay_group}", "d1").replace("{subject}", "orders.*")
        sent = "" if one.method == "GET" else f"-X {one.method} "
        curl = f"curl {sent}'http://127.0.0.1:8700/v1/{path}{one.example}'"
        name, summary = one.act.__name__, one.act.__doc__ or ""
        words = (one.method, f"/v1/{one.path}", name, summary, one.role.value, curl)
        yield _Call(*words, (one.answer,), one.query)


@cache
def document() -> Mapping[str, Any]:
    """Return the document. Made once: that takes some tens of milliseconds."""
    paths: dict[str, dict[str, Any]] = {}
    for call in _calls():
        paths.setdefault(call.path, {})[call.method.lower()] = _described(call)
    kinds = [kind for call in _calls() for kind in call.answers]
    kinds += [JsonMessage, Move, *_PROBLEMS]
    return document_of("delaywheel gateway", _ABOUT, paths, kinds)


@cache
def document_json() -> bytes:
    """Return the document as JSON."""
    return msgspec.json.format(msgspec.json.encode(document()), indent=1)


def _described(call: _Call) -> dict[str, Any]:
    names = {name: text for name, text in _NAMES.items() if f"{{{name}}}" in call.path}
    texts = [("path", one) for one in names.items()] + [
        ("header", one) for one in call.headers.items()
    ]
    return {
        "operationId": call.name,
        "summary": call.summary,
        "description": f"```\n{call.curl}\n```\nNeeds the role {call.role}.",
        "parameters": [
            {
                "name": name,
                "in": place,
                "required": place == "path",
                "description": text,
                "schema": {"type": "string"},
            }
            for place, (name, text) in texts
        ]
        + list(parameters_of(call.query, "query")),
        **({} if call.body is None else {"requestBody": {"required": True, "content": call.body}}),
        "responses": {
            "2XX": {"description": "As asked.", "content": content_of(*call.answers)},
            "default": {
                "description": "A refusal: docs/http.md has the statuses and their words.",
                "content": content_of(*_PROBLEMS, media_type=PROBLEM_TYPE),
            },
        },
    }
