"""The file of tokens that a caller shows to servers: one token, or a line for each server.

    meta1:8080 TOKEN
    10.0.0.5:20811 TOKEN
    * TOKEN               all others

A token that stands alone is for the servers that the caller itself names. Whoever registers at a
meta server is asked as well, so its token has to have a line.
"""

from collections.abc import Mapping
from pathlib import Path

from delay_transport.seams.errors import ConfigError


def read_server_tokens(path: Path) -> dict[str, str]:
    """Return the tokens of a file by the address of their servers, or the only one by "".

    Raises ConfigError if the file cannot be read, or has a line that is no token.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = f"the token file cannot be read: {error}"
        raise ConfigError(source=str(path), key="", reason=reason) from error
    rows = [line.rpartition(" ") for line in map(str.strip, lines) if line]
    if not rows or (len(rows) > 1 and not all(address for address, _, _ in rows)):
        raise no_token(str(path))
    return {address.strip(): checked_token(token, str(path)) for address, _, token in rows}


def checked_token(text: str, where: str) -> str:
    """Return a token; raise ConfigError for a text that is none."""
    if not text.isascii() or not text.isprintable() or " " in text or not text:
        raise no_token(where)
    return text


def no_token(where: str) -> ConfigError:
    """Return the error for a place without a token."""
    return ConfigError(
        source=where,
        key="",
        reason="there is no token in it",
        remedy="a token is one word; a file has one, or a line `HOST:PORT TOKEN` for each server",
    )


def token_for_node(tokens: Mapping[str, str], address: str) -> str | None:
    """Return the token for a server that a meta server names; None if there is none."""
    return tokens.get(address, tokens.get("*"))


def token_for_named(tokens: Mapping[str, str], address: str) -> str | None:
    """Return the token for a server that the caller names; None if there is none."""
    return tokens.get("", token_for_node(tokens, address))
