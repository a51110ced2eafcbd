"""Runs every async test of this folder by a clock that jumps whenever no task can run."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trio

from tests.simulation.clock import EventClock


def run_in_virtual_time(
    test: Callable[[], Awaitable[None]],
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> None:
    assert clock is None
    trio.run(test, clock=EventClock(), instruments=instruments)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        is_async = isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj)
        if here in item.path.parents and is_async:
            # The first marker decides; pytest-trio itself puts one that runs in real time.
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)
