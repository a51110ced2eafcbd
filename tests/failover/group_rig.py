"""A group of real delay servers and a real meta server in virtual time, on simulated machines."""

import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

import trio

from delay_protocol.basics.codes import ItemCode
from delay_protocol.nodes.registration import GroupRecord
from delay_server.accepting.duplicates import DuplicatesConfig
from delay_server.node import Node
from delay_server.replicas import Replica
from delay_server.server import DelayServer, serve
from delay_server.settings.config import (
    DelayServerConfig,
    ListenerConfig,
    MetaConfig,
    NodeConfig,
)
from delay_server.settings.errors import MembershipError
from delay_transport.seams.errors import TransportError
from meta_server.known.errors import RefusedError
from meta_server.server import MetaServer
from storage.batch.batches import LogBatch
from storage.batch.columns import RecordKind
from storage.disk.errors import StorageError
from storage.state.identity import IDENTITY_PATH, Identity, decode_identity
from tests.delay_server.meta_stub import HTTP_PORT, RealMeta
from tests.delay_server.server_rig import (
    BROKER_PORT,
    HOST,
    PORT,
    ROOMY,
    Producer,
    World,
    make_item,
    until,
)
from tests.kit.plans import act
from tests.simulation.clock import SimClock
from tests.simulation.crash import Life, SimNode
from tests.simulation.disk import SimDisk
from tests.simulation.executor import ExecutorPlan
from tests.simulation.faults import CALM, Death, FaultPlan, Kill

GROUP: Final = "delay-1"
NAMES: Final = ("a", "b", "c")
PROMPT: Final = ExecutorPlan(delay_s=(0.0005, 0.0015), stall_chance=0)
SUPERVISED_S: Final = 2.0
"""Virtual seconds until a supervisor starts a process again."""
SERVED_S: Final = 60.0
"""Virtual seconds in which whatever a test waits for has to have come."""


TRIMMED: Final = dataclasses.replace(
    ROOMY,
    message_log_file_bytes_max=2000,
    message_log_keep_ms=0,
    retired_grace_ms=1000,
)
"""Of nodes that keep next to nothing of their message_log, so that others copy snapshots."""


EXPECTED: Final = (StorageError, TransportError, MembershipError)


class Machine:
    """One node of the group: its disk stays, its processes come and go."""

    def __init__(self, group: "Group", name: str, place: int) -> None:
        self.group = group
        self.name = name
        self.port = PORT + place
        self.node = self._new_node()
        self.server: DelayServer | None = None
        self.stop = trio.Event()
        self.ended = trio.Event()
        self.errors: list[BaseException] = []
        """With what its processes ended by themselves."""
        self.expected: tuple[type[Exception], ...] = EXPECTED
        """With which errors a process may end."""
        self.is_supervised = False
        """Whether a process that ends with an error is started again, as systemd does."""
        self.is_away = False
        """Whether somebody has stopped it, and is to start it again."""

    def _new_node(self) -> SimNode:
        chance = random.Random(self.group.world.chance.getrandbits(64))
        return SimNode(
            self.name,
            disk=SimDisk(chance, plan=self.group.plan),
            network=self.group.world.network,
            chance=chance,
            clock=SimClock(),
            executor_plan=PROMPT,
        )

    def config(self) -> DelayServerConfig:
        """Return its settings."""
        return DelayServerConfig(
            node=NodeConfig(data_dir=Path("unused"), cluster="c1", group=GROUP, node_id=self.name),
            brokers={
                "g1": f"{HOST}:{BROKER_PORT}",
                **dict.fromkeys(self.group.attached, "attached"),
            },
            storage=TRIMMED if self.group.trims else ROOMY,
            # The window keeps the log.
            duplicates=DuplicatesConfig(
                window_ms=0 if self.group.trims else 600_000, messages_max=10_000
            ),
            listener=ListenerConfig(address=f"{HOST}:{self.port}"),
            meta=MetaConfig(addresses=f"{HOST}:{HTTP_PORT}"),
        )

    def start(self) -> None:
        """Begin a life."""
        self.stop, self.ended = trio.Event(), trio.Event()
        self.group.nursery.start_soon(self._live)

    async def _live(self) -> None:
        ending = await self.node.live(self._serve, expected=self.expected)
        self.server = None
        if ending.error is not None:
            self.errors.append(ending.error)
        self.ended.set()
        if self.is_supervised and ending.error is not None:
            await trio.sleep(SUPERVISED_S)
            if not self.is_away and self.ended.is_set():
                self.start()

    async def _serve(self, life: Life) -> None:
        self.server = DelayServer(self.config(), life.runtime, life.disk)
        await serve(self.server, self.stop)

    async def shut_down(self) -> None:
        """Stop it in good order."""
        self.stop.set()
        await self.ended.wait()

    async def kill(self, kind: type[Death] = Kill) -> None:
        """End its process, or its power, at once."""
        if self.node.crash(kind, "told to"):
            await self.ended.wait()

    def wipe(self) -> None:
        """Give it an empty disk."""
        self.node = self._new_node()

    def identity(self) -> Identity | None:
        """Return what its disk says of itself; None where that is empty."""
        data = self.node.disk.content(IDENTITY_PATH, durable=True)
        return None if data is None else decode_identity(data, path=IDENTITY_PATH)

    def storage_uuid(self) -> UUID | None:
        """Return the uuid of its disk; None where it has none yet."""
        found = self.identity()
        return None if found is None else found.storage_uuid

    def incarnation(self) -> int:
        """Return how often it was started on its disk."""
        found = self.identity()
        return 0 if found is None else found.incarnation

    @property
    def is_master(self) -> bool:
        """Whether it takes messages and sends them."""
        server = self.server
        return server is not None and server.is_master and server.fenced is None

    @property
    def standing(self) -> str:
        """Why it does not follow; empty if it does, or is the master, or is not open."""
        server = self.server
        replica = server.node.replica if server is not None and server.is_open else None
        return "" if replica is None else replica.standing

    @property
    def opened(self) -> Node:
        """Its node, which is open."""
        assert self.server is not None
        return self.server.node

    @property
    def replica(self) -> Replica:
        """Its part in the group."""
        assert self.opened.replica is not None
        return self.opened.replica

    def batches(self) -> list[LogBatch]:
        """Return what its log has."""
        found = list(self.opened.store.message_log.read(1))
        assert all(isinstance(batch, LogBatch) for batch in found), found
        return [batch for batch in found if isinstance(batch, LogBatch)]

    def messages(self) -> int:
        """Return how many messages its log has."""
        return sum(
            batch.header.count
            for batch in self.batches()
            if batch.header.kind is RecordKind.MESSAGE
        )


class Group:
    """Three machines, a meta server, a broker, and producers that ask who the master is."""

    def __init__(
        self,
        *,
        seed: int = 1,
        names: tuple[str, ...] = NAMES,
        plan: FaultPlan = CALM,
        trims: bool = False,
        attached: tuple[str, ...] = (),
    ) -> None:
        """Prepare.

        plan: of the disks, what a power cut takes; trims: keep little of the logs; attached: names
        of receivers.
        """
        self.plan = plan
        self.attached = attached
        self.trims = trims
        self.world = World(seed=seed)
        self.meta = RealMeta(self.world)
        self.meta_server: MetaServer
        self.meta_is_away = False
        self.machines = {name: Machine(self, name, place) for place, name in enumerate(names)}
        self.nursery: trio.Nursery
        self.clients = self.world.network.node("producers")
        self._sent = 0
        self.acknowledged: list[str] = []

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    @asynccontextmanager
    async def running(self, *names: str) -> AsyncIterator[None]:
        """Run the meta server, the broker, and these machines or all."""
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            await nursery.start(lambda task_status: self.world.broker.run(task_status=task_status))
            await self.start_meta()
            for name in names or self.machines:
                self.machines[name].start()
            yield
            for machine in self.machines.values():
                machine.node.crash(Kill, "the test is over")
            self.meta.kill()
            nursery.cancel_scope.cancel()
        for machine in self.machines.values():
            assert machine.is_supervised or not machine.errors, machine.errors

    async def start_meta(self) -> None:
        """Begin a life of the meta server."""
        self.meta_server = await self.nursery.start(
            lambda task_status: self.meta.run(task_status=task_status)
        )

    @property
    def record(self) -> GroupRecord:
        """What is agreed of the group."""
        return self.meta.medium.tables.delay_groups[GROUP].record

    @property
    def has_record(self) -> bool:
        """Whether anything is."""
        return GROUP in self.meta.medium.tables.delay_groups

    def master(self) -> Machine | None:
        """Return the machine that is the master by its own word, where the record says so, too."""
        if not self.has_record or self.record.master is None:
            return None
        machine = self.machines[self.record.master.node_id]
        return machine if machine.is_master else None

    async def until(self, condition: Callable[[], object], *, seconds: float = SERVED_S) -> None:
        """Wait for something."""
        await until(condition, seconds=seconds)

    async def until_in_sync(self, *names: str, seconds: float = SERVED_S) -> None:
        """Wait until these are in sync."""
        await until(
            lambda: self.has_record and set(self.record.in_sync) == set(names), seconds=seconds
        )

    async def until_master(self, *names: str) -> Machine:
        """Wait until one of these is the master, and takes messages; return it."""
        await until(lambda: (found := self.master()) is not None and found.name in names)
        found = self.master()
        assert found is not None
        return found

    async def elect(self) -> None:
        """Begin an election as an operator does, as soon as the last master may not send."""
        with trio.fail_after(SERVED_S):
            while True:
                with contextlib.suppress(RefusedError):
                    await act(self.meta_server, "delay-group", "elect", GROUP)
                    return
                await trio.sleep(0.2)

    async def send(self, count: int = 1, *, in_s: float = 3600.0) -> list[str]:
        """Have messages acknowledged, by whoever is the master; return their ids."""
        ids = [f"m{self._sent + number}" for number in range(count)]
        self._sent += count
        due_ms = self.world.now_ms + int(in_s * 1000)
        items = [make_item(one, due_ms) for one in ids]
        with trio.fail_after(SERVED_S):
            while not await self._try_to_send(items):  # noqa: ASYNC110 (nobody can tell)
                await trio.sleep(0.2)
        self.acknowledged += ids
        return ids

    async def _try_to_send(self, items: list[bytes]) -> bool:
        machine = self.master()
        if machine is None:
            return False
        with contextlib.suppress(OSError, AssertionError, trio.BrokenResourceError):
            stream = await self.clients.connect(HOST, machine.port)
            try:
                with trio.move_on_after(6):
                    codes = {code for code, _ in (await Producer(stream).send(*items)).values()}
                    # A master before this one took them, and could not say so.
                    return codes <= {ItemCode.MESSAGE_DUPLICATE}
            finally:
                await trio.aclose_forcefully(stream)
        return False

    async def hand_over(self, to: str) -> None:
        """Have an operator ask for another master, and wait until it is one."""
        await act(self.meta_server, "delay-group", "handover", GROUP, to=to)
        await self.until_master(to)

    def delivered(self) -> list[str]:
        """Return the ids of what the broker got, in order."""
        return self.world.broker.ids
