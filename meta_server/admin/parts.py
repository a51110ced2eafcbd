"""The parts of a meta server that rules, views and metrics go by, and what rules return.

`meta_server/server.py::MetaServer` puts the parts together. Nothing here knows it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import trio

from delay_transport.connections.listener import Server
from delay_transport.http.access import HttpAccess
from delay_transport.http.credentials import Credentials
from delay_transport.seams.runtime import Runtime
from meta_server.groups.liveness import Liveness
from meta_server.known.commits import Committer
from meta_server.known.model import Audit, Change, MetaStore, audited
from meta_server.known.registry import Registry
from meta_server.known.set_back import SetBacks
from meta_server.settings.config import MetaServerConfig
from meta_server.wire.handlers import Handlers
from meta_server.wire.silence import SilenceWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts that stand once the store has been loaded, and who asks."""

    config: MetaServerConfig
    runtime: Runtime
    load_seconds: float
    """How long loading took."""
    access: HttpAccess
    store: MetaStore
    registry: Registry
    set_backs: SetBacks
    committer: Committer
    heard: Liveness
    silence: SilenceWatch
    credentials: Credentials
    handlers: Handlers
    observe: Callable[[], "Observed"]
    changes: Counter[str] = field(default_factory=Counter)
    """Changes of administrators that are stored, by action."""
    actor: str = ""
    """The one who asks, as the audit names it."""

    @property
    def now_ms(self) -> int:
        """Wall clock in ms since 1970 UTC."""
        return self.runtime.clock.now_ms()

    @property
    def now(self) -> float:
        """Seconds of a clock that is never set."""
        return trio.current_time()

    def asked_by(self, actor: str) -> "Parts":
        """Return the same parts, as this actor asks."""
        return replace(self, actor=actor)

    def entry(self, action: str, target: str, before: object, after: object) -> Audit:
        """Return an entry of the audit."""
        return audited(action, target, before, after, actor=self.actor, at_ms=self.now_ms)


class Planned(NamedTuple):
    """The outcome of a rule."""

    changes: Sequence[Change] = ()
    """Empty: all is as it is to be."""
    after: object = None
    """The row after, as the audit shows it."""
    before: object = None
    """The row before, as the audit shows it in place of the row."""
    stored: Callable[[], None] = lambda: None
    """Called when the changes are known and before anybody is answered."""


Plan = Callable[[Parts], Planned]


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
