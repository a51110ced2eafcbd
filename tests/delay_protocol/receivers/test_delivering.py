"""Messages and verdicts: each is read as it was written, and sizes that lie are found."""

from collections.abc import Callable

import pytest

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.receivers.delivering import (
    DELIVER_ITEMS_MAX,
    SETTLE_ITEMS_MAX,
    Delivered,
    Settled,
    Verdict,
    decode_deliver,
    decode_settle,
    decode_settle_reply,
    encode_deliver_head,
    encode_settle,
    encode_settle_reply,
)
from tests.storage.worked_examples import worked_examples

DELIVERED = [Delivered(1, 1, b"abc"), Delivered(2**40, 3, b"de")]
SETTLED = [
    Settled(1, Verdict.DONE),
    Settled(2, Verdict.RELEASE),
    Settled(3, Verdict.LATER, b"item"),
    Settled(4, Verdict.REFUSED, b"no"),
]


def deliver(rows: list[Delivered]) -> bytes:
    head = encode_deliver_head(
        [row.sequence for row in rows],
        [row.attempt for row in rows],
        [len(row.item) for row in rows],
    )
    return b"".join((head, *(row.item for row in rows)))


def test_the_examples_of_the_documentation_are_read_and_written() -> None:
    delivered, settled = worked_examples("../receivers.md")[3:5]
    assert (deliver(DELIVERED), encode_settle(SETTLED)) == (delivered, settled)
    assert (decode_deliver(delivered), decode_settle(settled)) == (DELIVERED, SETTLED)
    assert encode_settle_reply(3, 1_700_000_000_000) == bytes.fromhex("000000030000018bcfe56800")
    assert decode_settle_reply(bytes.fromhex("000000030000018bcfe56800")) == (3, 1_700_000_000_000)


@pytest.mark.parametrize(
    ("body", "decode"),
    [(deliver(DELIVERED), decode_deliver), (encode_settle(SETTLED), decode_settle)],
)
def test_a_body_that_is_cut_or_longer_is_refused(
    body: bytes, decode: Callable[[bytes], object]
) -> None:
    for size in range(len(body)):
        with pytest.raises(MalformedMetaError):
            decode(body[:size])
    with pytest.raises(MalformedMetaError, match="are not those of what follows"):
        decode(body + b"x")


def count(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)


def row(sequence: int, verdict: int, size: int) -> bytes:
    return (
        sequence.to_bytes(8, "big", signed=True)
        + verdict.to_bytes(1, "big", signed=True)
        + size.to_bytes(4, "big", signed=True)
    )


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (count(-1), "of -1 messages"),
        (count(SETTLE_ITEMS_MAX + 1), "at most 2048 are taken"),
        (count(2**31 - 1), "at most 2048 are taken"),
        (count(1), "1 messages in 4 bytes"),
        (count(1) + row(0, 1, 0), "sequence 0: they are from 1"),
        (count(1) + row(-1, 1, 0), "sequence -1: they are from 1"),
        (count(1) + row(1, 0, 0), "verdict 0 of sequence 1"),
        (count(1) + row(1, 5, 0), "verdict 5 of sequence 1"),
        (count(1) + row(1, -1, 0), "verdict -1 of sequence 1"),
        (count(1) + row(1, 1, 1) + b"x", "1 bytes with DONE of sequence 1"),
        (count(1) + row(1, 2, 1) + b"x", "1 bytes with RELEASE of sequence 1"),
        (count(1) + row(1, 3, 0), "0 bytes with LATER of sequence 1"),
        (count(1) + row(1, 4, 1025) + bytes(1025), "1025 bytes with REFUSED of sequence 1"),
        (count(2) + row(1, 3, -1) + row(2, 3, 1), "are not those of what follows"),
        (count(1) + row(1, 3, 2**31 - 1) + b"x", "are not those of what follows"),
    ],
)
def test_a_settle_that_cannot_be_is_refused(body: bytes, sentence: str) -> None:
    with pytest.raises(MalformedMetaError, match=sentence):
        decode_settle(body)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([Delivered(0, 1, b"x")], "both are from 1"),
        ([Delivered(1, 0, b"x")], "both are from 1"),
        ([Delivered(-5, 1, b"x")], "both are from 1"),
        ([Delivered(n, 1, b"") for n in range(1, DELIVER_ITEMS_MAX + 2)], "at most 1024 are taken"),
    ],
)
def test_a_deliver_that_cannot_be_is_refused(rows: list[Delivered], sentence: str) -> None:
    with pytest.raises(MalformedMetaError, match=sentence):
        decode_deliver(deliver(rows))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (count(1), "of 4 bytes"),
        (encode_settle_reply(-1, 0), "with -1"),
        (encode_settle_reply(0, -1), "at -1 ms"),
    ],
)
def test_an_answer_that_is_none_is_refused(body: bytes, sentence: str) -> None:
    with pytest.raises(MalformedMetaError, match=sentence):
        decode_settle_reply(body)


@pytest.mark.parametrize(
    "rows",
    [
        [Settled(0, Verdict.DONE)],
        [Settled(1, 9)],
        [Settled(1, Verdict.DONE, b"x")],
        [Settled(1, Verdict.LATER)],
        [Settled(1, Verdict.REFUSED, bytes(1025))],
        [Settled(1, Verdict.DONE)] * (SETTLE_ITEMS_MAX + 1),
    ],
)
def test_what_no_server_would_read_is_the_callers_error(rows: list[Settled]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_settle(rows)


def test_as_many_as_may_be_are_read() -> None:
    rows = [Settled(n, Verdict.DONE) for n in range(1, SETTLE_ITEMS_MAX + 1)]
    assert decode_settle(encode_settle(rows)) == rows
    messages = [Delivered(n, 1, b"") for n in range(1, DELIVER_ITEMS_MAX + 1)]
    assert decode_deliver(deliver(messages)) == messages
