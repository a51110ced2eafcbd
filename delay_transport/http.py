"""The HTTP port of a process: an ASGI application on Hypercorn's trio worker, within limits."""

import hypercorn.config
import msgspec
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.applications import Starlette
from starlette.responses import Response

from delay_transport.errors import ListenError
from delay_transport.runtime import format_address, parse_address

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type that Prometheus wants."""


def json_response(value: object, code: int = 200) -> Response:
    """Return an answer with a value as JSON."""
    return Response(msgspec.json.encode(value), code, media_type="application/json")


async def serve_application(
    application: Starlette,
    address: str,
    *,
    connections_max: int,
    header_bytes_max: int = 16 * 1024,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; starts with the address that is really bound.

    A request's line and headers have at most `header_bytes_max`. One connection more than
    `connections_max` is accepted and closed at once. Raises ListenError if it cannot listen there.
    """
    config = hypercorn.config.Config()
    config.accesslog = None
    config.errorlog = None
    config.keep_alive_timeout = 5
    config.read_timeout = 10
    config.h11_max_incomplete_size = header_bytes_max
    config.h2_max_header_list_size = header_bytes_max
    host, port = parse_address(address)
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise ListenError(address=address, reason=error.strerror or str(error)) from error
    app = ASGIWrapper(application)  # type: ignore[arg-type]
    context = WorkerContext(None)
    open_now = 0

    async def serve(stream: trio.SocketStream) -> None:
        """Serve one connection. Hypercorn's own accept loop knows no limit of their number."""
        nonlocal open_now
        if open_now >= connections_max:
            await stream.aclose()
            return
        open_now += 1
        try:
            await TCPServer(app, config, context, ConnectionState({}), stream)  # type: ignore[arg-type]
        finally:
            open_now -= 1

    task_status.started(format_address(listeners[0].socket.getsockname()[:2]))
    await trio.serve_listeners(serve, listeners)
