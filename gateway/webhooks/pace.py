"""Paces the requests of an endpoint: how many it gets at a time, and when.

It begins with the webhook's concurrency. An answer that asks for less halves that, down to one, and
each that is well adds a part of one again. When one at a time is too many there are pauses: 1 s,
then twice as long each time, up to a minute. Retry-After says itself how long.
"""

import asyncio
from collections import deque
from typing import Final

PAUSE_MAX_S: Final = 60.0
"""The longest pause that no endpoint asks for."""
RETRY_AFTER_MAX_S: Final = 3600.0
"""The longest pause that one asks for."""


class Pace:
    """Turns for the requests of an endpoint. To be used in one event loop."""

    def __init__(self, concurrency: int, rate_per_s: float | None) -> None:
        """Allow so many at a time and in a second; None: as many as there are."""
        self._most = concurrency
        self._interval_s = 0.0 if rate_per_s is None else 1 / rate_per_s
        self._next_at = 0.0
        self._limit = float(concurrency)
        self._busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._slowed_at = 0.0
        self._pause_s = 0.0
        self.is_paused = False
        """True while nobody gets a turn."""

    @property
    def limit(self) -> int:
        """Requests that there may be at a time now."""
        return int(self._limit)

    async def begin(self) -> bool:
        """Wait for a turn; return False if there is none since there is a pause."""
        while self._busy >= self.limit and not self.is_paused:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        self._busy += 1
        try:
            if self._interval_s and not self.is_paused:
                now = asyncio.get_running_loop().time()
                self._next_at = max(now, self._next_at + self._interval_s)
                await asyncio.sleep(self._next_at - now)
            is_given = not self.is_paused
        except BaseException:
            self.end()
            raise
        if not is_given:
            self.end()
        return is_given

    def end(self) -> None:
        """End a turn."""
        self._busy -= 1
        self._wake()

    def go_on(self) -> None:
        """Note that the endpoint took a request."""
        self._pause_s = 0.0
        if self._limit < self._most:
            self._limit = min(self._most, self._limit + 1 / self._limit)
            self._wake()

    def slow_down(self, began_at: float, retry_after_s: float | None) -> float:
        """Note that an endpoint wants less; return how many seconds it is to be left alone.

        began_at: when the request began, by the clock of the loop. What was under way when it was
        slowed down last says nothing new.
        """
        if retry_after_s is not None:
            return min(retry_after_s, RETRY_AFTER_MAX_S)
        if began_at < self._slowed_at:
            return 0.0
        self._slowed_at = asyncio.get_running_loop().time()
        if self._limit > 1:
            self._limit = max(1.0, self._limit / 2)
            return 0.0
        self._pause_s = min(max(1.0, 2 * self._pause_s), PAUSE_MAX_S)
        return self._pause_s

    def pause(self) -> None:
        """Give no turns; who waits for one gets none."""
        self.is_paused = True
        self._wake()

    def resume(self) -> None:
        """Give turns again."""
        self.is_paused = False

    def _wake(self) -> None:
        room = len(self._waiting) if self.is_paused else self.limit - self._busy
        while self._waiting and room > 0:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1
