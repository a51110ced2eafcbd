"""A group under a schedule of faults, and what must be true of it whatever happens.

    when                       what is looked at
    a master begins            it has every acknowledged message
    a slave cuts               no acknowledged message of a disk in sync goes, nothing committed
    something is committed     it is the same on every node, record by record
    it is acknowledged, and    each disk in the recorded set has every acknowledged message, durably
      the record changes
    a message is sent          no other node could send at this moment; if it is sent again, the log
                               of the sender lacks its first outcome
    any of it                  one node acknowledges and sends in an epoch
    the end                    one master; nothing acknowledged is missing, all of it was delivered,
                               and nothing was that nobody sent

Two nodes may be able to send at once where a clock stands still: the schedule has no such fault.
"""

import random
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from delay_protocol.nodes.registration import GroupRecord
from replication.core.record import Record
from tests.simulation.ledger import Account, counts_line
from tests.simulation.schedule.events import BrokenPromiseError, Connection, Events, Network
from tests.simulation.schedule.meta import Meta
from tests.simulation.schedule.node import Facts, Node, Value

CALM_S: Final = 40.0
"""At the end nothing is struck any more."""
_DELIVERED_S: Final = 5.0
"""Seconds in which what was acknowledged at the end of a story is delivered."""
_SENDS_UNTIL_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What a seed plays."""

    replicas: int = 3
    min_isr: int = 2
    seconds: float = 200.0
    rate: float = 8.0
    """Messages a second."""
    has_faults: bool = True
    has_operator: bool = True
    is_aimed: bool = False
    """Strikes at promises alone: the master is cut off, and nodes are started again at once."""


class Group:
    """Nodes, a meta server, a producer and an operator."""

    def __init__(self, seed: int, story: Story) -> None:
        self.events = Events(random.Random(seed))
        self.network = Network(self.events, is_calm=not story.has_faults)
        self.story = story
        self.death_in_fsync = 0.002 * min(1.0, 20 / story.rate)
        """The chance of a write; a busy group makes more of them."""
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._ids = random.Random(seed + 1)
        self.connections: list[Connection] = []
        self.kept_records = self.events.chance.choice([50, 300, 2000])
        self.sent_at_once = max(int(story.rate / 4), 8)
        self._records_told: dict[tuple[int, int], GroupRecord] = {}
        # What is committed, whoever says so first.
        self.history: list[tuple[int, Value]] = []
        self._messages: list[tuple[int, int]] = []
        self._fact_at: dict[int, int] = {}
        self.acked: dict[int, int] = {}
        """Sequence by message."""
        self._acked_end = 1
        self.sent: set[int] = set()
        self.deliveries: Counter[int] = Counter()
        self._acts: dict[int, str] = {}
        """Who acknowledges and sends, by epoch."""
        self._wipe_is_due = True
        self.nodes: dict[str, Node] = {}
        for name in "abcdefg"[: story.replicas]:
            self.nodes[name] = Node(self, name)
        self.meta = Meta(self, min_isr=min(story.min_isr, story.replicas))

    @property
    def may_strike(self) -> bool:
        """Whether anything may go wrong now."""
        return self.story.has_faults and self.events.now < self.story.seconds - CALM_S

    def new_uuid(self) -> UUID:
        """Return an id that was not given before."""
        return UUID(int=self._ids.getrandbits(128), version=4)

    def count(self, what: str) -> None:
        """Count what happened."""
        self.counts[what] += 1

    # -- what is known of everything ---------------------------------------------------------

    def was_recorded(self, record: GroupRecord) -> None:
        """Note a record; each disk that it names has every acknowledged message."""
        self._records_told[record.epoch, record.version] = record
        self._check_disks(record)

    def check_commit(self, node: Node, before: int, after: int) -> None:
        """See that what a node says is committed is what others have said."""
        known = len(self.history) + 1
        for sequence in range(before, after):
            epoch, value = node.log[sequence - node.base]
            if sequence < known:
                if self.history[sequence - 1] != (epoch, value):
                    raise BrokenPromiseError(f"{node.name} has another record {sequence} committed")
                continue
            self.history.append((epoch, value))
            if isinstance(value, int):
                self._messages.append((sequence, value))
            elif isinstance(value, Facts):
                for message in value.of:
                    self._fact_at.setdefault(message, sequence)

    def settled_below(self, message: int) -> int | None:
        """Return which record has the first committed outcome of a message; None if none has."""
        return self._fact_at.get(message)

    def settled_at(self, sequence: int) -> set[int]:
        """Return the messages of which an outcome is filed by who has filed up to there."""
        return {message for message, at in self._fact_at.items() if at < sequence}

    def messages_below(self, sequence: int) -> list[int]:
        """Return the messages that are committed below."""
        return [message for at, message in self._messages if at < sequence]

    def _check_alone(self, node: Node) -> None:
        assert node.master is not None
        epoch = node.master.record.epoch
        other = self._acts.setdefault(epoch, node.name)
        if other != node.name:
            raise BrokenPromiseError(f"{other} and {node.name} both act in epoch {epoch}")

    def acknowledged(self, message: int, sequence: int, node: Node) -> None:
        """Note an acknowledgement."""
        self._check_alone(node)
        if message not in self.acked:
            self.acked[message] = sequence
        self._acked_end = max(self._acked_end, sequence + 1)
        self._check_disks(self.meta.record)

    def _check_disks(self, record: GroupRecord) -> None:
        for name, storage in record.in_sync.items():
            node = self.nodes.get(name)
            if node is None or node.storage != storage:
                continue
            if node.synced < self._acked_end:
                raise BrokenPromiseError(
                    f"{name} is in sync by version {record.version}, and its disk ends at "
                    f"{node.synced}; acknowledged is {self._acked_end - 1}"
                )
            self._check_same(node)

    def _check_same(self, node: Node) -> None:
        """See that a disk has the last acknowledged record, and not another one in its place."""
        at = self._acked_end - 1
        if node.base <= at < node.end and node.log[at - node.base] != self.history[at - 1]:
            raise BrokenPromiseError(f"{node.name} has another record {at} than was acknowledged")

    def check_new_master(self, node: Node, record: Record) -> None:
        """See that a new master has what was acknowledged."""
        if (record.epoch, record.version) < (self.meta.record.epoch, self.meta.record.version):
            return
        if node.synced < self._acked_end:
            raise BrokenPromiseError(
                f"the new master {node.name} ends at {node.synced}; acknowledged is "
                f"{self._acked_end - 1}"
            )
        self._check_same(node)

    def check_cut(self, node: Node, end: int) -> None:
        """See that a cut takes nothing that others rely on."""
        self.count("cut")
        if node.member in self.meta.in_sync() and end < self._acked_end:
            raise BrokenPromiseError(f"{node.name} is in sync and cuts what was acknowledged")

    def begins(self, name: str, epoch: int, kind: str) -> None:
        """Count an election, by its reason, and whether the master could have gone on."""
        self.count("election")
        self.count(f"election: {kind}")
        node = self.nodes[name]
        master = node.master
        runs = node.is_up and node.accepts and node.paused_until <= self.events.now
        if runs and master is not None and master.record.epoch == epoch:
            is_well = not master.why_not_act(node.local())
            self.counts["election: needless"] += is_well

    def delivered(self, message: int, node: Node) -> None:
        """Note a delivery, and whether another node might send at this moment."""
        self._check_alone(node)
        self.deliveries[message] += 1
        if self.deliveries[message] > 1 and node.has_outcome_of(message):
            raise BrokenPromiseError(
                f"{node.name} sends message {message} again, and its log has the outcome"
            )
        for other in self.nodes.values():
            if (
                other is not node
                and other.is_up
                and other.master is not None
                and other.accepts
                and other.paused_until <= self.events.now
                and not other.master.why_not_act(other.local())
            ):
                self.count("two senders")

    # -- what happens to it ------------------------------------------------------------------

    def _produce(self) -> None:
        chance, story = self.events.chance, self.story
        if self.events.now < story.seconds - _SENDS_UNTIL_S:
            step = max(1 / story.rate, 0.01)
            for _ in range(max(int(story.rate * step), 1)):
                node = chance.choice(list(self.nodes.values()))
                masters = [one for one in self.nodes.values() if one.master is not None]
                if masters and chance.random() < 0.9:
                    node = masters[-1]
                if node.is_up and node.paused_until <= self.events.now:
                    message = len(self.sent) + 1
                    self.sent.add(message)
                    node.on_message(message)
            self.events.after(chance.expovariate(1 / step), self._produce)

    def _operate(self) -> None:
        chance = self.events.chance
        if self.events.now > self.story.seconds - CALM_S:
            return
        if chance.random() < 0.8:
            for node in self.nodes.values():
                if node.is_up and node.master is not None and node.accepts:
                    others = [one for one in self.nodes.values() if one is not node]
                    if others:
                        node.hand_over(chance.choice(others).name)
        elif self.story.min_isr > 1 and self.meta.is_up:
            self.meta.set_min_isr(chance.choice([1, 2]))
        self.events.after(chance.uniform(1, 12), self._operate)

    def _strike(self) -> None:
        chance, events = self.events.chance, self.events
        if events.now > self.story.seconds - CALM_S:
            self.network.cut = set()
            if self.meta.record.min_isr != min(self.story.min_isr, 2) and self.meta.is_up:
                self.meta.set_min_isr(min(self.story.min_isr, len(self.meta.record.in_sync)))
            return
        strikes = _AIMED if self.story.is_aimed else _STRIKES
        name = chance.choices(*zip(*strikes, strict=True))[0]
        node = chance.choice(list(self.nodes.values()))
        if getattr(self, f"_{name}")(node):
            self.faults[name.replace("_", " ")] += 1
        events.after(chance.uniform(0.5, 6), self._strike)

    def _master(self) -> Node | None:
        """Return the master of the recorded epoch."""
        epoch = self.meta.record.epoch
        return next(
            (
                node
                for node in self.nodes.values()
                if node.master is not None and node.master.record.epoch == epoch
            ),
            None,
        )

    def _master_cut_off(self, _: Node) -> bool:
        """Cut the master off from the meta server, and from some slaves."""
        chance, master = self.events.chance, self._master()
        if master is None:
            return False
        others = [name for name in self.nodes if name != master.name and chance.random() < 0.3]
        for other in ("meta", *others):
            self.network.cut |= {(master.name, other), (other, master.name)}
        self.events.after(chance.uniform(1, 10), self.network.cut.clear)
        return True

    def _short_death(self, node: Node) -> bool:
        """Kill a node that is started again within a second."""
        if not node.is_up:
            return False
        node.die()
        self.events.after(self.events.chance.uniform(0.05, 1), node.restart)
        return True

    def _partition(self, _: Node) -> bool:
        chance = self.events.chance
        names = [*self.nodes, "meta"]
        side = set(chance.sample(names, chance.choice((1, 2)) if len(names) > 2 else 1))
        cut = {(a, b) for a in names for b in names if (a in side) != (b in side)}
        if chance.random() < 0.4:
            cut = set(chance.sample(sorted(cut), max(1, len(cut) // 2)))
        self.network.cut = cut
        self.events.after(chance.uniform(0.2, 15), self.network.cut.clear)
        return True

    def _death(self, node: Node) -> bool:
        if not node.is_up:
            return False
        node.die()
        self.events.after(self.events.chance.uniform(0.1, 12), node.restart)
        return True

    def _standstill(self, node: Node) -> bool:
        node.stand_still(self.events.chance.uniform(0.5, 12))
        return node.is_up

    def _meta_death(self, _: Node) -> bool:
        if not self.meta.is_up:
            return False
        self.meta.die()
        self.events.after(self.events.chance.uniform(0.05, 8), self.meta.restart)
        return True

    def _wiped_disk(self, node: Node) -> bool:
        if not node.is_up:
            return False
        record = self.meta.record
        are_whole = all(self.nodes[one].storage == disk for one, disk in record.in_sync.items())
        # With min_isr 1 a proposal that is under way may leave the lost disk alone in sync.
        if record.min_isr < 2 or not are_whole:
            return False
        node.die()
        node.wipe()
        self.events.after(self.events.chance.uniform(1, 5), node.restart)
        return True

    def _power_cut(self, _: Node) -> bool:
        for node in self.nodes.values():
            if node.is_up:
                self._death(node)
        return True

    def _slow_disk(self, node: Node) -> bool:
        chance = self.events.chance
        seconds = chance.choice([0.1, 1, 5, 60]) * chance.uniform(0.5, 1)
        node.free_at = min(self.events.now + seconds, self.story.seconds - CALM_S)
        return True

    def _full_disk(self, node: Node) -> bool:
        node.cannot_append_until = self.events.now + self.events.chance.uniform(0.5, 15)
        return True

    def _slow_filing(self, node: Node) -> bool:
        node.files_slowly_until = self.events.now + self.events.chance.uniform(0.5, 15)
        return True

    def _reset(self, _: Node) -> bool:
        self.connections = [one for one in self.connections if not one.is_dead]
        if not self.connections:
            return False
        self.events.chance.choice(self.connections).reset()
        return True

    # -- the whole ---------------------------------------------------------------------------

    def run(self) -> None:
        """Play the story; raises BrokenPromiseError."""
        events, story = self.events, self.story
        events.at(0.5, self._produce)
        if story.has_faults:
            events.at(2.0, self._strike)
        if story.has_operator:
            events.at(5.0, self._operate)
        events.run(story.seconds)
        self._check_end()
        self.counts["acknowledged"] = len(self.acked)
        self.counts["delivered twice"] = sum(n - 1 for n in self.deliveries.values())

    def _check_end(self) -> None:
        epoch = self.meta.record.epoch
        masters = [
            node
            for node in self.nodes.values()
            if node.is_up and node.master is not None and node.master.record.epoch == epoch
        ]
        if len(masters) != 1:
            raise BrokenPromiseError(f"{len(masters)} masters in the end: {self._told()}")
        committed = {value for _, value in self.history if isinstance(value, int)}
        lost = set(self.acked) - committed
        if lost:
            raise BrokenPromiseError(f"{len(lost)} acknowledged messages are lost")
        if masters[0].point.committed <= len(self.history):
            raise BrokenPromiseError(f"the commit does not go on: {self._told()}")
        # A master of the last second has thousands of them to send.
        acked = list(self.acked)
        self.events.run(self.story.seconds + _DELIVERED_S)
        waiting = [one for one in acked if one not in self.deliveries]
        if waiting:
            raise BrokenPromiseError(f"{len(waiting)} messages were not delivered: {self._told()}")
        if set(self.deliveries) - self.sent:
            raise BrokenPromiseError("a message was delivered that nobody sent")
        for _ in range(self.counts["two senders"]):
            raise BrokenPromiseError("two nodes could send at once")

    def _told(self) -> str:
        """Say how everything stands, for who looks into a seed."""
        parts = [str(self.meta.record)]
        for node in self.nodes.values():
            parts.append(
                f"{node.name}: end {node.end}, durable {node.synced}, committed "
                f"{node.point.committed}, promised {node.voter.promise.epoch}, up {node.is_up}"
            )
            if node.master is not None:
                now = node.local()
                parts += [one.sentence for one in node.master.members.decisions(now)]
                parts += [node.master.why_not_append(now), node.master.why_not_send(now)]
        return "\n".join(parts)


_STRIKES: Final = (
    ("partition", 24),
    ("death", 24),
    ("standstill", 12),
    ("meta_death", 8),
    ("wiped_disk", 4),
    ("power_cut", 4),
    ("slow_disk", 8),
    ("full_disk", 4),
    ("slow_filing", 4),
    ("reset", 8),
)


_AIMED: Final = (("master_cut_off", 50), ("short_death", 50))


STORIES: Final = {
    "schedule": Story(),
    "schedule-2": Story(replicas=2),
    "schedule-5": Story(replicas=5),
    "schedule-min1": Story(min_isr=1),
    "schedule-aimed": Story(is_aimed=True),
    "schedule-busy": Story(seconds=70, rate=3000),
}
"""By the name of their world."""


@dataclass(slots=True)
class GroupResult:
    """What a seed came to."""

    seed: int
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)


def run_schedule(seed: int, world: str = "schedule") -> GroupResult:
    """Play one seed of a world."""
    group = Group(seed, STORIES[world])
    result = GroupResult(seed, counts=group.counts, faults=group.faults)
    try:
        group.run()
    except BrokenPromiseError as error:
        result.violations.append(str(error))
    except Exception:  # noqa: BLE001 (whatever the core does not stand is a finding)
        result.violations.append(traceback.format_exc())
    return result


@dataclass(slots=True)
class ScheduleCampaign(Account[GroupResult]):
    """What the seeds of a campaign came to, added up."""

    counts: Counter[str] = field(default_factory=Counter)

    def _count(self, result: GroupResult) -> None:
        self.counts.update(result.counts)

    def lines(self) -> Iterator[str]:
        """Yield the account for people."""
        yield f"{self.seeds} seeds, {len(self.failed)} failed"
        yield "seen: " + counts_line(self.counts)
        yield "faults: " + counts_line(self.faults)
