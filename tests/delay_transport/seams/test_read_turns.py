"""Of many sockets that are readable at once each turn of the loop reads some, and all in order."""

import gc
import os
import select
import socket
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from delay_transport.seams.read_turns import READS_MAX, ReadTurns

Pair = tuple[socket.socket, trio.SocketStream]
"""What a peer sends into, and what is read."""


@asynccontextmanager
async def reading() -> AsyncIterator[ReadTurns]:
    """Serve many silent connections, so that all others have turns."""
    turns = ReadTurns()
    silent = pairs(READS_MAX)
    with closing(turns):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.run)
            for _, stream in silent:
                nursery.start_soon(turns.receive, stream, 1)
            await wait_all_tasks_blocked()
            yield turns
            nursery.cancel_scope.cancel()
    await close(silent)


def pairs(count: int) -> list[Pair]:
    made = []
    for _ in range(count):
        peer, ours = socket.socketpair()
        ours.setblocking(False)
        made.append((peer, trio.SocketStream(trio.socket.from_stdlib_socket(ours))))
    return made


async def close(made: list[Pair]) -> None:
    for peer, stream in made:
        peer.close()
        await stream.aclose()


@pytest.mark.real_time
async def test_a_turn_of_the_loop_reads_some_of_many() -> None:
    made = pairs(5 * READS_MAX)
    reads: list[int] = []
    a_turn = 0

    async def read(number: int, turns: ReadTurns) -> None:
        assert await turns.receive(made[number][1], 10) == b"x"
        reads.append(a_turn)

    async with reading() as turns, trio.open_nursery() as nursery:
        for number in range(len(made)):
            nursery.start_soon(read, number, turns)
        await wait_all_tasks_blocked()
        for peer, _ in made:
            peer.send(b"x")
        while len(reads) < len(made):
            await trio.lowlevel.checkpoint()
            a_turn += 1
    # This task counts before some readers of its turn and behind others: two turns may be as one.
    assert max(reads.count(turn) for turn in reads) <= 2 * READS_MAX
    await close(made)


@pytest.mark.real_time
async def test_as_many_as_a_turn_reads_need_no_turns() -> None:
    made = pairs(READS_MAX)
    with closing(ReadTurns()) as turns:
        for peer, stream in made:
            peer.send(b"x")
            assert await turns.receive(stream, 10) == b"x"
    await close(made)


@pytest.mark.real_time
async def test_a_flood_on_some_connections_does_not_starve_another() -> None:
    made = pairs(2 * READS_MAX)
    [(quiet, stream)] = pairs(1)
    reads = [0] * len(made)

    async def read_on(number: int, turns: ReadTurns) -> None:
        while True:
            await turns.receive(made[number][1], 1)
            reads[number] += 1
            made[number][0].send(b"x")

    async with reading() as turns, trio.open_nursery() as nursery:
        for number, (peer, _) in enumerate(made):
            peer.send(b"xxx")
            nursery.start_soon(read_on, number, turns)
        while min(reads) < 5:
            await trio.lowlevel.checkpoint()
        before = list(reads)
        quiet.send(b"x")
        assert await turns.receive(stream, 10) == b"x"
        # It was behind each of them once; and they have their turns one after another.
        assert max(now - then for now, then in zip(reads, before, strict=True)) <= 3
        assert max(reads) - min(reads) <= 2
        nursery.cancel_scope.cancel()
    await close([*made, (quiet, stream)])


@pytest.mark.real_time
async def test_what_comes_after_a_receive_was_cancelled_is_received_by_the_next() -> None:
    [(peer, stream)] = made = pairs(1)
    async with reading() as turns:
        for sent in (b"a", b"b"):
            with trio.move_on_after(0.01) as scope:
                await turns.receive(stream, 10)
            assert scope.cancelled_caught
            peer.send(sent)
            # Nobody waits for it: nothing is woken.
            await trio.sleep(0.01)
            assert await turns.receive(stream, 10) == sent
        peer.close()
        assert await turns.receive(stream, 10) == b""
    await close(made)


@pytest.mark.real_time
async def test_a_connection_that_is_closed_leaves_nothing_to_the_next_of_its_number() -> None:
    async with reading() as turns:
        numbers = set()
        for _ in range(3):
            [(peer, stream)] = made = pairs(1)
            numbers.add(stream.socket.fileno())
            peer.send(b"x")
            assert await turns.receive(stream, 10) == b"x"
            with trio.move_on_after(0.01):
                await turns.receive(stream, 10)
            await close(made)
        assert len(numbers) == 1


@pytest.mark.real_time
async def test_whoever_waits_no_longer_is_forgotten() -> None:
    made = pairs(1)
    waiting: list[weakref.ref[trio.lowlevel.Task]] = []

    async def wait(turns: ReadTurns) -> None:
        waiting.append(weakref.ref(trio.lowlevel.current_task()))
        await turns.receive(made[0][1], 10)

    async with reading() as turns:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, turns)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        gc.collect()
        assert waiting[0]() is None
    await close(made)


@pytest.mark.real_time
async def test_a_socket_that_seemed_readable_has_another_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [(peer, stream)] = made = pairs(1)
    read, failures = os.read, [BlockingIOError()]

    def read_late(number: int, bytes_max: int) -> bytes:
        if failures:
            raise failures.pop()
        return read(number, bytes_max)

    monkeypatch.setattr(os, "read", read_late)
    async with reading() as turns:
        peer.send(b"x")
        assert await turns.receive(stream, 10) == b"x"
    assert not failures
    await close(made)


@pytest.mark.real_time
async def test_a_connection_that_is_reset_is_broken() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    peer = socket.create_connection(listening.getsockname())
    ours, _ = listening.accept()
    ours.setblocking(False)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    async with reading() as turns:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        peer.close()
        with pytest.raises(trio.BrokenResourceError) as caught:
            await turns.receive(stream, 10)
        assert isinstance(caught.value.__cause__, ConnectionResetError)
    await stream.aclose()
    listening.close()


async def test_a_stream_that_is_no_socket_is_read_as_it_comes() -> None:
    peer, stream = memory_stream_pair()
    await peer.send_all(b"x")
    async with reading() as turns:
        assert await turns.receive(stream, 10) == b"x"


@pytest.mark.real_time
async def test_without_epoll_whoever_can_read_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "epoll")
    [(peer, stream)] = made = pairs(1)
    async with reading() as turns:
        peer.send(b"x")
        assert await turns.receive(stream, 10) == b"x"
    await close(made)
