"""Describes a running node to `reasons.py`, which says why a message was not delivered yet."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import trio
from xxhash import xxh3_64_intdigest

from delay_server.admin.parts import Parts
from delay_server.admin.reasons import (
    REASON_OF_PLACE,
    GroupLook,
    LaneKind,
    Place,
    Reason,
    Surroundings,
    reason_of,
)
from delay_server.dead.wanted import Wanted
from sender.groups.group_status import GroupState
from sender.queues.places import HeldPart, Where
from storage.disk.spans import dead_key
from storage.readers.find_row import FindRow, FoundRow
from storage.schedule.dead_index import DeadRow

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
    held: HeldPart | None = None
    """Where the sender has it, if it has it."""
    letter: DeadRow | None = None
    """The dead letter that it has become, unless that was requeued or dropped since."""


def surroundings(parts: Parts) -> Surroundings:
    """Return the state of the node that is the same for all messages."""
    duty = parts.duty()
    return Surroundings(
        groups={
            group.name: GroupLook(
                is_paused=group.rule.paused,
                is_limited=group.rule.rate_per_s is not None,
                is_up=group.is_trusted,
                is_fenced=group.state is GroupState.FENCED,
                is_attached=group.is_attached,
            )
            for group in parts.master.sender.status()
        },
        clock_held=duty.clock_held,
        stopping=duty.leaves_due,
        has_room=parts.master.has_room,
        now_ms=parts.pacer.trusted_ms(),
    )


def lane_look(parts: Parts, lane: int, subject: int | None) -> tuple[LaneKind, list[str]]:
    """Return the kind of a lane, or of one subject in it, and its groups."""
    lanes, rules = parts.master.lanes, parts.master.lane_rules
    groups = list(rules.groups_of(lane))
    if lane == lanes.base:
        if subject is not None and rules.paused_one(subject):
            return LaneKind.PAUSED, groups
        untaken = subject is not None and rules.why_untaken(subject)
        return (LaneKind.NOT_TAKEN if untaken else LaneKind.NO_ROUTE), groups
    return LaneKind.FREE, groups


def holders_of(parts: Parts, subject: int) -> list[str]:
    """Return which receivers have messages of a subject, and since when."""
    found = Counter[str]()
    for part in parts.master.sender.parts():
        found[part.holder] += int(np.count_nonzero(part.entries["subject"] == subject))
    return [f"{count} with {holder}" for holder, count in found.items() if holder and count]


def reason_now(
    parts: Parts, *, sequence: int, due_ms: int, subject: bytes
) -> tuple[Reason, HeldPart | None]:
    """Return why a message that has no outcome was not delivered yet, and where it is held."""
    around = surroundings(parts)
    number = parts.node.store.schedule.subjects.ids.get(subject)
    place, lane, held = _place_of(parts, sequence, number)
    if lane is None:
        kind, groups = _look_by_name(parts, subject)
    else:
        kind, groups = lane_look(parts, lane, number)
    reason = reason_of(
        place,
        due_ms=due_ms,
        kind=kind,
        groups=groups,
        is_damaged=sequence in parts.master.undeliverable.sequences,
        around=around,
    )
    return reason, held


def _place_of(
    parts: Parts, sequence: int, number: int | None
) -> tuple[Place, int | None, HeldPart | None]:
    """Return where a message is, in which lane, and where the sender has it."""
    lanes = parts.master.lanes
    lane = None
    if number is not None and lanes.is_known(number):
        lane = lanes.lane_of(number)
    for part in parts.master.sender.parts():
        if (part.entries["sequence"] == sequence).any():
            return _PLACES[part.where], lane, part
    for place, held in (
        (Place.BURIED, parts.master.dead_recorder.held()),
        (Place.MOVED, parts.master.moves.held()),
        (Place.UNREAD, parts.master.read_retries.held()),
    ):
        if any((entries["sequence"] == sequence).any() for entries in held):
            return place, lane, None
    if number is not None and lanes.is_parked(number):
        return Place.PARKED, lane, None
    return Place.ELSEWHERE, lane, None


def reason_of_held(parts: Parts, subject: int) -> Reason:
    """Return why the sender has not delivered its messages of a subject.

    It is QUEUED if any of them is queued, else the reason of most of them.
    """
    found: Counter[Reason] = Counter()
    for part in parts.master.sender.parts():
        held = int(np.count_nonzero(part.entries["subject"] == subject))
        if held and part.where is Where.QUEUED:
            return Reason.QUEUED
        if held:
            found[REASON_OF_PLACE[_PLACES[part.where]]] += held
    return found.most_common(1)[0][0] if found else Reason.QUEUED


def reason_in_wheel(parts: Parts, around: Surroundings) -> Reason:
    """Return why messages in the wheel were not delivered."""
    if _is_wheel_due(parts, around) and not around.has_room:
        return Reason.NO_ROOM
    return Reason.CLOCK_HELD if around.clock_held else Reason.WAITING


def _is_wheel_due(parts: Parts, around: Surroundings) -> bool:
    next_due_ms = parts.master.wheel.next_due_ms()
    return next_due_ms is not None and next_due_ms <= around.now_ms


def _look_by_name(parts: Parts, subject: bytes) -> tuple[LaneKind, Collection[str]]:
    """Return the kind and the groups of a subject that has no lane, since nothing of it is held."""
    name = subject.decode(errors="replace")
    if parts.master.lane_rules.is_paused(name):
        return LaneKind.PAUSED, ()
    groups = [status.name for status in parts.master.sender.status()]
    if parts.master.targets.routes is not None:
        groups = list(parts.master.targets.routes.groups_of_name(name))
    return LaneKind.FREE, groups


def counts(parts: Parts) -> dict[str, int]:
    """Return how many messages were not delivered, by the place in which they are.

        in_flight, retrying, queued, set_back     with the sender; set_back: due only once the
                                                  clock is again where it was when they were sent
        unreadable                                due, and tried to be read again
        being_recorded, dead                      given up
        being_moved                               put off by a receiver
        damaged                                   due, on disk for good
        in_wheel                                  in memory until they are due
        on_disk_due, on_disk                      not in memory

    All are exact but the last two, which are told apart by whole minutes.
    """
    master, store, now_ms = parts.master, parts.node.store, parts.pacer.trusted_ms()
    unsent = master.sender.unsent()
    found = {
        "in_flight": unsent.in_flight,
        "retrying": unsent.retrying,
        "queued": sum(master.sender.queued_by_lane().values()),
        "set_back": unsent.early,
        "unreadable": master.read_retries.count,
        "being_recorded": master.dead_recorder.count,
        "being_moved": master.moves.count,
        "damaged": master.undeliverable.count,
        "in_wheel": len(master.wheel),
    }
    # Messages whose outcome is not yet applied are pending in the schedule_log, and delivered.
    settled = master.fact_recorder.unapplied_count(beyond=store.schedule.last_filed)
    elsewhere = sum(found.values()) + settled
    rest = max(store.schedule.pending + parts.node.filer.backlog_rows - elsewhere, 0)
    due = store.schedule.pending_before(now_ms) - (elsewhere - found["in_wheel"])
    found["on_disk_due"] = min(max(due, 0), rest)
    found["on_disk"] = rest - found["on_disk_due"]
    # Last: dead letters have an outcome, so they are not pending in the schedule_log.
    found["dead"] = master.dead_letters.pending
    return found


async def find(
    parts: Parts,
    *,
    sequence: int | None = None,
    message_id: bytes | None = None,
    due_minute: int | None = None,
) -> tuple[list[Explained], FindRow]:
    """Look for a message by its sequence or its id among all that have a row, and dead letters.

    Several may have the hash of an id. It looks at no more than `admin.explain_rows_max` rows. What
    is done with has a row for a while only, unless `due_minute` says where it is to be found.
    """
    before = await _dead_letters(parts, sequence=sequence, message_id=message_id)
    search = await _rows(parts, sequence, message_id, due_minute)
    # After the rows: what becomes a dead letter meanwhile is found twice, and not missed.
    letters = await _dead_letters(parts, sequence=sequence, message_id=message_id)
    found = list(_explained(parts, search.found, letters))
    if before and all(one.reason is None for one in found):
        # It was requeued, maybe, while this looked for it.
        search = await _rows(parts, sequence, message_id, due_minute)
        found = list(_explained(parts, search.found, letters))
    return found, search


async def _rows(
    parts: Parts, sequence: int | None, message_id: bytes | None, due_minute: int | None
) -> FindRow:
    """Return the rows with a sequence, or with the hash of an id."""
    node = parts.node
    # What is acknowledged is filed, and what waits to be written is written, or it would not be
    # found. Without space nothing is.
    with trio.move_on_after(_FILED_WITHIN_S) as waits:
        await node.filer.drain_present()
    await node.access.run(node.store.schedule.flush, parts.pacer.now_ms())
    search = FindRow(
        parts.node.store.schedule,
        sequence=sequence,
        id_hash=None if message_id is None else xxh3_64_intdigest(message_id),
        rows_max=parts.config.admin.explain_rows_max,
        due_minute=due_minute,
    )
    while not await node.access.run(search.step, _STEP_ROWS):
        await trio.lowlevel.checkpoint()
    if waits.cancelled_caught and not search.found:
        search.is_complete = False
    return search


async def _dead_letters(
    parts: Parts, *, sequence: int | None, message_id: bytes | None
) -> list[DeadRow]:
    """Return the dead letters with an id, or with a sequence now or before they died."""
    letters = parts.master.dead_letters
    if sequence is not None:
        return await letters.find_message(sequence)
    assert message_id is not None
    wanted = Wanted(message_id=message_id.decode(errors="surrogateescape"))
    return await letters.find(wanted, rows_max=_LETTERS_MAX)


def _explained(parts: Parts, rows: list[FoundRow], letters: list[DeadRow]) -> Iterator[Explained]:
    """Yield the explanation of each row and dead letter; a row that died counts as its letter."""
    died = {letter.old_sequence for letter in letters}
    for row in rows:
        if row.sequence in died:
            continue
        if row.is_crossed_off:
            yield Explained(row=row, reason=None)
            continue
        reason, held = reason_now(
            parts, sequence=row.sequence, due_ms=row.due_ms, subject=row.subject
        )
        yield Explained(row=row, reason=reason, held=held)
    for letter in letters:
        row = FoundRow(
            sequence=letter.sequence,
            due_ms=letter.due_ms,
            subject=letter.subject,
            size=letter.size,
            segment=dead_key(letter.minute).name,
            is_crossed_off=False,
        )
        yield Explained(row=row, reason=Reason.DEAD, letter=letter)
