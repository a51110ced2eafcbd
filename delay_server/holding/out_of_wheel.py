"""What has left the wheel and no fact that is applied yet: with the sender, or on its way there."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from storage.batch.entries import Entries
from storage.disk.spans import MINUTE_MS
from storage.schedule.loading import Key, NumberSet, not_after

_BUNDLE_ENTRIES: Final = 10_000

Sequences = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfWheel:
    """Looks into the sender and into the facts that are being written.

    What it says holds until the caller lets other tasks run, or for as long as it holds
    ScheduleAccess.taking: no fact is applied meanwhile.
    """

    count: Callable[[], int]
    """How many entries the sender holds."""
    held: Callable[[], Iterable[Entries]]
    """All of them."""
    unapplied: Callable[[], list[Sequences]]
    """Sequences of the outcomes that the schedule_log has not got yet."""

    def of_subjects(self, subjects: npt.NDArray[np.intp]) -> Sequences:
        """Return the sequences of some subjects, maybe with others among them."""
        wanted = NumberSet()
        wanted.add(subjects)
        found = []
        for parts in _bundles(self.held()):
            subject = _column(parts, "subject").astype(np.intp)
            found.append(_column(parts, "sequence")[wanted.contains(subject)])
        return self._with_unapplied(found)

    def after(self, key: Key) -> Sequences:
        """Return the sequences of the rows after `key`, maybe with others among them."""
        found = []
        for parts in _bundles(self.held()):
            start_ms = _column(parts, "minute").astype(np.int64) * MINUTE_MS
            effective_ms = np.maximum(_column(parts, "due_ms"), start_ms)
            sequence = _column(parts, "sequence")
            found.append(sequence[~not_after(effective_ms, sequence, key)])
        return self._with_unapplied(found)

    def _with_unapplied(self, found: list[Sequences]) -> Sequences:
        return np.concatenate([np.empty(0, np.int64), *found, *self.unapplied()])


def _bundles(parts: Iterable[Entries]) -> Iterator[list[Entries]]:
    """Yield what has so many entries together: to look at each of many small parts takes long."""
    bundle: list[Entries] = []
    size = 0
    for part in parts:
        bundle.append(part)
        size += len(part)
        if size >= _BUNDLE_ENTRIES:
            yield bundle
            bundle, size = [], 0
    if bundle:
        yield bundle


def _column(parts: list[Entries], name: str) -> npt.NDArray[Any]:
    """Return one column of all of these."""
    column: npt.NDArray[Any] = (
        parts[0][name] if len(parts) == 1 else np.concatenate([part[name] for part in parts])
    )
    return column
