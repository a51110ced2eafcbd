"""A connection ends in bounded time whatever the peer does, and forgets no request that is out."""

import math

import numpy as np
import pytest
import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair

from delay_protocol.basics.codes import CommandCode
from delay_protocol.basics.errors import FrameSizeError
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_request, encode_response
from sender.groups.connection import BrokerConnection, End, Request
from sender.queues.parcels import first_try, joined
from tests.sender.broker_rig import ENTRY, ReadItems


class Source:
    """Gives as many requests as it was told to have."""

    def __init__(self, requests: int = 0) -> None:
        self.left = requests
        self.answers: list[Frame] = []
        self.timed_outs: list[Request | None] = []
        self.stalls: list[float] = []
        self.send_at = math.inf
        self.asked: list[float] = []
        self.connection: BrokerConnection | None = None

    def next_request(self) -> tuple[Request, bytes] | None:
        self.asked.append(trio.current_time())
        if self.asked[-1] >= self.send_at:
            self.send_at = math.inf
        if not self.left:
            return None
        self.left -= 1
        return Request(joined([first_try(np.zeros(1, ENTRY))]), ReadItems([b"x"]), 1), b"x"

    def answered(self, request: Request, answer: Frame) -> None:
        assert len(request.batch) == 1
        self.answers.append(answer)

    def timed_out(self, request: Request | None) -> None:
        self.timed_outs.append(request)
        assert self.connection is not None
        self.connection.retire(End.TIMEOUT, "")

    def stalled(self) -> None:
        self.stalls.append(trio.current_time())


def connect(
    stream: trio.abc.Stream, source: Source, *, answer_bytes_max: int = 1000
) -> BrokerConnection:
    connection = BrokerConnection(
        stream,
        source,
        answer_bytes_max=answer_bytes_max,
        request_timeout_s=5,
        stall_s=0.25,
        heartbeat_s=15,
    )
    source.connection = connection
    return connection


async def frames_of(stream: trio.abc.Stream, count: int) -> list[Frame]:
    decoder = FrameDecoder(frame_bytes_max=10_000)
    frames: list[Frame] = []
    while len(frames) < count:
        decoder.feed(await stream.receive_some())
        frames += decoder.frames()
    return frames


async def test_what_waits_long_is_told_of_once_and_what_comes_after_it_anew() -> None:
    ours, theirs = memory_stream_pair()
    source = Source(requests=1)
    connection = connect(ours, source)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        (first,) = await frames_of(theirs, 1)
        assert connection.waits_since() == 0
        await trio.sleep(0.5)
        source.left = 1
        connection.wake()
        (second,) = await frames_of(theirs, 1)
        await trio.sleep(0.2)
        assert source.stalls == [0.25]
        await theirs.send_all(encode_response(first, code=0))
        await trio.sleep(0.01)
        assert connection.waits_since() == 0.5
        # The second waits longer than that as well, which is seen at the next look.
        await trio.sleep(0.29)
        assert len(source.stalls) == 2
        await theirs.send_all(encode_response(second, code=0))
        await trio.sleep(10)
        assert connection.waits_since() is None
        assert len(source.stalls) == 2
        assert source.timed_outs == []
        nursery.cancel_scope.cancel()


async def test_a_source_that_has_to_wait_for_its_time_is_asked_then_and_heartbeats_go_on() -> None:
    ours, theirs = memory_stream_pair()
    source = Source()
    connection = connect(ours, source)
    async with trio.open_nursery() as nursery:
        source.send_at = 7.0
        nursery.start_soon(connection.run)
        await trio.sleep(6.9)
        assert source.asked == [0]
        await trio.sleep(0.2)
        assert source.asked[1] == 7.0
        await trio.sleep(15)
        (heartbeat,) = await frames_of(theirs, 1)
        assert heartbeat.code == CommandCode.HEARTBEAT
        nursery.cancel_scope.cancel()


async def test_a_write_that_never_ends_is_given_up_with_its_request() -> None:
    ours, _theirs = lockstep_stream_pair()
    source = Source(requests=3)
    end, _ = await connect(ours, source).run()
    assert end is End.TIMEOUT
    assert trio.current_time() == pytest.approx(5)
    assert len(source.timed_outs) == 1
    assert source.left == 2


async def test_what_was_not_answered_is_still_there_when_the_peer_closes() -> None:
    ours, theirs = memory_stream_pair()
    source = Source(requests=3)
    connection = connect(ours, source)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def peer() -> None:
            frames = await frames_of(theirs, 3)
            await theirs.send_all(encode_response(frames[1], code=0))
            await theirs.aclose()

        end, _ = await connection.run()
    assert end is End.LOST
    assert len(source.answers) == 1
    assert len(connection.in_flight) == 2


async def test_answers_before_garbage_in_the_same_bytes_count() -> None:
    ours, theirs = memory_stream_pair()
    source = Source(requests=2)
    connection = connect(ours, source)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def peer() -> None:
            frames = await frames_of(theirs, 2)
            await theirs.send_all(encode_response(frames[0], code=0) + b"\xff" * 30)

        end, _ = await connection.run()
    assert end is End.GARBAGE
    assert len(source.answers) == 1
    assert len(connection.in_flight) == 1


async def test_an_answer_larger_than_the_limit_ends_the_connection() -> None:
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def peer() -> None:
            frames = await frames_of(theirs, 1)
            await theirs.send_all(encode_response(frames[0], code=0, body=bytes(1000))[:30])

        end, detail = await connect(ours, Source(requests=1)).run()
    assert end is End.GARBAGE
    assert "1000" in detail


def lie(request: Frame, *, size: int, opaque: int | None = None) -> bytes:
    """Return the head of an answer that says to be so long, and a few bytes of it."""
    frame = encode_response(request, code=0, body=bytes(size - 24))
    number = request.opaque if opaque is None else opaque
    return frame[:14] + number.to_bytes(4, "big") + frame[18:40]


async def test_an_answer_that_announces_more_than_any_can_have_is_not_waited_for() -> None:
    for size, expected in ((1000, End.LOST), (1001, End.GARBAGE)):
        ours, theirs = memory_stream_pair()
        source = Source(requests=1)
        connection = connect(ours, source, answer_bytes_max=1000)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def peer(size: int = size, theirs: trio.abc.Stream = theirs) -> None:
                (frame,) = await frames_of(theirs, 1)
                await theirs.send_all(lie(frame, size=size))
                await trio.sleep(1)
                await theirs.aclose()

            began = trio.current_time()
            end, detail = await connection.run()
            took_s = trio.current_time() - began
        assert end is expected
        if end is End.GARBAGE:
            assert f"{size - 4}" in detail
            assert "limit 1000 bytes" in detail
            assert took_s < 16
            # What becomes of it is up to whoever takes it back.
            assert len(connection.in_flight) == 1


async def test_a_hello_is_not_answered_at_length() -> None:
    ours, theirs = memory_stream_pair()
    connection = connect(ours, Source(), answer_bytes_max=1000)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def peer() -> None:
            (frame,) = await frames_of(theirs, 1)
            await theirs.send_all(lie(frame, size=1001))

        with pytest.raises(FrameSizeError):
            await connection.greet(b"hello", timeout_s=5)
        assert trio.current_time() < 1


async def test_frames_that_are_no_answers_are_dropped() -> None:
    ours, theirs = memory_stream_pair()
    source = Source(requests=1)
    connection = connect(ours, source)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def peer() -> None:
            (frame,) = await frames_of(theirs, 1)
            # A request of the peer's own that bears our number, an answer to nothing, an answer.
            await theirs.send_all(encode_request(code=0, opaque=frame.opaque, body=b""))
            stranger = Frame(10, 7, frame.opaque + 5, 0, 10, b"")
            await theirs.send_all(encode_response(stranger, code=0))
            await theirs.send_all(encode_response(frame, code=0))
            await theirs.aclose()

        await connection.run()
    assert [answer.is_response for answer in source.answers] == [True]


async def test_retiring_with_nothing_in_flight_ends_at_once() -> None:
    ours, _theirs = memory_stream_pair()
    connection = connect(ours, Source())
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def later() -> None:
            await trio.sleep(1)
            connection.retire(End.DRAINED, "enough")

        assert await connection.run() == (End.DRAINED, "enough")
    assert trio.current_time() == 1


async def test_the_first_reason_to_retire_is_the_one_told() -> None:
    ours, theirs = memory_stream_pair()
    source = Source(requests=1)
    connection = connect(ours, source)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def later() -> None:
            await trio.sleep(1)
            connection.retire(End.REFUSING, "first")
            connection.retire(End.DRAINED, "second")
            assert connection.in_flight
            (frame,) = await frames_of(theirs, 1)
            await theirs.send_all(encode_response(frame, code=0))

        assert await connection.run() == (End.REFUSING, "first")


async def test_the_answer_to_the_hello_is_found_among_other_frames() -> None:
    ours, theirs = memory_stream_pair()
    connection = connect(ours, Source())
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def peer() -> None:
            (frame,) = await frames_of(theirs, 1)
            assert frame.body == b"hello"
            await theirs.send_all(encode_request(code=1, opaque=9, body=b""))
            answer = encode_response(frame, code=3)
            for number in range(len(answer)):
                await theirs.send_all(answer[number : number + 1])

        answer = await connection.greet(b"hello", timeout_s=5)
    assert answer is not None
    assert answer.code == 3
