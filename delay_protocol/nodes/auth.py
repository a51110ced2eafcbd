"""Proof that a delay server and its meta server have the same secret, for each request of ours.

    node                                                meta server
    NODE_CHALLENGE {nonce: 32 random bytes}  ------->
                                             <-------   {nonce: 32 random bytes}
    NODE_REGISTER  sealed(number 1, body)    ------->
                                             <-------   sealed(number 1, answer)
    NODE_REGISTER  sealed(number 2, body)    ------->   …

    a sealed body:  MAC (32 bytes) | number (u64, big-endian) | body as it is without a secret
    key = HMAC-SHA256(secret, "delaywheel node 1" NUL nonce of the node, nonce of the meta server)
    MAC = HMAC-SHA256(key, "Q" or "A" | code of the request (u32) | number (u64) | body)

The two nonces make a recording worthless on any other connection, whoever plays it; numbers that
only rise make it worthless on its own. "Q" is a request, "A" an answer: so neither passes for the
other. Nothing is encrypted: who listens learns what is said, but cannot say it.
"""

import base64
import hashlib
import hmac
import struct
from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Final

import msgspec

from delay_protocol.nodes.packed import pack, unpack

NONCE_SIZE: Final = 32
"""Bytes that each side draws at random for a connection."""
SEAL_SIZE: Final = 40
"""Bytes that a sealed body has before its body."""

_CONTEXT: Final = b"delaywheel node 1\0"
_RECEIVER_CONTEXT: Final = b"delaywheel receiver 1\0"
_NUMBER: Final = struct.Struct(">Q")
_SAID: Final = struct.Struct(">cIQ")
_MAC_SIZE: Final = SEAL_SIZE - _NUMBER.size
_CHALLENGE_BYTES_MAX: Final = 256

Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_SIZE, max_length=NONCE_SIZE)]


class Challenge(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The body of NODE_CHALLENGE, and of its answer: what one side draws for this connection."""

    nonce: Nonce


class Direction(Enum):
    """Who says it."""

    REQUEST = b"Q"
    ANSWER = b"A"


_CHALLENGE_DECODER = msgspec.msgpack.Decoder(Challenge)


def receiver_token(secret: bytes, name: str) -> str:
    """Return the token of receivers of a name: whoever has it may receive under this name.

    It follows from the secret, so it is kept nowhere, and goes when the secret does.
    """
    digest = hmac.digest(secret, _RECEIVER_CONTEXT + name.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def encode_challenge(challenge: Challenge) -> bytes:
    """Return the body of a NODE_CHALLENGE or of its answer; raise LocalProtocolError."""
    return pack(_CHALLENGE_DECODER, challenge, _CHALLENGE_BYTES_MAX)


def decode_challenge(body: bytes) -> Challenge:
    """Return what a NODE_CHALLENGE or its answer says; raise MalformedMetaError."""
    return unpack(_CHALLENGE_DECODER, body, _CHALLENGE_BYTES_MAX)


def session_key(secret: bytes, *, node_nonce: bytes, meta_nonce: bytes) -> bytes:
    """Return the key of one connection, for the two nonces that were drawn for it."""
    return hmac.digest(secret, _CONTEXT + node_nonce + meta_nonce, hashlib.sha256)


def seal(key: bytes, direction: Direction, code: int, number: int, body: bytes) -> bytes:
    """Return a body that proves that whoever says it has the key."""
    return _mac(key, direction, code, number, body) + _NUMBER.pack(number) + body


def unseal(
    keys: Iterable[bytes], direction: Direction, code: int, sealed: bytes
) -> tuple[bytes, int, bytes] | None:
    """Return key, number and body of what was sealed with one of the keys, else None.

    How long it takes does not tell how near a wrong one came, nor which of the keys was right.
    """
    if len(sealed) < SEAL_SIZE:
        return None
    mac, body = sealed[:_MAC_SIZE], sealed[SEAL_SIZE:]
    (number,) = _NUMBER.unpack_from(sealed, _MAC_SIZE)
    found = None
    for key in keys:
        if hmac.compare_digest(mac, _mac(key, direction, code, number, body)):
            found = key
    return None if found is None else (found, number, body)


def _mac(key: bytes, direction: Direction, code: int, number: int, body: bytes) -> bytes:
    return hmac.digest(key, _SAID.pack(direction.value, code, number) + body, hashlib.sha256)
