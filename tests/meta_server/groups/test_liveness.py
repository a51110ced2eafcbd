"""Silence is noticed at its time-out, longest first, and not invented."""

from hypothesis import given
from hypothesis import strategies as st

from meta_server.groups.liveness import Liveness


def test_silence_is_noticed_at_the_time_out_and_once() -> None:
    liveness: Liveness[str] = Liveness(timeout_s=30)
    liveness.hear("a", 0)
    assert liveness.is_heard("a", 29.9)
    assert liveness.take_silent(29.9) == []
    assert not liveness.is_heard("a", 30)
    assert liveness.take_silent(30) == ["a"]
    assert liveness.take_silent(60) == []
    assert liveness.heard_at("a") is None


def test_who_was_known_before_counts_as_heard_at_the_start_and_not_later() -> None:
    liveness: Liveness[str] = Liveness(timeout_s=30)
    liveness.start(["a", "b"], 100)
    liveness.start(["a", "c"], 110)
    assert liveness.take_silent(130) == ["a", "b"]
    assert liveness.take_silent(140) == ["c"]


def test_who_only_counts_as_heard_is_not_said_to_have_been() -> None:
    liveness: Liveness[str] = Liveness(timeout_s=30)
    liveness.start(["a", "b"], 100)
    liveness.hear("b", 101)
    liveness.expect("c", 102)
    liveness.hear("c", 103)
    liveness.expect("c", 104)
    assert [liveness.sign_of(name) for name in "abcd"] == ["assumed", "heard", "assumed", "none"]
    assert [liveness.heard_at(name) for name in "abcd"] == [None, 101, None, None]
    assert [liveness.is_heard(name, 105) for name in "abcd"] == [True, True, True, False]
    liveness.take_silent(131)
    assert [liveness.sign_of(name) for name in "abc"] == ["none", "none", "assumed"]


def test_who_is_forgotten_is_not_waited_for() -> None:
    liveness: Liveness[str] = Liveness(timeout_s=30)
    liveness.hear("a", 0)
    liveness.forget("a")
    liveness.forget("never seen")
    assert liveness.take_silent(99) == []


def test_time_in_which_nobody_could_be_heard_is_no_silence() -> None:
    liveness: Liveness[str] = Liveness(timeout_s=30)
    liveness.hear("a", 0)
    liveness.hear("b", 39)
    liveness.forgive(20, 40)
    assert (liveness.heard_at("a"), liveness.heard_at("b")) == (20, 40)
    assert liveness.take_silent(49) == []
    assert liveness.take_silent(50) == ["a"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 20)), max_size=40))
def test_exactly_those_are_silent_that_were_not_heard_within_the_time_out(
    words: list[tuple[str, float]],
) -> None:
    liveness: Liveness[str] = Liveness(timeout_s=30)
    heard: dict[str, float] = {}
    now = 0.0
    for name, pause in words:
        now += pause
        silent = sorted(
            (who for who, at in heard.items() if now - at >= 30), key=lambda who: heard[who]
        )
        assert liveness.take_silent(now) == silent
        for who in silent:
            del heard[who]
        # Of those heard at the same moment the one heard again is later.
        heard.pop(name, None)
        heard[name] = now
        liveness.hear(name, now)
        for who in "abcd":
            assert liveness.is_heard(who, now) == (who in heard)
