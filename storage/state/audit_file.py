"""The files `audit/<number>.log`: lines of JSON, each with a CRC of its own, oldest first.

    {"at_ms":1700000000000,"who":"alice",…,"crc":"1a2b3c4d"}

The CRC (zlib.crc32, eight hex digits) is of all that stands before `,"crc"`; lines that were
written before there was one have none, and nothing but `FIELDS`. Behind the last line of a file
there may be what a crash has left of one.

A line that is damaged hides no other: where it is the newline that went, the lines on both sides
are found by their CRCs.
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
"""A file is closed before it is longer. What somebody put behind that is not read: it counts as the
end of a line that is none."""
FIELDS: Final = frozenset(
    ("at_ms", "who", "peer", "action", "target", "count", "version", "before", "after")
)
"""What a line may have; those with a CRC may have more."""

_NAME: Final = re.compile(r"[0-9]{20}\.log", re.ASCII)
_CRC: Final = re.compile(rb',"crc":"([0-9a-f]{8})"\}')
_BEGIN: Final = b'{"at_ms":'
_RULES: Final = ("set ", "remove ")
"""How the actions begin that change rules at the node itself."""


@dataclass(frozen=True, slots=True)
class AuditLine:
    """A line, or bytes that are none.

    size: in bytes, the newline not counted; text: its JSON; fault: what is wrong with it, or None;
    is_tail: whether it ends where the file does, without a newline.
    """

    position: int
    size: int
    text: bytes
    fault: str | None
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
    """Yield the lines of a file, and what lies between them."""
    position = 0
    while position < len(data):
        end = data.find(b"\n", position)
        is_tail = end < 0
        if is_tail:
            end = len(data)
        yield from _lines_of(data[position:end], position, is_tail=is_tail)
        position = end + 1


def _lines_of(text: bytes, position: int, *, is_tail: bool) -> Iterator[AuditLine]:
    """Yield what stands between two newlines: a line, or lines and what is none."""
    fault = _fault_of(text)
    if fault is None:
        yield AuditLine(position, len(text), text, None, is_tail)
        return
    done = 0
    for found in _CRC.finditer(text):
        begin = text.rfind(_BEGIN, done, found.start())
        if begin < 0 or _fault_of(text[begin : found.end()]) is not None:
            continue
        if begin > done:
            yield _no_line(text, position, done, begin, fault, is_tail=False)
        line = text[begin : found.end()]
        done = found.end()
        yield AuditLine(position + begin, len(line), line, None, is_tail and done == len(text))
    if done < len(text) or not text:
        yield _no_line(text, position, done, len(text), fault, is_tail=is_tail)


def _no_line(
    text: bytes, position: int, begin: int, end: int, fault: str, *, is_tail: bool
) -> AuditLine:
    return AuditLine(position + begin, end - begin, text[begin:end], fault, is_tail)


def _fault_of(line: bytes) -> str | None:
    """Return what is wrong with a line, None if nothing is."""
    begin = line.rfind(b',"crc":"')
    found = _CRC.fullmatch(line, begin) if begin >= 0 else None
    if found is not None:
        if zlib.crc32(line[:begin]) == int(found[1], 16):
            return None
        return "the line fails its CRC"
    try:
        fields: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "the line is no JSON"
    if not isinstance(fields, dict) or not fields.keys() <= FIELDS or "at_ms" not in fields:
        return "the line is no entry of an audit"
    return None


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
            if line.fault is None:
                fields: dict[str, Any] = msgspec.json.decode(line.text)
                told = fields.get("version")
                if isinstance(told, int) and str(fields.get("action")).startswith(_RULES):
                    version = max(version, told - 1)
    return version
