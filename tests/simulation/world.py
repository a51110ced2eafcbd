"""One seed, one world: the real delay server between producers and brokers, with crashes.

The server runs from its listener to its brokers on a simulated disk, network, clock and executor
(`SimNode`). Producers and brokers are outside the crash domain: they speak the wire protocol on the
same network and write down what they saw, which is what the checkers go by. Each seed has two
planned ends of the server (three where one is to strike in recovery), at a point of its code that
the seed chooses so that every point gets its turn, or at a drawn await.

    result = run_world(seed)       # never raises for a broken promise: see result.violations
"""

import contextlib
import dataclasses
import math
import random
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec
import structlog
import trio

from delay_protocol.messages.items import item_message_ids
from delay_server.accepting.duplicates import DuplicatesConfig
from delay_server.server import DelayServer, serve
from delay_server.upkeep import Intervals
from storage.batch.columns import RecordKind
from storage.disk.errors import StorageError
from tests.simulation import configuration
from tests.simulation import independent_reader as reader
from tests.simulation.broker import SimBroker
from tests.simulation.changing import Changing, Sent
from tests.simulation.checkers import (
    check,
    check_clean_stop,
    check_end_of_life,
    check_settled,
    whole_files,
)
from tests.simulation.clock import EPOCH_MS, SimClock
from tests.simulation.crash import Ending, Life, SimNode
from tests.simulation.deleted import Deleted
from tests.simulation.determinism import derive, run_deterministic
from tests.simulation.disk import SimDisk
from tests.simulation.disturbances import DISK_BYTES, Disturbances
from tests.simulation.executor import ExecutorPlan
from tests.simulation.faults import (
    HARSH,
    Action,
    Death,
    FaultPlan,
    Fired,
    Kill,
    PowerCut,
    Trap,
    appending,
    running,
)
from tests.simulation.gating import GateJudge, Gating
from tests.simulation.network import NetworkPlan, SimNetwork
from tests.simulation.operator import Poison, SimOperator
from tests.simulation.probe import Probe
from tests.simulation.producer import HotBurst, SimProducer
from tests.simulation.receiver import SimReceiver
from tests.simulation.receiving import Receiving
from tests.simulation.repeating import Repeater
from tests.simulation.rot import Rot, ids_by_sequence, ids_of, sequences_of
from tests.simulation.scenario import PLAIN, Scenario
from tests.simulation.stating import Stating
from tests.simulation.trace import Trace
from tests.simulation.witness import Witness

PRODUCERS = 3

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
_SMALL_FLOOR_BYTES = 30_000
"""Floor of free disk where the disk is small."""
_HELD_UP_S = 120
"""Virtual seconds for which a slow or full disk may hold things up after a life with one."""
_DISK_CHECK_S = 20.0
"""How often a small disk is looked at while it is full: it is for hours."""
_RACE_CHANCE = 0.25
_POISON_HELD_MIN = 40
"""Messages that may be held for delivery at least where brokers refuse some for good."""
_RECEIVED_HELD_MIN = 300
"""The same where there are receivers, which may be slow with some of every subject."""
_ROT_CHANCE = 0.1
_SEALING_S = 300
_REST_S = 20 * 86_400.0
"""A world goes on at most for so long after twice its length."""
_ROUTED_S = 36 * 3600.0
"""The same with meta servers, which are busy all the time: twenty days of them take minutes."""
"""Virtual seconds after the last delivery in which every segment must have been sealed."""


class How(Enum):
    """What brings the server down at a crash point."""

    TRAP = "trap"
    """A disk operation that the point describes."""
    STEP = "step"
    """A step of one of the server's tasks: any await."""
    SEND = "send"
    """A request has reached a broker and its answer has not reached the server."""
    STOP = "stop"
    """It is asked to stop, and does so in good order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPoint:
    """A place in the server's code where it may die."""

    how: How = How.TRAP
    kinds: Collection[str] | None = None
    """Disk operations; None for all."""
    inside: tuple[str, ...] = ()
    """Functions of which one must be running."""
    records: RecordKind | None = None
    """If given, an append to the message_log must be under way that has some of this kind."""
    skip_max: int = 10
    """How many such moments may be let pass."""
    fails: bool = False
    """An I/O error may stand in for the crash: the process is to end by itself."""


_APPEND = ("MessageLog.write", "MessageLog.sync_written")
"""An append, in one step or in two."""

CRASH_POINTS: dict[str, CrashPoint] = {
    "write": CrashPoint(kinds={"write"}, skip_max=120, fails=True),
    "fsync": CrashPoint(kinds={"sync"}, skip_max=120, fails=True),
    "checkpoint": CrashPoint(inside=("CheckpointWork.write",), skip_max=60),
    "rename": CrashPoint(kinds={"rename"}, skip_max=12),
    "split": CrashPoint(inside=("SplitJob.step",), skip_max=12),
    "seal": CrashPoint(inside=("SealsLog.append",), skip_max=12),
    "commit fsync": CrashPoint(kinds={"sync"}, inside=_APPEND, skip_max=60, fails=True),
    "fact fsync": CrashPoint(kinds={"sync"}, records=RecordKind.FACTS, skip_max=25, fails=True),
    "send": CrashPoint(how=How.SEND, skip_max=25),
    "fact": CrashPoint(records=RecordKind.FACTS, skip_max=25, fails=True),
    "fact filing": CrashPoint(inside=("ScheduleLog.file_facts",), skip_max=20),
    "append": CrashPoint(inside=_APPEND, skip_max=60),
    "filing": CrashPoint(inside=("ScheduleLog.apply", "ScheduleLog.flush"), skip_max=60),
    "load": CrashPoint(inside=("ScheduleLog.begin_load", "Job.step"), skip_max=60),
    "durable end": CrashPoint(inside=("DurableEndFile.sync",), skip_max=30),
    "names": CrashPoint(kinds={"create", "sync_directory"}, skip_max=40),
    "unlink": CrashPoint(kinds={"unlink"}, skip_max=8),
    "recovery": CrashPoint(inside=("Store.open",), skip_max=120),
    "truncate": CrashPoint(kinds={"truncate"}, skip_max=2),
    "await": CrashPoint(how=How.STEP, skip_max=6000),
    "stop": CrashPoint(how=How.STOP),
}
"""By name. "stop" is no crash: a clean stop and a start in between, after which nothing is in
doubt."""

_AFTER_A_CRASH = ("recovery", "truncate")
"""Points that are only reached where there is something to recover."""

NAMED_POINTS = tuple(name for name in CRASH_POINTS if name != "stop")
"""The points that every campaign of some hundred seeds must have hit."""


@dataclass(frozen=True, slots=True)
class PlannedEnd:
    """One planned end of a life of the server."""

    point: str
    death: type[Death]
    skip: int
    fails: bool
    """By an I/O error instead."""
    armed_at_s: float
    """Virtual seconds before which it does not strike."""
    at_the_latest_s: float
    """Virtual seconds after which the server is crashed wherever it is."""
    pause_s: float
    """Until the next start."""
    plan: FaultPlan
    """What the disk does in this life."""
    reconfigured: bool
    """Whether the next life has another configuration."""


@dataclass(slots=True)
class WorldResult:
    """What a seed came to."""

    seed: int
    digest: str = ""
    violations: list[str] = field(default_factory=list)
    messages: int = 0
    """Acknowledged."""
    segments: Counter[str] = field(default_factory=Counter)
    """Segments that were made, by span."""
    crashes: int = 0
    points: Counter[str] = field(default_factory=Counter)
    """Crash points that were hit."""
    faults: Counter[str] = field(default_factory=Counter)
    """Faults by kind."""
    counts: Counter[str] = field(default_factory=Counter)
    """What else there was to be judged."""
    twice: int = 0
    """Deliveries beyond one for each accepted copy, all explained."""
    virtual_s: float = 0.0
    disk_operations: int = 0


_DEATHS = {Action.POWER_CUT, Action.KILL}
_READ_KINDS = frozenset({"open", "open_read", "map", "read"})
_KINDS_OF_CALLS = dict.fromkeys(_READ_KINDS | {"size"}, "read") | {
    "write": "write",
    "truncate": "write",
    "sync": "fsync",
}
"""What an operation is counted as; all others are about names."""


class World:
    """Everything that belongs to one seed."""

    broker_kind: type[SimBroker] = SimBroker
    is_routed: bool = False
    """Whether a meta server tells the server which groups take which subjects."""
    groups_fail_alone: bool = True
    """Whether each broker group has outages on a schedule of its own."""
    expected: tuple[type[Exception], ...] = (StorageError, OSError)
    """Errors with which the server may end."""
    hot_chance: float = 0.12
    """Of many messages of one subject at once."""
    poison_chance: float = 0.3
    """Of worlds in which brokers refuse some messages for good."""
    may_have_receivers: bool = True
    """Whether there are groups of receivers in a share of the worlds."""
    may_have_changes: bool = True
    """True if a client cancels and moves messages, in a share of the worlds."""
    server_kind: type[DelayServer] = DelayServer
    gating_kind: type[GateJudge] = Gating
    """Who pauses, limits and resumes."""
    gating_chance: float | None = None
    """Of worlds with such an operator; None: the scenario's."""
    last_delivery_s: float = 2 * 3600
    """Virtual seconds after the last due time in which everything must have left."""

    def __init__(
        self,
        seed: int,
        *,
        trace: Trace | None = None,
        plan: FaultPlan = HARSH,
        scenario: Scenario = PLAIN,
    ) -> None:
        """Draw a world. `plan`: what power cuts do, and what the disk does all the time."""
        self._scenario = scenario
        plan = dataclasses.replace(plan, **scenario.plan)
        self.seed = seed
        self.result = WorldResult(seed)
        faults = self.result.faults
        shape = derive(seed, "shape")
        self.trace = trace or Trace()
        self._plan = plan
        is_long, self.length_s = self._draw_length(shape)
        self.limit_s = self.length_s * 2 + (_ROUTED_S if self.is_routed else _REST_S)
        # Close enough to midnight that what is due behind it lies in segments of a day.
        start_ms = EPOCH_MS + round(shape.uniform(20.5, 21.5) * _HOUR_MS)
        self.clock = SimClock(epoch_ms=start_ms, drift=shape.choice((0.0, 0.0, 5e-5, -5e-5)))
        self.witness = Witness(self.clock)
        self._spacing = derive(seed, "space")
        self.is_small = self._spacing.random() < scenario.small_disk
        """Whether the disk is one that the messages fill, until the last life of the server."""
        self._small_until_s = 0.0
        """Until then an answer may come that was given when it was."""
        self._configuring = derive(seed, "configuration")
        self._weighing = derive(seed, "weights")
        self.groups = self._draw_groups(derive(seed, "groups"))
        self._receiving = derive(seed, "receivers")
        self.attached = self._draw_attached(self._receiving)
        self.witness.receivers = tuple(self.attached)
        dying = derive(seed, "deadly")
        if self.attached and dying.random() < scenario.deadly:
            self.witness.deadly_one_in = dying.choice((8, 20, 60))
        poisoning = derive(seed, "poison")
        is_poisoned = poisoning.random() < (scenario.poison or self.poison_chance)
        # Whatever else makes dead letters, or none of them, has worlds of its own.
        is_poisoned = is_poisoned and not self.witness.deadly_one_in
        self.witness.poison = Poison(poisoning.choice((6, 15, 40)) if is_poisoned else 0)
        self.witness.duplicates = configuration.draw_duplicates(derive(seed, "duplicates"))
        if "message_log_keep_ms" in scenario.configuration:
            self.witness.duplicates = DuplicatesConfig(window_ms=0)
        self.config = self._draw_configuration()
        self.pacer_sleep_ms_max = 7200_000 if is_long else 600_000
        self.operator = SimOperator(poisoning, self.witness.poison, faults, length_s=self.length_s)
        self.witness.clock_heed_s = self.pacer_sleep_ms_max / 1000 + 60
        resets = 0.002 if shape.random() < 0.3 else 0.0
        self.network = SimNetwork(
            derive(seed, "network"), plan=NetworkPlan(reset_chance=resets), trace=self.trace
        )
        disk = SimDisk(derive(seed, "disk"), plan=plan, trace=self.trace)
        if self.is_small:
            disk.capacity_bytes = self._spacing.randint(*scenario.disk_bytes)
            self.witness.space_short(math.inf)
            faults["small disk"] += 1
        self.node = SimNode(
            "server",
            disk=disk,
            network=self.network,
            chance=derive(seed, "server"),
            clock=self.clock,
            executor_plan=ExecutorPlan(stall_chance=shape.choice((0.0, 0.002, 0.01))),
        )
        self.brokers = [
            self.broker_kind(
                name,
                address,
                network=self.network,
                chance=derive(seed, name),
                witness=self.witness,
                on_request=self._request_arrived,
                faults=faults,
            )
            for name, address in self.groups.addresses.items()
        ]
        faults[f"worlds of {len(self.brokers)} broker groups"] += 1
        self.receiving = Receiving(self.witness, self.result.counts, self._may_lack_space)
        self.deleted = Deleted(self.witness, self.clock)
        self.rot = Rot(
            derive(seed, "rot"),
            witness=self.witness,
            faults=faults,
            with_deleted=self.deleted.with_files,
        )
        self.server: DelayServer | None = None
        """Of the present life, if there is one."""
        if scenario.failing:
            for number, broker in enumerate(self.brokers):
                broker.failing = 0.0 if number else scenario.failing
        self._disturbances = Disturbances(
            self,
            derive(seed, "disturbances"),
            length_s=self.length_s,
            faults=faults,
            weights=scenario.disturbances,
            rounds=scenario.rounds,
            groups_fail_alone=self.groups_fail_alone,
            long_outages=scenario.long_outages,
        )
        minutes_ms = self._busy_minutes(shape, start_ms, days=is_long)
        burst = self._draw_burst(shape, start_ms)
        self.producers = [
            SimProducer(
                f"p{number}",
                configuration.SERVER_ADDRESS,
                network=self.network,
                chance=derive(seed, f"producer {number}"),
                witness=self.witness,
                length_s=self.length_s,
                minutes_ms=minutes_ms,
                horizon_ms=configuration.HORIZON_DAYS * _DAY_MS,
                faults=faults,
                disk_may_be_full=self._may_lack_space,
                disk_is_small=self._is_small_yet,
                burst=burst if number == 0 else None,
            )
            for number in range(PRODUCERS)
        ]
        self.receivers = list(self._make_receivers(minutes_ms))
        self.client = self._make_client(derive(seed, "changing"))
        gating = derive(seed, "gating")
        self.gating: GateJudge | None = None
        """The operator, if the seed has one."""
        is_gated = gating.random() < (self.gating_chance or scenario.gating)
        if is_gated and not self.witness.deadly_one_in:
            names = (*self.groups.addresses, *self.attached)
            self.gating = self.gating_kind(
                gating, self.witness, faults, self.length_s, groups=names
            )
        self.stating = Stating(
            derive(seed, "stating"),
            self.witness,
            self.length_s,
            self.gating,
            is_routed=self.is_routed,
            reads_fail=lambda: self.node.disk.plan.eio_read > 0,
            excuse_reads=self._excuse_reads,
        )
        self._excused = 0
        """So many of what the disk did were looked at for what they excuse."""
        self._chance = derive(seed, "world")
        self._racing = derive(seed, "race")
        self._stop = trio.Event()
        self._ends_done = trio.Event()
        self._changes_end = trio.CancelScope()
        self._segments: set[str] = set()
        self._crash_on_send: tuple[int, type[Death]] | None = None
        self._probe: Probe | None = None
        self._finished = False

    def _draw_length(self, shape: random.Random) -> tuple[bool, float]:
        """Return whether the world is one of days, and how many virtual seconds it goes on."""
        is_long = shape.random() < 0.1
        return is_long, (
            shape.uniform(1.2, 5) * 86_400 if is_long else shape.uniform(2.2, 4.5) * 3600
        )

    def _busy_minutes(self, shape: random.Random, start_ms: int, *, days: bool) -> list[int]:
        """Return the minutes in which most messages are due: near ones, hours and days ahead."""
        near = [shape.uniform(2, 40) * _MINUTE_MS for _ in range(14)]
        far = [shape.uniform(0.7, 4.2) * _HOUR_MS for _ in range(20)]
        if days:
            far[10:] = [shape.uniform(1, 5.5) * _DAY_MS for _ in range(10)]
        return [start_ms + round(ahead_ms) for ahead_ms in near + far]

    def _draw_groups(self, chance: random.Random) -> configuration.Groups:
        return configuration.draw_groups(chance, self._scenario.groups)

    def _draw_attached(self, chance: random.Random) -> dict[str, str]:
        """Return the settings of each group of receivers."""
        if not self.may_have_receivers or chance.random() >= self._scenario.receivers:
            return {}
        names = configuration.RECEIVER_GROUPS[: chance.choice((1, 1, 2))]
        return {name: f"attached,weight={chance.choice((1, 3, 30))}" for name in names}

    def _make_receivers(self, minutes_ms: list[int]) -> Iterator[SimReceiver]:
        """Make from one to three receivers of each group."""
        for group in self.attached:
            for number in range(self._receiving.choice((1, 2, 3))):
                yield SimReceiver(
                    f"{group}.{number}",
                    group,
                    configuration.SERVER_ADDRESS,
                    network=self.network,
                    chance=derive(self.seed, f"receiver {group} {number}"),
                    judge=self.receiving,
                    on_request=self._request_arrived,
                    faults=self.result.faults,
                    minutes_ms=minutes_ms,
                    length_s=self.length_s,
                )

    def _make_client(self, chance: random.Random) -> Changing | None:
        """Make a client that cancels, moves and sends again, if the seed has one."""
        is_there = self.may_have_changes and chance.random() < self._scenario.changing
        # What ends its receivers has to be a dead letter at the end.
        if not is_there or self.witness.deadly_one_in:
            return None
        witness, faults = self.witness, self.result.faults
        witness.fates.counts = self.result.counts
        node = self.network.node("changing")
        return Changing(
            chance,
            witness.fates,
            connect=lambda: node.connect(*configuration.SERVER_ADDRESS),
            known=self._changeable,
            now_ms=self.clock.now_ms,
            pause_s=self.length_s / chance.choice((20, 60, 150)),
            ahead_s=min(self.length_s, 2 * 3600),
            send_again=Repeater(chance, witness, faults, self._may_lack_space).send,
        )

    def _changeable(self) -> list[Sent]:
        """Return what was sent, and is one message alone."""
        witness = self.witness
        return [
            Sent(one.decode(), reader.read_item(item).subject.decode(), witness.due_ms[one])
            for one, item in witness.items.items()
            if witness.attempts[one] and one not in witness.varied
        ]

    def _draw_configuration(self) -> configuration.SmallConfig:
        there = {
            name: address
            for name, address in self.groups.addresses.items()
            if name in self.groups.constant or self._weighing.random() < 0.3
        }
        config = configuration.draw_configuration(
            self._configuring,
            brokers=there,
            weights=configuration.draw_weights(self._weighing, there),
            # Each that is refused for good takes its place for some seconds: with hardly any places
            # the others would be late by arithmetic alone.
            held_min=_RECEIVED_HELD_MIN
            if self.attached
            else _POISON_HELD_MIN
            if self.witness.poison.one_in
            else 1,
        )
        scenario = self._scenario
        storage = dataclasses.replace(config.storage, **scenario.configuration)
        wheel = dataclasses.replace(config.wheel, **scenario.wheel)
        sender = scenario.sender or config.sender
        duplicates = self.witness.duplicates
        config = msgspec.structs.replace(
            config, storage=storage, wheel=wheel, sender=sender, duplicates=duplicates
        )
        if self.attached:
            others = {} if self.witness.deadly_one_in else config.brokers
            brokers = {**others, **self.attached}
            config = msgspec.structs.replace(config, brokers=brokers)
        if self.is_small:
            config = msgspec.structs.replace(config, floor_bytes=_SMALL_FLOOR_BYTES)
        return config

    def _draw_burst(self, shape: random.Random, start_ms: int) -> HotBurst | None:
        asked_for = self._scenario.hot_ahead_s
        if shape.random() >= self.hot_chance and asked_for is None:
            return None
        at_s = shape.uniform(0.05, 0.5) * min(self.length_s, 10_000)
        ahead_s = shape.uniform(*(asked_for or (10, 2400)))
        return HotBurst(
            count=shape.randint(100, 300),
            at_s=at_s,
            due_ms=start_ms + round((at_s + ahead_s) * 1000),
            spread_ms=shape.choice(self._scenario.hot_spread_ms),
        )

    # -- the run -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Produce, deliver, crash; at the end everything is delivered and the server stopped."""
        async with trio.open_nursery() as nursery:
            for broker in self.brokers:
                await nursery.start(broker.run)
            self._start_others(nursery)
            nursery.start_soon(self._keep_serving, nursery.cancel_scope)
            nursery.start_soon(self._disturbances.run)
            for receiver in self.receivers:
                nursery.start_soon(receiver.run)
            async with trio.open_nursery() as producing:
                if self.client is not None:
                    nursery.start_soon(self._change, self.client)
                for producer in self.producers:
                    producing.start_soon(producer.run)
            await self._ends_done.wait()
            self._changes_end.cancel()
            self._disturbances.stop()
            for receiver in self.receivers:
                receiver.heal()
            if self.gating is not None:
                self.gating.stop()
            self.network.plan = NetworkPlan()
            await self._see_everything_delivered()
            if self._probe is not None and self.node.is_alive:
                self._probe.look_at_the_end()
            self._finished = True
            self._stop.set()
            await trio.sleep_forever()

    async def _change(self, client: Changing) -> None:
        """Cancel and move messages, until all is to be delivered."""
        with self._changes_end:
            await client.run()

    def _start_others(self, nursery: trio.Nursery) -> None:
        """Start what else there is in the world."""

    async def _see_everything_delivered(self) -> None:
        witness = self.witness
        latest_ms = max([*witness.due_ms.values(), *witness.later.values()], default=0)
        latest_ms = max(latest_ms, witness.fates.latest_ms)
        await trio.sleep(max(0, latest_ms - self.clock.now_ms()) / 1000 + 1)
        self.operator.finish()
        with trio.move_on_after(self.last_delivery_s):
            if self.witness.poison.one_in:
                await self.operator.is_done.wait()
            await self.witness.nothing_missing()
            if self.witness.deadly_one_in:
                await self._see_the_deadly_dead()
        await trio.sleep(_SEALING_S)

    async def _see_the_deadly_dead(self) -> None:
        """Wait until what ends its receivers is a dead letter, and nothing else."""
        while self.server is None or self.server.node.store.schedule.pending:  # noqa: ASYNC110
            await trio.sleep(10)
        letters = self.server.master.dead_letters
        items = await letters.read(letters.listed(), lambda _, found: found.item)
        found = {item_message_ids(item, [len(item)])[0] for item in items if item is not None}
        witness = self.witness
        wanted = {one for one in witness.acknowledged if witness.is_deadly(one)} - witness.lost
        if not wanted <= found or not all(map(witness.is_deadly, found)):
            witness.complain(f"unsettled: {found} are dead letters, {wanted} ended receivers")
        self.result.faults["dead letters that ended receivers"] += len(found)

    # -- lives of the server -----------------------------------------------------------------

    async def _keep_serving(self, all_of_it: trio.CancelScope) -> None:
        ends = planned_ends(self.seed, self.length_s, self._plan, self._scenario.ends)
        for end in ends:
            await self._live_until(end)
            if self._chance.random() < _ROT_CHANCE or self._scenario.rot:
                self.rot.strike(
                    self.node.disk,
                    self.clock.now_ms(),
                    running=False,
                    only=self._scenario.rot,
                )
            await trio.sleep(end.pause_s)
            if end.reconfigured:
                self.result.faults["configuration changed"] += 1
                self.config = self._draw_configuration()
        self._stop = trio.Event()
        # The last life is to find everything in order, and has to bring all to its end.
        self._disturbances.stop()
        self._small_until_s = trio.current_time() + _HELD_UP_S if self.is_small else 0.0
        self.witness.space_short(self._small_until_s)
        self.is_small = False
        disk = self.node.revive()
        disk.plan, disk.capacity_bytes = self._plan, DISK_BYTES
        self._ends_done.set()
        ending = await self._live()
        if ending.error is not None and self.rot.refused(self.node.disk, ending.error):
            ending = await self._live()
        if not self._finished:
            raise AssertionError(f"serves: the server ended by itself: {ending}")
        all_of_it.cancel()

    async def _live(self, *, count_steps: bool = False) -> Ending:
        self._disturbances.before_start()
        # Before its first step: it may die there.
        self.witness.acknowledged_in_this_life = 0
        ending = await self.node.live(self._serve, expected=self.expected, count_steps=count_steps)
        self.server = None
        if self.is_small:
            self._check_space(self.node.disk)
        durable = self._whole(self.node.disk.contents(durable=True))
        self.deleted.check_end_of_life(durable)
        durable = self.deleted.with_files(durable)
        check_end_of_life(self.witness, durable)
        if self.attached:
            check_settled(self.witness, durable, self.receiving.settled)
        if ending.death is None and ending.error is None:
            check_clean_stop(self.witness, self.node.disk.contents())
        return ending

    def _is_small_yet(self) -> bool:
        return self.is_small or trio.current_time() < self._small_until_s

    def _check_space(self, disk: SimDisk) -> None:
        """Complain if the server went below the floor by itself, with nobody else on the disk."""
        floor = self.config.disk_floor_bytes(disk.capacity_bytes)
        if disk.least_free_bytes < floor:
            self.witness.complain(
                f"space: the server left {disk.least_free_bytes} bytes free of a floor of {floor}"
            )

    def _whole(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the files as they were without any damage done to them on purpose."""
        return whole_files(self.witness, self.rot.with_checkpoint(files))

    async def _live_until(self, end: PlannedEnd) -> None:
        self._stop = trio.Event()
        fired_before = len(self.node.disk.fired)
        point = CRASH_POINTS[end.point]
        self.node.revive().plan = end.plan
        self.node.disk.arm(*self._scenario.traps)
        if end.plan.slow_sync or end.plan.full or self._scenario.traps:
            until_s = max(end.at_the_latest_s, trio.current_time()) + _HELD_UP_S
            self.witness.excuse_lateness(until_s)
            self.witness.facts_late(until_s)
        is_early = end.armed_at_s <= trio.current_time()
        if is_early:
            self._arm(end)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_at_the_latest, end)
            if not is_early:
                nursery.start_soon(self._arm_later, end)
            ending = await self._live(count_steps=point.how is How.STEP and not is_early)
            nursery.cancel_scope.cancel()
        self._crash_on_send = None
        fired = self.node.disk.fired[fired_before:]
        self._excuse_reads()
        self._note(end, ending, fired)

    def _excuse_reads(self) -> None:
        """Excuse what is missing of files that could not be read: they are as good as damaged."""
        fired = self.node.disk.fired
        paths = {
            one.path: None
            for one in fired[self._excused :]
            if one.action is Action.EIO and one.kind in _READ_KINDS
        }
        self._excused = len(fired)
        if not paths:
            return
        files = self.deleted.with_files(self._whole(self.node.disk.contents()))
        ids = ids_by_sequence(files)
        for path in paths:
            data = files.get(path, b"")
            if path.startswith("message_log/"):
                self.witness.log_was_unreadable = True
                self.witness.doubled |= {ids[at] for at in sequences_of(data) if at in ids}
            # Facts that cannot be read withhold their segment.
            rows = path.replace("dispatch_log/", "schedule_log/")
            self.witness.lost |= ids_of(files.get(rows, b""))

    async def _arm_later(self, end: PlannedEnd) -> None:
        await trio.sleep_until(end.armed_at_s)
        self._arm(end)

    def _arm(self, end: PlannedEnd) -> None:
        point = CRASH_POINTS[end.point]
        if point.how is How.STEP:
            self.node.crash_at_step(end.skip, end.death)
        elif point.how is How.SEND:
            self._crash_on_send = (end.skip, end.death)
        elif point.how is How.TRAP:
            action = Action.POWER_CUT if end.death is PowerCut else Action.KILL
            kinds = point.kinds
            if end.fails:
                action, kinds = Action.EIO, kinds or {"write", "sync"}
            when = running(*point.inside) if point.inside else None
            if point.records is not None:
                when = appending(point.records)
            self.node.disk.arm(Trap(action=action, kinds=kinds, when=when, skip=end.skip))

    async def _end_at_the_latest(self, end: PlannedEnd) -> None:
        wait_s = max(end.at_the_latest_s - trio.current_time(), 30)
        if CRASH_POINTS[end.point].how is How.STOP:
            await trio.sleep(self._chance.uniform(0, wait_s))
            self._stop.set()
            await trio.sleep(60)
        else:
            await trio.sleep(wait_s)
        # Between two lives, of which a node that is fenced off has several, nothing can crash.
        while not self.node.crash(end.death, "time is over"):  # noqa: ASYNC110 (a life begins)
            await trio.sleep(0.1)

    def _note(self, end: PlannedEnd, ending: Ending, fired: list[Fired]) -> None:
        how = CRASH_POINTS[end.point].how
        result = self.result
        reason = str(ending.death)
        if ending.death is None and ending.error is None:
            result.faults["clean stop"] += 1
            if self._disk_may_be_full():
                # Facts that found no space are forgotten by a stop as well.
                self.witness.server_died()
            return
        self.witness.server_died()
        result.crashes += 1
        if how is How.TRAP:
            wanted = {Action.EIO} if ending.error is not None else _DEATHS
            hit = any(one.action in wanted for one in fired) and reason != "time is over"
        else:
            hit = how is not How.STOP and ending.error is None and reason != "time is over"
        result.points[end.point if hit else "elsewhere"] += 1
        if ending.error is None:
            result.faults[type(ending.death).__name__] += 1
        elif not self.rot.refused(self.node.disk, ending.error):
            result.faults["ended by an error of the disk"] += 1
            if not fired and not self._disk_may_be_full():
                self.witness.complain(f"serves: the server ended without reason: {ending.error!r}")

    def _may_lack_space(self) -> bool:
        return self._is_small_yet() or self._disk_may_be_full()

    def _disk_may_be_full(self) -> bool:
        """Say whether the server may have reason to believe that there is no space."""
        return self._disturbances.disk_may_be_full or self.node.disk.plan.full > 0

    def tell_of_disk(self) -> None:
        """Add what befell the disk to the faults."""
        faults = self.result.faults
        faults.update(self.node.disk.tally)
        for fired in self.node.disk.fired:
            if fired.action in {Action.EIO, Action.FULL}:
                faults[f"{fired.action.value} on {_KINDS_OF_CALLS.get(fired.kind, 'names')}"] += 1

    async def _serve(self, life: Life) -> None:
        # Where most races are.
        life.disk.watch(("prefetch", "map"), self._see_race)
        life.disk.watch(("create",), self._see_segment)
        if self.is_small:
            self.deleted.hurry_until_s = math.inf
        self.deleted.watch(life.disk, grace_ms=self.config.storage.retired_grace_ms)
        idle_s = self.pacer_sleep_ms_max / 1000
        intervals = Intervals(
            disk_s=_DISK_CHECK_S if self.is_small else Intervals().disk_s,
            disk_idle_s=idle_s,
            place_s=idle_s,
        )
        server = self.server_kind(self.config, life.runtime, life.disk, intervals=intervals)
        # Idle hours are cheaper this way; nothing but the reaction to a clock set depends on it.
        server.pacer.sleep_ms_max = self.pacer_sleep_ms_max
        self.server = server
        self._probe = Probe(server, self.witness)
        self.witness.server_started()
        self.receiving.server_started()
        try:
            async with trio.open_nursery() as nursery:
                if self.witness.poison.one_in:
                    nursery.start_soon(self._beside, self.operator.work, server)
                if self.gating is not None:
                    nursery.start_soon(self._beside, self.gating.run, server)
                nursery.start_soon(self.stating.run, server)
                await serve(server, self._stop)
                nursery.cancel_scope.cancel()
        finally:
            if self.gating is not None:
                self.gating.end_life()
            self.witness.server_ended()

    async def _beside(
        self, work: Callable[[DelayServer], Awaitable[None]], server: DelayServer
    ) -> None:
        """Do something with a server while it is a master."""
        try:
            await work(server)
        except AssertionError:
            # One that fails is none any more, before its tasks and this one are cancelled.
            if server.is_master:
                raise

    def _see_race(self, kind: str, _path: str, label: str) -> None:
        """Let messages arrive while a segment is loaded or split."""
        if kind == "prefetch" or label.endswith("SplitJob.step"):
            producer = self._racing.choice(self.producers)
            if self._racing.random() < _RACE_CHANCE:
                producer.nudge()
            if self.client is not None:
                self.client.nudge()

    def _see_segment(self, _kind: str, path: str, _label: str) -> None:
        if path.startswith("schedule_log/") and path not in self._segments:
            self._segments.add(path)
            self.result.segments[path.rpartition(".")[2]] += 1

    def _request_arrived(self, *, answered: bool) -> None:
        """Crash between a request and its answer, if this is the one.

        Called with every request before it is answered, and after.
        """
        if self._probe is not None and self.node.is_alive:
            self._probe.look()
            self.stating.something_leaves()
        if self._crash_on_send is None:
            return
        left, death = self._crash_on_send
        if left:
            self._crash_on_send = (left - 1, death)
        elif self.node.crash(death, "crash on send" if not answered else "crash on answer"):
            self._crash_on_send = None


def planned_ends(
    seed: int,
    length_s: float,
    plan: FaultPlan = HARSH,
    asked_for: Sequence[Mapping[str, Any]] = (),
) -> list[PlannedEnd]:
    """Return how the server is to end before its last life; every point has its turn.

    `asked_for`: fields of each end (scenario.py), if they are not all to be drawn.
    """
    chance = derive(seed, "ends")
    names = list(CRASH_POINTS)
    first = names[seed % len(names)]
    second = names[(seed // len(names) + 5 * seed + 3) % len(names)]
    points = [first, second]
    recovering = [name for name in points if name in _AFTER_A_CRASH]
    if recovering or chance.random() < 0.15:
        # There has to be something to recover.
        rest = [name for name in points if name not in _AFTER_A_CRASH] or ["await"]
        points = [rest[0], *(recovering or ["recovery"]), *rest[1:]]
    if sum(name != "stop" for name in points) < 2:
        points.append("await")
    told = [
        {
            name: chance.choice(value) if isinstance(value, tuple) else value
            for name, value in fields.items()
        }
        for fields in asked_for
    ]
    if told:
        points = [fields["point"] for fields in told]
    ends = []
    share = length_s / (len(points) + 0.5)
    for number, name in enumerate(points):
        point = CRASH_POINTS[name]
        skip = min(int(point.skip_max ** chance.random()), point.skip_max) - 1
        at_the_latest_s = share * (number + chance.uniform(0.4, 0.9))
        # Some strike in the rush at the start, others when there is much to forget.
        is_early = name in _AFTER_A_CRASH or chance.random() < 0.4
        armed_at_s = 0.0 if is_early else chance.uniform(0.05, 0.7) * at_the_latest_s
        ends.append(
            PlannedEnd(
                point=name,
                death=PowerCut if chance.random() < 0.65 else Kill,
                skip=max(skip, 0),
                fails=point.fails and chance.random() < 0.2,
                armed_at_s=armed_at_s,
                at_the_latest_s=at_the_latest_s,
                pause_s=_pause_s(chance),
                plan=_draw_plan(chance, plan),
                reconfigured=chance.random() < 0.4,
            )
        )
    if told:
        ends = [dataclasses.replace(end, **fields) for end, fields in zip(ends, told, strict=True)]
    return ends


def _draw_plan(chance: random.Random, plan: FaultPlan) -> FaultPlan:
    """Draw how the disk is in one life: mostly in order, now and then failing or slow."""
    if chance.random() < 0.25:
        plan = dataclasses.replace(plan, short_write=0.2)
    kind = chance.random()
    if kind < 0.06:
        return dataclasses.replace(plan, eio_sync=chance.choice((0.001, 0.01)))
    if kind < 0.1:
        return dataclasses.replace(plan, eio_write=chance.choice((0.001, 0.01)))
    if kind < 0.16:
        return dataclasses.replace(plan, eio_read=chance.choice((0.001, 0.01)))
    if kind < 0.24:
        full_sync = chance.choice((0.0, 0.0, 0.002))
        return dataclasses.replace(plan, full=chance.choice((0.01, 0.1)), full_sync=full_sync)
    if kind < 0.36:
        return dataclasses.replace(plan, slow_sync=chance.choice((0.01, 0.1)))
    return plan


def _pause_s(chance: random.Random) -> float:
    kind = chance.random()
    if kind < 0.6:
        return chance.uniform(0.01, 3)
    return chance.uniform(3, 120) if kind < 0.95 else chance.uniform(120, 3600)


# -- running seeds -------------------------------------------------------------------------------


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the server's log lines to itself: nobody reads those of a thousand crashes."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        yield
    finally:
        structlog.configure(**before)


def run_world(
    seed: int,
    *,
    trace: Trace | None = None,
    plan: FaultPlan = HARSH,
    scenario: Scenario = PLAIN,
) -> WorldResult:
    """Run one seed and check its promises; whatever goes wrong is in `violations`."""
    return judge(World(seed, trace=trace, plan=plan, scenario=scenario))


def judge(world: World) -> WorldResult:
    """Run a world and check its promises."""
    result = world.result
    with quiet():
        try:
            run_deterministic(world.seed, world.run, limit_s=world.limit_s)
        except (Exception, ExceptionGroup) as error:  # noqa: BLE001 (a finding, whatever it is)
            result.violations += world.witness.complaints
            result.violations.append("".join(traceback.format_exception(error)))
    result.digest = world.trace.digest()
    disk = world.node.disk
    result.disk_operations = disk.operations
    world.tell_of_disk()
    result.messages = len(world.witness.acknowledged)
    if not result.violations:
        disk = world.node.revive()
        at_stop = disk.contents()
        disk.power_cut("at the end")
        findings = check(
            world.witness,
            world.deleted.with_files(whole_files(world.witness, world.node.revive().contents())),
            # Where groups come and go the judge of the cluster knows what may be late.
            brokers=() if world.is_routed else world.groups.constant,
            at_stop=at_stop,
            gating=world.gating,
            stating=world.stating,
        )
        result.violations += findings.violations + world.receiving.check()
        result.twice = findings.twice
    return result
