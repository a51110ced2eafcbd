"""What a broker group's turn is worth: its weight, by how it has done of late. Pure.

    effective = configured weight x recent success x pace x ramp, and never less than a floor

Success falls with each item that the broker refuses for its own reasons and comes back as time
passes, since what is not tried cannot succeed. Pace is 1 while answers are quick and falls with the
square of the time that they take: well before a group fails others have most of its share. The ramp
leads a group that was dead back to its weight.
"""

import math
from typing import Final

_SMOOTHING: Final = 0.1
"""Weight of the latest request in the mean success."""

RAMP_S: Final = 2.0
"""Time in which the share of a group that had failed grows back to its weight."""

_FADE_S: Final = 5.0
"""Time in which the refusals of a group, by which it has a smaller share, are forgotten to a
third."""

FLOOR: Final = 0.01
"""However badly a group does, its share is that of this part of its weight, or it would never be
known when it does well again."""

_RAMP_START: Final = 0.1

_UNSPOILT: Final = 0.999
"""Success from here on is all there is."""


class Weight:
    """The weight of one group. Times are in seconds, of one clock that does not go back."""

    def __init__(self, configured: float) -> None:
        self.configured = configured
        self._success = 1.0
        self._success_at = 0.0
        self._ramp_from: float | None = None

    def answered(self, now: float, taken: float) -> None:
        """Take the share of a request's items that were taken, of those that the broker judged."""
        success = self.success(now)
        if taken < 1.0 or success < 1.0:
            success += _SMOOTHING * (taken - success)
            self._success = 1.0 if success > _UNSPOILT else success
            self._success_at = now

    def recovered(self, now: float) -> None:
        """Begin the way back to the full weight: the group was given up and is well again."""
        self._success = 1.0
        self._ramp_from = now

    def success(self, now: float) -> float:
        """Return the recent success, 0 to 1."""
        if self._success == 1.0:
            return 1.0
        faded = math.exp((self._success_at - now) / _FADE_S)
        return 1.0 - (1.0 - self._success) * faded

    def effective(self, now: float, *, answer_s: float, quick_s: float) -> float:
        """Return what a turn is worth, for a group whose answers take so long.

        They are quick if they take no longer than `quick_s`.
        """
        share = self.success(now)
        if answer_s > quick_s:
            share *= (quick_s / answer_s) ** 2
        if self._ramp_from is not None:
            way = (now - self._ramp_from) / RAMP_S
            if way < 1.0:
                share *= max(way, _RAMP_START)
            else:
                self._ramp_from = None
        return self.configured * max(share, FLOOR)
