"""Distributions of seconds: histograms with fixed bounds."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


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
