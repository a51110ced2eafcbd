"""Handing a group over to another node while both are well. Pure.

The master gives out nothing more and holds requests. It waits for the outcomes that are under way,
half a second at the most, and until the other node has everything, committed. Then it asks the meta
server for one record: epoch + 1, the other as the master; there are no votes, since that one is in
sync. From this question on it does nothing under the old epoch until it is told which record
stands. If the other has not got everything within two seconds the master asks for itself.
"""

from typing import Final, NamedTuple

from replication.core.record import Member

OUTCOMES_S_MAX: Final = 0.5
"""How long outcomes under way are waited for; those that come later may be sent twice."""
TARGET_S_MAX: Final = 2.0
"""How long the other node may take to have everything."""


class HandoverRequest(NamedTuple):
    """What the meta server is asked for, if the record is still this one."""

    epoch: int
    version: int
    master: Member


class Handover:
    """One handover, from an operator's word to the next record."""

    def __init__(self, target: Member, own: Member, *, now: float) -> None:
        self.target = target
        self._own = own
        self._began = now
        self.unanswered: int | None = None
        """Messages under way whose outcome did not come in time; None as long as it may."""
        self.has_asked = False
        """Whether the meta server may have acted on it: then nothing is done but to ask again."""

    def look(
        self, *, in_flight: int, target_end: int, end: int, committed: int, now: float
    ) -> Member | None:
        """Return whom to ask the meta server to make the master; None: not yet.

        in_flight: messages that brokers have not answered; the ends are that of the target's log,
        of this one, and of what is committed.
        """
        late = now - self._began
        if self.unanswered is None and (not in_flight or late > OUTCOMES_S_MAX):
            self.unanswered = in_flight
        if late > TARGET_S_MAX:
            self.target = self._own
        is_there = self.target == self._own or target_end == end == committed
        if self.unanswered is None or not is_there:
            return None
        self.has_asked = True
        return self.target

    def why(self, now: float) -> str:
        """Say what it waits for."""
        if self.has_asked:
            return f"hands over to {self.target.node}: waits for the meta server"
        return (
            f"hands over to {self.target.node}: for {now - self._began:.1f} s it has waited for "
            "outcomes, and for that node's log"
        )
