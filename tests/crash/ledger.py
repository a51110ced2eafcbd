"""What producers were promised and what the broker got, and whether the two agree.

Knows nothing of the server: what was sent and acknowledged comes from the producers, deliveries
from the broker's record, deaths from the harness.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_AFTER_DEATH_S: Final = 1.0
"""What a dead server left in the socket reaches the broker within this."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One message as it was handed to the server."""

    due_ms: int
    crc: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as it reached the broker."""

    life: int
    at_ns: int
    at_ms: int
    due_ms: int
    crc: int
    crc_ok: bool
    message_id: str


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a life that may have forgotten what it knew last."""

    at_ns: int
    """By the machine's monotonic clock."""
    window_s: float
    """A message may come twice if it first came at most this long before: what was in flight, and
    what had no durable fact."""


@dataclass(slots=True)
class Ledger:
    """The books of one data directory."""

    record: Path
    """The broker's record."""

    sent: dict[str, Sent] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    first: dict[str, Delivery] = field(default_factory=dict)
    """The latest delivery of each message so far."""
    deaths: list[Death] = field(default_factory=list)
    early: int = 0
    twice: int = 0
    oldest_twice_s: float = 0.0
    """The longest time between a delivery that was repeated and the death that excuses it."""
    _read: int = 0

    def undelivered(self) -> set[str]:
        """Return what was acknowledged and has not come, as of the last `read`."""
        return self.acknowledged - self.first.keys()

    def read(self) -> Iterator[str]:
        """Take over new deliveries; yield what is wrong with them."""
        with self.record.open("rb") as record:
            record.seek(self._read)
            new = record.read()
        new = new[: new.rfind(b"\n") + 1]
        self._read += len(new)
        for line in new.decode().splitlines():
            *numbers, crc_ok, message_id = line.split(" ", 6)
            life, at_ns, at_ms, due_ms, crc = map(int, numbers)
            yield from self.take(
                Delivery(life, at_ns, at_ms, due_ms, crc, crc_ok == "1", message_id)
            )

    def take(self, delivery: Delivery) -> Iterator[str]:
        """Enter a delivery; yield what is wrong with it."""
        name = delivery.message_id
        sent = self.sent.get(name)
        if sent is None:
            yield f"invented: {name} was delivered in life {delivery.life} but never sent"
            return
        if delivery.crc != sent.crc or not delivery.crc_ok or delivery.due_ms != sent.due_ms:
            yield f"damaged: {name} was delivered in life {delivery.life} with other bytes"
        if delivery.at_ms < sent.due_ms:
            self.early += 1
            yield f"early: {name} by {sent.due_ms - delivery.at_ms} ms in life {delivery.life}"
        before = self.first.get(name)
        self.first[name] = delivery
        if before is None:
            return
        self.twice += 1
        age_s = None if before.life == delivery.life else self._age_at_death(before)
        if age_s is None:
            yield (
                f"twice: {name} in lives {before.life} and {delivery.life}, though no death came "
                "soon after the first"
            )
        else:
            self.oldest_twice_s = max(self.oldest_twice_s, age_s)

    def _age_at_death(self, before: Delivery) -> float | None:
        """Return how old a delivery was when a death made the server forget it."""
        ages = ((death, (death.at_ns - before.at_ns) / 1e9) for death in self.deaths)
        excused = [age for death, age in ages if -_AFTER_DEATH_S <= age <= death.window_s]
        return min(excused, key=abs, default=None)
