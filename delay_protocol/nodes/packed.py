"""Bodies that are one msgpack map: bounded, checked, keys skipped that a reader does not know."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError

T = TypeVar("T")


def pack(decoder: msgspec.msgpack.Decoder[T], said: T, bytes_max: int) -> bytes:
    """Return the body; raise LocalProtocolError for what `unpack` would not take.

    Reading it back is what finds a name that is too long, or a count below zero.
    """
    try:
        body = msgspec.msgpack.encode(said)
        unpack(decoder, body, bytes_max)
    except (MalformedMetaError, UnicodeEncodeError, OverflowError) as error:
        # Not `said` itself: there may be a token in it.
        raise LocalProtocolError(f"{type(said).__name__} is not encodable: {error}") from error
    return body


def unpack(decoder: msgspec.msgpack.Decoder[T], body: bytes, bytes_max: int) -> T:
    """Return what a body says; raise MalformedMetaError."""
    if len(body) > bytes_max:
        raise MalformedMetaError(f"a body of {len(body)} bytes, at most {bytes_max}")
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # The last of keys that would be skipped, but are nested too deeply for that.
        raise MalformedMetaError(str(error)) from error


def codec_of(
    decoder: msgspec.msgpack.Decoder[T], bytes_max: int
) -> tuple[Callable[[T], bytes], Callable[[bytes], T]]:
    """Return what writes bodies of one kind, and what reads them.

    The one raises LocalProtocolError for what does not fit, the other MalformedMetaError.
    """
    return (
        lambda said: pack(decoder, said, bytes_max),
        lambda body: unpack(decoder, body, bytes_max),
    )
