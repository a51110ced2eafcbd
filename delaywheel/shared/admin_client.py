"""Asking a server's administration over HTTP, and what its refusals mean for a command."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

from delaywheel.shared.failures import ExitCode, Failure
from delaywheel.shared.http_exchange import Json, ask_json

TIMEOUT_S: Final = 15.0
"""A meta server answers a change within `admin.answer_ms_max`."""

PAGE: Final = 1000
"""Rows that are asked for at a time."""

TOKEN_VARIABLE: Final = "DELAYWHEEL_TOKEN"  # noqa: S105 (where it is, not what it is)

_PREFIX: Final = "/api/v1"

_EXIT_CODES: Final[Mapping[int, ExitCode]] = {
    400: ExitCode.USAGE,
    413: ExitCode.USAGE,
    415: ExitCode.USAGE,
    504: ExitCode.DISK,
    507: ExitCode.DISK,
}
"""How a command ends that was answered so; 503 depends on the reason, all others are refusals."""


_TARGET_CHARACTERS_MAX: Final = 14_000
"""More, with headers, no server reads. Two subjects of the greatest length have 12,288."""


@dataclass(slots=True)
class Session:
    """The server that a command asks, and the form in which it prints answers."""

    address: str
    """host:port of the server's HTTP."""
    token_file: Path | None
    as_json: bool
    prefix: str = _PREFIX
    """Before every path."""
    what: str = "meta server"
    """Whom the command wants to speak to, for people."""
    timeout_s: float = TIMEOUT_S
    node_token_file: Path | None = None
    """With the token for delay servers that the meta server names: they are not shown the other."""

    def ask(
        self,
        method: str,
        *path: str,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> Json:
        """Return the answer; raise Failure with a sentence and an exit code.

        Parameters and fields that are None are left out.
        """
        _check_text(path, query, body)
        target = "/".join([self.prefix, *(quote(part, safe="") for part in path)])
        if given := {name: _text(value) for name, value in _given(query)}:
            target += "?" + urlencode(given)
        if len(target) > _TARGET_CHARACTERS_MAX:
            raise _failure(
                f"the request is too long: {len(target)} characters as an address, which may "
                f"have {_TARGET_CHARACTERS_MAX}; a subject or prefix has at most 2048 bytes",
                ExitCode.USAGE,
            )
        token = token_of(self.token_file)
        status, found = ask_json(
            self.address,
            method,
            target,
            body=None if body is None else dict(_given(body)),
            token=token,
            timeout_s=self.timeout_s,
            server=self.what,
            purpose="can be administered",
        )
        if status < 400:
            return found
        message, code = str(found["error"]["message"]), str(found["error"]["code"])
        if status == 401 and token is None:
            message = (
                f"{self.address} wants a token: set {TOKEN_VARIABLE}, or give --token-file FILE"
            )
        if status == 503 and code == "store":
            raise _failure(message, ExitCode.DISK)
        raise _failure(message, _EXIT_CODES.get(status, ExitCode.REFUSED))

    def rows(self, *path: str, query: Mapping[str, object], limit: int | None) -> Iterator[Json]:
        """Yield up to `limit` rows of a list (None: all), page by page, then one with `more`.

        The last one, {"more": True}, comes only if there are more rows than `limit`.
        """
        after: object = None
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page = self.ask("GET", *path, query={**query, "after": after, "limit": size})
            yield from page["items"]
            left = None if left is None else left - len(page["items"])
            after = page["next"]
            if after is None:
                return
        yield {"more": True}


def token_of(file: Path | None) -> str | None:
    """Return the token of a file, or else of the environment: no argument, which others could see.

    None if there is none; raises Failure for an invalid token.
    """
    if file is not None:
        return token_in(file)
    text = os.environ.get(TOKEN_VARIABLE, "").strip()
    return _checked(text, TOKEN_VARIABLE) if text else None


def token_in(file: Path) -> str:
    """Return the token of a file; raise Failure if there is none in it."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"the token file cannot be read: {error}", ExitCode.USAGE) from error
    return _checked(text, str(file))


def _checked(text: str, where: str) -> str:
    if not text.isascii() or not text.isprintable() or " " in text or not text:
        raise Failure(f"there is no token in {where}: a token is one word", ExitCode.USAGE)
    return text


def _check_text(*parts: object) -> None:
    """Raise Failure if what was typed is no text that could be asked for."""
    for part in parts:
        if isinstance(part, str):
            try:
                part.encode()
            except UnicodeEncodeError as error:
                raise _failure(f"{part!a} is no UTF-8", ExitCode.USAGE) from error
        elif isinstance(part, Mapping):
            _check_text(*part.values())
        elif isinstance(part, tuple):
            _check_text(*part)


def _failure(message: str, code: ExitCode) -> Failure:
    from delay_protocol.basics.printable import printable

    return Failure(printable(message), code)


def _given(values: Mapping[str, object] | None) -> Iterator[tuple[str, object]]:
    for name, value in (values or {}).items():
        if value is not None:
            yield name, value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
