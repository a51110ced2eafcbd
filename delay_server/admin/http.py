"""Metrics, health, status and administration over HTTP: Starlette on Hypercorn's trio worker.

GET  /livez         200 while the loop turns
GET  /readyz        200 when messages are taken and delivered, else 503 and what is missing
GET  /status        JSON, what `delaywheel status` shows
GET  /metrics       Prometheus; it names subjects
POST /clock/accept  an operator vouches for the clock after a step forward
     /controls, /drain, /explain: see admin_http.py
     /dead: dead letters, see dead_http.py

Health needs no token. All other endpoints are for callers with a token, or, without a token file,
for callers on this machine that are no page in a browser (access.py).
"""

import structlog
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from delay_server.admin.access import Guard, peer_of
from delay_server.admin.admin_http import admin_routes
from delay_server.admin.dead_http import dead_routes
from delay_server.admin.metrics import take
from delay_server.admin.parts import Administered
from delay_server.admin.status import failing_checks, status_of, warnings_of
from delay_transport.http.access import Caller
from delay_transport.http.server import (
    METRICS_TYPE,
    json_response,
    make_application,
    readiness_response,
    serve_application,
)

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


def application(administered: Administered) -> Starlette:
    """Return the ASGI application of one server."""
    observe, guard = administered.observe, Guard(administered)

    async def livez(_: Request) -> Response:
        return json_response({"live": True})

    async def readyz(_: Request) -> Response:
        observed = observe()
        return readiness_response(failing_checks(observed), warnings_of(observed))

    async def status(_: Request, __: Caller) -> Response:
        return json_response(status_of(observe()))

    async def render(_: Request, __: Caller) -> Response:
        text = await trio.to_thread.run_sync(take(observe()).render)
        return Response(text, media_type=METRICS_TYPE)

    async def accept_clock(request: Request, caller: Caller) -> Response:
        administered.accept_clock()
        _log.warning("the clock was accepted by request", who=caller.name, peer=peer_of(request))
        return json_response({"clock_held": observe().duty.clock_held})

    return make_application(
        [
            Route("/livez", livez),
            Route("/readyz", readyz),
            guard.route("/status", {"GET": status}, needs_master=False),
            guard.route("/metrics", {"GET": render}, needs_master=False),
            # A held clock is accepted by a plain `curl -X POST`, and before the node has recovered.
            guard.route(
                "/clock/accept", {"POST": accept_clock}, needs_json=False, needs_master=False
            ),
            *admin_routes(administered, guard),
            *dead_routes(administered, guard),
        ]
    )


async def serve_http(
    administered: Administered,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; starts with the address that is really bound.

    Raises ListenError if it cannot listen there.
    """
    settings = administered.config.http
    await serve_application(
        application(administered),
        settings.address,
        connections_max=settings.connections_max,
        task_status=task_status,
    )
