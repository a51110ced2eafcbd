"""Batches: the unit in which every log is written, checked, copied and decoded.

    0         4         6         8                16      17      18         20        24
    +---------+---------+---------+----------------+-------+-------+----------+---------+
    | magic   | version | header  | feature bits   | record| codec | item     | count   |
    | "DWB1"  | u16     | size u16| u64            | kind  | u8    | format   | u32     |
    |         |         |         |                | u8    |       | u16      |         |
    +---------+---------+---------+----------------+-------+-------+----------+---------+
    24             32              40              48             52              56
    +--------------+---------------+---------------+--------------+---------------+
    | leader epoch | base sequence | append time   | floor minute | previous      |
    | u64          | i64           | i64, wall ms  | u32          | batch's CRC   |
    +--------------+---------------+---------------+--------------+---------------+
    56             60          64             68            72          76           80
    +--------------+-----------+--------------+-------------+-----------+------------+- - - -+- -
    | columns size | blob size | blob raw size| columns CRC | blob CRC  | header CRC |columns|blob
    | u32          | u32       | u32          | u32         | u32       | u32        |       |
    +--------------+-----------+--------------+-------------+-----------+------------+- - - -+- -

Little-endian. Columns: see columns.py. Blob: the records' items one after another, raw or as one
lz4 block (its raw size is in the header; the CRC is of the stored bytes). All three CRCs are
zlib.crc32, seeded with the log's uuid and kind, and with a segment's span and start, since a
message body may contain the image of a batch of another log. The header CRC covers the other two,
so it stands for the whole batch: it is what the next batch names as its previous CRC.

The first 8 bytes, and the header CRC in the last 4 of `header size` bytes, are fixed for every
version to come. The CRC is checked before the version is believed.
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

import lz4.block

from storage.batch.columns import (
    KINDS_WITH_ITEMS,
    LAYOUTS,
    Columns,
    ColumnsError,
    RecordKind,
    decode_columns,
)
from storage.batch.file_header import HEADER_SIZE_MAX, FileHeader, LogKind
from storage.disk.disk import Bytes
from storage.disk.errors import DamagedError, UnsupportedFormatError, require_version
from storage.disk.spans import Span

MAGIC = b"DWB1"
FORMAT_VERSION = 2
HEADER_SIZE = 80
BATCH_BYTES_MAX = 4 * 1024 * 1024
"""No batch is larger, header and uncompressed blob included."""

_HEADER = struct.Struct("<4sHHQBBHIQqqIIIIIIII")
assert _HEADER.size == HEADER_SIZE
_HEADER_BEFORE_CRC = struct.Struct("<4sHHQBBHIQqqIIIIIII")
"""What the header CRC covers."""
_PREFIX = struct.Struct("<4sHH")
_CRC = struct.Struct("<I")
_COVERED = struct.Struct("<BI")
DEAD_MINUTES = 1
"""Feature bit of a FACTS batch: some of its minutes stand for dead segments
(storage/disk/spans.py).
"""
COPIES = 2
"""Feature bit of a MESSAGE or MOVE batch: its records are copies of older messages for one name
each.
"""
_KNOWN_FEATURES: dict[int, int] = {
    RecordKind.FACTS: DEAD_MINUTES,
    RecordKind.MESSAGE: COPIES,
    RecordKind.MOVE: COPIES,
}
"""By record kind; no bit is known of the others."""
_SEQUENCE_MAX = 2**63 - 1
"""What an i64 holds: the sequence behind the last record is written down too."""
_LZ4_RATIO_MAX = 255
"""No byte of an lz4 block stands for more."""
_HEADER_SIZE_MIN = 16
_SEARCH_BYTES = 64 * 1024
_JOIN_BELOW = 4096
"""Buffers smaller than this on average are joined: one CRC call and one iovec for all of them."""


class Codec(IntEnum):
    """How the blob is stored."""

    RAW = 0
    LZ4 = 1
    """One lz4 block without a size of its own."""


class ItemFormat(IntEnum):
    """What the items in the blob are."""

    NONE = 0
    """There are none."""
    QMQ = 1
    """Items of QMQ's SEND_MESSAGE, as they came over the wire."""


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The decoded header of one batch; its fields are in the order that they have on disk.

    base_sequence: of its first record (or fact number, or seal number); append_ms: wall clock at
    the append; floor_minute: minutes since the epoch, below which nothing is filed any more;
    previous_crc: `crc` of the batch before it in the log, 0 for the first; crc: the header's own,
    which stands for the whole batch.
    """

    features: int
    kind: RecordKind
    codec: Codec
    item_format: ItemFormat
    count: int
    epoch: int
    base_sequence: int
    append_ms: int
    floor_minute: int
    previous_crc: int
    columns_size: int
    blob_size: int
    blob_raw_size: int
    columns_crc: int
    blob_crc: int
    crc: int

    @property
    def size(self) -> int:
        """The bytes of the whole batch on disk."""
        return HEADER_SIZE + self.columns_size + self.blob_size

    @property
    def blob_offset(self) -> int:
        """Where the blob begins, from the beginning of the batch."""
        return HEADER_SIZE + self.columns_size

    @property
    def next_sequence(self) -> int:
        """The sequence behind its last record, in logs that number their records one by one."""
        return self.base_sequence + self.count


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are not what was written.

    header: of the damaged batch where only its columns or blob are bad. first_sequence and
    next_sequence: the records that were in there (the second exclusive), where that is known.
    """

    path: str
    position: int
    size: int
    reason: str
    header: BatchHeader | None = None
    first_sequence: int | None = None
    next_sequence: int | None = None

    def error(self) -> DamagedError:
        """Return the exception to raise where the damage cannot be gone around."""
        return DamagedError(path=self.path, position=self.position, reason=self.reason)


@dataclass(frozen=True, slots=True)
class LogBatch:
    """A batch of which every byte has been checked; the blob is uncompressed."""

    header: BatchHeader
    columns: Columns
    blob: Bytes


def log_seed(log_uuid: UUID, kind_of_log: LogKind) -> int:
    """Return what the CRCs of this log's batches begin with; the same for ever."""
    return zlib.crc32(log_uuid.bytes + bytes([kind_of_log]))


def file_seed(header: FileHeader) -> int:
    """Return what the CRCs of a file's batches begin with: the log's seed, and the time it covers.

    So a batch of another segment is none here, wherever a misdirected write has put it.
    """
    seed = log_seed(header.log_uuid, header.kind)
    if header.span is Span.NONE:
        return seed
    return zlib.crc32(_COVERED.pack(header.span, header.start_minute), seed)


def encode_batch(
    *,
    seed: int,
    kind: RecordKind,
    epoch: int,
    base_sequence: int,
    count: int,
    floor_minute: int,
    append_ms: int,
    previous_crc: int,
    columns: bytes,
    blob: Sequence[Bytes] = (),
    codec: Codec = Codec.RAW,
    item_format: int | None = None,
    features: int = 0,
) -> tuple[BatchHeader, list[Bytes]]:
    """Return the header of a batch and the buffers to write, in order.

    With `codec` LZ4 the blob is compressed unless that would not make it smaller. `item_format` is
    by default what the kind asks for. ValueError for a batch without records or larger than
    BATCH_BYTES_MAX: what is more belongs in the next one.
    """
    if item_format is not None:
        known_format = ItemFormat(item_format)
    else:
        known_format = ItemFormat.QMQ if kind in KINDS_WITH_ITEMS else ItemFormat.NONE
    raw_size = sum(map(len, blob))
    if count < 1 or HEADER_SIZE + len(columns) + raw_size > BATCH_BYTES_MAX:
        raise ValueError(
            f"a batch of {count} records, {len(columns)} bytes of columns and {raw_size} of items"
        )
    codec, stored = _pack_blob(codec, blob, raw_size)
    blob_crc = seed
    for part in stored:
        blob_crc = zlib.crc32(part, blob_crc)
    blob_size = sum(map(len, stored))
    numbers = (
        count,
        epoch,
        base_sequence,
        append_ms,
        floor_minute,
        previous_crc,
        len(columns),
        blob_size,
        raw_size,
        zlib.crc32(columns, seed),
        blob_crc,
    )
    prefix = _HEADER_BEFORE_CRC.pack(
        MAGIC, FORMAT_VERSION, HEADER_SIZE, features, kind, codec, known_format, *numbers
    )
    crc = zlib.crc32(prefix, seed)
    header = BatchHeader(features, kind, codec, known_format, *numbers, crc)
    return header, [prefix + _CRC.pack(crc), columns, *stored]


def _pack_blob(codec: Codec, blob: Sequence[Bytes], raw_size: int) -> tuple[Codec, list[Bytes]]:
    """Return how the blob is stored after all, and its buffers."""
    if codec is Codec.LZ4 and raw_size:
        packed: bytes = lz4.block.compress(b"".join(blob), store_size=False)
        if len(packed) < raw_size:
            return Codec.LZ4, [packed]
    if len(blob) > 1 and raw_size < len(blob) * _JOIN_BELOW:
        return Codec.RAW, [b"".join(blob)]
    return Codec.RAW, list(blob)


def decode_header(data: Bytes, *, seed: int, path: str, position: int) -> BatchHeader:
    """Return the batch header at the beginning of `data`, which may be longer.

    Give it HEADER_SIZE_MAX bytes where there are as many, so that a larger header of a newer
    version is recognised for what it is. DamagedError unless the header is intact;
    UnsupportedFormatError if it is, but needs another delaywheel.
    """
    if len(data) < HEADER_SIZE:
        raise _damaged(path, position, f"batch header cut off after {len(data)} bytes")
    magic, version, size = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise _damaged(path, position, "no batch begins here")
    if not _HEADER_SIZE_MIN <= size <= min(HEADER_SIZE_MAX, len(data)):
        raise _damaged(path, position, f"batch header claims a size of {size} bytes")
    (crc,) = _CRC.unpack_from(data, size - 4)
    if zlib.crc32(data[: size - 4], seed) != crc:
        raise _damaged(path, position, "batch header fails its CRC")
    require_version("batch", version, FORMAT_VERSION, path=path, position=position)
    if size != HEADER_SIZE:
        reason = f"batch header of version {version} has {size} bytes"
        raise _damaged(path, position, reason)
    return _header_from_fields(_HEADER.unpack_from(data), path, position)


def _header_from_fields(fields: tuple[int, ...], path: str, position: int) -> BatchHeader:
    """Return the header made of fields whose CRC was right, if this version knows them all."""
    features, kind, codec, item_format = fields[3:7]
    unknown = features & ~_KNOWN_FEATURES.get(kind, 0)
    if unknown:
        raise _unsupported(path, position, f"batch has unknown feature bits {unknown:#x}")
    try:
        known = RecordKind(kind), Codec(codec), ItemFormat(item_format)
    except ValueError:
        reason = f"batch of record kind {kind}, codec {codec}, item format {item_format}"
        raise _unsupported(path, position, f"{reason}, not all of them known") from None
    header = BatchHeader(features, *known, *fields[7:])
    if header.base_sequence < 0 or header.next_sequence > _SEQUENCE_MAX:
        reason = f"batch of {header.count} records from {header.base_sequence} on"
        raise _damaged(path, position, reason)
    # Checked before anything is allocated or skipped by these sizes.
    if (
        header.count == 0
        # Nothing else bounds the count of records that have no columns.
        or (header.count > 1 and not LAYOUTS[header.kind])
        or HEADER_SIZE + header.columns_size + header.blob_raw_size > BATCH_BYTES_MAX
        or header.blob_size > header.blob_raw_size
        or (header.codec is Codec.RAW and header.blob_size != header.blob_raw_size)
        or (header.codec is Codec.LZ4 and header.blob_raw_size > _LZ4_RATIO_MAX * header.blob_size)
        or (header.kind not in KINDS_WITH_ITEMS and header.blob_raw_size != 0)
    ):
        raise _damaged(path, position, "batch header's sizes contradict each other")
    return header


def check_columns(
    header: BatchHeader, data: Bytes, *, seed: int, path: str, position: int
) -> Columns:
    """Return the checked, decoded columns of a batch, or raise DamagedError.

    `data` is the batch from its header on (`position` in the file `path`); its blob need not be
    there, but the item sizes are checked against what the header says of it.
    """
    part = memoryview(data)[HEADER_SIZE : header.blob_offset]
    fault = _part_fault(part, header.columns_size, header.columns_crc, seed)
    if fault is not None:
        raise _damaged(path, position, f"the batch's columns {fault}")
    try:
        columns = decode_columns(header.kind, header.count, part)
    except ColumnsError as error:
        raise _damaged(path, position, str(error)) from error
    if header.kind in KINDS_WITH_ITEMS:
        items = int(columns.arrays["size"].sum(dtype="u8"))
        if items != header.blob_raw_size:
            reason = f"items of {items} bytes in a blob of {header.blob_raw_size}"
            raise _damaged(path, position, reason)
    return columns


def check_blob(header: BatchHeader, data: Bytes, *, seed: int, path: str, position: int) -> Bytes:
    """Return the checked, uncompressed blob of a batch, or raise DamagedError.

    `data` is the whole batch from its header on (`position` in the file `path`). The blob is a view
    of it where it is not compressed.
    """
    part = memoryview(data)[header.blob_offset : header.size]
    fault = _part_fault(part, header.blob_size, header.blob_crc, seed)
    if fault is not None:
        raise _damaged(path, position, f"the batch's blob {fault}")
    if header.codec is Codec.RAW:
        return part
    try:
        raw: bytes = lz4.block.decompress(part, uncompressed_size=header.blob_raw_size)
    except lz4.block.LZ4BlockError as error:
        raise _damaged(path, position, f"the batch's blob: {error}") from error
    if len(raw) != header.blob_raw_size:
        reason = f"the batch's blob has {len(raw)} bytes, not {header.blob_raw_size}"
        raise _damaged(path, position, reason)
    return raw


def decode_batch(
    header: BatchHeader, data: Bytes, *, seed: int, path: str, position: int
) -> LogBatch:
    """Return a batch whose header was read already, all of it checked, or raise DamagedError.

    `data` is the whole batch from its header on (`position` in the file `path`).
    """
    columns = check_columns(header, data, seed=seed, path=path, position=position)
    blob = check_blob(header, data, seed=seed, path=path, position=position)
    return LogBatch(header, columns, blob)


def _part_fault(data: Bytes, size: int, crc: int, seed: int) -> str | None:
    if len(data) != size:
        return f"part is cut off after {len(data)} of {size} bytes"
    if zlib.crc32(data, seed) != crc:
        return "part fails its CRC"
    return None


def contents_fault(header: BatchHeader, data: Bytes, seed: int) -> str | None:
    """Say why `data` is not the whole batch that its header speaks of, or None. Decodes nothing."""
    view = memoryview(data)
    if _CRC.unpack_from(view, HEADER_SIZE - 4)[0] != header.crc:
        return "the batch has another header by now"
    for what, part, size, crc in (
        ("header", view[: HEADER_SIZE - 4], HEADER_SIZE - 4, header.crc),
        (
            "columns",
            view[HEADER_SIZE : header.blob_offset],
            header.columns_size,
            header.columns_crc,
        ),
        ("blob", view[header.blob_offset : header.size], header.blob_size, header.blob_crc),
    ):
        fault = _part_fault(part, size, crc, seed)
        if fault is not None:
            return f"the batch's {what} {fault}"
    return None


View = Callable[[int, int], Bytes]
"""Returns up to `size` bytes of a file from `position`; fewer only at its end."""

NextData = Callable[[int], int]
"""Returns where bytes may lie that are not zeros, from a position of a file on: no batch is in a
hole, and a search need not read one."""


def _no_holes(position: int) -> int:
    return position


def walk_batches(
    view: View, *, start: int, end: int, seed: int, path: str
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of the batches from `start` to `end`, by their headers alone.

    Each names the CRC of the one before it. Raises DamagedError where one does not, is cut off or
    has no good header; UnsupportedFormatError.
    """
    position, before = start, None
    while position < end:
        head = view(position, min(HEADER_SIZE_MAX, end - position))
        header = decode_header(head, seed=seed, path=path, position=position)
        if before is not None and header.previous_crc != before.crc:
            raise _damaged(path, position, NO_FOLLOWER)
        if position + header.size > end:
            raise _damaged(path, position, ends_early(header, end - position))
        yield position, header
        position, before = position + header.size, header


NO_FOLLOWER = "the batch does not follow the one before it"


def ends_early(header: BatchHeader, size: int) -> str:
    """Return what is wrong with a batch of which so many bytes are there."""
    return f"batch of {header.size} bytes cut off after {size}"


def find_batch(
    view: View,
    *,
    start: int,
    end: int,
    seed: int,
    path: str,
    sequence_min: int = 0,
    skip_newer: bool = False,
    next_data: NextData = _no_holes,
) -> int:
    """Return the position of the next batch with a good header from `start` on, or `end`.

    What does not fit before `end`, or begins below `sequence_min`, is none. So the image of an
    older batch in a message is none, where the records before it are known. UnsupportedFormatError
    passes through, unless batches of newer versions are none (`skip_newer`).
    """
    position = start
    while (position := next_data(position)) < end:
        chunk = bytes(view(position, min(_SEARCH_BYTES + len(MAGIC) - 1, end - position)))
        offset = chunk.find(MAGIC)
        while offset >= 0:
            candidate = position + offset
            try:
                header = decode_header(
                    view(candidate, min(HEADER_SIZE_MAX, end - candidate)),
                    seed=seed,
                    path=path,
                    position=candidate,
                )
            except UnsupportedFormatError:
                if not skip_newer:
                    raise
            except DamagedError:
                pass
            else:
                if header.base_sequence >= sequence_min and candidate + header.size <= end:
                    return candidate
            offset = chunk.find(MAGIC, offset + 1)
        position += _SEARCH_BYTES
    return end


def _damaged(path: str, position: int, reason: str) -> DamagedError:
    return DamagedError(path=path, position=position, reason=reason)


def _unsupported(path: str, position: int, reason: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(path=path, position=position, reason=reason)
