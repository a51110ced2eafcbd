"""A whole delay server in virtual time: simulated disk and network, a producer, a broker.

The disk and the network keep what they are told and lose nothing unless a test says so: here is
tested what the server does, and in tests/simulation what it does whatever happens.
"""

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from delay_protocol.messages.items import (
    FLAG_DELAY,
    Item,
    ItemScan,
    encode_item,
    scan_items,
)
from delay_protocol.messages.send_message import decode_send_reply
from delay_protocol.nodes.controls import Controls, GroupControl, SubjectControl
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_frame
from delay_server.server import DelayServer, serve
from delay_server.settings.config import DelayServerConfig, NodeConfig
from delay_transport.seams.runtime import Runtime
from tests.brokers import Received, SharedStream, StreamBroker
from tests.kit.settings import SmallStorage
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimDisk
from tests.simulation.executor import ExecutorPlan, SimExecutor
from tests.simulation.faults import CALM, Kill
from tests.simulation.network import NetworkPlan, NodeNetwork, SimNetwork

HOST = "127.0.0.1"
PORT = 20801
BROKER_PORT = 20881
MINUTE_MS = 60_000
_REQUEST_ITEMS = 500

PROMPT = ExecutorPlan(delay_s=(0.001, 0.001), stall_chance=0)
"""Every call of the disk takes a millisecond."""

ROOMY = SmallStorage(disk_free_bytes_min=0)
"""No floor of free disk, whatever the size of the disk."""


def make_item(
    message_id: str,
    due_ms: int,
    *,
    subject: str = "a.b",
    tags: tuple[str, ...] = (),
    flag: int = FLAG_DELAY,
    attributes: dict[str, str] | None = None,
) -> bytes:
    """Return the bytes of one item."""
    return encode_item(
        Item(
            flag=flag,
            create_ms=1_700_000_000_000,
            due_ms=due_ms,
            subject=subject,
            message_id=message_id,
            tags=tags,
            attributes=attributes or {"k": "v"},
        )
    )


def ids_of(body: bytes) -> list[bytes]:
    """Return the message ids of a request's body."""
    scan = ItemScan()
    scan_items(body, scan)
    return list(scan.ids)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One item that reached the broker."""

    at_ms: int
    message_id: str
    due_ms: int
    data: bytes


class Broker(StreamBroker):
    """A broker group's only broker: answers one request after another, as it is told."""

    def __init__(self, network: NodeNetwork, clock: SimClock, *, port: int = BROKER_PORT) -> None:
        super().__init__(clock.now_ms)
        self.network = network
        self.port = port
        self.deliveries: list[Delivery] = []
        self.answer_after_s = 0.0
        self.code = 0
        """Of every answer's frame."""
        self.fails: Callable[[bytes], int] = lambda _: 0
        """Item code by message id."""
        self.subjects: set[str] = set()
        """Of all that came, refused ones included."""
        self.on_taken: Callable[[str, int, int], None] = lambda *_: None
        """Hears of each delivery: id, due time and wall clock."""
        self.taken: set[str] = set()
        """Ids of all deliveries; who waits for the last one need not count all again each time."""

    @property
    def ids(self) -> list[str]:
        """Ids of all deliveries, in order."""
        return [delivery.message_id for delivery in self.deliveries]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        listener = await self.network.listen(HOST, self.port)
        async with trio.open_nursery() as nursery, listener:
            task_status.started()
            while True:
                nursery.start_soon(self.serve, await listener.accept())

    async def take(self, stream: SharedStream, request: Received, nursery: trio.Nursery) -> None:
        """Wait, take the items one by one, and answer."""
        del nursery  # One request after another.
        await trio.sleep(self.answer_after_s)
        refusals = []
        scan = request.scan
        self.subjects.update(subject.decode() for subject in scan.subjects)
        for index, message_id in enumerate(scan.ids):
            code = self.code or self.fails(message_id)
            if code:
                refusals.append((message_id, code, "told to"))
                continue
            data = request.item(index)
            taken = Delivery(request.at_ms, message_id.decode(), scan.due_ms[index], data)
            self.deliveries.append(taken)
            self.taken.add(taken.message_id)
            self.on_taken(taken.message_id, taken.due_ms, taken.at_ms)
        body = b"" if self.code else None
        await stream.send_all(request.answer(refusals, code=self.code, body=body))


class Producer:
    """One connection of a producer."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._decoder = FrameDecoder(frame_bytes_max=1 << 26)
        self._answers: dict[int, Frame] = {}
        self._opaque = 0

    async def post(
        self, *items: bytes, code: int = 10, version: int = 9, flag: int = 0, request_code: int = 10
    ) -> int:
        """Send a request; return its opaque."""
        self._opaque += 1
        frame = Frame(code, version, self._opaque, flag, request_code, b"".join(items))
        await self.stream.send_all(encode_frame(frame))
        return self._opaque

    async def answer(self, opaque: int) -> Frame:
        """Receive until the answer to a request is there."""
        while opaque not in self._answers:
            data = await self.stream.receive_some(1 << 20)
            assert data, "the server closed the connection"
            self._decoder.feed(data)
            for frame in self._decoder.frames():
                assert frame.flag == 1
                assert frame.opaque not in self._answers
                self._answers[frame.opaque] = frame
        return self._answers.pop(opaque)

    async def send(self, *items: bytes) -> dict[bytes, tuple[int, str]]:
        """Send items, wait, and return those that were refused, with code and remark."""
        answer = await self.answer(await self.post(*items))
        assert answer.code == 0, f"answered {answer.code}"
        return decode_send_reply(answer.body)


class World:
    """A machine for the server and what is around it; its disk outlives the server."""

    def __init__(self, *, seed: int = 7, plan: ExecutorPlan = PROMPT) -> None:
        self.chance = random.Random(seed)
        self.clock = SimClock()
        self.disk = SimDisk(self.chance, plan=CALM)
        self.network = SimNetwork(
            self.chance,
            plan=NetworkPlan(delay_s=(0.0001, 0.0001), slow_chance=0, fragment_chance=0.1),
        )
        self.broker = Broker(self.network.node("broker"), self.clock)
        self.executor_plan = plan
        self.executor: SimExecutor
        self.lives = 0
        self._clients = self.network.node("client")

    @property
    def now_ms(self) -> int:
        """The wall clock."""
        return self.clock.now_ms()

    async def connect(self) -> Producer:
        """Connect a producer."""
        return Producer(await self.dial())

    async def keep(self, *items: bytes) -> None:
        """Have the server keep items, in requests that are not too large."""
        producer = await self.connect()
        for first in range(0, len(items), _REQUEST_ITEMS):
            assert await producer.send(*items[first : first + _REQUEST_ITEMS]) == {}

    async def dial(self) -> trio.abc.Stream:
        """Connect somebody to the port of producers."""
        return await self._clients.connect(HOST, PORT)

    def server(self, config: DelayServerConfig) -> DelayServer:
        """Make a server for the next life of the machine."""
        if self.lives:
            self.network.cut("server", Kill("next life"))
            self.disk = self.disk.revive()
        self.lives += 1
        return self._server(config, "server")

    def server_beside(self, config: DelayServerConfig) -> DelayServer:
        """Make a second server on the same machine and disk."""
        return self._server(config, "server beside")

    def _server(self, config: DelayServerConfig, name: str) -> DelayServer:
        self.executor = SimExecutor(self.chance, disk=self.disk, plan=self.executor_plan)
        runtime = Runtime(
            clock=self.clock,
            network=self.network.node(name),
            executor=self.executor,
            chance=self.chance,
        )
        return DelayServer(config, runtime, self.disk)

    @asynccontextmanager
    async def serving(
        self, config: DelayServerConfig | None = None, *, has_broker: bool = True
    ) -> AsyncIterator[DelayServer]:
        """Serve during the block; then stop in good order, as SIGTERM does."""
        server = self.server(config or make_config())
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            if has_broker:
                await nursery.start(lambda task_status: self.broker.run(task_status=task_status))
            async with trio.open_nursery() as inner:
                await inner.start(lambda task_status: serve(server, stop, task_status=task_status))
                yield server
                stop.set()
            nursery.cancel_scope.cancel()


def make_config(**sections: object) -> DelayServerConfig:
    """Return settings for a World; `sections` replace the defaults."""
    return DelayServerConfig(
        **{
            "node": NodeConfig(data_dir=Path("unused")),
            "brokers": {"g1": f"{HOST}:{BROKER_PORT}"},
            "storage": ROOMY,
            **sections,
        }  # type: ignore[arg-type]
    )


async def all_sealed(server: DelayServer) -> None:
    """Wait until nothing is pending."""
    await until(lambda: not server.node.store.schedule.pending, seconds=60)


async def until(
    condition: Callable[[], object], *, seconds: float = 60.0, step_s: float = 0.01
) -> None:
    """Wait until a condition holds; fail after so many (virtual) seconds."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 (any condition, and waiting costs nothing)
            await trio.sleep(step_s)


async def have_rules(
    server: DelayServer, *paused: str, groups: Mapping[str, GroupControl] | None = None
) -> None:
    """Have the server go by these rules, as a file or a meta server tells them."""
    rules = dict.fromkeys(paused, SubjectControl(paused=True))
    version = server.master.outlet.applied.version + 1
    await server.node.have_controls(
        Controls(version=version, subjects=rules, groups=dict(groups or {}))
    )
