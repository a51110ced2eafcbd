"""Looks around a running server for why messages were not delivered yet; `reasons.py` says why."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import trio
from xxhash import xxh3_64_intdigest

from delay_server.admin.reasons import (
    REASON_OF_PLACE,
    GroupLook,
    LaneKind,
    Place,
    Reason,
    Surroundings,
    reason_of,
    reason_of_lane,
)
from delay_server.dead.dead_letters import Wanted
from delay_server.lanes.lanes import Unrouted
from sender.groups.group_status import GroupState
from sender.health.circuit import CircuitState
from sender.queues.places import Where
from storage.disk.spans import MINUTE_MS
from storage.readers.dead_reader import DeadRow
from storage.readers.dead_reader import Place as DeadPlace
from storage.readers.find_row import FindRow, FoundRow

if TYPE_CHECKING:
    from delay_server.server import DelayServer

_STEP_ROWS: Final = 100_000
"""Rows looked at in one step; filing and loading go on in between."""
_FILED_WITHIN_S: Final = 5.0
"""What was acknowledged is filed within milliseconds, unless the disk stalls or is full."""
_LETTERS_MAX: Final = 20
"""Dead letters that are named at a time, as many as rows."""
_PLACES: Final = {
    Where.QUEUED: Place.QUEUED,
    Where.IN_FLIGHT: Place.IN_FLIGHT,
    Where.PUT_OFF: Place.PUT_OFF,
    Where.EARLY: Place.EARLY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Where a message is and why."""

    row: FoundRow
    reason: Reason | None
    """None: it was delivered, or is done with otherwise."""
    group: str | None
    """The broker group at which it is, if it is at one."""
    letter: DeadRow | None = None
    """The dead letter that it has become, also if that was requeued or dropped since."""


def surroundings(server: "DelayServer") -> Surroundings:
    """Look at what counts for all messages."""
    return Surroundings(
        groups={
            group.name: GroupLook(
                is_paused=group.gate.paused,
                is_limited=group.gate.rate_per_s is not None,
                is_up=group.state is GroupState.UP and group.circuit is CircuitState.CLOSED,
                is_fenced=group.state is GroupState.FENCED,
            )
            for group in server.sender.status()
        },
        clock_held=server.clock_held,
        stopping=server.stopping,
        has_room=server.has_room,
        now_ms=server.pacer.trusted_ms(),
    )


def lane_look(server: "DelayServer", lane: int, subject: int | None) -> tuple[LaneKind, list[str]]:
    """Return what a lane does with its entries, or those of one subject, and its groups."""
    lanes, gates = server.lanes, server.gates
    groups = list(gates.groups_of(lane))
    if lane == lanes.base:
        paused = subject is not None and bool(gates.paused_one(subject))
        return (LaneKind.PAUSED if paused else LaneKind.NO_ROUTE), groups
    narrow = gates.narrow(lane)
    is_limited = narrow is not None and narrow.pattern in gates.rates
    return (LaneKind.LIMITED if is_limited else LaneKind.FREE), groups


def reason_now(
    server: "DelayServer", *, sequence: int, due_ms: int, subject: bytes
) -> tuple[Reason, str | None]:
    """Return why a message that has no outcome was not delivered yet, and at which group it is."""
    around = surroundings(server)
    number = server.store.schedule.subjects.ids.get(subject)
    place, lane, group = _place_of(server, sequence, number)
    if lane is None:
        kind, groups = _look_by_name(server, subject)
    else:
        kind, groups = lane_look(server, lane, number)
        if place is Place.QUEUED:
            # What was put into a group's queue is sent from there, whatever has changed since.
            kind = LaneKind.FREE if kind is LaneKind.LIMITED else kind
    reason = reason_of(
        place,
        due_ms=due_ms,
        kind=kind,
        groups=groups,
        is_damaged=sequence in server.undeliverable_sequences,
        around=around,
    )
    return reason, group


def _place_of(
    server: "DelayServer", sequence: int, number: int | None
) -> tuple[Place, int | None, str | None]:
    """Return where a message is, in which lane, and at which group."""
    lanes = server.lanes
    lane = None
    if number is not None and lanes.is_known(number):
        lane = lanes.lane_of(number)
    for part in server.sender.parts():
        if (part.entries["sequence"] == sequence).any():
            return _PLACES[part.where], lane, part.group
    for place, parts in (
        (Place.METERED, server.meters.parts()),
        (Place.BURIED, server.burying.held()),
        (Place.UNREAD, server.rereading.held()),
    ):
        if any((entries["sequence"] == sequence).any() for entries in parts):
            return place, lane, None
    if number is not None and lanes.is_parked(number):
        return Place.PARKED, lane, None
    return Place.ELSEWHERE, lane, None


def reason_of_held(server: "DelayServer", subject: int) -> Reason:
    """Return why what the sender holds of a subject was not delivered: queued, if any of it is.

    Else what holds for most of it.
    """
    found: Counter[Reason] = Counter()
    for part in server.sender.parts():
        held = int(np.count_nonzero(part.entries["subject"] == subject))
        if held and part.where is Where.QUEUED:
            return Reason.QUEUED
        if held:
            found[REASON_OF_PLACE[_PLACES[part.where]]] += held
    return found.most_common(1)[0][0] if found else Reason.QUEUED


def reason_in_wheel(server: "DelayServer", around: Surroundings) -> Reason:
    """Return why what is in the wheel has not left."""
    if _is_wheel_due(server, around) and not around.has_room:
        return Reason.NO_ROOM
    return Reason.CLOCK_HELD if around.clock_held else Reason.WAITING


def _is_wheel_due(server: "DelayServer", around: Surroundings) -> bool:
    next_due_ms = server.wheel.next_due_ms()
    return next_due_ms is not None and next_due_ms <= around.now_ms


def _look_by_name(server: "DelayServer", subject: bytes) -> tuple[LaneKind, Collection[str]]:
    """Return how it stands with a subject of which nothing is held, so that it has no lane."""
    name = subject.decode(errors="replace")
    if server.gates.is_paused(name):
        return LaneKind.PAUSED, ()
    groups = [status.name for status in server.sender.status()]
    if server.routes is not None:
        groups = list(server.routes.groups_of_name(name))
    pattern = server.gates.pattern_of(name)
    is_limited = pattern is not None and pattern in server.gates.rates
    return (LaneKind.LIMITED if is_limited else LaneKind.FREE), groups


def counts(server: "DelayServer") -> dict[str, int]:
    """Return how many messages were not delivered, by reason.

    What the sender and the wheel hold is counted as it is; of what is on disk only, what was seen
    to be due is known by subject, and the rest waits for its time or to be loaded.
    """
    around = surroundings(server)
    paused, unrouted = server.lanes.paused(0), server.lanes.unrouted(0)
    found = _sent_or_parked(server, around, paused, unrouted)
    of_lanes: Counter[Reason] = Counter()
    for lane, count in server.lanes.dropped_by_lane().items():
        kind, groups = lane_look(server, lane, None)
        reason = reason_of_lane(kind, groups, around)
        of_lanes[Reason.BACKLOG if reason is Reason.QUEUED else reason] += count
    found[Reason.DAMAGED] = server.undeliverable
    schedule, now_ms = server.store.schedule, around.now_ms
    # What has an outcome that the schedule_log has not heard of is not undelivered, and nowhere.
    settled = server.crossing_off.unnoted_count(beyond=server.store.fact_number)
    near_ms = now_ms + server.config.wheel.load_ahead_ms
    near = schedule.pending_from(near_ms) + server.filing.backlog_rows - settled
    _take_off(of_lanes, of_lanes.total() - max(near - found.total(), 0))
    found += of_lanes
    elsewhere, in_wheel = found.total(), len(server.wheel)
    is_due = _is_wheel_due(server, around)
    of_rest = Reason.CLOCK_HELD if around.clock_held else Reason.WAITING
    found[reason_in_wheel(server, around)] += in_wheel
    elsewhere += settled
    rest = schedule.pending + server.filing.backlog_rows - elsewhere - in_wheel
    if rest > 0:
        late = 0
        if shares := _why_on_disk(server, of_lanes, paused, unrouted, around):
            # To a minute's worth: what is elsewhere lies in segments, too, nobody knows in which.
            # At least what lies where all is due, or where some is and the rest is in the wheel.
            late = schedule.pending_before(now_ms) - elsewhere - (in_wheel if is_due else 0)
            minute_end_ms = (now_ms // MINUTE_MS + 1) * MINUTE_MS
            of_minute = server.wheel.count_before(minute_end_ms)
            late = max(late, schedule.pending_in_minutes(now_ms) - elsewhere - of_minute)
            late = min(max(late, 0), rest)
            found += _split(late, shares)
        found[of_rest] += rest - late
    # Last: they are done with for the log of what is to be delivered.
    found[Reason.DEAD] = server.dead_letters.pending
    return {reason.value: found[reason] for reason in Reason}


def _take_off(of_lanes: Counter[Reason], surplus: int) -> None:
    """Count less of what waits in lanes: what left the wheel may have come from disk before."""
    for reason, count in of_lanes.most_common():
        less = min(max(surplus, 0), count)
        of_lanes[reason] -= less
        surplus -= less


def _sent_or_parked(
    server: "DelayServer", around: Surroundings, paused: Unrouted, unrouted: Unrouted
) -> Counter[Reason]:
    """Count what the sender holds, and what waits because it may not leave."""
    unsent = server.sender.unsent()
    found = Counter(
        {
            Reason.IN_FLIGHT: unsent.in_flight,
            Reason.RETRY_BACKOFF: unsent.retrying,
            Reason.CLOCK_SET_BACK: unsent.early,
            Reason.DEAD_BEING_RECORDED: server.burying.count,
            Reason.UNREADABLE: server.rereading.count,
        }
    )
    for lane, count in server.sender.queued_by_lane().items():
        kind, groups = lane_look(server, lane, None)
        if kind is LaneKind.LIMITED:
            kind = LaneKind.FREE
        elif kind is LaneKind.NO_ROUTE and not unrouted.subjects:
            # Without routes only a pause leads there.
            is_paused = server.routes is None or paused.subjects
            kind = LaneKind.PAUSED if is_paused else kind
        found[reason_of_lane(kind, groups, around)] += count
    for lane in server.meters.lanes:
        kind, groups = lane_look(server, lane, None)
        reason = reason_of(
            Place.METERED,
            due_ms=around.now_ms,
            kind=kind,
            groups=groups,
            is_damaged=False,
            around=around,
        )
        found[reason] += server.meters.count_of(lane)
    found[Reason.PAUSED_SUBJECT] += paused.messages
    found[Reason.NO_ROUTE] += unrouted.messages
    return found


def _why_on_disk(
    server: "DelayServer",
    of_lanes: Counter[Reason],
    paused: Unrouted,
    unrouted: Unrouted,
    around: Surroundings,
) -> Counter[Reason]:
    """Return why something may be due and on disk that nothing in memory counts, with weights.

    What becomes due of a subject whose lane comes by it is not seen before it comes, nor what
    became due of one that had such a lane, and may not leave now. So the reasons of what was seen
    stand for it, each by how much that is. None: nothing stops it but what stops all the rest.
    """
    if around.clock_held:
        return Counter()
    if +of_lanes:
        return +of_lanes
    schedule, lanes = server.store.schedule, server.lanes
    load_ms = schedule.next_load_ms()
    is_behind = load_ms is not None and load_ms <= around.now_ms
    if is_behind or schedule.jobs or server.filing.taking.locked() or lanes.opened:
        return Counter({Reason.LOADING: 1})
    if lanes.forgotten and lanes.has_room_for_unrouted:
        # Their subjects were too many to be parked; they are loaded anew, now that there is room.
        return Counter({Reason.LOADING: 1})
    stopped = ((Reason.PAUSED_SUBJECT, paused), (Reason.NO_ROUTE, unrouted))
    return Counter({why: max(one.messages, 1) for why, one in stopped if one.subjects})


def _split(count: int, shares: Mapping[Reason, int]) -> Counter[Reason]:
    """Return so many messages divided in proportion to shares, which are positive."""
    found: Counter[Reason] = Counter()
    before, summed, total = 0, 0, sum(shares.values())
    for reason, share in sorted(shares.items(), key=lambda item: (-item[1], item[0].value)):
        summed += share
        # Edges are rounded, not parts, so that they add up.
        edge = (2 * count * summed + total) // (2 * total)
        found[reason] = edge - before
        before = edge
    return found


async def find(
    server: "DelayServer", *, sequence: int | None = None, message_id: bytes | None = None
) -> tuple[list[Explained], FindRow]:
    """Look for a message by its sequence or its id among all that have a row, and dead letters.

    Several may have the hash of an id. It looks at no more than `admin.explain_rows_max` rows.
    """
    search = await _rows(server, sequence, message_id)
    # After the rows: what becomes a dead letter meanwhile is found twice, and not missed.
    letters = await _dead_letters(server, sequence=sequence, message_id=message_id)
    found = list(_explained(server, search.found, letters))
    if letters and all(one.reason is None for one in found):
        # It may have been requeued while this looked for it.
        search = await _rows(server, sequence, message_id)
        found = list(_explained(server, search.found, letters))
    return found, search


async def _rows(server: "DelayServer", sequence: int | None, message_id: bytes | None) -> FindRow:
    """Return the rows with a sequence, or with the hash of an id."""
    filing = server.filing
    # What is acknowledged is filed, and what waits to be written is written, or it would not be
    # found. Without space nothing is.
    with trio.move_on_after(_FILED_WITHIN_S) as waits:
        await filing.drain_present()
    await filing.run(server.store.schedule.flush, server.pacer.now_ms())
    search = FindRow(
        server.store.schedule,
        sequence=sequence,
        id_hash=None if message_id is None else xxh3_64_intdigest(message_id),
        rows_max=server.config.admin.explain_rows_max,
    )
    while not await filing.run(search.step, _STEP_ROWS):
        await trio.lowlevel.checkpoint()
    if waits.cancelled_caught and not search.found:
        search.is_complete = False
    return search


async def _dead_letters(
    server: "DelayServer", *, sequence: int | None, message_id: bytes | None
) -> list[DeadRow]:
    """Return the dead letters with an id, or with a sequence now or before they died."""
    if sequence is None:
        wanted = [Wanted(message_id=message_id)]
    else:
        wanted = [Wanted(sequences=[sequence]), Wanted(old_sequences=[sequence])]
    found: list[DeadRow] = []
    for one in wanted:
        after: DeadPlace | None = DeadPlace()
        rows_left = server.config.admin.explain_rows_max
        while after is not None and len(found) < _LETTERS_MAX and rows_left > 0:
            page = await server.dead_letters.find(
                one, after=after, rows_max=_LETTERS_MAX, settled=True, with_items=False
            )
            found += [letter.row for letter in page.letters]
            after = page.after
            rows_left -= server.config.dead.examined_rows_max
    return found


def _explained(
    server: "DelayServer", rows: list[FoundRow], letters: list[DeadRow]
) -> Iterator[Explained]:
    """Yield what is to be said of each row and dead letter; of one that died, as a dead letter."""
    died = {letter.old_sequence for letter in letters}
    for row in rows:
        if row.sequence in died:
            continue
        if row.is_crossed_off:
            yield Explained(row=row, reason=None, group=None)
            continue
        reason, group = reason_now(
            server, sequence=row.sequence, due_ms=row.due_ms, subject=row.subject
        )
        yield Explained(row=row, reason=reason, group=group)
    for letter in letters:
        row = FoundRow(
            sequence=letter.sequence,
            due_ms=letter.due_ms,
            subject=letter.subject,
            size=letter.size,
            segment=letter.key.name,
            is_crossed_off=not letter.is_pending,
        )
        of_letter = Reason.DEAD if letter.is_pending else None
        yield Explained(row=row, reason=of_letter, group=None, letter=letter)
