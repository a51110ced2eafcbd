"""What is sealed proves who said it, on this connection, in this direction, and not before."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.nodes import auth

SECRET = b"a secret of thirty-two bytes ..."
NODE, META = bytes(range(32)), bytes(range(32, 64))
KEY = auth.session_key(SECRET, node_nonce=NODE, meta_nonce=META)
REQUEST, ANSWER = auth.Direction.REQUEST, auth.Direction.ANSWER


def test_the_bytes_are_pinned() -> None:
    assert KEY.hex() == "10360f375951746dadc023d1a00a3dd6a27217367a11548945496b42a02fd074"
    sealed = auth.seal(KEY, REQUEST, 1010, 7, b"body")
    assert sealed[:32].hex() == ("42938a95a6280541552bbd6a0605f841f1adb3665c2496ee7db3cc76256ac10b")
    assert sealed[32:] == bytes([0, 0, 0, 0, 0, 0, 0, 7]) + b"body"
    assert auth.encode_challenge(auth.Challenge(nonce=NODE)) == b"\x81\xa5nonce\xc4\x20" + NODE


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1), st.sampled_from(auth.Direction))
def test_what_is_sealed_is_unsealed(body: bytes, number: int, direction: auth.Direction) -> None:
    sealed = auth.seal(KEY, direction, 1010, number, body)
    assert len(sealed) == auth.SEAL_SIZE + len(body)
    other = auth.session_key(SECRET + b"!", node_nonce=NODE, meta_nonce=META)
    for keys in ([KEY], [other, KEY], [KEY, other]):
        assert auth.unseal(keys, direction, 1010, sealed) == (KEY, number, body)
    for keys in ([], [other]):
        assert auth.unseal(keys, direction, 1010, sealed) is None


@given(st.data())
def test_one_bit_makes_it_worthless(data: st.DataObject) -> None:
    sealed = bytearray(auth.seal(KEY, REQUEST, 1010, 1, b"a body"))
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    assert auth.unseal([KEY], REQUEST, 1010, bytes(sealed)) is None


def test_it_is_worthless_elsewhere() -> None:
    sealed = auth.seal(KEY, REQUEST, 1010, 1, b"body")
    assert auth.unseal([KEY], ANSWER, 1010, sealed) is None
    assert auth.unseal([KEY], REQUEST, 1012, sealed) is None
    for node, meta in ((META, NODE), (NODE, NODE), (META, META)):
        key = auth.session_key(SECRET, node_nonce=node, meta_nonce=meta)
        assert auth.unseal([key], REQUEST, 1010, sealed) is None
    for size in range(len(sealed)):
        assert auth.unseal([KEY], REQUEST, 1010, sealed[:size]) is None


@pytest.mark.parametrize("size", [0, auth.NONCE_SIZE - 1, auth.NONCE_SIZE + 1])
def test_a_nonce_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(LocalProtocolError):
        auth.encode_challenge(auth.Challenge(nonce=bytes(size)))
    with pytest.raises(MalformedMetaError):
        auth.decode_challenge(msgspec.msgpack.encode({"nonce": bytes(size)}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        auth.encode_challenge(auth.Challenge(nonce=NODE))[:-1],
        auth.encode_challenge(auth.Challenge(nonce=NODE)) + bytes(1),
        b"\x81\xa1x" + b"\x91" * 200,
        bytes(1 << 20),
    ],
)
def test_a_challenge_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedMetaError):
        auth.decode_challenge(body)
