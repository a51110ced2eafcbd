"""A weight falls before a group fails, comes back bit by bit, and is never nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sender.health.weight import Weight


def weight(configured: float = 3.0) -> Weight:
    return Weight(configured)


def test_a_group_that_is_well_has_the_weight_it_was_given() -> None:
    one = weight()
    for number in range(100):
        one.answered(number / 10, 1.0)
        assert one.effective(number / 10, answer_s=0.02, quick_s=0.02) == 3.0


def test_the_share_of_a_group_that_slows_down_is_gone_before_it_fails() -> None:
    one = weight()
    shares = [one.effective(0.0, answer_s=s, quick_s=0.02) for s in (0.02, 0.04, 0.1, 0.2, 4.9)]
    assert shares == pytest.approx([3.0, 0.75, 0.12, 0.03, 0.03])


def test_success_is_that_of_late_and_failures_fade_while_nothing_is_tried() -> None:
    one = weight()
    for number in range(100):
        one.answered(number / 1000, 0.7)
    assert one.success(0.1) == pytest.approx(0.7, abs=0.02)
    assert one.success(5.1) == pytest.approx(1 - 0.3 / 2.718, abs=0.02)
    for number in range(100):
        one.answered(5.1 + number / 1000, 1.0)
    assert one.success(5.2) == 1.0


def test_each_answer_is_worth_a_tenth_of_the_recent_success() -> None:
    one = weight()
    got = []
    for taken in (0.0, 0.0, 1.0):
        one.answered(1.0, taken)
        got.append(one.success(1.0))
    assert got == pytest.approx([0.9, 0.81, 0.829])


def test_a_group_that_recovers_is_led_back_to_its_weight() -> None:
    one = weight()
    one.answered(9.0, 0.0)
    one.recovered(10.0)
    got = [
        one.effective(10.0 + s, answer_s=0.001, quick_s=0.02) for s in (0.0, 0.1, 1.0, 1.9, 2.0, 5)
    ]
    assert got == pytest.approx([0.3, 0.3, 1.5, 2.85, 3.0, 3.0])


@given(
    st.lists(
        st.tuples(st.floats(0, 10), st.floats(0, 1), st.booleans(), st.floats(0, 100)), max_size=50
    ),
    st.floats(0.001, 1000),
)
def test_whatever_comes_it_is_between_its_floor_and_what_it_was_given(
    happens: list[tuple[float, float, bool, float]], configured: float
) -> None:
    one = weight(configured)
    now = 0.0
    for passed_s, taken, recovers, answer_s in happens:
        now += passed_s
        if recovers:
            one.recovered(now)
        else:
            one.answered(now, taken)
        assert 0 <= one.success(now) <= 1
        effective = one.effective(now, answer_s=answer_s, quick_s=0.02)
        assert configured * 0.00999 <= effective <= configured
