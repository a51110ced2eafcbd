"""Runs tests by a clock that jumps whenever no task can run."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from typing import ParamSpec

import trio

from tests.simulation.clock import EventClock

P = ParamSpec("P")


def run_in_virtual_time(
    test: Callable[[], Awaitable[None]],
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> None:
    """Run a function, as pytest-trio asks for it."""
    assert clock is None
    trio.run(test, clock=EventClock(), instruments=instruments)


def virtual_time(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Make a function that runs another one so: for what pytest does not call by itself."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_in_virtual_time(partial(test, *args, **kwargs))

    return run
