"""Due messages whose bytes the operating system cannot read just now: kept, and offered again.

They have left the wheel and are in no queue of the sender, but count as held by it: its room bounds
them, and what waits for their subjects' sake goes on waiting.
"""

import heapq
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import structlog
import trio

from delay_transport.seams.outbox import Wakeup
from storage.batch.entries import Entries

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class ReadRetries:
    """Takes back what the sender could not read, for some time."""

    def __init__(
        self, *, offer: Callable[[Entries], None], tries: int, wait_ms: Callable[[int], int]
    ) -> None:
        """Take over the parts.

        tries: how often an item is read in vain before it counts as damaged; wait_ms: milliseconds
        to the next try by the number of those that failed.
        """
        self._offer = offer
        self._tries = tries
        self._wait_ms = wait_ms
        self._failures: dict[int, int] = {}
        """Tries that failed, by sequence, of what is here or was offered again."""
        self._refused: set[int] = set()
        """Those that the reader could not read and the sender has yet to give back."""
        self._waiting: list[tuple[float, int, Entries]] = []
        """A heap by the time of the next try; the number tells those of one time apart."""
        self._numbers = count()
        self._more = Wakeup()
        self.count = 0
        """Messages held here."""
        self.failures = 0
        """Messages that could not be read, each time."""

    def may_try_again(self, sequence: int, path: str, reason: str) -> bool:
        """Hear that an item could not be read; say whether it is tried again, and no damage."""
        self.failures += 1
        failures = self._failures.get(sequence, 0) + 1
        if failures >= self._tries:
            self._failures.pop(sequence, None)
            return False
        if not self._failures:
            _log.warning("due messages cannot be read; they are tried again", path=path, why=reason)
        self._failures[sequence] = failures
        self._refused.add(sequence)
        return True

    def keep(self, entries: Entries) -> Entries:
        """Take those that are to be tried again; return the others."""
        if not self._refused:
            return entries
        sequences = entries["sequence"].tolist()
        again = np.array([sequence in self._refused for sequence in sequences], np.bool_)
        if again.any():
            kept = entries[again]
            self._refused.difference_update(kept["sequence"].tolist())
            failures = max(self._failures[sequence] for sequence in kept["sequence"].tolist())
            at = trio.current_time() + self._wait_ms(failures) / 1000
            heapq.heappush(self._waiting, (at, next(self._numbers), kept))
            self.count += len(kept)
            self._more.wake()
        return entries[~again]

    def forget(self, entries: Entries) -> None:
        """Hear of entries that have left for good."""
        if self._failures:
            for sequence in entries["sequence"].tolist():
                self._failures.pop(sequence, None)

    def held(self) -> Iterator[Entries]:
        """Yield the entries of all messages held here."""
        for _, _, entries in self._waiting:
            yield entries

    async def run(self) -> None:
        """Offer what is here again, each when its time has come."""
        while True:
            if not self._waiting:
                await self._more.sleep()
                continue
            with trio.move_on_at(self._waiting[0][0]):
                await self._more.sleep()
            # One between two turns of the loop, and the others are held meanwhile.
            if self._waiting[0][0] <= trio.current_time():
                _, _, entries = heapq.heappop(self._waiting)
                self.count -= len(entries)
                self._offer(entries)
