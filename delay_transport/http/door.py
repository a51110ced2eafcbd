"""Where connections to an HTTP port wait until a request's headers are there.

All that wait are sockets that one epoll looks at, without a task, a stream or a parser of their
own: a tenth of what it costs to serve one. So thousands that come a second with half a request,
or with none, leave the process the time to answer whoever has a whole one. Which of them have to go
when there are too many is decided in http_guests.py.
"""

import re
import select
import socket
from collections.abc import Callable
from typing import Final

import trio

from delay_transport.connections.listener import next_arrivals
from delay_transport.connections.sources import source_of
from delay_transport.http.guests import Guest, Guests
from delay_transport.seams.runtime import TcpArrival, TcpListener

_RECEIVE_BYTES: Final = 16 * 1024
_LOOKS_PER_STEP: Final = 64
"""Looks in one turn of the loop: a few ms, whatever is found."""
_SWEEP_S: Final = 0.25
"""How exactly the time of those that wait is kept."""

_END: Final = re.compile(rb"\n\r?\n")
"""What ends the headers."""
_END_SIZE: Final = 3

_LAST_CONTROL: Final = 0x20
"""No request begins with this byte or one below: HTTP's parser says so at once."""


class _Waiting:
    """One connection at the door."""

    __slots__ = ("arrival", "data", "fd", "guest", "until")

    def __init__(self, arrival: TcpArrival, guest: Guest, until: float) -> None:
        self.arrival = arrival
        self.fd = arrival.fileno()
        self.guest = guest
        self.until = until
        self.data = bytearray()


class HttpDoor:
    """Takes connections from listeners, and hands on those that have something to be answered."""

    def __init__(
        self,
        guests: Guests,
        *,
        wait_s: float,
        header_bytes_max: int,
        enter: Callable[[TcpArrival, Guest, bytes], None],
    ) -> None:
        """Call `enter` with a connection and what has come from it; it calls guests.leave()."""
        self._guests = guests
        self._wait_s = wait_s
        self._header_bytes_max = header_bytes_max
        self._enter = enter
        # By descriptor; the oldest first.
        self._waiting: dict[int, _Waiting] = {}
        self._epoll = select.epoll()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    async def run(self, listeners: list[TcpListener]) -> None:
        """Take connections until cancelled; then close those that wait, and the listeners."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look_at_all)
                nursery.start_soon(self._sweep)
                for listener in listeners:
                    nursery.start_soon(self._accept, listener)
        finally:
            for waiting in list(self._waiting.values()):
                self._turn_away(waiting)
            self._epoll.close()
            with trio.CancelScope(shield=True):
                for listener in listeners:
                    await listener.aclose()

    async def _accept(self, listener: TcpListener) -> None:
        while True:
            for arrival in await next_arrivals(listener):
                assert isinstance(arrival, TcpArrival)
                self._take(arrival)

    def _take(self, arrival: TcpArrival) -> None:
        guest = self._guests.admit(source_of(arrival.peer[0]))
        if guest is None:
            arrival.close()
            return
        waiting = _Waiting(arrival, guest, trio.current_time() + self._wait_s)
        guest.go = lambda: self._turn_away(waiting)
        self._waiting[waiting.fd] = waiting
        self._epoll.register(waiting.fd, select.EPOLLIN)

    async def _look_at_all(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for fd, _ in self._epoll.poll(0, _LOOKS_PER_STEP):
                waiting = self._waiting.get(fd)
                if waiting is not None:
                    self._look(waiting)

    def _look(self, waiting: _Waiting) -> None:
        try:
            data = waiting.arrival.receive_now(_RECEIVE_BYTES)
        except OSError:
            self._turn_away(waiting)
            return
        if data is None:
            return
        head = waiting.data
        looked_at = max(len(head) - _END_SIZE + 1, 0)
        head += data
        if not head:
            self._turn_away(waiting)
        elif (
            not data
            or head[0] <= _LAST_CONTROL
            or len(head) > self._header_bytes_max
            or _END.search(head, looked_at)
        ):
            self._leave(waiting)
            self._enter(waiting.arrival, waiting.guest, bytes(head))

    async def _sweep(self) -> None:
        """Turn away who has waited for too long."""
        while True:
            await trio.sleep(_SWEEP_S)
            now = trio.current_time()
            while self._waiting:
                oldest = next(iter(self._waiting.values()))
                if oldest.until > now:
                    break
                self._turn_away(oldest)

    def _leave(self, waiting: _Waiting) -> None:
        del self._waiting[waiting.fd]
        self._epoll.unregister(waiting.fd)

    def _turn_away(self, waiting: _Waiting) -> None:
        self._leave(waiting)
        self._guests.leave(waiting.guest)
        waiting.arrival.close()


def raw_listener(listener: trio.SocketListener) -> TcpListener:
    """Return a listener of arrivals in the place of one of streams."""
    listening = socket.socket(fileno=listener.socket.detach())
    listening.settimeout(0)
    return TcpListener(listening)
