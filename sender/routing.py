"""Which broker group takes which entries: the one place where a choice between groups is made.

The sender asks for a choice whenever entries wait and a group has room, with the entries' subjects
and the groups' load before it. Weights, success rates and routes per subject are further forms of
Routing; a circuit is a reason for a group to have no room.

Where groups differ by subject a lane has one set of groups, told by LaneRoutes, and a Routing is
shown those alone: so nothing is looked up for a message.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from sender.parcels import Entries

LATER: Final = -1
"""The choice for an entry that no group can take now. It keeps its place at the front."""

_SETS_KEPT_MAX: Final = 10_000
"""Sets of groups come and go; beyond it their turns begin anew."""

Choices = npt.NDArray[np.int16]
"""For each entry the position of its group among those offered, or LATER."""


class GroupView(Protocol):
    """What a choice may depend on."""

    @property
    def name(self) -> str:
        """The group's name."""

    @property
    def room(self) -> int:
        """How many of these entries it takes now; 0 while it is not healthy."""

    @property
    def load(self) -> int:
        """Entries queued for it and in flight to it."""


@dataclass(slots=True)
class LaneView:
    """A GroupView: the group as the entries of one lane find it at one moment."""

    name: str
    room: int
    load: int


class Routing(Protocol):
    """Chooses groups for entries."""

    def choose(self, entries: Entries, *, avoid: int, groups: Sequence[GroupView]) -> Choices:
        """Return the group of each entry. No group may get more entries than it has room.

        `avoid` is the position of the group where these entries failed last, or NOBODY.
        """


class LaneRoutes(Protocol):
    """Which groups the entries of each lane may go to, and in which lane an entry belongs.

    Both change at run time: then `Sender.routes_changed` is called with the lanes concerned.
    """

    def groups_of(self, lane: int) -> Sequence[str]:
        """Return the names of the groups that a lane may use.

        Those that the sender has not got count for nothing.
        """

    def lanes_of(self, entries: Entries) -> npt.NDArray[np.int32]:
        """Return the lane in which each entry belongs now."""

    def refused(self, entries: Entries, group: str) -> None:
        """Hear that a group refused entries in a way that puts their route in doubt."""

    def group_failed(self, group: str) -> None:
        """Hear that a group could not be reached, or that its connection ended badly."""


class LeastLoaded:
    """Batch by batch to the group with the least queued and in flight; equals take turns.

    The group to avoid is taken only where no other one has room: a broker that does not answer
    must not keep entries from the only one that does.
    """

    def __init__(self, *, batch_items: int) -> None:
        self._batch_items = batch_items
        self._turns: dict[tuple[str, ...], int] = {}
        """Whose turn it is, for each set of groups to choose from: with one for all of them, lanes
        whose sets overlap would always come upon the same group."""

    def choose(self, entries: Entries, *, avoid: int, groups: Sequence[GroupView]) -> Choices:
        """Return the group of each entry."""
        choices = np.full(len(entries), LATER, np.int16)
        rooms = [group.room for group in groups]
        loads = [group.load for group in groups]
        names = tuple([group.name for group in groups])
        turn = self._turns.get(names, 0)
        start = 0
        while start < len(entries):
            able = [number for number, room in enumerate(rooms) if room > 0]
            able = [number for number in able if number != avoid] or able
            if not able:
                break
            first = turn
            chosen = min(able, key=lambda number: (loads[number], (number - first) % len(groups)))
            count = min(self._batch_items, rooms[chosen], len(entries) - start)
            choices[start : start + count] = chosen
            rooms[chosen] -= count
            loads[chosen] += count
            start += count
            # Among equals whoever comes after this one is next.
            turn = chosen + 1
        if len(self._turns) >= _SETS_KEPT_MAX:
            self._turns.clear()
        self._turns[names] = turn
        return choices
