"""Runs every async test of this folder by a clock that jumps whenever no task can run."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.delay_server.conftest import run_in_virtual_time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        is_async = isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj)
        if here in item.path.parents and is_async:
            # The first marker decides; pytest-trio itself puts one that runs in real time.
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield
