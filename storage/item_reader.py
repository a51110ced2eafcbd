"""Reads the items of due messages from their minute segments, checking each one.

A segment is mapped, so that a message costs a slice and a CRC, not a system call. Only whole,
already written bytes are read: a position comes from an index entry, which is made after the write.
Before a page is touched for the first time the kernel is asked whether it can be read: where it
cannot, touching it would end the process.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from storage.batches import Damage
from storage.disk import Disk, can_be_read
from storage.entries import Entries
from storage.item_formats import QMQ_ITEM_SIZE_MIN, cut_qmq_items, qmq_item_fault
from storage.spans import SegmentKey, Span

_PAGE_BITS = 12
_SEGMENTS_MAX = 64
"""Segments mapped at a time; the least recently used is let go."""


class _Mapping:
    """A segment's bytes, and which of its pages are known to be readable, or not."""

    __slots__ = ("_bad", "_known", "view")

    def __init__(self, view: memoryview) -> None:
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
                    self._known[page] = True
                    begin = page << _PAGE_BITS
                    size = min(1 << _PAGE_BITS, len(self.view) - begin)
                    self._bad[page] = not can_be_read(self.view, begin, size)
        if not self._bad.any():
            return np.ones(len(positions), np.bool_)
        spans = zip(first.tolist(), last.tolist(), strict=True)
        return np.array([not self._bad[begin : end + 1].any() for begin, end in spans], np.bool_)


class ItemReader:
    """Maps minute segments and cuts items out of them."""

    def __init__(self, disk: Disk, on_damage: Callable[[Damage], None]) -> None:
        self._disk = disk
        self._on_damage = on_damage
        self._views: OrderedDict[int, _Mapping] = OrderedDict()

    def read(self, entries: Entries) -> tuple[list[memoryview], npt.NDArray[np.bool_] | None]:
        """Return the item of each entry, and which are damaged (None if none is).

        A damaged item's place in the list is an empty view; it was reported to `on_damage`.
        """
        minutes = entries["minute"]
        edges = [0, *(np.flatnonzero(np.diff(minutes)) + 1).tolist(), len(entries)]
        items: list[memoryview] = []
        damaged: list[int] = []
        for begin, end in pairwise(edges):
            found, bad = self._read_segment(entries[begin:end])
            damaged += [len(items) + place for place in bad]
            items += found
        if not damaged:
            return items, None
        mask = np.zeros(len(items), np.bool_)
        mask[damaged] = True
        return items, mask

    def _read_segment(self, entries: Entries) -> tuple[list[memoryview], list[int]]:
        """Return the items of entries of one minute, and the places of those that are damaged."""
        if not len(entries):
            return [], []
        minute = int(entries["minute"][0])
        positions, due_ms = entries["position"], entries["due_ms"]
        ends = positions + entries["size"]
        mapping = self._mapping(minute, int(ends.max()))
        view = mapping.view
        legible = (ends <= len(view)) & (entries["size"] >= QMQ_ITEM_SIZE_MIN)
        if legible.all():
            legible = mapping.readable(positions, ends)
        if legible.all():
            items, suspects = cut_qmq_items(
                view, positions.tolist(), entries["size"].tolist(), due_ms.tolist()
            )
        else:
            items = [view[:0]] * len(entries)
            suspects = list(range(len(entries)))
        bad = []
        for place in suspects:
            position, size = int(positions[place]), int(entries["size"][place])
            fault = _fault(mapping, position, size, int(due_ms[place]))
            if fault is None:
                items[place] = view[position : position + size]
                continue
            path = SegmentKey(minute, Span.MINUTE).path
            self._on_damage(Damage(path=path, position=position, size=size, reason=fault))
            items[place] = view[:0]
            bad.append(place)
        return items, bad

    def _mapping(self, minute: int, end: int) -> _Mapping:
        mapping = self._views.get(minute)
        if mapping is not None and len(mapping.view) >= end:
            self._views.move_to_end(minute)
            return mapping
        path = SegmentKey(minute, Span.MINUTE).path
        try:
            view = self._disk.map(path)
        except OSError as error:
            reason = f"cannot be read: {error}"
            self._on_damage(Damage(path=path, position=0, size=end, reason=reason))
            view = memoryview(b"")
        mapping = self._views[minute] = _Mapping(view)
        self._views.move_to_end(minute)
        if len(self._views) > _SEGMENTS_MAX:
            self._views.popitem(last=False)
        return mapping


def _fault(mapping: _Mapping, position: int, size: int, due_ms: int) -> str | None:
    """Say why there is no item at a position that is the one due then, or None if there is."""
    item = mapping.view[position : position + size]
    if len(item) < size:
        return "the segment ends before the item does"
    place = np.array([position], np.int64)
    if not mapping.readable(place, place + size)[0]:
        return "the disk cannot read it"
    return qmq_item_fault(item, due_ms)
