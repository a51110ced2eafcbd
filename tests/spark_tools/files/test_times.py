"""Whole UTC minutes, and nothing else."""

import pytest

from spark_tools.files.times import minute_of


@pytest.mark.parametrize(
    ("text", "minute"),
    [
        ("1970-01-01T00:00Z", 0),
        ("1970-01-02", 1440),
        ("1970-01-02T01:00+01:00", 1440),
        ("9999-12-31T23:59Z", 4_223_371_679),
    ],
)
def test_a_time_is_a_minute(text: str, minute: int) -> None:
    assert minute_of(text) == minute


@pytest.mark.parametrize("text", ["", "soon", "1970-01-01T00:00:01Z", "1969-12-31T23:59Z"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        minute_of(text)
