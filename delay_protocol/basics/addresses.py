"""What an address is: host:port, with a host that a resolver can be asked for.

A host is an IPv4 literal, an IPv6 literal (in brackets where a port follows), or a name by RFC
1123: labels of 1 to 63 letters, digits, hyphens and, though they are none of a host's, underscores,
between dots; at most 253 characters. A name of other letters has to be given in its ASCII form
(`xn--…`): what turns one into the other differs between programs, and resolvers fail in other ways
than by not finding a host.
"""

import ipaddress
import re
from typing import Final

from delay_protocol.basics.errors import LocalProtocolError

NAME_LENGTH_MAX: Final = 253
"""Characters of a host name, without a dot at its end."""
LABEL_LENGTH_MAX: Final = 63
"""Characters between two dots."""
_PORT_MAX: Final = 65535
_SHOWN_MAX: Final = 100
"""Characters of a host that a reason repeats."""

_LABEL: Final = re.compile(r"[A-Za-z0-9_-]*")


class AddressFaultError(LocalProtocolError, ValueError):
    """A text is no address; the message says why."""


def read_address(text: str, *, port_min: int = 0) -> tuple[str, int]:
    """Return host and port of `host:port`; an IPv6 literal stands in brackets, `[::1]:20801`.

    Raises AddressFaultError. Port 0 stands for any free one, where somebody listens.
    """
    if "://" in text:
        raise AddressFaultError("write host:port alone, without http:// or a path")
    host, colon, port_text = text.rpartition(":")
    if text.endswith("]") or not colon:
        raise AddressFaultError("the port is missing, expected host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not _is_ipv6(host):
            raise AddressFaultError(f"{_shown(host)} in brackets is not an IPv6 address")
    elif ":" in host:
        raise AddressFaultError("write an IPv6 address in brackets, [::1]:20801")
    else:
        fault = host_fault(host)
        if fault:
            raise AddressFaultError(fault)
    # The length first: int() refuses thousands of digits with an error of its own.
    is_number = port_text.isascii() and port_text.isdigit() and len(port_text) <= 5
    if not is_number or not port_min <= int(port_text) <= _PORT_MAX:
        raise AddressFaultError(
            f"port {_shown(port_text)} is not a number from {port_min} to {_PORT_MAX}"
        )
    return host, int(port_text)


def host_fault(host: str) -> str:
    """Return why a text is no host that could be connected to; empty if it may be one."""
    if not host:
        return "the host is missing (0.0.0.0 stands for all)"
    if ":" in host:
        return "" if _is_ipv6(host) else f"{_shown(host)} is not an IPv6 address"
    if not host.isascii():
        return f"{_shown(host)} is not a host name: write it in ASCII{_ascii_form(host)}"
    fault = _name_fault(host)
    return f"{_shown(host)} is {fault}" if fault else ""


def _name_fault(host: str) -> str:
    # A dot at the end says that the name is whole.
    name = host.removesuffix(".")
    if len(name) > NAME_LENGTH_MAX:
        return f"not a host name: more than {NAME_LENGTH_MAX} characters"
    labels = name.split(".")
    if not all(0 < len(label) <= LABEL_LENGTH_MAX for label in labels):
        return f"not a host name: between dots it has 1 to {LABEL_LENGTH_MAX} characters"
    if not all(map(_LABEL.fullmatch, labels)):
        return "not a host name: it has letters, digits, hyphens and dots only"
    if len(labels) > 1 and labels[-1].isdigit() and not _is_ipv4(host):
        return "neither an IPv4 address nor a host name"
    return ""


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…")


def _ascii_form(host: str) -> str:
    """Return a hint at the form that a name has in ASCII, where there is one."""
    try:
        return f", {host.encode('idna').decode()}"
    except UnicodeError:
        return ""


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    # Of a zone the library wants no more than that it is there.
    return host.isascii() and host.isprintable() and not set(host) & set(" []/@")
