"""Groups that an operator has to let in first, and how many may come into being at a time.

Those that wait are remembered in memory only, since brokers repeat what they say.
"""

import shlex
from typing import Final, NamedTuple

from delay_transport.seams.newcomers import Newcomers
from meta_server.known.errors import NotNowError
from meta_server.known.model import GroupKind

NEW_GROUPS_PER_SECOND: Final = 2.0
"""Groups a second that may come into being for long, so that one peer cannot take all places
(`registration.groups_max`) before somebody sees it. Brokers that come too early are let in by a
later heartbeat."""

NEW_GROUPS_BURST_SECONDS: Final = 200.0
"""Seconds' worth of them that may come at once: those of a large cluster whose store was lost."""

NEW_GROUPS_ADDRESS_SHARE: Final = 0.125
"""Part of both that one address may take: 50 groups at once, then one in 4 s."""

WAITING_MAX: Final = 200
"""Groups that wait for approval at a time at most."""

WAITING_PER_ADDRESS_MAX: Final = 20
"""The same for one address, so that a flood hides no other group."""


def new_groups() -> Newcomers:
    """Return what admits groups."""
    return Newcomers(
        "groups are new",
        rate=NEW_GROUPS_PER_SECOND,
        burst=NEW_GROUPS_PER_SECOND * NEW_GROUPS_BURST_SECONDS,
        address=NEW_GROUPS_ADDRESS_SHARE,
    )


class WaitingGroup(NamedTuple):
    """A group that speaks, and that an operator has to let in."""

    name: str
    where: str
    """The IP address from which it speaks."""
    heard: float
    """When it spoke last, in seconds of a clock that is never set."""
    kind: GroupKind | None = None
    """None: it is a name of receivers."""
    address: str = ""
    """host:port that it gives as its own; "" of receivers."""
    is_node: bool = False
    """Whether it is one of our delay servers: its record says whose the group's address is."""
    patterns: tuple[str, ...] = ()
    """Of a receiver: which subjects it wants, and those that its name has."""

    @property
    def remedy(self) -> tuple[str, ...]:
        """The words, behind `delaywheel admin`, by which an operator lets it in."""
        if self.kind is None:
            return "set", "receiver", self.name, f"patterns={','.join(self.patterns)}"
        return "approve", self.name, *(("--address", self.address) if self.address else ())


class WaitingGroups:
    """Groups that an operator has to let in; one that falls silent is forgotten."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._groups: dict[str, WaitingGroup] = {}

    def note(self, group: WaitingGroup) -> bool:
        """Let a group wait; return whether it is new.

        Raises NotNowError if too many wait, or another one waits under its name.
        """
        self.all(group.heard)
        known = self._groups.get(group.name)
        if known is not None:
            if (known.kind, known.where) != (group.kind, group.where):
                raise NotNowError(f"{group.name} waits to be let in, from another address")
        elif len(self._groups) >= WAITING_MAX or (
            sum(other.where == group.where for other in self._groups.values())
            >= WAITING_PER_ADDRESS_MAX
        ):
            words = group.remedy
            if group.kind is not None:
                words = "set", "broker-group", group.name, f"kind={group.kind.value}"
            raise NotNowError(
                "too many groups wait for an operator: have this one added by "
                f"`delaywheel admin {shlex.join(words)}`"
            )
        self._groups[group.name] = group
        return known is None

    def get(self, name: str, now: float) -> WaitingGroup | None:
        """Return one that waits, if it does."""
        self.all(now)
        return self._groups.get(name)

    def forget(self, name: str) -> None:
        """Remove a waiting group."""
        self._groups.pop(name, None)

    def all(self, now: float) -> list[WaitingGroup]:
        """Return those that wait, in the order in which they came."""
        for name, group in list(self._groups.items()):
            if now - group.heard >= self._timeout_s:
                del self._groups[name]
        return list(self._groups.values())
