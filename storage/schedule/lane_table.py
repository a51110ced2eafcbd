"""Which lane each subject is in, and the cursor of each lane.

A *lane* is a number. Lane 0 has all subjects that are in no other one: its rows are loaded into the
wheel ahead of time. The rows of another lane wait on disk until the sender has room for them, or
for as long as nothing of it may leave (docs/decisions/0030-where-a-row-is-is-recorded.md).

The *loading* cursor of a lane says where its next reading begins: of its rows before it none is on
disk only, but for what a reading under way has yet to come by. Its *loaded* cursor stands where the
first of these readings began; of the rows before that there are none at all, but for what could not
be read. A cursor that is too low costs reading; one that is too high loses messages. So whoever
reads sets it first, to where he will end, and whatever comes or comes back meanwhile lowers it.
"""

import numpy as np
import numpy.typing as npt

from storage.batch.number_set import Numbers, grown
from storage.batch.rows import Int64s
from storage.schedule.keys import BEFORE_ALL, Key

_SUBJECTS_MIN = 64


class LaneTable:
    """Lanes of subjects by number, and their cursors.

    Invariant: a lane other than 0 has a cursor exactly if it has subjects.
    """

    def __init__(self) -> None:
        self.loading: Key = BEFORE_ALL
        """The loading cursor of lane 0."""
        self._cursors: dict[int, Key] = {}
        self._sizes: dict[int, int] = {}
        self._lane_of = np.zeros(_SUBJECTS_MIN, np.int32)

    def __len__(self) -> int:
        """Return how many lanes there are beside lane 0."""
        return len(self._cursors)

    def __contains__(self, lane: int) -> bool:
        """Say whether a lane other than 0 has subjects."""
        return lane in self._cursors

    def lanes_of(self, subjects: Numbers) -> npt.NDArray[np.int32]:
        """Return the lane of each; one without a number (-1), or a new one, is in lane 0."""
        lanes = np.zeros(len(subjects), np.int32)
        known = (subjects >= 0) & (subjects < len(self._lane_of))
        lanes[known] = self._lane_of[subjects[known]]
        return lanes

    def subjects(self, lane: int | None = None) -> Numbers:
        """Return the subjects of a lane other than 0, or of all of these, ascending."""
        return np.flatnonzero(self._lane_of if lane is None else self._lane_of == lane)

    def size(self, lane: int) -> int:
        """Return how many subjects a lane other than 0 has."""
        return self._sizes.get(lane, 0)

    def assign(self, subjects: Numbers, lane: int, loaded: Key) -> None:
        """Put subjects, each given once, into a lane.

        Its cursor is lowered to those of their lanes before, and to `loaded`, where a reading began
        that may not have come by all their rows.
        """
        self._lane_of = grown(self._lane_of, int(subjects.max(initial=0)) + 1)
        subjects = subjects[self._lane_of[subjects] != lane]
        if not len(subjects):
            return
        left, counts = np.unique(self._lane_of[subjects], return_counts=True)
        lowest = min([loaded, *map(self.loading_of, left.tolist())])
        self._lane_of[subjects] = lane
        self._count(lane, len(subjects), lowest)
        for before, count in zip(left.tolist(), counts.tolist(), strict=True):
            self._count(before, -count, lowest)

    def _count(self, lane: int, change: int, lowest: Key) -> None:
        """Count subjects of a lane more or less; where there are more, the cursor is lowered."""
        if not lane:
            self.loading = min(self.loading, lowest) if change > 0 else self.loading
            return
        size = self._sizes[lane] = self._sizes.get(lane, 0) + change
        if not size:
            del self._sizes[lane]
            self._cursors.pop(lane, None)
        elif change > 0:
            self._cursors[lane] = min(self._cursors.get(lane, lowest), lowest)

    # -- cursors -----------------------------------------------------------------------------

    def loading_of(self, lane: int) -> Key:
        """Return the loading cursor of lane 0 or of one that has subjects."""
        return self._cursors[lane] if lane else self.loading

    def begin(self, lane: int, until: Key) -> None:
        """Set the cursor of a lane to where a reading that begins now will end."""
        if lane:
            self._cursors[lane] = until
        else:
            self.loading = until

    def lower(self, lane: int, key: Key) -> None:
        """Have a lane read again what is after `key`."""
        if key < self.loading_of(lane):
            self.begin(lane, key)

    def lower_all(self, key: Key) -> None:
        """Have every lane read again what is after `key`."""
        self.lower(0, key)
        for lane in self._cursors:
            self.lower(lane, key)

    def lower_to_rows(self, lanes: npt.NDArray[np.int32], effective_ms: Int64s) -> None:
        """Have the lanes of rows that are on disk only come by them; one entry a row."""
        if not len(lanes):
            return
        first = int(lanes[0])
        if (lanes == first).all():
            self.lower(first, (int(effective_ms.min()), 0))
            return
        order = np.argsort(lanes, kind="stable")
        begins = np.concatenate([[0], np.flatnonzero(np.diff(lanes[order])) + 1])
        earliest = np.minimum.reduceat(effective_ms[order], begins)
        for lane, at_ms in zip(lanes[order[begins]].tolist(), earliest.tolist(), strict=True):
            self.lower(lane, (at_ms, 0))
