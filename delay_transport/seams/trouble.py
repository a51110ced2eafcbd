"""Few lines in the log about a trouble that lasts, however often something is tried again."""

import math
from collections.abc import Callable
from typing import Final

import trio

_HOUR_S: Final = 3600.0
"""Seconds between two lines of one event while a trouble lasts. A peer may be away for days, and is
tried again every few seconds."""

KINDS_MAX: Final = 1000
"""Kinds of lines that are remembered of one trouble; beyond that the one seen longest ago counts as
new again. Peers choose some of what tells kinds apart."""


class Trouble:
    """Logs each event of a trouble at once, and then at intervals with the number of the others.

    Whoever tries again keeps one of these for what it tries, and says when the trouble is over.
    """

    def __init__(self, *, again_s: float = _HOUR_S) -> None:
        self.again_s = again_s
        self._kinds: dict[tuple[str, ...], tuple[float, int]] = {}
        """When each was logged, in trio's time, and how often it was not since."""

    def log(self, write: Callable[..., object], event: str, *of: str, **details: object) -> None:
        """Write an event unless it was written lately; `repeated` are those left out since.

        Events of one name and another `of` are other kinds.
        """
        now = trio.current_time()
        logged_at, repeated = self._kinds.pop((event, *of), (-math.inf, 0))
        is_due = now - logged_at >= self.again_s
        self._kinds[event, *of] = (now, 0) if is_due else (logged_at, repeated + 1)
        if len(self._kinds) > KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]
        if is_due:
            write(event, **details, **({"repeated": repeated} if repeated else {}))

    def over(self) -> bool:
        """Begin anew with every event; return whether any was written."""
        was_logged = bool(self._kinds)
        self._kinds.clear()
        return was_logged
