"""Rows on their way from the message_log into schedule segments, column by column.

A `RowBlock` is many messages as parallel arrays and one run of bytes. Nothing here loops over
messages but the one place that cuts and joins their bytes (`RowBlock.take`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.batch.batches import COPIES, BatchHeader
from storage.batch.columns import RecordKind
from storage.batch.entries import SubjectTable
from storage.disk.disk import Bytes
from storage.disk.sorting import each_once
from storage.disk.spans import (
    DEAD_MINUTES_FROM,
    MINUTE_MS,
    Span,
    codes_of_span,
    dead_codes,
)

Int64s = npt.NDArray[np.int64]

ROW_COLUMNS_BYTES = 8 + 8 + 8 + 4 + 2 + 1
"""Bytes one row takes in the columns of a segment's batch."""


class Origin(IntEnum):
    """The origin of a row; the numbers are on disk."""

    ACCEPTED = 0
    """A producer sent it. Rows of dead segments have this number too."""
    COPY = 1
    """It is the copy of a message for one of several names."""
    RETRY = 2
    """It takes the place of a message that a receiver put off, or of a dead letter."""


def origin_of(header: BatchHeader) -> Origin:
    """Return where the rows come from that a batch of the message_log makes."""
    if header.features & COPIES:
        return Origin.COPY
    return Origin.RETRY if header.kind is RecordKind.MOVE else Origin.ACCEPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """Rows in ascending order of sequence; all arrays have the same length.

    subject: numbers of the process's SubjectTable. origin: an Origin each. minute: the filed
    minute, or what stands for a dead segment. size: bytes of each item; blob: the items one after
    another.
    """

    sequence: Int64s
    due_ms: Int64s
    id_hash: npt.NDArray[np.uint64]
    size: npt.NDArray[np.uint32]
    subject: npt.NDArray[np.uint32]
    origin: npt.NDArray[np.uint8]
    minute: Int64s
    blob: Bytes

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.sequence)

    @property
    def weight(self) -> int:
        """What the block weighs in memory, near enough."""
        return len(self.blob) + 45 * len(self.sequence)

    def take(self, rows: npt.NDArray[np.intp]) -> "RowBlock":
        """Return the rows at these ascending positions."""
        count = len(rows)
        if count == len(self.sequence):
            return self
        ends = np.cumsum(self.size, dtype=np.int64)
        first, last = int(rows[0]), int(rows[-1])
        if last - first + 1 == count:
            begin = int(ends[first]) - int(self.size[first])
            blob = self.blob[begin : int(ends[last])]
        else:
            blob = gather_items(self.blob, (ends - self.size)[rows], self.size[rows])
        return self.with_rows(rows, blob)

    def with_rows(self, rows: npt.NDArray[np.intp] | slice, blob: Bytes) -> "RowBlock":
        """Return the columns of these rows with a blob of theirs."""
        return RowBlock(**{name: getattr(self, name)[rows] for name in _COLUMNS}, blob=blob)

    def above(self, sequence: int) -> "RowBlock":
        """Return the rows whose sequence is greater than `sequence`."""
        if not len(self) or int(self.sequence[0]) > sequence:
            return self
        return self.take_or_empty(np.flatnonzero(self.sequence > sequence))

    def take_or_empty(self, rows: npt.NDArray[np.intp]) -> "RowBlock":
        """Return the rows at these positions, which may be none."""
        return self.take(rows) if len(rows) else self.with_rows(rows, b"")

    def split_by_segment(
        self, *, hour_mark: int, day_mark: int
    ) -> Iterator[tuple[int, "RowBlock"]]:
        """Yield (segment code, its rows) for every segment the rows belong to.

        Rows before `hour_mark` (minutes) belong to minute segments, those before `day_mark` to hour
        segments, the others to day segments; dead rows to dead segments.
        """
        codes = segment_codes(self.minute, hour_mark=hour_mark, day_mark=day_mark)
        first = int(codes[0])
        if bool((codes == first).all()):
            yield first, self
            return
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        sizes = self.size[order]
        begins = (np.cumsum(self.size, dtype=np.int64) - self.size)[order]
        blob = gather_items(self.blob, begins, sizes)
        by_segment = self.with_rows(order, blob)
        ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(order)]
        for begin, end in pairwise(edges):
            part = blob[int(ends[begin]) : int(ends[end])]
            yield int(ordered[begin]), by_segment.with_rows(slice(begin, end), part)

    def batches(
        self, *, bytes_max: int, names_bytes_max: int, subjects: SubjectTable
    ) -> Iterator["RowBlock"]:
        """Cut the block into pieces that fit one batch each (an item is never cut).

        A piece has at most `bytes_max` bytes of columns and items and `names_bytes_max` of subject
        names, unless it is a single row.
        """
        weights = self.size.astype(np.int64) + ROW_COLUMNS_BYTES
        names = each_once(self.subject)
        name_bytes = sum(len(subjects.names[number]) + 2 for number in names.tolist())
        if weights.sum() <= bytes_max and name_bytes <= names_bytes_max and len(names) < 2**16:
            yield self
            return
        if name_bytes > names_bytes_max or len(names) >= 2**16:
            # Many subjects: count each row's name as if no other row shared it.
            lengths = [len(subjects.names[number]) + 2 for number in self.subject.tolist()]
            scaled = np.array(lengths, np.int64) * (bytes_max // names_bytes_max)
            # Row by row: pieces of the larger of two sums would be bounded by neither.
            weights = np.maximum(weights, scaled)
        weight = np.cumsum(weights)
        begin = 0
        while begin < len(self):
            base = int(weight[begin - 1]) if begin else 0
            end = int(np.searchsorted(weight, base + bytes_max, side="right"))
            end = min(max(end, begin + 1), begin + _ROWS_PER_BATCH_MAX)
            yield self.take(np.arange(begin, min(end, len(self))))
            begin = end

    def names(self, table: SubjectTable) -> tuple[list[bytes], npt.NDArray[np.uint16]]:
        """Return the block's own subject table and each row's index into it."""
        if len(self) < _FEW_ROWS:
            numbers = self.subject.tolist()
            own = {number: index for index, number in enumerate(dict.fromkeys(numbers))}
            inverse = np.array([own[number] for number in numbers], np.uint16)
            return [table.names[number] for number in own], inverse
        unique, inverse_wide = np.unique(self.subject, return_inverse=True)
        return [table.names[number] for number in unique.tolist()], inverse_wide.astype(np.uint16)


_COLUMNS: Final = ("sequence", "due_ms", "id_hash", "size", "subject", "origin", "minute")
"""The arrays of a block."""

_ROWS_PER_BATCH_MAX = 60_000
"""So that a batch never needs more subjects than its uint16 index can tell apart."""

_FEW_ROWS = 48
"""Below this a plain loop is cheaper than numpy.unique."""


def gather_items(blob: Bytes, begins: Int64s, sizes: npt.NDArray[np.integer]) -> memoryview:
    """Return the items that begin at these positions of `blob`, one after another.

    Messages of a stream are alike, so items are copied size by size: those of one size are elements
    of one dtype, which numpy takes and puts without a loop here. Where hardly two have the same
    size a loop is cheaper.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    order = np.argsort(sizes, kind="stable")
    edges = [0, *(np.flatnonzero(np.diff(sizes[order])) + 1).tolist(), len(order)]
    if len(edges) * _ALIKE_MIN > len(order):
        stops = begins + sizes
        items = [
            blob[begin:stop] for begin, stop in zip(begins.tolist(), stops.tolist(), strict=True)
        ]
        return memoryview(b"".join(items))
    gathered = bytearray(total)
    places = ends - sizes
    for first, last in pairwise(edges):
        rows = order[first:last]
        size = int(sizes[rows[0]])
        if size:
            _windows(gathered, size)[places[rows]] = _windows(blob, size)[begins[rows]]
    return memoryview(gathered).toreadonly()


_ALIKE_MIN = 8
"""Items of each size, on average, from which copying size by size pays."""


def _windows(buffer: Bytes, size: int) -> npt.NDArray[np.void]:
    """Return the array whose element i is the `size` bytes of the buffer from i on."""
    count = len(buffer) - size + 1
    return np.ndarray((count,), np.dtype((np.void, size)), buffer, strides=(1,))


def segment_codes(minute: Int64s, *, hour_mark: int, day_mark: int) -> Int64s:
    """Return the code (spans.SegmentKey.code) of the segment each filed minute belongs to."""
    highest = int(minute.max())
    if highest < hour_mark:
        return codes_of_span(minute, Span.MINUTE)
    hours = codes_of_span(minute, Span.HOUR)
    days = codes_of_span(minute, Span.DAY)
    codes = np.where(
        minute < hour_mark,
        codes_of_span(minute, Span.MINUTE),
        np.where(minute < day_mark, hours, days),
    )
    if highest >= DEAD_MINUTES_FROM:
        codes = np.where(minute >= DEAD_MINUTES_FROM, dead_codes(minute), codes)
    return codes


def join_blocks(blocks: Sequence[RowBlock]) -> RowBlock:
    """Return one block with the rows of all, in the order given."""
    if len(blocks) == 1:
        return blocks[0]
    columns = {
        name: np.concatenate([getattr(block, name) for block in blocks]) for name in _COLUMNS
    }
    return RowBlock(**columns, blob=b"".join([block.blob for block in blocks]))


def filed_minutes(due_ms: Int64s, floor_minute: int) -> Int64s:
    """Return the filed minute of each row: of its due time, but never before the floor."""
    return np.maximum(due_ms // MINUTE_MS, floor_minute)


def effective_due_ms(due_ms: Int64s, minute: Int64s) -> Int64s:
    """Return the due time by which a row is loaded: inside its filed minute, always.

    A message due in the past is filed in the floor's minute; counted as due at that minute's start
    it lies in its segment, so that slices of time partition the rows.
    """
    return np.maximum(due_ms, minute * MINUTE_MS)
