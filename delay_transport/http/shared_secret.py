"""The file of the secret that delay servers and meta servers have in common.

A line of text is a secret; blank lines, and lines that begin with `#`, say nothing. Signing uses
the first one, checking accepts any: with two lines an operator replaces a secret without downtime.
The file is reloaded when it changes (`WatchedFile.keep`). Its content is shown nowhere.
"""

import stat
from pathlib import Path
from typing import Final

from delay_transport.seams.errors import ConfigError
from delay_transport.settings.watched_file import WatchedFile, read_trusted

SECRETS_MAX: Final = 2
"""Secrets that a file may have: the present one, and the one before or after it."""

SECRET_BYTES_MIN: Final = 32
"""Bytes of a secret at least: 24 random bytes in base64, or more."""

FILE_BYTES_MAX: Final = 4096
"""Bytes that a file may have."""

_REMEDY: Final = "`umask 077; openssl rand -base64 32 > FILE` makes one"


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """Return the secrets of a file, one or two; raise ConfigError, which has none of them."""

    def fault(reason: str) -> ConfigError:
        return ConfigError(source=str(path), key="", reason=reason, remedy=_REMEDY)

    data = read_trusted(
        path,
        distrusted=stat.S_IRWXO | stat.S_IWGRP,
        why="users other than its owner and group may read or write it",
        bytes_max=FILE_BYTES_MAX,
        remedy=_REMEDY,
    )
    lines = [line.strip() for line in data.splitlines()]
    secrets = tuple(line for line in lines if line and not line.startswith(b"#"))
    if not 1 <= len(secrets) <= SECRETS_MAX:
        raise fault(f"has {len(secrets)} secrets, one a line; it must have 1 or {SECRETS_MAX}")
    if any(len(secret) < SECRET_BYTES_MIN for secret in secrets):
        raise fault(f"has a secret of less than {SECRET_BYTES_MIN} bytes, which could be guessed")
    return secrets


class SharedSecret(WatchedFile[bytes]):
    """The secrets in force; the first is what to sign with."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path, read_secrets, what="the secret")
