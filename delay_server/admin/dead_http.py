"""Dead letters over HTTP: JSON, on the node's own port.

GET  /dead              the dead letters, page by page; see _FILTERS for the parameters
GET  /dead/{sequence}   one of them, with its item decoded; ?payload=1 adds the item's bytes
POST /dead/requeue      send some once more, or say how many that would be
POST /dead/drop         have some never sent, or say how many that would be

A change names dead letters by `sequences`, or by `filter` (an empty one means all) with `max`, how
many at most; `dry_run` only counts. An answer says which of `sequences` there were. One with `next`
has not come to the end: the same request with it as `after` goes on from there. Errors are
{"error": {"code": word, "message": sentence}}.

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
from delay_server.dead.dead_letters import DEAD_WORKER, Change, DeadLetters, Letter, Page, Wanted
from delay_server.dead.reason import code_name, code_of, decode_reason
from delay_transport.http.access import Caller
from delay_transport.http.server import json_response
from storage.disk.errors import StorageFullError
from storage.readers.dead_reader import Place

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

SEQUENCES_MAX: Final = 10_000
"""Dead letters that a request may name."""
_PAGE_ROWS: Final = 100
"""Dead letters of a page, if the request does not say."""
_DEATHS_SHOWN: Final = 20
"""Dead letters of the same message that `dead show` lists."""

_AUDITED_SEQUENCES: Final = 20
"""Dead letters that the audit names of a request; of the others it says how many they were."""
_AUDITED_CHARACTERS: Final = 200
"""Characters of each part of a filter that the audit keeps."""

Json = dict[str, Any]


_INTEGER_MAX: Final = 2**63 - 1
"""The greatest sequence, and the greatest time."""
_CODE_MAX: Final = 2**31 - 1

Sequence = Annotated[int, msgspec.Meta(ge=0, le=_INTEGER_MAX)]
Millis = Annotated[int, msgspec.Meta(ge=0, le=_INTEGER_MAX)]


class _Filter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters are meant; what is not given does not matter."""

    subject: str | None = None
    subject_prefix: str | None = None
    code: str | Annotated[int, msgspec.Meta(ge=0, le=_CODE_MAX)] | None = None
    """Number or name of the last refusal's item code."""
    group: str | None = None
    message_id: str | None = None
    due_from_ms: Millis | None = None
    due_until_ms: Millis | None = None
    dead_from_ms: Millis | None = None
    dead_until_ms: Millis | None = None

    def wanted(self) -> Wanted:
        """Return what is looked for. Raises RequestError."""
        code = None
        if self.code is not None:
            code = code_of(str(self.code))
            if code is None:
                raise RequestError(400, "code", f"{self.code!r} is not an item code")
        return Wanted(
            subject=_bytes(self.subject),
            subject_prefix=_bytes(self.subject_prefix),
            code=code,
            group=self.group,
            message_id=_bytes(self.message_id),
            due_from_ms=self.due_from_ms,
            due_until_ms=self.due_until_ms,
            dead_from_ms=self.dead_from_ms,
            dead_until_ms=self.dead_until_ms,
        )


class _ChangeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be requeued or dropped."""

    sequences: Annotated[list[Sequence], msgspec.Meta(max_length=SEQUENCES_MAX)] | None = None
    filter: _Filter | None = None
    max: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Needed with a filter."""
    dry_run: bool = False
    after: str | None = None


_FILTERS: Final = tuple(field.name for field in msgspec.structs.fields(_Filter))
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

    @property
    def _letters(self) -> DeadLetters:
        return self._administered.parts().master.dead_letters

    # -- looking -----------------------------------------------------------------------------

    async def page(self, request: Request, _caller: Caller) -> Response:
        given = dict(request.query_params)
        after = _place_of(given.pop("after", None))
        limit = _number("limit", given.pop("limit", str(_PAGE_ROWS)))
        rows_max = max(1, min(limit, self._letters.config.page_rows_max))
        page = await self._letters.find(
            _filter_of_query(given).wanted(), after=after, rows_max=rows_max
        )
        # A page of many takes longer than the loop may be held.
        body = await self._administered.runtime.executor.run(
            DEAD_WORKER, _page_text, page, self._letters.pending
        )
        return Response(body, media_type="application/json")

    async def show(self, request: Request, _caller: Caller) -> Response:
        sequence = _number("sequence", request.path_params["sequence"])
        with_payload = request.query_params.get("payload") in {"1", "true"}
        letters = await self._letters.look_through(
            Wanted(sequences=[sequence]), rows_max=1, settled=True
        )
        if not letters:
            raise RequestError(
                404,
                "unknown",
                f"there is no dead letter {sequence}, or every dead letter of its day was requeued "
                "or dropped",
            )
        (letter,) = letters
        found = _brief(letter, _id_of(letter)) | _item_of(letter, with_payload=with_payload)
        if letter.item is not None:
            deaths = await self._letters.deaths_of(letter, rows_max=_DEATHS_SHOWN)
            found["deaths"] = [
                # They were found by their message id, so theirs is the same.
                _brief(other, _id_of(letter))
                for other in deaths
                if other.row.sequence != sequence
            ]
        return json_response(found)

    # -- changing ----------------------------------------------------------------------------

    async def requeue(self, request: Request, caller: Caller) -> Response:
        return await self._change(request, caller, "requeue")

    async def drop(self, request: Request, caller: Caller) -> Response:
        return await self._change(request, caller, "drop")

    async def _change(self, request: Request, caller: Caller, verb: str) -> Response:
        asked = decode_rule(await read_body(self._administered, request), _ChangeRequest)
        wanted, rows_max = self._meant(asked)
        after = _place_of(asked.after)
        if asked.dry_run:
            return _answer(asked, await self._letters.count(wanted, after=after, rows_max=rows_max))
        if self._letters.is_closed:
            raise RequestError(503, "stopping", "the server takes no more changes")
        change = self._letters.requeue if verb == "requeue" else self._letters.drop
        entry = AuditEntry(
            at_ms=self._administered.runtime.clock.now_ms(),
            who=caller.name,
            peer=peer_of(request),
            action=f"{verb} dead letters",
            target=_text_of_request(asked),
        )
        await self._administered.parts().master.outlet.note(entry)
        came_to = await change(wanted, after=after, rows_max=rows_max)
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

    def _meant(self, asked: _ChangeRequest) -> tuple[Wanted, int]:
        if (asked.sequences is None) is (asked.filter is None):
            raise RequestError(400, "which", "give either sequences or a filter")
        if asked.sequences is not None:
            wanted = Wanted(sequences=asked.sequences)
            return wanted, max(len(asked.sequences), 1)
        assert asked.filter is not None
        if asked.max is None:
            raise RequestError(400, "max", "a filter needs max: the most dead letters to change")
        return asked.filter.wanted(), min(asked.max, self._letters.config.change_rows_max)


def _answer(asked: _ChangeRequest, came_to: Change) -> Response:
    found: Json = {
        "matched": came_to.matched,
        "done": came_to.done,
        "damaged": came_to.damaged or [],
        "next": None if came_to.after is None else _text_of(came_to.after),
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


def _filter_of_query(given: Mapping[str, str]) -> _Filter:
    unknown = [name for name in given if name not in _FILTERS]
    if unknown:
        known = ", ".join(("limit", "after", *_FILTERS))
        raise RequestError(400, "parameter", f"unknown parameter {unknown[0]!r}: there are {known}")
    values: Json = {
        name: _number(name, value) if name in _NUMBERS else value for name, value in given.items()
    }
    return _Filter(**values)


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= _INTEGER_MAX):
        reason = f"{name} must be a number up to {_INTEGER_MAX}, not {text[:40]!a}"
        raise RequestError(400, name, reason)
    return int(text)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode(errors="surrogateescape")


def _text_of(place: Place) -> str:
    return f"{place.start}.{place.sequence}.{place.position}"


def _place_of(text: str | None) -> Place:
    """Return where a search goes on; whoever makes one up reads other rows, or none."""
    if not text:
        return Place()
    numbers = text.split(".")
    if len(numbers) != len(_PLACE_PARTS) or len(text) > _PLACE_LETTERS_MAX:
        raise RequestError(400, "after", "after must be the `next` of an earlier answer")
    start, sequence, position = (_number("after", number) for number in numbers)
    return Place(start, sequence, position)


_PLACE_PARTS: Final = ("start", "sequence", "position")
_PLACE_LETTERS_MAX: Final = 60


def _given(wanted: _Filter) -> Json:
    return {name: value for name in _FILTERS if (value := getattr(wanted, name)) is not None}


def _page_text(page: Page, pending: int) -> bytes:
    return msgspec.json.encode(
        {
            "pending": pending,
            "items": [_brief(letter, _id_of(letter)) for letter in page.letters],
            "next": None if page.after is None else _text_of(page.after),
        }
    )


def _id_of(letter: Letter) -> Json:
    """Return the message id of a letter, or why it is unknown."""
    if letter.item is None:
        return {"fault": "its bytes are damaged; `delaywheel log verify` says where"}
    try:
        return {"message_id": decode_item(letter.item).message_id}
    except ProtocolError as error:
        return {"fault": str(error)}


def _brief(letter: Letter, id_or_fault: Json) -> Json:
    """Return what a list shows of a dead letter."""
    row = letter.row
    reason = decode_reason(row.reason)
    found: Json = {
        "sequence": row.sequence,
        "subject": row.subject.decode(errors="replace"),
        "due_ms": row.due_ms,
        "dead_ms": row.dead_ms,
        "bytes": row.size,
        "pending": row.is_pending,
        "of_sequence": row.old_sequence,
        **id_or_fault,
    }
    if reason is None:
        return found | {"reason": row.reason.decode(errors="replace")}
    return found | {
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
            }
            for one in reason.refusals
        ],
    }


def _item_of(letter: Letter, *, with_payload: bool) -> Json:
    """Return an item's own fields."""
    if letter.item is None:
        return {}
    found: Json = {}
    try:
        item = decode_item(letter.item)
    except ProtocolError:
        pass  # Shown as a fault already; its bytes may help.
    else:
        found |= {
            "create_ms": item.create_ms,
            "flag": item.flag,
            "tags": list(item.tags),
            "attributes": dict(item.attributes),
        }
    if with_payload:
        found["payload"] = base64.b64encode(letter.item).decode()
    return found
