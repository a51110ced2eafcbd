"""Decides if a new group may come into being: at once, when an operator lets it in, or never."""

from collections.abc import Sequence
from typing import NoReturn

import structlog
import trio

from delay_transport.connections.connection import Connection
from delay_transport.seams.newcomers import Newcomers
from meta_server.groups.waiting_groups import WaitingGroup, WaitingGroups, new_groups
from meta_server.known.errors import NotNowError, RefusedError
from meta_server.known.model import BrokerGroup, Change, GroupKind, saved
from meta_server.wire.dispatch import Context

NEW_GROUP = "a new group"
"""Key of intents that add a group: there is a limit to their number."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class GroupAdmission:
    """Lets new groups in, or has them wait for an operator."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._new_groups = new_groups()
        timeout_s = context.config.registration.broker_timeout_ms / 1000
        self.waiting = WaitingGroups(timeout_s=timeout_s)
        """Groups that an operator has to let in; forgotten when they are silent for so long."""

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
            self._wait(connection, group, (), is_node=is_node)
        admit(self._new_groups, connection)

    def let_receive(self, connection: Connection, name: str, patterns: tuple[str, ...]) -> None:
        """Raise NotNowError unless a receiver may have a group, or routes, that it has not.

        One that waits for an operator is noted.
        """
        if not self._context.config.is_open:
            receiver = BrokerGroup(name=name, kind=GroupKind.RECEIVER, master="")
            self._wait(connection, receiver, patterns, is_node=False)
        admit(self._new_groups, connection)

    def _wait(
        self,
        connection: Connection,
        group: BrokerGroup,
        patterns: tuple[str, ...],
        *,
        is_node: bool,
    ) -> NoReturn:
        """Note a group that waits for an operator; raise NotNowError, which says so."""
        name = group.name
        waiting = WaitingGroup(
            name=name,
            kind=group.kind,
            address=group.master,
            where=connection.where,
            is_node=is_node,
            heard=trio.current_time(),
            patterns=patterns,
        )
        remedy = f"delaywheel admin approve {name}"
        if self.waiting.note(waiting):
            _log.warning(
                "a group waits for approval",
                group=name,
                address=group.master,
                peer=connection.peer,
                remedy=remedy,
            )
        why = "wants further routes" if name in self._context.registry.groups else "is not known"
        raise NotNowError(f"{name} {why}: it waits for an operator ({remedy})")


def admit(newcomers: Newcomers, connection: Connection) -> None:
    """Count what is new and comes by a connection; raise NotNowError if it is too early."""
    reason = newcomers.refusal(trio.current_time(), address=connection.where)
    if reason is not None:
        raise NotNowError(reason)
