"""Promise: delays count by the server's clock, as far as no delay of the network explains it."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from delay_client.messages import clock
from delay_client.messages.clock import ServerClock

NOON_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


@dataclass
class Clocks:
    """The clocks of this machine."""

    wall_ms: int = NOON_MS
    boot_ms: int = 5_000

    def pass_ms(self, ms: int) -> None:
        self.wall_ms += ms
        self.boot_ms += ms


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    found = Clocks()
    monkeypatch.setattr(clock, "wall_ms", lambda: found.wall_ms)
    monkeypatch.setattr(clock, "boot_ms", lambda: found.boot_ms)
    return found


def new_clock() -> ServerClock:
    return ServerClock("h:1")


@pytest.mark.parametrize(
    ("server_ms", "waited_ms", "ahead_ms"),
    [
        (NOON_MS, 0, 0),
        # The server said it up to a second ago.
        (NOON_MS - 1000, 1000, 0),
        (NOON_MS - 999, 1000, 0),
        # The answer came at once, so that it is behind, or ahead.
        (NOON_MS - 1000, 0, -1000),
        (NOON_MS + HOUR_MS, 0, HOUR_MS),
        # Never behind the server's: all of the wait may have been after it looked.
        (NOON_MS + HOUR_MS, 250, HOUR_MS + 250),
        (NOON_MS - HOUR_MS, 250, -HOUR_MS + 250),
        # Too little to be made up for.
        (NOON_MS + 99, 0, 0),
        (NOON_MS + 100, 0, 100),
    ],
)
def test_what_a_delay_explains_is_no_difference(
    clocks: Clocks, server_ms: int, waited_ms: int, ahead_ms: int
) -> None:
    server = new_clock()
    server.heard(server_ms, clocks.boot_ms - waited_ms)
    assert server.ahead_ms() == ahead_ms
    clocks.pass_ms(10_000)
    assert server.ahead_ms() == ahead_ms


def test_before_an_answer_and_by_one_without_a_time_it_is_the_clock_of_here(clocks: Clocks) -> None:
    server = new_clock()
    server.heard(None, clocks.boot_ms)
    clocks.wall_ms += HOUR_MS
    assert (server.now_ms(), server.ahead_ms()) == (clocks.wall_ms, 0)


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
def test_a_wall_clock_that_is_set_later_changes_nothing(clocks: Clocks, by_ms: int) -> None:
    server = new_clock()
    server.heard(NOON_MS, clocks.boot_ms)
    clocks.pass_ms(1000)
    clocks.wall_ms += by_ms
    assert (server.now_ms(), server.ahead_ms()) == (NOON_MS + 1000, -by_ms)


def test_what_was_known_well_outlives_a_slow_answer(clocks: Clocks) -> None:
    server = new_clock()
    server.heard(NOON_MS + HOUR_MS, clocks.boot_ms - 1)
    clocks.pass_ms(10_000)
    server.heard(NOON_MS + HOUR_MS + 6_000, clocks.boot_ms - 5_000)
    assert server.ahead_ms() == HOUR_MS + 1


def test_a_server_whose_clock_is_set_is_followed(clocks: Clocks) -> None:
    server = new_clock()
    server.heard(NOON_MS, clocks.boot_ms)
    clocks.pass_ms(10_000)
    server.heard(NOON_MS + HOUR_MS, clocks.boot_ms)
    assert server.ahead_ms() == HOUR_MS - 10_000


@pytest.mark.parametrize(("by_ms", "shown"), [(HOUR_MS, "+3600.0 s"), (-HOUR_MS, "-3600.0 s")])
def test_a_difference_is_logged_once(
    clocks: Clocks, caplog: pytest.LogCaptureFixture, by_ms: int, shown: str
) -> None:
    server = new_clock()
    for _ in range(3):
        server.heard(clocks.wall_ms + by_ms, clocks.boot_ms)
    [record] = caplog.records
    assert record.getMessage() == (
        f"h:1: its clock is {shown} from that of this machine: delays count by it"
    )


def test_the_clocks_of_here_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def advances(read: Callable[[], int]) -> bool:
        return 0 < read() <= read()

    assert advances(clock.wall_ms)
    assert advances(clock.boot_ms)
    monkeypatch.setattr(clock, "_BOOT", None)
    assert advances(clock.boot_ms)
