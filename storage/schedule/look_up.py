"""Rows of messages that are looked for by their columns, and what became of them.

Whoever cancels or moves messages finds them so. Rows that wait to be written are found where they
wait, so nothing is flushed for it. Columns are read, and items of what is found alone.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.batch.batches import Damage
from storage.batch.facts import FactBlock, Outcome
from storage.batch.rows import Int64s, RowBlock
from storage.disk.disk import Bytes, size_if_opened
from storage.disk.errors import DamagedError
from storage.disk.spans import DEAD_MINUTES_FROM, MINUTE_MAX, SegmentKey, Span
from storage.schedule.row_places import SequenceSet, contained
from storage.schedule.schedule_log import ScheduleLog
from storage.schedule.segment import Segment, SegmentBatch

ROWS_MAX: Final = 16_384
"""Rows that one look finds, if nothing else is said; with 300 bytes each they take 5 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row that was found; minute: its filed minute; item: empty where it cannot be read."""

    sequence: int
    minute: int
    due_ms: int
    id_hash: int
    subject: bytes
    item: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """The outcome of a row; None where its facts cannot be read."""

    outcome: Outcome | None
    at_ms: int = 0
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Columns of some rows; subject: of each row its place in `names`."""

    names: Sequence[bytes]
    subject: npt.NDArray[np.uint16]
    sequence: Int64s
    due_ms: Int64s
    id_hash: npt.NDArray[np.uint64]
    size: npt.NDArray[np.uint32]
    minute: Int64s


Select = Callable[[Columns], npt.NDArray[np.intp]]
"""Returns the places of those rows that are looked for, ascending."""


class LookUp:
    """A look at rows; made and stepped in the schedule_log's worker."""

    def __init__(
        self,
        schedule: ScheduleLog,
        select: Select,
        *,
        minutes: Collection[int] | None = None,
        since: int = 0,
        rows_max: int = ROWS_MAX,
        is_pending: bool = False,
        reads_items: bool = True,
        reads_waiting: bool = True,
    ) -> None:
        """Look through the segments of these filed minutes, sealed ones too.

        minutes: None for all unsealed segments, from the one of the minute `since` on; is_pending:
        only rows without a fact are found; reads_waiting: those that wait to be written, too.
        """
        self.found: dict[int, Row] = {}
        """By sequence."""
        self.examined = 0
        """Rows looked at."""
        self.reached = since
        """The minute up to which segments were looked through."""
        self.stopped: tuple[int, int, int] | None = None
        """Where there was more: the first minute of the segment in which it ended, the first minute
        behind it, and the last row found there. Those before it were looked at."""
        self.is_complete = False
        """True once all was looked at; False where there was more than `rows_max`."""
        self._schedule = schedule
        self._select = select
        self._minutes = minutes
        self._rows_max = rows_max
        self._is_pending = is_pending
        self._reads_items = reads_items
        self._reads_waiting = reads_waiting
        self._last = 0
        self._work = self._run()

    def step(self, rows: int) -> bool:
        """Look at about so many rows; return True once that was all."""
        until = self.examined + rows
        while self.examined < until:
            if next(self._work, True):
                return True
        return False

    def _run(self) -> Iterator[bool]:
        # First: what is written meanwhile is found where it waited, or where it lies.
        for block in self._schedule.unwritten() if self._reads_waiting else ():
            self._take_block(block)
            yield False
        if len(self.found) >= self._rows_max:
            return
        for segment in self._segments():
            told: SequenceSet | None = None
            self._last = 0
            for batch in segment.read_rows(self._schedule.disk, segment.file.length):
                if len(self.found) >= self._rows_max:
                    self.stopped = segment.key.start, segment.key.end, self._last
                    return
                if not isinstance(batch, Damage):
                    self.examined += batch.header.count
                    told = self._take_batch(segment, batch, told)
                yield False
            if len(self.found) >= self._rows_max:
                self.stopped = segment.key.start, segment.key.end, self._last
                return
            self.reached = segment.key.end
        self.is_complete = True

    def _segments(self) -> Iterator[Segment]:
        """Yield segments, the earliest first, as they are when it is their turn."""
        if self._minutes is not None:
            end = 0
            for minute in sorted(self._minutes):
                if minute >= end and (segment := segment_of(self._schedule, minute)) is not None:
                    end = segment.key.end
                    yield segment
            return
        while True:
            # One that is split meanwhile has its rows in finer ones, which begin where it does.
            later = [one for one in self._schedule.of_time() if one.key.end > self.reached]
            if not later:
                return
            yield min(later, key=lambda segment: segment.key.start)

    def _take_batch(
        self, segment: Segment, batch: SegmentBatch, told: SequenceSet | None
    ) -> SequenceSet | None:
        """Note those rows of a batch that are looked for; return which rows have a fact."""
        arrays = batch.columns.arrays
        columns = Columns(
            names=batch.columns.names,
            subject=arrays["subject"],
            sequence=arrays["sequence"],
            due_ms=arrays["due_ms"],
            id_hash=arrays["id_hash"],
            size=arrays["size"],
            minute=batch.minutes(),
        )
        places = self._select(columns)
        if self._is_pending and len(places):
            if told is None:
                crossed_off = self._schedule.crossed_off(segment)
                if crossed_off is None:
                    return None
                told = SequenceSet([crossed_off])
            places = places[~told.contains(columns.sequence[places])]
        self._note(columns, places, batch.blob)
        return told

    def _take_block(self, block: RowBlock) -> None:
        """Note those rows that are looked for, of some that wait to be written."""
        self.examined += len(block)
        names, subject = block.names(self._schedule.subjects)
        columns = Columns(
            names=names,
            subject=subject,
            sequence=block.sequence,
            due_ms=block.due_ms,
            id_hash=block.id_hash,
            size=block.size,
            minute=block.minute,
        )
        places = self._select(columns)
        places = places[block.minute[places] < DEAD_MINUTES_FROM]
        if self._is_pending and len(places):
            told = SequenceSet([facts.sequence for facts in self._schedule.facts.in_no_file])
            places = places[~told.contains(block.sequence[places])]
        self._note(columns, places, lambda: block.blob)

    def _note(
        self, columns: Columns, places: npt.NDArray[np.intp], blob: Callable[[], Bytes]
    ) -> None:
        places = places[: self._rows_max - len(self.found)]
        if not len(places):
            return
        data: Bytes = b""
        if self._reads_items:
            try:
                data = blob()
            except DamagedError:
                data = b""
        self._last = int(columns.sequence[places[-1]])
        ends = np.cumsum(columns.size, dtype=np.int64)
        for place in places.tolist():
            end = int(ends[place])
            sequence = int(columns.sequence[place])
            self.found[sequence] = Row(
                sequence=sequence,
                minute=int(columns.minute[place]),
                due_ms=int(columns.due_ms[place]),
                id_hash=int(columns.id_hash[place]),
                subject=columns.names[int(columns.subject[place])],
                item=bytes(data[end - int(columns.size[place]) : end]),
            )


def segment_of(schedule: ScheduleLog, minute: int) -> Segment | None:
    """Return the segment of a filed minute, sealed or not; None if there is no file of it."""
    segment = schedule.facts.covering(minute)
    if (
        segment is not None
        or minute > MINUTE_MAX
        or schedule.waits(SegmentKey(minute, Span.MINUTE))
    ):
        return segment
    segment = schedule.new_segment(SegmentKey(minute, Span.MINUTE))
    for file in (segment.file, segment.facts_file):
        file.length = size_if_opened(schedule.disk, file.path)
    return segment if segment.file.length else None


def facts_of(schedule: ScheduleLog, rows: Collection[Row]) -> dict[int, Fact]:
    """Return what became of rows, by sequence; a row that has no fact is not among them.

    Called in the schedule_log's worker. It reads the facts of each segment that has some.
    """
    found: dict[int, Fact] = {}
    wanted = np.sort(np.array([row.sequence for row in rows], np.int64))
    for block in schedule.facts.in_no_file:
        _note_facts(block, wanted, found)
    ends = 0
    for minute in sorted({row.minute for row in rows}):
        if minute < ends or (segment := segment_of(schedule, minute)) is None:
            continue
        ends = segment.key.end
        unreadable: list[tuple[str, int]] = []
        for facts in segment.read_facts(schedule.disk, unreadable=unreadable):
            if not isinstance(facts, Damage):
                _note_facts(facts, wanted, found)
        if unreadable or segment.is_withheld:
            here = [row.sequence for row in rows if segment.key.start <= row.minute < ends]
            found = dict.fromkeys(here, Fact(outcome=None)) | found
    return found


def _note_facts(block: FactBlock, wanted: Int64s, found: dict[int, Fact]) -> None:
    for place in np.flatnonzero(contained(block.sequence, wanted)).tolist():
        fact = Fact(
            outcome=Outcome(int(block.outcome[place])),
            at_ms=int(block.at_ms[place]),
            target=block.targets[int(block.target[place])].decode(errors="replace"),
        )
        found.setdefault(int(block.sequence[place]), fact)
