"""One seed, one world: the real delay server and the real meta server, and broker groups between.

It is the delay server's world (world.py), with all that strikes it there, but nobody tells the
server where its broker groups are: they register at a meta server as QMQ's brokers do, go away,
vanish and come back, some at another address, and the server asks for the route of each subject.

    result = run_cluster_world(seed)    # never raises for a broken promise: see result.violations

Drawn, two at a time, since faults meet:

    meta server   stopped, killed, cut off power, now or at a step of its next start; away for up to
                  some minutes
    its store     refuses, loses, keeps without saying so, keeps late, is changed by others, is
                  slow, is down for up to two minutes; is set back by up to some minutes, while the
                  meta server runs or while it is away: then it answers as it did long ago
    links         between the meta server and the delay server, brokers or a client: silent in one
                  direction or both; what was said comes late, or never
    groups        one or all stop or vanish for up to some minutes, and some come back elsewhere
    operator      routes of subjects and of a prefix, to groups that do not exist too; groups that
                  are read-only, retired and brought back, new, moved to another address; one
                  that an older version let be at what is no address
                  a hot subject moved in a rush from a group that takes nothing
    copies        a copy of the delay server's disk registers in its place, as a later start of it

All that world.py holds is held here, with another rule for promise 9, and beside it (in words that
violations begin with; cluster_judge.py has the times and reasons):

    isolated  what is due leaves in 40 s while a group of its subject does its work, if the server
              was told of that group when all was well and has had a use for it since: whatever
              becomes of other groups, and of the meta server
    stuck     what is due at the end of all faults, or later, leaves within `CONVERGED_S`, 40 s, and
              the time in which the server notices that its clock was set
    routed    a message goes only to a group that the store had in its subject's route, not longer
              ago than `CONVERGED_S` of good order, nor before the start of the server
    found     `CONVERGED_S` after the end of all faults clients are told what the store says, and
              that the delay server takes messages
    epoch     each start that serves begins a higher epoch in the log than all before; each epoch in
              the log is one of which the record in the store named this node as the master
    fenced    of a server that was refused, or was told of another epoch, nobody hears any more; it
              ends some time after a copy has begun another one, or the record has come to be in
              another one, if nothing keeps it from hearing that; and it is not refused without
              reason

and of the client, what meta_witness.py judges at each answer: right, stable, time, refused.
"""

import contextlib
import math
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from uuid import UUID

import msgspec
import trio

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.meta.requests import BrokerRole, ClientType
from delay_protocol.nodes.registration import (
    NodeRegister,
    NodeRegistered,
    decode_node_reply,
    encode_node_register,
)
from delay_server.node import Node
from delay_server.server import DelayServer
from delay_server.settings.config import MetaConfig, RoutesConfig
from delay_server.settings.errors import MembershipError
from delay_transport.seams.runtime import format_address, parse_address
from meta_server.groups.routing import route_of
from meta_server.known import model
from storage.disk.errors import StorageError
from tests.kit.plans import action, put
from tests.simulation import cluster_meta
from tests.simulation import independent_reader as reader
from tests.simulation.broker import AWAY, SimBroker
from tests.simulation.cluster_gating import MetaGating
from tests.simulation.cluster_judge import CONVERGED_S, TOLD_S, ClusterJudge, Wellness, turns_s
from tests.simulation.configuration import BROKER_ADDRESSES, SERVER_ADDRESS, Groups, SmallConfig
from tests.simulation.crash import Ending, Life
from tests.simulation.determinism import derive
from tests.simulation.faults import Death, Kill, PowerCut
from tests.simulation.gating import subjects_of
from tests.simulation.independent_reader import MismatchError
from tests.simulation.meta_peers import Call, Process, SimClient
from tests.simulation.meta_store import Outcome
from tests.simulation.meta_witness import Use
from tests.simulation.producer import HotBurst
from tests.simulation.trace import Trace
from tests.simulation.world import World, WorldResult, judge

_ADDRESSES = {
    "g1": ("10.0.1.1:20881",),
    "g2": ("10.0.1.2:20881", "10.0.1.22:20881"),
    "g3": ("10.0.1.3:20881", "10.0.1.33:20881"),
}
"""Where each group may come back."""
_NEW_GROUP = "g4"
"""One that an operator brings into being, and moves: it does not register."""
_NEW_ADDRESSES = ("10.0.1.4:20881", "10.0.1.44:20881")
_SUBJECTS = ("orders", "orders.paid", "flights", "grüße", "hot")
_PREFIX = "orders"
_MINUTE_MS = 60_000
_BACK_S = 600.0
"""In which every group that is away is back."""
_FENCED_S = 25.0
"""In which a server notices that another start of it has registered, if it can ask: a lease, an
answer that is given up, and another try."""
_REROUTED_S = 100.0
"""In which, when all faults are over, the operator changes routes once more."""
_ANOTHER_STORE = 0.5
"""Of the stores that are set back so many were lost, and others have their rows."""
_HELD_UP_S = 30.0
"""For which a disk that is slow or full may keep the server from new rules."""
_STALLED_S = 5.0
"""The same, where a call of a disk that is in order takes long now and then."""
_PACER_SLEEP_MS = 60_000
"""Idle hours are cheaper this way, and a clock that was set is noticed soon."""


class _EndsWhenFenced(DelayServer):
    """A server whose process ends when it has lost its role, as an operator may restart it.

    What it does then by itself, waiting for its role in the same process, is tested in
    tests/delay_server/test_mastership.py.
    """

    async def stay_registered(self, node: Node) -> None:
        await super().stay_registered(node)
        if self.fenced is not None:
            raise self.fenced


class ClusterWorld(World):
    """Everything that belongs to one seed."""

    broker_kind = cluster_meta.MovingBroker
    is_routed = True
    groups_fail_alone = False
    server_kind = _EndsWhenFenced
    gating_kind = MetaGating
    gating_chance = 0.5
    hot_chance = 0.25
    # What is dead is late by its nature; dead letters are tried in the world of one server.
    poison_chance = 0.0
    may_have_receivers = False
    may_have_changes = False
    expected = (StorageError, OSError, MembershipError)

    def __init__(self, seed: int, *, trace: Trace | None = None) -> None:
        self._routing = derive(seed, "routes")
        self._burst: HotBurst | None = None
        self._has_few_subjects = False
        """Whether in some life the server kept so few routes that subjects had to wait."""
        super().__init__(seed, trace=trace)
        self.pacer_sleep_ms_max = _PACER_SLEEP_MS
        self.witness.clock_heed_s = self.pacer_sleep_ms_max / 1000 + 60
        self.last_delivery_s = 900.0
        self._chance_of_cluster = derive(seed, "cluster")
        well = Wellness()
        self.meta = cluster_meta.SimMeta(
            seed, network=self.network, trace=self.trace, result=self.result, well=well
        )
        self._judge = ClusterJudge(
            self.witness, self.meta.witness, well, self.result.counts, gating=self.gating
        )
        if isinstance(self.gating, MetaGating):
            self.gating.attach(
                self.meta,
                well=well,
                network=self.network,
                counts=self.result.counts,
                cluster=self._cluster,
                may_be_full=self._disk_may_be_full,
            )
        self.masters = [self._make_master(broker) for broker in self.brokers]
        self._new_broker = cluster_meta.MovingBroker(
            _NEW_GROUP,
            parse_address(_NEW_ADDRESSES[0]),
            network=self.network,
            chance=derive(seed, _NEW_GROUP),
            witness=self.witness,
            on_request=self._request_arrived,
            faults=self.result.faults,
        )
        self.brokers.append(self._new_broker)
        self._client = SimClient(
            "client",
            network=self.network,
            chance=derive(seed, "client"),
            witness=self.meta.witness,
            uses=[
                Use(ClientType.DELAY_PRODUCER, "orders.paid", "", "client"),
                Use(ClientType.DELAY_PRODUCER, "flights", "", "client"),
                Use(ClientType.PRODUCER, "orders", "", "client"),
                Use(ClientType.CONSUMER, "%RETRY%orders%billing", "billing", "client"),
            ],
        )
        self._copy = Process("copy", self.network, derive(seed, "copy"))
        self._copied = 0
        """The highest incarnation with which a copy of the disk has registered."""
        self._told_s = math.inf
        """When this life of the server was seen to know that it is refused."""
        self._set_backs = 0
        """Of the store, when this life of the server began."""
        self._epoch = 0
        """The newest in the log when a life ended last."""
        self._was_wired = False
        self._disturbing = trio.CancelScope()
        chance = self._chance_of_cluster
        kinds: dict[Callable[[], Awaitable[None]], float] = {
            self._end_meta: 5,
            self._fail_store: 4,
            self._set_store_back: 2,
            self._split: 5,
            self._end_group: 4,
            self._end_all_groups: 1,
            self._end_client: 0.5,
            self._reroute: 3,
            self._route_prefix: 1.5,
            self._route_to_nowhere: 1.5,
            self._read_only: 1,
            self._retire: 1.5,
            self._change_new_group: 4,
            self._copy_disk: 1.5,
        }
        self._rounds = chance.choices(list(kinds), list(kinds.values()), k=chance.randint(12, 20))

    def _make_master(self, broker: SimBroker) -> cluster_meta.GroupMaster:
        name = broker.name
        assert isinstance(broker, cluster_meta.MovingBroker)
        assert parse_address(_ADDRESSES[name][0]) == broker.address
        master = cluster_meta.GroupMaster(
            f"master {name}",
            group=name,
            addresses=_ADDRESSES[name],
            role=BrokerRole.MASTER,
            entered=None,
            network=self.network,
            chance=derive(self.seed, f"master {name}"),
            witness=self.meta.witness,
            faults=self.result.faults,
        )
        master.broker = broker
        return master

    @property
    def _group(self) -> str:
        """The name of the delay server's group."""
        group = self.config.node.group
        assert group is not None
        return group

    @property
    def _cluster(self) -> str:
        """The name of the delay server's cluster."""
        cluster = self.config.node.cluster
        assert cluster is not None
        return cluster

    # -- what is drawn -----------------------------------------------------------------------

    def _draw_groups(self, chance: random.Random) -> Groups:
        """Return three that register; the configuration loses them again."""
        del chance
        addresses = {name: BROKER_ADDRESSES[name] for name in _ADDRESSES}
        return Groups(addresses=addresses, constant=tuple(addresses))

    def _draw_length(self, shape: random.Random) -> tuple[bool, float]:
        """Return a shorter time than elsewhere: heartbeats never end."""
        return False, shape.uniform(0.4, 0.65) * 3600

    def _busy_minutes(self, shape: random.Random, start_ms: int, *, days: bool) -> list[int]:
        del days
        ahead = [shape.uniform(2, 15) for _ in range(14)] + [
            shape.uniform(15, 40) for _ in range(14)
        ]
        return [start_ms + round(minutes * _MINUTE_MS) for minutes in ahead]

    def _draw_burst(self, shape: random.Random, start_ms: int) -> HotBurst | None:
        self._burst = super()._draw_burst(shape, start_ms)
        return self._burst

    def _draw_configuration(self) -> SmallConfig:
        config = super()._draw_configuration()
        chance = self._routing
        subjects_max = 30 if chance.random() < 0.15 else 200_000
        config = msgspec.structs.replace(
            config,
            brokers={},
            meta=MetaConfig(addresses=format_address(cluster_meta.META_HTTP)),
            routes=RoutesConfig(
                subjects_max=subjects_max,
                unused_ms=chance.choice((600_000, 60_000)),
                questions_max=chance.choice((256, 2)),
            ),
        )
        # What is due beyond the subjects that may be unrouted is loaded again after `unused_ms`.
        self._has_few_subjects |= subjects_max == 30 or config.unrouted_max == 1
        return config

    # -- the run -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Run it; then judge what was seen of the cluster."""
        await super().run()
        self._judge.check_routed(self.network.resets_s)
        if not self._has_few_subjects:
            brokers = (*(master.broker for master in self.masters), self._new_broker)
            places = {broker.name: broker.place_at for broker in brokers}
            self._judge.check_on_time({cluster_meta.ODD: lambda _: "", **places})
        self.meta.witness.judge_controls()
        self.witness.complaints += self.meta.witness.complaints

    def _start_others(self, nursery: trio.Nursery) -> None:
        self._new_broker.leave()
        nursery.start_soon(self.meta.run)
        for master in self.masters:
            nursery.start_soon(master.run)
        nursery.start_soon(self._client.run)
        nursery.start_soon(self._watch_epoch)
        nursery.start_soon(self._disturb)
        if isinstance(self.gating, MetaGating):
            nursery.start_soon(self.gating.operate, nursery)

    async def _disturb(self) -> None:
        with self._disturbing:
            # Two at a time, since faults meet.
            async with trio.open_nursery() as nursery:
                for several in (self._rounds[::2], self._rounds[1::2]):
                    nursery.start_soon(self._disturb_with, several)
                nursery.start_soon(self._route_to_odd)
                if self._burst is not None:
                    nursery.start_soon(self._move_hot, self._burst)

    async def _disturb_with(self, several: Sequence[Callable[[], Awaitable[None]]]) -> None:
        for disturb in several:
            await trio.sleep(self._chance_of_cluster.uniform(0, self.length_s / 2 / len(several)))
            await disturb()

    async def _see_everything_delivered(self) -> None:
        await self._end_all_faults()
        if self._routing.random() < 0.4:
            # Something to wait for until the very end.
            await self.meta.reroute(self._routing.choice(_SUBJECTS), (cluster_meta.NOWHERE,))
        # The server's last start knows routes by then, and has to follow.
        await trio.sleep(self._routing.uniform(0, _REROUTED_S))
        if self.gating is not None:
            await self.gating.all_open.wait()
        calm_s = trio.current_time()
        await self.meta.reroute(_PREFIX, (), is_prefix=True)
        for subject in _SUBJECTS:
            if self._routing.random() < 0.5 or not self._has_a_place(subject):
                await self.meta.reroute(subject, (self._routing.choice(self.masters).group,))
        # What was changed so lately need not be known.
        await trio.sleep(1)
        changed_s = trio.current_time()
        await trio.sleep(CONVERGED_S)
        self._judge.check_found(
            [self._client],
            group=self._group,
            address=format_address(SERVER_ADDRESS),
            since_s=changed_s,
        )
        if isinstance(self.gating, MetaGating):
            await self.gating.operate_in_calm()
        subjects = set(subjects_of(self.witness.items).values())
        self.last_delivery_s += turns_s(len(subjects), self.config.routes)
        await super()._see_everything_delivered()
        if not self._has_few_subjects:
            self._judge.check_stuck(calm_s)

    async def _end_all_faults(self) -> None:
        """End what goes wrong, and have the operator put right what nobody else can."""
        meta = self.meta
        self._disturbing.cancel()
        meta.faults.chances, meta.faults.down_until_s = {}, 0.0
        # One that is still to come never does.
        meta.node.crash_at_step(1 << 60)
        self.network.heal()
        with trio.move_on_after(_BACK_S):
            while not (  # noqa: ASYNC110 (of many things)
                self._judge.well.since_s < math.inf
                and all(one.is_serving for one in self.masters)
                and self._client.is_alive
            ):
                await trio.sleep(1)
        self._client.is_ticking = True
        for name in (*self.groups.addresses, _NEW_GROUP):
            await meta.change(action("broker-group", "restore", name))
            await meta.change(action("broker-group", "read-only", name, read_only=False))
        row = meta.registry.groups.get(_NEW_GROUP)
        if row is not None:
            self._new_broker.come(parse_address(row.master))

    def _has_a_place(self, subject: str) -> bool:
        """Say whether a subject has a route to a group that there is."""
        registry = self.meta.registry
        return any(name in registry.groups for name in route_of(registry, subject) or ())

    # -- lives of the delay server -----------------------------------------------------------

    async def _serve(self, life: Life) -> None:
        if isinstance(self.gating, MetaGating):
            plan = life.disk.plan
            is_slow = self.is_small or plan.slow_sync or plan.full or plan.full_sync
            stalls_s = _STALLED_S if self.node.executor_plan.stall_chance else 0.0
            self.gating.life_begins(slow_s=_HELD_UP_S if is_slow else stalls_s)
        try:
            await super()._serve(life)
        finally:
            self._was_wired = self.server is not None and self.server.ready.is_set()

    async def _live(self, *, count_steps: bool = False) -> Ending:
        """Run one life; one that is fenced off is followed by another at once."""
        while True:
            # Before its first step: it may die there.
            self._told_s, self._was_wired = math.inf, False
            self._set_backs = self.meta.set_backs
            ending = await super()._live(count_steps=count_steps)
            durable = self._whole(self.node.disk.contents(durable=True))
            self._check_epochs(durable)
            if isinstance(self.gating, MetaGating):
                self.gating.check_kept(durable)
            if not isinstance(ending.error, MembershipError):
                return ending
            told_s = min(self._told_s, trio.current_time())
            self.result.faults[type(ending.error).__name__] += 1
            self.witness.server_died()
            self._check_refused(durable, ending.error)
            under_way_s, plan = self.witness.under_way_s, self.node.disk.plan
            await trio.sleep(self._routing.uniform(1, 8))
            self._check_silent(told_s + under_way_s)
            self.node.revive().plan = plan

    @property
    def _heard_s(self) -> float:
        """In which a server hears what the record says, if it can ask."""
        return _FENCED_S + self.meta.config.registration.node_again_ms / 1000

    async def _watch_epoch(self) -> None:
        """Complain of a server that goes on in another epoch than the record's."""
        life, since_s = -1, math.inf
        while True:
            await trio.sleep(15)
            server = self.server
            if server is None or not server.is_master or not self.node.is_alive:
                continue
            if self.node.lives != life:
                life, since_s = self.node.lives, trio.current_time()
            well_s = trio.current_time() - max(self._judge.well.since_s, since_s)
            medium, epoch = self.meta.medium, server.node.store.message_log.last_epoch
            before, now = (
                medium.row_at(model.DelayGroup, self._group, medium.number_at(at_s))
                for at_s in (trio.current_time() - self._heard_s, trio.current_time())
            )
            is_other = now is None or now.record.epoch != epoch
            if well_s > self._heard_s and before == now and is_other:
                self.witness.complain(f"fenced: a server goes on in epoch {epoch}, not {now}")
                return

    def _check_epochs(self, durable: Mapping[str, bytes]) -> None:
        """Complain of epochs in the log that this node was not given, or that do not grow."""
        epochs: list[int] = []
        for path in sorted(path for path in durable if path.startswith("message_log/0")):
            # A crash may have left a part of an append at the end.
            with contextlib.suppress(MismatchError):
                for batch in reader.read_batches(durable[path]):
                    epochs.append(batch.epoch)  # noqa: PERF401 (those before the end count)
        if any(later < earlier for earlier, later in pairwise(epochs)):
            self.witness.complain(f"epoch: the log has epochs {epochs}")
        newest = max(epochs, default=0)
        if self._was_wired and newest <= self._epoch:
            self.witness.complain(f"epoch: a start began {newest}, after {self._epoch}")
        self._epoch = max(newest, self._epoch)
        given = self._epochs_given()
        if not given.issuperset(epochs):
            self.witness.complain(f"epoch: the log has {sorted(set(epochs) - given)}, not {given}")

    def _epochs_given(self) -> set[int]:
        """Return the epochs of which the record has ever named the node as the master."""
        node, medium = self.config.node, self.meta.medium
        assert node.group is not None
        rows = [
            medium.row_at(model.DelayGroup, node.group, number)
            for number in range(len(medium.commits) + 1)
        ]
        return {
            row.record.epoch
            for row in rows
            if row is not None and row.record.master and row.record.master.node_id == node.node_id
        }

    def _check_refused(self, durable: Mapping[str, bytes], error: MembershipError) -> None:
        _uuid, incarnation = reader.read_incarnation(durable["identity"])
        # A node whose log has more than the record begins a new epoch.
        is_set_back = self.meta.set_backs > self._set_backs
        if self._copied < incarnation and not is_set_back:
            self.witness.complain(f"fenced: start {incarnation} refused without reason: {error}")

    def _check_silent(self, since_s: float) -> None:
        """Complain of what was heard of a server that had been fenced off."""
        heard = [one.message_id for one in self.witness.receipts if one.at_s > since_s]
        heard += [one for one, at_s in self.witness.acknowledged.items() if at_s > since_s]
        if heard:
            self.witness.complain(f"fenced: {len(heard)} messages after {since_s}: {heard[:3]}")

    # -- what goes wrong ---------------------------------------------------------------------

    def _draw_death(self) -> type[Death]:
        return self._chance_of_cluster.choice((PowerCut, Kill))

    @contextlib.contextmanager
    def _amiss(self, what: str) -> Iterator[None]:
        """Let the judge know that something is wrong until the end of the block."""
        self._judge.well.begin(what)
        try:
            yield
        finally:
            self._judge.well.end(what)

    async def _end_meta(self) -> None:
        """End the meta server, in one of two cases once more at a step of its next start."""
        chance, meta = self._chance_of_cluster, self.meta
        meta.pause_s = chance.choice((chance.uniform(0.01, 3), chance.uniform(3, 200)))
        if chance.random() < 0.3:
            meta.stop.set()
        else:
            meta.node.crash(self._draw_death(), "drawn")
        while meta.node.is_alive:  # noqa: ASYNC110 (it needs a while to stop)
            await trio.sleep(0.1)
        if chance.random() < 0.5:
            meta.node.crash_at_step(round(8000 ** chance.random()), self._draw_death())
        await trio.sleep(chance.uniform(0, 5))

    async def _fail_store(self) -> None:
        chance, faults = self._chance_of_cluster, self.meta.faults
        with self._amiss("store"):
            if chance.random() < 0.3:
                self.result.faults["meta store down"] += 1
                for_s = chance.uniform(5, 120)
                faults.down_until_s = trio.current_time() + for_s
                await trio.sleep(for_s)
                return
            some = chance.sample(list(Outcome), k=chance.randint(1, 3))
            faults.chances = {one: chance.choice((0.05, 0.3, 1.0)) for one in some}
            await trio.sleep(chance.uniform(5, 120))
            faults.chances = {}
            # What is kept late is kept by then.
            await trio.sleep(5)

    async def _set_store_back(self) -> None:
        """Let the store be an older one, while the meta server runs or while it does not."""
        chance, meta = self._chance_of_cluster, self.meta
        by_s = chance.choice((chance.uniform(1, 30), chance.uniform(30, 600)))
        is_another = chance.random() < _ANOTHER_STORE
        if is_another:
            self.result.faults["another store with rows of before"] += 1
            by_s = chance.uniform(30, 600)
        if chance.random() < 0.5:
            self.result.faults["store set back, the meta server away"] += 1
            meta.pause_s = chance.uniform(1, 30)
            meta.node.crash(self._draw_death(), "drawn")
        else:
            self.result.faults["store set back"] += 1
        meta.set_back(by_s, is_another=is_another)
        await trio.sleep(chance.uniform(0, 20))

    async def _split(self) -> None:
        """Let some peers and the meta server hear nothing of each other, or one not of the other.

        What is said meanwhile comes late, if it comes.
        """
        chance, meta = self._chance_of_cluster, self.meta.node.name
        peers = [self.node.name, self._client.name, *(one.name for one in self.masters)]
        some = [peers[0]] if chance.random() < 0.5 else chance.sample(peers, k=chance.randint(1, 5))
        ways = chance.choice((("in", "out"), ("in",), ("out",)))
        for peer in some:
            who = "brokers" if peer.startswith("master") else peer
            self.result.faults[f"split from {who}: {' and '.join(ways)}"] += 1
        links = [(peer, meta) for peer in some if "in" in ways]
        links += [(meta, peer) for peer in some if "out" in ways]
        with self._amiss("split"):
            for link in links:
                self.network.block(*link)
            await trio.sleep(chance.choice((chance.uniform(0.5, 10), chance.uniform(10, 250))))
            # Other links may be silent for other reasons.
            for link in links:
                self.network.unblock(*link)

    async def _end_group(self) -> None:
        self._end_master(self._chance_of_cluster.choice(self.masters))

    def _end_master(self, master: cluster_meta.GroupMaster) -> None:
        chance = self._chance_of_cluster
        master.down_for_s = chance.choice(
            (chance.uniform(0.1, 20), chance.uniform(20, 120), chance.uniform(120, 400))
        )
        if chance.random() < 0.4:
            self.result.faults["group left"] += 1
            master.stop()
        else:
            self.result.faults["group vanished"] += 1
            master.die(self._draw_death()("drawn"))

    async def _end_all_groups(self) -> None:
        for master in self.masters:
            self._end_master(master)

    async def _end_client(self) -> None:
        self.result.faults["client ended"] += 1
        self._client.die(self._draw_death()("drawn"))

    async def _reroute(self) -> None:
        """Have an operator choose the groups of a subject, or leave that to the meta server."""
        chance = self._chance_of_cluster
        subject = chance.choice(_SUBJECTS)
        self.result.faults["operator: route"] += 1
        names = [master.group for master in self.masters]
        await self.meta.reroute(subject, tuple(chance.sample(names, k=chance.choice((0, 1, 2)))))

    async def _move_hot(self, burst: HotBurst) -> None:
        """Have an operator move the hot subject away from a group that takes nothing, in a rush."""
        chance = self._chance_of_cluster
        first, second = chance.sample(self.masters, k=2)
        due_in_s = (burst.due_ms - self.clock.now_ms()) / 1000
        await trio.sleep(max(due_in_s - chance.uniform(5, 60), 0))
        await self.meta.reroute("hot", (first.group,))
        due_in_s = (burst.due_ms - self.clock.now_ms()) / 1000
        await trio.sleep(max(due_in_s - chance.uniform(0, 10), 0))
        self.result.faults["operator: route of a hot subject"] += 1
        first.broker.fail(chance.choice(AWAY))
        await trio.sleep(chance.uniform(1, 30))
        await self.meta.reroute("hot", (second.group,))
        await trio.sleep(TOLD_S + chance.uniform(5, 60))
        first.broker.recover()

    async def _route_prefix(self) -> None:
        """Have an operator choose the groups of all subjects with a prefix, for a while."""
        chance = self._chance_of_cluster
        self.result.faults["operator: route of a prefix"] += 1
        names = [master.group for master in self.masters]
        groups = (
            (cluster_meta.NOWHERE,) if chance.random() < 0.5 else tuple(chance.sample(names, k=2))
        )
        await self.meta.reroute(_PREFIX, groups, is_prefix=True)
        await trio.sleep(chance.uniform(10, 400))
        await self.meta.reroute(_PREFIX, (), is_prefix=True)

    async def _route_to_nowhere(self) -> None:
        """Leave a subject without any group for a while."""
        chance = self._chance_of_cluster
        subject = chance.choice(_SUBJECTS)
        self.result.faults["subject without a route"] += 1
        await self.meta.reroute(subject, (cluster_meta.NOWHERE,))
        await trio.sleep(chance.uniform(10, 600))
        await self.meta.reroute(subject, chance.choice(((), ("g2",), ("g1", "g3"))))

    async def _route_to_odd(self) -> None:
        """Have a subject go to a group at what is no address as well, now and then."""
        chance = derive(self.seed, "odd addresses")
        for _ in range(chance.randint(0, 3)):
            await trio.sleep(chance.uniform(0, self.length_s / 4))
            self.result.faults["group at no address"] += 1
            await self.meta.place_odd(chance.choice(cluster_meta.ODD_ADDRESSES))
            groups = (chance.choice(self.masters).group, cluster_meta.ODD)
            await self.meta.reroute(chance.choice(_SUBJECTS), groups)

    async def _read_only(self) -> None:
        chance = self._chance_of_cluster
        name = chance.choice(self.masters).group
        self.result.faults["operator: read-only"] += 1

        async def be(read_only: bool) -> None:
            plan = action("broker-group", "read-only", name, read_only=read_only)
            await self.meta.change(plan)

        await be(True)
        await trio.sleep(chance.uniform(10, 400))
        await be(False)

    async def _retire(self) -> None:
        """Have a group retired although messages may be in it, and brought back later."""
        chance = self._chance_of_cluster
        name = chance.choice([*(master.group for master in self.masters), _NEW_GROUP])
        if await self.meta.change(action("broker-group", "retire", name, lose_messages=True)):
            self.result.faults["operator: retired"] += 1
        await trio.sleep(chance.uniform(10, 400))
        await self.meta.change(action("broker-group", "restore", name))

    async def _change_new_group(self) -> None:
        """Have a group added, or moved, or let it be gone for a while; send something there."""
        chance, meta, broker = self._chance_of_cluster, self.meta, self._new_broker
        before = format_address(broker.address)
        address = chance.choice(_NEW_ADDRESSES)
        broker.come(parse_address(address))
        if await meta.change(put("broker-group", _NEW_GROUP, is_new=True, address=address)):
            self.result.faults["operator: new group"] += 1
        elif address != before:
            self.result.faults["operator: group moved"] += 1
            await meta.reroute(chance.choice(_SUBJECTS), (_NEW_GROUP,))
            await trio.sleep(chance.uniform(0, 20))
            await meta.change(put("broker-group", _NEW_GROUP, address=address))
            return
        else:
            self.result.faults["new group gone for a while"] += 1
            broker.leave()
            await trio.sleep(chance.uniform(1, 120))
            # It may have been moved meanwhile.
            broker.come(broker.address)
        if chance.random() < 0.7:
            groups = chance.choice(((_NEW_GROUP,), (_NEW_GROUP, "g1")))
            await meta.reroute(chance.choice(_SUBJECTS), groups)

    def _lives_on(self, life: int) -> bool:
        """Say whether that life of the server goes on; note when it was told that it must not."""
        server = self.server
        if not (self.node.is_alive and self.node.lives == life) or server is None:
            return False
        if server.fenced is not None:
            self._told_s = min(self._told_s, trio.current_time())
        return True

    async def _copy_disk(self) -> None:
        """Let a copy of the server's disk register as a later start of it."""
        server = self.server
        is_alone = self.node.is_alive and not self._copy.is_alive
        if server is None or not server.is_master or not is_alone:
            return
        identity = server.node.store.identity
        copied = identity.incarnation + 1
        request = NodeRegister(
            cluster=identity.cluster,
            group=identity.group,
            node_id=identity.node_id,
            log_uuid=identity.log_uuid,
            storage_uuid=identity.storage_uuid,
            incarnation=copied,
            boot_id=UUID(int=copied),
            last_sequence=server.node.store.message_log.next_sequence - 1,
            last_epoch=server.node.store.message_log.last_epoch,
            address=format_address(SERVER_ADDRESS),
            http_address="",
            version="1.0",
        )
        # It may be registered although no answer says so.
        self._copied = max(copied, self._copied)
        registered: list[NodeRegistered] = []

        async def register() -> None:
            answer = await Call(self._copy).ask(
                CommandCode.NODE_REGISTER, encode_node_register(request)
            )
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                reply = decode_node_reply(answer.body)
                if isinstance(reply, NodeRegistered):
                    registered.append(reply)

        await self._copy.live(register)
        if not registered:
            return
        self.result.faults["a copy of the disk registers"] += 1
        if registered[0].record.epoch <= request.last_epoch:
            self.witness.complain(f"epoch: a later start was given {registered[0].record.epoch}")
        life, set_backs = self.node.lives, self.meta.set_backs
        asked_s = trio.current_time()
        # A store that was set back may not know of the copy.
        while self._lives_on(life) and self.meta.set_backs == set_backs:
            if trio.current_time() - max(self._judge.well.since_s, asked_s) > self._heard_s:
                self.witness.complain(
                    f"fenced: a server goes on {self._heard_s:g} s after its epoch"
                )
                return
            await trio.sleep(0.5)


def run_cluster_world(seed: int, *, trace: Trace | None = None) -> WorldResult:
    """Run one seed and check its promises; whatever goes wrong is in `violations`."""
    return judge(ClusterWorld(seed, trace=trace))
