"""Which messages must not be sent any more, though something in memory may stand for them.

    enter --> its record is appended --> is applied --> forgotten, once its minute is not open
      └──> left out: in flight, say     └──> found no space: left out, and sent as if nothing was

There is one set of sequences. It is asked where an item is read, to be sent, copied or given up:
whatever holds an entry reads the item anew in the step in which it sends it. So it does not matter
in what order rows are handed out, evicted or given back beside a change. Rows of a minute that is
not open are handed out by their facts; those of an open one may be by flags, which do not know of
the record. So a sequence stays until its minute is not open (storage/schedule/row_places.py).
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping

import numpy as np

from sender.queues.parcels import Mask
from storage.batch.entries import Entries
from storage.readers.item_reader import Items


class Cancelling:
    """The set of sequences; each has the filed minute of its row.

    Invariant: who reads the item of a sequence in the set gets no bytes. Its entry is then kept
    here, held, until its record is applied, which settles it, or it leaves, which gives it back.
    """

    def __init__(
        self,
        *,
        read_items: Callable[[Entries], tuple[Items, Mask | None]],
        on_settled: Callable[[Entries], None],
        give_back: Callable[[Entries], None],
    ) -> None:
        """Begin with none.

        on_settled: for entries whose record is applied; give_back: for those that are to be sent
        after all. Both are held here no longer.
        """
        self._read_items = read_items
        self._on_settled = on_settled
        self._give_back = give_back
        self._minutes: dict[int, int] = {}
        self._unapplied: set[int] = set()
        self._kept: dict[int, Entries] = {}
        """Entries whose item was asked for before the record was applied."""
        self._appended: deque[tuple[int, Collection[int]]] = deque()
        """Last record of each commit, and whom it is about."""

    def __len__(self) -> int:
        """Return how many sequences there are."""
        return len(self._minutes)

    def __contains__(self, sequence: int) -> bool:
        """Return True if a sequence is in the set."""
        return sequence in self._minutes

    @property
    def kept(self) -> int:
        """Number of entries that are held here."""
        return len(self._kept)

    # -- a change ----------------------------------------------------------------------------

    def enter(self, minutes: Mapping[int, int]) -> None:
        """Keep these sequences from being sent; `minutes` has the filed minute of each."""
        self._minutes.update(minutes)
        self._unapplied.update(minutes)

    def leave(self, sequences: Collection[int]) -> None:
        """Let sequences be sent again, nothing about which was appended."""
        for sequence in sequences:
            del self._minutes[sequence]
            self._unapplied.discard(sequence)
            if (entry := self._kept.pop(sequence, None)) is not None:
                self._give_back(entry)

    def appended(self, sequences: Collection[int], last: int) -> None:
        """Note that records up to `last`, which are durable, settle these sequences."""
        self._appended.append((last, sequences))

    def applied_to(self, record: int) -> None:
        """Settle what is held here of sequences whose records are applied by now."""
        while self._appended and self._appended[0][0] <= record:
            _, sequences = self._appended.popleft()
            self._unapplied.difference_update(sequences)
            kept = [self._kept.pop(one) for one in sequences if one in self._kept]
            if kept:
                self._on_settled(np.concatenate(kept))

    def applied(self) -> list[tuple[int, int]]:
        """Return the sequences whose records are applied, with their minutes."""
        return [one for one in self._minutes.items() if one[0] not in self._unapplied]

    def forget(self, sequences: Collection[int]) -> None:
        """Forget sequences whose minutes were not open once their records were applied."""
        for sequence in sequences:
            self._minutes.pop(sequence, None)

    # -- where items are read ----------------------------------------------------------------

    def _gone(self, entries: Entries) -> Mask:
        return np.array([one in self._minutes for one in entries["sequence"].tolist()], np.bool_)

    def read(self, entries: Entries) -> tuple[Items, Mask | None]:
        """Return the item of each entry, and which have no bytes: damaged ones, and those here."""
        if not self._minutes or not (gone := self._gone(entries)).any():
            return self._read_items(entries)
        found, damaged = self._read_items(entries[~gone])
        sizes = np.zeros(len(entries), np.int64)
        sizes[~gone] = found.sizes
        without = gone.copy()
        if damaged is not None:
            without[~gone] = damaged
        return Items(found.joined, sizes), without

    def take_from(self, entries: Entries) -> Entries:
        """Take those of some entries without bytes that are here; return those that are damaged."""
        gone = self._gone(entries)
        for place in np.flatnonzero(gone).tolist():
            entry, sequence = entries[place : place + 1].copy(), int(entries["sequence"][place])
            if sequence in self._unapplied:
                self._kept[sequence] = entry
            else:
                self._on_settled(entry)
        return entries[~gone]
