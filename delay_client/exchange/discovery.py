"""Discovery: where a meta server takes connections, asked over HTTP/1.0. No I/O.

    GET /meta/address   ->   200, `host:port` as plain text, and a header with the delays of levels

One request on a connection of its own. The answer ends where the server closes it, as HTTP/1.0 has
it; it is read as far as 16 KiB.
"""

from collections.abc import Sequence
from typing import Final

from delay_client.messages.config import parse_server
from delay_protocol.basics.levels import LEVELS_HEADER, parse_levels
from delay_protocol.basics.printable import printable

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
        head, body = _parts(self._data)
        status, *lines = head.split(b"\n")
        named = (line.partition(b":") for line in lines)
        fields = {name.lower(): value.strip().decode("latin-1") for name, _, value in named}
        length = fields.get(b"content-length", "")
        size = int(length[:9]) if length.isdecimal() else len(body or b"")
        if body is None or len(body) < size:
            raise DiscoveryError("closed the connection before its answer was complete")
        body = body[:size]
        shown = ascii(body[:_SHOWN].decode(errors="replace"))
        code = b"".join(status.split()[1:2]).decode(errors="replace")
        if code != "200":
            raise DiscoveryError(f"answered HTTP status {printable(code[:20])} ({shown})")
        try:
            if (levels := fields.get(LEVELS_HEADER.lower().encode())) is not None:
                self.levels_ms = parse_levels(levels)
        except ValueError as error:
            raise DiscoveryError(f"answered with bad {error}") from error
        try:
            return parse_server(body.decode("ascii").strip())
        except ValueError as error:
            raise DiscoveryError(f"answered {shown}, which is not host:port") from error


def _parts(data: bytes) -> tuple[bytes, bytes | None]:
    """Return the head, with plain line ends, and the body; None: the head does not end."""
    for end in (b"\r\n", b"\n"):
        head, gap, body = data.partition(end * 2)
        if gap:
            return head.replace(b"\r\n", b"\n"), body
    return data, None
