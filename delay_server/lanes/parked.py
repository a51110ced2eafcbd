"""Which subjects are parked: what comes of them is left on disk, in the lane they wait for. Pure.

A subject without a route, or one that is paused, waits for none: its lane leads nowhere.
"""

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from storage.batch.number_set import Numbers, NumberSet

UNROUTED_MAX: Final = 100_000
"""Subjects parked whose lane leads nowhere, if nothing else is said; each takes some bytes."""


class Assigns(Protocol):
    """Puts subjects into lanes of the handout."""

    def assign(self, subjects: Numbers, lane: int, /) -> None:
        """Put subjects into a lane, which comes by what is on disk only of them."""


class Parked:
    """The parked subjects by number, and those among them that wait for a lane.

    Invariant: a parked subject is in `waiting_in` exactly if its lane is not `nowhere`, and is in
    the same lane of the handout; one that is not parked is in lane 0 there.
    """

    def __init__(self, on_disk: Assigns, *, nowhere: int, unrouted_max: int) -> None:
        """Park at most `unrouted_max` subjects whose lane is `nowhere`."""
        self._on_disk = on_disk
        self._nowhere = nowhere
        self.unrouted_max = unrouted_max
        self._subjects = NumberSet()
        self.waiting_in: dict[int, set[int]] = {}
        """By lane: subjects whose messages are to come from disk."""
        self.opened = 0
        """Times that a lane had to wait of which nobody waited before."""
        self._moved: dict[int, list[int]] = {}
        """By lane: subjects that are to be assigned to it."""
        self._eased: set[int] = set()
        """Lanes of which less is held than before, or for which somebody waits anew; none need be
        there for which nobody waits."""

    def __len__(self) -> int:
        """Return how many subjects are parked."""
        return len(self._subjects)

    def __contains__(self, subject: int) -> bool:
        """Say whether a subject is parked."""
        return subject in self._subjects

    def contains(self, subjects: Numbers) -> npt.NDArray[np.bool_]:
        """Say which of these are parked."""
        return self._subjects.contains(subjects)

    def numbers(self) -> Numbers:
        """Return all of them, ascending."""
        return self._subjects.numbers()

    # -- what waits --------------------------------------------------------------------------

    @property
    def waiting(self) -> set[int]:
        """Subjects whose messages wait on disk until there is room for them."""
        return set().union(*self.waiting_in.values())

    @property
    def waiting_count(self) -> int:
        """How many such subjects there are."""
        return sum(map(len, self.waiting_in.values()))

    @property
    def anyone_waits(self) -> bool:
        """Whether there are such subjects."""
        return bool(self.waiting_in)

    def take_eased(self) -> list[int]:
        """Return, once, the lanes of which more may be held than before, where anyone waits."""
        eased, self._eased = self._eased, set()
        return sorted(eased & self.waiting_in.keys())

    def ease(self, lanes: list[int]) -> None:
        """Hear of lanes of which less is held than before."""
        self._eased.update(lanes)

    @property
    def _unrouted(self) -> int:
        """How many subjects are parked because nothing of them may leave."""
        return len(self) - self.waiting_count

    @property
    def is_full_of_unrouted(self) -> bool:
        """Whether what is due of further subjects without a route has to be loaded anew later."""
        return self._unrouted >= self.unrouted_max

    @property
    def has_room_for_unrouted(self) -> bool:
        """Whether half as many subjects as there may be wait for want of a route, at the most."""
        return self._unrouted <= self.unrouted_max // 2

    # -- who comes, moves and goes -----------------------------------------------------------

    def park(self, subjects: Numbers, lane: int) -> None:
        """Leave what comes of these on disk; they belong in this lane, and are not parked.

        Those for which there is no room are not parked.
        """
        if lane == self._nowhere:
            subjects = subjects[: max(self.unrouted_max - self._unrouted, 0)]
        self._subjects.add(subjects)
        for subject in subjects.tolist():
            self._wait(subject, lane)
        if len(subjects):
            self._on_disk.assign(subjects, lane)

    def move(self, subject: int, before: int, lane: int) -> None:
        """Hear that a parked subject belongs in another lane; `tell` says so to the handout."""
        if before != self._nowhere:
            self.waiting_in[before].remove(subject)
            if not self.waiting_in[before]:
                del self.waiting_in[before]
        self._wait(subject, lane)
        self._moved.setdefault(lane, []).append(subject)

    def tell(self) -> None:
        """Assign the subjects that have moved; before anything of them is given back."""
        moved, self._moved = self._moved, {}
        for lane, subjects in moved.items():
            self._on_disk.assign(np.array(subjects, np.intp), lane)

    def _wait(self, subject: int, lane: int) -> None:
        if lane != self._nowhere:
            self.opened += lane not in self.waiting_in
            self.waiting_in.setdefault(lane, set()).add(subject)
            self._eased.add(lane)

    def close(self, lane: int) -> Numbers:
        """Let the messages of a lane's subjects come by way of the wheel again; return these."""
        subjects = np.array(sorted(self.waiting_in.pop(lane)), np.intp)
        self._subjects.remove(subjects)
        self._on_disk.assign(subjects, 0)
        return subjects
