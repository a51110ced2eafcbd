"""How much there was lately against how much there may be."""

import pytest

from delay_transport.seams.leaky_bucket import LeakyBucket


def test_it_runs_out_at_its_rate_and_never_below_empty() -> None:
    bucket = LeakyBucket(rate=10, size=100)
    bucket.pour(5.0, 30)
    assert bucket.level(6.0) == pytest.approx(20)
    assert bucket.level(100.0) == 0
    bucket.pour(100.0, 5)
    assert bucket.level(100.0) == pytest.approx(5)


def test_it_tells_when_it_has_room_again() -> None:
    bucket = LeakyBucket(rate=10, size=100)
    bucket.pour(0.0, 100)
    assert bucket.seconds_until_room(0.0) == 0
    bucket.pour(0.0, 50)
    assert bucket.seconds_until_room(0.0) == pytest.approx(5)
    assert bucket.seconds_until_room(4.0) == pytest.approx(1)
    assert bucket.seconds_until_room(5.0) == 0
