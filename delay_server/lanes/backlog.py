"""What was left on disk since its subject waits: how much of each subject, and since when. Pure."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.batch.entries import Entries
from storage.batch.number_set import grown

_NEVER: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrouted:
    """What waits for want of a route, or because it is paused."""

    subjects: int
    messages: int
    """That were due, or nearly, and are left on disk. Some that had to leave the wheel for want of
    room are counted once more."""
    oldest_due_ms: int | None
    forgotten: int
    """Messages of subjects beyond the limit, of which nothing is kept but this number."""
    numbers: list[int]
    """Of a few of the subjects, those that wait longest."""


class Backlog:
    """Counts, by the number of a subject, what was in memory and was left on disk instead."""

    def __init__(self) -> None:
        self.forgotten = 0
        """Messages that were left on disk, though their subject could not be parked."""
        self._left = np.zeros(64, np.int64)
        self._oldest = np.full(64, _NEVER, np.int64)
        """Of what was left and did not come back: how much, and the earliest due time."""

    def grow(self, size: int) -> None:
        """Have a place for numbers below `size`."""
        self._left = grown(self._left, size)
        self._oldest = grown(self._oldest, size, _NEVER)

    def leave(self, entries: Entries) -> None:
        """Count entries of parked subjects that are left on disk."""
        np.add.at(self._left, entries["subject"], 1)
        np.minimum.at(self._oldest, entries["subject"], entries["due_ms"])

    def forget(self, entries: Entries) -> None:
        """Count entries to which nothing leads but a look at everything."""
        self.forgotten += len(entries)

    def returned(self, entries: Entries) -> None:
        """Hear of entries that came back from disk, in the order in which they are due."""
        subjects = entries["subject"]
        np.subtract.at(self._left, subjects, 1)
        self._left[subjects] = np.maximum(self._left[subjects], 0)
        np.maximum.at(self._oldest, subjects, entries["due_ms"])

    def end(self, subjects: npt.NDArray[np.intp]) -> None:
        """Hear of subjects that wait no longer."""
        self._left[subjects] = 0
        self._oldest[subjects] = _NEVER

    def left_of(self, subject: int) -> int:
        """Return how much of a subject was left on disk that is due, or nearly."""
        return int(self._left[subject]) if subject < len(self._left) else 0

    def oldest_of(self, subject: int) -> int | None:
        """Return when the earliest of that was due."""
        oldest = int(self._oldest[subject]) if self.left_of(subject) else _NEVER
        return oldest if oldest < _NEVER else None

    def oldest_first(self, subjects: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Return subjects in the order in which they began to wait."""
        in_order: npt.NDArray[np.intp] = subjects[np.argsort(self._oldest[subjects], kind="stable")]
        return in_order

    def of(self, subjects: npt.NDArray[np.intp], shown: int) -> Unrouted:
        """Return what waits of these, with the numbers of so many of them."""
        oldest = self._oldest[subjects]
        due = int(oldest.min()) if len(subjects) else _NEVER
        return Unrouted(
            subjects=len(subjects),
            messages=int(self._left[subjects].sum()),
            oldest_due_ms=due if due < _NEVER else None,
            forgotten=self.forgotten,
            numbers=self.oldest_first(subjects)[:shown].tolist(),
        )
