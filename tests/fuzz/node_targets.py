"""Targets for what the nodes of a group say to each other, and to their meta server about it."""

from collections.abc import Callable
from typing import Any, Final

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.nodes.following import (
    FOLLOW_BYTES_MAX,
    HEAD_SIZE,
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
from delay_protocol.nodes.group_changes import (
    Alter,
    Vote,
    decode_change_reply,
    decode_group_change,
    decode_node_watch,
    decode_watch_reply,
    encode_change_reply,
    encode_group_change,
    encode_node_watch,
    encode_watch_reply,
)
from delay_protocol.nodes.registration import NODE_BODY_BYTES_MAX, REPLICAS_MAX
from tests.fuzz.target import attempt, target

_PACKAGES: Final = ("delay_protocol",)


def read_back(
    decode: Callable[[bytes], Any], encode: Callable[[Any], bytes], body: bytes, bytes_max: int
) -> Any:  # noqa: ANN401 - what the decoder returns
    """Return what a body says, or None; what is written of it is read as the same."""
    found = attempt(MalformedMetaError, decode, body)
    if found is not None:
        assert len(body) <= bytes_max
        # Too long it may be with the keys that the body left out.
        again = attempt(LocalProtocolError, encode, found)
        assert again is not None or 2 * len(body) > bytes_max
        assert again is None or decode(again) == found
    return found


@target(
    decoders=(decode_node_watch, decode_watch_reply, decode_group_change, decode_change_reply),
    packages=_PACKAGES,
    size_max=4096,
)
def group_changes(data: bytes) -> None:
    """News and changes come back as they were, and are within the limits."""
    size = NODE_BODY_BYTES_MAX
    read_back(decode_node_watch, encode_node_watch, data, size)
    told = read_back(decode_watch_reply, encode_watch_reply, data, size)
    if told is not None and told.news is not None:
        assert told.news.vote_epoch >= 0
        assert max(len(told.news.members), len(told.news.record.in_sync)) <= REPLICAS_MAX
    change = read_back(decode_group_change, encode_group_change, data, size)
    if isinstance(change, Vote):
        assert min(change.end, change.applied) > 0
        assert min(change.epoch, change.last_epoch) >= 0
    elif change is not None:
        assert min(change.epoch, change.version) >= 0
        assert len(change.in_sync if isinstance(change, Alter) else change.target) > 0
    read_back(decode_change_reply, encode_change_reply, data, size)


@target(
    decoders=(
        decode_follow,
        decode_follow_reply,
        decode_batches,
        decode_acknowledged,
        decode_leave,
    ),
    packages=_PACKAGES,
)
def following(data: bytes) -> None:
    """What a slave and its master say comes back as it was, and batches are handed on whole."""
    follow = read_back(decode_follow, encode_follow, data, FOLLOW_BYTES_MAX)
    if follow is not None:
        assert follow.asked.sequence > 0
        assert follow.incarnation > 0
    read_back(decode_follow_reply, encode_follow_reply, data, FOLLOW_BYTES_MAX)
    said = read_back(decode_acknowledged, encode_acknowledged, data, FOLLOW_BYTES_MAX)
    if said is not None:
        assert min(said.end, said.applied) > 0
        assert said.echo_ms is None or said.echo_ms >= 0
    read_back(decode_leave, encode_leave, data, FOLLOW_BYTES_MAX)
    found = attempt(MalformedMetaError, decode_batches, data)
    if found is not None:
        head, batches = found
        assert encode_batches_head(head) == data[:HEAD_SIZE]
        assert batches == data[HEAD_SIZE:]
        assert 0 < head.first <= head.behind
        assert (head.first < head.behind) is bool(batches)
        assert head.committed > 0
        assert head.time_ms >= 0
