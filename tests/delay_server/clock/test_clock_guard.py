"""The wall clock is followed while it is plausible, and held after a step forward until one of
three things vouches for it. Time is never given out beyond what the wall clock shows."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from delay_server.clock.clock_guard import (
    FAR_MS,
    ClockGuard,
    is_news,
)
from storage.state.checkpoint import ClockMark

NOON = 1_700_000_000_000
MINUTE = 60_000
HOUR = 60 * MINUTE
BOOT = 5_000_000


def yes() -> bool:
    return True


def no() -> bool:
    return False


class Machine:
    """A guard with two clocks that a test moves."""

    def __init__(self, step_forward_ms_max: int = MINUTE) -> None:
        self.guard = ClockGuard(step_forward_ms_max=step_forward_ms_max)
        self.wall = NOON
        self.boot = BOOT
        assert self.observe()

    def observe(self, synchronised: Callable[[], bool] = no) -> bool:
        runs = self.guard.observe(self.wall, self.boot, synchronised)
        assert runs is not self.guard.is_held
        assert bool(self.guard.reason) != runs
        return runs

    def passes(self, boot_ms: int, *, gain_ms: int = 0) -> "Machine":
        self.boot += boot_ms
        self.wall += boot_ms + gain_ms
        return self

    def steps(self, ms: int) -> "Machine":
        return self.passes(0, gain_ms=ms)

    def trusted_now(self) -> int:
        return self.guard.trusted_now_ms(self.wall, self.boot)


def held_machine(step_ms: int = HOUR) -> Machine:
    machine = Machine()
    assert not machine.steps(step_ms).observe()
    return machine


def test_the_first_reading_is_trusted() -> None:
    machine = Machine()
    assert machine.guard.trusted_offset_ms == NOON - BOOT
    assert machine.trusted_now() == NOON


def test_time_is_the_wall_clock_before_any_reading() -> None:
    assert ClockGuard(step_forward_ms_max=MINUTE).trusted_now_ms(NOON, BOOT) == NOON


@pytest.mark.parametrize(("step_ms", "runs"), [(MINUTE, True), (MINUTE + 1, False)])
def test_a_step_forward_is_held_from_the_first_ms_beyond_the_limit(
    step_ms: int, runs: bool
) -> None:
    assert Machine().steps(step_ms).observe() is runs


def test_a_step_is_held_however_long_nobody_looked() -> None:
    assert not Machine().passes(1000 * HOUR, gain_ms=MINUTE + 1).observe()


def test_suspend_is_no_step_since_both_clocks_go_on() -> None:
    machine = Machine().passes(72 * HOUR)
    assert machine.observe()
    assert machine.trusted_now() == machine.wall


def test_a_step_backward_is_followed_at_once() -> None:
    machine = Machine().steps(-HOUR)
    assert machine.trusted_now() == machine.wall
    assert machine.observe()
    assert machine.trusted_now() == NOON - HOUR


@pytest.mark.parametrize("back_ms", [2 * HOUR, FAR_MS])
def test_coming_back_to_where_the_clock_was_is_no_gain(back_ms: int) -> None:
    machine = Machine().steps(-back_ms)
    assert machine.observe()
    assert machine.passes(7 * HOUR).observe()
    assert machine.steps(back_ms).observe()
    assert machine.trusted_now() == machine.wall
    assert not machine.steps(MINUTE + 1).observe()


def test_after_a_step_back_of_more_than_a_day_what_the_clock_showed_counts_no_longer() -> None:
    machine = Machine().steps(-FAR_MS - 1)
    assert machine.observe()
    assert not machine.steps(FAR_MS + 1).observe()


def test_steps_back_and_forth_do_not_add_up_to_a_gain() -> None:
    machine = Machine()
    assert machine.steps(MINUTE).observe()
    for _ in range(10):
        assert machine.steps(-MINUTE).observe()
        assert machine.steps(MINUTE).observe()
    assert not machine.steps(1).observe()


def test_small_steps_add_up() -> None:
    machine = Machine()
    assert machine.steps(40_000).observe()
    assert machine.passes(1000, gain_ms=20_000).observe()
    assert not machine.passes(1000, gain_ms=1000).observe()


def test_a_tenth_of_the_time_that_passes_is_forgiven() -> None:
    machine = Machine()
    assert machine.steps(MINUTE).observe()
    assert machine.passes(10_000).observe()
    assert machine.steps(1000).observe()
    assert not machine.steps(1).observe()


def test_forgiveness_adds_up_over_readings_a_ms_apart() -> None:
    machine = Machine()
    assert machine.steps(MINUTE).observe()
    for _ in range(100):
        assert machine.passes(1).observe()
    assert machine.steps(10).observe()
    assert not machine.steps(1).observe()


def test_a_clock_slewed_forward_as_fast_as_any_daemon_does_is_followed_for_ever() -> None:
    machine = Machine()
    for _ in range(10_000):
        assert machine.passes(1200, gain_ms=100).observe()
    assert machine.trusted_now() == machine.wall == NOON + 10_000 * 1300


def test_a_clock_that_runs_at_double_speed_is_held_before_it_is_70_s_ahead() -> None:
    machine = Machine()
    while machine.passes(1000, gain_ms=1000).observe():
        pass
    assert machine.wall - NOON - (machine.boot - BOOT) < 70_000


def test_a_step_back_and_forth_within_the_limit_costs_nothing() -> None:
    machine = Machine()
    for _ in range(100):
        assert machine.steps(50_000).observe()
        assert machine.steps(-50_000).observe()


def test_while_held_trusted_time_goes_on_with_the_boot_clock_only() -> None:
    machine = held_machine()
    assert machine.trusted_now() == NOON
    machine.passes(7000).observe()
    assert machine.trusted_now() == NOON + 7000


def test_a_step_that_nobody_has_observed_yet_moves_no_trusted_time() -> None:
    assert Machine().steps(HOUR).trusted_now() == NOON


def test_waiting_alone_never_ends_a_hold() -> None:
    machine = held_machine(MINUTE + 1)
    for _ in range(1000):
        assert not machine.passes(HOUR).observe()


def test_waiting_does_not_forgive_what_came_before_a_hold_either() -> None:
    machine = Machine()
    assert machine.steps(50_000).observe()
    assert not machine.steps(11_000).observe()
    for _ in range(10):
        assert not machine.passes(HOUR).observe()


def test_the_word_of_the_kernel_ends_a_hold() -> None:
    machine = held_machine()
    assert machine.observe(yes)
    assert machine.trusted_now() == NOON + HOUR
    assert machine.observe()


def test_a_step_of_a_synchronised_clock_is_not_held() -> None:
    assert Machine().steps(HOUR).observe(yes)


def test_the_kernel_is_not_asked_while_nothing_is_wrong() -> None:
    def fails() -> bool:
        raise AssertionError

    assert Machine().passes(1000).observe(fails)


def test_an_operator_ends_a_hold() -> None:
    machine = held_machine()
    machine.guard.accept()
    assert not machine.guard.is_held
    assert machine.trusted_now() == NOON + HOUR
    assert machine.observe()


def test_an_operator_accepts_what_was_observed_and_not_what_comes_after() -> None:
    machine = held_machine()
    machine.steps(HOUR)
    machine.guard.accept()
    assert not machine.observe()


def test_accepting_a_clock_that_is_not_held_changes_nothing() -> None:
    machine = Machine()
    assert machine.steps(50_000).observe()
    machine.guard.accept()
    assert not machine.steps(20_000).observe()


@pytest.mark.parametrize(("left_ms", "runs"), [(0, True), (MINUTE, True), (MINUTE + 1, False)])
def test_taking_a_step_back_to_within_the_limit_ends_a_hold(left_ms: int, runs: bool) -> None:
    machine = held_machine()
    machine.passes(5 * HOUR)
    assert machine.steps(left_ms - HOUR).observe() is runs


def test_what_is_left_of_a_step_that_was_taken_back_still_counts() -> None:
    machine = held_machine()
    assert machine.steps(50_000 - HOUR).observe()
    assert not machine.steps(11_000).observe()


def test_a_clock_taken_back_too_far_is_followed_backward() -> None:
    machine = held_machine()
    assert machine.steps(-2 * HOUR).observe()
    assert machine.trusted_now() == NOON - HOUR


class Restarted(Machine):
    """A guard that goes by what another one has left."""

    def __init__(self, before: Machine, *, off_ms: int | None = None, gain_ms: int = 0) -> None:
        """Begin in the same boot, or in another one when the machine was off for so long."""
        mark = before.guard.mark("one", before.boot)
        assert mark is not None
        self.guard = ClockGuard(step_forward_ms_max=MINUTE)
        self.wall, self.boot = before.wall + (off_ms or 0) + gain_ms, before.boot
        if off_ms is not None:
            self.boot = 30_000
        boot_id = "one" if off_ms is None else "two"
        self.guard.recall(mark, boot_id=boot_id, wall_ms=self.wall, boot_ms=self.boot)


def test_a_restart_in_the_same_boot_keeps_a_hold_and_ends_it_when_the_step_is_taken_back() -> None:
    machine = Restarted(held_machine())
    assert machine.trusted_now() == NOON
    assert not machine.observe()
    assert "gained 3600.0 s on the time since boot" in machine.guard.reason
    assert machine.steps(-HOUR).observe()


def test_a_step_while_nothing_ran_is_held_in_the_same_boot_however_long_that_was() -> None:
    assert Restarted(Machine().passes(10 * FAR_MS)).observe()
    assert Restarted(Machine(), gain_ms=MINUTE).observe()
    assert not Restarted(Machine(), gain_ms=MINUTE + 1).observe()


def test_a_clock_that_was_set_back_before_a_restart_may_come_back_after_it() -> None:
    before = Machine().steps(-2 * HOUR)
    assert before.observe()
    machine = Restarted(before)
    assert machine.observe()
    assert machine.steps(2 * HOUR).observe()


@pytest.mark.parametrize(("off_ms", "runs"), [(0, True), (FAR_MS, True), (FAR_MS + 1, False)])
def test_in_another_boot_the_clock_is_believed_for_a_day(off_ms: int, runs: bool) -> None:
    machine = Restarted(Machine(), off_ms=off_ms)
    assert machine.observe() is runs
    assert machine.trusted_now() == (machine.wall if runs else NOON)
    if runs:
        assert not machine.steps(MINUTE + 1).observe(), "from there on it is this boot's"
    else:
        assert "ahead of the last trusted time before this boot" in machine.guard.reason


def test_a_node_that_was_off_for_a_week_goes_on_when_the_kernel_or_an_operator_says_so() -> None:
    assert Restarted(Machine(), off_ms=7 * FAR_MS).observe(yes)
    machine = Restarted(Machine(), off_ms=7 * FAR_MS)
    assert not machine.observe()
    machine.guard.accept()
    assert machine.observe()
    assert machine.trusted_now() == machine.wall


def test_a_clock_that_was_held_is_held_in_another_boot_too_until_it_is_taken_back() -> None:
    machine = Restarted(held_machine(), off_ms=5 * MINUTE)
    assert not machine.observe()
    assert machine.steps(-HOUR - 4 * MINUTE).observe()


def test_a_clock_that_comes_up_behind_may_come_back_to_the_last_known_time() -> None:
    machine = Restarted(Machine(), off_ms=0, gain_ms=-FAR_MS)
    assert machine.observe()
    assert machine.steps(FAR_MS + MINUTE).observe()
    assert not machine.steps(1).observe()


@pytest.mark.parametrize("boot_id", ["", "two"])
def test_without_a_name_of_the_boot_it_is_another_one(boot_id: str) -> None:
    guard = ClockGuard(step_forward_ms_max=MINUTE)
    known = ClockMark(boot_id=boot_id, wall_ms=NOON, boot_ms=BOOT, held=False)
    guard.recall(known, boot_id="", wall_ms=NOON + HOUR, boot_ms=BOOT)
    assert guard.observe(NOON + HOUR, BOOT, no)


def test_only_what_a_start_would_misjudge_is_news() -> None:
    mark = ClockMark(boot_id="one", wall_ms=NOON, boot_ms=BOOT, held=False)
    later = replace(mark, wall_ms=NOON + HOUR, boot_ms=BOOT + HOUR)
    assert not is_news(later, mark)
    assert not is_news(replace(mark, wall_ms=NOON + 1000), mark)
    assert is_news(mark, None)
    assert is_news(replace(mark, wall_ms=NOON + 1001), mark)
    assert is_news(replace(mark, held=True), mark)
    assert is_news(replace(mark, boot_id="two"), mark)


readings = st.lists(
    st.tuples(
        st.integers(0, 200_000),
        st.one_of(st.integers(-100, 20_000), st.integers(-10 * HOUR, 10 * HOUR)),
        st.sampled_from(["", "", "", "kernel", "operator"]),
    ),
    max_size=40,
)


@given(steps=readings, limit=st.sampled_from([1000, MINUTE]))
def test_trusted_time_never_exceeds_the_wall_clock_and_gains_no_more_than_the_allowance(
    steps: list[tuple[int, int, str]], limit: int
) -> None:
    machine = Machine(limit)
    trusted: list[tuple[int, int]] = [(machine.boot, machine.wall - machine.boot)]
    for boot_ms, gain_ms, vouches in steps:
        was_held = machine.guard.is_held
        before = machine.guard.trusted_offset_ms
        machine.passes(boot_ms, gain_ms=gain_ms)
        assert machine.trusted_now() <= machine.wall
        offset = machine.wall - machine.boot
        runs = machine.observe(yes if vouches == "kernel" else no)
        if vouches == "operator":
            machine.guard.accept()
        assert machine.trusted_now() <= machine.wall
        if vouches:
            assert not machine.guard.is_held
            trusted = []
        elif not runs:
            assert machine.guard.trusted_offset_ms == before
            assert before is not None
            assert offset > before
            continue
        elif was_held:
            assert before is not None
            assert offset - before <= limit
        highest = machine.guard.trusted_offset_ms
        assert highest is not None
        assert offset <= highest <= offset + FAR_MS
        assert machine.trusted_now() == machine.wall
        for earlier_boot, earlier_highest in trusted:
            assert highest - earlier_highest <= limit + (machine.boot - earlier_boot) / 10
        trusted.append((machine.boot, highest))
