"""The HTTP port of a gateway: an ASGI application on uvicorn (uvloop, httptools), within limits."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from delay_transport.seams.errors import ListenError
from delay_transport.seams.runtime import format_address, parse_address

HEADER_BYTES_MAX: Final = 64 * 1024
"""Bytes of a request's line and headers, and of all else that is no part of a body that is waited
for; who sends more is disconnected."""
HEADER_S: Final = 10.0
"""Seconds for a request's line and headers to come, from the first byte after an answer on, or from
the connection for the first request."""
IDLE_S: Final = 60
"""Seconds between two requests of a connection."""
CONNECTIONS_MAX: Final = 20_000
"""Open connections; one more is closed at once."""
STOP_S: Final = 20
"""Seconds that requests under way have when the gateway stops: the client's time and some more."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection whose bytes are bounded, in number and time, where no application reads them.

    uvicorn bounds neither: a peer that sends a header, a trailer or an extension of a chunk without
    an end would fill the memory, and one that sends a byte now and then would keep its place for
    ever. What comes of a body after the answer counts as well.
    """

    _deadline: asyncio.TimerHandle | None = None
    _bytes = 0
    """That came since the headers of a request, or since a part of its body before the answer."""

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 (as its parent)
        """Take a connection, or close it if there are too many."""
        super().connection_made(transport)
        self._expect_headers()
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up the deadline."""
        self._give_up_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; close the connection if too many of them are no part of a body."""
        self._bytes += len(data)
        super().data_received(data)
        if self._bytes > HEADER_BYTES_MAX:
            self.transport.abort()
        elif self._deadline is None and self.cycle.response_complete:
            # uvicorn has given up its own deadline between two requests.
            self._expect_headers()

    def on_headers_complete(self) -> None:
        """Begin the request."""
        super().on_headers_complete()
        self._bytes = 0
        self._give_up_deadline()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body; after the answer nobody reads it."""
        super().on_body(body)
        if not self.cycle.response_complete:
            self._bytes = 0

    def _expect_headers(self) -> None:
        self._deadline = self.loop.call_later(HEADER_S, self.transport.abort)

    def _give_up_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class HttpServer(uvicorn.Server):
    """Serves until `stop()`; requests under way are answered first."""

    def __init__(self, application: ASGIApp, on_ready: Callable[[str], None]) -> None:
        """`on_ready` gets the address that is really bound."""
        super().__init__(
            uvicorn.Config(
                application,
                http=BoundedProtocol,
                ws="none",
                loop="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=STOP_S,
                backlog=4096,
            )
        )
        self._on_ready = on_ready

    async def run_at(self, address: str) -> None:
        """Listen and serve; raise ListenError."""
        host, port = parse_address(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            bound = socket.create_server((host, port), family=family, backlog=self.config.backlog)
        except OSError as error:
            raise ListenError(address=address, reason=error.strerror or str(error)) from error
        with bound:
            self._on_ready(format_address(bound.getsockname()[:2]))
            await self.serve([bound])

    def stop(self) -> None:
        """Take no more requests, answer those under way, and end."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield
