"""Loading: rows of minute segments become entries, slice by slice, in the order of their keys.

A reading is of one lane, between two keys. It runs in steps, between which other calls of the
worker of the executor take place. It plans first: it finds the key up to which about `rows_max`
rows are to be had. Then it starts, in one step: it sets the lane's cursor to where it will end.
From then on whatever comes or comes back before that lowers the cursor, or goes straight in. Rows
that are held or settled by the time it comes to them are passed over, so however readings overlap,
each row is handed out once (handout.py).

What cannot be read is left out, and told.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from itertools import compress
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from storage.batch.batches import Damage
from storage.batch.entries import Entries, SubjectTable, make_entries, no_entries
from storage.batch.number_set import Mask, Numbers
from storage.batch.rows import Int64s, effective_due_ms
from storage.disk.disk import Disk
from storage.disk.spans import MINUTE_MS
from storage.schedule.keys import Key, not_after
from storage.schedule.lane_table import LaneTable
from storage.schedule.row_places import Ordinals, RowPlaces, SequenceSet
from storage.schedule.segment import Segment, SegmentBatch

Places = npt.NDArray[np.uint16]

_FEW_ROWS: Final = 8192
"""Up to so many are counted one by one, which is cheaper than an array of a minute's ms."""

ALL_ROWS: Final = 1 << 62
"""More rows than there are: nothing is counted before they are read."""

_PIECE_ROWS: Final = 4096
"""Entries of a lane are handed over in pieces of so many, so that a step is bounded."""


class Schedule(Protocol):
    """What a reading asks of the schedule_log."""

    disk: Disk
    subjects: SubjectTable
    on_damage: Callable[[Damage], None]

    def segments_between(self, begin: Key, until: Key, /) -> list[Segment]:
        """Return the minute segments that may have rows after `begin` and not after `until`."""

    def crossed_off(self, segment: Segment, /) -> Int64s | None:
        """Return the sequences of a segment that have a fact, or an outcome that is durable.

        Returns None of one that is withheld.
        """


class Holder(Protocol):
    """What a reading asks of the one who hands rows out."""

    lanes: LaneTable
    readings: "list[Reading]"

    def open(self, minute: int, /) -> RowPlaces:
        """Return the places of a minute, which stays open until it is closed as often."""

    def close(self, minute: int, /) -> None:
        """Have a minute closed, unless something of it is held or others read it."""

    def may_open(self, minute: int, /) -> bool:
        """Say whether there is room for a minute of which a lane that is behind has rows."""

    def meet(self, places: RowPlaces, records: range, count: int, /) -> int:
        """Give ordinals to the rows of a batch; return the first."""

    def held_in(self, minute: int, /) -> int:
        """Return how many rows of a minute are held."""

    def hold(self, entries: Entries, /) -> Entries:
        """Hand entries out, of open minutes: those whose rows are on disk only."""

    def heed(self) -> None:
        """Do what those who hold rows have noted."""


class Reading(ABC):
    """One slice of a lane on its way from disk.

    `begin` is the place of the lane's cursor; `until` its end, which the plan may draw nearer.
    """

    def __init__(
        self,
        schedule: Schedule,
        holder: Holder,
        *,
        lane: int,
        begin: Key,
        until: Key,
        rows_max: int,
    ) -> None:
        self.lane = lane
        self.begin = begin
        self.until = until
        self.started = False
        """Whether the cursor has moved."""
        self._schedule = schedule
        self._holder = holder
        self._rows_max = rows_max
        self._examined = 0
        self._planned: int | None = None
        """The minute that the plan opened last, whose facts are known."""
        self._only = self._find_only()
        self._work = self._run()

    def _find_only(self) -> bytes | None:
        """Return the name of the lane's one subject; None if it has others."""
        lanes = self._holder.lanes
        if not self.lane or lanes.size(self.lane) != 1:
            return None
        return self._schedule.subjects.names[int(lanes.subjects(self.lane)[0])]

    def plan(self) -> bool:
        """Do what can be done without reading; return False if the reading came to nothing."""
        return next(self._work, True) is None

    def step(self, rows_max: int) -> tuple[Entries, bool]:
        """Examine about `rows_max` rows; return the entries handed out and whether that was all."""
        self._holder.heed()
        found: list[Entries] = []
        self._examined = 0
        while self._examined < rows_max:
            entries = next(self._work, False)
            if entries is False:
                return _joined(found), True
            if isinstance(entries, np.ndarray):
                found.append(entries)
        return _joined(found), False

    def _run(self) -> Iterator[Entries | None]:
        """Plan, start and read; yield wherever a step may end."""
        self._holder.readings.append(self)
        try:
            fits = yield from self._find_end()
            if not self._start(fits=fits):
                return
            self.started = True
            yield None
            yield from self._read_all()
        finally:
            self._end_plan()
            self._holder.readings.remove(self)

    @abstractmethod
    def _start(self, *, fits: bool) -> bool:
        """Set the cursor to `until`, knowing whether the plan drew it nearer; False to give up."""

    # -- the plan ----------------------------------------------------------------------------

    def _find_end(self) -> Generator[None, None, bool]:
        """Draw the end nearer if there are more rows than wanted; return whether all fits."""
        rows = 0
        for segment in self._schedule.segments_between(self.begin, self.until):
            minute = segment.key.start
            start_ms = minute * MINUTE_MS
            may_open = not self.lane or self._holder.may_open(minute)
            on_disk = segment.pending - self._holder.held_in(minute)
            if may_open and rows + on_disk <= self._rows_max:
                rows += on_disk
                continue
            if not may_open or rows == self._rows_max:
                self.until = min(self.until, (start_ms, 0))
                return False
            self._end_plan()
            places = self._holder.open(minute)
            self._planned = minute
            yield None
            counts = np.zeros(MINUTE_MS, np.int64)
            yield from self._count_matching(segment, places, counts, start_ms)
            end = yield from self._end_within(
                segment, places, counts, start_ms, wanted=self._rows_max - rows
            )
            if end is not None:
                self.until = min(self.until, end)
                return False
            rows += int(counts.sum())
        return True

    def _end_within(
        self, segment: Segment, places: RowPlaces, counts: Int64s, start_ms: int, *, wanted: int
    ) -> Generator[None, None, Key | None]:
        """Return where a slice of about so many rows of a segment ends; None if it has no more."""
        ends = np.cumsum(counts)
        if int(ends[-1]) <= wanted:
            return None
        place = int(np.searchsorted(ends, wanted, side="right"))
        before = int(ends[place - 1]) if place else 0
        if 2 * before >= wanted:
            return start_ms + place, 0
        # So much is due in one ms that the slice ends inside it.
        return (yield from self._end_inside(segment, places, start_ms + place, wanted - before))

    def _end_plan(self) -> None:
        if self._planned is not None:
            self._holder.close(self._planned)
            self._planned = None

    def _count_matching(
        self, segment: Segment, places: RowPlaces, counts: Int64s, start_ms: int
    ) -> Generator[None, None, None]:
        """Count the rows wanted of a segment by the ms at which they are due."""
        for batch, _, mask in self._matching(segment, places):
            if mask is not None:
                _count(counts, batch.effective_due_ms()[mask] - start_ms)
            yield None

    def _end_inside(
        self, segment: Segment, places: RowPlaces, due_ms: int, count: int
    ) -> Generator[None, None, Key]:
        """Return the key of the `count`th row wanted of one ms: rows ascend by sequence."""
        last = 0
        for batch, _, mask in self._matching(segment, places):
            if mask is not None:
                found = batch.sequence[mask & (batch.effective_due_ms() == due_ms)]
                if len(found) >= count:
                    return due_ms, int(found[count - 1])
                count -= len(found)
                last = int(found[-1]) if len(found) else last
            yield None
        return due_ms, last

    # -- reading -----------------------------------------------------------------------------

    def _read_all(self) -> Iterator[Entries | None]:
        """Yield the entries of all segments, handed out batch by batch."""
        for segment in self._schedule.segments_between(self.begin, self.until):
            minute = segment.key.start
            places = self._holder.open(minute)
            try:
                yield from self._read(segment, places)
            finally:
                self._holder.close(minute)

    def _read(self, segment: Segment, places: RowPlaces) -> Iterator[Entries | None]:
        if self._planned != segment.key.start:
            self._schedule.disk.prefetch(segment.file.path)
        for batch, first, mask in self._matching(segment, places):
            if mask is None:
                yield None
                continue
            rows = np.flatnonzero(mask)
            yield self._holder.hold(self._entries(batch, rows, (rows + first).astype(np.uint32)))

    def _matching(
        self, segment: Segment, places: RowPlaces
    ) -> Iterator[tuple[SegmentBatch, int, Mask | None]]:
        """Yield each batch, its first ordinal, and which of its rows are to be handed out.

        In place of the mask there is None where there are none.
        """
        for batch in self._batches(segment):
            self._examined += batch.header.count
            mask = self._subject_mask(batch)
            if mask is not None:
                effective_ms, sequence = batch.effective_due_ms(), batch.sequence
                mask &= ~not_after(effective_ms, sequence, self.begin)
                mask &= not_after(effective_ms, sequence, self.until)
            if mask is None or not mask.any():
                yield batch, 0, None
                continue
            first = self._first_row(batch, places)
            if first is None:
                yield batch, 0, None
                continue
            mask &= places.flags(first, len(mask)) == 0
            if places.lacks_facts(first):
                mask &= ~self._told(batch, places)
            yield batch, first, mask

    def _first_row(self, batch: SegmentBatch, places: RowPlaces) -> int | None:
        """Return the ordinal of a batch's first row; None for one that repeats others."""
        first = places.first_row(batch.records)
        if first is not None:
            return first
        if not places.is_free(batch.records):
            return None
        told = self._told(batch, places)
        first = self._holder.meet(places, batch.records, batch.header.count)
        places.settle(first, told)
        return first

    def _told(self, batch: SegmentBatch, places: RowPlaces) -> Mask:
        """Say which rows have a fact; all may have one where their segment is withheld.

        The facts are read once while anybody reads the minute.
        """
        if places.told is None:
            crossed_off = self._schedule.crossed_off(batch.segment)
            if crossed_off is None:
                return np.ones(batch.header.count, np.bool_)
            places.told = SequenceSet([crossed_off])
            self._examined += batch.segment.facts_seen
        return places.told.contains(batch.sequence)

    def _subject_mask(self, batch: SegmentBatch) -> Mask | None:
        """Say which rows' subjects are wanted, by the batch's own table; None for no row at all."""
        lanes = self._holder.lanes
        if not self.lane and not len(lanes):
            return np.ones(batch.header.count, np.bool_)
        # Nearly always that is all there is to a batch.
        if self._only is not None and self._only not in batch.columns.names:
            return None
        wanted = lanes.lanes_of(self._known_numbers(batch)) == self.lane
        if not wanted.any():
            return None
        mask: Mask = wanted[batch.columns.arrays["subject"]]
        return mask

    def _known_numbers(self, batch: SegmentBatch) -> Numbers:
        """Return the number of each name of a batch's table, -1 for one that has none.

        Asked and not given: a batch may have many names of which nothing is wanted.
        """
        known = self._schedule.subjects.ids.get
        names = batch.columns.names
        return np.fromiter((known(name, -1) for name in names), np.intp, len(names))

    def _batches(self, segment: Segment) -> Iterator[SegmentBatch]:
        """Yield the readable batches of a segment."""
        for batch in segment.read_rows(self._schedule.disk, segment.file.length):
            if not isinstance(batch, Damage):
                yield batch
            elif self.started:
                self._schedule.on_damage(batch)

    def _entries(
        self, batch: SegmentBatch, rows: npt.NDArray[np.intp], ordinals: Ordinals
    ) -> Entries:
        arrays = batch.columns.arrays
        return make_entries(
            sequence=batch.sequence[rows],
            due_ms=batch.due_ms[rows],
            position=batch.item_positions()[rows],
            size=arrays["size"][rows],
            minute=batch.segment.key.start,
            subject=self._numbers(batch.columns.names, arrays["subject"][rows]),
            row=ordinals,
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


class LoadJob(Reading):
    """A slice of lane 0, for the wheel."""

    def __init__(
        self,
        schedule: Schedule,
        holder: Holder,
        *,
        begin: Key,
        until: Key,
        rows_max: int,
        starts: "Starts",
    ) -> None:
        """Take over the slice; `starts` sets the cursor once it is planned."""
        super().__init__(schedule, holder, lane=0, begin=begin, until=until, rows_max=rows_max)
        self._starts = starts

    def _start(self, *, fits: bool) -> bool:
        del fits
        return self._starts(self)


class Starts(Protocol):
    """Sets the cursor of lane 0 for a slice."""

    def __call__(self, job: LoadJob, /) -> bool:
        """Set it to where the slice ends; return False if it would not be right to read it."""


class DrainJob(Reading):
    """A slice of a lane other than 0, for the sender. Its entries come in order."""

    more = False
    """Whether there were more rows than wanted."""

    surplus = no_entries()
    """What was read and is not wanted, since there is no room for it: to be given back."""

    def _start(self, *, fits: bool) -> bool:
        if self.until <= self.begin:
            return False  # There is no room for the minute that comes next.
        self.more = not fits
        # Others that join from now on lower the cursor.
        self._only = self._find_only()
        lanes = self._holder.lanes
        if self.lane in lanes and lanes.loading_of(self.lane) == self.begin:
            # Else it was lowered for a row that came meanwhile.
            lanes.begin(self.lane, self.until)
        return True

    def _read_all(self) -> Iterator[Entries | None]:
        found: list[Entries] = []
        for entries in super()._read_all():
            if entries is not None and len(entries):
                found.append(entries)
            yield None
        # Rows lie in the order in which they were filed, and are to be sent as they are due.
        for entries in _pieces(self._not_too_many(_joined(found))):
            self._examined += len(entries)
            yield entries

    def _not_too_many(self, entries: Entries) -> Entries:
        """Return the first `rows_max` entries in the order in which they are due; keep the others.

        There are more where some were filed after the end was planned, and whoever asked has room
        for those that were wanted and for no more.
        """
        if len(entries) > self._rows_max:
            self.more = True
            effective_ms = effective_due_ms(entries["due_ms"], entries["minute"].astype(np.int64))
            order = np.lexsort((entries["sequence"], effective_ms))
            self.surplus = entries[order[self._rows_max :]]
            entries = entries[order[: self._rows_max]]
        return entries[np.lexsort((entries["sequence"], entries["due_ms"]))]


class FitJob(Reading):
    """Finds out, in steps, whether a lane has at most `rows_max` rows to be had; reads none."""

    fits = False
    """Known when it has ended."""

    def _start(self, *, fits: bool) -> bool:
        self.fits = fits
        return False


def _count(counts: Int64s, places: Int64s) -> None:
    if len(places) < _FEW_ROWS:
        np.add.at(counts, places, 1)
    else:
        counts += np.bincount(places, minlength=len(counts))


def _pieces(entries: Entries) -> Iterator[Entries]:
    for first in range(0, len(entries), _PIECE_ROWS):
        yield entries[first : first + _PIECE_ROWS]


def _joined(found: list[Entries]) -> Entries:
    if not found:
        return no_entries()
    return np.concatenate(found) if len(found) > 1 else found[0]
