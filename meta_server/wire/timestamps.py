"""The timestamps of answers: they never decrease, whatever clock and process do. Pure.

QMQ's clients believe what an answer says of a consumer's online state only if its timestamp is not
below the last one they saw. So the timestamps given out are bounded by a *ceiling* that is in the
store before they are; after a restart they begin at the ceiling. A clock that was set back makes
them stand still until it has caught up, and so does a store that cannot take a higher ceiling:
equal timestamps are believed.
"""

from typing import Final

AHEAD_MS: Final = 60_000
"""After a restart timestamps begin at the stored bound, so much ahead of the clock."""


class Timestamps:
    """Gives out timestamps below a stored ceiling; all are wall ms."""

    def __init__(self, *, ceiling_ms: int) -> None:
        """Begin at the ceiling that was stored; ask for a new one AHEAD_MS above the clock."""
        self._last = ceiling_ms
        self._ceiling = ceiling_ms

    def read(self, now_ms: int) -> int:
        """Return the timestamp of an answer that is given now."""
        self._last = max(self._last, min(now_ms, self._ceiling))
        return self._last

    def wanted(self, now_ms: int) -> int | None:
        """Return the ceiling that should be stored, or None while there is one far enough ahead."""
        if now_ms + AHEAD_MS // 2 < self._ceiling:
            return None
        return now_ms + AHEAD_MS

    def raise_ceiling(self, ceiling_ms: int) -> None:
        """Go up to a ceiling that is in the store."""
        self._ceiling = max(self._ceiling, ceiling_ms)
