"""How late messages are: distributions with fixed bounds, since the start and of late."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

LATENESS_BUCKETS_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600, 900,
    1800, 3600, 14400, 86400,
)  # fmt: skip
COMMIT_BUCKETS_S: Final = (
    0.0002,
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.5,
    1,
    2,
    10,
)

FACT_AGE_BUCKETS_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60,
)  # fmt: skip

RECENT_MINUTES: Final = 5
"""What is shown as the lateness of late."""


class Distribution:
    """A histogram with fixed bounds that observes many values at once."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = np.array(bounds)
        self.counts: npt.NDArray[np.int64] = np.zeros(len(bounds) + 1, np.int64)
        self.sum = 0.0
        self.most = 0.0
        """The largest value."""

    def observe(self, value: float, times: int = 1) -> None:
        """Count one value, or one that several have."""
        self.counts[int(np.searchsorted(self.bounds, value, side="left"))] += times
        self.sum += value * times
        self.most = max(self.most, value)

    def observe_all(self, values: npt.NDArray[np.float64]) -> None:
        """Count many values."""
        if not len(values):
            return
        places = np.searchsorted(self.bounds, values, side="left")
        self.counts += np.bincount(places, minlength=len(self.counts))
        self.sum += float(values.sum())
        self.most = max(self.most, float(values.max()))

    def add(self, other: "Distribution") -> None:
        """Add what another one with the same bounds has counted."""
        self.counts += other.counts
        self.sum += other.sum
        self.most = max(self.most, other.most)

    @property
    def total(self) -> int:
        """How many values were counted."""
        return int(self.counts.sum())

    def quantile(self, share: float) -> float | None:
        """Return the upper bound of the bucket in which this share of the values is reached."""
        total = self.total
        if not total:
            return None
        place = int(np.searchsorted(np.cumsum(self.counts), share * total, side="left"))
        return float(self.bounds[min(place, len(self.bounds) - 1)])

    def buckets(self) -> list[tuple[str, float]]:
        """Return cumulative counts as Prometheus wants them."""
        cumulative = np.cumsum(self.counts).tolist()
        names = [*(f"{bound:g}" for bound in self.bounds.tolist()), "+Inf"]
        return [(name, float(count)) for name, count in zip(names, cumulative, strict=True)]


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
