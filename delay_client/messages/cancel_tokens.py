"""Tokens by which a message is cancelled or moved: text for a database or a link. No secrets.

    u8 version   u32 cluster   i64 due_ms   u16 size   subject   message id   u32 CRC

Numbers are big-endian, the whole is base64url without padding. `cluster` is the hash of its name, 0
if that is not known. Each version has the CRC at its end: it finds what was cut or mistyped. Who
can send can make a token.
"""

import base64
import binascii
import hashlib
import struct
import zlib
from typing import Final, NamedTuple

from delay_client.messages.errors import InvalidToken
from delay_protocol.nodes.registration import COUNTED_MAX

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BIqH")
_CRC: Final = struct.Struct(">I")


class Place(NamedTuple):
    """The place of a message, as a token says it."""

    cluster: int
    """Hash of the cluster's name; 0: not known."""
    due_ms: int | None
    """When it is due, in ms since 1970; None: not known, which no token says."""
    subject: str
    message_id: str


def cluster_hash(name: str) -> int:
    """Return four bytes that stand for a cluster; 0 for no name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest()) if name else 0


def encode_token(place: Place) -> str:
    """Return the token of a message, whose due time is known."""
    subject = place.subject.encode()
    data = _HEAD.pack(_VERSION, place.cluster, place.due_ms, len(subject))
    data += subject + place.message_id.encode()
    return base64.urlsafe_b64encode(data + _CRC.pack(zlib.crc32(data))).decode().rstrip("=")


def decode_token(token: str) -> Place:
    """Return what a token says; raise InvalidToken."""
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    covered, crc = data[: -_CRC.size], data[-_CRC.size :]
    if len(covered) < _HEAD.size or crc != _CRC.pack(zlib.crc32(covered)):
        raise InvalidToken(
            f"{token[:20]!a} is no cancel token, or not all of one: copy a receipt's as it was made"
        )
    version, cluster, due_ms, size = _HEAD.unpack_from(covered)
    if version != _VERSION:
        raise InvalidToken(
            f"a cancel token of version {version}, and this client knows {_VERSION}: give subject, "
            "id and time, or use a client of the version that made it"
        )
    if not 0 <= due_ms <= COUNTED_MAX:
        raise InvalidToken("the cancel token has a due time that no message has: make a new one")
    names = covered[_HEAD.size :]
    try:
        return Place(cluster, due_ms, names[:size].decode(), names[size:].decode())
    except UnicodeDecodeError as error:
        raise InvalidToken("the cancel token has names that are no text: make a new one") from error
