"""The clock of one life of a server: may run faster than the machine's, and is set between lives.

Server and broker compute it from the machine's monotonic clock by the same formula, so that a
message which reaches the broker before it is due by this clock left the server too early.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import trio


@dataclass(frozen=True, slots=True)
class LifeClock:
    """Wall time `wall_ms` at monotonic time `began_ns`, from there on `rate` times as fast."""

    life: int
    began_ns: int
    wall_ms: int
    rate: int

    def at(self, monotonic_ns: int) -> int:
        """Return the wall clock in ms at a time of the machine's monotonic clock."""
        return self.wall_ms + (monotonic_ns - self.began_ns) * self.rate // 1_000_000

    def now_ms(self) -> int:
        """Return the wall clock in ms."""
        return self.at(time.monotonic_ns())

    def save(self, path: Path) -> None:
        """Write it where `load` finds it whole."""
        temporary = path.with_suffix(".new")
        temporary.write_text(f"{self.life} {self.began_ns} {self.wall_ms} {self.rate}")
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: Path) -> "LifeClock":
        """Read the clock of the present life."""
        return cls(*map(int, path.read_text().split()))


class FastTrioClock(trio.abc.Clock):
    """Trio's clock, `rate` times as fast as the machine's."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._began = time.perf_counter()

    def start_clock(self) -> None:
        """Do nothing: it runs."""

    def current_time(self) -> float:
        """Return seconds of this clock."""
        return (time.perf_counter() - self._began) * self._rate

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return the machine's seconds until a time of this clock."""
        return (deadline - self.current_time()) / self._rate
