"""The pieces that a run is cut into. All can be pickled; none has an open file.

A task is done by calling it: it opens what it reads, and returns a `TaskResult`.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

import numpy as np

from spark_tools.files.columns import Facts, Int64s, Mask, Places, Rows
from spark_tools.files.roots import disk_of
from storage.disk.disk import ReadableDisk
from storage.disk.spans import MINUTE_MAX

FOREVER = MINUTE_MAX + 1
"""The end of a range that has none."""


class GroupName(NamedTuple):
    """Whose messages these are."""

    cluster: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a run is asked, alike for all groups.

    from_minute, to_minute: filed minutes, the second exclusive; watermark_ms: what was due by then
    should have a fact; final: nothing runs any more; max_late_ms: lateness beyond it is a finding.
    """

    from_minute: int
    to_minute: int
    watermark_ms: int
    final: bool
    max_late_ms: int | None

    def covers(self, minute: Int64s) -> Mask:
        """Say which filed minutes are of the range."""
        covered: Mask = (minute >= self.from_minute) & (minute < self.to_minute)
        return covered

    def wants(self, extent: "Extent") -> bool:
        """Say whether a segment has minutes of the range."""
        return extent.start < self.to_minute and extent.end > self.from_minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One data directory, or a copy of it; root: a path of this machine, or a URI."""

    name: GroupName
    node_id: str
    root: str
    log_uuid: UUID

    def disk(self) -> ReadableDisk:
        """Open it for reading: whoever reads does so, for what is open cannot be sent to them."""
        return disk_of(self.root)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What counts of one segment: minutes from start to end (exclusive), and bytes of both files.

    The minutes are filed minutes, or what stands for a dead segment. rows, facts: how many there
    must be; last_sequence: no row of it is above; last_fact: facts of records up to this one are in
    its file, or are needed by nobody: all of them, if it is sealed. lacks_facts: the file of facts
    is gone, or has too few of them: those that the message_log still states count as well.
    """

    start: int
    end: int
    file: str
    facts_file: str
    length: int
    facts_length: int
    rows: int
    facts: int
    last_sequence: int
    last_fact: int
    is_sealed: bool
    is_deleted: bool
    lacks_facts: bool

    @property
    def has_all_facts(self) -> bool:
        """True if the end of the message_log tells nothing more of it."""
        return self.is_sealed and not self.lacks_facts


@dataclass(frozen=True, slots=True)
class Part:
    """Messages of a segment by sequence, from `first` up to `after`; None for no bound."""

    first: int | None = None
    after: int | None = None

    def holds(self, sequence: Int64s) -> Mask:
        """Say which sequences are in it."""
        held = np.ones(len(sequence), np.bool_)
        if self.first is not None:
            held &= sequence >= self.first
        if self.after is not None:
            held &= sequence < self.after
        return held


WHOLE = Part()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRange:
    """Records of one file of the message_log; next_sequence is exclusive."""

    file: str
    length: int
    first_sequence: int
    next_sequence: int

    def part(self, first: int, after: int) -> "LogRange | None":
        """Return what of it is from one sequence up to another; None if that is nothing."""
        first, after = max(first, self.first_sequence), min(after, self.next_sequence)
        if first >= after:
            return None
        return replace(self, first_sequence=first, next_sequence=after)


@dataclass(frozen=True, slots=True)
class Cover:
    """Which segment of a node covers a minute. Segments do not overlap; all arrays are by start."""

    start: Int64s
    end: Int64s
    last_sequence: Int64s
    last_fact: Int64s
    is_there: Int64s
    """1 where the files were not deleted."""
    is_wanted: Int64s
    """1 where it has minutes of the range."""

    @classmethod
    def of(cls, extents: list[Extent], rules: Rules | None = None) -> "Cover":
        """Return the cover that these segments are. rules: of the range, None for everything."""
        found = sorted(extents, key=lambda one: one.start)
        wanted = [(rules is None or rules.wants(one)) and not one.is_deleted for one in found]
        return cls(
            np.array([one.start for one in found], np.int64),
            np.array([one.end for one in found], np.int64),
            np.array([one.last_sequence for one in found], np.int64),
            np.array([one.last_fact for one in found], np.int64),
            np.array([not one.is_deleted for one in found], np.int64),
            np.array(wanted, np.int64),
        )

    def places(self, minute: Int64s) -> Places:
        """Return the place of each minute's segment, -1 where there is none."""
        if not len(self.start):
            return np.full(len(minute), -1, np.intp)
        places = np.searchsorted(self.start, minute, side="right") - 1
        return np.where((places >= 0) & (minute < self.end[places]), places, -1)

    def is_open(self, minute: Int64s) -> Mask:
        """Say of minutes whether there is no segment."""
        nowhere: Mask = self.places(minute) < 0
        return nowhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Loose:
    """Rows and facts that are in no file of a segment yet: of the end of the message_log.

    subjects, targets, files: the names that the numbers stand for; lengths: of the files of the
    message_log, as far as they count; records_are_missing: some could not be read, of rows, facts
    or both.
    """

    rows: Rows
    facts: Facts
    subjects: tuple[str, ...]
    targets: tuple[str, ...]
    files: tuple[str, ...]
    lengths: dict[str, int]
    records_are_missing: bool
