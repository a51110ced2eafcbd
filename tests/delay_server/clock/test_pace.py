"""Who must not run ahead hears once of each change of trust; an operator is heard at once."""

import trio

from delay_server.clock.clock_guard import ClockGuard
from delay_server.clock.pace import Pacer
from tests.simulation.clock import EPOCH_MS, SimClock


class Rig:
    """A pacer, its clock and the changes it told of."""

    def __init__(self) -> None:
        self.clock = SimClock(is_synchronised=False)
        self.changes: list[bool] = []
        self.pacer = Pacer(
            self.clock, ClockGuard(step_forward_ms_max=60_000), on_change=self.changes.append
        )


async def test_an_ordinary_clock_is_followed_and_nobody_is_told() -> None:
    rig = Rig()
    for _ in range(10):
        assert rig.pacer.runs()
        await trio.sleep(1000)
    assert rig.pacer.now_ms() == EPOCH_MS + 10_000_000
    assert rig.changes == []
    assert rig.pacer.reason == ""


async def test_a_step_forward_is_told_once_and_its_end_too() -> None:
    rig = Rig()
    assert rig.pacer.runs()
    rig.clock.step(61_000)
    for _ in range(5):
        assert not rig.pacer.runs()
        await trio.sleep(1)
    assert rig.changes == [False]
    assert "gained 61.0 s" in rig.pacer.reason
    rig.clock.step(-61_000)
    for _ in range(5):
        assert rig.pacer.runs()
    assert rig.changes == [False, True]
    assert rig.pacer.reason == ""


async def test_a_clock_that_the_kernel_calls_synchronised_is_followed() -> None:
    rig = Rig()
    assert rig.pacer.runs()
    rig.clock.is_synchronised = True
    rig.clock.step(365 * 86_400_000)
    assert rig.pacer.runs()
    assert rig.changes == []


async def test_a_step_back_or_a_small_one_forward_changes_nothing() -> None:
    rig = Rig()
    assert rig.pacer.runs()
    rig.clock.step(-86_400_000)
    assert rig.pacer.runs()
    rig.clock.step(59_000)
    assert rig.pacer.runs()
    assert rig.changes == []


async def test_an_operators_word_is_told_at_once() -> None:
    rig = Rig()
    assert rig.pacer.runs()
    rig.clock.step(3_600_000)
    assert not rig.pacer.runs()
    rig.pacer.accept()
    assert rig.changes == [False, True]
    assert rig.pacer.reason == ""
    assert rig.pacer.runs()


async def test_an_operators_word_counts_though_nobody_had_looked_at_the_clock_yet() -> None:
    rig = Rig()
    assert rig.pacer.runs()
    rig.clock.step(3_600_000)
    rig.pacer.accept()
    assert rig.pacer.runs()


async def test_an_operators_word_is_good_for_one_step_only() -> None:
    rig = Rig()
    assert rig.pacer.runs()
    rig.clock.step(3_600_000)
    rig.pacer.accept()
    rig.clock.step(3_600_000)
    assert not rig.pacer.runs()


async def test_without_anybody_to_tell_it_works_the_same() -> None:
    clock = SimClock(is_synchronised=False)
    pacer = Pacer(clock, ClockGuard(step_forward_ms_max=60_000))
    assert pacer.runs()
    clock.step(70_000)
    assert not pacer.runs()
