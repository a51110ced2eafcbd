"""Entries on their way: arrays of index entries, the queue they wait in, and the shelf for later.

An entry is a row of a numpy structured array (storage's ENTRY; only `due_ms`, `size` and `subject`
are looked at here). There is no object per message: a parcel is some rows that share a fate, a
queue is a row of parcels. All of it is synchronous and knows no clock.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Entries = npt.NDArray[np.void]
"""A one-dimensional array of index entries."""

Mask = npt.NDArray[np.bool_]

Tries = npt.NDArray[np.uint32]

NOBODY: Final = -1
"""The number of no group."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Some entries that go the same way."""

    entries: Entries
    tries: Tries
    """How often each of them was sent in vain."""
    avoid: int = NOBODY
    """Number of the group where the last try failed; another one is better."""

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.entries)

    def part(self, start: int, stop: int) -> "Parcel":
        """Return the entries of these positions; no copy."""
        return Parcel(self.entries[start:stop], self.tries[start:stop], self.avoid)

    def where(self, mask: Mask) -> "Parcel":
        """Return the entries whose place in the mask is true; a copy."""
        return Parcel(_as_rows(self.entries)[mask].view(self.entries.dtype), self.tries[mask])


def first_try(entries: Entries) -> Parcel:
    """Return a parcel of entries that nobody has tried yet."""
    return Parcel(entries, np.zeros(len(entries), np.uint32))


def joined(parcels: Sequence[Parcel]) -> Parcel:
    """Return the entries of all in one parcel, in order. There must be one at least."""
    if len(parcels) == 1:
        return parcels[0]
    rows = np.concatenate([_as_rows(parcel.entries) for parcel in parcels])
    return Parcel(
        rows.view(parcels[0].entries.dtype),
        np.concatenate([parcel.tries for parcel in parcels]),
    )


def _as_rows(entries: Entries) -> npt.NDArray[np.void]:
    # Rows of plain bytes: numpy copies structured rows field by field, 10 to 70 times slower.
    return entries.view(f"V{entries.dtype.itemsize}")


class ParcelQueue:
    """Entries in the order in which they are to be sent.

    Invariant: `count` is the number of entries in the parcels, none of which is empty.
    """

    def __init__(self) -> None:
        self._parcels: deque[Parcel] = deque()
        self.count = 0
        """Entries that wait."""

    def append(self, parcel: Parcel) -> None:
        """Put a parcel at the end."""
        if len(parcel):
            self._parcels.append(parcel)
            self.count += len(parcel)

    def prepend(self, parcels: Sequence[Parcel]) -> None:
        """Put parcels, in their order, before everything else."""
        full = [parcel for parcel in parcels if len(parcel)]
        self._parcels.extendleft(reversed(full))
        self.count += sum(map(len, full))

    def take_alike(self, items_max: int) -> Parcel:
        """Take from the first parcel only, so that all of it has the same group to avoid."""
        return self._cut(min(items_max, len(self._parcels[0])))

    def take(self, *, items_max: int, bytes_max: int, any_size: bool) -> Parcel | None:
        """Take what fits from the front; None if nothing does.

        With `any_size` the first entry fits however large it is.
        """
        taken: list[Parcel] = []
        while self._parcels and items_max > 0:
            head = self._parcels[0]
            ends = head.entries["size"][:items_max].cumsum(dtype=np.int64)
            fitting = int(np.searchsorted(ends, bytes_max, side="right"))
            if not fitting and any_size and not taken:
                fitting = 1
            if not fitting:
                break
            cut_short = fitting < len(head)
            taken.append(self._cut(fitting))
            if cut_short:
                break
            items_max -= fitting
            bytes_max -= int(ends[fitting - 1])
        return joined(taken) if taken else None

    def clear(self) -> list[Parcel]:
        """Take everything."""
        parcels = list(self._parcels)
        self._parcels.clear()
        self.count = 0
        return parcels

    def _cut(self, count: int) -> Parcel:
        head = self._parcels.popleft()
        self.count -= count
        if count == len(head):
            return head
        self._parcels.appendleft(head.part(count, len(head)))
        return head.part(0, count)


class Shelf:
    """Parcels that wait for a time, in whichever unit the owner counts.

    Invariant: `count` is the number of entries on the shelf.
    """

    def __init__(self) -> None:
        # The middle number keeps equal times in the order of putting, and parcels uncompared.
        self._heap: list[tuple[float, int, Parcel]] = []
        self._put = 0
        self.count = 0
        """Entries that wait."""

    @property
    def next_at(self) -> float | None:
        """When the next parcel is to be taken; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def put(self, at: float, parcel: Parcel) -> None:
        """Keep a parcel until this time."""
        self._put += 1
        heapq.heappush(self._heap, (at, self._put, parcel))
        self.count += len(parcel)

    def take_until(self, now: float) -> list[Parcel]:
        """Take the parcels whose time has come, the earliest first."""
        taken: list[Parcel] = []
        while self._heap and self._heap[0][0] <= now:
            taken.append(heapq.heappop(self._heap)[2])
        self.count -= sum(map(len, taken))
        return taken
