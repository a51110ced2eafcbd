"""Looks at the masters of all groups: messages that wait, and the outcome of one.

Rows are those of the delay servers (docs/looking.md), with the delay group and the id of each.
"""

import re
from operator import itemgetter
from typing import Final

import msgspec

from delay_transport.http.operations import Call, NoPath
from delay_transport.http.pages import Cursor, Limit
from delay_transport.http.problems import BadValueError, RequestError
from gateway.api import API, CURL_URL, Parts, check_subject, of_message
from gateway.cluster import Json
from gateway.meant import DueQuery, FilterQuery, NamesPath, TokenPath, meant_message
from gateway.refusals import NoAnswerError
from gateway.times import rfc3339

_LAST: Final = 10**18 - 1
"""A sequence that no message comes behind."""

_CURSOR: Final = re.compile(r"(\d{1,18})\.(\d{1,18})\.(.*)", re.ASCII | re.DOTALL)
_Key = tuple[int, str, int]
"""Due time in ms, delay group, sequence: the order of a list."""


class ListQuery(FilterQuery, frozen=True, kw_only=True):
    """A page of the messages that fit."""

    limit: Limit = 100
    """Messages of a page at most."""
    cursor: Cursor = ""
    """`next` of the page before."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a message."""

    messages: list[Json]
    """Where it is, or was. One that was put off, moved or copied for a name has several rows."""
    away: dict[str, str]
    """Delay groups that gave no answer, and why: they may have more."""


class ListPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of what waits, the first due first."""

    items: list[Json]
    """The messages. Few or none may be there though more follow: only so many are looked at."""
    next: str | None
    """The `cursor` of the next page; null: this is the last one."""
    complete: bool
    """True if all groups answered, and could read all that they have."""
    away: dict[str, str]
    """Delay groups that gave no answer, and why: their messages are lacking."""


@of_message("GET", "curl")
async def find(call: Call[Parts, TokenPath | NamesPath, DueQuery, None]) -> Found:
    """Show what became of a message."""
    meant = meant_message(call.path, call.query)
    check_subject(call.caller, meant.subject)
    minute = None if meant.due_ms is None else meant.due_ms // 60_000
    asked = {"id": meant.message_id, "subject": meant.subject, "minute": minute}
    answers, away = await call.context.cluster.ask_masters("find", query_of=lambda _: asked)
    messages = [
        _shown(group, row) | {"id": meant.message_id}
        for group, answer in answers.items()
        for row in answer["messages"]
    ]
    if messages:
        return Found(messages=messages, away=away)
    lacking = [*away, *(group for group, answer in answers.items() if not answer["complete"])]
    if lacking:
        raise NoAnswerError(f"it is not found, and these could not look: {', '.join(lacking)}")
    since = rfc3339(max(answer["facts_since_ms"] for answer in answers.values()))
    why = f"it does not wait, and what became of messages is known since {since}"
    if minute is None:
        why += ": add due=, when it was due, if it may be done"
    raise RequestError(404, "unknown", why)


@API.operation(
    "GET", "/messages", name="list", example=f"curl '{CURL_URL}/messages?subject=hello&limit=10'"
)
async def list_waiting(call: Call[Parts, NoPath, ListQuery, None]) -> ListPage:
    """List what waits, the first due first."""
    # What waits all the time is on one page, whatever comes and goes between two of them.
    query = call.query
    check_subject(call.caller, query.subject)
    times = query.times()
    last = _key_of(query.cursor or "0.0.")
    wanted = {"subject": query.subject, "limit": query.limit, "ids": True, **times}
    answers, away = await call.context.cluster.ask_masters(
        "list", query_of=lambda group: wanted | {"after": _behind(last, group)}
    )
    rows = [
        ((row["due_ms"], group, row["sequence"]), _shown(group, row))
        for group, answer in answers.items()
        for row in answer["items"]
    ]
    # Behind the end of its page a group may have more, which may be due before others' rows.
    ends = [
        max(_key_of(f"{answer['next']}.{group}"), last)
        for group, answer in answers.items()
        if answer["next"]
    ]
    end = min(ends, default=None)
    covered = sorted((one for one in rows if end is None or one[0] <= end), key=itemgetter(0))
    if len(covered) > query.limit:
        end = covered[query.limit - 1][0]
    return ListPage(
        items=[row for _, row in covered[: query.limit]],
        next=None if end is None else f"{end[0]}.{end[2]}.{end[1]}",
        complete=not away and all(answer["complete"] for answer in answers.values()),
        away=away,
    )


def _shown(group: str, row: Json) -> Json:
    named = {"id": row.pop("message_id", None), "due": rfc3339(row["due_ms"])}
    return {"delay_group": group} | named | row


def _key_of(text: str) -> _Key:
    """Return the key that a cursor names; raise BadValueError."""
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise BadValueError(field="cursor", value=text, allowed="`next` of the page before")
    return int(found[1]), found[3], int(found[2])


def _behind(last: _Key, group: str) -> str:
    """Return where the page of a group begins that follows a key of the whole list."""
    due_ms, of, sequence = last
    if group != of:
        # The groups before it have had their turn with what is due at that time.
        sequence = _LAST if group < of else 0
    return f"{due_ms}.{sequence}"
