"""Lanes that single subjects have to themselves, by number from 1 on. Pure."""

from heapq import heappop, heappush

import numpy as np

from storage.batch.number_set import grown


class OwnLanes:
    """Which subject has which number.

    Invariant: every number from 1 to `lanes_max` is free or has one subject.
    """

    def __init__(self, lanes_max: int) -> None:
        self.of_subject = np.zeros(64, np.int32)
        """The number of each subject, 0 for none."""
        self._subject_of: dict[int, int] = {}
        self._free = list(range(1, lanes_max + 1))

    def __len__(self) -> int:
        """Return how many numbers are in use."""
        return len(self._subject_of)

    def grow(self, size: int) -> None:
        """Have a place for subjects below `size`."""
        self.of_subject = grown(self.of_subject, size)

    @property
    def has_free(self) -> bool:
        """Whether another subject may have one."""
        return bool(self._free)

    def subjects(self) -> list[int]:
        """Return the subjects that have one."""
        return list(self._subject_of.values())

    def number(self, subject: int) -> int:
        """Return the lane that is a subject's own; 0 if it has none."""
        return int(self.of_subject[subject]) if subject < len(self.of_subject) else 0

    def subject_of(self, number: int) -> int | None:
        """Return the subject whose own lane this is."""
        return self._subject_of.get(number)

    def take(self, subject: int) -> int:
        """Give a subject the least free number."""
        number = heappop(self._free)
        self.of_subject[subject] = number
        self._subject_of[number] = subject
        return number

    def release(self, subject: int) -> None:
        """Take a subject's number back."""
        number = self.number(subject)
        heappush(self._free, number)
        del self._subject_of[number]
        self.of_subject[subject] = 0
