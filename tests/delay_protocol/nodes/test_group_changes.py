"""What a node is told of its group, and asks for, has defaults."""

import msgspec

from delay_protocol.nodes.group_changes import (
    WatchReply,
    decode_change_reply,
    decode_watch_reply,
    encode_watch_reply,
)
from tests.delay_protocol.nodes.bodies import CHANGED, NEWS, said


def test_nothing_new_is_told_as_nothing() -> None:
    assert encode_watch_reply(WatchReply()) == bytes.fromhex(
        "82 a46e657773 c0 a8636f6e74726f6c73 c0"
    )
    assert decode_watch_reply(b"\x80") == WatchReply(news=None)


def test_what_has_a_default_may_be_left_out() -> None:
    news = msgspec.msgpack.decode(said(NEWS, vote_epoch=..., gone=..., hand_over_to=...))
    found = decode_watch_reply(said(WatchReply(), news=news)).news
    assert found is not None
    assert (found.vote_epoch, found.hand_over_to) == (0, "")
    assert decode_change_reply(said(CHANGED, refusal=...)).refusal == ""
