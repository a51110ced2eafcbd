"""The meta server of a cluster's world with its operator, and broker groups that come and go."""

from bisect import bisect_right
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import trio

from delay_protocol.meta.requests import BrokerState
from delay_transport.seams.runtime import Address, format_address, parse_address
from meta_server.admin.parts import Parts, Plan, Planned
from meta_server.groups.routing import RoutingLimits
from meta_server.known import model
from meta_server.known.errors import StoreError
from meta_server.known.registry import Registry
from meta_server.server import MetaServer
from meta_server.server import serve as serve_meta
from meta_server.settings.config import (
    ListenerConfig,
    MetaServerConfig,
    NodeConfig,
    RegistrationConfig,
)
from tests.kit.plans import put
from tests.meta_server.memory_store import MemoryRecordFile
from tests.simulation.broker import SimBroker
from tests.simulation.clock import SimClock, event_clock
from tests.simulation.cluster_judge import Wellness
from tests.simulation.crash import Life, SimNode
from tests.simulation.determinism import derive
from tests.simulation.disk import SimDisk
from tests.simulation.executor import ExecutorPlan
from tests.simulation.faults import CALM
from tests.simulation.meta_operator import MetaOperator
from tests.simulation.meta_peers import ENDS, META, Call, SimMetaBroker
from tests.simulation.meta_store import Medium, SimStore, StoreFaults
from tests.simulation.meta_witness import MetaWitness
from tests.simulation.meta_world import rules_of
from tests.simulation.network import SimNetwork, SimStream
from tests.simulation.trace import Trace
from tests.simulation.world import WorldResult

META_HTTP: Address = (META[0], 8080)
NOWHERE = "nowhere"
"""A group that never comes."""
ODD = "odd"
"""A group at what is no address, which an older meta server took all the same."""
ODD_ADDRESSES = (
    "x..y:5",
    ".:5",
    f"{'x' * 100}:5",
    "a\0b:5",
    "nonsense",
    "h:0",
    "h:99999",
    "[::1:5",
)
SET_BACK = "store set back"
"""The trouble that this is to whoever knows of later."""
_RESTORED = 0.5
"""Of the stores that are set back so many lose the file of records beside them."""
_LOOK_S = 5.0
"""How often the meta server looks at silence: idle hours are cheaper this way. How exactly it does
is seen in its own world."""
_AGAIN_MS = (5_000, 10_000, 20_000, 20_000)
_CHANGED_WITHIN_S = 900.0
_LAST = "\uffff"
"""Behind every address."""


class MovingBroker(SimBroker):
    """A broker that may go away, and come back at another address."""

    is_away = False

    def __init__(self, *args: Any, **settings: Any) -> None:  # noqa: ANN401 (a broker's)
        super().__init__(*args, **settings)
        self._places: list[tuple[float, str]] = [(0.0, format_address(self.address))]

    def place_at(self, at_s: float) -> str:
        """Return where it was, or would have been, at a time."""
        return self._places[bisect_right(self._places, (at_s, _LAST)) - 1][1]

    def leave(self) -> None:
        """Be gone until it comes back; an outage that it had is over."""
        super().recover()
        self.is_away = True
        self._witness.broker_down(self.name)
        self._up = trio.Event()
        self._serving.cancel()

    def come(self, address: Address) -> None:
        """Be there, at this address."""
        self.is_away = False
        if address != self.address:
            self.address = address
            self._places.append((trio.current_time(), format_address(address)))
            self._serving.cancel()
        super().recover()

    def recover(self) -> None:
        """End an outage; one that is away stays away."""
        if not self.is_away:
            super().recover()


class GroupMaster(SimMetaBroker):
    """The same broker, as the meta server sees it: registers, vanishes, comes back."""

    broker: MovingBroker

    async def live(self, body: Callable[[], Awaitable[None]]) -> None:
        """Run one life; nobody takes messages after it."""
        await super().live(body)
        self.broker.leave()

    async def _acquire(self, call: Call) -> None:
        self.broker.come(parse_address(self.address))
        await super()._acquire(call)


class _Store(SimStore):
    """A store that says when all of it was loaded."""

    on_loaded: Callable[[], None]

    def load(self) -> model.Contents:
        """Return everything."""
        contents = super().load()
        self.on_loaded()
        return contents


class SimMeta:
    """The real meta server of a world: its lives, its store, and its operator."""

    def __init__(
        self, seed: int, *, network: SimNetwork, trace: Trace, result: WorldResult, well: Wellness
    ) -> None:
        """Draw its settings; tell `well` when it does not answer."""
        shape = derive(seed, "meta shape")
        self.medium = Medium()
        self.record_file = MemoryRecordFile()
        self.faults = StoreFaults()
        self.config = MetaServerConfig(
            node=NodeConfig(data_dir=Path("unused"), stop_ms_max=500),
            listener=ListenerConfig(address=format_address(META)),
            registration=RegistrationConfig(groups="open", node_again_ms=shape.choice(_AGAIN_MS)),
            routing=RoutingLimits(groups_per_subject=shape.choice((1, 2))),
        )
        self.node = SimNode(
            "meta",
            disk=SimDisk(derive(seed, "meta disk"), plan=CALM, trace=trace),
            network=network,
            chance=derive(seed, "meta server"),
            clock=SimClock(),
            executor_plan=ExecutorPlan(delay_s=(0.000_05, 0.003), stall_chance=0.0),
        )
        self.witness = MetaWitness(self.medium, rules_of(self.config))
        self.server: MetaServer | None = None
        """Of the present life, once it answers."""
        self.pause_s = 1.0
        """Until the next start."""
        self.stop = trio.Event()
        self.set_backs = 0
        """How often the store became an older one."""
        self.operator = MetaOperator(self._answering, within_s=_CHANGED_WITHIN_S)
        self._chance = derive(seed, "meta store")
        self._result = result
        self._well = well

    def _answering(self) -> MetaServer | None:
        """Return the present server, if it answers."""
        return self.server if self.node.is_alive else None

    @property
    def registry(self) -> Registry:
        """What it knows."""
        assert self.server is not None
        return self.server.registry

    async def run(self) -> None:
        """Live again and again, until cancelled."""
        while True:
            self.stop = trio.Event()
            ending = await self.node.live(self._serve, expected=(StoreError,))
            self.server = None
            self._well.note("down", is_on=True)
            how = type(ending.death or ending.error).__name__
            self._result.faults["meta server: " + how.replace("NoneType", "clean stop")] += 1
            pause_s, self.pause_s = self.pause_s, 1.0
            await trio.sleep(pause_s)

    async def _serve(self, life: Life) -> None:
        def take_time(seconds: float) -> None:
            life.disk.extra_s += seconds

        def later(seconds: float, call: Callable[[], None]) -> None:
            event_clock().call_at(trio.current_time() + seconds, call)

        def open_store() -> SimStore:
            store = _Store(
                self.medium,
                self.faults,
                self._chance,
                take_time=take_time,
                tally=self._result.faults,
                later=later,
            )
            store.on_loaded = partial(self._well.note, SET_BACK, is_on=False)
            return store

        server = MetaServer(self.config, life.runtime, open_store, self.record_file)
        server.look_s = _LOOK_S
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve_http, life, server)
            await serve_meta(server, self.stop)
            nursery.cancel_scope.cancel()

    async def _serve_http(self, life: Life, server: MetaServer) -> None:
        """Tell where the server is, as its HTTP port does, which has no seam to be simulated by."""
        await server.ready.wait()
        self.server = server
        self._well.note("down", is_on=False)
        listener = await life.network.listen(*META_HTTP)
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._tell_address, await listener.accept())

    async def _tell_address(self, stream: SimStream) -> None:
        told = format_address(META).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(told)
        try:
            asked = b""
            while not asked.endswith(b"\r\n\r\n"):
                data = await stream.receive_some()
                if not data:
                    break
                asked += data
            else:
                await stream.send_all(head + told)
        except ENDS:
            pass
        stream.close_now()

    def set_back(self, by_s: float, *, is_another: bool = False) -> None:
        """Have the store be what it was so long ago; `is_another`: it counts as a new one."""
        number = self.medium.number_at(trio.current_time() - by_s)
        self.set_backs += 1
        if self._chance.random() < _RESTORED:
            self.record_file.document = None
        self._well.note(SET_BACK, is_on=True)
        self.witness.store_set_back()
        # A server that runs learns it when it stores the next thing.
        self.medium.hide()
        uuid = UUID(int=self._chance.getrandbits(128), version=4) if is_another else None
        self.medium.set_back(number, uuid=uuid)

    # -- the operator ------------------------------------------------------------------------

    async def change(self, plan: Plan) -> bool:
        """Have something changed, asking again until it is; say whether it was not refused.

        AssertionError if nobody answers.
        """
        return await self.operator.change(plan)

    async def place_odd(self, address: str) -> None:
        """Have a group at what is no address, without the checks that there are by now."""

        def plan(parts: Parts) -> Planned:
            before = parts.registry.groups.get(ODD)
            group = model.BrokerGroup(
                name=ODD,
                kind=model.GroupKind.NORMAL,
                master=address,
                state=BrokerState.RW,
                is_static=True,
                is_entered=True,
                # Nobody is to be routed there who is not meant to.
                weight=0,
                updated_ms=parts.now_ms,
                version=1 if before is None else before.version + 1,
            )
            return Planned([model.Save(group)])

        await self.change(plan)

    async def reroute(self, name: str, groups: tuple[str, ...], *, is_prefix: bool = False) -> None:
        """Give a subject, or all with a prefix, these groups; with none take its route away."""

        def plan(parts: Parts) -> Planned:
            table = parts.registry.prefixes if is_prefix else parts.registry.routes
            before = table.get(name)
            if not groups:
                return Planned([] if before is None else [model.Remove(before)])
            if not {NOWHERE, ODD} & set(groups):
                return put("route", f"{name}*" if is_prefix else name, groups=groups)(parts)
            # Nobody may route to what is not there; but what was there may be lost.
            version = 1 if before is None else before.version + 1
            route = model.Route(
                name=name, groups=groups, is_chosen=False, version=version, is_prefix=is_prefix
            )
            return Planned([model.Save(route)])

        await self.change(plan)
