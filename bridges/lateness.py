"""How late messages come: counted to the ms, without keeping them."""

from collections.abc import Sequence
from typing import Final

import numpy as np

_BUCKETS: Final = 60_001
"""One for each ms up to a minute, and the last for everything later."""


class LatenessHistogram:
    """Counts messages by how many ms after their due time they came.

    Invariant: `count` is the sum of all buckets; early messages are in bucket 0 and in `early`.
    """

    def __init__(self) -> None:
        self._buckets = np.zeros(_BUCKETS, dtype=np.int64)
        self.count = 0
        self.early = 0
        """Messages that came before they were due."""
        self.max_ms = 0
        """The largest lateness seen, exact beyond a minute too."""
        self.earliest_ms = 0
        """How early the earliest message came; 0 if none was early."""

    def add(self, due_ms: Sequence[int], now_ms: int) -> None:
        """Count messages that came now."""
        if not due_ms:
            return
        late_ms = now_ms - np.array(due_ms, dtype=np.int64)
        lowest, highest = int(late_ms.min()), int(late_ms.max())
        self.count += len(due_ms)
        self.max_ms = max(self.max_ms, highest)
        if lowest < 0:
            self.early += int(np.count_nonzero(late_ms < 0))
            self.earliest_ms = max(self.earliest_ms, -lowest)
        np.clip(late_ms, 0, _BUCKETS - 1, out=late_ms)
        # The counts of what came are short; adding a minute of buckets each time is not.
        counts = np.bincount(late_ms - max(lowest, 0) if 0 < lowest < _BUCKETS else late_ms)
        start = lowest if 0 < lowest < _BUCKETS else 0
        self._buckets[start : start + len(counts)] += counts

    def quantile_ms(self, share: float) -> int:
        """Return the least lateness that this share of the messages did not exceed; 0 of none."""
        if not self.count:
            return 0
        reached = np.cumsum(self._buckets) >= share * self.count
        found = int(np.argmax(reached))
        return min(found, self.max_ms) if found < _BUCKETS - 1 else self.max_ms
