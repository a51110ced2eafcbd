"""gateway.times: delays and moments as people write them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_transport.http.problems import BadValueError
from gateway.times import parse_delay, parse_moment


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        (" 1h52m ", 6720),
        ("1h52m18s", 6738),
        ("2d12h", 216_000),
        ("1w", 604_800),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("0s", 0),
        ("PT90S", 90),
        ("P1DT12H", 129_600),
        ("PT0.25S", 0.25),
        ("P2W", 1_209_600),
    ],
)
def test_a_delay_has_units(text: str, seconds: float) -> None:
    assert parse_delay(text, "delay") == seconds


@pytest.mark.parametrize(
    "text", ["", "90", "1m1h", "PT", "P", "P1DT", "-5s", "1.2h", "s", "٣s", "1y", "9" * 70 + "s"]
)
def test_what_is_no_delay_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(BadValueError, match=r"^Delaywheel-Delay: .*such as 90s, 1h52m") as refused:
        parse_delay(text, "Delaywheel-Delay")
    assert ("add a unit" in str(refused.value)) is text.isdecimal()


@given(st.integers(0, 60 * 86_400_000))
def test_a_delay_of_ms_comes_as_it_is(ms: int) -> None:
    assert round(parse_delay(f"{ms // 1000}s{ms % 1000}ms", "delay") * 1000) == ms
    assert round(parse_delay(f"PT{ms // 1000}.{ms % 1000:03}S", "delay") * 1000) == ms


@given(st.integers(0, 7_000_000_000_000), st.integers(-14 * 60, 14 * 60))
def test_a_moment_is_that_of_its_offset(ms: int, minutes: int) -> None:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    there = at.astimezone(timezone(timedelta(minutes=minutes)))
    assert parse_moment(there.isoformat(), "at") == at
    assert parse_moment(f"{ms // 1000}.{ms % 1000:03}", "at") == at


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-12-24T18:00:00", "a timezone component"),
        ("2026-12-24", "2026-12-24T18:00:00Z"),
        ("1798131600000", "seconds, not milliseconds"),
        ("tomorrow", "since 1970"),
        ("2026-13-24T18:00:00Z", "since 1970"),
        ("1798131600_000", "2026-12-24T18:00:00Z"),
        ("", "since 1970"),
        ("1" * 70, "since 1970"),
    ],
)
def test_what_is_no_moment_is_refused_with_what_to_write(text: str, why: str) -> None:
    with pytest.raises(BadValueError, match=why):
        parse_moment(text, "Delaywheel-Not-Before")
