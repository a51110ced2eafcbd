"""Silence is noticed at its time-out, and not invented."""

from meta_server.groups.liveness import Liveness


def test_silence_is_noticed_at_the_time_out() -> None:
    liveness: Liveness = Liveness(timeout_s=30)
    liveness.hear("a", 0)
    assert liveness.is_heard("a", 29.9)
    assert (liveness.silent(29.9), liveness.heard_at("a", 29.9)) == ([], 0)
    assert not liveness.is_heard("a", 30)
    assert (liveness.silent(30), liveness.heard_at("a", 30)) == (["a"], None)
    liveness.hear("a", 60)
    assert (liveness.silent(60), liveness.heard_at("a", 60)) == ([], 60)


def test_who_was_known_before_counts_as_heard_at_the_start_and_not_later() -> None:
    liveness: Liveness = Liveness(timeout_s=30)
    liveness.start(["a", "b"], 100)
    liveness.start(["a", "c"], 110)
    assert liveness.silent(130) == ["a", "b"]
    assert liveness.silent(140) == ["a", "b", "c"]


def test_who_is_forgotten_is_not_waited_for() -> None:
    liveness: Liveness = Liveness(timeout_s=30)
    liveness.hear("a", 0)
    liveness.forget("a")
    liveness.forget("never seen")
    assert liveness.silent(99) == []


def test_time_in_which_nobody_could_be_heard_is_no_silence() -> None:
    liveness: Liveness = Liveness(timeout_s=30)
    liveness.hear("a", 0)
    liveness.hear("b", 39)
    liveness.forgive(20, 40)
    assert (liveness.heard_at("a", 40), liveness.heard_at("b", 40)) == (20, 40)
    assert (liveness.silent(49), liveness.silent(50)) == ([], ["a"])
