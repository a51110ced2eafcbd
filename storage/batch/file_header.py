"""The first 64 bytes of every log file: whose it is, what it is, and where it begins.

    0         4         6         8                16                32                40
    +---------+---------+---------+----------------+-----------------+-----------------+
    | magic   | version | header  | feature bits   | log uuid        | first sequence  |
    | "DWLG"  | u16     | size u16| u64            | 16 bytes        | i64             |
    +---------+---------+---------+----------------+-----------------+-----------------+
    40             44       45       46                         60
    +--------------+--------+--------+--------------------------+---------+
    | start minute | log    | span   | reserved                 | CRC     |
    | u32          | kind u8| u8     | 14 zeros                 | u32     |
    +--------------+--------+--------+--------------------------+---------+

The first 8 bytes, and the CRC (zlib.crc32, unseeded) in the last 4 of `header size` bytes, are
fixed for every version to come: a header is only said to be newer once its CRC has shown that
this is what was written. Unlike a batch's, this CRC is not seeded with the log uuid: a file of
another log must be told from a damaged one.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from storage.disk.disk import Bytes
from storage.disk.errors import (
    DamagedError,
    DataDirectoryError,
    UnsupportedFormatError,
    require_version,
)
from storage.disk.spans import SegmentKey, Span, can_begin

FILE_HEADER_SIZE = 64
FILE_MAGIC = b"DWLG"
FILE_FORMAT_VERSION = 2
_KNOWN_FEATURES = 0
_HEADER = struct.Struct("<4sHHQ16sqIBB14sI")
assert _HEADER.size == FILE_HEADER_SIZE
_PREFIX = struct.Struct("<4sHH")
_CRC = struct.Struct("<I")
_HEADER_SIZE_MIN = 16
HEADER_SIZE_MAX = 4096
"""No version's header may be larger: keeps a damaged size from being believed."""


class LogKind(IntEnum):
    """What a file is; seeds the CRCs of its batches. Numbers are never reused, 3 and 9 neither."""

    MESSAGE_LOG = 1
    SCHEDULE_LOG = 2
    DISPATCH_LOG = 4
    SEALS = 5
    CHECKPOINT = 6
    DURABLE_END = 7
    IDENTITY = 8
    CONTROLS = 10
    PROMISE = 11
    RECORDS = 12


@dataclass(frozen=True, slots=True)
class FileHeader:
    """What a log file says about itself.

    first_sequence: of its first record (or seal); start_minute: minutes since the epoch,
    0 where span is NONE.
    """

    kind: LogKind
    log_uuid: UUID
    first_sequence: int = 0
    span: Span = Span.NONE
    start_minute: int = 0


def segment_header(kind: LogKind, log_uuid: UUID, key: SegmentKey) -> FileHeader:
    """Return the header of one of the two files of a segment."""
    return FileHeader(kind, log_uuid, span=key.span, start_minute=key.start)


def encode_file_header(header: FileHeader) -> bytes:
    """Return the 64 bytes a log file begins with."""
    data = _HEADER.pack(
        FILE_MAGIC,
        FILE_FORMAT_VERSION,
        FILE_HEADER_SIZE,
        0,
        header.log_uuid.bytes,
        header.first_sequence,
        header.start_minute,
        header.kind,
        header.span,
        bytes(14),
        0,
    )[:-4]
    return data + _CRC.pack(zlib.crc32(data))


def decode_file_header(
    data: Bytes, *, path: str, kind: LogKind | None = None, log_uuid: UUID | None = None
) -> FileHeader:
    """Return the file header at the beginning of `data`, which may be longer.

    Raises DamagedError for a short or damaged header and for a file of another kind than `kind`,
    UnsupportedFormatError for another format, DataDirectoryError for a log uuid other than
    `log_uuid`. None stands for "any".
    """
    _check_intact(data, path)
    fields = _HEADER.unpack_from(data)
    features, uuid_bytes, first_sequence, start_minute, kind_number, span_number = fields[3:9]
    if features & ~_KNOWN_FEATURES:
        raise _unsupported(path, f"file has unknown feature bits {features:#x}")
    try:
        found = LogKind(kind_number)
        span = Span(span_number)
    except ValueError:
        reason = f"file is of unknown log kind {kind_number}, span {span_number}"
        raise _unsupported(path, reason) from None
    if start_minute and span is Span.NONE:
        raise _damaged(path, f"file covers no time, but from minute {start_minute} on")
    if span is not Span.NONE and not can_begin(start_minute, span):
        raise _damaged(path, f"no {span.name.lower()} begins at minute {start_minute}")
    if kind is not None and found is not kind:
        raise _damaged(path, f"this is a {found.name} file where a {kind.name} file belongs")
    header = FileHeader(found, UUID(bytes=uuid_bytes), first_sequence, span, start_minute)
    if log_uuid is not None and header.log_uuid != log_uuid:
        raise DataDirectoryError(
            f"{path} belongs to log {header.log_uuid}, but this data directory's log is "
            f"{log_uuid}; files of different logs must not be mixed, nothing was changed"
        )
    return header


def _check_intact(data: Bytes, path: str) -> None:
    """Raise unless `data` begins with an intact header of this format version."""
    if len(data) < FILE_HEADER_SIZE:
        raise _damaged(path, f"file header cut off after {len(data)} bytes")
    magic, version, size = _PREFIX.unpack_from(data)
    if magic != FILE_MAGIC:
        raise _damaged(path, f"not a delaywheel log file (magic {magic!r})")
    if not _HEADER_SIZE_MIN <= size <= min(HEADER_SIZE_MAX, len(data)):
        raise _damaged(path, f"file header claims a size of {size} bytes")
    (crc,) = _CRC.unpack_from(data, size - 4)
    if zlib.crc32(data[: size - 4]) != crc:
        raise _damaged(path, "file header fails its CRC")
    require_version("file", version, FILE_FORMAT_VERSION, path=path, position=0)
    if size != FILE_HEADER_SIZE:
        raise _damaged(path, f"file header of version {version} has {size} bytes")


def _damaged(path: str, reason: str) -> DamagedError:
    return DamagedError(path=path, position=0, reason=reason)


def _unsupported(path: str, reason: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(path=path, position=0, reason=reason)
