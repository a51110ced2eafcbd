"""Liveness: which broker groups were heard within the time-out. Pure: time is an argument.

Times are seconds of a monotonic clock: a step of the wall clock must not time anything out. After a
restart of the meta server every known name counts as heard at the start and keeps its stored state
for one time-out. So a restart changes no state, and a name that died meanwhile times out.
"""

from collections.abc import Iterable


class Liveness:
    """Times of the last heartbeats; a name of which one is expected counts as heard then."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._at: dict[str, float] = {}

    def start(self, names: Iterable[str], now: float) -> None:
        """Count all of these as heard now, unless heartbeats of them are expected already."""
        for name in names:
            self._at.setdefault(name, now)

    def hear(self, name: str, now: float) -> None:
        """Note a heartbeat, or expect one: it has one time-out for the next."""
        self._at[name] = now

    def forget(self, name: str) -> None:
        """Expect no further heartbeat of this name."""
        self._at.pop(name, None)

    def forgive(self, seconds: float, now: float) -> None:
        """Exclude the last seconds from every time-out: the process could not hear in them."""
        self._at = {name: min(at + seconds, now) for name, at in self._at.items()}

    def heard_at(self, name: str, now: float) -> float | None:
        """Return when one was heard last, or counts as heard; None: not within the time-out."""
        at = self._at.get(name)
        return at if at is not None and now - at < self._timeout_s else None

    def is_heard(self, name: str, now: float) -> bool:
        """Return True if one was heard within the time-out, or counts as heard."""
        return self.heard_at(name, now) is not None

    def silent(self, now: float) -> list[str]:
        """Return those of which heartbeats are expected, and none came within the time-out."""
        return [name for name in self._at if not self.is_heard(name, now)]
