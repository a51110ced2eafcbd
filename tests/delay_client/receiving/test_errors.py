"""What a handler raises says what it means, and refuses what it cannot mean."""

from datetime import timedelta

import pytest

from delay_client import InvalidMessage, Reject, RetryLater


def test_a_delay_is_seconds_or_a_timedelta() -> None:
    assert RetryLater(1.5).delay_ms == RetryLater(timedelta(milliseconds=1500)).delay_ms == 1500
    assert str(RetryLater(2)) == "again after 2"
    assert Reject("no").reason == str(Reject("no")) == "no"


@pytest.mark.parametrize("delay", [-1, float("nan"), "soon"])
def test_a_delay_that_is_none_is_refused(delay: float) -> None:
    with pytest.raises(InvalidMessage):
        RetryLater(delay)
