"""The file of the secret that delay servers and meta servers have in common.

A line of text is a secret; blank lines, and lines that begin with `#`, say nothing. Signing uses
the first one, checking accepts any: with two lines an operator replaces a secret without downtime.
The file is reloaded when it changes (`SharedSecret.keep`). Its content is shown nowhere.
"""

import stat
from pathlib import Path
from typing import Final

import structlog
import trio

from delay_transport.seams.errors import ConfigError
from delay_transport.seams.runtime import Executor

SECRETS_MAX: Final = 2
"""Secrets that a file may have: the present one, and the one before or after it."""

SECRET_BYTES_MIN: Final = 32
"""Bytes of a secret at least: 24 random bytes in base64, or more."""

FILE_BYTES_MAX: Final = 4096
"""Bytes that a file may have."""

LOOK_S: Final = 1.0
"""Seconds between two looks whether the file has changed."""

SECRETS_WORKER: Final = "secrets"
"""The worker of the executor that reads the file."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_REMEDY: Final = "`umask 077; openssl rand -base64 32 > FILE` makes one"


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """Return the secrets of a file, one or two; raise ConfigError, which has none of them."""

    def fault(reason: str, remedy: str = _REMEDY) -> ConfigError:
        return ConfigError(source=str(path), key="", reason=reason, remedy=remedy)

    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise fault("is not a regular file")
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise fault(f"cannot be read: {error.strerror or error}") from error
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        reason = "users other than its owner and group may read or write it"
        raise fault(reason, f"chmod 600 {path}")
    if len(data) > FILE_BYTES_MAX:
        raise fault(f"has more than {FILE_BYTES_MAX} bytes")
    lines = [line.strip() for line in data.splitlines()]
    secrets = tuple(line for line in lines if line and not line.startswith(b"#"))
    if not 1 <= len(secrets) <= SECRETS_MAX:
        raise fault(f"has {len(secrets)} secrets, one a line; it must have 1 or {SECRETS_MAX}")
    if any(len(secret) < SECRET_BYTES_MIN for secret in secrets):
        raise fault(f"has a secret of less than {SECRET_BYTES_MIN} bytes, which could be guessed")
    return secrets


class SharedSecret:
    """The secrets in force. Without a file there are none, and none is required."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None
        self.secrets: tuple[bytes, ...] = ()
        """None as long as the file cannot be read or trusted; the first is what to sign with."""
        self.fault = ""
        """Why the file cannot be used; empty if it can."""

    @property
    def is_set(self) -> bool:
        """Whether there is a file."""
        return self._path is not None

    def read(self) -> bool:
        """Read the file if it has changed; say whether that changed anything. Blocks."""
        if self._path is None:
            return False
        seen = _fingerprint(self._path)
        if seen is not None and seen == self._seen:
            return False
        before = (self.secrets, self.fault)
        try:
            self.secrets, self.fault = read_secrets(self._path), ""
        except ConfigError as error:
            self.secrets, self.fault = (), str(error)
        self._seen = seen
        return before != (self.secrets, self.fault)

    async def keep(self, executor: Executor) -> None:
        """Read the file again when it changes, until cancelled; ends at once without one.

        What changes is written into the log.
        """
        while self.is_set:
            if await executor.run(SECRETS_WORKER, self.read):
                if self.fault:
                    _log.error("the file of the secret cannot be used", reason=self.fault)
                else:
                    _log.info("the file of the secret was read", secrets=len(self.secrets))
            await trio.sleep(LOOK_S)

    def check(self, key: str) -> None:
        """Read the file; raise ConfigError, naming the setting, if it cannot be used. Blocks."""
        self.read()
        if self.fault:
            raise ConfigError(source="settings", key=key, reason=self.fault)


def _fingerprint(path: Path) -> tuple[int, ...] | None:
    """Return what changes whenever a file does; None if it cannot be looked at."""
    try:
        status = path.stat()
    except OSError:
        return None
    # ctime: it changes with the mode and the owner too.
    return (status.st_ino, status.st_ctime_ns, status.st_size)
