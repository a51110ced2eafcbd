"""Virtual time: trio's clock that jumps, and the wall and boot clocks of a simulated machine.

`EventClock` is what trio itself sleeps by: whenever no task can run, it is at once the time of the
next deadline. `SimClock` is one machine's Clock on top of it, whose wall may be set and may drift.
"""

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import trio
from trio._core import _run as _trio_run

_EPSILON_MS = 1e-6
"""Added before rounding down: a task that slept until t must not read a time before t, only
because seconds in floating point are a hair below it."""

EPOCH_MS = 1_788_220_800_000
"""Where simulated walls begin unless told otherwise: 2026-09-01 00:00 UTC."""


class EventClock(trio.abc.Clock):
    """A clock that stands still while tasks run, and jumps to the next deadline when none can."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._alarms_set = 0

    def call_at(self, when_s: float, callback: Callable[[], None]) -> None:
        """Call back at this time, before the deadlines of trio that are due then.

        Cheaper by far than a deadline, which ends a wait by an exception.
        """
        self._alarms_set += 1
        heappush(self._alarms, (when_s, self._alarms_set, callback))

    def leap(self, seconds: float) -> None:
        """Let time pass in which nothing runs at all, as on a machine that was suspended."""
        self._now += seconds

    def start_clock(self) -> None:
        """Do nothing; this clock is always running."""

    def current_time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jump, and tell trio that there is nothing to wait for.

        trio asks only when no task can run. Tasks in `wait_all_tasks_blocked` come before a jump.
        """
        if deadline <= self._now:
            return 0.0
        alarms = self._alarms
        if alarms and alarms[0][0] <= deadline and not _has_idle_waiters():
            self._now = max(self._now, alarms[0][0])
            while alarms and alarms[0][0] <= self._now:
                heappop(alarms)[2]()
            return 0.0
        if deadline == math.inf or _has_idle_waiters():
            return 999.0
        self._now = deadline
        return 0.0


def event_clock() -> EventClock:
    """Return the virtual clock that the present run sleeps by."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, EventClock), "this needs the clock of run_deterministic"
    return clock


def _has_idle_waiters() -> bool:
    context: Any = _trio_run.GLOBAL_RUN_CONTEXT
    return bool(context.runner.waiting_for_idle)


class SimClock:
    """The wall and boot clocks of one simulated machine.

    The wall runs at `1 + drift` times trio's clock and can be stepped; the boot clock counts from
    the last power cut, at `boot_rate` times trio's clock.
    """

    def __init__(
        self,
        *,
        epoch_ms: int = EPOCH_MS,
        drift: float = 0.0,
        boot_rate: float = 1.0,
        is_synchronised: bool = True,
    ) -> None:
        self._wall_ms = float(epoch_ms)
        self._drift = drift
        self._boot_rate = boot_rate
        self._based_s = 0.0
        self._booted_s = 0.0
        self._boots = 1
        self.is_synchronised = is_synchronised
        """What `synchronised` answers."""

    def now_ms(self) -> int:
        """Return the wall clock in ms."""
        return math.floor(self._wall(trio.current_time()) + _EPSILON_MS)

    def boot_ms(self) -> int:
        """Return ms since the machine was last switched on."""
        since_s = trio.current_time() - self._booted_s
        return math.floor(since_s * 1000.0 * self._boot_rate + _EPSILON_MS)

    def boot_id(self) -> str:
        """Return a name for the time since the machine was last switched on."""
        return f"boot {self._boots}"

    def synchronised(self) -> bool:
        """Say what the test said."""
        return self.is_synchronised

    def step(self, ms: float) -> None:
        """Set the wall clock forward or back."""
        self._wall_ms += ms

    def set_drift(self, drift: float) -> None:
        """Let the wall run faster (or slower) by this share from now on: 1e-4 is 100 ppm."""
        now_s = trio.current_time()
        self._wall_ms = self._wall(now_s)
        self._based_s = now_s
        self._drift = drift

    def reboot(self) -> None:
        """Begin the boot clock anew."""
        self._boots += 1
        self._booted_s = trio.current_time()

    def _wall(self, now_s: float) -> float:
        return self._wall_ms + (now_s - self._based_s) * 1000.0 * (1.0 + self._drift)
