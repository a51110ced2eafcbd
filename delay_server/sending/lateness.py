"""How late messages are: distributions with fixed bounds, since the start and of late."""

from collections import deque
from collections.abc import Callable
from typing import Final

from delay_server.distribution import Distribution
from storage.batch.entries import Entries
from storage.disk.spans import MINUTE_MS

LATENESS_BUCKETS_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600, 900,
    1800, 3600, 14400, 86400,
)  # fmt: skip
RECENT_MINUTES: Final = 5
"""What is shown as the lateness of late."""


class Lateness:
    """The lateness of all deliveries of a process, and of those of the last minutes."""

    def __init__(self, boot_ms: Callable[[], int]) -> None:
        self._boot_ms = boot_ms
        self.all = Distribution(LATENESS_BUCKETS_S)
        self._minutes: deque[tuple[int, Distribution]] = deque(maxlen=RECENT_MINUTES)

    def observe(self, entries: Entries, at_ms: int) -> None:
        """Count deliveries of this moment.

        What was sent past due is left out: its filed minute is later than that of its due time.
        """
        due_ms = entries["due_ms"]
        late_s = (at_ms - due_ms[entries["minute"] <= due_ms // MINUTE_MS]) / 1000
        if not len(late_s):
            return
        self.all.observe_all(late_s)
        minute = self._boot_ms() // 60_000
        if not self._minutes or self._minutes[-1][0] != minute:
            self._minutes.append((minute, Distribution(LATENESS_BUCKETS_S)))
        self._minutes[-1][1].observe_all(late_s)

    def recent(self) -> Distribution:
        """Return the distribution of the last minutes, the present one included."""
        since = self._boot_ms() // 60_000 - RECENT_MINUTES
        recent = Distribution(LATENESS_BUCKETS_S)
        for minute, part in self._minutes:
            if minute > since:
                recent.add(part)
        return recent
