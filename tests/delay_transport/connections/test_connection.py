"""A server's connection answers what it accepts, and no peer can make it hold more than allowed."""

import socket
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import pytest
import structlog
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.wire.frames import Frame, encode_frame, encode_one_way
from delay_transport.connections.connection import CloseReason, Connection
from delay_transport.connections.limits import MIB, ConnectionLimits
from delay_transport.seams.read_turns import ReadTurns
from tests.delay_transport.peers import (
    ADDRESS,
    HEARTBEAT,
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
from tests.seeds import examples

PUSHED = 1021
PAUSED_AT_4_MIB = ConnectionLimits(unsent_bytes_pause=4 * MIB)
BAD_MAGIC = bytes.fromhex("00000014 0012 deadbeef 000a 0009 00000001 00000000 000a")


async def settle() -> None:
    """Let every task go as far as it can without time passing."""
    await trio.testing.wait_all_tasks_blocked()


async def test_requests_of_one_receive_are_handed_over_in_one_call_and_answered() -> None:
    handler = Recorder(answer_all)
    async with talking(handler) as (_, peer):
        await peer.send_all(b"".join(request_bytes(n, b"body %d" % n) for n in range(300)))
        replies = await receive_frames(peer, 300)
    assert [len(batch) for batch in handler.batches] == [300]
    assert [(reply.opaque, reply.body) for reply in replies] == [
        (n, b"body %d" % n) for n in range(300)
    ]
    assert {(reply.code, reply.flag, reply.version, reply.request_code) for reply in replies} == {
        (0, 1, 9, 10)
    }


@pytest.mark.real_time
@given(
    bodies=st.lists(st.binary(max_size=40), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 800), max_size=10),
)
@examples(60)
async def test_however_a_stream_is_cut_the_answers_are_the_same(
    bodies: Sequence[bytes], cuts: Sequence[int]
) -> None:
    sent = b"".join(request_bytes(n, body) for n, body in enumerate(bodies))
    bounds = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    async with talking(Recorder(answer_all)) as (server, peer):
        for start, end in pairwise(bounds):
            if start < end:
                await peer.send_all(sent[start:end])
                await settle()
        replies = await receive_frames(peer, len(bodies))
        assert server.held_bytes == 0
    assert [(reply.opaque, reply.body) for reply in replies] == list(enumerate(bodies))


async def test_answers_given_together_are_sent_together() -> None:
    handler = Recorder(answer_all)
    async with talking(handler) as (_, peer):
        await peer.send_all(b"".join(request_bytes(n) for n in range(100)))
        await settle()
        assert len(await peer.receive_some()) == 100 * 24


# What is not for the handler


async def test_a_heartbeat_is_answered_without_the_handler() -> None:
    handler = Recorder()
    async with talking(handler) as (server, peer):
        await peer.send_all(request_bytes(5, code=HEARTBEAT))
        (reply,) = await receive_frames(peer, 1)
        assert server.counts.heartbeats == 1
    assert (reply.code, reply.opaque, reply.request_code, reply.body) == (0, 5, 100, b"")
    assert handler.batches == []


async def test_frames_that_claim_to_be_answers_are_dropped_silently() -> None:
    handler = Recorder(answer_all)
    async with talking(handler) as (server, peer):
        answer = encode_frame(Frame(0, 9, 1, 1, 10, b"x"))
        await peer.send_all(answer + request_bytes(2) + answer)
        (reply,) = await receive_frames(peer, 1)
        assert server.counts.responses_dropped == 2
    assert reply.opaque == 2
    assert handler.opaques == [2]


async def test_a_one_way_request_is_handled_and_not_answered() -> None:
    handler = Recorder(answer_all)
    async with talking(handler) as (_, peer):
        one_way = encode_frame(Frame(10, 9, 1, 2, 10, b""))
        one_way_heartbeat = encode_frame(Frame(HEARTBEAT, 9, 2, 2, HEARTBEAT, b""))
        await peer.send_all(one_way + one_way_heartbeat + request_bytes(3))
        (reply,) = await receive_frames(peer, 1)
    assert handler.opaques == [1, 3]
    assert reply.opaque == 3


# Backpressure


@pytest.mark.parametrize(
    ("limits", "size"),
    [
        (ConnectionLimits(in_flight_requests_max=10), 0),
        (ConnectionLimits(in_flight_bytes_max=1000), 100),
    ],
    ids=["requests", "bytes"],
)
async def test_nothing_is_read_while_too_much_is_in_flight(
    limits: ConnectionLimits, size: int
) -> None:
    handler = Recorder(hold_all)
    async with talking(handler, limits) as (server, peer):
        await peer.send_all(b"".join(request_bytes(n, bytes(size)) for n in range(9)))
        await settle()
        for opaque in (9, 10):
            await peer.send_all(request_bytes(opaque, bytes(size)))
            await settle()
        (connection,) = handler.connections
        assert handler.opaques == list(range(10))
        assert (server.counts.pauses, server.held_bytes) == (1, 10 * size)
        connection.done(1, size)
        await settle()
        assert handler.opaques == list(range(11))
        connection.done(10, 10 * size)


async def test_one_receive_at_a_time_is_all_that_goes_beyond_a_limit() -> None:
    handler = Recorder(hold_all)
    limits = ConnectionLimits(in_flight_requests_max=1, receive_bytes=24 * 5)
    async with talking(handler, limits) as (_, peer):
        await peer.send_all(b"".join(request_bytes(n) for n in range(1000)))
        await settle()
        assert handler.opaques == [0, 1, 2, 3, 4]


async def test_a_full_total_stops_every_connection_until_there_is_room() -> None:
    handler = Recorder(hold_all)
    limits = ConnectionLimits(
        total_bytes_max=20_000, unfinished_bytes_max=9900, frame_bytes_max=9100, receive_bytes=800
    )
    async with serving(handler, limits) as (server, network):
        first, second, third = [await network.connect(*ADDRESS) for _ in range(3)]
        await first.send_all(request_bytes(1, bytes(9000)) + request_bytes(2, bytes(9000)))
        await second.send_all(request_bytes(3, bytes(2000)))
        await settle()
        # All of them already wait in a receive when the total is reached: one more receive each.
        for opaque, peer in [(4, first), (5, second), (6, third)]:
            await peer.send_all(request_bytes(opaque))
        await settle()
        assert server.held_bytes >= 20_000
        before = sorted(handler.opaques)
        for opaque, peer in [(7, first), (8, second), (9, third)]:
            await peer.send_all(request_bytes(opaque))
        await settle()
        assert sorted(handler.opaques) == before
        # The answers of one connection let all of them go on.
        largest = max(handler.batches, key=lambda batch: sum(len(frame.body) for frame in batch))
        release(handler.owners[handler.batches.index(largest)], largest)
        await settle()
        assert sorted(handler.opaques) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


async def test_unfinished_frames_and_unsent_answers_count_as_held() -> None:
    handler = Recorder(answer_all)
    async with talking(handler, is_lockstep=True) as (server, peer):
        await peer.send_all(request_bytes(1, bytes(500))[:300])
        await settle()
        assert server.held_bytes == 300
        await peer.send_all(request_bytes(1, bytes(500))[300:])
        await settle()
        assert server.held_bytes == 524
        await receive_frames(peer, 1)
        await settle()
        assert server.held_bytes == 0


async def test_what_a_lost_connection_held_is_given_back() -> None:
    handler = Recorder(hold_all)
    async with talking(handler) as (server, peer):
        await peer.send_all(request_bytes(1, bytes(100)) + request_bytes(2, bytes(100))[:50])
        await settle()
        assert server.held_bytes == 150
        await peer.aclose()
        await trio.sleep(20)
        assert handler.reasons == [CloseReason.PEER_VANISHED]
        assert (server.held_bytes, server.open_connections) == (100, 0)
        assert handler.connections[0].is_closed
        release(handler.connections[0], handler.batches[0])
        assert server.held_bytes == 0
        assert server.counts.replies_dropped == 1


# Pushing


def pushes(number: int, size: int) -> bytes:
    """Return a one-way frame of so many bytes in all."""
    return encode_one_way(PUSHED, number.to_bytes(4, "big"), bytes(size - 28))


async def test_a_handler_may_push_at_any_time_also_with_16_mib_unsent() -> None:
    handler = Recorder(answer_all)
    async with talking(handler, PAUSED_AT_4_MIB, is_lockstep=True) as (server, peer):
        await peer.send_all(request_bytes(1))
        await receive_frames(peer, 1)
        (connection,) = handler.connections
        for number in range(5):
            connection.reply(pushes(number, 4 * MIB))
            await settle()
        assert connection.unsent_bytes == server.held_bytes == 20 * MIB
        # Of those who have so much unsent nothing is read, but for what was being received.
        await peer.send_all(request_bytes(2))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.send_all, request_bytes(3))
            await trio.sleep(5)
            assert handler.opaques == [1, 2]
            connection.reply(pushes(5, 28))
            frames = await receive_frames(peer, 8)
        pushed = [int.from_bytes(one.body[:4], "big") for one in frames if one.is_one_way]
        assert pushed == [0, 1, 2, 3, 4, 5]
        assert [one.opaque for one in frames if one.is_response] == [2, 3]
        await settle()
        assert (connection.unsent_bytes, server.held_bytes) == (0, 0)


async def test_a_peer_is_read_again_once_little_of_what_is_pushed_is_left() -> None:
    handler = Recorder()
    async with talking(handler, PAUSED_AT_4_MIB, is_lockstep=True) as (_, peer):
        await peer.send_all(request_bytes(1))
        await settle()
        handler.connections[0].reply(pushes(0, 16 * MIB))
        await peer.send_all(request_bytes(2))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.send_all, request_bytes(3))
            taken = 0
            while len(handler.batches) < 3:
                await settle()
                taken += len(await peer.receive_some(1 * MIB))
        # With less than 4 MiB unsent, which is counted in steps.
        assert 12 * MIB < taken <= 14 * MIB


async def test_who_takes_no_step_of_what_is_pushed_in_time_is_closed() -> None:
    handler = Recorder()
    async with talking(handler, is_lockstep=True) as (server, peer):
        await peer.send_all(request_bytes(1))
        await settle()
        (connection,) = handler.connections
        connection.reply(pushes(0, 16 * MIB))
        taken = 0
        while taken < 4 * MIB:
            await trio.sleep(9)
            taken += len(await peer.receive_some(1 * MIB))
        await settle()
        assert handler.reasons == []
        # More that is pushed does not put the end off.
        for number in range(1, 10):
            await trio.sleep(1)
            connection.reply(pushes(number, 28))
        await trio.sleep(0.9)
        assert handler.reasons == []
        await trio.sleep(0.2)
        assert handler.reasons == [CloseReason.SLOW_READER]
        assert server.held_bytes == 0
        connection.reply(pushes(10, 28))
        assert server.counts.replies_dropped == 1


async def test_more_than_64_mib_of_pushes_unsent_end_the_connection_at_once() -> None:
    handler = Recorder()
    async with talking(handler, is_lockstep=True) as (server, peer):
        await peer.send_all(request_bytes(1))
        await settle()
        (connection,) = handler.connections
        frame = pushes(0, 8 * MIB)
        for _ in range(8):
            connection.reply(frame)
        await settle()
        assert (handler.reasons, server.held_bytes) == ([], 64 * MIB)
        connection.reply(pushes(1, 28))
        await settle()
        assert handler.reasons == [CloseReason.SLOW_READER]
        assert server.held_bytes == 0


async def test_pushes_keep_a_silent_peer_open_and_it_is_idle_150_seconds_after_the_last() -> None:
    handler = Recorder()
    async with talking(handler) as (_, peer):
        await peer.send_all(request_bytes(1))
        await settle()
        for number in range(5):
            await trio.sleep(140)
            handler.connections[0].reply(pushes(number, 100))
            await receive_frames(peer, 1)
        await trio.sleep(149.9)
        assert handler.reasons == []
        # It has a second to close as well.
        await trio.sleep(1.2)
        assert handler.reasons == [CloseReason.IDLE]


# Deadlines


async def test_a_slow_reader_is_closed_even_while_its_requests_are_not_read() -> None:
    handler = Recorder(answer_all)
    limits = ConnectionLimits(unsent_bytes_pause=50)
    async with talking(handler, limits, is_lockstep=True) as (_, peer):
        await peer.send_all(request_bytes(1, bytes(100)))
        await trio.sleep(10.1)
    assert handler.reasons == [CloseReason.SLOW_READER]


async def test_an_idle_connection_is_closed() -> None:
    handler = Recorder(answer_all)
    async with talking(handler) as (_, peer):
        await trio.sleep(40)
        await peer.send_all(request_bytes(1))
        await trio.sleep(44.9)
        assert handler.reasons == []
        await trio.sleep(0.2)
        assert await receive_until_closed(peer) == [Frame(0, 9, 1, 1, 10, b"")]
        await peer.aclose()
        await settle()
        assert handler.reasons == [CloseReason.IDLE]


async def test_a_peer_that_waits_for_its_answer_is_not_idle() -> None:
    handler = Recorder(hold_all)
    async with talking(handler) as (_, peer):
        await peer.send_all(request_bytes(1))
        await trio.sleep(400)
        release(handler.connections[0], handler.batches[0])
        await receive_frames(peer, 1)
        answered_at = trio.current_time()
        assert await receive_until_closed(peer) == []
        assert 150 <= trio.current_time() - answered_at <= 301


async def test_a_frame_that_is_not_complete_in_time_ends_the_connection() -> None:
    handler = Recorder(answer_all)
    async with talking(handler) as (_, peer):
        # Quick enough for the least rate (1 KiB/s), but 16 KiB are not here within 10 s.
        data = request_bytes(1, bytes(16_000))
        for second in range(9):
            await peer.send_all(data[second * 1200 : second * 1200 + 1200])
            await trio.sleep(1)
        assert handler.reasons == []
        await trio.sleep(1.1)
        assert handler.reasons == [CloseReason.SLOW_FRAME]


async def test_a_trickled_frame_is_given_up_after_the_grace() -> None:
    handler = Recorder(answer_all)
    async with talking(handler) as (_, peer):
        for byte in request_bytes(1)[:5]:
            await peer.send_all(bytes([byte]))
            await trio.sleep(0.98)
        assert handler.reasons == []
        await trio.sleep(0.2)
        assert handler.reasons == [CloseReason.SLOW_FRAME]


async def test_frames_that_each_come_in_time_may_go_on_for_ever() -> None:
    handler = Recorder(answer_all)
    async with talking(handler) as (_, peer):
        data = b"".join(request_bytes(n, bytes(76)) for n in range(50))
        # Every piece ends in the middle of a frame.
        for start in range(0, len(data), 150):
            await peer.send_all(data[start : start + 150])
            await trio.sleep(4)
        await receive_frames(peer, 50)
        assert handler.reasons == []


async def test_the_frame_deadline_stands_still_while_the_server_does_not_read() -> None:
    handler = Recorder(hold_all)
    limits = ConnectionLimits(in_flight_requests_max=1)
    async with talking(handler, limits) as (_, peer):
        await peer.send_all(request_bytes(1) + request_bytes(2)[:10])
        await trio.sleep(300.8)
        assert handler.reasons == []
        handler.connections[0].done(1, 0)
        await trio.sleep(4.4)
        await peer.send_all(request_bytes(2)[10:])
        await settle()
        assert handler.opaques == [1, 2]
        assert handler.reasons == []


async def test_a_connection_that_was_not_read_for_long_is_idle_only_after_that() -> None:
    handler = Recorder(hold_all)
    limits = ConnectionLimits(in_flight_requests_max=1)
    async with talking(handler, limits) as (_, peer):
        await peer.send_all(encode_frame(Frame(10, 9, 1, 2, 10, b"")))
        await trio.sleep(200)
        handler.connections[0].done(1, 0)
        await trio.sleep(149.9)
        assert handler.reasons == []
        await trio.sleep(0.2)
        await peer.aclose()
        await settle()
        assert handler.reasons == [CloseReason.IDLE]


# Unfinished frames

SMALL_MEMORY = ConnectionLimits(
    total_bytes_max=4 << 20,
    unfinished_bytes_max=3 << 19,
    frame_bytes_max=1 << 18,
    receive_bytes=1 << 12,
)
"""A 64th of the defaults."""
GIANT = request_bytes(1, bytes((1 << 18) - 24))


async def test_of_too_many_unfinished_frames_the_largest_gives_way_at_once() -> None:
    handler = Recorder(answer_all)
    async with serving(handler, SMALL_MEMORY) as (server, network):
        peers = [await network.connect(*ADDRESS) for _ in range(7)]
        for number, peer in enumerate(peers[:6]):
            await peer.send_all(GIANT[: 250_000 + number])
        await settle()
        assert server.held_bytes == 1_500_015
        assert handler.reasons == []
        with structlog.testing.capture_logs() as logs:
            await peers[6].send_all(GIANT[:100_000])
            await settle()
        assert handler.reasons == [CloseReason.MEMORY]
        assert [log["detail"] for log in logs] == ["250005 bytes into a frame"]
        assert server.held_bytes == 1_500_015 - 250_005 + 100_000
        # Whoever stayed can go on.
        await peers[6].send_all(GIANT[100_000:])
        await peers[0].send_all(GIANT[250_000:])
        await settle()
        assert handler.opaques == [1, 1]
        assert handler.reasons == [CloseReason.MEMORY]


async def test_small_requests_are_answered_at_once_whatever_giants_are_unfinished() -> None:
    handler = Recorder(answer_all)
    lives: list[float] = []

    async def attack(network: StreamNetwork) -> None:
        while trio.current_time() < 15:
            peer = await network.connect(*ADDRESS)
            began_at = trio.current_time()
            try:
                for start in range(0, 240_000, 1 << 16):
                    await peer.send_all(GIANT[start : min(start + (1 << 16), 240_000)])
                while True:
                    await trio.sleep(0.25)
                    await peer.send_all(bytes(500))
            except trio.BrokenResourceError:
                lives.append(trio.current_time() - began_at)
                await trio.sleep(0.25)

    async with (
        serving(handler, SMALL_MEMORY) as (server, network),
        trio.open_nursery() as nursery,
    ):
        nursery.cancel_scope.deadline = 100
        for _ in range(30):
            nursery.start_soon(attack, network)
        good = await network.connect(*ADDRESS)
        highest = 0
        for opaque in range(300):
            data = request_bytes(opaque, b"small")
            # In two pieces: its own unfinished frame is none of the large ones.
            await good.send_all(data[:20])
            await trio.sleep(0.05)
            asked_at = trio.current_time()
            await good.send_all(data[20:])
            assert [reply.opaque for reply in await receive_frames(good, 1)] == [opaque]
            assert trio.current_time() == asked_at
            highest = max(highest, server.held_bytes)
            await trio.sleep(0.05)
        assert 6 * 240_000 <= highest <= SMALL_MEMORY.unfinished_bytes_max + 100
        assert handler.reasons.count(CloseReason.MEMORY) > 100
        assert server.counts.pauses == 0
        # The last of them fit; their deadlines run as ever.
        await trio.sleep(15)
        assert handler.reasons.count(CloseReason.SLOW_FRAME) >= 6
        assert set(handler.reasons) == {CloseReason.MEMORY, CloseReason.SLOW_FRAME}
        assert max(lives) <= 10.5
        assert (server.held_bytes, server.open_connections) == (0, 1)
    assert not nursery.cancel_scope.cancelled_caught


async def test_many_frames_of_middle_size_do_not_drive_out_smaller_ones() -> None:
    handler = Recorder(answer_all)
    async with serving(handler, SMALL_MEMORY) as (server, network):
        good = await network.connect(*ADDRESS)
        # Less than the bound divided by all.
        data = request_bytes(1, bytes(12_000))
        await good.send_all(data[:10_000])
        peers = [await network.connect(*ADDRESS) for _ in range(100)]
        for start in range(0, 20_000, 1000):
            for peer in peers:
                with suppress(trio.BrokenResourceError):
                    await peer.send_all(GIANT[start : start + 1000])
            await settle()
            assert server.held_bytes <= SMALL_MEMORY.unfinished_bytes_max
        assert set(handler.reasons) == {CloseReason.MEMORY}
        assert 20 < len(handler.reasons) < 60
        await good.send_all(data[10_000:])
        assert len(await receive_frames(good, 1)) == 1


async def test_what_will_never_be_complete_is_given_back_before_answers_are_drained() -> None:
    handler = Recorder(hold_all)
    async with talking(handler) as (server, peer):
        await peer.send_all(request_bytes(1, bytes(100)) + GIANT[:200_000])
        await settle()
        assert server.held_bytes == 200_100
        handler.connections[0].close("enough")
        assert server.held_bytes == 100
        release(handler.connections[0], handler.batches[0])
        assert [reply.opaque for reply in await receive_until_closed(peer)] == [1]


async def test_what_arrives_in_the_moment_of_the_end_is_not_taken() -> None:
    handler = Recorder(answer_all)
    async with talking(handler) as (server, peer):
        await peer.send_all(GIANT[:1000])
        await settle()
        # The reader has these bytes of its body and had no turn yet. They are no request.
        await peer.send_all(request_bytes(2))
        server.stop()
        assert await receive_until_closed(peer) == []
        await peer.aclose()
        await settle()
        assert server.held_bytes == 0
    assert handler.opaques == []
    assert handler.reasons == [CloseReason.SERVER_STOPPED]


# Ending


async def test_a_bad_magic_ends_the_connection_after_good_requests_are_answered() -> None:
    handler = Recorder(hold_all)
    async with talking(handler) as (_, peer):
        with structlog.testing.capture_logs() as logs:
            await peer.send_all(request_bytes(1) + request_bytes(2) + BAD_MAGIC)
            await settle()
            assert handler.opaques == [1, 2]
            await trio.sleep(1)
            release(handler.connections[0], handler.batches[0])
            replies = await receive_until_closed(peer)
            await peer.aclose()
            await settle()
    assert [reply.opaque for reply in replies] == [1, 2]
    assert handler.reasons == [CloseReason.PROTOCOL_ERROR]
    assert logs == [
        {
            "log_level": "warning",
            "event": "connection closed",
            "peer": "a peer without name",
            "reason": "protocol error",
            "detail": "magic 0xdeadbeef, expected 0xdec10ade",
        }
    ]


async def test_a_frame_beyond_the_limit_is_refused_before_it_is_buffered() -> None:
    handler = Recorder(answer_all)
    limits = ConnectionLimits(frame_bytes_max=1000)
    async with talking(handler, limits) as (server, peer):
        await peer.send_all(request_bytes(1, bytes(2000))[:4])
        assert await receive_until_closed(peer) == []
        assert server.held_bytes == 0
        await peer.aclose()
        await settle()
    assert handler.reasons == [CloseReason.PROTOCOL_ERROR]


async def test_after_a_protocol_error_what_still_comes_is_discarded_for_a_moment_only() -> None:
    handler = Recorder(answer_all)
    async with talking(handler) as (server, peer):
        await peer.send_all(BAD_MAGIC)
        with trio.move_on_after(0.9):
            while True:
                await peer.send_all(bytes(1000))
                await trio.sleep(0.1)
        assert handler.reasons == []
        assert server.held_bytes == 0
        await trio.sleep(0.2)
        assert handler.reasons == [CloseReason.PROTOCOL_ERROR]


async def test_what_floods_after_a_protocol_error_is_discarded_slowly() -> None:
    async with talking(Recorder(answer_all), is_lockstep=True) as (_, peer):
        await peer.send_all(BAD_MAGIC)
        sent = 0
        with suppress(trio.BrokenResourceError):
            while True:
                await peer.send_all(bytes(1 << 16))
                sent += 1
        # One each 50 ms of one second.
        assert 15 <= sent <= 22


async def test_requests_never_answered_hold_a_dying_connection_only_so_long() -> None:
    handler = Recorder(hold_all)
    async with talking(handler) as (_, peer):
        await peer.send_all(request_bytes(1) + BAD_MAGIC)
        await trio.sleep(3.9)
        assert handler.reasons == []
        await trio.sleep(1.2)
        assert handler.reasons == [CloseReason.PROTOCOL_ERROR]


async def test_a_peer_that_finished_sending_gets_its_answers() -> None:
    handler = Recorder(hold_all)
    async with talking(handler) as (_, peer):
        assert isinstance(peer, trio.abc.HalfCloseableStream)
        await peer.send_all(request_bytes(1))
        await peer.send_eof()
        await trio.sleep(2)
        release(handler.connections[0], handler.batches[0])
        replies = await receive_until_closed(peer)
    assert [reply.opaque for reply in replies] == [1]
    assert handler.reasons == [CloseReason.PEER_CLOSED]


async def test_a_handler_can_close_after_its_answer() -> None:
    def refuse(connection: Connection, frames: list[Frame]) -> None:
        connection.answer(frames[0], 52)
        connection.close("fenced")

    handler = Recorder(refuse)
    async with talking(handler) as (_, peer):
        await peer.send_all(request_bytes(1) + request_bytes(2))
        replies = await receive_until_closed(peer)
        await peer.aclose()
        await settle()
    assert [reply.code for reply in replies] == [52]
    assert handler.reasons == [CloseReason.CLOSED_BY_HANDLER]


async def test_a_bug_in_a_handler_is_not_hidden() -> None:
    def stumble(_connection: Connection, _frames: list[Frame]) -> None:
        raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with serving(Recorder(stumble)) as (_, network):
            peer = await network.connect(*ADDRESS)
            await peer.send_all(request_bytes(1))
            await trio.sleep(1)


# Faults


def refuse_all(connection: Connection, frames: Sequence[Frame]) -> None:
    for frame in frames:
        connection.fault()
        connection.answer(frame, 3)


async def test_nothing_is_read_from_a_connection_for_a_while_after_each_of_its_faults() -> None:
    def judge(connection: Connection, frames: list[Frame]) -> None:
        (answer_all if frames[0].opaque >= 10_000 else refuse_all)(connection, frames)

    handler = Recorder(judge)
    limits = ConnectionLimits(receive_bytes=10 * len(request_bytes(1)))
    async with serving(handler, limits) as (server, network):
        bad = await network.connect(*ADDRESS)
        good = await network.connect(*ADDRESS)
        await bad.send_all(b"".join(map(request_bytes, range(10_000))))
        for opaque in range(10_000, 10_100):
            asked_at = trio.current_time()
            await good.send_all(request_bytes(opaque))
            await receive_frames(good, 1)
            assert trio.current_time() == asked_at
            await trio.sleep(0.05)
        # Ten for each receive, and a receive each ten times 2 ms.
        assert 2500 <= server.counts.faults <= 2510
        assert server.counts.pauses >= 249
        await bad.aclose()


@pytest.mark.real_time
async def test_the_socket_gathers_a_frame_that_comes_in_small_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    receives = 0
    receive = ReadTurns.receive

    async def counted(
        turns: ReadTurns, stream: trio.abc.Stream, bytes_max: int
    ) -> bytes | bytearray:
        nonlocal receives
        data = await receive(turns, stream, bytes_max)
        receives += 1
        return data

    monkeypatch.setattr(ReadTurns, "receive", counted)
    handler = Recorder(answer_all)
    limits = ConnectionLimits(frame_bytes_per_second_min=100)
    async with serving_tcp(handler, limits) as server:
        peer = await trio.open_tcp_stream(*server.address)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        data = request_bytes(1, bytes(250))
        for opaque in (1, 2):
            for place in range(len(data)):
                await peer.send_all(data[place : place + 1])
                await trio.sleep(0.001)
            assert [reply.opaque for reply in await receive_frames(peer, 1)] == [1]
            # Some until it is old enough, then each 100 bytes.
            assert receives <= 30 * opaque
        receives = 0
        for opaque in range(20):
            await peer.send_all(request_bytes(opaque))
            await receive_frames(peer, 1)
        assert receives == 20
        await peer.aclose()


async def test_lines_about_bad_peers_are_limited_and_the_next_says_how_many_there_were() -> None:
    limits = ConnectionLimits(warnings_per_second_max=1)
    with structlog.testing.capture_logs() as lines:
        async with serving(Recorder(), limits) as (_, network):
            for _ in range(50):
                peer = await network.connect(*ADDRESS)
                await peer.send_all(b"GET / HTTP/1.1\r\n\r\n")
                await peer.aclose()
                await settle()
            written = [line for line in lines if line["log_level"] == "warning"]
            assert 10 <= len(written) <= 12
            await trio.sleep(30)
            peer = await network.connect(*ADDRESS)
            await peer.send_all(b"GET / HTTP/1.1\r\n\r\n")
            await peer.aclose()
            await settle()
            written = [line for line in lines if line["log_level"] == "warning"]
            assert written[-1]["left_out"] == 51 - len(written)
