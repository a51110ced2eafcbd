"""Whether a new group may come into being: at once, when an operator lets it in, or never."""

from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import structlog
import trio

from delay_transport.connections.connection import Connection
from delay_transport.http.credentials import Credentials
from meta_server.groups.waiting_groups import WaitingGroup, WaitingGroups, new_groups
from meta_server.known.commits import Committer
from meta_server.known.errors import NotNowError, RefusedError
from meta_server.known.model import BrokerGroup, Change, GroupKind, SaveBrokerGroup
from meta_server.known.registry import Registry
from meta_server.wire.replies import admit

NEW_GROUP = "a new group"
"""Key of intents that add a group: there is a limit to their number."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class GroupAdmission:
    """Lets new groups in, or has them wait for an operator."""

    def __init__(
        self,
        *,
        registry: Registry,
        committer: Committer,
        credentials: Credentials,
        is_open: bool,
        timeout_s: float,
    ) -> None:
        """`is_open` says whether groups come into being that no operator knows of.

        A group that waits is forgotten when its broker has been silent for `timeout_s`.
        """
        self._registry = registry
        self._committer = committer
        self._credentials = credentials
        self._is_open = is_open
        self._new_groups = new_groups()
        self.waiting = WaitingGroups(timeout_s=timeout_s)
        """Groups that an operator has to let in."""

    def let_in(self, connection: Connection, changes: Sequence[Change], *, is_node: bool) -> None:
        """Raise RefusedError unless the group that these changes make, if any, may come into being.

        One that waits for an operator is noted. One whose broker is entered, or that proves the
        secret, is expected.
        """
        group = next((row.group for row in changes if isinstance(row, SaveBrokerGroup)), None)
        if (
            group is None
            or group.name in self._registry.groups
            or self._registry.is_entered(group.name)
            or self._committer.is_pending(("group", group.name))
        ):
            return
        if group.kind is GroupKind.DELAY and self._credentials.policy != "none":
            if not (is_node and self._credentials.is_proven(connection)):
                raise RefusedError(
                    f"{group.name} is a new delay group, and those have to prove the secret of "
                    "this meta server: set meta.secret_file; one of QMQ's has to be entered"
                )
        elif not self._is_open or (
            # Beside delay servers of ours an unknown one of QMQ's would get producers of all.
            group.kind is GroupKind.DELAY and not is_node and self._registry.delay_groups
        ):
            self._wait(connection, group, (), is_node=is_node)
        admit(self._new_groups, connection)

    def let_receive(self, connection: Connection, name: str, patterns: tuple[str, ...]) -> None:
        """Raise NotNowError unless a receiver may have a group, or routes, that it has not.

        One that waits for an operator is noted.
        """
        if not self._is_open:
            self._wait(connection, _receiver(name), patterns, is_node=False)
        admit(self._new_groups, connection)

    def note_routed_elsewhere(
        self, connection: Connection, name: str, patterns: tuple[str, ...]
    ) -> None:
        """Show operators a receiver, if there are patterns of it that set routes lead elsewhere."""
        if patterns:
            # Where too many wait it is not shown; it knows by itself.
            with suppress(NotNowError):
                self.waiting.note(_waiting(connection, _receiver(name), patterns, is_node=False))

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
        waiting = _waiting(connection, group, patterns, is_node=is_node)
        what = "receiver" if group.kind is GroupKind.RECEIVER else "broker-group"
        remedy = f"delaywheel admin {what} approve {name}"
        if self.waiting.note(waiting):
            _log.warning(
                "a group waits for approval",
                group=name,
                address=group.master,
                peer=connection.peer,
                remedy=remedy,
            )
        why = "wants further routes" if name in self._registry.groups else "is not known"
        raise NotNowError(f"{name} {why}: it waits for an operator ({remedy})")


def _receiver(name: str) -> BrokerGroup:
    return BrokerGroup(name=name, kind=GroupKind.RECEIVER, master="")


def _waiting(
    connection: Connection, group: BrokerGroup, patterns: tuple[str, ...], *, is_node: bool
) -> WaitingGroup:
    now = trio.current_time()
    return WaitingGroup(
        name=group.name,
        kind=group.kind,
        address=group.master,
        where=connection.where,
        is_node=is_node,
        since=now,
        heard=now,
        patterns=patterns,
    )
