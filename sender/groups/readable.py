"""The entries of a batch that may be sent now, with their items."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from delay_transport.seams.runtime import Clock
from sender.outcomes.answers import Items
from sender.queues.parcels import Batch, Entries, Mask
from sender.settings.errors import ItemBytesError

ReadItems = Callable[[Entries], tuple[Items, Mask | None]]
"""Returns the item of each entry, checked, and which of them are damaged (None if none is).

A damaged item has its place among them too, and no bytes.
"""


class Unreadable(Protocol):
    """Where entries go that may not be sent now, or cannot be read."""

    def hold_early(self, batch: Batch) -> None:
        """Take entries that are not due, by a clock that was set back."""

    def damaged(self, entries: Entries) -> None:
        """Take entries whose items cannot be read."""


class Readable(NamedTuple):
    """What is left of a batch."""

    batch: Batch
    items: Items
    sizes: npt.NDArray[np.int64]
    """Bytes of the item of each entry."""
    body: bytes | memoryview
    """The items, one after another."""


def readable_of(
    batch: Batch, *, clock: Clock, read_items: ReadItems, others: Unreadable
) -> Readable | None:
    """Return what of a batch is due by the clock and has its bytes; None if nothing is.

    The rest goes to `others`. Raises ItemBytesError if items are not what was asked for.
    """
    early: Mask = batch.entries["due_ms"] > clock.now_ms()
    if early.any():
        others.hold_early(batch.where(early))
        batch = batch.where(~early)
        if not len(batch):
            return None
    items, damaged = read_items(batch.entries)
    sizes, body = items.sizes, items.joined
    if damaged is not None and damaged.any():
        others.damaged(batch.where(damaged).entries)
        batch = batch.where(~damaged)
        sizes = sizes[~damaged]
        if not len(batch):
            return None
    expected = batch.entries["size"]
    if not (np.array_equal(sizes, expected) and sizes.all() and len(body) == sizes.sum()):
        raise ItemBytesError(
            entries=len(batch),
            items=len(sizes),
            expected_bytes=int(expected.sum()),
            bytes_read=len(body),
        )
    return Readable(batch, items, sizes, body)
