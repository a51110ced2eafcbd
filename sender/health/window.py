"""How many requests may be unanswered at a broker, and how many entries may wait for it. Pure.

The window grows by one with each answer that is quick, then more slowly, and only while it is what
keeps requests back. It shrinks when answers take long, by the measure of the broker itself: more
than `usual_s_max` and more than twice as long as its quickest of late. So a broker that is overrun
gets less at a time, and one that is far away as much as fits on the way. A refused request shrinks
it as well; after one that was not answered in time there is another connection, which begins anew.

What may wait is what the broker answers within `queue_s`, by Little's law: it answers as many
entries in that time as are in flight, times `queue_s` over the time that an answer takes.
"""

import math
from typing import Final

from sender.settings.config import SenderConfig

_SMOOTHING: Final = 0.3
"""Weight of the latest answer in the means."""

_SMOOTHING_DOWN: Final = 0.7
"""The same for an answer that is quicker than the mean: there are few from a slow broker."""

_TOLERANCE: Final = 2.0
"""Times as long as the quickest answer of late that an answer may take."""

_SHRINKING: Final = 0.7

_FADE_S: Final = 0.5
"""Time in which it is forgotten to a third how long answers took: where little is sent a group
would wait long for the turn in which it shows how it is now."""

_QUICKEST_S: Final = 10.0
"""The quickest answer of late is that of the last one to two times so many seconds."""


class Window:
    """The window of one group. Times are in seconds, of one clock that does not go back.

    Invariants: 1 <= requests <= requests_max; queue_items is between its limits.
    """

    def __init__(self, limits: SenderConfig) -> None:
        self._limits = limits
        self._width = float(min(limits.in_flight_requests_start, limits.in_flight_requests_max))
        self._quick_until = float(limits.in_flight_requests_max)
        """Below this the window grows by one with each answer."""
        self.answer_s = 0.0
        """Mean time that an answer takes, of late; 0 before the first one."""
        self._answered_at = -math.inf
        self.quick_s = limits.quick_s
        """Answers within this are quick, by the measure of the broker."""
        self._items = 0.0
        """Mean entries of a request."""
        self._shrunk_at = -math.inf
        self._quickest = self._quickest_before = math.inf
        self._quickest_since = -math.inf

    @property
    def requests(self) -> int:
        """Requests that may be unanswered at a time."""
        return int(self._width)

    @property
    def queue_items(self) -> int:
        """Entries that may wait."""
        limits = self._limits
        if not self.answer_s:
            return limits.queue_items_min
        items = self._width * self._items * limits.queue_s / self.answer_s
        return int(min(max(items, limits.queue_items_min), limits.queue_items_max))

    def recent_s(self, now: float) -> float:
        """Return the mean time that an answer takes, which counts less the longer it is ago."""
        return self.answer_s * math.exp((self._answered_at - now) / _FADE_S)

    def answered(self, *, now: float, sent_at: float, items: int, was_full: bool) -> None:
        """Take the time that an answer took; `was_full` says that no further request was let out.

        An answer that is a refusal goes to shrink() instead.
        """
        took_s = max(now - sent_at, 1e-6)
        self._answered_at = now
        if self.answer_s:
            change = took_s - self.answer_s
            self.answer_s += change * (_SMOOTHING if change > 0 else _SMOOTHING_DOWN)
            self._items += _SMOOTHING * (items - self._items)
        else:
            self.answer_s, self._items = took_s, float(items)
        if now - self._quickest_since > _QUICKEST_S:
            self._quickest_before, self._quickest = self._quickest, took_s
            self._quickest_since = now
        else:
            self._quickest = min(self._quickest, took_s)
        usual_s = _TOLERANCE * min(self._quickest, self._quickest_before)
        self.quick_s = min(max(usual_s, self._limits.quick_s), self._limits.usual_s_max)
        if took_s > max(self._limits.usual_s_max, usual_s):
            self.shrink(now=now, sent_at=sent_at)
        elif was_full:
            step = 1.0 if self._width < self._quick_until else 1.0 / self._width
            self._width = min(self._width + step, float(self._limits.in_flight_requests_max))

    def shrink(self, *, now: float, sent_at: float) -> None:
        """Let out less; once for all requests that were on their way at that moment."""
        if sent_at >= self._shrunk_at:
            self._width = max(1.0, self._width * _SHRINKING)
            self._quick_until = self._width
            self._shrunk_at = now
