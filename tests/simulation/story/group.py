"""The story of a group: three real delay servers and a real meta server, and what befalls them.

Producers ask the meta server who the master is, a broker takes what is due, and in half of the
stories receivers take a half of it. An operator hands over, elects and changes min ISR. Machines,
disks, network and the store fail. At each change of the record, and at the end when all power is
cut, each disk in sync has to have every acknowledged message by itself (judges.py).
"""

import contextlib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final

import structlog
import trio
import trio.lowlevel

from delay_protocol.basics.codes import ItemCode, ResponseCode
from delay_protocol.messages.send_message import decode_send_reply
from delay_protocol.nodes.registration import GroupRecord
from delay_protocol.receivers.delivering import Verdict
from meta_server.admin.administration import carry_out
from meta_server.known.errors import MetaServerError
from meta_server.known.model import Change, Contents, DelayGroup, MetaStore, saved
from meta_server.known.registry import Registry
from tests.delay_server.server_rig import Producer, make_item
from tests.failover.group_rig import GROUP, Group, Machine
from tests.kit.plans import act, action
from tests.meta_server.memory_store import Fault, MemoryStore
from tests.simulation.changing import Changing, Fates, Sent
from tests.simulation.determinism import derive, run_deterministic
from tests.simulation.faults import Death, FaultPlan, Kill, PowerCut
from tests.simulation.ledger import Account, counts_line
from tests.simulation.story import judges
from tests.simulation.story.history import Event, History, What
from tests.simulation.story.receivers import RECEIVERS, StoryReceiver, verdict_of

PLAN: Final = FaultPlan()
"""What a power cut may take: anything that was not fsynced."""
CALM_S: Final = 45.0
"""At the end nothing is struck any more."""
LIMIT_S: Final = 1200.0
"""Virtual seconds that no story takes: the longest, its producers' time, and the end."""
ENDS: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError, AssertionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What exists, what strikes, and for how long."""

    names: tuple[str, ...] = ("a", "b", "c")
    seconds: tuple[float, float] = (150.0, 260.0)
    producers: int = 2
    messages: int = 40
    """Of each producer."""
    strikes: tuple[tuple[str, int], ...] = (
        ("kill", 20),
        ("power_cut", 12),
        ("partition", 16),
        ("one_way", 6),
        ("reset", 8),
        ("slow_disk", 8),
        ("full_disk", 5),
        ("meta_kill", 6),
        ("store_fault", 6),
        ("wipe", 5),
        ("clean_stop", 6),
        ("operator", 30),
    )
    pause_s: tuple[float, float] = (1.0, 14.0)
    """Between two strikes."""
    trims: float = 0.4
    """Chance that nodes keep next to nothing of their logs, so that slaves copy snapshots."""
    receives: float = 0.5
    """Chance that half of the messages go to receivers, of which there are two."""
    changes: float = 0.5
    """Chance of a client that cancels and moves messages, and sends them again."""
    clocks: bool = False
    """True if the clocks of nodes go slow, and are set back for a while."""
    set_backs: float = 0.0
    """Chance that a meta server that was killed finds an older store, or an empty one."""


@dataclass(slots=True)
class StoryResult:
    """What a seed came to."""

    seed: int
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    history: History = field(default_factory=History)


class _Store(MemoryStore):
    """A store that says which records it has."""

    def __init__(self, told: "GroupStory") -> None:
        super().__init__(told.group.meta.medium)
        self._told = told

    def commit(self, changes: Sequence[Change], /) -> None:
        """Keep all or nothing, and say so."""
        try:
            super().commit(changes)
        finally:
            kept = self._told.group.meta.medium.tables.delay_groups.get(GROUP)
            if kept is not None and saved(changes, DelayGroup):
                self._told.contents.append(self._told.group.meta.medium.contents)
                self._told.was_recorded(kept.record)


class GroupStory:
    """One telling of a story."""

    def __init__(self, seed: int, story: Story) -> None:
        self.seed = seed
        self.story = story
        self.chance = derive(seed, "story")
        self.result = StoryResult(seed)
        self.history = self.result.history
        self.logs = judges.Logs()
        trims = derive(seed, "trims").random() < story.trims
        self.receives = derive(seed, "receivers").random() < story.receives
        self.group = Group(
            seed=seed, names=story.names, plan=PLAN, trims=trims,
            attached=(RECEIVERS,) if self.receives else (),
        )  # fmt: skip
        self.group.meta.open_store = self._open_store
        self.length_s = self.chance.uniform(*story.seconds)
        self.fates = Fates(
            complain=self.complain,
            put_off=lambda one: one in self._put_off,
            counts=self.result.counts,
        )
        self._known: dict[str, Sent] = {}
        self._ends_s: list[float] = []
        """When a node ended, or the record changed."""
        self._put_off: set[str] = set()
        """Messages that a receiver has got, and may have put off."""
        self._numbers = 0
        self._struck: Counter[str] = Counter()
        self._checked: tuple[int, int] = (0, 0)
        self._newest: tuple[int, int] = (0, 0)
        self._in_sync: set[str] = set()
        """By the newest record, which a store that was set back may not have."""
        self.contents: list[Contents] = []
        """Of the store, after each change of the group's record."""

    def _open_store(self) -> MetaStore:
        return _Store(self)

    def note(self, what: What, who: str, about: object, told_ms: int = 0) -> None:
        """Append to the history."""
        self.history.append(Event(trio.current_time(), what, who, about, told_ms))
        if what in {What.ENDED, What.RECORDED}:
            self._ends_s.append(trio.current_time())

    def complain(self, violation: str) -> None:
        """Note what is broken."""
        self.result.violations.append(f"at {trio.current_time():.1f} s: {violation}")

    # -- the store ---------------------------------------------------------------------------

    def was_recorded(self, record: GroupRecord) -> None:
        """See that each disk that a record names has all that is acknowledged."""
        if (record.epoch, record.version) == self._checked:
            return
        if (record.epoch, record.version) > self._newest:
            self._newest, self._in_sync = (record.epoch, record.version), set(record.in_sync)
        self._checked = record.epoch, record.version
        self.note(What.RECORDED, "store", record)
        self.result.counts["records"] += 1
        for name in sorted(record.in_sync):
            machine = self.group[name]
            if machine.storage_uuid() != record.in_sync[name]:
                continue
            files = machine.node.disk.contents(durable=True)
            missing = judges.missing_on(self.logs, name, files, self.history, self.fates.may_stay)
            if missing:
                self.complain(
                    f"kept: {len(missing)} acknowledged are not on {name}, which is in sync by "
                    f"epoch {record.epoch}, version {record.version}: {sorted(missing)[:3]}"
                )

    # -- producers -----------------------------------------------------------------------------

    async def _produce(self, name: str) -> None:
        """Send messages, each until it is acknowledged, wherever the group's address is."""
        chance = derive(self.seed, name)
        network = self.group.world.network.node(name)
        stream: trio.abc.Stream | None = None
        where = ""
        for _ in range(self.story.messages):
            await trio.sleep(chance.uniform(0, 1.7 * self.length_s / self.story.messages))
            self._numbers += 1
            message_id = f"{name}.{self._numbers}"
            due_ms = self.group.world.now_ms + round(1000 * chance.choice((0, 2, 8, 30, 70)))
            item = make_item(message_id, due_ms)
            self._known[message_id] = Sent(message_id, "a.b", due_ms)
            while True:
                address = self._address()
                if address is None:
                    await trio.sleep(0.3)
                    continue
                if stream is None or where != address:
                    where = address
                    stream = await self._connect(network, address)
                    if stream is None:
                        await trio.sleep(0.3)
                        continue
                self.note(What.SENT, name, message_id, due_ms)
                self.fates.sent(message_id)
                is_kept = await self._is_kept(stream, item)
                if is_kept is not None:
                    heard = What.ACKED if is_kept else What.REFUSED
                    self.note(heard, self._name_at(address), message_id)
                if is_kept:
                    self.fates.acknowledged(message_id, 0.0)
                    break
                await trio.aclose_forcefully(stream)
                stream = None
                await trio.sleep(chance.uniform(0.05, 1.0))

    def _address(self) -> str | None:
        """Return where clients are told that the group is."""
        shown = self.group.meta.medium.tables.groups.get(GROUP)
        return None if shown is None or not shown.master else shown.master

    def _name_at(self, address: str) -> str:
        port = int(address.rpartition(":")[2])
        return next(name for name, one in self.group.machines.items() if one.port == port)

    async def _connect(self, network: object, address: str) -> trio.abc.Stream | None:
        host, _, port = address.rpartition(":")
        with contextlib.suppress(*ENDS), trio.move_on_after(2):
            stream: trio.abc.Stream = await network.connect(host, int(port))  # type: ignore[attr-defined]
            return stream
        return None

    async def _is_kept(self, stream: trio.abc.Stream, item: bytes) -> bool | None:
        """Return True if an item is kept, as its answer has it; None without an answer."""
        with contextlib.suppress(*ENDS), trio.move_on_after(5):
            producer = Producer(stream)
            answer = await producer.answer(await producer.post(item))
            if answer.code != ResponseCode.SUCCESS:
                return False
            codes = {code for code, _ in decode_send_reply(answer.body).values()}
            self.result.counts["recognised"] += len(codes)
            return codes <= {ItemCode.MESSAGE_DUPLICATE}
        return None

    # -- who changes messages ----------------------------------------------------------------

    async def _change(self) -> None:
        """Cancel and move messages, and send them again, until all is calm."""
        chance = derive(self.seed, "changing")
        if chance.random() >= self.story.changes:
            return
        network = self.group.world.network.node("changing")

        async def connect() -> trio.abc.Stream:
            address = self._address()
            stream = None if address is None else await self._connect(network, address)
            if stream is None:
                raise OSError("no master")
            return stream

        client = Changing(
            chance,
            self.fates,
            connect=connect,
            known=lambda: list(self._known.values()),
            now_ms=lambda: self.group.world.now_ms,
            pause_s=4,
            ahead_s=60,
            send_again=self._send_again,
        )
        with trio.move_on_at(self.length_s - CALM_S):
            await client.run()

    async def _send_again(self, producer: Producer, sent: Sent) -> None:
        """Send a message again as it was: unless it was cancelled it is recognised, or lost."""
        name = sent.message_id
        was_cancelled, began_s = self.fates.is_cancelled(name), trio.current_time()
        self.note(What.SENT, "changing", name, sent.due_ms)
        self.fates.sent(name)
        before = self.result.counts["recognised"]
        is_kept = await self._is_kept(producer.stream, make_item(name, sent.due_ms))
        if is_kept is False:
            self.note(What.REFUSED, "changing", name)
        if is_kept and self.result.counts["recognised"] > before and was_cancelled:
            self.complain(f"swallowed: {name} was cancelled and sent again")
        elif is_kept:
            self.fates.acknowledged(name, began_s)

    # -- what strikes ----------------------------------------------------------------------------

    async def _strike_again_and_again(self) -> None:
        kinds, weights = zip(*self.story.strikes, strict=True)
        while trio.current_time() < self.length_s - CALM_S:
            await trio.sleep(self.chance.uniform(*self.story.pause_s))
            kind = self.chance.choices(kinds, weights)[0]
            strike: Callable[[], object] = getattr(self, f"_strike_{kind}")
            self.group.nursery.start_soon(self._struck_by, kind, strike)

    async def _struck_by(self, kind: str, strike: Callable[[], object]) -> None:
        self.result.faults[kind] += 1
        number = self.result.faults[kind]
        self.note(What.STRUCK, kind, number)
        await strike()  # type: ignore[misc]
        self.note(What.HEALED, kind, number)

    def _some_machine(self) -> Machine:
        return self.chance.choice(list(self.group.machines.values()))

    async def _end(self, machine: Machine, kind: type[Death], away_s: float) -> None:
        if machine.is_away:
            return
        machine.is_away = True
        self.note(What.ENDED, machine.name, kind.__name__)
        await machine.kill(kind)
        await trio.sleep(away_s)
        self._begin(machine)

    def _begin(self, machine: Machine) -> None:
        machine.is_away = False
        self.note(What.BEGAN, machine.name, "")
        machine.start()

    async def _strike_kill(self) -> None:
        machine = self._some_machine()
        await self._end(machine, Kill, self.chance.uniform(0.1, 10))

    async def _strike_power_cut(self) -> None:
        machine = self._some_machine()
        await self._end(machine, PowerCut, self.chance.uniform(0.5, 25))

    async def _strike_clean_stop(self) -> None:
        machine = self._some_machine()
        if machine.is_away or machine.server is None:
            return
        machine.is_away = True
        self.note(What.ENDED, machine.name, "stop")
        with trio.move_on_after(15):
            await machine.shut_down()
        await machine.kill()
        await trio.sleep(self.chance.uniform(0.1, 3))
        self._begin(machine)

    async def _strike_wipe(self) -> None:
        """Give a machine an empty disk that is not in sync."""
        await self._wipe(self._some_machine())

    async def _wipe(self, machine: Machine) -> None:
        if machine.is_away or not self.group.has_record:
            return
        machine.is_away = True
        self.note(What.ENDED, machine.name, "to be wiped")
        await machine.kill()
        await trio.sleep(self.chance.uniform(4, 12))
        if machine.name not in self._in_sync and self.group.has_record:
            machine.wipe()
            self.result.counts["wiped"] += 1
        self._begin(machine)

    async def _wipe_who_asks_for_it(self) -> None:
        """Start a node on an empty directory where it cannot copy all anew, as an operator does.

        It does so by itself, but not again within ten minutes.
        """
        before: set[str] = set()
        while True:
            await trio.sleep(5)
            damaged = [one for one in self.group.machines.values() if "damaged" in one.standing]
            for machine in damaged:
                if machine.name in before:
                    await self._struck_by("wipe", partial(self._wipe, machine))
            before = {one.name for one in damaged}

    async def _strike_partition(self) -> None:
        one = self._some_machine().name
        others = [*self.group.machines, "meta"] if self.chance.random() < 0.5 else ["meta"]
        if self.chance.random() < 0.4:
            others = [name for name in self.group.machines if name != one]
        await self._blocked([(one, name) for name in others if name != one], both=True)

    async def _strike_one_way(self) -> None:
        one, other = self.chance.sample([*self.group.machines, "meta"], 2)
        await self._blocked([(one, other)], both=False)

    async def _blocked(self, links: list[tuple[str, str]], *, both: bool) -> None:
        network = self.group.world.network
        if both:
            links = links + [(other, one) for one, other in links]
        for link in links:
            network.block(*link)
        await trio.sleep(self.chance.choice((0.3, 2.0, 7.0, 20.0)) * self.chance.uniform(0.5, 1.5))
        for link in links:
            network.unblock(*link)

    async def _strike_reset(self) -> None:
        for _ in range(self.chance.choice((1, 1, 5))):
            self.group.world.network.reset_any()
        await trio.lowlevel.checkpoint()

    async def _strike_slow_disk(self) -> None:
        machine = self._some_machine()
        low = self.chance.choice((0.1, 1.0, 5.0))
        await self._with_plan(
            machine,
            FaultPlan(slow_sync=0.7, slow_sync_s=(low, 3 * low)),
            self.chance.uniform(2, 20),
        )

    async def _strike_full_disk(self) -> None:
        machine = self._some_machine()
        await self._with_plan(machine, FaultPlan(full=0.6), self.chance.uniform(1, 12))

    async def _with_plan(self, machine: Machine, plan: FaultPlan, seconds: float) -> None:
        machine.node.disk.plan = plan
        await trio.sleep(seconds)
        machine.node.disk.plan = PLAN

    async def _strike_meta_kill(self) -> None:
        group = self.group
        if group.meta_is_away:
            return
        group.meta_is_away = True
        group.meta.kill()
        if self.chance.random() < self.story.set_backs:
            self._set_back()
        await trio.sleep(self.chance.uniform(0.2, 12))
        await group.start_meta()
        group.meta_is_away = False

    def _set_back(self) -> None:
        """Set the store back, or empty it; the file beside it may be gone as well."""
        chance, meta = self.chance, self.group.meta
        by = chance.choice((chance.randint(1, 3), chance.randint(1, 30)))
        older = self.contents[max(len(self.contents) - 1 - by, 0)]
        # A new node that comes first to an empty store begins the group anew: a known limit.
        is_lost = chance.random() < 0.1 and self._in_sync == set(self.group.machines)
        meta.medium.tables = Registry(Contents() if is_lost else older)
        # A start that the store fails ends the process, and a supervisor tries again.
        meta.medium.next_faults.clear()
        is_restored = chance.random() < 0.5
        if is_restored:
            meta.record_file.document = None
        self.result.counts["store lost" if is_lost else "store set back"] += 1
        self.result.counts["without the file"] += is_restored

    async def _strike_store_fault(self) -> None:
        fault = self.chance.choice((Fault.LOST, Fault.KEPT))
        if not self.group.meta_is_away:
            self.group.meta.medium.next_faults.append(fault)
        await trio.lowlevel.checkpoint()

    async def _strike_operator(self) -> None:
        """Hand over, elect, or set min ISR, as an operator does; it may be refused."""
        if self.group.meta_is_away or not self.group.has_record:
            return
        kind = self.chance.choices(("handover", "elect", "min ISR"), (6, 2, 2))[0]
        count = self.chance.choice((1, 2, 2))
        plan = {
            "handover": action("delay-group", "handover", GROUP),
            "elect": action("delay-group", "elect", GROUP),
            "min ISR": action("delay-group", "min-isr", GROUP, min_isr=count),
        }[kind]
        try:
            with trio.move_on_after(10):
                parts = self.group.meta_server.parts.asked_by("operator")
                await carry_out(parts, plan)
                self.result.counts[kind] += 1
        except MetaServerError:
            self.result.counts[f"{kind} refused"] += 1

    async def _set_clocks(self) -> None:
        """Set clocks wrong so that nothing may be early by the right one, which judges."""
        chance = derive(self.seed, "clocks")
        for machine in self.group.machines.values():
            machine.node.clock.set_drift(-chance.uniform(0, 5e-4))
        while trio.current_time() < self.length_s - CALM_S:
            await trio.sleep(chance.uniform(*self.story.pause_s))
            clock = chance.choice(list(self.group.machines.values())).node.clock
            by_ms = chance.choice((2_000, 15_000, 3_600_000))
            self.result.faults["clock"] += 1
            clock.step(-by_ms)
            await trio.sleep(chance.uniform(1, 20))
            clock.step(by_ms)

    # -- the end -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Tell it, and judge."""
        group, names = self.group, self.story.names
        group.world.broker.on_taken = self._arrived
        for machine in group.machines.values():
            machine.is_supervised = True
        async with group.running():
            group.nursery.start_soon(self._wipe_who_asks_for_it)
            group.nursery.start_soon(self._change)
            for number in range(2 if self.receives else 0):
                group.nursery.start_soon(self._receiver(number).run)
            if self.story.clocks:
                group.nursery.start_soon(self._set_clocks)
            async with trio.open_nursery() as nursery:
                for number in range(self.story.producers):
                    nursery.start_soon(self._produce, f"p{number}")
                nursery.start_soon(self._strike_again_and_again)
                with trio.move_on_at(self.length_s + 150) as told:
                    await self._until_told(nursery)
                if told.cancelled_caught:
                    self.complain(f"serves: producers do not end: {self._told()}")
                    nursery.cancel_scope.cancel()
            await self._heal()
            try:
                await group.until_in_sync(*names, seconds=90)
                await self._until_all_arrived()
            except trio.TooSlowError:
                self.complain(f"serves: not in order at the end: {self._told()}")
            record = group.record
            now_ms = group.world.now_ms
            for machine in group.machines.values():
                await machine.kill(PowerCut)
        disks = {
            name: machine.node.disk.contents(durable=True)
            for name, machine in group.machines.items()
        }
        self.result.counts["copies"] += sum(map(judges.is_copy, disks.values()))
        self._judge(disks, record, now_ms)

    async def _until_told(self, nursery: trio.Nursery) -> None:
        while len(nursery.child_tasks) > 1:  # noqa: ASYNC110 (any of them may end)
            await trio.sleep(0.5)

    async def _heal(self) -> None:
        self.group.world.network.heal()
        if self.group.meta_is_away:
            await trio.sleep(13)
        for machine in self.group.machines.values():
            machine.node.disk.plan = PLAN
        await trio.sleep(26)
        server = self.group.meta_server
        if server.set_backs.why_behind(GROUP):
            # Who knows what is newest may have been wiped.
            self.result.counts["recovered"] += 1
            await act(server, "delay-group", "recover", GROUP, lose_messages=True)

    async def _until_all_arrived(self) -> None:
        with trio.fail_after(150):
            while True:
                arrived = {str(event.about) for event in self.history.of(What.ARRIVED)}
                left = self.history.acknowledged() - arrived
                if all(map(self.fates.may_stay, left)):
                    return
                await trio.sleep(1)

    def _arrived(self, message_id: str, due_ms: int, at_ms: int) -> None:
        self._judge_arrival(message_id, due_ms, at_ms)
        self.note(What.ARRIVED, "broker", message_id, at_ms)

    def _judge_arrival(self, message_id: str, due_ms: int, at_ms: int) -> None:
        """Judge by the item itself when it may come, and if it may."""
        if at_ms < due_ms:
            self.complain(f"early: {message_id} came {due_ms - at_ms} ms before it was due")
        times = (self._known[message_id].due_ms, *self.fates.times_of(message_id))
        if due_ms not in times and message_id not in self._put_off:
            self.complain(f"whole: {message_id} came as due {due_ms}, not at one of {times}")
        now_s = trio.current_time()
        ends = (at_s for at_s in self._ends_s if now_s - judges.SOON_S <= at_s)
        self.fates.came(message_id, due_ms, since_s=min(ends, default=now_s))

    def _is_changed(self, message_id: str) -> bool:
        """Return True if a message may have been cancelled, or given up."""
        return self.fates.is_touched(message_id) or verdict_of(message_id, 0) is Verdict.REFUSED

    def _receiver(self, number: int) -> StoryReceiver:
        return StoryReceiver(
            self.group.world.network.node(f"receiver {number}"),
            instance=bytes([number]) * 16,
            address=self._address,
            now_ms=self.group.world.clock.now_ms,
            on_received=self._received,
            on_arrived=self._arrived,
            on_done=self._done,
        )

    def _received(self, message_id: str, due_ms: int, at_ms: int) -> None:
        self._judge_arrival(message_id, due_ms, at_ms)
        self._put_off.add(message_id)
        self.note(What.RECEIVED, "receiver", (message_id, due_ms), at_ms)
        self.result.counts["received"] += 1

    def _done(self, message_id: str, due_ms: int) -> None:
        self.note(What.DONE, "receiver", (message_id, due_ms))
        self.result.counts["done"] += 1

    def _judge(self, disks: judges.Disks, record: GroupRecord, now_ms: int) -> None:
        history, logs = self.history, self.logs
        found: list[str] = [
            *judges.kept(logs, history, disks, record, self.fates.may_stay),
            *judges.once(logs, history, disks),
            *(() if self.group.trims else judges.not_twice(logs, disks, self._is_changed)),
            *judges.never_early(history, self.fates.times_of),
            *judges.leaves(history, due_before_ms=now_ms - 5000, may_stay=self.fates.may_stay),
            *judges.few_twice(history),
            *judges.done_once(history),
            *judges.one_master(logs, history, disks),
            *judges.alike(logs, disks, record),
        ]
        self.result.violations += found
        masters = [
            event.about.master
            for event in history.of(What.RECORDED)
            if isinstance(event.about, GroupRecord) and event.about.master is not None
        ]
        changes = sum(one != other for one, other in pairwise(masters))
        self.result.counts["changes of master"] += changes
        self.result.counts["acknowledged"] += len(history.acknowledged())
        arrived = Counter(str(event.about) for event in history.of(What.ARRIVED))
        self.result.counts["arrived twice"] += sum(count - 1 for count in arrived.values())

    def _told(self) -> str:
        """Say how everything stands."""
        parts = [str(self.group.record) if self.group.has_record else "no record"]
        for name, machine in self.group.machines.items():
            server = machine.server
            if server is None or not server.is_open:
                parts.append(f"{name}: not open")
                continue
            parts.append(f"{name}: {'; '.join(server.duty().why)}; {machine.standing}")
        return " | ".join(parts)


STORIES: Final = {
    "group": Story(),
    "group-clocks": Story(clocks=True),
    "group-set-back": Story(
        set_backs=0.8,
        strikes=tuple(
            (name, 25 if name == "meta_kill" else often) for name, often in Story().strikes
        ),
    ),
}
"""By the name of their world."""


def run_story(seed: int, world: str = "group") -> StoryResult:
    """Tell one seed of a world."""
    told = GroupStory(seed, STORIES[world])
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        run_deterministic(seed, told.run, limit_s=LIMIT_S)
    except Exception:  # noqa: BLE001 (whatever a server does not stand is a finding)
        told.result.violations.append(traceback.format_exc())
    finally:
        structlog.configure(**before)
    return told.result


@dataclass(slots=True)
class StoryCampaign(Account[StoryResult]):
    """What the seeds of a campaign came to, added up."""

    counts: Counter[str] = field(default_factory=Counter)

    def _count(self, result: StoryResult) -> None:
        self.counts.update(result.counts)

    def lines(self) -> Iterator[str]:
        """Yield the account for people."""
        yield f"{self.seeds} seeds, {len(self.failed)} failed"
        yield "seen: " + counts_line(self.counts)
        yield "faults: " + counts_line(self.faults)
