"""One connection to a meta server for the routes of subjects: the trio shell of a MetaSession.

It finds a meta server, connects, asks what the session wants to know, and hands in what it hears;
when the connection ends it begins anew after a pause. What is known stays in the session meanwhile.
"""

import random
from collections.abc import Callable
from typing import Final

import structlog
import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta.requests import encode_client_register
from delay_protocol.meta.session import MetaSession
from delay_protocol.wire.frames import Frame
from delay_transport.connections.limits import RequestLimits
from delay_transport.connections.request_client import RequestConnection
from delay_transport.meta.address import MetaLocator
from delay_transport.seams.backoff import Backoff
from delay_transport.seams.errors import ConnectionLostError, TooManyInFlightError, TransportError
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Address, Network, format_address
from delay_transport.seams.trouble import Trouble

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_LIMITS: Final = RequestLimits(
    connect_seconds_max=3.0,
    frame_bytes_max=1024 * 1024,
    # Some 40 answers: each may change a route, which takes some 50 us.
    receive_bytes=4096,
    send_seconds_max=5.0,
)
_AGAIN_S_MIN: Final = 0.2
"""Before another try when one has failed, drawn between half and all of it; doubles."""
_AGAIN_S_MAX: Final = 10.0
"""Longest such pause."""


class MetaRoutes:
    """Keeps a session in touch with a meta server; one task."""

    def __init__(
        self,
        session: MetaSession,
        *,
        locator: MetaLocator,
        network: Network,
        chance: random.Random,
        on_changed: Callable[[str], None],
    ) -> None:
        """Call `on_changed` with each subject whose route has changed; it must not raise."""
        self.peer: Address | None = None
        """The meta server that is connected; None if none is."""
        self.connections = 0
        """Connections that stood."""
        self.failures = 0
        """Tries in a row that no meta server answered."""
        self.last_end = ""
        """Why the last connection, or try, ended."""
        self._session = session
        self._locator = locator
        self._network = network
        self._chance = chance
        self._on_changed = on_changed
        self._backoff = Backoff(base_s=_AGAIN_S_MIN, max_s=_AGAIN_S_MAX)
        self._trouble = Trouble()
        self._more = Wakeup()
        self._asked: dict[int, str] = {}
        """The subject of each question on this connection, by its opaque."""

    def wake(self) -> None:
        """Look whether there is something to ask."""
        self._more.wake()

    async def run(self) -> None:
        """Stay connected, as long as there is anything to ask for, until cancelled."""
        while True:
            while not len(self._session):
                await self._more.sleep()
            # Until it answers.
            self.failures += 1
            try:
                address = await self._locator.locate()
            except TransportError as error:
                self.last_end = str(error)
            else:
                await self._converse(address)
            # A connection that was of use counts as a first failure when it ends.
            wait_s = self._backoff.wait_s(self.failures + 1, self._chance)
            self._trouble.log(
                _log.warning,
                "no meta server is available; known routes stay in use",
                reason=self.last_end,
                again_in_s=round(wait_s, 3),
            )
            await trio.sleep(wait_s)

    async def _converse(self, address: Address) -> None:
        """Connect, ask and listen until the connection ends."""
        self._asked.clear()
        connection = RequestConnection(
            on_reply=self._answered, on_lost=self._lost, on_push=self._pushed, limits=_LIMITS
        )
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(connection.run, self._network, address)
            except TransportError as error:
                self.last_end = str(error)
                return
            self._session.connected(trio.current_time())
            self.peer = address
            self.connections += 1
            self._trouble.log(_log.info, "meta server connected", address=format_address(address))
            try:
                await self._ask(connection)
            finally:
                self.peer = None
                self._session.disconnected(trio.current_time())

    async def _ask(self, connection: RequestConnection) -> None:
        """Ask what is to be asked when it is to be asked, until the connection ends."""
        session = self._session
        while connection.is_open:
            now = trio.current_time()
            try:
                for request in session.next_requests(now):
                    body = encode_client_register(request)
                    opaque = connection.submit(CommandCode.CLIENT_REGISTER, [body])
                    self._asked[opaque] = request.subject
            except TooManyInFlightError as error:
                connection.close(str(error))
            if now >= session.stalls_at():
                connection.close(f"no answer within {session.config.answer_timeout_s:g} s")
            with trio.move_on_at(min(session.next_at(), session.stalls_at())):
                await self._more.sleep()

    def _answered(self, opaque: int, answer: Frame) -> None:
        self._take(answer, self._asked.pop(opaque))

    def _pushed(self, frame: Frame) -> None:
        self._take(frame, None)

    def _take(self, frame: Frame, subject: str | None) -> None:
        self.failures = 0
        self._trouble.over()
        changed = self._session.answered(subject, frame, trio.current_time())
        if changed is not None:
            self._on_changed(changed)
        self._more.wake()

    def _lost(self, error: ConnectionLostError) -> None:
        self.last_end = error.reason
        self._more.wake()
