"""A slave asks where its log goes on, and batches follow that nobody takes for others."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.codes import CommandCode
from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.nodes.auth import SEAL_SIZE
from delay_protocol.nodes.following import (
    FOLLOW_FRAME_BYTES_MAX,
    HEAD_SIZE,
    Acknowledged,
    Asked,
    BatchesHead,
    Follow,
    FollowRefused,
    FollowReply,
    Leave,
    LogBehind,
    LogDiverges,
    Matches,
    decode_acknowledged,
    decode_batches,
    decode_follow,
    decode_follow_reply,
    decode_leave,
    encode_acknowledged,
    encode_batches_head,
    encode_follow,
    encode_follow_reply,
    encode_leave,
)
from delay_protocol.nodes.registration import COUNTED_MAX, NAME_LENGTH_MAX, REASON_LENGTH_MAX
from delay_protocol.wire.frames import FRAME_OVERHEAD, Frame, FrameDecoder, encode_one_way
from storage.batch.batches import BATCH_BYTES_MAX
from tests.delay_protocol.nodes.bodies import (
    ACK,
    ASKED,
    BATCHES,
    BODIES,
    FOLLOW,
    HEAD,
    LEAVE,
    said,
)
from tests.storage.worked_examples import worked_examples

SEQUENCES = st.integers(1, COUNTED_MAX)
EPOCHS = st.integers(0, COUNTED_MAX)
NAMES = st.text(min_size=1, max_size=NAME_LENGTH_MAX)
REASONS = st.text(max_size=REASON_LENGTH_MAX)
QUESTIONS = st.builds(Asked, sequence=SEQUENCES, epoch=EPOCHS, crc=st.integers(0, 2**32 - 1))
FOLLOWS = st.builds(
    Follow,
    cluster=NAMES,
    group=NAMES,
    node_id=NAMES,
    storage_uuid=st.uuids(),
    incarnation=SEQUENCES,
    boot_id=st.uuids(),
    log_uuid=st.uuids(),
    epoch=EPOCHS,
    asked=QUESTIONS,
)
REPLIES = st.one_of(
    st.builds(Matches, asked=QUESTIONS),
    st.builds(LogDiverges, asked=QUESTIONS, epoch=EPOCHS, end=SEQUENCES),
    st.builds(LogBehind, asked=QUESTIONS, first=SEQUENCES),
    st.builds(FollowRefused, reason=REASONS, epoch=EPOCHS),
)
ACKS = st.builds(Acknowledged, end=SEQUENCES, applied=SEQUENCES, echo_ms=st.none() | EPOCHS)
HEADS = st.builds(
    lambda first, records, committed, time_ms, may_send: BatchesHead(
        first, min(first + records, COUNTED_MAX), committed, time_ms, may_send
    ),
    SEQUENCES,
    EPOCHS,
    SEQUENCES,
    EPOCHS,
    st.booleans(),
)


# The bytes


def test_the_examples_of_the_documentation_are_what_is_written() -> None:
    follow, batches, ack, leave = worked_examples("replication_wire.md")[2:6]
    assert encode_follow(FOLLOW) == follow
    assert encode_one_way(CommandCode.BATCHES, encode_batches_head(HEAD), BATCHES) == batches
    assert encode_acknowledged(ACK) == ack
    assert encode_leave(LEAVE) == leave


ASKED_HEX = "a56173 6b6564 83 a873657175656e6365 cd03e9 a565706f6368 03 a3637263 ce89abcdef"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("matches", "82 a474797065 a76d617463686573" + ASKED_HEX),
        (
            "diverges",
            "84 a474797065 a86469766572676573" + ASKED_HEX + "a565706f6368 02 a3656e64 cd0384",
        ),
        ("behind", "83 a474797065 a6626568696e64" + ASKED_HEX + "a56669727374 cd1388"),
        ("refused", "83 a474797065 a772656675736564 a6726561736f6e a26e6f a565706f6368 00"),
    ],
)
def test_the_bytes_of_an_answer_are_pinned(name: str, text: str) -> None:
    body = BODIES[name]
    assert body.encode(body.example) == bytes.fromhex(text)
    assert body.decode(bytes.fromhex(text)) == body.example


def test_who_promises_nothing_echoes_nothing() -> None:
    silent = Acknowledged(end=1, applied=1)
    assert msgspec.msgpack.decode(encode_acknowledged(silent)) == {
        "end": 1,
        "applied": 1,
        "echo_ms": None,
        "now_ms": None,
    }
    assert decode_acknowledged(said(silent, echo_ms=..., now_ms=...)) == silent


# Round trips


@given(FOLLOWS)
def test_a_question_is_read_as_it_was_asked(follow: Follow) -> None:
    assert decode_follow(encode_follow(follow)) == follow


@given(REPLIES)
def test_an_answer_is_read_as_it_was_given(reply: FollowReply) -> None:
    assert decode_follow_reply(encode_follow_reply(reply)) == reply


@given(ACKS)
def test_an_acknowledgement_is_read_as_it_was_given(ack: Acknowledged) -> None:
    assert decode_acknowledged(encode_acknowledged(ack)) == ack


@given(REASONS)
def test_a_farewell_is_read_as_it_was_said(reason: str) -> None:
    assert decode_leave(encode_leave(Leave(reason=reason))) == Leave(reason=reason)


@given(HEADS, st.binary(min_size=1, max_size=50))
def test_batches_are_handed_on_as_they_are(head: BatchesHead, batches: bytes) -> None:
    body = encode_batches_head(head) + (b"" if head.first == head.behind else batches)
    found, rest = decode_batches(body)
    assert found == head
    assert bytes(rest) == body[HEAD_SIZE:]


def test_batches_are_not_copied_to_be_looked_at() -> None:
    body = encode_batches_head(HEAD) + BATCHES
    _, rest = decode_batches(body)
    assert rest.obj is body


# What is skipped, and what is refused


def test_a_key_within_a_question_is_skipped() -> None:
    asked = msgspec.msgpack.decode(said(ASKED, column_crc=1))
    assert decode_follow(said(FOLLOW, asked=asked)) == FOLLOW


AT_LEAST_1 = "Expected `int` >= 1"
AT_LEAST_0 = "Expected `int` >= 0"
AT_MOST = f"Expected `int` <= {COUNTED_MAX}"


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("cluster", "", "`str` of length >= 1 - at `$.cluster`"),
        ("group", b"g", "Expected `str`, got `bytes` - at `$.group`"),
        ("node_id", "n" * (NAME_LENGTH_MAX + 1), "`str` of length <= 255 - at `$.node_id`"),
        ("storage_uuid", "2", "Invalid UUID - at `$.storage_uuid`"),
        ("log_uuid", None, "Expected `uuid`, got `None` - at `$.log_uuid`"),
        ("incarnation", 0, AT_LEAST_1 + " - at `$.incarnation`"),
        ("epoch", -1, AT_LEAST_0 + " - at `$.epoch`"),
        ("epoch", COUNTED_MAX + 1, AT_MOST + " - at `$.epoch`"),
        ("asked", {"sequence": 0, "epoch": 0, "crc": 0}, AT_LEAST_1 + " - at `$.asked.sequence`"),
        ("asked", {"sequence": 1, "epoch": -1, "crc": 0}, AT_LEAST_0 + " - at `$.asked.epoch`"),
        (
            "asked",
            {"sequence": 1, "epoch": 0, "crc": 2**32},
            "Expected `int` <= 4294967295 - at `$.asked.crc`",
        ),
        ("asked", {"sequence": 1, "crc": 0}, "missing required field `epoch` - at `$.asked`"),
    ],
)
def test_a_question_that_asks_something_else_is_refused(
    key: str, value: object, sentence: str
) -> None:
    with pytest.raises(MalformedMetaError) as caught:
        decode_follow(said(FOLLOW, **{key: value}))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "key", "value", "sentence"),
    [
        ("matches", "type", "fits", "Invalid value 'fits' - at `$.type`"),
        ("matches", "type", ..., "missing required field `type`"),
        ("diverges", "end", 0, AT_LEAST_1 + " - at `$.end`"),
        ("diverges", "epoch", -1, AT_LEAST_0 + " - at `$.epoch`"),
        ("behind", "first", COUNTED_MAX + 1, AT_MOST + " - at `$.first`"),
        ("refused", "epoch", 1.5, "Expected `int`, got `float` - at `$.epoch`"),
        ("refused", "reason", "x" * 1001, "`str` of length <= 1000 - at `$.reason`"),
        ("ack", "end", 0, AT_LEAST_1 + " - at `$.end`"),
        ("ack", "applied", 0, AT_LEAST_1 + " - at `$.applied`"),
        ("ack", "echo_ms", -1, AT_LEAST_0 + " - at `$.echo_ms`"),
        ("ack", "echo_ms", 2**64 - 1, AT_MOST + " - at `$.echo_ms`"),
        ("ack", "echo_ms", True, "Expected `int | null`, got `bool` - at `$.echo_ms`"),
        ("leave", "reason", "x" * 1001, "`str` of length <= 1000 - at `$.reason`"),
    ],
)
def test_what_says_something_else_is_refused(
    name: str, key: str, value: object, sentence: str
) -> None:
    body = BODIES[name]
    with pytest.raises(MalformedMetaError) as caught:
        body.decode(said(body.example, **{key: value}))
    assert sentence in str(caught.value)


def test_the_largest_bodies_there_can_be_fit() -> None:
    name = "\U0001f5a5" * NAME_LENGTH_MAX
    asked = Asked(sequence=COUNTED_MAX, epoch=COUNTED_MAX, crc=2**32 - 1)
    follow = msgspec.structs.replace(
        FOLLOW,
        cluster=name,
        group=name,
        node_id=name,
        incarnation=COUNTED_MAX,
        epoch=COUNTED_MAX,
        asked=asked,
    )
    assert decode_follow(encode_follow(follow)) == follow
    reason = "\U0001f5a5" * REASON_LENGTH_MAX
    refused = FollowRefused(reason=reason, epoch=COUNTED_MAX)
    assert decode_follow_reply(encode_follow_reply(refused)) == refused
    assert decode_leave(encode_leave(Leave(reason=reason))).reason == reason


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("follow", {"group": "\ud800"}),
        ("follow", {"group": ""}),
        ("follow", {"incarnation": 2**70}),
        ("follow", {"asked": Asked(sequence=0, epoch=0, crc=0)}),
        ("matches", {"asked": Asked(sequence=1, epoch=0, crc=-1)}),
        ("diverges", {"end": 0}),
        ("refused", {"reason": "x" * (REASON_LENGTH_MAX + 1)}),
        ("ack", {"applied": 0}),
        ("ack", {"echo_ms": -1}),
        ("leave", {"reason": "x" * (REASON_LENGTH_MAX + 1)}),
    ],
)
def test_what_nobody_would_read_is_the_callers_error(name: str, changed: dict[str, Any]) -> None:
    body = BODIES[name]
    with pytest.raises(LocalProtocolError, match="is not encodable"):
        body.encode(msgspec.structs.replace(body.example, **changed))


# Batches


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"first": 0}, "a count below 1, or above"),
        ({"first": -1}, "a count below 1, or above"),
        ({"committed": 0}, "a count below 1, or above"),
        ({"committed": COUNTED_MAX + 1}, "a count below 1, or above"),
        ({"behind": COUNTED_MAX + 1}, "a count below 1, or above"),
        ({"time_ms": -1}, "a time below 0, or above"),
        ({"time_ms": COUNTED_MAX + 1}, "a time below 0, or above"),
        ({"behind": 1000}, "batches that end before they begin"),
    ],
)
def test_a_head_that_counts_what_cannot_be_is_neither_read_nor_written(
    changed: dict[str, Any], sentence: str
) -> None:
    head = HEAD._replace(**changed)
    body = b"".join(number.to_bytes(8, "big", signed=True) for number in head[:4]) + b"\1" + BATCHES
    with pytest.raises(MalformedMetaError, match=sentence):
        decode_batches(body)
    with pytest.raises(LocalProtocolError, match=sentence):
        encode_batches_head(head)


def test_a_head_that_is_cut_is_refused() -> None:
    body = encode_batches_head(HEAD)
    for size in range(HEAD_SIZE):
        with pytest.raises(
            MalformedMetaError, match=f"of {size} bytes, its head alone has {HEAD_SIZE}"
        ):
            decode_batches(body[:size])


def test_records_come_with_bytes_and_bytes_with_records() -> None:
    with pytest.raises(MalformedMetaError, match="0 bytes of batches with"):
        decode_batches(encode_batches_head(HEAD))
    empty = HEAD._replace(behind=HEAD.first)
    with pytest.raises(MalformedMetaError, match="13 bytes of batches with"):
        decode_batches(encode_batches_head(empty) + BATCHES)
    assert decode_batches(encode_batches_head(empty))[0] == empty


def test_the_largest_batch_fits_into_a_frame_with_room_for_another_before_it() -> None:
    sealed = FRAME_OVERHEAD + SEAL_SIZE + HEAD_SIZE + BATCH_BYTES_MAX
    assert sealed < FOLLOW_FRAME_BYTES_MAX
    batch = memoryview(bytes(BATCH_BYTES_MAX))
    data = encode_one_way(CommandCode.BATCHES, encode_batches_head(HEAD), batch)
    decoder = FrameDecoder(frame_bytes_max=FOLLOW_FRAME_BYTES_MAX)
    decoder.feed(data)
    [frame] = decoder.frames()
    assert isinstance(frame, Frame)
    assert (frame.code, frame.is_one_way, frame.is_response) == (1021, True, False)
    head, batches = decode_batches(frame.body)
    assert (head, batches) == (HEAD, batch)
