"""HTTP endpoints for operators: pauses, limits, a planned stop, and explanations.

GET    /controls                    all rules, and how it stands with the broker groups
PUT    /controls/subjects/{rule}    set the rule of a subject, or of a prefix with a * at its end
PATCH  /controls/subjects/{rule}    change some fields of it
DELETE /controls/subjects/{rule}    remove it
PUT, PATCH, DELETE /controls/groups/{name}    the same for a broker group
GET    /controls/audit?limit=       who changed what, the newest first
POST   /controls/follow             apply the meta server's controls, even if they are less strict
POST   /drain                       {"seconds": 30}: stop the node as SIGTERM does, within so long
GET    /explain?subject= | ?id=    where messages are, and why they were not delivered

With a meta server the rules are changed there, and this node refuses changes.

A change may name the version that it is based on (?version=); the answer is 409 if the current
version is another one. A change is answered when it is stored and applied. Access: `access.py`.
"""

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from delay_protocol.nodes.controls import Controls, GroupControl, SubjectControl, decode_rule
from delay_server.admin.access import Endpoint, Guard, RequestError, peer_of, read_body
from delay_server.admin.explain import Explained, explain_subject, find
from delay_server.admin.parts import Administered
from delay_server.admin.status import following_of
from delay_server.controls.controls_store import AuditEntry
from delay_transport.http.access import Caller
from delay_transport.http.server import json_response
from storage.disk.spans import MINUTE_MAX
from storage.readers.find_row import FindRow

_AUDIT_MAX: Final = 1000
_AUDIT_SHOWN: Final = 100

T = TypeVar("T", bound=msgspec.Struct)


_DRAIN_SECONDS_MAX: Final = 3600.0
"""Seconds. The longest time that a planned stop may have for work in flight."""


class _DrainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seconds: float = 30.0


def admin_routes(administered: Administered, guard: Guard) -> list[Route]:
    """Return the routes of one server's administration."""
    admin = _Admin(administered)
    subjects: _Rules[SubjectControl] = _Rules(
        administered, SubjectControl, "subject", "rule", Controls.with_subject
    )
    groups: _Rules[GroupControl] = _Rules(
        administered, GroupControl, "group", "name", Controls.with_group
    )
    return [
        guard.route("/controls", {"GET": admin.controls}),
        guard.route("/controls/audit", {"GET": admin.audit}),
        guard.route("/controls/follow", {"POST": admin.follow}),
        guard.route("/controls/subjects/{rule:path}", subjects.endpoints),
        guard.route("/controls/groups/{name:path}", groups.endpoints),
        guard.route(
            "/drain",
            {"POST": admin.drain},
        ),
        guard.route("/explain", {"GET": admin.explain}),
    ]


def _number(request: Request, name: str, default: int | None, most: int) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most):
        raise RequestError(400, "bad-value", f"{name} must be a number up to {most}, not {text!a}")
    return int(text)


class _Rules(Generic[T]):
    """PUT, PATCH and DELETE of the rules of one kind."""

    def __init__(
        self,
        administered: Administered,
        kind: type[T],
        word: str,
        parameter: str,
        plan: Callable[[Controls, str, T | None], Controls],
    ) -> None:
        self._administered = administered
        self._kind = kind
        self._word = word
        self._parameter = parameter
        self._plan = plan
        self.endpoints: dict[str, Endpoint] = {
            "PUT": self._put,
            "PATCH": self._patch,
            "DELETE": self._delete,
        }

    def _of(self, controls: Controls, name: str) -> T | None:
        rules: Any = controls.subjects if self._word == "subject" else controls.groups
        found: T | None = rules.get(name)
        return found

    async def _put(self, request: Request, caller: Caller) -> Response:
        rule = decode_rule(await read_body(request), self._kind)
        return await self._change(request, caller, lambda _: rule)

    async def _patch(self, request: Request, caller: Caller) -> Response:
        fields = decode_rule(await read_body(request), dict[str, Any])

        def patched(before: T | None) -> T | None:
            known = before if before is not None else self._kind()
            merged = msgspec.to_builtins(known) | fields
            after = decode_rule(msgspec.json.encode(merged), self._kind)
            # To take a limit away where there is none is no exception from anybody's pause.
            return None if before is None and after == known and "paused" not in fields else after

        return await self._change(request, caller, patched)

    async def _delete(self, request: Request, caller: Caller) -> Response:
        return await self._change(request, caller, lambda _: None)

    async def _change(
        self, request: Request, caller: Caller, change: Callable[[T | None], T | None]
    ) -> Response:
        name = str(request.path_params[self._parameter])
        if self._administered.config.has_meta:
            raise RequestError(
                409,
                "meta",
                "rules are set at the meta server, for all nodes of the cluster: "
                f"give --meta {self._administered.config.meta.addresses.partition(',')[0].strip()} "
                "instead of --server",
            )
        based_on = _number(request, "version", None, 2**62)
        at_ms = self._administered.runtime.clock.now_ms()

        def plan(before: Controls) -> Controls:
            if based_on is not None and based_on != before.version:
                raise RequestError(
                    409, "conflict", f"the current version is {before.version}, not {based_on}"
                )
            rule = self._of(before, name)
            if request.method == "DELETE" and rule is None:
                raise RequestError(404, "not-found", f"there is no rule for {name!a}")
            return self._plan(before, name, change(rule))

        def entry(before: Controls, after: Controls) -> AuditEntry:
            return AuditEntry(
                at_ms=at_ms,
                who=caller.name,
                peer=peer_of(request),
                action=f"{'remove' if request.method == 'DELETE' else 'set'} {self._word}",
                target=name,
                version=after.version,
                before=msgspec.Raw(msgspec.json.encode(self._of(before, name))),
                after=msgspec.Raw(msgspec.json.encode(self._of(after, name))),
            )

        after = await self._administered.parts().master.outlet.change(plan, entry)
        rule = self._of(after, name)
        answer = {"version": after.version, self._word: name, "rule": rule}
        if self._word == "group":
            answer["is_known"] = any(
                name == group.name for group in self._administered.parts().master.sender.status()
            )
        return json_response(answer)


class _Admin:
    """The other endpoints."""

    def __init__(self, administered: Administered) -> None:
        self._administered = administered

    async def controls(self, _request: Request, _caller: Caller) -> Response:
        parts = self._administered.parts()
        controls = parts.master.outlet.applied
        states = {
            group.name: {
                "state": group.state.value,
                "circuit": group.circuit.value,
                "queued": group.queued,
                "in_flight": group.in_flight,
            }
            for group in parts.master.sender.status()
        }
        return json_response(
            {
                "version": controls.version,
                "subjects": controls.subjects,
                "groups": controls.groups,
                "group_states": states,
                "meta": following_of(parts),
            }
        )

    async def follow(self, request: Request, caller: Caller) -> Response:
        controls_sync = self._administered.parts().node.controls_sync
        if controls_sync is None:
            raise RequestError(409, "no-meta", "this node has no meta server to follow")
        if not await controls_sync.follow(who=caller.name, peer=peer_of(request)):
            raise RequestError(
                409, "not-told", "this node has received no controls since it started"
            )
        return json_response({"version": self._administered.parts().master.outlet.applied.version})

    async def audit(self, request: Request, _caller: Caller) -> Response:
        count = _number(request, "limit", _AUDIT_SHOWN, _AUDIT_MAX)
        assert count is not None
        page = await self._administered.parts().master.outlet.audit(count)
        damages = [
            {"path": one.path, "position": one.position, "bytes": one.size, "reason": one.reason}
            for one in page.damages
        ]
        return json_response({"items": page.items, "damages": damages})

    async def drain(self, request: Request, caller: Caller) -> Response:
        parts = self._administered.parts()
        wanted = decode_rule(await read_body(request) or b"{}", _DrainRequest)
        most = _DRAIN_SECONDS_MAX
        if not 0 <= wanted.seconds <= most:
            raise RequestError(400, "bad-value", f"seconds must be 0 to {most:g}")
        await parts.master.outlet.note(self._noted(request, caller, "drain"))
        self._administered.begin_stop(wanted.seconds)
        return json_response({"stops": True, "in_flight": parts.master.sender.unsent().in_flight})

    def _noted(self, request: Request, caller: Caller, action: str) -> AuditEntry:
        return AuditEntry(
            at_ms=self._administered.runtime.clock.now_ms(),
            who=caller.name,
            peer=peer_of(request),
            action=action,
            target="node",
        )

    async def explain(self, request: Request, _caller: Caller) -> Response:
        asked = [name for name in ("subject", "id") if name in request.query_params]
        if len(asked) != 1:
            raise RequestError(400, "bad-value", "give either subject or id")
        parts = self._administered.parts()
        if asked == ["subject"]:
            return json_response(await explain_subject(parts, request.query_params["subject"]))
        messages, search = await find(
            parts,
            message_id=request.query_params["id"].encode(),
            due_minute=_number(request, "minute", None, MINUTE_MAX),
        )
        return json_response(
            {
                "messages": [_shown(message) for message in messages],
                "rows_looked_at": search.examined,
                "complete": search.is_complete,
                "hint": "" if messages else _hint(search),
            }
        )


def _hint(search: FindRow) -> str:
    """Return what it means that nothing was found."""
    if search.unreadable:
        return f"{search.unreadable} places were unreadable: run `delaywheel log verify`"
    if not search.is_complete:
        return "the search did not reach what was just acknowledged: the disk stalls, or is full"
    return "no message with this id waits or was delivered lately (--at: in that minute)"


def _shown(message: Explained) -> dict[str, Any]:
    row, held = message.row, message.held
    return {
        "sequence": row.sequence,
        "subject": row.subject.decode(errors="replace"),
        "due_ms": row.due_ms,
        "segment": row.segment,
        "reason": "done" if message.reason is None else message.reason.value,
        "group": None if held is None else held.group,
        "holder": None if held is None else held.holder or None,
        "fact": row.fact,
        "dead_letter": message.is_letter,
    }
