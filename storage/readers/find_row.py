"""Where a message is among the rows that wait to be delivered, by its message id.

Given the minute in which it was due it looks there even if all of that minute has an outcome.
It reads columns only, segment by segment, the earliest first; whoever drives it lets others work
between two steps. An id is found by its hash, which others may
share: rows are candidates until somebody reads the item.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from storage.batch.batches import Damage
from storage.batch.facts import Outcome
from storage.disk.disk import size_if_opened
from storage.disk.sorting import each_once
from storage.disk.spans import SegmentKey, Span
from storage.schedule.row_places import contained
from storage.schedule.schedule_log import ScheduleLog
from storage.schedule.segment import Segment, SegmentBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRow:
    """A row that was looked for."""

    sequence: int
    due_ms: int
    subject: bytes
    segment: str
    """Name of the file that has it; empty while it waits to be written."""
    is_crossed_off: bool
    """It has a fact: it was delivered, or is done with otherwise."""
    fact: dict[str, object] | None = None
    """The fact: outcome, group and at_ms; None as long as it is not in the segment's file."""


class FindRow:
    """Looks for rows; made and stepped in the schedule_log's lane."""

    def __init__(
        self, schedule: ScheduleLog, id_hash: int, *, due_minute: int | None = None
    ) -> None:
        """Look for the hash of a message id.

        due_minute: when it was due; None: its segment is not complete.
        """
        self.found: list[FoundRow] = []
        """The first ones; several if an id was sent several times."""
        self.examined = 0
        """Rows looked at."""
        self.is_complete = False
        """Whether all rows were looked at, or what was looked for was found."""
        self.unreadable = 0
        """Places that could not be read: damaged, or the disk failed."""
        self._schedule = schedule
        self._id_hash = np.uint64(id_hash)
        self._due_minute = due_minute
        self._work = self._run()

    def step(self, rows: int) -> bool:
        """Look at about so many rows; say whether that was all."""
        until = self.examined + rows
        while self.examined < until:
            if next(self._work, True):
                return True
        return False

    def _run(self) -> Iterator[bool]:
        schedule = self._schedule
        looked_at: set[int] | None = None
        # A segment that was split meanwhile has its rows in others by now.
        while looked_at != set(schedule.segments):
            looked_at = set(schedule.segments)
            unsealed = sorted(schedule.of_time(), key=lambda segment: segment.key.start)
            for segment in (*self._sealed(), *unsealed):
                for batch in segment.read_rows(schedule.disk, segment.file.length):
                    if isinstance(batch, Damage):
                        self.unreadable += 1
                        continue
                    self.examined += batch.header.count
                    self._take(batch)
                    if len(self.found) >= _FOUND_MAX:
                        self.is_complete = True
                        return
                    yield False
            self._take_unwritten()
            if self.found:
                break
        # Of a segment that was set aside because of damage there may be rows that nothing else has.
        self.unreadable += sum(path.startswith("schedule_log/") for path in schedule.quarantined)
        self.is_complete = bool(self.found) or not self.unreadable

    def _sealed(self) -> Iterator[Segment]:
        """Yield the segment of the minute if it is complete: then its files alone tell of it."""
        if self._due_minute is None:
            return
        schedule, key = self._schedule, SegmentKey(self._due_minute, Span.MINUTE)
        if key.code not in schedule.segments:
            segment = schedule.new_segment(key)
            for file in (segment.file, segment.facts_file):
                file.length = size_if_opened(schedule.disk, file.path)
            yield segment

    def _fact_of(self, segment: Segment, sequence: int) -> dict[str, object] | None:
        """Return the fact of a row that is in the file of its segment."""
        for facts in segment.read_facts(self._schedule.disk):
            if not isinstance(facts, Damage) and sequence in facts.sequence:
                place = int(np.argmax(facts.sequence == sequence))
                outcome = Outcome(int(facts.outcome[place])).name.lower()
                group = facts.targets[facts.target[place]].decode(errors="replace")
                return {"outcome": outcome, "group": group, "at_ms": int(facts.at_ms[place])}
        return None

    def _take(self, batch: SegmentBatch) -> None:
        """Note the rows of a batch that were looked for."""
        arrays = batch.columns.arrays
        places = np.flatnonzero(arrays["id_hash"] == self._id_hash).tolist()
        if not places:
            return
        crossed_off = self._schedule.crossed_off(batch.segment)
        if crossed_off is None:
            self.unreadable += 1
            return
        gone = contained(batch.sequence[places], each_once(crossed_off))
        for place, is_gone in zip(places, gone.tolist(), strict=True):
            sequence = int(batch.sequence[place])
            self.found.append(
                FoundRow(
                    sequence=sequence,
                    due_ms=int(batch.due_ms[place]),
                    subject=batch.columns.names[int(arrays["subject"][place])],
                    segment=batch.segment.key.name,
                    is_crossed_off=is_gone,
                    fact=self._fact_of(batch.segment, sequence) if is_gone else None,
                )
            )

    def _take_unwritten(self) -> None:
        """Note the rows that were looked for and wait in memory, of a split segment say."""
        names = self._schedule.subjects.names
        for block in self._schedule.unwritten():
            self.examined += len(block)
            self.found += [
                FoundRow(
                    sequence=int(block.sequence[place]),
                    due_ms=int(block.due_ms[place]),
                    subject=names[int(block.subject[place])],
                    segment="",
                    is_crossed_off=False,
                )
                for place in np.flatnonzero(block.id_hash == self._id_hash).tolist()
            ]


_FOUND_MAX = 20
