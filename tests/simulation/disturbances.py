"""What happens around the server while it lives: brokers away, clocks set, a full disk, dead links.

Disturbances come one after another, each drawn, each ended again; `stop` ends the present one for
good. Crashes are not among them (world.py), nor is what single requests meet (broker.py).
"""

import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Protocol

import trio

from delay_server.server import DelayServer
from storage.disk.errors import DataDirectoryError, StorageFullError
from storage.node.store import Store
from tests.simulation.broker import AWAY, Outage, SimBroker
from tests.simulation.clock import SimClock
from tests.simulation.crash import SimNode
from tests.simulation.deleted import Deleted
from tests.simulation.determinism import derive
from tests.simulation.faults import Death
from tests.simulation.network import SimNetwork
from tests.simulation.producer import SimProducer
from tests.simulation.rot import Rot
from tests.simulation.witness import Witness

DISK_BYTES = 1 << 40
_GUARDED_MS = 260_000
"""Of a leap, what the guard may let pass: its allowance of a minute, and a set back before that it
has not read yet."""
_LATE_AFTER_S = 60.0
"""After a disturbance that holds everything up, what waited needs time to leave."""
_SILENT_S_MAX = 100.0
"""What was sent into a silent link may arrive when it speaks again, which takes less than this."""
_HOUR_S = 3600.0
_OUTAGES_S = ((0.1, 5.0), (1.0, 60.0), (1.0, 60.0), (60.0, 900.0))
"""How long a group may be away that fails alone, one of these ranges."""
_ILL_SHARE = 0.4
"""Of the outages of single groups and of several, those in which a group answers nevertheless."""


class Surroundings(Protocol):
    """What the disturbances act upon: the world."""

    seed: int
    node: SimNode
    clock: SimClock
    network: SimNetwork
    witness: Witness
    brokers: list[SimBroker]
    producers: list[SimProducer]
    rot: Rot
    deleted: Deleted
    server: DelayServer | None
    is_small: bool


class Disturbances:
    """The disturbances of one seed."""

    def __init__(
        self,
        world: Surroundings,
        chance: random.Random,
        *,
        length_s: float,
        faults: Counter[str],
        weights: Mapping[str, float] = MappingProxyType({}),
        rounds: int = 0,
        groups_fail_alone: bool = True,
        long_outages: int = 0,
    ) -> None:
        """Draw them. `weights`: by kind (without the underscore), if not all are to be; `rounds`:
        how many, if that is not to be drawn; `groups_fail_alone`: whether each broker group has
        outages on a schedule of its own as well, unless there are `weights`; `long_outages`: how
        many of minutes each but the last of several has, whatever the weights. With either, a group
        that has an outage is away: slow and rejecting ones are drawn where everything is."""
        self._world = world
        self._chance = chance
        self._length_s = length_s
        self._faults = faults
        self._scope = trio.CancelScope()
        self._full = False
        self._full_until_s = -1.0
        self._leap_ms = 0.0
        self._gained_ms = 0.0
        """What the wall clock has been set forward by in all."""
        self._believed_ms = 0.0
        """The most of it that a server may have believed: coming back to that is no leap."""
        kinds: dict[Callable[[], Awaitable[None]], float] = {
            self._broker_outage: 4,
            self._set_clock: 2,
            self._leap: 1.5,
            self._drift: 0.5,
            self._fill_disk: 1,
            self._half_open: 1,
            self._reset: 1,
            self._rot: 1,
            self._second_start: 0.5,
        }
        if weights:
            kinds = {getattr(self, f"_{name}"): weight for name, weight in weights.items()}
        count = rounds or chance.randint(3, 6)
        self._rounds = chance.choices(list(kinds), list(kinds.values()), k=count)
        self._out: set[str] = set()
        """Names of the brokers that something keeps from their work."""
        self._chance_of_ill = derive(world.seed, "ill brokers")
        """Of its own: all else is drawn as it was before there were such outages."""
        self._ill_share = 0.0 if weights or long_outages else _ILL_SHARE
        self._alone: list[tuple[SimBroker, random.Random, list[tuple[float, float]]]] = []
        """Brokers, and after how long each fails next, and for how long."""
        if groups_fail_alone and (long_outages or not weights):
            spared = 1 if long_outages and len(world.brokers) > 1 else 0
            for broker in world.brokers[: len(world.brokers) - spared]:
                own = random.Random(chance.getrandbits(64))
                self._alone.append((broker, own, _draw_outages(own, length_s, long_outages)))

    async def run(self) -> None:
        """Disturb, until all drawn is done or `stop` is called."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                for broker, chance, outages in self._alone:
                    nursery.start_soon(self._fail_alone, broker, chance, outages)
                for disturb in self._rounds:
                    await trio.sleep(self._chance.uniform(0, self._length_s / len(self._rounds)))
                    await disturb()

    async def _fail_alone(
        self, broker: SimBroker, chance: random.Random, outages: list[tuple[float, float]]
    ) -> None:
        """Let one broker fail as it is drawn, whatever else happens."""
        for pause_s, length_s in outages:
            await trio.sleep(pause_s)
            with self._failing([broker], chance):
                await trio.sleep(length_s)

    def stop(self) -> None:
        """End what there is, for good."""
        self._scope.cancel()
        self.before_start()
        self._empty_disk()
        self._world.clock.is_synchronised = True
        self._world.witness.unconfirmed_ms = 0
        self._world.network.heal()
        for broker in self._world.brokers:
            broker.heal()

    def before_start(self) -> None:
        """Set the clock right before the server starts: it may trust what it reads first."""
        if self._leap_ms > _HOUR_S * 1000:
            self._take_back()
        self._believe()
        self._world.witness.unconfirmed_ms = 0

    @property
    def disk_may_be_full(self) -> bool:
        """Say whether the server may still believe that there is no space."""
        return self._full or trio.current_time() <= self._full_until_s

    # -- kinds -------------------------------------------------------------------------------

    async def _broker_outage(self) -> None:
        """Let brokers fail for a while, and now and then set the clock meanwhile."""
        world, chance = self._world, self._chance
        with self._failing(
            chance.sample(world.brokers, chance.randint(1, len(world.brokers))), chance
        ):
            await trio.sleep(chance.uniform(1, 40))
            if chance.random() < 0.4:
                await self._set_clock()
                await trio.sleep(chance.uniform(1, 20))

    @contextlib.contextmanager
    def _failing(self, brokers: list[SimBroker], chance: random.Random) -> Iterator[None]:
        """Keep those brokers from their work that nothing else keeps from it."""
        world = self._world
        out = [broker for broker in brokers if broker.name not in self._out]
        self._out.update(broker.name for broker in out)
        silent = chance.random() < 0.2
        for broker in out:
            if silent:
                self._cut_off(broker.name)
                world.witness.broker_down(broker.name)
                world.witness.under_way_s = _SILENT_S_MAX
            else:
                broker.fail(self._draw_outage(chance))
        try:
            yield
        finally:
            for broker in out:
                if silent:
                    self._connect(broker.name)
                broker.recover()
                self._out.discard(broker.name)

    def _draw_outage(self, chance: random.Random) -> Outage:
        away, own = chance.choice(AWAY), self._chance_of_ill
        if own.random() >= self._ill_share:
            return away
        return own.choice((Outage.SLOW, Outage.REJECTING))

    async def _set_clock(self) -> None:
        chance = self._chance
        if chance.random() < 0.5:
            # What became due already and waits for a broker is not due any more.
            self._step(-chance.uniform(1000, 180_000), "clock set back")
        else:
            self._step(chance.uniform(-500, 50_000), "clock set")

    async def _leap(self) -> None:
        """Set the clock forward by more than is believed; later that is mended in some way."""
        world, chance = self._world, self._chance
        is_huge = chance.random() < 0.25
        leap_ms = chance.uniform(2, 30) * _HOUR_S * 1000 if is_huge else chance.uniform(3e5, 18e5)
        how = "taken back" if is_huge else chance.choice(("taken back", "accepted", "confirmed"))
        world.clock.is_synchronised = False
        self._leap_ms = leap_ms
        server = world.server
        if server is not None and server.ready.is_set() and world.node.is_alive:
            # A server that has just begun may read the new time first, and trusts that.
            behind_ms = self._believed_ms - self._gained_ms
            world.witness.unconfirmed_ms = max(leap_ms - _GUARDED_MS - behind_ms, 0)
            self._step(leap_ms, f"clock leaps, {how}")
        else:
            self._step(leap_ms, f"clock leaps, {how}")
            self._believe()
        hold_s = chance.uniform(5, 300)
        world.witness.excuse_lateness(trio.current_time() + hold_s + _LATE_AFTER_S)
        try:
            await trio.sleep(hold_s)
            if how == "accepted" and server is world.server and server is not None:
                world.witness.unconfirmed_ms = 0
                if server.ready.is_set() and world.node.is_alive:
                    server.pacer.accept()
            elif how == "taken back":
                self._take_back()
        finally:
            self._leap_ms = 0
            self._believe()
            world.witness.unconfirmed_ms = 0
            world.clock.is_synchronised = True

    async def _drift(self) -> None:
        self._faults["clock drifts"] += 1
        self._world.clock.set_drift(self._chance.uniform(-5e-4, 5e-4))

    async def _fill_disk(self) -> None:
        """Leave the disk hardly any space for a while."""
        world, chance = self._world, self._chance
        if world.is_small:
            return  # Its own doing is to be seen there.
        self._faults["disk full"] += 1
        disk = world.node.disk
        disk.capacity_bytes = disk.used_bytes + chance.choice((0, chance.randint(0, 20_000)))
        self._full = True
        for_s = chance.choice((chance.uniform(1, 20), chance.uniform(20, 300)))
        world.witness.excuse_lateness(trio.current_time() + for_s + _LATE_AFTER_S)
        world.witness.facts_late(trio.current_time() + for_s + _LATE_AFTER_S)
        world.deleted.hurry_until_s = trio.current_time() + for_s + _LATE_AFTER_S
        try:
            await trio.sleep(for_s)
        finally:
            self._empty_disk()

    async def _half_open(self) -> None:
        """Let a producer and the server hear nothing of each other: no FIN, no RST."""
        self._faults["half-open"] += 1
        producer = self._chance.choice(self._world.producers)
        self._cut_off(producer.name)
        try:
            await trio.sleep(self._chance.uniform(1, 90))
        finally:
            self._connect(producer.name)

    async def _reset(self) -> None:
        if self._world.network.reset_any():
            self._faults["connection reset"] += 1

    async def _rot(self) -> None:
        world = self._world
        if world.node.is_alive:
            world.rot.strike(world.node.disk, world.clock.now_ms(), running=True)

    async def _second_start(self) -> None:
        """Start another server on the same directory."""
        world = self._world
        server = world.server
        if server is None or not server.ready.is_set() or not world.node.is_alive:
            return
        self._faults["second start"] += 1
        try:
            Store.open(
                world.node.disk,
                server.config.store_settings(),
                chance=random.Random(1),
                now_ms=world.clock.now_ms(),
                on_damage=lambda _: None,
            )
        except (DataDirectoryError, StorageFullError, Death):
            return
        world.witness.complain("once: two servers opened one data directory")

    # -- inside ------------------------------------------------------------------------------

    def _step(self, ms: float, what: str) -> None:
        world = self._world
        self._faults[what] += 1
        world.witness.clock_set(world.clock.now_ms())
        world.clock.step(ms)
        self._gained_ms += ms
        if not self._leap_ms:
            self._believe()
        for producer in world.producers:
            producer.nudge()

    def _take_back(self) -> None:
        if self._leap_ms:
            leap_ms, self._leap_ms = self._leap_ms, 0
            self._world.witness.clock_set(self._world.clock.now_ms())
            self._world.clock.step(-leap_ms)
            self._gained_ms -= leap_ms

    def _believe(self) -> None:
        """Note that a server may believe the clock as it is."""
        self._believed_ms = max(self._believed_ms, self._gained_ms)

    def _empty_disk(self) -> None:
        if self._full:
            self._full = False
            self._full_until_s = trio.current_time() + _LATE_AFTER_S
            self._world.node.disk.capacity_bytes = DISK_BYTES

    def _cut_off(self, name: str) -> None:
        server = self._world.node.name
        self._faults["link silent"] += 1
        self._world.network.block(name, server)
        self._world.network.block(server, name)

    def _connect(self, name: str) -> None:
        server = self._world.node.name
        self._world.network.unblock(name, server)
        self._world.network.unblock(server, name)


def _draw_outages(
    chance: random.Random, length_s: float, long_ones: int
) -> list[tuple[float, float]]:
    """Return the outages of one broker: after how long each begins, and how long it lasts.

    `long_ones`: how many, all of them long; 0 to draw that.
    """
    count = long_ones or chance.choice((0, 1, 2, 4))
    lengths = _OUTAGES_S[-1:] if long_ones else _OUTAGES_S
    return [
        (chance.uniform(0, 1.5 * length_s / count), chance.uniform(*chance.choice(lengths)))
        for _ in range(count)
    ]
