"""Who is connected over HTTP, and who has to go when there are too many.

A connection costs its peer nothing, so there may always be one more that says half a request and no
more. Whoever comes is let in, and one that has not said all that it wants goes in its place: the
one that is there longest, of those from where most come. So a whole request, which is there at
once, is answered however many hold half ones; and who opens thousands takes the place of its own.

    has not said a whole request, or waits between two    may have to go
    is being answered                                     stays
"""

import itertools
import math
from collections.abc import Callable
from typing import Final

import structlog
import trio

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_SUMMARY_S: Final = 10.0
"""A line in the log at most so often."""


def _has_said_nothing() -> bool:
    return False


class Guest:
    """One connection."""

    __slots__ = ("go", "is_answered", "where")

    def __init__(self, where: str) -> None:
        self.where = where
        self.go: Callable[[], None]
        """Ends it; set by who has it, before the next one is admitted."""
        self.is_answered: Callable[[], bool] = _has_said_nothing
        """Says whether it has said all of a request and is being answered."""


class Guests:
    """All connections of a port, up to a limit."""

    def __init__(self, connections_max: int) -> None:
        self._max = connections_max
        # The oldest first, by where they come from.
        self._from: dict[str, dict[Guest, None]] = {}
        self._count = 0
        self.shown_out = 0
        """Those that had to go for another one."""
        self.refused = 0
        """Those that found everybody else being answered."""
        self._untold = 0
        self._told_at = -math.inf

    def __len__(self) -> int:
        """Return how many there are."""
        return self._count

    def admit(self, where: str) -> Guest | None:
        """Return one more, which comes from there; None if there is no room."""
        if self._count >= self._max:
            leaving = self._who_has_to_go()
            if leaving is None:
                self.refused += 1
                self._tell(where)
                return None
            self.shown_out += 1
            self._tell(leaving.where)
            self.leave(leaving)
            leaving.go()
        guest = Guest(where)
        self._from.setdefault(where, {})[guest] = None
        self._count += 1
        return guest

    def leave(self, guest: Guest) -> None:
        """Note that a connection is over; also of one that had to go."""
        neighbours = self._from.get(guest.where)
        if neighbours is None or guest not in neighbours:
            return
        del neighbours[guest]
        if not neighbours:
            del self._from[guest.where]
        self._count -= 1

    def _who_has_to_go(self) -> Guest | None:
        crowd = max(self._from, key=lambda where: len(self._from[where]))
        candidates = itertools.chain(
            self._from[crowd], itertools.chain.from_iterable(self._from.values())
        )
        return next((guest for guest in candidates if not guest.is_answered()), None)

    def _tell(self, where: str) -> None:
        self._untold += 1
        now = trio.current_time()
        if now >= self._told_at + _SUMMARY_S:
            _log.warning(
                "too many HTTP connections: those without a whole request are closed",
                count=self._untold,
                last_from=where,
                connections_max=self._max,
            )
            self._untold = 0
            self._told_at = now
