"""Dead letters over HTTP: JSON, on the node's own port.

GET  /dead              the dead letters by sequence, `limit` of them: all, or those of a `subject`,
                        or of the `group` that refused them last; `matched` says how many there are
GET  /dead/{sequence}   one of them, with its item decoded; ?payload=1 adds the item's bytes
POST /dead/requeue      send some once more
POST /dead/drop         have some never sent

A change names dead letters by `sequences`, or means all of a `subject`, or of a `group`. An answer
says which of `sequences` were `missing`. Errors are {"error": {"code": word, "message": sentence}}.

Access: `access.py`. Each change has two lines in the log: one before it with who asked, from where
and for what, and one after it with the number of dead letters changed.
"""

import base64
from typing import Annotated, Any, Final

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from delay_protocol.basics.errors import ProtocolError
from delay_protocol.messages.items import decode_item
from delay_protocol.nodes.controls import decode_rule
from delay_server.admin.access import Guard, RequestError, peer_of, read_body
from delay_server.admin.parts import Administered
from delay_server.dead.dead_letters import DEAD_WORKER, Change, DeadLetters
from delay_server.dead.reason import code_name, decode_reason
from delay_transport.http.access import Caller
from delay_transport.http.server import json_response
from storage.readers.dead_reader import DeadItem
from storage.schedule.dead_index import DeadRow

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

SEQUENCES_MAX: Final = 10_000
"""Dead letters that a request may name."""
_LISTED: Final = "100"
"""Dead letters of a list, if the request does not say."""
_LOGGED_SEQUENCES: Final = 20
"""Dead letters that the log names of a request; of the others it says how many they were."""
_LOGGED_CHARACTERS: Final = 200
"""Characters of a subject or a group that the log keeps."""
_INTEGER_MAX: Final = 2**63 - 1

Json = dict[str, Any]

Sequence = Annotated[int, msgspec.Meta(ge=0, le=_INTEGER_MAX)]


class _Meant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The dead letters of a change: one of these."""

    sequences: Annotated[list[Sequence], msgspec.Meta(max_length=SEQUENCES_MAX)] | None = None
    subject: str | None = None
    group: str | None = None


def dead_routes(administered: Administered, guard: Guard) -> list[Route]:
    """Return the routes of one server's dead letters."""
    dead = _Dead(administered)
    return [
        guard.route("/dead", {"GET": dead.page}),
        guard.route("/dead/{sequence}", {"GET": dead.show}),
        guard.route("/dead/requeue", {"POST": dead.requeue}),
        guard.route("/dead/drop", {"POST": dead.drop}),
    ]


class _Dead:
    """The endpoints."""

    def __init__(self, administered: Administered) -> None:
        self._administered = administered

    async def _letters(self) -> DeadLetters:
        letters = self._administered.parts().master.dead_letters
        if not await letters.until_read():
            raise RequestError(503, "starting", "the dead letters are not read yet; try again")
        return letters

    # -- looking -----------------------------------------------------------------------------

    async def page(self, request: Request, _caller: Caller) -> Response:
        given = dict(request.query_params)
        limit = _number("limit", given.pop("limit", _LISTED))
        if unknown := given.keys() - {"subject", "group"}:
            reason = f"unknown parameter {min(unknown)!r}: there are limit, subject, group"
            raise RequestError(400, "parameter", reason)
        letters = await self._letters()
        rows = letters.listed(**given)
        page = {
            "pending": letters.pending,
            "matched": len(rows),
            "items": await letters.read(
                rows[:limit], lambda row, item: msgspec.Raw(msgspec.json.encode(_shown(row, item)))
            ),
        }
        # A list of many takes longer than the loop may be held.
        body = await self._administered.runtime.executor.run(DEAD_WORKER, msgspec.json.encode, page)
        return Response(body, media_type="application/json")

    async def show(self, request: Request, _caller: Caller) -> Response:
        sequence = _number("sequence", request.path_params["sequence"])
        with_payload = request.query_params.get("payload") in {"1", "true"}
        letters = await self._letters()
        rows = letters.named([sequence])
        if not rows:
            raise RequestError(
                404, "unknown", f"there is no dead letter {sequence}, or it was requeued or dropped"
            )
        [(shown, item)] = await letters.read(
            rows, lambda row, item: (_shown(row, item, is_whole=True), item.item)
        )
        if with_payload and item is not None:
            shown["payload"] = base64.b64encode(item).decode()
        return json_response(shown)

    # -- changing ----------------------------------------------------------------------------

    async def requeue(self, request: Request, caller: Caller) -> Response:
        return await self._change(request, caller, "requeue")

    async def drop(self, request: Request, caller: Caller) -> Response:
        return await self._change(request, caller, "drop")

    async def _change(self, request: Request, caller: Caller, verb: str) -> Response:
        meant = decode_rule(await read_body(request), _Meant)
        if [meant.sequences, meant.subject, meant.group].count(None) != 2:
            raise RequestError(400, "which", "give one of sequences, subject and group")
        letters = await self._letters()
        if letters.is_closed:
            raise RequestError(503, "stopping", "the server takes no more changes")
        asked = {"who": caller.name, "peer": peer_of(request), "meant": _text_of_request(meant)}
        _log.warning(f"{verb} dead letters", **asked)
        named = set(meant.sequences or ())
        if meant.sequences is None:
            rows = letters.listed(subject=meant.subject, group=meant.group)
        else:
            rows = letters.named(named)
        came_to = await (letters.requeue if verb == "requeue" else letters.drop)(rows)
        _log.warning(f"{_DONE[verb]} dead letters", count=came_to.done, **asked)
        return _answer(came_to, missing=sorted(named.difference(row.sequence for row in rows)))


def _answer(came_to: Change, *, missing: list[int]) -> Response:
    found: Json = {"done": came_to.done, "damaged": came_to.damaged, "missing": missing}
    if not came_to.lacks_space and not came_to.is_stopped:
        return json_response(found)
    code, why = "stopping", "the server stopped"
    if came_to.lacks_space:
        code, why = "disk", "the disk was full; free some space"
    message = f"{came_to.done} done, then {why}; try again: no change is made twice"
    found["error"] = {"code": code, "message": message}
    return json_response(found, 507 if came_to.lacks_space else 503)


_DONE: Final = {"requeue": "requeued", "drop": "dropped"}


def _text_of_request(meant: _Meant) -> str:
    """Return which dead letters are meant, for the log."""
    if meant.sequences is None:
        name = "group" if meant.subject is None else "subject"
        return f"{name} {getattr(meant, name)[:_LOGGED_CHARACTERS]}"
    named = " ".join(map(str, meant.sequences[:_LOGGED_SEQUENCES]))
    more = len(meant.sequences) - _LOGGED_SEQUENCES
    return f"{named} and {more} more" if more > 0 else named


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= _INTEGER_MAX):
        reason = f"{name} must be a number up to {_INTEGER_MAX}, not {text[:40]!a}"
        raise RequestError(400, name, reason)
    return int(text)


def _shown(row: DeadRow, found: DeadItem, *, is_whole: bool = False) -> Json:
    """Return what is known of a dead letter; is_whole: with its item's fields."""
    shown: Json = {
        "sequence": row.sequence,
        "subject": row.subject.decode(errors="replace"),
        "due_ms": row.due_ms,
        "dead_ms": row.dead_ms,
        "size_bytes": row.size,
        "of_sequence": row.old_sequence,
    }
    if found.fault:
        shown["fault"] = found.fault
    if found.item is not None:
        shown |= _fields_of(found.item, is_whole=is_whole)
    reason = decode_reason((found.reason or "").encode())
    if reason is None:
        return shown | {"reason": found.reason}
    refusals = [_named(msgspec.structs.asdict(one)) for one in reason.refusals]
    return shown | _named(msgspec.structs.asdict(reason)) | {"refusals": refusals}


def _fields_of(data: bytes, *, is_whole: bool) -> Json:
    try:
        item = decode_item(data)
    except ProtocolError as error:
        return {"fault": str(error)}
    if not is_whole:
        return {"message_id": item.message_id}
    return {
        "message_id": item.message_id,
        "create_ms": item.create_ms,
        "flag": item.flag,
        "tags": list(item.tags),
        "attributes": dict(item.attributes),
    }


def _named(refusal: Json) -> Json:
    return refusal | {"code_name": code_name(refusal["code"])}
