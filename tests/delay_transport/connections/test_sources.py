"""No source address takes all places: at a cap a silent connection is evicted for a new one."""

import random
from collections.abc import Iterator
from contextlib import suppress

import pytest
import structlog
import trio
import trio.testing

from delay_transport.connections.connection import CloseReason
from delay_transport.connections.limits import ConnectionLimits
from delay_transport.connections.sources import source_of
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
)
from tests.seeds import each_seed
from tests.simulation.determinism import run_deterministic

LIMITS = ConnectionLimits(connections_max=8, connections_per_address_max=5)
GARBAGE = b"GET / HTTP/1.1\r\n\r\n"
CROWD = "192.0.2.1"
OTHER = "192.0.2.2"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def offer(network: StreamNetwork, host: str) -> Ear:
    """Connect from a host."""
    ours, theirs = ears(host)
    network.listeners[ADDRESS].offer(theirs)
    return ours


async def come(network: StreamNetwork, host: str) -> Ear:
    """Connect from a host, and be seen."""
    ours = offer(network, host)
    await trio.testing.wait_all_tasks_blocked()
    return ours


async def ask(peer: Ear, opaque: int = 1) -> None:
    """Send a request and wait for its answer."""
    await peer.send_all(request_bytes(opaque))
    assert [reply.opaque for reply in await receive_frames(peer, 1)] == [opaque]


async def test_idle_connections_of_one_address_shut_nobody_out() -> None:
    async with serving(Recorder(answer_all), LIMITS) as (server, network):
        good = await come(network, CROWD)
        await ask(good)
        idle = []
        for number in range(100):
            idle.append(await come(network, CROWD))
            await trio.sleep(0.1)
            await ask(good, number)
        # Their address keeps to its part, and the one of them that works stays.
        assert server.open_connections == 5
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
        # It is the one that is silent for longest, not the oldest.
        await trio.sleep(1)
        for peer in [*others, *idle[2:], newcomer]:
            await ask(peer)
        await ask(await come(network, "192.0.2.4"))
        assert await receive_until_closed(idle[1]) == []
        assert (server.open_connections, server.counts.refused) == (8, 0)


@pytest.mark.parametrize(
    ("host", "where"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("producer-1", "producer-1"),
        ("not:an:address", "not:an:address"),
        ("", ""),
    ],
)
def test_a_source_is_an_ipv4_address_or_an_ipv6_network_of_64_bits(host: str, where: str) -> None:
    assert source_of(host) == where


async def test_busy_connections_do_not_hide_the_silent_ones_behind_them() -> None:
    limits = ConnectionLimits(connections_per_address_max=200)
    handler = Recorder(hold_all)
    async with serving(handler, limits) as (server, network):
        busy = [await come(network, CROWD) for _ in range(150)]
        for opaque, peer in enumerate(busy):
            await peer.send_all(request_bytes(opaque))
        idle = [await come(network, CROWD) for _ in range(50)]
        for _ in range(20):
            await come(network, CROWD)
        # Two or three looks at 64 each that found nobody silent; then each one found its place.
        assert server.counts.refused <= 3
        assert server.counts.closed[CloseReason.CROWDED] >= 17
        assert handler.reasons == [CloseReason.CROWDED] * server.counts.closed.total()
        assert await receive_until_closed(idle[0]) == []


async def test_accepting_pauses_while_many_evicted_connections_are_not_closed() -> None:
    limits = ConnectionLimits(connections_max=100)
    async with serving(Recorder(answer_all), limits) as (server, network):
        _idle = [await come(network, CROWD) for _ in range(100)]
        for _ in range(100):
            _, theirs = ears(OTHER)
            network.listeners[ADDRESS].offer(theirs)
        closing = 0
        while server.counts.accepted < 200:
            await trio.lowlevel.checkpoint()
            closed = server.counts.closed.total()
            closing = max(closing, server.counts.accepted - closed - server.open_connections)
        assert 0 < closing <= 64
        assert server.counts.refused == 0


@each_seed(20)
def test_whatever_hostile_peers_do_others_from_their_address_are_answered_and_nothing_is_held(
    seed: int,
) -> None:
    chance = random.Random(seed)
    met = came = 0

    async def bad(network: StreamNetwork) -> None:
        nonlocal came
        while True:
            peer = offer(network, CROWD)
            came += 1
            with suppress(trio.BrokenResourceError):
                for _ in range(chance.randrange(3)):
                    data = chance.choice(
                        (GARBAGE, request_bytes(1, bytes(3000)), chance.randbytes(30), b"\0")
                    )
                    await peer.send_all(data[: chance.randint(1, len(data))])
                    await trio.sleep(chance.choice((0, 0.01, 0.3, 3)))
                await chance.choice((peer.aclose, peer.send_eof))()
            if chance.random() < 0.2:
                peer.reset()
            await trio.sleep(chance.choice((0, 0.02, 0.1)))

    async def good(network: StreamNetwork, opaque: int) -> None:
        nonlocal met, came
        await trio.sleep(chance.uniform(1, 20))
        data = request_bytes(opaque, bytes(chance.choice((0, 100, 1990, 5000))))
        while True:
            peer = offer(network, CROWD)
            came += 1
            with suppress(trio.BrokenResourceError):
                cut = chance.randint(1, len(data))
                await peer.send_all(data[:cut])
                await trio.sleep(chance.choice((0, 0.02, 0.05)))
                await peer.send_all(data[cut:])
                answered = await peer.receive_some()
                await peer.aclose()
                if answered:
                    met += 1
                    return

    async def run() -> None:
        async with serving(Recorder(answer_all), LIMITS) as (server, network):
            with trio.move_on_after(120):
                async with trio.open_nursery() as nursery:
                    async with trio.open_nursery() as goods:
                        for _ in range(5):
                            nursery.start_soon(bad, network)
                        for opaque in range(30):
                            goods.start_soon(good, network, opaque)
                    nursery.cancel_scope.cancel()
            await trio.sleep(200)
            assert (server.open_connections, server.held_bytes) == (0, 0)
            assert server.counts.accepted + server.counts.refused == came

    # The seed decides in which order tasks run, too.
    run_deterministic(seed, run)
    assert met == 30
