"""Examples of the bodies that nodes of a group and their meta server exchange."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from delay_protocol.nodes.following import (
    FOLLOW_BYTES_MAX,
    Acknowledged,
    Asked,
    BatchesHead,
    Follow,
    FollowRefused,
    Leave,
    LogBehind,
    LogDiverges,
    Matches,
    decode_acknowledged,
    decode_follow,
    decode_follow_reply,
    decode_leave,
    encode_acknowledged,
    encode_follow,
    encode_follow_reply,
    encode_leave,
)
from delay_protocol.nodes.group_changes import (
    Alter,
    ChangeReply,
    HandOver,
    NodeNews,
    NodeWatch,
    Vote,
    WatchReply,
    decode_change_reply,
    decode_group_change,
    decode_node_watch,
    decode_watch_reply,
    encode_change_reply,
    encode_group_change,
    encode_node_watch,
    encode_watch_reply,
)
from delay_protocol.nodes.registration import NODE_BODY_BYTES_MAX
from tests.delay_protocol.nodes.test_registration import DISK, MEMBER, RECORD

ASKED = Asked(sequence=1001, epoch=3, crc=0x89ABCDEF)
FOLLOW = Follow(
    cluster="c",
    group="g",
    node_id="n2",
    storage_uuid=UUID(int=2),
    incarnation=5,
    boot_id=UUID(int=3),
    log_uuid=UUID(int=1),
    epoch=4,
    asked=ASKED,
)
HEAD = BatchesHead(first=1001, behind=1003, committed=1001, time_ms=60_000, may_send=True)
BATCHES = b"whole batches"
ACK = Acknowledged(end=1003, applied=1001, echo_ms=60_000, now_ms=1_700_000_000_000)
LEAVE = Leave(reason="no space")

NEWS = NodeNews(record=RECORD, members={"n1": MEMBER}, vote_epoch=3, gone=2, hand_over_to="n2")
VOTE = Vote(epoch=4, last_epoch=3, end=1003, applied=1001)
ALTER = Alter(epoch=2, version=5, in_sync={"n1": DISK})
HAND_OVER = HandOver(epoch=2, version=5, target="n2")
CHANGED = ChangeReply(record=RECORD, refusal="no")


@dataclass(frozen=True)
class Body:
    """A kind of body that is one msgpack map, with an example."""

    example: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    bytes_max: int


_REPLY = (encode_follow_reply, decode_follow_reply, FOLLOW_BYTES_MAX)
_CHANGE = (encode_group_change, decode_group_change, NODE_BODY_BYTES_MAX)

BODIES = {
    "watch": Body(NodeWatch(), encode_node_watch, decode_node_watch, NODE_BODY_BYTES_MAX),
    "news": Body(
        WatchReply(news=NEWS), encode_watch_reply, decode_watch_reply, NODE_BODY_BYTES_MAX
    ),
    "vote": Body(VOTE, *_CHANGE),
    "alter": Body(ALTER, *_CHANGE),
    "hand over": Body(HAND_OVER, *_CHANGE),
    "changed": Body(CHANGED, encode_change_reply, decode_change_reply, NODE_BODY_BYTES_MAX),
    "follow": Body(FOLLOW, encode_follow, decode_follow, FOLLOW_BYTES_MAX),
    "matches": Body(Matches(asked=ASKED), *_REPLY),
    "diverges": Body(LogDiverges(asked=ASKED, epoch=2, end=900), *_REPLY),
    "behind": Body(LogBehind(asked=ASKED, first=5000), *_REPLY),
    "refused": Body(FollowRefused(reason="no"), *_REPLY),
    "ack": Body(ACK, encode_acknowledged, decode_acknowledged, FOLLOW_BYTES_MAX),
    "leave": Body(LEAVE, encode_leave, decode_leave, FOLLOW_BYTES_MAX),
}


def said(value: object, **changed: object) -> bytes:
    """Return the body that says this, with some keys changed, or left out where ..."""
    keys = msgspec.msgpack.decode(msgspec.msgpack.encode(value)) | changed
    return msgspec.msgpack.encode({key: keys[key] for key in keys if keys[key] is not ...})
