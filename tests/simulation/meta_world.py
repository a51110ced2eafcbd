"""One seed, one world: the real meta server between clients, brokers, delay servers and bad peers.

The meta server runs from its listener to its store (`SimNode`, `SimStore`), and is cut off power,
killed, stopped and stalled while peers (`meta_peers.py`, `meta_hostile.py`) go on. A world has two
rounds: some minutes in which things go wrong, one after another, then a calm in which everybody has
to be told what is so: within one tick of the clients by asking, and after that by pushes alone.

    result = run_meta_world(seed)       # never raises for a broken promise: see result.violations
"""

import contextlib
import dataclasses
import random
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio
from msgspec.structs import replace

from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta.requests import BrokerRole, BrokerState, ClientType
from meta_server.admin.parts import Parts, Plan, Planned
from meta_server.groups.routing import RoutingLimits
from meta_server.known import model
from meta_server.known.errors import StoreError
from meta_server.server import MetaServer, serve
from meta_server.settings.config import (
    ListenerConfig,
    MetaServerConfig,
    NodeConfig,
    PushConfig,
    RegistrationConfig,
)
from tests.fuzz.corpus import read_corpus
from tests.meta_server.memory_store import MemoryRecordFile
from tests.simulation.clock import SimClock, event_clock
from tests.simulation.crash import Life, SimNode
from tests.simulation.determinism import derive, run_deterministic
from tests.simulation.disk import SimDisk
from tests.simulation.executor import ExecutorPlan
from tests.simulation.faults import CALM, Death, Kill, PowerCut
from tests.simulation.meta_hostile import FLOODS, SimHostile
from tests.simulation.meta_operator import MetaOperator, draw_rule_change
from tests.simulation.meta_peers import (
    META,
    SimClient,
    SimDelayNode,
    SimMetaBroker,
    fresh_directory,
)
from tests.simulation.meta_store import (
    Medium,
    Outcome,
    SimStore,
    StoreFaults,
)
from tests.simulation.meta_witness import CLUSTER, CONTROLS_WITHIN_S, MetaWitness, Rules, Use
from tests.simulation.network import NetworkPlan, SimNetwork
from tests.simulation.trace import Trace
from tests.simulation.world import quiet

ROUNDS = 2
PUSHED_WITHIN_S = 3.0
"""From a change in the store until every connected client was told by a push."""
TOLD_WITHIN_S = 100.0
"""From the end of all faults until every client was told: connections that are no more are noticed
within 30 s, brokers speak within 10 s, and clients ask every 60 s."""
_ANSWERED_WITHIN_S = 10.0
_ALL_BACK_S = 130.0
"""In which every peer that was away is back."""
_PROBES = 3
_STORE_DOWN_S = (5.0, 70.0)
_REAL_GROUPS = ("g1", "g2", "g3", "g4", "q1", "d1", "d2")
_CHANGED_WITHIN_S = 7200.0
"""In which an operator has what he wants, or is refused."""
_OF_CONTROLS = 0.35
"""Of his changes so many are of what delay servers hold back."""
_PATTERNS = ("s1", "orders.paid", "orders.*", "o*", "*")
_SUBJECTS = ("s1", "s2", "s3", "s4", "orders.paid", "orders.late")
_CODES = (
    CommandCode.CLIENT_REGISTER,
    CommandCode.BROKER_REGISTER,
    CommandCode.BROKER_ACQUIRE_META,
    CommandCode.NODE_REGISTER,
)


@dataclass(slots=True)
class MetaResult:
    """What a seed came to."""

    seed: int
    digest: str = ""
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """What peers asked and were told."""
    faults: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    """Of the meta server."""
    commits: int = 0
    virtual_s: float = 0.0


class MetaWorld:
    """Everything that belongs to one seed."""

    def __init__(self, seed: int, *, trace: Trace | None = None) -> None:
        self.seed = seed
        self.result = MetaResult(seed)
        self.trace = trace or Trace()
        shape = derive(seed, "shape")
        self._chance = derive(seed, "world")
        self.clock = SimClock(drift=shape.choice((0.0, 0.0, 1e-4, -1e-4)))
        self.network = SimNetwork(derive(seed, "network"), trace=self.trace)
        self.node = SimNode(
            "meta",
            disk=SimDisk(derive(seed, "disk"), plan=CALM, trace=self.trace),
            network=self.network,
            chance=derive(seed, "server"),
            clock=self.clock,
            executor_plan=ExecutorPlan(delay_s=(0.000_05, 0.003), stall_chance=0.0),
        )
        self.config, self.is_ample = draw_settings(derive(seed, "settings"))
        self.medium = Medium()
        self.record_file = MemoryRecordFile()
        self.store_faults = StoreFaults()
        self.witness = MetaWitness(self.medium, rules_of(self.config))
        self.server: MetaServer | None = None
        self._store_chance = derive(seed, "store")
        self._stop = trio.Event()
        self._finished = False
        self._troubles: Counter[str] = Counter()
        self._retired: set[str] = set()
        self._lost_for_good: set[str] = set()
        """Nodes that nobody is to take any more."""
        self._operator = MetaOperator(self._answering, within_s=_CHANGED_WITHIN_S)
        self._operations = 0
        """Changes of the operator that are not done yet."""
        self._nursery: trio.Nursery
        self._pause_s = 1.0
        self._make_peers(shape)
        kinds: dict[Callable[[], Awaitable[None]], float] = {
            self._end_server: 6,
            self._store_down: 1.5,
            self._store_fails: 3,
            self._split: 3,
            self._lossy: 1,
            self._stall: 1,
            self._set_clock: 2.5,
            self._deaf_client: 0.7,
            self._end_client: 1,
            self._end_broker: 4,
            self._other_state: 2,
            self._fail_at_silence: 1,
            self._end_node: 3,
            self._move_node: 0.7,
            self._wipe_node: 0.5,
            self._change_controls: 3,
            self._offend: 3,
            # Where there are bounds that are reached.
            self._flood: 5 if self.config.registration != RegistrationConfig() else 1.2,
            self._operate: 3,
        }
        self._rounds = [
            shape.choices(list(kinds), list(kinds.values()), k=shape.randint(5, 12))
            for _ in range(ROUNDS)
        ]

    def _make_peers(self, shape: random.Random) -> None:
        def chance_of(name: str) -> random.Random:
            return derive(self.seed, name)

        network, witness, faults = self.network, self.witness, self.result.faults
        entered = {
            "g1": model.Broker(
                hostname="b1", serve_port=1, ip="10.0.0.1", group="g1", role=BrokerRole.MASTER
            ),
            "q1": model.Broker(
                hostname="q1", serve_port=5, ip="10.0.0.5", group="q1", role=BrokerRole.DELAY_MASTER
            ),
        }
        self.entered = entered
        addresses = {
            "g1": ("10.0.0.1:1",),
            "g2": ("10.0.0.2:2", "10.0.0.22:2"),
            "g3": ("10.0.0.3:3",),
            "g4": ("10.0.0.4:4", "10.0.0.44:4"),
            "q1": ("10.0.0.5:5",),
        }
        self.brokers = [
            SimMetaBroker(
                f"broker {group}",
                group=group,
                addresses=where,
                role=BrokerRole.DELAY_MASTER if group == "q1" else BrokerRole.MASTER,
                entered=(entered[group].hostname, entered[group].serve_port)
                if group in entered
                else None,
                network=network,
                chance=chance_of(f"broker {group}"),
                witness=witness,
                faults=faults,
            )
            for group, where in addresses.items()
        ]
        self.nodes = [
            SimDelayNode(
                f"node {group}{node_id}",
                group=group,
                node_id=node_id,
                address=f"10.1.{group[1]}.{node_id[1]}:20801",
                directory=fresh_directory(
                    chance_of(f"directory {group}{node_id}"),
                    last_epoch=shape.choice((0, 7)) if group == "d2" else 0,
                ),
                network=network,
                chance=chance_of(f"node {group}{node_id}"),
                witness=witness,
                faults=faults,
            )
            for group, node_id in (("d1", "n1"), ("d1", "n2"), ("d1", "n3"), ("d2", "n1"))
        ]
        self.clients = [
            SimClient(
                name,
                network=network,
                chance=chance_of(name),
                witness=witness,
                uses=_draw_uses(shape, name),
            )
            for name in ("client 1", "client 2", "client 3", "client 4")
        ]
        corpus = [
            (code, data)
            for target in ("meta_client", "meta_broker", "nodes")
            for entry in read_corpus(target)
            for data in (entry.data, entry.data[1:])
            for code in _CODES
        ]
        self.hostile = SimHostile(
            network=network,
            chance=chance_of("hostile"),
            witness=witness,
            nodes=self.nodes,
            group="g1",
            delay_group="d1",
            corpus=corpus,
            faults=faults,
        )

    # -- the run -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Let things go wrong, then see that everything is right; twice."""
        self.medium.commit([model.Save(broker) for broker in self.entered.values()], foreign=True)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._keep_serving)
            for run in (one.run for several in self._peers() for one in several):
                nursery.start_soon(self._begin_later, run)
            nursery.start_soon(self._look_at_bounds)
            for disturbances in self._rounds:
                # Two at a time, since faults meet.
                async with trio.open_nursery() as disturbing:
                    for several in (disturbances[::2], disturbances[1::2]):
                        disturbing.start_soon(self._disturb, several)
                await self._be_calm()
                await self._see_right("within a tick")
                await self._see_pushes()
            self._finished = True
            self._stop.set()
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
        self.witness.judge_store()

    async def _disturb(self, disturbances: Sequence[Callable[[], Awaitable[None]]]) -> None:
        for disturb in disturbances:
            await trio.sleep(self._chance.uniform(0.1, 40))
            await disturb()

    def _peers(self) -> list[Sequence[SimMetaBroker | SimDelayNode | SimClient]]:
        return [self.brokers, self.nodes, self.clients]

    async def _begin_later(self, run: Callable[[], Awaitable[None]]) -> None:
        await trio.sleep(self._chance.choice((0.0, self._chance.uniform(0, 20))))
        await run()

    # -- lives of the server -----------------------------------------------------------------

    async def _keep_serving(self) -> None:
        self._trouble("down", begins=True)
        while not self._finished:
            self._stop = trio.Event()
            ending = await self.node.live(self._serve, expected=(StoreError,), count_steps=True)
            self.server = None
            self._trouble("down", begins=True)
            self.result.lives += 1
            if ending.death is not None:
                self.result.faults[type(ending.death).__name__] += 1
            elif ending.error is None:
                self.result.faults["clean stop"] += 1
            else:
                self.result.faults["ended: the store was away at the start"] += 1
            pause_s, self._pause_s = self._pause_s, 1.0
            await trio.sleep(pause_s)

    async def _serve(self, life: Life) -> None:
        self.witness.starts_s.append(trio.current_time())

        def take_time(seconds: float) -> None:
            life.disk.extra_s += seconds

        def later(seconds: float, call: Callable[[], None]) -> None:
            event_clock().call_at(trio.current_time() + seconds, call)

        server = MetaServer(
            self.config,
            life.runtime,
            lambda: SimStore(
                self.medium,
                self.store_faults,
                self._store_chance,
                take_time=take_time,
                tally=self.result.faults,
                later=later,
            ),
            self.record_file,
        )
        self.server = server
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._note_ready, server)
            await serve(server, self._stop)
            self._check_emptied(server)
            nursery.cancel_scope.cancel()

    async def _note_ready(self, server: MetaServer) -> None:
        await server.ready.wait()
        self._trouble("down", begins=False)

    def _check_emptied(self, server: MetaServer) -> None:
        """Nothing of a peer is left when all connections are closed."""
        sessions = server.handlers.sessions
        left = (sessions.uses, len(list(sessions)))
        if left != (0, 0):
            self.witness.complain(f"bounded: {left} subscriptions are left of closed connections")
        if len(server.handlers.held):
            self.witness.complain("bounded: watches are left of closed connections")

    def _trouble(self, what: str, *, begins: bool) -> None:
        """Note that something is amiss from now on, or is not any more."""
        if begins and what != "down":
            self._troubles[what] += 1
        elif begins:
            self._troubles[what] = 1
        else:
            self._troubles[what] -= 1
            self._troubles = +self._troubles
        self.witness.be_calm(calm=not self._troubles)

    @contextlib.contextmanager
    def _amiss(self, what: str) -> Iterator[None]:
        self._trouble(what, begins=True)
        try:
            yield
        finally:
            self._trouble(what, begins=False)

    # -- what goes wrong ---------------------------------------------------------------------

    def _draw_death(self) -> type[Death]:
        return self._chance.choice((PowerCut, PowerCut, Kill))

    async def _end_server(self) -> None:
        """Cut the server off, at an await, in a commit or anywhere, or stop it well."""
        chance = self._chance
        self._pause_s = chance.choice((chance.uniform(0.01, 3), chance.uniform(3, 60)))
        how = chance.choice(("at an await", "in a commit", "now", "stop", "twice"))
        death = self._draw_death()
        self.result.faults[f"server ended: {how}"] += 1
        if how == "stop":
            self._stop.set()
        elif how == "now":
            self.node.crash(death, "drawn")
        elif how == "in a commit":
            self._crash_in_commit(chance.choice(("before", "after")), death)
            # Something to commit.
            self._nursery.start_soon(self._operate)
        else:
            for _ in range(2 if how == "twice" else 1):
                if self.node.is_alive:
                    self.node.crash_at_step(round(800 ** chance.random()), death)
                await trio.sleep(chance.uniform(0.1, 3))
        await trio.sleep(chance.uniform(0.1, 5))

    def _crash_in_commit(self, when: str, kind: type[Death]) -> None:
        def crash(now: str) -> None:
            if now == when and self.node.crash(kind, f"{when} a commit"):
                raise kind(f"{when} a commit")

        self.store_faults.crash = crash

    async def _store_down(self) -> None:
        self.result.faults["store down"] += 1
        for_s = self._chance.uniform(*_STORE_DOWN_S)
        with self._amiss("store"):
            self.store_faults.down_until_s = trio.current_time() + for_s
            if self._chance.random() < 0.3:
                await trio.sleep(for_s / 3)
                self.node.crash(self._draw_death(), "while the store is down")
            await trio.sleep(for_s + 10)

    async def _store_fails(self) -> None:
        chance = self._chance
        some = chance.sample(list(Outcome), k=chance.randint(1, 3))
        with self._amiss("store"):
            self.store_faults.chances = {one: chance.choice((0.05, 0.3, 1.0)) for one in some}
            if chance.random() < 0.5:
                self._nursery.start_soon(self._operate)
            if chance.random() < 0.4:
                # Much that waits for the store.
                await self.hostile.flood("subjects", 60)
            await trio.sleep(chance.uniform(1, 40))
            self.store_faults.chances = {}
            await trio.sleep(10)

    async def _split(self) -> None:
        """Let some peers and the server hear nothing of each other, or one not of the other."""
        chance = self._chance
        peers = [one for several in self._peers() for one in several]
        some = chance.sample(peers, k=chance.choice((1, 2, 5, len(peers))))
        ways = chance.choice((("in", "out"), ("in",), ("out",)))
        self.result.faults[f"split: {' and '.join(ways)}"] += 1
        with self._amiss("link"):
            for peer in some:
                if "in" in ways:
                    self.network.block(peer.name, self.node.name)
                if "out" in ways:
                    self.network.block(self.node.name, peer.name)
            await trio.sleep(chance.choice((chance.uniform(1, 20), chance.uniform(20, 90))))
            self.network.heal()
            await trio.sleep(2)

    async def _lossy(self) -> None:
        self.result.faults["lossy network"] += 1
        with self._amiss("link"):
            self.network.plan = NetworkPlan(
                reset_chance=self._chance.choice((0.02, 0.2)), slow_chance=0.2, fragment_chance=0.9
            )
            await trio.sleep(self._chance.uniform(5, 60))
            self.network.plan = NetworkPlan()

    async def _stall(self) -> None:
        """Let nothing run for a while, as when a machine is suspended."""
        self.result.faults["stall"] += 1
        seconds = self._chance.uniform(4, 70)
        with self._amiss("stall"):
            self.medium.hide(seconds)
            self.witness.stalls.append((trio.current_time(), seconds))
            event_clock().leap(seconds)
            await trio.sleep(1)

    async def _set_clock(self) -> None:
        for _ in range(self._chance.choice((1, 2))):
            ms = self._chance.choice((-3_600_000, -30_000, -800, 800, 30_000, 3_600_000))
            self.result.faults["clock set " + ("back" if ms < 0 else "forward")] += 1
            self.clock.step(ms)
            self.clock.set_drift(self._chance.choice((0.0, 5e-4, -5e-4)))
            await trio.sleep(self._chance.uniform(0, 20))

    async def _deaf_client(self) -> None:
        self.result.faults["client takes nothing"] += 1
        client = self._chance.choice(self.clients)
        client.deaf_until_s = trio.current_time() + self._chance.uniform(5, 60)

    async def _end_client(self) -> None:
        self.result.faults["client ended"] += 1
        self._chance.choice(self.clients).die(self._draw_death()("drawn"))

    async def _end_broker(self) -> None:
        broker = self._chance.choice(self.brokers)
        if self._chance.random() < 0.4:
            self.result.faults["broker stopped"] += 1
            broker.stop()
        else:
            self.result.faults["broker vanished"] += 1
            broker.die(self._draw_death()("drawn"))

    async def _fail_at_silence(self) -> None:
        """Let the store fail just when it is to be told that a broker is silent."""
        broker = self._chance.choice(self.brokers)
        if not broker.is_serving or broker.down_for_s is not None:
            return
        self.result.faults["store fails when a broker falls silent"] += 1
        broker.down_for_s = 110.0
        broker.die(self._draw_death()("drawn"))
        timeout_s = self.config.registration.broker_timeout_ms / 1000
        await trio.sleep(timeout_s - 12)
        with self._amiss("store"):
            outcome = self._chance.choice((Outcome.REFUSED, Outcome.REFUSED, Outcome.LOST))
            self.store_faults.chances = {outcome: 1.0}
            await trio.sleep(14)
            self.store_faults.chances = {}
            await trio.sleep(5)
        # It is noticed all the same.
        await trio.sleep(timeout_s + 5)

    async def _other_state(self) -> None:
        self.result.faults["broker in another state"] += 1
        states = (BrokerState.R, BrokerState.W, BrokerState.RW)
        self._chance.choice(self.brokers).report(self._chance.choice(states))

    async def _end_node(self) -> None:
        self.result.faults["node ended"] += 1
        self._chance.choice(self.nodes).die(self._draw_death()("drawn"))

    async def _move_node(self) -> None:
        """Put a disk into another machine; the one it was in may still be spoken for a while."""
        self.result.faults["node moved"] += 1
        node = self._chance.choice(self.nodes)
        host, _, port = node.address.partition(":")
        node.address = f"{host}:{int(port) + 1}"
        node.down_for_s = self._chance.uniform(0.1, 20)
        node.die(PowerCut("moved"))

    async def _wipe_node(self) -> None:
        node = self._chance.choice(self.nodes)
        group = self.medium.rows[model.DelayGroup].get(node.group)
        if group is None or node.registered is None:
            return
        self.result.faults["node wiped"] += 1
        if node.node_id in group.record.in_sync:
            self._lost_for_good.add(node.name)
        node.wipe()
        node.die(Kill("wiped"))

    async def _offend(self) -> None:
        await self.hostile.offend(self._chance.randint(20, 80))

    async def _flood(self) -> None:
        kind = self._chance.choice(FLOODS)
        there = all(name in self.medium.rows[model.BrokerGroup] for name in _REAL_GROUPS)
        if kind in {"groups", "nodes"} and not there:
            # Whoever comes first may fill all places: nobody can be told from anybody.
            return
        count = self._chance.choice((20, 60, 150, 150, 1200))
        await self.hostile.flood(kind, min(count, 150) if kind == "nodes" else count)

    # -- the operator ------------------------------------------------------------------------

    async def _operate(self) -> None:
        """Change something as an operator does."""
        chance = self._chance
        if chance.random() < _OF_CONTROLS:
            await self._change_controls()
            return
        subject = chance.choice(_SUBJECTS)
        group = chance.choice(_REAL_GROUPS)
        plans: list[tuple[str, Plan]] = [
            ("read-only", lambda parts: self._regroup(parts, group, is_read_only=True)),
            ("not read-only", self._open_all),
            (
                "weight",
                lambda parts: self._regroup(parts, group, weight=chance.choice((1, 100, 300))),
            ),
            ("route", lambda parts: self._reroute(parts, subject, is_prefix=False)),
            ("prefix", lambda parts: self._reroute(parts, "orders.", is_prefix=True)),
        ]
        if chance.random() < 0.06:
            plans = [("retire", lambda parts: self._regroup(parts, "g4", is_retired=True))]
        what, plan = chance.choice(plans)
        self.result.faults[f"operator: {what}"] += 1
        self._operations += 1
        await self._operator.change(plan)
        self._operations -= 1
        if what == "retire":
            self._retired.add("g4")

    def _answering(self) -> MetaServer | None:
        """Return the present server, if it answers."""
        server = self.server
        is_ready = server is not None and server.ready.is_set() and self.node.is_alive
        return server if is_ready else None

    def _regroup(self, parts: Parts, name: str, **fields: object) -> Planned:
        group: model.BrokerGroup | None = parts.registry.groups.get(name)
        if group is None:
            return Planned()
        new = replace(group, version=group.version + 1, **fields)
        return Planned([model.Save(new)])

    def _open_all(self, parts: Parts) -> Planned:
        closed = [group.name for group in parts.registry.groups.values() if group.is_read_only]
        opened = [self._regroup(parts, name, is_read_only=False) for name in closed]
        return Planned([change for one in opened for change in one.changes])

    def _reroute(self, parts: Parts, name: str, *, is_prefix: bool) -> Planned:
        registry = parts.registry
        before = (registry.prefixes if is_prefix else registry.routes).get(name)
        route = model.Route(
            name=name,
            is_prefix=is_prefix,
            groups=tuple(self._chance.sample(("g1", "g2", "g3"), k=2)),
            is_chosen=False,
            version=1 if before is None else before.version + 1,
        )
        return Planned([model.Save(route)])

    async def _change_controls(self) -> None:
        """Have an operator pause, resume, limit or weigh something at delay servers."""
        change = draw_rule_change(
            self._chance, CLUSTER, patterns=_PATTERNS, groups=(*_REAL_GROUPS, "no such group")
        )
        self.result.faults[f"operator: controls, {change.what}"] += 1
        since_s = trio.current_time()
        self._operations += 1
        is_done = await self._operator.change(change.plan, cluster=CLUSTER)
        self._operations -= 1
        if is_done:
            self.witness.controls_changed(CLUSTER, change.what, change.fits, since_s=since_s)

    # -- the calm ----------------------------------------------------------------------------

    async def _be_calm(self) -> None:
        self.store_faults.chances = {}
        self.store_faults.crash = None
        if self.node.is_alive:
            # One that is still to come never does.
            self.node.crash_at_step(1 << 60)
        self.store_faults.down_until_s = 0.0
        self.network.plan = NetworkPlan()
        self.network.heal()
        peers = [one for several in self._peers() for one in several]
        # What was struck last has not ended yet, though it is about to.
        await trio.sleep(1)
        with trio.move_on_after(_ALL_BACK_S):
            while self._troubles or not all(peer.is_alive for peer in peers):  # noqa: ASYNC110
                await trio.sleep(1)
        await trio.sleep(TOLD_WITHIN_S)
        if self._operations:
            self.witness.complain(f"serves: {self._operations} changes of an operator wait still")

    async def _see_right(self, when: str) -> None:
        """Everybody knows what the store says, and the store what is so."""
        if not self.node.is_alive or self._troubles:
            raise AssertionError(f"serves: no meta server in the calm: {self._troubles}")
        await self._check_nothing_waits()
        self._check_clients(when)
        for broker in self.brokers:
            if broker.group not in self._retired and broker.is_serving:
                self._check_group(broker.group, broker.address, broker.state)
        for node in self.nodes:
            self._check_node(node)

    async def _check_nothing_waits(self) -> None:
        """No request is in flight for long, and nothing is left of those that were."""
        waits: list[object] = []
        with trio.move_on_after(_ANSWERED_WITHIN_S):
            while self.server is not None:
                connections = [one.connection for one in self.server.handlers.sessions]
                waits = [*self.server.committer._pending]
                waits += [one.peer for one in connections if one.in_flight_requests]
                if not waits:
                    return
                await trio.sleep(0.05)
        self.witness.complain(f"answered: {waits} wait for {_ANSWERED_WITHIN_S:g} s")

    def _check_clients(self, when: str) -> None:
        now = trio.current_time()
        for client in self.clients:
            if not client.is_alive:
                continue
            for question in client.asked.values():
                if question.sent_s < now - _ANSWERED_WITHIN_S:
                    self.witness.complain(f"answered: {question} of {client.name} was not, {when}")
            for use, known in client.known.items():
                if known.reply is None or known.connection != client.connection:
                    if not self._has_no_place(use, client):
                        self.witness.complain(
                            f"answered: {use} was told nothing, {when}: {client.refused!r}"
                        )
                elif not self.witness.was_right(use, known.reply, now - PUSHED_WITHIN_S):
                    what = "pushed" if when.startswith("by a push") else "right"
                    self.witness.complain(
                        f"{what}: {use} knows {known.reply.groups}, {when}; "
                        f"the store says {self.witness.expected(use)}"
                    )
                elif known.reply.groups and known.blocked_since_s is not None and known.groups:
                    self.witness.complain(f"answered: {use} is blocked with {known.groups}")

    def _has_no_place(self, use: Use, client: SimClient) -> bool:
        """Say whether a subject may be refused because there are too many."""
        is_full = self.witness.subjects() >= self.config.registration.subjects_max
        is_known = use.routed in self.medium.rows[model.Subject]
        return (is_full and not is_known) or client.connection == -1

    def _check_group(self, name: str, address: str, state: BrokerState) -> None:
        group = self.medium.rows[model.BrokerGroup].get(name)
        if group is None or (group.master, group.state) != (address, state):
            self.witness.complain(f"alive: {name} is {state.name} at {address}, known as {group}")

    def _check_node(self, node: SimDelayNode) -> None:
        if not node.is_alive:
            return
        if node.name in self._lost_for_good:
            if node.role is not None:
                self.witness.complain(f"refused: {node.name} was wiped and is {node.role}")
            return
        if node.role is None or trio.current_time() - node.heard_s > 6:
            self.witness.complain(f"alive: {node.name} is not registered: {node.refused!r}")
        elif node.role.value == "master":
            self._check_group(node.group, node.address, node.state)
        self._check_controls(node)

    def _check_controls(self, node: SimDelayNode) -> None:
        """A node knows what is paused, and an operator that it does."""
        now, server = trio.current_time(), self.server
        if not node.is_alive or node.name in self._lost_for_good or server is None:
            return
        if now - node.follows_since_s < CONTROLS_WITHIN_S:
            return
        if not self.witness.has_controls(node.told, now - CONTROLS_WITHIN_S):
            self.witness.complain(f"told: {node.name} has {node.told}, {node.controls_refused!r}")
        _, note = server.handlers.group_changes.controls_at((CLUSTER, node.group, node.node_id))
        if note:
            self.witness.complain(f"told: of {node.name} an operator is told {note!r}")

    async def _see_pushes(self) -> None:
        """Change things; every client is told without asking."""
        for client in self.clients:
            client.is_ticking = False
        chance = self._chance
        for _ in range(_PROBES):
            kept = len(self.medium.commits)
            how = chance.choice(
                ("operator", "controls", "neighbour", "state", "stop", "vanish", "deaf")
            )
            self.result.faults[f"probe: {how}"] += 1
            if how == "operator":
                await self._operate()
            elif how == "controls":
                await self._change_controls()
            elif how == "neighbour":
                await self._be_second()
            elif how == "deaf":
                await self._change_unheard()
            else:
                broker = chance.choice(self.brokers)
                if how == "state":
                    broker.report(chance.choice((BrokerState.R, BrokerState.W)))
                elif how == "stop":
                    broker.stop()
                else:
                    broker.die(self._draw_death()("probe"))
                with trio.move_on_after(45):
                    while not self._has_changed(broker.group, kept):  # noqa: ASYNC110 (the store)
                        await trio.sleep(0.1)
            await trio.sleep(PUSHED_WITHIN_S)
            if self.is_ample:
                self._check_clients(f"by a push after {how}")
            for node in self.nodes:
                self._check_controls(node)
        for client in self.clients:
            client.is_ticking = True

    async def _be_second(self) -> None:
        """Change controls just after another meta server has changed them in the same store."""
        conflicts = f"store: {Outcome.CONFLICT.value}"
        kept = self.result.faults[conflicts]
        async with trio.open_nursery() as nursery:
            self.store_faults.chances = {Outcome.CONFLICT: 1.0}
            nursery.start_soon(self._change_controls)
            with trio.move_on_after(_ANSWERED_WITHIN_S):
                while self.result.faults[conflicts] == kept:  # noqa: ASYNC110 (a count)
                    await trio.sleep(0.05)
            self.store_faults.chances = {}

    async def _change_unheard(self) -> None:
        """Change much while a client takes nothing, over connections that hold little."""
        client = self._chance.choice(self.clients)
        client.deaf_until_s = trio.current_time() + 7
        self.network.plan = NetworkPlan(buffer_bytes=300)
        for number in range(7):
            # Each time all that it produces has another route.
            change = partial(
                self._regroup, name=_REAL_GROUPS[number % 2], is_read_only=number % 4 < 2
            )
            await self._operator.change(change)
            await trio.sleep(0.7)
        await trio.sleep_until(client.deaf_until_s)
        self.network.plan = NetworkPlan()

    def _has_changed(self, group: str, since: int) -> bool:
        return bool(
            self.medium.changed_in(model.BrokerGroup, group, since, len(self.medium.commits))
        )

    # -- bounds ------------------------------------------------------------------------------

    async def _look_at_bounds(self) -> None:
        """Look now and then at what the server holds."""
        limits, push = self.config.registration, self.config.push
        while True:
            await trio.sleep(1.7)
            # What was given up and is kept all the same comes on top, a commit at a time.
            late = limits.commit_requests_max * self.result.faults[f"store: {Outcome.LATE.value}"]
            server = self.server
            if server is None or not server.ready.is_set() or not self.node.is_alive:
                continue
            committer = server.committer
            connections = server.listener.open_connections if server.listener else 0
            uses = [len(session.uses) for session in server.handlers.sessions]
            held = {
                "subscriptions": (server.handlers.sessions.uses, push.subscriptions_max),
                "of a connection": (
                    max(uses, default=0),
                    push.subscriptions_per_connection_max,
                ),
                "counted subscriptions": (abs(server.handlers.sessions.uses - sum(uses)), 0),
                "waiting": (len(committer._waiting), limits.waiting_max),
                "urgent": (len(committer._urgent), limits.waiting_max),
                "pending": (
                    len(committer._pending),
                    3 * (limits.waiting_max + limits.commit_requests_max),
                ),
                "subjects": (len(self.medium.rows[model.Subject]), limits.subjects_max + late),
                "routes": (
                    len(self.medium.rows[model.Route]),
                    limits.subjects_max + late + len(_SUBJECTS) + 1,
                ),
                "groups": (len(self.medium.rows[model.BrokerGroup]), limits.groups_max + late),
                "connections": (connections, self.config.listener.connections_max),
                "nodes that watch": (len(server.handlers.held), connections),
            }
            beyond = [(what, *held[what]) for what in held if held[what][0] > held[what][1]]
            for what, count, most in beyond:
                self.witness.complain(f"bounded: {count} {what}, at most {most}")
            if beyond:
                return


def draw_settings(chance: random.Random) -> tuple[MetaServerConfig, bool]:
    """Draw settings; say whether all clients have their place, so that pushes reach them."""
    small = chance.random() < 0.4
    registration = RegistrationConfig(groups="open")
    push = PushConfig(gather_ms=chance.choice((0, 50, 50, 500)))
    listener = ListenerConfig(address=f"{META[0]}:{META[1]}")
    routing = RoutingLimits(
        delay_groups_per_subject=chance.choice((1, 2, 2, 3)),
        groups_per_subject=chance.choice((1, 2, 2)),
    )
    is_ample = True
    if small:
        registration = RegistrationConfig(
            groups="open",
            subjects_max=chance.choice((1_000_000, 40)),
            new_subjects_per_second_max=chance.choice((1000.0, 5.0)),
            new_subjects_burst_seconds=chance.choice((20.0, 2.0)),
            groups_max=chance.choice((2000, 12)),
            waiting_max=chance.choice((20_000, 20)),
            commit_requests_max=chance.choice((200, 1, 5)),
        )
        if chance.random() < 0.4:
            is_ample = False
            push = PushConfig(
                subscriptions_max=chance.choice((500_000, 15)),
                subscriptions_per_connection_max=chance.choice((200_000, 4)),
            )
        if chance.random() < 0.6:
            push = dataclasses.replace(push, retry_ms=100)
            listener = ListenerConfig(
                address=f"{META[0]}:{META[1]}",
                in_flight_requests_max=8,
                unsent_bytes_pause=600,
                unsent_bytes_max=60_000,
                connections_max=40,
            )
    config = MetaServerConfig(
        node=NodeConfig(data_dir=Path("unused"), stop_ms_max=500),
        listener=listener,
        registration=registration,
        push=push,
        routing=routing,
    )
    return config, is_ample


def rules_of(config: MetaServerConfig) -> Rules:
    """Return the settings that the judge has to know."""
    registration, routing = config.registration, config.routing
    return Rules(
        delay_groups_per_subject=routing.delay_groups_per_subject,
        groups_per_subject=routing.groups_per_subject,
        broker_timeout_s=registration.broker_timeout_ms / 1000,
        new_subjects_per_second=registration.new_subjects_per_second_max,
        new_subjects_burst=registration.new_subjects_per_second_max
        * registration.new_subjects_burst_seconds,
    )


def _draw_uses(chance: random.Random, client_id: str) -> list[Use]:
    def use(kind: int, subject: str, group: str = "") -> Use:
        return Use(kind, subject, group, client_id)

    uses = [use(ClientType.DELAY_PRODUCER, subject) for subject in chance.sample(_SUBJECTS, k=2)]
    uses += [use(ClientType.PRODUCER, subject) for subject in chance.sample(_SUBJECTS, k=2)]
    for subject in chance.sample(_SUBJECTS, k=2):
        uses.append(use(ClientType.CONSUMER, subject, "desk"))
        uses.append(use(ClientType.CONSUMER, f"%RETRY%{subject}%desk", "desk"))
    if chance.random() < 0.5:
        uses.append(use(ClientType.OTHER, chance.choice(_SUBJECTS)))
    if chance.random() < 0.3:
        uses.append(use(ClientType.PRODUCER, f"own.{client_id.replace(' ', '')}"))
    return uses


def run_meta_world(seed: int, *, trace: Trace | None = None) -> MetaResult:
    """Run one seed and check its promises; whatever goes wrong is in `violations`."""
    with quiet():
        world = run_deterministic(seed, _run, seed, trace)
    return world.result


async def _run(seed: int, trace: Trace | None) -> MetaWorld:
    world = MetaWorld(seed, trace=trace)
    result = world.result
    try:
        with trio.fail_after(6 * 3600):
            await world.run()
    except (Exception, ExceptionGroup) as error:  # noqa: BLE001 (a finding, whatever it is)
        result.violations.append("".join(traceback.format_exception(error)))
    result.violations = [*world.witness.complaints, *result.violations]
    result.counts = world.witness.counts
    result.commits = len(world.medium.commits)
    result.virtual_s = trio.current_time()
    result.digest = world.trace.digest()
    return world
