"""A receiver attaches, and says how much it takes; what says something else is refused."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.nodes.registration import COUNTED_MAX, NAME_LENGTH_MAX, REASON_LENGTH_MAX
from delay_protocol.receivers.attaching import (
    ATTACH_BYTES_MAX,
    CREDIT_BYTES_MAX,
    INSTANCE_BYTES,
    Attach,
    Attached,
    AttachRefused,
    AttachReply,
    Flow,
    decode_attach,
    decode_attach_reply,
    decode_flow,
    encode_attach,
    encode_attach_reply,
    encode_flow,
)
from delay_protocol.receivers.masters import PATTERN_LENGTH_MAX, PATTERNS_MAX
from tests.delay_protocol.nodes.bodies import said
from tests.storage.worked_examples import worked_examples

INSTANCE = bytes(range(INSTANCE_BYTES))
ATTACH = Attach(
    name="r",
    instance=INSTANCE,
    patterns=("orders.*",),
    weight=7,
    token="t",  # noqa: S106 (an example)
)
ATTACHED = Attached(group="g1", epoch=4, lease_s=30, now_ms=1_700_000_000_000)
REFUSED = AttachRefused(reason="no", is_final=True)
FLOW = Flow(items=1000, bytes=16 << 20)

ATTACH_HEX = (
    "85 a46e616d65 a172 a8696e7374616e6365 c410 000102030405060708090a0b0c0d0e0f"
    "a87061747465726e73 91 a86f72646572732e2a a6776569676874 07 a5746f6b656e a174"
)
ATTACHED_HEX = (
    "85 a474797065 a86174746163686564 a567726f7570 a26731 a565706f6368 04 a76c656173655f73 1e"
    "a66e6f775f6d73 cf0000018bcfe56800"
)

NAMES = st.text(min_size=1, max_size=NAME_LENGTH_MAX)
REASONS = st.text(max_size=REASON_LENGTH_MAX)
ATTACHES = st.builds(
    Attach,
    name=NAMES,
    instance=st.binary(min_size=INSTANCE_BYTES, max_size=INSTANCE_BYTES),
    patterns=st.lists(st.text(min_size=1, max_size=PATTERN_LENGTH_MAX), max_size=9).map(tuple),
    weight=st.integers(1, 1000),
    token=st.text(max_size=1000),
)
REPLIES = st.builds(
    Attached,
    group=NAMES,
    epoch=st.integers(0, COUNTED_MAX),
    lease_s=st.integers(1, 86_400),
    now_ms=st.none() | st.integers(0, COUNTED_MAX),
) | st.builds(AttachRefused, reason=REASONS, is_final=st.booleans())
FLOWS = st.builds(Flow, items=st.integers(0, 2**62), bytes=st.integers(0, 2**62), reason=REASONS)


def test_the_examples_of_the_documentation_are_what_is_written() -> None:
    assert worked_examples("../receivers.md")[:3] == [
        encode_attach(ATTACH),
        encode_attach_reply(ATTACHED),
        encode_flow(FLOW),
    ]


@pytest.mark.parametrize(
    ("example", "encode", "decode", "text"),
    [
        (
            ATTACH,
            encode_attach,
            decode_attach,
            ATTACH_HEX,
        ),
        (
            ATTACHED,
            encode_attach_reply,
            decode_attach_reply,
            ATTACHED_HEX,
        ),
        (
            REFUSED,
            encode_attach_reply,
            decode_attach_reply,
            "83 a474797065 a772656675736564 a6726561736f6e a26e6f a869735f66696e616c c3",
        ),
        (
            FLOW,
            encode_flow,
            decode_flow,
            "83 a56974656d73 cd03e8 a56279746573 ce01000000 a6726561736f6e a0",
        ),
    ],
)
def test_the_bytes_are_pinned(
    example: object, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], text: str
) -> None:
    assert encode(example) == bytes.fromhex(text)
    assert decode(bytes.fromhex(text)) == example


def test_what_is_left_out_is_as_usual() -> None:
    body = said(ATTACH, patterns=..., weight=..., token=...)
    assert decode_attach(body) == Attach(name="r", instance=INSTANCE)
    assert decode_attach_reply(said(REFUSED, is_final=...)) == AttachRefused(reason="no")
    assert decode_flow(said(FLOW, bytes=..., reason=..., later_key=1)) == Flow(
        items=1000, bytes=CREDIT_BYTES_MAX
    )


@given(ATTACHES)
def test_an_attach_is_read_as_it_was_said(attach: Attach) -> None:
    assert decode_attach(encode_attach(attach)) == attach


@given(REPLIES)
def test_an_answer_is_read_as_it_was_given(reply: AttachReply) -> None:
    assert decode_attach_reply(encode_attach_reply(reply)) == reply


@given(FLOWS)
def test_a_flow_is_read_as_it_was_said(flow: Flow) -> None:
    assert decode_flow(encode_flow(flow)) == flow


@pytest.mark.parametrize(
    ("body", "decode", "sentence"),
    [
        (said(ATTACH, name=""), decode_attach, "`str` of length >= 1 - at `$.name`"),
        (said(ATTACH, name="n" * 256), decode_attach, "`str` of length <= 255 - at `$.name`"),
        (said(ATTACH, instance=b"x"), decode_attach, "length >= 16 - at `$.instance`"),
        (said(ATTACH, instance=...), decode_attach, "missing required field `instance`"),
        (said(ATTACH, patterns=[""]), decode_attach, "`str` of length >= 1 - at `$.patterns[0]`"),
        (said(ATTACH, patterns=["p" * 256]), decode_attach, "<= 255 - at `$.patterns[0]`"),
        (said(ATTACH, patterns=["p"] * 65), decode_attach, "length <= 64 - at `$.patterns`"),
        (said(ATTACH, weight=0), decode_attach, "`int` >= 1 - at `$.weight`"),
        (said(ATTACH, weight=1001), decode_attach, "`int` <= 1000 - at `$.weight`"),
        (said(ATTACH, token="t" * 1001), decode_attach, "length <= 1000 - at `$.token`"),
        (said(ATTACHED, epoch=-1), decode_attach_reply, "`int` >= 0 - at `$.epoch`"),
        (said(ATTACHED, lease_s=0), decode_attach_reply, "`int` >= 1 - at `$.lease_s`"),
        (said(ATTACHED, type="x"), decode_attach_reply, "Invalid value 'x' - at `$.type`"),
        (said(REFUSED, reason="x" * 1001), decode_attach_reply, "length <= 1000 - at `$.reason`"),
        (said(FLOW, items=-1), decode_flow, "`int` >= 0 - at `$.items`"),
        (said(FLOW, items=2**62 + 1), decode_flow, f"`int` <= {2**62} - at `$.items`"),
        (said(FLOW, bytes=2**63), decode_flow, f"`int` <= {2**62} - at `$.bytes`"),
        (said(FLOW, items=...), decode_flow, "missing required field `items`"),
        (b"", decode_flow, "truncated"),
        (said(FLOW) + b"\x00", decode_flow, "trailing"),
        (said(FLOW) + bytes(ATTACH_BYTES_MAX), decode_flow, "at most 32768"),
    ],
)
def test_what_says_something_else_is_refused(
    body: bytes, decode: Callable[[bytes], object], sentence: str
) -> None:
    with pytest.raises(MalformedMetaError) as caught:
        decode(body)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("value", "encode"),
    [
        (msgspec.structs.replace(ATTACH, name=""), encode_attach),
        (msgspec.structs.replace(ATTACH, name="\ud800"), encode_attach),
        (msgspec.structs.replace(ATTACH, weight=0), encode_attach),
        (msgspec.structs.replace(ATTACHED, epoch=-1), encode_attach_reply),
        (msgspec.structs.replace(FLOW, items=-1), encode_flow),
        (msgspec.structs.replace(FLOW, reason="x" * 1001), encode_flow),
    ],
)
def test_what_nobody_would_read_is_the_callers_error(
    value: object, encode: Callable[[Any], bytes]
) -> None:
    with pytest.raises(LocalProtocolError, match="is not encodable"):
        encode(value)


def test_the_largest_bodies_there_can_be_fit() -> None:
    wide = "\U0001f5a5"
    patterns = ("s" * PATTERN_LENGTH_MAX,) * PATTERNS_MAX
    attach = Attach(
        name=wide * 255, instance=INSTANCE, patterns=patterns, weight=1000, token=wide * 1000
    )
    assert decode_attach(encode_attach(attach)) == attach
    flow = Flow(items=2**62, bytes=2**62, reason=wide * REASON_LENGTH_MAX)
    assert decode_flow(encode_flow(flow)) == flow


def test_no_text_has_the_token() -> None:
    attach = Attach(name="r", instance=bytes(16), weight=0, token="a-token")  # noqa: S106 (none)
    assert repr(attach) == "<Attach of 'r'>"
    with pytest.raises(LocalProtocolError, match="Attach is not encodable: Expected") as found:
        encode_attach(attach)
    assert "a-token" not in str(found.value)
