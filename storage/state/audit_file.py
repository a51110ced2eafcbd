"""The files `audit/<number>.log`: lines of JSON, each with a CRC of its own, oldest first.

    {"at_ms":1700000000000,"who":"alice",…,"crc":"1a2b3c4d"}

The CRC (zlib.crc32, eight hex digits) is of all that stands before `,"crc"`. Behind the last line
of the newest file there may be what a crash has left of one. Any other line that fails its CRC is
skipped, and its readers say so.
"""

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from storage.disk.disk import Disk

AUDIT_DIRECTORY: Final = "audit"
AUDIT_BYTES_MAX: Final = 64 * 1024 * 1024
"""A file is closed before it is longer. What somebody put behind that is not read."""

_NAME: Final = re.compile(r"[0-9]{20}\.log", re.ASCII)
_CRC: Final = re.compile(rb',"crc":"([0-9a-f]{8})"\}\Z')
_RULES: Final = ("set ", "remove ")
"""How the actions begin that change rules at the node itself."""


@dataclass(frozen=True, slots=True)
class AuditLine:
    """What stands between two newlines.

    is_whole: whether its CRC is right; is_tail: whether the file ends with it, without a newline.
    """

    position: int
    text: bytes
    is_whole: bool
    is_tail: bool


def audit_path(number: int) -> str:
    """Return the path of a file, counted from 1."""
    return f"{AUDIT_DIRECTORY}/{number:020d}.log"


def audit_numbers(disk: Disk) -> Sequence[int]:
    """Return which files there are, ascending."""
    return [int(name[:20]) for name in disk.list(AUDIT_DIRECTORY) if _NAME.fullmatch(name)]


def encode_audit_line(entry: object) -> bytes:
    """Return the line of an entry, its newline included."""
    body = msgspec.json.encode(entry)[:-1]
    return b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def read_audit_file(disk: Disk, path: str) -> bytes:
    """Return what a file holds, but not what lies beyond AUDIT_BYTES_MAX.

    Raises what `Disk.open_read` and `File.read_at` do.
    """
    file = disk.open_read(path)
    try:
        return file.read_at(0, min(file.size(), AUDIT_BYTES_MAX))
    finally:
        file.close()


def audit_lines(data: bytes) -> Iterator[AuditLine]:
    """Yield the lines of a file, whole or not."""
    position = 0
    for line in data.split(b"\n"):
        after = position + len(line) + 1
        if line or after <= len(data):
            yield AuditLine(position, line, _is_whole(line), is_tail=after > len(data))
        position = after


def _is_whole(line: bytes) -> bool:
    found = _CRC.search(line)
    return found is not None and zlib.crc32(line[: found.start()]) == int(found[1], 16)


def version_told(disk: Disk) -> int:
    """Return the newest version of controls that must have been on disk by the audit; 0 for none.

    The change that a line tells of may never have come to be, but it was based on the version
    before. What was told by a meta server says nothing: those versions are of its store.
    """
    version = 0
    for number in audit_numbers(disk):
        try:
            data = read_audit_file(disk, audit_path(number))
        except OSError:
            continue
        for line in audit_lines(data):
            if line.is_whole:
                fields: dict[str, Any] = msgspec.json.decode(line.text)
                told = fields.get("version")
                if isinstance(told, int) and str(fields.get("action")).startswith(_RULES):
                    version = max(version, told - 1)
    return version
