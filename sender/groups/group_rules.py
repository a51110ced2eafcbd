"""What an operator allows a broker group: nothing for now, or so much a second. Pure.

A rule is not health: a paused group is well and keeps its connection, it only gets nothing.
"""

import math
from dataclasses import dataclass
from typing import Final

from delay_transport.seams.leaky_bucket import LeakyBucket
from sender.settings.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRule:
    """What an operator allows one group."""

    paused: bool = False
    """Nothing is sent; what was queued for it goes elsewhere, or waits."""

    rate_per_s: float | None = None
    """Messages a second at the most, each try counted; None is no limit."""

    def __post_init__(self) -> None:
        rate = self.rate_per_s
        if rate is not None and not 0 < rate < math.inf:
            raise SettingError(f"a group's rate must be a positive number, got {rate}: pause it")


NO_RULE: Final = GroupRule()
"""Where no operator has said anything."""


_RATE_BURST_S: Final = 0.05
"""A group with a rate gets what it is allowed in this long at once, and no more: it is a part of a
second."""


class TokenBucket(LeakyBucket):
    """Smooths to a rate: after a pause there is no more than a burst of saved tokens.

    A token is room for one more. Times are in seconds, of any clock that does not go back.
    """

    def __init__(self, *, rate_per_s: float, burst_s: float) -> None:
        """Give `rate_per_s` tokens a second and save at most those of `burst_s` (but one)."""
        super().__init__(rate=rate_per_s, size=max(1.0, rate_per_s * burst_s))
        self.rate = rate_per_s
        """Tokens a second."""

    @property
    def step(self) -> int:
        """As many tokens as are worth waiting for: half a burst."""
        return max(1, int(self._size / 2))

    def available(self, now: float) -> int:
        """Return how many whole tokens there are."""
        return int(self._size - self.level(now))

    def take(self, count: int, now: float) -> None:
        """Take tokens, of which there must be as many."""
        assert count <= self.available(now), f"{count} tokens taken of {self.available(now)}"
        self.pour(now, count)

    def ready_at(self, count: int, now: float) -> float:
        """Return when there are so many tokens, or as many as there can be."""
        lacking = min(count, self._size) - (self._size - self.level(now))
        # A hair later: by then rounding must not have kept it from being whole.
        return now if lacking <= 0 else now + lacking / self._rate + _HAIR_S


_HAIR_S: Final = 1e-6


def bucket_of(rule: GroupRule) -> TokenBucket | None:
    """Return a bucket for the rate of a rule, full; None where it has none."""
    if rule.rate_per_s is None:
        return None
    return TokenBucket(rate_per_s=rule.rate_per_s, burst_s=_RATE_BURST_S)
