"""The timing wheel: which messages are due. It knows their index only, 36 bytes each.

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

from heapq import heappop, heappush
from typing import Final

import numpy as np
import numpy.typing as npt

from delay_server.sorted_runs import NEVER, RAW, Rows, SortedRuns, sorted_rows
from storage import ENTRY, Entries

FRESH_ROWS: Final = 16_384
"""Rows gathered before they are spread: the more, the more of them share the work on a slot."""

_SLOT_BYTES: Final = 16_384 * ENTRY.itemsize
"""More than this of a slot is sorted at once and kept as a run, so that opening a slot is cheap
however many rows are due in it."""


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

    def __len__(self) -> int:
        return self._count

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory held. Visits every slot: for metrics and for loading, not for ticks."""
        slots = sum(slot.memory_bytes for slot in self._slots.values())
        return slots + self._runs.memory_bytes + self._fresh.nbytes + self._pending.nbytes

    def pending_by_subject(self) -> npt.NDArray[np.int64]:
        """Return how many entries are held of each subject, indexed by subject number. A copy.

        Subjects beyond the end of the array have none.
        """
        return self._pending.copy()

    def next_due_ms(self) -> int | None:
        """Return the earliest due time held, exactly; None if the wheel is empty."""
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
                self._open_next_slot()
            else:
                break
        if not parts:
            return np.empty(0, ENTRY)
        due = (np.concatenate(parts) if len(parts) > 1 else parts[0].copy()).view(ENTRY)
        self._count -= len(due)
        np.subtract.at(self._pending, due["subject"], 1)
        return due

    def _next_slot_ms(self) -> int:
        """Return the earliest due time of all slots, or NEVER."""
        return self._slots[self._slot_numbers[0]].earliest_ms if self._slot_numbers else NEVER

    def _open_next_slot(self) -> None:
        slot = self._slots.pop(heappop(self._slot_numbers))
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
        size = int(subjects.max()) + 1
        if size > len(self._pending):
            grown = np.zeros(max(size, 2 * len(self._pending)), np.int64)
            grown[: len(self._pending)] = self._pending
            self._pending = grown
        np.add.at(self._pending, subjects, 1)
