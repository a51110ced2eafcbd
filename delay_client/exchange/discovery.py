"""Discovery: where a meta server takes connections, asked over HTTP. No I/O.

    GET /meta/address   ->   200, `host:port` as plain text, and a header with the delays of levels

One request on a connection of its own, which the server closes. An answer is read as far as 16 KiB.
"""

import re
from collections.abc import Sequence
from typing import Final

from delay_client.messages.config import parse_server
from delay_protocol.basics.levels import LEVELS_HEADER, parse_levels

ANSWER_BYTES_MAX: Final = 16 * 1024
"""Bytes of an answer, its head included; an address has some twenty."""

_STATUS = re.compile(rb"HTTP/1\.[0-9] (?P<status>[0-9]{3})(?: [^\r\n]*)?\r?\n")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(
    rb"^content-length[ \t]*:[ \t]*(?P<length>[0-9]{1,9})[ \t]*$", re.IGNORECASE | re.MULTILINE
)
_CHUNKED = re.compile(
    rb"^transfer-encoding[ \t]*:[ \t]*chunked[ \t]*$", re.IGNORECASE | re.MULTILINE
)
_LEVELS = re.compile(
    rb"^%s[ \t]*:[ \t]*(?P<levels>[^\n]*)$" % LEVELS_HEADER.encode(), re.IGNORECASE | re.MULTILINE
)
_CHUNK = re.compile(rb"(?P<size>[0-9a-fA-F]{1,6})[^\r\n]*\r\n")
_SHOWN: Final = 60
"""Characters of an answer that an error repeats."""


class DiscoveryError(Exception):
    """The answer has no address of a meta server; `str()` says what it has."""


def address_request(host: str, port: int) -> bytes:
    """Return the request to send to a meta server's HTTP port."""
    shown = f"[{host}]" if ":" in host else host.encode("idna").decode()
    return (
        f"GET /meta/address HTTP/1.1\r\nHost: {shown}:{port}\r\n"
        "Accept: text/plain\r\nConnection: close\r\n\r\n"
    ).encode()


class AddressAnswer:
    """The answer as it comes in."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.levels_ms: Sequence[int] | None = None
        """The delays of levels that a whole answer tells, in ms; None where it tells none."""

    def feed(self, data: bytes) -> tuple[str, int] | None:
        """Take what came in; return host and port once they are there.

        Raises DiscoveryError for what is no such answer.
        """
        self._data += data
        if len(self._data) > ANSWER_BYTES_MAX:
            raise DiscoveryError(f"answered more than {ANSWER_BYTES_MAX} bytes")
        return self._read(is_whole=False)

    def finish(self) -> tuple[str, int]:
        """Return host and port of an answer that the server has ended by closing.

        Raises DiscoveryError.
        """
        if not self._data:
            raise DiscoveryError(
                "closed the connection without an answer: give the address of a meta server's "
                "HTTP port"
            )
        found = self._read(is_whole=True)
        if found is None:
            raise DiscoveryError("closed the connection before its answer was complete")
        return found

    def _read(self, *, is_whole: bool) -> tuple[str, int] | None:
        data = bytes(self._data)
        if data and not b"HTTP/1.".startswith(data[:7]):
            raise DiscoveryError(
                "does not speak HTTP: give the address of a meta server's HTTP port"
            )
        head_end = _HEAD_END.search(data)
        if head_end is None:
            return None
        status = _STATUS.match(data)
        if status is None:
            raise DiscoveryError("does not speak HTTP/1")
        # A head's lines may end in CR LF, which `$` does not see through.
        head, body = data[: head_end.start()].replace(b"\r\n", b"\n"), data[head_end.end() :]
        text = _body(head, body, is_whole=is_whole)
        if text is None:
            return None
        shown = ascii(text[:_SHOWN].decode(errors="replace"))
        if status["status"] != b"200":
            raise DiscoveryError(f"answered HTTP status {status['status'].decode()} ({shown})")
        if (levels := _LEVELS.search(head)) is not None:
            try:
                self.levels_ms = parse_levels(levels["levels"].decode("latin-1").strip())
            except ValueError as error:
                raise DiscoveryError(f"answered with bad {error}") from error
        try:
            return parse_server(text.decode("ascii").strip())
        except ValueError as error:
            raise DiscoveryError(f"answered {shown}, which is not host:port") from error


def _body(head: bytes, body: bytes, *, is_whole: bool) -> bytes | None:
    """Return the body of an answer, None while it is not complete."""
    if _CHUNKED.search(head):
        return _unchunked(body)
    length = _LENGTH.search(head)
    if length is None:
        return body if is_whole else None
    size = int(length["length"])
    return body[:size] if len(body) >= size else None


def _unchunked(body: bytes) -> bytes | None:
    """Return what chunks carry, None while the last one is not there."""
    text = b""
    position = 0
    while chunk := _CHUNK.match(body, position):
        size = int(chunk["size"], 16)
        if not size:
            return text
        text += body[chunk.end() : chunk.end() + size]
        position = chunk.end() + size + 2
    if b"\r\n" in body[position:]:
        raise DiscoveryError("answered with invalid chunks")
    return None
