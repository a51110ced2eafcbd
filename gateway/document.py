"""The OpenAPI document of a gateway; its schemas are the structs of requests and answers."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from delay_transport.http.metric_families import installed_version
from delay_transport.http.problems import PROBLEM_TYPE, Problem
from delay_transport.http.schemas import schemas_of
from gateway.incoming import (
    DELAY,
    FORWARDED,
    IDEMPOTENCY_KEY,
    KEY_LENGTH_MAX,
    LEVEL,
    MESSAGES_MAX,
    NOT_BEFORE,
    JsonMessage,
)
from gateway.sending import Accepted, Accounted, SendProblem

_ABOUT: Final = """\
Sends messages that are delivered later. Bodies are kept as they are. Give at most one of delay,
moment and level; without one a message is due at once."""

_HEADERS: Final[Mapping[str, str]] = {
    DELAY: "Deliver this long after now: 90s, 1h52m, 2d, PT90S.",
    NOT_BEFORE: "Deliver at this moment: RFC 3339, or seconds since 1970.",
    LEVEL: "Deliver after the delay of this level of the cluster's table.",
    IDEMPOTENCY_KEY: f"Becomes the message's id, 1 to {KEY_LENGTH_MAX} characters.",
    f"{FORWARDED}NAME": "Goes along with the message as its header NAME.",
}

_REFUSALS: Final[Mapping[int, str]] = {
    400: "A value cannot be used: the answer names it, and what is allowed.",
    401: "No token, or one that is not known.",
    403: "The token may not send this subject, or a page of another place asks.",
    408: "The body took too long.",
    413: "The body or the message is too large.",
    415: "The body is no JSON.",
    422: "The cluster refuses the message for good: its subject, or a time too far away.",
    429: "Too much is asked at a time: again after Retry-After seconds.",
    503: "The cluster takes no messages just now: again after Retry-After seconds.",
}


class _Call(NamedTuple):
    path: str
    name: str
    summary: str
    curl: str
    body: Mapping[str, Any]
    answers: Sequence[type[msgspec.Struct]]
    parameters: Sequence[Mapping[str, Any]] = ()


def _calls() -> Sequence[_Call]:
    anything = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
    subject = {
        "name": "subject",
        "in": "path",
        "required": True,
        "description": "The subject that receivers take.",
        "schema": {"type": "string"},
    }
    headers = [
        {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
        for name, text in _HEADERS.items()
    ]
    one, many = (schemas_of([kind])[0][0] for kind in (JsonMessage, list[JsonMessage]))
    json = {"application/json": {"schema": {"oneOf": [one, many | {"maxItems": MESSAGES_MAX}]}}}
    return (
        _Call(
            "/v1/messages/{subject}",
            "send",
            "Send a message.",
            "curl -d 'it works' -H 'Delaywheel-Delay: 90s' http://127.0.0.1:8700/v1/messages/hello",
            anything,
            (Accepted,),
            (subject, *headers),
        ),
        _Call(
            "/v1/messages",
            "send_json",
            f"Send a message, or a list of up to {MESSAGES_MAX}.",
            'curl --json \'[{"subject": "hello", "body": "it works", "delay": "90s"}]\' '
            "http://127.0.0.1:8700/v1/messages",
            json,
            (Accepted, Accounted),
        ),
    )


@cache
def document() -> Mapping[str, Any]:
    """Return the document. Made once: that takes some tens of milliseconds."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "delaywheel gateway",
            "version": installed_version(),
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {}],
        "paths": {call.path: {"post": _described(call)} for call in _calls()},
        "components": {
            "schemas": schemas_of([JsonMessage, Accepted, Accounted, SendProblem, Problem])[1],
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Made by `delaywheel admin token add`.",
                }
            },
        },
    }


@cache
def document_json() -> bytes:
    """Return the document as JSON."""
    return msgspec.json.format(msgspec.json.encode(document()), indent=1)


def _described(call: _Call) -> dict[str, Any]:
    answers, _ = schemas_of(list(call.answers))
    refusal = {PROBLEM_TYPE: {"schema": schemas_of([SendProblem])[0][0]}}
    accepted = answers[0] if len(answers) == 1 else {"oneOf": list(answers)}
    return {
        "operationId": call.name,
        "summary": call.summary,
        "description": f"```\n{call.curl}\n```\nNeeds the role send.",
        "parameters": list(call.parameters),
        "requestBody": {"required": True, "content": dict(call.body)},
        "responses": {
            "202": {
                "description": "Kept.",
                "content": {"application/json": {"schema": accepted}},
            }
        }
        | {
            str(code): {"description": text, "content": refusal} for code, text in _REFUSALS.items()
        },
    }
