"""What a mastership has handed out of the schedule_log, and from where it reads the rest.

    read, or arrived ──> held ──> its outcome is applied ──> settled
                          └──> given back ──> on disk only; the cursor of its lane is lowered

Each row that anything in memory stands for is *held*: in the wheel, in the sender, or on its way
between. A row is handed out only if it is neither held nor settled, and is held from that step on,
in one worker of the executor. So it is in memory at most once, whatever the cursors say, and they
need only be low enough (lane_table.py).

Those who hold rows live in another thread. What they have to say (a row is given back or settled,
a subject changes its lane) they note down here, in order, and whatever is called here next heeds
it first. A handout begins with nothing held; when a mastership ends it is dropped, store and all
else stay.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import pairwise
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from storage.batch.entries import Entries, make_entries, no_entries
from storage.batch.number_set import Mask, Numbers, grown
from storage.batch.rows import Int64s, RowBlock, effective_due_ms
from storage.disk.spans import MINUTE_MS
from storage.schedule.crossing_off import CrossingOff
from storage.schedule.keys import NEVER, Key, not_after
from storage.schedule.lane_table import LaneTable
from storage.schedule.loading import DrainJob, FitJob, LoadJob, Reading, Schedule
from storage.schedule.row_places import RowPlaces
from storage.schedule.segment import Appended, Segment
from storage.schedule.waiting_rows import WaitingRows

PLACES_MAX: Final = 64 * 1024 * 1024
"""Rows of open minutes, a byte each, at which minutes of which hardly anything is held are thinned
out; at which lanes that are behind open no further ones, should that not help."""

_THIN_SHARE: Final = 8
"""A minute is thinned out if less than this part of its rows is held: 4 bytes each are kept."""

HELD_ROW = np.dtype([("sequence", "<i8"), ("minute", "<u4"), ("row", "<u4"), ("subject", "<u4")])
"""What is needed of an entry to let go of its row, and to tell whose it is."""

Places = npt.NDArray[np.intp] | slice

HeldRows = npt.NDArray[np.void]
"""A one-dimensional array of HELD_ROW, or of entries."""


def held_rows(entries: Entries) -> HeldRows:
    """Return what is needed to let go of these entries' rows."""
    rows = np.empty(len(entries), HELD_ROW)
    for name in ("sequence", "minute", "row", "subject"):
        rows[name] = entries[name]
    return rows


class HandedOutFrom(Schedule, Protocol):
    """What a handout asks of the schedule_log."""

    last_filed: int
    facts: CrossingOff
    waiting: WaitingRows

    @property
    def hour_mark(self) -> int:
        """Minute before which rows lie in minute segments."""

    def of_time(self) -> Iterator[Segment]:
        """Yield the segments of messages that are to be sent."""

    def flush(self, now_ms: int, /) -> bool:
        """Write what waits in memory."""


class Handout:
    """The rows that are held, the lanes with their cursors, and the readings under way."""

    def __init__(self, schedule: HandedOutFrom) -> None:
        self.lanes = LaneTable()
        self.readings: list[Reading] = []
        """Readings that have begun and not ended."""
        self._schedule = schedule
        self._minutes: dict[int, RowPlaces] = {}
        self._open_rows = 0
        self._thin_at = PLACES_MAX
        self._held_of = np.zeros(64, np.int64)
        """Rows held of each subject, by number."""
        self._forgotten: Key | None = None
        """The first of what was given back although its subject's lane does not lead to it."""
        self._notes: deque[Callable[[], None]] = deque()

    # -- from any thread ---------------------------------------------------------------------

    def give_back(self, entries: Entries, *, is_forgotten: bool = False) -> None:
        """Have rows on disk only again; their lanes come by them.

        Those that are `is_forgotten` are come by after `remember`.
        """
        if len(entries):
            self._notes.append(partial(self._give_back, entries, is_forgotten=is_forgotten))

    def settle(self, rows: HeldRows) -> None:
        """Have rows settled, since the schedule_log has their facts by now."""
        self._notes.append(partial(self._let_go, rows, settled=True))

    def assign(self, subjects: Numbers, lane: int) -> None:
        """Put subjects, each given once, into a lane; it comes by what is on disk only of them."""
        self._notes.append(partial(self._assign, subjects, lane))

    def remember(self) -> None:
        """Have all lanes come by what was forgotten."""
        self._notes.append(self._remember)

    def cap(self, key: Key) -> None:
        """Have lane 0 come again by all that is after `key`; readings under way leave it out."""
        self._notes.append(partial(self._cap, key))

    # -- in the worker of the schedule_log ---------------------------------------------------

    def heed(self) -> None:
        """Do what was noted."""
        while self._notes:
            self._notes.popleft()()

    def _give_back(self, entries: Entries, *, is_forgotten: bool) -> None:
        self._let_go(entries, settled=False)
        minute = entries["minute"].astype(np.int64)
        effective_ms = effective_due_ms(entries["due_ms"], minute)
        if is_forgotten:
            first = int(effective_ms.min()), 0
            self._forgotten = first if self._forgotten is None else min(self._forgotten, first)
            return
        lanes = self.lanes.lanes_of(entries["subject"].astype(np.intp))
        self.lanes.lower_to_rows(lanes, effective_ms)

    def _let_go(self, rows: HeldRows, *, settled: bool) -> None:
        ordinals, subjects = rows["row"], rows["subject"]
        for minute, these in _by_minute(rows["minute"]):
            places = self._minutes.get(minute)
            if places is None:
                continue  # It was let go of already.
            before = places.size
            was_held = places.let_go(ordinals[these], settled=settled)
            np.subtract.at(self._held_of, subjects[these][was_held], 1)
            self._open_rows += places.size - before
            self._close_if_unused(minute, places)

    def _assign(self, subjects: Numbers, lane: int) -> None:
        # A reading has set the loading cursor before it has come by their rows.
        left = set(np.unique(self.lanes.lanes_of(subjects)).tolist())
        begun = [reading.begin for reading in self.readings if reading.lane in left]
        self.lanes.assign(subjects, lane, min(begun, default=NEVER))

    def _remember(self) -> None:
        if self._forgotten is not None:
            self.lanes.lower_all(self._forgotten)
            self._forgotten = None

    def _cap(self, key: Key) -> None:
        self.lanes.lower(0, key)
        for reading in self.readings:
            if not reading.lane:
                reading.until = min(reading.until, key)

    # -- minutes -----------------------------------------------------------------------------

    def open(self, minute: int) -> RowPlaces:
        """Return the places of a minute, which stays open until it is closed as often."""
        places = self._minutes.get(minute)
        if places is None:
            places = self._minutes[minute] = RowPlaces()
        places.readers += 1
        return places

    def close(self, minute: int) -> None:
        """Have a minute closed, unless something of it is held or others read it."""
        places = self._minutes[minute]
        places.readers -= 1
        if not places.readers:
            places.told = None
            self._close_if_unused(minute, places)

    def _close_if_unused(self, minute: int, places: RowPlaces) -> None:
        if not places.held and not places.readers:
            self._open_rows -= places.size
            del self._minutes[minute]

    def may_open(self, minute: int) -> bool:
        """Say whether there is room for a minute of which a lane that is behind has rows."""
        return minute in self._minutes or self._open_rows < PLACES_MAX

    def still_open(self, minutes: Collection[int]) -> set[int]:
        """Return those minutes of which a row may be handed out without a look at its facts."""
        self.heed()
        near = {minute for block in self._schedule.waiting.near for minute in block.minute.tolist()}
        return {minute for minute in minutes if minute in self._minutes or minute in near}

    def meet(self, places: RowPlaces, records: range, count: int) -> int:
        """Give ordinals to the rows of a batch; return the first."""
        self._open_rows += count
        if self._open_rows > self._thin_at:
            self._thin_out()
        return places.meet(records, count)

    def _thin_out(self) -> None:
        """Forget of minutes that nobody reads, and of which hardly anything is held, the rest."""
        for places in self._minutes.values():
            before = places.size
            if not places.readers and places.held * _THIN_SHARE < before:
                places.thin_out()
                self._open_rows += places.size - before
        # Looking at all of them again has to be worth it.
        self._thin_at = max(PLACES_MAX, self._open_rows + PLACES_MAX // _THIN_SHARE)

    def held_in(self, minute: int) -> int:
        """Return how many rows of a minute are held."""
        places = self._minutes.get(minute)
        return 0 if places is None else places.held

    def holds_subjects(self, count: int) -> Mask:
        """Say of the first so many numbers which are of subjects that are held, or in a lane."""
        self.heed()
        holds = np.zeros(count, np.bool_)
        held = self._held_of[:count] > 0
        holds[: len(held)] = held
        holds[self.lanes.subjects()] = True
        return holds

    # -- handing out -------------------------------------------------------------------------

    def hold(self, entries: Entries) -> Entries:
        """Hand entries out, of open minutes: those whose rows are on disk only."""
        free = np.ones(len(entries), np.bool_)
        ordinals = entries["row"]
        for minute, these in _by_minute(entries["minute"]):
            places = self._minutes[minute]
            before = places.size
            free[these] = places.hold(ordinals[these])
            self._open_rows += places.size - before
        handed_out = entries if free.all() else entries[free]
        self._count(handed_out["subject"])
        return handed_out

    def _count(self, subjects: npt.NDArray[np.uint32]) -> None:
        if not len(subjects):
            return
        self._held_of = grown(self._held_of, int(subjects.max()) + 1)
        np.add.at(self._held_of, subjects, 1)

    def aside(self, block: RowBlock) -> None:
        """Hear of rows that wait to be written, all after the cursor of lane 0."""
        if len(self.lanes):
            self._lower_lanes(block, effective_due_ms(block.due_ms, block.minute))

    def _lower_lanes(self, block: RowBlock, effective_ms: Int64s) -> Mask:
        """Have the lanes of rows come by them; say which are in lane 0."""
        lanes = self.lanes.lanes_of(block.subject.astype(np.intp))
        is_in_first: Mask = lanes == 0
        self.lanes.lower_to_rows(lanes[~is_in_first], effective_ms[~is_in_first])
        return is_in_first

    def arrived(self, segment: Segment, block: RowBlock, appended: Appended) -> Entries:
        """Hand out those rows of a block, just written, that are not after the cursor of lane 0.

        Those of other lanes, and those whose outcome is durable already, stay on disk.
        """
        minute = segment.key.start
        wanted = np.ones(len(block), np.bool_)
        if (minute + 1) * MINUTE_MS > self.lanes.loading[0] or len(self.lanes):
            effective_ms = effective_due_ms(block.due_ms, block.minute)
            wanted = not_after(effective_ms, block.sequence, self.lanes.loading)
            if len(self.lanes):
                wanted &= self._lower_lanes(block, effective_ms)
        if minute not in self._minutes and not wanted.any():
            return no_entries()
        places = self.open(minute)
        try:
            first = places.rows
            for records, count in appended.batches:
                self.meet(places, records, count)
            if self._schedule.facts.has_unapplied_outcomes:
                places.settle(first, self._schedule.facts.has_outcome(block.sequence))
            entries = make_entries(
                sequence=block.sequence,
                due_ms=block.due_ms,
                position=appended.positions,
                size=block.size,
                minute=minute,
                subject=block.subject,
                row=np.arange(first, places.rows, dtype=np.uint32),
            )
            return self.hold(entries if wanted.all() else entries[wanted])
        finally:
            self.close(minute)

    # -- readings ----------------------------------------------------------------------------

    def next_load_ms(self) -> int | None:
        """Return when the first row is due that lane 0 has yet to come by; None if there is none.

        Rows of coarse segments count: they have to be split before.
        """
        self.heed()
        cursor_ms = self.lanes.loading[0]
        times = [
            max(segment.earliest_effective_ms, cursor_ms)
            for segment in self._schedule.of_time()
            if segment.key.end * MINUTE_MS > cursor_ms and segment.rows
        ]
        pile_ms = self._schedule.waiting.pile_earliest_ms
        return min(times if pile_ms is None else [*times, pile_ms], default=None)

    def begin_load(self, until_ms: int, *, rows_max: int, now_ms: int) -> LoadJob | None:
        """Begin to read lane 0 up to `until_ms`, over at most about `rows_max` rows.

        Returns None if nothing can be read now: the cursor is there already, rows that come next
        found no space, a split has to come first, or `rows_max` leaves no room.
        """
        self.heed()
        begin = self.lanes.loading
        until: Key = (min(until_ms, self._schedule.hour_mark * MINUTE_MS), 0)
        if until <= begin or rows_max <= 0:
            return None
        self._schedule.flush(now_ms)
        flushed = self._schedule.last_filed
        until = self._before_pile(until)
        if until <= begin:
            return None

        def start(job: LoadJob) -> bool:
            if self._schedule.last_filed != flushed:
                self._schedule.flush(now_ms)
            job.until = self._before_pile(job.until)
            job.begin = min(job.begin, self.lanes.loading)
            if job.until <= self.lanes.loading:
                return False
            self.lanes.begin(0, job.until)
            return True

        job = LoadJob(
            self._schedule, self, begin=begin, until=until, rows_max=rows_max, starts=start
        )
        return job if job.plan() else None

    def _before_pile(self, until: Key) -> Key:
        """Return where to end: up to the first minute of which a row is not on the disk."""
        pile_ms = self._schedule.waiting.pile_earliest_ms
        return until if pile_ms is None else min(until, (pile_ms // MINUTE_MS * MINUTE_MS, 0))

    def begin_drain(self, lane: int, until_ms: int, *, rows_max: int) -> DrainJob | None:
        """Begin to take the first rows of a lane, at most `rows_max`, due by `until_ms`.

        Nothing after the cursor of lane 0 is taken: a lane never overtakes the others. Returns None
        if there is nothing between the two cursors, or no room for its minutes.
        """
        self.heed()
        if lane not in self.lanes:
            return None
        begin, until = self.lanes.loading_of(lane), min((until_ms + 1, 0), self.lanes.loading)
        if until <= begin or rows_max <= 0:
            return None
        job = DrainJob(self._schedule, self, lane=lane, begin=begin, until=until, rows_max=rows_max)
        return job if job.plan() else None

    def begin_fit(self, lane: int, now_ms: int, *, rows_max: int) -> FitJob | None:
        """Begin to find out whether a lane has at most `rows_max` rows that lane 0 has passed.

        Returns None where the lane has no subjects, or lane 0 is behind itself: what is due of the
        lane would come through the wheel.
        """
        self.heed()
        if lane not in self.lanes or self.lanes.loading <= (now_ms, 0):
            return None
        return FitJob(
            self._schedule,
            self,
            lane=lane,
            begin=self.lanes.loading_of(lane),
            until=self.lanes.loading,
            rows_max=rows_max,
        )


def _by_minute(minutes: npt.NDArray[np.uint32]) -> Iterator[tuple[int, Places]]:
    """Yield the minutes of some rows, each with the places of its rows."""
    if not len(minutes):
        return
    first = int(minutes[0])
    if (minutes == first).all():
        yield first, slice(None)
        return
    order = np.argsort(minutes, kind="stable")
    ordered = minutes[order]
    edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(order)]
    for begin, end in pairwise(edges):
        yield int(ordered[begin]), order[begin:end]
