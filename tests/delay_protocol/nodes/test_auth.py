"""What is sealed proves who said it, on this connection, in this direction, and not before."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.nodes.auth import (
    NONCE_SIZE,
    SEAL_SIZE,
    Challenge,
    Direction,
    decode_challenge,
    encode_challenge,
    seal,
    session_key,
    unseal,
)

SECRET = b"a secret of thirty-two bytes ..."
NODE, META = bytes(range(32)), bytes(range(32, 64))
KEY = session_key(SECRET, node_nonce=NODE, meta_nonce=META)
REQUEST, ANSWER = Direction.REQUEST, Direction.ANSWER


def test_the_bytes_are_pinned() -> None:
    assert KEY.hex() == "10360f375951746dadc023d1a00a3dd6a27217367a11548945496b42a02fd074"
    sealed = seal(KEY, REQUEST, 1010, 7, b"body")
    assert sealed[:32].hex() == ("42938a95a6280541552bbd6a0605f841f1adb3665c2496ee7db3cc76256ac10b")
    assert sealed[32:] == bytes([0, 0, 0, 0, 0, 0, 0, 7]) + b"body"
    assert encode_challenge(Challenge(nonce=NODE)) == b"\x81\xa5nonce\xc4\x20" + NODE


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1), st.sampled_from(Direction))
def test_what_is_sealed_is_unsealed(body: bytes, number: int, direction: Direction) -> None:
    sealed = seal(KEY, direction, 1010, number, body)
    assert len(sealed) == SEAL_SIZE + len(body)
    other = session_key(SECRET + b"!", node_nonce=NODE, meta_nonce=META)
    for keys in ([KEY], [other, KEY], [KEY, other]):
        assert unseal(keys, direction, 1010, sealed) == (KEY, number, body)
    for keys in ([], [other]):
        assert unseal(keys, direction, 1010, sealed) is None


@given(st.data())
def test_one_bit_makes_it_worthless(data: st.DataObject) -> None:
    sealed = bytearray(seal(KEY, REQUEST, 1010, 1, b"a body"))
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    assert unseal([KEY], REQUEST, 1010, bytes(sealed)) is None


def test_it_is_worthless_elsewhere() -> None:
    sealed = seal(KEY, REQUEST, 1010, 1, b"body")
    assert unseal([KEY], ANSWER, 1010, sealed) is None
    assert unseal([KEY], REQUEST, 1012, sealed) is None
    for node, meta in ((META, NODE), (NODE, NODE), (META, META)):
        key = session_key(SECRET, node_nonce=node, meta_nonce=meta)
        assert unseal([key], REQUEST, 1010, sealed) is None
    for size in range(len(sealed)):
        assert unseal([KEY], REQUEST, 1010, sealed[:size]) is None


@pytest.mark.parametrize("size", [0, NONCE_SIZE - 1, NONCE_SIZE + 1])
def test_a_nonce_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(LocalProtocolError):
        encode_challenge(Challenge(nonce=bytes(size)))
    with pytest.raises(MalformedMetaError):
        decode_challenge(msgspec.msgpack.encode({"nonce": bytes(size)}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        encode_challenge(Challenge(nonce=NODE))[:-1],
        encode_challenge(Challenge(nonce=NODE)) + bytes(1),
        b"\x81\xa1x" + b"\x91" * 200,
        bytes(1 << 20),
    ],
)
def test_a_challenge_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedMetaError):
        decode_challenge(body)
