"""The parts and the present state of a delay server, as `admin` gets them.

`delay_server/server.py::DelayServer` fills all of it in. Nothing here knows it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Meta

from delay_server.accepting.ingest import Ingest
from delay_server.admin.looks import Looks
from delay_server.changing.requests import Changes
from delay_server.clock.pace import Pacer
from delay_server.duty import Duty
from delay_server.mastership import Mastership
from delay_server.membership.registration import Registration
from delay_server.node import Node
from delay_server.sending.lateness import Lateness
from delay_server.settings.config import DelayServerConfig
from delay_transport.connections.listener import Server
from delay_transport.http.access import HttpAccess
from delay_transport.seams.runtime import Runtime


class NotMasterError(Exception):
    """The request needs the master, and this node is not the master; the text says why."""


def about(text: str) -> Meta:
    """Return the description of a field in the OpenAPI document."""
    return Meta(description=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a master; they outlast it, so that a look at them never ends half way."""

    node: Node
    master: Mastership
    pacer: Pacer
    lateness: Lateness
    duty: Callable[[], Duty]
    """Returns what the node may do now: a look may take so long that it changes."""
    looks: Looks
    changes: Changes
    """Changes messages for clients and operators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A delay server at one moment, from its start to its end."""

    now_ms: int
    started_ms: int
    duty: Duty
    ingest: Ingest
    listener: Server | None
    """None until it listens."""
    node: Node | None
    """None until a data directory is open."""
    parts: Parts | None
    """None while the node is no master."""

    @property
    def registration(self) -> Registration | None:
        """With the meta server; None where there is none, or no node yet."""
        return None if self.node is None else self.node.registration


@dataclass(frozen=True, slots=True, kw_only=True)
class Administered:
    """What administrators of a delay server ask for and change."""

    config: DelayServerConfig
    access: HttpAccess
    runtime: Runtime
    observe: Callable[[], Observed]
    begin_stop: Callable[[float], None]
    """Stops the node as SIGTERM does, with so many seconds for what is under way."""
    accept_clock: Callable[[], None]
    """Has the clock be trusted as it is."""

    def parts(self) -> Parts:
        """Return the parts of the master; raise NotMasterError."""
        observed = self.observe()
        if observed.parts is None:
            why = "; ".join(observed.duty.why) or "its mastership has not begun"
            raise NotMasterError(f"this node is not the master now: {why}")
        return observed.parts
