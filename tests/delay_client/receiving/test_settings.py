"""Settings that cannot work are refused by name, and waits are what the policy says."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_client import ReceiverConfig, RetryPolicy


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (RetryPolicy, "base_s", -1),
        (RetryPolicy, "base_s", float("nan")),
        (RetryPolicy, "factor", 0.5),
        (RetryPolicy, "jitter", 1.1),
        (RetryPolicy, "cap_s", float("inf")),
        (RetryPolicy, "tries", 0),
        (ReceiverConfig, "credit_items", 0),
        (ReceiverConfig, "credit_items", 100_001),
        (ReceiverConfig, "credit_bytes", (4 << 20) - 1),
        (ReceiverConfig, "credit_bytes", (256 << 20) + 1),
        (ReceiverConfig, "concurrency", 0),
        (ReceiverConfig, "settle_linger_s", -1),
        (ReceiverConfig, "settle_items_max", 16_385),
        (ReceiverConfig, "settle_bytes_max", (4 << 20) + 1),
        (ReceiverConfig, "settles_in_flight_max", 0),
        (ReceiverConfig, "flow_s", 10.1),
        (ReceiverConfig, "answer_timeout_s", 0),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(
    kind: type[Any], name: str, value: float
) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be from "):
        kind(**{name: value})


@given(
    st.builds(
        RetryPolicy,
        base_s=st.floats(0, 1e9),
        factor=st.floats(1, 100),
        jitter=st.floats(0, 1),
        cap_s=st.floats(0, 1e9),
        tries=st.integers(1, 10**9),
    ),
    st.integers(1, 10**9),
)
def test_a_wait_is_within_its_cap_and_its_jitter(policy: RetryPolicy, attempt: int) -> None:
    wait_s = policy.wait_s(attempt, random.Random(attempt))
    assert (wait_s is None) is (attempt >= policy.tries)
    if wait_s is not None:
        least = min(policy.cap_s, policy.base_s) * (1 - policy.jitter)
        assert least <= wait_s * 1.0001 + 1e-9
        assert 0 <= wait_s <= policy.cap_s


def test_waits_double_up_to_the_cap() -> None:
    policy = RetryPolicy(jitter=0, cap_s=10)
    chance = random.Random(1)
    assert [policy.wait_s(attempt, chance) for attempt in range(1, 7)] == [1, 2, 4, 8, 10, 10]
