"""Paces the requests of an endpoint: how many it gets at a time, and when.

It begins with the webhook's concurrency. An answer that asks for less halves that, down to one, and
each that is well adds a part of one again. When one at a time is too many there are pauses: 1 s,
then twice as long each time, up to a minute. Retry-After says itself how long.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio

PAUSE_MAX_S: Final = 60.0
"""The longest pause that no endpoint asks for."""


class Pace:
    """Turns for the requests of an endpoint. To be used in one event loop."""

    def __init__(self, concurrency: int, rate_per_s: float | None) -> None:
        """Allow so many at a time and in a second; None: as many as there are."""
        self._most = concurrency
        self._interval_s = 0.0 if rate_per_s is None else 1 / rate_per_s
        self._next_at = 0.0
        self._limit = float(concurrency)
        self._turns = anyio.CapacityLimiter(concurrency)
        self._slowed_at = 0.0
        self._pause_s = 0.0
        self.is_paused = False
        """True while nobody gets a turn."""

    @property
    def limit(self) -> int:
        """Requests that there may be at a time now."""
        return int(self._limit)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[bool]:
        """Wait for a turn, and hold it in the block; False: there is a pause, and no turn."""
        async with self._turns:
            if self._interval_s and not self.is_paused:
                now = asyncio.get_running_loop().time()
                self._next_at = max(now, self._next_at + self._interval_s)
                await asyncio.sleep(self._next_at - now)
            yield not self.is_paused

    def go_on(self) -> None:
        """Note that the endpoint took a request."""
        self._pause_s = 0.0
        if self._limit < self._most:
            self._limit = min(self._most, self._limit + 1 / self._limit)
            self._apply()

    def slow_down(self, began_at: float, retry_after_s: float) -> float:
        """Note that an endpoint wants less; return how many seconds it is to be left alone.

        began_at: when the request began, by the clock of the loop. What was under way when it was
        slowed down last says nothing new. retry_after_s: how long it asks for; 0: it does not.
        """
        if retry_after_s:
            return retry_after_s
        if began_at < self._slowed_at:
            return 0.0
        self._slowed_at = asyncio.get_running_loop().time()
        if self._limit > 1:
            self._limit = max(1.0, self._limit / 2)
            self._apply()
            return 0.0
        self._pause_s = min(max(1.0, 2 * self._pause_s), PAUSE_MAX_S)
        return self._pause_s

    def pause(self) -> None:
        """Give no turns; who waits for one gets none."""
        self.is_paused = True
        self._apply()

    def resume(self) -> None:
        """Give turns again."""
        self.is_paused = False
        self._apply()

    def _apply(self) -> None:
        """Set how many may begin; in a pause all may, and get no turn."""
        self._turns.total_tokens = math.inf if self.is_paused else self.limit
