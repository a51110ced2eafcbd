"""One unsealed segment: its two files, rows and facts, and what is known about them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

import numpy as np
import numpy.typing as npt

from storage.batch.batches import BATCH_BYTES_MAX, BatchHeader, Codec, Damage
from storage.batch.chained_file import BatchDraft, ChainedFile
from storage.batch.columns import Columns, RecordKind, encode_columns
from storage.batch.entries import SubjectTable
from storage.batch.facts import FactBlock, fact_drafts, filed_facts_of
from storage.batch.file_header import FILE_HEADER_SIZE, LogKind, segment_header
from storage.batch.item_formats import QMQ_ITEM
from storage.batch.rows import Int64s, RowBlock, effective_due_ms
from storage.batch.walk import FileBatch, walk_file, walk_headers
from storage.disk.disk import Bytes, Disk
from storage.disk.spans import SegmentKey, Span
from storage.state.checkpoint import SegmentState

_BATCH_OVERHEAD = 64 * 1024
"""Room left in a batch for its header and, mostly, its subject table."""
_NAMES_BYTES_MAX = _BATCH_OVERHEAD // 2
_NEVER_MS = 2**62
_SAMPLED = 16
"""Batches by which the raw size of a segment is estimated."""


@dataclass(frozen=True, slots=True)
class Appended:
    """Where rows were put."""

    positions: Int64s
    """File position of each item."""
    batches: list[tuple[range, int]]
    """Of each batch its records, as in `SegmentBatch`, and how many rows it has."""


@dataclass(slots=True)
class Segment:
    """State of an unsealed segment; only the schedule log changes it.

    Invariant: `rows` rows lie in the first `file.length` bytes of its file, ascending by sequence,
    the last one `last_sequence`; `facts_seen >= facts`, the facts in the first `facts_file.length`
    bytes of its facts file, in the order of the records that state them.
    """

    key: SegmentKey
    file: ChainedFile
    facts_file: ChainedFile
    rows: int = 0
    raw_bytes: int = 0
    """Bytes of the items, uncompressed; after a restart an estimate, and for coarse segments only:
    what is split is written uncompressed."""
    last_sequence: int = 0
    earliest_due_ms: int = _NEVER_MS
    facts: int = 0
    last_fact: int = 0
    """The last record of the message_log whose fact is in the facts file; 0 if none is."""
    facts_seen: int = 0
    """Facts filed and not filed yet, repeated ones included."""
    surplus_facts: int = 0
    """Of `facts`, those known to tell of no row here, or of one that another tells of: what damage
    to rows or to facts leaves behind. Known at a start, and when the segment is looked through."""
    facts_at_last_look: int = -1
    """`facts` when the segment was last found to be incomplete."""
    is_withheld: bool = False
    """True once facts could not be read: until the next start nothing on disk is handed out."""
    split_after_ms: int = 0
    """When it may be split at the earliest, since an earlier try could not read it."""

    @classmethod
    def new(cls, disk: Disk, log_uuid: UUID, key: SegmentKey) -> "Segment":
        """Return an empty segment that has no files yet."""
        rows = segment_header(LogKind.SCHEDULE_LOG, log_uuid, key)
        facts = segment_header(LogKind.DISPATCH_LOG, log_uuid, key)
        return cls(
            key=key,
            file=ChainedFile(disk, key.path, rows),
            facts_file=ChainedFile(disk, key.facts_path, facts),
        )

    @classmethod
    def of_state(cls, disk: Disk, log_uuid: UUID, state: SegmentState) -> "Segment":
        """Return the segment as a checkpoint describes it."""
        segment = cls.new(disk, log_uuid, state.key)
        segment.file.length = state.length
        segment.file.last_crc = state.last_crc
        segment.facts_file.length = state.facts_length
        segment.facts_file.last_crc = state.facts_last_crc
        segment.rows = state.rows
        segment.last_sequence = state.last_sequence
        segment.earliest_due_ms = state.earliest_due_ms
        segment.facts = segment.facts_seen = state.facts
        segment.last_fact = state.last_fact
        segment.surplus_facts = max(state.facts - state.rows, 0)
        return segment

    def estimate_raw_bytes(self) -> None:
        """Find out about how many bytes there are uncompressed, from a few of the batches.

        What cannot be read counts as it lies there; nothing is reported.
        """
        file, raw, seen = self.file, 0, 0
        headers = walk_headers(file.disk, file.path, file.length, file.header)
        for found in islice(headers, _SAMPLED):
            if not isinstance(found, Damage):
                raw += found.blob_raw_size
                seen += found.size
        self.raw_bytes = raw * file.length // (FILE_HEADER_SIZE + seen) if seen else file.length

    def state(self) -> SegmentState:
        """Return what a checkpoint has to know."""
        return SegmentState(
            start=self.key.start,
            span=int(self.key.span),
            rows=self.rows,
            length=self.file.length,
            last_sequence=self.last_sequence,
            last_crc=self.file.last_crc,
            earliest_due_ms=self.earliest_due_ms,
            facts=self.facts,
            facts_length=self.facts_file.length,
            facts_last_crc=self.facts_file.last_crc,
            last_fact=self.last_fact,
        )

    @property
    def pending(self) -> int:
        """Rows that have no fact yet."""
        return max(self.unsettled, 0)

    @property
    def unsettled(self) -> int:
        """What it adds to the count of what is pending; below 0 where facts are told twice."""
        return self.rows - self.facts_seen + self.surplus_facts

    @property
    def earliest_effective_ms(self) -> int:
        """When its first row has to be in the wheel."""
        return max(self.earliest_due_ms, self.key.start * 60_000)

    def append(
        self, block: RowBlock, subjects: SubjectTable, *, epoch: int, append_ms: int
    ) -> Appended:
        """Append rows; return where they are. Not synced.

        Raises StorageFullError with nothing appended, or FatalDiskError.
        """
        # Single items are read from these.
        raw = self.key.span in {Span.MINUTE, Span.DEAD}
        parts = list(
            block.batches(
                bytes_max=BATCH_BYTES_MAX - _BATCH_OVERHEAD,
                names_bytes_max=_NAMES_BYTES_MAX,
                subjects=subjects,
            )
        )
        drafts = [
            BatchDraft(
                kind=RecordKind.ROWS,
                base_sequence=int(part.sequence[0]),
                count=len(part),
                columns=_encode_rows(part, subjects),
                blob=[part.blob],
                epoch=epoch,
                floor_minute=self.key.start,
                append_ms=append_ms,
                codec=Codec.RAW if raw else Codec.LZ4,
                item_format=QMQ_ITEM,
            )
            for part in parts
        ]
        placed = self.file.append(drafts)
        self.rows += len(block)
        self.raw_bytes += len(block.blob)
        self.last_sequence = int(block.sequence[-1])
        self.earliest_due_ms = min(self.earliest_due_ms, int(block.due_ms.min()))
        positions = [
            _item_positions(position, header, part.size)
            for (position, header), part in zip(placed, parts, strict=True)
        ]
        batches = [
            (range(int(part.sequence[0]), int(part.sequence[-1]) + 1), len(part)) for part in parts
        ]
        return Appended(np.concatenate(positions), batches)

    def append_facts(self, facts: FactBlock, *, epoch: int, append_ms: int) -> None:
        """File facts of this segment, in the order of their records. Not synced.

        Does not touch facts_seen. Raises StorageFullError with nothing appended, or FatalDiskError.
        """
        drafts = fact_drafts(
            facts,
            first_number=self.facts + 1,
            epoch=epoch,
            append_ms=append_ms,
            floor_minute=self.key.start,
        )
        self.facts_file.append(drafts)
        self.facts += len(facts)
        self.last_fact = max(self.last_fact, int(facts.record[-1]))

    def forget_facts(self) -> None:
        """Begin the facts file anew; only while nobody counts on the segment."""
        self.facts_file.length = self.facts_file.last_crc = 0
        self.facts = self.facts_seen = self.surplus_facts = self.last_fact = 0

    def read_rows(
        self,
        disk: Disk,
        length: int,
        *,
        unreadable: list[tuple[str, int]] | None = None,
    ) -> Iterator["SegmentBatch | Damage"]:
        """Yield the batches in the first `length` bytes, columns checked, blobs unread.

        unreadable: as `walk_file` takes it.
        """
        if not length:
            return
        file = self.file
        for found in walk_file(disk, file.path, length, file.header, unreadable=unreadable):
            yield found if isinstance(found, Damage) else SegmentBatch.of(self, found)

    def read_facts(
        self, disk: Disk, *, unreadable: list[tuple[str, int]] | None = None
    ) -> Iterator[FactBlock | Damage]:
        """Yield the facts filed for this segment; `unreadable` as `walk_file` takes it."""
        file = self.facts_file
        if not file.length:
            return
        for found in walk_file(disk, file.path, file.length, file.header, unreadable=unreadable):
            yield found if isinstance(found, Damage) else filed_facts_of(found.columns)

    def close(self) -> None:
        """Give the descriptors back."""
        self.file.close()
        self.facts_file.close()


@dataclass(frozen=True, slots=True)
class SegmentBatch:
    """One readable batch of a segment.

    records: sequences from its first row's to its last one's; blob: reads its blob, as `FileBatch`
    does.
    """

    segment: Segment
    position: int
    header: BatchHeader
    columns: Columns
    records: range
    blob: Callable[[], Bytes]

    @classmethod
    def of(cls, segment: Segment, batch: FileBatch) -> "SegmentBatch":
        """Return the batch that a walk over a segment's rows stands at."""
        return cls(segment, batch.position, batch.header, batch.columns, batch.records, batch.blob)

    @property
    def sequence(self) -> Int64s:
        """Sequence of each row."""
        return self.columns.arrays["sequence"]

    @property
    def due_ms(self) -> Int64s:
        """Due time of each row."""
        return self.columns.arrays["due_ms"]

    def minutes(self) -> Int64s:
        """Return the filed minute of each row.

        In a coarse segment the rows that were due before the segment began are those that the
        floor moved to its first minute.
        """
        begin, end = self.segment.key.filed_minutes
        if end == begin + 1:
            return np.full(self.header.count, begin, np.int64)
        return np.maximum(self.due_ms // 60_000, self.segment.key.start)

    def effective_due_ms(self) -> Int64s:
        """Return the times by which the rows are loaded."""
        return effective_due_ms(self.due_ms, self.minutes())

    def item_positions(self) -> Int64s:
        """Return the file position of each item (of an uncompressed blob)."""
        return _item_positions(self.position, self.header, self.columns.arrays["size"])

    def rows(self, subjects: SubjectTable) -> RowBlock:
        """Return the rows with their bytes, read and checked; raises what `blob` does."""
        arrays = self.columns.arrays
        return RowBlock(
            sequence=arrays["sequence"],
            due_ms=arrays["due_ms"],
            id_hash=arrays["id_hash"],
            size=arrays["size"],
            subject=subjects.numbers(self.columns.names)[arrays["subject"]],
            origin=arrays["origin"],
            minute=self.minutes(),
            blob=bytes(self.blob()),
        )


def _item_positions(position: int, header: BatchHeader, size: npt.NDArray[np.uint32]) -> Int64s:
    ends = np.cumsum(size, dtype=np.int64)
    return ends - size + (position + header.size - header.blob_size)


def _encode_rows(block: RowBlock, subjects: SubjectTable) -> bytes:
    names, subject = block.names(subjects)
    return encode_columns(
        RecordKind.ROWS,
        names,
        {
            "sequence": block.sequence,
            "due_ms": block.due_ms,
            "id_hash": block.id_hash,
            "size": block.size,
            "subject": subject,
            "origin": block.origin,
        },
    )
