"""A repeat differs from its original in when it was made, and in nothing else that counts."""

import zlib

import pytest

from delay_protocol.messages.items import FLAG_DELAY, FLAG_TAGS, Item, encode_item
from delay_protocol.messages.repeats import is_repeat

DUE_MS = 1_788_220_800_000
BODY = {"qmq_createTime": "1788220000000", "qmq_scheduleReceiveTime": str(DUE_MS), "k": "v"}
DELAY = {"dw_delay": "60000"}


def item(
    *,
    due_ms: int = DUE_MS,
    create_ms: int = 5,
    subject: str = "a.b",
    message_id: str = "m1",
    tags: tuple[str, ...] = (),
    flag: int = FLAG_DELAY,
    body: dict[str, str] | None = None,
) -> bytes:
    attributes = BODY if body is None else body
    return encode_item(Item(flag, create_ms, due_ms, subject, message_id, tags, attributes))


def due(ms: int, **more: str) -> bytes:
    return item(due_ms=ms, body={**BODY, "qmq_scheduleReceiveTime": str(ms), **more})


def test_the_same_bytes_are_a_repeat_whatever_the_attributes_are() -> None:
    assert is_repeat(item(), item())
    broken = bytearray(item())
    broken[-3:] = b"\xff\xff\xff"
    broken[4:8] = zlib.crc32(broken[8:]).to_bytes(4, "big")
    assert is_repeat(bytes(broken), bytes(broken))
    other = broken[:-1] + b"\xfe"
    assert not is_repeat(bytes(broken), bytes(other))


def test_another_creation_time_does_not_matter() -> None:
    later = {**BODY, "qmq_createTime": "99"}
    assert is_repeat(item(create_ms=9, body=later), item())
    assert not is_repeat(
        item(body={k: v for k, v in BODY.items() if k != "qmq_createTime"}), item()
    )


@pytest.mark.parametrize(
    "other",
    [
        item(message_id="m2"),
        item(subject="a.c"),
        item(tags=("t",), flag=FLAG_DELAY | FLAG_TAGS),
        item(flag=FLAG_DELAY | 1),
        item(body={**BODY, "k": "w"}),
        item(body={**BODY, "j": "v"}),
        item(body={**BODY, "qmq_times": "2"}),
        item(body=dict(reversed(BODY.items()))),
        item(due_ms=DUE_MS + 1),
        item(body={**BODY, "qmq_scheduleReceiveTime": "1"}),
        due(DUE_MS + 1),
        due(DUE_MS + 1, **DELAY),
    ],
)
def test_any_other_difference_makes_another_message(other: bytes) -> None:
    assert not is_repeat(other, item())
    assert not is_repeat(item(), other)


def test_tags_are_compared() -> None:
    flag = FLAG_DELAY | FLAG_TAGS
    assert is_repeat(
        item(tags=("t", "u"), flag=flag, create_ms=1), item(tags=("t", "u"), flag=flag)
    )
    assert not is_repeat(item(tags=("t", "u"), flag=flag), item(tags=("t", "v"), flag=flag))


def test_another_time_is_a_repeat_only_where_both_say_the_same_delay() -> None:
    first, again = due(DUE_MS, **DELAY), due(DUE_MS + 700, **DELAY)
    assert is_repeat(again, first)
    assert not is_repeat(due(DUE_MS + 700, dw_delay="60001"), first)
    assert not is_repeat(due(DUE_MS + 700), first)
    assert not is_repeat(due(DUE_MS + 700, k="w", **DELAY), first)
