"""Which of many to look at next, so that what happens often leads to a look at few. Pure.

One for whom something has changed is looked at soon; one who waits for a time, when it has come.
What may have changed something for all (there is room for more in the sender) leads to a look at
each of them in turn, a few every `turn_s` seconds: a thousand cost little, however often that
happens. And so few are due in one go that other tasks need not wait until all have been looked at.

Time is an argument, in seconds.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import islice
from typing import Final, Generic, TypeVar

K = TypeVar("K", int, str)

_MOST: Final = 64
"""Looks due in one go of those that are wanted soon, and of those whose time has come."""
_TURNS: Final = 32
"""The same of those in turn."""


class Agenda(Generic[K]):
    """Keeps who is to be looked at, by key.

    Invariant: of each key in `_planned` that time is in the heap; what else is there is outdated.
    """

    def __init__(self, *, everyone: Callable[[], Iterable[K]], turn_s: float) -> None:
        """`everyone` says who is looked at in turn."""
        self._everyone: Callable[[], Iterable[K]] = everyone
        self._turn_s = turn_s
        self._soon: dict[K, None] = {}
        """In the order in which they were asked for."""
        self._planned: dict[K, float] = {}
        self._times: list[tuple[float, K]] = []
        self._turns: deque[K] = deque()
        """Who is still to be looked at in this round."""
        self._round_wanted = False
        """Whether there is to be another one, after this."""
        self._turn_at = -math.inf

    def soon(self, key: K) -> None:
        """Have one be looked at as soon as may be."""
        self._soon[key] = None

    def at(self, key: K, time: float) -> None:
        """Have one be looked at by this time; an earlier one that was planned stays."""
        if time < self._planned.get(key, math.inf):
            self._planned[key] = time
            heappush(self._times, (time, key))

    def all_in_turn(self) -> bool:
        """Have everyone be looked at in turn; say whether `next_at` may be earlier by it."""
        was_asleep = not (self._round_wanted or self._turns)
        self._round_wanted = True
        return was_asleep

    def due(self, now: float) -> list[K]:
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
        if now >= self._turn_at:
            due.update(dict.fromkeys(self._next_turns(now)))
        return list(due)

    def _next_turns(self, now: float) -> list[K]:
        if not self._turns and self._round_wanted:
            self._round_wanted = False
            self._turns.extend(self._everyone())
        if self._turns:
            self._turn_at = now + self._turn_s
        return [self._turns.popleft() for _ in range(min(_TURNS, len(self._turns)))]

    def next_at(self, now: float) -> float:
        """Return when somebody is due, `now` at the earliest; infinite if nobody will be.

        It may be that in the end nobody is.
        """
        if self._soon:
            return now
        at = self._times[0][0] if self._times else math.inf
        if self._turns or self._round_wanted:
            at = min(at, self._turn_at)
        return max(at, now)
