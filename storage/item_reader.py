"""Reads the items of due messages from their minute segments, checking each one.

A segment is mapped, so that a message costs a slice and a CRC, not a system call. Only whole,
already written bytes are read: a position comes from an index entry, which is made after the write.
"""

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from storage.disk import Disk
from storage.entries import Entries
from storage.item_formats import qmq_item_fault
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
        items: list[memoryview] = []
        damaged: list[int] = []
        view = memoryview(b"")
        current = -1
        for position, size, minute, due_ms in zip(
            entries["position"].tolist(),
            entries["size"].tolist(),
            entries["minute"].tolist(),
            entries["due_ms"].tolist(),
            strict=True,
        ):
            if minute != current or position + size > len(view):
                view = self._view(minute, position + size)
                current = minute
            item = view[position : position + size]
            fault = (
                qmq_item_fault(item, due_ms)
                if len(item) == size
                else "the segment ends before the item does"
            )
            if fault is not None:
                self._on_damage(SegmentKey(minute, Span.MINUTE).path, position, fault)
                damaged.append(len(items))
                item = view[:0]
            items.append(item)
        if not damaged:
            return items, None
        mask = np.zeros(len(items), np.bool_)
        mask[damaged] = True
        return items, mask

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
