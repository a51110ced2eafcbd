"""Blocking calls without threads: a call happens in one instant, its result comes later.

The order within a lane is that of the requests, as in production. When within its time a call takes
effect is drawn: mostly at once, sometimes only towards the end, so that code which does not wait
for the result (an answer before the fsync) is found out.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

import trio

from tests.simulation.clock import EventClock
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Death
from tests.simulation.trace import Trace

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorPlan:
    """How long calls take, in virtual seconds."""

    delay_s: tuple[float, float] = (0.000_05, 0.003)
    """Least and most of an ordinary call."""

    stall_chance: float = 0.01
    """Per call: that it is a slow one (a disk that stalls)."""

    stall_s: tuple[float, float] = (0.1, 2.0)
    """Least and most of a slow call."""

    late_chance: float = 0.5
    """Per call: that it takes effect at a drawn moment of its time, rather than at its begin."""


def _never(_raise_cancel: object) -> trio.lowlevel.Abort:
    """Refuse to be cancelled."""
    return trio.lowlevel.Abort.FAILED


def name_of(fn: Callable[..., object]) -> str:
    """Return module and qualified name of what will run: `storage.checkpoint.Checkpoint.write`."""
    inner = getattr(fn, "func", fn)  # functools.partial
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    module = getattr(inner, "__module__", None) or type(inner).__module__
    return f"{module}.{name}"


class SimExecutor:
    """An Executor for one life of a node."""

    def __init__(
        self,
        chance: random.Random,
        *,
        disk: SimDisk | None = None,
        plan: ExecutorPlan | None = None,
        trace: Trace | None = None,
        name: str = "executor",
    ) -> None:
        self.plan = plan or ExecutorPlan()
        """How long calls take; may be changed at any time."""
        self._chance = chance
        self._disk = disk
        self._trace = trace or Trace()
        self._name = name
        self._lanes: dict[str, trio.Lock] = {}
        self._pauses: dict[Callable[[], None], object] = {}
        self._death: Death | None = None

    async def run(self, lane: str, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        """Return what `fn(*args)` returns, after its turn came and its time passed."""
        lock = self._lanes.get(lane)
        if lock is None:
            lock = self._lanes[lane] = trio.Lock()
        async with lock:
            self._check_alive()
            seconds = self._draw_seconds()
            effect_s = 0.0
            if self._chance.random() < self.plan.late_chance:
                effect_s = seconds * self._chance.random()
                await self._pause(effect_s)
            try:
                return self._call(lane, fn, *args)
            finally:
                # Dead: nobody is left to hear the result.
                if self._death is None:
                    await self._pause(seconds - effect_s)

    def cut(self, death: Death) -> None:
        """End every wait; calls that have not taken effect never will."""
        if self._death is None:
            self._death = death
            for wake in list(self._pauses):
                wake()

    def _call(self, lane: str, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        label = name_of(fn)
        self._trace.note(f"{self._name} {lane} {label} {trio.current_time()!r}")
        disk = self._disk
        if disk is None:
            return fn(*args)
        before = disk.label
        disk.label = label
        try:
            return fn(*args)
        except Death as death:
            self.cut(death)
            raise
        finally:
            disk.label = before

    def _draw_seconds(self) -> float:
        plan = self.plan
        chance = self._chance
        if chance.random() < plan.stall_chance:
            return chance.uniform(*plan.stall_s)
        return chance.uniform(*plan.delay_s)

    async def _pause(self, seconds: float) -> None:
        clock = trio.lowlevel.current_clock()
        if isinstance(clock, EventClock):
            await self._sleep(clock, seconds)
            self._check_alive()
            return
        deadline = trio.current_time() + seconds
        with trio.CancelScope(shield=True, deadline=deadline) as scope:
            self._pauses[scope.cancel] = None
            try:
                await trio.sleep_forever()
            finally:
                del self._pauses[scope.cancel]
        self._check_alive()

    async def _sleep(self, clock: EventClock, seconds: float) -> None:
        """Sleep without a cancel scope: most of what a simulation does is wait here."""
        task = trio.lowlevel.current_task()

        def wake() -> None:
            if self._pauses.pop(wake, self) is None:
                trio.lowlevel.reschedule(task)

        self._pauses[wake] = None
        clock.call_at(clock.current_time() + seconds, wake)
        await trio.lowlevel.wait_task_rescheduled(_never)

    def _check_alive(self) -> None:
        if self._death is not None:
            raise type(self._death)(*self._death.args)
