"""Entries that may be due any moment, in exact order, without ever sorting all of them at once.

    front   [ 3 5 5 8 ]              what take() hands out next
    runs    [ 9 12 40 41 ... ]       each sorted in itself, in no order among one another
            [ 8 30 ]

Entries are ordered by (due_ms, sequence). Every batch of entries that comes in is one more sorted
run. When the front is used up, or a run turns out to begin before the front ends, the smallest few
thousand rows of all runs are merged into a new front. So a backlog of a million rows is merged
piece by piece as it is taken, and what comes in meanwhile costs by its own size.

Rows are handled as opaque 40-byte values (RAW): numpy copies and picks those ten times faster than
records with fields.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.batch.entries import ENTRY
from storage.disk.spans import MINUTE_MS
from storage.schedule.keys import Key

RAW: Final = np.dtype(("V", ENTRY.itemsize))
"""One entry as a value without fields."""

Rows = npt.NDArray[np.void]
"""A one-dimensional, contiguous array of RAW."""

Counts = npt.NDArray[np.int64]
"""By the number of the subject."""

FRONT_ROWS: Final = 4096
"""About how many rows are merged at a time: more cost less each, fewer hold up the loop less."""

STEP_ROWS: Final = 65_536
"""Rows that are looked at in one step of a call that may have to look at very many."""

RUN_ROWS_MAX: Final = 32_768
"""Runs are merged with one another up to this size, so that small ones do not pile up."""

NEVER: Final = 2**63 - 1
"""A due time after every other."""

_NO_SUBJECTS: Final = np.empty(0, np.uint32)

_AFTER_ALL: Final[Key] = (NEVER, NEVER)
"""Keys here are (due_ms, sequence), the order of entries."""


def sorted_rows(rows: Rows) -> tuple[Rows, npt.NDArray[np.int64]]:
    """Return the rows by (due_ms, sequence), and their due times. Both are copies."""
    entries = rows.view(ENTRY)
    due_ms = np.ascontiguousarray(entries["due_ms"])
    sequence = np.ascontiguousarray(entries["sequence"])
    due_first, sequence_first = int(due_ms.min()), int(sequence.min())
    sequence_bits = (int(sequence.max()) - sequence_first).bit_length()
    if (int(due_ms.max()) - due_first).bit_length() + sequence_bits < 63:
        # Both fit into one number, and one sort is cheaper than two. It is the stable one because
        # that is the fastest when its input consists of a few sorted runs.
        key = ((due_ms - due_first) << sequence_bits) | (sequence - sequence_first)
        order = np.argsort(key, kind="stable")
    else:
        order = np.lexsort((sequence, due_ms))
    return rows[order], due_ms[order]


def parted(rows: Rows, key: Key, *, moved: bool) -> tuple[Rows, Rows]:
    """Return the rows, sorted as they are, that are not after `key`, and those that are.

    With `moved` what counts of a row is its effective due time, which is the start of its filed
    minute where that is later; otherwise no row's is, and the order of the rows tells.
    """
    run = _Run(rows)
    count = run.rank(key)
    before, after = rows[:count], rows[count:]
    if moved and count:
        entries = before.view(ENTRY)
        start_ms = entries["minute"].astype(np.int64) * MINUTE_MS
        is_after = start_ms > entries["due_ms"]
        is_after &= (start_ms > key[0]) | ((start_ms == key[0]) & (entries["sequence"] > key[1]))
        if is_after.any():
            return before[~is_after], np.concatenate([before[is_after], after])
    return before, after


class _Run:
    """Rows in order, of which those from `start` on are still held."""

    __slots__ = ("due_ms", "end", "head", "last", "rows", "sequence", "start")

    def __init__(self, rows: Rows) -> None:
        entries = rows.view(ENTRY)
        self.rows = rows
        self.due_ms = entries["due_ms"]
        self.sequence = entries["sequence"]
        self.start = 0
        self.end = len(rows)
        self.head = self.key(0)
        self.last = self.key(-1)

    def __len__(self) -> int:
        return self.end - self.start

    def key(self, index: int) -> Key:
        return int(self.due_ms[index]), int(self.sequence[index])

    def rank(self, bound: Key) -> int:
        """Return how many of the rows held are not after the bound."""
        if bound < self.head:
            return 0
        if bound >= self.last:
            return len(self)
        due_ms, sequence = bound
        end = bisect_right(self.due_ms, due_ms, self.start, self.end)
        if end > self.start and self.due_ms[end - 1] == due_ms:
            tied = bisect_left(self.due_ms, due_ms, self.start, end)
            end = bisect_right(self.sequence, sequence, tied, end)
        return end - self.start

    def between(self, after_ms: int, now_ms: int) -> tuple[int, int]:
        """Return where the rows held begin and end that are due after the one and by the other."""
        # Of a backlog there are many runs of which nothing is: that is known without a search.
        if self.last[0] <= after_ms or self.head[0] > now_ms:
            return self.start, self.start
        first = bisect_right(self.due_ms, after_ms, self.start, self.end)
        return first, bisect_right(self.due_ms, now_ms, first, self.end)

    def cut(self, count: int) -> Rows:
        """Return the first `count` rows held and hold them no longer. A view."""
        rows = self.rows[self.start : self.start + count]
        self.start += count
        if self.start < self.end:
            self.head = self.key(self.start)
        return rows


class SortedRuns:
    """A set of entries that hands out its first ones, by (due_ms, sequence).

    Invariants: no run is empty, and `_runs_head` is the least key of all runs. The front, if there
    is one, is not empty, but runs added since it was merged may begin before it ends.
    """

    def __init__(self) -> None:
        self._front: _Run | None = None
        self._runs: list[_Run] = []
        self._runs_head = _AFTER_ALL
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays held, with the parts of them that were handed out already."""
        front = 0 if self._front is None else self._front.rows.nbytes
        return front + sum(run.rows.nbytes for run in self._runs)

    def next_due_ms(self) -> int:
        """Return the earliest due time held, or NEVER."""
        if self._front is None:
            return self._runs_head[0]
        return min(self._front.head[0], self._runs_head[0])

    def add(self, rows: Rows) -> None:
        """Take in rows that are in order among themselves; the array is kept, not copied."""
        if not len(rows):
            return
        self._count += len(rows)
        run = _Run(rows)
        # As in a log-structured merge tree: a row takes part in a merge a logarithmic number of
        # times, and the number of runs stays small.
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            if len(self._runs[-1]) + len(run) > RUN_ROWS_MAX:
                break
            last = self._runs.pop()
            run = _merged([last.cut(len(last)), run.cut(len(run))])
        self._runs.append(run)
        self._runs_head = min(self._runs_head, run.head)

    def take(self, now_ms: int, limit: int) -> Rows:
        """Remove and return first rows in order, at most `limit`, none due after `now_ms`.

        Returns fewer than there are when the front ends, but none only if none is due. A view.
        """
        if self.next_due_ms() > now_ms:
            return np.empty(0, RAW)
        if self._front is None or self._runs_head < self._front.last:
            self._front = self._merge_front()
        front = self._front
        end = bisect_right(front.due_ms, now_ms, front.start, front.end)
        rows = front.cut(min(end - front.start, limit))
        if not len(front):
            self._front = None
        self._count -= len(rows)
        return rows

    def subjects_between(self, after_ms: int, now_ms: int) -> Iterator[npt.NDArray[np.uint32]]:
        """Yield the subjects of all rows due after `after_ms` and by `now_ms`, in parts."""
        for run in self._all_runs():
            first, end = run.between(after_ms, now_ms)
            if first < end:
                yield run.rows[first:end].view(ENTRY)["subject"]

    def take_between(
        self,
        after_ms: int,
        now_ms: int,
        choose: Callable[[Counts], npt.NDArray[np.bool_]],
        *,
        subjects: int,
    ) -> Iterator[Rows | None]:
        """Remove the rows due after `after_ms` and by `now_ms` whose subject is chosen, in steps.

        Yields None after each step, and at last the rows, in order; a copy. `choose` gets for each
        of so many subjects how many such rows it has, and says which go. What is due before stays
        where it is, unseen. Meanwhile rows may be added, which are not looked at, but not taken.
        """
        front = self._front
        spans = [(run, *run.between(after_ms, now_ms)) for run in self._all_runs()]
        if all(first == end for _, first, end in spans):
            yield np.empty(0, RAW)
            return
        # What is added meanwhile must not be merged with these.
        self._front, self._runs, self._runs_head = None, [], _AFTER_ALL
        counts = np.zeros(subjects, np.int64)
        columns: list[npt.NDArray[np.uint32]] = []
        looked = 0
        for run, first, end in spans:
            if first == end:
                columns.append(_NO_SUBJECTS)
                continue
            columns.append(np.ascontiguousarray(run.rows[first:end].view(ENTRY)["subject"]))
            counts += np.bincount(columns[-1], minlength=subjects)
            looked += end - first
            if looked >= STEP_ROWS:
                looked = 0
                yield None
        goes = choose(counts)
        taken: list[Rows] = []
        left: list[Rows] = []
        runs: list[_Run] = []
        for (run, first, end), column in zip(spans, columns, strict=True):
            if first == end or not np.count_nonzero(chosen := goes[column]):
                if run is front:
                    self._front = front
                else:
                    runs.append(run)
                continue
            rows = run.rows[first:end]
            taken.append(rows[chosen])
            # Views, and what is as large as a run should be: there may be very many.
            rest = [run.rows[run.start : first], run.rows[end : run.end]]
            stays = rows[~chosen]
            (rest if len(stays) >= FRONT_ROWS else left).append(stays)
            runs += [_Run(part) for part in rest if len(part)]
            looked += end - first
            if looked >= STEP_ROWS:
                looked = 0
                yield None
        self._runs = [*runs, *self._runs]
        self._runs_head = min((run.head for run in self._runs), default=_AFTER_ALL)
        rows = sorted_rows(np.concatenate(taken))[0] if taken else np.empty(0, RAW)
        self._count -= len(rows) + sum(map(len, left))
        for part in left:
            self.add(part)
        yield rows

    def sample(self, keys_max: int) -> list[tuple[Key, int]]:
        """Return keys spread over the rows, each with the number of rows that it stands for.

        Every run gives its own, at most `keys_max`: the first of each stretch of its rows.
        """
        found = []
        for run in self._all_runs():
            step = -(-len(run) // keys_max)
            found += [
                (run.key(place), min(step, run.end - place))
                for place in range(run.start, run.end, step)
            ]
        return found

    def remove_after(self, key: Key, *, moved: bool) -> Iterator[Rows]:
        """Remove the rows after `key`, see `parted`; yield them run by run.

        Nothing may be added or taken until the end.
        """
        runs = self._all_runs()
        self._front = None
        self._runs = []
        self._runs_head = _AFTER_ALL
        for run in runs:
            rest, removed = parted(run.rows[run.start : run.end], key, moved=moved)
            self._count -= len(removed)
            if len(rest):
                # Copied, so that what was removed is freed.
                kept = _Run(rest.copy()) if len(removed) else run
                self._runs.append(kept)
                self._runs_head = min(self._runs_head, kept.head)
            yield removed

    def _all_runs(self) -> list[_Run]:
        return self._runs if self._front is None else [*self._runs, self._front]

    def _merge_front(self) -> _Run:
        """Take the first rows of all runs, the old front among them, out into a new front."""
        runs = self._runs
        if self._front is not None:
            runs.append(self._front)
        if len(runs) == 1:
            front = runs.pop()
        else:
            counts = _first_counts(runs)
            front = _merged([run.cut(count) for run, count in zip(runs, counts, strict=True)])
            self._runs = runs = [run for run in runs if len(run)]
        self._runs_head = min((run.head for run in runs), default=_AFTER_ALL)
        return front


def _merged(parts: list[Rows]) -> _Run:
    """Return one run of the rows of several parts that are sorted in themselves."""
    parts = [part for part in parts if len(part)]
    # A single part is copied, so that a front does not keep the memory of a whole run.
    return _Run(parts[0].copy() if len(parts) == 1 else sorted_rows(np.concatenate(parts))[0])


def _first_counts(runs: list[_Run]) -> list[int]:
    """Say how many rows of each run make up the first rows of all: some, at most 2 * FRONT_ROWS.

    A bound is complete when every row up to it is counted. The least of the runs' rows at distance
    `step` from their heads is such a bound for at least `step` and at most len(runs) * step rows.
    Runs that hardly overlap give too few at first, so the step is doubled while that helps.
    """
    step = max(1, FRONT_ROWS // len(runs))
    counts: list[int] = []
    while True:
        bound = min(
            (run.key(run.start + step - 1) for run in runs if len(run) >= step),
            default=_AFTER_ALL,
        )
        wider = [run.rank(bound) for run in runs]
        if counts and sum(wider) > 2 * FRONT_ROWS:
            return counts
        counts = wider
        if bound == _AFTER_ALL or sum(counts) >= FRONT_ROWS // 2:
            return counts
        step *= 2
