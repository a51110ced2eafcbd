"""Shares are those of the weights; a group that falls ill loses its own and keeps nothing back.

One story for each fault: see shares_rig.py. The ill group has a quarter of the weight and is ill
from 5 to 12 s.
"""

import functools

import numpy as np
import pytest

from sender.health.circuit import CircuitState
from tests.delivery.shares_rig import (
    FAULTS,
    STEP_S,
    Play,
    Story,
    told,
)
from tests.seeds import first_of

ILL = 1

CONVERGED_S = 8.0
"""Long enough after anything happened: a probe may be on its way for 5 s of it."""


@functools.cache
def story_of(fault: str) -> Story:
    return told(Play(fault=fault, ill=ILL))


KEEPS_A_SHARE = {"refuses some items", "a twentieth of its pace"}
"""These are used as far as they go, since what they take is delivered."""

by_fault = pytest.mark.parametrize("fault", first_of(list(FAULTS), 3))


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0, 1.0), (4.0, 2.0, 1.0, 1.0), (3.0, 1.0)])
@pytest.mark.parametrize("seed", [1, 2])
def test_while_all_are_well_shares_are_within_2_percent_of_the_weights(
    weights: tuple[float, ...], seed: int
) -> None:
    story = told(Play(weights=weights, until_s=8.0, seed=seed))
    for from_s in (0.0, 2.0, 5.0):
        shares = story.shares(from_s, 8.0)
        assert np.abs(shares - story.fair()).max() <= 0.02, shares
    assert story.late_share(0.0, 8.0) == 0


@by_fault
def test_the_others_share_what_an_ill_group_does_not_get_and_are_on_time(fault: str) -> None:
    story = story_of(fault)
    play = story.play
    if fault in KEEPS_A_SHARE:
        assert 0.005 < story.shares(play.ill_from_s, play.ill_until_s)[ILL] < 0.8 * 0.25
        return
    # Within 5 s? From the first half second on.
    shares = story.shares(play.ill_from_s + 0.5, play.ill_until_s)
    assert np.abs(shares - story.fair(without=ILL)).max() <= 0.02, shares
    assert story.late_share(play.ill_from_s, play.ill_until_s) < 0.01
    assert story.late_share(play.ill_from_s + 1, play.ill_until_s) < 0.002


@by_fault
def test_after_a_fault_shares_are_within_2_percent_of_the_weights_again(fault: str) -> None:
    assert_converged(story_of(fault))


def assert_converged(story: Story) -> None:
    play = story.play
    shares = story.shares(play.ill_until_s + CONVERGED_S, play.until_s)
    assert np.abs(shares - story.fair()).max() <= 0.02, shares
    assert story.late_share(play.ill_until_s, play.until_s) <= 0.002


@pytest.mark.parametrize("more_s", first_of([0.9, 1.8, 2.7, 3.6, 4.5], 1))
@pytest.mark.parametrize("fault", first_of(["silent", "answers after 4.9 s", "black hole"], 1))
def test_it_is_so_whenever_the_fault_ends_while_a_trial_is_not_answered(
    fault: str, more_s: float
) -> None:
    well_s = 17.0 + more_s
    seed = round(10 * more_s)
    assert_converged(
        told(Play(fault=fault, ill=ILL, ill_until_s=well_s, until_s=well_s + 11, seed=seed))
    )


@by_fault
def test_no_herd_falls_upon_a_group_that_recovers(fault: str) -> None:
    story = story_of(fault)
    per_step = story.play.load_per_s * STEP_S * 0.25
    back = story.received[round(story.play.ill_until_s / STEP_S) :, ILL]
    # Two batches of 10 more than its share in any tenth of a second; and in the first second less.
    assert back.max() <= per_step + 20
    if fault not in KEEPS_A_SHARE:
        assert back[:10].sum() <= 0.7 * 10 * per_step


@by_fault
def test_no_group_starves_before_during_or_after_a_fault(fault: str) -> None:
    story = story_of(fault)
    per_s = story.play.load_per_s * story.fair()
    for from_s in np.arange(0.0, story.play.until_s - 1, 0.5):
        part = story.delivered[round(from_s / STEP_S) : round((from_s + 1) / STEP_S)].sum(axis=0)
        for number in range(4):
            if number != ILL:
                assert part[number] >= 0.9 * per_s[number], (from_s, part)


@by_fault
def test_an_ill_group_keeps_about_a_request_of_what_is_others(fault: str) -> None:
    story = story_of(fault)
    if fault in KEEPS_A_SHARE:
        return
    ill = slice(round(story.play.ill_from_s / STEP_S) + 5, round(story.play.ill_until_s / STEP_S))
    # From half a second on: what came in before that was noticed, or a probe.
    assert story.load[ill, ILL].max() <= 30
    came = story.received[ill, ILL].sum()
    assert came <= 40, came


def test_a_group_that_answers_just_below_the_time_out_loses_its_share_without_failing() -> None:
    story = story_of("answers after 4.9 s")
    ill = slice(round(story.play.ill_from_s / STEP_S) + 3, round(story.play.ill_until_s / STEP_S))
    assert story.effective[ill, ILL].max() <= 0.1 * 2.0
    assert story.received[ill, ILL].sum() <= 6
    assert (story.late_ms > 10).sum() <= 40


def test_a_group_that_was_slow_for_long_is_led_back_to_its_share() -> None:
    story = story_of("answers after 4.9 s")
    weights = story.effective[:, ILL]
    (back,) = np.flatnonzero((weights[1:] > 0.1 * 2.0) & (weights[:-1] <= 0.1 * 2.0))
    assert (weights[back + 1 : back + 8] < 0.7 * 2.0).all()
    assert weights[back + 25] == 2.0


def test_the_same_play_is_the_same_story() -> None:
    play = Play(fault="errs", ill_from_s=1.0, ill_until_s=2.0, until_s=4.0, load_per_s=300)
    one, other = told(play), told(play)
    assert (one.delivered == other.delivered).all()
    assert (one.late_ms == other.late_ms).all()


@pytest.mark.parametrize("fault", ["refuses connections", "errs"])
def test_the_shares_hold_however_many_come_at_a_time(fault: str) -> None:
    story = told(
        Play(fault=fault, weights=(3.0, 1.0), ill=0, load_per_s=20, ill_until_s=8.0, until_s=40.0)
    )
    assert story.late_share(0.0, 40.0) <= 0.02
    # A probe needs a message, of which there are 20 in a second.
    shares = story.shares(18.0, 40.0)
    assert np.abs(shares - story.fair()).max() <= 0.02, shares


@pytest.mark.long
def test_circuits_open_for_failures_alone() -> None:
    assert {status.circuit for status in story_of("errs").statuses} == {CircuitState.CLOSED}
    opened = {
        fault: story_of(fault).statuses[ILL].counts.changes[CircuitState.OPEN] for fault in FAULTS
    }
    without = {"answers after 4.9 s", "rejects every item", *KEEPS_A_SHARE}
    assert {fault for fault, times in opened.items() if not times} == without
    assert all(0 < times < 20 for fault, times in opened.items() if fault not in without)
