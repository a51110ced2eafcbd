"""Promise: what comes again is the same message, and only its due time and its count are others."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_client import Reject, RetryLater
from delay_client.messages.item_encoder import DUE_MS_MAX
from delay_client.messages.message import moment
from delay_client.receiving.message import (
    PUT_OFF_KEY,
    MessageBatch,
    ReceivedMessage,
    later_item,
)
from delay_client.receiving.settings import RetryPolicy
from delay_client.receiving.tracebacks import Tracebacks
from delay_protocol.basics.errors import MalformedItemError
from delay_protocol.basics.levels import DEFAULT_LEVELS, parse_levels
from delay_protocol.messages.items import (
    FLAG_DELAY,
    FLAG_LOW_RELIABILITY,
    FLAG_TAGS,
    Item,
    decode_item,
    encode_item,
)
from delay_protocol.messages.origin import TIMES_KEY
from delay_protocol.receivers.delivering import Delivered, Verdict

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
TIMES = st.integers(0, 253_402_300_799_999)
NOW_MS = 1_700_000_000_000


class Desk:
    """Keeps the verdicts."""

    def __init__(self) -> None:
        self.retry = RetryPolicy(jitter=0)
        self.levels_ms: Sequence[int] = parse_levels(DEFAULT_LEVELS)
        self.tracebacks = Tracebacks()
        self.ends_task = lambda _: False
        self.wall_ms = NOW_MS
        self.chance = random.Random(1)
        self.verdicts: list[tuple[Verdict, bytes]] = []

    def now_ms(self) -> int:
        return self.wall_ms

    def begin(self) -> None:
        """Count nothing."""

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
    again = decode_item(later_item(item, due_ms, TIMES_KEY))
    changed = {
        "qmq_times": str((times or 0) + 1),
        "qmq_scheduleReceiveTime": str(due_ms),
        "dw_firstDue": "5" if times is not None or flag & FLAG_DELAY else "1000",
    }
    assert again == Item(
        flag | FLAG_DELAY, 1000, due_ms, subject, message_id, tags, attributes | changed
    )


def test_when_it_was_due_at_first_stays_however_often_it_comes_again() -> None:
    item = Item(FLAG_DELAY, 1, 2000, "s", "m", (), {"qmq_scheduleReceiveTime": "2000"})
    for due_ms in (3000, 4000, 5000):
        # As an operator's requeue with a due time changes it, whoever wrote the attributes.
        requeued, _ = received(replace(item, due_ms=due_ms - 500))
        assert requeued.first_due == moment(2000)
        item = decode_item(later_item(requeued.item, due_ms, PUT_OFF_KEY))
    message, _ = received(item)
    assert (message.due, message.first_due) == (moment(5000), moment(2000))


@pytest.mark.parametrize("text", ["", "x", "-4", "9" * 5000])
def test_a_first_due_time_that_others_wrote_is_a_time(text: str) -> None:
    message, _ = received(Item(FLAG_DELAY, 1, 2000, "s", "m", (), {"dw_firstDue": text}))
    assert message.first_due in {moment(2000), moment(DUE_MS_MAX)}


def test_who_sent_it_is_told() -> None:
    for attributes, app_code in (({"qmq_appCode": "shop"}, "shop"), ({}, "")):
        message, _ = received(Item(FLAG_DELAY, 1, 2, "s", "m", (), attributes))
        assert message.app_code == app_code


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
    assert b"qmq_times" in later_item(message.item, 5, TIMES_KEY)


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


class Unprintable(Exception):  # noqa: N818 (it is of a service)
    def __str__(self) -> str:
        raise LookupError("no text")

    __repr__ = __str__


class Cancelling(Exception):  # noqa: N818 (it is of a service)
    def __str__(self) -> str:
        raise asyncio.CancelledError

    __repr__ = __str__


class Unfinished(Reject):
    """Never calls what it inherits from."""

    def __init__(self) -> None:
        pass


class Odd(RetryPolicy):
    def wait_s(self, attempt: int, chance: random.Random) -> float | None:
        del attempt, chance
        return float("nan")


class Ending(RetryPolicy):
    def wait_s(self, attempt: int, chance: random.Random) -> float | None:
        del attempt, chance
        raise GeneratorExit


def bad_later() -> RetryLater:
    error = RetryLater(1)
    error.delay_ms = "soon"  # type: ignore[assignment]
    return error


@pytest.mark.parametrize(
    ("error", "verdict", "reason"),
    [
        (Reject(ValueError("x")), Verdict.REFUSED, b"x"),
        (Reject(None), Verdict.REFUSED, b"None"),
        (Reject("\ud800"), Verdict.REFUSED, b"?"),
        (Reject("x" * 10**6), Verdict.REFUSED, b"x" * 1024),
        (
            Reject(Unprintable()),
            Verdict.REFUSED,
            b"Unprintable, whose text cannot be made: LookupError",
        ),
        (Unprintable(), Verdict.LATER, None),
        (Cancelling(), Verdict.LATER, None),
        (Unfinished(), Verdict.LATER, None),
        (bad_later(), Verdict.LATER, None),
        (GeneratorExit(), Verdict.LATER, None),
        (BaseExceptionGroup("", [GeneratorExit()]), Verdict.LATER, None),
    ],
)
def test_nothing_in_giving_a_verdict_raises(
    error: BaseException, verdict: Verdict, reason: bytes | None
) -> None:
    for policy in (RetryPolicy(), Odd(), Ending()):
        message, desk = received(Item(FLAG_DELAY, 1, 2, "s", "m"))
        message.failed(error, policy)
        [(given_verdict, rest)] = desk.verdicts
        assert given_verdict == verdict
        assert reason in {None, rest}


def test_a_policy_of_levels_waits_by_the_table_that_the_receiver_was_told() -> None:
    for tried, wait_ms in ((1, 7000), (2, 9000), (3, 9000)):
        message, desk = received(Item(FLAG_DELAY, 1, 2, "s", "m"), tried=tried)
        desk.levels_ms = (3000, 7000, 9000)
        message.failed(ValueError("x"), RetryPolicy.levels(first=2, tries=4))
        [(verdict, rest)] = desk.verdicts
        assert (verdict, decode_item(rest).due_ms) == (Verdict.LATER, NOW_MS + wait_ms)


def test_the_same_traceback_is_logged_whole_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def at_one_place() -> None:
        raise ValueError("line 1\nline 2")

    def at_another() -> None:
        raise ValueError("x")

    desk = None
    whole = []
    for second, fail in (
        (0, at_one_place), (1, at_one_place), (2, at_another), (61, at_one_place), (62, at_another)
    ):  # fmt: skip
        message, new_desk = received(Item(FLAG_DELAY, 1, 2, "s", "m"))
        message.desk = desk = desk or new_desk
        desk.wall_ms = NOW_MS + second * 1000
        try:
            fail()
        except ValueError as error:
            message.failed(error)
        record = caplog.records[-1]
        assert "\n" not in record.getMessage()
        assert "comes again in 1 s: ValueError: " in record.getMessage()
        whole.append(record.exc_info is not None)
    assert whole == [True, False, True, True, True]


def test_putting_off_is_no_try_and_does_not_spin() -> None:
    item, waits = Item(FLAG_DELAY, 1, 2, "s", "m", (), {"qmq_times": "15"}), []
    for put_offs in range(9):
        message, desk = received(item)
        assert (message.attempt, message.put_offs) == (16, put_offs)
        message.failed(RetryLater(0))
        [(verdict, rest)] = desk.verdicts
        assert verdict == Verdict.LATER
        item = decode_item(rest)
        waits.append(item.due_ms - NOW_MS)
    assert waits == [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]
    assert item.attributes[TIMES_KEY] == "15"
    assert item.attributes[PUT_OFF_KEY] == "9"
    message, desk = received(item)
    message.failed(RetryLater(3600))
    assert decode_item(desk.verdicts[0][1]).due_ms == NOW_MS + 3_600_000
