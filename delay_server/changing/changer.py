"""Brings rows to an end that somebody wants to cancel, to move or to drop.

    rows that were found --> are in the set, or busy --> have no fact --> a record --> committed
                             in one step of the loop      else: it

A row that is in flight, in doubt, given up, moved or copied, or has an outcome that is not applied,
is *busy*: it is left alone. An outcome that was applied before that step is in the facts, which are
read after it. So what is left has no outcome and cannot get another one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final

import numpy as np
import trio

from delay_protocol.messages.changes import ChangeResult, ChangeState
from delay_protocol.messages.items import item_due_at
from delay_server.accepting.commits import Records, Work
from delay_server.mastership import Mastership
from delay_server.node import Node
from delay_server.sending.fact_recorder import Facts
from storage.batch.columns import RecordKind
from storage.batch.facts import FactBlock, Outcome
from storage.disk.spans import MINUTE_MS
from storage.logs.message_log import Draft
from storage.schedule.look_up import Fact, LookUp, Row, Select, facts_of

CANCELLING_MAX: Final = 262_144
"""Sequences in the set beyond which nothing more is changed; each takes about 200 bytes. They are
more than one round where rows of minutes that are open are changed, a paused backlog say."""
SENDING_AGAIN_MS: Final = 1000
"""Time after which it is worth to ask again for what is being sent: brokers answer within ms."""
STEP_ROWS: Final = 20_000
"""Rows looked at in one call of the schedule_log's worker, which takes about a millisecond."""
_FACTS_OF_ROWS: Final = 256
"""Rows whose facts are read in one call."""
_UNAPPLIED_MAX: Final = 100_000
"""Outcomes that are not applied beyond which they are not looked through: that takes some ms."""
_BYTES_AT_ONCE: Final = 1024 * 1024
"""Bytes of the items of one MOVE batch, unless one has more by itself."""
_FILED_WITHIN_S: Final = 5.0
"""What was acknowledged is filed within milliseconds, unless the disk stalls or is full."""
_SWEEP_S: Final = 1.0
"""Time between two looks for minutes that are not open any more."""


class NotChangedError(Exception):
    """Nothing is known of the change, or part of it was not made; the text says why."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A row that is to be changed; to_ms: the time it is moved to; None: it is not sent at all."""

    row: Row
    to_ms: int | None = None


class Changer:
    """Changes rows of one mastership; whoever calls it holds `lock`."""

    def __init__(self, master: Mastership, node: Node, *, now_ms: Callable[[], int]) -> None:
        """Take over the parts of a mastership."""
        self._master = master
        self._node = node
        self._now_ms = now_ms
        self.lock = trio.Lock()
        """Held from the look for rows until their records are committed."""
        self.is_closed = False
        """True once nothing more may be appended."""
        self.cancelling = master.cancelling

    async def run(self) -> None:
        """Forget sequences that nothing can hand out any more, until cancelled."""
        while True:
            await trio.sleep(_SWEEP_S)
            applied = self.cancelling.applied()
            if applied:
                minutes = {minute for _, minute in applied}
                still = await self._node.access.run(self._master.handout.still_open, minutes)
                self.cancelling.forget([one for one, minute in applied if minute not in still])

    # -- finding -----------------------------------------------------------------------------

    async def until_filed(self) -> None:
        """Wait until all that is committed by now can be found; raise NotChangedError."""
        with trio.move_on_after(_FILED_WITHIN_S):
            await self._node.queue.drain()
            await self._node.filer.drain_present()
            return
        raise NotChangedError("messages are not filed in time: the disk stalls, or is full")

    async def look_up(self, select: Select, **where: object) -> LookUp:
        """Return a look at rows that came to its end; `where`: as LookUp takes it."""
        run = self._node.access.run
        job = LookUp(self._node.store.schedule, select, **where)  # type: ignore[arg-type]
        while not await run(job.step, STEP_ROWS):
            pass
        return job

    async def write_waiting(self) -> None:
        """Write rows that wait in memory, where there is space."""
        await self._node.access.run(self._node.store.schedule.flush, self._now_ms())

    def last_filed(self) -> int:
        """Return the last record that is filed."""
        return self._node.store.schedule.last_filed

    def floor_minute(self) -> int:
        """Return the minute before which nothing is filed any more."""
        return self._node.store.schedule.floor_minute

    async def minutes_between(self, begin: int, end: int) -> set[int]:
        """Return the minutes of unsealed minute segments, from one up to another."""
        between = self._node.store.schedule.segments_between
        keys = (begin * MINUTE_MS, 0), (end * MINUTE_MS, 0)
        return {one.key.start for one in await self._node.access.run(between, *keys)}

    def facts_since_ms(self) -> int:
        """Return how far back it is known what became of messages, at the least."""
        keep_ms = self._node.config.storage.segments_keep_ms
        return max(self._now_ms() - keep_ms, 0)

    # -- changing ----------------------------------------------------------------------------

    async def change(
        self, wishes: Sequence[Wish], *, outcome: Outcome = Outcome.CANCELLED
    ) -> dict[int, ChangeResult]:
        """Change rows, each given once; return what became of them, by sequence, once it is kept.

        outcome: of those that are not moved, CANCELLED or DROPPED. Raises NotChangedError: there
        was no space, or this node is the master no more.
        """
        if len(self.cancelling) + len(wishes) > CANCELLING_MAX:
            raise NotChangedError("too many changes at once: try again in a few seconds")
        asked = {one.row.sequence: one for one in wishes}
        # What is in the set already was changed: it has a fact.
        before = {one: wish for one, wish in asked.items() if one in self.cancelling}
        fresh = {one: wish for one, wish in asked.items() if one not in before}
        self.cancelling.enter({sequence: one.row.minute for sequence, one in fresh.items()})
        busy = self._busy(fresh)
        self.cancelling.leave(busy)
        left = {sequence: one for sequence, one in fresh.items() if sequence not in busy}
        try:
            found = await self._ended(left)
            changed = await self._ended(before)
        except BaseException:
            self.cancelling.leave(left)
            raise
        self.cancelling.leave(found)
        left = {sequence: one for sequence, one in left.items() if sequence not in found}
        await self._commit(left, outcome)
        found |= busy | changed
        for sequence, one in left.items():
            if one.to_ms is None:
                found[sequence] = _result(one.row, ChangeState.CANCELLED)
            else:
                found[sequence] = _result(one.row, ChangeState.MOVED, due_ms=one.to_ms)
        return found

    async def _ended(self, wishes: dict[int, Wish]) -> dict[int, ChangeResult]:
        """Return those rows that have a fact, or whose item would be needed and is damaged."""
        found: dict[int, ChangeResult] = {}
        rows = [one.row for one in wishes.values()]
        for first in range(0, len(rows), _FACTS_OF_ROWS):
            part = rows[first : first + _FACTS_OF_ROWS]
            facts = await self._node.access.run(facts_of, self._node.store.schedule, part)
            for sequence, fact in facts.items():
                found[sequence] = _of_fact(wishes[sequence].row, fact)
        for sequence, one in wishes.items():
            if one.to_ms is not None and not one.row.item and sequence not in found:
                why = "its item is damaged: `delaywheel log verify` tells more"
                found[sequence] = _result(one.row, ChangeState.UNKNOWN, reason=why)
        if self.is_closed:
            raise NotChangedError("this node is the master no more")
        return found

    def _busy(self, wishes: dict[int, Wish]) -> dict[int, ChangeResult]:
        """Return those rows that cannot be changed just now, and why."""
        master, wanted, now_ms = self._master, frozenset(wishes), self._now_ms()
        found: dict[int, ChangeResult] = {}

        def note(sequences: Iterator[int], state: ChangeState, **more: object) -> None:
            for sequence in sequences:
                found[sequence] = _result(wishes[sequence].row, state, **more)

        again = {"retry_after_ms": SENDING_AGAIN_MS}
        if master.sender.doubts_all or master.fact_recorder.unapplied > _UNAPPLIED_MAX:
            why = "it was due, and too many outcomes are not known"
            due = (one for one, wish in wishes.items() if wish.row.due_ms <= now_ms)
            note(due, ChangeState.SENDING, reason=why, **again)
        for sequence, who in master.sender.with_whom(wanted).items():
            since_ms = now_ms - int(who.since_s * 1000)
            if who.group:
                note(iter([sequence]), ChangeState.SENDING, to=who.group, at_ms=since_ms, **again)
            else:
                why = "a broker that did not answer for it may have it"
                note(iter([sequence]), ChangeState.SENDING, reason=why, **again)
        for entries in master.moves.unfiled.held():
            why = "it is being put off, or copied for several names"
            here = wanted.intersection(entries["sequence"].tolist())
            note(iter(here), ChangeState.SENDING, reason=why, **again)
        for entries in master.dead_recorder.held():
            note(iter(wanted.intersection(entries["sequence"].tolist())), ChangeState.DEAD)
        if master.fact_recorder.unapplied <= _UNAPPLIED_MAX:
            note(iter(master.fact_recorder.having(wanted)), ChangeState.DELIVERED)
        return found

    async def _commit(self, wishes: dict[int, Wish], outcome: Outcome) -> None:
        """Commit the records; raise NotChangedError if some of them found no space."""
        ended, kept = trio.Event(), []
        moves = [one for one in wishes.values() if one.to_ms is not None]
        cancels = [one.row for one in wishes.values() if one.to_ms is None]
        works: list[tuple[Work, list[Row]]] = []
        if cancels:
            works.append((_settling(cancels, outcome, self._now_ms()), cancels))
        if moves:
            works.append((Records(list(_drafts(moves))), [one.row for one in moves]))
        for work, rows in works:
            sequences = [row.sequence for row in rows]

            def end(was_kept: bool, sequences: list[int] = sequences) -> None:  # noqa: FBT001
                if not was_kept:
                    self.cancelling.leave(sequences)
                kept.append(was_kept)
                if len(kept) == len(works):
                    ended.set()

            self._master.committer.submit(
                partial(_given, work),
                end,
                has_items=bool(work.blob_bytes),
                on_durable=partial(self.cancelling.appended, sequences),
            )
        if works:
            await ended.wait()
            self._node.upkeep.appended()
        if not all(kept):
            raise NotChangedError("the disk is full: not all of it was changed; try again")
        if outcome is Outcome.DROPPED:
            # Those of other records are counted as they are applied.
            self._master.fact_recorder.outcomes[outcome] += len(cancels)


def _given(work: Work) -> Work:
    return work


def _result(row: Row, state: ChangeState, **more: object) -> ChangeResult:
    """Return what became of a row; the place in the request is told by whoever asked."""
    return ChangeResult(**{"item": 0, "state": state, "due_ms": row.due_ms} | more)  # type: ignore[arg-type]


def _of_fact(row: Row, fact: Fact) -> ChangeResult:
    match fact.outcome:
        case Outcome.DELIVERED | Outcome.KNOWN:
            to, at_ms = fact.target, fact.at_ms
            return _result(row, ChangeState.DELIVERED, to=to, at_ms=at_ms)
        case Outcome.DEAD:
            return _result(row, ChangeState.DEAD, at_ms=fact.at_ms)
        case None:
            why = "facts of its minute cannot be read: `delaywheel log verify` tells more"
            return _result(row, ChangeState.UNKNOWN, reason=why)
        case outcome:
            reason = outcome.name.lower()
            return _result(row, ChangeState.CHANGED_BEFORE, at_ms=fact.at_ms, reason=reason)


def _settling(rows: Sequence[Row], outcome: Outcome, now_ms: int) -> Work:
    """Return the records that end rows without a delivery."""
    sequences = np.array([row.sequence for row in rows], np.int64)
    minutes = np.array([row.minute for row in rows], np.uint32)
    if outcome is Outcome.CANCELLED:
        draft = Draft(
            kind=RecordKind.CANCEL,
            count=len(rows),
            arrays={"old_sequence": sequences, "old_minute": minutes},
        )
        return Records([draft])
    count = len(rows)
    block = FactBlock(
        sequence=sequences,
        minute=minutes,
        at_ms=np.full(count, now_ms, np.int64),
        target=np.zeros(count, np.uint16),
        outcome=np.full(count, outcome, np.uint8),
        record=np.zeros(count, np.int64),
        targets=[b""],
    )
    return Facts([block])


def _drafts(wishes: Sequence[Wish]) -> Iterator[Draft]:
    """Yield the records that move rows, a batch for about _BYTES_AT_ONCE."""
    ends = np.cumsum([len(one.row.item) for one in wishes]) // _BYTES_AT_ONCE
    for _, part in groupby(zip(ends.tolist(), wishes, strict=True), key=lambda one: one[0]):
        yield _move([(one.row, one.to_ms or 0) for _, one in part])


def _move(rows: Sequence[tuple[Row, int]]) -> Draft:
    """Return the records that put rows to other times; ids and bodies stay as they are."""
    names = list(dict.fromkeys(row.subject for row, _ in rows))
    numbers = {name: number for number, name in enumerate(names)}
    return Draft(
        kind=RecordKind.MOVE,
        count=len(rows),
        names=names,
        arrays={
            "old_sequence": np.array([row.sequence for row, _ in rows], np.int64),
            "due_ms": np.array([due_ms for _, due_ms in rows], np.int64),
            "id_hash": np.array([row.id_hash for row, _ in rows], np.uint64),
            "size": np.array([len(row.item) for row, _ in rows], np.uint32),
            "old_minute": np.array([row.minute for row, _ in rows], np.uint32),
            "subject": np.array([numbers[row.subject] for row, _ in rows], np.uint16),
        },
        blob=[item_due_at(row.item, due_ms) for row, due_ms in rows],
    )
