"""Runs every async test of this folder by a clock that jumps whenever no task can run."""

import inspect
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog

from meta_server.server import MetaServer
from tests.delay_server.conftest import run_in_virtual_time
from tests.kit.operator import Operator
from tests.meta_server.meta_rig import World


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


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def server(world: World) -> AsyncIterator[MetaServer]:
    async with world.serving() as serving:
        yield serving


@pytest.fixture
def operator(server: MetaServer) -> Operator:
    return Operator(server)


@pytest.fixture
def served(world: World, server: MetaServer) -> World:
    """Return the world, in which a server serves."""
    assert server.ready.is_set()
    return world
