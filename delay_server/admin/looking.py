"""Operations that look at messages: one by its id, a page of those that are pending, counts.

A message is pending until it has an outcome. A retry, or a copy for one of several names
(`%RETRY%S%G`), is shown under its subject S, with the name G.

The looks are made one at a time (`delay_server/admin/looks.py`). Each answer says as of which
record it is. Messages that come or go meanwhile move no others: a page is in order of due time and
sequence, and begins behind such a key.
"""

import base64
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from delay_protocol.basics.subjects import Patterns, real_subject, retry_group
from delay_server.admin.explain import Explained, explain_subject
from delay_server.admin.explain import find as find_message
from delay_server.admin.parts import Administered, Parts, about
from delay_transport.http.operations import Call, NoPath, Request
from delay_transport.http.pages import PAGE_MAX
from delay_transport.http.problems import BadValueError, RequestError
from delay_transport.http.tokens import Role
from storage.batch.item_formats import qmq_message_id
from storage.disk.spans import MINUTE_MAX, MINUTE_MS
from storage.readers.looking import CountLook, Fact, FindLook, Look, PageLook
from storage.schedule.keys import NEVER

Json = dict[str, Any]

COLUMNS_MAX: Final = 10_000
"""Columns of a count: a week of minutes, a year of hours."""
_COLUMNS: Final = 48
"""Columns where nothing is said of the end."""
_NUMBERS_MAX: Final = 100_000
"""Numbers in the answer to a count."""
_ALL: Final = ""
"""The row of a count that has all messages; no subject is called so."""
_UNROUTED: Final = "no route known"
"""The row of subjects of which the meta server has said nothing yet, or that nobody takes."""

Milliseconds = Annotated[int, Meta(ge=0, le=(MINUTE_MAX + 1) * MINUTE_MS)]


class Pending(Request, frozen=True, kw_only=True):
    """The pending messages that are meant: those that fit all that is given."""

    subject: Annotated[str, about("A subject, or prefix with a * at its end.")] = "*"
    name: Annotated[
        str | None, about("Retries and copies that go to this name alone; empty: all others.")
    ] = None
    due_from: Annotated[Milliseconds, about("Due at this time or later.")] = 0
    due_to: Annotated[Milliseconds | None, about("Due before this time.")] = None

    @property
    def end_ms(self) -> int:
        """The first time that is not meant any more; raises BadValueError if there is none."""
        if self.due_to is not None and self.due_to <= self.due_from:
            raise BadValueError(field="due_to", value=self.due_to, allowed="later than due_from")
        return NEVER[0] if self.due_to is None else self.due_to

    def require_some(self) -> None:
        """Raise RequestError if all messages are meant."""
        is_any_time = not self.due_from and self.due_to is None
        if not self.subject.strip("*") and self.name is None and is_any_time:
            raise RequestError(400, "bad-value", "give a subject, name, due_from or due_to")

    def takes(self, subject: bytes) -> bool:
        """Return True if messages of a subject are meant."""
        text = subject.decode(errors="replace")
        is_named = self.name is None or retry_group(text) == self.name
        return is_named and Patterns((self.subject,)).take(text)


def looked(look: Look) -> Json:
    """Return what a look covers: all records up to `as_of`, if it is complete."""
    return {
        "as_of": look.present.sequence,
        "rows_looked_at": look.examined,
        "complete": not (look.unreadable or look.is_behind),
    }


def named(subject: bytes) -> Json:
    """Return the subject of a message, and the name that alone it goes to; null: any."""
    name = real_subject(subject).decode(errors="replace")
    return {"subject": name, "name": retry_group(subject.decode(errors="replace")) or None}


# -- pages -----------------------------------------------------------------------------------


class ListQuery(Pending, frozen=True, kw_only=True):
    """A page of the pending messages that are meant."""

    ids: Annotated[bool, about("With message ids: items are read, not columns.")] = False
    after: Annotated[
        Annotated[str, Meta(pattern=r"^(\d{1,18}\.\d{1,18})?$")],
        about("`next` of the page before, or DUE_MS.SEQUENCE: what comes behind such a message."),
    ] = ""
    limit: Annotated[Annotated[int, Meta(ge=1, le=PAGE_MAX)], about("Messages wanted at most.")] = (
        100
    )


async def list_pending(call: Call[Administered, NoPath, ListQuery, None]) -> Json:
    """List pending messages by due time; each page goes on where the one before ended."""
    query, parts = call.query, call.context.parts()
    query.require_some()
    after = list(map(int, filter(None, query.after.split("."))))
    item_of = qmq_message_id if query.ids else None
    look = await page_of(parts, query, after=after, limit=query.limit, item_of=item_of)
    items = [
        named(row.subject)
        | {
            "message_id": row.item.decode(errors="replace") if query.ids else None,
            "due_ms": row.due_ms,
            "sequence": row.sequence,
            "size_bytes": row.size,
            "segment": row.segment,
        }
        for row in look.page
    ]
    end = None if look.next is None else place_of(*look.next)
    # What is due before this time is on this page or an earlier one.
    covered = None if look.next is None else look.next[0]
    return looked(look) | {"items": items, "covered_to_ms": covered, "next": end}


async def page_of(
    parts: Parts,
    wanted: Pending,
    *,
    after: list[int],
    until_ms: int = NEVER[0],
    last: int = NEVER[0],
    limit: int,
    item_of: Callable[[bytes], bytes] | None,
) -> PageLook:
    """Return the next of the messages that are meant, as PageLook has it; raise RequestError.

    after: due time and sequence; nothing for the first page.
    """
    due_ms, sequence = max([wanted.due_from, 0], after)
    return await parts.looks.run(
        parts.node,
        partial(
            PageLook,
            wanted=wanted.takes,
            after=(due_ms, sequence),
            until_ms=min(wanted.end_ms, until_ms),
            last=last,
            limit=limit,
            item_of=item_of,
        ),
    )


def place_of(*numbers: int) -> str:
    """Return the place at which a page ends, as text."""
    return ".".join(map(str, numbers))


# -- counts ----------------------------------------------------------------------------------

_STEPS_MS: Final = {"minute": MINUTE_MS, "hour": 60 * MINUTE_MS, "day": 1440 * MINUTE_MS}


class CountQuery(Pending, frozen=True, kw_only=True):
    """A count of the pending messages that are meant."""

    by: Annotated[
        Literal["subject", "group"] | None,
        Meta(
            description="A row for each subject, or for those who take them: a name of receivers, "
            "or the broker groups of a subject together."
        ),
    ] = None
    step: Annotated[
        Literal["minute", "hour", "day"] | None,
        about("A column for each of these in UTC, from due_from on, or from now."),
    ] = None

    def columns(self, now_ms: int) -> tuple[int, int, int]:
        """Return begin, length and number of the columns; raise BadValueError for too many."""
        end_ms = self.end_ms
        if self.step is None:
            return self.due_from, end_ms - self.due_from, 1
        step_ms, begin_ms = _STEPS_MS[self.step], self.due_from or now_ms
        begin_ms -= begin_ms % step_ms
        if self.due_to is None:
            return begin_ms, step_ms, _COLUMNS
        columns = max(-(-(end_ms - begin_ms) // step_ms), 1)
        if columns > COLUMNS_MAX:
            allowed = f"a longer step, or less time: a count has at most {COLUMNS_MAX:,} columns"
            raise BadValueError(field="step", value=self.step, allowed=allowed)
        return begin_ms, step_ms, columns


async def count(call: Call[Administered, NoPath, CountQuery, None]) -> Json:
    """Count pending messages: in all, by subject or group, by minute, hour or day."""
    query, parts = call.query, call.context.parts()
    takers = Takers(parts, [group.name for group in parts.master.sender.status()])
    names_of = {None: lambda _: (), "subject": _subject_of, "group": takers.names_of}[query.by]
    columns = query.columns(parts.pacer.trusted_ms())
    look = await count_of(parts, query, *columns, names_of=names_of)
    rows = {
        name: {"before": numbers[0], "counts": numbers[1:-1], "later": numbers[-1]}
        | (takers.rate_of(name) if query.by == "group" else {})
        for name, numbers in look.by_name().items()
    }
    return looked(look) | {"begin_ms": columns[0], "column_ms": columns[1], "rows": rows}


def _subject_of(subject: bytes) -> Collection[str]:
    return (real_subject(subject).decode(errors="replace"),)


async def count_of(
    parts: Parts,
    wanted: Pending,
    first_ms: int,
    column_ms: int,
    columns: int,
    *,
    names_of: Callable[[bytes], Collection[str]] = lambda _: (),
) -> CountLook:
    """Return a count of the messages that are meant, with a row for all; raise RequestError."""

    def rows_of(subject: bytes) -> Collection[str]:
        return (_ALL, *names_of(subject)) if wanted.takes(subject) else ()

    return await parts.looks.run(
        parts.node,
        partial(
            CountLook,
            names_of=rows_of,
            first_ms=first_ms,
            column_ms=column_ms,
            columns=columns,
            names_max=_NUMBERS_MAX // (columns + 2),
        ),
    )


@dataclass(frozen=True, slots=True)
class Takers:
    """Takers of the messages of each subject, as far as they are known, and how fast they are."""

    parts: Parts
    brokers: Sequence[str]
    """The groups of all subjects where there is no meta server."""

    def names_of(self, subject: bytes) -> Collection[str]:
        """Return the rows of a subject, one for each name of receivers; in any thread."""
        routes, name = self.parts.master.targets.routes, subject.decode(errors="replace")
        if routes is not None and (receiving := routes.names_of(name)):
            alone = retry_group(name)
            return [alone] if alone in receiving else receiving
        groups = self.brokers if routes is None else routes.groups_of_name(name)
        return (" ".join(sorted(groups)) or _UNROUTED,)

    def rate_of(self, row: str) -> Json:
        """Return what the groups of a row are limited to, or took in their best minute."""
        master, now_ms = self.parts.master, self.parts.pacer.trusted_ms()
        rates, is_limit = [], True
        for name in row.split(" "):
            rule, best = master.outlet.applied.groups.get(name), master.taken.best(name, now_ms)
            limit = None if rule is None else rule.rate_per_s
            is_limit &= limit is not None
            rates += [best / 60 if limit is None else limit]
        rate = sum(rates)
        return {"rate_per_s": rate or None, "rate_is_limit": is_limit}


# -- one message, and one subject ------------------------------------------------------------


class FindQuery(Request, frozen=True, kw_only=True):
    """A message id, and what else is known of the message."""

    id: Annotated[str, about("Messages with this id.")]
    subject: Annotated[str | None, about("Only those of this subject.")] = None
    minute: Annotated[
        Annotated[int, Meta(ge=0, le=MINUTE_MAX)] | None,
        about("Also those that were due in this minute since 1970 UTC, and are done."),
    ] = None
    body: Annotated[bool, about("With the item's bytes, in base64; needs the role admin.")] = False


async def find(call: Call[Administered, NoPath, FindQuery, None]) -> Json:
    """Show all messages with an id: where they are, or what became of them."""
    query, parts = call.query, call.context.parts()
    if query.body and call.caller.role is not Role.ADMIN:
        raise RequestError(403, "role", "body: to read messages needs the role admin")
    found, look = await find_message(parts, message_id=query.id.encode(), due_minute=query.minute)
    messages = [
        _shown(one) | ({"body": base64.b64encode(one.row.item).decode()} if query.body else {})
        for one in found
        if query.subject in {None, real_subject(one.row.subject).decode(errors="replace")}
    ]
    hint = "" if messages else _hint(look)
    since_ms = max(parts.pacer.trusted_ms() - parts.node.config.storage.segments_keep_ms, 0)
    return looked(look) | {
        "complete": look.is_complete,
        "messages": messages,
        "hint": hint,
        "facts_since_ms": since_ms,
    }


def _hint(look: FindLook) -> str:
    """Return what it means that nothing was found."""
    if look.unreadable:
        return f"{look.unreadable} places were unreadable: run `delaywheel log verify`"
    if look.is_behind:
        return "the search did not reach what was just acknowledged: the disk stalls, or is full"
    return "no message with this id waits or was delivered lately (--at: in that minute)"


def _shown(message: Explained) -> Json:
    row, held = message.row, message.held
    return named(row.subject) | {
        "sequence": row.sequence,
        "due_ms": row.due_ms,
        "minute": row.minute,
        "segment": row.segment,
        "reason": "done" if message.reason is None else message.reason.value,
        "loaded": message.is_loaded,
        "group": None if held is None else held.group,
        "holder": None if held is None else held.holder or None,
        "fact": None if message.fact is None else _shown_fact(message.fact),
        "dead_letter": message.is_letter,
    }


def _shown_fact(fact: Fact) -> Json:
    outcome = "" if fact.outcome is None else fact.outcome.name.lower()
    return {"outcome": outcome, "group": fact.target, "at_ms": fact.at_ms}


class ExplainQuery(Request, frozen=True, kw_only=True):
    """The subject that is to be explained."""

    subject: Annotated[str, about("All messages of this subject.")]


async def explain(call: Call[Administered, NoPath, ExplainQuery, None]) -> Json:
    """Show where the messages of a subject are, and why they were not delivered."""
    parts, subject = call.context.parts(), call.query.subject
    found = await explain_subject(parts, subject)
    now_ms = parts.pacer.trusted_ms()
    look = await count_of(parts, Pending(subject=subject), now_ms, NEVER[0], 1)
    return found | {"due_later": sum(sum(numbers[1:]) for numbers in look.by_name().values())}
