"""Decides if a new group may come into being: at once, when an operator lets it in, or never.

Those that wait for an operator are remembered in memory only, since brokers repeat what they say.
"""

import shlex
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

import structlog
import trio

from delay_transport.connections.connection import Connection
from delay_transport.seams.newcomers import Newcomers
from meta_server.known.errors import NotNowError, RefusedError
from meta_server.known.model import BrokerGroup, Change, GroupKind, Receiver, saved
from meta_server.wire.dispatch import Context

NEW_GROUP = "a new group"
"""Key of intents that add a group: there is a limit to their number."""

NEW_GROUPS_PER_SECOND: Final = 2.0
"""Groups a second that may come into being for long, so that one peer cannot take all places
(`registration.groups_max`) before somebody sees it. Brokers that come too early are let in by a
later heartbeat."""

NEW_GROUPS_BURST_SECONDS: Final = 200.0
"""Seconds' worth of them that may come at once: those of a large cluster whose store was lost."""

NEW_GROUPS_ADDRESS_SHARE: Final = 0.125
"""Part of both that one address may take: 50 groups at once, then one in 4 s."""

WAITING_MAX: Final = 200
"""Groups that wait for approval at a time at most."""

WAITING_PER_ADDRESS_MAX: Final = 20
"""The same for one address, so that a flood hides no other group."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class WaitingGroup(NamedTuple):
    """A group, or a name of receivers, that speaks, and that an operator has to let in."""

    row: BrokerGroup | Receiver
    """As it gives itself; of receivers with all patterns that their name is to have."""
    where: str
    """The IP address from which it speaks."""
    heard: float
    """When it spoke last, in trio time."""
    is_node: bool = False
    """True for one of our delay servers: its record says whose the group's address is."""

    @property
    def remedy(self) -> tuple[str, ...]:
        """The words, behind `delaywheel admin`, by which an operator lets it in."""
        row = self.row
        if isinstance(row, Receiver):
            return "set", "receiver", row.name, f"patterns={','.join(row.patterns)}"
        return "approve", row.name, *(("--address", row.master) if row.master else ())


class GroupAdmission:
    """Lets new groups in, or has them wait for an operator."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._new_groups = Newcomers(
            "groups are new",
            rate=NEW_GROUPS_PER_SECOND,
            burst=NEW_GROUPS_PER_SECOND * NEW_GROUPS_BURST_SECONDS,
            address=NEW_GROUPS_ADDRESS_SHARE,
        )
        self._timeout_s = context.config.registration.broker_timeout_ms / 1000
        self._waiting: dict[str, WaitingGroup] = {}

    @property
    def waiting(self) -> dict[str, WaitingGroup]:
        """Groups that an operator has to let in, by name; one that falls silent is forgotten."""
        until = trio.current_time() - self._timeout_s
        self._waiting = {name: one for name, one in self._waiting.items() if one.heard > until}
        return self._waiting

    def forget(self, name: str) -> None:
        """Forget a group that waited: it was let in."""
        self._waiting.pop(name, None)

    def let_in(self, connection: Connection, changes: Sequence[Change], *, is_node: bool) -> None:
        """Raise RefusedError unless the group that these changes make, if any, may come into being.

        One that waits for an operator is noted. One whose broker is entered, or that proves the
        secret, is expected.
        """
        registry, credentials = self._context.registry, self._context.credentials
        group = next(iter(saved(changes, BrokerGroup)), None)
        if (
            group is None
            or group.name in registry.groups
            or registry.is_entered(group.name)
            or self._context.committer.is_pending(("group", group.name))
        ):
            return
        if group.kind is GroupKind.DELAY and credentials.policy != "none":
            if not (is_node and credentials.is_proven(connection)):
                raise RefusedError(
                    f"{group.name} is a new delay group, and those have to prove the secret of "
                    "this meta server: set meta.secret_file; one of QMQ's has to be entered"
                )
        elif not self._context.config.is_open or (
            # Beside delay servers of ours an unknown one of QMQ's would get producers of all.
            group.kind is GroupKind.DELAY and not is_node and registry.delay_groups
        ):
            self._wait(WaitingGroup(group, connection.where, trio.current_time(), is_node))
        admit(self._new_groups, connection)

    def let_receive(self, connection: Connection, row: Receiver) -> None:
        """Raise NotNowError unless a receiver may have a name, or subjects, that it has not.

        One that waits for an operator is noted.
        """
        if not self._context.config.is_open:
            self._wait(WaitingGroup(row, connection.where, trio.current_time()))
        admit(self._new_groups, connection)

    def _wait(self, wanted: WaitingGroup) -> NoReturn:
        """Note a group that waits for an operator; raise NotNowError, which says so.

        It says another thing if too many wait, or another one waits under its name.
        """
        row, others, name = wanted.row, self.waiting, wanted.row.name
        known, remedy = others.get(name), f"delaywheel admin {shlex.join(wanted.remedy)}"
        if known is not None and (_kind_of(known.row), known.where) != (
            _kind_of(row),
            wanted.where,
        ):
            raise NotNowError(f"{name} waits to be let in, from another address")
        if known is None:
            from_there = sum(one.where == wanted.where for one in others.values())
            if len(others) >= WAITING_MAX or from_there >= WAITING_PER_ADDRESS_MAX:
                words = wanted.remedy
                if isinstance(row, BrokerGroup):
                    words = "set", "broker-group", name, f"kind={row.kind.value}"
                raise NotNowError(
                    "too many groups wait for an operator: have this one added by "
                    f"`delaywheel admin {shlex.join(words)}`"
                )
            _log.warning("a group waits for approval", group=name, peer=wanted.where, remedy=remedy)
        others[name] = wanted
        is_known = name in self._context.registry.receivers
        why = "wants further subjects" if is_known else "is not known"
        raise NotNowError(f"{name} {why}: it waits for an operator ({remedy})")


def _kind_of(row: BrokerGroup | Receiver) -> GroupKind | None:
    return row.kind if isinstance(row, BrokerGroup) else None


def admit(newcomers: Newcomers, connection: Connection) -> None:
    """Count what is new and comes by a connection; raise NotNowError if it is too early."""
    reason = newcomers.refusal(trio.current_time(), address=connection.where)
    if reason is not None:
        raise NotNowError(reason)
