"""Where in the sender an entry is, for those who ask why it was not delivered yet."""

from dataclasses import dataclass
from enum import Enum

from sender.queues.parcels import Entries


class Where(Enum):
    """What entries wait for."""

    QUEUED = "queued"
    """A group with room, or their turn at one."""
    IN_FLIGHT = "in flight"
    """The answer to their request."""
    PUT_OFF = "put off"
    """The end of their backoff."""
    EARLY = "early"
    """The clock, which was set back after they became due."""


@dataclass(frozen=True, slots=True)
class HeldPart:
    """Some of the entries that the sender holds."""

    where: Where
    lane: int | None
    """None: of several."""
    group: str | None
    """Where they are queued, or were sent; None: nowhere in particular."""
    entries: Entries
    holder: str = ""
    """Which receiver has them, and since when, for people."""


@dataclass(frozen=True, slots=True)
class Having:
    """The group that has an entry in flight, and for how many seconds."""

    group: str
    since_s: float
