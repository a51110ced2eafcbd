"""Handing a group over to another node while both are well. Pure.

All in sync have to answer first, since a commit needs them: where one does not within half a second
nothing is handed over, and nothing was held. Then the master gives out nothing more and holds
requests. It waits for the outcomes that are under way, half a second at the most, and until the
other node has everything, committed; after two seconds it goes on as before. Then it asks the meta
server for one record: epoch + 1, the other as the master; there are no votes, since that one is in
sync. From this question on it does nothing under the old epoch until it is told which record
stands. If none is within two seconds the master asks for itself.
"""

from typing import Final, NamedTuple

from replication.core.record import Member

ANSWER_S_MAX: Final = 0.5
"""Seconds that the others may take to answer before anything is held."""
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
        self._asked_at = now
        self._began: float | None = None
        """When all others had answered."""
        self.unanswered: int | None = None
        """Messages under way whose outcome did not come in time; None as long as it may."""
        self.has_asked = False
        """Whether the meta server may have acted on it: then nothing is done but to ask again."""

    @property
    def holds(self) -> bool:
        """True once it has begun: nothing more is given out or taken."""
        return self._began is not None

    def heard(self, at: float, now: float) -> bool:
        """Begin if all others were heard since they were asked; return False if it is given up.

        at: when the one was heard that was heard least lately.
        """
        if self._began is None:
            if at >= self._asked_at:
                self._began = now
            return self.holds or now - self._asked_at <= ANSWER_S_MAX
        return self.has_asked or self._late(now) <= TARGET_S_MAX

    def look(
        self, *, in_flight: int, target_end: int, end: int, committed: int, now: float
    ) -> Member | None:
        """Return whom to ask the meta server to make the master; None: not yet.

        in_flight: messages that brokers have not answered; the ends are that of the target's log,
        of this one, and of what is committed.
        """
        late = self._late(now)
        if not self.has_asked:
            is_there = target_end == end == committed
            if not is_there or (in_flight and late <= OUTCOMES_S_MAX):
                return None
            self.unanswered, self.has_asked = in_flight, True
        elif late > TARGET_S_MAX:
            self.target = self._own
        return self.target

    def _late(self, now: float) -> float:
        return 0.0 if self._began is None else now - self._began

    def why(self, now: float) -> str:
        """Say what it waits for."""
        if self.has_asked:
            return f"hands over to {self.target.node}: waits for the meta server"
        return (
            f"hands over to {self.target.node}: for {self._late(now):.1f} s it has waited for "
            "outcomes, and for that node's log"
        )
