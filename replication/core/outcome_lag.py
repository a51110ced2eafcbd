"""Outcomes that are durable here, and not elsewhere: a takeover would send them again. Pure."""

from collections import deque
from typing import Final, NamedTuple

OUTCOMES_LACKED_MAX: Final = 50_000
"""Outcomes that the best other member may lack while this node goes on sending."""
OUTCOMES_LACKED_S: Final = 0.2
"""How old the oldest of these may be."""


class Lacked(NamedTuple):
    """What somebody lacks: how many outcomes, and for how many seconds the oldest of them."""

    outcomes: int
    seconds: float


class OutcomeLag:
    """The records of outcomes beyond the commit: where each ends, how many, and when it came."""

    def __init__(self) -> None:
        self._records: deque[tuple[int, int, float]] = deque()
        """The sequence behind it, the outcomes up to and with it since the beginning, its time."""
        self._total = 0
        self._committed = 0

    def durable(self, end: int, count: int, now: float) -> None:
        """Note a record of outcomes that is durable here; `end`: the sequence behind it."""
        self._total += count
        self._records.append((end, self._total, now))

    def committed_to(self, sequence: int) -> None:
        """Forget what is committed."""
        while self._records and self._records[0][0] <= sequence:
            self._committed = self._records.popleft()[1]

    @property
    def uncommitted(self) -> int:
        """Outcomes that are durable here and not committed."""
        return self._total - self._committed

    def lacked_by(self, end: int, now: float) -> Lacked:
        """Return what a log lacks that ends at a sequence."""
        had = self._committed
        for record_end, total, at in self._records:
            if record_end > end:
                return Lacked(self._total - had, now - at)
            had = total
        return Lacked(0, 0.0)
