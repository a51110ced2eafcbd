"""Rows that wait in memory to be written to their segments.

near    of minutes that have been loaded, and of dead segments: written at once if there is space
pile    of later ones: written together, a commit's rows may belong to hundreds of segments
held    of a segment that is being split: written when the finer ones have taken over
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.batch.rows import Int64s, RowBlock, effective_due_ms, join_blocks
from storage.disk.spans import SegmentKey

_PILE_BLOCKS_MAX: Final = 256


class WaitingRows:
    """The blocks of rows in memory, and what they weigh."""

    def __init__(self) -> None:
        self.pile_bytes = 0
        """What rows of pile and held weigh."""
        self.near: list[RowBlock] = []
        self.pile: list[RowBlock] = []
        self.held: list[RowBlock] = []
        self.pile_earliest_ms: int | None = None
        """When the first row of the pile has to be in the wheel."""

    def __iter__(self) -> Iterator[RowBlock]:
        """Yield all blocks."""
        yield from (*self.near, *self.pile, *self.held)

    @property
    def weight(self) -> int:
        """Bytes of all rows; it may be read in any thread."""
        return self.pile_bytes + sum(block.weight for block in list(self.near))

    def put_aside(self, block: RowBlock) -> None:
        """Add rows to the pile."""
        self.pile.append(block)
        self.pile_bytes += block.weight
        earliest = int(effective_due_ms(block.due_ms, block.minute).min())
        known = self.pile_earliest_ms
        self.pile_earliest_ms = earliest if known is None else min(known, earliest)

    def join_pile(self) -> None:
        """Make one block of the pile if it has many: it may be searched for each batch of facts."""
        if len(self.pile) > _PILE_BLOCKS_MAX:
            self.pile = [join_blocks(self.pile)]

    def hold(self, key: SegmentKey) -> None:
        """Take the rows of a segment that is being split out of the pile."""
        kept = []
        for block in self.pile:
            held = (block.minute >= key.start) & (block.minute < key.end)
            if held.any():
                self.held.append(block.take_or_empty(np.flatnonzero(held)))
                block = block.take_or_empty(np.flatnonzero(~held))  # noqa: PLW2901
            if len(block):
                kept.append(block)
        self.pile = kept

    def release(self) -> None:
        """Put what was held into the pile again, before all that came since."""
        waiting, self.pile, self.held = self.held + self.pile, [], []
        self.pile_bytes = 0
        for block in waiting:
            self.put_aside(block)

    def pile_written(self) -> None:
        """Hear that all of the pile was written but what is left in it."""
        left, self.pile = self.pile, []
        self.pile_bytes = sum(block.weight for block in self.held)
        self.pile_earliest_ms = None
        for block in left:
            self.put_aside(block)

    def are_behind(self, minute: Int64s) -> npt.NDArray[np.bool_]:
        """Say of which of these filed minutes rows are near and wait for space."""
        if not self.near:
            return np.zeros(len(minute), np.bool_)
        return np.isin(minute, np.concatenate([block.minute for block in self.near]))

    def has_any_of(self, begin: int, end: int) -> bool:
        """Say whether rows of the filed minutes from `begin` up to `end` wait."""
        return any(bool(((one.minute >= begin) & (one.minute < end)).any()) for one in self)

    def oldest(self) -> int | None:
        """Return the first sequence of all; None if no row waits."""
        return min((int(block.sequence.min()) for block in self), default=None)
