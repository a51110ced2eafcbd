"""Accepts HTTP connections up to a cap."""

import socket
from typing import Final

import structlog
import trio

from delay_transport.seams.errors import ListenError
from delay_transport.seams.runtime import format_address, parse_address
from delay_transport.seams.trouble import Trouble

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_UNACKNOWLEDGED_MS_MAX: Final = 10_000
"""Milliseconds in which a peer must acknowledge, or have room for, what it is sent; then the kernel
ends the connection (TCP_USER_TIMEOUT)."""


class CappedListener(trio.abc.Listener[trio.SocketStream]):
    """A listener that accepts a connection only when there is a place for it.

    At the cap new connections wait in the kernel's backlog. A place is free again at the latest
    when a connection without a whole request reaches its time-out.
    """

    def __init__(
        self, listener: trio.SocketListener, places: trio.Semaphore, trouble: Trouble
    ) -> None:
        self._listener = listener
        self._places = places
        self._trouble = trouble

    async def accept(self) -> trio.SocketStream:
        """Return the next connection; it holds a place, which whoever serves it releases."""
        if not self._places.value:
            self._trouble.log(
                _log.warning,
                "the limit of HTTP connections is reached; new connections wait",
                connections_max=self._places.max_value,
            )
        await self._places.acquire()
        try:
            return await self._listener.accept()
        except BaseException:
            self._places.release()
            raise

    async def aclose(self) -> None:
        """Stop listening."""
        await self._listener.aclose()


async def open_listeners(address: str) -> list[trio.SocketListener]:
    """Return a listener for each address of the host, or raise ListenError."""
    host, port = parse_address(address)
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise ListenError(address=address, reason=error.strerror or str(error)) from error
    for listener in listeners:
        # Accepted sockets inherit it (tcp(7)).
        listener.socket.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS_MAX
        )
    return listeners


def bound_address(listener: trio.SocketListener) -> str:
    """Return the address that a listener is bound to."""
    host, port, *_ = listener.socket.getsockname()
    return format_address((host, port))
