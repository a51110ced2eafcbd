"""The HTTP port of a process: an ASGI application on Hypercorn's trio worker, within limits.

HTTP/1.1 and nothing else: who asks for HTTP/2 or a WebSocket is answered as if not. Names in a path
or a query come through exactly, or are refused.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import h11
import hypercorn.config
import msgspec
import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from delay_transport.http.door import HttpDoor, raw_listener
from delay_transport.http.guests import Guest, Guests
from delay_transport.seams.errors import ListenError
from delay_transport.seams.runtime import TcpArrival, format_address, parse_address

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type that Prometheus wants."""

_IDLE_S: Final = 5.0
"""Seconds for a request's line and headers to come, and between two requests."""

_READ_S: Final = 10.0
"""Seconds for a further part of a body to come."""

_SEND_BYTES: Final = 64 * 1024
"""Bytes of a part of an answer."""

_SEND_S: Final = 10.0
"""Seconds for a peer to take a part of an answer. Without an end one that takes nothing would keep
its connection, and the process from stopping, for as long as it likes."""


def json_response(value: object, code: int = 200) -> Response:
    """Return an answer with a value as JSON."""
    return Response(msgspec.json.encode(value), code, media_type="application/json")


def readiness_response(failing: Sequence[str], warnings: Sequence[str]) -> Response:
    """Return the answer to `/readyz`: 503 with what is failing, or 200; both with warnings."""
    told: dict[str, object] = {"ready": not failing, "failing": failing}
    if warnings:
        told["warnings"] = warnings
    return json_response(told, 503 if failing else 200)


def make_application(
    routes: Sequence[Route],
    exception_handlers: Mapping[Any, Callable[[Request, Exception], Response]] | None = None,
) -> Starlette:
    """Return an application of these routes. What is not quite one of them is not found.

    A bug in an endpoint is logged with its traceback, and answered 500.
    """
    for route in routes:
        # As it comes `$` lets a newline at the end go by unseen, and `.` knows none.
        pattern = route.path_regex.pattern.removesuffix("$")
        route.path_regex = re.compile(rf"{pattern}\Z", re.DOTALL)
    application = Starlette(
        routes=routes,
        exception_handlers=exception_handlers,
        middleware=[Middleware(_Outermost)],
    )
    # A redirect would lead to whatever host the request names.
    application.router.redirect_slashes = False
    return application


class _Outermost:
    """What every request goes through first, and every failure last."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if not (_is_text(scope["raw_path"]) and _is_text(scope["query_string"])):
            # Decoded, other bytes would have become other names.
            refusal = problem(400, "bad-value", "the path and the query must be UTF-8")
            await refusal(scope, receive, send)
            return
        has_begun = False

        async def send_on(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        except Exception:  # noqa: BLE001 (a bug of any kind, which would vanish otherwise)
            _log.exception(
                "a request has failed for an unforeseen reason",
                method=scope["method"],
                path=scope["path"][:_PATH_LOGGED],
            )
            if not has_begun:
                failure = problem(500, "internal", "an unforeseen error: the server's log has it")
                await failure(scope, receive, send)


_PATH_LOGGED: Final = 200
"""Characters of a path that the log gets."""


def problem(code: int, kind: str, message: str) -> Response:
    """Return a refusal: a word for programs, and a sentence for people."""
    return json_response({"error": {"code": kind, "message": message}}, code)


def _is_text(escaped: bytes) -> bool:
    try:
        unquote_to_bytes(escaped).decode()
    except UnicodeDecodeError:
        return False
    return True


class _Http1Connection(h11.Connection):
    """HTTP/1.1 as h11 reads it, but for what it leaves to others.

    h11 bounds what it gathers in want of a whole header; one that is there as a whole, with what
    was received last, has any length.
    """

    def __init__(self, header_bytes_max: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=header_bytes_max)
        self._header_bytes_max = header_bytes_max

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return what comes next; of a request no wish for another protocol."""
        before = len(self.trailing_data[0]) if self.their_state is h11.IDLE else 0
        event = super().next_event()
        if not isinstance(event, h11.Request):
            return event
        if before - len(self.trailing_data[0]) > self._header_bytes_max:
            raise h11.RemoteProtocolError("the headers are too long", error_status_hint=431)
        if event.method == b"PRI":
            raise h11.RemoteProtocolError("HTTP/2 is not spoken here", error_status_hint=505)
        headers = [(name, value) for name, value in event.headers if name != b"upgrade"]
        return h11.Request(
            method=event.method,
            headers=headers,
            target=event.target,
            http_version=event.http_version,
        )


class _Server(TCPServer):
    """One connection of Hypercorn's, which chooses its protocol itself and has no hook for that."""

    header_bytes_max: int
    _connection: h11.Connection | None = None

    async def _read_data(self) -> None:
        protocol = self.protocol.protocol
        assert isinstance(protocol, H11Protocol)
        protocol.connection = self._connection = _Http1Connection(self.header_bytes_max)
        await super()._read_data()

    def has_whole_request(self) -> bool:
        """Say whether a request has come as a whole and its answer has not ended."""
        connection = self._connection
        return connection is not None and connection.their_state in {h11.DONE, h11.MUST_CLOSE}


class _PatientStream:
    """A connection whose peer has to take what it is sent, in time."""

    def __init__(self, stream: trio.SocketStream, received: bytes) -> None:
        """`received` is what has come from it already."""
        self.socket = stream.socket
        self._received = received
        self.send_eof = stream.send_eof
        self.aclose = stream.aclose
        self._stream = stream

    async def receive_some(self, max_bytes: int) -> bytes:
        """Return what has come, b"" at the end."""
        if self._received:
            received, self._received = self._received[:max_bytes], self._received[max_bytes:]
            await trio.lowlevel.checkpoint()
            return received
        return bytes(await self._stream.receive_some(max_bytes))

    async def send_all(self, data: bytes) -> None:
        """Send everything; raise BrokenResourceError if that takes too long."""
        view = memoryview(data)
        for start in range(0, len(data), _SEND_BYTES):
            with trio.move_on_after(_SEND_S) as scope:
                await self._stream.send_all(view[start : start + _SEND_BYTES])
            if scope.cancelled_caught:
                raise trio.BrokenResourceError("the peer does not take its answer")


async def serve_application(
    application: Starlette,
    address: str,
    *,
    connections_max: int,
    header_bytes_max: int,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; starts with the address that is really bound.

    A request's line and headers have at most `header_bytes_max`; a longer one is answered 431, if
    its peer waits for that, and its connection closed. For one connection more than
    `connections_max` another one that has not sent a whole request is closed, or else it is closed
    itself (http_guests.py). Raises ListenError if it cannot listen there.
    """
    config = hypercorn.config.Config()
    config.accesslog = None
    config.errorlog = None
    config.keep_alive_timeout = _IDLE_S
    config.read_timeout = _READ_S  # type: ignore[assignment]
    host, port = parse_address(address)
    try:
        listeners = [*map(raw_listener, await trio.open_tcp_listeners(port, host=host))]
    except OSError as error:
        raise ListenError(address=address, reason=error.strerror or str(error)) from error
    app = ASGIWrapper(application)  # type: ignore[arg-type]
    context = WorkerContext(None)
    guests = Guests(connections_max)

    async def serve(arrival: TcpArrival, guest: Guest, received: bytes) -> None:
        """Serve one connection. Hypercorn's own accept loop knows no limit of their number."""
        stream = arrival.open()
        try:
            with trio.CancelScope() as scope:
                guest.go = scope.cancel
                patient = _PatientStream(stream, received)
                server = _Server(app, config, context, ConnectionState({}), patient)  # type: ignore[arg-type]
                server.header_bytes_max = header_bytes_max
                guest.is_answered = server.has_whole_request
                await server
        finally:
            guests.leave(guest)
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        door = HttpDoor(
            guests,
            wait_s=_IDLE_S,
            header_bytes_max=header_bytes_max,
            enter=lambda *arrived: nursery.start_soon(serve, *arrived),
        )
        task_status.started(format_address(listeners[0].address))
        await door.run(listeners)
