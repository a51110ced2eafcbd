"""Discovery: where a meta server takes connections, asked over HTTP/1.0. No I/O.

    GET /meta/address   ->   200, `host:port` as plain text, and a header with the delays of levels

One request on a connection of its own. The answer ends where the server closes it, as HTTP/1.0 has
it; it is read as far as 16 KiB.
"""

import http.client
import io
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

from delay_client.messages.config import parse_server
from delay_protocol.basics.levels import LEVELS_HEADER, parse_levels

ANSWER_BYTES_MAX: Final = 16 * 1024
"""Bytes of an answer, its head included; an address has some twenty."""

_SHOWN: Final = 60
"""Characters of an answer that an error repeats."""


class DiscoveryError(Exception):
    """The answer has no address of a meta server; `str()` says what it has."""


def address_request(host: str, port: int) -> bytes:
    """Return the request to send to a meta server's HTTP port."""
    shown = f"[{host}]" if ":" in host else host.encode("idna").decode()
    return (
        f"GET /meta/address HTTP/1.0\r\nHost: {shown}:{port}\r\n"
        "Accept: text/plain\r\nConnection: close\r\n\r\n"
    ).encode()


class AddressAnswer:
    """The answer as it comes in."""

    def __init__(self) -> None:
        self._data = b""
        self.levels_ms: Sequence[int] | None = None
        """The delays of levels that the answer tells, in ms; None where it tells none."""

    def feed(self, data: bytes) -> None:
        """Take what came in; raise DiscoveryError for what is no such answer."""
        self._data += data
        if len(self._data) > ANSWER_BYTES_MAX:
            raise DiscoveryError(f"answered more than {ANSWER_BYTES_MAX} bytes")
        if not b"HTTP/1.".startswith(self._data[:7]):
            raise DiscoveryError(
                "does not speak HTTP: give the address of a meta server's HTTP port"
            )

    def finish(self) -> tuple[str, int]:
        """Return host and port, once the server has closed the connection.

        Raises DiscoveryError.
        """
        if not self._data:
            raise DiscoveryError(
                "closed the connection without an answer: give the address of a meta server's "
                "HTTP port"
            )
        # What http.client reads from, in place of a socket.
        received: Any = SimpleNamespace(makefile=lambda _: io.BytesIO(self._data))
        answer = http.client.HTTPResponse(received)
        try:
            answer.begin()
            body = answer.read()
        except http.client.HTTPException as error:
            raise DiscoveryError("closed the connection before its answer was complete") from error
        shown = ascii(body[:_SHOWN].decode(errors="replace"))
        if answer.status != http.HTTPStatus.OK:
            raise DiscoveryError(f"answered HTTP status {answer.status} ({shown})")
        try:
            if (levels := answer.getheader(LEVELS_HEADER)) is not None:
                self.levels_ms = parse_levels(levels.strip(" \t"))
        except ValueError as error:
            raise DiscoveryError(f"answered with bad {error}") from error
        try:
            return parse_server(body.decode("ascii").strip())
        except ValueError as error:
            raise DiscoveryError(f"answered {shown}, which is not host:port") from error
