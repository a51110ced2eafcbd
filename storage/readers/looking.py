"""Looks at all rows of the schedule_log, as they are once one record is applied.

`take_present` takes down what there is, in the schedule_log's lane: states of segments, rows that
wait in memory, facts that are in no file. No row is copied, and no file is read. A look then reads
the files by their paths, in a worker of its own, while the schedule_log goes on: files only grow
behind the lengths that were taken down, and what is replaced by a split stays for the retirement
grace. Columns are read, a batch at a time, and of a segment the sequences of its facts.

A row that is held for delivery is in a file as well, so files and waiting rows are all rows. A row
with a fact, or with an outcome that is durable, is settled: it is not pending.

    PageLook     the next rows in order of their due times
    CountLook    how many rows are due when, by any name that the caller makes of a subject
    FindLook     rows with the hash of a message id, settled ones too
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from storage.batch.batches import Damage
from storage.batch.facts import FactBlock, Outcome
from storage.batch.item_formats import qmq_message_id
from storage.batch.number_set import Mask
from storage.batch.rows import Int64s, RowBlock
from storage.disk.disk import Bytes, Disk, size_if_opened
from storage.disk.errors import DamagedError
from storage.disk.spans import DEAD_MINUTES_FROM, MINUTE_MS, SegmentKey, Span
from storage.schedule.keys import BEFORE_ALL, NEVER, Key, not_after
from storage.schedule.row_places import SequenceSet
from storage.schedule.schedule_log import ScheduleLog
from storage.schedule.segment import Segment
from storage.state.checkpoint import SegmentState

_STEP_ROWS: Final = 32_768
"""Rows looked at in one step: two milliseconds or three, of which numpy takes the most."""
_BATCH_ROWS: Final = 256
"""Rows that a batch counts for beside its own: to read one takes that long."""
_SUBJECTS_MAX: Final = 100_000
"""Subjects of which a look remembers what the caller makes of them."""
_FOUND_MAX: Final = 20
OTHERS: Final = "%"
"""The name in a count of all that have no place in it; no subject is called so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The rows and facts that there are once the record `sequence` is applied."""

    disk: Disk
    log_uuid: UUID
    sequence: int
    segments: Sequence[SegmentState]
    """Unsealed ones, of messages that are to be sent."""
    waiting: Sequence[RowBlock]
    """Rows that wait in memory, for whichever segment."""
    names: Mapping[int, bytes]
    """Subjects of these rows by number: the table may give a number to another one later."""
    facts: Sequence[FactBlock]
    """Those that are in no file."""
    set_aside: int
    """Files of segments that damage took out: rows may be in them that nothing else has."""


def take_present(schedule: ScheduleLog) -> Present:
    """Return what there is now; to be called in the schedule_log's lane."""
    waiting, names = schedule.unwritten(), schedule.subjects.names
    used = np.zeros(len(names), np.bool_)
    for block in waiting:
        used[block.subject] = True
    return Present(
        disk=schedule.disk,
        log_uuid=schedule.log_uuid,
        sequence=schedule.last_filed,
        segments=[state for state in schedule.states() if state.span != Span.DEAD],
        waiting=waiting,
        names={number: names[number] for number in np.flatnonzero(used).tolist()},
        facts=schedule.facts.in_no_file,
        set_aside=sum(path.startswith("schedule_log/") for path in schedule.quarantined),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Rows of one batch, or of one block that waits in memory; all arrays have the same length.

    segment: None of those in memory; subject: index into `names`; settled: those that have a fact.
    """

    segment: Segment | None
    sequence: Int64s
    due_ms: Int64s
    id_hash: npt.NDArray[np.uint64]
    size: npt.NDArray[np.uint32]
    subject: npt.NDArray[np.integer]
    names: Sequence[bytes]
    settled: Mask
    minutes: Callable[[], Int64s]
    """Returns the filed minute of each."""
    blob: Callable[[], Bytes]

    def found(self, places: npt.NDArray[np.intp], *, with_items: bool) -> Iterator["FoundRow"]:
        """Yield the rows at these places; items are empty where the batch is damaged."""
        ends = np.cumsum(self.size, dtype=np.int64)
        blob: Bytes = b""
        if with_items:
            with suppress(DamagedError):
                blob = self.blob()
        minutes = self.minutes()
        for place in places.tolist():
            end = int(ends[place])
            yield FoundRow(
                due_ms=int(self.due_ms[place]),
                sequence=int(self.sequence[place]),
                minute=int(minutes[place]),
                subject=self.names[int(self.subject[place])],
                size=int(self.size[place]),
                segment="" if self.segment is None else self.segment.key.name,
                is_crossed_off=bool(self.settled[place]),
                item=bytes(blob[end - int(self.size[place]) : end]),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRow:
    """A row that was looked for."""

    due_ms: int
    sequence: int
    minute: int
    """Its filed minute."""
    subject: bytes
    size: int
    """Bytes of the item."""
    segment: str
    """Name of the file that has it; empty while it waits to be written."""
    is_crossed_off: bool
    """It has a fact: it was delivered, or is done with otherwise."""
    fact: dict[str, object] | None = None
    """The fact, if it was asked for: outcome, group and at_ms."""
    item: bytes = b""
    """Empty unless it was asked for, or if it is damaged; in a page it is the message id."""

    @property
    def key(self) -> Key:
        """Due time and sequence: the order of pages."""
        return self.due_ms, self.sequence


class Look:
    """One look, made of steps. Subclasses say in which order, and what they take."""

    def __init__(self, present: Present) -> None:
        self.present = present
        self.examined = 0
        """Rows looked at."""
        self.unreadable = present.set_aside
        """Places that could not be read: damaged, the disk failed, or their files are gone."""
        self.is_behind = False
        """True if records that are acknowledged are not in it: they were not filed in time."""
        self._told = SequenceSet([facts.sequence for facts in present.facts])
        self._work = self._run()

    def step(self) -> bool:
        """Look at some more rows; return True if that was all."""
        weight = 0
        while weight < _STEP_ROWS:
            rows = next(self._work, None)
            if rows is None:
                return True
            self.examined += len(rows.sequence)
            weight += len(rows.sequence) + _BATCH_ROWS
            self._take(rows)
        return False

    def _run(self) -> Iterator[Rows]:
        """Yield the rows that are to be taken."""
        segments = (self._rows_of(state) for state in self.present.segments)
        return chain(self._rows_waiting(), *segments)

    def _take(self, rows: Rows) -> None:
        """Take what is wanted of some rows."""
        raise NotImplementedError

    def _rows_waiting(self) -> Iterator[Rows]:
        for block in self.present.waiting:
            if block.minute[0] >= DEAD_MINUTES_FROM:
                continue
            numbers, subject = np.unique(block.subject, return_inverse=True)
            yield Rows(
                segment=None,
                sequence=block.sequence,
                due_ms=block.due_ms,
                id_hash=block.id_hash,
                size=block.size,
                subject=subject,
                names=[self.present.names[number] for number in numbers.tolist()],
                settled=self._told.contains(block.sequence),
                minutes=partial(getattr, block, "minute"),
                blob=partial(getattr, block, "blob"),
            )

    def _rows_of(self, state: SegmentState) -> Iterator[Rows]:
        """Yield the rows of a segment; none if it cannot be said which of them have a fact."""
        disk = self.present.disk
        segment = Segment.of_state(disk, self.present.log_uuid, state)
        filed, blocks = [], list[tuple[str, int]]()
        for facts in segment.read_facts(disk, unreadable=blocks):
            if isinstance(facts, Damage):
                self.unreadable += 1
            else:
                filed.append(facts.sequence)
        told = SequenceSet(filed)
        for batch in () if blocks else segment.read_rows(disk, state.length):
            if isinstance(batch, Damage):
                self.unreadable += 1
                continue
            arrays = batch.columns.arrays
            yield Rows(
                segment=segment,
                sequence=batch.sequence,
                due_ms=batch.due_ms,
                id_hash=arrays["id_hash"],
                size=arrays["size"],
                subject=arrays["subject"],
                names=batch.columns.names,
                settled=told.contains(batch.sequence) | self._told.contains(batch.sequence),
                minutes=batch.minutes,
                blob=batch.blob,
            )


class PageLook(Look):
    """The first rows behind a key, in order of due time and sequence.

    A row keeps its key as long as it is pending. So pages that each begin behind the one before
    miss nothing that was pending all along, and have nothing twice.
    """

    def __init__(
        self,
        present: Present,
        wanted: Callable[[bytes], bool],
        *,
        after: Key = BEFORE_ALL,
        until_ms: int = NEVER[0],
        limit: int,
        rows_max: int,
        with_ids: bool = False,
    ) -> None:
        """Look for `limit` rows of wanted subjects behind `after` that are due before `until_ms`.

        rows_max: no further segment is read once so many rows were looked at, however few were
        found. with_ids: items are read as well, for their message ids.
        """
        super().__init__(present)
        self._wanted = lru_cache(_SUBJECTS_MAX)(wanted)
        self._after, self._until_ms = after, until_ms
        self._limit, self._rows_max, self._with_ids = limit, rows_max, with_ids
        self._found: list[FoundRow] = []
        self._stopped = NEVER

    @property
    def page(self) -> list[FoundRow]:
        """The rows, once the look is over."""
        return [row for row in self._found[: self._limit] if row.key < self._stopped]

    @property
    def next(self) -> Key | None:
        """The key behind which the next page begins; None if there is nothing more."""
        page = self.page
        if len(page) == self._limit < len(self._found):
            return page[-1].key
        return None if self._stopped == NEVER else self._stopped

    def _run(self) -> Iterator[Rows]:
        """Yield rows until those of all further segments come behind the page."""
        yield from self._rows_waiting()
        for state in sorted(self.present.segments, key=lambda state: state.earliest_due_ms):
            earliest_ms = state.earliest_due_ms
            is_full = len(self._found) > self._limit and self._found[-1].due_ms < earliest_ms
            if is_full or earliest_ms >= self._until_ms:
                return
            if self.examined >= self._rows_max and earliest_ms > self._after[0]:
                self._stopped = (earliest_ms, 0)
                return
            if state.key.end * MINUTE_MS > self._after[0]:
                yield from self._rows_of(state)

    def _take(self, rows: Rows) -> None:
        wanted = np.array([self._wanted(name) for name in rows.names], np.bool_)[rows.subject]
        wanted &= ~rows.settled & (rows.due_ms < self._until_ms)
        wanted &= ~not_after(rows.due_ms, rows.sequence, self._after)
        if len(self._found) > self._limit:
            wanted &= rows.due_ms <= self._found[-1].due_ms
        places = np.flatnonzero(wanted)
        if len(places) > self._limit + 1:
            order = np.lexsort((rows.sequence[places], rows.due_ms[places]))
            places = places[order[: self._limit + 1]]
        for row in rows.found(places, with_items=self._with_ids) if len(places) else ():
            self._found.append(replace(row, item=qmq_message_id(row.item)))
        self._found.sort(key=lambda row: row.key)
        del self._found[self._limit + 1 :]


class CountLook(Look):
    """Counts of pending rows, by name and by columns of time.

    A row counts under each name of its subject, in one of its numbers: the first for what is due
    before the first column, then one for each column, the last for what is due later.
    """

    def __init__(
        self,
        present: Present,
        names_of: Callable[[bytes], Collection[str]],
        *,
        first_ms: int = 0,
        column_ms: int = NEVER[0],
        columns: int = 1,
        names_max: int,
    ) -> None:
        """Count from `first_ms` on in columns of `column_ms`.

        names_of: the names of a subject, always in the same order; it is called in the thread of
        the look. names_max: what has any name beyond these counts as OTHERS.
        """
        super().__init__(present)
        self._names_of = names_of
        self._rows_named = lru_cache(_SUBJECTS_MAX)(self._rows_of_subject)
        self._first_ms, self._column_ms, self._columns = first_ms, column_ms, columns
        self._names_max = names_max
        self._rows: dict[str, int] = {}
        self._counts = np.zeros((64, columns + 2), np.int64)

    def by_name(self) -> dict[str, list[int]]:
        """Return the counts of all names, the largest first."""
        rows = [(name, self._counts[row].tolist()) for name, row in self._rows.items()]
        return dict(sorted(rows, key=lambda row: (-sum(row[1]), row[0])))

    def _take(self, rows: Rows) -> None:
        known = [self._rows_named(name) for name in rows.names]
        column = np.clip((rows.due_ms - self._first_ms) // self._column_ms, -1, self._columns) + 1
        for layer in range(max(map(len, known), default=0)):
            row = np.array([(*one[layer:], -1)[0] for one in known])[rows.subject]
            counted = (row >= 0) & ~rows.settled
            np.add.at(self._counts, (row[counted], column[counted]), 1)

    def _rows_of_subject(self, subject: bytes) -> list[int]:
        return [self._row(name) for name in self._names_of(subject)]

    def _row(self, name: str) -> int:
        if name not in self._rows and len(self._rows) >= self._names_max:
            name = OTHERS
        row = self._rows.setdefault(name, len(self._rows))
        if row == len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        return row


class FindLook(Look):
    """Rows with the hash of a message id, which others may share; done ones too."""

    def __init__(
        self,
        present: Present,
        id_hash: int,
        *,
        minutes: Collection[int] = (),
        is_elsewhere: bool = True,
    ) -> None:
        """Look at all rows; of `minutes` also at those whose segment is complete.

        is_elsewhere: False to look at the segments of `minutes` alone, and in memory
        """
        super().__init__(present)
        self.found: list[FoundRow] = []
        """The first ones; several if an id was sent several times, or a message was moved."""
        self._id_hash = np.uint64(id_hash)
        self._minutes, self._is_elsewhere = minutes, is_elsewhere

    @property
    def is_complete(self) -> bool:
        """True if what was looked for was found, or all rows could be looked at."""
        return bool(self.found) or not (self.unreadable or self.is_behind)

    def _run(self) -> Iterator[Rows]:
        states = self.present.segments
        segments = [
            one for one in states if self._is_elsewhere or any(map(_covers(one), self._minutes))
        ]
        segments += [
            self._sealed(SegmentKey(minute, Span.MINUTE))
            for minute in self._minutes
            if not any(_covers(state)(minute) for state in states)
        ]
        for rows in chain(self._rows_waiting(), *map(self._rows_of, segments)):
            yield rows
            if len(self.found) >= _FOUND_MAX:
                return

    def _sealed(self, key: SegmentKey) -> SegmentState:
        """Return the state of a segment that no checkpoint names: its files alone tell of it."""
        disk = self.present.disk
        lengths = [size_if_opened(disk, path) for path in (key.path, key.facts_path)]
        return SegmentState(key.start, int(key.span), 0, lengths[0], 0, 0, 0, 0, lengths[1], 0, 0)

    def _take(self, rows: Rows) -> None:
        places = np.flatnonzero(rows.id_hash == self._id_hash)
        for row in rows.found(places, with_items=True) if len(places) else ():
            fact = self._fact_of(rows.segment, row.sequence) if row.is_crossed_off else None
            self.found.append(replace(row, fact=fact))

    def _fact_of(self, segment: Segment | None, sequence: int) -> dict[str, object] | None:
        """Return the first fact of a row, from memory or from the file of its segment."""
        filed = () if segment is None else segment.read_facts(self.present.disk)
        for facts in chain(filed, self.present.facts):
            if not isinstance(facts, Damage) and sequence in facts.sequence:
                place = int(np.argmax(facts.sequence == sequence))
                outcome = Outcome(int(facts.outcome[place])).name.lower()
                group = facts.targets[facts.target[place]].decode(errors="replace")
                return {"outcome": outcome, "group": group, "at_ms": int(facts.at_ms[place])}
        return None


def _covers(state: SegmentState) -> Callable[[int], bool]:
    """Return what says of a minute if the segment is that of it."""
    return lambda minute: state.start <= minute < state.key.end
