"""What is limited in rate, on its way into the sender: a bucket of tokens for each limit. Pure.

Entries of a limited lane (gates.py) are held here, in their order, and given to the sender as
tokens come. A bucket holds what comes in `burst_s` seconds at the most, one token at least, so that
what leaves over any time t is at most

    rate * t + 2 * burst        with burst = max(1, rate * burst_s)

since no more is given to the sender while a burst of the limit waits there, as it does while its
broker groups are away. What a broker refuses is sent again beyond the rate.

Time is an argument, in seconds.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from storage import ENTRY, Entries

_QUANTUM_S: Final = 0.01
"""What comes in so much time is given on at once: a wake of the loop costs more than less."""
_BLOCKED_S: Final = 0.01
_BLOCKED_S_MAX: Final = 1.0
"""Time between two looks at whether the sender has given on what it has; it doubles."""


class _Bucket:
    """The tokens of one limit, and what waits for them."""

    def __init__(self, rate: float, burst_s: float) -> None:
        self.lanes: dict[int, deque[Entries]] = {}
        """Of each lane what waits; in the order of their turns. None is empty."""
        self.blocked_s = 0.0
        """How long to wait for the sender, while a burst waits there."""
        self._burst_s = burst_s
        self._level = math.inf
        self._at = -math.inf
        self.set_rate(rate)

    def set_rate(self, rate: float) -> None:
        """Let tokens come at another rate."""
        self.rate = rate
        self.burst = max(1.0, rate * self._burst_s)
        self._level = min(self._level, self.burst)
        self.quantum = max(1.0, min(self.burst, rate * _QUANTUM_S))

    def tokens(self, now: float) -> int:
        """Return how many may leave now."""
        if self._at > -math.inf:
            self._level = min(self._level + (now - self._at) * self.rate, self.burst)
        self._at = now
        # A sum of many small times may miss a whole one by a little.
        return int(self._level + 1e-6)

    def use(self, count: int) -> None:
        """Count what leaves."""
        self._level -= count

    def ready_at(self, now: float) -> float:
        """Return when enough tokens have come to go on."""
        self.tokens(now)
        return now + max(self.quantum - self._level, 0.0) / self.rate + self.blocked_s


class Meters:
    """All that waits for tokens.

    Invariant: `count` is the number of entries in the buckets.
    """

    def __init__(self, *, burst_s: float) -> None:
        self.count = 0
        """Entries that wait."""
        self.passed = 0
        """Entries given to the sender so far."""
        self._burst_s = burst_s
        self._buckets: dict[str, _Bucket] = {}
        self._pattern_of: dict[int, str] = {}

    def set_rates(self, rates: Mapping[str, float]) -> None:
        """Let these limits hold from now on; what waits for others has to be taken by `take_lane`.

        Their tokens stay, so that setting a rate again and again lets no more pass.
        """
        for pattern, rate in rates.items():
            bucket = self._buckets.get(pattern)
            if bucket is None:
                self._buckets[pattern] = _Bucket(rate, self._burst_s)
            else:
                bucket.set_rate(rate)
        for pattern in [name for name in self._buckets if name not in rates]:
            if not self._buckets[pattern].lanes:
                del self._buckets[pattern]

    def put(self, lane: int, pattern: str, entries: Entries) -> None:
        """Let entries wait, after those of their lane; the limit is one that was set."""
        if len(entries):
            self._queue(lane, pattern).append(entries)
            self.count += len(entries)

    def put_first(self, lane: int, pattern: str, entries: Entries) -> None:
        """Let entries wait that come back from the sender, before those of their lane."""
        if len(entries):
            self._queue(lane, pattern).appendleft(entries)
            self.count += len(entries)

    def _queue(self, lane: int, pattern: str) -> "deque[Entries]":
        self._pattern_of[lane] = pattern
        return self._buckets[pattern].lanes.setdefault(lane, deque())

    def count_of(self, lane: int) -> int:
        """Return how many entries of a lane wait."""
        pattern = self._pattern_of.get(lane)
        return 0 if pattern is None else sum(map(len, self._buckets[pattern].lanes[lane]))

    def take_lane(self, lane: int) -> Entries:
        """Take all that waits of one lane, whatever the rate."""
        pattern = self._pattern_of.pop(lane, None)
        if pattern is None:
            return np.empty(0, ENTRY)
        parts = self._buckets[pattern].lanes.pop(lane)
        self.count -= sum(map(len, parts))
        return np.concatenate(list(parts))

    def take(self, now: float, queued: Callable[[int], int]) -> Iterator[tuple[int, Entries]]:
        """Take what may leave now, lane by lane; `queued` says how much of one the sender has."""
        for bucket in self._buckets.values():
            if bucket.lanes:
                yield from self._take_from(bucket, now, queued)

    def _take_from(
        self, bucket: _Bucket, now: float, queued: Callable[[int], int]
    ) -> Iterator[tuple[int, Entries]]:
        room = math.ceil(bucket.burst) - sum(map(queued, bucket.lanes))
        left = min(bucket.tokens(now), room)
        if room <= 0:
            bucket.blocked_s = min(max(2 * bucket.blocked_s, _BLOCKED_S), _BLOCKED_S_MAX)
            return
        bucket.blocked_s = 0.0
        while left > 0 and bucket.lanes:
            lane, queue = next(iter(bucket.lanes.items()))
            # The others have their turn before this one has its next.
            del bucket.lanes[lane]
            part = queue[0][: max(1, -(-left // (len(bucket.lanes) + 1)))]
            left -= len(part)
            bucket.use(len(part))
            self.count -= len(part)
            self.passed += len(part)
            if len(part) < len(queue[0]):
                queue[0] = queue[0][len(part) :]
            else:
                queue.popleft()
            if queue:
                bucket.lanes[lane] = queue
            else:
                del self._pattern_of[lane]
            yield lane, part

    def next_at(self, now: float) -> float:
        """Return when to take again; infinite while nothing waits."""
        waiting = [bucket for bucket in self._buckets.values() if bucket.lanes]
        return min((bucket.ready_at(now) for bucket in waiting), default=math.inf)

    @property
    def lanes(self) -> list[int]:
        """The lanes of which something waits."""
        return list(self._pattern_of)

    def parts(self) -> Iterator[Entries]:
        """Yield everything that waits."""
        for bucket in self._buckets.values():
            for queue in bucket.lanes.values():
                yield from queue
