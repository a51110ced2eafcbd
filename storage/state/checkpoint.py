"""The checkpoint: the manifest of everything derived from the message_log.

    +-------------------------+----------------------+------------------------+
    | file header (64 bytes,  | size u32, crc u32    | JSON of `Checkpoint`   |
    | kind CHECKPOINT)        | (seeded, of the JSON)| (size bytes)           |
    +-------------------------+----------------------+------------------------+
                              | size u32, crc u32    | JSON of `ClockMark`    |
                              | (seeded, of the JSON)| (size bytes)           |
                              +----------------------+------------------------+

The second part is there where the clock was known.

It says up to which sequence the message_log has been applied and, for every segment that is not
sealed, how much of its files counts. What neither it nor the seals nor its retired list
names does not exist. Written to a temporary file, fsynced, renamed, the directory fsynced.
"""

import struct
from typing import Annotated, TypeVar
from uuid import UUID
from zlib import crc32

import msgspec

from storage.batch.batches import log_seed
from storage.batch.file_header import (
    FILE_HEADER_SIZE,
    FileHeader,
    LogKind,
    decode_file_header,
    encode_file_header,
)
from storage.disk.disk import Disk, ListedDisk, read_small, replace_file
from storage.disk.errors import (
    DamagedError,
    UnsupportedFormatError,
    require_version,
)
from storage.disk.spans import SegmentKey, Span, can_begin
from storage.state.durable_end import DurableEnd

CHECKPOINT_PATH = "checkpoint/checkpoint"
_PREFIX = struct.Struct("<II")
CHECKPOINT_BYTES_MAX = 256 * 1024 * 1024
"""A segment has 100 bytes in it, a retired file 60: this is room for two millions of them. A larger
file is refused, unread."""
CHECKPOINT_FORMAT = 4
"""Raised with every change of batches in segments or filed facts, since a checkpoint is read before
they are."""


class SegmentState(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One unsealed segment, as far as the checkpoint vouches for it."""

    start: int
    """First minute, minutes since the epoch."""
    span: Annotated[int, msgspec.Meta(ge=1, le=4)]
    """1 minute, 2 hour, 3 day, 4 dead."""
    rows: int
    length: int
    """Bytes of the segment file that count; 0 if it has no file."""
    last_sequence: int
    """Sequence of the last row; replay skips rows not above it."""
    last_crc: int
    """CRC of the last batch, which the next batch names."""
    earliest_due_ms: int
    facts: int
    """Facts filed, repeated ones included."""
    facts_length: int
    facts_last_crc: int
    last_fact: int
    """Sequence of the last record whose fact is filed; replay skips facts not above it."""

    @property
    def key(self) -> SegmentKey:
        """Which segment this is."""
        return SegmentKey(self.start, Span(self.span))


class EpochStart(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where an epoch of the message_log begins; its EPOCH_START may be deleted by now."""

    epoch: int
    first_sequence: int


class RetiredFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A file nothing needs any more; deleted after a grace so that its readers are not cut off."""

    path: str
    since_ms: int


class Copied(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """That a directory began as a copy of another node's (storage/node/snapshot.py)."""

    sequence: int
    """The last record that the copy covered: its message_log began behind it."""
    crc: int
    """Of the batch that ends with that record."""
    written_ms: int
    """When the other node took it down. What was sealed there before is not here."""


class ClockMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was known of the clocks when a checkpoint was written, for the start after it."""

    boot_id: str
    """Names the boot of the machine; empty if that was not known."""
    wall_ms: int
    """The latest time that was trusted, ms since 1970…"""
    boot_ms: int
    """… when the boot clock showed this."""
    held: bool
    """Whether the wall clock had leapt ahead of it, and nobody had vouched for that."""


class Checkpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest of derived state; see the module's docstring."""

    format: int = CHECKPOINT_FORMAT
    written_ms: int = 0
    sequence: int = 0
    """Records up to this sequence are in the files of the segments below, or leave nothing there;
    so are some behind it, which each segment says for itself."""
    first_sequence: int = 1
    """The message_log is kept from this record on; files before it are retired or gone."""
    epochs: tuple[EpochStart, ...] = ()
    """Every epoch of the records that were applied, oldest first: of those up to `sequence`, and of
    later ones whose rows wait."""
    floor_minute: int = 0
    """Floor of the last record replayed; segments that end at or before it are closed."""
    hour_mark: int = 0
    """All minutes before this one are in minute segments."""
    day_mark: int = 0
    """All minutes before this one are in minute or hour segments."""
    seals_file: int = 0
    """First number of the newest file of the seals log; 0 if there is none."""
    seals_length: int = 0
    """Bytes of that file that count."""
    seals_count: int = 0
    """The last number; all files count as far as this."""
    seals_last_crc: int = 0
    seals_needed: int = 1
    """Of the seals below this number no segment has files any more."""
    segments: tuple[SegmentState, ...] = ()
    retired: tuple[RetiredFile, ...] = ()
    quarantined: tuple[str, ...] = ()
    """Files that damage befell, or that may have what it took elsewhere; kept for salvage."""
    copied: Copied | msgspec.UnsetType = msgspec.UNSET
    """Only where the directory began as a copy, and from then on."""
    clock: ClockMark | msgspec.UnsetType = msgspec.UNSET
    """Of the second part; not in the JSON of the first."""

    @property
    def last_known(self) -> int:
        """The last record that it speaks of: some behind `sequence` are in the segments already."""
        known = (max(one.last_sequence, one.last_fact) for one in self.segments)
        return max(self.sequence, *known, 0)

    @property
    def copied_end(self) -> DurableEnd | None:
        """Where the message_log of a copy began, empty; None where this is none."""
        if not isinstance(self.copied, Copied):
            return None
        sequence = self.copied.sequence
        epochs = [start.epoch for start in self.epochs if start.first_sequence <= sequence]
        return DurableEnd(
            next_sequence=sequence + 1,
            file_sequence=sequence + 1,
            position=0,
            last_crc=self.copied.crc,
            epoch=max(epochs, default=0),
            floor_minute=self.floor_minute,
        )


def write_checkpoint(disk: Disk, log_uuid: UUID, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint; it is durable when this returns.

    What it names must be durable before. Raises StorageFullError or FatalDiskError.
    """
    parts = [msgspec.json.encode(msgspec.structs.replace(checkpoint, clock=msgspec.UNSET))]
    if isinstance(checkpoint.clock, ClockMark):
        parts.append(msgspec.json.encode(checkpoint.clock))
    seed = log_seed(log_uuid, LogKind.CHECKPOINT)
    parts = [_PREFIX.pack(len(data), crc32(data, seed)) + data for data in parts]
    header = encode_file_header(FileHeader(kind=LogKind.CHECKPOINT, log_uuid=log_uuid))
    replace_file(disk, CHECKPOINT_PATH, [header, *parts])


def read_checkpoint(disk: ListedDisk, log_uuid: UUID) -> Checkpoint | None:
    """Return the checkpoint, or None if none was ever written.

    Raises DamagedError, UnsupportedFormatError, NotPermittedError or NotRegularFileError.
    """
    if not disk.exists(CHECKPOINT_PATH):
        return None
    data = read_small(disk, CHECKPOINT_PATH, CHECKPOINT_BYTES_MAX)
    decode_file_header(data, kind=LogKind.CHECKPOINT, log_uuid=log_uuid, path=CHECKPOINT_PATH)
    seed, body = log_seed(log_uuid, LogKind.CHECKPOINT), FILE_HEADER_SIZE + _PREFIX.size
    # First of all: one of another format may have other fields.
    told, _ = _part(data, FILE_HEADER_SIZE, _Versioned, seed)
    require_version("manifest", told.format, CHECKPOINT_FORMAT, path=CHECKPOINT_PATH, position=body)
    checkpoint, end = _part(data, FILE_HEADER_SIZE, Checkpoint, seed)
    if end < len(data):
        clock, end = _part(data, end, ClockMark, seed)
        checkpoint = msgspec.structs.replace(checkpoint, clock=clock)
    if end < len(data):
        raise DamagedError(
            path=CHECKPOINT_PATH, position=end, reason="something follows that nobody wrote"
        )
    for state in checkpoint.segments:
        if not can_begin(state.start, Span(state.span)):
            reason = f"the manifest has a segment of span {state.span} from {state.start} on"
            raise DamagedError(path=CHECKPOINT_PATH, position=body, reason=reason)
    return checkpoint


class _Versioned(msgspec.Struct):
    format: int = 0


_Part = TypeVar("_Part", Checkpoint, ClockMark, _Versioned)


def _part(data: bytes, position: int, as_type: type[_Part], seed: int) -> tuple[_Part, int]:
    """Return what one part of the file says, and the position behind it."""
    body = position + _PREFIX.size
    if len(data) < body:
        raise DamagedError(path=CHECKPOINT_PATH, position=len(data), reason="the file is cut short")
    size, crc = _PREFIX.unpack_from(data, position)
    text = data[body : body + size]
    if len(text) != size or crc32(text, seed) != crc:
        raise DamagedError(
            path=CHECKPOINT_PATH, position=body, reason="the manifest does not match its CRC"
        )
    try:
        return msgspec.json.decode(text, type=as_type), body + size
    except msgspec.ValidationError as error:
        raise UnsupportedFormatError(
            path=CHECKPOINT_PATH, position=body, reason=f"the manifest has unknown parts ({error})"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedError(
            path=CHECKPOINT_PATH, position=body, reason=f"the manifest is not JSON: {error}"
        ) from error
