"""How far a log of this disk is known to be durable: the file `durable_end` beside its files.

A bad batch below the durable end is damage of something that others counted on; beyond it, it is
what a crash left of an append that nobody was told about.

The file has two slots, at positions 0 and 512, so that no sector holds both:

    0         4         6         8             16                32              40
    +---------+---------+---------+-------------+-----------------+---------------+
    | magic   | version | slot    | counter     | log uuid        | next sequence |
    | "DWDE"  | u16     | size u16| u64         | 16 bytes        | i64           |
    +---------+---------+---------+-------------+-----------------+---------------+
    40               48            56             64           68             72          76     80
    +----------------+-------------+--------------+------------+--------------+-----------+-----+
    | file's first   | position    | leader epoch | last batch | floor minute | reserved  | CRC |
    | sequence i64   | i64         | u64          | CRC u32    | u32          | 4 zeros   | u32 |
    +----------------+-------------+--------------+------------+--------------+-----------+-----+

The slot with the larger counter counts. Writes go to one slot until it was synced, and only then to
the other: a power cut can spoil no more than the slot being written, and the other is the last that
was synced. The CRC is seeded as a batch's is, with a log kind of its own.

The file is made whole, with the same end in both slots, and is durable before its log has a first
file: it never is missing, short or of zeros beside a log that somebody counts on.
"""

import struct
import zlib
from contextlib import closing
from dataclasses import dataclass
from uuid import UUID

from storage.batch.batches import log_seed
from storage.batch.file_header import LogKind
from storage.disk.disk import Disk, File, ReadableDisk, ReadableFile, replace_file
from storage.disk.errors import DamagedError, DataDirectoryError, require_version

DURABLE_END_NAME = "durable_end"
END_IS_GONE = "the file is gone: how far the log was durable is not known"
"""What is wrong where a log has files and no durable end."""
DURABLE_END_MAGIC = b"DWDE"
DURABLE_END_VERSION = 2
SLOT_POSITIONS = (0, 512)
SLOT_SIZE = 80
_FILE_SIZE = 1024
_SECTOR = 512
_SLOT = struct.Struct("<4sHHQ16sqqqQII4sI")
assert _SLOT.size == SLOT_SIZE
_CRC = struct.Struct("<I")
_PREFIX = struct.Struct("<4sHH")
_SLOT_SIZE_MIN = 16
COUNTER_BASE = 2**48
"""Counters begin behind it."""
_COUNTER_MAX = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableEnd:
    """The end of the message_log at one of its fsyncs.

    next_sequence: all records below it are durable; file_sequence: first sequence of the file the
    end is in; position: of the end in that file; last_crc: of the last batch; epoch, floor_minute:
    of the last batch, for the case that it is damaged.
    """

    next_sequence: int
    file_sequence: int
    position: int
    last_crc: int
    epoch: int
    floor_minute: int


def encode_slot(end: DurableEnd, *, log_uuid: UUID, counter: int) -> bytes:
    """Return the bytes of one slot."""
    data = _SLOT.pack(
        DURABLE_END_MAGIC,
        DURABLE_END_VERSION,
        SLOT_SIZE,
        counter,
        log_uuid.bytes,
        end.next_sequence,
        end.file_sequence,
        end.position,
        end.epoch,
        end.last_crc,
        end.floor_minute,
        bytes(4),
        0,
    )[:-4]
    return data + _CRC.pack(zlib.crc32(data, log_seed(log_uuid, LogKind.DURABLE_END)))


def decode_slot(
    data: bytes,
    *,
    log_uuid: UUID,
    path: str,
    position: int,
) -> tuple[int, DurableEnd] | None:
    """Return counter and end of the slot that fills the sector `data`; None if never written.

    Raises DamagedError, UnsupportedFormatError or DataDirectoryError.
    """
    if not any(data):
        return None
    fields = _PREFIX.unpack_from(data) if len(data) >= SLOT_SIZE else (b"", 0, 0)
    magic, version, size = fields
    if magic != DURABLE_END_MAGIC or not _SLOT_SIZE_MIN <= size <= len(data):
        raise DamagedError(path=path, position=position, reason="no durable end is in this slot")
    (crc,) = _CRC.unpack_from(data, size - 4)
    # The uuid is looked at first: with another one the CRC is bound to be wrong.
    found = UUID(bytes=data[16:32])
    if zlib.crc32(data[: size - 4], log_seed(found, LogKind.DURABLE_END)) != crc:
        raise DamagedError(path=path, position=position, reason="slot fails its CRC")
    require_version("slot", version, DURABLE_END_VERSION, path=path, position=position)
    if size != SLOT_SIZE:
        reason = f"slot of version {version} has {size} bytes"
        raise DamagedError(path=path, position=position, reason=reason)
    if found != log_uuid:
        raise DataDirectoryError(
            f"{path} belongs to log {found}, but this data directory's log is {log_uuid}; "
            "nothing was changed"
        )
    values = _SLOT.unpack_from(data)
    counter, next_sequence, file_sequence, end_position = values[3], *values[5:8]
    # The counter is counted up by the next write; an end in a file is behind records of that file.
    if counter > _COUNTER_MAX or not (
        0 <= file_sequence <= next_sequence
        and end_position >= 0
        and (file_sequence < next_sequence or not end_position)
    ):
        reason = f"slot of counter {counter} with numbers that nobody wrote"
        raise DamagedError(path=path, position=position, reason=reason)
    return counter, DurableEnd(
        next_sequence=next_sequence,
        file_sequence=file_sequence,
        position=end_position,
        epoch=values[8],
        last_crc=values[9],
        floor_minute=values[10],
    )


class DurableEndReader:
    """Reads the two slots of one data directory, or of a copy of it."""

    def __init__(
        self,
        disk: ReadableDisk,
        directory: str,
        *,
        log_uuid: UUID,
    ) -> None:
        """Prepare for the log in `directory`."""
        self._readable = disk
        self._path = f"{directory}/{DURABLE_END_NAME}"
        self._log_uuid = log_uuid
        self._counter = 0
        self._slot = 0
        self._found: DurableEnd | None = None
        self.is_whole = False
        """Whether the file has its size and an end; otherwise the first write makes it anew."""
        self.damaged_slot: DamagedError | None = None
        """What is wrong with a slot that `read` found not intact, by a power cut or otherwise."""
        self.missing: DamagedError | None = None
        """Why `read` found less than the whole file: the end may be an older one than the last that
        was synced."""

    def read(self) -> DurableEnd | None:
        """Return the newest end, or None if there is no file; to be called before the first write.

        A slot that is not intact is what a power cut may leave, when the other was the last that
        was synced. DamagedError if no slot is intact.
        """
        try:
            file = self._readable.open_read(self._path)
        except FileNotFoundError:
            return None
        with closing(file):
            self.missing = self._missing_bytes(file)
            slots = [self._read_slot(file, position) for position in SLOT_POSITIONS]
        damages = [slot for slot in slots if isinstance(slot, DamagedError)]
        self.damaged_slot = next(iter(damages), None)
        for number, slot in enumerate(slots):
            if isinstance(slot, tuple) and slot[0] > self._counter:
                self._counter, self._found = slot
                self._slot = number
        if self._found is None:
            nothing = self._damaged(0, "both slots are all zeros")
            raise self.missing or next(iter(damages), nothing)
        self.is_whole = self.missing is None
        return self._found

    def _missing_bytes(self, file: ReadableFile) -> DamagedError | None:
        """Say so if the file is shorter than it was made."""
        try:
            size = file.size()
        except OSError as error:
            return self._damaged(0, f"cannot be read: {error}")
        if size >= _FILE_SIZE:
            return None
        return self._damaged(size, f"the file ends after {size} bytes of {_FILE_SIZE}")

    def _damaged(self, position: int, reason: str) -> DamagedError:
        return DamagedError(path=self._path, position=position, reason=reason)

    def _read_slot(
        self, file: ReadableFile, position: int
    ) -> tuple[int, DurableEnd] | DamagedError | None:
        try:
            data = file.read_at(position, _SECTOR)
        except OSError as error:
            return self._damaged(position, str(error))
        try:
            return decode_slot(data, log_uuid=self._log_uuid, path=self._path, position=position)
        except DamagedError as error:
            return error


class DurableEndFile(DurableEndReader):
    """The two slots of one data directory, to be read and written.

    Invariant: the slot that is not being written is durable as it is, and holds an end.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        log_uuid: UUID,
    ) -> None:
        """Prepare for the log in `directory`."""
        super().__init__(disk, directory, log_uuid=log_uuid)
        self._disk = disk
        self._file: File | None = None
        self._slot_is_whole = True
        self.synced = True
        """Whether everything written is durable."""

    def write(self, end: DurableEnd) -> None:
        """Replace the end; durable after the next sync. Raises StorageFullError, FatalDiskError.

        Makes the file, durable at once, if `read` found none that is whole.
        """
        if self._file is None and not self.is_whole:
            self._make(end)
            return
        file = self._file or self._open()
        counter = max(self._counter, COUNTER_BASE) + 1
        data = self._encode(end, counter)
        self.synced = self._slot_is_whole = False
        file.write_at(SLOT_POSITIONS[self._slot], [data])
        self._slot_is_whole = True
        self._counter = counter

    def _encode(self, end: DurableEnd, counter: int) -> bytes:
        return encode_slot(end, log_uuid=self._log_uuid, counter=counter)

    def _open(self) -> File:
        """Open the file, and establish the invariant."""
        file = self._disk.open(self._path)
        try:
            if self._found is not None:
                # The newest slot may have been in the page cache only. The other one was synced
                # before it, but must not be touched until this one is durable for certain.
                data = self._encode(self._found, self._counter)
                file.write_at(SLOT_POSITIONS[self._slot], [data])
                file.sync()
                self._slot = 1 - self._slot
        except BaseException:
            file.close()
            raise
        self._file = file
        return file

    def _make(self, end: DurableEnd) -> None:
        """Make the file with this end in both slots; durable before it has its name.

        What is there of an older one that is not whole is replaced.
        """
        counter = max(self._counter, COUNTER_BASE) + 2
        slots = [self._encode(end, counter), self._encode(end, counter - 1)]
        replace_file(self._disk, self._path, [slot.ljust(_SECTOR, b"\0") for slot in slots])
        self._file = self._disk.open(self._path)
        self._counter, self.is_whole, self._slot = counter, True, 1

    def sync(self) -> None:
        """Make what was written durable. Raises FatalDiskError.

        After a failed write it does nothing: the other slot stays the one that counts.
        """
        if self.synced or self._file is None or not self._slot_is_whole:
            return
        self._file.sync()
        self._slot = 1 - self._slot
        self.synced = True

    def close(self) -> None:
        """Give the descriptor back; makes nothing durable."""
        if self._file is not None:
            self._file.close()
            self._file = None
