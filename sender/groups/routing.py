"""Which broker group takes which entries: the one place where a choice between groups is made.

The sender asks for a choice whenever entries wait and a group has room, with the groups as they are
found by entries of that lane: what room they have, and what a turn of theirs is worth. How a group
is doing does not matter here; what the doing of one means for another does (`is_well`).

Where groups differ by subject a lane has one set of groups, told by LaneRoutes, and the choice is
among those alone: so nothing is looked up for a message.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from sender.groups.taking import PatternSet, Takers
from sender.queues.lanes import lane_of
from sender.queues.parcels import NOBODY, Entries, Parcel

LATER: Final = -1
"""The choice for an entry that no group can take now. It keeps its place at the front."""

_PARTS: Final = 4
"""Into so many parts is divided what waits, if that is not very much: one group does not get all of
it, for which the others would get all that comes in the seconds after it."""

_PART_MIN: Final = 16
"""Entries that are not divided: each group that gets some of them has a request of its own."""

_SETS_KEPT_MAX: Final = 10_000
"""Sets of groups come and go; beyond it what each group has to its credit is forgotten."""

Choices = npt.NDArray[np.int16]
"""For each entry the position of its group among those offered, or LATER."""


@dataclass(slots=True)
class LaneView:
    """A group as the entries of one lane find it at one moment: what a choice depends on."""

    name: str
    room: int
    """Entries that it can be given now; 0 while it can be sent nothing."""
    is_well: bool
    """Return True if it takes these entries, in good time, if perhaps not now."""
    room_beside: int
    """Entries that it should be given beside groups that are well; never more than `room`."""
    weight: float
    """Return the worth of a turn of it now; more than 0."""


class LaneRoutes(Protocol):
    """Which groups the entries of each lane may go to, and in which lane an entry belongs.

    Both change at run time: then `Sender.routes_changed` is called with the lanes concerned.
    """

    def groups_of(self, lane: int) -> Mapping[str, Takers]:
        """Return the names of the groups that a lane may use, and which receivers take it there.

        Those that the sender has not got count for nothing.
        """

    def lanes_of(self, entries: Entries) -> npt.NDArray[np.int32]:
        """Return the lane in which each entry belongs now."""

    def take_sets(self, group: str, sets: Collection[PatternSet]) -> Iterator[None]:
        """Go by what receivers of a group take from now on; subjects change lanes in steps."""


def in_their_lanes(parcels: Sequence[Parcel], routes: LaneRoutes | None) -> Sequence[Parcel]:
    """Return the same entries in the lanes where they belong by now."""
    if routes is None:
        return parcels
    placed: list[Parcel] = []
    for parcel in parcels:
        lanes = routes.lanes_of(parcel.entries)
        if (lanes == lane_of(parcel.lane)).all():
            placed.append(parcel)
            continue
        for lane in np.unique(lanes).tolist():
            part = parcel.where(lanes == lane)
            # What is late of its lane stays so.
            part.lane = parcel.lane if lane == lane_of(parcel.lane) else lane
            placed.append(part)
    return placed


class Weighted:
    """Smooth weighted round robin, part by part, over the groups that have room.

    Each group that has room is credited its part, by weight, of whatever is given to any; whoever
    has most to its credit is next and pays for what it gets. A part is a batch in the middle of a
    burst, and smaller towards the end of what waits: so shares are exact to a few entries however
    many come at a time, and nobody gets many parts in a row. A group without room earns nothing: it
    has nothing to catch up on when it is back.

    Whole batches have an account of their own: what one group got too much of in the middle of a
    burst is made up for in batches of the next one, or else a group would be given none of the
    hundreds of single entries after it. So what each got is within a few batches of its share over
    any time, and of what comes one by one within a few entries.

    Entries that a group which is well can take soon are not given to one which is not, but for a
    few. The group to avoid gets nothing while another one is well, though all of those may be full:
    a group that refuses quickly always has room, and would be given the same entries until they are
    dead letters. Where no other one is well it gets what no other one has room for: a broker that
    does not answer must not keep entries from the only one that does.
    """

    def __init__(self, *, batch_items: int) -> None:
        self._batch_items = batch_items
        self._credits: dict[tuple[bool, tuple[str, ...]], list[float]] = {}
        """By whether whole batches are given, for each set of groups to choose from, what they have
        to their credit, in entries: with one for all sets, what a lane of one group gets there
        would be missing in other lanes."""

    def choose(self, entries: Entries, *, avoid: int, groups: Sequence[LaneView]) -> Choices:
        """Return the group of each entry. None gets more entries than it has room.

        `avoid` is the position of the group where these entries failed last, or NOBODY.
        """
        choices = np.full(len(entries), LATER, np.int16)
        rooms = _rooms(groups, avoid)
        weights = [group.weight for group in groups]
        # So many are a part of a burst, of which more comes next: only its end is divided.
        is_more = len(entries) >= 2 * self._batch_items
        credit = self._credits_of(groups, is_more=is_more)
        able: list[int] = []
        parts: list[float] = []
        start = 0
        least = self._batch_items if is_more else _PART_MIN
        while start < len(entries):
            if not able:
                able = [number for number, room in enumerate(rooms) if room > 0]
                able = [number for number in able if number != avoid] or able
                if not able:
                    break
                of_one = 1.0 / sum([weights[number] for number in able])
                parts = [weight * of_one for weight in weights]
            left = len(entries) - start
            chosen = able[0]
            if len(able) == 1:
                # There is no choice, so nobody owes anything for it.
                count = min(left, rooms[chosen])
            else:
                count = min(left, self._batch_items, max(left // _PARTS, least))
                most = -math.inf
                for number in able:
                    # Rounded, or equals would not take turns.
                    has = round(credit[number] + count * parts[number], 6)
                    if has > most:
                        chosen, most = number, has
                count = min(count, rooms[chosen])
                for number in able:
                    credit[number] += count * parts[number]
                credit[chosen] -= count
            choices[start : start + count] = chosen
            rooms[chosen] -= count
            if not rooms[chosen]:
                able = []
            start += count
        return choices

    def _credits_of(self, groups: Sequence[LaneView], *, is_more: bool) -> list[float]:
        account = is_more, tuple([group.name for group in groups])
        found = self._credits.get(account)
        if found is None:
            if len(self._credits) >= _SETS_KEPT_MAX:
                self._credits.clear()
            found = self._credits[account] = [0.0] * len(groups)
        return found


def _rooms(groups: Sequence[LaneView], avoid: int) -> list[int]:
    """Return how many entries each group may be given."""
    if any(group.is_well for group in groups):
        rooms = [group.room_beside for group in groups]
    else:
        rooms = [group.room for group in groups]
    if avoid != NOBODY and any(group.is_well for group in groups if group is not groups[avoid]):
        rooms[avoid] = 0
    return rooms
