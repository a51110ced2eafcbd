"""Which items a broker may have taken that did not say so. Pure.

The outcome of a request that was not answered in time, or whose connection ended, is not known. Its
items are tried again, and are in doubt until a broker has answered for them.
"""

from typing import Final

from sender.queues.parcels import Entries

_TRACKED_MAX: Final = 100_000
"""Items, about 100 bytes each. A drain says how many; they are tried again in any case."""


class Doubts:
    """The sequences of items in doubt; those beyond the limit are not known."""

    def __init__(self, *, tracked_max: int = _TRACKED_MAX) -> None:
        self._tracked_max = tracked_max
        self._sequences: set[int] = set()

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def is_full(self) -> bool:
        """Whether there may be others that are not known."""
        return len(self._sequences) >= self._tracked_max

    def among(self, wanted: frozenset[int]) -> frozenset[int]:
        """Return those of these sequences that are in doubt."""
        return wanted & self._sequences

    def note(self, entries: Entries) -> None:
        """Note that nobody knows what became of these."""
        room = self._tracked_max - len(self._sequences)
        if room > 0:
            self._sequences.update(entries["sequence"][:room].tolist())

    def forget(self, entries: Entries) -> None:
        """Forget those that came to an end."""
        if self._sequences:
            self._sequences.difference_update(entries["sequence"].tolist())
