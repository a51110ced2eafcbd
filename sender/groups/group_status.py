"""How a broker group's connection stands, what follows what, and what the group has done so far.

DOWN --> CONNECTING --> UP --> RETIRING --> DOWN    a failure: the others take over
             |
             +------> FENCED                        for good: our epoch is over there

Whether it is trusted with messages is another question, see circuit.py: nothing is sent unless the
connection is UP, and what is sent then is up to the circuit.
"""

from dataclasses import dataclass, field, replace
from enum import Enum

from sender.groups.connection import End
from sender.groups.group_rules import GroupRule
from sender.health.circuit import CircuitState


class GroupState(Enum):
    """How the connection of a group stands."""

    DOWN = "down"
    """Not connected; tried again after a while."""
    CONNECTING = "connecting"
    """Until the HELLO is answered."""
    UP = "up"
    RETIRING = "retiring"
    """Gets nothing more; waits for the answers to what is in flight, then closes."""
    FENCED = "fenced"
    """Refuses our epoch. Never tried again."""


@dataclass(slots=True, kw_only=True)
class GroupCounts:
    """What happened at one group so far; numbers only grow. Items unless it says requests."""

    requests: int = 0
    """Requests sent, each try counted."""
    delivered: int = 0
    known: int = 0
    """Taken as delivered, since the group had them already."""
    refused: int = 0
    """Refused, by a code of their own or with their whole request; tried again."""
    possible_duplicates: int = 0
    """Tried again although the group may have taken them."""
    ends: dict[End, int] = field(default_factory=lambda: dict.fromkeys(End, 0))
    """Connections (or attempts at one) by why they ended."""
    changes: dict[CircuitState, int] = field(default_factory=lambda: dict.fromkeys(CircuitState, 0))
    """Changes of the circuit by what it changed to."""
    later: int = 0
    """Messages that receivers want to have later."""

    def copy(self) -> "GroupCounts":
        """Return the counts as they are now."""
        return replace(self, ends=dict(self.ends), changes=dict(self.changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """A look at one group."""

    name: str
    address: str
    """host:port of its master."""
    source: str
    """Who says so."""
    state: GroupState
    queued: int
    """Entries that wait for this group."""
    in_flight: int
    """Entries sent and not answered."""
    in_flight_bytes: int
    failures: int = 0
    """Failures in a row; 0 while it delivers."""
    last_end: str
    """Why its last connection ended, for people."""
    circuit: CircuitState = CircuitState.CLOSED
    circuit_reason: str = ""
    """Why the circuit changed last, for people; empty if it never did."""
    rule: GroupRule
    """What an operator allows."""
    weight: float
    """As configured."""
    effective_weight: float
    """What a turn of it is worth now: the least while it gets probes only, 0 while it gets
    nothing."""
    window_requests: int
    """Requests that may be unanswered."""
    queue_items: int
    """Entries that may wait for it."""
    answer_s: float = 0.0
    """Time that an answer takes, of late; 0 before the first."""
    is_slow: bool = False
    """Whether others get what it could be given."""
    counts: GroupCounts
    is_attached: bool = False
    """Whether it is a group of receivers."""
    why_none: str = ""
    """Why a group of receivers gets nothing now, for people."""

    @property
    def is_trusted(self) -> bool:
        """Whether it is connected and its circuit is closed: it gets more than a probe."""
        return self.state is GroupState.UP and self.circuit is CircuitState.CLOSED
