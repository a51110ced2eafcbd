"""A meta server in virtual time, and an operator of it."""

from collections.abc import AsyncIterator, Iterator

import pytest
import structlog

from meta_server.server import MetaServer
from meta_server.settings.config import MetaServerConfig
from tests.kit.operator import Operator
from tests.meta_server.meta_rig import World, make_config


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def config() -> MetaServerConfig:
    """Return the settings of the server; a test may be parametrized by others."""
    return make_config()


@pytest.fixture
async def server(world: World, config: MetaServerConfig) -> AsyncIterator[MetaServer]:
    async with world.serving(config) as serving:
        yield serving


@pytest.fixture
def operator(server: MetaServer) -> Operator:
    return Operator(server)


@pytest.fixture
def served(world: World, server: MetaServer) -> World:
    """Return the world, in which a server serves."""
    assert server.ready.is_set()
    return world
