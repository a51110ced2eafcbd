"""Servers of receivers on loopback, in the loop of the test: a delay server, and a meta server."""

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import anyio
import anyio.abc

from delay_client.messages.clock import wall_ms
from delay_protocol.basics.codes import CommandCode
from delay_protocol.messages.items import FLAG_DELAY, Item, decode_item, encode_item
from delay_protocol.receivers.attaching import (
    LEASE_S,
    Attach,
    Attached,
    AttachReply,
    Flow,
    decode_attach,
    decode_flow,
    encode_attach_reply,
)
from delay_protocol.receivers.delivering import (
    Settled,
    Verdict,
    decode_settle,
    encode_deliver_head,
    encode_settle_reply,
)
from delay_protocol.receivers.masters import (
    MasterInfo,
    ReceiverRegister,
    ReceiverRegistered,
    ReceiverReply,
    decode_receiver_register,
    encode_receiver_reply,
)
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_one_way, encode_response

DUE_MS = 1_700_000_000_000


def new_item(number: int = 0, *, subject: str = "s", **attributes: str) -> bytes:
    """Return an item; its id is m and the number."""
    body = {"body": f"body {number}", **attributes}
    return encode_item(Item(FLAG_DELAY, DUE_MS - 1000, DUE_MS, subject, f"m{number}", (), body))


def deliver(rows: list[tuple[int, int, bytes]]) -> bytes:
    """Return the frame of a DELIVER of (sequence, attempt, item)."""
    sequences, attempts, items = zip(*rows, strict=True)
    head = encode_deliver_head(sequences, attempts, list(map(len, items)))
    return encode_one_way(CommandCode.DELIVER, head, *items)


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    while not condition():  # noqa: ASYNC110 (what it waits for tells nobody)
        await anyio.sleep(0.002)


class FakeServer:
    """Something on loopback that answers frames; `take` says what."""

    address = ""

    async def __aenter__(self) -> Self:
        self._exits = AsyncExitStack()
        self.address = await self._listen(self._serve)
        return self

    async def _listen(self, serve: Callable[[anyio.abc.SocketStream], Awaitable[None]]) -> str:
        """Serve on a port until the end; return the address."""
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        await self._exits.enter_async_context(listener)
        tasks = await self._exits.enter_async_context(anyio.create_task_group())
        self._exits.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(listener.serve, serve)
        return f"127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"  # noqa: S610

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._exits.__aexit__(kind, error, traceback)

    async def _serve(self, stream: anyio.abc.ByteStream) -> None:
        connection = Connection(stream)
        self.opened(connection)
        decoder = FrameDecoder(frame_bytes_max=1 << 24)
        try:
            async with stream:
                async for data in stream:
                    decoder.feed(data)
                    for frame in decoder.frames():
                        await self.take(connection, frame)
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self.closed(connection)

    def opened(self, connection: "Connection") -> None:
        """Note a new connection."""

    def closed(self, connection: "Connection") -> None:
        """Note the end of one."""

    async def take(self, connection: "Connection", frame: Frame) -> None:
        raise NotImplementedError


class Connection:
    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self.stream = stream
        self.flow = Flow(items=0)
        self.unsettled: dict[int, bytes] = {}
        self.is_attached = False


@dataclass
class FakeDelayServer(FakeServer):
    """Hands out what is pending; tests change what it does while it runs."""

    group: str = "g1"
    epoch: int = 1
    lease_s: int = LEASE_S
    answer: AttachReply | None = None
    """What is answered to ATTACH instead."""
    deliver_items_max: int = 100
    pending: deque[tuple[int, bytes]] = field(default_factory=deque)
    """Attempt and item of what is to be handed out."""
    attached: list[Attach] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    settles: list[list[Settled]] = field(default_factory=list)
    """What each SETTLE that was kept said."""
    frame_sizes: list[int] = field(default_factory=list)
    unknown: int = 0
    unsettled_max: int = 0
    items: dict[int, bytes] = field(default_factory=dict)
    """Every item that was handed out, by sequence."""
    connections: list[Connection] = field(default_factory=list)
    sequence: int = 0
    now_ms: Callable[[], int] = wall_ms
    """The time of its clock."""

    def add(self, *items: bytes, attempt: int = 1) -> None:
        self.pending.extend((attempt, item) for item in items)

    async def hand_out(self) -> None:
        """Send what is pending as far as there is credit."""
        for connection in list(self.connections):
            while self.pending and connection.flow.items > len(connection.unsettled):
                room = connection.flow.items - len(connection.unsettled)
                size = sum(map(len, connection.unsettled.values()))
                rows: list[tuple[int, int, bytes]] = []
                while self.pending and len(rows) < min(room, self.deliver_items_max):
                    attempt, item = self.pending[0]
                    size += len(item)
                    if size > connection.flow.bytes:
                        break
                    self.pending.popleft()
                    self.sequence += 1
                    self.items[self.sequence] = item
                    rows.append((self.sequence, attempt, item))
                if not rows:
                    break
                connection.unsettled |= {sequence: item for sequence, _, item in rows}
                self.unsettled_max = max(self.unsettled_max, len(connection.unsettled))
                await connection.stream.send(deliver(rows))

    async def hand(self, *items: bytes, attempt: int = 1) -> None:
        self.add(*items, attempt=attempt)
        await self.hand_out()

    async def shout(self, data: bytes) -> None:
        for connection in self.connections:
            await connection.stream.send(data)

    async def drop_connections(self) -> None:
        for connection in list(self.connections):
            await anyio.aclose_forcefully(connection.stream)

    def verdicts(self) -> list[tuple[str, Verdict]]:
        """Return message id and verdict, in order."""
        return [
            (decode_item(self.items[sequence]).message_id, Verdict(verdict))
            for settle in self.settles
            for sequence, verdict, _ in settle
        ]

    def rests(self) -> list[bytes]:
        return [rest for settle in self.settles for _, _, rest in settle]

    def closed(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
        self.pending.extend((2, item) for item in connection.unsettled.values())

    async def take(self, connection: Connection, frame: Frame) -> None:
        match frame.code:
            case CommandCode.ATTACH:
                self.attached.append(decode_attach(frame.body))
                answer = self.answer or Attached(
                    group=self.group,
                    epoch=self.epoch,
                    lease_s=self.lease_s,
                    now_ms=self.now_ms(),
                )
                if isinstance(answer, Attached):
                    self.connections.append(connection)
                body = encode_attach_reply(answer)
                await connection.stream.send(encode_response(frame, code=0, body=body))
            case CommandCode.FLOW:
                assert frame.is_one_way
                connection.flow = decode_flow(frame.body)
                self.flows.append(connection.flow)
                await self.hand_out()
            case CommandCode.SETTLE:
                await self._settle(connection, frame)
            case _:
                await connection.stream.send(encode_response(frame, code=3))

    async def _settle(self, connection: Connection, frame: Frame) -> None:
        settled = decode_settle(frame.body)
        self.frame_sizes.append(len(frame.body))
        self.settles.append(settled)
        unknown = 0
        for sequence, verdict, rest in settled:
            item = connection.unsettled.pop(sequence, None)
            unknown += item is None
            if item is not None and verdict == Verdict.RELEASE:
                self.pending.append((1, item))
            elif item is not None and verdict == Verdict.LATER:
                decode_item(rest)
        self.unknown += unknown
        body = encode_settle_reply(unknown, self.now_ms())
        await connection.stream.send(encode_response(frame, code=0, body=body))
        await self.hand_out()


@dataclass
class FakeReceiverMeta(FakeServer):
    """A meta server's listener, and before it (`http`) the port that tells where that is."""

    masters: tuple[MasterInfo, ...] = ()
    waits: str = ""
    version: int = 1
    answer: ReceiverReply | None = None
    """What is answered instead."""
    asked: list[ReceiverRegister] = field(default_factory=list)
    _held: list[tuple[Connection, Frame]] = field(default_factory=list)

    async def change(self, *servers: FakeDelayServer, waits: str = "") -> None:
        """Name these masters, and tell whoever waits."""
        self.masters = tuple(
            MasterInfo(group=server.group, address=server.address) for server in servers
        )
        self.waits = waits
        self.version += 1
        held, self._held = self._held, []
        for connection, frame in held:
            await self._reply(connection, frame)

    async def drop_connections(self) -> None:
        held, self._held = self._held, []
        for connection, _ in held:
            await anyio.aclose_forcefully(connection.stream)

    async def take(self, connection: Connection, frame: Frame) -> None:
        assert frame.code == CommandCode.RECEIVER_REGISTER
        asked = decode_receiver_register(frame.body)
        self.asked.append(asked)
        if asked.told == self.version and self.answer is None:
            self._held.append((connection, frame))
        else:
            await self._reply(connection, frame)

    async def _reply(self, connection: Connection, frame: Frame) -> None:
        reply = self.answer or ReceiverRegistered(
            version=self.version, masters=self.masters, waits=self.waits
        )
        body = encode_receiver_reply(reply)
        await connection.stream.send(encode_response(frame, code=0, body=body))

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.http = await self._listen(self._serve_http)
        return self

    async def _serve_http(self, stream: anyio.abc.ByteStream) -> None:
        async with stream:
            data = b""
            while b"\r\n\r\n" not in data:
                data += await stream.receive()
            text = self.address.encode()
            await stream.send(b"HTTP/1.1 200 \r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))
