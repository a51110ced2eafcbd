"""The description of an API: OpenAPI 3.1, as JSON.

It is made from the operations and the structs that check requests, so it cannot say anything else
than what is done.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from delay_transport.http.api import Api
from delay_transport.http.metric_families import installed_version
from delay_transport.http.operations import Operation, alternatives_of
from delay_transport.http.problems import PROBLEM_TYPE
from delay_transport.http.schemas import schemas_of

_BINARY: Final = {"*/*": {"schema": {"type": "string", "format": "binary"}}}

_REFUSALS: Final[Mapping[int, str]] = {
    400: "A value is not allowed: the answer names field, value and what is allowed.",
    401: "No token, or one that is not known.",
    403: "The token may not do this, or a page of another place asks.",
    404: "There is no such row.",
    408: "The body took too long.",
    409: "The row has another version, or its state does not allow it.",
    412: "The row has another version than If-Match gives.",
    413: "The body is too long.",
    415: "The body is no JSON.",
    429: "Too many wrong tokens.",
    431: "Line and headers are too long; the answer has no body.",
    503: "The store is away, or too much is asked at a time; nothing is known to be stored.",
    504: "The store is slow: whether the change is stored has to be looked up.",
}

_READS: Final = (400, 401, 403, 404, 429, 431, 503)
_CHANGES: Final = (*_READS, 409, 504)
_BODIES: Final = (408, 413, 415)
_VERSIONED: Final = (412,)
_BODILESS: Final = (431,)


_PRECONDITIONS: Final = (
    ("If-Match", 'The version that the row must have, in quotes: "3".'),
    ("If-None-Match", "*: there must be no such row."),
)


@cache
def document(api: Api) -> dict[str, Any]:
    """Return the document. Made once: that takes some tens of milliseconds."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in api.operations:
        path = paths.setdefault(api.prefix + operation.shown_path, {})
        path[operation.method.lower()] = _described(operation, api)
    kinds = [kind for one in api.operations for kind in alternatives_of(one.answer_type)]
    kinds += [one.body_type for one in api.operations if one.body_type not in {None, bytes}]
    kinds += api.problem_types
    return {
        "openapi": "3.1.0",
        "info": {
            "title": api.title,
            "version": installed_version(),
            "description": api.about,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas_of(kinds)[1],
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
def document_json(api: Api) -> bytes:
    """Return the document as JSON."""
    return msgspec.json.format(msgspec.json.encode(document(api)), indent=1)


def _described(operation: Operation, api: Api) -> dict[str, Any]:
    refusals: tuple[int, ...] = _CHANGES if operation.is_change else _READS
    example = f"```\n{operation.example}\n```\n" if operation.example else ""
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"{example}Needs the role {operation.needed.value}.",
        "tags": [operation.path.split("/")[1]],
        "parameters": [
            *parameters_of(operation.path_type, "path"),
            *parameters_of(operation.query_type, "query"),
            *parameters_of(operation.header_type, "header"),
        ],
    }
    if operation.is_versioned:
        refusals += _VERSIONED
        described["parameters"] += [
            {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
            for name, text in _PRECONDITIONS
        ]
    if operation.body_type is not None:
        refusals += _BODIES
        described["requestBody"] = {
            "required": True,
            "content": _BINARY if operation.body_type is bytes else content_of(operation.body_type),
        }
    problem = {"content": content_of(*api.problem_types, media_type=PROBLEM_TYPE)}
    refused = {"default": {"description": api.refusal_text} | problem}
    if not api.refusal_text:
        refused = {
            str(code): {"description": _REFUSALS[code]} | ({} if code in _BODILESS else problem)
            for code in sorted(refusals)
        }
    described["responses"] = {
        str(operation.code): {
            "description": "As asked.",
            "content": content_of(*alternatives_of(operation.answer_type)),
        }
    } | refused
    return described


def content_of(
    *kinds: Any,  # noqa: ANN401 (any types that msgspec knows)
    media_type: str = "application/json",
) -> dict[str, Any]:
    """Return a body in JSON that is of one of these types."""
    schemas, _ = schemas_of(kinds)
    schema = schemas[0] if len(schemas) == 1 else {"oneOf": list(schemas)}
    return {media_type: {"schema": schema}}


def parameters_of(kind: type[msgspec.Struct], place: str) -> Iterator[dict[str, Any]]:
    """Yield a parameter of a `path` or a `query` for each field of a struct."""
    schema = schemas_of([kind])[1][kind.__name__]
    for name, property_schema in schema["properties"].items():
        described = dict(property_schema)
        yield {
            "name": name,
            "in": place,
            "required": name in schema.get("required", ()),
            "description": described.pop("description"),
            "schema": described,
        }
