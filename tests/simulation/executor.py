"""Blocking calls without threads: a call happens in one instant, its result comes later.

The order within a worker is that of the requests, as in production. When within its time a call
takes effect is drawn: mostly at once, sometimes only towards the end, so that code which does not
wait for the result (an answer before the fsync) is found out.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, TypeVarTuple

import outcome
import trio

from tests.simulation.clock import event_clock
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


def name_of(fn: Callable[..., object]) -> str:
    """Return module and qualified name of what will run:
    `storage.state.checkpoint.Checkpoint.write`.
    """
    inner = getattr(fn, "func", fn)  # functools.partial
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    module = getattr(inner, "__module__", None) or type(inner).__module__
    return f"{module}.{name}"


def _refuse(_raise_cancel: object) -> trio.lowlevel.Abort:
    """Refuse to be cancelled."""
    return trio.lowlevel.Abort.FAILED


class _Worker:
    """Calls that are made one at a time: one is under way, others wait for their turn."""

    __slots__ = ("busy", "waiting")

    def __init__(self) -> None:
        self.busy = False
        self.waiting: deque[trio.lowlevel.Task] = deque()

    async def enter(self) -> None:
        """Return when it is this task's turn; cancelled, it gives its place up."""
        if not self.busy:
            self.busy = True
            return
        task = trio.lowlevel.current_task()
        self.waiting.append(task)

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            self.waiting.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)

    def leave(self) -> None:
        """Let the next have its turn."""
        if self.waiting:
            trio.lowlevel.reschedule(self.waiting.popleft())
        else:
            self.busy = False


class _Call:
    """One call under way. Alarms of the clock bring it about, and wake its task once, at its end.

    Most of what a simulation does is wait here, so it takes a single step of the task.
    """

    __slots__ = ("_executor", "_make", "_result", "_seconds_left", "_task")

    def __init__(self, executor: "SimExecutor", make: Callable[[], Any]) -> None:
        self._executor = executor
        self._make = make
        self._seconds_left = 0.0
        self._result: outcome.Value[Any] | outcome.Error | None = None
        self._task: trio.lowlevel.Task | None = None

    async def run(self, seconds: float, effect_s: float) -> Any:  # noqa: ANN401 (what fn returns)
        """Take effect after so long, and return the result, or raise, after all of the time."""
        self._seconds_left = seconds - effect_s
        if effect_s:
            event_clock().call_at(trio.current_time() + effect_s, self._take_effect)
        else:
            self._take_effect()
        if not self._executor.is_cut:
            self._task = trio.lowlevel.current_task()
            self._executor.under_way[self] = None
            await trio.lowlevel.wait_task_rescheduled(_refuse)
        # Of a process that died meanwhile nobody hears anything.
        self._executor.check_alive()
        assert self._result is not None
        return self._result.unwrap()

    def end(self) -> None:
        """Wake the task: time is over, or the process is dead."""
        if self._executor.under_way.pop(self, self) is None and self._task is not None:
            trio.lowlevel.reschedule(self._task)

    def _take_effect(self) -> None:
        if self._executor.is_cut:
            return
        try:
            self._result = outcome.Value(self._make())
        except BaseException as error:  # noqa: BLE001 (it is the caller's)
            self._result = outcome.Error(error)
        self._seconds_left += self._executor.take_extra_s()
        if not self._executor.is_cut:
            clock = event_clock()
            clock.call_at(clock.current_time() + self._seconds_left, self.end)


class SimExecutor:
    """An Executor for one life of a node, under an EventClock."""

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
        self.under_way: dict[_Call, None] = {}
        """Calls whose tasks sleep."""
        self._chance = chance
        self._disk = disk
        self._trace = trace or Trace()
        self._name = name
        self._workers: dict[str, _Worker] = {}
        self._death: Death | None = None

    async def run(self, worker: str, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        """Return what `fn(*args)` returns, after its turn came and its time passed."""
        await trio.lowlevel.checkpoint_if_cancelled()
        line = self._workers.get(worker)
        if line is None:
            line = self._workers[worker] = _Worker()
        await line.enter()
        try:
            self.check_alive()
            seconds = self._draw_seconds()
            effect_s = 0.0
            if self._chance.random() < self.plan.late_chance:
                effect_s = seconds * self._chance.random()
            call = _Call(self, lambda: self._make(worker, fn, *args))
            result: T = await call.run(seconds, effect_s)
            return result
        finally:
            line.leave()

    @property
    def is_cut(self) -> bool:
        """Say whether this life is over."""
        return self._death is not None

    def take_extra_s(self) -> float:
        """Return how much longer than drawn the disk has taken since this was asked last."""
        if self._disk is None:
            return 0.0
        extra_s, self._disk.extra_s = self._disk.extra_s, 0.0
        return extra_s

    def cut(self, death: Death) -> None:
        """End every wait; calls that have not taken effect never will."""
        if self._death is None:
            self._death = death
            for call in list(self.under_way):
                call.end()

    def check_alive(self) -> None:
        """Raise the death of a life that ended."""
        if self._death is not None:
            raise type(self._death)(*self._death.args)

    def _make(self, worker: str, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        label = name_of(fn)
        self._trace.note(f"{self._name} {worker} {label} {trio.current_time()!r}")
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
