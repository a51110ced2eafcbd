"""A receiver asks where to attach, and nothing that it could not use is taken for an answer."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.nodes.registration import COUNTED_MAX, NAME_LENGTH_MAX, REASON_LENGTH_MAX
from delay_protocol.receivers.masters import (
    MASTERS_MAX,
    PATTERN_LENGTH_MAX,
    PATTERNS_MAX,
    REGISTER_BYTES_MAX,
    REPLY_BYTES_MAX,
    MasterInfo,
    ReceiverRefused,
    ReceiverRegister,
    ReceiverRegistered,
    ReceiverReply,
    decode_receiver_register,
    decode_receiver_reply,
    encode_receiver_register,
    encode_receiver_reply,
)
from tests.storage.worked_examples import worked_examples

NAMES = st.text(min_size=1, max_size=NAME_LENGTH_MAX)
REASONS = st.text(max_size=REASON_LENGTH_MAX)
REGISTERS = st.builds(
    ReceiverRegister,
    name=NAMES,
    patterns=st.lists(NAMES, max_size=5).map(tuple),
    token=st.text(max_size=1000),
    told=st.integers(0, COUNTED_MAX),
)
REPLIES = st.one_of(
    st.builds(
        ReceiverRegistered,
        version=st.integers(1, COUNTED_MAX),
        masters=st.lists(st.builds(MasterInfo, group=NAMES, address=NAMES), max_size=5).map(tuple),
        waits=REASONS,
    ),
    st.builds(ReceiverRefused, reason=REASONS),
)

REGISTER = ReceiverRegister(name="mail", patterns=("orders.*",), told=7)
REGISTER_HEX = (
    "84 a46e616d65 a46d61696c a87061747465726e73 91 a86f72646572732e2a a5746f6b656e a0 "
    "a4746f6c64 07"
)
REGISTERED = ReceiverRegistered(
    version=7, masters=(MasterInfo(group="d1", address="10.0.0.5:20801"),)
)
REGISTERED_HEX = (
    "84 a474797065 aa72656769737465726564 a776657273696f6e 07 a76d617374657273 91 "
    "82 a567726f7570 a26431 a761646472657373 ae31302e302e302e353a3230383031 a57761697473 a0"
)
REFUSED = ReceiverRefused(reason="no")
REFUSED_HEX = "82 a474797065 a772656675736564 a6726561736f6e a26e6f"


def said(body: bytes, **changed: object) -> bytes:
    """Return a body with other values; `...` leaves a key out."""
    values = msgspec.msgpack.decode(body) | changed
    return msgspec.msgpack.encode({key: value for key, value in values.items() if value != ...})


def encoded(sent: ReceiverRegister | ReceiverReply) -> bytes:
    if isinstance(sent, ReceiverRegister):
        return encode_receiver_register(sent)
    return encode_receiver_reply(sent)


def test_the_examples_of_the_documentation_are_what_is_written() -> None:
    assert worked_examples("../receivers.md")[5:] == [
        encode_receiver_register(REGISTER),
        encode_receiver_reply(REGISTERED),
    ]


def test_the_bytes_are_pinned() -> None:
    assert encode_receiver_register(REGISTER) == bytes.fromhex(REGISTER_HEX)
    assert decode_receiver_register(bytes.fromhex(REGISTER_HEX)) == REGISTER
    for reply, text in ((REGISTERED, REGISTERED_HEX), (REFUSED, REFUSED_HEX)):
        assert encode_receiver_reply(reply) == bytes.fromhex(text)
        assert decode_receiver_reply(bytes.fromhex(text)) == reply


@given(REGISTERS)
def test_a_request_is_read_as_it_was_asked(register: ReceiverRegister) -> None:
    assert decode_receiver_register(encode_receiver_register(register)) == register


@given(REPLIES)
def test_an_answer_is_read_as_it_was_given(reply: ReceiverReply) -> None:
    assert decode_receiver_reply(encode_receiver_reply(reply)) == reply


def test_a_key_that_a_reader_does_not_know_is_skipped_and_a_name_is_all_that_is_needed() -> None:
    assert decode_receiver_register(said(bytes.fromhex(REGISTER_HEX), zone="z")) == REGISTER
    bare = msgspec.msgpack.encode({"name": "mail"})
    assert decode_receiver_register(bare) == ReceiverRegister(name="mail")
    assert decode_receiver_reply(said(bytes.fromhex(REGISTERED_HEX), waits=..., x=1)) == REGISTERED


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("name", "", "`str` of length >= 1 - at `$.name`"),
        ("name", ..., "missing required field `name`"),
        ("name", "n" * (NAME_LENGTH_MAX + 1), "`str` of length <= 255 - at `$.name`"),
        ("patterns", "orders.*", "Expected `array`, got `str` - at `$.patterns`"),
        ("patterns", ["p"] * (PATTERNS_MAX + 1), "`array` of length <= 64 - at `$.patterns`"),
        ("patterns", [""], "`str` of length >= 1 - at `$.patterns[0]`"),
        ("patterns", ["p" * (PATTERN_LENGTH_MAX + 1)], "`str` of length <= 255"),
        ("token", "t" * 1001, "`str` of length <= 1000 - at `$.token`"),
        ("told", -1, "Expected `int` >= 0 - at `$.told`"),
        ("told", COUNTED_MAX + 1, f"Expected `int` <= {COUNTED_MAX} - at `$.told`"),
    ],
)
def test_a_request_that_asks_something_else_is_refused(
    key: str, value: object, sentence: str
) -> None:
    with pytest.raises(MalformedMetaError) as caught:
        decode_receiver_register(said(bytes.fromhex(REGISTER_HEX), **{key: value}))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "key", "value", "sentence"),
    [
        (REGISTERED_HEX, "type", "attached", "Invalid value 'attached' - at `$.type`"),
        (REGISTERED_HEX, "type", ..., "missing required field `type`"),
        (REGISTERED_HEX, "version", 0, "Expected `int` >= 1 - at `$.version`"),
        (REGISTERED_HEX, "masters", ..., "missing required field `masters`"),
        (
            REGISTERED_HEX,
            "masters",
            [{"group": "d1", "address": ""}],
            "`str` of length >= 1 - at `$.masters[0].address`",
        ),
        (
            REGISTERED_HEX,
            "masters",
            [{"group": "d1", "address": "a"}] * (MASTERS_MAX + 1),
            "`array` of length <= 1000 - at `$.masters`",
        ),
        (REGISTERED_HEX, "waits", "x" * 1001, "`str` of length <= 1000 - at `$.waits`"),
        (REFUSED_HEX, "reason", ..., "missing required field `reason`"),
        (REFUSED_HEX, "reason", "x" * 1001, "`str` of length <= 1000 - at `$.reason`"),
    ],
)
def test_an_answer_that_says_something_else_is_refused(
    text: str, key: str, value: object, sentence: str
) -> None:
    with pytest.raises(MalformedMetaError) as caught:
        decode_receiver_reply(said(bytes.fromhex(text), **{key: value}))
    assert sentence in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"\x00", b"\xc1", bytes.fromhex(REGISTER_HEX)[:-1]])
def test_what_is_cut_or_no_map_is_refused(body: bytes) -> None:
    for decode in (decode_receiver_register, decode_receiver_reply):
        with pytest.raises(MalformedMetaError):
            decode(body)


def test_a_body_that_is_too_large_is_refused_unread() -> None:
    for decode, most in (
        (decode_receiver_register, REGISTER_BYTES_MAX),
        (decode_receiver_reply, REPLY_BYTES_MAX),
    ):
        with pytest.raises(MalformedMetaError, match=f"a body of {most + 1} bytes, at most {most}"):
            decode(bytes(most + 1))


@pytest.mark.parametrize(
    ("sent", "changed"),
    [
        (REGISTER, {"name": ""}),
        (REGISTER, {"patterns": ("p",) * (PATTERNS_MAX + 1)}),
        (REGISTER, {"patterns": ("\U0001f5a5" * PATTERN_LENGTH_MAX,) * PATTERNS_MAX}),
        (REGISTER, {"told": 2**70}),
        (REGISTERED, {"version": 0}),
        (REGISTERED, {"masters": (MasterInfo(group="", address="a"),)}),
        (REFUSED, {"reason": "\ud800"}),
    ],
)
def test_what_nobody_would_read_is_the_callers_error(
    sent: ReceiverRegister | ReceiverReply, changed: dict[str, Any]
) -> None:
    other = msgspec.structs.replace(sent, **changed)
    with pytest.raises(LocalProtocolError, match="is not encodable"):
        encoded(other)


def test_a_thousand_groups_fit_into_an_answer() -> None:
    masters = tuple(
        MasterInfo(group=f"{number:0255d}", address="h" * 249 + ":20801")
        for number in range(MASTERS_MAX)
    )
    reply = ReceiverRegistered(version=1, masters=masters, waits="x" * REASON_LENGTH_MAX)
    assert decode_receiver_reply(encode_receiver_reply(reply)) == reply
