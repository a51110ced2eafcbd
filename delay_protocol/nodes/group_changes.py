"""NODE_WATCH (1013) and GROUP_CHANGE (1014): what nodes and meta server agree on. Ours, not QMQ's.

    node                                                      meta server
    NODE_REGISTER {state, controls, …}                ---->
    NODE_WATCH {}                                     ---->
                                                      <----   {news, controls}, at once
    NODE_WATCH {}                                     ---->   … nothing until something of it is
                                                      <----   other than sent last, or WATCH_S
    GROUP_CHANGE {vote} or {alter} or {hand over}     ---->
                                                      <----   {record, refusal}

Both only on a connection on which the node has registered, and sealed as NODE_REGISTER is
(auth.py). A change is answered when the store has it, with the record as it is then; what was
refused says why, and counts the record's version up, so that it cannot come true later.

News of the group are its record, its members, and what is asked of this node: a vote, or to hand
over. Controls are the rules of operators (controls.py), sent whole, unless the node applies these
very ones by its registration. What does not fit into one answer beside the news goes with the next:
a vote never waits for controls. One NODE_WATCH waits at a time on a connection.

Bodies are msgpack maps; keys that a reader does not know are skipped.
"""

from typing import Annotated, Final
from uuid import UUID

import msgspec
from msgspec.msgpack import Decoder

from delay_protocol.basics.errors import MalformedMetaError
from delay_protocol.nodes.controls import (
    DOCUMENT_BYTES_MAX,
    Controls,
    ControlsError,
    ControlsId,
    decode_controls,
    id_of,
)
from delay_protocol.nodes.packed import codec_of
from delay_protocol.nodes.registration import (
    COUNTED_MAX,
    NAME_LENGTH_MAX,
    NODE_BODY_BYTES_MAX,
    REPLICAS_MAX,
    Count,
    GroupRecord,
    Members,
    Name,
    Reason,
)

WATCH_S: Final = 20.0
"""Seconds after which a meta server answers that there is nothing new."""

Epoch = Annotated[int, msgspec.Meta(ge=0, le=COUNTED_MAX)]


class NodeWatch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node asks for news. What it was sent on this connection is known there."""


class NodeNews(msgspec.Struct, frozen=True, kw_only=True):
    """How a group is."""

    record: GroupRecord
    members: Members
    """All nodes of the group."""
    vote_epoch: Epoch = 0
    """The epoch for which this node's vote is asked; 0: none is."""
    gone: Epoch = 0
    """The epoch of a master of which the start is gone: what was promised to it, and to those
    before it, is void. 0: none is known to be."""
    hand_over_to: Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)] = ""
    """The node to which the master is to hand the group over; empty: to none."""
    hand_over_why: Reason = ""
    """Why it is to."""


class ControlsNews(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The controls that are in force at the meta server."""

    id: ControlsId
    document: Annotated[bytes, msgspec.Meta(max_length=DOCUMENT_BYTES_MAX)] | None = None
    """JSON of `Controls`, with its store; None: the node applies them, by its registration."""


class WatchReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to NODE_WATCH."""

    news: NodeNews | None = None
    """None: the group is as sent before."""
    controls: ControlsNews | None = None
    """None: they are as sent before, or come with the next answer."""


class Vote(msgspec.Struct, frozen=True, kw_only=True, tag="vote"):
    """A node follows, and is, no master of an earlier epoch; that is durable, and so is its log."""

    epoch: Epoch
    last_epoch: Epoch
    """Of the last record of its log."""
    end: Annotated[int, msgspec.Meta(ge=1, le=COUNTED_MAX)]
    """Of its durable log: the first record that it lacks."""
    applied: Annotated[int, msgspec.Meta(ge=1, le=COUNTED_MAX)]
    """The first record that it has not filed."""


class Alter(msgspec.Struct, frozen=True, kw_only=True, tag="alter"):
    """The master wants another in-sync set, if the record is still that of this pair."""

    epoch: Count
    version: Count
    in_sync: Annotated[dict[Name, UUID], msgspec.Meta(min_length=1, max_length=REPLICAS_MAX)]


class HandOver(msgspec.Struct, frozen=True, kw_only=True, tag="hand over", gc=False):
    """The master wants another master, or itself in a new epoch, if the record is of this pair."""

    epoch: Count
    version: Count
    target: Name


GroupChange = Vote | Alter | HandOver


class ChangeReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to GROUP_CHANGE."""

    record: GroupRecord
    """As it is now."""
    refusal: Reason = ""
    """Why the change was not made; empty if it was."""


_CHANGE: Decoder[GroupChange] = Decoder(GroupChange)

encode_node_watch, decode_node_watch = codec_of(Decoder(NodeWatch), NODE_BODY_BYTES_MAX)
"""Body of a NODE_WATCH."""
encode_watch_reply, decode_watch_reply = codec_of(Decoder(WatchReply), NODE_BODY_BYTES_MAX)
"""Body of an answer to NODE_WATCH."""


def read_document(document: bytes, named: ControlsId) -> Controls:
    """Return the controls of this name from their document; raise MalformedMetaError."""
    try:
        controls = decode_controls(document)
    except ControlsError as error:
        raise MalformedMetaError(f"controls: {error}") from error
    if id_of(controls) != named:
        raise MalformedMetaError("the controls are not those that their name says")
    return controls


encode_group_change, decode_group_change = codec_of(_CHANGE, NODE_BODY_BYTES_MAX)
"""Body of a GROUP_CHANGE."""
encode_change_reply, decode_change_reply = codec_of(Decoder(ChangeReply), NODE_BODY_BYTES_MAX)
"""Body of an answer to GROUP_CHANGE."""
