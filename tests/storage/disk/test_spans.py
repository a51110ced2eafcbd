"""A segment's name, path and code all tell the same start and span, in UTC."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.disk.spans import SegmentKey, Span, key_of_code, key_of_minute, key_of_name

SPANS = [Span.MINUTE, Span.HOUR, Span.DAY]
minutes = st.integers(0, 2**32 - 1).map(lambda minute: minute % 4_000_000_000)


@given(minutes, st.sampled_from(SPANS))
def test_name_and_code_bring_the_key_back(minute: int, span: Span) -> None:
    key = key_of_minute(minute, span)
    assert key.start <= minute < key.end
    assert key.end - key.start == span.minutes
    assert key_of_name(key.name) == key
    assert key_of_code(key.code) == key


@given(st.lists(st.tuples(minutes, st.sampled_from(SPANS)), min_size=2))
def test_codes_are_as_different_as_keys(parts: list[tuple[int, Span]]) -> None:
    keys = {key_of_minute(minute, span) for minute, span in parts}
    assert len({key.code for key in keys}) == len({key.name for key in keys}) == len(keys)


def test_a_name_tells_the_utc_start() -> None:
    when = dt.datetime(2026, 11, 21, 14, 3, tzinfo=dt.UTC)
    key = SegmentKey(int(when.timestamp()) // 60, Span.MINUTE)
    assert key.name == "20261121T1403Z.minute"
    assert key.path == "schedule_log/20261121T1403Z.minute"
    assert key.facts_path == "dispatch_log/20261121T1403Z.minute"
    assert key_of_minute(key.start, Span.DAY).name == "20261121T0000Z.day"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "journal",
        "20261121T1403Z.minute.tmp",
        "20261121T1403.minute",
        "20261121T1403Z.week",
        "99999999T9999Z.minute",
        "20261121T1403Z.hour",
        "20261121T1400Z.day",
        "19691231T2359Z.minute",
        "٢٠٢٦١١٢١T١٤٠٣Z.minute",  # noqa: RUF001 (digits that are not ASCII)
    ],
)
def test_any_other_name_is_no_segments(name: str) -> None:
    assert key_of_name(name) is None
