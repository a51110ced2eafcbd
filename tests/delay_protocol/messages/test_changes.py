"""The bytes of CHANGE and of its answer, as docs/cancelling.md has them."""

import pytest

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.messages.changes import (
    CHANGE_BYTES_MAX,
    CHANGES_MAX,
    Change,
    ChangeReply,
    ChangeRequest,
    ChangeResult,
    ChangeState,
    decode_change,
    decode_change_reply,
    encode_change,
    encode_change_reply,
)
from tests.storage.worked_examples import worked_examples

REQUEST = ChangeRequest(
    items=(
        Change("orders", "7", 1_700_000_000_000),
        Change("orders", "8", 1_700_000_000_000, 1_700_000_060_000),
    )
)
REPLY = ChangeReply(
    results=(
        ChangeResult(0, ChangeState.CANCELLED, due_ms=1_700_000_000_000),
        ChangeResult(
            1,
            ChangeState.SENDING,
            name="mail",
            due_ms=1_700_000_000_000,
            at_ms=1_700_000_000_005,
            to="mail",
            retry_after_ms=1000,
        ),
    ),
    facts_since_ms=1_699_000_000_000,
)


def test_the_examples_of_the_documentation_are_what_is_written() -> None:
    request, reply = worked_examples("../cancelling.md")
    assert encode_change(REQUEST) == request
    assert encode_change_reply(REPLY) == reply
    assert decode_change(request) == REQUEST
    assert decode_change_reply(reply) == REPLY


@pytest.mark.parametrize("body", [b"", b"\x80", b"\xc1", bytes(CHANGE_BYTES_MAX + 1)])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedMetaError):
        decode_change(body)
    with pytest.raises(MalformedMetaError):
        decode_change_reply(body)


def test_too_many_messages_do_not_fit() -> None:
    one = Change("orders", "7")
    encode_change(ChangeRequest(items=(one,) * CHANGES_MAX))
    with pytest.raises((LocalProtocolError, MalformedMetaError)):
        encode_change(ChangeRequest(items=(one,) * (CHANGES_MAX + 1)))
