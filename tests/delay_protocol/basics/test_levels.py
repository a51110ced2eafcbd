"""Promise: a table of levels is read as it is written, or refused with the place that is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.levels import (
    DEFAULT_LEVELS,
    LEVELS_MAX,
    level_to_ms,
    parse_levels,
)

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def test_the_default_is_the_table_of_rocketmq() -> None:
    seconds = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800]
    assert parse_levels(DEFAULT_LEVELS) == tuple(1000 * s for s in (*seconds, 3600, 7200))


@given(st.lists(st.tuples(st.integers(1, 180), st.sampled_from("smhd")), min_size=1, max_size=64))
def test_each_delay_is_its_number_of_its_unit(table: list[tuple[int, str]]) -> None:
    text = "  ".join(f"{count}{unit}" for count, unit in table)
    assert parse_levels(f" {text} ") == tuple(1000 * n * SECONDS[unit] for n, unit in table)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there are none"),
        ("   ", "there are none"),
        ("1s 5x 10s", r"level 2, at character 4, is '5x': write a whole number above 0 and s, m"),
        ("1s 5", "level 2, at character 4, is '5'"),
        ("1s,5s", "level 1, at character 1, is '1s,5s'"),
        ("1s\t5s", "level 1, at character 1,"),
        ("0s", "level 1, at character 1, is '0s'"),
        ("1s -5s", "level 2, at character 4, is '-5s'"),
        ("1.5s", "level 1"),
        ("1S", "level 1"),
        ("\u0661s", "level 1"),
        ("1s 1h30m", "level 2, at character 4, is '1h30m'"),
        ("1s 181d", "level 2, at character 4, is 181d: give at most 180d"),
        ("1s 99999999d", "level 2, at character 4, is 99999999d: give at most 180d"),
        ("x" * 10**6, r"level 1, at character 1, is 'x{20}': write"),
        ("1s " * 1000, r"level 65, at character 193, is one too many: give at most 64 levels"),
    ],
)
def test_what_is_no_table_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^levels: .*{said}") as caught:
        parse_levels(text)
    assert len(str(caught.value)) < 200


def test_sixty_four_levels_are_not_too_many() -> None:
    assert len(parse_levels("180d " * LEVELS_MAX)) == LEVELS_MAX


def test_no_level_is_at_once_and_one_above_the_last_is_the_last() -> None:
    table = parse_levels("1s 5s")
    assert [level_to_ms(level, table) for level in (0, 1, 2, 3, 2**40)] == [0, 1000, *[5000] * 3]
