"""Answers operators: the overview, the timeline, dead letters, and pauses.

    GET    /v1/cluster, /v1/events        everything at a glance; the same as a stream
    GET    /v1/timeline                   what is due when
    GET    /v1/dead/GROUP                 dead letters of a delay group
    POST   /v1/dead/GROUP/requeue         send some of them once more
    DELETE /v1/dead/GROUP                 drop some of them
    GET    /v1/pauses                     what is paused
    PUT, DELETE /v1/pauses/SUBJECT        pause a subject, or go on with it

Each change can be a dry run, which says how many messages it would concern.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Final, NamedTuple

import msgspec
import structlog
from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from delay_transport.http.access import Caller
from delay_transport.http.operations import NoQuery, Request
from delay_transport.http.pages import Cursor, Limit
from delay_transport.http.problems import RequestError
from delay_transport.http.server import json_response
from delay_transport.http.tokens import Role
from gateway.cluster import Cluster, Json
from gateway.meant import query_of
from gateway.overview import STREAMS_MAX, Live, Overview, Timeline, TimelineQuery, timeline
from gateway.sending import check_subject

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

PAUSES_MAX: Final = 1000
"""Pauses that are shown."""

Act = Callable[[HttpRequest, Caller], Awaitable[Response]]


class DeadQuery(Request, frozen=True, kw_only=True):
    """A page of dead letters, by sequence."""

    subject: str | None = None
    """Only those of this subject."""
    group: str | None = None
    """Only those that this broker group, or name of receivers, refused last."""
    after: Cursor = ""
    """`next` of the page before."""
    limit: Limit = 100
    """Rows of a page at most."""


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


class DeadPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the dead letters of a delay group."""

    pending: int
    """Dead letters of the delay group."""
    matched: int
    """Dead letters that were asked for."""
    items: list[Json]
    """The ones of this page, as `delaywheel dead list --json` shows them."""
    next: str | None
    """The value of `after` for the next page; null: this is the last one."""


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


class Operating:
    """Answers operators."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.live = Live(cluster)

    def acts(self) -> Mapping[str, Mapping[str, tuple[Role, Act]]]:
        """Return what answers each path and method, with the role that it needs."""
        found: dict[str, dict[str, tuple[Role, Act]]] = {}
        for one in OPERATIONS:
            path = f"/v1/{one.path}".replace("{subject}", "{subject:path}")
            found.setdefault(path, {})[one.method] = (one.role, partial(one.act, self))
        return found

    async def overview(self, _: HttpRequest, caller: Caller) -> Response:
        """Show everything at a glance."""
        check_subject(caller, "*")
        return json_response(await self.live.now())

    async def watch(self, _: HttpRequest, caller: Caller) -> Response:
        """Stream it, as Server-Sent Events."""
        check_subject(caller, "*")
        if self.live.streams >= STREAMS_MAX:
            raise RequestError(429, "busy", "too many watch at a time", retry_after_s=5)
        # What fails at once has its status.
        await self.live.now()
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self.live.events(), 200, headers, "text/event-stream")

    async def timeline(self, request: HttpRequest, caller: Caller) -> Response:
        """Count what is due when."""
        query = query_of(request, TimelineQuery)
        check_subject(caller, query.subject)
        now_ms = (await self.live.now()).topology["now_ms"]
        return json_response(await timeline(self._cluster, query, now_ms))

    async def list_dead(self, request: HttpRequest, caller: Caller) -> Response:
        """List dead letters of a delay group."""
        query = query_of(request, DeadQuery)
        check_subject(caller, query.subject or "*")
        group, asked = request.path_params["delay_group"], msgspec.structs.asdict(query)
        return json_response(await self._cluster.ask_master(group, "GET", "dead", query=asked))

    async def requeue_dead(self, request: HttpRequest, caller: Caller) -> Response:
        """Send dead letters once more, at once."""
        return await self._change_dead("requeue", request, caller)

    async def drop_dead(self, request: HttpRequest, caller: Caller) -> Response:
        """Drop dead letters for good."""
        return await self._change_dead("drop", request, caller)

    async def _change_dead(self, verb: str, request: HttpRequest, caller: Caller) -> Response:
        meant, group = query_of(request, DeadMeant), request.path_params["delay_group"]
        if [meant.sequence, meant.subject, meant.group].count(None) != 2:
            raise RequestError(400, "filter", "give one of sequence, subject and group")
        check_subject(caller, meant.subject or "*")
        kind = {"subject": meant.subject, "group": meant.group}
        if meant.dry_run and meant.sequence is not None:
            await self._cluster.ask_master(group, "GET", "dead", str(meant.sequence))
            return json_response(Operated(messages=1))
        if meant.dry_run:
            asked = kind | {"limit": "1"}
            found = await self._cluster.ask_master(group, "GET", "dead", query=asked)
            return json_response(Operated(messages=found["matched"]))
        body = kind | {"sequences": None if meant.sequence is None else [meant.sequence]}
        found = await self._cluster.ask_master(group, "POST", "dead", verb, body=body)
        if found["missing"] or found["damaged"]:
            raise RequestError(404, "unknown", "it is no dead letter any more, or is damaged")
        _log.warning(f"{verb} dead letters", who=caller.name, delay_group=group, **found, **body)
        return json_response(Operated(messages=found["done"]))

    async def list_pauses(self, _: HttpRequest, caller: Caller) -> Response:
        """Show what is paused."""
        check_subject(caller, "*")
        found: dict[str, list[str]] = {}
        complete = True
        for of in ("subject", "group"):
            page = await self._cluster.ask_meta("GET", f"{of}-rule", query={"limit": PAUSES_MAX})
            found[of] = sorted({row[of] for row in page["items"] if row["paused"]})
            complete &= page["next"] is None
        pauses = Pauses(subjects=found["subject"], groups=found["group"], complete=complete)
        return json_response(pauses)

    async def pause(self, request: HttpRequest, caller: Caller) -> Response:
        """Pause a subject, or all with a beginning: its messages wait."""
        return await self._set_pause(request, caller, paused=True)

    async def resume(self, request: HttpRequest, caller: Caller) -> Response:
        """End the pause of a subject."""
        return await self._set_pause(request, caller, paused=False)

    async def _set_pause(self, request: HttpRequest, caller: Caller, *, paused: bool) -> Response:
        """Store the rule of a subject in all clusters of the meta server."""
        subject = request.path_params["subject"]
        check_subject(caller, subject)
        if query_of(request, DryRun).dry_run:
            counted = await self._cluster.ask_masters(
                "GET", "count", query_of=lambda _: {"subject": subject}
            )
            rows = [one["rows"][""] for one in counted.by_group.values() if "" in one["rows"]]
            messages = sum(row["before"] + row["later"] + sum(row["counts"]) for row in rows)
            return json_response(Operated(messages=messages, away=counted.away))
        for one in (await self._cluster.ask_meta("GET", "cluster"))["items"]:
            path = ("subject-rule", one["name"], subject)
            await self._cluster.ask_meta("PUT", *path, body={"paused": paused})
        _log.warning("pause" if paused else "resume", who=caller.name, subject=subject)
        return json_response(Operated(messages=None))


class Operation(NamedTuple):
    """A path and a method, what answers it, and what the document says of it."""

    method: str
    path: str
    """Behind /v1/."""
    act: Callable[[Operating, HttpRequest, Caller], Awaitable[Response]]
    answer: type
    query: type[Request] = NoQuery
    example: str = ""
    """Parameters of its curl."""

    @property
    def role(self) -> Role:
        """The role that a token needs."""
        return Role.READ if self.method == "GET" else Role.ADMIN


_DEAD: Final = "dead/{delay_group}"
_MEANT: Final = "?group=mail&dry_run=true"

OPERATIONS: Final = (
    Operation("GET", "cluster", Operating.overview, Overview),
    Operation("GET", "events", Operating.watch, Overview),
    Operation("GET", "timeline", Operating.timeline, Timeline, TimelineQuery, "?by=group"),
    Operation("GET", _DEAD, Operating.list_dead, DeadPage, DeadQuery, "?limit=10"),
    Operation("DELETE", _DEAD, Operating.drop_dead, Operated, DeadMeant, _MEANT),
    Operation("POST", f"{_DEAD}/requeue", Operating.requeue_dead, Operated, DeadMeant, _MEANT),
    Operation("GET", "pauses", Operating.list_pauses, Pauses),
    Operation("PUT", "pauses/{subject}", Operating.pause, Operated, DryRun, "?dry_run=true"),
    Operation("DELETE", "pauses/{subject}", Operating.resume, Operated, DryRun),
)
