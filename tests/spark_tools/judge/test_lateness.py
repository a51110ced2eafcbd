"""Buckets of lateness follow each other without gaps, and are narrow enough."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_tools.judge.lateness import bucket_from_ms, buckets_of, quantile_ms


def bucket_of(late: int) -> int:
    return int(buckets_of(np.array([late], np.int64))[0])


@given(st.integers(0, 2**52))
def test_each_lateness_lies_in_its_bucket_which_is_at_most_an_eighth_wide(late: int) -> None:
    bucket = bucket_of(late)
    begin, end = bucket_from_ms(bucket), bucket_from_ms(bucket + 1)
    assert begin <= late < end
    assert (end - begin) * 8 <= max(begin, 8)


def test_buckets_are_in_order_from_the_first() -> None:
    edges = [bucket_from_ms(bucket) for bucket in range(200)]
    assert edges == sorted(set(edges))
    assert [bucket_of(edge) for edge in edges] == list(range(200))


def test_what_is_beyond_all_bounds_has_a_bucket_too() -> None:
    assert bucket_of(2**62) == bucket_of(2**52)


@given(st.lists(st.integers(0, 10**6), min_size=1), st.sampled_from([0.5, 0.95, 0.999, 1.0]))
def test_a_quantile_is_never_below_the_exact_one_and_little_above(
    late: list[int], share: float
) -> None:
    buckets, counts = np.unique(buckets_of(np.array(late, np.int64)), return_counts=True)
    by_bucket = dict(zip(buckets.tolist(), counts.tolist(), strict=True))
    found = quantile_ms(by_bucket, share)
    ordered = sorted(late)
    bounded = quantile_ms(by_bucket, share, ordered[-1])
    exact = next(one for place, one in enumerate(ordered, start=1) if place >= share * len(ordered))
    assert found is not None
    assert exact <= found <= exact + max(exact // 8, 0)
    assert bounded == min(found, ordered[-1])


def test_of_nothing_there_is_no_quantile() -> None:
    assert quantile_ms({}, 0.5) is None
