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
from typing import Final, TypeVar

import numpy as np
import trio

from delay_protocol.messages.changes import ChangeResult, ChangeState
from delay_protocol.messages.items import item_due_at
from delay_server.accepting.settling import cancel_of, dropped_of, move_of
from delay_server.mastership import Mastership
from delay_server.node import Node
from storage.batch.entries import among
from storage.batch.facts import Outcome
from storage.logs.message_log import Draft
from storage.readers.looking import Fact, FactsLook, FoundRow, Look, Present, take_present

CANCELLING_MAX: Final = 262_144
"""Sequences in the set beyond which nothing more is changed; each takes about 200 bytes. They are
more than one round where rows of minutes that are open are changed, a paused backlog say."""
SENDING_AGAIN_MS: Final = 1000
"""Time after which it is worth to ask again for what is being sent: brokers answer within ms."""
_UNAPPLIED_MAX: Final = 100_000
"""Outcomes that are not applied beyond which they are not looked through: that takes some ms."""
_BYTES_AT_ONCE: Final = 1024 * 1024
"""Bytes of the items of one MOVE batch, unless one has more by itself."""
_FILED_WITHIN_S: Final = 5.0
"""What was acknowledged is filed within milliseconds, unless the disk stalls or is full."""
_SWEEP_S: Final = 1.0
"""Time between two looks for minutes that are not open any more."""

AnyLook = TypeVar("AnyLook", bound=Look)


class NotChangedError(Exception):
    """Nothing is known of the change, or part of it was not made; the text says why."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A row that is to be changed; to_ms: the time it is moved to; None: it is not sent at all."""

    row: FoundRow
    to_ms: int | None = None


class Changer:
    """Changes rows of one mastership."""

    def __init__(self, master: Mastership, node: Node, *, now_ms: Callable[[], int]) -> None:
        """Take over the parts of a mastership."""
        self._master = master
        self._node = node
        self._now_ms = now_ms
        self._changing = trio.Lock()
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

    async def look(
        self, make: Callable[[Present], AnyLook], *, between: tuple[int, int]
    ) -> AnyLook:
        """Return a look once it is over; it is made in the schedule_log's worker.

        between: the minutes from one up to another whose segments it may look at.
        """
        run = self._node.access.run
        look, is_over = await run(self._begin_look, make, between)
        while not is_over:
            is_over = await run(look.step)
        return look

    def _begin_look(
        self, make: Callable[[Present], AnyLook], between: tuple[int, int]
    ) -> tuple[AnyLook, bool]:
        """Return a look, and whether its first step was its last."""
        look = make(take_present(self._node.store.schedule, between=between))
        return look, look.step()

    def floor_minute(self) -> int:
        """Return the minute before which nothing is filed any more."""
        return self._node.store.schedule.floor_minute

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
        found: dict[int, ChangeResult] = {}
        async with self._changing:
            # CANCEL finds space where MOVE does not.
            for is_move in (False, True):
                part = [one for one in wishes if (one.to_ms is not None) is is_move]
                if part:
                    found |= await self._change(part, Outcome.MOVED if is_move else outcome)
        return found

    async def _change(self, wishes: Sequence[Wish], outcome: Outcome) -> dict[int, ChangeResult]:
        """Change rows that all get one outcome."""
        if len(self.cancelling) + len(wishes) > CANCELLING_MAX:
            raise NotChangedError("too many changes at once: try again in a few seconds")
        asked = {one.row.sequence: one for one in wishes}
        # What is in the set already was changed.
        before = {one: wish for one, wish in asked.items() if one in self.cancelling}
        fresh = {one: wish for one, wish in asked.items() if one not in before}
        self.cancelling.enter({one: wish.row.minute for one, wish in fresh.items()})
        found = self._busy(fresh)
        self.cancelling.leave(found)
        left = fresh.keys() - found.keys()
        try:
            ended = await self._ended([asked[one] for one in asked if one not in found])
        except BaseException:
            self.cancelling.leave(left)
            raise
        self.cancelling.leave(left & ended.keys())
        left -= ended.keys()
        changed = [wish for one, wish in fresh.items() if one in left]
        if changed:
            await self._commit(changed, outcome)
        for one, wish in before.items():
            found[one] = _result(wish.row, ChangeState.CHANGED_BEFORE)
        for wish in changed:
            state = ChangeState.CANCELLED if wish.to_ms is None else ChangeState.MOVED
            due_ms = wish.row.due_ms if wish.to_ms is None else wish.to_ms
            found[wish.row.sequence] = _result(wish.row, state, due_ms=due_ms)
        return found | ended

    async def _ended(self, wishes: Sequence[Wish]) -> dict[int, ChangeResult]:
        """Return those rows that have a fact, or whose item would be needed and is damaged."""
        found: dict[int, ChangeResult] = {}
        rows = [one.row for one in wishes]
        minutes = [row.minute for row in rows]
        between = min(minutes, default=0), max(minutes, default=0) + 1
        facts = (await self.look(partial(FactsLook, rows=rows), between=between)).facts
        for one in wishes:
            if (fact := facts.get(one.row.sequence)) is not None:
                found[one.row.sequence] = _of_fact(one.row, fact)
            elif one.to_ms is not None and not one.row.item:
                why = "its item is damaged: `delaywheel log verify` tells more"
                found[one.row.sequence] = _result(one.row, ChangeState.UNKNOWN, reason=why)
        if self.is_closed:
            raise NotChangedError("this node is the master no more")
        return found

    def _busy(self, wishes: dict[int, Wish]) -> dict[int, ChangeResult]:
        """Return those rows that cannot be changed just now, and why."""
        master, wanted, now_ms = self._master, frozenset(wishes), self._now_ms()
        found: dict[int, ChangeResult] = {}

        def note(state: ChangeState, *sequences: int, **more: object) -> None:
            if state is ChangeState.SENDING:
                more["retry_after_ms"] = SENDING_AGAIN_MS
            for sequence in sequences:
                found[sequence] = _result(wishes[sequence].row, state, **more)

        if master.sender.doubts_all or master.fact_recorder.unapplied > _UNAPPLIED_MAX:
            why = "it was due, and too many outcomes are not known"
            due = (one for one, wish in wishes.items() if wish.row.due_ms <= now_ms)
            note(ChangeState.SENDING, *due, reason=why)
        for sequence, who in master.sender.with_whom(wanted).items():
            since_ms = now_ms - int(who.since_s * 1000)
            if who.group:
                note(ChangeState.SENDING, sequence, to=who.group, at_ms=since_ms)
            else:
                why = "a broker that did not answer for it may have it"
                note(ChangeState.SENDING, sequence, reason=why)
        why = "it is being put off, or copied for several names"
        note(ChangeState.SENDING, *among(wanted, master.moves.unfiled.held()), reason=why)
        note(ChangeState.DEAD, *among(wanted, master.dead_recorder.held()))
        if master.fact_recorder.unapplied <= _UNAPPLIED_MAX:
            note(ChangeState.DELIVERED, *master.fact_recorder.having(wanted))
        return found

    async def _commit(self, wishes: Sequence[Wish], outcome: Outcome) -> None:
        """Commit the records; raise NotChangedError if they found no space."""
        rows = [one.row for one in wishes]
        sequences = [row.sequence for row in rows]
        match outcome:
            case Outcome.MOVED:
                drafts = list(_moves_of(wishes))
            case Outcome.DROPPED:
                drafts = [dropped_of(rows, self._now_ms())]
            case _:
                drafts = [cancel_of(rows)]
        was_kept = await self._master.committer.commit_records(
            *drafts,
            on_durable=partial(self.cancelling.appended, sequences),
            on_no_space=partial(self.cancelling.leave, sequences),
        )
        self._node.upkeep.appended()
        if not was_kept:
            raise NotChangedError("the disk is full: not all of it was changed; try again")
        if outcome is Outcome.DROPPED:
            # Those of other records are counted as they are applied.
            self._master.fact_recorder.outcomes[outcome] += len(rows)


def _result(row: FoundRow, state: ChangeState, **more: object) -> ChangeResult:
    """Return what became of a row; the place in the request is told by whoever asked."""
    return ChangeResult(**{"item": 0, "state": state, "due_ms": row.due_ms} | more)  # type: ignore[arg-type]


def _of_fact(row: FoundRow, fact: Fact) -> ChangeResult:
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


def _moves_of(wishes: Sequence[Wish]) -> Iterator[Draft]:
    """Yield the records that move rows, a batch for about _BYTES_AT_ONCE."""
    ends = np.cumsum([len(one.row.item) for one in wishes]) // _BYTES_AT_ONCE
    for _, part in groupby(zip(ends.tolist(), wishes, strict=True), key=lambda one: one[0]):
        moved = [(one.row, one.to_ms or 0) for _, one in part]
        items = [item_due_at(row.item, due_ms) for row, due_ms in moved]
        yield move_of([row for row, _ in moved], items, [due_ms for _, due_ms in moved])
