"""The circuit of a broker group: whether it gets messages, only probes, or nothing. Pure.

    CLOSED --failures in a row, or one that leaves no doubt---------> OPEN
      ^                                                               |    ^
      |                                        the wait is over       v    | any failure
      +-------- an item was taken -------------------------------- HALF_OPEN

While OPEN nothing is sent; while HALF_OPEN probes are, of a single item each. The wait is
jittered and grows with each opening, up to a ceiling, until the circuit has been closed for a
while. What is connected and what is healthy are two things: the states of the connection are in
group_status.py.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from delay_transport.seams.backoff import Backoff
from sender.health.weight import RAMP_S
from sender.settings.config import SenderConfig


class CircuitState(Enum):
    """How far a group is trusted."""

    CLOSED = "closed"
    """It gets its share."""
    OPEN = "open"
    """It gets nothing."""
    HALF_OPEN = "half-open"
    """It gets probes."""


class Event(Enum):
    """What moves a circuit."""

    TAKEN = "taken"
    """An item was taken."""
    FAILED = "failed"
    """A failure below the threshold."""
    BROKE = "broke"
    """A failure that reaches the threshold, or one that is enough alone."""
    WAITED = "waited"
    """The wait of an open circuit is over."""
    MOVED = "moved"
    """The group has another address, of which nothing bad is known."""


_CLOSED, _OPEN, _HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN

TABLE: Final[Mapping[tuple[CircuitState, Event], CircuitState]] = {
    (_CLOSED, Event.TAKEN): _CLOSED,
    (_CLOSED, Event.FAILED): _CLOSED,
    (_CLOSED, Event.BROKE): _OPEN,
    (_CLOSED, Event.WAITED): _CLOSED,
    (_CLOSED, Event.MOVED): _CLOSED,
    # What an open circuit still hears is of requests sent before: it knows enough.
    (_OPEN, Event.TAKEN): _OPEN,
    (_OPEN, Event.FAILED): _OPEN,
    (_OPEN, Event.BROKE): _OPEN,
    (_OPEN, Event.WAITED): _HALF_OPEN,
    (_OPEN, Event.MOVED): _HALF_OPEN,
    (_HALF_OPEN, Event.TAKEN): _CLOSED,
    (_HALF_OPEN, Event.FAILED): _OPEN,
    (_HALF_OPEN, Event.BROKE): _OPEN,
    (_HALF_OPEN, Event.WAITED): _HALF_OPEN,
    (_HALF_OPEN, Event.MOVED): _HALF_OPEN,
}
"""What follows each state on each event."""


class Failure(Enum):
    """What counts against a group."""

    UNREACHABLE = "unreachable"
    """No connection could be made in time."""
    HELLO = "hello"
    """The HELLO was not answered, or with an error."""
    LOST = "lost"
    """The peer closed the connection, or the network did."""
    TIMEOUT = "timeout"
    """A request, or a heartbeat, was not answered in time."""
    GARBAGE = "garbage"
    """What came was no frame, or no answer."""
    REJECTED = "rejected"
    """Code 52: it takes nothing in the role that it has."""
    NO_BROKER = "no broker"
    """A delay server answered the HELLO: it gets nothing until the group has another address."""
    FENCED = "fenced"
    """The HELLO was refused for good: nobody waits for it any more."""
    REFUSED = "refused"
    """A request was answered with any other code than success."""
    SICK = "sick"
    """An answer refused every item, and not each of them for good."""


DOUBTFUL: Final = frozenset({Failure.REFUSED, Failure.SICK})
"""These may befall a group that is well: it takes some of them. Any other one is enough alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step from a state to another."""

    before: CircuitState
    after: CircuitState
    event: Event
    at: float
    reason: str
    """For people."""


class Circuit:
    """The circuit of one group. Times are in seconds, of one clock that does not go back.

    Invariant: while OPEN, `until` is a time at which `waited` makes it HALF_OPEN.
    """

    def __init__(
        self,
        limits: SenderConfig,
        *,
        chance: random.Random,
        on_change: Callable[[Change], None],
    ) -> None:
        self.state = CircuitState.CLOSED
        self.until = 0.0
        """While open: when the wait is over."""
        self.failures = 0
        """In a row."""
        self.openings = 0
        """In a row, without a time of calm in between."""
        self._limits = limits
        self._wait = Backoff(base_s=limits.reconnect_base_s, max_s=limits.reconnect_max_s)
        self._chance = chance
        self._on_change = on_change
        self._since: float | None = None
        """When it changed last."""

    def taken(self, now: float) -> None:
        """Hear that an item was taken."""
        if self.state is CircuitState.OPEN:
            return
        self.failures = 0
        self._follow(Event.TAKEN, now, "an item was taken")

    def failed(self, now: float, failure: Failure, detail: str) -> None:
        """Hear of a failure."""
        if self.state is CircuitState.OPEN:
            return
        self.failures += 1
        self._follow(self._weighed(failure), now, f"{failure.value}: {detail}")

    def waited(self, now: float) -> None:
        """Look whether the wait is over."""
        if now >= self.until:
            self._follow(Event.WAITED, now, "the wait is over")

    def moved(self, now: float) -> None:
        """Hear that the group has another address."""
        self.failures = self.openings = 0
        self._follow(Event.MOVED, now, "it has another address")

    def _weighed(self, failure: Failure) -> Event:
        is_enough = failure not in DOUBTFUL or self.failures >= self._limits.refusals_max
        return Event.BROKE if is_enough else Event.FAILED

    def _follow(self, event: Event, now: float, reason: str) -> None:
        before = self.state
        after = TABLE[before, event]
        if after is before:
            return
        if after is CircuitState.OPEN:
            was_calm = before is CircuitState.CLOSED and (
                self._since is None or now - self._since >= RAMP_S
            )
            self.openings = 1 if was_calm else self.openings + 1
            self.until = now + self._wait.wait_s(self.openings, self._chance)
        self.state = after
        self._since = now
        change = Change(before=before, after=after, event=event, at=now, reason=reason)
        self._on_change(change)
