"""Four broker groups of given weights under a steady load, one of which falls ill and recovers.

Time is virtual. Each broker answers after a while that grows with what it has to do, as one with so
many messages a second would. What each group got, how late it was, and how the sender saw the
groups is written down in steps of 0.1 s, for the checks in test_shares.py.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import trio
from trio.testing import MockClock

from delay_protocol.basics.codes import ItemCode, ResponseCode
from sender.groups.group_status import GroupStatus
from sender.settings.config import SenderConfig
from tests.brokers import Received
from tests.sender.broker_rig import EPOCH_MS, FakeBroker, Reply, Rig, refuse, rig_of

STEP_S = 0.1
_OFFER_S = 0.01


@dataclass(frozen=True, kw_only=True)
class Play:
    """What is played."""

    weights: tuple[float, ...] = (4.0, 2.0, 1.0, 1.0)
    load_per_s: int = 1000
    broker_per_s: int = 2000
    """What each broker can take."""
    fault: str = ""
    """Which of FAULTS befalls the ill one."""
    ill: int = 1
    ill_from_s: float = 5.0
    ill_until_s: float = 12.0
    until_s: float = 23.0
    seed: int = 1


class Story:
    """What came of it. Arrays are by step and group, or by message."""

    def __init__(self, play: Play, *, began_s: float) -> None:
        self.play = play
        self.began_s = began_s
        self.steps = round(play.until_s / STEP_S)
        shape = (self.steps, len(play.weights))
        self.effective = np.zeros(shape)
        """The effective weight."""
        self.load = np.zeros(shape, np.int64)
        """Queued and in flight."""
        self.delivered = np.zeros(shape, np.int64)
        """Messages confirmed."""
        self.received = np.zeros(shape, np.int64)
        """Messages that came to the broker, whatever became of them."""
        self.due_ms = np.zeros(0, np.int64)
        """By message: when it was due, in ms from the beginning."""
        self.late_ms = np.zeros(0, np.int64)
        """By message: how late it was confirmed."""

        self.statuses: Sequence[GroupStatus] = ()
        """At the end."""

    def look(self, step: int, statuses: Sequence[GroupStatus]) -> None:
        """Write down how the sender sees the groups."""
        self.statuses = statuses
        for number, status in enumerate(statuses):
            self.effective[step, number] = status.effective_weight
            self.load[step, number] = status.queued + status.in_flight

    def end(self, rig: Rig, received: Sequence[Sequence[tuple[float, int]]]) -> None:
        """Write down what came of each message; all of them have an outcome."""
        began_ms = EPOCH_MS + round(self.began_s * 1000)
        self.due_ms = np.array(rig.dues_ms, np.int64) - began_ms
        self.late_ms = np.zeros(rig.offered, np.int64)
        for fact in rig.facts:
            at_ms = fact.at_ms - began_ms
            self.late_ms[fact.sequence] = at_ms - self.due_ms[fact.sequence]
            self._count(self.delivered, at_ms / 1000, int(fact.group.removeprefix("g-b")), 1)
        for number, requests in enumerate(received):
            for at_s, count in requests:
                self._count(self.received, at_s - self.began_s, number, count)

    def _count(self, counts: npt.NDArray[np.int64], at_s: float, group: int, messages: int) -> None:
        step = int(at_s / STEP_S)
        if step < self.steps:
            counts[step, group] += messages

    def shares(self, from_s: float, to_s: float) -> npt.NDArray[np.float64]:
        """Return each group's share of what was confirmed in this time."""
        part = self.delivered[round(from_s / STEP_S) : round(to_s / STEP_S)].sum(axis=0)
        shares: npt.NDArray[np.float64] = part / part.sum()
        return shares

    def fair(self, *, without: int | None = None) -> npt.NDArray[np.float64]:
        """Return each group's share by weight, of all or of all but one."""
        weights = np.array(self.play.weights)
        if without is not None:
            weights[without] = 0
        fair: npt.NDArray[np.float64] = weights / weights.sum()
        return fair

    def late_share(self, from_s: float, to_s: float, *, limit_ms: int = 10) -> float:
        """Return which part of the messages due in this time was confirmed later than this."""
        chosen = (self.due_ms >= from_s * 1000) & (self.due_ms < to_s * 1000)
        return float((self.late_ms[chosen] > limit_ms).mean())


class _Model:
    """A broker of a given pace, that may be ill."""

    def __init__(self, broker: FakeBroker, play: Play, chance: random.Random) -> None:
        self.broker = broker
        self.received: list[tuple[float, int]] = []
        self.answer: Callable[[Received], Reply] = lambda _request: Reply()
        self.slower = 1.0
        self._pace = play.broker_per_s
        self._chance = chance
        self._busy_until = 0.0

    def script(self, request: Received) -> Reply:
        now = trio.current_time()
        self.received.append((now, len(request.ids)))
        self._busy_until = max(now, self._busy_until) + len(request.ids) / self._pace * self.slower
        reply = self.answer(request)
        reply.delay_s += self._busy_until - now + self._chance.uniform(0.0002, 0.001) * self.slower
        return reply


def _slow(model: _Model) -> None:
    model.answer = lambda _request: Reply(delay_s=4.9)


def _slower(model: _Model) -> None:
    model.slower = 20


def _silent(model: _Model) -> None:
    model.answer = lambda _request: Reply(times=0)


def _black_hole(model: _Model) -> None:
    model.broker.is_unreachable = True
    model.answer = lambda _request: Reply(times=0)


def _dead(model: _Model) -> None:
    model.broker.is_refusing = True


def _rejecting(model: _Model) -> None:
    model.answer = lambda _request: Reply(code=ResponseCode.BROKER_REJECT)


def _erring(model: _Model) -> None:
    model.answer = lambda _request: Reply(code=ResponseCode.BROKER_ERROR)


def _read_only(model: _Model) -> None:
    model.answer = lambda request: refuse(ItemCode.BROKER_READ_ONLY, *request.ids)


def _knows_no_subject(model: _Model) -> None:
    model.answer = lambda request: refuse(ItemCode.SUBJECT_NOT_ASSIGNED, *request.ids)


def _refuses_some(model: _Model) -> None:
    chance = random.Random(5)
    model.answer = lambda request: refuse(
        ItemCode.STORE_ERROR, *(i for i in request.ids if chance.random() < 0.3)
    )


FAULTS: dict[str, Callable[[_Model], None]] = {
    "answers after 4.9 s": _slow,
    "silent": _silent,
    "black hole": _black_hole,
    "refuses connections": _dead,
    "rejects requests": _rejecting,
    "errs": _erring,
    "read-only": _read_only,
    "rejects every item": _knows_no_subject,
    "a twentieth of its pace": _slower,
    "refuses some items": _refuses_some,
}
_CUTTING = {"black hole", "refuses connections"}
"""With these the connection is lost."""


def told(play: Play, config: SenderConfig | None = None) -> Story:
    """Play it; the same play is the same story."""
    return trio.run(_tell, play, config or SenderConfig(), clock=MockClock(autojump_threshold=0))


async def _tell(play: Play, config: SenderConfig) -> Story:
    chance = random.Random(play.seed)
    count = len(play.weights)
    async with rig_of(count, config=config, weights=play.weights, seed=play.seed) as rig:
        models = [_Model(broker, play, chance) for broker in rig.brokers]
        for model in models:
            model.broker.script = model.script
        await trio.sleep(0.01)
        story = Story(play, began_s=trio.current_time())
        async with trio.open_nursery() as nursery:
            if play.fault:
                nursery.start_soon(_make_ill, models[play.ill], play, story.began_s)
            for step in range(story.steps):
                await _offer(rig, play, chance, story.began_s, step)
                story.look(step, rig.sender.status())
            nursery.cancel_scope.cancel()
        await trio.sleep(30)
        rig.assert_all_settled()
    story.end(rig, [model.received for model in models])
    return story


async def _make_ill(model: _Model, play: Play, began_s: float) -> None:
    await trio.sleep_until(began_s + play.ill_from_s)
    FAULTS[play.fault](model)
    if play.fault in _CUTTING:
        await model.broker.hang_up()
    await trio.sleep_until(began_s + play.ill_until_s)
    model.broker.is_refusing = model.broker.is_unreachable = False
    model.slower = 1.0
    model.answer = lambda _request: Reply()


async def _offer(rig: Rig, play: Play, chance: random.Random, began_s: float, step: int) -> None:
    """Offer what is due in one step, in small lots as a wheel does."""
    each = play.load_per_s * _OFFER_S
    per_step = round(STEP_S / _OFFER_S)
    for lot in range(per_step):
        await trio.sleep_until(began_s + (step * per_step + lot + 1) * _OFFER_S)
        rig.offer(int(each + chance.random()))
