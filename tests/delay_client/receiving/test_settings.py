"""Settings that cannot work are refused by name, and waits are what the policy says."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_client import ReceiverConfig, RetryPolicy
from delay_protocol.receivers.masters import Retries


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


def waits(policy: RetryPolicy) -> list[float | None]:
    return [policy.wait_s(attempt, random.Random(1)) for attempt in range(1, policy.tries + 1)]


def test_waits_are_those_of_a_table_and_the_last_one_goes_on() -> None:
    policy = RetryPolicy(waits_s=(0, 20.5, 7200), jitter=0, tries=6)
    assert waits(policy) == [0, 20.5, 7200, 7200, 7200, None]
    drawn = RetryPolicy(waits_s=(100,), tries=100)
    assert all(80 <= wait_s <= 100 for wait_s in waits(drawn)[:-1] if wait_s is not None)


def test_waits_of_levels_are_those_of_the_table_from_the_first_on() -> None:
    minutes = [60.0 * n for n in (*range(1, 11), 20, 30)]
    assert waits(RetryPolicy.levels(tries=17)) == [10, 30, *minutes, 3600, 7200, None]
    assert waits(RetryPolicy.levels()) == [10, 30, *minutes, 3600, None]
    policy = RetryPolicy.levels(first=2, tries=5)
    assert waits(policy)[0] == 5
    assert waits(policy.by_levels((1000, 2000, 3500))) == [2, 3.5, 3.5, 3.5, None]
    assert waits(policy.by_levels((1000,))) == [1, 1, 1, 1, None], "above the last is the last"
    assert RetryPolicy().by_levels((1000,)) == RetryPolicy()


@pytest.mark.parametrize(
    ("waits_s", "said"),
    [
        ((1, -1), r"waits_s\[1\] must be from 0 to 15552000 s \(180 days\), not -1"),
        ((365 * 86_400,), r"waits_s\[0\] must be from 0 to 15552000 s \(180 days\), not 31536000"),
        ((float("nan"),), r"waits_s\[0\] must be from 0"),
        ((1.0,) * 65, "waits_s has 65 waits: give at most 64"),
    ],
)
def test_waits_that_nobody_means_are_refused(waits_s: tuple[float, ...], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        RetryPolicy(waits_s=waits_s)


def test_levels_that_are_none_and_no_tries_are_refused() -> None:
    for first in (0, -1, 65):
        with pytest.raises(ValueError, match=r"^first_level must be from 1 to 64, not"):
            RetryPolicy.levels(first=first)
    with pytest.raises(ValueError, match=r"^tries must be from 1 to"):
        RetryPolicy.levels(tries=0)


def test_waits_double_up_to_the_cap() -> None:
    policy = RetryPolicy(jitter=0, cap_s=10)
    chance = random.Random(1)
    assert [policy.wait_s(attempt, chance) for attempt in range(1, 7)] == [1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize(
    ("told", "policy"),
    [
        (Retries(), None),
        (Retries(tries=3), RetryPolicy(tries=3)),
        (Retries(unsettled_tries=5), RetryPolicy(unsettled_tries=5)),
        (Retries(waits="10s 1m"), RetryPolicy(waits_s=(10, 60))),
        (Retries(tries=5, first_level=2), RetryPolicy.levels(2, tries=5)),
    ],
)
def test_what_an_operator_leaves_out_is_as_by_default(
    told: Retries, policy: RetryPolicy | None
) -> None:
    assert RetryPolicy.told(told) == policy
