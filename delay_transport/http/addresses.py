"""Without tokens, restricts HTTP to callers on this machine, and keeps out pages in its browsers.

A page in a browser on this machine counts as a caller on it; two rules keep it out:

* `Host` must name this machine, or the address that was connected to: a page whose own name was
  made to lead here sends that name.
* A change is refused if a browser says that it comes from another place (`Origin`,
  `Sec-Fetch-Site`).
"""

import ipaddress
from collections.abc import Collection, Mapping
from functools import lru_cache


class PlaceError(Exception):
    """The origin of a request is not allowed; the HTTP status is 403."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        """A word for programs: peer, host or origin."""


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Return True if a host is this machine for sure: a name other than localhost may be any.

    Looked up for each request, and mostly of the same hosts.
    """
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def check_local(headers: Mapping[str, str], peer: str, own_hosts: Collection[str]) -> None:
    """Raise PlaceError unless somebody on this machine asks; names of headers are in lower case.

    `own_hosts` are what this machine is called beside localhost, in lower case: the host of the
    setting, and the address that was connected to. A peer with that one is this machine too.
    """
    if peer and not is_loopback(peer) and peer not in own_hosts:
        raise PlaceError("peer", "without tokens only callers on this machine are allowed")
    host = headers.get("host")
    if host is not None and not _names_one_of(host, own_hosts):
        raise PlaceError("host", "Host must name this machine, such as localhost or 127.0.0.1")


def check_same_site(headers: Mapping[str, str]) -> None:
    """Raise PlaceError if a browser sends the request for a page of another site."""
    origin, host = headers.get("origin"), headers.get("host")
    is_other = origin is not None and (not host or origin.partition("://")[2] != host)
    if is_other or headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        raise PlaceError("origin", "a page from another site may not change anything")


def _names_one_of(host: str, own_hosts: Collection[str]) -> bool:
    name = host.lower()
    without_port, colon, port = name.rpartition(":")
    if colon and port.isdigit() and (not without_port.count(":") or without_port[-1:] == "]"):
        name = without_port
    if name[:1] == "[" and name[-1:] == "]":
        name = name[1:-1]
    return is_loopback(name) or name in own_hosts
