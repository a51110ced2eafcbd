"""The description of the administration's API: OpenAPI 3.1, as JSON.

It is made from the operations and the structs that check requests, so it cannot say anything else
than what is done.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from delay_transport.http.metric_families import installed_version
from meta_server.admin.admin_types import Problem
from meta_server.admin.api import OPERATIONS, PREFIX, Operation

_REFERENCE: Final = "#/components/schemas/{name}"

_ABOUT: Final = """\
Administration of a delaywheel meta server. A change is answered when it is stored, has an entry \
in the audit, and reaches connected clients at once. Without a file of tokens this machine alone \
is answered and every caller is an administrator; with one, GET needs a token of the role read, \
and everything else one of the role admin. Times are wall clock in ms since 1970 UTC."""

_REFUSALS: Final[Mapping[int, str]] = {
    400: "A value is not allowed: the answer names field, value and what is allowed.",
    401: "No token, or one that is not known.",
    403: "The token may not do this, or a page of another place asks.",
    404: "There is no such row.",
    408: "The body took too long.",
    409: "The row has another version, or its state does not allow it.",
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
_BODILESS: Final = (431,)


@cache
def document() -> dict[str, Any]:
    """Return the document. Made once: that takes some tens of milliseconds."""
    bodies = [one.body_type for one in OPERATIONS if one.body_type is not None]
    answers = [one.answer_type for one in OPERATIONS]
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        path = paths.setdefault(PREFIX + operation.path, {})
        path[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "delaywheel meta server",
            "version": installed_version(),
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {}],
        "paths": paths,
        "components": {
            "schemas": _schemas([*bodies, *answers, Problem]),
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


def _described(operation: Operation) -> dict[str, Any]:
    refusals: tuple[int, ...] = _CHANGES if operation.is_change else _READS
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"Needs the role {operation.needed.value}.",
        "tags": [operation.path.split("/")[1]],
        "parameters": [
            *_parameters(operation.path_type, "path"),
            *_parameters(operation.query_type, "query"),
        ],
    }
    if operation.body_type is not None:
        refusals += _BODIES
        described["requestBody"] = {
            "required": True,
            "content": _content(operation.body_type),
        }
    described["responses"] = {
        str(operation.code): {
            "description": "As asked.",
            "content": _content(operation.answer_type),
        }
    } | {
        str(code): {"description": _REFUSALS[code]}
        | ({} if code in _BODILESS else {"content": _content(Problem)})
        for code in sorted(refusals)
    }
    return described


def _content(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(name=kind.__name__)}}}


def _parameters(kind: type[msgspec.Struct], place: str) -> Iterator[dict[str, Any]]:
    schema = _schemas([kind])[kind.__name__]
    for name, property_schema in schema["properties"].items():
        described = dict(property_schema)
        yield {
            "name": name,
            "in": place,
            "required": name in schema.get("required", ()),
            "description": described.pop("description"),
            "schema": described,
        }


def _schemas(kinds: list[type[msgspec.Struct]]) -> dict[str, Any]:
    """Return the schemas of structs, and of those in them."""
    return msgspec.json.schema_components(kinds, ref_template=_REFERENCE)[1]
