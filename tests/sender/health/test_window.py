"""A window follows the pace of its broker, between its limits whatever comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sender.health.window import Window
from sender.settings.config import SenderConfig

LIMITS = SenderConfig(in_flight_requests_max=8)


class Broker:
    """Answers one request after the other, and so fills the window."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.now = 0.0

    def answer(self, took_s: float, *, items: int = 256, was_full: bool = True) -> None:
        sent_at = self.now
        self.now += took_s
        self.window.answered(now=self.now, sent_at=sent_at, items=items, was_full=was_full)


def grown() -> Broker:
    broker = Broker(Window(LIMITS))
    for _ in range(20):
        broker.answer(0.001)
    assert broker.window.requests == 8
    return broker


def test_it_begins_small_and_grows_with_each_quick_answer_while_it_is_full() -> None:
    broker = Broker(Window(LIMITS))
    widths = []
    for _ in range(9):
        widths.append(broker.window.requests)
        broker.answer(0.005)
    assert widths == [1, 2, 3, 4, 5, 6, 7, 8, 8]


def test_the_mean_follows_quicker_answers_sooner_than_slower_ones() -> None:
    broker = Broker(Window(LIMITS))
    got = []
    for took_s in (0.01, 0.02, 0.003):
        broker.answer(took_s)
        got.append(broker.window.answer_s)
    assert got == pytest.approx([0.01, 0.013, 0.006])


def test_the_quickest_answer_is_remembered_when_the_next_ten_seconds_begin() -> None:
    broker = Broker(Window(LIMITS))
    broker.answer(0.03)
    broker.now += 11.0
    broker.answer(0.045)
    assert broker.window.quick_s == pytest.approx(0.06)


def test_it_shrinks_once_for_all_that_was_on_its_way_and_again_for_what_was_sent_then() -> None:
    window = grown().window
    widths = []
    for now, sent_at in ((1.0, 0.9), (1.1, 0.9), (1.2, 1.0)):
        window.shrink(now=now, sent_at=sent_at)
        widths.append(window.requests)
    assert widths == [5, 5, 3]


def test_one_small_request_does_not_empty_the_queue() -> None:
    broker = Broker(Window(LIMITS))
    got = []
    for items in (400, 100):
        broker.answer(0.01, items=items, was_full=False)
        got.append(broker.window.queue_items)
    assert got == pytest.approx([4000, 3100], abs=1)


def test_it_does_not_grow_while_there_is_nothing_to_fill_it() -> None:
    broker = Broker(Window(LIMITS))
    for _ in range(50):
        broker.answer(0.001, was_full=False)
    assert broker.window.requests == 1


def test_it_shrinks_while_answers_take_long_and_grows_back_more_slowly() -> None:
    broker = grown()
    for _ in range(8):
        broker.answer(0.3)
    assert broker.window.requests == 1
    answers = 0
    while broker.window.requests < 4:
        broker.answer(0.001)
        answers += 1
    assert answers > 3


def test_a_broker_that_is_far_away_keeps_its_window() -> None:
    broker = Broker(Window(LIMITS))
    for _ in range(200):
        broker.answer(0.4)
    assert broker.window.requests == 8


def test_what_was_quick_long_ago_is_no_measure() -> None:
    broker = grown()
    for _ in range(100):
        broker.answer(0.4)
    # It has moved away, or its disk has become slower for good: it gets what fits on the way.
    assert broker.window.requests == 8


def test_as_much_waits_as_is_answered_in_its_time() -> None:
    broker = grown()
    assert broker.window.queue_items == 8192
    for _ in range(60):
        broker.answer(0.08)
    # Eight requests of 256 items in 0.08 s are 2,560 in 0.1 s.
    assert broker.window.requests == 8
    assert broker.window.queue_items == pytest.approx(2560, rel=0.01)
    for _ in range(60):
        broker.answer(4.9)
    assert broker.window.queue_items == 512


def test_what_is_quick_is_measured_by_the_broker_up_to_what_is_usual() -> None:
    for took_s, quick_s in ((0.001, 0.02), (0.03, 0.06), (0.3, 0.1)):
        broker = Broker(Window(LIMITS))
        broker.answer(took_s)
        assert broker.window.quick_s == pytest.approx(quick_s)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 1e-6, 0.001, 0.05, 0.3, 4.9, 100.0]),
            st.integers(1, 100_000),
            st.booleans(),
            st.booleans(),
        ),
        max_size=200,
    )
)
def test_it_stays_between_its_limits(answers: list[tuple[float, int, bool, bool]]) -> None:
    broker = Broker(Window(LIMITS))
    for took_s, items, was_full, is_refusal in answers:
        if is_refusal:
            broker.window.shrink(now=broker.now, sent_at=broker.now)
        else:
            broker.answer(took_s, items=items, was_full=was_full)
        assert 1 <= broker.window.requests <= 8
        assert 512 <= broker.window.queue_items <= 8192
        assert 0.02 <= broker.window.quick_s <= 0.1
        assert 0 <= broker.window.answer_s <= 100.0001


def test_what_answers_took_counts_less_the_longer_it_is_ago_and_is_not_forgotten_by_looking() -> (
    None
):
    window = Window(LIMITS)
    assert window.recent_s(0.0) == 0
    window.answered(now=10.0, sent_at=9.4, items=1000, was_full=True)
    assert window.recent_s(10.0) == pytest.approx(0.6)
    assert window.recent_s(10.5) == pytest.approx(0.6 / 2.718, rel=0.01)
    assert window.recent_s(15.0) < 0.001
    assert window.answer_s == pytest.approx(0.6)
    window.answered(now=15.1, sent_at=15.0, items=1, was_full=True)
    assert window.recent_s(15.1) == window.answer_s
