"""Promise: what a plot shows is what was counted, and its words are those of its figures."""

import re
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_tools.judge.lateness import bucket_from_ms
from spark_tools.page import plots
from spark_tools.page.figures import times
from spark_tools.run.document import document_of
from tests.spark_tools.documents import document, group, subject_row


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "\u2013"),
        (7, 7, "100 %"),
        (999_999, 1_000_000, "99.99 %"),
        (10**9 - 1, 10**9, "99.99 %"),
        (1, 3, "33.33 %"),
        (0, 3, "0.00 %"),
    ],
)
def test_only_all_of_it_is_a_hundred_percent(part: int, whole: int, text: str) -> None:
    assert plots.share_text(part, whole) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(None, "\u2013"), (0, "0 ms"), (999, "999 ms"), (1500, "1.5 s"), (90_000, "1.5 min"),
     (5_400_000, "1.5 h"), (129_600_000, "1.5 d")],
)  # fmt: skip
def test_lengths_of_time(ms: int | None, text: str) -> None:
    assert plots.ms_text(ms) == text


def test_counts_on_an_axis_are_short() -> None:
    assert [plots.short_count(one) for one in (0, 10, 2500, 1.2e6, 3e9)] == [
        "0", "10", "2.5k", "1.2M", "3G",
    ]  # fmt: skip


@given(
    st.dictionaries(
        st.integers(0, 250).map(bucket_from_ms), st.integers(1, 10**9), min_size=1, max_size=60
    )
)
def test_a_histogram_has_every_delivery_and_its_quantiles(counts: dict[int, int]) -> None:
    latest = max(counts)
    html = plots.lateness(Counter(counts), latest)
    told = re.findall(r"<title>[^<]*: ([\d,]+)</title>", html)
    assert sum(int(one.replace(",", "")) for one in told) == sum(counts.values())
    found = plots.quantiles(Counter(counts), latest)
    assert found[-1] == ("max", latest)
    for name, ms in found[:-1]:
        assert ms is not None
        assert ms <= latest
        assert f">{name} {plots.ms_text(ms)}<" in html
    places = [float(one) for one in re.findall(r'<line x1="([\d.]+)" x2="\1"', html)]
    assert len(places) == 4
    assert all(0 <= one <= other <= 1000 for one, other in pairwise(places))


def test_what_is_lost_is_seen_however_little_it_is() -> None:
    rows = [subject_row(0, "a", accepted=10**9, delivered=10**9 - 1, lost=1)]
    found = times(document_of(document(groups=[group(rows=rows)])), columns_max=96)
    html = plots.by_hour(found)
    [height] = re.findall(r'height="([\d.]+)" class="fill-lost"', html)
    assert float(height) >= 3
    assert "lost 1 of 1,000,000,000" in html


@pytest.mark.parametrize(
    ("counts", "fill", "share"),
    [
        ({"delivered": 1000}, "done", "100 %"),
        ({"delivered": 999, "lost": 1}, "most", "99.90 %"),
        ({"delivered": 995, "overdue": 5}, "some", "99.50 %"),
        ({"delivered": 500, "lost": 500}, "few", "50.00 %"),
        ({"delivered": 500, "unknown": 500}, "unknown", "≥ 50.00 %"),
        ({"repaired": 3}, "done", "100 %"),
        ({"waiting": 3}, "nothing", "\u2013"),
    ],
)
def test_the_share_of_what_was_due(counts: dict[str, int], fill: str, share: str) -> None:
    rows = [subject_row(0, "a", accepted=sum(counts.values()), **counts)]
    found = times(document_of(document(groups=[group(rows=rows)])), columns_max=96)
    html = plots.completeness(found, ["c.g"])
    assert f'height="1" class="fill-{fill}"' in html
    assert f'class="share">{share}<' in html
