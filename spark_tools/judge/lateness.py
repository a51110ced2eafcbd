"""Buckets of lateness: fixed, so that counts of hours, groups and runs can be added.

Below 8 ms each millisecond is a bucket of its own; from there on each doubling is cut into eight
equal parts. A bucket is at most an eighth of its lower bound wide.
"""

from collections.abc import Mapping

import numpy as np

from spark_tools.files.columns import Int64s

_LATENESS_MAX = 2**52
"""142,000 years; what is beyond counts as this, so that arithmetic with floats is exact."""


def buckets_of(lateness_ms: Int64s) -> Int64s:
    """Return the bucket of each lateness; all must be 0 or more."""
    late = np.minimum(lateness_ms, _LATENESS_MAX)
    fraction, exponent = np.frexp(late.astype(np.float64))
    parts = exponent.astype(np.int64) * 8 + np.floor(fraction * 16).astype(np.int64) - 32
    return np.where(late < 8, late, parts)


def bucket_from_ms(bucket: int) -> int:
    """Return the least lateness of a bucket, ms."""
    if bucket < 8:
        return bucket
    return (8 + bucket % 8) << (bucket // 8 - 1)


def quantile_ms(
    counts: Mapping[int, int], share: float, latest_ms: int | None = None
) -> int | None:
    """Return the upper bound (ms) of the bucket below which so many lie; None if there are none.

    It is at most an eighth above the exact value, and never below it. latest_ms: what none is
    above, if that is known.
    """
    total = sum(counts.values())
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= share * total:
            bound = bucket_from_ms(bucket + 1) - 1
            return bound if latest_ms is None else min(bound, latest_ms)
    return None
