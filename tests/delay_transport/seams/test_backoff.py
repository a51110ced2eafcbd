"""Waits grow, stop growing, and are never alike for all."""

import random

from hypothesis import given
from hypothesis import strategies as st

from delay_transport.seams.backoff import Backoff

BACKOFF = Backoff(base_s=0.1, max_s=30.0)


def test_the_wait_doubles_up_to_its_ceiling() -> None:
    chance = random.Random(1)
    for failures, whole in ((1, 0.1), (2, 0.2), (5, 1.6), (9, 25.6), (10, 30.0), (5000, 30.0)):
        waits = [BACKOFF.wait_s(failures, chance) for _ in range(200)]
        assert whole / 2 <= min(waits) < 0.55 * whole
        assert 0.95 * whole < max(waits) <= whole


@given(st.integers(1, 2**32 - 1), st.integers())
def test_the_wait_is_always_within_its_bounds(failures: int, seed: int) -> None:
    assert 0.05 <= BACKOFF.wait_s(failures, random.Random(seed)) <= 30.0
