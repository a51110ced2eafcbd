"""A string is a signed size and UTF-8; what is neither is the error that the caller named."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.errors import LocalProtocolError, MalformedItemError, MalformedMetaError
from delay_protocol.basics.strings import STR_SIZE_MAX, decode_str, decode_str_bytes, encode_str


@given(st.text(), st.binary(max_size=5), st.binary(max_size=5))
def test_a_string_is_found_where_it_stands(text: str, before: bytes, after: bytes) -> None:
    data = before + encode_str(text) + after
    end = len(data) - len(after)
    assert decode_str(data, len(before), error=MalformedMetaError) == (text, end)
    raw = (text.encode(), end)
    assert decode_str_bytes(data, len(before), error=MalformedMetaError) == raw


def test_the_longest_string_is_the_longest_that_a_signed_size_can_tell() -> None:
    assert encode_str("x" * STR_SIZE_MAX)[:2] == b"\x7f\xff"
    with pytest.raises(LocalProtocolError, match="32768 bytes"):
        encode_str("é" * 16_384)


def test_a_size_above_32767_is_negative_unless_it_is_read_as_unsigned() -> None:
    data = b"\x80\x00" + b"x" * 32_768
    assert decode_str(data, 0, error=MalformedItemError, unsigned=True) == ("x" * 32_768, 32_770)
    with pytest.raises(MalformedItemError, match="string of -32768 bytes"):
        decode_str(data, 0, error=MalformedItemError)


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\x01", b"\0\x02x", b"\xff\xff" + b"x" * 65_535])
@pytest.mark.parametrize("decode", [decode_str, decode_str_bytes])
def test_a_string_that_does_not_fit_is_the_callers_kind_of_error(
    data: bytes, decode: Callable[..., object]
) -> None:
    for error in (MalformedItemError, MalformedMetaError):
        with pytest.raises(error):
            decode(data, 0, error=error)


def test_bytes_that_are_no_text_are_refused_where_text_is_asked_for() -> None:
    data = b"\0\x02a\xff"
    assert decode_str_bytes(data, 0, error=MalformedMetaError) == (b"a\xff", 4)
    with pytest.raises(MalformedMetaError, match="string at 0"):
        decode_str(data, 0, error=MalformedMetaError)
