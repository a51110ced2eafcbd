"""Promise: a token says where a message is; what is none of ours is refused with a sentence."""

import base64
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_client import FatalError, InvalidToken, Receipt
from delay_client.messages.cancel_tokens import (
    Place,
    cluster_hash,
    decode_token,
    encode_token,
)

NAMES = st.text(st.characters(codec="utf-8"), max_size=100)
PLACE = Place(cluster_hash("delaywheel"), 1_700_000_000_000, "fee.due", "fee-2026-12-17")


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**53), NAMES, NAMES)
def test_a_token_says_what_it_was_made_of(
    cluster: int, due_ms: int, subject: str, name: str
) -> None:
    place = Place(cluster, due_ms, subject, name)
    token = encode_token(place)
    assert decode_token(token) == place
    assert token.replace("-", "").replace("_", "").isalnum()


def test_the_bytes_of_a_token_do_not_change() -> None:
    assert cluster_hash("") == 0
    assert encode_token(PLACE) == "AZXt3rAAAAGLz-VoAAAHZmVlLmR1ZWZlZS0yMDI2LTEyLTE3X9Ad5w"
    receipt = Receipt(PLACE.message_id, 1_700_000_000_000, "a:1", 1, subject="fee.due")
    assert decode_token(receipt.cancel_token) == PLACE._replace(cluster=0)


def test_a_token_that_was_cut_or_changed_is_refused() -> None:
    token = encode_token(PLACE)
    chance = random.Random(1)
    for length in range(len(token)):
        with pytest.raises(InvalidToken):
            decode_token(token[:length])
    for _ in range(500):
        at = chance.randrange(2, len(token) - 1)
        other = chance.choice("ABCDEFabcdef0123456789-_")
        if other != token[at]:
            with pytest.raises(InvalidToken, match="or not all of one"):
                decode_token(token[:at] + other + token[at + 1 :])


def signed(data: bytes) -> str:
    return base64.urlsafe_b64encode(data + zlib.crc32(data).to_bytes(4)).decode().rstrip("=")


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("", "is no cancel token"),
        ("fee-2026-12-17", "is no cancel token"),
        ("what is this?", "is no cancel token"),
        ("ü" * 30, "is no cancel token"),
        (signed(b"\x02" + bytes(30)), "of version 2, and this client knows 1"),
        (signed(b"\x01" + bytes(10)), "is no cancel token"),
        (signed(b"\x01" + bytes(12) + b"\0\x01\xff" + b"m"), "names that are no text"),
        (signed(b"\x01" + bytes(4) + b"\x7f" + bytes(8) + b"\x01sm"), "due time that no message"),
        (signed(b"\x01" + bytes(4) + b"\xff" * 8 + b"\0\x01sm"), "due time that no message"),
    ],
)
def test_what_is_no_token_is_refused_and_the_error_says_why(token: str, said: str) -> None:
    with pytest.raises(InvalidToken, match=said) as caught:
        decode_token(token)
    assert isinstance(caught.value, FatalError)
