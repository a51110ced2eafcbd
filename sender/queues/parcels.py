"""Entries on their way: arrays of index entries, the queue they wait in, and the shelf for later.

An entry is a row of a numpy structured array (storage's ENTRY; only `due_ms`, `size` and `subject`
are looked at here). There is no object per message: a parcel is some rows of one lane that share a
fate, a queue is a row of parcels, a batch is the rows of one request, of whichever lanes. All of it
is synchronous and knows no clock.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt

Entries = npt.NDArray[np.void]
"""A one-dimensional array of index entries."""

Mask = npt.NDArray[np.bool_]

Tries = npt.NDArray[np.uint32]

_MERGED_AT_ONCE: Final = 256
"""Parcels that are merged in one step, if they are small."""

_PARCEL_ITEMS_MIN: Final = 64
"""With fewer entries each, the parcels themselves would cost more than a few bytes an entry."""

NOBODY: Final = -1
"""The number of no group."""


@dataclass(slots=True)
class Parcel:
    """Some entries of one lane that go the same way. Never changed (frozen takes twice as long)."""

    entries: Entries
    tries: Tries
    """How often each of them was sent in vain."""
    lane: int = 0
    avoid: int = NOBODY
    """Number of the group where the last try failed; another one is better."""

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.entries)

    def part(self, start: int, stop: int) -> "Parcel":
        """Return the entries of these positions; no copy."""
        return Parcel(self.entries[start:stop], self.tries[start:stop], self.lane, self.avoid)

    def where(self, mask: Mask) -> "Parcel":
        """Return the entries whose place in the mask is true; a copy."""
        return Parcel(_chosen(self.entries, mask), self.tries[mask], self.lane, self.avoid)

    def copy(self) -> "Parcel":
        """Return the same as a copy, which does not keep the array alive that this is a part of."""
        rows = _as_rows(self.entries).copy()
        return Parcel(rows.view(self.entries.dtype), self.tries.copy(), self.lane, self.avoid)


@dataclass(slots=True)
class Batch:
    """Some entries sent together, and the lane of each. Never changed once it is sent."""

    entries: Entries
    tries: Tries
    """How often each of them was sent in vain, this time not counted."""
    lanes: Sequence[tuple[int, int]]
    """Lanes as run lengths: for entries in a row their lane and their number. It is seldom looked
    at: only what comes back has to find its lane again."""
    sent_ms: int = 0
    """When a receiver was sent it, by the wall clock."""

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.entries)

    def where(self, mask: Mask) -> "Batch":
        """Return the entries whose place in the mask is true; a copy."""
        lanes: list[tuple[int, int]] = []
        start = 0
        for lane, count in self.lanes:
            left = count_of(mask[start : start + count])
            if left:
                lanes.append((lane, left))
            start += count
        return Batch(_chosen(self.entries, mask), self.tries[mask], lanes, self.sent_ms)

    def those(self, mask: Mask) -> "Batch":
        """Return the entries whose place in the mask is true; no copy if all are."""
        return self if count_of(mask) == len(self.entries) else self.where(mask)

    def by_lane(self) -> list[Parcel]:
        """Return a parcel for each lane, its entries in their order.

        The parcels of several lanes keep no more than themselves alive.
        """
        if len(self.lanes) == 1:
            return [Parcel(self.entries, self.tries, self.lanes[0][0])]
        rows = _as_rows(self.entries)
        parts: dict[int, list[slice]] = {}
        start = 0
        for lane, count in self.lanes:
            parts.setdefault(lane, []).append(slice(start, start + count))
            start += count
        return [
            Parcel(
                np.concatenate([rows[part] for part in of_lane]).view(self.entries.dtype),
                np.concatenate([self.tries[part] for part in of_lane]),
                lane,
            )
            for lane, of_lane in parts.items()
        ]


def first_try(entries: Entries, *, lane: int = 0) -> Parcel:
    """Return a parcel of entries that nobody has tried yet."""
    return Parcel(entries, np.zeros(len(entries), np.uint32), lane)


def joined(parcels: Sequence[Parcel]) -> Batch:
    """Return the entries of all in one batch, in order. There must be one at least."""
    if len(parcels) == 1:
        (one,) = parcels
        return Batch(one.entries, one.tries, [(one.lane, len(one.entries))])
    rows = np.concatenate([_as_rows(parcel.entries) for parcel in parcels])
    return Batch(
        rows.view(parcels[0].entries.dtype),
        np.concatenate([parcel.tries for parcel in parcels]),
        [(parcel.lane, len(parcel)) for parcel in parcels],
    )


def count_of(mask: Mask) -> int:
    """Return how many are true; where there are few, sum() and any() take five times as long."""
    return int(np.count_nonzero(mask))


def _chosen(entries: Entries, mask: Mask) -> Entries:
    return _as_rows(entries)[mask].view(entries.dtype)


def _as_rows(entries: Entries) -> npt.NDArray[np.void]:
    # Rows of plain bytes: numpy copies structured rows field by field, 10 to 70 times slower.
    return entries.view(f"V{entries.dtype.itemsize}")


def merged(parcels: Sequence[Parcel]) -> list[Parcel]:
    """Return the same entries in the same order, neighbours that are alike in one parcel."""
    whole: list[Parcel] = []
    for (lane, avoid), alike in groupby(parcels, key=lambda parcel: (parcel.lane, parcel.avoid)):
        batch = joined(list(alike))
        whole.append(Parcel(batch.entries, batch.tries, lane, avoid))
    return whole


def gathered(parcels: Sequence[Parcel]) -> list[Parcel]:
    """Return the same entries, those that are alike in one parcel wherever they stand."""
    if len(parcels) < 2:
        return list(parcels)
    alike: dict[tuple[int, int], list[Parcel]] = {}
    for parcel in parcels:
        alike.setdefault((parcel.lane, parcel.avoid), []).append(parcel)
    whole = [(key, joined(some)) for key, some in alike.items()]
    return [Parcel(batch.entries, batch.tries, *key) for key, batch in whole]


class ParcelQueue:
    """The entries of one lane in the order in which they are to be sent.

    Parcels cost some ten times as much memory as an entry. So that a queue which grows by one entry
    at a time stays as small as its entries, small parcels are merged when many have been appended.

    Invariant: `count` is the number of entries in the parcels, none of which is empty.
    """

    def __init__(self) -> None:
        self._parcels: deque[Parcel] = deque()
        self._appended = 0
        """Parcels appended since it was last seen to whether they are small."""
        self._appended_items = 0
        self.count = 0
        """Entries that wait."""

    def append(self, parcel: Parcel) -> None:
        """Put a parcel at the end."""
        if len(parcel):
            self._parcels.append(parcel)
            self.count += len(parcel)
            self._appended += 1
            self._appended_items += len(parcel)
            if self._appended == _MERGED_AT_ONCE:
                self._merge_appended()

    def prepend(self, parcels: Sequence[Parcel]) -> None:
        """Put parcels, in their order, before everything else."""
        full = [parcel for parcel in parcels if len(parcel)]
        self._parcels.extendleft(reversed(full))
        self.count += sum(map(len, full))

    def take_alike(self, items_max: int) -> Parcel:
        """Take from the first parcel only, so that all of it has the same group to avoid."""
        return self._cut(min(items_max, len(self._parcels[0])))

    def take(self, taken: list[Parcel], items_max: int, bytes_max: int, *, any_size: bool) -> int:
        """Take what fits from the front and add it to what was taken; return the bytes left.

        With `any_size` the first entry fits however large it is, if nothing was taken before.
        """
        while self._parcels and items_max > 0:
            head = self._parcels[0]
            ends = head.entries["size"][:items_max].cumsum(dtype=np.int64)
            fitting = int(ends.searchsorted(bytes_max, side="right"))
            if not fitting and any_size and not taken:
                fitting = 1
            if not fitting:
                break
            cut_short = fitting < len(head)
            taken.append(self._cut(fitting))
            items_max -= fitting
            bytes_max -= int(ends[fitting - 1])
            if cut_short:
                break
        return bytes_max

    def parcels(self) -> Iterator[Parcel]:
        """Yield everything, which stays."""
        yield from self._parcels

    def clear(self) -> list[Parcel]:
        """Take everything."""
        parcels = list(self._parcels)
        self._parcels.clear()
        self.count = 0
        return parcels

    def _merge_appended(self) -> None:
        if self._appended_items < self._appended * _PARCEL_ITEMS_MIN:
            still = min(self._appended, len(self._parcels))
            parcels = [self._parcels.pop() for _ in range(still)]
            self._parcels.extend(merged(parcels[::-1]))
        self._appended = self._appended_items = 0

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

    def parcels(self) -> Iterator[Parcel]:
        """Yield everything in no order; it stays."""
        for _, _, parcel in self._heap:
            yield parcel

    def take_until(self, now: float) -> list[Parcel]:
        """Take the parcels whose time has come, the earliest first."""
        taken: list[Parcel] = []
        while self._heap and self._heap[0][0] <= now:
            taken.append(heapq.heappop(self._heap)[2])
        self.count -= sum(map(len, taken))
        return taken
