"""The rights of the master of an epoch, by its members and what they promised. Pure.

    it may            while
    append messages   min_isr members, itself included, are heard; it does not hand over
    acknowledge       it is committed: then it is on every disk that may be elected
    send              all others that may be elected have promised to vote for nobody else; nobody
                      has to where it is alone in sync; its own disk does not hang
    send more         the best other member in sync lacks few outcomes

The shell tells what happens (the log grew, was synced, a slave acknowledged, a record was told) and
asks before it acts. What is committed is in the commit point.
"""

from replication.core.commit_point import CommitPoint
from replication.core.handover import Handover, HandoverRequest
from replication.core.in_sync import InSyncSet, Proposal
from replication.core.outcome_lag import (
    OUTCOMES_LACKED_MAX,
    OUTCOMES_LACKED_S,
    OutcomeLag,
)
from replication.core.record import Member, Record


class Master:
    """A master in one epoch; it ends with the epoch."""

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
        """Begin an epoch whose EPOCH_START has the sequence `start`."""
        self.own = own
        self.members = InSyncSet(
            own, record, commit_point, start=start, lag_s_max=lag_s_max, now=now
        )
        self.outcomes = OutcomeLag()
        self.commit_point = commit_point
        self.handover: Handover | None = None
        self._lacks_since: float | None = None
        """Since when it may not send for that; None if it may."""

    @property
    def record(self) -> Record:
        """The record of the group that was told last."""
        return self.members.record

    def recorded(self, record: Record, now: float) -> None:
        """Take a newer record of this epoch; it ends a handover, which was asked for another."""
        if record.version > self.record.version and self.handover is not None:
            self.handover = None
        self.members.recorded(record, now)

    def why_not_append(self, now: float) -> str:
        """Say why no message may be appended; empty if one may be."""
        if self.handover is not None and self.handover.holds:
            return self.handover.why(now)
        return self.members.why_not_append(now)

    def why_not_act(self, now: float) -> str:
        """Return why nothing may be sent; empty if it may be."""
        if self.handover is not None and self.handover.has_asked:
            return self.handover.why(now)
        unpromised = ", ".join(self.members.unpromised(now))
        if not unpromised:
            return self.members.hangs(now)
        return (
            f"{unpromised} may be elected and did not promise lately to vote for nobody else: it "
            "goes on when that is heard again or dropped, which set --min-isr may allow"
        )

    def why_not_send(self, now: float) -> str:
        """Say why nothing more may be sent; empty if it may be."""
        if self.handover is not None and self.handover.holds:
            return self.handover.why(now)
        reason = self.why_not_act(now)
        if reason:
            return reason
        self.outcomes.committed_to(self.commit_point.committed)
        lacked = self.outcomes.lacked_by(self.members.best_end(), now)
        if lacked.outcomes >= OUTCOMES_LACKED_MAX or lacked.seconds >= OUTCOMES_LACKED_S:
            return (
                f"the best other member lacks {lacked.outcomes} outcomes, the oldest of them "
                f"for {lacked.seconds * 1000:.0f} ms: a takeover would send these again"
            )
        return ""

    def lacks_promises_s(self, now: float) -> float | None:
        """Return for how many seconds it lacks promises, or its disk hangs; None: it may send."""
        return None if self._lacks_since is None else now - self._lacks_since

    def look(self, now: float, *, in_flight: int) -> Proposal | HandoverRequest | None:
        """Return what the meta server is to be asked for now, again and again; None: nothing."""
        if self._is_handing_over(now) or not self.why_not_act(now):
            self._lacks_since = None
        elif self._lacks_since is None:
            self._lacks_since = now
        if self.handover is None or not self.handover.holds:
            return self.members.look(now)
        record = self.record
        target = self.handover.look(
            in_flight=in_flight,
            target_end=self.members.end_of(self.handover.target),
            end=self.members.end,
            committed=self.commit_point.committed,
            now=now,
        )
        return None if target is None else HandoverRequest(record.epoch, record.version, target)

    def _is_handing_over(self, now: float) -> bool:
        """Begin a handover that was asked for, or give it up where the other does not answer."""
        handover = self.handover
        if handover is None:
            return False
        if not handover.heard(self.members.all_heard_at(), now):
            self.handover = None
            return False
        return handover.holds

    def hand_over(self, node: str, now: float) -> str:
        """Hand over to a node once it answers; return why that cannot be, empty if it may."""
        if self.handover is not None:
            return self.handover.why(now)
        if node == self.own.node:
            return f"{node} is the master already"
        for member in sorted(self.record.in_sync):
            if member.node == node:
                self.handover = Handover(member, self.own, now=now)
                self._is_handing_over(now)
                return ""
        names = ", ".join(sorted(one.node for one in self.record.in_sync - {self.own}))
        return f"{node} is not in sync; in sync are {names or 'no others'}"
