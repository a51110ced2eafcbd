"""The description of the administration's API: OpenAPI 3.1, as JSON and as a page for people.

It is made from the operations and the structs that check requests, so it cannot say anything else
than what is done.
"""

import ast
import html
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any, Final

import msgspec

from delay_protocol.nodes import controls
from delay_transport.http.metric_families import installed_version
from meta_server.admin import admin_types
from meta_server.admin.admin_types import Problem
from meta_server.admin.api import OPERATIONS, PREFIX, Operation

_EXPLAINED: Final = {module.__name__: module for module in (admin_types, controls)}
"""The module of the structs of requests and answers."""

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
    """Return the schemas of structs, and of those in them, every field explained."""
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    for name, schema in schemas.items():
        notes = _notes(getattr(admin_types, name))
        for field, described in schema["properties"].items():
            described["description"] = notes[field]
    return schemas


def _notes(kind: type) -> dict[str, str]:
    """Return the explanation of every field of a struct, those of its parents included."""
    notes: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if one.__module__ in _EXPLAINED:
            notes |= _notes_of(_EXPLAINED[one.__module__]).get(one.__name__, {})
    return notes


@cache
def _notes_of(module: ModuleType) -> dict[str, dict[str, str]]:
    """Return, by class and field, the strings that follow fields. The source is read once."""
    return {
        node.name: {
            field.target.id: inspect.cleandoc(note.value.value).replace("\n", " ")
            for field, note in zip(node.body, node.body[1:], strict=False)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(note, ast.Expr)
            and isinstance(note.value, ast.Constant)
            and isinstance(note.value.value, str)
        }
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef)
    }


# For people

_STYLE: Final = """\
body{font:15px/1.45 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#222}
h2{margin-top:2.5rem;border-bottom:1px solid #ccc}h3{margin:1.8rem 0 .2rem;font-size:1rem}
code{font-family:ui-monospace,monospace;font-size:.92em}.m{display:inline-block;min-width:4.2em;
font-weight:700}table{border-collapse:collapse;margin:.4rem 0}td,th{text-align:left;padding:.15rem
.8rem .15rem 0;vertical-align:top;border-bottom:1px solid #eee}th{font-weight:600}.r{color:#777}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}td,th,h2{border-color:#444}
a{color:#8bf}}"""


@cache
def page() -> bytes:
    """Return the document as a page that needs nothing else: no script, no other file."""
    found = document()
    schemas = found["components"]["schemas"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'>",
        f"<title>{_text(found['info']['title'])}</title><style>{_STYLE}</style>",
        f"<h1>{_text(found['info']['title'])} {_text(found['info']['version'])}</h1>",
        f"<p>{_text(found['info']['description'])}</p>",
        f"<p>For programs: <a href='{PREFIX}/openapi.json'>openapi.json</a>.</p>",
    ]
    tag = ""
    for path, methods in sorted(found["paths"].items()):
        for method, described in methods.items():
            if described["tags"][0] != tag:
                tag = described["tags"][0]
                parts.append(f"<h2>{_text(tag)}</h2>")
            parts += _operation(path, method, described)
    parts.append("<h2>What is sent</h2>")
    for name, schema in sorted(schemas.items()):
        parts += _struct(name, schema)
    return "\n".join(parts).encode()


def _operation(path: str, method: str, described: dict[str, Any]) -> Iterator[str]:
    name = described["operationId"]
    needs = _text(described["description"])
    yield f"<h3 id='{_text(name)}'><span class=m>{method.upper()}</span> "
    yield f"<code>{_text(path)}</code></h3>"
    yield f"<p>{_text(described['summary'])} <span class=r>{needs}</span></p>"
    if described["parameters"]:
        yield "<table><tr><th>parameter<th>in<th>type<th>what it means</tr>"
        for one in described["parameters"]:
            yield (
                f"<tr><td><code>{_text(one['name'])}</code><td>{one['in']}"
                f"<td>{_type_of(one['schema'])}<td>{_text(one['description'])}</tr>"
            )
        yield "</table>"
    if "requestBody" in described:
        yield f"<p>Takes {_type_of(_schema_in(described['requestBody']))}.</p>"
    code = next(iter(described["responses"]))
    answer = described["responses"][code]
    refusals = ", ".join(other for other in described["responses"] if other != code)
    yield f"<p>{code}: {_type_of(_schema_in(answer))}. "
    yield f"<span class=r>Refusals: {refusals}.</span></p>"


def _schema_in(content: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = content["content"]["application/json"]["schema"]
    return schema


def _struct(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"<h3 id='{_text(name)}'><code>{_text(name)}</code></h3>"
    yield f"<p>{_text(schema['description'])}</p>"
    yield "<table><tr><th>field<th>type<th>what it means</tr>"
    for field, described in schema["properties"].items():
        needed = "" if field in schema.get("required", ()) else " <span class=r>optional</span>"
        yield (
            f"<tr><td><code>{_text(field)}</code>{needed}<td>{_type_of(described)}"
            f"<td>{_text(described['description'])}</tr>"
        )
    yield "</table>"


def _type_of(schema: dict[str, Any]) -> str:
    """Return what a schema allows, in words and links."""
    match schema:
        case {"$ref": str(reference)}:
            name = _text(reference.rpartition("/")[2])
            return f"<a href='#{name}'>{name}</a>"
        case {"anyOf": list(kinds)}:
            return " or ".join(map(_type_of, kinds))
        case {"enum": list(values)}:
            return ", ".join(f"<code>{_text(str(value))}</code>" for value in values if value != "")
        case {"type": "array", "items": dict(items)}:
            return f"list of {_type_of(items)}"
        case {"type": str(kind)}:
            bounds = [
                f"{words} {schema[name]}"
                for name, words in (
                    ("minimum", "from"),
                    ("maximum", "to"),
                    ("maxLength", "at most"),
                    ("default", "default"),
                )
                if schema.get(name) not in (None, "", 2**63 - 1)
            ]
            return _text(" ".join([kind, *bounds]))
        case _:
            return "anything"


def _text(text: str) -> str:
    return html.escape(text)
