"""A file of an operator that is read again when it changes, such as tokens or a secret.

While it cannot be read or trusted nothing counts that it had: a mistake in the file must not bring
back what was removed from it.
"""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog
import trio

from delay_transport.seams.errors import ConfigError
from delay_transport.seams.runtime import Executor

LOOK_S: Final = 1.0
"""Seconds between two looks whether the file has changed."""

FILES_WORKER: Final = "watched files"
"""The worker of the executor that reads such files."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

Entry = TypeVar("Entry")


class WatchedFile(Generic[Entry]):
    """The entries in force. Without a file there are none, and none is required."""

    def __init__(
        self, path: Path | str | None, decode: Callable[[Path], tuple[Entry, ...]], *, what: str
    ) -> None:
        """Read entries by `decode`, which raises ConfigError; `what` they are goes to the log."""
        self._path = Path(path) if path else None
        self._decode = decode
        self._what = what
        self._seen: tuple[int, ...] | None = None
        self._has_looked = False
        self.entries: tuple[Entry, ...] = ()
        """None as long as the file cannot be used."""
        self.fault = ""
        """Why the file cannot be used; empty if it can."""

    @property
    def is_set(self) -> bool:
        """True if there is a file."""
        return self._path is not None

    def read(self) -> bool:
        """Read the file if it has changed; return whether that changed anything. Blocks.

        What changes after the first call is written into the log.
        """
        if self._path is None:
            return False
        seen = _fingerprint(self._path)
        if seen is not None and seen == self._seen and not self.fault:
            return False
        before = (self.entries, self.fault)
        try:
            self.entries, self.fault = self._decode(self._path), ""
        except ConfigError as error:
            self.entries, self.fault = (), str(error)
        is_first, self._has_looked, self._seen = not self._has_looked, True, seen
        if before == (self.entries, self.fault):
            return False
        if self.fault and not is_first:
            _log.error(f"the file of {self._what} cannot be used", reason=self.fault)
        elif not is_first:
            _log.info(f"the file of {self._what} was read", count=len(self.entries))
        return True

    async def keep(self, executor: Executor) -> None:
        """Read the file again when it changes, until cancelled; ends at once without one."""
        while self.is_set:
            await executor.run(FILES_WORKER, self.read)
            await trio.sleep(LOOK_S)

    def check(self, key: str) -> None:
        """Read the file; raise ConfigError, naming the setting, if it cannot be used. Blocks."""
        self.read()
        if self.fault:
            raise ConfigError(source="settings", key=key, reason=self.fault)


def read_trusted(path: Path, *, distrusted: int, why: str, bytes_max: int, remedy: str) -> bytes:
    """Return the content of a regular file; raise ConfigError, which has none of it.

    A file whose mode has any bit of `distrusted` is refused, `why` says so; `remedy` makes a file.
    """

    def fault(reason: str, remedy: str = remedy) -> ConfigError:
        return ConfigError(source=str(path), key="", reason=reason, remedy=remedy)

    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise fault("is not a regular file")
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise fault(f"cannot be read: {error.strerror or error}") from error
    if mode & distrusted:
        raise fault(why, f"chmod 600 {path}")
    if len(data) > bytes_max:
        raise fault(f"has more than {bytes_max} bytes")
    return data


def _fingerprint(path: Path) -> tuple[int, ...] | None:
    """Return what changes whenever a file does; None if it cannot be looked at."""
    try:
        status = path.stat()
    except OSError:
        return None
    # ctime: it changes with the mode and the owner too.
    return (status.st_ino, status.st_ctime_ns, status.st_size)
