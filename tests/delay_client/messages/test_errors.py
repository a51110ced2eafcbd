"""Promise: the type of an error is its remedy, and the built-in types say the same."""

import pytest

import delay_client
from delay_client import (
    DelaywheelError,
    FatalError,
    InvalidMessage,
    ReceiverRefusedError,
    Reject,
    RetryableError,
    RetryLater,
    TimedOut,
    Unavailable,
)


def test_every_error_is_either_retryable_or_fatal() -> None:
    found = [getattr(delay_client, name) for name in delay_client.__all__]
    errors = [kind for kind in found if isinstance(kind, type) and issubclass(kind, Exception)]
    # What handlers of a receiver raise, and what it raises, is no fate of a message that was sent.
    sending = set(errors) - {RetryLater, Reject, ReceiverRefusedError}
    assert len(sending) == 16
    for kind in sending:
        assert issubclass(kind, DelaywheelError)
        if kind is not DelaywheelError:
            assert issubclass(kind, RetryableError) != issubclass(kind, FatalError)


def test_built_in_handlers_catch_their_own() -> None:
    assert issubclass(TimedOut, TimeoutError)
    assert issubclass(InvalidMessage, ValueError)


def test_an_error_carries_what_a_retry_needs() -> None:
    with pytest.raises(RetryableError) as caught:
        raise Unavailable("no", message_id="m1", server="h:1", attempts=2, maybe_kept=True)
    error = caught.value
    assert (error.message_id, error.server, error.attempts) == ("m1", "h:1", 2)
    assert error.maybe_kept
