"""Which of many to look at next, so that what happens often leads to a look at few. Pure.

One for whom something has changed is looked at soon; one who waits for a time, when it has come.
What may have changed something for all (there is room for more in the sender) leads to a look at
each of them in turn, a few at a time: a thousand cost little, however often that happens. And so
few are due in one go that other tasks need not wait until all have been looked at.

Time is an argument, in seconds.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import islice
from typing import Final

_MOST: Final = 64
"""Looks due in one go of those that are wanted soon, and of those whose time has come."""
_TURNS: Final = 32
"""The same of those in turn."""


class Agenda:
    """Keeps who is to be looked at, by key.

    Invariant: of each key in `_planned` that time is in the heap; what else is there is outdated.
    """

    def __init__(self, everyone: Callable[[], Iterable[int]]) -> None:
        """`everyone` says who is looked at in turn."""
        self._everyone = everyone
        self._soon: dict[int, None] = {}
        """In the order in which they were asked for."""
        self._planned: dict[int, float] = {}
        self._times: list[tuple[float, int]] = []
        self._turns: deque[int] = deque()
        """Who is still to be looked at in this round."""
        self._round_wanted = False
        """Whether there is to be another one, after this."""

    def soon(self, key: int) -> None:
        """Have one be looked at as soon as may be."""
        self._soon[key] = None

    def at(self, key: int, time: float) -> None:
        """Have one be looked at by this time; an earlier one that was planned stays."""
        if time < self._planned.get(key, math.inf):
            self._planned[key] = time
            heappush(self._times, (time, key))

    def all_in_turn(self) -> None:
        """Ask for a look at everyone in turn."""
        self._round_wanted = True

    def due(self, now: float) -> list[int]:
        """Return whom to look at now, each once; who is to be looked at again has to be told."""
        due = dict.fromkeys(islice(self._soon, _MOST))
        for key in due:
            del self._soon[key]
        most = len(due) + _MOST
        while self._times and self._times[0][0] <= now and len(due) < most:
            time, key = heappop(self._times)
            if self._planned.get(key) == time:
                del self._planned[key]
                due[key] = None
        due.update(dict.fromkeys(self._next_turns()))
        return list(due)

    def _next_turns(self) -> list[int]:
        if not self._turns and self._round_wanted:
            self._round_wanted = False
            self._turns.extend(self._everyone())
        return [self._turns.popleft() for _ in range(min(_TURNS, len(self._turns)))]

    def next_at(self, now: float) -> float:
        """Return when somebody is due, `now` at the earliest; infinite if nobody will be.

        It may be that in the end nobody is.
        """
        if self._soon or self._turns or self._round_wanted:
            return now
        return max(self._times[0][0], now) if self._times else math.inf
