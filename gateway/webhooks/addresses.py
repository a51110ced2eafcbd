"""The addresses that a webhook may connect to.

A name is resolved, and the very address that is connected to is checked after that: so a name that
leads elsewhere at its second look-up gains nothing.

    public                                               allowed
    loopback, private, link-local, metadata, reserved    refused, unless the webhook allows it
    multicast, unspecified                               likewise
    IPv6 that leads to an IPv4 address                   as that address
"""

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_METADATA: Final = (
    ipaddress.IPv4Network("168.63.129.16/32"),
    ipaddress.IPv4Network("192.0.0.0/24"),
)
"""Addresses of Azure and of Oracle, which look public; others are link-local, private or shared."""
_GLOBAL: Final = ipaddress.IPv6Network("2000::/3")
_WITH_IPV4: Final = (
    ipaddress.IPv6Network("64:ff9b::/96"),
    ipaddress.IPv6Network("64:ff9b:1::/96"),
)
"""Networks of NAT64."""


class AddressRefusedError(OSError):
    """A webhook may not be at this address."""


def refusal(text: str, allowed: Sequence[Network]) -> str:
    """Return why an address is not connected to; empty if it may be."""
    address = ipaddress.ip_address(text)
    if any(address in network for network in allowed):
        return ""
    inner = _inside(address)
    if inner is not None:
        why = refusal(str(inner), allowed)
        return why and f"{text} leads to an IPv4 address: {why}"
    is_public = address.is_global and not address.is_multicast
    if address.version == 6:
        is_public = is_public and address in _GLOBAL
    if is_public and not any(address in network for network in _METADATA):
        return ""
    return f"{text} is no public address; an operator can allow it by `private=`"


def _inside(address: Address) -> Address | None:
    """Return the IPv4 address that an IPv6 address leads to; None if it leads to none."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in network for network in _WITH_IPV4):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


class CheckedSockets:
    """Makes the sockets of a webhook: none for an address that is refused."""

    def __init__(self, private: Sequence[str]) -> None:
        """`private`: the addresses and networks that are allowed though they are not public."""
        self._allowed = [ipaddress.ip_network(one) for one in private]

    def __call__(self, found: tuple[Any, ...]) -> socket.socket:
        """Return a socket for an address as getaddrinfo has it; raise AddressRefusedError."""
        family, kind, protocol, _, place = found
        if why := refusal(place[0], self._allowed):
            raise AddressRefusedError(errno.EACCES, why)
        return socket.socket(family=family, type=kind, proto=protocol)


class OwnResolver(AbstractResolver):
    """Looks names up in a thread of its own: a name server that is silent holds up nobody else."""

    def __init__(self, name: str) -> None:
        """`name`: what the thread is for."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"names of {name}")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a name; raise OSError."""
        found = await asyncio.get_running_loop().run_in_executor(
            self._worker,
            lambda: socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM),
        )
        return [
            ResolveResult(
                hostname=host,
                host=str(place[0]),
                port=port,
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, place in found
        ]

    async def close(self) -> None:
        """Look nothing up any more."""
        self._worker.shutdown(wait=False, cancel_futures=True)
