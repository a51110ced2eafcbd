"""The administration's JSON API: three verbs and the actions for every kind, audit, topology.

    GET    /KIND               a page of its rows
    GET    /KIND/KEY           one row, with its version as ETag
    PUT    /KIND/KEY           add or replace it; If-Match, If-None-Match
    DELETE /KIND/KEY           remove it; If-Match
    POST   /KIND/KEY/ACTION    an action on it; If-Match

All of it is made from `meta_server/admin/kinds.py`; `delay_transport/http/api.py` makes routes,
checks and the document. Beside the refusals named there a request is answered

    404 not-found      there is no such row
    409 conflict       its state does not allow it
    503 store, busy    the store is away (reading goes on), or too much is asked at a time
    504 unknown        the store is slow: whether the change is stored has to be looked up
"""

from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from delay_transport.http.api import Api, Refusal
from delay_transport.http.operations import Call, NoPath, NoQuery, Operation
from delay_transport.http.pages import Page
from meta_server.admin import administration, verbs
from meta_server.admin.admin_types import (
    AuditPage,
    AuditQuery,
    AuditShown,
    Done,
    NameKey,
    RouteExtension,
    RoutesChanged,
    Topology,
    WebhooksRevealed,
)
from meta_server.admin.kinds import KINDS, REMOVE, SET, ResourceKind
from meta_server.admin.parts import Parts
from meta_server.admin.status import failing_checks
from meta_server.admin.views import topology_of
from meta_server.admin.webhook_rules import reveal_all
from meta_server.known.errors import (
    ConflictError,
    NotFoundError,
    RefusedError,
    StateError,
    StoreError,
    StoreRefusedError,
)
from meta_server.known.model import AuditRow

_METHODS: Final = {SET: "PUT", REMOVE: "DELETE"}
"""The methods of actions that have no path of their own."""

_AUDIT_STEP: Final = 1000
"""Entries of the audit that one page looks at: commits wait that long. So filters that few entries
pass take many pages."""

API: Final = Api(
    title="delaywheel meta server",
    about="""\
Administration of a delaywheel meta server. A change is answered when it is stored, has an entry \
in the audit, and reaches connected clients at once. Without a file of tokens this machine alone \
is answered and every caller is an administrator; with one, GET needs a token of the role read, \
and everything else one of the role admin. PUT has the whole row: what is left out of it gets its \
default. Times are wall clock in ms since 1970 UTC.""",
    prefix="/api/v1",
    refusals=(
        Refusal(verbs.VersionError, 412, "version"),
        Refusal(NotFoundError, 404, "not-found"),
        Refusal(StateError, 409, "conflict"),
        Refusal(RefusedError, 503, "busy"),
        Refusal(
            ConflictError, 409, "conflict", "another process changed the store: nothing was stored"
        ),
        Refusal(administration.OutcomeUnknownError, 504, "unknown"),
        Refusal(StoreRefusedError, 500, "store"),
        Refusal(
            StoreError,
            503,
            "store",
            "when the store is available again, check whether the change was made",
        ),
    ),
)


# The verbs and actions of each kind


def _declare(method: str, path: str, kind: ResourceKind, name: str, **fields: Any) -> None:  # noqa: ANN401 (of Operation)
    """Declare an operation on rows of a kind."""
    operation = Operation(
        method=method,
        path=path,
        name=f"{name}-{kind.name}".replace("-", "_"),
        is_versioned=method != "GET",
        **{"path_type": kind.key} | fields,
    )
    API.operations.append(operation)


def _declare_kind(kind: ResourceKind) -> None:
    path = f"/{kind.name}" + "".join(f"/{{{part}}}" for part in kind.key.__struct_fields__)
    _declare(
        *("GET", f"/{kind.name}", kind, "list"),
        summary=f"List rows of the kind {kind.name}, in the order of their keys.",
        act=partial(verbs.list_rows, kind),
        path_type=NoPath,
        query_type=kind.filters,
        answer_type=Page[kind.shown],  # type: ignore[name-defined]
    )
    _declare(
        *("GET", path, kind, "show"),
        summary=f"Show one {kind.what}.",
        act=partial(verbs.show_row, kind),
        answer_type=kind.shown,
    )
    for action in kind.actions:
        name, is_removal = action.name, action.name == REMOVE
        _declare(
            *(_METHODS.get(name, "POST"), path if name in _METHODS else f"{path}/{name}"),
            *(kind, name),
            summary=action.summary or f"Remove one {kind.what}.",
            act=partial(verbs.act, kind, action),
            query_type=action.wanted if is_removal else NoQuery,
            body_type=None if is_removal else action.wanted,
            answer_type=Done if action.is_last else kind.shown,
        )


for _kind in KINDS:
    _declare_kind(_kind)


@API.operation("POST", "/broker-group/{name}/extend")
async def extend_routes(call: Call[Parts, NameKey, NoQuery, RouteExtension]) -> RoutesChanged:
    """Add another broker group to all routes that have this one."""
    parts = call.context.asked_by(call.caller.name)
    return await administration.extend_routes(parts, call.path.name, call.body.new_group)


@API.operation("POST", "/webhooks/reveal")
async def reveal_webhooks(call: Call[Parts, NoPath, NoQuery, None]) -> WebhooksRevealed:
    """Return all webhooks with their secrets, as gateways need them."""
    return reveal_all(call.context)


# What happened, and everything


@API.operation("GET", "/audit")
async def read_audit(call: Call[Parts, NoPath, AuditQuery, None]) -> AuditPage:
    """List changes and who made them, newest first."""
    query = call.query
    rows = await administration.read_audit(call.context, before=query.before, limit=_AUDIT_STEP)
    found = [row for row in rows if _is_wanted(row, query)]
    items = [_show_entry(row) for row in found[: query.limit]]
    if len(found) > query.limit:
        return AuditPage(items=items, next=items[-1].number)
    return AuditPage(items=items, next=rows[-1].number if len(rows) == _AUDIT_STEP else None)


def _is_wanted(row: AuditRow, query: AuditQuery) -> bool:
    entry = row.entry
    return (
        query.actor in {"", entry.actor}
        and (not query.action or f"{entry.action}.".startswith(f"{query.action}."))
        and query.target in {"", entry.target}
    )


def _show_entry(row: AuditRow) -> AuditShown:
    entry = row.entry
    before, after = (msgspec.Raw(text.encode() or b"null") for text in (entry.before, entry.after))
    shown = asdict(entry) | {"number": row.number, "before": before, "after": after}
    return AuditShown(**shown)


@API.operation("GET", "/topology")
async def show_topology(call: Call[Parts, NoPath, NoQuery, None]) -> Topology:
    """Show a summary: groups, delay servers, number of routes."""
    return await topology_of(call.context, failing_checks(call.context.observe()))
