"""Asking a server's administration over HTTP, and what its refusals mean for a command."""

import http.client
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from delay_transport.http.server_tokens import (
    checked_token,
    read_server_tokens,
    token_for_named,
    token_for_node,
)
from delaywheel.shared.failures import ExitCode, Failure

ANSWER_BYTES_MAX: Final = 64 << 20
"""Bytes of one answer: everything at a glance of thousands of groups has a few MB."""

_SERVER_FAULT: Final = 500
"""The lowest status of answers that do not blame the request."""

Json = dict[str, Any]

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


class Missing(Failure):
    """There is no such row."""


class Conflict(Failure):
    """The row has another version than the one that was expected."""


class Away(Failure):
    """The server is there, and cannot answer in this moment."""


_FAILURES: Final[Mapping[int, type[Failure]]] = {404: Missing, 412: Conflict, 503: Away, 504: Away}
"""The failure of a status, where a command has to know."""


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
    is_named: bool = True
    """True if the command names the server; False: a meta server does."""

    def __post_init__(self) -> None:
        """Take a URL for host:port as well."""
        self.address = self.address.removeprefix("http://").rstrip("/")

    def ask(
        self,
        method: str,
        *path: str,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | None = None,
        if_match: str | None = None,
    ) -> Json:
        """Return the answer; raise Failure with a sentence and an exit code.

        Parameters and fields that are None are left out.

        if_match: the version that the row must have; "0": there must be none
        """
        token = token_of(self.token_file, self.address, is_named=self.is_named)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if if_match is not None:
            headers["If-Match"] = f'"{if_match}"'
        try:
            target = self._target(path, query)
            status, found = self._answer(
                method, target, None if body is None else dict(_given(body)), headers
            )
        except UnicodeEncodeError as error:
            raise _failure(f"{error.object!a} is no UTF-8", ExitCode.USAGE) from error
        if status < 400:
            return found
        message, code = str(found["detail"]), str(found["code"])
        if status == 401 and token is None:
            how = f"a line `{self.address} TOKEN` of --token-file"
            if self.is_named:
                how = f"set {TOKEN_VARIABLE}, or give --token-file FILE"
            message = f"{self.address} wants a token: {how}"
        exit_code = _EXIT_CODES.get(status, ExitCode.REFUSED)
        if status == 503 and code == "store":
            exit_code = ExitCode.DISK
        raise _failure(message, exit_code, _FAILURES.get(status, Failure))

    def _answer(
        self, method: str, target: str, body: Json | None, headers: Mapping[str, str]
    ) -> tuple[int, Json]:
        """Return the HTTP status and the answer; that of a refusal has a `detail` and a `code`.

        Raises Failure without an answer, or if it is not of such a server.
        """
        from delay_transport.seams.runtime import parse_peer_address

        host, port = parse_peer_address(self.address)
        headers = {"Accept": "application/json", **headers}
        data = None if body is None else msgspec.json.encode(body)
        if data is not None:
            headers["Content-Type"] = "application/json"
        # Plain http.client: no proxy from the environment gets between, or to see the token.
        connection = http.client.HTTPConnection(host, port, timeout=self.timeout_s)
        try:
            connection.request(method, target, body=data, headers=headers)
            with connection.getresponse() as response:
                answer = response.read(ANSWER_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Failure(
                f"no {self.what} answers at {self.address}: {error}; is this its http.address?",
                ExitCode.NETWORK,
            ) from error
        finally:
            connection.close()
        try:
            found: Json = msgspec.json.decode(answer, type=dict[str, Any])
            if response.status >= 400:
                # Whoever refuses without a reason is somebody else.
                found["detail"], found["code"]
        except (
            msgspec.DecodeError,
            UnicodeDecodeError,
            RecursionError,
            KeyError,
            TypeError,
        ) as bad:
            if response.status >= _SERVER_FAULT:
                raise Failure(
                    f"the process at {self.address} failed (HTTP {response.status}): see the log "
                    f"of the {self.what}, or of a proxy in front of it",
                    ExitCode.REFUSED,
                ) from bad
            raise Failure(
                f"what answers at {self.address} is no {self.what}: is this its http.address?",
                ExitCode.NETWORK,
            ) from bad
        return response.status, found

    def at_node(self, address: str, *, timeout_s: float) -> "Session":
        """Return a session with a delay server that the meta server of this one names."""
        return replace(
            self,
            address=address,
            prefix="",
            what="delay server",
            timeout_s=timeout_s,
            is_named=False,
        )

    def _target(self, path: Iterable[str], query: Mapping[str, object] | None) -> str:
        target = "/".join([self.prefix, *(quote(part, safe="") for part in path)])
        if given := {name: _text(value) for name, value in _given(query)}:
            target += "?" + urlencode(given)
        if len(target) > _TARGET_CHARACTERS_MAX:
            raise _failure(
                f"the request is too long: {len(target)} characters as an address, which may "
                f"have {_TARGET_CHARACTERS_MAX}; a subject or prefix has at most 2048 bytes",
                ExitCode.USAGE,
            )
        return target

    def change(
        self, *path: str, fields: Mapping[str, object], names: Iterable[str], version: str = ""
    ) -> Json:
        """Change fields of a row, or add it, and return it; Conflict if somebody else changes it.

        names: all fields that are set; those that are not in `fields` stay
        version: the one that it must have; empty: the one that it has now
        """
        try:
            row = self.ask("GET", *path)
        except Missing:
            row = {"version": 0}
        body = {**{name: row[name] for name in names if name in row}, **fields}
        return self.ask("PUT", *path, body=body, if_match=version or str(row["version"]))

    def rows(
        self, *path: str, query: Mapping[str, object], limit: int | None, after_name: str = "after"
    ) -> Iterator[Json]:
        """Yield up to `limit` rows of a list (None: all), page by page.

        after_name: the parameter that gets the `next` of the page before
        """
        after: object = None
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page = self.ask("GET", *path, query={**query, after_name: after, "limit": size})
            yield from page["items"]
            left = None if left is None else left - len(page["items"])
            after = page["next"]
            if after is None:
                return


def token_of(file: Path | None, address: str, *, is_named: bool = True) -> str | None:
    """Return the token for a server that a command names, or a meta server; None if there is none.

    It is that of the file, or of the environment: no argument, which others could see. Raises
    ConfigError for an invalid token.
    """
    tokens = {} if file is None else read_server_tokens(file)
    if not is_named:
        return token_for_node(tokens, address)
    found = token_for_named(tokens, address)
    if found is not None:
        return found
    text = os.environ.get(TOKEN_VARIABLE, "").strip()
    return checked_token(text, TOKEN_VARIABLE) if text else None


def _failure(message: str, code: ExitCode, kind: type[Failure] = Failure) -> Failure:
    from delay_protocol.basics.printable import printable

    return kind(printable(message), code)


def _given(values: Mapping[str, object] | None) -> Iterator[tuple[str, object]]:
    for name, value in (values or {}).items():
        if value is not None:
            yield name, value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
