"""Messages that are to leave by a record: from its append until it is filed they are held."""

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import trio

from storage.batch.entries import Entries
from storage.batch.facts import FactBlock, Outcome


class UnfiledRecords:
    """Messages of a mastership whose records of one kind are being appended, or not filed yet.

    A message counts as out of the wheel until its record is filed, which crosses it off, so that no
    other part delivers it.
    """

    def __init__(self, outcome: Outcome, on_filed: Callable[[Entries], None]) -> None:
        """Begin with none; `outcome` is what the records state."""
        self._outcome = outcome
        self._on_filed = on_filed
        self._appending: list[Entries] = []
        self._durable: deque[Entries] = deque()
        """In the order in which they will be filed."""
        self._appended = trio.lowlevel.ParkingLot()
        self.count = 0

    def held(self) -> Iterator[Entries]:
        """Yield the entries of all messages, those of one record at once."""
        yield from self._appending
        yield from self._durable

    def begin(self, entries: Entries) -> None:
        """Take messages whose record is to be appended."""
        self._appending.append(entries)
        self.count += len(entries)

    def durable(self, entries: Entries, _last: int = 0) -> None:
        """Note that the record of messages will be filed, whoever is told of its commit when.

        A committer calls it with the record, which does not matter here.
        """
        self._is_not_appended(entries)
        self._durable.append(entries)

    def forget(self, entries: Entries) -> None:
        """Let go of messages whose record is appended no more, since it found no space."""
        self._is_not_appended(entries)
        self.count -= len(entries)

    def _is_not_appended(self, entries: Entries) -> None:
        self._appending = [one for one in self._appending if one is not entries]
        if not self._appending:
            self._appended.unpark_all()

    def filed(self, facts: FactBlock) -> None:
        """Let go of the messages that a filed record is about, if they are held here.

        They are not with a record of an earlier mastership that is committed in this one: no
        message that it is about was handed out again.
        """
        if not self._durable or not len(facts) or facts.outcome[0] != self._outcome:
            return
        if np.array_equal(self._durable[0]["sequence"], facts.sequence):
            entries = self._durable.popleft()
            self.count -= len(entries)
            self._on_filed(entries)

    async def until_appended(self) -> None:
        """Wait until what is being appended is."""
        while self._appending:
            await self._appended.park()
