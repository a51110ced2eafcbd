"""Operations about messages of a node: find one by its id, and say why those of a subject wait.

Messages that are retries, or copies for one of several names (`%RETRY%S%G`), are shown under their
subject S, with the name G.
"""

import base64
from typing import Annotated, Any

from msgspec import Meta

from delay_protocol.basics.subjects import real_subject
from delay_server.admin.explain import Explained, explain_subject
from delay_server.admin.explain import find as find_message
from delay_server.admin.parts import Administered, about
from delay_server.admin.pending import Pending, count_of, looked, named
from delay_transport.http.operations import Call, NoPath, Request
from delay_transport.http.problems import RequestError
from delay_transport.http.tokens import Role
from storage.disk.spans import MINUTE_MAX
from storage.readers.looking import Fact, FindLook
from storage.schedule.keys import NEVER

Json = dict[str, Any]


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
    return looked(look) | {"complete": look.is_complete, "messages": messages, "hint": hint}


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
