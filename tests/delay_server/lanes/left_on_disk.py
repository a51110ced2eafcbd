"""What Lanes tells the handout, written down: for tests of what stands on Lanes alone."""

import numpy as np
import numpy.typing as npt

from storage.batch.entries import Entries


class LeftOnDisk:
    """Notes what is given back, and the lane of each subject that is in one."""

    def __init__(self) -> None:
        self.given_back: list[int] = []
        """Sequences."""
        self.forgotten: list[int] = []
        self.lane_of: dict[int, int] = {}
        self.remembered = 0

    def give_back(self, entries: Entries, *, is_forgotten: bool = False) -> None:
        """Note the sequences."""
        (self.forgotten if is_forgotten else self.given_back).extend(entries["sequence"].tolist())

    def assign(self, subjects: npt.NDArray[np.intp], lane: int) -> None:
        """Note the lane."""
        for subject in subjects.tolist():
            self.lane_of[subject] = lane
            if not lane:
                del self.lane_of[subject]

    def remember(self) -> None:
        """Count it."""
        self.remembered += 1
