"""Examples of the bodies of our own requests and answers that are one msgpack map each."""

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
from delay_protocol.nodes.registration import (
    NODE_BODY_BYTES_MAX,
    GroupMember,
    GroupRecord,
    Master,
    NodeRegister,
    NodeRegistered,
    NodeRole,
    Phase,
    Refused,
    decode_node_register,
    decode_node_reply,
    encode_node_register,
    encode_node_reply,
)
from delay_protocol.nodes.snapshots import (
    CHECKPOINT_NAME,
    READ_BYTES_MAX,
    SnapshotBegun,
    SnapshotBytes,
    SnapshotRead,
    decode_read_reply,
    decode_snapshot_read,
    decode_snapshot_reply,
    encode_read_reply,
    encode_snapshot_read,
    encode_snapshot_reply,
)
from delay_protocol.receivers.attaching import (
    ATTACH_BYTES_MAX,
    INSTANCE_BYTES,
    Attach,
    Attached,
    AttachRefused,
    Flow,
    decode_attach,
    decode_attach_reply,
    decode_flow,
    encode_attach,
    encode_attach_reply,
    encode_flow,
)
from delay_protocol.receivers.masters import (
    REGISTER_BYTES_MAX,
    REPLY_BYTES_MAX,
    MasterInfo,
    ReceiverRefused,
    ReceiverRegister,
    ReceiverRegistered,
    decode_receiver_register,
    decode_receiver_reply,
    encode_receiver_register,
    encode_receiver_reply,
)

LOG, DISK, BOOT = UUID(int=1), UUID(int=2), UUID(int=3)
REQUEST = NodeRegister(
    cluster="c",
    group="g",
    node_id="n1",
    log_uuid=LOG,
    storage_uuid=DISK,
    incarnation=3,
    boot_id=BOOT,
    last_sequence=7,
    last_epoch=2,
    address="h:1",
    http_address="h:2",
    version="0.1",
)
RECORD = GroupRecord(
    epoch=2,
    version=5,
    master=Master(node_id="n1", incarnation=3),
    in_sync={"n1": DISK},
    min_isr=1,
    phase=Phase.ACTIVE,
)
REGISTERED = NodeRegistered(role=NodeRole.MASTER, record=RECORD, again_ms=5000)
MEMBER = GroupMember(storage_uuid=DISK, incarnation=3, boot_id=BOOT, address="h:1")
FULL = msgspec.structs.replace(REGISTERED, log_uuid=LOG, members={"n1": MEMBER})

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

NEWS = NodeNews(
    record=RECORD,
    members={"n1": MEMBER},
    vote_epoch=3,
    gone=2,
    hand_over_to="n2",
    hand_over_why="a",
)
VOTE = Vote(epoch=4, last_epoch=3, end=1003, applied=1001)
ALTER = Alter(epoch=2, version=5, in_sync={"n1": DISK})
HAND_OVER = HandOver(epoch=2, version=5, target="n2")
CHANGED = ChangeReply(record=RECORD, refusal="no")

ATTACH = Attach(
    name="r",
    instance=bytes(range(INSTANCE_BYTES)),
    patterns=("orders.*",),
    weight=7,
    token="t",  # noqa: S106 (an example)
)
ATTACHED = Attached(group="g1", epoch=4, lease_s=30, now_ms=1_700_000_000_000)
FLOW = Flow(items=1000, bytes=16 << 20)
RECEIVER = ReceiverRegister(name="mail", patterns=("orders.*",), told=7)
MASTERS = ReceiverRegistered(version=7, masters=(MasterInfo(group="d1", address="10.0.0.5:20801"),))


@dataclass(frozen=True)
class Body:
    """A kind of body that is one msgpack map, with an example."""

    example: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    bytes_max: int


_REPLY = (encode_follow_reply, decode_follow_reply, FOLLOW_BYTES_MAX)
_REGISTERED = (encode_node_reply, decode_node_reply, NODE_BODY_BYTES_MAX)
_ATTACHED = (encode_attach_reply, decode_attach_reply, ATTACH_BYTES_MAX)
_MASTERS = (encode_receiver_reply, decode_receiver_reply, REPLY_BYTES_MAX)
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
    "register": Body(REQUEST, encode_node_register, decode_node_register, NODE_BODY_BYTES_MAX),
    "registered": Body(FULL, *_REGISTERED),
    "not registered": Body(Refused(reason="no"), *_REGISTERED),
    "begun": Body(
        SnapshotBegun(sequence=18203, size=700),
        encode_snapshot_reply,
        decode_snapshot_reply,
        FOLLOW_BYTES_MAX,
    ),
    "read": Body(
        SnapshotRead(path=CHECKPOINT_NAME, position=0, size=700),
        encode_snapshot_read,
        decode_snapshot_read,
        FOLLOW_BYTES_MAX,
    ),
    "bytes": Body(
        SnapshotBytes(data=b"\x01\x02"),
        encode_read_reply,
        decode_read_reply,
        READ_BYTES_MAX + FOLLOW_BYTES_MAX,
    ),
    "attach": Body(ATTACH, encode_attach, decode_attach, ATTACH_BYTES_MAX),
    "attached": Body(ATTACHED, *_ATTACHED),
    "not attached": Body(AttachRefused(reason="no", is_final=True), *_ATTACHED),
    "flow": Body(FLOW, encode_flow, decode_flow, ATTACH_BYTES_MAX),
    "receiver": Body(
        RECEIVER, encode_receiver_register, decode_receiver_register, REGISTER_BYTES_MAX
    ),
    "masters": Body(MASTERS, *_MASTERS),
    "no masters": Body(ReceiverRefused(reason="no"), *_MASTERS),
}


def said(value: object, **changed: object) -> bytes:
    """Return the body that says this, with some keys changed, or left out where ..."""
    keys = msgspec.msgpack.decode(msgspec.msgpack.encode(value)) | changed
    return msgspec.msgpack.encode({key: keys[key] for key in keys if keys[key] is not ...})
