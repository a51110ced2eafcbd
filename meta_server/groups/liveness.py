"""Liveness: which groups and nodes were heard within the time-out. Pure: time is an argument.

Times are seconds of a monotonic clock: a step of the wall clock must not time anything out. After a
restart of the meta server every known name counts as heard at the start and keeps its stored state
for one time-out. So a restart changes no state, and a name that died meanwhile times out.
"""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from meta_server.known.registry import NodeKey

Name = TypeVar("Name", bound=Hashable)

Sign = Literal["heard", "assumed", "none"]
"""heard: within the time-out; assumed: counts as heard since the start or since it was entered;
none: no heartbeat is expected, as of a name that has timed out."""


class Liveness(Generic[Name]):
    """Times of the last heartbeats."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._at: dict[Name, float] = {}
        self._assumed: set[Name] = set()
        """Those of them that only count as heard."""

    def start(self, names: Iterable[Name], now: float) -> None:
        """Count all of these as heard now, unless heartbeats of them are expected already."""
        for name in names:
            if name not in self._at:
                self.expect(name, now)

    def expect(self, name: Name, now: float) -> None:
        """Count a name as heard now: it has one time-out to send a heartbeat."""
        self._at[name] = now
        self._assumed.add(name)

    def hear(self, name: Name, now: float) -> None:
        """Note a heartbeat."""
        self._at[name] = now
        self._assumed.discard(name)

    def forget(self, name: Name) -> None:
        """Expect no further heartbeat of this name."""
        self._at.pop(name, None)
        self._assumed.discard(name)

    def forgive(self, seconds: float, now: float) -> None:
        """Exclude the last seconds from every time-out: the process could not hear in them."""
        self._at = {name: min(at + seconds, now) for name, at in self._at.items()}

    def is_heard(self, name: Name, now: float) -> bool:
        """Return True if one was heard within the time-out, or counts as heard."""
        return now - self._at.get(name, -math.inf) < self._timeout_s

    def heard_at(self, name: Name, now: float) -> float | None:
        """Return when one was heard last; None: not within the time-out."""
        return self._at[name] if self.sign_of(name, now) == "heard" else None

    def sign_of(self, name: Name, now: float) -> Sign:
        """Return what is known of one."""
        if not self.is_heard(name, now):
            return "none"
        return "assumed" if name in self._assumed else "heard"

    def silent(self, now: float) -> list[Name]:
        """Return those of which heartbeats are expected, and none came within the time-out."""
        return [name for name in self._at if not self.is_heard(name, now)]


@dataclass(slots=True)
class Liveliness:
    """Who was heard of."""

    groups: Liveness[str]
    nodes: Liveness[NodeKey]
