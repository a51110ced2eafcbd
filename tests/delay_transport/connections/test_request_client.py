"""Every request gets exactly its own answer, or its asker learns that there will be none."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from delay_protocol.wire.frames import Frame, encode_frame, encode_one_way, encode_response
from delay_transport.connections.connection import Connection
from delay_transport.connections.limits import RequestLimits
from delay_transport.connections.request_client import RequestConnection
from delay_transport.seams.errors import (
    ConnectError,
    ConnectionLostError,
    RequestTimeoutError,
    TooManyInFlightError,
)
from delay_transport.seams.runtime import TcpNetwork
from tests.delay_transport.peers import (
    ADDRESS,
    HEARTBEAT,
    SEND,
    Recorder,
    StreamNetwork,
    answer_all,
    receive_frames,
    serving,
    serving_tcp,
)

TOLD = 1022


class Inbox:
    """What callbacks were told."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, Frame]] = []
        self.pushes: list[Frame] = []
        self.frames: list[Frame] = []
        """Answers and pushes as they came."""
        self.losses: list[ConnectionLostError] = []

    def reply(self, opaque: int, frame: Frame) -> None:
        self.replies.append((opaque, frame))
        self.frames.append(frame)

    def push(self, frame: Frame) -> None:
        self.pushes.append(frame)
        self.frames.append(frame)

    def lost(self, error: ConnectionLostError) -> None:
        self.losses.append(error)


@asynccontextmanager
async def connected(
    inbox: Inbox | None = None,
    limits: RequestLimits | None = None,
    network: StreamNetwork | None = None,
) -> AsyncIterator[tuple[RequestConnection, trio.abc.Stream]]:
    """Yield a connection and the bare stream at its other end."""
    inbox = inbox or Inbox()
    network = network or StreamNetwork()
    listener = await network.listen(*ADDRESS)
    connection = RequestConnection(
        on_reply=inbox.reply, on_lost=inbox.lost, on_push=inbox.push, limits=limits
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.run, network, ADDRESS)
        yield connection, await listener.accept()
        connection.close()


async def settle() -> None:
    """Let every task go as far as it can without time passing."""
    await trio.testing.wait_all_tasks_blocked()


# submit


async def test_answers_in_any_order_find_their_requests() -> None:
    inbox = Inbox()
    chance = random.Random(3)
    async with connected(inbox) as (connection, peer):
        bodies = {connection.submit(SEND, (b"a", b"%d" % n)): b"a%d" % n for n in range(500)}
        requests = await receive_frames(peer, 500)
        assert {frame.opaque: frame.body for frame in requests} == bodies
        chance.shuffle(requests)
        await peer.send_all(b"".join(encode_response(r, code=0, body=r.body) for r in requests))
        await settle()
        assert connection.in_flight == 0
    assert [opaque for opaque, _ in inbox.replies] == [request.opaque for request in requests]
    assert {opaque: frame.body for opaque, frame in inbox.replies} == bodies


async def test_requests_submitted_together_leave_in_one_send() -> None:
    async with connected() as (connection, peer):
        for _ in range(100):
            connection.submit(SEND, ())
        await settle()
        assert len(await peer.receive_some()) == 100 * 24


async def test_a_request_carries_code_version_and_request_code() -> None:
    async with connected() as (connection, peer):
        opaque = connection.submit(SEND, (b"ab", b"c"))
        (frame,) = await receive_frames(peer, 1)
    assert frame == Frame(10, 9, opaque, 0, 10, b"abc")


async def test_frames_that_answer_nothing_we_asked_are_counted_and_dropped() -> None:
    inbox = Inbox()
    async with connected(inbox) as (connection, peer):
        opaque = connection.submit(SEND, ())
        (request,) = await receive_frames(peer, 1)
        stranger = encode_frame(Frame(0, 9, opaque + 1, 1, 10, b""))
        not_an_answer = encode_frame(Frame(10, 9, opaque, 0, 10, b""))
        await peer.send_all(stranger + not_an_answer + encode_response(request, code=0) * 2)
        await settle()
        assert (connection.counts.replies, connection.counts.replies_dropped) == (1, 3)
    assert [(frame.opaque, frame.flag) for _, frame in inbox.replies] == [(opaque, 1)]


async def test_callbacks_may_submit() -> None:
    replies: list[int] = []

    def on_reply(opaque: int, _: Frame) -> None:
        replies.append(opaque)
        if len(replies) < 10:
            connection.submit(SEND, ())

    connection = RequestConnection(on_reply=on_reply)
    async with serving(Recorder(answer_all)) as (_, network), trio.open_nursery() as nursery:
        await nursery.start(connection.run, network, ADDRESS)
        connection.submit(SEND, ())
        await trio.sleep(1)
        connection.close()
    assert len(set(replies)) == 10


async def test_too_many_requests_in_flight_are_refused() -> None:
    async with connected(limits=RequestLimits(in_flight_requests_max=3)) as (connection, _):
        for _ in range(3):
            connection.submit(SEND, ())
        assert not connection.has_room
        with pytest.raises(TooManyInFlightError):
            connection.submit(SEND, ())
        assert connection.abandon(1)
        connection.submit(SEND, ())


async def test_an_abandoned_request_is_not_answered_later() -> None:
    inbox = Inbox()
    async with connected(inbox) as (connection, peer):
        opaque = connection.submit(SEND, ())
        (request,) = await receive_frames(peer, 1)
        assert connection.abandon(opaque)
        assert not connection.abandon(opaque)
        await peer.send_all(encode_response(request, code=0))
        await settle()
        assert connection.counts.replies_dropped == 1
    assert inbox.replies == []
    assert inbox.losses[0].unanswered == ()


# request


async def test_many_tasks_each_get_their_own_answer() -> None:
    async with serving(Recorder(answer_all)) as (_, network), trio.open_nursery() as nursery:
        connection = RequestConnection()
        await nursery.start(connection.run, network, ADDRESS)

        async def ask(number: int) -> None:
            body = b"%d" % number
            assert (await connection.request(SEND, body, timeout_s=5)).body == body

        async with trio.open_nursery() as askers:
            for number in range(200):
                askers.start_soon(ask, number)
        connection.close()


async def test_a_request_without_answer_times_out_and_the_connection_goes_on() -> None:
    async with connected() as (connection, peer):
        with pytest.raises(RequestTimeoutError, match=r"server\.test:20801 to request code 10"):
            await connection.request(SEND, b"", timeout_s=3)
        assert trio.current_time() == 3
        assert connection.in_flight == 0
        assert connection.is_open
        (late,) = await receive_frames(peer, 1)
        await peer.send_all(encode_response(late, code=0))
        await settle()
        assert connection.counts.replies_dropped == 1


async def test_a_cancelled_request_leaves_nothing_behind() -> None:
    async with connected() as (connection, _):
        with trio.move_on_after(1):
            await connection.request(SEND, b"", timeout_s=30)
        assert trio.current_time() == 1
        assert connection.in_flight == 0


async def test_requests_wait_for_room_instead_of_being_refused() -> None:
    limits = RequestLimits(in_flight_requests_max=1)
    async with connected(limits=limits) as (connection, peer), trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(partial_request, connection)
        for _ in range(3):
            await settle()
            (request,) = await receive_frames(peer, 1)
            await peer.send_all(encode_response(request, code=0))


async def partial_request(connection: RequestConnection) -> None:
    """Ask once."""
    await connection.request(SEND, b"", timeout_s=5)


async def test_waiting_for_room_counts_for_the_time_out() -> None:
    async with connected(limits=RequestLimits(in_flight_requests_max=1)) as (connection, _):
        connection.submit(SEND, ())
        with pytest.raises(RequestTimeoutError):
            await connection.request(SEND, b"", timeout_s=2)
        assert trio.current_time() == 2


# One-way requests, told and pushed


async def test_what_is_told_reaches_the_handler_and_is_not_answered() -> None:
    inbox = Inbox()
    handler = Recorder(answer_all)
    connection = RequestConnection(on_reply=inbox.reply, on_push=inbox.push)
    async with serving(handler) as (_, network), trio.open_nursery() as nursery:
        await nursery.start(connection.run, network, ADDRESS)
        connection.tell(TOLD, b"a", memoryview(b"bcd")[:2], b"")
        opaque = connection.submit(SEND, (b"asked",))
        connection.tell(TOLD)
        await settle()
        assert (connection.in_flight, connection.unsent_bytes) == (0, 0)
        assert (connection.counts.requests, connection.counts.replies) == (3, 1)
        connection.close()
    (frames,) = handler.batches
    assert [(one.code, one.is_one_way, one.body) for one in frames] == [
        (TOLD, True, b"abc"),
        (SEND, False, b"asked"),
        (TOLD, True, b""),
    ]
    assert [found for found, _ in inbox.replies] == [opaque]
    assert inbox.pushes == []


async def test_what_a_handler_pushes_comes_in_order_with_answers() -> None:
    def push_around(connection: Connection, frames: list[Frame]) -> None:
        for frame in frames:
            connection.reply(encode_one_way(TOLD, b"before ", frame.body))
            connection.answer(frame, 0, frame.body)
            connection.reply(encode_one_way(TOLD, b"after ", frame.body))

    inbox = Inbox()
    handler = Recorder(push_around)
    connection = RequestConnection(on_reply=inbox.reply, on_push=inbox.push)
    async with serving(handler) as (_, network), trio.open_nursery() as nursery:
        await nursery.start(connection.run, network, ADDRESS)
        connection.submit(SEND, (b"1",))
        connection.submit(SEND, (b"2",))
        await trio.sleep(5)
        handler.connections[0].reply(encode_one_way(TOLD, b"unasked"))
        await settle()
        assert (connection.counts.replies, connection.counts.replies_dropped) == (2, 0)
        connection.close()
    assert [(one.is_response, one.body) for one in inbox.frames] == [
        (False, b"before 1"),
        (True, b"1"),
        (False, b"after 1"),
        (False, b"before 2"),
        (True, b"2"),
        (False, b"after 2"),
        (False, b"unasked"),
    ]
    assert all(one.is_one_way for one in inbox.pushes)


async def test_a_push_answers_nothing_even_with_the_opaque_of_a_request() -> None:
    inbox = Inbox()
    async with connected(inbox) as (connection, peer):
        opaque = connection.submit(SEND, ())
        await peer.send_all(encode_frame(Frame(SEND, 9, opaque, 2, SEND, b"")))
        # An answer is one, whatever else its flag says.
        await peer.send_all(encode_frame(Frame(0, 9, opaque + 1, 3, SEND, b"")))
        await settle()
        assert (connection.in_flight, connection.counts.replies_dropped) == (1, 1)
    assert [frame.opaque for frame in inbox.pushes] == [opaque]
    assert inbox.replies == []


async def test_a_push_may_be_told_something_about_and_ends_silence() -> None:
    told: list[bytes] = []

    def on_push(frame: Frame) -> None:
        told.append(frame.body)
        connection.tell(TOLD, b"got ", frame.body)

    network = StreamNetwork()
    listener = await network.listen(*ADDRESS)
    connection = RequestConnection(on_push=on_push)
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.run, network, ADDRESS)
        peer = await listener.accept()
        for number in range(10):
            await trio.sleep(10)
            await peer.send_all(encode_one_way(TOLD, b"%d" % number))
            (frame,) = await receive_frames(peer, 1)
            assert (frame.body, frame.is_one_way) == (b"got %d" % number, True)
        assert connection.is_open
        assert connection.counts.heartbeats == 0
        connection.close()
    assert told == [b"%d" % number for number in range(10)]


async def test_nothing_bounds_what_is_told_but_it_leaves_no_room_for_requests() -> None:
    network = StreamNetwork(trio.testing.lockstep_stream_pair)
    limits = RequestLimits(unsent_bytes_max=1000)
    async with connected(limits=limits, network=network) as (connection, peer):
        for _ in range(3):
            connection.tell(TOLD, bytes(1000 - 24))
        assert connection.unsent_bytes == 3000
        with pytest.raises(TooManyInFlightError):
            connection.submit(SEND, ())
        await receive_frames(peer, 3)
        await settle()
        assert (connection.unsent_bytes, connection.has_room) == (0, True)


# The end of the connection


async def test_a_lost_connection_fails_everything_pending_once() -> None:
    inbox = Inbox()
    errors: list[ConnectionLostError] = []

    async def ask() -> None:
        with pytest.raises(ConnectionLostError, match="closed by the peer") as caught:
            await connection.request(SEND, b"", timeout_s=60)
        errors.append(caught.value)

    async with connected(inbox) as (connection, peer):
        async with trio.open_nursery() as nursery:
            submitted = [connection.submit(SEND, ()) for _ in range(3)]
            nursery.start_soon(ask)
            nursery.start_soon(ask)
            await settle()
            await peer.aclose()
        assert trio.current_time() == 0
        assert not connection.is_open
        with pytest.raises(ConnectionLostError):
            connection.submit(SEND, ())
        with pytest.raises(ConnectionLostError, match="closed by the peer"):
            connection.tell(TOLD)
        with pytest.raises(ConnectionLostError):
            await connection.request(SEND, b"", timeout_s=1)
    assert len(errors) == 2
    assert [loss.unanswered for loss in inbox.losses] == [tuple(submitted)]
    assert inbox.losses[0].reason == "closed by the peer"


async def test_who_waits_for_room_learns_of_the_loss() -> None:
    limits = RequestLimits(in_flight_requests_max=1)
    async with connected(limits=limits) as (connection, peer), trio.open_nursery() as nursery:
        connection.submit(SEND, ())

        async def ask() -> None:
            with pytest.raises(ConnectionLostError):
                await connection.request(SEND, b"", timeout_s=60)

        nursery.start_soon(ask)
        await settle()
        await peer.aclose()
    assert trio.current_time() == 0


async def test_a_peer_that_breaks_the_protocol_is_left_after_its_good_answers() -> None:
    inbox = Inbox()
    async with connected(inbox) as (connection, peer):
        first, second = connection.submit(SEND, ()), connection.submit(SEND, ())
        requests = await receive_frames(peer, 2)
        await peer.send_all(encode_response(requests[0], code=0) + bytes(24))
        await settle()
    assert [opaque for opaque, _ in inbox.replies] == [first]
    assert inbox.losses[0].unanswered == (second,)
    assert "frame length" in inbox.losses[0].reason


async def test_being_cancelled_fails_what_is_pending_too() -> None:
    inbox = Inbox()
    network = StreamNetwork()
    await network.listen(*ADDRESS)
    connection = RequestConnection(on_lost=inbox.lost)
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.run, network, ADDRESS)
        opaque = connection.submit(SEND, ())
        nursery.cancel_scope.cancel()
    assert [(loss.reason, loss.unanswered) for loss in inbox.losses] == [("cancelled", (opaque,))]


async def test_before_and_without_a_connection_nothing_can_be_asked() -> None:
    connection = RequestConnection()
    with pytest.raises(ConnectionLostError, match="not connected"):
        connection.submit(SEND, ())
    with pytest.raises(ConnectionLostError, match="not connected"):
        connection.tell(TOLD)
    async with trio.open_nursery() as nursery:
        with pytest.raises(ConnectError, match=r"server\.test:20801: nobody listens"):
            await nursery.start(connection.run, StreamNetwork(), ADDRESS)


async def test_a_connection_that_does_not_come_about_in_time_is_given_up() -> None:
    class Blackhole(StreamNetwork):
        async def connect(self, host: str, port: int) -> trio.abc.Stream:
            await trio.sleep(3600)
            return await super().connect(host, port)

    async with trio.open_nursery() as nursery:
        with pytest.raises(ConnectError, match="no connection within 5 s"):
            await nursery.start(RequestConnection().run, Blackhole(), ADDRESS)
    assert trio.current_time() == 5


# Silence


async def test_silence_is_broken_by_heartbeats_and_kept_up_by_their_answers() -> None:
    inbox = Inbox()
    handler = Recorder(answer_all)
    connection = RequestConnection(on_reply=inbox.reply, on_lost=inbox.lost)
    async with serving(handler) as (server, network), trio.open_nursery() as nursery:
        await nursery.start(connection.run, network, ADDRESS)
        await trio.sleep(300.5)
        assert connection.is_open
        assert connection.counts.heartbeats == 20
        assert server.counts.heartbeats == 20
        connection.close()
    assert inbox.replies == []
    assert handler.batches == []


async def test_a_broker_that_does_not_know_heartbeats_is_fine() -> None:
    async with connected() as (connection, peer):
        for _ in range(5):
            (heartbeat,) = await receive_frames(peer, 1)
            assert heartbeat.code == HEARTBEAT
            await peer.send_all(encode_response(heartbeat, code=3))
        await settle()
        assert connection.is_open
        assert trio.current_time() == 75


async def test_a_peer_that_falls_silent_is_lost_after_45_seconds() -> None:
    inbox = Inbox()
    async with connected(inbox) as (connection, _):
        connection.submit(SEND, ())
        await trio.sleep(44.9)
        assert connection.counts.heartbeats == 2
        assert inbox.losses == []
        await trio.sleep(0.2)
        assert not connection.is_open
    assert inbox.losses[0].reason == "nothing received for 45 s"


async def test_a_peer_that_takes_nothing_is_lost_after_10_seconds() -> None:
    inbox = Inbox()
    network = StreamNetwork(trio.testing.lockstep_stream_pair)
    async with connected(inbox, network=network) as (connection, _):
        connection.submit(SEND, ())
        await trio.sleep(9.9)
        assert inbox.losses == []
        await trio.sleep(0.2)
        assert not connection.is_open
    assert inbox.losses[0].reason == "nothing sent for 10 s"


# Over real sockets


@pytest.mark.real_time
async def test_thousands_of_requests_over_a_real_socket_are_each_answered_once() -> None:
    answered: list[int] = []
    everything = trio.Event()

    def on_reply(opaque: int, _: Frame) -> None:
        answered.append(opaque)
        if len(answered) == 5000:
            everything.set()

    def answer_backwards(connection: Connection, frames: list[Frame]) -> None:
        answer_all(connection, frames[::-1])

    connection = RequestConnection(on_reply=on_reply)
    async with (
        serving_tcp(Recorder(answer_backwards)) as server,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(connection.run, TcpNetwork(), server.address)
        submitted = [connection.submit(SEND, (bytes(300),)) for _ in range(5000)]
        with trio.fail_after(30):
            await everything.wait()
        connection.close()
    assert sorted(answered) == submitted
