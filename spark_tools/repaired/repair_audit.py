"""The audit of repairs: a file of JSON lines, each of which says what became of a message.

Lines are on disk before the next messages are sent. Each ends with a CRC of its own (zlib.crc32,
eight hex digits, of all that stands before `,"crc"`). What a crash has left of the last line is cut
off when the file is opened again: what it would have told of is sent once more.
"""

import contextlib
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from spark_tools.files.errors import ReconcileError
from storage.disk.disk import DirectoryDisk, File
from storage.disk.errors import DataDirectoryError

ACCEPTED: Final = "accepted"
KNOWN: Final = "known"
REFUSED: Final = "refused"
UNANSWERED: Final = "unanswered"
_PIECE: Final = 4 * 1024 * 1024
"""Read at a time."""
_LINE_MAX: Final = 16 * 1024 * 1024
"""Longer than any line, and than what a crash may leave of some."""
_CRC: Final = re.compile(rb',"crc":"([0-9a-f]{8})"\}\Z')


class Answer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The outcome of a message of an old log that was sent again."""

    at_ms: int
    """Wall clock."""
    who: str
    """User and host."""
    kind: str
    """`lost` or `missing`."""
    cluster: str
    group: str
    log_uuid: str
    sequence: int
    filed_minute: int
    message_id: str
    subject: str
    due_ms: int
    result: str
    """`accepted`, `known`, `refused` or `unanswered`."""
    by: str | None
    """The node that answered, or was asked last."""
    reason: str | None
    crc: str = ""


class Audit:
    """An audit that is written to, by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Prepare to open the file, which may not be there yet."""
        self._path = path
        self._disk = DirectoryDisk(path.parent)
        self._held = contextlib.ExitStack()
        self._file: File | None = None
        self._end = 0

    def __enter__(self) -> Self:
        """Open the file, cutting off a torn line.

        Raises ReconcileError if another process writes to it, StorageError or OSError.
        """
        name = self._path.name
        with contextlib.ExitStack() as held:
            if not self._disk.exists(name):
                self._disk.open(name, create=True).close()
                self._disk.sync_directory("")
            try:
                held.enter_context(self._disk.lock(name))
            except DataDirectoryError as error:
                raise ReconcileError(
                    f"{self._path} is in use: another repair writes to it; wait until it has ended"
                ) from error
            self._file = self._disk.open(name)
            held.callback(self._file.close)
            self._end = self._file.size()
            self._cut_torn_line(self._file)
            self._held = held.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Close it."""
        self._held.close()

    def _cut_torn_line(self, file: File) -> None:
        begin = self._end
        while begin:
            begin = max(begin - _PIECE, 0)
            found = file.read_at(begin, min(_PIECE, self._end - begin)).rfind(b"\n")
            if found >= 0:
                begin += found + 1
                break
        if begin < self._end:
            file.truncate(begin)
            file.sync()
            self._end = begin

    def append(self, lines: Sequence[Answer]) -> None:
        """Write lines; they are on disk when this returns. StorageError if they cannot be."""
        if not lines:
            return
        assert self._file is not None
        data = b"".join(map(_encoded, lines))
        self._file.write_at(self._end, [data])
        self._file.sync()
        self._end += len(data)


def read_audit(path: Path) -> Iterator[Answer | None]:
    """Yield the lines of an audit; None for what is none. A torn last line is left out.

    Raises ReconcileError for what is no audit of repairs, StorageError or OSError.
    """
    disk = DirectoryDisk(path.parent)
    file = disk.open_read(path.name)
    try:
        rest, position, size = b"", 0, file.size()
        counts = {True: 0, False: 0}
        while position < size:
            piece = file.read_at(position, _PIECE)
            if not piece:
                break
            position += len(piece)
            whole, newline, rest = (rest + piece).rpartition(b"\n")
            if len(rest) > _LINE_MAX:
                raise ReconcileError(f"{path} is no audit of repairs: it has no lines")
            for line in whole.split(b"\n") if newline else ():
                counts[is_whole := _is_whole(line)] += 1
                yield _decoded(line, path) if is_whole else None
        if counts[False] and not counts[True]:
            raise ReconcileError(f"{path} is no audit of repairs: no line of it can be read as one")
    finally:
        file.close()


def _encoded(line: Answer) -> bytes:
    body = msgspec.json.encode(msgspec.structs.replace(line, crc="")).removesuffix(b',"crc":""}')
    return b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def _is_whole(line: bytes) -> bool:
    found = _CRC.search(line)
    return found is not None and zlib.crc32(line[: found.start()]) == int(found[1], 16)


def _decoded(text: bytes, path: Path) -> Answer:
    try:
        return msgspec.structs.replace(msgspec.json.decode(text, type=Answer), crc="")
    except msgspec.DecodeError as error:
        raise ReconcileError(
            f"{path} is no audit of repairs, or one of another version: {error}"
        ) from error
