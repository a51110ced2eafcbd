"""Requests that wait until there is something to answer, or for as long as they are held.

A peer keeps one such request waiting here. So nothing is queued for a slow peer, and one that was
away gets only the latest.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

from delay_protocol.basics.codes import ResponseCode
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import Connection
from delay_transport.seams.outbox import Wakeup
from meta_server.known.errors import RefusedError

Asked = TypeVar("Asked")


@dataclass(frozen=True, slots=True)
class _Held(Generic[Asked]):
    """A request that is to be answered."""

    frame: Frame
    seal: Callable[[bytes], bytes]
    asked: Asked
    until: float
    """In trio time."""


class HeldRequests(Generic[Asked]):
    """The requests that wait, one of a connection, and the task that answers them."""

    def __init__(self, answer: Callable[[Asked, bool], bytes | None], *, hold_s: float) -> None:
        """Answer with what `answer(asked, is_over)` returns; None: not yet, unless it is over."""
        self._answer = answer
        self._hold_s = hold_s
        # In the order of coming, so the first is due first.
        self._waiting: dict[Connection, _Held[Asked]] = {}
        self._new: list[Connection] = []
        self._is_changed = False
        self._more = Wakeup()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def hold(
        self, connection: Connection, frame: Frame, asked: Asked, seal: Callable[[bytes], bytes]
    ) -> None:
        """Let a request wait; raise RefusedError if one does on this connection."""
        if connection in self._waiting:
            raise RefusedError("a request of this kind waits on this connection already")
        until = trio.current_time() + self._hold_s
        self._waiting[connection] = _Held(frame, seal, asked, until)
        self._new.append(connection)
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
            for connection in self._due():
                held = self._waiting.get(connection)
                if held is not None:
                    self._check(connection, held)
                    # Sealing a large answer takes a millisecond.
                    await trio.lowlevel.checkpoint()
            if self._new or self._is_changed:
                continue
            first = next(iter(self._waiting.values()), None)
            with trio.move_on_at(math.inf if first is None else first.until):
                await self._more.sleep()

    def _due(self) -> list[Connection]:
        """Return the requests to check: all after a change, else new and overdue ones."""
        if self._is_changed:
            self._is_changed, self._new = False, []
            return list(self._waiting)
        due, self._new = self._new, []
        now = trio.current_time()
        for connection, held in self._waiting.items():
            if held.until > now:
                break
            due.append(connection)
        return due

    def _check(self, connection: Connection, held: _Held[Asked]) -> None:
        body = self._answer(held.asked, trio.current_time() >= held.until)
        if body is not None:
            del self._waiting[connection]
            connection.answer(held.frame, ResponseCode.SUCCESS, held.seal(body))
