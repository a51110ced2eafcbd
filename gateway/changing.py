"""Messages that are cancelled or moved: one at a time by the client, or all of a filter."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
import structlog
from msgspec.structs import asdict

from delay_client import ChangeState, MessageName
from delay_client.messages.cancel_tokens import encode_token
from delay_transport.http.operations import Call, NoPath, Request
from delay_transport.http.tokens import Role
from gateway.api import API, CURL_URL, Parts, check_subject, of_message
from gateway.cluster import Json
from gateway.meant import DueQuery, FilterQuery, NamesPath, TokenPath, meant_message
from gateway.refusals import ChangedMessage, ChangeError, NoAnswerError
from gateway.times import parse_delay, parse_moment

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

FILTER_S: Final = 20.0
"""Seconds after which a change by filter begins no more slices."""


class MoveTo(Request, frozen=True, kw_only=True):
    """The new time of a message."""

    due: str | int
    """RFC 3339, or seconds since 1970."""


class ChangeQuery(FilterQuery, frozen=True, kw_only=True):
    """The messages that are changed."""

    dry_run: bool = False
    """Count them, and leave them."""


class MoveBy(Request, frozen=True, kw_only=True):
    """The time by which messages are moved."""

    by: str
    """Later by 90s, 1h52m or PT90S; earlier with a - before it."""
    after: dict[str, str] = {}  # noqa: RUF012 (a struct copies it)
    """`next` of the answer before, to go on with what it began."""


class ChangedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a change by filter, as far as it got."""

    states: dict[str, int]
    """Messages by the state that they came to: cancelled; pending, of a dry run; or why not."""
    complete: bool
    """True if that was all. If not, a cancel goes on by the same request."""
    next: dict[str, str]
    """Where it goes on, by delay group that has more; a move without it moves some twice."""
    away: dict[str, str]
    """Delay groups that gave no answer, and why: what they have was not, or not all, changed."""


@of_message("DELETE", "curl -X DELETE", role=Role.SEND)
async def cancel(call: Call[Parts, TokenPath | NamesPath, DueQuery, None]) -> ChangedMessage:
    """Cancel a message: it never comes."""
    return await _change(call, None)


@of_message("PATCH", """curl -X PATCH --json '{"due": "2026-12-24T18:00:00Z"}'""", role=Role.SEND)
async def move(call: Call[Parts, TokenPath | NamesPath, DueQuery, MoveTo]) -> ChangedMessage:
    """Deliver a message at another time."""
    return await _change(call, parse_moment(str(call.body.due), "due"))


async def _change(
    call: Call[Parts, TokenPath | NamesPath, DueQuery, Any], to: datetime | None
) -> ChangedMessage:
    """Cancel a message, or move it to a time, and return what it is then."""
    meant, client = meant_message(call.path, call.query), call.context.client
    check_subject(call.caller, meant.subject)
    # A token has the cluster as well; without a due time there is none.
    named: MessageName | str = MessageName(meant.subject, meant.message_id)
    if meant.due_ms is not None:
        named = encode_token(meant)
    changed = await (client.cancel(named) if to is None else client.move(named, to=to))
    due_ms = changed.due_ms
    shown = ChangedMessage(
        id=changed.message_id,
        subject=changed.subject,
        state=changed.state.value,
        due_ms=due_ms,
        at_ms=changed.at_ms,
        to=changed.to,
        names={name: one.state.value for name, one in changed.by_name.items()},
        cancel_token=None if due_ms is None else encode_token(meant._replace(due_ms=due_ms)),
    )
    if changed.state not in {ChangeState.CANCELLED, ChangeState.MOVED}:
        raise ChangeError(changed, shown)
    known = {"subject": shown.subject, "id": shown.id, "due_ms": due_ms}
    _log.info(f"{shown.state} a message", who=call.caller.name, **known)
    return shown


@API.operation(
    "DELETE",
    "/messages",
    role=Role.CHANGE,
    example=f"curl -X DELETE '{CURL_URL}/messages?subject=hello&dry_run=true'",
)
async def cancel_all(call: Call[Parts, NoPath, ChangeQuery, None]) -> ChangedMessages:
    """Cancel all of a filter."""
    return await _change_all("cancelled messages", call, {}, {})


@API.operation(
    "PATCH",
    "/messages",
    role=Role.CHANGE,
    example=f"curl -X PATCH --json '{{\"by\": \"1h\"}}' '{CURL_URL}/messages?subject=hello'",
)
async def move_all(call: Call[Parts, NoPath, ChangeQuery, MoveBy]) -> ChangedMessages:
    """Deliver all of a filter later, or earlier, by as much."""
    by = call.body.by.strip()
    by_ms = round(parse_delay(by.removeprefix("-"), "by") * 1000)
    how = {"by_ms": -by_ms if by.startswith("-") else by_ms}
    return await _change_all("moved messages", call, how, call.body.after)


async def _change_all(
    done: str, call: Call[Parts, NoPath, ChangeQuery, Any], how: Json, begin: Mapping[str, str]
) -> ChangedMessages:
    """Change all of a filter, in slices at the master of each delay group, while there is time.

    begin: by delay group where it goes on; empty: all from the beginning
    """
    query, cluster = call.query, call.context.cluster
    check_subject(call.caller, query.subject)
    wanted = {"subject": query.subject or "*", **query.times()}
    now = asyncio.get_running_loop().time
    until = now() + FILTER_S
    states = Counter[str]()
    left = {
        group: begin.get(group, "")
        for group in await cluster.groups()
        if group in begin or not begin
    }

    async def change(group: str) -> Json:
        while group in left and now() < until:
            body = wanted | how | {"dry_run": query.dry_run, "after": left[group] or None}
            found = await cluster.ask_master(group, "POST", "messages", "change-all", body=body)
            states.update(found["states"])
            left[group] = found["next"]
            if found["next"] is None:
                del left[group]
        return {}

    away = (await cluster.of_all(change)).away
    if away and not states:
        raise NoAnswerError("; ".join(away.values()))
    if not query.dry_run:
        asked = {name: str(value)[:100] for name, value in (asdict(query) | how).items()}
        _log.warning(done, who=call.caller.name, states=states, **asked)
    return ChangedMessages(states=states, complete=not left, next=left, away=away)
