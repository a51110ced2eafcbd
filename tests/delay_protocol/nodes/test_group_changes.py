"""A node hears how its group is, and says what it wants changed, in bytes that stay."""

from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.nodes.group_changes import (
    Alter,
    ChangeReply,
    GroupChange,
    HandOver,
    NodeNews,
    NodeWatch,
    Vote,
    WatchReply,
    decode_change_reply,
    decode_group_change,
    decode_watch_reply,
    encode_change_reply,
    encode_group_change,
    encode_node_watch,
    encode_watch_reply,
)
from delay_protocol.nodes.registration import (
    COUNTED_MAX,
    NAME_LENGTH_MAX,
    REASON_LENGTH_MAX,
    REPLICAS_MAX,
    GroupMember,
    GroupRecord,
    Master,
    Phase,
)
from tests.delay_protocol.nodes.bodies import BODIES, CHANGED, NEWS, VOTE, said
from tests.delay_protocol.nodes.test_registration import (
    BOOT,
    DISK,
    LARGEST_MEMBERS,
    LARGEST_RECORD,
    MEMBER,
)
from tests.storage.worked_examples import worked_examples

COUNTS = st.integers(0, 2**63 - 1)
EPOCHS = st.integers(0, COUNTED_MAX)
SEQUENCES = st.integers(1, COUNTED_MAX)
NAMES = st.text(min_size=1, max_size=9)
ADDRESSES = st.text(max_size=9)
REASONS = st.text(max_size=20)
DISKS = st.dictionaries(NAMES, st.uuids(), max_size=4)
RECORDS = st.builds(
    GroupRecord,
    epoch=COUNTS,
    version=COUNTS,
    master=st.none() | st.builds(Master, node_id=NAMES, incarnation=COUNTS),
    in_sync=DISKS,
    min_isr=st.integers(1, REPLICAS_MAX),
    phase=st.sampled_from(Phase),
)
MEMBERS = st.builds(
    GroupMember,
    storage_uuid=st.uuids(),
    incarnation=COUNTS,
    boot_id=st.uuids(),
    address=ADDRESSES,
)
WATCHES = st.builds(
    WatchReply,
    news=st.none()
    | st.builds(
        NodeNews,
        record=RECORDS,
        members=st.dictionaries(NAMES, MEMBERS, max_size=4),
        vote_epoch=EPOCHS,
        hand_over_to=ADDRESSES,
        hand_over_why=REASONS,
    ),
)
CHANGES = st.one_of(
    st.builds(
        Vote,
        epoch=EPOCHS,
        last_epoch=EPOCHS,
        end=SEQUENCES,
        applied=SEQUENCES,
    ),
    st.builds(
        Alter,
        epoch=COUNTS,
        version=COUNTS,
        in_sync=st.dictionaries(NAMES, st.uuids(), min_size=1, max_size=REPLICAS_MAX),
    ),
    st.builds(HandOver, epoch=COUNTS, version=COUNTS, target=NAMES),
)


# The bytes


def test_the_examples_of_the_documentation_are_what_is_written() -> None:
    watch, vote = worked_examples("replication_wire.md")[:2]
    assert encode_node_watch(NodeWatch()) == watch
    assert encode_group_change(VOTE) == vote


DISK_HEX, BOOT_HEX = (("d924" + str(one).encode().hex()) for one in (DISK, BOOT))
RECORD_HEX = (
    "86 a565706f6368 02 a776657273696f6e 05"
    "a66d6173746572 82 a76e6f64655f6964 a26e31 ab696e6361726e6174696f6e 03"
    "a7696e5f73796e63 81 a26e31" + DISK_HEX + "a76d696e5f697372 01 a57068617365 a6616374697665"
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "alter",
            "84 a474797065 a5616c746572 a565706f6368 02 a776657273696f6e 05"
            "a7696e5f73796e63 81 a26e31" + DISK_HEX,
        ),
        (
            "hand over",
            "84a474797065a968616e64206f766572a565706f636802a776657273696f6e05a6746172676574a26e32",
        ),
        ("changed", "82 a67265636f7264" + RECORD_HEX + "a77265667573616c a26e6f"),
        (
            "news",
            "81 a46e657773 86 a67265636f7264" + RECORD_HEX + "a76d656d62657273 81 a26e31 84"
            "ac73746f726167655f75756964" + DISK_HEX + "ab696e6361726e6174696f6e 03"
            "a7626f6f745f6964" + BOOT_HEX + "a761646472657373 a3683a31"
            "aa766f74655f65706f6368 03 a4676f6e65 02 ac68616e645f6f7665725f746f a26e32"
            "ad68616e645f6f7665725f776879 a161",
        ),
    ],
)
def test_the_bytes_are_pinned(name: str, text: str) -> None:
    body = BODIES[name]
    assert body.encode(body.example) == bytes.fromhex(text)
    assert body.decode(bytes.fromhex(text)) == body.example


def test_nothing_new_is_told_as_nothing() -> None:
    assert encode_watch_reply(WatchReply()) == bytes.fromhex("81 a46e657773 c0")
    assert decode_watch_reply(b"\x80") == WatchReply(news=None)


# Round trips


@given(WATCHES)
def test_news_are_read_as_they_were_told(reply: WatchReply) -> None:
    assert decode_watch_reply(encode_watch_reply(reply)) == reply


@given(CHANGES)
def test_a_change_is_read_as_it_was_asked_for(change: GroupChange) -> None:
    assert decode_group_change(encode_group_change(change)) == change


@given(RECORDS, REASONS)
def test_an_answer_is_read_as_it_was_given(record: GroupRecord, refusal: str) -> None:
    reply = ChangeReply(record=record, refusal=refusal)
    assert decode_change_reply(encode_change_reply(reply)) == reply


# What is skipped, and what is refused


def test_what_has_a_default_may_be_left_out() -> None:
    news = msgspec.msgpack.decode(said(NEWS, vote_epoch=..., gone=..., hand_over_to=...))
    found = decode_watch_reply(said(WatchReply(), news=news)).news
    assert found is not None
    assert (found.vote_epoch, found.hand_over_to) == (0, "")
    assert decode_change_reply(said(CHANGED, refusal=...)).refusal == ""


TOO_MANY = {f"n{place}": str(DISK) for place in range(REPLICAS_MAX + 1)}
AT_LEAST_0 = "Expected `int` >= 0"
AT_MOST = f"Expected `int` <= {COUNTED_MAX}"


@pytest.mark.parametrize(
    ("name", "key", "value", "sentence"),
    [
        ("vote", "type", "veto", "Invalid value 'veto' - at `$.type`"),
        ("vote", "type", ..., "missing required field `type`"),
        ("vote", "epoch", -1, AT_LEAST_0 + " - at `$.epoch`"),
        ("vote", "epoch", COUNTED_MAX + 1, AT_MOST + " - at `$.epoch`"),
        ("vote", "last_epoch", True, "Expected `int`, got `bool` - at `$.last_epoch`"),
        ("vote", "end", 0, "Expected `int` >= 1 - at `$.end`"),
        ("vote", "applied", 0, "Expected `int` >= 1 - at `$.applied`"),
        ("alter", "in_sync", {}, "Expected `object` of length >= 1 - at `$.in_sync`"),
        ("alter", "in_sync", TOO_MANY, "Expected `object` of length <= 16 - at `$.in_sync`"),
        ("alter", "in_sync", {"n1": "x"}, "Invalid UUID - at `$.in_sync[...]`"),
        ("alter", "in_sync", {"": str(DISK)}, "`str` of length >= 1 - at `key` in `$.in_sync`"),
        ("alter", "version", -1, AT_LEAST_0 + " - at `$.version`"),
        ("hand over", "target", "", "`str` of length >= 1 - at `$.target`"),
        ("hand over", "epoch", 1.5, "Expected `int`, got `float` - at `$.epoch`"),
        ("changed", "record", None, "Expected `object`, got `None` - at `$.record`"),
        ("changed", "refusal", "x" * 1001, "`str` of length <= 1000 - at `$.refusal`"),
        ("news", "news", {}, "missing required field `record` - at `$.news`"),
    ],
)
def test_what_says_something_else_is_refused(
    name: str, key: str, value: object, sentence: str
) -> None:
    body = BODIES[name]
    with pytest.raises(MalformedMetaError) as caught:
        body.decode(said(body.example, **{key: value}))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("vote_epoch", -1, AT_LEAST_0 + " - at `$.news.vote_epoch`"),
        ("hand_over_to", "n" * 256, "`str` of length <= 255 - at `$.news.hand_over_to`"),
        ("hand_over_why", "x" * 1001, "`str` of length <= 1000 - at `$.news.hand_over_why`"),
        ("members", {"n1": {}}, "missing required field `storage_uuid` - at `$.news.members[...]`"),
        (
            "members",
            dict.fromkeys(TOO_MANY, msgspec.to_builtins(MEMBER)),
            "Expected `object` of length <= 16 - at `$.news.members`",
        ),
    ],
)
def test_news_of_something_else_are_refused(key: str, value: object, sentence: str) -> None:
    news = msgspec.msgpack.decode(said(NEWS, **{key: value}))
    with pytest.raises(MalformedMetaError) as caught:
        decode_watch_reply(said(WatchReply(), news=news))
    assert sentence in str(caught.value)


def test_the_largest_bodies_there_can_be_fit() -> None:
    name, reason = "\U0001f5a5" * NAME_LENGTH_MAX, "\U0001f5a5" * REASON_LENGTH_MAX
    news = NodeNews(
        record=LARGEST_RECORD,
        members=LARGEST_MEMBERS,
        vote_epoch=COUNTED_MAX,
        hand_over_to=name,
        hand_over_why=reason,
    )
    told = WatchReply(news=news)
    assert decode_watch_reply(encode_watch_reply(told)) == told
    vote = Vote(
        epoch=COUNTED_MAX,
        last_epoch=COUNTED_MAX,
        end=COUNTED_MAX,
        applied=COUNTED_MAX,
    )
    assert decode_group_change(encode_group_change(vote)) == vote
    reply = ChangeReply(record=LARGEST_RECORD, refusal=reason)
    assert decode_change_reply(encode_change_reply(reply)) == reply


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("news", {"news": msgspec.structs.replace(NEWS, vote_epoch=-1)}),
        ("news", {"news": msgspec.structs.replace(NEWS, hand_over_to="n" * 256)}),
        ("vote", {"epoch": 2**70}),
        ("vote", {"end": 0}),
        ("changed", {"refusal": "\ud800"}),
        ("alter", {"in_sync": {}}),
        ("alter", {"in_sync": {f"n{n}": UUID(int=n) for n in range(REPLICAS_MAX + 1)}}),
        ("hand over", {"target": ""}),
        ("changed", {"refusal": "x" * (REASON_LENGTH_MAX + 1)}),
    ],
)
def test_what_nobody_would_read_is_the_callers_error(name: str, changed: dict[str, Any]) -> None:
    body = BODIES[name]
    with pytest.raises(LocalProtocolError, match="is not encodable"):
        body.encode(msgspec.structs.replace(body.example, **changed))
