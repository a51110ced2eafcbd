"""Lanes of which a broker group takes nothing, though it may be well otherwise. Pure.

A broker that refuses every item of a lane for good (it does not know the subjects, or they are
blocked) answers quickly and takes part in whatever else it is given: its circuit has no reason to
open. So it is remembered by lane. That matters only beside other groups: where all that a lane may
go to refuse it, each is tried as ever.
"""

import random
from dataclasses import dataclass
from typing import Final

from delay_transport.seams.backoff import Backoff

_LANES_MAX: Final = 10_000
"""Lanes remembered; beyond it all are forgotten, and found out anew."""


@dataclass(slots=True)
class _Refusals:
    items: int = 0
    """Refused in a row."""
    waits: int = 0
    """In a row."""
    until: float = 0.0
    """When an item may be risked."""


class RefusedLanes:
    """The lanes that one group refuses. Times are in seconds, of a clock that does not go back."""

    def __init__(self, *, items_max: int, wait: Backoff, chance: random.Random) -> None:
        self._items_max = items_max
        self._wait = wait
        self._chance = chance
        self._lanes: dict[int, _Refusals] = {}

    def __len__(self) -> int:
        """Return the number of lanes of which the latest items were refused."""
        return len(self._lanes)

    def __contains__(self, lane: int) -> bool:
        """Say whether so many in a row were refused that the lane had better go elsewhere."""
        found = self._lanes.get(lane)
        return found is not None and found.items >= self._items_max

    def refused(self, lane: int, items: int, now: float) -> bool:
        """Note that all of some items were refused; say whether that is new of this lane."""
        if len(self._lanes) >= _LANES_MAX and lane not in self._lanes:
            self._lanes.clear()
        found = self._lanes.setdefault(lane, _Refusals())
        was_known = found.items >= self._items_max
        found.items += items
        if found.items >= self._items_max and now >= found.until:
            found.waits += 1
            found.until = now + self._wait.wait_s(found.waits, self._chance)
        return found.items >= self._items_max and not was_known

    def taken(self, lane: int) -> None:
        """Note that an item of a lane was taken."""
        self._lanes.pop(lane, None)

    def may_risk(self, lane: int, now: float) -> bool:
        """Say whether an item of a refused lane may be risked again."""
        return now >= self._lanes[lane].until

    def risked(self, lane: int, now: float) -> None:
        """Note that one is risked: no further one for a while, whatever becomes of it."""
        found = self._lanes.get(lane)
        if found is not None and found.items >= self._items_max and now >= found.until:
            found.waits += 1
            found.until = now + self._wait.wait_s(found.waits, self._chance)
