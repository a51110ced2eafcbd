"""Files of results: there whole, or as they were before.

A file is written beside its place and renamed at the end. What is none (a device, a FIFO, standard
output) is written to as it is, never replaced.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from spark_tools.files.errors import OutputError

_STREAM = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/(\d+)", re.ASCII)
_STREAMS = {"stdout": 1, "stderr": 2}


class Output:
    """One file, as a context. Left by an error it leaves what was there.

    That it can be written is found out at the beginning, before long work; but for what is no file,
    which is opened when it is written to: a FIFO waits for its reader.
    """

    def __init__(self, path: Path | None) -> None:
        """path: None keeps nothing."""
        self._path = path
        self._temporary: Path | None = None
        self._place: Path | None = None
        """What the rename replaces; not the link that names it."""
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Begin. Raises OutputError."""
        path = self._path
        if path is None:
            return self
        with self.named():
            if not _is_replaced(path):
                return self
            place = self._place = path.resolve()
            temporary = place.with_name(f"{place.name}.{os.getpid()}.tmp")
            self._file = temporary.open("wb")
            self._temporary = temporary
            with contextlib.suppress(FileNotFoundError):
                temporary.chmod(stat.S_IMODE(place.stat().st_mode))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Put it in its place. Raises OutputError."""
        try:
            if self._file is not None:
                with self.named() if error is None else contextlib.suppress(OSError):
                    self._file.close()
            if self._temporary is not None and self._place is not None and error is None:
                with self.named():
                    self._temporary.replace(self._place)
                self._temporary = None
        finally:
            if self._temporary is not None:
                with contextlib.suppress(OSError):
                    self._temporary.unlink(missing_ok=True)

    @property
    def file(self) -> IO[bytes]:
        """What takes bytes; whoever writes to it does so within `named`. Raises OutputError."""
        if self._file is None:
            assert self._path is not None
            with self.named():
                self._file = _opened(self._path)
        return self._file

    def write(self, data: bytes) -> None:
        """Write, if there is a file. Raises OutputError."""
        if self._path is not None:
            file = self.file
            with self.named():
                file.write(data)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Let errors of the operating system say which file it is. Raises OutputError."""
        try:
            yield
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise OutputError(f"{self._path} cannot be written: {reason}") from error


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole, or not at all. Raises OutputError."""
    with Output(path) as output:
        output.write(data)


def _is_replaced(path: Path) -> bool:
    """Say whether a path names a file, or nothing yet. Raises OSError."""
    if _STREAM.fullmatch(str(path)):
        return False
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


def _opened(path: Path) -> IO[bytes]:
    match = _STREAM.fullmatch(str(path))
    if match is None:
        return path.open("wb")
    # Opened by its name a file would be written from its beginning, over what is printed.
    number = _STREAMS[match[1]] if match[1] else int(match[2])
    return os.fdopen(os.dup(number), "wb")
