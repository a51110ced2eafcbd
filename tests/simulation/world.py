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
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import structlog
import trio

from delay_server.config import (
    AdmissionConfig,
    DelayServerConfig,
    HttpConfig,
    ListenerConfig,
    NodeConfig,
    StorageConfig,
    WheelConfig,
)
from delay_server.filing import FilingLimits
from delay_server.server import DelayServer, serve
from delay_transport import format_address
from sender import SenderConfig
from storage import FatalDiskError, StoreSettings
from tests.simulation.broker import SimBroker
from tests.simulation.checkers import check, old_batches
from tests.simulation.clock import EPOCH_MS, SimClock
from tests.simulation.crash import Ending, Life, SimNode
from tests.simulation.determinism import derive, run_deterministic
from tests.simulation.disk import SimDisk
from tests.simulation.executor import ExecutorPlan
from tests.simulation.faults import HARSH, Action, Death, Kill, PowerCut, Trap, running
from tests.simulation.network import NetworkPlan, SimNetwork
from tests.simulation.producer import SimProducer
from tests.simulation.trace import Trace
from tests.simulation.witness import Witness

SERVER_ADDRESS = ("10.0.0.1", 20801)
BROKER_ADDRESSES = {"g1": ("10.0.1.1", 20881), "g2": ("10.0.1.2", 20881)}
PRODUCERS = 3

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
_HORIZON_DAYS = 12
_LAST_DELIVERY_S = 2 * 3600
"""Virtual seconds after the last due time in which everything must have left."""
_RACE_CHANCE = 0.25
_ROT_CHANCE = 0.12
_OLD_MS = 5000
"""Batches this old are far below the durable end that is on the disk."""
_SEALING_S = 300
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
    skip_max: int = 10
    """How many such moments may be let pass."""
    fails: bool = False
    """An I/O error may stand in for the crash: the process is to end by itself."""


CRASH_POINTS: dict[str, CrashPoint] = {
    "write": CrashPoint(kinds={"write"}, skip_max=120, fails=True),
    "fsync": CrashPoint(kinds={"sync"}, skip_max=120, fails=True),
    "checkpoint": CrashPoint(inside=("CheckpointWork.write",), skip_max=60),
    "rename": CrashPoint(kinds={"rename"}, skip_max=12),
    "split": CrashPoint(inside=("SplitJob.step",), skip_max=12),
    "seal": CrashPoint(inside=("SealsLog.append",), skip_max=12),
    "send": CrashPoint(how=How.SEND, skip_max=25),
    "fact": CrashPoint(inside=("FactsJournal.append",), skip_max=25, fails=True),
    "fact filing": CrashPoint(inside=("ScheduleLog.file_facts",), skip_max=20),
    "append": CrashPoint(inside=("MessageLog.append",), skip_max=60),
    "filing": CrashPoint(inside=("ScheduleLog.file", "ScheduleLog.flush"), skip_max=60),
    "load": CrashPoint(inside=("ScheduleLog.begin_load", "LoadJob.step"), skip_max=60),
    "durable end": CrashPoint(inside=("DurableEndFile.sync",), skip_max=30),
    "names": CrashPoint(kinds={"create", "unlink", "sync_directory"}, skip_max=40),
    "recovery": CrashPoint(inside=("Store.open",), skip_max=120),
    "await": CrashPoint(how=How.STEP, skip_max=6000),
    "stop": CrashPoint(how=How.STOP),
}
"""By name. "stop" is no crash: a clean stop and a start in between, after which nothing is in
doubt."""

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
    twice: int = 0
    """Deliveries beyond one for each accepted copy, all explained."""
    virtual_s: float = 0.0
    disk_operations: int = 0


class _Config(DelayServerConfig, frozen=True, kw_only=True):
    """A configuration whose files are smaller than a real node would have them."""

    def store_settings(self) -> StoreSettings:
        return dataclasses.replace(
            super().store_settings(),
            message_log_file_bytes_max=self.storage.message_log_file_bytes_max // 64,
            journal_file_bytes_max=self.storage.journal_file_bytes_max // 1024,
        )

    def filing_limits(self) -> FilingLimits:
        return dataclasses.replace(super().filing_limits(), load_step_rows=1)


class World:
    """Everything that belongs to one seed."""

    def __init__(self, seed: int, *, trace: Trace | None = None) -> None:
        self.seed = seed
        self.result = WorldResult(seed)
        shape = derive(seed, "shape")
        self._chance = derive(seed, "world")
        self.trace = trace or Trace()
        is_long = shape.random() < 0.1
        self.length_s = (
            shape.uniform(1.2, 5) * 86_400 if is_long else shape.uniform(2.2, 4.5) * 3600
        )
        # Close enough to midnight that what is due behind it lies in segments of a day.
        start_ms = EPOCH_MS + round(shape.uniform(20.5, 21.5) * _HOUR_MS)
        self.clock = SimClock(epoch_ms=start_ms, drift=shape.choice((0.0, 0.0, 5e-5, -5e-5)))
        self.witness = Witness(self.clock)
        self.config = _configuration(shape)
        self.pacer_sleep_ms_max = 7200_000 if is_long else 600_000
        resets = 0.002 if shape.random() < 0.3 else 0.0
        self.network = SimNetwork(
            derive(seed, "network"), plan=NetworkPlan(reset_chance=resets), trace=self.trace
        )
        disk = SimDisk(derive(seed, "disk"), plan=HARSH, trace=self.trace)
        self.node = SimNode(
            "server",
            disk=disk,
            network=self.network,
            chance=derive(seed, "server"),
            clock=self.clock,
            executor_plan=ExecutorPlan(stall_chance=shape.choice((0.0, 0.002, 0.01))),
        )
        self.brokers = [
            SimBroker(
                name,
                address,
                network=self.network,
                chance=derive(seed, name),
                witness=self.witness,
                on_request=self._request_arrived,
            )
            for name, address in BROKER_ADDRESSES.items()
        ]
        minutes_ms = _busy_minutes(shape, start_ms, days=is_long)
        self.producers = [
            SimProducer(
                f"p{number}",
                SERVER_ADDRESS,
                network=self.network,
                chance=derive(seed, f"producer {number}"),
                witness=self.witness,
                length_s=self.length_s,
                minutes_ms=minutes_ms,
                horizon_ms=_HORIZON_DAYS * _DAY_MS,
            )
            for number in range(PRODUCERS)
        ]
        self._rotting = derive(seed, "rot")
        self._racing = derive(seed, "race")
        self._stop = trio.Event()
        self._ends_done = trio.Event()
        self._segments: set[str] = set()
        self._crash_on_send: tuple[int, type[Death]] | None = None
        self._finished = False

    # -- the run -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Produce, deliver, crash; at the end everything is delivered and the server stopped."""
        async with trio.open_nursery() as nursery:
            for broker in self.brokers:
                await nursery.start(broker.run)
            nursery.start_soon(self._keep_serving, nursery.cancel_scope)
            nursery.start_soon(self._disturb)
            async with trio.open_nursery() as producing:
                for producer in self.producers:
                    producing.start_soon(producer.run)
            await self._ends_done.wait()
            for broker in self.brokers:
                broker.heal()
            self.network.plan = NetworkPlan()
            await self._see_everything_delivered()
            self._finished = True
            self._stop.set()
            await trio.sleep_forever()

    async def _see_everything_delivered(self) -> None:
        latest_ms = max(self.witness.due_ms.values(), default=0)
        await trio.sleep(max(0, latest_ms - self.clock.now_ms()) / 1000 + 1)
        with trio.move_on_after(_LAST_DELIVERY_S):
            await self.witness.nothing_missing()
        await trio.sleep(_SEALING_S)

    async def _disturb(self) -> None:
        """Let brokers fail for a while now and then, and set the wall clock."""
        chance = self._chance
        for _ in range(chance.randint(1, 4)):
            await trio.sleep(chance.uniform(0, self.length_s / 5))
            if self._ends_done.is_set():
                return
            out = chance.sample(self.brokers, chance.randint(1, len(self.brokers)))
            for broker in out:
                broker.go_down()
            self.result.faults["broker down"] += len(out)
            await trio.sleep(chance.uniform(1, 40))
            if chance.random() < 0.5:
                # What became due meanwhile and waits for a broker is not due any more.
                step_ms = -chance.uniform(1000, 180_000)
                self.result.faults["clock set back"] += 1
            else:
                step_ms = chance.uniform(-500, 50_000)
                self.result.faults["clock set"] += 1
            self.witness.clock_set(self.clock.now_ms())
            self.clock.step(step_ms)
            for producer in self.producers:
                producer.nudge()
            await trio.sleep(chance.uniform(1, 20))
            for broker in out:
                broker.come_up()

    # -- lives of the server -----------------------------------------------------------------

    async def _keep_serving(self, all_of_it: trio.CancelScope) -> None:
        for end in planned_ends(self.seed, self.length_s):
            await self._live_until(end)
            self._rot()
            await trio.sleep(end.pause_s)
        self._stop = trio.Event()
        self._ends_done.set()
        ending = await self.node.live(self._serve)
        if not self._finished:
            raise AssertionError(f"the server ended by itself: {ending}")
        all_of_it.cancel()

    async def _live_until(self, end: PlannedEnd) -> None:
        self._stop = trio.Event()
        fired_before = len(self.node.disk.fired)
        point = CRASH_POINTS[end.point]
        self.node.revive()
        is_early = end.armed_at_s <= trio.current_time()
        if is_early:
            self._arm(end)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_at_the_latest, end)
            if not is_early:
                nursery.start_soon(self._arm_later, end)
            ending = await self.node.live(
                self._serve,
                expected=FatalDiskError,
                count_steps=point.how is How.STEP and not is_early,
            )
            nursery.cancel_scope.cancel()
        self._crash_on_send = None
        self._note(end, ending, hit_trap=len(self.node.disk.fired) > fired_before)

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
            self.node.disk.arm(Trap(action=action, kinds=kinds, when=when, skip=end.skip))

    async def _end_at_the_latest(self, end: PlannedEnd) -> None:
        wait_s = max(end.at_the_latest_s - trio.current_time(), 30)
        if CRASH_POINTS[end.point].how is How.STOP:
            await trio.sleep(self._chance.uniform(0, wait_s))
            self._stop.set()
            await trio.sleep(60)
        else:
            await trio.sleep(wait_s)
        self.node.crash(end.death, "time is over")

    def _note(self, end: PlannedEnd, ending: Ending, *, hit_trap: bool) -> None:
        how = CRASH_POINTS[end.point].how
        result = self.result
        reason = str(ending.death)
        if ending.death is None and ending.error is None:
            result.faults["clean stop"] += 1
            return
        self.witness.server_died()
        result.crashes += 1
        hit = hit_trap if how is How.TRAP else how is not How.STOP and reason != "time is over"
        result.points[end.point if hit else "elsewhere"] += 1
        kind = "I/O error" if ending.error is not None else type(ending.death).__name__
        result.faults[kind] += 1

    async def _serve(self, life: Life) -> None:
        # Traps that never go off: they look on.
        life.disk.arm(Trap(action=Action.KILL, kinds={"prefetch", "map"}, when=self._see_race))
        life.disk.arm(Trap(action=Action.KILL, kinds={"create"}, when=self._see_segment))
        server = DelayServer(self.config, life.runtime, life.disk)
        # Idle hours are cheaper this way; nothing but the reaction to a clock set depends on it.
        server.pacer.sleep_ms_max = self.pacer_sleep_ms_max
        await serve(server, self._stop)

    def _rot(self) -> None:
        """Flip a bit of the message_log, where it has been durable for long."""
        if self._rotting.random() >= _ROT_CHANCE:
            return
        files = self.node.disk.contents(durable=True)
        path = max((name for name in files if name.startswith("message_log/0")), default="")
        batches = old_batches(
            files.get(path, b""),
            path,
            self.clock.now_ms() - _OLD_MS,
            durable_end=files.get("message_log/durable_end", b""),
        )
        if not batches:
            return
        start, size, ids = self._rotting.choice(batches)
        position = start + self._rotting.randrange(size)
        byte = files[path][position]
        self.node.disk.damage(path, position, bytes([byte ^ 1 << self._rotting.randrange(8)]))
        self.witness.damage.append((path, position, byte))
        self.witness.lost.update(ids)
        self.result.faults["bit flipped"] += 1

    def _see_race(self, kind: str, _path: str, label: str) -> bool:
        """Let messages arrive while a segment is loaded or split."""
        if kind == "prefetch" or label.endswith("SplitJob.step"):
            producer = self._racing.choice(self.producers)
            if self._racing.random() < _RACE_CHANCE:
                producer.nudge()
        return False

    def _see_segment(self, _kind: str, path: str, _label: str) -> bool:
        if path.startswith("schedule_log/") and path not in self._segments:
            self._segments.add(path)
            self.result.segments[path.rpartition(".")[2]] += 1
        return False

    def _request_arrived(self, *, answered: bool) -> None:
        """Crash between a request and its answer, if this is the one.

        Called with every request before it is answered, and after.
        """
        if self._crash_on_send is None:
            return
        left, death = self._crash_on_send
        if left:
            self._crash_on_send = (left - 1, death)
        elif self.node.crash(death, "crash on send" if not answered else "crash on answer"):
            self._crash_on_send = None


def _busy_minutes(shape: random.Random, start_ms: int, *, days: bool) -> list[int]:
    """Return the minutes in which most messages are due: near ones, hours and days ahead."""
    near = [shape.uniform(2, 40) * _MINUTE_MS for _ in range(16)]
    far = [shape.uniform(0.7, 4.2) * _HOUR_MS for _ in range(24)]
    if days:
        far[12:] = [shape.uniform(1, 5.5) * _DAY_MS for _ in range(12)]
    return [start_ms + round(ahead_ms) for ahead_ms in near + far]


def planned_ends(seed: int, length_s: float) -> list[PlannedEnd]:
    """Return how the server is to end before its last life; every point has its turn."""
    chance = derive(seed, "ends")
    names = list(CRASH_POINTS)
    first = names[seed % len(names)]
    second = names[(seed // len(names) + 5 * seed + 3) % len(names)]
    points = [first, second]
    if "recovery" in points or chance.random() < 0.2:
        # There has to be something to recover.
        rest = [name for name in points if name != "recovery"] or ["await"]
        points = [rest[0], "recovery", *rest[1:]]
    if sum(name != "stop" for name in points) < 2:
        points.append("await")
    ends = []
    share = length_s / (len(points) + 0.5)
    for number, name in enumerate(points):
        point = CRASH_POINTS[name]
        skip = min(int(point.skip_max ** chance.random()), point.skip_max) - 1
        at_the_latest_s = share * (number + chance.uniform(0.4, 0.9))
        # Some strike in the rush at the start, others when there is much to forget.
        is_early = name == "recovery" or chance.random() < 0.4
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
            )
        )
    return ends


def _pause_s(chance: random.Random) -> float:
    kind = chance.random()
    if kind < 0.6:
        return chance.uniform(0.01, 3)
    return chance.uniform(3, 120) if kind < 0.95 else chance.uniform(120, 3600)


def _configuration(shape: random.Random) -> DelayServerConfig:
    load_ahead_ms = shape.choice((5_000, 20_000, 60_000))
    minute_horizon = max(shape.randint(2, 12), math.ceil(2 * load_ahead_ms / _MINUTE_MS))
    return _Config(
        node=NodeConfig(data_dir=Path("simulated"), cluster="c", group="dg1", node_id="n1"),
        brokers={name: format_address(address) for name, address in BROKER_ADDRESSES.items()},
        sender=SenderConfig(
            batch_items=shape.choice((1, 7, 256)),
            heartbeat_s=3600,
            retry_max_s=10,
            refused_max_s=30,
        ),
        listener=ListenerConfig(address=format_address(SERVER_ADDRESS)),
        admission=AdmissionConfig(horizon_days=_HORIZON_DAYS),
        storage=StorageConfig(
            message_log_file_bytes_max=1 << 20,
            journal_file_bytes_max=1 << 20,
            minute_horizon_minutes=minute_horizon,
            hour_horizon_minutes=minute_horizon + shape.randint(60, 90),
            gather_bytes_max=shape.choice((1, 4000, 1 << 26)),
            open_files_max=shape.choice((1, 8, 512)),
            checkpoint_interval_ms=shape.choice((300, 3000, 20_000, 60_000)),
            retired_grace_ms=shape.choice((0, 60_000, 3_600_000)),
            disk_free_bytes_min=0,
        ),
        wheel=WheelConfig(load_ahead_ms=load_ahead_ms, slot_ms=shape.choice((1, 64))),
        http=HttpConfig(address=""),
    )


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


def run_world(seed: int, *, trace: Trace | None = None) -> WorldResult:
    """Run one seed and check its promises; whatever goes wrong is in `violations`."""
    world = World(seed, trace=trace)
    result = world.result
    with quiet():
        try:
            run_deterministic(seed, world.run, limit_s=world.length_s * 2 + 20 * 86_400)
        except (Exception, ExceptionGroup) as error:  # noqa: BLE001 (a finding, whatever it is)
            result.violations.append("".join(traceback.format_exception(error)))
    result.digest = world.trace.digest()
    disk = world.node.disk
    result.disk_operations = disk.operations
    result.messages = len(world.witness.acknowledged)
    if not result.violations:
        disk = world.node.revive()
        disk.power_cut("at the end")
        findings = check(world.witness, world.node.revive())
        result.violations += findings.violations
        result.twice = findings.twice
    return result
