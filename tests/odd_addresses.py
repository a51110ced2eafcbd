"""Addresses that are none: what a broken or hostile peer may give as its own."""

from typing import Final

ODD_HOSTS: Final = (
    *("x..y", ".", "..", ".x", "x" * 64, "x" * 100, "a." * 127 + "a", "a\0b", "a b", "\n", "*"),
    *("ä", "grüße.example", "٣", "\ud800", "ﬀ" * 40, "1.2.3", "256.1.1.1", "::g", "[::1]", "a/b"),
    *("user@host", "x" * 30_000),
)
"""Hosts that no resolver may be asked for; some make it fail in ways of its own."""

ODD_PORTS: Final = ("0", "65536", "99999", "-1", "1x", "٣", "", "9" * 5000)

ODD_ADDRESSES: Final = (
    *(f"{host}:5" for host in ODD_HOSTS if host != "[::1]"),
    *(f"127.0.0.1:{port}" for port in ODD_PORTS),
    *("", "nonsense", ":5", "[::1:5", "[]:5"),
)
