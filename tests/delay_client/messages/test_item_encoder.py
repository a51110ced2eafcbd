"""Promise: the client's own encoder writes what delay_protocol writes, or says why it cannot."""

import contextlib
import json
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
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
from delay_client.messages.item_encoder import LEVEL_0_MS, ItemChecker, ItemEncoder
from delay_client.messages.message import Body
from delay_client.messages.message_ids import MessageIdMaker
from delay_protocol.basics.subjects import subject_fault
from delay_protocol.messages.items import (
    FLAG_DELAY,
    FLAG_TAGS,
    Item,
    decode_item,
    encode_item,
)

NOW_MS = 1_700_000_000_000
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)


LEVELS_MS = (1000, 5000, 7_200_000)


def new_encoder(
    item_bytes_max: int = 1 << 20,
    levels_ms: Sequence[int] | None = LEVELS_MS,
    app_code: str = "",
) -> ItemEncoder:
    return ItemEncoder(
        ids=MessageIdMaker(random.Random(1)),
        item_bytes_max=item_bytes_max,
        app_code=app_code,
        levels_ms=lambda: levels_ms,
    )


def encode(message: OutgoingMessage) -> bytes:
    return new_encoder().encode(message, NOW_MS)[0]


def is_free(name: str) -> bool:
    return name != "body" and not name.startswith(("qmq_", "dw_", "h:", "body#"))


@given(
    subject=TEXT.filter(lambda text: subject_fault(text.encode()) is None and "*" not in text),
    body=TEXT,
    attributes=st.dictionaries(TEXT.filter(is_free), TEXT, max_size=5),
    delay_ms=st.integers(0, 10**11) | st.integers(0, 10**13),
    message_id=TEXT.filter(bool),
    tags=st.lists(TEXT, max_size=10).map(tuple),
)
def test_an_item_is_the_one_that_delay_protocol_would_write(  # noqa: PLR0917 (by hypothesis)
    subject: str,
    body: str,
    attributes: dict[str, str],
    delay_ms: int,
    message_id: str,
    tags: tuple[str, ...],
) -> None:
    due_ms = NOW_MS + delay_ms
    expected = Item(
        FLAG_DELAY | (FLAG_TAGS if tags else 0),
        NOW_MS,
        due_ms,
        subject,
        message_id,
        tags,
        {
            "qmq_createTime": str(NOW_MS),
            "qmq_scheduleReceiveTime": str(due_ms),
            "dw_delay": str(delay_ms),
            "body": body,
            **attributes,
        },
    )
    delay = timedelta(milliseconds=delay_ms)
    message = OutgoingMessage(subject, body, delay, None, message_id, tags, attributes=attributes)
    item, encoded_id, encoded_due_ms, _ = new_encoder().encode(message, NOW_MS)
    assert item == encode_item(expected)
    assert (encoded_id, encoded_due_ms) == (message_id, due_ms)


def test_a_new_clock_reading_is_a_new_create_time() -> None:
    encoder = new_encoder()
    for now_ms in (NOW_MS, NOW_MS, NOW_MS + 1, NOW_MS):
        item = decode_item(encoder.encode(OutgoingMessage("s", delay=1), now_ms)[0])
        assert item.create_ms == now_ms
        assert item.attributes["qmq_createTime"] == str(now_ms)


@pytest.mark.parametrize("app_code", ["", "shop", "ü" * 16_383])
def test_who_sends_is_an_attribute_if_it_has_a_name(app_code: str) -> None:
    encoder = new_encoder(app_code=app_code)
    for now_ms in (NOW_MS, NOW_MS, NOW_MS + 1):
        item = decode_item(encoder.encode(OutgoingMessage("s", delay=1), now_ms)[0])
        assert item.attributes.get("qmq_appCode", "") == app_code
        assert ("qmq_appCode" in item.attributes) == bool(app_code)


@pytest.mark.parametrize(
    ("app_code", "said"), [("x" * 32_768, "app_code takes 32768 bytes"), ("\ud800", "app_code")]
)
def test_a_name_of_who_sends_that_no_item_can_have_is_refused_at_once(
    app_code: str, said: str
) -> None:
    with pytest.raises(FatalError, match=said):
        new_encoder(app_code=app_code)


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
    ("level", "delay_ms"), [(0, 0), (1, 1000), (3, 7_200_000), (4, 7_200_000), (2**40, 7_200_000)]
)
def test_a_level_is_a_delay_of_the_table(level: int, delay_ms: int) -> None:
    item, _, due_ms, is_fixed = new_encoder().encode(OutgoingMessage("s", level=level), NOW_MS)
    assert (due_ms, is_fixed) == (NOW_MS + delay_ms, False)
    assert decode_item(item).due_ms == due_ms


def test_an_unknown_level_takes_no_fewer_bytes_than_its_due_time_will_take() -> None:
    known = encode(OutgoingMessage("s", "x", level=3, message_id="m"))
    for level in (1, 64, 2**40):
        message = OutgoingMessage("s", "x", level=level, message_id="m")
        item, _, due_ms, _ = new_encoder(levels_ms=None).encode(message, NOW_MS)
        assert (len(item) >= len(known), LEVEL_0_MS - due_ms) == (True, min(level, 64))
    now = OutgoingMessage("s", level=0)
    assert new_encoder(levels_ms=None).encode(now, NOW_MS)[2] == NOW_MS


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
        ({"at": NAIVE.replace(tzinfo=UTC), "delay": 1}, InvalidMessage, "one of delay=, at= and"),
        ({}, InvalidMessage, "one of delay=, at= and level="),
        ({"level": 0, "delay": 0}, InvalidMessage, "one of delay=, at= and level="),
        ({"level": 1, "delay": 1.5}, InvalidMessage, "one of delay=, at= and level="),
        ({"level": 1, "at": NAIVE.replace(tzinfo=UTC)}, InvalidMessage, "one of delay=, at= and"),
        ({"level": -1}, InvalidMessage, r"^level=-1: give a whole number from 0 on$"),
        ({"level": True}, InvalidMessage, "level=True: give a whole number"),
        ({"level": 1.0}, InvalidMessage, r"level=1\.0: give a whole number"),
        ({"level": "3"}, InvalidMessage, "level='3': give a whole number"),
        ({"at": "tomorrow"}, InvalidMessage, "not a datetime"),
        ({"delay": -1}, InvalidMessage, "negative"),
        ({"delay": -0.01}, InvalidMessage, "negative"),
        ({"delay": timedelta(days=-1)}, InvalidMessage, "negative"),
        ({"delay": float("nan")}, InvalidMessage, "neither a timedelta"),
        ({"delay": float("inf")}, InvalidMessage, "neither a timedelta"),
        ({"delay": "30m"}, InvalidMessage, "neither a timedelta"),
        ({"delay": 1e12}, DelayTooLong, "9999"),
        (
            {"at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))},
            DelayTooLong,
            "^at=9999",
        ),
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
        ({"delay": 1, "headers": {7: "1"}}, InvalidMessage, "give headers= as a mapping"),
        ({"delay": 1, "headers": {"a": 7}}, InvalidMessage, "give headers= as a mapping"),
        ({"delay": 1, "headers": {"a": "x" * 32768}}, MessageTooLarge, "32767"),
        ({"delay": timedelta.max}, DelayTooLong, "a delay of 999999999 days"),
        ({"delay": True}, InvalidMessage, "no number of seconds"),
        ({"delay": 1, "subject": "orders.*"}, IllegalSubject, "patterns of receivers"),
        ({"delay": 1, "subject": ["s"]}, InvalidMessage, "cannot be written"),
        ({"delay": 1, "body": 7}, InvalidMessage, "mapping"),
        ({"delay": 1, "body": {"n": float("nan")}}, InvalidMessage, "JSON"),
        ({"delay": 1, "body": [b"x"]}, InvalidMessage, "JSON"),
        ({"delay": 1, "body": ["\ud800"]}, InvalidMessage, "Unicode"),
        ({"delay": 1, "headers": [("a", "1")]}, InvalidMessage, "mapping of text to text"),
        ({"delay": 1, "tags": 7}, InvalidMessage, "give tags= as a tuple"),
        ({"delay": 1, "attributes": ["a"]}, InvalidMessage, "mapping of text to text"),
        ({"delay": 1, "attributes": {7: "1"}}, InvalidMessage, "mapping of text to text"),
        ({"delay": 1, "attributes": {"n": 7}}, InvalidMessage, "give attributes= as a mapping"),
        *[
            ({"delay": 1, "attributes": {name: "1"}}, InvalidMessage, "choose another name")
            for name in ("qmq_times", "qmq_createTime", "dw_putOff", "h:a", "body", "body#part0")
        ],
        ({"delay": 1, "body": "\ud800"}, InvalidMessage, "Unicode"),
        ({"delay": 1, "body": "x" * 40000 + "\ud800"}, InvalidMessage, "Unicode"),
        ({"delay": 1, "attributes": {"k": "x" * 32768}}, MessageTooLarge, "32767"),
        (
            {"delay": 1, "attributes": {str(n): "x" * 32767 for n in range(33)}},
            MessageTooLarge,
            "limit",
        ),
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


def test_attributes_travel_beside_body_and_headers() -> None:
    message = OutgoingMessage("s", "x", 1, headers={"A": "1"}, attributes={"k": "v"})
    item = decode_item(encode(message))
    assert dict(item.attributes) | {"body": "x", "k": "v", "h:a": "1"} == item.attributes


@pytest.mark.parametrize("body", [{}, [], {"a": "1", "ü": [1, 2.5, None, {"b": True}]}, ["x"]])
def test_a_mapping_or_a_list_travels_as_json(body: Body) -> None:
    attributes = decode_item(encode(OutgoingMessage("s", body, 1))).attributes
    assert attributes["dw_content_type"] == "application/json"
    assert json.loads(attributes["body"]) == body
    message = OutgoingMessage("s", body, 1, content_type="application/vnd.api+json")
    assert decode_envelope(decode_item(encode(message)).attributes)[2] == message.content_type


class Hostile:
    """Raises whatever is asked of it."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError


class NoOffset(tzinfo):
    """A time zone that fails."""

    def utcoffset(self, _: object) -> timedelta:
        raise LookupError

    dst = tzname = utcoffset  # type: ignore[assignment]


WRONG: list[Any] = [
    *(None, True, 7, 10**5000, float("inf"), 1j, "", "\ud800", b"\xff", bytearray(b"x")),
    *([], [1], {}, {1: 2}, {"a": b"x"}, {"a"}, iter("ab"), object(), int, Hostile()),
    *(datetime.max.replace(tzinfo=UTC), NAIVE.replace(tzinfo=NoOffset()), timedelta.max),
]


@pytest.mark.parametrize("field", OutgoingMessage._fields)
def test_a_value_of_any_type_is_sent_or_refused(field: str) -> None:
    for value in WRONG:
        fields: dict[str, Any] = {"subject": "s", "delay": 1, "message_id": "m", field: value}
        with contextlib.suppress(FatalError):
            encode(OutgoingMessage(**fields))
        with pytest.raises(InvalidMessage):
            new_encoder().encode(value, NOW_MS)
        for item in (value, OutgoingItem("s", value), OutgoingItem(value, b"x")):
            with pytest.raises(InvalidMessage):
                ItemChecker().encode(item, NOW_MS)


@pytest.mark.parametrize("field", ["body", "message_id", "tags", "headers", "attributes"])
def test_an_error_does_not_repeat_what_a_message_says(field: str) -> None:
    text = "s3cret\ud800"
    for value in (text, ("s3cret",) * 11, {text: text}, [text]):
        fields: dict[str, Any] = {"subject": "s", "delay": 1, field: value}
        with pytest.raises(FatalError) as caught:
            encode(OutgoingMessage(**fields))
        assert "s3cret" not in str(caught.value)


def test_a_refused_message_is_also_a_value_error() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        encode(OutgoingMessage("s", at=NAIVE))


def test_more_subjects_than_are_kept_are_still_right() -> None:
    encoder = new_encoder()
    for number in [*range(10_050), 0, 3]:
        item, *_ = encoder.encode(OutgoingMessage(f"s{number}", "", 1.0), NOW_MS)
        assert f"s{number}".encode() in item


def test_an_item_that_is_whole_goes_through_as_it_is() -> None:
    item = encode(OutgoingMessage("a.b", "x", delay=7, message_id="m", tags=("t",)))
    assert ItemChecker().encode(OutgoingItem("a.b", item), 0) == (item, "m", NOW_MS + 7000, True)


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


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ({"delay": 1.5}, "1500"),
        ({"level": 3}, "7200000"),
        ({"level": 0}, "0"),
        ({"at": datetime(2030, 1, 1, tzinfo=UTC)}, None),
    ],
)
def test_a_message_with_an_id_of_its_own_says_its_delay(
    when: dict[str, Any], said: str | None
) -> None:
    encoder = new_encoder()
    own = decode_item(encoder.encode(OutgoingMessage("s", message_id="m", **when), NOW_MS)[0])
    assert own.attributes.get("dw_delay") == said
    made = decode_item(encoder.encode(OutgoingMessage("s", **when), NOW_MS)[0])
    assert "dw_delay" not in made.attributes
