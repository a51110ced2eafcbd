"""Runs every async test of this folder by a clock that jumps whenever no task can run."""

from collections.abc import Awaitable, Callable, Sequence
from inspect import iscoroutinefunction
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock


def run_in_virtual_time(
    test: Callable[[], Awaitable[None]],
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> None:
    assert clock is None
    trio.run(test, clock=MockClock(autojump_threshold=0), instruments=instruments)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and iscoroutinefunction(getattr(item, "obj", None)):
            # The first marker decides; pytest-trio itself puts one that runs in real time.
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)
