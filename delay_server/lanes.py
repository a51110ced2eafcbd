"""Which subjects have a lane of their own, and which of those wait on disk. No clock, no task.

A subject of which the sender holds more than a little gets a *number*: a lane of the sender, where
it takes turns with all others instead of standing before them. If it grows beyond its share of what
the sender may hold it *waits*: what is popped of it is dropped, and from then on its messages come
from disk, as fast as they leave (draining.py). The share is half of what is free, as in the shared
buffers of network switches: k subjects that wait leave 2/(2+k) of the room free for all others.
"""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from storage import Entries


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLimits:
    """When a subject gets a lane."""

    lane_entries_min: int = 2000
    """Messages of one subject that may be held for delivery before it gets a lane of its own."""

    lanes_max: int = 256
    """Lanes at a time. Beyond it hot subjects are delivered like all others."""

    def __post_init__(self) -> None:
        """Refuse nonsense."""
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")


class Lanes:
    """Counts what the sender holds of each subject and decides who has to wait.

    Invariants: every number from 1 to lanes_max is free or has one subject; a subject that waits
    has a number.
    """

    def __init__(self, limits: LaneLimits) -> None:
        self._limits = limits
        self._held = np.zeros(64, np.int64)
        self._numbers = np.zeros(64, np.int64)
        """The number of each subject, 0 for none."""
        self._numbered: set[int] = set()
        """Subjects that have a number."""
        self._free = list(range(1, limits.lanes_max + 1))
        self.waiting: set[int] = set()
        """Subjects whose messages wait on disk."""
        self.dropped = 0
        """Entries that were in memory and are read from disk again, since their subject waits."""

    def held(self, subject: int) -> int:
        """Return how many entries the sender holds of a subject."""
        return int(self._held[subject]) if subject < len(self._held) else 0

    def number(self, subject: int) -> int:
        """Return the sender's lane of a subject; 0 is that of all that have none of their own."""
        return int(self._numbers[subject]) if subject < len(self._numbers) else 0

    def holds_subjects(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """Say of which of so many subject numbers from `first` on anything is known here."""
        held = np.zeros(count, np.bool_)
        part = slice(first, first + count)
        known = (self._held[part] > 0) | (self._numbers[part] > 0)
        held[: len(known)] = known
        return held

    def share(self, room: int) -> int:
        """Return how much may be held of one subject while there is room for `room` more of all."""
        return max(self._limits.lane_entries_min, room // 2)

    def admit(self, entries: Entries, room: int) -> list[tuple[int, Entries]]:
        """Return due entries by lane, counted as held, without those of subjects that wait.

        `room` is what the sender has room for. A subject that exceeds its share waits from now on.
        """
        subjects = np.ascontiguousarray(entries["subject"])
        self._count(subjects)
        is_common = len(self._free) == self._limits.lanes_max
        if is_common and int(self._held[subjects].max()) <= self._limits.lane_entries_min:
            return [(0, entries)]
        common = np.ones(len(entries), np.bool_)
        offers: list[tuple[int, Entries]] = []
        share = self.share(max(room - len(entries), 0))
        present = np.unique(subjects)
        hot = (self._held[present] > self._limits.lane_entries_min) | (self._numbers[present] > 0)
        for subject in present[hot].tolist():
            number = self.number(subject) or self._new_number(subject)
            if not number:
                continue
            places = np.flatnonzero(subjects == subject)
            common[places] = False
            taken = 0
            if subject not in self.waiting:
                taken = min(max(share - (self.held(subject) - len(places)), 0), len(places))
            if taken:
                offers.append((number, entries[places[:taken]]))
            if taken < len(places):
                self._held[subject] -= len(places) - taken
                self.dropped += len(places) - taken
                self.waiting.add(subject)
        if common.any():
            offers.insert(0, (0, entries[common]))
        return offers

    def _new_number(self, subject: int) -> int:
        """Give a subject a number and return it; 0 if there is none left."""
        if not self._free:
            # Those of which nothing is held any more need theirs no longer.
            for idle in sorted(self._numbered - self.waiting):
                if not self._held[idle]:
                    heappush(self._free, self.number(idle))
                    self._numbers[idle] = 0
                    self._numbered.remove(idle)
        if self._free:
            self._numbers[subject] = heappop(self._free)
            self._numbered.add(subject)
        return self.number(subject)

    def drained(self, entries: Entries) -> None:
        """Count entries that came from disk as held."""
        self._count(np.ascontiguousarray(entries["subject"]))

    def settled(self, entries: Entries) -> None:
        """Count entries that the sender has done with."""
        np.subtract.at(self._held, entries["subject"], 1)

    def keep(self, entries: Entries) -> Entries:
        """Return the entries for the wheel: without those of subjects that wait."""
        if not self.waiting:
            return entries
        waits = np.isin(entries["subject"], np.array(list(self.waiting), np.uint32))
        self.dropped += int(waits.sum())
        return entries[~waits]

    def stop_waiting(self, subject: int) -> None:
        """Let a subject's messages come from the wheel again."""
        self.waiting.remove(subject)

    def _count(self, subjects: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> None:
        size = int(subjects.max()) + 1
        if size > len(self._held):
            more = np.zeros(max(size, 2 * len(self._held)) - len(self._held), np.int64)
            self._held = np.concatenate([self._held, more])
            self._numbers = np.concatenate([self._numbers, more])
        np.add.at(self._held, subjects, 1)
