"""The values that rules of the administration read, and those that they return."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import trio

from delay_transport.seams.runtime import Clock
from meta_server.groups.elections import GroupState
from meta_server.groups.liveness import Liveliness
from meta_server.known.model import Audit, AuditEntry, Change
from meta_server.known.registry import Registry
from meta_server.known.set_back import SetBacks
from meta_server.settings.config import AdminConfig, RegistrationConfig
from meta_server.wire.handlers import Handlers


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The known rows, the limits, what is known of connections, and who asks."""

    registry: Registry
    set_backs: SetBacks
    registration: RegistrationConfig
    limits: AdminConfig
    heard: Liveliness
    handlers: Handlers
    clock: Clock
    actor: str = ""
    """Actor, as the audit names it."""

    @property
    def now_ms(self) -> int:
        """Wall clock in ms since 1970 UTC."""
        return self.clock.now_ms()

    @property
    def now(self) -> float:
        """Seconds of a clock that is never set."""
        return trio.current_time()

    def state_of(self, delay_group: str) -> GroupState:
        """Return what is known of a delay group beside its record."""
        return self.handlers.group_changes.state_of(delay_group)

    def entry(self, action: str, target: str, before: object, after: object) -> Audit:
        """Return an entry of the audit."""
        entry = AuditEntry(
            at_ms=self.now_ms,
            actor=self.actor,
            action=action,
            target=target,
            before=_as_json(before),
            after=_as_json(after),
        )
        return Audit(entry)


def _as_json(row: object) -> str:
    return "" if row is None else msgspec.json.encode(row).decode()


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


Plan = Callable[[Context], Planned]
