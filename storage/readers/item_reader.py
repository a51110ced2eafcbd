"""Reads the items of due messages from their minute segments, checking each one.

A segment is mapped, so that a message costs a slice and a CRC, not a system call. Only whole,
already written bytes are read: a position comes from an index entry, which is made after the write.
Before a page is touched for the first time the kernel is asked whether it can be read: where it
cannot, touching it would end the process.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import overload

import numpy as np
import numpy.typing as npt

from storage.batch.batches import Damage
from storage.batch.entries import Entries
from storage.batch.item_formats import QMQ_ITEM_SIZE_MIN, Int64s, join_qmq_items, qmq_item_fault
from storage.disk.disk import Disk, can_be_read
from storage.disk.spans import SegmentKey, Span

_PAGE_BITS = 12
_PAGES_AT_ONCE = 32
"""Pages asked for in one call, as long as all of them can be read."""
_SEGMENTS_MAX = 64
"""Segments mapped at a time; the least recently used is let go."""


class _Mapping:
    """A segment's bytes, and which of its pages are known to be readable, or not."""

    __slots__ = ("_bad", "_known", "fault", "view")

    def __init__(self, view: memoryview, fault: str = "") -> None:
        self.fault = fault
        """Why the operating system did not map it."""
        pages = (len(view) >> _PAGE_BITS) + 1
        self.view = view
        self._known = np.zeros(pages, np.bool_)
        self._bad = np.zeros(pages, np.bool_)

    def readable(
        self, positions: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Say which of some items, all of them inside the view, can be touched."""
        first, last = positions >> _PAGE_BITS, (ends - 1) >> _PAGE_BITS
        for place in np.flatnonzero(~(self._known[first] & self._known[last])).tolist():
            for page in range(int(first[place]), int(last[place]) + 1):
                if not self._known[page]:
                    self._look_around(page)
        if not self._bad.any():
            return np.ones(len(positions), np.bool_)
        spans = zip(first.tolist(), last.tolist(), strict=True)
        return np.array([not self._bad[begin : end + 1].any() for begin, end in spans], np.bool_)

    def _look_around(self, page: int) -> None:
        """Find out about a page, and its neighbours: others of the same minute are there."""
        begin = page - page % _PAGES_AT_ONCE
        end = min(begin + _PAGES_AT_ONCE, len(self._known))
        if self._can_be_read(begin, end):
            self._known[begin:end] = True
            return
        self._known[page] = True
        self._bad[page] = not self._can_be_read(page, page + 1)

    def _can_be_read(self, begin: int, end: int) -> bool:
        position = begin << _PAGE_BITS
        return can_be_read(self.view, position, min(end << _PAGE_BITS, len(self.view)) - position)


class Items(Sequence[memoryview]):
    """Some items in a row. What damaged ones had is left out: they are empty."""

    def __init__(self, joined: memoryview, sizes: Int64s) -> None:
        self.joined = joined
        """All of them, one after the other."""
        self.sizes = sizes
        """Bytes of each."""

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.sizes)

    @overload
    def __getitem__(self, place: int) -> memoryview: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[memoryview]: ...

    def __getitem__(self, place: int | slice) -> memoryview | Sequence[memoryview]:
        """Return one of the items, or some."""
        return self._cut[place]

    @cached_property
    def _cut(self) -> list[memoryview]:
        ends = np.cumsum(self.sizes).tolist()
        return [self.joined[begin:end] for begin, end in pairwise([0, *ends])]


class ItemReader:
    """Maps minute segments and cuts items out of them."""

    def __init__(self, disk: Disk, on_damage: Callable[[Damage], None]) -> None:
        self._disk = disk
        self._on_damage = on_damage
        self._views: OrderedDict[int, _Mapping] = OrderedDict()

    def read(self, entries: Entries) -> tuple[Items, npt.NDArray[np.bool_] | None]:
        """Return the item of each entry, and which are damaged (None if none is).

        A damaged item has no bytes; it was reported to `on_damage`.
        """
        sizes = entries["size"].astype(np.int64)
        minutes = entries["minute"]
        edges = [0, *(np.flatnonzero(minutes[1:] != minutes[:-1]) + 1).tolist(), len(entries)]
        joined: list[memoryview] = []
        damaged = np.zeros(len(entries), np.bool_)
        for begin, end in pairwise(edges):
            joined += self._read_segment(entries[begin:end], sizes[begin:end], damaged[begin:end])
        sizes[damaged] = 0
        items = Items(joined[0] if len(joined) == 1 else memoryview(b"".join(joined)), sizes)
        return items, damaged if damaged.any() else None

    def _read_segment(
        self, entries: Entries, sizes: Int64s, damaged: npt.NDArray[np.bool_]
    ) -> list[memoryview]:
        """Return the joined items of entries of one minute; mark those that are damaged."""
        if not len(entries):
            return []
        minute = int(entries["minute"][0])
        positions, due_ms = entries["position"], entries["due_ms"]
        ends = positions + sizes
        mapping = self._mapping(minute, int(ends.max()))
        legible = (ends <= len(mapping.view)) & (sizes >= QMQ_ITEM_SIZE_MIN)
        if legible.all() and mapping.readable(positions, ends).all():
            joined, suspects = join_qmq_items(mapping.view, positions, sizes, due_ms)
            if not suspects.any():
                return [joined]
        return self._read_one_by_one(mapping, entries, damaged)

    def _read_one_by_one(
        self, mapping: _Mapping, entries: Entries, damaged: npt.NDArray[np.bool_]
    ) -> list[memoryview]:
        """Return those items that are good: something is wrong with one of them at least."""
        items: list[memoryview] = []
        path = SegmentKey(int(entries["minute"][0]), Span.MINUTE).path
        for place, (position, size, due_ms) in enumerate(
            entries[["position", "size", "due_ms"]].tolist()
        ):
            item = mapping.fault or _good_item(mapping, position, size, due_ms)
            if isinstance(item, memoryview):
                items.append(item)
                continue
            self._on_damage(Damage(path=path, position=position, size=size, reason=item))
            damaged[place] = True
        return items

    def _mapping(self, minute: int, end: int) -> _Mapping:
        mapping = self._views.get(minute)
        if mapping is not None and len(mapping.view) >= end:
            self._views.move_to_end(minute)
            return mapping
        path = SegmentKey(minute, Span.MINUTE).path
        try:
            mapping = _Mapping(self._disk.map(path))
        except OSError as error:
            # It is not kept: this is about these items only.
            return _Mapping(memoryview(b""), f"cannot be read: {error}")
        self._views[minute] = mapping
        self._views.move_to_end(minute)
        if len(self._views) > _SEGMENTS_MAX:
            self._views.popitem(last=False)
        return mapping


def _good_item(mapping: _Mapping, position: int, size: int, due_ms: int) -> memoryview | str:
    """Return a copy of the item at a position if it is the one due then; if not, say why."""
    view = mapping.view[position : position + size]
    if len(view) < size:
        return "the segment ends before the item does"
    place = np.array([position], np.int64)
    if not mapping.readable(place, place + size)[0]:
        return "the disk cannot read it"
    item = bytes(view)
    return qmq_item_fault(item, due_ms) or memoryview(item)
