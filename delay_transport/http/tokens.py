"""Bearer tokens: who may read, who may change, and what the audit calls them.

A token is 32 random bytes as text. The file has its SHA-256 only: of so many random bits nothing is
found by trying, so a hash that is slow on purpose would protect nothing more. The file is JSON:

    {"tokens": [{"name": "alice", "role": "admin", "sha256": "…", "created": "2026-11-21T…"}]}

The server reloads the file when it changes. While the file cannot be read, every request is denied:
a mistake in the file must not bring back a token that it removed.
"""

import base64
import hashlib
import hmac
import stat
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import msgspec

from delay_transport.seams.errors import ConfigError
from delay_transport.settings.watched_file import WatchedFile, read_trusted

LOOPBACK: Final = "loopback"
"""What the audit calls a caller who needs no token; no token is called so."""

TOKENS_MAX: Final = 1000
"""Tokens that a file may have: each request is compared with all of them."""

FILE_BYTES_MAX: Final = 1 << 20
"""Bytes that are read of a file."""

SECRET_BYTES: Final = 32
"""Random bytes of a token."""

_REMEDY: Final = "`delaywheel admin token add` makes one"

_PREFIX: Final = "dwt_"
"""What a token begins with, so that it is known for one where it should not be."""


class Role(Enum):
    """What somebody may do."""

    SEND = "send"
    """Send messages, and cancel or move each, at a gateway."""
    READ = "read"
    CHANGE = "change"
    """Send, look, cancel and move, also all of a filter, at a gateway."""
    ADMIN = "admin"

    def covers(self, needed: "Role") -> bool:
        """Say whether this role is enough where another one is needed."""
        return (
            needed is self
            or self is Role.ADMIN
            or (self is Role.CHANGE and needed is not Role.ADMIN)
        )


class Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of a token."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=r"^[\w.@+-]+$")]
    """Goes to the audit."""
    role: Role
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    """Of the token's text."""
    subjects: Annotated[tuple[str, ...], msgspec.Meta(max_length=64)] = ()
    """Patterns of the subjects that it is for at a gateway; none: all."""
    created: Annotated[str, msgspec.Meta(max_length=40)] = ""
    """When, for people."""


class TokenTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file has."""

    tokens: Annotated[tuple[Token, ...], msgspec.Meta(max_length=TOKENS_MAX)] = ()


def token_text(secret: bytes) -> str:
    """Return the token of so many random bytes."""
    return _PREFIX + base64.urlsafe_b64encode(secret).rstrip(b"=").decode()


def digest_of(token: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def decode_tokens(data: bytes, *, source: str) -> tuple[Token, ...]:
    """Return the tokens of a file; raise ConfigError."""
    try:
        tokens = msgspec.json.decode(data, type=TokenTable).tokens
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            source=source,
            key="",
            reason=f"is not a token file: {error}",
            remedy=_REMEDY,
        ) from error
    names = [token.name for token in tokens]
    if LOOPBACK in names:
        raise ConfigError(source=source, key="", reason=f"the name {LOOPBACK} is reserved")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(source=source, key="", reason=f"two tokens are called {twice}")
    return tokens


def encode_tokens(tokens: Sequence[Token]) -> bytes:
    """Return the file's content."""
    table = msgspec.json.encode(TokenTable(tokens=tuple(tokens)))
    return msgspec.json.format(table, indent=2) + b"\n"


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Return the tokens of a file; raise ConfigError if it cannot be trusted or read."""
    data = read_trusted(
        path,
        distrusted=stat.S_IWGRP | stat.S_IWOTH,
        why="users other than its owner may write it, and could add a token",
        bytes_max=FILE_BYTES_MAX,
        remedy=_REMEDY,
    )
    return decode_tokens(data, source=str(path))


class Tokens(WatchedFile[Token]):
    """The tokens in force. Without a file no caller needs one."""

    def __init__(self, path: Path | str | None) -> None:
        super().__init__(path, read_tokens, what="tokens")

    def find(self, presented: str) -> Token | None:
        """Return the token that somebody presented, if there is such a one.

        How long it takes does not tell how near a wrong one came.
        """
        digest = digest_of(presented)
        found = None
        for token in self.entries:
            if hmac.compare_digest(token.sha256, digest):
                found = token
        return found
