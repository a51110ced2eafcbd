"""Requests that wait until there is something to answer, or for as long as they are held.

A peer keeps one such request waiting here. So nothing is queued for a slow peer, and one that was
away gets only the latest.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

import trio

from delay_protocol.basics.codes import ResponseCode
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import Connection
from delay_transport.http.pages import Turns
from delay_transport.seams.outbox import Wakeup
from meta_server.known.errors import RefusedError

Hold = Callable[[bool], bytes | None]
"""Returns the answer of a request that is held; None: not yet. True: it is held no longer."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A request that is to be answered."""

    frame: Frame
    seal: Callable[[bytes], bytes]
    hold: Hold
    until: float
    """In trio time."""


class HeldRequests:
    """The requests that wait, one of a connection, and the task that answers them."""

    def __init__(self, *, hold_s: float) -> None:
        self._hold_s = hold_s
        # In the order of coming, so the first is due first.
        self._waiting: dict[Connection, _Held] = {}
        self._is_changed = False
        self._more = Wakeup()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def hold(
        self, connection: Connection, frame: Frame, hold: Hold, seal: Callable[[bytes], bytes]
    ) -> None:
        """Answer a request, or let it wait; raise RefusedError if one does on this connection."""
        if connection in self._waiting:
            raise RefusedError("a request of this kind waits on this connection already")
        until = trio.current_time() + self._hold_s
        self._waiting[connection] = _Held(frame, seal, hold, until)
        self._check(connection)
        self._more.wake()

    def changed(self) -> None:
        """Check all requests: there may be something to answer."""
        self._is_changed = True
        self._more.wake()

    def forget(self, connection: Connection) -> None:
        """Forget a connection that is gone."""
        self._waiting.pop(connection, None)

    async def run(self) -> None:
        """Answer until cancelled."""
        while True:
            turns = Turns()
            for connection in self._due():
                self._check(connection)
                await turns.pause()
            if not self._is_changed:
                first = next(iter(self._waiting.values()), None)
                with trio.move_on_at(math.inf if first is None else first.until):
                    await self._more.sleep()

    def _due(self) -> list[Connection]:
        """Return the requests to check: all after a change, else those that are overdue."""
        if self._is_changed:
            self._is_changed = False
            return list(self._waiting)
        now = trio.current_time()
        overdue = takewhile(lambda one: one[1].until <= now, self._waiting.items())
        return [connection for connection, _ in overdue]

    def _check(self, connection: Connection) -> None:
        held = self._waiting.get(connection)
        if held is None:
            return
        body = held.hold(trio.current_time() >= held.until)
        if body is not None:
            del self._waiting[connection]
            connection.answer(held.frame, ResponseCode.SUCCESS, held.seal(body))
