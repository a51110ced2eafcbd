"""Meta servers for a World: one that says what a test wants, and the real one."""

import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.nodes.auth import SEAL_SIZE
from delay_protocol.nodes.registration import (
    GroupRecord,
    Master,
    NodeRegister,
    NodeRegistered,
    NodeRole,
    Phase,
    Refused,
    decode_node_register,
    encode_node_reply,
)
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_response
from delay_server.settings.config import DelayServerConfig, MetaConfig
from delay_transport.seams.runtime import Runtime
from meta_server.known.model import MetaStore
from meta_server.server import MetaServer
from meta_server.server import serve as serve_meta
from meta_server.settings.config import MetaServerConfig
from meta_server.settings.config import NodeConfig as MetaNodeConfig
from tests.delay_server.server_rig import HOST, World, make_config
from tests.meta_server.memory_store import Medium, MemoryRecordFile, MemoryStore
from tests.simulation.executor import SimExecutor
from tests.simulation.faults import Kill
from tests.simulation.network import NodeNetwork

META_PORT = 20880
HTTP_PORT = 8080
META = MetaConfig(addresses=f"{HOST}:{HTTP_PORT}")


def meta_config(**sections: object) -> DelayServerConfig:
    """Return settings of a delay server that registers."""
    return make_config(**{"meta": META, **sections})


def record_of(node: NodeRegister, *, epoch: int = 1, version: int = 1) -> GroupRecord:
    """Return a record in which this start of this node is the master, in sync alone."""
    return GroupRecord(
        epoch=epoch,
        version=version,
        master=Master(node_id=node.node_id, incarnation=node.incarnation),
        in_sync={node.node_id: node.storage_uuid},
        min_isr=1,
        phase=Phase.ACTIVE,
    )


Said = NodeRegistered | Refused | bytes | int | None
"""An answer; a body as it is; the code of a refusal; or silence."""


@dataclass
class FakeMeta:
    """Answers NODE_REGISTER as it is told; the next epoch for each new start by itself."""

    world: World
    nodes: list[NodeRegister] = field(default_factory=list)
    asked_at: list[float] = field(default_factory=list)
    """When each NODE_REGISTER came, in trio's time."""
    asks_http: int = 0
    say: Callable[[NodeRegister], Said] | None = None
    """What is answered; None: what a meta server of its own mind would."""
    answer_after_s: float = 0.0
    again_ms: int = 1000
    change: Callable[[GroupRecord], GroupRecord] = lambda record: record
    role: NodeRole = NodeRole.MASTER
    is_retired: bool = False
    is_read_only: bool = False
    challenge: bytes = b""
    """What NODE_CHALLENGE is answered; empty: it is no known request."""
    sealed: int = 0
    """Requests that came sealed; none of the answers is."""
    _record: GroupRecord | None = None
    _life: trio.CancelScope = field(default_factory=trio.CancelScope)

    def answer(self, node: NodeRegister) -> Said:
        """Return what is said to a node."""
        if self.say is not None:
            return self.say(node)
        master = Master(node_id=node.node_id, incarnation=node.incarnation)
        if self._record is None or self._record.master != master:
            epoch = max(0 if self._record is None else self._record.epoch, node.last_epoch) + 1
            self._record = record_of(node, epoch=epoch, version=epoch)
        return NodeRegistered(
            role=self.role,
            record=self.change(self._record),
            again_ms=self.again_ms,
            is_retired=self.is_retired,
            is_read_only=self.is_read_only,
            state=node.state,
        )

    @property
    def given_states(self) -> list[str]:
        """The states for producers that were given, one after the other."""
        given = [node.state for node in self.nodes if node.state is not None]
        return [state for state, _ in itertools.groupby(given)]

    def changed(self, **fields: object) -> None:
        """Say from now on a record with the next version and these fields."""
        version = 0

        def change(record: GroupRecord) -> GroupRecord:
            nonlocal version
            version = version or record.version + 1
            return msgspec.structs.replace(record, version=version, **fields)

        self.change = change

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer until killed or cancelled."""
        network = self.world.network.node("meta")
        async with trio.open_nursery() as nursery:
            self._life = nursery.cancel_scope
            await _serve(nursery, network, HTTP_PORT, self._http)
            await _serve(nursery, network, META_PORT, self._frames)
            task_status.started()

    def kill(self) -> None:
        """End the process; it may run again."""
        self._life.cancel()
        self.world.network.cut("meta", Kill("told to"))

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FakeMeta"]:
        """Answer during the block."""
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: self.run(task_status=task_status))
            yield self
            self.kill()

    async def _http(self, stream: trio.abc.Stream) -> None:
        self.asks_http += 1
        await answer_http(stream)

    async def _frames(self, stream: trio.abc.Stream) -> None:
        decoder = FrameDecoder(frame_bytes_max=1 << 20)
        while data := await stream.receive_some(1 << 16):
            decoder.feed(data)
            for frame in decoder.frames():
                await self.respond(stream, frame)

    async def respond(self, stream: trio.abc.Stream, frame: Frame) -> None:
        """Answer a frame, if it is answered."""
        answer = self.handle(frame)
        await trio.sleep(self.answer_after_s)
        if answer is not None:
            await stream.send_all(answer)

    def handle(self, frame: Frame) -> bytes | None:
        """Return what a frame is answered; None: nothing."""
        if frame.code != CommandCode.NODE_REGISTER:
            is_known = frame.code == CommandCode.NODE_CHALLENGE and self.challenge
            return encode_response(frame, code=0 if is_known else 3, body=self.challenge)
        self.sealed += bool(self.challenge)
        node = decode_node_register(frame.body[SEAL_SIZE if self.challenge else 0 :])
        self.nodes.append(node)
        self.asked_at.append(trio.current_time())
        match self.answer(node):
            case None:
                return None
            case int() as code:
                return encode_response(frame, code=code, body=b"told to")
            case bytes() as body:
                return encode_response(frame, code=0, body=body)
            case reply:
                return encode_response(frame, code=0, body=encode_node_reply(reply))


async def answer_http(stream: trio.abc.Stream) -> None:
    """Tell where the meta server listens, as its HTTP port does."""
    request = b""
    while b"\r\n\r\n" not in request:
        request += await stream.receive_some(1 << 16)
    assert request.startswith(b"GET /meta/address HTTP/1.1\r\n")
    body = f"{HOST}:{META_PORT}".encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    await stream.send_all(head + body)


async def _serve(
    nursery: trio.Nursery,
    network: NodeNetwork,
    port: int,
    handler: Callable[[trio.abc.Stream], Awaitable[None]],
) -> None:
    """Hand each connection to a handler, for as long as the nursery lives."""
    listener = await network.listen(HOST, port)

    async def one(stream: trio.abc.Stream) -> None:
        try:
            await handler(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, Kill):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async def accept() -> None:
        async with trio.open_nursery() as inner:
            with contextlib.suppress(Kill):
                while True:
                    inner.start_soon(one, await listener.accept())

    nursery.start_soon(accept)


class RealMeta:
    """A meta server's machine: the process is real, its store outlives it."""

    def __init__(self, world: World, **sections: object) -> None:
        """Run with these sections in place of the default settings."""
        self.world = world
        self.medium = Medium()
        self.record_file = MemoryRecordFile()
        self.open_store: Callable[[], MetaStore] = lambda: MemoryStore(self.medium)
        self._sections = sections
        self._life = trio.CancelScope()

    async def run(
        self, *, task_status: trio.TaskStatus[MetaServer] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run it until it is killed or cancelled."""
        network = self.world.network.node("meta")
        runtime = Runtime(
            clock=self.world.clock,
            network=network,
            executor=SimExecutor(self.world.chance, plan=self.world.executor_plan),
            chance=self.world.chance,
        )
        node = MetaNodeConfig(data_dir=Path("unused"), stop_ms_max=100)
        config = MetaServerConfig(node=node, **self._sections)  # type: ignore[arg-type]
        server = MetaServer(config, runtime, self.open_store, self.record_file)
        async with trio.open_nursery() as nursery:
            self._life = nursery.cancel_scope
            nursery.start_soon(serve_meta, server, trio.Event())
            await server.ready.wait()
            await _serve(nursery, network, HTTP_PORT, answer_http)
            task_status.started(server)

    def kill(self) -> None:
        """End the process; it may run again."""
        self._life.cancel()
        self.world.network.cut("meta", Kill("told to"))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[MetaServer]:
        """Run it during the block."""
        async with trio.open_nursery() as nursery:
            yield await nursery.start(lambda task_status: self.run(task_status=task_status))
            self.kill()
