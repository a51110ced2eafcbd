"""A flood of new subjects from one address leaves the others their share, in bounded memory."""

import pytest

from delay_transport.seams.newcomers import SOURCES_MAX, Newcomers


def newcomers(*, share: float = 0.25) -> Newcomers:
    """Return what admits 40 at once and 10 a second."""
    return Newcomers("are new", rate=10, burst=40, address=share)


def admitted(them: Newcomers, where: str, count: int, now: float) -> int:
    """Return how many of so many new subjects from there are admitted."""
    return sum(them.refusal(now, address=where) is None for _ in range(count))


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
    for number in range(3 * SOURCES_MAX):
        admitted(them, f"a{number}", 1, number * 10.0)
        assert len(them) <= SOURCES_MAX


def test_a_connection_has_a_share_of_that_of_its_address() -> None:
    them = Newcomers("are new", rate=10, burst=40, address=1 / 2, connection=1 / 4)

    def ask(address: str, connection: str) -> str | None:
        return them.refusal(0.0, address=address, connection=connection)

    assert sum(ask("here", "one") is None for _ in range(100)) == 11
    assert "from this connection" in str(ask("here", "one"))
    assert sum(ask("here", f"c{number}") is None for number in range(100)) == 10
    assert "from this address" in str(ask("here", "new"))
    assert ask("there", "other") is None
