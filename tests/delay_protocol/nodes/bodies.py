"""Examples of the bodies of our own requests and answers that are one msgpack map each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from delay_protocol.nodes import following, snapshots
from delay_protocol.nodes.controls import ControlsId
from delay_protocol.nodes.group_changes import (
    Alter,
    ChangeReply,
    ControlsNews,
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
from delay_protocol.receivers import attaching, masters

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

ASKED = following.Asked(sequence=1001, epoch=3, crc=0x89ABCDEF)
FOLLOW = following.Follow(
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
HEAD = following.BatchesHead(first=1001, behind=1003, committed=1001, time_ms=60_000, may_send=True)
BATCHES = b"whole batches"
ACK = following.Acknowledged(end=1003, applied=1001, echo_ms=60_000, now_ms=1_700_000_000_000)
LEAVE = following.Leave(reason="no space")

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
CONTROLS = ControlsNews(id=ControlsId(store=LOG, version=3, crc=7), document=b"{}")
CHANGED = ChangeReply(record=RECORD, refusal="no")

ATTACH = attaching.Attach(
    name="r",
    instance=bytes(range(attaching.INSTANCE_BYTES)),
    patterns=("orders.*",),
    weight=7,
    unsettled_tries=5,
    token="t",  # noqa: S106 (an example)
)
ATTACHED = attaching.Attached(group="g1", epoch=4, lease_s=30, now_ms=1_700_000_000_000)
FLOW = attaching.Flow(items=1000, bytes=16 << 20)
RECEIVER = masters.ReceiverRegister(name="mail", patterns=("orders.*",), told=7)
MASTERS = masters.ReceiverRegistered(
    version=7, masters=(masters.MasterInfo(group="d1", address="10.0.0.5:20801"),)
)


@dataclass(frozen=True)
class Body:
    """A kind of body that is one msgpack map, with an example."""

    example: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    bytes_max: int


_REPLY = (following.encode_follow_reply, following.decode_follow_reply, following.FOLLOW_BYTES_MAX)
_REGISTERED = (encode_node_reply, decode_node_reply, NODE_BODY_BYTES_MAX)
_ATTACHED = (
    attaching.encode_attach_reply,
    attaching.decode_attach_reply,
    attaching.ATTACH_BYTES_MAX,
)
_MASTERS = (masters.encode_receiver_reply, masters.decode_receiver_reply, masters.REPLY_BYTES_MAX)
_CHANGE = (encode_group_change, decode_group_change, NODE_BODY_BYTES_MAX)

BODIES = {
    "watch": Body(NodeWatch(), encode_node_watch, decode_node_watch, NODE_BODY_BYTES_MAX),
    "news": Body(
        WatchReply(news=NEWS, controls=CONTROLS),
        encode_watch_reply,
        decode_watch_reply,
        NODE_BODY_BYTES_MAX,
    ),
    "vote": Body(VOTE, *_CHANGE),
    "alter": Body(ALTER, *_CHANGE),
    "hand over": Body(HAND_OVER, *_CHANGE),
    "changed": Body(CHANGED, encode_change_reply, decode_change_reply, NODE_BODY_BYTES_MAX),
    "follow": Body(
        FOLLOW, following.encode_follow, following.decode_follow, following.FOLLOW_BYTES_MAX
    ),
    "matches": Body(following.Matches(asked=ASKED), *_REPLY),
    "diverges": Body(following.LogDiverges(asked=ASKED, epoch=2, end=900), *_REPLY),
    "behind": Body(following.LogBehind(asked=ASKED, first=5000), *_REPLY),
    "refused": Body(following.FollowRefused(reason="no"), *_REPLY),
    "ack": Body(
        ACK,
        following.encode_acknowledged,
        following.decode_acknowledged,
        following.FOLLOW_BYTES_MAX,
    ),
    "leave": Body(
        LEAVE, following.encode_leave, following.decode_leave, following.FOLLOW_BYTES_MAX
    ),
    "register": Body(REQUEST, encode_node_register, decode_node_register, NODE_BODY_BYTES_MAX),
    "registered": Body(FULL, *_REGISTERED),
    "not registered": Body(Refused(reason="no"), *_REGISTERED),
    "begun": Body(
        snapshots.SnapshotBegun(sequence=18203, size=700),
        snapshots.encode_snapshot_reply,
        snapshots.decode_snapshot_reply,
        following.FOLLOW_BYTES_MAX,
    ),
    "read": Body(
        snapshots.SnapshotRead(path=snapshots.CHECKPOINT_NAME, position=0, size=700),
        snapshots.encode_snapshot_read,
        snapshots.decode_snapshot_read,
        following.FOLLOW_BYTES_MAX,
    ),
    "bytes": Body(
        snapshots.SnapshotBytes(data=b"\x01\x02"),
        snapshots.encode_read_reply,
        snapshots.decode_read_reply,
        snapshots.READ_BYTES_MAX + following.FOLLOW_BYTES_MAX,
    ),
    "attach": Body(
        ATTACH, attaching.encode_attach, attaching.decode_attach, attaching.ATTACH_BYTES_MAX
    ),
    "attached": Body(ATTACHED, *_ATTACHED),
    "not attached": Body(attaching.AttachRefused(reason="no", is_final=True), *_ATTACHED),
    "flow": Body(FLOW, attaching.encode_flow, attaching.decode_flow, attaching.ATTACH_BYTES_MAX),
    "receiver": Body(
        RECEIVER,
        masters.encode_receiver_register,
        masters.decode_receiver_register,
        masters.REGISTER_BYTES_MAX,
    ),
    "masters": Body(MASTERS, *_MASTERS),
    "no masters": Body(masters.ReceiverRefused(reason="no"), *_MASTERS),
}


def said(value: object, **changed: object) -> bytes:
    """Return the body that says this, with some keys changed, or left out where ..."""
    keys = msgspec.msgpack.decode(msgspec.msgpack.encode(value)) | changed
    return msgspec.msgpack.encode({key: keys[key] for key in keys if keys[key] is not ...})
