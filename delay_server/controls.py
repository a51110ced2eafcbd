"""What an operator has closed or narrowed on this node, kept durable, and who changed what.

The file `controls` in the data directory:

    0                  64                 72
    +------------------+------------------+------------------------+
    | file header      | size u32, crc u32| JSON of `Controls`     |
    | (file_header.py) | (seeded)         | (size bytes)           |
    +------------------+------------------+------------------------+

It is only ever replaced whole: temporary file, fsync, rename, fsync of the directory. A change
counts when that is done, and is answered then: what was answered survives any crash. Where there is
no file there never was a change.

A file that cannot be read is refused, and the node does not start: nobody knows any more what was
paused, and going on as if nothing were could flood the very broker that somebody protected. Whoever
knows that nothing needs to be paused removes the file.

The audit, `audit/<number>.log`, has a line of JSON for each change, written and fsynced before the
change: who (the token's name), from where, when, what it was and what it is. What is done about
dead letters has two: what is asked for, before it, and how many it was. The audit is bounded by
files: the oldest goes. A line that a crash has cut off was of a change that nobody was told of.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

import msgspec
import structlog

from delay_protocol.controls import Controls, ControlsError, decode_controls, encode_controls
from storage import DamagedError, Disk
from storage.batches import log_seed
from storage.file_header import (
    FILE_HEADER_SIZE,
    FileHeader,
    LogKind,
    decode_file_header,
    encode_file_header,
)

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

CONTROLS_PATH: Final = "controls"
_TEMPORARY_PATH: Final = "controls.tmp"
_AUDIT: Final = "audit"
_PREFIX: Final = struct.Struct("<II")
_BODY_AT: Final = FILE_HEADER_SIZE + _PREFIX.size

REMEDY: Final = (
    f"restore {CONTROLS_PATH} from a backup; or, if nothing needs to be paused or limited, remove "
    "it and set the rules anew"
)


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change, as the audit has it."""

    at_ms: int
    """Wall clock."""
    who: str
    """The token's name; `loopback` where none is needed."""
    peer: str
    """Where the request came from."""
    action: str
    """Such as `set subject`."""
    target: str
    """The subject, prefix or group; or which dead letters were meant."""
    count: int | None = None
    """How many dead letters were changed; None where none were meant, or before it was done."""
    version: int = 0
    """Of the controls after it, where they were changed."""
    before: msgspec.Raw = msgspec.Raw(b"null")
    """The rule that was, as JSON."""
    after: msgspec.Raw = msgspec.Raw(b"null")
    """The rule that is."""


def read_controls(disk: Disk, log_uuid: UUID) -> Controls:
    """Return what the data directory says; raise DamagedError, or UnsupportedFormatError."""
    try:
        file = disk.open_read(CONTROLS_PATH)
    except FileNotFoundError:
        return Controls()
    try:
        data = file.read_at(0, file.size())
    except OSError as error:
        raise _damaged(f"cannot be read: {error}") from error
    finally:
        file.close()
    header = decode_file_header(data, path=CONTROLS_PATH, kind=LogKind.CONTROLS)
    if header.log_uuid != log_uuid:
        raise _damaged("is of another data directory")
    if len(data) < _BODY_AT:
        raise _damaged("is cut off")
    size, crc = _PREFIX.unpack_from(data, FILE_HEADER_SIZE)
    body = data[_BODY_AT:]
    if size != len(body) or zlib.crc32(body, log_seed(log_uuid, LogKind.CONTROLS)) != crc:
        raise _damaged("fails its CRC")
    try:
        return decode_controls(body)
    except ControlsError as error:
        raise _damaged(str(error)) from error


def _damaged(reason: str) -> DamagedError:
    reason = f"{reason}; what was paused or limited is not known: {REMEDY}"
    return DamagedError(path=CONTROLS_PATH, position=0, reason=reason)


def write_controls(disk: Disk, log_uuid: UUID, controls: Controls) -> None:
    """Replace the controls; durable when this returns. StorageFullError, FatalDiskError."""
    body = encode_controls(controls)
    header = encode_file_header(FileHeader(kind=LogKind.CONTROLS, log_uuid=log_uuid))
    prefix = _PREFIX.pack(len(body), zlib.crc32(body, log_seed(log_uuid, LogKind.CONTROLS)))
    if disk.exists(_TEMPORARY_PATH):
        disk.unlink(_TEMPORARY_PATH)
    file = disk.open(_TEMPORARY_PATH, create=True)
    try:
        file.write_at(0, [header, prefix, body])
        file.sync()
    finally:
        file.close()
    disk.rename(_TEMPORARY_PATH, CONTROLS_PATH)
    disk.sync_directory("")


class Audit:
    """The audit's files. All calls block, and are made one at a time."""

    def __init__(self, disk: Disk, *, file_bytes_max: int, files_max: int) -> None:
        self._disk = disk
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max

    def append(self, entry: AuditEntry) -> None:
        """Make an entry durable. Raises StorageFullError or FatalDiskError."""
        line = msgspec.json.encode(entry) + b"\n"
        numbers = self._numbers()
        number = numbers[-1] if numbers else 0
        position = self._end_of(number) if number else 0
        if not number or (position and position + len(line) > self._file_bytes_max):
            number, position = number + 1, 0
            self._begin(number)
            self._forget_oldest([*numbers, number])
        elif not position:
            # Whoever made it may have died before its name was durable.
            self._sync_names()
        file = self._disk.open(_path(number))
        try:
            if file.size() > position:
                # What a crash has left of a line; the next one is not to be read as its end.
                file.truncate(position)
            file.write_at(position, [line])
            file.sync()
        finally:
            file.close()

    def entries(self, count: int) -> list[AuditEntry]:
        """Return the latest entries, at most so many, the newest first."""
        found: list[AuditEntry] = []
        for number in reversed(self._numbers()):
            lines = self._whole_lines(number)
            for line in reversed(lines):
                if len(found) == count:
                    return found
                try:
                    found.append(msgspec.json.decode(line, type=AuditEntry))
                except (msgspec.DecodeError, UnicodeDecodeError):
                    _log.warning("a line of the audit cannot be read", path=_path(number))
        return found

    def _begin(self, number: int) -> None:
        self._disk.make_directory(_AUDIT)
        self._disk.open(_path(number), create=True).close()
        self._sync_names()

    def _sync_names(self) -> None:
        self._disk.sync_directory(_AUDIT)
        self._disk.sync_directory("")

    def _forget_oldest(self, numbers: Sequence[int]) -> None:
        for number in numbers[: -self._files_max]:
            self._disk.unlink(_path(number))

    def _numbers(self) -> list[int]:
        names = self._disk.list(_AUDIT)
        stems = [name.removesuffix(".log") for name in names if name.endswith(".log")]
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def _end_of(self, number: int) -> int:
        return sum(len(line) + 1 for line in self._whole_lines(number))

    def _whole_lines(self, number: int) -> list[bytes]:
        file = self._disk.open_read(_path(number))
        try:
            data = file.read_at(0, file.size())
        finally:
            file.close()
        return data.split(b"\n")[:-1]


def _path(number: int) -> str:
    return f"{_AUDIT}/{number:020d}.log"


class ControlsStore:
    """The controls that hold at this node, its own or a meta server's, and the audit.

    Its calls block; they are made one at a time.
    """

    def __init__(self, disk: Disk, *, log_uuid: UUID, audit: Audit) -> None:
        """Read the controls; raise DamagedError, or UnsupportedFormatError."""
        self._disk = disk
        self._log_uuid = log_uuid
        self.audit = audit
        # Whoever put the file there may have died before its name was durable.
        disk.sync_directory("")
        self.controls = read_controls(disk, log_uuid)
        """As they are durable."""

    def change(
        self,
        plan: Callable[[Controls], Controls],
        entry: Callable[[Controls, Controls], AuditEntry],
    ) -> Controls:
        """Make what `plan` makes of the controls durable, once `entry` of it is in the audit.

        Raises what `plan` does, StorageFullError (nothing has changed then) or FatalDiskError.
        """
        before = self.controls
        after = plan(before)
        if (after.groups, after.subjects) == (before.groups, before.subjects):
            return before
        self.audit.append(entry(before, after))
        self._write(after)
        return after

    def take(self, told: Controls, entry: AuditEntry) -> None:
        """Make durable what a meta server has told, once `entry` of it is in the audit.

        Raises StorageFullError (nothing has changed then) or FatalDiskError.
        """
        if told != self.controls:
            self.audit.append(entry)
            self._write(told)

    def _write(self, controls: Controls) -> None:
        write_controls(self._disk, self._log_uuid, controls)
        self.controls = controls
