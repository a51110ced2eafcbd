"""The timing wheel: which messages are due. It knows their index only, 40 bytes each.

    fresh   rows as they were added; spread over the slots when full, or when one of them is due
    slots   {26562500: [2000, 2063], 26562501: [2064, 2127], ...}     unsorted, by due time
    runs    what is due in the slots that time has reached, in exact order (sorted_runs.py)

With slot_ms = 64 a row that is due at t belongs to slot t // 64. The slots are a dict, so the wheel
has no circumference; a heap of their numbers tells which comes next. A slot is sorted only when
its first row is due. Rows that are due already when they are spread go straight to the runs, so a
backlog that reaches far into the past makes no slots.

The wheel has no clock, no task and no disk. Time is an argument and may step either way: a row
leaves when, and only when, the `now_ms` of a pop has reached its due time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np
import numpy.typing as npt

from delay_server.holding.sorted_runs import (
    NEVER,
    RAW,
    STEP_ROWS,
    Counts,
    Rows,
    SortedRuns,
    parted,
    sorted_rows,
)
from delay_transport.seams.constants import constant
from delay_transport.settings.sections import require_at_least
from storage.batch.entries import ENTRY, Entries
from storage.batch.number_set import grown
from storage.disk.spans import MINUTE_MS
from storage.schedule.keys import Key

FRESH_ROWS: Final = 16_384
"""Rows gathered before they are spread: the more, the more of them share the work on a slot."""

_SLOT_BYTES: Final = 16_384 * ENTRY.itemsize
"""More than this of a slot is sorted at once and kept as a run, so that opening a slot is cheap
however many rows are due in it."""


_KEYS_OF_RUN: Final = 16
"""Keys that are looked at of each run to find out what to throw out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelConfig:
    """The index, in memory, of the messages that are due soon."""

    load_ahead_ms: int = 120_000
    """Milliseconds before its due time at which a message enters the wheel. A higher value costs
    memory. A lower one leaves less time for reads when the disk is slow."""

    entries_max: int = 8_000_000
    """Messages in memory, 40 to 80 bytes each: those due soon and those in delivery. At most half
    of them are in delivery. Further messages wait on disk, and the node loads them in the order of
    their due time as there is room."""

    lane_entries_min: int = constant(2000)
    """Messages of one subject that may be held for delivery before it gets a lane of its own, in
    which they take turns with all others. Less means that others wait less behind them."""

    lanes_max: int = constant(256)
    """Subjects at a time that may have a lane. Of such a subject at most half of the room that is
    left is held for delivery, the rest of what is due waits on disk. More subjects than this that
    are hot at the same time can delay others."""

    slot_ms: int = 64
    """Milliseconds of due time that are sorted at once. It changes the cost, not order or
    lateness."""

    def __post_init__(self) -> None:
        """Refuse a wheel that could hold nothing, or would come too late."""
        require_at_least(self, 1000, "load_ahead_ms")
        require_at_least(self, 8, "entries_max")
        require_at_least(self, 1, "slot_ms", "lane_entries_min", "lanes_max")
        if self.slot_ms > self.load_ahead_ms:
            raise ValueError("slot_ms must be at most load_ahead_ms")


class _Slot:
    """The rows of one slot: unsorted ones, and runs that are sorted already."""

    __slots__ = ("earliest_ms", "rows", "runs")

    def __init__(self, earliest_ms: int) -> None:
        self.earliest_ms = earliest_ms
        """The earliest due time in the slot."""
        self.rows = bytearray()
        self.runs: list[Rows] = []

    def add(self, piece: memoryview) -> None:
        """Add the bytes of rows that are in order among themselves."""
        if len(piece) > _SLOT_BYTES:
            self.runs.append(np.frombuffer(bytes(piece), RAW))
            return
        self.rows += piece
        if len(self.rows) > _SLOT_BYTES:
            self.seal()

    def seal(self) -> None:
        """Make the unsorted rows one more run."""
        if self.rows:
            self.runs.append(sorted_rows(np.frombuffer(self.rows, RAW))[0])
            self.rows = bytearray()

    def __len__(self) -> int:
        return len(self.rows) // ENTRY.itemsize + sum(len(run) for run in self.runs)

    def remove_after(self, key: Key, *, moved: bool) -> list[Rows]:
        """Remove the rows after `key` and return them; see sorted_runs.parted."""
        if (self.earliest_ms, 0) >= key:
            removed = [*self.runs, np.frombuffer(self.rows, RAW)]
            self.rows, self.runs = bytearray(), []
            return removed
        self.seal()
        pairs = [parted(run, key, moved=moved) for run in self.runs]
        # Copied, so that what is removed is freed.
        self.runs = [kept.copy() for kept, _ in pairs if len(kept)]
        self._find_earliest()
        return [removed for _, removed in pairs]

    def _find_earliest(self) -> None:
        due = [int(run[:1].view(ENTRY)["due_ms"][0]) for run in self.runs]
        if self.rows:
            due.append(int(np.frombuffer(self.rows, RAW).view(ENTRY)["due_ms"].min()))
        self.earliest_ms = min(due, default=NEVER)

    @property
    def memory_bytes(self) -> int:
        """Bytes held, over-allocation included."""
        return self.rows.__sizeof__() + sum(run.nbytes for run in self.runs)


class Wheel:
    """Holds the entries that are due soon and hands out those that are due.

    Invariants: every entry added is in exactly one of fresh rows, slots and runs until it is
    popped; a slot number is in the heap exactly if it is in the dict; no slot is empty.

    Calls take time by the rows they are given or return, so a caller that must not hold up its loop
    adds and pops some ten thousand at a time.
    """

    def __init__(self, *, slot_ms: int = 64, now_ms: int | None = None) -> None:
        """Make an empty wheel.

        Entries that are due by `now_ms` are backlog from the start and make no slots. If it is not
        given, all that is added before the first pop is treated so, which costs a little more.
        """
        assert slot_ms > 0
        self._slot_ms = slot_ms
        self._reached_ms = now_ms
        self._count = 0
        self._fresh = np.empty(FRESH_ROWS, RAW)
        self._fresh_count = 0
        self._fresh_earliest_ms = NEVER
        self._slots: dict[int, _Slot] = {}
        self._slot_numbers: list[int] = []
        self._runs = SortedRuns()
        self._pending = np.zeros(64, np.int64)
        self._moved_to_ms = -1
        """No row that the floor moved into a later minute was moved further than this."""
        self._behind = np.zeros(0, np.bool_)
        """Which subjects are in the backlog."""
        self.is_evicting = False
        """Whether rows are being thrown out; until the end none may be added or popped."""
        self.is_popping = False
        """Whether rows are being popped in steps; until the end none may be thrown out."""

    def __len__(self) -> int:
        return self._count

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory held. Visits every slot: for metrics and for loading, not for ticks."""
        slots = sum(slot.memory_bytes for slot in self._slots.values())
        return slots + self._runs.memory_bytes + self._fresh.nbytes + self._pending.nbytes

    def pending_of(self, subject: int) -> int:
        """Return how many entries of a subject are held."""
        return int(self._pending[subject]) if subject < len(self._pending) else 0

    def next_due_ms(self) -> int | None:
        """Return the earliest due time held, exactly; None if the wheel is empty.

        While rows are being thrown out it may be a later one.
        """
        if not self._count:
            return None
        return min(self._fresh_earliest_ms, self._next_slot_ms(), self._runs.next_due_ms())

    def add(self, entries: Entries) -> None:
        """Hold entries until they are due, whenever that is; in any order. They are copied."""
        if not len(entries):
            return
        rows = np.ascontiguousarray(entries).view(RAW)
        self._count_subjects(entries["subject"])
        self._count += len(rows)
        start_ms = entries["minute"].astype(np.int64) * MINUTE_MS
        moved_to = start_ms[start_ms > entries["due_ms"]]
        if len(moved_to):
            self._moved_to_ms = max(self._moved_to_ms, int(moved_to.max()))
        if len(rows) > FRESH_ROWS:
            self._spread(rows)
            return
        if self._fresh_count + len(rows) > FRESH_ROWS:
            self._spread(self._fresh[: self._fresh_count])
            self._keep_fresh(self._fresh[:0])
        count = self._fresh_count
        self._fresh[count : count + len(rows)] = rows
        self._fresh_count = count + len(rows)
        self._fresh_earliest_ms = min(self._fresh_earliest_ms, int(entries["due_ms"].min()))

    def pop_due(self, now_ms: int, limit: int) -> Entries:
        """Remove and return the entries with due_ms <= now_ms, the first `limit` of them.

        They are ordered by (due_ms, sequence) and the array is the caller's own.
        """
        assert not self.is_evicting
        self._reached_ms = now_ms
        if self._fresh_earliest_ms <= now_ms:
            self._spread_reached()
        parts: list[Rows] = []
        while limit > 0:
            # What the runs hold must not overtake the next slot, which is opened when its turn has
            # come and not before: after a long sleep there may be thousands.
            next_slot_ms = self._next_slot_ms()
            rows = self._runs.take(min(now_ms, next_slot_ms - 1), limit)
            if len(rows):
                parts.append(rows)
                limit -= len(rows)
            elif next_slot_ms <= now_ms:
                self._open_slot(self._slot_numbers[0])
            else:
                break
        if not parts:
            return np.empty(0, ENTRY)
        return self._popped(np.concatenate(parts) if len(parts) > 1 else parts[0].copy())

    def pop_between(self, after_ms: int, now_ms: int, limit: int) -> Iterator[Entries | None]:
        """Remove at most `limit` entries due after `after_ms` and by `now_ms`, in steps.

        Yields None after each step, and the entries at last. Meanwhile others may be added.

        They leave before the backlog, which is all that was due by `after_ms`, however much that
        is. Where they exceed the limit, subjects with the fewest go first, and each as a whole: the
        rest of them is part of the backlog from now on, and so is all that becomes due of the same
        subjects until it has left, which the caller tells by end_backlog().
        """
        assert not self.is_evicting
        self.is_popping = True
        self._reached_ms = now_ms
        if self._fresh_earliest_ms <= now_ms:
            self._spread_reached()
        # Each slot in the span is opened, so spans should be short.
        for number in range((after_ms + 1) // self._slot_ms, now_ms // self._slot_ms + 1):
            if number in self._slots:
                self._open_slot(number)
        size = len(self._pending)
        fewest = partial(self._fewest, limit)
        for rows in self._runs.take_between(after_ms, now_ms, fewest, subjects=size):
            if rows is None:
                yield None
            else:
                self.is_popping = False
                yield self._popped(rows)

    def _fewest(self, limit: int, counts: Counts) -> npt.NDArray[np.bool_]:
        """Say which subjects go before the backlog, and count the others to it.

        They have so many entries that have become due.
        """
        behind = np.zeros(len(self._pending), np.bool_)
        behind[: len(self._behind)] = self._behind
        present = np.flatnonzero((counts > 0) & ~behind[: len(counts)])
        fewest = present[np.argsort(counts[present], kind="stable")]
        goes = np.zeros(len(counts), np.bool_)
        goes[fewest[counts[fewest].cumsum() <= limit]] = True
        behind[present] = ~goes[present]
        self._behind = behind
        return goes

    def begin_backlog(self, until_ms: int) -> Iterator[None]:
        """Take all that is due by then as the backlog, whoever has how much of it; in steps.

        What is added meanwhile may be missed.
        """
        self.is_popping = True
        behind = np.zeros(len(self._pending), np.bool_)
        looked = 0
        for subjects in self._due_by(until_ms):
            behind[subjects] = True
            looked += len(subjects)
            if looked >= STEP_ROWS:
                looked = 0
                yield
        self._behind = behind
        self.is_popping = False

    def _due_by(self, until_ms: int) -> Iterator[npt.NDArray[np.uint32]]:
        """Yield the subjects of all rows due by then, in parts; rows may be added meanwhile."""
        fresh = self._fresh[: self._fresh_count].view(ENTRY)
        parts = [fresh["subject"][fresh["due_ms"] <= until_ms]]
        parts += self._runs.subjects_between(-NEVER, until_ms)
        slots = [slot for number, slot in self._slots.items() if number * self._slot_ms <= until_ms]
        yield from parts
        for slot in slots:
            for rows in (*slot.runs, np.frombuffer(bytes(slot.rows), RAW)):
                entries = rows.view(ENTRY)
                yield entries["subject"][entries["due_ms"] <= until_ms]

    def end_backlog(self) -> None:
        """Hear that nothing is left that was due at the latest look."""
        self._behind = np.zeros(0, np.bool_)

    def _popped(self, rows: Rows) -> Entries:
        """Count rows that are handed out, which are a copy."""
        due = rows.view(ENTRY)
        self._count -= len(due)
        np.subtract.at(self._pending, due["subject"], 1)
        if not self._count:
            self._moved_to_ms = -1
        return due

    def eviction_key(self, keep: int) -> Key:
        """Return a key after which enough rows are held that about `keep` others are left.

        Fewer may be left: a slot is thrown out as a whole. There must be more than `keep`.
        """
        assert self._count > keep
        self._spread_fresh()
        points = self._runs.sample(_KEYS_OF_RUN)
        points += [((slot.earliest_ms, 0), len(slot)) for slot in self._slots.values()]
        points.sort()
        held, first = 0, points[0][0]
        for key, count in points:
            first = key
            held += count
            if held > keep:
                break
        # The row with that key is the first that goes.
        return first[0], max(first[1] - 1, 0)

    def evict(self, key: Key) -> Iterator[Entries]:
        """Throw out the rows after `key`, by effective due time and sequence; yield them, in steps.

        What counts of a row is when it is loaded: for one that the floor moved, the start of its
        filed minute.
        """
        assert not self.is_popping
        self.is_evicting = True
        self._spread_fresh()
        moved = self._moved_to_ms >= key[0]
        for number, slot in self._slots.items():
            if moved or (number + 1) * self._slot_ms > key[0]:
                yield self._forget(slot.remove_after(key, moved=moved))
        self._slots = {number: slot for number, slot in self._slots.items() if len(slot)}
        self._slot_numbers = list(self._slots)
        heapify(self._slot_numbers)
        for rows in self._runs.remove_after(key, moved=moved):
            yield self._forget([rows])
        self.is_evicting = False

    def _forget(self, removed: list[Rows]) -> Entries:
        """Count rows that were thrown out, and return them; they are nobody else's."""
        gone = _joined(removed)
        self._count -= len(gone)
        np.subtract.at(self._pending, gone["subject"], 1)
        return gone

    def _next_slot_ms(self) -> int:
        """Return the earliest due time of all slots, or NEVER."""
        return self._slots[self._slot_numbers[0]].earliest_ms if self._slot_numbers else NEVER

    def _open_slot(self, number: int) -> None:
        if number == self._slot_numbers[0]:
            heappop(self._slot_numbers)
        else:
            # Earlier ones are opened when their turn comes.
            self._slot_numbers.remove(number)
            heapify(self._slot_numbers)
        slot = self._slots.pop(number)
        slot.seal()
        for run in slot.runs:
            self._runs.add(run)

    def _slot_end_ms(self) -> int:
        """Return where the slot of the latest pop ends; what is due before goes to the runs."""
        if self._reached_ms is None:
            return NEVER
        return (self._reached_ms // self._slot_ms + 1) * self._slot_ms

    def _spread_reached(self) -> None:
        """Move the fresh rows whose slot time has reached to the runs; the others stay fresh."""
        fresh = self._fresh[: self._fresh_count]
        reached = fresh.view(ENTRY)["due_ms"] < self._slot_end_ms()
        self._runs.add(sorted_rows(fresh[reached])[0])
        self._keep_fresh(fresh[~reached])

    def _spread_fresh(self) -> None:
        if self._fresh_count:
            self._spread(self._fresh[: self._fresh_count])
            self._keep_fresh(self._fresh[:0])

    def _keep_fresh(self, rows: Rows) -> None:
        """Make these the fresh rows."""
        count = self._fresh_count = len(rows)
        self._fresh[:count] = rows
        due_ms = self._fresh[:count].view(ENTRY)["due_ms"]
        self._fresh_earliest_ms = int(due_ms.min()) if count else NEVER

    def _spread(self, rows: Rows) -> None:
        """Put rows where they belong: each to its slot, or to the runs if time has reached it."""
        rows, due_ms = sorted_rows(rows)
        reached = int(due_ms.searchsorted(self._slot_end_ms()))
        self._runs.add(rows[:reached].copy())
        rows, due_ms = rows[reached:], due_ms[reached:]
        if not len(rows):
            return
        numbers = due_ms // self._slot_ms
        starts = np.concatenate(([0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1))
        offsets = (starts * ENTRY.itemsize).tolist()
        data = rows.view(np.uint8).data
        slots = self._slots
        for number, earliest_ms, start, end in zip(
            numbers[starts].tolist(),
            due_ms[starts].tolist(),
            offsets,
            [*offsets[1:], len(data)],
            strict=True,
        ):
            slot = slots.get(number)
            if slot is None:
                slot = slots[number] = _Slot(earliest_ms)
                heappush(self._slot_numbers, number)
            elif earliest_ms < slot.earliest_ms:
                slot.earliest_ms = earliest_ms
            slot.add(data[start:end])

    def _count_subjects(self, subjects: npt.NDArray[np.uint32]) -> None:
        self._pending = grown(self._pending, int(subjects.max()) + 1)
        np.add.at(self._pending, subjects, 1)


def _joined(parts: list[Rows]) -> Entries:
    return np.concatenate([np.empty(0, RAW), *parts]).view(ENTRY)
