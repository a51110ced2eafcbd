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
    FactsLook    what became of some rows
    FindLook     rows with the hashes of message ids, and what became of them
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from itertools import chain
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt

from storage.batch.batches import Damage
from storage.batch.facts import FactBlock, Outcome
from storage.batch.number_set import Mask
from storage.batch.rows import Int64s, RowBlock
from storage.disk.disk import Bytes, Disk, size_of
from storage.disk.errors import DamagedError, may_pass
from storage.disk.spans import DEAD_MINUTES_FROM, MINUTE_MAX, MINUTE_MS, SegmentKey, Span
from storage.schedule.keys import BEFORE_ALL, NEVER, Key, not_after
from storage.schedule.row_places import SequenceSet, contained
from storage.schedule.schedule_log import ScheduleLog
from storage.schedule.segment import Segment
from storage.state.checkpoint import SegmentState

_STEP_ROWS: Final = 32_768
"""Rows looked at in one step: two milliseconds or three, of which numpy takes the most."""
_BATCH_ROWS: Final = 256
"""Rows that a batch counts for beside its own: to read one takes that long."""
_SUBJECTS_MAX: Final = 100_000
"""Subjects of which a look remembers what the caller makes of them."""
FOUND_MAX: Final = 20
"""Rows that are found, if nothing else is said."""
_UNKNOWN: Final = -1
"""Bytes of a file that could not be opened: without its facts a row would look as if it waited."""
_NOWHERE: Final = np.empty(0, np.intp)
_NO_SEQUENCES: Final = np.empty(0, np.int64)
ALL_MINUTES: Final = (0, MINUTE_MAX + 1)
OTHERS: Final = "%"
"""The name in a count of all that have no place in it; no subject is called so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The rows and facts that there are once the record `sequence` is applied."""

    disk: Disk
    log_uuid: UUID
    sequence: int
    segments: Sequence[SegmentState]
    """Unsealed ones that were asked for, of messages that are to be sent."""
    waiting: Sequence[RowBlock]
    """Rows that wait in memory, for whichever segment."""
    names: Mapping[int, bytes]
    """Subjects of these rows by number: the table may give a number to another one later."""
    facts: Sequence[FactBlock]
    """Those that are in no file."""
    set_aside: int
    """Files of segments that damage took out: rows may be in them that nothing else has."""

    def segment(self, state: SegmentState) -> Segment:
        """Return a segment to be read, as it was then."""
        return Segment.of_state(self.disk, self.log_uuid, state)

    def segments_of(self, minutes: Collection[int]) -> list[SegmentState]:
        """Return the segments of filed minutes; of a sealed one its files alone tell."""
        left, found = sorted({one for one in minutes if one <= MINUTE_MAX}), []
        for state in self.segments:
            if not left or state.start > left[-1]:
                continue
            begin, end = bisect_left(left, state.start), bisect_left(left, state.key.end)
            if begin < end:
                found.append(state)
                del left[begin:end]
        return found + [self._sealed(SegmentKey(minute, Span.MINUTE)) for minute in left]

    def _sealed(self, key: SegmentKey) -> SegmentState:
        """Return the state of a segment that no checkpoint names."""
        lengths = [self._length_of(path) for path in (key.path, key.facts_path)]
        return SegmentState(key.start, int(key.span), 0, lengths[0], 0, 0, 0, 0, lengths[1], 0, 0)

    def _length_of(self, path: str) -> int:
        """Return the bytes of a file, _UNKNOWN if it cannot be opened though it may be there."""
        try:
            return size_of(self.disk, path)
        except OSError as error:
            return _UNKNOWN if may_pass(error) else 0


def take_present(schedule: ScheduleLog, *, between: tuple[int, int] = ALL_MINUTES) -> Present:
    """Return what there is now; to be called in the schedule_log's lane.

    between: of segments those alone that have some of the minutes from one up to another.
    """
    begin, end = between
    waiting, names = schedule.unwritten(), schedule.subjects.names
    used = np.zeros(len(names), np.bool_)
    for block in waiting:
        used[block.subject] = True
    return Present(
        disk=schedule.disk,
        log_uuid=schedule.log_uuid,
        sequence=schedule.last_filed,
        segments=[
            segment.state()
            for segment in schedule.of_time()
            if segment.rows and segment.key.start < end and segment.key.end > begin
        ],
        waiting=waiting,
        names={number: names[number] for number in np.flatnonzero(used).tolist()},
        facts=schedule.facts.in_no_file,
        set_aside=sum(path.startswith("schedule_log/") for path in schedule.quarantined),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Rows of one batch, or of one block that waits in memory; all arrays have the same length.

    segment: None of those in memory; subject: index into `names`.
    """

    segment: Segment | None
    sequence: Int64s
    due_ms: Int64s
    id_hash: npt.NDArray[np.uint64]
    size: npt.NDArray[np.uint32]
    subject: npt.NDArray[np.integer]
    names: Sequence[bytes]
    pending: Callable[[], Mask]
    """Returns which of them have no fact; none if that cannot be said."""
    minutes: Callable[[], Int64s]
    """Returns the filed minute of each."""
    blob: Callable[[], Bytes]

    def found(self, places: npt.NDArray[np.intp], *, with_items: bool) -> Iterator["FoundRow"]:
        """Yield the rows at these places; items are empty where the batch is damaged."""
        blob: Bytes = b""
        if with_items:
            with suppress(DamagedError):
                blob = self.blob()
        segment = "" if self.segment is None else self.segment.key.name
        ends = np.cumsum(self.size, dtype=np.int64)
        columns = self.due_ms, self.sequence, self.minutes(), self.id_hash, self.subject, self.size
        rows = [column[places].tolist() for column in (*columns, ends)]
        for due_ms, sequence, minute, id_hash, subject, size, end in zip(*rows, strict=True):
            item = bytes(blob[end - size : end])
            name = self.names[subject]
            yield FoundRow(due_ms, sequence, minute, id_hash, name, size, segment, item)


class FoundRow(NamedTuple):
    """A row that was looked for."""

    due_ms: int
    sequence: int
    minute: int
    """Its filed minute."""
    id_hash: int
    subject: bytes
    size: int
    """Bytes of the item."""
    segment: str
    """Name of the file that has it; empty while it waits to be written."""
    item: bytes = b""
    """Empty if it was not asked for, or is damaged; in a page what was asked for."""

    @property
    def key(self) -> Key:
        """Due time and sequence: the order of pages."""
        return self.due_ms, self.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """The outcome of a row; None where the facts of its segment cannot be read."""

    outcome: Outcome | None
    at_ms: int = 0
    target: str = ""


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
        self._work = self._run()

    def step(self) -> bool:
        """Look at some more rows; return True if that was all."""
        weight = 0
        while weight < _STEP_ROWS:
            count = next(self._work, None)
            if count is None:
                return True
            weight += count + _BATCH_ROWS
        return False

    def _run(self) -> Iterator[int]:
        """Do all that is to be done; yield how many rows each part of it was about."""
        return self._walk()

    def _walk(self) -> Iterator[int]:
        for rows in self._rows():
            self.examined += len(rows.sequence)
            self._take(rows)
            yield len(rows.sequence)

    def _rows(self) -> Iterator[Rows]:
        """Yield the rows that are to be taken."""
        return self._rows_in(self.present.segments)

    def _take(self, rows: Rows) -> None:
        """Take what is wanted of some rows."""
        raise NotImplementedError

    def _rows_in(self, segments: Collection[SegmentState]) -> Iterator[Rows]:
        """Yield the rows that wait in memory, and those of these segments."""
        return chain(self._rows_waiting(), *map(self._rows_of, segments))

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
                pending=partial(self._without_facts, block.sequence, SequenceSet([])),
                minutes=partial(getattr, block, "minute"),
                blob=partial(getattr, block, "blob"),
            )

    def _rows_of(self, state: SegmentState) -> Iterator[Rows]:
        if state.length == _UNKNOWN:
            self.unreadable += 1
            return
        disk, segment = self.present.disk, self.present.segment(state)

        @cache
        def told() -> SequenceSet | None:
            facts = self._facts_of(segment)
            return None if facts is None else SequenceSet([one.sequence for one in facts])

        def pending(sequences: Int64s) -> Mask:
            return self._without_facts(sequences, told())

        for batch in segment.read_rows(disk, state.length):
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
                pending=partial(pending, batch.sequence),
                minutes=batch.minutes,
                blob=batch.blob,
            )

    @cached_property
    def _told(self) -> SequenceSet:
        """The rows of which a fact is in no file."""
        return SequenceSet([facts.sequence for facts in self.present.facts])

    def _without_facts(self, sequences: Int64s, told: SequenceSet | None) -> Mask:
        """Return which rows have no fact, neither among those that are filed nor in memory."""
        if told is None:
            return np.zeros(len(sequences), np.bool_)
        return ~(told.contains(sequences) | self._told.contains(sequences))

    def _facts_of(self, segment: Segment) -> list[FactBlock] | None:
        """Return the filed facts of a segment; None if some cannot be read."""
        blocks, unreadable = [], list[tuple[str, int]]()
        if segment.facts_file.length == _UNKNOWN:
            self.unreadable += 1
            return None
        for facts in segment.read_facts(self.present.disk, unreadable=unreadable):
            if isinstance(facts, Damage):
                self.unreadable += 1
            else:
                blocks.append(facts)
        return None if unreadable else blocks


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
        last: int = NEVER[0],
        limit: int,
        item_of: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Look for `limit` rows of wanted subjects behind `after` that are due before `until_ms`.

        last: the last sequence that is wanted. item_of: what of its item a row has; None: no item
        is read.
        """
        super().__init__(present)
        self._wanted = lru_cache(_SUBJECTS_MAX)(wanted)
        self._after, self._until_ms = after, until_ms
        self._last, self._limit, self._item_of = last, limit, item_of
        self._found: list[FoundRow] = []
        """The rows of the page, and one more if there is one."""

    @property
    def page(self) -> list[FoundRow]:
        """The rows, once the look is over."""
        return self._found[: self._limit]

    @property
    def next(self) -> Key | None:
        """The key behind which the next page begins; None if there is nothing more."""
        return self.page[-1].key if len(self._found) > self._limit else None

    def _rows(self) -> Iterator[Rows]:
        """Yield rows until those of all further segments come behind the page."""
        yield from self._rows_waiting()
        for state in sorted(self.present.segments, key=lambda state: state.earliest_due_ms):
            earliest_ms = state.earliest_due_ms
            is_full = len(self._found) > self._limit and self._found[-1].due_ms < earliest_ms
            if is_full or earliest_ms >= self._until_ms:
                return
            if state.key.end * MINUTE_MS > self._after[0]:
                yield from self._rows_of(state)

    def _take(self, rows: Rows) -> None:
        wanted = np.array([self._wanted(name) for name in rows.names], np.bool_)[rows.subject]
        wanted &= (rows.due_ms < self._until_ms) & (rows.sequence <= self._last)
        wanted &= ~not_after(rows.due_ms, rows.sequence, self._after)
        if len(self._found) > self._limit:
            wanted &= rows.due_ms <= self._found[-1].due_ms
        places = np.flatnonzero(wanted & rows.pending()) if wanted.any() else _NOWHERE
        if len(places) > self._limit + 1:
            order = np.lexsort((rows.sequence[places], rows.due_ms[places]))
            places = places[order[: self._limit + 1]]
        item_of = self._item_of
        for row in rows.found(places, with_items=item_of is not None) if len(places) else ():
            self._found.append(row if item_of is None else row._replace(item=item_of(row.item)))
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
        self._places: dict[str, int] = {}
        self._counts = np.zeros((names_max + 1, columns + 2), np.int64)

    def by_name(self) -> dict[str, list[int]]:
        """Return the counts of all names, the largest first."""
        rows = [(name, self._counts[row].tolist()) for name, row in self._places.items()]
        return dict(sorted(rows, key=lambda row: (-sum(row[1]), row[0])))

    def _take(self, rows: Rows) -> None:
        known = [self._rows_named(name) for name in rows.names]
        pending = rows.pending()
        column = np.clip((rows.due_ms - self._first_ms) // self._column_ms, -1, self._columns) + 1
        for layer in range(max(map(len, known), default=0)):
            row = np.array([(*one[layer:], -1)[0] for one in known])[rows.subject]
            counted = (row >= 0) & pending
            np.add.at(self._counts, (row[counted], column[counted]), 1)

    def _rows_of_subject(self, subject: bytes) -> list[int]:
        return [self._row(name) for name in self._names_of(subject)]

    def _row(self, name: str) -> int:
        if name not in self._places and len(self._places) >= self._names_max:
            name = OTHERS
        return self._places.setdefault(name, len(self._places))


class FactsLook(Look):
    """The first fact of each of some rows."""

    def __init__(self, present: Present, rows: Collection[FoundRow]) -> None:
        """Look at the facts in memory, and at those of the segments of these rows."""
        super().__init__(present)
        self.facts: dict[int, Fact] = {}
        """By sequence; what has no fact is not in it."""
        self._wanted = rows

    def _run(self) -> Iterator[int]:
        wanted = np.sort(np.array([row.sequence for row in self._wanted], np.int64))
        unknown: list[int] = []
        for state in self.present.segments_of({row.minute for row in self._wanted}):
            facts = self._facts_of(self.present.segment(state))
            if facts is None:
                here = range(state.start, state.key.end)
                unknown += [row.sequence for row in self._wanted if row.minute in here]
            yield self._note(facts or (), wanted)
        yield self._note(self.present.facts, wanted)
        self.facts = dict.fromkeys(unknown, Fact(outcome=None)) | self.facts

    def _note(self, blocks: Collection[FactBlock], wanted: Int64s) -> int:
        """Note the facts of these rows that are in some blocks; return how many facts there are."""
        # Most looks find none in many small blocks: those are asked at once.
        sequences = np.concatenate([_NO_SEQUENCES, *(block.sequence for block in blocks)])
        is_any = np.count_nonzero(contained(sequences, wanted))
        for block in blocks if is_any else ():
            for place in np.flatnonzero(contained(block.sequence, wanted)).tolist():
                fact = Fact(
                    outcome=Outcome(int(block.outcome[place])),
                    at_ms=int(block.at_ms[place]),
                    target=block.targets[int(block.target[place])].decode(errors="replace"),
                )
                self.facts.setdefault(int(block.sequence[place]), fact)
        return len(sequences)


class FindLook(FactsLook):
    """Rows with the hashes of message ids, which others may share, and what became of them."""

    def __init__(
        self,
        present: Present,
        id_hashes: Collection[int],
        *,
        due_ms: Collection[int] | None = None,
        minutes: Collection[int] = (),
        between: tuple[int, int] = ALL_MINUTES,
        found_max: int = FOUND_MAX,
        with_items: bool = True,
        with_facts: bool = True,
    ) -> None:
        """Look at rows in memory, and at those of some segments.

        due_ms: only rows that are due at one of these times; minutes: whose segments are looked at,
        complete ones too; between: the minutes from one up to another, of which those segments are
        looked at that are not complete. It ends soon after it has found so many rows. with_items,
        with_facts: their items, and what became of them, are read as well.
        """
        self.found: list[FoundRow] = []
        """Several if an id was sent several times, or a message was moved."""
        super().__init__(present, self.found)
        self._hashes = np.sort(np.array(list(id_hashes), np.uint64).view(np.int64))
        self._due_ms = None if due_ms is None else np.sort(np.array(list(due_ms), np.int64))
        self._minutes, self._between, self._found_max = minutes, between, found_max
        self._with_items, self._with_facts = with_items, with_facts

    @property
    def is_full(self) -> bool:
        """True if there may be more rows than were found."""
        return len(self.found) >= self._found_max

    @property
    def is_complete(self) -> bool:
        """True if what was looked for was found, or all rows could be looked at."""
        return bool(self.found) or not (self.unreadable or self.is_behind)

    def _run(self) -> Iterator[int]:
        yield from self._walk()
        if self._with_facts:
            yield from super()._run()

    def _rows(self) -> Iterator[Rows]:
        begin, end = self._between
        segments = self.present.segments_of(self._minutes) + [
            state for state in self.present.segments if state.start < end and state.key.end > begin
        ]
        for rows in self._rows_in(dict.fromkeys(segments)):
            yield rows
            if self.is_full:
                return

    def _take(self, rows: Rows) -> None:
        hashes, due_ms, is_due = rows.id_hash.view(np.int64), rows.due_ms, self._due_ms
        if is_due is None:
            places = np.flatnonzero(contained(hashes, self._hashes))
        else:
            # Most of a file of a day are due outside of the hour that is asked for.
            places = np.flatnonzero((due_ms >= is_due[0]) & (due_ms <= is_due[-1]))
            places = places[contained(due_ms[places], is_due)]
            places = places[contained(hashes[places], self._hashes)]
        self.found += rows.found(places, with_items=self._with_items) if len(places) else ()
