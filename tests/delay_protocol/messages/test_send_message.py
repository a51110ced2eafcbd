"""A request carries the items as they are; an answer names exactly the items that failed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.codes import ItemCode
from delay_protocol.basics.errors import LocalProtocolError, MalformedReplyError
from delay_protocol.messages.send_message import (
    decode_send_reply,
    encode_send_reply,
    encode_send_request_body,
)
from delay_protocol.wire.frames import Frame, encode_response

i32 = st.integers(-(2**31), 2**31 - 1)
results = st.lists(st.tuples(st.binary(max_size=12), i32, st.text(max_size=12)), max_size=5)


def test_an_answer_of_read_only_is_the_vector() -> None:
    body = encode_send_reply([(b"m1", ItemCode.BROKER_READ_ONLY, "BROKER_READ_ONLY")])
    answer = encode_response(Frame(10, 9, 7, 0, 10, b"any"), code=0, body=body)
    assert answer == bytes.fromhex(
        "0000002e 0012 dec10ade 0000 0009 00000007 00000001 000a"
        "00026d31 00000004 0010 42524f4b45525f524541445f4f4e4c59"
    )
    assert decode_send_reply(body) == {b"m1": (4, "BROKER_READ_ONLY")}


def test_an_empty_answer_says_that_all_succeeded() -> None:
    assert encode_send_reply([]) == b""
    assert decode_send_reply(b"") == {}


@given(results.filter(bool))
def test_no_more_results_are_read_than_there_may_be(failures: list[tuple[bytes, int, str]]) -> None:
    body = encode_send_reply(failures)
    count = len(failures)
    assert decode_send_reply(body, results_max=count) == decode_send_reply(body)
    with pytest.raises(
        MalformedReplyError, match=f"more results than the {count} items"
    ) as refused:
        decode_send_reply(body + b"\xff", results_max=count)
    assert refused.value.offset == len(body)


def test_a_remark_that_is_not_utf_8_does_not_spoil_the_answer() -> None:
    body = bytes.fromhex("00026d31 00000006 0002 41ff 00026d32 00000003 0000")
    assert decode_send_reply(body) == {b"m1": (6, "A\ufffd"), b"m2": (3, "")}


def test_an_id_is_taken_as_bytes_whatever_they_are() -> None:
    body = encode_send_reply([(b"\xff\x00", 5, "blocked")])
    assert decode_send_reply(body) == {b"\xff\x00": (5, "blocked")}


@pytest.mark.parametrize(
    "failure",
    [(b"m" * 32_768, 5, ""), (b"m", 2**31, ""), (b"m", 5, "\u00e9" * 16_384), (b"m", 5, "\ud800")],
)
def test_a_result_that_does_not_fit_is_the_callers_error(failure: tuple[bytes, int, str]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_send_reply([failure])


def test_a_request_is_its_items_byte_for_byte_and_can_be_built_again_for_each_try() -> None:
    items: list[bytes | memoryview] = [b"first", memoryview(b"second"), b"third"]
    for _ in range(2):
        assert encode_send_request_body(items) == b"firstsecondthird"


@pytest.mark.parametrize("items", [[], [b""], [memoryview(b"")]])
def test_a_request_without_items_is_never_sent_for_a_retry(items: list[bytes]) -> None:
    # Every broker answers it with success, and the messages it should have carried are lost.
    with pytest.raises(LocalProtocolError):
        encode_send_request_body(items)
