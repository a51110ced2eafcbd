"""Dead letters over HTTP: JSON, on the node's own port.

GET  /dead              the dead letters by sequence: `limit`, `after` a sequence, and a filter
                        (`delay_server/dead/wanted.py::Wanted`)
GET  /dead/{sequence}   one of them, with its item decoded; ?payload=1 adds the item's bytes
POST /dead/requeue      send some once more, or say how many that would be
POST /dead/drop         have some never sent, or say how many that would be

A change names dead letters by `sequences`, or by `filter` (an empty one means all) with `max`, how
many at most; `dry_run` only counts. An answer says which of `sequences` there were. One with
`next`, a sequence, has not come to the end: the same request with it as `after` goes on behind it.
Errors are {"error": {"code": word, "message": sentence}}.

Access: `access.py`. Each change has two entries in the audit (controls_store.py): one before it
with the request, and one after it with the number of dead letters changed.
"""

import base64
from collections.abc import Mapping
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
from delay_server.controls.controls_store import AuditEntry
from delay_server.dead.dead_letters import DEAD_WORKER, Change, DeadLetters
from delay_server.dead.reason import code_name, code_of, decode_reason
from delay_server.dead.wanted import Meant, Wanted
from delay_transport.http.access import Caller
from delay_transport.http.server import json_response
from storage.disk.errors import StorageFullError
from storage.readers.dead_reader import DeadItem
from storage.schedule.dead_index import DeadRow

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

SEQUENCES_MAX: Final = 10_000
"""Dead letters that a request may name."""
_PAGE_ROWS: Final = 100
"""Dead letters of a page, if the request does not say."""
_AUDITED_SEQUENCES: Final = 20
"""Dead letters that the audit names of a request; of the others it says how many they were."""
_AUDITED_CHARACTERS: Final = 200
"""Characters of each part of a filter that the audit keeps."""

Json = dict[str, Any]


_INTEGER_MAX: Final = 2**63 - 1
"""The greatest sequence, and the greatest time."""

Sequence = Annotated[int, msgspec.Meta(ge=0, le=_INTEGER_MAX)]


class _ChangeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be requeued or dropped."""

    sequences: Annotated[list[Sequence], msgspec.Meta(max_length=SEQUENCES_MAX)] | None = None
    filter: Wanted | None = None
    max: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Needed with a filter."""
    dry_run: bool = False
    after: Sequence = 0


_FILTERS: Final = tuple(field.name for field in msgspec.structs.fields(Wanted))
_NUMBERS: Final = frozenset(name for name in _FILTERS if name.endswith("_ms"))


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
        after = _number("after", given.pop("after", "0"))
        limit = _number("limit", given.pop("limit", str(_PAGE_ROWS)))
        letters = await self._letters()
        rows_max = max(1, min(limit, letters.config.page_rows_max))
        wanted = _filter_of_query(given)
        rows = await letters.find(wanted, after=after, rows_max=rows_max + 1)
        shown = rows[:rows_max]
        page = {
            "pending": letters.pending,
            "items": await letters.read(shown, _brief),
            "next": shown[-1].sequence if len(rows) > rows_max else None,
        }
        # A page of many takes longer than the loop may be held.
        body = await self._administered.runtime.executor.run(DEAD_WORKER, msgspec.json.encode, page)
        return Response(body, media_type="application/json")

    async def show(self, request: Request, _caller: Caller) -> Response:
        sequence = _number("sequence", request.path_params["sequence"])
        with_payload = request.query_params.get("payload") in {"1", "true"}
        letters = await self._letters()
        rows = await letters.find([sequence], rows_max=1)
        if not rows:
            raise RequestError(
                404, "unknown", f"there is no dead letter {sequence}, or it was requeued or dropped"
            )
        [found] = await letters.read(
            rows, lambda row, item: _brief(row, item) | _item_of(item, with_payload=with_payload)
        )
        return json_response(found)

    # -- changing ----------------------------------------------------------------------------

    async def requeue(self, request: Request, caller: Caller) -> Response:
        return await self._change(request, caller, "requeue")

    async def drop(self, request: Request, caller: Caller) -> Response:
        return await self._change(request, caller, "drop")

    async def _change(self, request: Request, caller: Caller, verb: str) -> Response:
        asked = decode_rule(await read_body(request), _ChangeRequest)
        meant = _meant(asked)
        letters = await self._letters()
        if asked.dry_run:
            return _answer(asked, await _counted(letters, asked, meant))
        if letters.is_closed:
            raise RequestError(503, "stopping", "the server takes no more changes")
        change = letters.requeue if verb == "requeue" else letters.drop
        entry = AuditEntry(
            at_ms=self._administered.runtime.clock.now_ms(),
            who=caller.name,
            peer=peer_of(request),
            action=f"{verb} dead letters",
            target=_text_of_request(asked),
        )
        await self._administered.parts().master.outlet.note(entry)
        rows_max = min(asked.max or SEQUENCES_MAX, letters.config.change_rows_max)
        came_to = await change(meant, after=asked.after, rows_max=rows_max)
        await self._note_done(entry, verb, came_to.done)
        return _answer(asked, came_to)

    async def _note_done(self, asked: AuditEntry, verb: str, count: int) -> None:
        """Record in the audit how many were changed; the request is there already."""
        entry = msgspec.structs.replace(
            asked,
            at_ms=self._administered.runtime.clock.now_ms(),
            action=f"{_DONE[verb]} dead letters",
            count=count,
        )
        try:
            await self._administered.parts().master.outlet.note(entry)
        except StorageFullError as error:
            _log.warning(
                "the audit could not record how many dead letters were changed",
                action=entry.action,
                who=entry.who,
                count=count,
                reason=str(error),
            )


def _meant(asked: _ChangeRequest) -> Meant:
    """Return which dead letters are meant. Raises RequestError."""
    if (asked.sequences is None) is (asked.filter is None):
        raise RequestError(400, "which", "give either sequences or a filter")
    if asked.sequences is not None:
        return asked.sequences
    assert asked.filter is not None
    if asked.max is None:
        raise RequestError(400, "max", "a filter needs max: the most dead letters to change")
    return _checked(asked.filter)


def _checked(wanted: Wanted) -> Wanted:
    """Return a filter whose code is one. Raises RequestError."""
    if wanted.code is not None and code_of(str(wanted.code)) is None:
        raise RequestError(400, "code", f"{wanted.code!r} is not an item code")
    return wanted


async def _counted(letters: DeadLetters, asked: _ChangeRequest, meant: Meant) -> Change:
    """Return what a change would come to, however many it is."""
    found = await letters.count(meant)
    count = len(found) if asked.max is None else min(len(found), asked.max)
    return Change(matched=count, sequences=[] if asked.sequences is None else found.tolist())


def _answer(asked: _ChangeRequest, came_to: Change) -> Response:
    found: Json = {
        "matched": came_to.matched,
        "done": came_to.done,
        "damaged": came_to.damaged,
        "next": came_to.after,
    }
    if asked.sequences is not None:
        found["sequences"] = came_to.sequences
    if came_to.lacks_space:
        found["error"] = {
            "code": "disk",
            "message": f"{came_to.done} done, then the disk was full; free some space and try "
            "again: no change is made twice",
        }
        return json_response(found, 507)
    if came_to.unread:
        found["error"] = {
            "code": "store",
            "message": f"{came_to.done} done, then {came_to.unread}; try again: no change is made "
            "twice",
        }
        return json_response(found, 503)
    return json_response(found)


_DONE: Final = {"requeue": "requeued", "drop": "dropped"}


def _text_of_request(asked: _ChangeRequest) -> str:
    """Return which dead letters are meant, for the audit."""
    if asked.sequences is not None:
        named = " ".join(map(str, asked.sequences[:_AUDITED_SEQUENCES]))
        more = len(asked.sequences) - _AUDITED_SEQUENCES
        return f"{named} and {more} more" if more > 0 else named
    assert asked.filter is not None
    given = [
        f"{name}={str(value)[:_AUDITED_CHARACTERS]}" for name, value in _given(asked.filter).items()
    ]
    return ", ".join([*given, f"max={asked.max}"])


def _filter_of_query(given: Mapping[str, str]) -> Wanted:
    unknown = [name for name in given if name not in _FILTERS]
    if unknown:
        known = ", ".join(("limit", "after", *_FILTERS))
        raise RequestError(400, "parameter", f"unknown parameter {unknown[0]!r}: there are {known}")
    values: Json = {
        name: _number(name, value) if name in _NUMBERS else value for name, value in given.items()
    }
    return _checked(Wanted(**values))


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= _INTEGER_MAX):
        reason = f"{name} must be a number up to {_INTEGER_MAX}, not {text[:40]!a}"
        raise RequestError(400, name, reason)
    return int(text)


def _given(wanted: Wanted) -> Json:
    return {name: value for name in _FILTERS if (value := getattr(wanted, name)) is not None}


def _id_of(found: DeadItem) -> Json:
    """Return the message id of a letter, or why it is unknown."""
    if found.is_unread:
        return {"fault": found.fault}
    if found.item is None:
        return {"fault": "its bytes are damaged; `delaywheel log verify` says where"}
    try:
        return {"message_id": decode_item(found.item).message_id}
    except ProtocolError as error:
        return {"fault": str(error)}


def _brief(row: DeadRow, found: DeadItem) -> Json:
    """Return what a list shows of a dead letter."""
    shown: Json = {
        "sequence": row.sequence,
        "subject": row.subject.decode(errors="replace"),
        "due_ms": row.due_ms,
        "dead_ms": row.dead_ms,
        "bytes": row.size,
        "of_sequence": row.old_sequence,
        **_id_of(found),
    }
    reason = decode_reason((found.reason or "").encode())
    if reason is None:
        return shown | {"reason": found.reason}
    return shown | {
        "code": reason.code,
        "code_name": code_name(reason.code),
        "group": reason.group,
        "tries": reason.tries,
        "refused": reason.refused,
        "first_ms": reason.first_ms,
        "last_ms": reason.last_ms,
        "refusals": [
            {
                "group": one.group,
                "code": one.code,
                "code_name": code_name(one.code),
                "at_ms": one.at_ms,
                **({"said": one.said} if one.said else {}),
            }
            for one in reason.refusals
        ],
    }


def _item_of(found: DeadItem, *, with_payload: bool) -> Json:
    """Return an item's own fields."""
    if found.item is None:
        return {}
    shown: Json = {}
    try:
        item = decode_item(found.item)
    except ProtocolError:
        pass  # Shown as a fault already; its bytes may help.
    else:
        shown |= {
            "create_ms": item.create_ms,
            "flag": item.flag,
            "tags": list(item.tags),
            "attributes": dict(item.attributes),
        }
    if with_payload:
        shown["payload"] = base64.b64encode(found.item).decode()
    return shown
