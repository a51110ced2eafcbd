"""Metrics, health and status over HTTP: Starlette on Hypercorn's trio worker.

GET  /livez         200 while the loop turns
GET  /readyz        200 when messages are taken and delivered, else 503 and what is missing
GET  /status        JSON, what `delaywheel status` shows
GET  /metrics       Prometheus
POST /clock/accept  an operator vouches for the clock after a step forward
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import hypercorn.config
import hypercorn.trio
import msgspec
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from delay_server.metrics import ServerMetrics
from delay_server.status import failing_checks, status_of
from delay_transport import ListenError, parse_address

if TYPE_CHECKING:
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
    bind: str,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; starts with the address that is really bound.

    Raises ListenError if it cannot listen there.
    """
    config = hypercorn.config.Config()
    config.bind = [f"fd://{await _bind(bind)}"]
    config.accesslog = None
    config.errorlog = None
    config.keep_alive_timeout = 5
    config.read_timeout = 10
    config.graceful_timeout = 0.5

    def started(binds: list[str]) -> None:
        task_status.started(binds[0].removeprefix("http://"))

    await hypercorn.trio.serve(
        application(server),  # type: ignore[arg-type]
        config,
        shutdown_trigger=trio.sleep_forever,
        task_status=_Started(started),
    )


async def _bind(address: str) -> int:
    """Bind, and return a descriptor for hypercorn, which leaks its own socket when it cannot."""
    host, port = parse_address(address)
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise ListenError(address=address, reason=error.strerror or str(error)) from error
    descriptor = os.dup(listeners[0].socket.fileno())
    for listener in listeners:
        await listener.aclose()
    return descriptor


class _Started(trio.TaskStatus[list[str]]):
    """Hands what hypercorn says when it listens to a function."""

    def __init__(self, fn: Callable[[list[str]], None]) -> None:
        self._fn = fn

    def started(self, value: list[str] | None = None) -> None:
        """Pass on the addresses."""
        self._fn(value or [])
