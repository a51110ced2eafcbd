"""Withdrawing one message, from wherever it is, for whoever is about to name it in a record.

    on disk only            the caller holds its row from then on
    held by others          it is marked; whoever comes by it next drops it: the sender as it reads
                            the item, or what gives it back to disk
    its outcome is known    there is nothing to withdraw

So no queue has to be searched, and what is withdrawn may lie in the wheel for a while.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt
import trio

from delay_server.clock.pace import Pacer
from delay_server.filing.schedule_access import ScheduleAccess
from storage.batch.entries import Entries, no_entries
from storage.readers.item_reader import ItemReader, Items
from storage.schedule.handout import Handout, held_rows
from storage.schedule.loading import Place, TakeJob

_STEP_ROWS: Final = 50_000


class Answer(Enum):
    """What came of it."""

    WITHDRAWN = "it is withdrawn"
    TAKEN = "somebody else has withdrawn it; ask again for the outcome"
    BEING_SENT = "it is being sent; ask again for the outcome"
    DYING = "it is being recorded as a dead letter; ask again for the outcome"
    DONE = "it is done with, or there is no such message"


@dataclass(slots=True)
class Withdrawn:
    """A message that nobody sends until it is released."""

    sequence: int
    minute: int
    """The filed minute of its row."""
    entries: Entries
    """Its entry, while its row is held for whoever has withdrawn it; empty while others hold it."""
    is_marked: bool
    """Whether somebody else has it, or may come to have it: who comes by it drops it."""
    is_settled: bool = False
    """Whether the record that names it is applied: who drops it lets go of its row."""


class Withdrawals:
    """Withdraws messages of a mastership.

    It stands between those who hold rows and the handout, and between the sender and the items.
    """

    def __init__(
        self,
        *,
        handout: Handout,
        access: ScheduleAccess,
        pacer: Pacer,
        reader: ItemReader,
        why_not: Callable[[int, Entries], Answer | None],
        on_released: Callable[[], None],
    ) -> None:
        """Take over the parts.

        why_not: tells why a message that is held, by sequence and entry, cannot be withdrawn; None
        if it can be. on_released: hears that something is to be read from disk.
        """
        self._handout = handout
        self._access = access
        self._pacer = pacer
        self._reader = reader
        self._why_not = why_not
        self._on_released = on_released
        self._withdrawn: dict[int, Withdrawn] = {}
        self._marks = 0
        """How many of them are marked."""

    # -- for whoever withdraws ---------------------------------------------------------------

    async def withdraw(self, sequence: int, minute: int) -> tuple[Answer, Withdrawn | None]:
        """Withdraw the message with this sequence, whose row is in this filed minute.

        Raises StorageFullError where it waits in memory for disk space.
        """
        known = self._withdrawn.get(sequence)
        if known is not None:
            return Answer.DONE if known.is_settled else Answer.TAKEN, None
        # From this step on whoever comes by it drops it.
        found = self._withdrawn[sequence] = Withdrawn(
            sequence, minute, no_entries(), is_marked=True
        )
        self._marks += 1
        answer = Answer.DONE
        try:
            # Half a withdrawal would leave a row that nobody holds, and no one sends.
            with trio.CancelScope(shield=True):
                answer = await self._withdraw(found)
        finally:
            if answer is not Answer.WITHDRAWN:
                self.release(found)
        return answer, found if answer is Answer.WITHDRAWN else None

    async def _withdraw(self, found: Withdrawn) -> Answer:
        place, entries = await self._take(found)
        if len(found.entries):
            return Answer.WITHDRAWN  # Somebody has dropped it meanwhile.
        if place is Place.HELD:
            why_not = self._why_not(found.sequence, entries)
            if why_not is not None:
                return why_not
            # It may have come to its end, or gone back to disk, before it was marked.
            place, entries = await self._take(found)
            if len(found.entries):
                return Answer.WITHDRAWN
        if place is Place.NOWHERE or place is Place.SETTLED:
            return Answer.DONE
        if place is Place.ON_DISK and len(entries):
            self._unmark(found, entries)
        return Answer.WITHDRAWN

    async def settle(self, withdrawn: Withdrawn) -> None:
        """Hear that the record that names it is applied."""
        if withdrawn.is_marked and not await self._may_be_held(withdrawn):
            self._unmark(withdrawn, no_entries())
        if withdrawn.is_marked:
            # Its subject has to keep its name for as long as somebody has the entry.
            withdrawn.is_settled = True
            return
        del self._withdrawn[withdrawn.sequence]
        self._handout.settle(held_rows(withdrawn.entries))

    def release(self, withdrawn: Withdrawn) -> None:
        """Have it sent after all: nothing names it."""
        del self._withdrawn[withdrawn.sequence]
        self._marks -= withdrawn.is_marked
        self._handout.give_back(withdrawn.entries)
        self._on_released()

    async def _may_be_held(self, withdrawn: Withdrawn) -> bool:
        """Say whether anybody has the entry of a message whose record is applied."""
        with trio.CancelScope(shield=True):
            place, _ = await self._take(withdrawn)
        return place is Place.HELD

    def _unmark(self, withdrawn: Withdrawn, entries: Entries) -> None:
        """Have the withdrawer be the only one who has it, with these entries."""
        withdrawn.is_marked, withdrawn.entries = False, entries
        self._marks -= 1

    async def _take(self, found: Withdrawn) -> tuple[Place, Entries]:
        """Return where a row is, and its entry; one on disk is held from now on."""
        run = self._access.run
        job = await run(self._begin_take, found.sequence, found.minute)
        if job is None:
            return Place.ON_DISK, no_entries()
        entries, done = no_entries(), False
        while not done:
            step, done = await run(job.step, _STEP_ROWS)
            entries = step if len(step) else entries
        return job.found, entries

    def _begin_take(self, sequence: int, minute: int) -> TakeJob | None:
        return self._handout.begin_take(sequence, minute, now_ms=self._pacer.now_ms())

    # -- for those who hold messages ---------------------------------------------------------

    def read(self, entries: Entries) -> tuple[Items, npt.NDArray[np.bool_] | None]:
        """Read items as ItemReader does; what is withdrawn is not to be had, either."""
        if not self._marks or not (marked := self._are_marked(entries)).any():
            return self._reader.read(entries)
        rest = np.flatnonzero(~marked)
        items, damaged = self._reader.read(entries[rest])
        sizes = np.zeros(len(entries), np.int64)
        sizes[rest] = items.sizes
        if damaged is not None:
            marked[rest] = damaged
        return Items(items.joined, sizes), marked

    def part_marked(self, entries: Entries) -> tuple[Entries, Entries]:
        """Return those that are not withdrawn, and those that are.

        The latter are with whoever withdrew them from now on, and with nobody else.
        """
        if not self._marks:
            return entries, no_entries()
        marked = self._are_marked(entries)
        dropped = entries[marked]
        for place, sequence in enumerate(dropped["sequence"].tolist()):
            withdrawn = self._withdrawn[sequence]
            self._unmark(withdrawn, dropped[place : place + 1])
            if withdrawn.is_settled:
                del self._withdrawn[sequence]
                self._handout.settle(held_rows(withdrawn.entries))
        return entries[~marked], dropped

    def give_back(self, entries: Entries, *, is_forgotten: bool = False) -> None:
        """Have rows on disk only again, as the handout does, but for what is withdrawn."""
        self._handout.give_back(self.part_marked(entries)[0], is_forgotten=is_forgotten)

    def assign(self, subjects: npt.NDArray[np.intp], lane: int) -> None:
        """Put subjects into a lane."""
        self._handout.assign(subjects, lane)

    def remember(self) -> None:
        """Have all lanes come by what was forgotten."""
        self._handout.remember()

    def _are_marked(self, entries: Entries) -> npt.NDArray[np.bool_]:
        found = map(self._withdrawn.get, entries["sequence"].tolist())
        return np.array([one is not None and one.is_marked for one in found], np.bool_)
