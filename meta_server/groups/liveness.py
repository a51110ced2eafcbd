"""Liveness: which broker groups were heard within the time-out. Pure: time is an argument.

Times are seconds of a monotonic clock: a step of the wall clock must not time anything out. After a
restart of the meta server every known name counts as heard at the start and keeps its stored state
for one time-out. So a restart changes no state, and a name that died meanwhile times out.
"""

import math
from collections.abc import Iterable
from typing import Literal

Sign = Literal["heard", "assumed", "none"]
"""heard: within the time-out; assumed: counts as heard since the start or since it was entered;
none: no heartbeat is expected, as of a name that has timed out."""


class Liveness:
    """Times of the last heartbeats."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._at: dict[str, float] = {}
        self._assumed: set[str] = set()
        """Those of them that only count as heard."""

    def start(self, names: Iterable[str], now: float) -> None:
        """Count all of these as heard now, unless heartbeats of them are expected already."""
        for name in names:
            if name not in self._at:
                self.expect(name, now)

    def expect(self, name: str, now: float) -> None:
        """Count a name as heard now: it has one time-out to send a heartbeat."""
        self._at[name] = now
        self._assumed.add(name)

    def hear(self, name: str, now: float) -> None:
        """Note a heartbeat."""
        self._at[name] = now
        self._assumed.discard(name)

    def forget(self, name: str) -> None:
        """Expect no further heartbeat of this name."""
        self._at.pop(name, None)
        self._assumed.discard(name)

    def forgive(self, seconds: float, now: float) -> None:
        """Exclude the last seconds from every time-out: the process could not hear in them."""
        self._at = {name: min(at + seconds, now) for name, at in self._at.items()}

    def is_heard(self, name: str, now: float) -> bool:
        """Return True if one was heard within the time-out, or counts as heard."""
        return now - self._at.get(name, -math.inf) < self._timeout_s

    def heard_at(self, name: str, now: float) -> float | None:
        """Return when one was heard last; None: not within the time-out."""
        return self._at[name] if self.sign_of(name, now) == "heard" else None

    def sign_of(self, name: str, now: float) -> Sign:
        """Return what is known of one."""
        if not self.is_heard(name, now):
            return "none"
        return "assumed" if name in self._assumed else "heard"

    def silent(self, now: float) -> list[str]:
        """Return those of which heartbeats are expected, and none came within the time-out."""
        return [name for name in self._at if not self.is_heard(name, now)]
