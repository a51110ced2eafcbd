"""What a master knows of another disk of its group: how far it is, and whether it is heard. Pure.

Lag is time: since the end of the master's log was where the member has got to. It is found out with
one mark: the master notes its end and the time when an acknowledgement comes, and again as soon as
one comes that has reached the mark. So lag does not hang on how much there is to copy, or on how
often somebody acknowledges; an idle group has none, and a disk that answers without getting further
has more and more.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from replication.core.leases import DRIFT, FOLLOWER_LEASE_S
from replication.core.record import Member, Start

HEARD_S_MAX: Final = 1.5
"""A member counts as heard for so long after an acknowledgement; an idle one sends two a second."""
BROKEN_S_MAX: Final = 0.5
"""How long a member whose connection broke may take to come back by the same start."""
FLAPS: Final = 3
"""A member that was dropped so often within FLAPS_S joins again only after a pause."""
FLAPS_S: Final = 600.0
PAUSE_S: Final = 30.0
"""That pause: a disk that stalls now and then holds up all commits while they wait for it."""
_TRACE_STEP_S: Final = 0.02
_TRACE_STEPS: Final = 64


class EndTrace:
    """Where the end of the log was during the last second, in steps of 20 ms."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=_TRACE_STEPS)

    def note(self, end: int, now: float) -> None:
        """Note the end at a time."""
        if not self._samples or now - self._samples[-1][0] >= _TRACE_STEP_S:
            self._samples.append((now, end))

    def at(self, time: float) -> int:
        """Return the end that the log had at a time, or a little before; 0 if that was long ago."""
        found = 0
        for at, end in self._samples:
            if at > time:
                break
            found = end
        return found


@dataclass(slots=True)
class Progress:
    """How far somebody is in something that grows, and how many seconds behind its end."""

    level_at: float
    """The end was then where it is now, or behind that."""
    reached: int = 0
    _mark: int = 0
    _marked_at: float = float("-inf")

    def told(self, reached: int, end: int, now: float) -> None:
        """Note how far it is now, and where the end is."""
        self.reached = max(self.reached, reached)
        if self.reached >= end:
            self.level_at = now
        elif self.reached >= self._mark:
            self.level_at = max(self.level_at, self._marked_at)
        else:
            return
        self._mark, self._marked_at = end, now

    def lag(self, end: int, now: float) -> float:
        """Return how many seconds it is behind; 0 if it is at the end."""
        return 0.0 if self.reached >= end else now - self.level_at


@dataclass(slots=True)
class Peer:
    """One other disk, in one epoch of its master."""

    member: Member
    log: Progress
    filing: Progress
    """Of what is committed, how much it has filed."""
    start: Start | None = None
    """The start that is connected, or was last."""
    connection: int | None = None
    """The connection that its acknowledgements count on; None: none."""
    sent: int = 0
    """The end of what was sent on that connection."""
    heard_at: float = 0.0
    lease_until: float = float("-inf")
    """Until when it votes for nobody else, by the clock of the master."""
    broken_at: float | None = None
    """When the last connection broke; None while there is one, or was none."""
    leaves: str = ""
    """Why it is to be dropped at once: it said so."""
    waited_since: float | None = None
    """Since when commits wait for it, though it is not in the recorded set."""
    not_before: float = float("-inf")
    """Until then commits do not wait for it again."""
    drops: deque[float] = field(default_factory=deque)

    @property
    def acked(self) -> int:
        """The end of what it has durably, as it said in this epoch; 0: nothing."""
        return self.log.reached

    def connected(self, start: Start, connection: int, *, sequence: int, now: float) -> None:
        """Begin anew with a connection on which its log has matched up to a sequence."""
        self.start, self.connection, self.sent = start, connection, sequence
        self.broken_at, self.leaves = None, ""
        self.heard_at = now

    def acknowledged(
        self,
        *,
        end: int,
        applied: int,
        echo: float | None,
        own_end: int,
        committed: int,
        now: float,
    ) -> None:
        """Note an acknowledgement, in which it says how far it is, and what it heard last."""
        self.log.told(end, own_end, now)
        self.filing.told(applied, committed, now)
        self.heard_at = now
        if echo is not None:
            self.lease_until = max(self.lease_until, echo + FOLLOWER_LEASE_S * (1 - DRIFT))

    def disconnected(self, now: float) -> None:
        """Note that its connection is gone."""
        self.connection, self.broken_at = None, now
        self.waited_since = None

    def is_heard(self, now: float) -> bool:
        """Say whether it has acknowledged something lately."""
        return now - self.heard_at <= HEARD_S_MAX

    def drops_lately(self, now: float) -> int:
        """Return how often it was dropped within the last FLAPS_S."""
        return sum(now - at <= FLAPS_S for at in self.drops)

    def dropped(self, now: float) -> None:
        """Note that it left the in-sync set; where that happens often it has to wait."""
        self.waited_since = None
        while self.drops and now - self.drops[0] > FLAPS_S:
            self.drops.popleft()
        self.drops.append(now)
        if len(self.drops) >= FLAPS:
            self.not_before = now + PAUSE_S
