"""The in-sync set of a group, as its master keeps it: who is needed, dropped and taken in. Pure.

    a disk is      until
    catching up    it acknowledges within 200 ms of the end
    waited for     it is recorded; 1 s at the most, and then not again for 5 s
    in sync        it lags, breaks off, leaves, or cannot append

*Needed* for a commit are those recorded, those proposed, and those waited for: from the moment in
which a set is proposed until the meta server has answered, the old one and the new one. The
recorded set is changed by the meta server alone, on a proposal, by compare-and-set; a proposal is
made again until the version of the record has moved. It never gets smaller than min_isr.

Every decision has a sentence (`why`): it is told when its kind changes, and shown when asked for.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from replication.core.commit_point import CommitPoint
from replication.core.peers import (
    BROKEN_S_MAX,
    FLAPS,
    FLAPS_S,
    HEARD_S_MAX,
    EndTrace,
    Peer,
    Progress,
)
from replication.core.record import Member, Record, Start

SILENT_S_MAX: Final = 2.5
"""A member from which nothing came for so long is dropped: before its promise, of 3 s, is over."""
PROMISED_S: Final = 1.0
"""A disk whose promise runs for less is not proposed: it would be needed for sending at once."""
FSYNC_S_MAX: Final = 10.0
"""Where a commit takes longer the disk hangs: another node becomes the master."""
NEAR_S: Final = 0.2
"""A disk that acknowledges what was the end so long ago is waited for."""
WAITED_S_MAX: Final = 1.0
"""For how long, where it does not come to be recorded…"""
WAITED_AGAIN_S: Final = 5.0
"""… and after how long again."""


class Standing(Enum):
    """How a disk stands in its group."""

    AWAY = "away"
    CATCHING_UP = "catching up"
    PAUSED = "paused"
    WAITED_FOR = "waited for"
    PROPOSED = "proposed"
    IN_SYNC = "in sync"
    KEPT = "kept"
    DROPPED = "dropped"


class Decision(NamedTuple):
    """How a disk stands, and the sentence that says why."""

    member: Member
    standing: Standing
    sentence: str


class Proposal(NamedTuple):
    """What the meta server is to make the in-sync set, if the record is still this one."""

    epoch: int
    version: int
    in_sync: frozenset[Member]


class ProtocolFaultError(Exception):
    """A peer says what cannot be: its connection is closed, and it acknowledges nothing by it."""


class InSyncSet:
    """The members of a group, in one epoch of its master; feeds the commit point.

    Invariant: what is committed is durable on every member of the recorded set, of the proposed one
    and of those waited for; and is never less than before.
    """

    def __init__(
        self,
        own: Member,
        record: Record,
        commit_point: CommitPoint,
        *,
        start: int,
        lag_s_max: float,
        now: float,
    ) -> None:
        """Begin an epoch of which the first record has the sequence `start`."""
        self.own = own
        self.record = record
        self._commit_point = commit_point
        self._start = start
        self._lag_s_max = lag_s_max
        self._peers: dict[Member, Peer] = {}
        self._proposed: frozenset[Member] | None = None
        self._ends = EndTrace()
        self.end = start
        """The end of what is written here, durable or not."""
        self.commits_since: float | None = None
        """When the commit that is under way here began; None: there is none."""
        self._told: dict[Member, Standing] = {}
        for member in sorted(record.in_sync - {own}):
            self._peer(member, now)

    def _peer(self, member: Member, now: float) -> Peer:
        found = self._peers.get(member)
        if found is None:
            # Of a member nothing is known yet: it has as long as one that was just heard.
            progress = Progress(level_at=now), Progress(level_at=now)
            found = self._peers[member] = Peer(member, *progress, heard_at=now)
        return found

    # -- what happens ------------------------------------------------------------------------

    def written(self, end: int, now: float) -> None:
        """Note that the log ends there now, durable or not."""
        self.end = max(self.end, end)
        self._ends.note(end, now)

    def durable(self, end: int) -> None:
        """Note that all records below are durable here."""
        self._commit_point.durable_to(end)
        self._commit()

    def connected(self, start: Start, connection: int, *, sequence: int, now: float) -> None:
        """Take the connection of a start whose log has matched up to a sequence.

        Another connection of the same disk does not count any more.
        """
        self._peer(start.member, now).connected(start, connection, sequence=sequence, now=now)

    def sent(self, member: Member, connection: int, end: int) -> None:
        """Note what was sent on a connection."""
        peer = self._peers[member]
        if peer.connection == connection:
            peer.sent = max(peer.sent, end)

    def acknowledged(
        self,
        member: Member,
        connection: int,
        *,
        end: int,
        applied: int,
        echo: float | None,
        now: float,
    ) -> None:
        """Take an acknowledgement; raises ProtocolFaultError, and counts nothing then.

        One of a connection that does not count any more is ignored.
        """
        peer = self._peers.get(member)
        if peer is None or peer.connection != connection:
            return
        if end > peer.sent:
            raise ProtocolFaultError(
                f"{member.node} acknowledged record {end - 1}, and was sent up to {peer.sent - 1}"
            )
        committed = self._commit_point.committed
        peer.acknowledged(
            end=end, applied=applied, echo=echo, own_end=self.end, committed=committed, now=now
        )
        self._wait_for(peer, now)
        self._commit()

    def leaves(self, member: Member, connection: int, reason: str) -> None:
        """Note that a slave stops, or cannot append, by its own word."""
        peer = self._peers.get(member)
        if peer is not None and peer.connection == connection:
            peer.leaves = reason

    def disconnected(self, member: Member, connection: int, now: float) -> None:
        """Note that a connection is gone."""
        peer = self._peers.get(member)
        if peer is not None and peer.connection == connection:
            peer.disconnected(now)

    def recorded(self, record: Record, now: float) -> None:
        """Take a newer record of the same epoch."""
        if record.version <= self.record.version:
            return
        for member in self.record.in_sync - record.in_sync - {self.own}:
            self._peer(member, now).dropped(now)
        for member in sorted(record.in_sync - {self.own}):
            self._peer(member, now).waited_since = None
        self.record, self._proposed = record, None
        self._commit()

    # -- what follows ------------------------------------------------------------------------

    def needed(self) -> frozenset[Member]:
        """Return whose disks have to have a record before it is committed; this one's as well."""
        waited = (one.member for one in self._peers.values() if one.waited_since is not None)
        return frozenset({self.own, *self.record.in_sync, *(self._proposed or ()), *waited})

    def _commit(self) -> None:
        needed = self.needed() - {self.own}
        self._commit_point.is_sole = False
        if self.own not in self.record.in_sync or len(self.record.in_sync) < self.record.min_isr:
            return
        end = min((self._peers[one].acked for one in needed), default=self._commit_point.durable)
        # An acknowledgement of less than the beginning of this epoch may be about other records.
        if end > self._start:
            self._commit_point.commit_to(end)

    def _wait_for(self, peer: Peer, now: float) -> None:
        """Have commits wait for a disk that is nearly there."""
        if (
            peer.waited_since is None
            and peer.member not in self.record.in_sync
            and not peer.leaves
            and now >= peer.not_before
            and peer.acked > self._start
            and peer.acked >= self._ends.at(now - NEAR_S)
        ):
            peer.waited_since = now

    def look(self, now: float) -> Proposal | None:
        """Return what is to be proposed to the meta server now, again and again; None: nothing."""
        self._ends.note(self.end, now)
        for peer in self._peers.values():
            waited_s = 0.0 if peer.waited_since is None else now - peer.waited_since
            if waited_s > WAITED_S_MAX and peer.member not in (self._proposed or ()):
                peer.waited_since, peer.not_before = None, now + WAITED_AGAIN_S
        if self._proposed is None:
            self._proposed = self._wanted(now)
        self._commit()
        if self._proposed is None:
            return None
        return Proposal(self.record.epoch, self.record.version, self._proposed)

    def _wanted(self, now: float) -> frozenset[Member] | None:
        record = self.record
        if self.own not in record.in_sync:
            return None
        fit = self._fit(now)
        if record.min_isr <= len(fit) < len(record.in_sync):
            return fit
        for peer in self._peers.values():
            if (
                peer.waited_since is not None
                and peer.acked >= self._commit_point.committed
                and peer.acked > self._start
                and peer.lease_until > now + PROMISED_S
            ):
                return record.with_member(peer.member)
        return None

    def _fit(self, now: float) -> frozenset[Member]:
        """Return the recorded set without those with which something is wrong."""
        others = self.record.in_sync - {self.own}
        return self.record.in_sync - {one for one in others if self._fault(self._peers[one], now)}

    def _fault(self, peer: Peer, now: float) -> str:
        """Say why a member is not to be in sync; empty if nothing is wrong with it."""
        if peer.leaves:
            return peer.leaves
        if peer.broken_at is not None and now - peer.broken_at > BROKEN_S_MAX:
            return f"its connection broke {now - peer.broken_at:.1f} s ago"
        if now - peer.heard_at > SILENT_S_MAX:
            return f"nothing came from it for {now - peer.heard_at:.1f} s"
        lag = peer.log.lag(self.end, now)
        if lag > self._lag_s_max:
            return f"{lag:.1f} s behind, limit {self._lag_s_max:.1f} s"
        return ""

    def hangs(self, now: float) -> str:
        """Return why the disk here is taken to hang, where others are in sync; empty if not."""
        since = self.commits_since
        if since is None or self.is_alone or now - since <= FSYNC_S_MAX:
            return ""
        return f"nothing became durable for {FSYNC_S_MAX:.0f} s: its disk hangs"

    def why_not_append(self, now: float) -> str:
        """Say why no message may be appended; empty if one may be.

        What may not be acknowledged for want of members is not appended at all: its producer sends
        it again, and each of these would be a record.
        """
        record = self.record
        others = record.in_sync - {self.own}
        heard = [one for one in others if self._peers[one].is_heard(now)]
        if len(heard) + 1 >= record.min_isr:
            return ""
        missing = ", ".join(sorted(one.node for one in others.difference(heard)))
        silent = f"; nothing was heard of {missing} for {HEARD_S_MAX} s" if missing else ""
        return f"{record.min_isr} disks must be in sync, and {len(heard) + 1} are heard{silent}"

    def best_end(self) -> int:
        """Return the end of the best other member in sync; of this one's log if there is none."""
        ends = (self._peers[one].acked for one in self.record.in_sync - {self.own})
        return max(ends, default=self._commit_point.durable)

    @property
    def is_alone(self) -> bool:
        """Whether no other disk is needed: then nobody else can become the master."""
        return self.needed() == {self.own}

    def unpromised(self, now: float) -> list[str]:
        """Return who may be elected and has not promised to vote for nobody else.

        That is whom the record names, or names as soon as what is proposed is taken.
        """
        others = {*self.record.in_sync, *(self._proposed or ())} - {self.own}
        return sorted(one.node for one in others if self._peers[one].lease_until <= now)

    def hears_nobody(self, now: float) -> bool:
        """Return True if no other member was heard lately, of those that there are."""
        others = self.record.in_sync - {self.own}
        return not any(self._peers[one].is_heard(now) for one in others)

    def end_of(self, member: Member) -> int:
        """Return how far a member has acknowledged; 0 if nothing is known of it."""
        peer = self._peers.get(member)
        return peer.acked if peer is not None else 0

    def all_heard_at(self) -> float:
        """Return when the one was heard that was heard least lately, of those that are needed."""
        return min(self._peers[one].heard_at for one in self.needed() - {self.own})

    def peers(self) -> Iterator[Peer]:
        """Yield what is known of each other disk."""
        yield from self._peers.values()

    # -- what is told ------------------------------------------------------------------------

    def decisions(self, now: float) -> Iterator[Decision]:
        """Yield how each other disk stands, and why."""
        for peer in self._peers.values():
            standing, sentence = self._decided(peer, now)
            yield Decision(peer.member, standing, sentence)

    def changed(self, now: float) -> Iterator[Decision]:
        """Yield the decisions of which the kind is another one than when this was asked last."""
        for decision in self.decisions(now):
            if self._told.get(decision.member) is not decision.standing:
                self._told[decision.member] = decision.standing
                yield decision

    def _decided(self, peer: Peer, now: float) -> tuple[Standing, str]:
        name, fault = peer.member.node, self._fault(peer, now)
        behind = f"{peer.log.lag(self.end, now):.1f} s behind, limit {self._lag_s_max:.1f} s"
        if peer.member not in self.record.in_sync:
            return self._decided_outside(peer, behind, now)
        if not fault:
            return Standing.IN_SYNC, f"keeps {name} in sync: {behind}"
        if len(self._fit(now)) < self.record.min_isr:
            least = f"min_isr is {self.record.min_isr}"
            return Standing.KEPT, f"keeps {name} in sync, since {least}: {fault}"
        return Standing.DROPPED, f"drops {name}: {fault}"

    def _decided_outside(self, peer: Peer, behind: str, now: float) -> tuple[Standing, str]:
        """Say how a disk stands that is not recorded."""
        name = peer.member.node
        if peer.connection is None:
            return Standing.AWAY, f"{name} is not connected"
        if self._proposed is not None and peer.member in self._proposed:
            return Standing.PROPOSED, f"takes {name} in sync: its log is at the commit"
        if peer.waited_since is not None:
            return Standing.WAITED_FOR, f"waits for {name}: {behind}"
        if now < peer.not_before:
            often = f"it was dropped {len(peer.drops)} times in {FLAPS_S:.0f} s, "
            reason = often if len(peer.drops) >= FLAPS else ""
            left = f"next try in {peer.not_before - now:.1f} s"
            return Standing.PAUSED, f"{name} is not taken in sync yet: {reason}{left}"
        missing = self.end - peer.acked
        return Standing.CATCHING_UP, f"{name} catches up: {missing} records behind"
