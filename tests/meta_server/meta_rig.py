"""A whole meta server in virtual time, with a store in memory, and peers that talk to it."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta import requests
from delay_protocol.nodes import group_changes
from delay_protocol.nodes.registration import (
    GroupRecord,
    Master,
    NodeRegister,
    NodeRegistered,
    Phase,
    Refused,
    Shown,
    Told,
    decode_node_reply,
    encode_node_register,
)
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_request
from delay_transport.seams.runtime import Runtime
from meta_server.known import model
from meta_server.server import MetaServer, serve
from meta_server.settings.config import MetaServerConfig, NodeConfig, RegistrationConfig
from tests.meta_server.memory_store import Medium, MemoryRecordFile, MemoryStore
from tests.simulation.clock import SimClock
from tests.simulation.executor import ExecutorPlan, SimExecutor
from tests.simulation.faults import Kill
from tests.simulation.network import NetworkPlan, SimNetwork

Reply = TypeVar("Reply")

HOST = "127.0.0.1"
PORT = 20880

PROMPT = ExecutorPlan(delay_s=(0.001, 0.001), stall_chance=0)
"""Every call of the store takes a millisecond."""


def uuid(number: int) -> UUID:
    """Return one of many uuids."""
    return UUID(int=number)


def node(
    node_id: str = "n1",
    *,
    group: str = "d1",
    log: int = 1,
    storage: int = 101,
    incarnation: int = 1,
    last_sequence: int = 1,
    last_epoch: int = 0,
    address: str = "10.0.0.5:20801",
    cluster: str = "c1",
    boot: int | None = None,
    told: Told | None = None,
    replaces: int | None = None,
) -> NodeRegister:
    """Return the registration of a delay server; None: the one boot of this start of this disk."""
    return NodeRegister(
        cluster=cluster,
        group=group,
        node_id=node_id,
        log_uuid=uuid(log),
        storage_uuid=uuid(storage),
        incarnation=incarnation,
        boot_id=uuid(1_000_000 * storage + incarnation if boot is None else boot),
        last_sequence=last_sequence,
        last_epoch=last_epoch,
        address=address,
        http_address="",
        version="1.0",
        told=told,
        replaces=None if replaces is None else uuid(replaces),
    )


def record(
    epoch: int = 1,
    version: int = 1,
    *,
    master: str | None = "n1",
    min_isr: int = 1,
    **in_sync: UUID,
) -> GroupRecord:
    """Return the record of a group of delay servers; without a master it elects one."""
    return GroupRecord(
        epoch=epoch,
        version=version,
        master=None if master is None else Master(node_id=master, incarnation=1),
        in_sync=in_sync,
        min_isr=min_isr,
        phase=Phase.ELECTING if master is None else Phase.ACTIVE,
    )


def broker(
    group: str = "g1",
    *,
    what: requests.BrokerRequestType = requests.BrokerRequestType.ONLINE,
    address: str = "10.0.0.1:20881",
    role: requests.BrokerRole = requests.BrokerRole.MASTER,
    state: requests.BrokerState = requests.BrokerState.RW,
) -> requests.BrokerRegister:
    """Return the registration of a broker."""
    return requests.BrokerRegister(
        request_type=what, group=group, address=address, role=role, state=state
    )


def names(groups: tuple[requests.BrokerGroupInfo, ...]) -> list[str]:
    """Return the names of groups."""
    return [group.name for group in groups]


class Peer:
    """One connection to the meta server."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._decoder = FrameDecoder(frame_bytes_max=1 << 26)
        self._frames: list[Frame] = []
        self._opaque = 0
        self.registered: NodeRegister
        """The last registration, of a node."""

    async def receive(self) -> Frame:
        """Return the next frame from the server."""
        while not self._frames:
            data = await self.stream.receive_some(1 << 20)
            assert data, "the server closed the connection"
            self._decoder.feed(data)
            self._frames += self._decoder.frames()
        return self._frames.pop(0)

    async def ask(self, code: int, body: bytes, *, skip_pushes: bool = False) -> Frame:
        """Send a request and return the next frame, which answers it."""
        self._opaque += 1
        await self.stream.send_all(encode_request(code=code, opaque=self._opaque, body=body))
        answer = await self.receive()
        while skip_pushes and not answer.opaque:
            answer = await self.receive()
        assert (answer.flag, answer.opaque, answer.request_code) == (1, self._opaque, code)
        return answer

    async def try_register(
        self,
        subject: str,
        client_type: int = requests.ClientType.PRODUCER,
        **more: Any,  # noqa: ANN401 (fields of a registration)
    ) -> Frame:
        """Register a client; return the answer's frame."""
        fields: dict[str, Any] = {
            "client_id": "h@@1",
            "consumer_group": "",
            "register_type": requests.RegisterType.ONLINE,
            **more,
        }
        request = requests.ClientRegister(subject=subject, client_type=client_type, **fields)
        return await self.ask(CommandCode.CLIENT_REGISTER, requests.encode_client_register(request))

    async def register(
        self,
        subject: str,
        client_type: int = requests.ClientType.PRODUCER,
        **more: Any,  # noqa: ANN401 (fields of a registration)
    ) -> requests.ClientRegisterReply:
        """Register a client; return what it was told."""
        frame = await self.try_register(subject, client_type, **more)
        assert frame.code == 0, frame.body
        return requests.decode_client_register_reply(frame.body)

    async def pushed(self) -> requests.ClientRegisterReply:
        """Return what is pushed next."""
        frame = await self.receive()
        assert (frame.code, frame.flag, frame.opaque) == (0, 1, 0)
        assert frame.request_code == CommandCode.CLIENT_REGISTER
        return requests.decode_client_register_reply(frame.body)

    async def broker(self, request: requests.BrokerRegister) -> Frame:
        """Register a broker; return the answer's frame."""
        return await self.ask(CommandCode.BROKER_REGISTER, requests.encode_broker_register(request))

    async def acquire(self, hostname: str, port: int) -> Frame:
        """Ask who a broker is."""
        body = requests.encode_acquire_meta(
            requests.AcquireMeta(hostname=hostname, serve_port=port)
        )
        return await self.ask(CommandCode.BROKER_ACQUIRE_META, body)

    async def node(self, request: NodeRegister) -> NodeRegistered | Refused:
        """Register a delay server."""
        self.registered = request
        frame = await self.ask(CommandCode.NODE_REGISTER, encode_node_register(request))
        assert frame.code == 0, frame.body
        return decode_node_reply(frame.body)

    async def state(self, state: Shown = "RW") -> None:
        """Register the last node again with its state for producers, until they see that."""
        shown = None
        with trio.fail_after(5):
            while shown != state:
                shown = (await self.register_again(state=state)).state
                await trio.sleep(0.01)

    async def register_again(self, **changed: Any) -> NodeRegistered:  # noqa: ANN401
        """Register the last node again, with other values of some fields."""
        reply = await self.node(msgspec.structs.replace(self.registered, **changed))
        assert isinstance(reply, NodeRegistered), reply
        return reply

    async def watch(self) -> group_changes.WatchReply:
        """Wait for what is new for the registered node; after a while there may be nothing."""
        body = group_changes.encode_node_watch(group_changes.NodeWatch())
        frame = await self.ask(CommandCode.NODE_WATCH, body)
        assert frame.code == 0, frame.body
        return group_changes.decode_watch_reply(frame.body)

    async def news(self) -> group_changes.NodeNews:
        """Return the next news of the registered node's group."""
        reply = await self.watch()
        assert reply.news is not None
        return reply.news

    async def change(self, change: group_changes.GroupChange) -> group_changes.ChangeReply:
        """Ask for a change of the registered node's group, or vote."""
        frame = await self.ask(CommandCode.GROUP_CHANGE, group_changes.encode_group_change(change))
        assert frame.code == 0, frame.body
        return group_changes.decode_change_reply(frame.body)


class World:
    """A machine for meta servers; the medium of the store outlives them."""

    def __init__(self, *, seed: int = 7, medium: Medium | None = None) -> None:
        self.chance = random.Random(seed)
        self.clock = SimClock()
        self.medium = medium or Medium()
        self.record_file = MemoryRecordFile(self.medium.contents)
        self.network = SimNetwork(
            self.chance, plan=NetworkPlan(delay_s=(0.0001, 0.0001), slow_chance=0)
        )
        self.plan = PROMPT
        self.lives = 0
        self.stores: list[MemoryStore] = []
        self._clients = self.network.node("client")

    async def connect(self) -> Peer:
        """Connect a peer."""
        return Peer(await self._clients.connect(HOST, PORT))

    async def registered(self, request: NodeRegister) -> Peer:
        """Connect a delay server that registers."""
        peer = await self.connect()
        peer.registered = request
        await peer.register_again()
        return peer

    def server(self, config: MetaServerConfig | None = None) -> MetaServer:
        """Make a server for the next life of the machine."""
        if self.lives:
            self.network.cut("meta", Kill("next life"))
        self.lives += 1
        self.executor = SimExecutor(self.chance, plan=self.plan)
        runtime = Runtime(
            clock=self.clock,
            network=self.network.node("meta"),
            executor=self.executor,
            chance=self.chance,
        )
        return MetaServer(config or make_config(), runtime, self._open_store, self.record_file)

    def _open_store(self) -> MemoryStore:
        self.stores.append(MemoryStore(self.medium))
        return self.stores[-1]

    @asynccontextmanager
    async def serving(
        self, config: MetaServerConfig | None = None, *, kill: bool = False
    ) -> AsyncIterator[MetaServer]:
        """Serve during the block; then stop in good order, or be killed."""
        server = self.server(config)
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: serve(server, stop, task_status=task_status))
            yield server
            if kill:
                self.network.cut("meta", Kill("told to"))
                nursery.cancel_scope.cancel()
            stop.set()


def make_config(**sections: object) -> MetaServerConfig:
    """Return settings for a World; `sections` replace the defaults."""
    return MetaServerConfig(
        **{"node": NodeConfig(data_dir=Path("unused"), stop_ms_max=100), **sections}  # type: ignore[arg-type]
    )


def entered() -> MetaServerConfig:
    """Return settings by which an operator lets groups in."""
    return make_config(registration=RegistrationConfig(groups="entered"))


def group(name: str, **more: Any) -> model.BrokerGroup:  # noqa: ANN401 (fields of a row)
    """Return a group of brokers that is on-line."""
    row: dict[str, Any] = {"kind": model.GroupKind.NORMAL, "state": requests.BrokerState.RW}
    return model.BrokerGroup(name=name, **(row | {"master": "10.0.0.1:20881"} | more))


def world_with(**rows: Iterable[model.Row]) -> World:
    """Return a world whose store has these rows; their names are for who reads it."""
    return World(medium=Medium(model.Contents(rows=tuple(chain(*rows.values())))))


@asynccontextmanager
async def asking(ask: Callable[[], Awaitable[Reply]]) -> AsyncIterator[list[Reply]]:
    """Ask during the block; its end waits for the answer, which is then in the list."""
    answers: list[Reply] = []

    async def wait() -> None:
        answers.append(await ask())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        yield answers


async def at_once(asks: Iterable[Awaitable[Reply]]) -> list[Reply]:
    """Return the answers to what is asked at once, as they came."""
    answers: list[Reply] = []

    async def wait(ask: Awaitable[Reply]) -> None:
        answers.append(await ask)

    async with trio.open_nursery() as nursery:
        for ask in asks:
            nursery.start_soon(wait, ask)
    return answers


def state_of(server: MetaServer, group: str) -> requests.BrokerState:
    """Return the state that a group has now."""
    return server.registry.groups[group].state


async def until(
    condition: Callable[[], object], *, seconds: float = 60.0, step_s: float = 0.01
) -> None:
    """Wait until a condition holds; fail after so many (virtual) seconds."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 (any condition, and waiting costs nothing)
            await trio.sleep(step_s)
