"""Describes messages of a running node to `reasons.py`, which says why they were not delivered."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from delay_server.admin.parts import Parts
from delay_server.admin.reasons import GroupLook, Look, Reason, reason_of
from sender.queues.places import HeldPart, Where
from storage.batch.entries import among
from storage.batch.item_formats import qmq_message_id
from storage.disk.spans import MINUTE_MS, dead_key
from storage.readers.looking import Fact, FindLook, FoundRow
from storage.schedule.dead_index import DeadRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Where a message is and why."""

    row: FoundRow
    """Of a dead letter: its own."""
    reason: Reason | None
    """None: it was delivered, or is done with otherwise."""
    fact: Fact | None = None
    """Its outcome; None: none yet."""
    held: HeldPart | None = None
    """Where the sender has it, if it has it."""
    is_letter: bool = False
    is_loaded: bool = False
    """It is in memory, or on its way there."""


def _groups_of(parts: Parts, number: int | None, name: str) -> list[str]:
    """Return the groups to which a subject goes, as far as that is known."""
    master = parts.master
    if number is not None and master.lanes.is_known(number):
        if master.lanes.lane_of(number) == master.lanes.shared:
            return master.copier.names_of(name)
        return list(master.lane_rules.groups_of(master.lanes.lane_of(number)))
    if (routes := master.targets.routes) is not None:
        return routes.names_of(name) or list(routes.groups_of_name(name))
    return [group.name for group in master.sender.status()]


def _look_at(parts: Parts, number: int | None, name: str) -> Look:
    """Return what all messages of a subject wait for."""
    master = parts.master
    groups = {group.name: group for group in master.sender.status()}
    return Look(
        is_paused=master.lane_rules.is_paused(name),
        is_parked=number is not None and master.lanes.is_parked(number),
        groups=tuple(
            GroupLook(
                is_paused=group.rule.paused,
                is_limited=group.rule.rate_per_s is not None,
                is_up=group.is_trusted,
            )
            for group in map(groups.get, _groups_of(parts, number, name))
            if group is not None
        ),
        clock_held=parts.duty().clock_held,
    )


def _reason_now(parts: Parts, row: FoundRow, fact: Fact | None) -> tuple[Reason, HeldPart | None]:
    """Return why a message that has no outcome was not delivered yet, and where it is held."""
    master, sequence = parts.master, row.sequence
    number = parts.node.store.schedule.subjects.ids.get(row.subject)
    alone = frozenset([sequence])
    part = next((one for one in master.sender.parts() if among(alone, [one.entries])), None)
    look = replace(
        _look_at(parts, number, row.subject.decode(errors="replace")),
        where=None if part is None else part.where,
        is_given_up=bool(among(alone, master.dead_recorder.held())),
        is_moved=bool(among(alone, chain(master.moves.unfiled.held(), master.copier.held()))),
        is_damaged=fact is not None or sequence in master.undeliverable.sequences,
        is_due=row.due_ms <= parts.pacer.trusted_ms(),
    )
    return reason_of(look), part


def _loaded(parts: Parts, rows: Sequence[FoundRow]) -> set[int]:
    """Return the sequences of the rows that the reading of their lanes has come past.

    To be called in the schedule_log's lane. What was given back to the disk is read again.
    """
    ids, lanes = parts.node.store.schedule.subjects.ids, parts.master.handout.lanes
    of = lanes.lanes_of(np.array([ids.get(row.subject, -1) for row in rows], np.intp)).tolist()
    return {
        row.sequence
        for row, lane in zip(rows, of, strict=True)
        if (max(row.due_ms, row.minute * MINUTE_MS), row.sequence) <= lanes.loading_of(lane)
    }


async def explain_subject(parts: Parts, name: str) -> dict[str, Any]:
    """Return where the messages of a subject are, and why they were not delivered.

    Its retries, and copies for several names, count as well. Of several reasons it is one for which
    more than time is needed, if there is one.
    """
    routes = parts.master.targets.routes
    found = await _explain_one(parts, name)
    for other in [] if routes is None else routes.retries_of(name):
        one = await _explain_one(parts, other)
        for field in ("in_wheel", "held", "left_on_disk", "damaged"):
            found[field] += one[field]
        oldest = (found["oldest_left_due_ms"], one["oldest_left_due_ms"])
        found["oldest_left_due_ms"] = min(filter(None, oldest), default=None)
        for field in ("groups", "receivers"):
            found[field] += [text for text in one[field] if text not in found[field]]
        if found["reason"] in {None, Reason.DEAD.value, Reason.WAITING.value}:
            found["reason"] = one["reason"] or found["reason"]
        found["seen"] |= one["seen"]
    return found


async def _explain_one(parts: Parts, name: str) -> dict[str, Any]:
    """Return the same of messages under one subject of their records."""
    master, subject = parts.master, name.encode()
    subjects, lanes, rules = parts.node.store.schedule.subjects, master.lanes, master.lane_rules
    number = await parts.node.access.run(subjects.ids.get, subject)
    await master.dead_letters.until_read()
    pattern = rules.pattern_of(name)
    found: dict[str, Any] = {
        "subject": name,
        "rule": pattern,
        "control": None if pattern is None else master.outlet.applied.subjects[pattern],
        "seen": number is not None,
        "in_wheel": 0 if number is None else master.wheel.pending_of(number),
        "held": 0 if number is None else lanes.held(number),
        "left_on_disk": 0 if number is None else lanes.backlog.left_of(number),
        "oldest_left_due_ms": None if number is None else lanes.backlog.oldest_of(number),
        "groups": [],
        "receivers": [],
        "damaged": master.undeliverable.by_subject[subject],
        "dead": len(master.dead_letters.listed(subject=name)),
    }
    where = Counter[Where]()
    if number is not None and lanes.is_known(number):
        groups, statuses = _groups_of(parts, number, name), master.sender.status()
        holders = Counter[str]()
        for part in master.sender.parts():
            count = int(np.count_nonzero(part.entries["subject"] == number))
            where[part.where] += count
            holders[part.holder] += count
        receivers = [one.why_none for one in statuses if one.name in groups]
        receivers.append(rules.why_untaken(number))
        receivers += [f"{count} with {one}" for one, count in holders.items() if one and count]
        found |= {"groups": groups, "receivers": list(filter(None, receivers))}
    reason = _reason_of_subject(parts, _look_at(parts, number, name), found, where)
    return found | {"reason": None if reason is None else reason.value}


def _reason_of_subject(
    parts: Parts, look: Look, found: dict[str, Any], where: Counter[Where]
) -> Reason | None:
    """Return why the messages of a subject were not delivered; None if nothing of it waits.

    `where` has those that the sender holds. One that is queued counts for all of them.
    """
    if found["held"] or look.is_parked:
        is_queued = look.is_parked or where[Where.QUEUED] or not where.total()
        most = Where.QUEUED if is_queued else where.most_common(1)[0][0]
        return reason_of(replace(look, where=most))
    if look.is_paused:
        return Reason.PAUSED
    if found["damaged"]:
        return Reason.DAMAGED
    if found["in_wheel"]:
        next_due_ms = parts.master.wheel.next_due_ms()
        is_due = next_due_ms is not None and next_due_ms <= parts.pacer.trusted_ms()
        return reason_of(replace(look, is_due=is_due and not parts.master.has_room))
    return Reason.DEAD if found["dead"] else None


def counts(parts: Parts) -> dict[str, int]:
    """Return how many messages were not delivered, by the place in which they are.

        in_flight, retrying, queued, set_back     with the sender; set_back: due only once the
                                                  clock is again where it was when they were sent
        being_recorded, dead                      given up
        being_moved                               put off by a receiver, or copied for several names
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
        "being_recorded": master.dead_recorder.count,
        "being_moved": master.moves.unfiled.count + master.copier.count,
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
    parts: Parts, *, message_id: bytes, due_minute: int | None = None
) -> tuple[list[Explained], FindLook]:
    """Look for a message by its id among all that have a row, and dead letters.

    What is done with has a row for a while only, unless `due_minute` says where it is to be found.
    """
    id_hash = xxh3_64_intdigest(message_id)
    minutes = () if due_minute is None else (due_minute,)
    before = await _dead_letters(parts, id_hash)
    search, rows, loaded = await _rows(parts, message_id, id_hash, minutes)
    # After the rows: what becomes a dead letter meanwhile is found twice, and not missed.
    letters = await _dead_letters(parts, id_hash)
    found = list(_explained(parts, search, rows, letters, loaded))
    if before and all(one.reason is None for one in found):
        # It was requeued, maybe, while this looked for it.
        search, rows, loaded = await _rows(parts, message_id, id_hash, minutes)
        found = list(_explained(parts, search, rows, letters, loaded))
    return found, search


async def _rows(
    parts: Parts, message_id: bytes, id_hash: int, minutes: Collection[int]
) -> tuple[FindLook, list[FoundRow], set[int]]:
    """Return a look for the rows with an id, the rows by sequence, and which are loaded."""
    looks = parts.looks
    search = await looks.run(parts.node, partial(FindLook, id_hashes=[id_hash], minutes=minutes))
    rows = {row.sequence: row for row in search.found}
    if pending := {row.minute for row in search.found if row.sequence not in search.facts}:
        # All of them were looked at meanwhile, for seconds maybe.
        make = partial(FindLook, id_hashes=[id_hash], minutes=pending, between=(0, 0))
        again = await looks.run(parts.node, make)
        rows |= {row.sequence: row for row in again.found}
        search.facts |= again.facts
    # Others may have the hash; an item that is damaged is a candidate.
    ids = {b"", message_id}
    found = [rows[one] for one in sorted(rows) if qmq_message_id(rows[one].item) in ids]
    return search, found, await parts.node.access.run(_loaded, parts, found)


async def _dead_letters(parts: Parts, id_hash: int) -> list[DeadRow]:
    letters = parts.master.dead_letters
    await letters.until_read()
    return [row for row in letters.listed() if row.id_hash == id_hash]


def _explained(
    parts: Parts,
    search: FindLook,
    rows: list[FoundRow],
    letters: list[DeadRow],
    loaded: Collection[int],
) -> Iterator[Explained]:
    """Yield the explanation of each row and dead letter; a row that died counts as its letter."""
    died = {letter.old_sequence for letter in letters}
    for row in rows:
        fact = search.facts.get(row.sequence)
        if row.sequence in died:
            continue
        if fact is not None and fact.outcome is not None:
            yield Explained(row=row, reason=None, fact=fact)
            continue
        reason, held = _reason_now(parts, row, fact)
        yield Explained(row=row, reason=reason, held=held, is_loaded=row.sequence in loaded)
    for letter in letters:
        row = FoundRow(
            due_ms=letter.due_ms,
            sequence=letter.sequence,
            minute=letter.minute,
            id_hash=letter.id_hash,
            subject=letter.subject,
            size=letter.size,
            segment=dead_key(letter.minute).name,
        )
        yield Explained(row=row, reason=Reason.DEAD, is_letter=True)
