"""Answers operators: the overview, dead letters, and pauses.

    GET    /v1/cluster, /v1/events        everything at a glance; the same as a stream
    GET    /v1/dead/GROUP                 dead letters of a delay group
    POST   /v1/dead/GROUP/requeue         send some of them once more
    DELETE /v1/dead/GROUP                 drop some of them
    GET    /v1/pauses                     what is paused
    PUT, DELETE /v1/pauses/SUBJECT        pause a subject, or go on with it

Each change can be a dry run, which says how many messages it would concern.
"""

from typing import Annotated, Final

import msgspec
import structlog
from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from delay_transport.http.operations import Call, NoPath, NoQuery, Request
from delay_transport.http.pages import Page, PageQuery
from delay_transport.http.problems import RequestError
from gateway.api import API, CURL_URL, Parts, check_subject
from gateway.cluster import Json
from gateway.overview import Overview

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

PAUSES_MAX: Final = 1000
"""Pauses that are shown."""
_DEAD_URL: Final = f"'{CURL_URL}/dead/d1"
_MEANT: Final = "group=mail&dry_run=true'"
_PAUSE_URL: Final = f"'{CURL_URL}/pauses/orders.*"


class GroupPath(Request, frozen=True, kw_only=True):
    """A delay group."""

    delay_group: str
    """A group of delay servers."""


class SubjectPath(Request, frozen=True, kw_only=True):
    """Subjects."""

    subject: str
    """A subject, or a beginning of subjects with a * behind."""


class DeadQuery(PageQuery, frozen=True, kw_only=True):
    """A page of dead letters, by sequence."""

    subject: str | None = None
    """Only those of this subject."""
    group: str | None = None
    """Only those that this broker group, or name of receivers, refused last."""


class DeadMeant(Request, frozen=True, kw_only=True):
    """The dead letters of a change: one, all of a subject, or all that a group refused last."""

    sequence: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """This one."""
    subject: str | None = None
    """All of this subject."""
    group: str | None = None
    """All that this broker group, or name of receivers, refused last."""
    dry_run: bool = False
    """Count them, and leave them."""


class DryRun(Request, frozen=True, kw_only=True):
    """The options of a change."""

    dry_run: bool = False
    """Say how many messages it would concern, and change nothing."""


class DeadPage(Page[Json], frozen=True, kw_only=True):
    """A page of the dead letters of a delay group, as `delaywheel dead list --json` shows them."""

    pending: int
    """Dead letters of the delay group."""
    matched: int
    """Dead letters that were asked for."""


class Operated(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a change of dead letters, or of a pause."""

    messages: int | None
    """Messages that were changed; of a dry run that would be; null: a pause does not count them."""
    away: dict[str, str] = {}
    """Delay groups that gave no answer, and why: their messages are not counted."""


class Pauses(msgspec.Struct, frozen=True, kw_only=True):
    """Subjects and groups that are paused: their messages wait."""

    subjects: list[str]
    """Subjects, and beginnings of subjects with a * behind."""
    groups: list[str]
    """Broker groups and names of receivers; `delaywheel resume --group` goes on with one."""
    complete: bool
    """False: there are more."""


@API.operation("GET", "/cluster", example=f"curl {CURL_URL}/cluster")
async def overview(call: Call[Parts, NoPath, NoQuery, None]) -> Overview:
    """Show everything at a glance."""
    check_subject(call.caller, "*")
    return await call.context.live.now()


@API.operation("GET", "/events", answer_type=Overview, example=f"curl {CURL_URL}/events")
async def watch(call: Call[Parts, NoPath, NoQuery, None]) -> Response:
    """Stream it, as Server-Sent Events."""
    check_subject(call.caller, "*")
    events = call.context.live.events()
    # What fails at once has its status.
    await anext(events)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, 200, headers, "text/event-stream")


@API.operation("GET", "/dead/{delay_group}", example=f"curl {_DEAD_URL}?limit=10'")
async def list_dead(call: Call[Parts, GroupPath, DeadQuery, None]) -> DeadPage:
    """List dead letters of a delay group."""
    check_subject(call.caller, call.query.subject)
    group, asked = call.path.delay_group, msgspec.structs.asdict(call.query)
    found = await call.context.cluster.ask_master(group, "GET", "dead", query=asked)
    return msgspec.convert(found, DeadPage)


@API.operation(
    "POST", "/dead/{delay_group}/requeue", example=f"curl -X POST {_DEAD_URL}/requeue?{_MEANT}"
)
async def requeue_dead(call: Call[Parts, GroupPath, DeadMeant, None]) -> Operated:
    """Send dead letters once more, at once."""
    return await _change_dead("requeue", call)


@API.operation("DELETE", "/dead/{delay_group}", example=f"curl -X DELETE {_DEAD_URL}?{_MEANT}")
async def drop_dead(call: Call[Parts, GroupPath, DeadMeant, None]) -> Operated:
    """Drop dead letters for good."""
    return await _change_dead("drop", call)


async def _change_dead(verb: str, call: Call[Parts, GroupPath, DeadMeant, None]) -> Operated:
    meant, group, cluster = call.query, call.path.delay_group, call.context.cluster
    if [meant.sequence, meant.subject, meant.group].count(None) != 2:
        raise RequestError(400, "filter", "give one of sequence, subject and group")
    check_subject(call.caller, meant.subject)
    kind = {"subject": meant.subject, "group": meant.group}
    if meant.dry_run and meant.sequence is not None:
        await cluster.ask_master(group, "GET", "dead", str(meant.sequence))
        return Operated(messages=1)
    if meant.dry_run:
        found = await cluster.ask_master(group, "GET", "dead", query=kind | {"limit": "1"})
        return Operated(messages=found["matched"])
    body = kind | {"sequences": None if meant.sequence is None else [meant.sequence]}
    found = await cluster.ask_master(group, "POST", "dead", verb, body=body)
    if found["missing"] or found["damaged"]:
        raise RequestError(404, "unknown", "it is no dead letter any more, or is damaged")
    _log.warning(f"{verb} dead letters", who=call.caller.name, delay_group=group, **found, **body)
    return Operated(messages=found["done"])


@API.operation("GET", "/pauses", example=f"curl {CURL_URL}/pauses")
async def list_pauses(call: Call[Parts, NoPath, NoQuery, None]) -> Pauses:
    """Show what is paused."""
    check_subject(call.caller, "*")
    found: dict[str, list[str]] = {}
    complete = True
    for of in ("subject", "group"):
        query = {"limit": PAUSES_MAX}
        page = await call.context.cluster.ask_meta("GET", f"{of}-rule", query=query)
        found[of] = sorted({row[of] for row in page["items"] if row["paused"]})
        complete &= page["next"] is None
    return Pauses(subjects=found["subject"], groups=found["group"], complete=complete)


@API.operation("PUT", "/pauses/{subject:path}", example=f"curl -X PUT {_PAUSE_URL}?dry_run=true'")
async def pause(call: Call[Parts, SubjectPath, DryRun, None]) -> Operated:
    """Pause a subject, or all with a beginning: its messages wait."""
    return await _set_pause(call, paused=True)


@API.operation("DELETE", "/pauses/{subject:path}", example=f"curl -X DELETE {_PAUSE_URL}'")
async def resume(call: Call[Parts, SubjectPath, DryRun, None]) -> Operated:
    """End the pause of a subject."""
    return await _set_pause(call, paused=False)


async def _set_pause(call: Call[Parts, SubjectPath, DryRun, None], *, paused: bool) -> Operated:
    """Store the rule of a subject in all clusters of the meta server."""
    subject, cluster = call.path.subject, call.context.cluster
    check_subject(call.caller, subject)
    if call.query.dry_run:
        counted = await cluster.ask_masters("count", query_of=lambda _: {"subject": subject})
        rows = [one["rows"][""] for one in counted.by_group.values() if "" in one["rows"]]
        messages = sum(row["before"] + row["later"] + sum(row["counts"]) for row in rows)
        return Operated(messages=messages, away=counted.away)
    for one in (await cluster.ask_meta("GET", "cluster"))["items"]:
        path = ("subject-rule", one["name"], subject)
        await cluster.ask_meta("PUT", *path, body={"paused": paused})
    _log.warning("pause" if paused else "resume", who=call.caller.name, subject=subject)
    return Operated(messages=None)
