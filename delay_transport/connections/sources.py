"""Who is connected from where, and who has to go when there are too many.

An idle connection costs its peer nothing, so a limit alone would let one peer take all places. So
whoever comes is let in, and one that is silent goes in its place:

    beyond what one address may have     one of that address
    beyond what there may be in all      one of the address from which most come

Of an address the oldest goes that has made no good request yet; where all have, that one of the
oldest which is silent for longest. Who waits for an answer stays.
"""

import ipaddress
from itertools import islice
from typing import Final, Protocol

_LOOKS: Final = 64
"""Connections that are looked at to find one that is silent: some µs, however many there are."""


_IPV6_NETWORK_BITS = 64
"""What one subscriber has of IPv6: within it an address costs nothing."""


def source_of(host: str) -> str:
    """Return the source that a host counts for: an IPv4 address, an IPv6 /64, or a name."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    network = ipaddress.IPv6Network((int(address), _IPV6_NETWORK_BITS), strict=False)
    return str(network)


class SourceConnection(Protocol):
    """A connection, as far as it matters here."""

    where: str
    """Where it comes from (standing.py)."""

    @property
    def is_silent(self) -> bool:
        """Whether nothing is under way on it."""

    @property
    def silent_since(self) -> float:
        """When something was received or sent last, in trio's time."""

    def make_room(self) -> None:
        """Go."""


class Sources:
    """All connections of a listener that are not at its door, by where they come from."""

    def __init__(self) -> None:
        self._count = 0
        # Both with the oldest first.
        self._unproven: dict[str, dict[SourceConnection, None]] = {}
        self._proven: dict[str, dict[SourceConnection, None]] = {}
        self._of_size: list[dict[str, None]] = [{}]
        """Addresses by how many come from there; none of more than the last."""

    def __len__(self) -> int:
        """Return how many connections there are."""
        return self._count

    def size_of(self, where: str) -> int:
        """Return how many come from there."""
        return len(self._unproven.get(where, ())) + len(self._proven.get(where, ()))

    def largest(self) -> str | None:
        """Return from where most come; None if nobody is there."""
        while not self._of_size[-1] and len(self._of_size) > 1:
            self._of_size.pop()
        return next(iter(self._of_size[-1]), None)

    def add(self, one: SourceConnection) -> None:
        """Note a connection that has made no good request yet."""
        self._resize(one.where, 1)
        self._unproven.setdefault(one.where, {})[one] = None

    def prove(self, one: SourceConnection) -> None:
        """Note that it has."""
        if _take(self._unproven, one):
            self._proven.setdefault(one.where, {})[one] = None

    def remove(self, one: SourceConnection) -> None:
        """Forget a connection that is over, or has to go; it may have been forgotten before."""
        where = one.where
        if one in self._unproven.get(where, ()) or one in self._proven.get(where, ()):
            self._resize(where, -1)
            _take(self._unproven, one)
            _take(self._proven, one)

    def silent_of(self, where: str) -> SourceConnection | None:
        """Return who of an address has to go; None if those that could are being answered."""
        unproven = next(iter(self._unproven.get(where, ())), None)
        if unproven is not None:
            return unproven
        silent = [one for one in islice(self._proven.get(where, ()), _LOOKS) if one.is_silent]
        return min(silent, key=lambda one: one.silent_since, default=None)

    def _resize(self, where: str, grown: int) -> None:
        size = self.size_of(where)
        self._count += grown
        self._of_size[size].pop(where, None)
        if size + grown == len(self._of_size):
            self._of_size.append({})
        if size + grown:
            self._of_size[size + grown][where] = None


def _take(kept: dict[str, dict[SourceConnection, None]], one: SourceConnection) -> bool:
    """Take a connection out of those of its address; say whether it was there."""
    neighbours = kept.get(one.where, {})
    if one not in neighbours:
        return False
    del neighbours[one]
    if not neighbours:
        del kept[one.where]
    return True
