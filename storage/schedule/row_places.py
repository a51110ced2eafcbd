"""Where the rows of one minute are: a byte of flags a row, by its ordinal.

    neither     on disk only: whoever reads the minute may hand it out
    HELD        handed out, and not given back
    SETTLED     it has a fact, or an outcome that is durable

Ordinals are given batch by batch, in the order in which batches are met, be it by reading or by
appending. They mean nothing once the minute is closed.
"""

import bisect
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.batch.number_set import Mask, grown
from storage.batch.rows import Int64s
from storage.disk.sorting import each_once

HELD: Final = 1
SETTLED: Final = 2

Ordinals = npt.NDArray[np.uint32]

_BITMAP_BYTES: Final = 16
"""Bytes a sequence may take in a bitmap; a set that would take more is kept as a sorted array."""

_ROWS_MIN: Final = 64
"""Rows that a minute has flags for from the start."""


class SequenceSet:
    """Sequences that never change, to be asked for many at a time."""

    def __init__(self, parts: Sequence[Int64s]) -> None:
        sequences = np.concatenate(parts) if parts else np.empty(0, np.int64)
        self._first = int(sequences.min()) if len(sequences) else 0
        span = int(sequences.max()) - self._first + 1 if len(sequences) else 0
        self._bitmap: Mask | None = None
        self._ascending = np.empty(0, np.int64)
        if span <= _BITMAP_BYTES * len(sequences):
            # Several times faster to make and to ask than what has to be sorted.
            self._bitmap = np.zeros(span, np.bool_)
            self._bitmap[sequences - self._first] = True
        else:
            self._ascending = each_once(sequences)

    def __contains__(self, sequence: int) -> bool:
        """Say whether one sequence is in the set."""
        return bool(self.contains(np.array([sequence]))[0])

    def contains(self, sequences: Int64s) -> Mask:
        """Say which of these are in the set."""
        if self._bitmap is None:
            return contained(sequences, self._ascending)
        places = sequences - self._first
        inside = (places >= 0) & (places < len(self._bitmap))
        inside[inside] = self._bitmap[places[inside]]
        return inside


def contained(values: Int64s, ascending: Int64s) -> Mask:
    """Say which values are in an ascending array."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    found: Mask = ascending[places] == values
    return found


class RowPlaces:
    """The flags of one open minute.

    Rows below `_base` were there when the minute was thinned out: of them nothing is known but
    which are held, and only batches that have some are known. Who reads these looks at the facts.

    Invariants: no two batches that were met have a record in common; `held` rows have HELD.
    """

    def __init__(self) -> None:
        self.rows = 0
        """Ordinals that were given."""
        self.held = 0
        self.readers = 0
        """Readings that are at this minute: it stays open for them."""
        self.told: SequenceSet | None = None
        """Sequences with a fact; known while it is read, for what there are no flags of."""
        self._base = 0
        self._thin = np.empty(0, np.uint32)
        """The held ones of the rows below `_base`, ascending."""
        self._flags = np.zeros(_ROWS_MIN, np.uint8)
        """Those of the other rows, in order."""
        self._starts: list[int] = []
        self._batches: list[tuple[int, int, int]] = []
        """In order of the first record of each batch: where its records end, its first ordinal, and
        how many rows it has."""

    @property
    def size(self) -> int:
        """Rows of which there are flags."""
        return self.rows - self._base + len(self._thin)

    def first_row(self, records: range) -> int | None:
        """Return the ordinal of a batch's first row; None if it was not met."""
        place = bisect.bisect_left(self._starts, records.start)
        if place == len(self._starts) or self._starts[place] != records.start:
            return None
        stop, first, _ = self._batches[place]
        return first if stop == records.stop else None

    def is_free(self, records: range) -> bool:
        """Say whether no batch that was met has any of these records."""
        place = bisect.bisect_left(self._starts, records.stop)
        return not place or self._batches[place - 1][0] <= records.start

    def meet(self, records: range, count: int) -> int:
        """Give ordinals to the rows of a batch whose records are free; return the first."""
        first = self.rows
        self.rows += count
        self._flags = grown(self._flags, self.rows - self._base)
        place = bisect.bisect_left(self._starts, records.start)
        self._starts.insert(place, records.start)
        self._batches.insert(place, (records.stop, first, count))
        return first

    def lacks_facts(self, first: int) -> bool:
        """Say whether it is not known which rows of a batch are settled."""
        return first < self._base

    def flags(self, first: int, count: int) -> npt.NDArray[np.uint8]:
        """Return the flags of so many rows of a batch, to look at."""
        if first >= self._base:
            return self._flags[first - self._base : first - self._base + count]
        flags = np.zeros(count, np.uint8)
        begin, end = np.searchsorted(self._thin, [first, first + count])
        flags[self._thin[begin:end] - first] = HELD
        return flags

    def hold(self, rows: Ordinals) -> Mask:
        """Hand out those rows that are on disk only; say which these are."""
        is_free: Mask = self._look(rows) == 0
        self._set(rows if is_free.all() else rows[is_free], HELD)
        self.held += int(np.count_nonzero(is_free))
        return is_free

    def let_go(self, rows: Ordinals, *, settled: bool) -> Mask:
        """Note that rows are held no longer: on disk only, or settled; say which were held."""
        was_held: Mask = (self._look(rows) & HELD) != 0
        if settled and self._base and (rows < self._base).any():
            self.told = None  # Facts are all that tells of these; some are newer than it.
        self._set(rows if was_held.all() else rows[was_held], SETTLED if settled else 0)
        self.held -= int(np.count_nonzero(was_held))
        return was_held

    def settle(self, first: int, told: Mask) -> None:
        """Note which of the rows from `first` on have a fact, as a batch is met."""
        self._set((np.flatnonzero(told) + first).astype(np.uint32), SETTLED)

    def _look(self, rows: Ordinals) -> npt.NDArray[np.uint8]:
        if not self._base:
            return self._flags[rows]
        flags = np.zeros(len(rows), np.uint8)
        is_thin = rows < self._base
        flags[~is_thin] = self._flags[rows[~is_thin] - self._base]
        flags[is_thin] = np.where(np.isin(rows[is_thin], self._thin), HELD, 0)
        return flags

    def _set(self, rows: Ordinals, flag: int) -> None:
        if not self._base:
            self._flags[rows] = flag
            return
        is_thin = rows < self._base
        self._flags[rows[~is_thin] - self._base] = flag
        if is_thin.any():
            change = np.union1d if flag == HELD else np.setdiff1d
            self._thin = change(self._thin, rows[is_thin]).astype(np.uint32)

    def thin_out(self) -> None:
        """Forget all but which rows are held, to be called while nobody reads the minute."""
        dense = np.flatnonzero(self._flags[: self.rows - self._base] & HELD) + self._base
        self._thin = np.concatenate([self._thin, dense.astype(np.uint32)])
        self._base, self._flags = self.rows, np.zeros(_ROWS_MIN, np.uint8)
        kept = [
            (start, batch)
            for start, batch in zip(self._starts, self._batches, strict=True)
            if np.diff(np.searchsorted(self._thin, [batch[1], batch[1] + batch[2]]))[0]
        ]
        self._starts = [start for start, _ in kept]
        self._batches = [batch for _, batch in kept]
