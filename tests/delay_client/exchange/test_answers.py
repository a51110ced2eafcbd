"""Promise: an answer gives each item of its batch an outcome or another try, never both."""

import pytest

from delay_client import ClientConfig, Overloaded, Receipt, Refused, Unavailable
from delay_client.exchange.answers import read_answer
from delay_client.exchange.batches import Batch, BatchLink, Collection, Lane
from delay_protocol.basics.codes import ItemCode, ResponseCode
from delay_protocol.messages.send_message import encode_send_reply

CONFIG = ClientConfig()
LINK = BatchLink("a:1", CONFIG, group="a")


def new_batch(*names: str, lane: Lane | None = None) -> Batch:
    batch = Batch(Collection(lambda: None), deadline=10, lane=lane or Lane([LINK]))
    for position, name in enumerate(names, 5):
        batch.add((b"item", name, 2000, False), "s", position, is_past_due=name == "late")
    batch.attempts = 2
    return batch


def test_an_empty_body_takes_all() -> None:
    answer = read_answer(new_batch("m", "late"), LINK, ResponseCode.SUCCESS, b"")
    assert (list(answer.positions), answer.setback, answer.is_failure) == ([5, 6], None, False)
    assert list(answer.outcomes) == [
        Receipt("m", 2000, "a:1", 2, subject="s"),
        Receipt("late", 2000, "a:1", 2, past_due=True, subject="s"),
    ]


def test_a_receipt_says_whether_another_group_than_its_home_took_it() -> None:
    home = BatchLink("b:1", CONFIG, group="b")
    lane = Lane([home, LINK], home=home)
    for body in (b"", encode_send_reply([(b"x", ItemCode.BROKER_BUSY, "")])):
        answer = read_answer(new_batch("m", lane=lane), LINK, ResponseCode.SUCCESS, body)
        [receipt] = answer.outcomes
        assert isinstance(receipt, Receipt)
        assert receipt.elsewhere


def test_each_item_that_is_named_has_its_own_fate() -> None:
    body = encode_send_reply(
        [
            (b"busy", ItemCode.BROKER_BUSY, ""),
            (b"bad", ItemCode.BLOCK, "no"),
            (b"twice", ItemCode.MESSAGE_DUPLICATE, ""),
        ]
    )
    batch = new_batch("m", "busy", "bad", "twice")
    answer = read_answer(batch, LINK, ResponseCode.SUCCESS, body)
    assert list(answer.positions) == [5, 7, 8]
    taken, bad, twice = answer.outcomes
    assert taken == Receipt("m", 2000, "a:1", 2, subject="s")
    assert isinstance(bad, Refused)
    assert isinstance(twice, Receipt)
    assert twice.duplicate
    assert list(answer.again) == [1]
    assert answer.setback is not None
    assert answer.setback[0] is Overloaded
    assert not answer.is_failure


def test_a_read_only_server_has_failed_for_sure() -> None:
    body = encode_send_reply([(b"m", ItemCode.BROKER_READ_ONLY, "disk")])
    answer = read_answer(new_batch("m", "n"), LINK, ResponseCode.SUCCESS, body)
    assert (answer.is_failure, answer.for_sure, list(answer.again)) == (True, True, [0])


@pytest.mark.parametrize(
    ("code", "for_sure"), [(ResponseCode.BROKER_ERROR, False), (ResponseCode.BROKER_REJECT, True)]
)
def test_a_request_that_is_put_off_is_tried_again_as_a_whole(code: int, for_sure: bool) -> None:
    answer = read_answer(new_batch("m", "n"), LINK, code, b"")
    assert (answer.is_failure, answer.for_sure, answer.maybe_kept) == (True, for_sure, False)
    assert (list(answer.positions), list(answer.again)) == ([], [0, 1])
    assert answer.setback is not None


def test_a_code_of_no_use_refuses_all() -> None:
    answer = read_answer(new_batch("m", "n"), LINK, ResponseCode.UNKNOWN_CODE, b"")
    assert [type(outcome) for outcome in answer.outcomes] == [Refused, Refused]
    assert (list(answer.positions), answer.setback, answer.is_failure) == ([5, 6], None, True)


def test_what_cannot_be_read_may_have_been_kept() -> None:
    answer = read_answer(new_batch("m"), LINK, ResponseCode.SUCCESS, b"\xff")
    assert (answer.is_failure, answer.maybe_kept, list(answer.again)) == (True, True, [0])
    assert answer.setback is not None
    assert answer.setback[0] is Unavailable
