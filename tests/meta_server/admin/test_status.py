"""The status is a plain value at any time of a server's life."""

import msgspec

from delaywheel.cluster.status import summary_of
from meta_server.admin.status import failing_checks, status_of
from tests.meta_server.meta_rig import World, broker


async def test_a_status_can_be_told_before_and_after_the_store_is_loaded() -> None:
    world = World()
    server = world.server()
    assert msgspec.json.encode(status_of(server.observe()))
    assert failing_checks(server.observe()) == ["the store has not been loaded"]
    async with world.serving() as running:
        await (await world.connect()).broker(broker())
        status = status_of(running.observe())
        assert msgspec.json.encode(status)
        assert status["ready"]
        assert (status["requests"], status["store_up"]) == ({"broker_register": 1}, True)
    assert failing_checks(running.observe()) == ["the server is stopping"]


async def test_the_command_for_delay_servers_says_that_it_is_a_meta_server() -> None:
    world = World()
    line = "this is a meta server: `delaywheel topology` shows what it knows"
    async with world.serving() as server:
        assert summary_of(status_of(server.observe())) == (True, line)
    said = f"{line}; the server is stopping"
    assert summary_of(status_of(server.observe())) == (False, said)
