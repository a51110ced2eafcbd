"""Promise: only what no delay explains is a difference; most clocks say which one is wrong."""

from collections.abc import Mapping

import pytest

from delay_protocol.nodes.clocks import FAULT_MS, ahead_ms, clock_fault, difference

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("theirs_ms", "waited_ms", "found_ms"),
    [
        (1000, 0, 0),
        # It looked at its clock up to 300 ms ago.
        (700, 300, 0),
        (699, 300, -1),
        (1001, 300, 1),
        (1000 + HOUR_MS, 300, HOUR_MS),
        (1000 - HOUR_MS, 300, 300 - HOUR_MS),
    ],
)
def test_what_a_delay_explains_is_no_difference(
    theirs_ms: int, waited_ms: int, found_ms: int
) -> None:
    assert ahead_ms(theirs_ms, 1000, waited_ms=waited_ms) == found_ms


def test_a_difference_above_a_second_is_told() -> None:
    assert difference(1000) == difference(-1000) == ""
    assert difference(1001) == "its clock is 1.0 s ahead of the meta server's"
    assert difference(-HOUR_MS) == "its clock is 3600.0 s behind the meta server's"


@pytest.mark.parametrize(
    ("by_ms", "wrong"),
    [
        ({"a": 0, "b": 0, "c": 0}, ""),
        ({"a": 0, "b": 0, "c": FAULT_MS - 1}, ""),
        ({"a": 0, "b": 0, "c": FAULT_MS}, "c"),
        ({"a": 0, "b": 0, "c": -FAULT_MS}, "c"),
        ({"a": HOUR_MS, "b": 0, "c": 0}, "a"),
        ({"a": 0, "b": -HOUR_MS}, "b"),
        # Each is wrong in its own way.
        ({"a": 0, "b": -HOUR_MS, "c": HOUR_MS}, "bc"),
        # Two and two: the meta server's decides.
        ({"a": 0, "b": HOUR_MS, "c": HOUR_MS}, "bc"),
        # The meta server's is wrong.
        ({"a": HOUR_MS, "b": HOUR_MS, "c": HOUR_MS + 5}, ""),
        ({"a": HOUR_MS, "b": HOUR_MS}, ""),
        # Nobody knows which of two is wrong.
        ({"a": HOUR_MS}, ""),
    ],
)
def test_a_clock_is_wrong_that_few_agree_with_and_not_the_meta_server(
    by_ms: Mapping[str, int], wrong: str
) -> None:
    assert "".join(node for node in by_ms if clock_fault(node, by_ms)) == wrong
    assert clock_fault("nobody", by_ms) == ""


def test_the_sentence_says_what_is_to_be_done() -> None:
    assert clock_fault("c", {"a": 0, "b": 0, "c": HOUR_MS}) == (
        "c: its clock is 3600.0 s ahead of the meta server's, and 0 of 3 other clocks agree with "
        "it: set it right (chronyc makestep)"
    )
