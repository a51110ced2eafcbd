"""Operations of a delay server: rules in force, a planned stop, the clock, looks, dead letters.

Rules are set at the meta server, or in the file of rules. Each change is in the log, with who asked
from where; one of dead letters has two lines, before it and after it. Beside the refusals of
`delay_transport/http/api.py` a request is answered

    404 unknown     there is no such dead letter
    429 looks       several looks at all messages wait already
    409 no-meta, …  the node's state does not allow it
    503 starting    the node is not the master, or has not read its dead letters yet
    503 not-now     nothing can be cancelled or moved now
    503 store       the change could not be stored
    507 disk        the disk is full
"""

import base64
import math
from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec
import structlog
from msgspec import Meta

from delay_protocol.nodes.controls import GroupControl, SubjectControl
from delay_server.admin.changes import change_all, change_named
from delay_server.admin.dead_view import shown_letter
from delay_server.admin.looking import count, explain, find, list_pending
from delay_server.admin.parts import Administered, NotMasterError, about
from delay_server.admin.status import following_of
from delay_server.changing.changer import NotChangedError
from delay_server.dead.dead_letters import DeadLetters
from delay_transport.http.api import Api, Refusal
from delay_transport.http.operations import Answer, Call, NoPath, NoQuery, Request
from delay_transport.http.pages import PageQuery, page_of
from delay_transport.http.problems import RequestError
from storage.disk.errors import StorageError
from storage.schedule.dead_index import DeadRow

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

API: Final = Api(
    title="delaywheel delay server",
    about="""\
Administration of one delay server. Rules and routes of all nodes are changed at the meta server. \
Without a file of tokens this machine alone is answered and every caller is an administrator; with \
one, GET needs a token of the role read, and everything else one of the role admin. Times are wall \
clock in ms since 1970 UTC.""",
    refusals=(
        Refusal(NotMasterError, 503, "starting"),
        Refusal(NotChangedError, 503, "not-now"),
        Refusal(StorageError, 503, "store", "the change could not be stored"),
    ),
)

Json = dict[str, Any]


# Rules, the clock, and a planned stop


class ControlsInForce(Answer, frozen=True, kw_only=True):
    """All rules that this node applies."""

    version: Annotated[int, about("Of the controls.")]
    subjects: Annotated[dict[str, SubjectControl], about("Rules by subject, or prefix with .*")]
    groups: Annotated[dict[str, GroupControl], about("Rules by broker group.")]
    group_states: Annotated[
        dict[str, Json], about("State, circuit, queued and in flight, of each broker group.")
    ]
    meta: Annotated[
        Json | None, about("The controls that the meta server sent; null without a meta server.")
    ]


class Follow(Request, frozen=True, kw_only=True):
    """A request to apply the meta server's controls."""


class Followed(Answer, frozen=True, kw_only=True):
    """The controls that hold now."""

    version: Annotated[int, about("Of the controls.")]


class Drain(Request, frozen=True, kw_only=True):
    """A request to stop the node."""

    seconds: Annotated[
        Annotated[float, Meta(ge=0, le=3600)], about("How long work in flight may take.")
    ] = 30.0


class Draining(Answer, frozen=True, kw_only=True):
    """The node stops."""

    stops: Annotated[bool, about("Always true.")]
    in_flight: Annotated[int, about("Messages sent and not answered.")]


class ClockAccepted(Answer, frozen=True, kw_only=True):
    """The state of the clock."""

    clock_held: Annotated[bool, about("True: it is not trusted, and nothing is delivered.")]


@API.operation("GET", "/controls")
async def show_controls(call: Call[Administered, NoPath, NoQuery, None]) -> ControlsInForce:
    """Show all rules in force, and the state of the broker groups."""
    parts = call.context.parts()
    controls = parts.master.outlet.applied
    return ControlsInForce(
        version=controls.version,
        subjects=controls.subjects,
        groups=controls.groups,
        group_states={
            group.name: {
                "state": group.state.value,
                "circuit": group.circuit.value,
                "queued": group.queued,
                "in_flight": group.in_flight,
            }
            for group in parts.master.sender.status()
        },
        meta=following_of(parts),
    )


@API.operation("POST", "/controls/follow")
async def follow_controls(call: Call[Administered, NoPath, NoQuery, Follow]) -> Followed:
    """Apply the meta server's controls, whatever holds here; a slave, once it is the master."""
    node = call.context.observe().node
    if node is None or node.controls_sync is None:
        raise RequestError(409, "no-meta", "this node has no meta server to follow, or starts")
    _log.warning("follow the meta server", who=call.caller.name, peer=call.peer)
    if not await node.controls_sync.follow():
        raise RequestError(409, "not-told", "this node has received no controls since it started")
    return Followed(version=node.controls.controls.version)


@API.operation("POST", "/drain")
async def drain(call: Call[Administered, NoPath, NoQuery, Drain]) -> Draining:
    """Stop the node as SIGTERM does."""
    parts = call.context.parts()
    _log.warning("drain", who=call.caller.name, peer=call.peer)
    call.context.begin_stop(call.body.seconds)
    return Draining(stops=True, in_flight=parts.master.sender.unsent().in_flight)


@API.operation("POST", "/clock/accept")
async def accept_clock(call: Call[Administered, NoPath, NoQuery, None]) -> ClockAccepted:
    """Trust the clock after a step forward; works before the node has recovered, by plain curl."""
    call.context.accept_clock()
    _log.warning("the clock was accepted by request", who=call.caller.name, peer=call.peer)
    return ClockAccepted(clock_held=call.context.observe().duty.clock_held)


# Looks

API.operation("GET", "/find")(find)
API.operation("GET", "/explain")(explain)
API.operation("GET", "/list")(list_pending)
API.operation("GET", "/count")(count)
API.operation("POST", "/messages/change")(change_named)
API.operation("POST", "/messages/change-all")(change_all)


# Dead letters

SEQUENCES_MAX: Final = 10_000
"""Dead letters that a request may name."""
_LOGGED_SEQUENCES: Final = 20
"""Dead letters that the log names of a request; of the others it says how many they were."""
_LOGGED_CHARACTERS: Final = 200
"""Characters of a subject or a group that the log keeps."""

Sequence = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class DeadQuery(PageQuery, frozen=True, kw_only=True):
    """A page of dead letters, by sequence."""

    subject: Annotated[str | None, about("Only those of this subject.")] = None
    group: Annotated[str | None, about("Only those that this group refused last.")] = None


class DeadPage(Answer, frozen=True, kw_only=True):
    """A page of dead letters."""

    pending: Annotated[int, about("Dead letters there are.")]
    matched: Annotated[int, about("Dead letters that were asked for.")]
    items: Annotated[list[msgspec.Raw], about("Those of this page.")]
    next: Annotated[str | None, about("The value of `after` for the next page; null: none.")]


class SequencePath(Request, frozen=True, kw_only=True):
    """A dead letter."""

    sequence: Annotated[Sequence, about("Its sequence.")]


class PayloadQuery(Request, frozen=True, kw_only=True):
    """The most that is shown."""

    payload: Annotated[bool, about("With the item's bytes, in base64.")] = False


class Meant(Request, frozen=True, kw_only=True):
    """The dead letters of a change: one of these."""

    sequences: Annotated[
        Annotated[list[Sequence], Meta(max_length=SEQUENCES_MAX)] | None, about("These.")
    ] = None
    subject: Annotated[str | None, about("All of this subject.")] = None
    group: Annotated[str | None, about("All that this group refused last.")] = None

    def text(self) -> str:
        """Return which dead letters are meant, for the log."""
        if self.sequences is None:
            name = "group" if self.subject is None else "subject"
            return f"{name} {getattr(self, name)[:_LOGGED_CHARACTERS]}"
        named = " ".join(map(str, self.sequences[:_LOGGED_SEQUENCES]))
        more = len(self.sequences) - _LOGGED_SEQUENCES
        return f"{named} and {more} more" if more > 0 else named


class Requeued(Meant, frozen=True, kw_only=True):
    """The dead letters that are sent once more, and when."""

    due_ms: Annotated[
        Annotated[int, Meta(ge=0)] | None, about("When the first is due; null: at once.")
    ] = None
    rate_per_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        about("So many of them become due in a second, by sequence; null: all at the same time."),
    ] = None

    def due(self, rows: list[DeadRow], context: Administered) -> list[DeadRow]:
        """Return letters with the due times that they are to have; raise RequestError."""
        if self.due_ms is None and self.rate_per_s is None:
            return rows
        now_ms, limits = context.runtime.clock.now_ms(), context.config.admission
        first, apart = self.due_ms or now_ms, 1000 / (self.rate_per_s or math.inf)
        if first + apart * len(rows) > now_ms + limits.horizon_ms:
            why = f"some would be due in more than {limits.horizon_days} days"
            raise RequestError(400, "bad-value", why)
        return [replace(row, due_ms=first + int(apart * place)) for place, row in enumerate(rows)]


class DeadChanged(Answer, frozen=True, kw_only=True):
    """The result of a change."""

    done: Annotated[int, about("Dead letters changed.")]
    damaged: Annotated[list[int], about("Sequences that are damaged, and left.")]
    missing: Annotated[list[int], about("Those of `sequences` that are no dead letters.")]


@API.operation("GET", "/dead")
async def list_dead_letters(call: Call[Administered, NoPath, DeadQuery, None]) -> DeadPage:
    """List dead letters: all, or those of a subject, or of the group that refused them last."""
    query, letters = call.query, await _letters(call.context)
    rows = letters.listed(subject=query.subject, group=query.group)
    page = await page_of(rows, _key_of, query, show=lambda row: row, key_type=tuple[int])
    items = await letters.read(
        page.items, lambda row, item: msgspec.Raw(msgspec.json.encode(shown_letter(row, item)))
    )
    return DeadPage(pending=letters.pending, matched=len(rows), items=items, next=page.next)


def _key_of(row: DeadRow) -> tuple[int]:
    return (row.sequence,)


@API.operation("GET", "/dead/{sequence}")
async def show_dead_letter(call: Call[Administered, SequencePath, PayloadQuery, None]) -> Json:
    """Show a dead letter, with its item decoded."""
    sequence, letters = call.path.sequence, await _letters(call.context)
    rows = letters.named([sequence])
    if not rows:
        raise RequestError(
            404, "unknown", f"there is no dead letter {sequence}, or it was requeued or dropped"
        )
    [(shown, item)] = await letters.read(
        rows, lambda row, item: (shown_letter(row, item, is_whole=True), item.item)
    )
    if call.query.payload and item is not None:
        shown["payload"] = base64.b64encode(item).decode()
    return shown


@API.operation("POST", "/dead/requeue")
async def requeue_dead_letters(call: Call[Administered, NoPath, NoQuery, Requeued]) -> DeadChanged:
    """Send dead letters once more, due at once or when it is said."""
    return await _change_letters(call, "requeue", "requeued")


@API.operation("POST", "/dead/drop")
async def drop_dead_letters(call: Call[Administered, NoPath, NoQuery, Meant]) -> DeadChanged:
    """Drop dead letters: they are never sent."""
    return await _change_letters(call, "drop", "dropped")


async def _letters(administered: Administered) -> DeadLetters:
    letters = administered.parts().master.dead_letters
    if not await letters.until_read():
        raise RequestError(503, "starting", "the dead letters are not read yet; try again")
    return letters


async def _change_letters(
    call: Call[Administered, NoPath, NoQuery, Meant]
    | Call[Administered, NoPath, NoQuery, Requeued],
    verb: str,
    done: str,
) -> DeadChanged:
    meant = call.body
    if [meant.sequences, meant.subject, meant.group].count(None) != 2:
        raise RequestError(400, "which", "give one of sequences, subject and group")
    letters = await _letters(call.context)
    if letters.is_closed:
        raise RequestError(503, "stopping", "the server takes no more changes")
    asked = {"who": call.caller.name, "peer": call.peer, "meant": meant.text()}
    _log.warning(f"{verb} dead letters", **asked)
    named = set(meant.sequences or ())
    if meant.sequences is None:
        rows = letters.listed(subject=meant.subject, group=meant.group)
    else:
        rows = letters.named(named)
    if isinstance(meant, Requeued):
        change = await letters.requeue(meant.due(rows, call.context))
    else:
        change = await letters.drop(rows)
    _log.warning(f"{done} dead letters", count=change.done, **asked)
    again = "try again: no change is made twice"
    if change.lacks_space:
        why = f"{change.done} done, then the disk was full; free some space; {again}"
        raise RequestError(507, "disk", why)
    if change.is_stopped:
        why = f"{change.done} done, then the server stopped; {again}"
        raise RequestError(503, "stopping", why)
    missing = sorted(named.difference(row.sequence for row in rows))
    return DeadChanged(done=change.done, damaged=list(change.damaged), missing=missing)
