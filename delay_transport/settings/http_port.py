"""The settings of an HTTP port, which every server has."""

from dataclasses import dataclass

from delay_transport.seams.runtime import parse_address
from delay_transport.settings.sections import require_at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPort:
    """The HTTP port of a server."""

    address: str
    """host:port; port 0 for any free port, empty for no HTTP. The default accepts connections from
    this machine only; any other address needs `admin.token_file`."""

    connections_max: int = 4096
    """Open connections. At the limit new connections wait in the kernel's backlog until one ends. A
    connection has 5 s for a whole request, so the limit should exceed the number of hostile
    connections that the port has to withstand."""

    def __post_init__(self) -> None:
        """Refuse an invalid address, and limits below which the port is useless."""
        require_at_least(self, 1, "connections_max")
        if self.address:
            parse_address(self.address)
