"""Which broker group takes which entries: the one place where a choice between groups is made.

The sender asks for a choice whenever entries wait and a group has room, with the entries' subjects
and the groups' load before it. Weights, success rates and routes per subject are further forms of
Routing; a circuit is a reason for a group to have no room.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from sender.parcels import Entries

LATER: Final = -1
"""The choice for an entry that no group can take now. It keeps its place at the front."""

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


class LeastLoaded:
    """Batch by batch to the group with the least queued and in flight; equals take turns.

    The group to avoid is taken only where no other one has room: a broker that does not answer
    must not keep entries from the only one that does.
    """

    def __init__(self, *, batch_items: int) -> None:
        self._batch_items = batch_items
        self._turn = 0

    def choose(self, entries: Entries, *, avoid: int, groups: Sequence[GroupView]) -> Choices:
        """Return the group of each entry."""
        choices = np.full(len(entries), LATER, np.int16)
        rooms = [group.room for group in groups]
        loads = [group.load for group in groups]
        start = 0
        while start < len(entries):
            able = [number for number, room in enumerate(rooms) if room > 0]
            able = [number for number in able if number != avoid] or able
            if not able:
                break
            turn = self._turn
            chosen = min(able, key=lambda number: (loads[number], (number - turn) % len(groups)))
            count = min(self._batch_items, rooms[chosen], len(entries) - start)
            choices[start : start + count] = chosen
            rooms[chosen] -= count
            loads[chosen] += count
            start += count
            # Among equals whoever comes after this one is next.
            self._turn = chosen + 1
        return choices
