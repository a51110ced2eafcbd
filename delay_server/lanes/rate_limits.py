"""What is limited in rate, on its way into the sender: a bucket of tokens for each limit. Pure.

Entries of a limited lane (subject_rules.py) are held here, in their order, and given to the sender
as tokens come. A bucket holds what comes in `burst_s` seconds at the most, one token at least, so
that what leaves over any time t is at most

    rate * t + 2 * burst        with burst = max(1, rate * burst_s)

since no more is given to the sender while a burst of the limit waits there, as it does while its
broker groups are away. Where a limit has several lanes, since its subjects go to several groups, a
lane of which its part of a burst waits there (what comes in _QUANTUM_S, at the least) is passed
over until it goes on. What a broker refuses is sent again beyond the rate.

There may be a thousand limits: only those are looked at whose tokens have come, for which something
new waits, or, a few at a time, which may have been waiting for the sender (agenda.py).

Time is an argument, in seconds.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from delay_server.lanes.agenda import Agenda
from storage.batch.entries import ENTRY, Entries

_QUANTUM_S: Final = 0.01
"""What comes in so much time is given on at once: a wake of the loop costs more than less."""
_BLOCKED_S: Final = 0.01
_BLOCKED_S_MAX: Final = 1.0
"""Time between two looks at whether the sender has given on what it has; it doubles."""
_TURN_S: Final = 0.01
"""Time between two looks, at a few limits, when it has given on something."""


class _Bucket:
    """The tokens of one limit, and what waits for them."""

    def __init__(self, rate: float, burst_s: float) -> None:
        self.lanes: dict[int, deque[Entries]] = {}
        """Of each lane what waits; in the order of their turns. None is empty."""
        self._blocked_s = 0.0
        """How long to wait for the sender, while a burst waits there."""
        self.blocked_until = -math.inf
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
        return now + max(self.quantum - self._level, 0.0) / self.rate

    def block(self, now: float) -> None:
        """Wait for the sender, twice as long as before; a look meanwhile changes nothing."""
        if now >= self.blocked_until:
            self._blocked_s = min(max(2 * self._blocked_s, _BLOCKED_S), _BLOCKED_S_MAX)
            self.blocked_until = now + self._blocked_s

    def unblock(self) -> None:
        """Hear that the sender has room."""
        self._blocked_s = 0.0
        self.blocked_until = -math.inf


class RateLimits:
    """All that waits for tokens.

    Invariants: `count` is the number of entries in the buckets; every bucket with entries is to be
    looked at soon or at some time, those that wait for the sender are in `_blocked` besides.
    """

    def __init__(self, *, burst_s: float) -> None:
        self.count = 0
        """Entries that wait."""
        self.passed = 0
        """Entries given to the sender so far."""
        self._burst_s = burst_s
        self._buckets: dict[str, _Bucket] = {}
        self._pattern_of: dict[int, str] = {}
        self._blocked: dict[str, None] = {}
        self._looks = Agenda[str](everyone=lambda: self._blocked, turn_s=_TURN_S)

    def set_rates(self, rates: Mapping[str, float]) -> None:
        """Let these limits hold from now on; what waits for others has to be taken by `take_lane`.

        Their tokens stay, so that setting a rate again and again lets no more pass.
        """
        for pattern, rate in rates.items():
            bucket = self._buckets.get(pattern)
            if bucket is None:
                self._buckets[pattern] = _Bucket(rate, self._burst_s)
            elif bucket.rate != rate:
                bucket.set_rate(rate)
                self._looks.soon(pattern)
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
        lanes = self._buckets[pattern].lanes
        if lane not in lanes:
            lanes[lane] = deque()
            self._looks.soon(pattern)
        return lanes[lane]

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
        # What is left has a larger part of the burst each.
        self._looks.soon(pattern)
        return np.concatenate(list(parts))

    def room_has_grown(self) -> bool:
        """Hear that the sender has given on something; say whether `next_at` may be earlier."""
        return bool(self._blocked) and self._looks.all_in_turn()

    def take(self, now: float, queued: Callable[[int], int]) -> Iterator[tuple[int, Entries]]:
        """Take what may leave now, lane by lane; `queued` says how much of one the sender has.

        With many limits it is but a part of it, and `next_at` is `now`.
        """
        for pattern in self._looks.due(now):
            bucket = self._buckets.get(pattern)
            self._blocked.pop(pattern, None)
            if bucket is None or not bucket.lanes:
                continue
            yield from self._take_from(bucket, now, queued)
            if bucket.blocked_until > now:
                self._blocked[pattern] = None
            if bucket.lanes:
                self._looks.at(pattern, max(bucket.ready_at(now), bucket.blocked_until))

    def _take_from(
        self, bucket: _Bucket, now: float, queued: Callable[[int], int]
    ) -> Iterator[tuple[int, Entries]]:
        left = bucket.tokens(now)
        if not left:
            return
        # Each lane has its part of a burst: one whose groups are away holds up no other one.
        share = math.ceil(max(bucket.burst / len(bucket.lanes), bucket.quantum))
        rooms = {lane: share - queued(lane) for lane in bucket.lanes}
        able = deque(lane for lane, room in rooms.items() if room > 0)
        if not able:
            bucket.block(now)
            return
        bucket.unblock()
        while left > 0 and able:
            part_of_left = -(-left // len(able))
            lane = able.popleft()
            # The others have their turn before this one has its next.
            queue = bucket.lanes.pop(lane)
            part = queue[0][: min(part_of_left, rooms[lane])]
            rooms[lane] -= len(part)
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
                if rooms[lane] > 0:
                    able.append(lane)
            else:
                del self._pattern_of[lane]
            yield lane, part

    def next_at(self, now: float) -> float:
        """Return when to take again, `now` at the earliest; infinite while nothing waits."""
        return self._looks.next_at(now) if self.count else math.inf

    @property
    def lanes(self) -> list[int]:
        """The lanes of which something waits."""
        return list(self._pattern_of)

    def parts(self) -> Iterator[Entries]:
        """Yield everything that waits."""
        for bucket in self._buckets.values():
            for queue in bucket.lanes.values():
                yield from queue
