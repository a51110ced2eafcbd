"""The HTTP port of a process: an ASGI application on Hypercorn's trio worker, within limits.

`capped_listener.py` accepts the connections, since Hypercorn has no limit of open ones; Hypercorn
serves each of them as it is. Names in a path or a query come through exactly, or are refused.
"""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

import hypercorn.config
import msgspec
import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from delay_transport.http.capped_listener import CappedListener, bound_address, open_listeners
from delay_transport.http.problems import PROBLEM_TYPE, RequestError
from delay_transport.seams.trouble import Trouble

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type that Prometheus wants."""

HEADER_BYTES_MAX: Final = 16 * 1024
"""Of a request's line and headers while they are incomplete."""

_IDLE_S: Final = 5.0
"""Seconds for a request's line and headers to come, and between two requests."""

_ENDED_S: Final = 0.1
"""Seconds that a connection without a request under way has left when its peer has ended it."""

_REQUEST_S: Final = 60.0
"""Seconds for a request and its answer, from the last of its headers on. Without an end, a peer
that sends or takes a byte now and then could keep its place for ever."""


def json_response(value: object, code: int = 200) -> Response:
    """Return an answer with a value as JSON."""
    return Response(msgspec.json.encode(value), code, media_type="application/json")


def make_application(routes: Sequence[Route], *, document: str) -> Starlette:
    """Return an application of these routes. What is not quite one of them is not found.

    A RequestError is answered as the problem that it is. A bug in an endpoint is logged with its
    traceback, and answered 500.

    document: the path of the OpenAPI document, which says what there is
    """

    def stray(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind = "method" if error.status_code == 405 else "not-found"
        message = f"{error.detail}: see {document} for what there is"
        response = problem_of(RequestError(error.status_code, kind, message))
        response.headers.update(error.headers or {})
        return response

    def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        return problem_of(error)

    for route in routes:
        # As it comes `$` lets a newline at the end go by unseen, and `.` knows none.
        pattern = route.path_regex.pattern.removesuffix("$")
        route.path_regex = re.compile(rf"{pattern}\Z", re.DOTALL)
    application = Starlette(
        routes=routes,
        exception_handlers={HTTPException: stray, RequestError: refused},
        middleware=[Middleware(_Outermost)],
    )
    # A redirect would lead to whatever host the request names.
    application.router.redirect_slashes = False
    return application


class _Outermost:
    """The outermost layer: checks every request first, and handles every failure last."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if not (_is_text(scope["raw_path"]) and _is_text(scope["query_string"])):
            # Decoded, other bytes would have become other names.
            refusal = RequestError(400, "bad-value", "the path and the query must be UTF-8")
            await problem_of(refusal)(scope, receive, send)
            return
        has_begun = False

        async def send_on(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        except (ClientDisconnect, trio.BrokenResourceError, trio.ClosedResourceError):
            # The peer ended its connection, or took too long over it: nobody to answer.
            return
        except Exception:  # noqa: BLE001 (a bug of any kind, which would vanish otherwise)
            _log.exception(
                "a request failed with an unexpected error",
                method=scope.get("method"),
                path=scope["path"][:_PATH_LOGGED],
            )
            if not has_begun:
                failure = RequestError(500, "internal", "an unexpected error: see the server's log")
                await problem_of(failure)(scope, receive, send)


_PATH_LOGGED: Final = 200
"""Characters of a path that the log gets."""


def problem_of(error: RequestError) -> Response:
    """Return the answer to a request that is refused."""
    body = msgspec.json.encode(error.problem)
    response = Response(body, error.code, media_type=PROBLEM_TYPE)
    if error.retry_after_s:
        response.headers["Retry-After"] = str(error.retry_after_s)
    if error.code in {408, 413}:
        # The rest of the body would be read to its end, which may be far.
        response.headers["Connection"] = "close"
    if error.code == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _is_text(escaped: bytes) -> bool:
    try:
        unquote_to_bytes(escaped).decode()
    except UnicodeDecodeError:
        return False
    return True


def _hypercorn_config() -> hypercorn.config.Config:
    config = hypercorn.config.Config()
    config.accesslog = None
    config.errorlog = None
    config.keep_alive_timeout = _IDLE_S
    config.h11_max_incomplete_size = HEADER_BYTES_MAX
    config.h2_max_header_list_size = HEADER_BYTES_MAX
    # A connection has one request at a time, whatever the protocol: the cap bounds both.
    config.h2_max_concurrent_streams = 1
    return config


async def serve_application(
    application: Starlette,
    address: str,
    *,
    connections_max: int,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; starts with the address that is really bound.

    An incomplete request line with headers has at most HEADER_BYTES_MAX; a longer one is answered
    431, and its connection closed. At `connections_max` open connections no more are accepted until
    one of them ends. Raises ListenError if it cannot listen there.
    """
    config = _hypercorn_config()
    context = WorkerContext(None)
    listeners = await open_listeners(address)
    # Each listener reserves a place for the connection that it waits for.
    most = max(connections_max, len(listeners))
    places = trio.Semaphore(most, max_value=most)
    trouble = Trouble()

    async def serve(stream: trio.SocketStream) -> None:
        """Serve one connection. Hypercorn's own accept loop has no cap on connections."""
        try:
            async with trio.open_nursery() as nursery:
                scope = nursery.cancel_scope
                scope.deadline = trio.current_time() + _REQUEST_S
                nursery.start_soon(_close_when_cancelled, stream)
                connection = _Connection(stream, scope)
                app = ASGIWrapper(connection.answers(application))  # type: ignore[arg-type]
                await TCPServer(app, config, context, ConnectionState({}), connection)  # type: ignore[arg-type]
                scope.cancel()
        except Exception:  # noqa: BLE001 (a bug of any kind, which would end all connections)
            trouble.log(_log.exception, "an HTTP connection failed with an unexpected error")
        finally:
            places.release()

    task_status.started(bound_address(listeners[0]))
    await trio.serve_listeners(
        serve, [CappedListener(listener, places, trouble) for listener in listeners]
    )


class _Connection:
    """A stream as Hypercorn takes it, which ends soon once its peer has ended it.

    Hypercorn waits for its time-out all the same: thousands of connections that come and go would
    keep all places.
    """

    def __init__(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        self.socket = stream.socket
        self.send_eof = stream.send_eof
        self.aclose = stream.aclose
        self._stream = stream
        self._scope = scope
        self._is_answering = False

    async def send_all(self, data: bytes) -> None:
        """Send data; raise ClosedResourceError where another task sends the end already."""
        try:
            await self._stream.send_all(data)
        except trio.BusyResourceError as error:
            raise trio.ClosedResourceError("the connection is being closed") from error

    async def receive_some(self, max_bytes: int) -> bytes:
        """Return what has come, b"" at the end."""
        data = bytes(await self._stream.receive_some(max_bytes))
        if not data and not self._is_answering:
            # A request that came with the end begins in the next steps, and moves this.
            self._scope.deadline = min(self._scope.deadline, trio.current_time() + _ENDED_S)
        return data

    def answers(self, application: ASGIApp) -> ASGIApp:
        """Return the application; each request moves the deadline of this connection."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            self._scope.deadline = trio.current_time() + _REQUEST_S
            self._is_answering = True
            try:
                await application(scope, receive, send)
            finally:
                self._is_answering = False

        return answer


async def _close_when_cancelled(stream: trio.SocketStream) -> None:
    """Close a connection that is cancelled: Hypercorn shields what it sends from cancellation."""
    try:
        await trio.sleep_forever()
    finally:
        await trio.aclose_forcefully(stream)
