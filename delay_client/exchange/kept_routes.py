"""Kept routes: those of another process at the start, and when those of this one are kept. Pure.

What keeps them is the shell's (routes_file.py); without it nothing is kept, and nothing known.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final, Protocol

Place = tuple[str, str]
"""A group's name and its master."""

Places = tuple[Place, ...]
"""A route, as far as it is kept beyond the process."""

_KEEP_S: Final = 5.0
"""Routes that have changed are kept at most so often…"""
_KEEP_AGAIN_S: Final = 3600.0
"""… and those that have not so often, as still right."""


class RoutesKeeper(Protocol):
    """What keeps routes beyond the process."""

    def load(self) -> Mapping[str, Places]:
        """Return what was kept, by subject."""

    def keep(self, routes: Mapping[str, Places]) -> None:
        """Keep what is right now."""


class KeptRoutes:
    """Has routes kept soon after they have changed, and from then on every hour."""

    def __init__(
        self, keeper: RoutesKeeper | None, told: Callable[[], Mapping[str, Places]]
    ) -> None:
        """`told` returns the routes that are right now, by subject."""
        self._keeper = keeper
        self._told = told
        self.known: Mapping[str, Places] = {} if keeper is None else keeper.load()
        """Routes that were told to another process, by subject."""
        self._has_news = False
        self._next_at = -math.inf
        """News is kept at this time, or when it comes after it."""
        self._again_at = math.inf

    def note_news(self) -> None:
        """Note that a route has changed, or is known for the first time."""
        self._has_news = self._keeper is not None

    def poll(self, now: float, *, are_right: bool) -> None:
        """Have routes kept if it is time; `are_right` says whether the meta server is there."""
        if (self._has_news and now >= self._next_at) or (are_right and now >= self._again_at):
            self._next_at = now + _KEEP_S
            self._again_at = now + _KEEP_AGAIN_S
            self._keep()
        elif now >= self._again_at:
            # Nobody can say whether they are right; who waits for the next event is not kept awake.
            self._again_at = now + _KEEP_S

    def next_event(self) -> float:
        """Return when poll() has something to do; after a poll() that is in the future."""
        return self._next_at if self._has_news else self._again_at

    def close(self) -> None:
        """Have news kept at once: the client ends."""
        if self._has_news:
            self._keep()

    def _keep(self) -> None:
        self._has_news = False
        if self._keeper is not None and (routes := self._told()):
            self._keeper.keep(routes)
