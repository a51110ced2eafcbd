"""Dead segments: messages that were given up, one segment for each UTC day on which that happened.

A DEAD record of the message_log makes a row here, under its own sequence, that names the message's
older one. Nothing here is ever loaded, and a row is no accepted message: it waits until somebody
requeues it (a MOVE record) or drops it (a CANCEL record), and each of these makes a fact about the
row. When all rows have one, and the floor has passed the day, the segment is sealed like any other.

The day is that of the append, or of the batch's floor where the clock was behind it: so, as the
floor never decreases, a day that it has passed gets no rows any more, on any replica.

All methods belong to the lane of the schedule_log, which owns this part.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import numpy as np
import numpy.typing as npt

from storage.batch.batches import BATCH_BYTES_MAX
from storage.batch.chained_file import BatchDraft
from storage.batch.columns import Array, Columns, RecordKind, encode_columns, row_size
from storage.batch.facts import FactBlock
from storage.batch.item_formats import QMQ_ITEM
from storage.batch.rows import Int64s
from storage.disk.disk import Bytes, Disk, File
from storage.disk.errors import StorageFullError
from storage.disk.spans import MINUTE_MS, SegmentKey, Span, dead_key, dead_minute, key_of_minute
from storage.schedule.segment import Segment

_BATCH_OVERHEAD = 1024
"""Room left in a batch for its header and padding."""

_ROW_BYTES = row_size(RecordKind.DEAD_ROWS)


def dead_segment_of(append_ms: int, floor_minute: int) -> SegmentKey:
    """Return the dead segment of a DEAD record, by when it was appended (wall ms)."""
    return key_of_minute(max(append_ms // MINUTE_MS, floor_minute), Span.DEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadBlock:
    """Rows of one dead segment in ascending order of sequence; all arrays have the same length.

    sequence: of the DEAD record; old_sequence, old_minute: of the message's row before; dead_ms:
    when the record was appended, wall ms; subject, reason: indexes into `names`; blob: the items
    one after another.
    """

    sequence: Int64s
    old_sequence: Int64s
    dead_ms: Int64s
    due_ms: Int64s
    id_hash: npt.NDArray[np.uint64]
    size: npt.NDArray[np.uint32]
    old_minute: npt.NDArray[np.uint32]
    subject: npt.NDArray[np.uint16]
    reason: npt.NDArray[np.uint16]
    names: Sequence[bytes]
    blob: Bytes

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.sequence)

    @property
    def weight(self) -> int:
        """What the block weighs in memory and on disk, near enough."""
        names = sum(map(len, self.names))
        return len(self.blob) + _ROW_BYTES * len(self) + names + _BATCH_OVERHEAD

    def above(self, sequence: int) -> "DeadBlock":
        """Return the rows whose sequence is greater than `sequence`."""
        first = int(np.searchsorted(self.sequence, sequence, side="right"))
        return self._part(first, len(self)) if first else self

    def fitting(self) -> Iterator["DeadBlock"]:
        """Cut the block into pieces that fit one batch each.

        A DEAD record takes less than the row that it makes, so a full batch of them needs two.
        """
        if len(self) <= 1 or self.weight <= BATCH_BYTES_MAX:
            yield self
            return
        middle = len(self) // 2
        for part in (self._part(0, middle), self._part(middle, len(self))):
            yield from part.fitting()

    def _part(self, begin: int, end: int) -> "DeadBlock":
        """Return the rows from position `begin` up to `end`, with the names that they use."""
        ends = np.concatenate([[0], np.cumsum(self.size, dtype=np.int64)])
        rows = slice(begin, end)
        used, places = np.unique(
            np.concatenate([self.subject[rows], self.reason[rows]]), return_inverse=True
        )
        count = end - begin
        return replace(
            self,
            sequence=self.sequence[rows],
            old_sequence=self.old_sequence[rows],
            dead_ms=self.dead_ms[rows],
            due_ms=self.due_ms[rows],
            id_hash=self.id_hash[rows],
            size=self.size[rows],
            old_minute=self.old_minute[rows],
            subject=places[:count].astype(np.uint16),
            reason=places[count:].astype(np.uint16),
            names=[self.names[number] for number in used.tolist()],
            blob=self.blob[int(ends[begin]) : int(ends[end])],
        )

    def draft(self, *, epoch: int, floor_minute: int, append_ms: int) -> BatchDraft:
        """Return the block as a batch of a dead segment."""
        return BatchDraft(
            kind=RecordKind.DEAD_ROWS,
            base_sequence=int(self.sequence[0]),
            count=len(self),
            columns=encode_columns(
                RecordKind.DEAD_ROWS,
                self.names,
                {
                    "sequence": self.sequence,
                    "old_sequence": self.old_sequence,
                    "dead_ms": self.dead_ms,
                    "due_ms": self.due_ms,
                    "id_hash": self.id_hash,
                    "size": self.size,
                    "old_minute": self.old_minute,
                    "subject": self.subject,
                    "reason": self.reason,
                },
            ),
            blob=[self.blob],
            epoch=epoch,
            floor_minute=floor_minute,
            append_ms=append_ms,
            item_format=QMQ_ITEM,
        )


def block_of_records(
    base_sequence: int, append_ms: int, columns: Columns, blob: Bytes
) -> DeadBlock:
    """Return the rows that a DEAD batch of the message_log makes."""
    arrays: Mapping[str, Array] = columns.arrays
    count = len(arrays["due_ms"])
    return DeadBlock(
        sequence=np.arange(base_sequence, base_sequence + count, dtype=np.int64),
        old_sequence=arrays["old_sequence"],
        dead_ms=np.full(count, append_ms, np.int64),
        due_ms=arrays["due_ms"],
        id_hash=arrays["id_hash"],
        size=arrays["size"],
        old_minute=arrays["old_minute"],
        subject=arrays["subject"],
        reason=arrays["reason"],
        names=columns.names,
        blob=blob,
    )


@dataclass(frozen=True, slots=True)
class DeadExtent:
    """One unsealed dead segment at one moment: what is behind `length` came later.

    facts_length: bytes of its filed facts that count; unfiled: sequences of its facts that are not
    filed yet.
    """

    key: SegmentKey
    length: int
    facts_length: int
    unfiled: tuple[Int64s, ...]


class DeadLog:
    """The unsealed dead segments.

    Invariant: `pending` is the number of rows without a fact, those included that found no space.
    """

    def __init__(
        self,
        disk: Disk,
        log_uuid: UUID,
        *,
        require_free: Callable[[int], None],
        on_written: Callable[[File, bool], None],
    ) -> None:
        """`on_written` hears of each file that has grown, and whether it is new.

        `require_free` raises StorageFullError where so many bytes are not to be had.
        """
        self._disk = disk
        self._log_uuid = log_uuid
        self._require_free = require_free
        self._on_written = on_written
        self.segments: dict[int, Segment] = {}
        """By the code of their key."""
        self._waiting: list[tuple[SegmentKey, int, DeadBlock]] = []
        """Segment, epoch and rows for which no space was found."""
        self.full = False
        """Whether rows wait for space."""
        self.rows_waiting = 0
        self.bytes_waiting = 0

    @property
    def pending(self) -> int:
        """Rows that were neither requeued nor dropped."""
        return sum(segment.pending for segment in self.segments.values()) + self.rows_waiting

    def restore(self, segment: Segment) -> None:
        """Take over a segment as the checkpoint has it."""
        self.segments[segment.key.code] = segment

    def file(
        self, key: SegmentKey, block: DeadBlock, *, epoch: int, now_ms: int, above: int = 0
    ) -> None:
        """File rows that are not filed already; what finds no space waits for `flush`."""
        block = block.above(above)
        if len(block):
            self._waiting.append((key, epoch, block))
            self.flush(now_ms)

    def flush(self, now_ms: int) -> None:
        """Write the rows that wait, in their order."""
        waiting, self._waiting = self._waiting, []
        for place, (key, epoch, block) in enumerate(waiting):
            try:
                self._write(key, block, epoch, now_ms)
            except StorageFullError:
                self._waiting = waiting[place:]
                break
        self.full = bool(self._waiting)
        self.rows_waiting = sum(len(block) for _, _, block in self._waiting)
        self.bytes_waiting = sum(block.weight for _, _, block in self._waiting)

    def _write(self, key: SegmentKey, block: DeadBlock, epoch: int, now_ms: int) -> None:
        segment = self.segments.get(key.code)
        if segment is None:
            segment = Segment.new(self._disk, self._log_uuid, key)
        block = block.above(segment.last_sequence)
        if not len(block):
            return
        self._require_free(block.weight)
        is_new = not segment.file.length
        segment.file.append(
            [
                part.draft(epoch=epoch, floor_minute=key.start, append_ms=now_ms)
                for part in block.fitting()
            ]
        )
        self.segments[key.code] = segment
        segment.rows += len(block)
        segment.raw_bytes += len(block.blob)
        segment.last_sequence = int(block.sequence[-1])
        segment.earliest_due_ms = min(segment.earliest_due_ms, int(block.due_ms.min()))
        self._on_written(segment.file.file(), is_new)

    def covering(self, minute: int) -> Segment | None:
        """Return the segment for which a filed minute stands, None if it is sealed or not there."""
        return self.segments.get(dead_key(minute).code)

    def note_facts(self, facts: FactBlock) -> None:
        """Count facts about rows of dead segments."""
        minutes, counts = np.unique(facts.minute, return_counts=True)
        for minute, count in zip(minutes.tolist(), counts.tolist(), strict=True):
            segment = self.covering(minute)
            if segment is not None:
                segment.facts_seen += count

    def waits_for(self, key: SegmentKey) -> bool:
        """Say whether rows of a segment wait for space."""
        return any(waiting == key for waiting, _, _ in self._waiting)

    def first_waiting(self) -> int | None:
        """Return the least sequence that is not written, None if all are."""
        return min((int(block.sequence[0]) for _, _, block in self._waiting), default=None)

    def extents(self, unfiled: Sequence[FactBlock]) -> list[DeadExtent]:
        """Return what there is at this moment, oldest day first."""
        return [
            DeadExtent(
                key=segment.key,
                length=segment.file.length,
                facts_length=segment.facts_file.length,
                unfiled=tuple(
                    block.sequence[block.minute == dead_minute(segment.key)] for block in unfiled
                ),
            )
            for segment in sorted(self.segments.values(), key=lambda one: one.key.start)
        ]
