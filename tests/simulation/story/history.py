"""What happened in a story, in order: peers, faults and the store append, and judges only read."""

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple


class What(Enum):
    """What happened."""

    SENT = "sent"
    """A producer sent a message: its id, and when it is due."""
    ACKED = "acked"
    """A producer heard that a message is kept: its id, and by whom."""
    REFUSED = "refused"
    """A producer heard that a message is not kept, which it had sent: its id, and by whom."""
    ARRIVED = "arrived"
    """A broker got a message: its id, its due time, and the wall clock."""
    RECEIVED = "received"
    """A receiver got a message, as which it says what becomes of it: its id and its due time as
    the item has it, and the wall clock."""
    DONE = "done"
    """A receiver heard that it is done with a message: its id and due time as when it came."""
    RECORDED = "recorded"
    """The store has another record of the group: the record."""
    STRUCK = "struck"
    """Something was broken: what, and whose."""
    HEALED = "healed"
    """It was mended."""
    BEGAN = "began"
    """A process began."""
    ENDED = "ended"
    """A process ended: how."""


class Event(NamedTuple):
    """One thing that happened."""

    at_s: float
    """Virtual seconds."""
    what: What
    who: str
    """A node, a producer, the broker, or a fault."""
    about: object
    """A message id, a record, or a word."""
    told_ms: int = 0
    """When a message is due, or the wall clock at an arrival."""


class History(list[Event]):
    """Events in order."""

    def of(self, *whats: What) -> Iterator[Event]:
        """Yield the events of some kinds."""
        return (event for event in self if event.what in whats)

    def during(self, what: What, from_s: float, until_s: float) -> Iterator[Event]:
        """Yield the events of a kind between two times."""
        return (event for event in self.of(what) if from_s <= event.at_s <= until_s)

    def acknowledged(self, *, before_s: float = float("inf")) -> set[str]:
        """Return the messages that a producer knew to be kept by a time."""
        return {str(event.about) for event in self.of(What.ACKED) if event.at_s <= before_s}

    def perhaps_kept(self) -> Counter[str]:
        """Return how often each message was sent, without a word that it is not kept."""
        refused = Counter(str(event.about) for event in self.of(What.REFUSED))
        return Counter(str(event.about) for event in self.of(What.SENT)) - refused
