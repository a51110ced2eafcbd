"""The meta server under the schedule: the real elections, and a store that loses nothing."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from delay_protocol.nodes.registration import GroupRecord, Master, Phase
from meta_server.groups.elections import (
    BLOCKED_AGAIN_S,
    GroupState,
    Heard,
    Voted,
    set_min_isr,
)
from meta_server.known.errors import StateError
from replication.core.record import Member
from tests.simulation.schedule.events import Process

if TYPE_CHECKING:
    from tests.simulation.schedule.group import Group
    from tests.simulation.schedule.node import Node

STANDSTILL_S: Final = 0.5
"""A timer that is late by so much shows that the process stood still."""


class Meta(Process):
    """The one meta server; its record survives `die`."""

    def __init__(self, group: "Group", *, min_isr: int) -> None:
        super().__init__(group.events, "meta")
        self.group = group
        members = {node.name: node.storage for node in group.nodes.values()}
        self.record = GroupRecord(
            epoch=1,
            version=1,
            master=None,
            in_sync=members,
            min_isr=min_isr,
            phase=Phase.ELECTING,
        )
        group.was_recorded(self.record)
        self.begin()

    def begin(self) -> None:
        """Begin a life, in which nothing was heard yet."""
        self.state = GroupState(self.local())
        self._ran_at = self.local()
        self.later(0.1, self._look)

    def _wake(self) -> None:
        """Count time in which the process stood still as nobody's silence."""
        late_s, self._ran_at = self.local() - self._ran_at, self.local()
        if late_s > STANDSTILL_S:
            self.state.stood_still(late_s)

    def restart(self) -> None:
        """Live again."""
        if not self.is_up:
            self.live()
            self.begin()

    def in_sync(self) -> frozenset[Member]:
        """Return the recorded set."""
        return frozenset(Member(node, storage) for node, storage in self.record.in_sync.items())

    def _store(self, record: GroupRecord) -> None:
        """Store a record, and tell everybody."""
        self.record = record
        self.group.was_recorded(record)
        for node in self.group.nodes.values():
            self.group.network.tell(self, node, node.on_told, record)

    def _store_if(self, found: Callable[[], GroupRecord]) -> bool:
        """Store a record if there is one; return True if there is."""
        try:
            self._store(found())
        except StateError:
            return False
        return True

    def on_heard(self, node: "Node", heard: Heard) -> None:
        """Take what a node says of itself; answer with the record."""
        self._wake()
        now = self.local()
        known = self.state.heard.get(node.name)
        is_known = known is not None and known.node.storage_uuid == heard.node.storage_uuid
        if known is not None and is_known and heard.node.incarnation < known.node.incarnation:
            return
        self.state.heard[node.name] = heard._replace(at=now)
        self._begin_election()
        self.group.network.tell(self, node, node.on_told, self.record)

    def on_vote(self, node: str, vote: Voted) -> None:
        """Take a vote."""
        self.state.voted(self.record, node, vote, now=self.local())

    def on_alter(
        self, master: tuple[str, int], pair: tuple[int, int], wanted: dict[str, UUID]
    ) -> None:
        """Change the in-sync set, or refuse to; the version is another one in both cases."""
        own = Master(node_id=master[0], incarnation=master[1])
        self._store_if(partial(self.state.alter, self.record, own, pair, wanted, now=self.local()))

    def on_hand_over(self, master: tuple[str, int], pair: tuple[int, int], target: str) -> None:
        """Make another node the master, at the wish of the present one."""
        own = Master(node_id=master[0], incarnation=master[1])
        hand_over = partial(self.state.hand_over, self.record, own, pair, target)
        if self._store_if(partial(hand_over, now=self.local())):
            self.group.count("handover" if target != master[0] else "handover to itself")

    def set_min_isr(self, count: int) -> None:
        """Do as an operator says."""
        if self.record.phase is not Phase.ACTIVE or count == self.record.min_isr:
            return
        if self._store_if(partial(set_min_isr, self.record, count)):
            self.group.count("min_isr changed")

    def _ask_to_hand_over(self) -> None:
        """Ask a master that is unfit to hand over."""
        now, master = self.local(), self.record.master
        self.state.forget_wish(now)
        wish = self.state.must_hand_over(self.record, now=now)
        if wish is not None and master is not None:
            self.group.count("an unfit master asked")
            node = self.group.nodes[master.node_id]
            self.group.network.tell(self, node, node.on_wish, wish.epoch, wish.to)

    def _look(self) -> None:
        """Begin and end elections."""
        self.later(0.1, self._look)
        self._wake()
        self._begin_election()
        now = self.local()
        gone = 0 if self.state.cause is None else self.state.cause.gone
        for node in self.state.asks(self.record):
            voter = self.group.nodes[node]
            self.group.network.tell(self, voter, voter.on_asked_to_vote, self.record.epoch, gone)
        if self.record.phase is Phase.ELECTING:
            self._store_if(partial(self.state.choose, self.record, now=now))

    def _begin_election(self) -> None:
        record, now = self.record, self.local()
        cause = self.state.why_begin(record, now=now)
        if cause is None:
            self._ask_to_hand_over()
            return
        assert record.master is not None
        kind = "gone" if cause.gone else "blocked" if cause.deposed else "silent"
        self.group.begins(record.master.node_id, record.epoch, kind)
        if kind == "blocked" and now - self.state.changed_at < BLOCKED_AGAIN_S:
            raise AssertionError("deposed too soon")
        self._store(self.state.begin(record, cause))
