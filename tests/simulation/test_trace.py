"""A trace tells two runs apart by any line, and keeps the last ones to look at."""

from tests.simulation.trace import Trace


def filled(lines: int, *, keep: bool = False) -> Trace:
    trace = Trace(keep=keep)
    for number in range(lines):
        trace.note(f"line {number}")
    return trace


def test_equal_lines_give_equal_digests_however_they_are_read() -> None:
    read_often = Trace()
    for number in range(1000):
        read_often.note(f"line {number}")
        read_often.digest()
    assert read_often.digest() == filled(1000).digest()
    assert read_often.count == 1000


def test_any_other_line_gives_another_digest() -> None:
    digests = {filled(count).digest() for count in (0, 1, 255, 256, 257, 1000)}
    assert len(digests) == 6


def test_lines_are_kept_where_asked_for() -> None:
    assert filled(1000, keep=True).lines == [f"line {number}" for number in range(1000)]
    assert filled(1000).lines[-1] == "line 999"
