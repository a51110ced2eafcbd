"""A listener accepts up to its cap, goes on when the machine is short, and stops in good order."""

import errno
import socket
import struct
from collections.abc import Iterator
from itertools import pairwise

import pytest
import structlog
import trio
import trio.testing

from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import CloseReason, Connection
from delay_transport.connections.limits import ConnectionLimits
from delay_transport.connections.listener import Dispatch, Server, serve_connections
from delay_transport.seams.errors import ListenError
from delay_transport.seams.runtime import TcpNetwork
from tests.delay_transport.peers import (
    ADDRESS,
    Recorder,
    StreamNetwork,
    answer_all,
    hold_all,
    receive_frames,
    receive_until_closed,
    release,
    request_bytes,
    serving,
    serving_tcp,
    talking,
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


async def test_connections_beyond_the_cap_are_closed_at_once_where_nobody_is_silent() -> None:
    limits = ConnectionLimits(connections_max=2)
    handler = Recorder(hold_all)
    async with serving(handler, limits) as (server, network):
        first, second = [await network.connect(*ADDRESS) for _ in range(2)]
        for opaque, peer in enumerate([first, second]):
            await peer.send_all(request_bytes(opaque))
        await trio.testing.wait_all_tasks_blocked()
        third = await network.connect(*ADDRESS)
        assert await receive_until_closed(third) == []
        assert (server.counts.refused, handler.ended) == (1, [])
        for owner, batch in zip(handler.owners, handler.batches, strict=True):
            release(owner, batch)
        for opaque, peer in enumerate([first, second]):
            assert [reply.opaque for reply in await receive_frames(peer, 1)] == [opaque]
        await first.aclose()
        await trio.testing.wait_all_tasks_blocked()
        fourth = await network.connect(*ADDRESS)
        await fourth.send_all(request_bytes(4))
        await trio.testing.wait_all_tasks_blocked()
        release(handler.owners[-1], handler.batches[-1])
        await receive_frames(fourth, 1)
        assert (server.counts.accepted, server.open_connections) == (3, 2)


async def test_when_very_many_end_at_once_others_have_their_turn_in_between() -> None:
    handler = Recorder(answer_all)
    async with serving(handler) as (server, network):
        peers = [await network.connect(*ADDRESS) for _ in range(300)]
        for opaque, peer in enumerate(peers):
            await peer.send_all(request_bytes(opaque))
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(trio.aclose_forcefully, peer)
            ended = [0]
            while server.open_connections:
                await trio.lowlevel.checkpoint()
                ended.append(len(handler.reasons))
        assert ended[-1] == 300
        assert max(after - before for before, after in pairwise(ended)) <= 16


async def test_accepting_goes_on_after_the_machine_was_out_of_descriptors() -> None:
    async with serving(Recorder(answer_all)) as (_, network):
        network.listeners[ADDRESS].faults = [OSError(errno.EMFILE, "too many open files")] * 3
        peer = await network.connect(*ADDRESS)
        await peer.send_all(request_bytes(1))
        await receive_frames(peer, 1)
        assert 0.29 < trio.current_time() < 0.31


async def test_an_accept_that_fails_otherwise_ends_the_server() -> None:
    with pytest.RaisesGroup(OSError, flatten_subgroups=True):
        async with serving(Recorder()) as (_, network):
            network.listeners[ADDRESS].faults = [OSError(errno.EBADF, "bad descriptor")]
            await network.connect(*ADDRESS)
            await trio.sleep(1)


async def test_stopping_answers_what_was_accepted_and_reads_no_more() -> None:
    handler = Recorder(hold_all)
    async with talking(handler) as (server, peer):
        await peer.send_all(request_bytes(1))
        await trio.testing.wait_all_tasks_blocked()
        server.stop()
        await peer.send_all(request_bytes(2))
        await trio.sleep(1)
        release(handler.connections[0], handler.batches[0])
        assert [reply.opaque for reply in await receive_until_closed(peer)] == [1]
        assert trio.current_time() == 1
        await peer.aclose()
        await trio.sleep(0.1)
        assert handler.opaques == [1]
        assert handler.reasons == [CloseReason.SERVER_STOPPED]
        assert server.open_connections == 0


async def test_a_stopped_server_returns_though_answers_never_come_and_peers_stay() -> None:
    handler = Recorder(hold_all)
    network = StreamNetwork()
    async with trio.open_nursery() as nursery:
        server: Server = await nursery.start(
            serve_connections, network, ADDRESS, handler, ConnectionLimits()
        )
        for opaque in range(5):
            peer = await network.connect(*ADDRESS)
            await peer.send_all(request_bytes(opaque))
        await trio.testing.wait_all_tasks_blocked()
        server.stop()
    assert trio.current_time() == 5
    assert server.held_bytes == 0
    assert handler.reasons == [CloseReason.SERVER_STOPPED] * 5


async def test_a_connection_accepted_in_the_moment_of_stopping_is_stopped_too() -> None:
    handler = Recorder(answer_all)
    network = StreamNetwork()
    async with trio.open_nursery() as nursery:
        server: Server = await nursery.start(
            serve_connections, network, ADDRESS, handler, ConnectionLimits()
        )
        await trio.testing.wait_all_tasks_blocked()
        ours, theirs = trio.testing.memory_stream_pair()
        network.listeners[ADDRESS].offer(theirs)
        server.stop()
        assert await receive_until_closed(ours) == []
    assert handler.reasons == [CloseReason.SERVER_STOPPED]
    assert trio.current_time() <= 1


async def test_cancelling_cuts_connections_off_and_tells_the_handler() -> None:
    handler = Recorder(hold_all)
    async with talking(handler) as (_, peer):
        await peer.send_all(request_bytes(1))
        await trio.testing.wait_all_tasks_blocked()
    assert handler.reasons == [CloseReason.CANCELLED]
    assert await receive_until_closed(peer) == []
    assert trio.current_time() == 0


async def test_dispatch_hands_on_by_code_and_answers_unknown_codes_with_3() -> None:
    calls: list[tuple[str, list[int]]] = []
    closed: list[CloseReason] = []

    def take_ten(connection: Connection, frames: list[Frame]) -> None:
        calls.append(("ten", [frame.opaque for frame in frames]))
        answer_all(connection, frames)

    def take_hello(connection: Connection, frames: list[Frame]) -> None:
        calls.append(("hello", [frame.opaque for frame in frames]))
        answer_all(connection, frames)

    handler = Dispatch(
        {10: take_ten, 1001: take_hello}, on_closed=lambda _, reason: closed.append(reason)
    )
    async with talking(handler) as (_, peer):
        codes = [1001, 10, 10, 77, 10]
        await peer.send_all(b"".join(request_bytes(n, code=code) for n, code in enumerate(codes)))
        replies = await receive_frames(peer, 5)
    assert calls == [("hello", [0]), ("ten", [1, 2]), ("ten", [4])]
    assert [(reply.opaque, reply.code, reply.request_code) for reply in replies] == [
        (0, 0, 1001),
        (1, 0, 10),
        (2, 0, 10),
        (3, 3, 77),
        (4, 0, 10),
    ]
    assert closed == [CloseReason.CANCELLED]


# Over real sockets


@pytest.mark.real_time
async def test_answers_reach_a_peer_that_broke_the_protocol_while_it_still_sends() -> None:
    handler = Recorder(answer_all)
    network = TcpNetwork()
    async with serving_tcp(handler) as server, await network.connect(*server.address) as peer:
        await peer.send_all(request_bytes(1) + b"garbage" * 50_000)
        assert [reply.opaque for reply in await receive_until_closed(peer)] == [1]
    assert handler.reasons == [CloseReason.PROTOCOL_ERROR]


@pytest.mark.real_time
async def test_a_reset_connection_is_noted_and_the_others_go_on() -> None:
    handler = Recorder(answer_all)
    network = TcpNetwork()
    async with serving_tcp(handler) as server:
        rude = await network.connect(*server.address)
        await rude.send_all(request_bytes(1))
        await receive_frames(rude, 1)
        host, port = rude.socket.getsockname()
        assert handler.connections[0].peer == f"{host}:{port}"
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await rude.aclose()
        async with await network.connect(*server.address) as peer:
            await peer.send_all(request_bytes(2))
            await receive_frames(peer, 1)
    assert handler.reasons[0] is CloseReason.PEER_VANISHED


@pytest.mark.real_time
async def test_an_address_in_use_is_said_clearly() -> None:
    network = TcpNetwork()
    async with await network.listen("127.0.0.1", 0) as listener:
        _, port = listener.address
        with pytest.raises(ListenError, match=rf"127\.0\.0\.1:{port}: Address already in use"):
            await serve_connections(network, listener.address, Recorder(), ConnectionLimits())


@pytest.mark.real_time
async def test_many_that_wait_to_be_accepted_are_taken_together() -> None:
    network = TcpNetwork()
    async with await network.listen("127.0.0.1", 0) as listener:
        peers = [await network.connect(*listener.address) for _ in range(40)]
        taken = [await listener.arrivals(), await listener.arrivals()]
        assert [len(arrivals) for arrivals in taken] == [32, 8]
        for arrival, peer in zip(taken[0] + taken[1], peers, strict=True):
            assert arrival.peer == peer.socket.getsockname()
            await peer.send_all(b"x")
            await peer.aclose()
        for arrival in taken[0]:
            await arrival.aclose()
        for arrival in taken[1]:
            async with arrival.open() as stream:
                assert [await stream.receive_some(), await stream.receive_some()] == [b"x", b""]
