"""Liveness: which groups and nodes were heard within the time-out. Pure: time is an argument.

Times are seconds of a monotonic clock: a step of the wall clock must not time anything out. After a
restart of the meta server every known name counts as heard at the start and keeps its stored state
for one time-out. So a restart changes no state, and a name that died meanwhile times out.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from meta_server.known.registry import NodeKey

Name = TypeVar("Name", bound=Hashable)

Sign = Literal["heard", "assumed", "none"]
"""heard: within the time-out; assumed: counts as heard since the start or since it was entered;
none: no heartbeat is expected, as of a name that has timed out."""


class Liveness(Generic[Name]):
    """Times of the last heartbeats, in order, so that the oldest is found at once."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # In the order in which they were heard: all have the same time-out.
        self._heard: OrderedDict[Name, float] = OrderedDict()
        self._assumed: set[Name] = set()
        """Those of them that only count as heard."""

    def start(self, names: Iterable[Name], now: float) -> None:
        """Count all of these as heard now, unless they were heard already."""
        for name in names:
            if name not in self._heard:
                self.expect(name, now)

    def expect(self, name: Name, now: float) -> None:
        """Count a name as heard now: it has one time-out to send a heartbeat."""
        self.hear(name, now)
        self._assumed.add(name)

    def hear(self, name: Name, now: float) -> None:
        """Note a heartbeat; `now` never decreases from call to call."""
        self._heard[name] = now
        self._heard.move_to_end(name)
        self._assumed.discard(name)

    def forget(self, name: Name) -> None:
        """Expect no further heartbeat of this name."""
        self._heard.pop(name, None)
        self._assumed.discard(name)

    def forgive(self, seconds: float, now: float) -> None:
        """Exclude the last seconds from every time-out: the process could not hear in them."""
        for name, heard in self._heard.items():
            self._heard[name] = min(heard + seconds, now)

    def is_heard(self, name: Name, now: float) -> bool:
        """Say whether one was heard within the time-out."""
        heard = self._heard.get(name)
        return heard is not None and now - heard < self._timeout_s

    def heard_at(self, name: Name) -> float | None:
        """Return when one was heard last; None if it is not waited for, or was not heard yet."""
        return None if name in self._assumed else self._heard.get(name)

    def sign_of(self, name: Name) -> Sign:
        """Return what is known of one."""
        if name in self._assumed:
            return "assumed"
        return "heard" if name in self._heard else "none"

    def take_silent(self, now: float) -> list[Name]:
        """Return those silent for too long, longest first, and wait for them no longer."""
        silent: list[Name] = []
        for name, heard in self._heard.items():
            if now - heard < self._timeout_s:
                break
            silent.append(name)
        for name in silent:
            self.forget(name)
        return silent


@dataclass(slots=True)
class Liveliness:
    """Who was heard of."""

    groups: Liveness[str]
    nodes: Liveness[NodeKey]
