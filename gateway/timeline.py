"""Counts what is due in each minute, hour or day, of all delay groups together."""

from typing import Annotated, Literal

import msgspec

from delay_transport.http.counts import added_rows
from delay_transport.http.operations import Call, NoPath, Request
from gateway.api import API, CURL_URL, Parts, check_subject
from gateway.cluster import Json


class TimelineQuery(Request, frozen=True, kw_only=True):
    """The messages that are counted, and how."""

    subject: str = "*"
    """A subject, or a beginning of subjects with a * behind."""
    by: Literal["subject", "group"] = "subject"
    """A row for each subject; or for each name of receivers, or broker groups of a subject."""
    step: Literal["minute", "hour", "day"] = "hour"
    """The length of a column, in UTC."""
    columns: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 48
    """Their number, from now on."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of messages that are due in each column."""

    begin_ms: int
    """When the first column begins, in ms since 1970."""
    column_ms: int
    """The length of each."""
    rows: dict[str, Json]
    """By name: `before` the first column, `counts`, and `later`; by group also `rate_per_s`, which
    its receivers take. The row "" has all; "%" has what the delay servers did not count by name."""
    complete: bool
    """True if all groups answered, and could read all that they have."""
    away: dict[str, str]
    """Delay groups that gave no answer, and why: their messages are lacking."""


@API.operation("GET", "/timeline", example=f"curl '{CURL_URL}/timeline?by=group'")
async def timeline(call: Call[Parts, NoPath, TimelineQuery, None]) -> Timeline:
    """Count what is due when."""
    query = call.query
    check_subject(call.caller, query.subject)
    now_ms = (await call.context.live.now()).topology["now_ms"]
    step_ms = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}[query.step]
    begin_ms = now_ms - now_ms % step_ms
    asked = {
        "subject": query.subject,
        "by": query.by,
        "step": query.step,
        "due_from": begin_ms,
        "due_to": begin_ms + query.columns * step_ms,
    }
    answers, away = await call.context.cluster.ask_masters("count", query_of=lambda _: asked)
    return Timeline(
        begin_ms=begin_ms,
        column_ms=step_ms,
        rows=added_rows(answers.values()),
        complete=not away and all(answer["complete"] for answer in answers.values()),
        away=away,
    )
