"""Who was heard of lately, and who has fallen silent. Pure: time is an argument.

Times here are those of a clock that is never set (seconds), not the wall's: a wall clock that steps
must not make anybody silent. What was heard before a restart of the meta server is not known after
it; so everybody counts as heard at the moment it starts, and keeps for one time-out whatever state
was stored of it (a restart flaps nobody, and one that died meanwhile is noticed).
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from meta_server.known.registry import NodeKey

Name = TypeVar("Name", bound=Hashable)

Sign = Literal["heard", "assumed", "none"]
"""What is known of somebody: was heard within the time-out; only counts as heard, since we began or
it was entered; is not waited for, as one that is silent is not."""


class Liveness(Generic[Name]):
    """When each of many was heard last; those heard longest ago are found at once."""

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
        """Count one as heard now that was not: it has a time-out to be."""
        self.hear(name, now)
        self._assumed.add(name)

    def hear(self, name: Name, now: float) -> None:
        """Note that one was heard; `now` never decreases from call to call."""
        self._heard[name] = now
        self._heard.move_to_end(name)
        self._assumed.discard(name)

    def forget(self, name: Name) -> None:
        """Wait for this one no longer."""
        self._heard.pop(name, None)
        self._assumed.discard(name)

    def forgive(self, seconds: float, now: float) -> None:
        """Not count so many seconds, just past, as silence: nobody could be heard in them."""
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

    def next_silence(self) -> float | None:
        """Return when the next one is silent for too long; None if none is waited for."""
        for heard in self._heard.values():
            return heard + self._timeout_s
        return None

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
