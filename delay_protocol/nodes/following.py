"""FOLLOW (1020) and what comes after it: a slave copies the log of its master. Ours, not QMQ's.

    slave                                              master, at its port
    FOLLOW {start, log, epoch, question}       ---->
                                               <----   {matches}; or {diverges}, {behind}, …
                                               <----   BATCHES head, batches    one-way, again and
    ACK {end, applied, echo}                   ---->                            again
    LEAVE {reason}                             ---->   … and the connection is closed

The question is the end of the slave's durable log with the epoch and the CRC of the batch before
it. Only after {matches} batches come. BATCHES, ACK and LEAVE are one-way requests, FOLLOW is
answered; where there is a secret it is sealed as NODE_REGISTER is (auth.py), by both sides.

    head of BATCHES, 33 bytes, big-endian, signed:  first | behind | committed | time, and a byte:
                                                    1 if the master may send, else 0
    the rest:  whole batches as they are in the message_log, records `first` up to `behind`

All other bodies are msgpack maps; keys that a reader does not know are skipped.
"""

import struct
from typing import Annotated, Final, NamedTuple
from uuid import UUID

import msgspec
from msgspec.msgpack import Decoder

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.nodes.packed import codec_of
from delay_protocol.nodes.registration import COUNTED_MAX, REASON_LENGTH_MAX, Name

FOLLOW_BYTES_MAX: Final = 8 * 1024
"""Bytes of any body but that of BATCHES; a larger one is refused unread."""
FOLLOW_FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of a frame to a slave: a batch of the largest item and its columns fits."""

_HEAD: Final = struct.Struct(">qqqqB")
HEAD_SIZE: Final = _HEAD.size

Sequence = Annotated[int, msgspec.Meta(ge=1, le=COUNTED_MAX)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=COUNTED_MAX)]
Clock = Annotated[int, msgspec.Meta(ge=0, le=COUNTED_MAX)]
"""ms of the boot clock of a master."""


class Asked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where the log of a slave ends."""

    sequence: Sequence
    """The first record that it lacks; all before are durable."""
    epoch: Epoch
    """Of the record before; 0: there is none."""
    crc: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
    """Of the batch before; 0: there is none."""


class Follow(msgspec.Struct, frozen=True, kw_only=True):
    """A start of a node asks to follow the master of an epoch."""

    cluster: Name
    group: Name
    node_id: Name
    storage_uuid: UUID
    incarnation: Annotated[int, msgspec.Meta(ge=1, le=COUNTED_MAX)]
    boot_id: UUID
    log_uuid: UUID
    epoch: Epoch
    """Of the master that it takes the other side for."""
    asked: Asked


class Matches(msgspec.Struct, frozen=True, kw_only=True, tag="matches"):
    """The log is the same up to the question: batches come next."""

    asked: Asked


class LogDiverges(msgspec.Struct, frozen=True, kw_only=True, tag="diverges"):
    """The logs part: all of later epochs goes, and all from `end` on."""

    asked: Asked
    epoch: Epoch
    end: Sequence


class LogBehind(msgspec.Struct, frozen=True, kw_only=True, tag="behind"):
    """The master's log begins later than the slave's ends: it needs a snapshot."""

    asked: Asked
    first: Sequence


class FollowRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused", gc=False):
    """It may not follow here, or not now."""

    reason: Annotated[str, msgspec.Meta(max_length=REASON_LENGTH_MAX)]
    epoch: Epoch = 0
    """The newest epoch that the other side knows, where that is why."""


FollowReply = Matches | LogDiverges | LogBehind | FollowRefused


class BatchesHead(NamedTuple):
    """What goes with batches."""

    first: int
    """The first record of the batches."""
    behind: int
    """The record behind the last; equal to `first` if there are none."""
    committed: int
    """All records below are committed."""
    time_ms: int
    """The master's boot clock, which an acknowledgement echoes."""
    may_send: bool
    """True if the master may send just now: all that it has to be promised is promised."""


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How far a slave is."""

    end: Sequence
    """Of its durable log: the first record that it lacks."""
    applied: Sequence
    """The first record that it has not filed."""
    echo_ms: Clock | None = None
    """The newest time of the master since which the slave has promised it to vote for nobody else;
    None: it promises nothing."""
    now_ms: Clock | None = None
    """The wall clock of the slave."""


class Leave(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A slave stops, or cannot append."""

    reason: Annotated[str, msgspec.Meta(max_length=REASON_LENGTH_MAX)]


_REPLY: Decoder[FollowReply] = Decoder(FollowReply)

encode_follow, decode_follow = codec_of(Decoder(Follow), FOLLOW_BYTES_MAX)
"""Body of a FOLLOW."""
encode_follow_reply, decode_follow_reply = codec_of(_REPLY, FOLLOW_BYTES_MAX)
"""Body of an answer to FOLLOW."""
encode_acknowledged, decode_acknowledged = codec_of(Decoder(Acknowledged), FOLLOW_BYTES_MAX)
"""Body of an ACK."""
encode_leave, decode_leave = codec_of(Decoder(Leave), FOLLOW_BYTES_MAX)
"""Body of a LEAVE."""


def encode_batches_head(head: BatchesHead) -> bytes:
    """Return the first bytes of a BATCHES; raise LocalProtocolError."""
    fault = _fault_of(head)
    if fault:
        raise LocalProtocolError(fault)
    return _HEAD.pack(*head)


def decode_batches(body: bytes) -> tuple[BatchesHead, memoryview]:
    """Return the head of a BATCHES, and the batches, which nobody has looked at yet.

    Raises MalformedMetaError.
    """
    if len(body) < HEAD_SIZE:
        raise MalformedMetaError(f"a BATCHES of {len(body)} bytes, its head alone has {HEAD_SIZE}")
    first, behind, committed, time_ms, may_send = _HEAD.unpack_from(body)
    if may_send > 1:
        raise MalformedMetaError(f"whether the master may send is 0 or 1, not {may_send}")
    head = BatchesHead(first, behind, committed, time_ms, may_send == 1)
    batches = memoryview(body)[HEAD_SIZE:]
    fault = _fault_of(head)
    if fault:
        raise MalformedMetaError(fault)
    if (head.behind == head.first) != (not batches):
        raise MalformedMetaError(f"{len(batches)} bytes of batches with {head}")
    return head, batches


def _fault_of(head: BatchesHead) -> str:
    """Return why a head is none; empty if it is one."""
    counts = (head.first, head.behind, head.committed)
    if not all(1 <= count <= COUNTED_MAX for count in counts):
        return f"a count below 1, or above {COUNTED_MAX}: {head}"
    if not 0 <= head.time_ms <= COUNTED_MAX:
        return f"a time below 0, or above {COUNTED_MAX}: {head}"
    return f"batches that end before they begin: {head}" if head.behind < head.first else ""
