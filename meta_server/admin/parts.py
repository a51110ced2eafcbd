"""What observers and administrators get of a meta server: its parts, and how it is at one moment.

`meta_server/server.py::MetaServer` fills both in. Nothing here knows it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from delay_transport.connections.listener import Server
from delay_transport.http.access import HttpAccess
from delay_transport.http.credentials import Credentials
from delay_transport.seams.runtime import Clock
from meta_server.admin.administration import Administration
from meta_server.groups.liveness import Liveliness
from meta_server.known.commits import Committer
from meta_server.known.model import MetaStore
from meta_server.known.registry import Registry
from meta_server.known.set_back import SetBacks
from meta_server.settings.config import MetaServerConfig
from meta_server.wire.handlers import Handlers
from meta_server.wire.pushes import Pusher
from meta_server.wire.silence import SilenceWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts that stand once the store has been loaded."""

    config: MetaServerConfig
    clock: Clock
    load_seconds: float
    """How long loading took."""
    access: HttpAccess
    store: MetaStore
    registry: Registry
    set_backs: SetBacks
    committer: Committer
    heard: Liveliness
    silence: SilenceWatch
    credentials: Credentials
    handlers: Handlers
    pusher: Pusher
    administration: Administration
    observe: Callable[[], "Observed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A meta server at one moment, from its start to its end."""

    now_ms: int
    started_ms: int
    is_stopping: bool
    listener: Server | None
    """None until it listens."""
    parts: Parts | None
    """None until everything is known."""
