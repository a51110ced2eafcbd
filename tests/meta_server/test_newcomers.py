"""A flood of new subjects from one address leaves the others their share, in bounded memory."""

import pytest

from meta_server.config import RegistrationConfig
from meta_server.errors import RefusedError
from meta_server.newcomers import ADDRESSES_MAX, Newcomers


def newcomers(*, share: float = 0.25) -> Newcomers:
    """Return what admits 40 at once and 10 a second."""
    return Newcomers("are new", rate=10, burst_seconds=4, share=share)


def admitted(them: Newcomers, where: str, count: int, now: float) -> int:
    """Return how many of so many new subjects from there are admitted."""
    found = 0
    for _ in range(count):
        try:
            them.admit(where, now)
        except RefusedError:
            continue
        found += 1
    return found


def test_one_address_has_its_share_at_once_and_for_long() -> None:
    them = newcomers()
    assert admitted(them, "flood", 1000, 0.0) == 11
    # A quarter of 10 a second.
    assert sum(admitted(them, "flood", 1000, now) for now in range(1, 101)) == pytest.approx(
        250, abs=2
    )


def test_others_have_theirs_while_a_flood_goes_on() -> None:
    them = newcomers()
    for now in range(100):
        admitted(them, "flood", 1000, now)
        assert admitted(them, "good", 2, now) == 2


def test_of_all_addresses_together_there_are_no_more_than_the_settings_say() -> None:
    them = newcomers()
    assert sum(admitted(them, f"a{number}", 100, 0.0) for number in range(100)) == 41


def test_what_is_refused_costs_nobody_anything() -> None:
    them = newcomers()
    admitted(them, "flood", 10_000, 0.0)
    assert admitted(them, "flood", 1, 0.5) == 1


def test_with_all_for_everybody_one_address_may_take_all() -> None:
    assert admitted(newcomers(share=1.0), "one", 1000, 0.0) == 41


def test_addresses_are_forgotten_beyond_a_number_of_them() -> None:
    them = newcomers()
    for number in range(3 * ADDRESSES_MAX):
        admitted(them, f"a{number}", 1, number * 10.0)
        assert len(them) <= ADDRESSES_MAX


@pytest.mark.parametrize("share", [0, -1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="new_subjects_address_share"):
        RegistrationConfig(new_subjects_address_share=share)
