"""Who comes from an address of bad standing waits at the door and enters with a frame."""

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest
import structlog
import trio
import trio.testing

from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import CloseReason, Connection
from delay_transport.connections.limits import ConnectionLimits
from delay_transport.connections.listener import Server, serve_connections
from delay_transport.seams.runtime import TcpNetwork
from tests.delay_transport.peers import (
    ADDRESS,
    Ear,
    Recorder,
    StreamNetwork,
    answer_all,
    ears,
    receive_frames,
    receive_until_closed,
    request_bytes,
    serving,
    virtual_time,
)
from tests.seeds import each_seed
from tests.simulation.determinism import run_deterministic

LIMITS = ConnectionLimits(
    wasted_per_second_max=1,
    wasted_burst_seconds=3,
    wasted_memory_seconds=60,
    door_connections_max=8,
    door_bytes_max=2000,
    door_seconds_max=2,
    linger_seconds_max=1,
)
BAD = "192.0.2.1"
GOOD = "192.0.2.2"
GARBAGE = b"GET / HTTP/1.1\r\n\r\n"


@pytest.fixture(autouse=True)
def log() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def come(network: StreamNetwork, host: str) -> Ear:
    """Connect from a host."""
    ours, theirs = ears(host)
    network.listeners[ADDRESS].offer(theirs)
    return ours


async def waste(network: StreamNetwork, host: str, count: int = 4) -> None:
    """Make connections that come to nothing."""
    for _ in range(count):
        await come(network, host).aclose()
        await trio.testing.wait_all_tasks_blocked()


async def ask(peer: Ear, opaque: int) -> None:
    """Send a request and wait for its answer."""
    await peer.send_all(request_bytes(opaque))
    assert [reply.opaque for reply in await receive_frames(peer, 1)] == [opaque]


@virtual_time
async def test_a_newcomer_from_a_bad_address_waits_at_the_door_and_enters_with_its_request() -> (
    None
):
    handler = Recorder(answer_all)
    async with serving(handler, LIMITS) as (server, network):
        await waste(network, BAD)
        assert (server.counts.accepted, server.at_door, server.wasters) == (4, 0, 1)
        peer = come(network, BAD)
        await trio.testing.wait_all_tasks_blocked()
        assert (server.counts.accepted, server.at_door, server.open_connections) == (4, 1, 1)
        began = trio.current_time()
        await ask(peer, 7)
        assert trio.current_time() - began <= 0.041
        assert (server.counts.accepted, server.at_door, server.open_connections) == (5, 0, 1)
        await ask(peer, 8)
        assert {connection.peer for connection in handler.connections} == {f"{BAD}:1"}


@virtual_time
async def test_a_request_that_is_there_at_once_is_answered_without_any_wait() -> None:
    async with serving(Recorder(answer_all), LIMITS) as (_, network):
        await waste(network, BAD)
        ours, theirs = ears(BAD)
        await ours.send_all(request_bytes(1))
        began = trio.current_time()
        network.listeners[ADDRESS].offer(theirs)
        await receive_frames(ours, 1)
        assert trio.current_time() == began


@virtual_time
async def test_other_addresses_and_connections_that_stand_notice_nothing() -> None:
    async with serving(Recorder(answer_all), LIMITS) as (server, network):
        standing = come(network, BAD)
        await ask(standing, 1)
        await waste(network, BAD, 50)
        began = trio.current_time()
        await ask(come(network, GOOD), 2)
        await ask(standing, 3)
        assert trio.current_time() == began
        assert server.counts.accepted < 10


@virtual_time
async def test_what_ends_at_the_door_is_turned_away_and_never_handed_on() -> None:
    handler = Recorder(answer_all)
    async with serving(handler, LIMITS) as (server, network):
        await waste(network, BAD)
        accepted = server.counts.accepted
        silent, half, rude = (come(network, BAD) for _ in range(3))
        await half.send_all(request_bytes(1, bytes(100))[:50])
        await trio.sleep(0.5)
        assert server.at_door == 3
        assert server.held_bytes == 50
        await silent.aclose()
        await half.aclose()
        rude.reset()
        await trio.sleep(1)
        assert (server.at_door, server.held_bytes, server.counts.accepted) == (0, 0, accepted)
        assert server.counts.turned_away == {
            CloseReason.PEER_CLOSED: 1,
            CloseReason.PEER_VANISHED: 2,
        }
        assert len(handler.ended) == accepted


@virtual_time
async def test_a_whole_frame_and_the_end_behind_it_are_answered() -> None:
    async with serving(Recorder(answer_all), LIMITS) as (_, network):
        await waste(network, BAD)
        peer = come(network, BAD)
        await peer.send_all(request_bytes(1) + request_bytes(2))
        await peer.send_eof()
        assert [reply.opaque for reply in await receive_until_closed(peer)] == [1, 2]


@virtual_time
async def test_an_idle_client_from_a_bad_address_enters_in_time_and_is_served_later() -> None:
    async with serving(Recorder(answer_all), LIMITS) as (server, network):
        await waste(network, BAD)
        peer = come(network, BAD)
        await trio.sleep(1.9)
        assert server.at_door == 1
        await trio.sleep(0.2)
        assert (server.at_door, server.open_connections) == (0, 1)
        await trio.sleep(100)
        await ask(peer, 1)


@virtual_time
async def test_a_request_over_a_slow_link_is_answered_however_it_is_cut() -> None:
    async with serving(Recorder(answer_all), LIMITS) as (server, network):
        for size, cut in ((0, 1), (300, 7), (1980, 100), (1981, 100), (50_000, 3000)):
            await waste(network, BAD, 8)
            peer = come(network, BAD)
            data = request_bytes(size, bytes(size))
            for start in range(0, len(data), cut):
                await peer.send_all(data[start : start + cut])
                await trio.sleep(0.09)
            assert [reply.opaque for reply in await receive_frames(peer, 1)] == [size]
            await peer.aclose()
        assert server.counts.turned_away.total() > 20


@virtual_time
async def test_who_sends_no_frames_is_kept_unread_for_a_while_and_then_closed() -> None:
    async with serving(Recorder(answer_all), LIMITS) as (server, network):
        await waste(network, BAD)
        peer = come(network, BAD)
        await peer.send_all(GARBAGE)
        began = trio.current_time()
        await trio.sleep(0.1)
        held = server.held_bytes
        await peer.send_all(bytes(1000))
        assert await receive_until_closed(peer) == []
        assert 1 <= trio.current_time() - began < 1.1
        assert held == len(GARBAGE)
        assert server.held_bytes == 0
        assert server.counts.turned_away == {CloseReason.PROTOCOL_ERROR: 1}


@virtual_time
async def test_beyond_the_doors_cap_who_broke_the_protocol_gives_way_and_then_the_oldest() -> None:
    async with serving(Recorder(answer_all), LIMITS) as (server, network):
        await waste(network, BAD, 10)
        first, garbage, *others = [come(network, BAD) for _ in range(8)]
        await garbage.send_all(GARBAGE)
        await trio.sleep(0.1)
        assert server.at_door == 8
        others.append(come(network, BAD))
        await trio.lowlevel.checkpoint()
        assert await receive_until_closed(garbage) == []
        assert server.at_door == 8
        others.append(come(network, BAD))
        assert await receive_until_closed(first) == []
        assert server.at_door == 8
        for opaque, peer in enumerate(others):
            await ask(peer, opaque)


@virtual_time
async def test_those_at_the_door_count_as_open_connections_and_give_way_first() -> None:
    limits = ConnectionLimits(
        wasted_per_second_max=1, wasted_burst_seconds=3, connections_max=3, door_seconds_max=1000
    )
    async with serving(Recorder(answer_all), limits) as (server, network):
        await waste(network, BAD)
        first, *_waiting = [come(network, BAD) for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        assert (server.open_connections, server.at_door) == (3, 3)
        await ask(come(network, GOOD), 1)
        assert await receive_until_closed(first) == []
        assert (server.counts.refused, server.open_connections, server.at_door) == (0, 3, 2)


@virtual_time
async def test_a_stopped_server_closes_those_at_the_door_and_returns_at_once() -> None:
    network = StreamNetwork()
    async with trio.open_nursery() as nursery:
        server: Server = await nursery.start(
            serve_connections, network, ADDRESS, Recorder(answer_all), LIMITS
        )
        await waste(network, BAD)
        peers = [come(network, BAD) for _ in range(5)]
        await peers[0].send_all(GARBAGE)
        await peers[1].send_all(b"\0")
        await trio.sleep(0.1)
        assert server.at_door == 5
        server.stop()
        for peer in peers:
            assert await receive_until_closed(peer) == []
    assert trio.current_time() < 0.2
    assert (server.open_connections, server.held_bytes) == (0, 0)


@virtual_time
async def test_an_address_is_served_at_once_again_when_it_has_been_quiet() -> None:
    async with serving(Recorder(answer_all), LIMITS) as (server, network):
        await waste(network, BAD, 1000)
        await trio.sleep(59)
        come(network, BAD)
        await trio.testing.wait_all_tasks_blocked()
        assert server.at_door == 1
        await trio.sleep(10)
        come(network, BAD)
        await trio.testing.wait_all_tasks_blocked()
        assert server.at_door == 0


@virtual_time
async def test_clients_that_ask_and_leave_may_do_so_as_often_as_they_like() -> None:
    async with serving(Recorder(answer_all), LIMITS) as (server, network):
        for opaque in range(300):
            peer = come(network, GOOD)
            await ask(peer, opaque)
            await peer.aclose()
        assert server.wasters == 0
        assert (server.counts.accepted, server.counts.turned_away.total()) == (300, 0)


@virtual_time
async def test_connections_that_the_server_itself_ends_are_not_held_against_anybody() -> None:
    network = StreamNetwork()
    async with trio.open_nursery() as nursery:
        server: Server = await nursery.start(
            serve_connections, network, ADDRESS, Recorder(answer_all), LIMITS
        )
        _peers = [come(network, GOOD) for _ in range(20)]
        await trio.testing.wait_all_tasks_blocked()
        server.stop()
    assert server.counts.closed == {CloseReason.SERVER_STOPPED: 20}
    assert server.wasters == 0


@virtual_time
async def test_requests_that_are_all_refused_do_not_prove_an_address() -> None:
    def refuse(connection: Connection, frames: list[Frame]) -> None:
        connection.fault(len(frames))

    async with serving(Recorder(refuse), LIMITS) as (server, network):
        for opaque in range(4):
            peer = come(network, BAD)
            await peer.send_all(request_bytes(opaque))
            await trio.testing.wait_all_tasks_blocked()
            await peer.aclose()
            await trio.testing.wait_all_tasks_blocked()
        come(network, BAD)
        await trio.testing.wait_all_tasks_blocked()
        assert server.at_door == 1


@virtual_time
async def test_the_log_names_a_bad_address_once_and_sums_up_who_was_turned_away(
    log: list[structlog.typing.EventDict],
) -> None:
    async with serving(Recorder(answer_all), LIMITS) as (server, network):
        for _ in range(200):
            await waste(network, BAD, 5)
            await trio.sleep(0.1)
        assert server.counts.turned_away.total() > 900
    lines = [line for line in log if line["log_level"] == "warning"]
    named = [line for line in lines if "keep coming to nothing" in line["event"]]
    summed = [line for line in lines if line["event"] == "connections turned away"]
    assert [line["address"] for line in named] == [BAD]
    assert 2 <= len(summed) <= 3
    assert {line["last_from"] for line in summed} == {BAD}
    # What came since the last line is told with the next.
    assert server.counts.turned_away.total() - 510 < sum(line["count"] for line in summed)


@each_seed(20)
def test_whatever_the_bad_do_the_good_from_their_address_are_answered_and_nothing_stays_held(
    seed: int,
) -> None:
    chance = random.Random(seed)
    met = came = 0

    async def bad(network: StreamNetwork) -> None:
        nonlocal came
        while True:
            peer = come(network, BAD)
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
            peer = come(network, BAD)
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
        handler = Recorder(answer_all)
        async with serving(handler, LIMITS) as (server, network):
            with trio.move_on_after(120):
                async with trio.open_nursery() as nursery:
                    async with trio.open_nursery() as goods:
                        for _ in range(5):
                            nursery.start_soon(bad, network)
                        for opaque in range(30):
                            goods.start_soon(good, network, opaque)
                    nursery.cancel_scope.cancel()
            await trio.sleep(200)
            assert (server.at_door, server.held_bytes) == (0, 0)
            entered, turned_away = server.counts.accepted, server.counts.turned_away.total()
            # Everybody who came is in one of the two, and of the bad most stay outside.
            assert entered + turned_away == came
            assert turned_away > entered - met

    # The seed decides in which order tasks run, too.
    run_deterministic(seed, run)
    assert met == 30


@virtual_time
async def test_peers_from_many_addresses_that_vanish_in_a_frame_do_not_pile_up() -> None:
    limits = ConnectionLimits(
        unproven_bytes_per_second_max=1 << 20,
        unproven_waiting_max=20,
        unproven_wait_seconds_max=5,
        connections_max=100,
    )
    async with serving(Recorder(answer_all), limits) as (server, network):
        for number in range(3000):
            peer = come(network, f"192.0.2.{number}")
            await peer.send_all(request_bytes(1, bytes(3000))[:1500])
            await peer.aclose()
            await trio.sleep(0.002)
            assert server.open_connections <= 21
        began = trio.current_time()
        await ask(come(network, GOOD), 1)
        assert trio.current_time() == began
        assert server.counts.refused == 0
        assert server.counts.closed[CloseReason.OVERLOAD] > 2000
        # Who is slow without being bad has to wait, but not for what was received an hour ago.
        slow = come(network, GOOD)
        data = request_bytes(2, bytes(3000))
        await slow.send_all(data[:1500])
        await trio.testing.wait_all_tasks_blocked()
        await slow.send_all(data[1500:])
        await receive_frames(slow, 1)
        assert 4 < trio.current_time() - began < 6
        await trio.sleep(0.1)
        assert server.open_connections == 2


# Over real sockets


async def test_a_flood_over_real_sockets_is_turned_away_while_a_neighbour_is_served() -> None:
    limits = ConnectionLimits(wasted_per_second_max=1, wasted_burst_seconds=10)
    handler = Recorder(answer_all)
    network = TcpNetwork()
    async with trio.open_nursery() as nursery:
        server: Server = await nursery.start(
            serve_connections, network, ("127.0.0.1", 0), handler, limits
        )
        half = request_bytes(1, bytes(500))[:200]
        for number in range(200):
            rude = await trio.open_tcp_stream(*server.address, local_address="127.0.0.2")
            with suppress(trio.BrokenResourceError):
                await rude.send_all((half, GARBAGE, b"")[number % 3])
                if number % 2:
                    linger = struct.pack("ii", 1, 0)
                    rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            await rude.aclose()
        # The last of them have lingered by then.
        await trio.sleep(1.2)
        assert server.counts.turned_away.total() > 140
        for source in ("127.0.0.1", "127.0.0.2"):
            async with await trio.open_tcp_stream(*server.address, local_address=source) as peer:
                await peer.send_all(request_bytes(5, bytes(5000)))
                assert [reply.opaque for reply in await receive_frames(peer, 1)] == [5]
        assert server.counts.accepted < 60
        server.stop()
    assert len(handler.opaques) == 2


async def test_many_that_wait_to_be_accepted_are_taken_together() -> None:
    network = TcpNetwork()
    async with await network.listen("127.0.0.1", 0) as listener:
        peers = [await network.connect(*listener.address) for _ in range(40)]
        taken = [await listener.arrivals(), await listener.arrivals()]
        assert [len(arrivals) for arrivals in taken] == [32, 8]
        for arrival, peer in zip(taken[0] + taken[1], peers, strict=True):
            assert arrival.peer == peer.socket.getsockname()
            assert arrival.receive_now(10) is None
            await peer.send_all(b"x")
            await peer.aclose()
        await trio.sleep(0.05)
        for arrival in taken[0]:
            assert [arrival.receive_now(10), arrival.receive_now(10)] == [b"x", b""]
            await arrival.aclose()
        for arrival in taken[1]:
            async with arrival.open() as stream:
                assert [await stream.receive_some(), await stream.receive_some()] == [b"x", b""]
