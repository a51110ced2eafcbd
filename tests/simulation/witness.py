"""What producers and brokers of one simulated run saw: all that the checkers know besides the disk.

Nothing here comes from the server's memory. Times are virtual seconds (`_s`) or wall ms.
"""

import bisect
from collections import Counter
from dataclasses import dataclass, field

import trio

from tests.simulation.clock import SimClock

_UNDER_WAY_S = 2.0
"""The longest a request may be under way to a broker that reads."""


@dataclass(slots=True)
class Receipt:
    """One item, as a broker got it."""

    message_id: bytes
    item: bytes
    at_s: float
    wall_ms: int
    """The latest time that the server's clock has shown when it may have sent this."""
    broker: str
    sure: bool = False
    """The server was told at once that it was taken, and must have heard it if it lived."""


@dataclass(slots=True)
class Witness:
    """Sent, acknowledged and received."""

    clock: SimClock
    items: dict[bytes, bytes] = field(default_factory=dict)
    """By message id: every item that should be accepted, of whatever request."""
    due_ms: dict[bytes, int] = field(default_factory=dict)
    """By message id, of the same; 0 for an item without a due time."""
    attempts: Counter[bytes] = field(default_factory=Counter)
    """Requests in which an id was sent."""
    acknowledged: dict[bytes, None] = field(default_factory=dict)
    refused: dict[bytes, int] = field(default_factory=dict)
    """Flawed items, by the code they have to get."""
    receipts: list[Receipt] = field(default_factory=list)
    received: set[bytes] = field(default_factory=set)
    deaths_s: list[float] = field(default_factory=list)
    """When the server died."""
    lost: set[bytes] = field(default_factory=set)
    """Messages whose durable bytes were damaged: the server may lose these, and no others."""
    damage: list[tuple[str, int, int]] = field(default_factory=list)
    """Path, position and true value of each damaged byte."""
    complaints: list[str] = field(default_factory=list)
    """Broken promises that a peer saw at once."""
    _clock_set: list[tuple[float, int]] = field(default_factory=list)

    def clock_set(self, from_ms: int) -> None:
        """Note that the wall clock is about to be set."""
        self._clock_set.append((trio.current_time(), from_ms))

    def latest_wall_ms(self) -> int:
        """Return the latest wall time at which something that arrives now may have been sent."""
        now_s = trio.current_time()
        shown = [from_ms for at_s, from_ms in self._clock_set if now_s - at_s <= _UNDER_WAY_S]
        return max([self.clock.now_ms(), *shown])

    def server_died(self) -> None:
        """Note a crash."""
        self.deaths_s.append(trio.current_time())

    def died_within(self, at_s: float, seconds: float) -> bool:
        """Say whether the server died so soon after what arrived then, or since it was sent."""
        place = bisect.bisect_left(self.deaths_s, at_s - _UNDER_WAY_S)
        return place < len(self.deaths_s) and self.deaths_s[place] <= at_s + seconds

    def missing(self) -> list[bytes]:
        """Return what was acknowledged and has not been received."""
        return [
            message
            for message in self.acknowledged
            if message not in self.received and message not in self.lost
        ]

    async def nothing_missing(self) -> None:
        """Return when everything acknowledged was received."""
        for _ in iter(self.missing, []):
            await trio.sleep(10)

    def receipts_by_id(self) -> dict[bytes, list[Receipt]]:
        """Return all receipts, by message, oldest first."""
        found: dict[bytes, list[Receipt]] = {}
        for receipt in self.receipts:
            found.setdefault(receipt.message_id, []).append(receipt)
        return found

    def complain(self, text: str) -> None:
        """Note a broken promise; a few are enough."""
        if len(self.complaints) < 20:
            self.complaints.append(text)
