"""The meta server under the schedule: the real elections, and a store that loses nothing."""

from typing import TYPE_CHECKING, Final
from uuid import UUID

from delay_protocol.nodes.registration import GroupRecord, Master, Phase
from meta_server.groups.elections import GroupState, Heard, Refused, Voted, Waiting, set_min_isr
from replication.core.record import Member
from tests.simulation.schedule.events import Process

if TYPE_CHECKING:
    from tests.simulation.schedule.group import Group
    from tests.simulation.schedule.node import Node

LEASE_S: Final = 5.0


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
        """Begin a life: whom the life before granted a lease is not known."""
        self.state = GroupState(lease_until=self.local() + LEASE_S)
        self.later(0.1, self._look)

    def restart(self) -> None:
        """Live again."""
        if not self.is_up:
            self.live()
            self.begin()

    def in_sync(self) -> frozenset[Member]:
        """Return the recorded set."""
        return frozenset(Member(node, storage) for node, storage in self.record.in_sync.items())

    def _store(self, record: GroupRecord | Waiting | Refused) -> bool:
        if not isinstance(record, GroupRecord):
            return False
        self.record = record
        self.group.was_recorded(record)
        for node in self.group.nodes.values():
            self.group.network.tell(self, node, node.on_told, record, 0.0, 0.0)
        return True

    def on_heard(self, node: "Node", heard: Heard, epoch: int, sent_at: float) -> None:
        """Hear what a node says of itself; answer with the record, and with a lease."""
        now = self.local()
        known = self.state.heard.get(node.name)
        is_known = known is not None and known.storage == heard.storage
        if known is not None and is_known and heard.incarnation < known.incarnation:
            return
        self.state.was_heard(node.name, heard._replace(at=now))
        master = Master(node_id=node.name, incarnation=heard.incarnation)
        lease_s = 0.0
        if epoch == self.record.epoch and self.state.grant(
            self.record, master, lease_s=LEASE_S, now=now
        ):
            lease_s = LEASE_S
        self.group.network.tell(self, node, node.on_told, self.record, lease_s, sent_at)

    def on_vote(self, node: str, epoch: int, vote: Voted) -> None:
        """Take a vote."""
        self.state.voted(self.record, node, epoch, vote, now=self.local())

    def on_alter(
        self, master: tuple[str, int], pair: tuple[int, int], wanted: dict[str, UUID]
    ) -> None:
        """Change the in-sync set, or refuse to; the version is another one in both cases."""
        own = Master(node_id=master[0], incarnation=master[1])
        self._store(self.state.alter(self.record, own, pair, wanted, now=self.local()))

    def on_hand_over(self, master: tuple[str, int], pair: tuple[int, int], target: str) -> None:
        """Make another node the master, at the wish of the present one."""
        own = Master(node_id=master[0], incarnation=master[1])
        if self._store(self.state.hand_over(self.record, own, pair, target)):
            self.group.count("handover" if target != master[0] else "handover to itself")
            # The lease goes with the record.
            self.state.lease_until = self.local() + LEASE_S

    def set_min_isr(self, count: int) -> None:
        """Do as an operator says."""
        if self.record.phase is not Phase.ACTIVE or count == self.record.min_isr:
            return
        if self._store(set_min_isr(self.record, count)):
            self.group.count("min_isr changed")

    def _look(self) -> None:
        """Elect a master where there is none, as an operator would who waits for nothing else."""
        self.later(0.2, self._look)
        now = self.local()
        is_active = self.record.phase is Phase.ACTIVE
        if is_active and self._store(self.state.begin(self.record, now=now)):
            self.group.count("election")
        for node in self.state.asks(self.record):
            voter = self.group.nodes[node]
            self.group.network.tell(self, voter, voter.on_asked_to_vote, self.record.epoch)
        if self.record.phase is Phase.ELECTING:
            chosen = self.state.choose(self.record, now=now)
            if isinstance(chosen, Refused):
                self.group.count(f"refused: {chosen.sentence.split(' ')[-1]}")
            if self._store(chosen):
                self.state.lease_until = now + LEASE_S
