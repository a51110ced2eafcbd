"""Reads the items of due messages from their minute segments, checking each one.

A segment is mapped, so that a message costs a slice and a CRC, not a system call. Only whole,
already written bytes are read: a position comes from an index entry, which is made after the write.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from storage.disk import Disk
from storage.entries import Entries
from storage.item_formats import QMQ_ITEM_SIZE_MIN, cut_qmq_items, qmq_item_fault
from storage.spans import SegmentKey, Span

_SEGMENTS_MAX = 64
"""Segments mapped at a time; the least recently used is let go."""


class ItemReader:
    """Maps minute segments and cuts items out of them."""

    def __init__(self, disk: Disk, on_damage: Callable[[str, int, str], None]) -> None:
        self._disk = disk
        self._on_damage = on_damage
        self._views: OrderedDict[int, memoryview] = OrderedDict()

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
        ends = entries["position"] + entries["size"]
        view = self._view(minute, int(ends.max()))
        legible = (ends <= len(view)) & (entries["size"] >= QMQ_ITEM_SIZE_MIN)
        if legible.all():
            items, suspects = cut_qmq_items(
                view,
                entries["position"].tolist(),
                entries["size"].tolist(),
                entries["due_ms"].tolist(),
            )
        else:
            items = [view[:0]] * len(entries)
            suspects = list(range(len(entries)))
        bad = []
        for place in suspects:
            position, size = int(entries["position"][place]), int(entries["size"][place])
            item = view[position : position + size]
            fault = (
                qmq_item_fault(item, int(entries["due_ms"][place]))
                if len(item) == size
                else "the segment ends before the item does"
            )
            if fault is None:
                items[place] = item
                continue
            self._on_damage(SegmentKey(minute, Span.MINUTE).path, position, fault)
            items[place] = view[:0]
            bad.append(place)
        return items, bad

    def _view(self, minute: int, end: int) -> memoryview:
        view = self._views.get(minute)
        if view is not None and len(view) >= end:
            self._views.move_to_end(minute)
            return view
        try:
            view = self._disk.map(SegmentKey(minute, Span.MINUTE).path)
        except OSError as error:
            self._on_damage(SegmentKey(minute, Span.MINUTE).path, 0, f"cannot be read: {error}")
            view = memoryview(b"")
        self._views[minute] = view
        self._views.move_to_end(minute)
        if len(self._views) > _SEGMENTS_MAX:
            self._views.popitem(last=False)
        return view
