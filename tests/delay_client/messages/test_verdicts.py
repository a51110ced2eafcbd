"""Promise: every code an answer can carry has the remedy of the protocol page."""

import pytest

from delay_client import (
    DelayTooLong,
    FatalError,
    IllegalSubject,
    MessageTooLarge,
    Overloaded,
    Refused,
    RetryableError,
    Unavailable,
)
from delay_client.messages.verdicts import (
    item_refusal,
    item_setback,
    request_refusal,
    request_setback,
)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(51, Overloaded), (52, Unavailable), (3, None), (4, None), (53, None), (-7, None)],
)
def test_a_request_is_tried_again_after_51_and_52_only(
    code: int, kind: type[RetryableError] | None
) -> None:
    setback = request_setback(code, "")
    assert (setback[0] if setback else None) is kind


def test_a_server_that_says_why_it_takes_nothing_is_repeated() -> None:
    kind, text = request_setback(51, "this node is a slave\x1b[2J" + "x" * 5000) or (None, "")
    assert kind is Unavailable
    assert "this node is a slave" in text
    assert "\x1b" not in text
    assert len(text) < 600


@pytest.mark.parametrize(
    ("code", "kind"),
    [(1, Overloaded), (4, Unavailable), (6, Unavailable), (3, None), (5, None), (99, None)],
)
def test_an_item_is_tried_again_after_1_4_and_6_only(
    code: int, kind: type[RetryableError] | None
) -> None:
    setback = item_setback(code, "because")
    assert (setback[0] if setback else None) is kind
    assert setback is None or "because" in setback[1]


@pytest.mark.parametrize(
    ("code", "remark", "kind"),
    [
        (3, "message rejected", IllegalSubject),
        (3, "", IllegalSubject),
        (5, "due in 800.0 days, limit 730.0", DelayTooLong),
        (5, "due beyond the horizon of 730 days", DelayTooLong),
        (5, "item of 70000 bytes, limit 65536", MessageTooLarge),
        (5, "a subject of 258 bytes, at most 255", IllegalSubject),
        (5, "message too large", MessageTooLarge),
        (5, "malformed", Refused),
        (5, "", Refused),
        (99, "whatever", Refused),
    ],
)
def test_a_refused_item_says_why_and_what_to_do(
    code: int, remark: str, kind: type[FatalError]
) -> None:
    error = item_refusal(code, remark, server="h:1", message_id="m1", attempts=1)
    assert type(error) is kind
    assert remark in str(error)
    assert "h:1" in str(error)
    assert (error.message_id, error.server, error.attempts) == ("m1", "h:1", 1)


def test_a_peer_that_is_no_delay_server_is_named() -> None:
    error = request_refusal(3, server="h:1", message_id="m1", attempts=1)
    assert "h:1 answered code 3" in str(error)
    assert "address" in str(error)
