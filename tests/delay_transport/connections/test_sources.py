"""No address takes all places of a listener: who is silent goes for who comes."""

from collections.abc import Iterator

import pytest
import structlog
import trio
import trio.testing

from delay_transport.connections.connection import CloseReason
from delay_transport.connections.limits import ConnectionLimits
from tests.delay_transport.peers import (
    ADDRESS,
    Ear,
    Recorder,
    StreamNetwork,
    answer_all,
    ears,
    hold_all,
    receive_frames,
    receive_until_closed,
    request_bytes,
    serving,
    virtual_time,
)

LIMITS = ConnectionLimits(connections_max=8, connections_per_address_max=5)
CROWD = "192.0.2.1"
OTHER = "192.0.2.2"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


async def come(network: StreamNetwork, host: str) -> Ear:
    """Connect from a host, and be seen."""
    ours, theirs = ears(host)
    network.listeners[ADDRESS].offer(theirs)
    await trio.testing.wait_all_tasks_blocked()
    return ours


async def ask(peer: Ear, opaque: int = 1) -> None:
    """Send a request and wait for its answer."""
    await peer.send_all(request_bytes(opaque))
    assert [reply.opaque for reply in await receive_frames(peer, 1)] == [opaque]


@virtual_time
async def test_idle_connections_of_one_address_shut_nobody_out() -> None:
    async with serving(Recorder(answer_all), LIMITS) as (server, network):
        good = await come(network, CROWD)
        await ask(good)
        assert server.crowding == ""
        idle = [await come(network, CROWD) for _ in range(100)]
        # Their address keeps to its part, and the one of them that works stays.
        assert server.open_connections == 5
        assert "silent" in server.crowding
        await ask(good)
        for number in range(10):
            await ask(await come(network, OTHER), number)
            await ask(await come(network, CROWD), number)
            await trio.sleep(0.1)
            await ask(good)
        assert await receive_until_closed(idle[0]) == []
        assert server.counts.refused == 0
        assert server.counts.closed[CloseReason.CROWDED] > 90
        assert server.open_connections <= 8
        await trio.sleep(11)
        assert server.crowding == ""


@virtual_time
async def test_where_all_places_are_taken_the_address_with_most_gives_one() -> None:
    limits = ConnectionLimits(connections_max=8)
    async with serving(Recorder(answer_all), limits) as (server, network):
        others = [await come(network, OTHER) for _ in range(2)]
        idle = [await come(network, CROWD) for _ in range(6)]
        assert "all 8" in server.fullness
        newcomer = await come(network, "192.0.2.3")
        await ask(newcomer)
        assert await receive_until_closed(idle[0]) == []
        for peer in [*others, *idle[1:], newcomer]:
            await ask(peer)
        # All of them have made requests: now it is the one that is silent for longest.
        await trio.sleep(1)
        for peer in [*others, *idle[2:], newcomer]:
            await ask(peer)
        await ask(await come(network, "192.0.2.4"))
        assert await receive_until_closed(idle[1]) == []
        assert (server.open_connections, server.counts.refused) == (8, 0)


@virtual_time
async def test_who_waits_for_an_answer_goes_for_nobody() -> None:
    limits = ConnectionLimits(connections_max=2)
    handler = Recorder(hold_all)
    async with serving(handler, limits) as (server, network):
        waiting = [await come(network, CROWD) for _ in range(2)]
        for opaque, peer in enumerate(waiting):
            await peer.send_all(request_bytes(opaque))
        await trio.testing.wait_all_tasks_blocked()
        assert await receive_until_closed(await come(network, OTHER)) == []
        assert (server.counts.refused, handler.ended) == (1, [])
