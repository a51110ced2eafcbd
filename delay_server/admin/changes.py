"""Operations that cancel and move messages: some that are named, or all of a filter."""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
import structlog
from msgspec import Meta

from delay_protocol.messages.changes import CHANGES_MAX, Change, ChangeResult
from delay_server.admin.parts import Administered
from delay_server.changing.bulk import Cursor, Filter, change_slice
from delay_server.changing.changer import Changer, NotChangedError
from delay_server.changing.requests import PAST_MS, change_messages
from delay_transport.http.api import Api
from delay_transport.http.operations import Answer, Call, NoPath, NoQuery, Request
from delay_transport.http.problems import RequestError
from storage.batch.facts import Outcome

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_TEXT_MAX: Final = 200
"""Characters of a filter that the log keeps."""

Ms = Annotated[int, Meta(ge=0, le=2**53)]


def _about(text: str) -> Meta:
    return Meta(description=text)


class Named(Request, frozen=True, kw_only=True):
    """A message."""

    subject: Annotated[Annotated[str, Meta(min_length=1, max_length=600)], _about("Its subject.")]
    id: Annotated[Annotated[str, Meta(min_length=1, max_length=32_767)], _about("Its id.")]
    due_ms: Annotated[
        Ms | None, _about("When it was due as it was sent; null: it is looked for at all times.")
    ] = None
    to_ms: Annotated[Ms | None, _about("When it is to be due; null: it is cancelled.")] = None


class ChangeNamed(Request, frozen=True, kw_only=True):
    """Messages that are cancelled or moved."""

    items: Annotated[
        Annotated[list[Named], Meta(min_length=1, max_length=CHANGES_MAX)], _about("These.")
    ]


class Told(Answer, frozen=True, kw_only=True):
    """The outcome of one message, for one name where several names receive it."""

    item: Annotated[int, _about("Its place in the request.")]
    state: Annotated[str, _about("As docs/cancelling.md has it.")]
    name: Annotated[str, _about("Name of receivers whose copy it is; else empty.")]
    due_ms: Annotated[int | None, _about("When it is due, or was; of a moved one the new time.")]
    at_ms: Annotated[int | None, _about("When it was delivered, changed, or sent.")]
    to: Annotated[str, _about("Group of brokers, or name, that has it.")]
    retry_after_ms: Annotated[int | None, _about("When to ask again.")]
    reason: Annotated[str, _about("What to know beside it.")]


class ChangedNamed(Answer, frozen=True, kw_only=True):
    """The outcomes of all messages of a request."""

    results: Annotated[list[Told], _about("One for each, or one for each name.")]
    facts_since_ms: Annotated[int, _about("How far back it is known what became of messages.")]


class ChangeAll(Request, frozen=True, kw_only=True):
    """The messages of a filter: subject, name and times, of which one is needed at least."""

    subject: Annotated[
        Annotated[str, Meta(min_length=1, max_length=600)] | None,
        _about("A subject, or a beginning with * behind."),
    ] = None
    name: Annotated[
        Annotated[str, Meta(max_length=255)] | None,
        _about("What waits for this name of receivers alone; empty: what is no copy or retry."),
    ] = None
    due_from_ms: Annotated[Ms | None, _about("Due then or later.")] = None
    due_to_ms: Annotated[Ms | None, _about("Due before then.")] = None
    by_ms: Annotated[
        Annotated[int, Meta(ge=-(2**53), le=2**53)] | None,
        _about("They are moved by so much; null: they are cancelled."),
    ] = None
    drop: Annotated[bool, _about("They count as dropped, not as cancelled.")] = False
    dry_run: Annotated[bool, _about("They are counted and left.")] = False
    after: Annotated[str | None, _about("The `next` of the answer before; null: begin.")] = None


class ChangedAll(Answer, frozen=True, kw_only=True):
    """The result of a slice."""

    states: Annotated[dict[str, int], _about("How many messages came to which state.")]
    rows_looked_at: Annotated[int, _about("Rows that were looked at.")]
    next: Annotated[str | None, _about("The value of `after` to go on; null: that was all.")]


def register_changes(api: Api) -> None:
    """Add the operations of this module."""
    api.operation("POST", "/messages/change")(change_named)
    api.operation("POST", "/messages/change-all")(change_all)


def _changer(administered: Administered) -> Changer:
    changes = administered.parts().changes
    if (why := changes.why_not()) or changes.changer is None:
        raise RequestError(503, "not-now", f"nothing can be changed now: {why}")
    return changes.changer


async def change_named(call: Call[Administered, NoPath, NoQuery, ChangeNamed]) -> ChangedNamed:
    """Cancel or move messages, each named by subject, id and due time."""
    changer, parts = _changer(call.context), call.context.parts()
    changes = [Change(one.subject, one.id, one.due_ms, one.to_ms) for one in call.body.items]
    if fault := next(filter(None, map(parts.changes.fault_of, changes)), ""):
        raise RequestError(400, "bad-value", fault)
    asked = {"who": call.caller.name, "peer": call.peer, "messages": len(changes)}
    _log.warning("cancel or move messages", **asked)
    try:
        async with changer.lock:
            found = await change_messages(changer, changes)
    except NotChangedError as error:
        raise RequestError(503, "not-now", str(error)) from error
    results = [_told(result, place) for place, one in enumerate(changes) for result in found[one]]
    _log.warning("cancelled or moved messages", states=_count(results), **asked)
    return ChangedNamed(results=results, facts_since_ms=changer.facts_since_ms())


def _told(result: ChangeResult, place: int) -> Told:
    fields = msgspec.structs.asdict(result)
    return Told(**{**fields, "item": place, "state": result.state.value})


def _count(results: Sequence[Told]) -> dict[str, int]:
    states: dict[str, int] = {}
    for one in results:
        states[one.state] = states.get(one.state, 0) + 1
    return states


async def change_all(call: Call[Administered, NoPath, NoQuery, ChangeAll]) -> ChangedAll:
    """Cancel, move, drop or count the next messages of a filter, some thousands at a time."""
    changer, body = _changer(call.context), call.body
    if [body.subject, body.name, body.due_from_ms, body.due_to_ms].count(None) == 4:
        raise RequestError(400, "which", "give a filter: subject, name, due_from_ms or due_to_ms")
    if body.by_ms is not None and body.drop:
        raise RequestError(400, "bad-value", "give by_ms or drop, not both")
    try:
        after = None if body.after is None else Cursor.parse(body.after)
    except ValueError as error:
        raise RequestError(400, "bad-value", str(error)) from error
    wanted = Filter(
        subject=body.subject,
        name=body.name,
        due_from_ms=body.due_from_ms or 0,
        due_to_ms=2**62 if body.due_to_ms is None else body.due_to_ms,
    )
    asked = {"who": call.caller.name, "peer": call.peer, "meant": str(wanted)[:_TEXT_MAX]}
    outcome = Outcome.DROPPED if body.drop else Outcome.CANCELLED
    now_ms, limits = call.context.runtime.clock.now_ms(), call.context.config.admission
    try:
        found = await change_slice(
            changer,
            wanted,
            after=after,
            by_ms=None if body.dry_run else body.by_ms,
            outcome=None if body.dry_run else outcome,
            earliest_ms=now_ms - PAST_MS,
            latest_ms=now_ms + limits.horizon_ms,
        )
    except NotChangedError as error:
        raise RequestError(503, "not-now", str(error)) from error
    if not body.dry_run:
        _log.warning("changed messages of a filter", states=dict(found.states), **asked)
    return ChangedAll(
        states=dict(found.states),
        rows_looked_at=found.examined,
        next=None if found.next is None else str(found.next),
    )
