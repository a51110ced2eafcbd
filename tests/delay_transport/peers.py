"""Peers for the transport's tests: a network of trio's test streams, handlers, frames."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
import trio.testing

from delay_protocol.wire.frames import Frame, FrameDecoder, encode_request
from delay_transport.connections.connection import CloseReason, Connection, FrameHandler
from delay_transport.connections.limits import ConnectionLimits
from delay_transport.connections.listener import Server, serve_connections
from delay_transport.seams.runtime import Address, Listener, TcpNetwork

ADDRESS: Address = ("server.test", 20801)
SEND = 10
HEARTBEAT = 100

Pair = tuple[trio.abc.Stream, trio.abc.Stream]


def request_bytes(opaque: int, body: bytes = b"", *, code: int = SEND) -> bytes:
    """Return the bytes of one request."""
    return encode_request(code=code, opaque=opaque, body=body)


async def receive_frames(stream: trio.abc.ReceiveStream, count: int) -> list[Frame]:
    """Receive exactly `count` frames."""
    decoder = FrameDecoder(frame_bytes_max=1 << 24)
    frames: list[Frame] = []
    while len(frames) < count:
        data = await stream.receive_some()
        assert data, f"closed after {len(frames)} of {count} frames"
        decoder.feed(data)
        frames += decoder.frames()
    decoder.finish()
    assert len(frames) == count
    return frames


async def receive_until_closed(stream: trio.abc.ReceiveStream) -> list[Frame]:
    """Receive frames until the other side closes."""
    decoder = FrameDecoder(frame_bytes_max=1 << 24)
    frames: list[Frame] = []
    while data := await stream.receive_some():
        decoder.feed(data)
        frames += decoder.frames()
    decoder.finish()
    return frames


class StreamListener(Listener):
    """Accepts the streams that a StreamNetwork made."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._offer, self._accepted = trio.open_memory_channel[trio.abc.Stream](100)
        self.faults: list[OSError] = []

    @property
    def address(self) -> Address:
        """The address asked for."""
        return self._address

    def offer(self, stream: trio.abc.Stream) -> None:
        """Have accept() return `stream`."""
        self._offer.send_nowait(stream)

    async def accept(self) -> trio.abc.Stream:
        """Return what was offered, after the faults that were planted."""
        stream = await self._accepted.receive()
        if self.faults:
            self.offer(stream)
            raise self.faults.pop()
        return stream

    async def aclose(self) -> None:
        """Accept no more."""
        await self._accepted.aclose()


class StreamNetwork:
    """A Network within the test, of trio's memory streams or what `make_pair` makes."""

    def __init__(self, make_pair: Callable[[], Pair] = trio.testing.memory_stream_pair) -> None:
        self._make_pair = make_pair
        self.listeners: dict[Address, StreamListener] = {}

    async def listen(self, host: str, port: int) -> StreamListener:
        """Listen."""
        await trio.lowlevel.checkpoint()
        listener = self.listeners[(host, port)] = StreamListener((host, port))
        return listener

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """Connect to whoever listens."""
        await trio.lowlevel.checkpoint()
        if (host, port) not in self.listeners:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        ours, theirs = self._make_pair()
        self.listeners[(host, port)].offer(theirs)
        return ours


class Recorder:
    """A handler that keeps what it is told; `react` may answer."""

    def __init__(self, react: Callable[[Connection, list[Frame]], None] | None = None) -> None:
        self.batches: list[list[Frame]] = []
        self.owners: list[Connection] = []
        """Whose each of the batches is."""
        self.ended: list[tuple[Connection, CloseReason]] = []
        self.connections: list[Connection] = []
        self._react = react

    @property
    def opaques(self) -> list[int]:
        """The opaques of all requests so far."""
        return [frame.opaque for batch in self.batches for frame in batch]

    @property
    def reasons(self) -> list[CloseReason]:
        """Why connections ended so far."""
        return [reason for _, reason in self.ended]

    def frames(self, connection: Connection, frames: list[Frame], /) -> None:
        """Keep and react."""
        self.batches.append(frames)
        self.owners.append(connection)
        if connection not in self.connections:
            self.connections.append(connection)
        if self._react is not None:
            self._react(connection, frames)

    def closed(self, connection: Connection, reason: CloseReason, /) -> None:
        """Keep."""
        self.ended.append((connection, reason))


def answer_all(connection: Connection, frames: list[Frame]) -> None:
    """Answer each request at once with its own body."""
    for frame in frames:
        connection.answer(frame, 0, frame.body)


def hold_all(connection: Connection, frames: list[Frame]) -> None:
    """Answer nothing now, as a server does that commits first."""
    connection.begin(len(frames), sum(len(frame.body) for frame in frames))


def release(connection: Connection, frames: list[Frame]) -> None:
    """Answer what hold_all held."""
    answer_all(connection, frames)
    connection.done(len(frames), sum(len(frame.body) for frame in frames))


@asynccontextmanager
async def serving(
    handler: FrameHandler,
    limits: ConnectionLimits | None = None,
    network: StreamNetwork | None = None,
) -> AsyncIterator[tuple[Server, StreamNetwork]]:
    """Serve on ADDRESS until the block ends."""
    network = network or StreamNetwork()
    async with trio.open_nursery() as nursery:
        server: Server = await nursery.start(
            serve_connections, network, ADDRESS, handler, limits or ConnectionLimits()
        )
        yield server, network
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def talking(
    handler: FrameHandler, limits: ConnectionLimits | None = None, *, is_lockstep: bool = False
) -> AsyncIterator[tuple[Server, trio.abc.Stream]]:
    """Serve until the block ends; yield the server and a peer of it.

    In lockstep what either end sends waits until the other one receives it.
    """
    pairs = trio.testing.lockstep_stream_pair if is_lockstep else trio.testing.memory_stream_pair
    async with serving(handler, limits, StreamNetwork(pairs)) as (server, network):
        yield server, await network.connect(*ADDRESS)


@asynccontextmanager
async def serving_tcp(
    handler: FrameHandler, limits: ConnectionLimits | None = None
) -> AsyncIterator[Server]:
    """Serve on a free port of this machine, and stop when the block ends."""
    async with trio.open_nursery() as nursery:
        server: Server = await nursery.start(
            serve_connections, TcpNetwork(), ("127.0.0.1", 0), handler, limits or ConnectionLimits()
        )
        yield server
        server.stop()


class Ear(trio.abc.HalfCloseableStream):
    """One end of a connection within the test, from an address.

    What its peer sends is there at once, however much.
    """

    def __init__(self, host: str) -> None:
        self.peer_name = f"{host}:1"
        self.other: Ear
        self.closed = False
        self._data = bytearray()
        self._over = False
        self._reset = False
        self._lot = trio.lowlevel.ParkingLot()

    def reset(self) -> None:
        """Have the other end learn that the connection broke."""
        self.closed = True
        self.other._reset = True
        self.other._lot.unpark_all()

    def _receive_now(self, max_bytes: int) -> bytes | None:
        if not self._data:
            return b"" if self._over else None
        data = bytes(self._data[:max_bytes])
        del self._data[:max_bytes]
        return data

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for something."""
        await trio.lowlevel.checkpoint()
        while True:
            if self.closed:
                raise trio.ClosedResourceError("closed")
            if self._reset:
                raise trio.BrokenResourceError("reset")
            data = self._receive_now(max_bytes or 1 << 16)
            if data is not None:
                return data
            await self._lot.park()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Put it there."""
        await trio.lowlevel.checkpoint()
        if self._reset or self.other.closed:
            raise trio.BrokenResourceError("closed by the other end")
        self.other._data += data
        self.other._lot.unpark_all()

    async def wait_send_all_might_not_block(self) -> None:
        """Return: there is always room."""
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        """Send the end."""
        await trio.lowlevel.checkpoint()
        self.other._over = True
        self.other._lot.unpark_all()

    async def aclose(self) -> None:
        """Close; the other end finds what was sent, and then the end."""
        self.closed = True
        self.other._over = True
        self._lot.unpark_all()
        self.other._lot.unpark_all()
        await trio.lowlevel.checkpoint()


def ears(host: str) -> tuple[Ear, Ear]:
    """Return both ends of a connection from a host; the second is the server's."""
    ours, theirs = Ear("server"), Ear(host)
    ours.other, theirs.other = theirs, ours
    return ours, theirs
