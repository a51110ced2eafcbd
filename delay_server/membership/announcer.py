"""Tells clients, by way of the meta server, in which state they should see the group of a node.

The master sends BROKER_REGISTER, as QMQ's brokers do: ONLINE when it serves first, then a heartbeat
regularly and at each change, OFFLINE when it stops.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog
import trio

from delay_protocol.meta.requests import BrokerRegister, BrokerRequestType, BrokerRole, BrokerState
from delay_protocol.nodes.registration import NodeRegister
from delay_transport.connections.request_client import RequestConnection
from delay_transport.meta.requests import MetaRefusedError, register_broker
from delay_transport.seams.errors import TransportError
from delay_transport.seams.outbox import Wakeup

if TYPE_CHECKING:
    from delay_server.settings.config import MetaConfig

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

REQUEST_S = 2.0
"""For an answer of a meta server. After that another connection is tried."""
_OFFLINE_S = 1.0
"""At a stop to announce it to clients, while the node still accepts messages. Part of
node.stop_ms_max."""
_OFFLINE_TRIES = 3


class Announcer:
    """What clients are told of the group, on whichever connection the node is registered."""

    def __init__(
        self,
        settings: "MetaConfig",
        group: str,
        *,
        node: Callable[[], NodeRegister],
        broker_state: Callable[[], BrokerState | None],
    ) -> None:
        self._settings = settings
        self._group = group
        self._node = node
        self._broker_state = broker_state
        self._connection: RequestConnection | None = None
        self._now = Wakeup()
        self._is_leaving = False
        self.announced: BrokerState | None = None
        """The state announced to clients; None: none yet."""
        self.trouble = ""
        """Why the last announcement failed; empty if it did not."""

    def state_changed(self) -> None:
        """Tell clients at once that the state of the group has changed, if it has."""
        self._now.wake()

    async def go_offline(self) -> None:
        """Announce OFFLINE to clients, if a meta server answers in time, and nothing after it."""
        self._is_leaving = True
        self._now.wake()
        if self.announced is None:
            return
        timeout_s = _OFFLINE_S / _OFFLINE_TRIES
        for _ in range(_OFFLINE_TRIES):
            connection = self._connection
            if connection is None:
                return
            try:
                await self._tell(connection, BrokerRequestType.OFFLINE, BrokerState.NRW, timeout_s)
            except (TransportError, MetaRefusedError) as error:
                _log.info("could not announce to clients that this node stops", reason=str(error))
            else:
                self.announced = BrokerState.NRW
                return

    async def run(self, connection: RequestConnection) -> None:
        """Tell in which state clients should see the group, for as long as the node serves."""
        self._connection = connection
        try:
            await self._run(connection)
        finally:
            if self._connection is connection and not connection.is_open:
                self._connection = None

    async def _run(self, connection: RequestConnection) -> None:
        settings = self._settings
        while not self._is_leaving:
            state = self._broker_state()
            if state is None:
                await self._now.sleep()
                continue
            is_first = self.announced is None and state is BrokerState.RW
            what = BrokerRequestType.ONLINE if is_first else BrokerRequestType.HEARTBEAT
            pause_s = settings.heartbeat_seconds
            try:
                await self._tell(connection, what, state, REQUEST_S)
            except TransportError as error:
                connection.close(str(error))
                return
            except MetaRefusedError as error:
                if str(error) != self.trouble:
                    _log.warning("cannot announce this node to clients", reason=str(error))
                self.trouble = str(error)
                pause_s = min(pause_s, settings.reconnect_seconds_max)
            else:
                self.announced, self.trouble = state, ""
            if self._broker_state() == state:
                with trio.move_on_after(pause_s):
                    await self._now.sleep()

    async def _tell(
        self,
        connection: RequestConnection,
        what: BrokerRequestType,
        state: BrokerState,
        timeout_s: float,
    ) -> None:
        request = BrokerRegister(
            request_type=what,
            group=self._group,
            address=self._node().address,
            role=BrokerRole.DELAY_MASTER,
            state=state,
        )
        await register_broker(connection, request, timeout_s=timeout_s)
