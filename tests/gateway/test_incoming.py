"""gateway.incoming: a message from headers, or from JSON, or a sentence of what is wrong."""

from datetime import UTC, datetime

import msgspec
import pytest

from delay_client import OutgoingMessage
from delay_transport.http.convert import decode_body
from delay_transport.http.problems import RequestError
from gateway.incoming import JsonMessage, JsonMessages, from_headers, from_json

KEY_LENGTH_MAX, MESSAGES_MAX = 100, 1000


def test_a_raw_request_is_a_message_with_its_body_as_it_is() -> None:
    headers = {
        "content-type": "image/png",
        "delaywheel-delay": "1h",
        "idempotency-key": "order-7",
        "delaywheel-header-trace": "abc",
        "user-agent": "curl",
    }
    assert from_headers("orders.paid", headers, b"\xff\x00") == OutgoingMessage(
        "orders.paid",
        b"\xff\x00",
        3600.0,
        message_id="order-7",
        headers={"trace": "abc"},
        content_type="image/png",
    )
    assert from_headers("s", {}, b"").delay == 0
    assert from_headers("s", {"delaywheel-level": "3"}, b"").level == 3
    at = from_headers("s", {"delaywheel-not-before": "2026-12-24T18:00:00Z"}, b"").at
    assert at == datetime(2026, 12, 24, 18, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        (
            {"delaywheel-delay": "1s", "delaywheel-not-before": "1798131600"},
            "Delaywheel-Not-Before: .*it or Delaywheel-Delay, not both",
        ),
        ({"delaywheel-delay": "1s", "delaywheel-level": "0"}, "Delaywheel-Level: .*not both"),
        ({"delaywheel-level": "-1"}, "Delaywheel-Level: '-1' is not allowed"),
        ({"delaywheel-level": "three"}, "Delaywheel-Level"),
        ({"idempotency-key": ""}, "Idempotency-Key: '' is not allowed: .*length >= 1"),
        ({"idempotency-key": "k" * (KEY_LENGTH_MAX + 1)}, "Idempotency-Key"),
        ({"delaywheel-header-": "x"}, "the name of a header behind it"),
        ({"delaywheel-delay": "soon"}, "Delaywheel-Delay: 'soon'"),
        (
            {"delaywheel-dely": "90s"},
            "delaywheel-dely: '90s' is not allowed: no such field, there are: Delaywheel-Delay, ",
        ),
        ({"delaywheel-header": "x"}, "delaywheel-header: 'x' is not allowed"),
    ],
)
def test_a_bad_header_is_named_with_what_is_allowed(headers: dict[str, str], why: str) -> None:
    with pytest.raises(RequestError, match=why) as refused:
        from_headers("s", headers, b"")
    assert refused.value.code == 400


def json(*messages: object) -> bytes:
    return msgspec.json.encode(list(messages))


def made(data: bytes) -> list[OutgoingMessage | RequestError]:
    """Return the messages of a body of JSON, or why one of them is none."""
    given = decode_body(data, JsonMessages)
    if isinstance(given, JsonMessage):
        return [from_json(given)]
    found: list[OutgoingMessage | RequestError] = []
    for one in given:
        try:
            found.append(from_json(decode_body(bytes(one), JsonMessage)))
        except RequestError as refusal:
            found.append(refusal)
    return found


def test_json_has_one_message_or_a_list() -> None:
    one = made(msgspec.json.encode({"subject": "s", "body": "tea", "delay": "1m"}))
    assert one == [OutgoingMessage("s", "tea", 60.0)]
    found = made(
        json(
            {"subject": "s", "body": {"n": [1, None]}, "id": "a", "headers": {"Trace": "1"}},
            {"subject": "s", "body_base64": "/wA=", "content_type": "image/png", "level": 2},
            {"subject": "s", "not_before": 1798131600},
        )
    )
    assert found == [
        OutgoingMessage(
            "s",
            b'{"n":[1,null]}',
            0.0,
            message_id="a",
            headers={"Trace": "1"},
            content_type="application/json",
        ),
        OutgoingMessage("s", b"\xff\x00", None, content_type="image/png", level=2),
        OutgoingMessage("s", "", None, datetime(2026, 12, 24, 17, tzinfo=UTC)),
    ]


def test_a_bad_message_of_a_list_is_named_and_its_neighbours_are_messages() -> None:
    found = made(
        json(
            {"subject": "s"},
            {"subject": "s", "delay": "1s", "level": 1},
            {"subject": "s", "body": "x", "body_base64": "/wA="},
            {"subject": "s", "body_base64": "?"},
            {"subject": "s", "delay": "90"},
            {"subjekt": "s"},
            {"body": "s"},
            {"subject": "s", "level": -1},
            {"subject": "s", "id": ""},
            {"subject": ["s"]},
            3,
        )
    )
    good, *bad = found
    assert isinstance(good, OutgoingMessage)
    told = [
        "level: 1 is not allowed: it or delay",
        "body: 'x' is not allowed: it or body_base64",
        "body_base64: '?'",
        "delay: '90' is not allowed: add a unit",
        "subjekt: 's' is not allowed: no such field, there are: subject",
        "subject: None is not allowed: it has to be given",
        "level: -1",
        "id: ''",
        "subject: ['s']",
        "body: 3 is not allowed: Expected `object`",
    ]
    assert len(bad) == len(told)
    for refusal, begins in zip(bad, told, strict=True):
        assert str(refusal).startswith(begins)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "subject: None is not allowed: it has to be given"),
        (b"{", "truncated"),
        (b"[]", "array` of length >= 1"),
        (b"\xff", "UTF-8|invalid"),
        (b"[" * 100_000, "recursion|depth|JSON"),
        (b'[{"subject": "s"}, {"subject": }]', "malformed|invalid"),
        (json(*[{"subject": "s"}] * (MESSAGES_MAX + 1)), "array` of length <= 1000"),
    ],
)
def test_a_body_that_is_no_message_is_refused_whole(body: bytes, why: str) -> None:
    with pytest.raises(RequestError, match=f"(?i){why}") as refused:
        made(body)
    assert (refused.value.code, refused.value.kind) == (400, "bad-value")
