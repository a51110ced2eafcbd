"""What has left the wheel and has no durable fact yet: with the sender, or on its way to a fact."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage import MINUTE_MS, Entries, Key, NumberSet, not_after

Sequences = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfWheel:
    """Looks into the sender and into the facts that are being written.

    What it says holds until the caller lets other tasks run, or for as long as it holds
    Filing.taking: no fact is noted meanwhile.
    """

    count: Callable[[], int]
    """How many entries the sender holds."""
    held: Callable[[], Iterable[Entries]]
    """All of them."""
    unnoted: Callable[[], list[Sequences]]
    """Sequences of the outcomes that the schedule_log has not been told of."""

    def of_subjects(self, subjects: npt.NDArray[np.intp]) -> Sequences:
        """Return the sequences of some subjects, maybe with others among them."""
        wanted = NumberSet()
        wanted.add(subjects)
        found = [
            entries["sequence"][wanted.contains(entries["subject"].astype(np.intp))]
            for entries in self.held()
        ]
        return self._with_unnoted(found)

    def after(self, key: Key) -> Sequences:
        """Return the sequences of the rows after `key`, maybe with others among them."""
        found = []
        for entries in self.held():
            start_ms = entries["minute"].astype(np.int64) * MINUTE_MS
            effective_ms = np.maximum(entries["due_ms"], start_ms)
            sequence = entries["sequence"]
            found.append(sequence[~not_after(effective_ms, sequence, key)])
        return self._with_unnoted(found)

    def _with_unnoted(self, found: list[Sequences]) -> Sequences:
        return np.concatenate([np.empty(0, np.int64), *found, *self.unnoted()])
