"""Promise: counts, early messages and quantiles are those of the list that was not kept."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.lateness import LatenessHistogram

NOW_MS = 1_700_000_000_000


@given(
    st.lists(
        st.lists(st.integers(-50, 200) | st.integers(-(10**12), 10**12), max_size=20), max_size=5
    ),
    st.sampled_from([0.01, 0.5, 0.99, 1.0]),
)
def test_it_counts_what_a_list_would(calls: list[list[int]], share: float) -> None:
    histogram = LatenessHistogram()
    for lateness in calls:
        histogram.add([NOW_MS - late for late in lateness], NOW_MS)
    everything = sorted(late for lateness in calls for late in lateness)
    assert histogram.count == len(everything)
    assert histogram.early == sum(late < 0 for late in everything)
    assert histogram.earliest_ms == max([0, *(-late for late in everything)])
    assert histogram.max_ms == max([0, *everything])
    expected = everything[max(math.ceil(share * len(everything)) - 1, 0)] if everything else 0
    if expected < 60_000:
        assert histogram.quantile_ms(share) == max(expected, 0)
    else:
        assert histogram.quantile_ms(share) == histogram.max_ms


def test_nothing_received_is_not_late() -> None:
    histogram = LatenessHistogram()
    histogram.add([], NOW_MS)
    assert histogram.quantile_ms(0.99) == 0
    assert histogram.count == 0


@pytest.mark.parametrize("late", [59_999, 60_000, 10**9])
def test_what_is_later_than_a_minute_is_as_late_as_the_latest(late: int) -> None:
    histogram = LatenessHistogram()
    histogram.add([NOW_MS - late], NOW_MS)
    assert histogram.quantile_ms(0.5) == late
