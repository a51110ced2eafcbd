"""Open connections by source address, and which to evict at a cap.

An idle connection costs its peer nothing, so a cap alone would let one peer take all places. So a
new connection is accepted, and a silent one is evicted for it:

    at the cap of one address     one of that address
    at the cap of all             one of the address with most connections

A connection is silent while nothing is under way on it: no request, no part of a frame, no answer.
"""

import ipaddress
from itertools import islice
from typing import Final, Protocol

_LOOKS: Final = 64
"""Connections that are looked at to find a silent one: some us, however many there are."""

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
    """Its source address."""

    @property
    def is_silent(self) -> bool:
        """Whether nothing is under way on it."""

    @property
    def silent_since(self) -> float:
        """When something was received or sent last, in trio's time."""

    def evict(self) -> None:
        """Close it."""


class Sources:
    """The open connections of a listener by source address."""

    def __init__(self) -> None:
        self._count = 0
        # Those looked at last are the last.
        self._open: dict[str, dict[SourceConnection, None]] = {}
        self._of_size: list[dict[str, None]] = [{}]
        """Addresses by their number of connections; none has more than the last."""

    def __len__(self) -> int:
        """Return how many connections there are."""
        return self._count

    def size_of(self, where: str) -> int:
        """Return how many an address has."""
        return len(self._open.get(where, ()))

    def largest(self) -> str | None:
        """Return the address with most connections; None if there is no connection."""
        while not self._of_size[-1] and len(self._of_size) > 1:
            self._of_size.pop()
        return next(iter(self._of_size[-1]), None)

    def add(self, one: SourceConnection) -> None:
        """Count a new connection."""
        self._resize(one.where, 1)
        self._open.setdefault(one.where, {})[one] = None

    def remove(self, one: SourceConnection) -> None:
        """Forget a connection that is closed, or evicted; it may have been forgotten before."""
        connections = self._open.get(one.where, {})
        if one not in connections:
            return
        self._resize(one.where, -1)
        del connections[one]
        if not connections:
            del self._open[one.where]

    def silent_of(self, where: str) -> SourceConnection | None:
        """Return which of an address is to be evicted; None if none of those looked at is silent.

        It is the one that is silent for longest. All that were looked at go to the end of the
        order, so that busy connections do not hide the silent ones behind them.
        """
        connections = self._open.get(where, {})
        looked_at = [*islice(connections, _LOOKS)]
        for one in looked_at:
            del connections[one]
            connections[one] = None
        silent = [one for one in looked_at if one.is_silent]
        return min(silent, key=lambda one: one.silent_since, default=None)

    def _resize(self, where: str, grown: int) -> None:
        size = self.size_of(where)
        self._count += grown
        self._of_size[size].pop(where, None)
        if size + grown == len(self._of_size):
            self._of_size.append({})
        if size + grown:
            self._of_size[size + grown][where] = None
