"""One connection to a meta server for the routes of subjects: the trio shell of a MetaSession.

It finds a meta server, connects, asks what the session wants to know, and hands in what it hears;
when the connection ends it begins anew after a pause. What is known stays in the session meanwhile.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.basics.errors import RemoteProtocolError
from delay_protocol.meta.session import MetaDialogue, MetaSession
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_request
from delay_transport.meta.address import MetaAddressError, MetaLocator
from delay_transport.seams.backoff import Backoff
from delay_transport.seams.errors import TransportError
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Address, Network, format_address
from delay_transport.seams.trouble import Trouble

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_RECEIVE_BYTES: Final = 16 * 1024
_FRAMES_AT_ONCE: Final = 40
"""Answers taken in one turn of the loop; each may change a route, which takes some 50 us."""
_QUESTIONS_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaRoutesLimits:
    """How patient the connection is, in seconds, and what it takes."""

    connect_s: float = 3.0
    """For a connection to stand."""

    send_s: float = 5.0
    """For the meta server to take what is sent to it."""

    heartbeat_s: float = 30.0
    """A connection on which nothing was asked for so long is given a sign of life, or the meta
    server would close it."""

    reconnect_base_s: float = 0.2
    """Before another try when one has failed, drawn between half and all of it; doubles."""

    reconnect_max_s: float = 10.0
    """Longest such pause."""

    answer_bytes_max: int = 1024 * 1024
    """Whose answer is a larger frame is no meta server."""


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
        limits: MetaRoutesLimits | None = None,
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
        self._dialogue = MetaDialogue(session)
        self._locator = locator
        self._network = network
        self._chance = chance
        self._on_changed = on_changed
        self._limits = limits or MetaRoutesLimits()
        self._backoff = Backoff(
            base_s=self._limits.reconnect_base_s, max_s=self._limits.reconnect_max_s
        )
        self._trouble = Trouble()
        self._more = Wakeup()
        self._heard = False

    def wake(self) -> None:
        """Look whether there is something to ask."""
        self._more.wake()

    async def run(self) -> None:
        """Stay connected, as long as there is anything to ask for, until cancelled."""
        while True:
            while not len(self._session):
                await self._more.sleep()
            self._heard = False
            try:
                address = await self._locator.locate()
                await self._converse(address)
            except (MetaAddressError, _EndError) as error:
                self.last_end = str(error)
            self.failures = 0 if self._heard else self.failures + 1
            if self._heard:
                self._trouble.over()
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
        """Connect, ask and listen until the connection ends; raise _EndError then."""
        stream = await self._connect(address)
        self._dialogue.connected(trio.current_time())
        self.peer = address
        self.connections += 1
        self._trouble.log(_log.info, "meta server connected", address=format_address(address))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask, stream, nursery.cancel_scope)
                self.last_end = await self._listen(stream)
                nursery.cancel_scope.cancel()
        finally:
            self.peer = None
            self._dialogue.disconnected(trio.current_time())
            await trio.aclose_forcefully(stream)

    async def _connect(self, address: Address) -> trio.abc.Stream:
        try:
            with trio.fail_after(self._limits.connect_s):
                return await self._network.connect(*address)
        except trio.TooSlowError:
            reason = f"no connection within {self._limits.connect_s:g} s"
        except (OSError, TransportError) as error:
            reason = str(error)
        raise _EndError(f"{format_address(address)}: {reason}")

    async def _ask(self, stream: trio.abc.Stream, conversation: trio.CancelScope) -> None:
        """Send what is to be asked when it is to be asked; end the conversation if it stalls."""
        session = self._session
        sent_at = trio.current_time()
        while True:
            now = trio.current_time()
            data = self._dialogue.outgoing(now, _QUESTIONS_AT_ONCE)
            if not data and now >= sent_at + self._limits.heartbeat_s:
                data = encode_request(code=CommandCode.HEARTBEAT, opaque=0, body=b"")
            if data:
                sent_at = now
                if not await self._send(stream, data):
                    break
                continue
            if now >= session.stalls_at():
                self.last_end = f"no answer within {session.config.answer_timeout_s:g} s"
                break
            at = min(session.next_at(), session.stalls_at(), sent_at + self._limits.heartbeat_s)
            with trio.move_on_at(at):
                await self._more.sleep()
            # However often there is something to look at: others run in between.
            await trio.lowlevel.checkpoint()
        conversation.cancel()

    async def _send(self, stream: trio.abc.Stream, data: bytes) -> bool:
        try:
            with trio.fail_after(self._limits.send_s):
                await stream.send_all(data)
        except trio.TooSlowError:
            self.last_end = f"nothing taken for {self._limits.send_s:g} s"
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.last_end = str(error.__cause__ or error)
        else:
            return True
        return False

    async def _listen(self, stream: trio.abc.Stream) -> str:
        """Take answers and pushes; return why nothing more comes."""
        decoder = FrameDecoder(frame_bytes_max=self._limits.answer_bytes_max)
        while True:
            try:
                data = await stream.receive_some(_RECEIVE_BYTES)
                decoder.feed(data)
                if not data:
                    return "closed by the peer"
                frames = decoder.frames()
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                return str(error.__cause__ or error)
            except RemoteProtocolError as error:
                return str(error)
            for first in range(0, len(frames), _FRAMES_AT_ONCE):
                self._take(frames[first : first + _FRAMES_AT_ONCE])
                await trio.lowlevel.checkpoint()
            if decoder.fault is not None:
                return str(decoder.fault)

    def _take(self, frames: list[Frame]) -> None:
        now = trio.current_time()
        self._heard = True
        for frame in frames:
            if frame.request_code == CommandCode.HEARTBEAT:
                self._session.heard()
            elif frame.is_response:
                changed = self._dialogue.take(frame, now)
                if changed is not None:
                    self._on_changed(changed)
        self._more.wake()


class _EndError(Exception):
    """There is no connection; the text says why."""
