"""Metrics, health and status over HTTP: Starlette on Hypercorn's trio worker.

GET  /livez         200 while the loop turns
GET  /readyz        200 when messages are taken and delivered, else 503 and what is missing
GET  /status        JSON, what `delaywheel status` shows
GET  /metrics       Prometheus
POST /clock/accept  an operator on this machine vouches for the clock after a step forward
/dead …             dead letters: see dead_http.py

There are no tokens: whoever reaches the port may look. What changes something, and what shows the
bodies of messages, is for this machine alone, and for no browser's page (local_access.py).
"""

from typing import TYPE_CHECKING

import structlog
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from delay_server.dead_http import dead_routes
from delay_server.local_access import ThisMachine, peer_of
from delay_server.metrics import ServerMetrics
from delay_server.status import failing_checks, status_of
from delay_transport.http import METRICS_TYPE, json_response, make_application, serve_application
from delay_transport.http_access import PlaceError

if TYPE_CHECKING:
    from delay_server.config import HttpConfig
    from delay_server.server import DelayServer

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


def application(server: "DelayServer") -> Starlette:
    """Return the ASGI application of one server."""
    metrics = ServerMetrics(server)
    access = ThisMachine(server.config.http)

    async def livez(_: Request) -> Response:
        return json_response({"live": True})

    async def readyz(_: Request) -> Response:
        failing = failing_checks(server)
        return json_response({"ready": not failing, "failing": failing}, 503 if failing else 200)

    async def status(_: Request) -> Response:
        return json_response(status_of(server))

    async def render(_: Request) -> Response:
        text = await trio.to_thread.run_sync(metrics.take().render)
        return Response(text, media_type=METRICS_TYPE)

    async def accept_clock(request: Request) -> Response:
        try:
            access.check_operator(request)
        except PlaceError as error:
            _log.warning("the clock was not accepted", reason=str(error), peer=peer_of(request))
            return json_response({"error": {"code": error.kind, "message": str(error)}}, 403)
        server.pacer.accept()
        return json_response({"clock_held": server.clock_held})

    return make_application(
        [
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/status", status),
            Route("/metrics", render),
            Route("/clock/accept", accept_clock, methods=["POST"]),
            *dead_routes(server, access),
        ]
    )


async def serve_http(
    server: "DelayServer",
    settings: "HttpConfig",
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; starts with the address that is really bound.

    Raises ListenError if it cannot listen there.
    """
    await serve_application(
        application(server),
        settings.address,
        connections_max=settings.connections_max,
        header_bytes_max=settings.header_bytes_max,
        task_status=task_status,
    )
