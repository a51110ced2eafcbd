"""Promise: the client's own encoder writes what delay_protocol writes, or says why it cannot."""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_client import (
    DelayTooLong,
    FatalError,
    IllegalSubject,
    InvalidMessage,
    MessageTooLarge,
    OutgoingItem,
    OutgoingMessage,
)
from delay_client.messages.envelope import decode_envelope
from delay_client.messages.item_encoder import ItemChecker, ItemEncoder
from delay_client.messages.message import Body
from delay_client.messages.message_ids import MessageIdMaker
from delay_protocol.basics.subjects import subject_fault
from delay_protocol.messages.items import (
    FLAG_DELAY,
    FLAG_TAGS,
    Item,
    decode_item,
    encode_item,
    item_crc_ok,
)

NOW_MS = 1_700_000_000_000
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)


def new_encoder(item_bytes_max: int = 1 << 20) -> ItemEncoder:
    return ItemEncoder(ids=MessageIdMaker(random.Random(1)), item_bytes_max=item_bytes_max)


def encode(message: OutgoingMessage) -> bytes:
    return new_encoder().encode(message, NOW_MS)[0]


@given(
    subject=TEXT.filter(lambda text: subject_fault(text.encode()) is None),
    body=st.one_of(TEXT, st.dictionaries(TEXT, TEXT, max_size=5)),
    delay_ms=st.integers(0, 10**11) | st.integers(0, 10**13),
    message_id=TEXT.filter(bool),
    tags=st.lists(TEXT, max_size=10).map(tuple),
)
def test_an_item_is_the_one_that_delay_protocol_would_write(
    subject: str, body: Body, delay_ms: int, message_id: str, tags: tuple[str, ...]
) -> None:
    due_ms = NOW_MS + delay_ms
    attributes = body if isinstance(body, dict) else {"body": str(body)}
    expected = Item(
        FLAG_DELAY | (FLAG_TAGS if tags else 0),
        NOW_MS,
        due_ms,
        subject,
        message_id,
        tags,
        {"qmq_createTime": str(NOW_MS), "qmq_scheduleReceiveTime": str(due_ms), **attributes},
    )
    message = OutgoingMessage(
        subject, body, timedelta(milliseconds=delay_ms), None, message_id, tags
    )
    item, encoded_id, encoded_due_ms = new_encoder().encode(message, NOW_MS)
    assert item == encode_item(expected)
    assert (encoded_id, encoded_due_ms) == (message_id, due_ms)
    assert item_crc_ok(item)


def test_a_new_clock_reading_is_a_new_create_time() -> None:
    encoder = new_encoder()
    for now_ms in (NOW_MS, NOW_MS, NOW_MS + 1, NOW_MS):
        item = decode_item(encoder.encode(OutgoingMessage("s", delay=1), now_ms)[0])
        assert item.create_ms == now_ms
        assert item.attributes["qmq_createTime"] == str(now_ms)


def test_a_body_in_bytes_is_utf8_text() -> None:
    assert encode(OutgoingMessage("s", b"na\xc3\xafve", 1, None, "m")) == encode(
        OutgoingMessage("s", "naïve", 1, None, "m")
    )


@pytest.mark.parametrize(
    ("delay", "delay_ms"),
    [
        (0, 0),
        (0.0, 0),
        (1, 1000),
        (0.0005, 1),
        (4.03, 4030),
        (8.05, 8050),
        (timedelta(microseconds=1), 1),
        (timedelta(days=700), 700 * 86_400_000),
    ],
)
def test_a_delay_is_in_seconds_and_rounded_up_to_a_ms(delay: float, delay_ms: int) -> None:
    assert new_encoder().encode(OutgoingMessage("s", "", delay), NOW_MS)[2] == NOW_MS + delay_ms


@pytest.mark.parametrize(
    ("at", "due_ms"),
    [
        (datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC), NOW_MS + 1),
        (datetime(2023, 11, 15, 0, 13, 20, tzinfo=timezone(timedelta(hours=2))), NOW_MS),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        # The wire knows nothing earlier.
        (datetime(1969, 12, 31, tzinfo=UTC), 0),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), 0),
    ],
)
def test_a_moment_is_that_of_its_time_zone_even_in_the_past(at: datetime, due_ms: int) -> None:
    assert new_encoder().encode(OutgoingMessage("s", at=at), NOW_MS)[2] == due_ms


NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 (what is to be refused)


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"at": NAIVE}, InvalidMessage, "no time zone"),
        ({"at": NAIVE.replace(tzinfo=UTC), "delay": 1}, InvalidMessage, "either delay= or at="),
        ({}, InvalidMessage, "either delay= or at="),
        ({"at": "tomorrow"}, InvalidMessage, "not a datetime"),
        ({"delay": -1}, InvalidMessage, "negative"),
        ({"delay": -0.01}, InvalidMessage, "negative"),
        ({"delay": timedelta(days=-1)}, InvalidMessage, "negative"),
        ({"delay": float("nan")}, InvalidMessage, "neither a timedelta"),
        ({"delay": float("inf")}, InvalidMessage, "neither a timedelta"),
        ({"delay": "30m"}, InvalidMessage, "neither a timedelta"),
        ({"delay": 1e12}, DelayTooLong, "9999"),
        ({"delay": 1, "subject": ""}, IllegalSubject, "empty"),
        ({"delay": 1, "subject": "a/b"}, IllegalSubject, "choose another"),
        ({"delay": 1, "subject": "x" * 101}, IllegalSubject, "at most 100"),
        ({"delay": 1, "subject": "\U0001f680" * 64}, IllegalSubject, "256 bytes, at most 255"),
        ({"delay": 1, "subject": 7}, InvalidMessage, "must be text"),
        ({"delay": 1, "subject": "\ud800"}, InvalidMessage, "Unicode"),
        ({"delay": 1, "message_id": ""}, InvalidMessage, "1 to 100"),
        ({"delay": 1, "message_id": "x" * 101}, InvalidMessage, "1 to 100"),
        ({"delay": 1, "message_id": 7}, InvalidMessage, "must be text"),
        ({"delay": 1, "tags": "t1"}, InvalidMessage, "tuple"),
        ({"delay": 1, "tags": ["t"] * 11}, InvalidMessage, "at most 10"),
        ({"delay": 1, "body": b"\xff" * (1 << 20)}, MessageTooLarge, "about 716 KiB of them fit"),
        ({"delay": 1, "headers": {"A": "1", "a": "2"}}, InvalidMessage, "two headers named 'a'"),
        ({"delay": 1, "headers": {"": "1"}}, InvalidMessage, "without a name"),
        ({"delay": 1, "headers": {7: "1"}}, InvalidMessage, "name of a header is text"),
        ({"delay": 1, "headers": {"a": 7}}, InvalidMessage, "must be text, not int"),
        ({"delay": 1, "headers": {"a": "x" * 32768}}, MessageTooLarge, "32767"),
        ({"delay": 1, "body": 7}, InvalidMessage, "mapping"),
        ({"delay": 1, "body": {"n": 7}}, InvalidMessage, "must be text, not int"),
        ({"delay": 1, "body": {"qmq_createTime": "1"}}, InvalidMessage, "set by the client"),
        ({"delay": 1, "body": "\ud800"}, InvalidMessage, "Unicode"),
        ({"delay": 1, "body": "x" * 40000 + "\ud800"}, InvalidMessage, "Unicode"),
        ({"delay": 1, "body": {"k": "x" * 32768}}, MessageTooLarge, "32767"),
        ({"delay": 1, "body": {str(n): "x" * 32767 for n in range(33)}}, MessageTooLarge, "limit"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_advice(
    fields: dict[str, Any], error: type[FatalError], said: str
) -> None:
    message = OutgoingMessage(**{"subject": "s", "message_id": "m1", **fields})
    with pytest.raises(error, match=said) as caught:
        encode(message)
    assert caught.value.message_id == message.message_id
    assert caught.value.attempts == 0


def test_the_largest_text_travels_whole() -> None:
    item = decode_item(encode(OutgoingMessage("s", "x" * 32767, 1)))
    assert len(item.attributes["body"]) == 32767


@pytest.mark.parametrize("body", ["ü" * 100_000, b"\xff" * 700_000])
def test_a_larger_body_travels_in_parts_with_its_headers_behind_it(body: str | bytes) -> None:
    message = OutgoingMessage("s", body, 1, headers={"Trace-Id": "7"}, content_type="a/b")
    attributes = decode_item(encode(message)).attributes
    assert "body" not in attributes
    assert decode_envelope(attributes) == (body, {"trace-id": "7"}, "a/b")


def test_a_mapping_has_headers_beside_its_attributes() -> None:
    item = decode_item(encode(OutgoingMessage("s", {"k": "v"}, 1, headers={"A": "1"})))
    assert dict(item.attributes) | {"k": "v", "h:a": "1"} == item.attributes


def test_a_refused_message_is_also_a_value_error() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        encode(OutgoingMessage("s", at=NAIVE))


def test_more_subjects_than_are_kept_are_still_right() -> None:
    encoder = new_encoder()
    for number in [*range(10_050), 0, 3]:
        item, _, _ = encoder.encode(OutgoingMessage(f"s{number}", "", 1.0), NOW_MS)
        assert f"s{number}".encode() in item


def test_an_item_that_is_whole_goes_through_as_it_is() -> None:
    item = encode(OutgoingMessage("a.b", {"k": "v"}, delay=7, message_id="m", tags=("t",)))
    assert ItemChecker().encode(OutgoingItem("a.b", item), 0) == (item, "m", NOW_MS + 7000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda item: item[:-1], "not one item"),
        (lambda item: item + b"x", "not one item"),
        (lambda item: item + item, "not one item"),
        (lambda _: b"", "not one item"),
        (lambda item: item[:-1] + b"\xff", "CRC"),
        (lambda item: item[:16] + b"\xff" + item[17:], "CRC"),
    ],
)
def test_bytes_that_are_not_one_whole_item_are_refused(
    change: Callable[[bytes], bytes], said: str
) -> None:
    item = encode(OutgoingMessage("a.b", "text", delay=7, message_id="m"))
    with pytest.raises(InvalidMessage, match=said):
        ItemChecker().encode(OutgoingItem("a.b", change(item)), 0)


def test_an_item_of_another_subject_is_refused_by_its_message_id() -> None:
    item = encode(OutgoingMessage("a.b", "text", delay=7, message_id="m"))
    with pytest.raises(InvalidMessage, match="subject") as raised:
        ItemChecker().encode(OutgoingItem("a.c", item), 0)
    assert raised.value.message_id == "m"
