"""Metrics, health and status over HTTP: Starlette on Hypercorn's trio worker.

GET  /livez         200 while the loop turns
GET  /readyz        200 when messages are taken and delivered, else 503 and what is missing
GET  /status        JSON, what `delaywheel status` shows
GET  /metrics       Prometheus
POST /clock/accept  an operator vouches for the clock after a step forward
"""

from typing import TYPE_CHECKING

import hypercorn.config
import msgspec
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from delay_server.metrics import ServerMetrics
from delay_server.status import failing_checks, status_of
from delay_transport import ListenError, format_address, parse_address

if TYPE_CHECKING:
    from delay_server.config import HttpConfig
    from delay_server.server import DelayServer

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def application(server: "DelayServer") -> Starlette:
    """Return the ASGI application of one server."""
    metrics = ServerMetrics(server)

    async def livez(_: Request) -> Response:
        return _json({"live": True})

    async def readyz(_: Request) -> Response:
        failing = failing_checks(server)
        return _json({"ready": not failing, "failing": failing}, 503 if failing else 200)

    async def status(_: Request) -> Response:
        return _json(status_of(server))

    async def render(_: Request) -> Response:
        text = await trio.to_thread.run_sync(metrics.take().render)
        return Response(text, media_type=_METRICS_TYPE)

    async def accept_clock(_: Request) -> Response:
        server.pacer.accept()
        return _json({"clock_held": server.clock_held})

    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/status", status),
            Route("/metrics", render),
            Route("/clock/accept", accept_clock, methods=["POST"]),
        ]
    )


def _json(value: object, code: int = 200) -> Response:
    return Response(msgspec.json.encode(value), code, media_type="application/json")


async def serve_http(
    server: "DelayServer",
    settings: "HttpConfig",
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; starts with the address that is really bound.

    Raises ListenError if it cannot listen there.
    """
    config = hypercorn.config.Config()
    config.accesslog = None
    config.errorlog = None
    config.keep_alive_timeout = 5
    config.read_timeout = 10
    host, port = parse_address(settings.address)
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise ListenError(address=settings.address, reason=error.strerror or str(error)) from error
    app = ASGIWrapper(application(server))  # type: ignore[arg-type]
    context = WorkerContext(None)
    open_now = 0

    async def serve(stream: trio.SocketStream) -> None:
        """Serve one connection. Hypercorn's own accept loop knows no limit of their number."""
        nonlocal open_now
        if open_now >= settings.connections_max:
            await stream.aclose()
            return
        open_now += 1
        try:
            await TCPServer(app, config, context, ConnectionState({}), stream)  # type: ignore[arg-type]
        finally:
            open_now -= 1

    task_status.started(format_address(listeners[0].socket.getsockname()[:2]))
    await trio.serve_listeners(serve, listeners)
