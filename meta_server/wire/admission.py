"""Decides if a new group may come into being: at once, when an operator lets it in, or never."""

import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

import structlog
import trio

from delay_transport.connections.connection import Connection
from delay_transport.seams.newcomers import Newcomers
from meta_server.groups.waiting_groups import WaitingGroup, WaitingGroups, new_groups
from meta_server.known.errors import NotNowError, RefusedError
from meta_server.known.model import BrokerGroup, Change, GroupKind, Receiver, saved
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
            self._wait(
                connection, group.name, kind=group.kind, address=group.master, is_node=is_node
            )
        admit(self._new_groups, connection)

    def let_receive(self, connection: Connection, row: Receiver) -> None:
        """Raise NotNowError unless a receiver may have a name, or subjects, that it has not.

        One that waits for an operator is noted.
        """
        if not self._context.config.is_open:
            self._wait(connection, row.name, patterns=row.patterns)
        admit(self._new_groups, connection)

    def _wait(self, connection: Connection, name: str, **known: Any) -> NoReturn:  # noqa: ANN401
        """Note a group that waits for an operator; raise NotNowError, which says so."""
        waiting = WaitingGroup(
            name=name, where=connection.where, heard=trio.current_time(), **known
        )
        remedy = f"delaywheel admin {shlex.join(waiting.remedy)}"
        if self.waiting.note(waiting):
            _log.warning(
                "a group waits for approval",
                group=name,
                address=waiting.address,
                peer=connection.peer,
                remedy=remedy,
            )
        is_known = name in self._context.registry.receivers
        why = "wants further subjects" if is_known else "is not known"
        raise NotNowError(f"{name} {why}: it waits for an operator ({remedy})")


def admit(newcomers: Newcomers, connection: Connection) -> None:
    """Count what is new and comes by a connection; raise NotNowError if it is too early."""
    reason = newcomers.refusal(trio.current_time(), address=connection.where)
    if reason is not None:
        raise NotNowError(reason)
