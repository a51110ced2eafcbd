"""One seed, one run: the same order of tasks, the same chance, the same trace.

trio shuffles the tasks of each batch with a private Random, after an order that depends on memory
addresses, unless a private switch is on. Between two batches it asks the kernel for events, which a
simulation has none of. Those private names are touched here only; the canary test
(test_determinism.py) notices if a new trio changes them.
"""

import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar, TypeVarTuple, cast

import trio
from trio._core import _run as _trio_run

from tests.simulation.clock import EventClock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_LIMIT_S = 20 * 366 * 86_400.0


_ASKED_EVERY = 256
"""Batches of tasks between two questions to the kernel."""


class _SeldomAsked:
    """trio's waiting for the kernel, which is asked seldom: only Ctrl-C comes from there."""

    def __init__(self, real: Any) -> None:  # noqa: ANN401 (a private class of trio)
        self._real = real
        self._batches = 0

    def get_events(self, timeout: float) -> Any:  # noqa: ANN401 (of epoll or kqueue)
        """Return what happened; nothing, mostly without looking."""
        self._batches += 1
        if timeout <= 0 and self._batches % _ASKED_EVERY:
            return []
        return self._real.get_events(timeout)

    def process_events(self, events: Any) -> None:  # noqa: ANN401
        """Wake who waits for these."""
        if events:
            self._real.process_events(events)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._real, name)


class SimulationStuckError(Exception):
    """The virtual time limit passed; usually because every task waits for another."""


def derive(seed: int | str, concern: str) -> random.Random:
    """Return the Random of one concern (disk, network, workload), the same in every process.

    One for each, so that a draw more in one place does not reshuffle the others.
    """
    return random.Random(f"{seed}/{concern}")


@contextlib.contextmanager
def deterministic_scheduling(seed: int) -> Iterator[None]:
    """Make trio's order of tasks a function of the seed in this block (one trio.run each)."""
    private: Any = _trio_run
    switch = private._ALLOW_DETERMINISTIC_SCHEDULING
    state = private._r.getstate()
    private._ALLOW_DETERMINISTIC_SCHEDULING = True
    private._r.seed(seed)
    try:
        yield
    finally:
        private._ALLOW_DETERMINISTIC_SCHEDULING = switch
        private._r.setstate(state)


def run_deterministic(
    seed: int,
    async_fn: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
    limit_s: float = _LIMIT_S,
) -> T:
    """Run `async_fn(*args)` under trio so that only the seed decides; return its result.

    Without another clock, virtual time jumps from event to event. Raises SimulationStuckError when
    `limit_s` virtual seconds have passed.
    """

    async def limited() -> T:
        runner = _trio_run.GLOBAL_RUN_CONTEXT.runner
        runner.io_manager = cast("Any", _SeldomAsked(runner.io_manager))
        with trio.move_on_after(limit_s):
            return await async_fn(*args)
        raise SimulationStuckError(f"not finished after {limit_s:g} virtual seconds (seed {seed})")

    with deterministic_scheduling(seed):
        return trio.run(limited, clock=clock or EventClock(), instruments=instruments)
