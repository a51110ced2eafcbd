"""Promise: what comes again is the same message, and only its due time and its count are others."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_client.receiving.message import MessageBatch, ReceivedMessage, later_item
from delay_client.receiving.settings import RetryPolicy
from delay_protocol.basics.errors import MalformedItemError
from delay_protocol.messages.items import (
    FLAG_DELAY,
    FLAG_LOW_RELIABILITY,
    FLAG_TAGS,
    Item,
    decode_item,
    encode_item,
)
from delay_protocol.receivers.delivering import Delivered, Verdict

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
TIMES = st.integers(0, 253_402_300_799_999)
NOW_MS = 1_700_000_000_000


class Desk:
    """Keeps the verdicts."""

    def __init__(self) -> None:
        self.retry = RetryPolicy(jitter=0)
        self.chance = random.Random(1)
        self.verdicts: list[tuple[Verdict, bytes]] = []

    def now_ms(self) -> int:
        return NOW_MS

    def settle(self, message: ReceivedMessage, verdict: Verdict, rest: bytes = b"") -> None:
        assert not message.is_settled
        message.is_settled = True
        self.verdicts.append((verdict, rest))


def received(item: Item, *, tried: int = 1) -> tuple[ReceivedMessage, Desk]:
    desk = Desk()
    message = ReceivedMessage(desk, 1, Delivered(1, tried, encode_item(item)), 2000)
    message.read()
    return message, desk


@given(
    flag=st.sampled_from([0, FLAG_DELAY, FLAG_DELAY | FLAG_LOW_RELIABILITY]),
    subject=TEXT.filter(bool),
    message_id=TEXT.filter(bool),
    tags=st.lists(TEXT, max_size=10).map(tuple),
    attributes=st.dictionaries(TEXT, TEXT, max_size=5),
    times=st.none() | st.integers(0, 10**6),
    due_ms=TIMES,
)
def test_an_item_comes_again_as_it_was_but_for_its_time_and_its_count(
    *,
    flag: int,
    subject: str,
    message_id: str,
    tags: tuple[str, ...],
    attributes: dict[str, str],
    times: int | None,
    due_ms: int,
) -> None:
    if times is not None:
        attributes = {"qmq_scheduleReceiveTime": "5", **attributes, "qmq_times": str(times)}
    flag |= FLAG_TAGS if tags else 0
    item = Item(flag, 1000, 5, subject, message_id, tags, attributes)
    again = decode_item(later_item(item, due_ms))
    assert again == Item(
        flag | FLAG_DELAY,
        1000,
        due_ms,
        subject,
        message_id,
        tags,
        attributes | {"qmq_times": str((times or 0) + 1), "qmq_scheduleReceiveTime": str(due_ms)},
    )


def test_an_item_that_only_others_write_cannot_come_again() -> None:
    message, desk = received(Item(FLAG_DELAY, 1, 2, "s", "m"))
    message.item = Item(FLAG_DELAY, 1, 2, "s", "m", (), {"k": "x" * 40_000})
    message.failed(ValueError("x"))
    [(verdict, reason)] = desk.verdicts
    assert verdict == Verdict.REFUSED
    assert reason.startswith(b"given up, since it could not come again: string of 40000 bytes")


@pytest.mark.parametrize(
    ("times", "attempt"),
    [("0", 3), ("7", 10), ("", 3), ("x", 3), ("-4", 3), ("9" * 5000, 3), ("9" * 20, 2**31 + 2)],
)
def test_the_attempt_counts_the_tries_before_and_those_here(times: str, attempt: int) -> None:
    message, _ = received(Item(FLAG_DELAY, 1, 2, "s", "m", (), {"qmq_times": times}), tried=3)
    assert message.attempt == attempt
    assert b"qmq_times" in later_item(message.item, 5)


def test_an_item_without_the_flag_was_due_when_it_was_made() -> None:
    message, _ = received(Item(0, 1500, 9000, "s", "m"))
    assert (message.due_ms, message.lateness) == (1500, 0.5)


@pytest.mark.parametrize("due_ms", [-1, 253_402_300_800_000])
def test_a_time_that_no_datetime_tells_is_poison(due_ms: int) -> None:
    with pytest.raises(MalformedItemError, match="due at"):
        received(Item(FLAG_DELAY, 1, due_ms, "s", "m"))


def test_waits_grow_by_the_attempt_until_there_are_no_more_tries() -> None:
    message, desk = received(Item(FLAG_DELAY, 1, 2, "s", "m", (), {"qmq_times": "14"}))
    message.failed(ValueError("x"))
    [(verdict, item)] = desk.verdicts
    assert verdict == Verdict.LATER
    assert decode_item(item).attributes["qmq_times"] == "15"
    message, desk = received(decode_item(item))
    message.failed(ValueError("x"))
    assert desk.verdicts == [(Verdict.REFUSED, b"given up after 16 tries: ValueError: x")]


def test_a_batch_is_a_tuple_of_messages() -> None:
    message, _ = received(Item(FLAG_DELAY, 1, 2, "s", "m"))
    assert MessageBatch([message]) == (message,)
