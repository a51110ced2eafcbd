"""Tells a meta server, as a QMQ broker does, that a broker group is there and takes messages.

    BROKER_REGISTER   ONLINE once when it serves, HEARTBEAT every 10 s, OFFLINE when it stops

A meta server that is away is looked for until it answers; a broker serves meanwhile all the same.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
import trio

from delay_protocol.meta.requests import BrokerRegister, BrokerRequestType, BrokerRole, BrokerState
from delay_transport.connections.request_client import RequestConnection
from delay_transport.meta.address import MetaLocator
from delay_transport.meta.requests import MetaRefusedError, register_broker
from delay_transport.seams.backoff import Backoff
from delay_transport.seams.errors import TransportError
from delay_transport.seams.runtime import Address, Network, format_address
from delay_transport.seams.trouble import Trouble

_log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationTimes:
    """How often and how patiently, in seconds."""

    heartbeat_s: float = 10.0
    """Between two signs of life; a meta server gives a group up after 30 s without one."""

    answer_s: float = 2.0
    """For an answer."""

    again_s_min: float = 1.0
    """Before another try after one that failed, at the longest; doubled with each further one."""

    again_s_max: float = 4.0
    """Before any other try, at the longest."""


class Registration:
    """Keeps one broker, the master of its group, registered; one task."""

    def __init__(
        self,
        *,
        group: str,
        address: Address,
        meta: Sequence[Address],
        network: Network,
        chance: random.Random,
        times: RegistrationTimes | None = None,
    ) -> None:
        """Register `address` for the group at a meta server, found by these HTTP addresses."""
        self.registered = 0
        """Requests that a meta server has taken."""
        self._group = group
        self._address = address
        self._network = network
        self._locator = MetaLocator(network, meta)
        self._chance = chance
        self._times = times or RegistrationTimes()
        self._trouble = Trouble()
        self._log = _log.bind(group=group)
        self._state = BrokerRequestType.ONLINE
        """What is to be said next."""

    async def run(self) -> None:
        """Say that it is there, again and again, until cancelled; then that it is not."""
        backoff = Backoff(base_s=self._times.again_s_min, max_s=self._times.again_s_max)
        failures = 0
        try:
            while True:
                registered = self.registered
                try:
                    await self._converse()
                except TransportError as error:
                    self._trouble.log(self._log.warning, "not registered", reason=str(error))
                except MetaRefusedError as error:
                    self._trouble.log(self._log.error, "registration refused", reason=str(error))
                    # QMQ's brokers go on as well: it may be entered later.
                    self._state = BrokerRequestType.ONLINE
                failures = failures + 1 if self.registered == registered else 1
                await trio.sleep(backoff.wait_s(failures, self._chance))
        finally:
            with trio.move_on_after(self._times.answer_s, shield=True):
                await self._say_goodbye()

    async def _say_goodbye(self) -> None:
        self._state = BrokerRequestType.OFFLINE
        try:
            await self._converse()
        except (TransportError, MetaRefusedError) as error:
            self._log.warning("not signed off", reason=str(error))

    async def _converse(self) -> None:
        """Connect and register until something fails, or once if that is the last word."""
        address = await self._locator.locate()
        connection = RequestConnection()
        failure: TransportError | MetaRefusedError | None = None
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(connection.run, self._network, address)
                while await self._register(connection):
                    self._state = BrokerRequestType.HEARTBEAT
                    await trio.sleep(self._times.heartbeat_s)
            except (TransportError, MetaRefusedError) as error:
                # Not through the nursery, which would put it into a group.
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _register(self, connection: RequestConnection) -> bool:
        """Say how it is; return whether there is more to be said."""
        is_over = self._state is BrokerRequestType.OFFLINE
        request = BrokerRegister(
            request_type=self._state,
            group=self._group,
            address=format_address(self._address),
            role=BrokerRole.MASTER,
            state=BrokerState.NRW if is_over else BrokerState.RW,
        )
        await register_broker(connection, request, timeout_s=self._times.answer_s)
        self.registered += 1
        if self._trouble.over():
            self._log.warning("registered again")
        return not is_over
