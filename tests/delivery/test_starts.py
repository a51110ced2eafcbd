"""A server that starts with a backlog: all groups work on it, and then each has its share at once.

Two groups of weights 3:1, both well; their answers take time in proportion to what they have to do.
The backlog is of ten lanes; what becomes due afterwards comes in small lots as from a wheel.
"""

import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import trio
from trio.testing import MockClock

from tests.brokers import Received
from tests.sender.broker_rig import FakeBroker, Reply, Rig, rig_of

LANES = 10
WEIGHTS = (3.0, 1.0)
FAIR = np.array(WEIGHTS) / sum(WEIGHTS)
_OFFER_S = 0.01


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a server starts with, and what comes then."""

    backlog: int
    broker_per_s: int = 40_000
    load_per_s: int = 0
    first_answer_s: tuple[float, float] = (0.0, 0.0)
    """How much longer than usual each broker takes for its first answer."""
    until_s: float = 6.0


class _Model:
    """A broker of a given pace that takes its time once."""

    def __init__(self, per_s: int, first_s: float) -> None:
        self._per_s = per_s
        self._busy_until = first_s

    def __call__(self, request: Received) -> Reply:
        now = trio.current_time()
        self._busy_until = max(now, self._busy_until) + len(request.ids) / self._per_s
        return Reply(delay_s=self._busy_until - now + 0.002)


class Story:
    """When which group confirmed what; times are in seconds from the start."""

    def __init__(self, rig: Rig, began_ms: int) -> None:
        self._at_s = np.array([(fact.at_ms - began_ms) / 1000 for fact in rig.facts])
        self._group = np.array([int(fact.group.removeprefix("g-b")) for fact in rig.facts])
        self.end_s = float(self._at_s.max())

    def shares(self, from_s: float, to_s: float) -> npt.NDArray[np.float64]:
        """Return each group's share of what was confirmed in this time."""
        chosen = (self._at_s >= from_s) & (self._at_s < to_s)
        counts = np.bincount(self._group[chosen], minlength=len(WEIGHTS))
        shares: npt.NDArray[np.float64] = counts / counts.sum()
        return shares

    def longest_idle_s(self, group: int, from_s: float, to_s: float) -> float:
        """Return the longest time in which a group confirmed nothing."""
        times = self._at_s[(self._group == group) & (self._at_s >= from_s) & (self._at_s < to_s)]
        return float(np.diff(np.unique([from_s, *times, to_s])).max())


def told(start: Start) -> Story:
    """Play it."""
    return trio.run(_tell, start, clock=MockClock(autojump_threshold=0))


async def _tell(start: Start) -> Story:
    chance = random.Random(1)

    def setup(rig: Rig) -> None:
        for broker, first_s in zip(rig.brokers, start.first_answer_s, strict=True):
            _be(broker, _Model(start.broker_per_s, first_s))
        now = rig.wall.now_ms()
        each = start.backlog // LANES
        for lane in range(LANES):
            rig.offer_due([now - 5000 + row * 5000 // each for row in range(each)], lane=lane)

    async with rig_of(len(WEIGHTS), weights=WEIGHTS, setup=setup) as rig:
        began_ms = rig.wall.now_ms()
        for _ in range(round(start.until_s / _OFFER_S) if start.load_per_s else 0):
            await trio.sleep(_OFFER_S)
            count = int(start.load_per_s * _OFFER_S + chance.random())
            if count:
                rig.offer(count, lane=chance.randrange(LANES))
        await trio.sleep(30)
        rig.assert_all_settled()
        return Story(rig, began_ms)


def _be(broker: FakeBroker, model: _Model) -> None:
    broker.script = model


def test_all_groups_work_on_a_backlog_at_their_pace_without_a_pause() -> None:
    # What the weights say would keep the light one idle for two thirds of the time.
    story = told(Start(backlog=50_000, broker_per_s=8000))
    assert story.end_s <= 50_000 / 16_000 * 1.1
    for group in range(len(WEIGHTS)):
        assert story.longest_idle_s(group, 0.0, 0.9 * story.end_s) <= 0.3
    for from_s in np.arange(0.5, 2.5, 0.5):
        # By weight it would be 0.25; the order of tasks differs by process and costs up to 0.1.
        assert np.abs(story.shares(from_s, from_s + 0.5) - 0.5).max() <= 0.15


@pytest.mark.parametrize("backlog", [150, 500, 1000, 5000, 50_000])
@pytest.mark.parametrize("load_per_s", [25, 1000])
def test_after_a_backlog_no_group_makes_up_for_what_another_one_got_of_it(
    backlog: int, load_per_s: int
) -> None:
    story = told(Start(backlog=backlog, load_per_s=load_per_s))
    # By then it is done with.
    from_s = 1.0 if backlog > 5000 else 0.5
    for group, fair in enumerate(FAIR):
        # Some messages of its own may be in a row for others: up to six, by the order in which
        # trio runs tasks that are ready at the same time, which differs from process to process.
        assert story.longest_idle_s(group, from_s, 6.0) <= 0.1 + 6 / (load_per_s * fair)
    # Of 50 messages in a window six are 0.12.
    width_s, tolerance = (0.5, 0.05) if load_per_s > 100 else (2.0, 0.12)
    for begin_s in np.arange(from_s, 6.0 - width_s, 0.25):
        shares = story.shares(begin_s, begin_s + width_s)
        assert np.abs(shares - FAIR).max() <= tolerance, (begin_s, shares)


@pytest.mark.parametrize("late_s", [(0.15, 0.0), (0.0, 0.15), (0.6, 0.0), (0.0, 0.6), (1.5, 1.5)])
def test_a_first_answer_that_comes_late_is_soon_forgotten(late_s: tuple[float, float]) -> None:
    story = told(Start(backlog=5000, load_per_s=1000, first_answer_s=late_s))
    for begin_s in np.arange(max(late_s) + 1.0, 5.5, 0.25):
        shares = story.shares(begin_s, begin_s + 0.5)
        assert np.abs(shares - FAIR).max() <= 0.05, (begin_s, shares)
    for group in range(len(WEIGHTS)):
        assert story.longest_idle_s(group, max(late_s) + 0.1, 6.0) <= 0.5


@pytest.mark.parametrize("late_s", [(0.15, 0.0), (0.0, 0.15), (0.6, 0.0), (0.0, 0.6)])
def test_where_little_is_sent_a_late_answer_is_forgotten_as_soon(
    late_s: tuple[float, float],
) -> None:
    story = told(Start(backlog=500, load_per_s=25, first_answer_s=late_s, until_s=12.0))
    for group in range(len(WEIGHTS)):
        assert story.longest_idle_s(group, max(late_s), 12.0) <= 2.5
    shares = story.shares(max(late_s) + 3.0, 12.0)
    assert np.abs(shares - FAIR).max() <= 0.05, shares
