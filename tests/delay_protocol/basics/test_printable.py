"""Whatever others sent can be shown on a terminal without moving its cursor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("flight.LH400 ü 东", "flight.LH400 ü 东"),
        ("a\nb\x1b[31m\x00\x7f\x9b", "a\\nb\\x1b[31m\\x00\\x7f\\x9b"),
        ("left\u202eright\u2028", "left\\u202eright\\u2028"),
        ("\udcff", "\\udcff"),
        ("", ""),
    ],
)
def test_what_is_not_printable_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_no_text_keeps_anything_that_is_not_printable(text: str) -> None:
    assert printable(text).isprintable()
