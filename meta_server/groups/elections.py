"""Elections and in-sync sets of delay groups, as the meta server decides on them. Pure.

    an election begins   where the recorded master's disk was started again: that start is gone
                         where the master is silent, nobody hears it as one that may send, and
                         somebody could vote
                         where the master is blocked: it may not send for want of promises, and
                         somebody could vote
                         when an operator asks, and the master is not heard as one that may send
    is under way         as long as the record has no master: after a restart, too
    ends                 when all members heard lately have voted, or some after a while: of the
                         fittest the one with the longest log becomes the master, those who voted
                         are in sync

    a member is          where
    never the master     its disk is not in sync, or its clock is wrong and it is not alone
    unfit                it says so: an unfit master is asked to hand over to one that is not
    the last             it is the one deposed, or was elected three times within ten minutes
    behind               it says so

Every member of the in-sync set has every acknowledged message, so that one vote is enough to lose
none. Nothing here keeps two nodes from sending: that is what voters have promised
(replication/core/leases.py). A meta server that starts begins and ends nothing in its first
seconds, unless all members have spoken to it. Whoever is alone in sync goes on: nobody else could
be elected.

The record changes by compare-and-set on (epoch, version). A proposal that is refused counts the
version up as well: so none comes true later.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from delay_protocol.nodes.clocks import clock_fault
from delay_protocol.nodes.group_changes import Vote
from delay_protocol.nodes.registration import GroupRecord, Master, NodeRegister, Phase, Stands
from meta_server.known.errors import StateError
from meta_server.known.model import DelayNode

SILENT_S: Final = 3.0
"""A master that was not heard for so long is silent: it says that it is there each second."""
BLOCKED_S: Final = 3.0
"""A master that lacks promises for so long is blocked…"""
BLOCKED_ALONE_S: Final = 0.5
"""… or for so long where it hears nobody else at all, or is unfit."""
BLOCKED_AGAIN_S: Final = 10.0
"""After a change of master nobody counts as blocked for so long."""
HEARD_LATELY_S: Final = 2.5
"""Members that were heard so lately are waited for…"""
VOTES_S_MAX: Final = 1.5
"""… for so long after the first vote. Votes come when what was promised to the last master has run
out, so that the first may take three seconds and the others come soon after it."""
_BEHIND_S: Final = 0.001
"""Behind a time at which something may have changed: then it has."""
WISH_S: Final = 10.0
"""Seconds for which a master is asked to hand over: one that can has done so in two."""
ELECTED_MAX: Final = 3
"""Elections within ELECTED_S after which a member does not stay, and is elected last…"""
ELECTED_S: Final = 600.0
"""… since a master that ends soon after its start has the longest log each time."""
REFUSED_MAX: Final = 16
"""Nodes of one group of which it is remembered that they were refused…"""
REFUSED_MS: Final = 3_600_000
"""… for so long: a node that is refused ends, and is not started again by itself."""


class Rank(IntEnum):
    """The order in which members are chosen: the greater one first."""

    EXCLUDED = 0
    UNFIT = 1
    LAST = 2
    BEHIND = 3
    FIT = 4


class Fitness(NamedTuple):
    """The fitness of a member to be the master."""

    rank: Rank
    sentence: str = ""
    """Why it is not fit, or who is chosen before it."""


class Begins(NamedTuple):
    """Why an election begins, and what follows from that for it."""

    sentence: str
    gone: int = 0
    """The epoch of a master whose start is gone: what was promised to it is void."""
    deposed: str = ""
    """The node that is elected only if nobody else can be, since it may not send."""
    kind: str = "asked"
    """In a word, for metrics: restarted, silent, blocked or asked."""


class Heard(NamedTuple):
    """The last heartbeat of a node."""

    at: float
    node: NodeRegister
    """The registration by which it spoke."""
    noted_at: float = 0.0
    """Time at which its end was stored last."""

    def could_vote(self, epoch: int, now: float) -> bool:
        """Return True if it may vote now, or hears a master of this epoch that may not send."""
        hears_idle = self.node.stands.hears == epoch and not self.node.stands.hears_sender
        return hears_idle or now - self.at >= self.node.stands.vote_in_s

    def blocked_s(self, now: float) -> float:
        """Return for how many seconds it lacks promises, as a master; 0 if it does not."""
        lacks_s = self.node.stands.lacks_promises_s
        return 0.0 if lacks_s is None else now - self.at + lacks_s


class Voted(NamedTuple):
    """A vote of a member, and the start that gave it."""

    storage: UUID
    incarnation: int
    vote: Vote


class Wish(NamedTuple):
    """The master of an epoch is to hand the group over; that of epoch 0: none is."""

    epoch: int = 0
    to: str = ""
    why: str = ""
    until: float = math.inf
    """The master has heard of it by then, or is not asked any more."""


@dataclass(slots=True)
class GroupState:
    """What is known of one group beside its record; a restart forgets it."""

    began: float
    """When this meta server began; later where it stood still."""
    heard: dict[str, Heard] = field(default_factory=dict)
    votes: dict[str, Voted] = field(default_factory=dict)
    first_vote_at: float | None = None
    """When the first vote of the present election came."""
    waits: str = ""
    """The reason why the present election has not ended; empty: not known, or no election."""
    cause: Begins | None = None
    """Why the present election began; None: that is not known any more."""
    changed_at: float = float("-inf")
    """When another master was recorded last."""
    wish: Wish = field(default_factory=Wish)
    elected: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=100))
    """The members that were elected, with times."""
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By node, the wall clock in ms and the reason when a registration of it was refused last."""

    # -- who was heard -----------------------------------------------------------------------

    def was_refused(self, node: str, at_ms: int, reason: str) -> None:
        """Note that a registration was refused; of too many nodes the latest are kept."""
        self.refused.pop(node, None)
        self.refused[node] = at_ms, reason
        while len(self.refused) > REFUSED_MAX:
            del self.refused[next(iter(self.refused))]

    def refusals(self, registered_ms: Mapping[str, int], *, now_ms: int) -> dict[str, str]:
        """Return why nodes are refused that have not registered since; by node.

        registered_ms: when the present start of each node registered first
        """
        return {
            node: reason
            for node, (at_ms, reason) in sorted(self.refused.items())
            if now_ms - at_ms <= REFUSED_MS and at_ms >= registered_ms.get(node, 0)
        }

    def heard_of(self, node: DelayNode) -> Heard | None:
        """Return what a start said last; None: nothing since this meta server began."""
        found = self.heard.get(node.node_id)
        own = node.storage_uuid, node.incarnation
        return found if found and (found.node.storage_uuid, found.node.incarnation) == own else None

    def clock_fault(self, node: str) -> str:
        """Return why the clock of a node is taken for wrong; empty if it is not."""
        return clock_fault(
            node, {name: one.node.clock_ahead_ms for name, one in self.heard.items()}
        )

    def fitness(self, record: GroupRecord, node: str, *, now: float) -> Fitness:
        """Return how fit a node is to be the master, and why it is not."""
        found, storage = self.heard.get(node), record.in_sync.get(node)
        is_other = storage is None or (found is not None and found.node.storage_uuid != storage)
        stands, fault = Stands() if found is None else found.node.stands, self.clock_fault(node)
        is_deposed = record.master is None and self.cause and self.cause.deposed == node
        times = sum(name == node and now - at <= ELECTED_S for name, at in self.elected)
        rows = (
            (is_other, Rank.EXCLUDED, "its disk is not in sync, and may lack messages"),
            (fault, Rank.EXCLUDED, fault.removeprefix(f"{node}: ")),
            (stands.unfit, Rank.UNFIT, stands.unfit),
            (is_deposed, Rank.LAST, "it is deposed, since it may not send"),
            (times >= ELECTED_MAX, Rank.LAST, f"it was elected {times} times in 10 minutes"),
            (stands.behind, Rank.BEHIND, stands.behind),
            (True, Rank.FIT, ""),
        )
        return next(Fitness(rank, sentence) for is_so, rank, sentence in rows if is_so)

    def _was_heard_lately(self, node: str, storage: UUID, now: float) -> bool:
        found = self.heard.get(node)
        return (
            found is not None
            and found.node.storage_uuid == storage
            and now - found.at <= HEARD_LATELY_S
        )

    def stood_still(self, seconds: float) -> None:
        """Exclude time in which this process heard nobody from everybody's silence."""
        self.began += seconds
        self.heard = {
            node: found._replace(at=found.at + seconds) for node, found in self.heard.items()
        }

    def _has_begun(self, record: GroupRecord, now: float) -> bool:
        """Return True if elections may begin and end: all have spoken, or had the time to."""
        return now >= self.began + SILENT_S or all(
            node in self.heard and self.heard[node].node.storage_uuid == storage
            for node, storage in record.in_sync.items()
        )

    def _lately(self, record: GroupRecord, now: float) -> dict[str, Heard]:
        """Return what the members that were heard lately said."""
        return {
            node: self.heard[node]
            for node, storage in record.in_sync.items()
            if self._was_heard_lately(node, storage, now)
        }

    def _master(self, record: GroupRecord) -> Heard | None:
        """Return what the recorded start said last; None: nothing since this meta server began."""
        master = record.master
        found = None if master is None else self.heard.get(master.node_id)
        if master is None or found is None or found.node.incarnation != master.incarnation:
            return None
        return found if found.node.storage_uuid == record.in_sync.get(master.node_id) else None

    def may_send(self, record: GroupRecord, *, now: float) -> bool:
        """Return True if the recorded master may send, as it says, or who hears it."""
        found = self._master(record)
        if found is not None and now - found.at <= HEARD_LATELY_S and found.node.stands.may_send:
            return True
        return any(
            one.node.stands.hears == record.epoch and one.node.stands.hears_sender
            for one in self._lately(record, now).values()
        )

    # -- an election -------------------------------------------------------------------------

    def was_restarted(self, record: GroupRecord) -> bool:
        """Say whether the recorded master's disk was started again: its lease is over, then."""
        master = record.master
        if master is None:
            return False
        found = self.heard.get(master.node_id)
        return (
            found is not None
            and found.node.storage_uuid == record.in_sync.get(master.node_id)
            and found.node.incarnation > master.incarnation
        )

    def why_begin(self, record: GroupRecord, *, now: float) -> Begins | None:
        """Return why an election begins now, by itself; None if none does."""
        master = record.master
        if master is None or not self._has_begun(record, now):
            return None
        if self.was_restarted(record):
            return Begins(f"{master.node_id} was started again", record.epoch, kind="restarted")
        lately = self._lately(record, now)
        lately.pop(master.node_id, None)
        if not any(one.could_vote(record.epoch, now) for one in lately.values()):
            return None
        found = self._master(record)
        silent_s = now - (self.began if found is None else found.at)
        if silent_s > SILENT_S:
            if self.may_send(record, now=now):
                return None
            return Begins(f"{master.node_id} was not heard for {silent_s:.1f} s", kind="silent")
        return None if found is None else self._why_depose(master.node_id, found, now)

    def _why_depose(self, name: str, found: Heard, now: float) -> Begins | None:
        """Return an election's reason where the master is blocked, as it said."""
        # Before that nobody could be dropped, and who was started could not follow.
        began_s = now - self.began
        blocked_s = min(found.blocked_s(now), began_s)
        is_alone = found.node.stands.hears_nobody and began_s >= BLOCKED_S
        least_s = BLOCKED_ALONE_S if is_alone or found.node.stands.unfit else BLOCKED_S
        if blocked_s < least_s or now - self.changed_at < BLOCKED_AGAIN_S:
            return None
        why = found.node.stands.unfit or "others have not promised to vote for nobody else"
        sentence = f"{name} may not send since {blocked_s:.1f} s: {why}"
        return Begins(sentence, deposed=name, kind="blocked")

    def look_at(self, record: GroupRecord, *, now: float) -> float:
        """Return when time alone may change what `why_begin` says; infinite if it does not."""
        found = self._master(record)
        times = [self.began + SILENT_S, self.changed_at + BLOCKED_AGAIN_S]
        times += [one.at + HEARD_LATELY_S for one in self.heard.values()]
        # At this time one can vote: it is not behind it that something changes.
        votes = [one.at + one.node.stands.vote_in_s for one in self.heard.values()]
        times += [at for at in votes if at > now]
        if found is not None:
            times.append(found.at + SILENT_S)
            if found.node.stands.lacks_promises_s is not None:
                since = max(found.at - found.node.stands.lacks_promises_s, self.began)
                times += [since + BLOCKED_ALONE_S, since + BLOCKED_S]
        return min((at + _BEHIND_S for at in times if at + _BEHIND_S > now), default=math.inf)

    def begin(self, record: GroupRecord, cause: Begins) -> GroupRecord:
        """Return the record with which an election begins."""
        self.begin_again()
        self.cause = cause
        return following(record, epoch=record.epoch + 1, master=None, phase=Phase.ELECTING)

    def begin_again(self) -> None:
        """Forget the votes: all are asked for."""
        self.votes, self.first_vote_at = {}, None

    def asks(self, record: GroupRecord) -> list[str]:
        """Return who has to be asked for a vote; an election that was begun before goes on."""
        if record.phase is not Phase.ELECTING:
            return []
        return sorted(set(record.in_sync) - set(self.votes))

    def voted(self, record: GroupRecord, node: str, vote: Voted, *, now: float) -> str:
        """Take a vote; return why it does not count, empty if it does."""
        if record.phase is not Phase.ELECTING or vote.vote.epoch != record.epoch:
            return f"no election for epoch {vote.vote.epoch} is under way"
        if record.in_sync.get(node) != vote.storage:
            return f"the disk of {node} is not in sync"
        if self.first_vote_at is None:
            self.first_vote_at = now
        self.votes[node] = vote
        return ""

    def choose(self, record: GroupRecord, *, now: float) -> GroupRecord:
        """Return the record with the new master; raise StateError as long as nobody is chosen."""
        since = now if self.first_vote_at is None else self.first_vote_at
        if not self._has_begun(record, now):
            raise StateError("this meta server has just begun: it waits for all members")
        lately = set(self._lately(record, now))
        deposed = "" if self.cause is None else self.cause.deposed
        missing = sorted(lately - {*self.votes, deposed})
        if not self.votes or (missing and now - since <= VOTES_S_MAX):
            names = ", ".join(missing or sorted(record.in_sync))
            raise StateError(f"waits for votes of {names}")
        fits = {node: self.fitness(record, node, now=now) for node in sorted(self.votes)}
        if len(record.in_sync) > 1 and not any(one.rank for one in fits.values()):
            raise StateError(_told(fits))
        best = max(fits, key=lambda node: (fits[node].rank, _rank(node, self.votes[node].vote)))
        chosen = self.votes[best]
        in_sync = {
            node: vote.storage
            for node, vote in self.votes.items()
            if fits[node].rank not in _LEAVES or node == best
        }
        for node in (*fits, *sorted(lately), *sorted(record.in_sync)):
            if len(in_sync) < record.min_isr:
                in_sync.setdefault(node, record.in_sync[node])
        self.begin_again()
        self.changed_at = now
        self.elected.append((best, now))
        master = Master(node_id=best, incarnation=chosen.incarnation)
        return following(record, master=master, in_sync=in_sync, phase=Phase.ACTIVE)

    # -- what an operator asks for -----------------------------------------------------------

    def elect(self, record: GroupRecord, *, now: float) -> GroupRecord:
        """Return the record with which an election begins, or goes on: then the record itself.

        Raises StateError where nobody else can be elected, or need be.
        """
        if not record.in_sync:
            raise StateError(
                "no disk is in sync: the group begins with the next node that registers"
            )
        if record.phase is Phase.ELECTING:
            return record
        assert record.master is not None
        name = record.master.node_id
        if self.may_send(record, now=now):
            raise StateError(f"{name} is the master, and may send: have it hand the group over")
        if set(record.in_sync) == {name}:
            raise StateError(f"{name} alone is in sync, so nobody else can be elected: start it")
        return self.begin(record, self.why_begin(record, now=now) or Begins("an operator asked"))

    def ask_to_hand_over(
        self, record: GroupRecord, to: str | None, *, why: str = "an operator asked", now: float
    ) -> str:
        """Have the master hand the group over; return to which node.

        Without `to` it is the fittest of those in sync that were heard lately. Whoever has a wrong
        clock takes over only by name, who is unfit never. Raises StateError if nobody can.
        """
        master = record.master
        if master is None:
            raise StateError("there is no master who could hand over: an election is under way")
        others = sorted(set(self._lately(record, now)) - {master.node_id})
        if to is not None and to not in others:
            raise StateError(
                f"{to} is none of those in sync beside {master.node_id} that were heard within "
                f"{HEARD_LATELY_S} s ({', '.join(others)}): start it, wait until it is in sync"
            )
        asked = others if to is None else [to]
        fits = {node: self.fitness(record, node, now=now) for node in asked}
        never = {Rank.UNFIT, Rank.EXCLUDED} if to is None else {Rank.UNFIT}
        takers = [node for node in fits if fits[node].rank not in never]
        if not takers:
            raise StateError(
                f"nobody in sync beside {master.node_id} was heard within {HEARD_LATELY_S} s and "
                f"is fit: start one, wait until it is in sync; {_told(fits)}".removesuffix("; ")
            )
        target = max(
            takers, key=lambda node: (fits[node].rank, self.heard[node].node.last_sequence, node)
        )
        self.wish = Wish(record.epoch, target, why, now + WISH_S)
        return target

    def must_hand_over(self, record: GroupRecord, *, now: float) -> Wish | None:
        """Return the new wish that an unfit master hands over to one that is not; None: none.

        One that may not send could not: it is deposed.
        """
        found, asked = self._master(record), (self.wish.epoch, self.wish.why)
        stands = Stands() if found is None else found.node.stands
        why = stands.unfit if stands.lacks_promises_s is None else ""
        if not why or asked == (record.epoch, why):
            return None
        try:
            self.ask_to_hand_over(record, None, why=why, now=now)
        except StateError:
            return None
        return self.wish

    def forget_wish(self, now: float) -> bool:
        """Forget a wish whose time is up; say whether there was one."""
        if now < self.wish.until:
            return False
        self.wish = Wish()
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
    ) -> GroupRecord:
        """Return the record with another in-sync set, or with its version counted up alone.

        Raises StateError for a proposal of another master, epoch or version: it changes nothing.
        """
        _check_present(record, master, pair)
        is_refused = self.why_not(record, wanted, now=now)
        return following(record, in_sync=record.in_sync if is_refused else wanted)

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
        self,
        record: GroupRecord,
        master: Master,
        pair: tuple[int, int],
        target: str,
        *,
        now: float,
    ) -> GroupRecord:
        """Return the record in which another member in sync, or the same, is the master.

        One that is unfit leaves the set with that, if enough are left: it stops, or joins again.
        Raises StateError for a wish of another master, epoch or version, or of one not in sync.
        """
        _check_present(record, master, pair)
        found = self.heard.get(target)
        if found is None or record.in_sync.get(target) != found.node.storage_uuid:
            raise StateError(f"{target} is not in sync, or was not heard")
        in_sync, own = dict(record.in_sync), self.fitness(record, master.node_id, now=now)
        if target != master.node_id and own.rank in _LEAVES and len(in_sync) > record.min_isr:
            del in_sync[master.node_id]
        to = Master(node_id=target, incarnation=found.node.incarnation)
        return following(record, epoch=record.epoch + 1, master=to, in_sync=in_sync)


_LEAVES: Final = frozenset({Rank.UNFIT, Rank.LAST})
"""Ranks that are left out of a new master's set, if enough others are there: they join again."""


def following(record: GroupRecord, **changed: Any) -> GroupRecord:  # noqa: ANN401 (its fields)
    """Return the record that follows one, in the next version."""
    return replace(record, version=record.version + 1, **changed)


def _rank(node: str, vote: Vote) -> tuple[int, int, int, str]:
    """Return what the longest log is greatest in; among equal ones the one that has filed most."""
    return vote.last_epoch, vote.end, vote.applied, node


def _told(fits: dict[str, Fitness]) -> str:
    return "; ".join(f"{node}: {one.sentence}" for node, one in sorted(fits.items()))


def _check_present(record: GroupRecord, master: Master, pair: tuple[int, int]) -> None:
    """Raise StateError unless a master goes by the record as it is."""
    if record.master != master or (record.epoch, record.version) != pair:
        raise StateError(f"the record is that of epoch {record.epoch}, version {record.version}")


def set_min_isr(record: GroupRecord, count: int) -> GroupRecord:
    """Return the record with another least size of the in-sync set; raise StateError."""
    if count > len(record.in_sync):
        raise StateError(
            f"{count} disks cannot be required while {len(record.in_sync)} are in sync: "
            + ", ".join(sorted(record.in_sync))
        )
    return following(record, min_isr=count)
