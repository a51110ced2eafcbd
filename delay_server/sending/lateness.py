"""How late messages are: distributions with fixed bounds, since the start and of late."""

from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from delay_server.distribution import Distribution

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

    def observe_all(self, late_s: npt.NDArray[np.float64]) -> None:
        """Count deliveries of this moment, at least one; in seconds."""
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
