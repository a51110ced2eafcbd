"""Elections, leases and in-sync sets of delay groups, as the meta server decides on them. Pure.

    an election begins   at once where the recorded master's disk was started again: that start is
                         gone; else when an operator asks, and the lease is over
    is under way         as long as the record has no master: after a restart, too
    ends                 when all members heard lately have voted, or some after a while: the
                         longest log becomes the master, those who voted are in sync
    is refused           where a voter was told a newer record than this store has, or where much
                         would be sent again that a member which is away has done

Every member of the in-sync set has every acknowledged message, so that one vote is enough to lose
none. The record changes by compare-and-set on (epoch, version). A proposal that is refused counts
the version up as well: so none comes true later.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from delay_protocol.nodes.clocks import clock_fault
from delay_protocol.nodes.registration import GroupRecord, Master, Phase
from meta_server.known.model import DelayNode

LEASE_GUARD_S: Final = 0.5
"""Beyond the end of a lease, before anybody else is elected."""
HEARD_LATELY_S: Final = 2.5
"""Members that were heard so lately are waited for…"""
VOTES_S_MAX: Final = 1.5
"""… for so long after the first vote. Votes come when what was promised to the last master has run
out, so that the first may take three seconds and the others come soon after it."""
WISH_S: Final = 10.0
"""Seconds for which a master is asked to hand over: one that can has done so in two."""
SENT_AGAIN_MAX: Final = 50_000
"""Outcomes that a member may have, and the new master lack, without an operator's word."""


class Heard(NamedTuple):
    """What a start of a node said last."""

    at: float
    storage: UUID
    incarnation: int
    end: int
    """Of its durable log."""
    uncommitted: int
    """Outcomes that are durable there and not committed."""
    committed: int = 0
    """The last record that it knows to be committed."""
    clock_ahead_ms: int = 0
    """By how much its wall clock was ahead of the meta server's."""


class Voted(NamedTuple):
    """A vote of a member, and what speaks for it."""

    storage: UUID
    incarnation: int
    last_epoch: int
    end: int
    applied: int
    told: GroupRecord | None
    fault: str
    """Why it had better not be the master; empty if nothing is wrong."""


class Wish(NamedTuple):
    """An operator wants the master of an epoch to hand the group over."""

    epoch: int
    to: str
    until: float
    """The master has heard of it by then, or is not asked any more."""


class Waiting(NamedTuple):
    """Nobody is the master yet."""

    sentence: str


class Refused(NamedTuple):
    """It is not done, and why."""

    sentence: str


@dataclass(slots=True)
class GroupState:
    """What is known of one group beside its record; a restart forgets it."""

    lease_until: float
    """Nobody else may be elected before: the lease that was granted last, by the clock here."""
    heard: dict[str, Heard] = field(default_factory=dict)
    votes: dict[str, Voted] = field(default_factory=dict)
    first_vote_at: float | None = None
    """When the first vote of the present election came."""
    may_send_again: int = SENT_AGAIN_MAX
    """What an operator said may be sent again."""
    wish: Wish | None = None

    # -- leases ------------------------------------------------------------------------------

    def was_heard(self, node: str, heard: Heard) -> None:
        """Note what a node said of itself."""
        self.heard[node] = heard

    def heard_of(self, node: DelayNode) -> Heard | None:
        """Return what a start said last; None: nothing since this meta server began."""
        found = self.heard.get(node.node_id)
        own = node.storage_uuid, node.incarnation
        return found if found and (found.storage, found.incarnation) == own else None

    def clock_fault(self, node: str) -> str:
        """Return why the clock of a node is taken for wrong; empty if it is not."""
        return clock_fault(node, {name: one.clock_ahead_ms for name, one in self.heard.items()})

    def _was_heard_lately(self, node: str, storage: UUID, now: float) -> bool:
        found = self.heard.get(node)
        return found is not None and found.storage == storage and now - found.at <= HEARD_LATELY_S

    def grant(self, record: GroupRecord, master: Master, *, lease_s: float, now: float) -> bool:
        """Say whether a node has the lease of the record's epoch, from now on."""
        if record.master != master or record.phase is not Phase.ACTIVE:
            return False
        self.lease_until = max(self.lease_until, now + lease_s)
        return True

    def lease_left(self, now: float) -> float:
        """Return for how many seconds nobody else may be elected."""
        return max(self.lease_until + LEASE_GUARD_S - now, 0.0)

    # -- an election -------------------------------------------------------------------------

    def was_restarted(self, record: GroupRecord) -> bool:
        """Say whether the recorded master's disk was started again: its lease is over, then."""
        master = record.master
        if master is None:
            return False
        found = self.heard.get(master.node_id)
        return (
            found is not None
            and found.storage == record.in_sync.get(master.node_id)
            and found.incarnation > master.incarnation
        )

    def begin(self, record: GroupRecord, *, now: float) -> GroupRecord | Refused:
        """Return the record with which an election begins."""
        left = self.lease_left(now)
        if left and not self.was_restarted(record):
            return Refused(
                f"the master may send for another {left:.1f} s, unless it is started again: wait, "
                "or have it hand the group over if it lives"
            )
        self.begin_again()
        return msgspec.structs.replace(
            record,
            epoch=record.epoch + 1,
            version=record.version + 1,
            master=None,
            phase=Phase.ELECTING,
        )

    def begin_again(self) -> None:
        """Forget the votes: all are asked for."""
        self.votes, self.first_vote_at = {}, None

    def asks(self, record: GroupRecord) -> list[str]:
        """Return who has to be asked for a vote; an election that was begun before goes on."""
        if record.phase is not Phase.ELECTING:
            return []
        return sorted(set(record.in_sync) - set(self.votes))

    def voted(self, record: GroupRecord, node: str, epoch: int, vote: Voted, *, now: float) -> str:
        """Take a vote; return why it does not count, empty if it does."""
        if record.phase is not Phase.ELECTING or epoch != record.epoch:
            return f"no election for epoch {epoch} is under way"
        if record.in_sync.get(node) != vote.storage:
            return f"the disk of {node} is not in sync"
        if self.first_vote_at is None:
            self.first_vote_at = now
        self.votes[node] = vote
        return ""

    def choose(self, record: GroupRecord, *, now: float) -> GroupRecord | Waiting | Refused:
        """Return the record with the new master, as soon as it is known who that is."""
        since = now if self.first_vote_at is None else self.first_vote_at
        lately = {
            node
            for node, storage in record.in_sync.items()
            if self._was_heard_lately(node, storage, now)
        }
        missing = sorted(lately - set(self.votes))
        if not self.votes or (missing and now - since <= VOTES_S_MAX):
            names = ", ".join(missing or sorted(record.in_sync))
            return Waiting(f"waits for votes of {names}")
        newer = _told_newer(record, self.votes)
        if newer:
            return Refused(newer)
        fit = [node for node in sorted(self.votes) if not self.clock_fault(node)]
        if not fit and len(record.in_sync) > 1:
            return Refused("; ".join(self.clock_fault(node) for node in sorted(self.votes)))
        best = max(fit or self.votes, key=lambda node: _rank(node, self.votes[node]))
        chosen = self.votes[best]
        again = self._sent_again(record, best)
        if again:
            return Refused(again)
        in_sync = {node: vote.storage for node, vote in self.votes.items()}
        for node in sorted(record.in_sync, key=lambda one: (one not in lately, one)):
            if len(in_sync) < record.min_isr:
                in_sync.setdefault(node, record.in_sync[node])
        self.begin_again()
        self.may_send_again = SENT_AGAIN_MAX
        return msgspec.structs.replace(
            record,
            version=record.version + 1,
            master=Master(node_id=best, incarnation=chosen.incarnation),
            in_sync=in_sync,
            phase=Phase.ACTIVE,
        )

    def _sent_again(self, record: GroupRecord, best: str) -> str:
        """Say why the best voter would send too much again; empty if it would not."""
        for node, found in sorted(self.heard.items()):
            if (
                record.in_sync.get(node) == found.storage
                and node not in self.votes
                and found.end > self.votes[best].end
                and found.uncommitted > self.may_send_again
            ):
                return (
                    f"{node} has {found.uncommitted} outcomes of deliveries that {best} lacks, and "
                    f"which {best} would send again: bring {node} back, or elect with "
                    f"--send-again {found.uncommitted}"
                )
        return ""

    # -- what an operator asks for -----------------------------------------------------------

    def elect(
        self, record: GroupRecord, *, send_again: int | None, now: float
    ) -> GroupRecord | Refused:
        """Return the record with which an election begins, or goes on: then the record itself."""
        if not record.in_sync:
            return Refused("no disk is in sync: the group begins with the next node that registers")
        begun = record if record.phase is Phase.ELECTING else self.begin(record, now=now)
        if send_again is not None and isinstance(begun, GroupRecord):
            self.may_send_again = send_again
        return begun

    def ask_to_hand_over(self, record: GroupRecord, to: str | None, *, now: float) -> str | Refused:
        """Have the master hand the group over; return to which node.

        Without `to` it is the one with the longest log of those in sync that were heard lately.
        """
        master = record.master
        if master is None:
            return Refused("there is no master who could hand over: an election is under way")
        if to == master.node_id:
            return Refused(f"{to} is the master: name another member in sync, or none")
        if to is not None and to not in record.in_sync:
            return Refused(
                f"{to} is not in sync, as {', '.join(sorted(record.in_sync))} are: wait until it is"
            )
        heard = [
            node
            for node, storage in sorted(record.in_sync.items())
            if node != master.node_id
            and self._was_heard_lately(node, storage, now)
            and (node == to or not self.clock_fault(node))
        ]
        if to is not None and to not in heard:
            return Refused(
                f"{to} was not heard within {HEARD_LATELY_S} s with its disk in sync: start it, or "
                "name another member"
            )
        if not heard:
            faults = filter(None, map(self.clock_fault, sorted(record.in_sync)))
            return Refused(
                f"no member in sync beside {master.node_id} was heard within {HEARD_LATELY_S} s "
                + "; ".join(["and has a right clock: start one, wait until it is in sync", *faults])
            )
        target = to or max(heard, key=lambda node: (self.heard[node].end, node))
        self.wish = Wish(record.epoch, target, now + WISH_S)
        return target

    def wished(self, record: GroupRecord, *, now: float) -> str:
        """Return to which node the master is to hand over; empty if to none."""
        wish = self.wish
        is_open = wish is not None and wish.epoch == record.epoch and now < wish.until
        return wish.to if wish is not None and is_open else ""

    def forget_wish(self, now: float) -> bool:
        """Forget a wish whose time is up; say whether there was one."""
        if self.wish is None or now < self.wish.until:
            return False
        self.wish = None
        return True

    # -- what a master asks for --------------------------------------------------------------

    def alter(
        self,
        record: GroupRecord,
        master: Master,
        pair: tuple[int, int],
        wanted: dict[str, UUID],
        *,
        now: float,
    ) -> GroupRecord | Refused:
        """Return the record with another in-sync set, or with its version counted up alone.

        Refused: the proposal is of another master, epoch or version, and changes nothing.
        """
        if record.master != master or (record.epoch, record.version) != pair:
            return Refused(f"the record is that of epoch {record.epoch}, version {record.version}")
        is_refused = self.why_not(record, wanted, now=now)
        return msgspec.structs.replace(
            record,
            version=record.version + 1,
            in_sync=record.in_sync if is_refused else wanted,
        )

    def why_not(self, record: GroupRecord, wanted: dict[str, UUID], *, now: float) -> str:
        """Say why a set that the master proposes is not taken; empty if it is."""
        if len(wanted) < record.min_isr:
            return f"{len(wanted)} disks are fewer than {record.min_isr}, the least (min_isr)"
        if record.master is None or record.master.node_id not in wanted:
            return "the master is always in sync"
        for node, storage in sorted(wanted.items()):
            is_known = record.in_sync.get(node) == storage
            if not (is_known or self._was_heard_lately(node, storage, now)):
                return f"{node} was not heard within {HEARD_LATELY_S} s with the disk {storage}"
        return ""

    def hand_over(
        self, record: GroupRecord, master: Master, pair: tuple[int, int], target: str
    ) -> GroupRecord | Refused:
        """Return the record in which another member in sync, or the same, is the master."""
        if record.master != master or (record.epoch, record.version) != pair:
            return Refused(f"the record is that of epoch {record.epoch}, version {record.version}")
        found = self.heard.get(target)
        if found is None or record.in_sync.get(target) != found.storage:
            return Refused(f"{target} is not in sync, or was not heard")
        return msgspec.structs.replace(
            record,
            epoch=record.epoch + 1,
            version=record.version + 1,
            master=Master(node_id=target, incarnation=found.incarnation),
        )


def _rank(node: str, vote: Voted) -> tuple[int, int, bool, int, str]:
    """Return what the longest log is greatest in; among equal ones the one that has filed most."""
    return vote.last_epoch, vote.end, not vote.fault, vote.applied, node


def _told_newer(record: GroupRecord, votes: dict[str, Voted]) -> str:
    """Say whether a voter was told what this store does not know; empty if none was."""
    pair = record.epoch, record.version
    for node, vote in sorted(votes.items()):
        told = vote.told
        if told is None or (told.epoch, told.version) < pair or told == record:
            continue
        return (
            f"{node} was told of epoch {told.epoch}, version {told.version}, and this store has "
            f"epoch {record.epoch}, version {record.version}: it is an older copy, or another one"
        )
    return ""


def set_min_isr(record: GroupRecord, count: int) -> GroupRecord | Refused:
    """Return the record with another least size of the in-sync set."""
    if count > len(record.in_sync):
        return Refused(
            f"{count} disks cannot be required while {len(record.in_sync)} are in sync: "
            + ", ".join(sorted(record.in_sync))
        )
    return msgspec.structs.replace(record, min_isr=count, version=record.version + 1)
