"""Operations that cancel and move messages: some that are named, or all of a filter."""

from collections import Counter
from typing import Annotated, Any, Final

import msgspec
import structlog
from msgspec import Meta

from delay_protocol.messages.changes import CHANGES_MAX, Change, Ms, Text
from delay_server.admin.looking import Pending, count_of, page_of, place_of
from delay_server.admin.parts import Administered, about
from delay_server.changing.changer import Changer, NotChangedError, Wish
from delay_server.changing.requests import PAST_MS, change_messages, reply_of
from delay_transport.http.operations import Answer, Call, NoPath, NoQuery, Request
from delay_transport.http.problems import RequestError
from storage.batch.facts import Outcome
from storage.schedule.keys import NEVER

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_TEXT_MAX: Final = 200
"""Characters of a filter that the log keeps."""

SLICE_ROWS: Final = 2048
"""Messages of a filter that one request changes: the items of those that move are in memory."""

Json = dict[str, Any]


class Named(Request, frozen=True, kw_only=True):
    """A message."""

    subject: Annotated[Text, about("Its subject.")]
    id: Annotated[Text, about("Its id.")]
    due_ms: Annotated[
        Ms | None, about("When it was due as it was sent; null: it is looked for at all times.")
    ] = None
    to_ms: Annotated[Ms | None, about("When it is to be due; null: it is cancelled.")] = None


class ChangeNamed(Request, frozen=True, kw_only=True):
    """Messages that are cancelled or moved."""

    items: Annotated[
        Annotated[list[Named], Meta(min_length=1, max_length=CHANGES_MAX)], about("These.")
    ]


class ChangeAll(Pending, frozen=True, kw_only=True):
    """The pending messages that are meant, and what is to become of them."""

    by_ms: Annotated[
        Annotated[int, Meta(ge=-(2**53), le=2**53)] | None,
        about("They are moved by so much; null: they are cancelled."),
    ] = None
    drop: Annotated[bool, about("They count as dropped, not as cancelled.")] = False
    dry_run: Annotated[bool, about("They are counted and left.")] = False
    after: Annotated[
        Annotated[str, Meta(pattern=r"^\d{1,18}\.\d{1,18}\.\d{1,18}$")] | None,
        about("The `next` of the answer before; null: begin."),
    ] = None


class ChangedAll(Answer, frozen=True, kw_only=True):
    """The result of a slice."""

    states: Annotated[dict[str, int], about("How many messages came to which state.")]
    rows_looked_at: Annotated[int, about("Rows that were looked at.")]
    next: Annotated[str | None, about("The value of `after` to go on; null: that was all.")]


def _changer(administered: Administered) -> Changer:
    changes = administered.parts().changes
    if (why := changes.why_not()) or changes.changer is None:
        raise NotChangedError(f"nothing can be changed now: {why}")
    return changes.changer


async def change_named(call: Call[Administered, NoPath, NoQuery, ChangeNamed]) -> Json:
    """Cancel or move messages, each named by subject, id and due time."""
    changer, parts = _changer(call.context), call.context.parts()
    changes = [Change(one.subject, one.id, one.due_ms, one.to_ms) for one in call.body.items]
    if fault := next(filter(None, map(parts.changes.fault_of, changes)), ""):
        raise RequestError(400, "bad-value", fault)
    asked = {"who": call.caller.name, "peer": call.peer, "messages": len(changes)}
    _log.warning("cancel or move messages", **asked)
    reply = reply_of(changer, changes, await change_messages(changer, changes))
    states = Counter(result.state.value for result in reply.results)
    _log.warning("cancelled or moved messages", states=dict(states), **asked)
    results = list(map(msgspec.structs.asdict, reply.results))
    return {"results": results, "facts_since_ms": reply.facts_since_ms}


async def change_all(call: Call[Administered, NoPath, NoQuery, ChangeAll]) -> ChangedAll:
    """Cancel, move, drop or count the next messages of a filter, some thousands at a time."""
    changer, parts, body = _changer(call.context), call.context.parts(), call.body
    body.require_some()
    if body.by_ms is not None and body.drop:
        raise RequestError(400, "bad-value", "give by_ms or drop, not both")
    if body.dry_run:
        count = await count_of(parts, body, body.due_from, body.end_ms - body.due_from, 1)
        pending = sum(numbers[1] for numbers in count.by_name().values())
        states = {"pending": pending} if pending else {}
        return ChangedAll(states=states, rows_looked_at=count.examined, next=None)
    *after, last = map(int, (body.after or f"0.0.{NEVER[0]}").split("."))
    until_ms = NEVER[0]
    if body.by_ms is not None:
        # What would be moved into the past or beyond the horizon is left.
        now_ms = call.context.runtime.clock.now_ms()
        after = max(after, [now_ms - PAST_MS - body.by_ms, 0])
        until_ms = now_ms + call.context.config.admission.horizon_ms - body.by_ms
    await changer.until_filed()
    look = await page_of(
        parts,
        body,
        after=after,
        until_ms=until_ms,
        last=last,
        limit=SLICE_ROWS,
        item_of=None if body.by_ms is None else bytes,
    )
    wishes = [
        Wish(row, None if body.by_ms is None else row.due_ms + body.by_ms) for row in look.page
    ]
    outcome = Outcome.DROPPED if body.drop else Outcome.CANCELLED
    results = await changer.change(wishes, outcome=outcome)
    states = Counter(result.state.value for result in results.values())
    asked = {"who": call.caller.name, "peer": call.peer, "meant": str(body)[:_TEXT_MAX]}
    _log.warning("changed messages of a filter", states=dict(states), **asked)
    # What came after the first slice began, or was moved by one before, is not meant.
    last = min(last, look.present.sequence)
    return ChangedAll(
        states=dict(states),
        rows_looked_at=look.examined,
        next=None if look.next is None else place_of(*look.next, last),
    )
