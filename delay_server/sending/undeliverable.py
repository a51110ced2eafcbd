"""Due messages whose bytes are damaged: they wait on disk, pending, until they are salvaged."""

from collections import Counter
from collections.abc import Callable
from typing import Final

import numpy as np

from storage.batch.entries import Entries

_KEPT: Final = 10_000
"""So many are known one by one, and so many subjects; beyond, each look counts."""


class Undeliverable:
    """Counts damaged messages, each once."""

    def __init__(self, subject_name: Callable[[int], bytes]) -> None:
        self._subject_name = subject_name
        self.sequences: set[int] = set()
        """Those of the first of them."""
        self.count = 0
        self.by_subject: Counter[bytes] = Counter()
        """How many of them each subject has, of the first subjects with any."""

    def note(self, entries: Entries) -> None:
        """Count those that are new: what waits on disk may be come by again."""
        is_new = [sequence not in self.sequences for sequence in entries["sequence"].tolist()]
        new = entries[np.array(is_new, bool)]
        self.count += len(new)
        room = max(_KEPT - len(self.sequences), 0)
        self.sequences.update(new["sequence"][:room].tolist())
        for number, count in Counter(new["subject"].tolist()).items():
            name = self._subject_name(number)
            if name in self.by_subject or len(self.by_subject) < _KEPT:
                self.by_subject[name] += count
