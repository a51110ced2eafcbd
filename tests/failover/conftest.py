"""Runs every async test of this folder by a clock that jumps whenever no task can run."""

from inspect import iscoroutinefunction
from pathlib import Path

import pytest

from tests.delay_server.conftest import run_in_virtual_time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and iscoroutinefunction(getattr(item, "obj", None)):
            # The first marker decides; pytest-trio itself puts one that runs in real time.
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)
