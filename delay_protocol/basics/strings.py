"""Strings as QMQ writes them: an i16 size, then so many bytes of UTF-8.

Java's ordinary reader takes the size as signed, so 32,767 bytes are the most that every reader can
read; a Java writer casts the size of a longer string without a check, and what it meant is lost.
"""

import struct
from collections.abc import Callable
from typing import Final

from delay_protocol.basics.errors import BodyError, LocalProtocolError

STR_SIZE_MAX: Final = 32767
"""The longest string every Java reader can read, in bytes."""

_SIZE = struct.Struct(">h")
_UNSIGNED_SIZE = struct.Struct(">H")


def encode_str(text: str) -> bytes:
    """Return a string with its size before it; raise LocalProtocolError where it does not fit."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"not encodable as UTF-8: {error}") from error
    if len(data) > STR_SIZE_MAX:
        raise LocalProtocolError(f"string of {len(data)} bytes, at most {STR_SIZE_MAX}")
    return _SIZE.pack(len(data)) + data


def decode_str(
    data: bytes, position: int, *, error: Callable[[str], BodyError], unsigned: bool = False
) -> tuple[str, int]:
    """Return the string at a position and the position after it; raise `error(reason)`.

    A string that is not UTF-8 is an error as well: Java would put a mark where it cannot read, so
    that two names could become one.
    """
    raw, end = decode_str_bytes(data, position, error=error, unsigned=unsigned)
    try:
        return raw.decode(), end
    except UnicodeDecodeError as fault:
        raise error(f"string at {position}: {fault}") from fault


def decode_str_bytes(
    data: bytes, position: int, *, error: Callable[[str], BodyError], unsigned: bool = False
) -> tuple[bytes, int]:
    """Return the bytes of the string at a position, whatever they are, and the position after."""
    start = position + 2
    if start > len(data):
        raise error(f"no room for a string's size at {position} of {len(data)}")
    (size,) = (_UNSIGNED_SIZE if unsigned else _SIZE).unpack_from(data, position)
    end = start + size
    if size < 0 or end > len(data):
        raise error(f"string of {size} bytes at {start} of {len(data)}")
    return data[start:end], end
