"""Loading: rows of minute segments become entries, slice by slice, in the order of their keys.

The *key* of a row is (effective due time, sequence). A cursor is a key: what is not after it has
been given out to the wheel or the sender, what is after it is on disk only. There is one cursor for
all subjects and one for each *lane*: subjects whose due messages wait on disk because the sender
holds enough of them, or had nobody to send them to (docs/decisions/0012-lanes-wait-on-disk.md):

    all but lanes   given out ......................| on disk only
    lane a          given out ..| on disk only
    lane b          given out ...............| on disk only

What was given out although it is after its cursor is known one by one (`GivenOut`): what the sender
held when its subject got a lane, or when the cursor was lowered to make room.

Jobs run in steps, between which other calls of the worker of the executor take place. A job plans
first: it finds the key up to which about `rows_max` rows are to be had. Then it starts, in one
step: it moves the cursor, and from that moment on rows that are filed below it go straight into the
wheel. Those that were filed before are on disk, and the job reads them.
"""

import bisect
import errno
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import compress
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from storage.batch.batches import Damage
from storage.batch.entries import Entries, SubjectTable, make_entries, no_entries
from storage.batch.rows import Int64s, effective_due_ms
from storage.disk.disk import Disk
from storage.disk.errors import ReadFailedError
from storage.disk.sorting import each_once
from storage.disk.spans import MINUTE_MS
from storage.schedule.segment import Segment, SegmentBatch

Key = tuple[int, int]
"""(effective due time in ms, sequence). As a cursor (T, 0) stands before all that is due at T."""

Mask = npt.NDArray[np.bool_]

Places = npt.NDArray[np.uint16]

Numbers = npt.NDArray[np.intp]
"""Numbers of subjects."""

_BITMAP_BYTES: Final = 16
"""Bytes a sequence may take in a bitmap; a set that would take more is kept as a sorted array."""

_FEW_ROWS: Final = 8192
"""Up to so many are counted one by one, which is cheaper than an array of a minute's ms."""


def not_after(effective_ms: Int64s, sequence: Int64s, key: Key) -> Mask:
    """Say which rows' keys are not after `key`."""
    due_ms, last = key
    mask: Mask = effective_ms < due_ms
    if last:
        mask |= (effective_ms == due_ms) & (sequence <= last)
    return mask


class SequenceSet:
    """Sequences that never change, to be asked for many at a time."""

    def __init__(self, parts: Sequence[Int64s]) -> None:
        sequences = np.concatenate(parts) if parts else np.empty(0, np.int64)
        self._first = int(sequences.min()) if len(sequences) else 0
        span = int(sequences.max()) - self._first + 1 if len(sequences) else 0
        self._bitmap: Mask | None = None
        self._ascending = np.empty(0, np.int64)
        if span <= _BITMAP_BYTES * len(sequences):
            # Several times faster to make and to ask than what has to be sorted.
            self._bitmap = np.zeros(span, np.bool_)
            self._bitmap[sequences - self._first] = True
        else:
            self._ascending = each_once(sequences)

    def __contains__(self, sequence: int) -> bool:
        """Say whether one sequence is in the set."""
        return bool(self.contains(np.array([sequence]))[0])

    def contains(self, sequences: Int64s) -> Mask:
        """Say which of these are in the set."""
        if self._bitmap is None:
            return contained(sequences, self._ascending)
        places = sequences - self._first
        inside = (places >= 0) & (places < len(self._bitmap))
        inside[inside] = self._bitmap[places[inside]]
        return inside


def contained(values: Int64s, ascending: Int64s) -> Mask:
    """Say which values are in an ascending array."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    found: Mask = ascending[places] == values
    return found


class GivenOut:
    """Rows that were given out although a cursor stands before them, until they have a fact.

    Bounded by what the sender holds, and by the facts on their way: 8 bytes each.
    """

    def __init__(self) -> None:
        self._ascending = np.empty(0, np.int64)
        self._settled: list[Int64s] = []
        self._settled_count = 0

    def __len__(self) -> int:
        return len(self._ascending)

    @property
    def sequences(self) -> Int64s:
        """Ascending, each once; some may have a fact by now. The array is never changed."""
        return self._ascending

    def add(self, sequences: Int64s) -> None:
        """Note rows that are being given out; they have no fact that `forget` was told of."""
        self._tidy()
        self._ascending = each_once(np.concatenate([self._ascending, sequences]))

    def forget(self, sequences: Int64s) -> None:
        """Note that these have a fact."""
        if len(self._ascending):
            self._settled.append(sequences)
            self._settled_count += len(sequences)
            if self._settled_count > max(_FEW_ROWS, len(self._ascending)):
                self._tidy()

    def take_back(self, sequences: Int64s) -> None:
        """Note that these are not given out any more, though they have no fact."""
        self._tidy()
        self._ascending = self._ascending[~contained(self._ascending, each_once(sequences))]

    def _tidy(self) -> None:
        if self._settled:
            settled = each_once(np.concatenate(self._settled))
            self._ascending = self._ascending[~contained(self._ascending, settled)]
            self._settled, self._settled_count = [], 0


class NumberSet:
    """Numbers of subjects, a byte for each that there is: quick to ask for many at a time."""

    def __init__(self) -> None:
        self._has = np.zeros(0, np.bool_)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        return number < len(self._has) and bool(self._has[number])

    def add(self, numbers: Numbers) -> None:
        """Add numbers, some of which may be there already; each is given once."""
        if not len(numbers):
            return
        size = int(numbers.max()) + 1
        if size > len(self._has):
            more = max(size, 2 * len(self._has)) - len(self._has)
            self._has = np.concatenate([self._has, np.zeros(more, np.bool_)])
        self._count += int(np.count_nonzero(~self._has[numbers]))
        self._has[numbers] = True

    def remove(self, numbers: Numbers) -> None:
        """Take numbers away; each is given once, and those that are not there count for nothing."""
        numbers = numbers[numbers < len(self._has)]
        self._count -= int(np.count_nonzero(self._has[numbers]))
        self._has[numbers] = False

    def contains(self, numbers: Numbers) -> Mask:
        """Say which of these are in the set; one below 0 never is."""
        found = np.zeros(len(numbers), np.bool_)
        inside = (numbers >= 0) & (numbers < len(self._has))
        found[inside] = self._has[numbers[inside]]
        return found

    def numbers(self) -> Numbers:
        """Return them, ascending."""
        return np.flatnonzero(self._has)

    def copy(self) -> "NumberSet":
        """Return a set of its own with the same numbers."""
        other = NumberSet()
        other._has, other._count = self._has.copy(), self._count
        return other


class Lane:
    """Subjects that wait on disk, and how far they have come together."""

    def __init__(self) -> None:
        self.subjects = NumberSet()
        self.cursor: Key = (0, 0)
        self.unread: Key | None = None
        """What is after it and not after the cursor could not be read, some of it."""

    def lower(self, key: Key) -> None:
        """Have it come by what is after `key` again."""
        self.cursor = min(self.cursor, key)


class OpenLanes(dict[int, Lane]):
    """Lanes by the numbers that whoever opened them gave them, and the subjects of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.subjects = NumberSet()


class Schedule(Protocol):
    """What a job asks of the schedule_log that it loads from."""

    disk: Disk
    subjects: SubjectTable
    lanes: OpenLanes
    given: GivenOut
    jobs: "list[Job]"
    is_patient: bool

    def segments_between(self, begin: Key, until: Key, /) -> list[Segment]:
        """Return the minute segments that may have rows after `begin` and not after `until`."""

    def crossed_off(self, segment: Segment, /) -> Int64s:
        """Return the sequences of a segment that have a fact."""

    def start_load(self, job: "LoadJob", now_ms: int, /) -> bool:
        """Move the common cursor to where a job ends."""

    def start_drain(self, job: "DrainJob", /) -> bool:
        """Move a lane's cursor to where a job ends."""

    def start_close(self, job: "CloseJob", /) -> bool:
        """End a lane."""

    def report(self, damage: Damage, /) -> None:
        """Pass damage on."""

    def is_patient_with(self, path: str, /) -> bool:
        """Say whether a file that cannot be read is tried again."""

    def trying(self, path: str, /) -> AbstractContextManager[None]:
        """Note what becomes of an attempt to read all of a file."""

    def noting(self, path: str, /) -> AbstractContextManager[None]:
        """Note whether an attempt to read something of a file fails."""


class _Gone:
    """Which rows of a segment have a fact or were given out; read when it is first asked.

    Both are taken in one step: what was given out is forgotten only once it has a fact.
    """

    def __init__(self, schedule: Schedule, segment: Segment) -> None:
        self.segment = segment
        self._schedule = schedule
        self._crossed_off: SequenceSet | None = None
        self._given = np.empty(0, np.int64)

    @property
    def known(self) -> bool:
        """Whether it has been read."""
        return self._crossed_off is not None

    def contains(self, sequences: Int64s) -> Mask:
        """Say which of these are not to be given out."""
        if self._crossed_off is None:
            self._crossed_off = SequenceSet([self._schedule.crossed_off(self.segment)])
            self._given = self._schedule.given.sequences
        return self._crossed_off.contains(sequences) | contained(sequences, self._given)


class _TakenRecords:
    """Ranges of records that do not overlap."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def is_free(self, wanted: range) -> bool:
        """Say whether nothing of a range is taken."""
        place = bisect.bisect_left(self._ranges, (wanted.stop, 0))
        return not place or self._ranges[place - 1][1] <= wanted.start

    def take(self, free: range) -> None:
        """Take a range that is free."""
        bisect.insort(self._ranges, (free.start, free.stop))


class _Part:
    """A segment of a slice, and what of it was given out: all but what could not be read."""

    def __init__(self, segment: Segment, length: int) -> None:
        self.segment = segment
        self.length = length
        self.done = _TakenRecords()


class Job(ABC):
    """One slice on its way from disk; made by the ScheduleLog.

    `begin`, the start of the slice, is a cursor's place; `until` its end, which the plan may draw
    nearer.
    """

    def __init__(
        self, schedule: Schedule, *, begin: Key, until: Key, rows_max: int, now_ms: int
    ) -> None:
        self.begin = begin
        self.until = until
        self.started = False
        """Whether the cursor has moved."""
        self.left_out = NumberSet()
        """Subjects that are not read. Once started only added to: what lanes took is theirs."""
        self._schedule = schedule
        self._rows_max = rows_max
        self._now_ms = now_ms
        self._examined = 0
        self._planned: _Gone | None = None
        self._work = self._run()

    @abstractmethod
    def _start(self) -> bool:
        """Move the cursor to `until`; return False to give up."""

    @abstractmethod
    def _subject_mask(self, batch: SegmentBatch) -> Mask | None:
        """Say which rows' subjects are wanted, by the batch's own table; None for no row at all."""

    def plan(self) -> bool:
        """Do what can be done without reading; return False if the job came to nothing."""
        return next(self._work, True) is None

    def step(self, rows_max: int) -> tuple[Entries, bool]:
        """Examine about `rows_max` rows; return the entries found and whether that was all.

        Raises ReadFailedError when there is nothing left but what cannot be read: each further step
        tries that again. No row is given out twice by it.
        """
        found: list[Entries] = []
        self._examined = 0
        while self._examined < rows_max:
            entries = next(self._work, False)
            if entries is False:
                return _joined(found), True
            if isinstance(entries, ReadFailedError):
                if not found:
                    raise entries
                break
            if isinstance(entries, np.ndarray):
                found.append(entries)
        return _joined(found), False

    def subjects(self) -> Numbers:
        """Return the numbers of subjects that the job will look at again."""
        return self.left_out.numbers()

    def cap(self, key: Key) -> None:
        """Give out nothing more that is after `key`: the cursor was lowered to it."""
        self.until = min(self.until, key)

    def _run(self) -> Iterator[Entries | ReadFailedError | None]:
        """Plan, start and read; yield wherever a step may end."""
        self._schedule.jobs.append(self)
        try:
            fits = yield from self._find_end()
            if not self._accept(fits=fits) or not self._start():
                return
            self.started = True
            parts = [
                _Part(segment, segment.file.length)
                for segment in self._schedule.segments_between(self.begin, self.until)
            ]
            yield None
            yield from self._read_all(parts)
        finally:
            self._schedule.jobs.remove(self)

    def _accept(self, *, fits: bool) -> bool:
        """Say whether to start, knowing whether all up to the end first given is in the slice."""
        del fits
        return True

    # -- the plan ----------------------------------------------------------------------------

    def _find_end(self) -> Generator[None, None, bool]:
        """Draw the end nearer if there are more rows than wanted; return whether all fits.

        Rows that cannot be counted since the disk cannot read them do not: nothing waits for them.
        """
        rows = 0
        fits = True
        for segment in self._schedule.segments_between(self.begin, self.until):
            if rows + segment.pending <= self._rows_max:
                rows += segment.pending
                continue
            start_ms = segment.key.start * MINUTE_MS
            if rows == self._rows_max:
                self.until = min(self.until, (start_ms, 0))
                return False
            gone = _Gone(self._schedule, segment)
            yield None
            counts = np.zeros(MINUTE_MS, np.int64)
            try:
                yield from self._count_matching(gone, counts, start_ms)
            except ReadFailedError:
                fits = False
                continue
            ends = np.cumsum(counts)
            found, wanted = int(ends[-1]), self._rows_max - rows
            if found <= wanted:
                rows += found
                continue
            place = int(np.searchsorted(ends, wanted, side="right"))
            before = int(ends[place - 1]) if place else 0
            end: Key = (start_ms + place, 0)
            if 2 * before < wanted:
                # So much is due in one ms that the slice ends inside it.
                try:
                    end = yield from self._end_inside(gone, end[0], wanted - before)
                except ReadFailedError:
                    self.until = min(self.until, end)
                    return False
            self.until = min(self.until, end)
            self._planned = gone
            return False
        return fits

    def _count_matching(
        self, gone: "_Gone", counts: Int64s, start_ms: int
    ) -> Generator[None, None, None]:
        """Count the rows wanted of a segment by the ms at which they are due."""
        for batch, mask in self._matching(gone, gone.segment.file.length):
            if mask is not None:
                _count(counts, batch.effective_due_ms()[mask] - start_ms)
            yield None

    def _end_inside(self, gone: "_Gone", due_ms: int, count: int) -> Generator[None, None, Key]:
        """Return the key of the `count`th row wanted of one ms: rows ascend by sequence."""
        last = 0
        for batch, mask in self._matching(gone, gone.segment.file.length):
            if mask is not None:
                found = batch.sequence[mask & (batch.effective_due_ms() == due_ms)]
                if len(found) >= count:
                    return due_ms, int(found[count - 1])
                count -= len(found)
                last = int(found[-1]) if len(found) else last
            yield None
        return due_ms, last

    # -- reading -----------------------------------------------------------------------------

    def _known_numbers(self, batch: SegmentBatch) -> Numbers:
        """Return the number of each name of a batch's table, -1 for one that has none.

        Asked and not given: a batch may have many names of which nothing is wanted.
        """
        known = self._schedule.subjects.ids.get
        names = batch.columns.names
        return np.fromiter((known(name, -1) for name in names), np.intp, len(names))

    def _read_all(self, parts: list[_Part]) -> Iterator[Entries | ReadFailedError | None]:
        """Yield the entries of all parts; of those that cannot be read at the end, or why not."""
        while parts:
            unread: list[tuple[_Part, ReadFailedError]] = []
            for part in parts:
                try:
                    yield from self._read(part)
                except ReadFailedError as error:
                    unread.append((part, error))
            parts = [part for part, _ in unread]
            if unread:
                yield unread[-1][1]

    def _read(self, part: _Part) -> Iterator[Entries | None]:
        """Yield the entries of one segment, batch by batch. Raises ReadFailedError."""
        segment = part.segment
        gone, self._planned = self._planned, None
        if gone is None or gone.segment is not segment:
            gone = _Gone(self._schedule, segment)
            self._schedule.disk.prefetch(segment.file.path)
        for batch, mask in self._matching(gone, part.length, part.done):
            if mask is None:
                yield None
                continue
            yield self._entries(batch, mask)

    def _matching(
        self, gone: "_Gone", length: int, done: _TakenRecords | None = None
    ) -> Iterator[tuple[SegmentBatch, Mask | None]]:
        """Yield each batch with the mask of its rows that are in the slice and not given out.

        done: as of `_batches`. Raises ReadFailedError.
        """
        for batch in self._batches(gone.segment, length, done):
            self._examined += batch.header.count
            mask = self._subject_mask(batch)
            if mask is None:
                yield batch, None
                continue
            effective_ms, sequence = batch.effective_due_ms(), batch.sequence
            mask &= ~not_after(effective_ms, sequence, self.begin)
            mask &= not_after(effective_ms, sequence, self.until)
            rows = np.flatnonzero(mask)
            if len(rows):
                if not gone.known:
                    self._examined += gone.segment.facts_seen
                mask[rows] = ~gone.contains(sequence[rows])
            yield batch, mask

    def _batches(
        self, segment: Segment, length: int, done: _TakenRecords | None
    ) -> Iterator[SegmentBatch]:
        """Yield the readable batches of a segment.

        Those that are `done` are passed over, and each becomes so when the next one is asked for.
        Raises ReadFailedError; of a segment that was given up at its end, having read past what
        cannot be read.
        """
        schedule, path = self._schedule, segment.file.path
        unreadable: list[tuple[str, int]] = []
        batches = segment.read_rows(
            schedule.disk, length, patient=schedule.is_patient_with(path), unreadable=unreadable
        )
        while True:
            with schedule.noting(path):
                batch = next(batches, None)
            if batch is None:
                break
            if isinstance(batch, Damage):
                if self.started:
                    schedule.report(batch)
            elif done is None:
                yield batch
            elif done.is_free(batch.records):
                yield batch
                done.take(batch.records)
        if done is None:
            return
        with schedule.trying(path):
            if unreadable and schedule.is_patient:
                error = OSError(errno.EIO, "some of its blocks cannot be read")
                raise ReadFailedError(path=path, error=error)

    def _entries(self, batch: SegmentBatch, mask: Mask) -> Entries:
        arrays = batch.columns.arrays
        return make_entries(
            sequence=batch.sequence[mask],
            due_ms=batch.due_ms[mask],
            position=batch.item_positions()[mask],
            size=arrays["size"][mask],
            minute=batch.segment.key.start,
            subject=self._numbers(batch.columns.names, arrays["subject"][mask]),
        )

    def _numbers(self, names: list[bytes], places: Places) -> npt.NDArray[np.uint32]:
        """Return the number of the name at each place; names of which none is have no number."""
        subjects = self._schedule.subjects
        present = np.zeros(len(names), np.bool_)
        present[places] = True
        if present.all():
            return subjects.numbers(names)[places]
        numbers = np.zeros(len(names), np.uint32)
        numbers[present] = subjects.numbers(list(compress(names, present.tolist())))
        return numbers[places]


class LoadJob(Job):
    """A slice of all subjects without a lane; moves the common cursor."""

    def _start(self) -> bool:
        if not self._schedule.start_load(self, self._now_ms):
            return False
        # Not those of lanes that ended meanwhile: what they left is this job's.
        self.left_out = self._schedule.lanes.subjects.copy()
        return True

    def _subject_mask(self, batch: SegmentBatch) -> Mask | None:
        left_out = self.left_out if self.started else self._schedule.lanes.subjects
        count = batch.header.count
        if not len(left_out):
            return np.ones(count, np.bool_)
        wanted = ~left_out.contains(self._known_numbers(batch))
        if not wanted.any():
            return None
        mask: Mask = wanted[batch.columns.arrays["subject"]]
        return mask


class _LaneJob(Job):
    """A slice of the subjects of one lane, those that it had when the job began."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        lane: int,
        begin: Key,
        until: Key,
        rows_max: int,
        now_ms: int,
    ) -> None:
        super().__init__(schedule, begin=begin, until=until, rows_max=rows_max, now_ms=now_ms)
        self.lane = lane
        self.members = schedule.lanes[lane].subjects.copy()
        numbers = self.members.numbers()
        self._only = schedule.subjects.names[numbers[0]] if len(numbers) == 1 else None

    def subjects(self) -> Numbers:
        """Return the numbers of subjects that the job looks at again, or has yet to give out."""
        return np.concatenate([self.members.numbers(), self.left_out.numbers()])

    def _subject_mask(self, batch: SegmentBatch) -> Mask | None:
        # Nearly always that is all there is to a batch.
        if self._only is not None and self._only not in batch.columns.names:
            return None
        numbers = self._known_numbers(batch)
        wanted = self.members.contains(numbers)
        if len(self.left_out):
            wanted &= ~self.left_out.contains(numbers)
        if not wanted.any():
            return None
        mask: Mask = wanted[batch.columns.arrays["subject"]]
        return mask


class DrainJob(_LaneJob):
    """A slice of a lane, for the sender; moves the lane's cursor. Its entries come in order."""

    more = False
    """Whether there were more rows than wanted."""

    trouble: ReadFailedError | None = None
    """Why some of its rows were not read: the lane comes by them when it is told to `retry_lane`.
    """

    def _accept(self, *, fits: bool) -> bool:
        self.more = not fits
        return True

    def _start(self) -> bool:
        return self._schedule.start_drain(self)

    def cap(self, key: Key) -> None:
        """Go on: each of its rows is noted as given out, wherever the common cursor stands."""

    def _read_all(self, parts: list[_Part]) -> Iterator[Entries | ReadFailedError | None]:
        found: list[Entries] = []
        for part in parts:
            try:
                for entries in self._read(part):
                    if entries is not None and len(entries):
                        found.append(entries)
                    yield None
            except ReadFailedError as error:
                self.trouble = error
        if self.trouble is not None:
            lane = self._schedule.lanes[self.lane]
            lane.unread = self.begin if lane.unread is None else min(lane.unread, self.begin)
        entries = self._not_too_many(_joined(found))
        # Rows lie in the order in which they were filed, and are to be sent as they are due.
        order = np.lexsort((entries["sequence"], entries["due_ms"]))
        self._schedule.given.add(entries["sequence"].copy())
        for first in range(0, len(order), _PIECE_ROWS):
            piece = order[first : first + _PIECE_ROWS]
            self._examined += len(piece)
            yield entries[piece]

    def _not_too_many(self, entries: Entries) -> Entries:
        """Return the first `rows_max` entries, and set the lane's cursor back to the last of them.

        There are more where some were filed after the end was planned, and whoever asked has room
        for those that were wanted and for no more.
        """
        if len(entries) <= self._rows_max:
            return entries
        effective_ms = effective_due_ms(entries["due_ms"], entries["minute"].astype(np.int64))
        order = np.lexsort((entries["sequence"], effective_ms))[: self._rows_max]
        key = int(effective_ms[order[-1]]), int(entries["sequence"][order[-1]])
        self._schedule.lanes[self.lane].lower(key)
        self.more = True
        return entries[np.sort(order)]


_PIECE_ROWS: Final = 4096


class CloseJob(_LaneJob):
    """All of a lane that is not after the common cursor, for the wheel; the lane ends.

    It comes to nothing if that is more than `rows_max` rows.
    """

    def _accept(self, *, fits: bool) -> bool:
        return fits

    def _start(self) -> bool:
        return self._schedule.start_close(self)


def _count(counts: Int64s, places: Int64s) -> None:
    if len(places) < _FEW_ROWS:
        np.add.at(counts, places, 1)
    else:
        counts += np.bincount(places, minlength=len(counts))


def _joined(found: list[Entries]) -> Entries:
    if not found:
        return no_entries()
    return np.concatenate(found) if len(found) > 1 else found[0]
