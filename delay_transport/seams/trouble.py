"""Few lines in the log about a trouble that lasts, however often something is tried again."""

from collections.abc import Callable
from typing import Final

import trio

_HOUR_S: Final = 3600.0
"""Seconds between two lines of one event while a trouble lasts. A peer may be away for days, and is
tried again every few seconds."""


class Trouble:
    """Logs each event of a trouble at once, and then at intervals with the number of the others.

    Whoever tries again keeps one of these for what it tries, and says when the trouble is over.
    """

    def __init__(self, *, again_s: float = _HOUR_S) -> None:
        self._again_s = again_s
        self._events: dict[str, tuple[float, int]] = {}
        """When each is to be logged again, in trio's time, and how often it was not since."""

    def log(self, write: Callable[..., object], event: str, **details: object) -> None:
        """Write an event, unless it was written lately; `repeated` are those left out since."""
        now = trio.current_time()
        again_at, repeated = self._events.get(event, (now, 0))
        if now < again_at:
            self._events[event] = again_at, repeated + 1
            return
        self._events[event] = now + self._again_s, 0
        write(event, **details, **({"repeated": repeated} if repeated else {}))

    def over(self) -> bool:
        """Begin anew with every event; return whether any was written."""
        was_logged = bool(self._events)
        self._events.clear()
        return was_logged
