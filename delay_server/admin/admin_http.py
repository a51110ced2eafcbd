"""HTTP endpoints for operators: the rules in force, a planned stop, and explanations.

GET    /controls                    all rules, and how it stands with the broker groups
POST   /controls/follow             apply the meta server's controls, whatever holds here
POST   /drain                       {"seconds": 30}: stop the node as SIGTERM does, within so long
GET    /explain?subject= | ?id=    where messages are, and why they were not delivered

Rules are set at the meta server, or in the file of rules. Access: `access.py`. Who stopped the node
or had it follow is in the log.
"""

from typing import Any, Final

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from delay_protocol.nodes.controls import decode_rule
from delay_server.admin.access import Guard, RequestError, peer_of, read_body
from delay_server.admin.explain import Explained, explain_subject, find
from delay_server.admin.parts import Administered
from delay_server.admin.status import following_of
from delay_transport.http.access import Caller
from delay_transport.http.server import json_response
from storage.disk.spans import MINUTE_MAX
from storage.readers.find_row import FindRow

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_DRAIN_SECONDS_MAX: Final = 3600.0
"""Seconds. The longest time that a planned stop may have for work in flight."""


class _DrainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seconds: float = 30.0


def admin_routes(administered: Administered, guard: Guard) -> list[Route]:
    """Return the routes of one server's administration."""
    admin = _Admin(administered)
    return [
        guard.route("/controls", {"GET": admin.controls}),
        guard.route("/controls/follow", {"POST": admin.follow}),
        guard.route("/drain", {"POST": admin.drain}),
        guard.route("/explain", {"GET": admin.explain}),
    ]


def _number(request: Request, name: str, default: int | None, most: int) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most):
        raise RequestError(400, "bad-value", f"{name} must be a number up to {most}, not {text!a}")
    return int(text)


class _Admin:
    """The endpoints."""

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
        _log.warning("follow the meta server", who=caller.name, peer=peer_of(request))
        if not await controls_sync.follow():
            raise RequestError(
                409, "not-told", "this node has received no controls since it started"
            )
        return json_response({"version": self._administered.parts().master.outlet.applied.version})

    async def drain(self, request: Request, caller: Caller) -> Response:
        parts = self._administered.parts()
        wanted = decode_rule(await read_body(request) or b"{}", _DrainRequest)
        most = _DRAIN_SECONDS_MAX
        if not 0 <= wanted.seconds <= most:
            raise RequestError(400, "bad-value", f"seconds must be 0 to {most:g}")
        _log.warning("drain", who=caller.name, peer=peer_of(request))
        self._administered.begin_stop(wanted.seconds)
        return json_response({"stops": True, "in_flight": parts.master.sender.unsent().in_flight})

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
