"""The HTTP application of a server: health, status and metrics around its API.

    GET /livez                200 while the loop turns
    GET /readyz               200 when the server does its work, else 503 and what is missing
    GET /status               JSON
    GET /metrics              Prometheus
    GET PREFIX/openapi.json   the document of the API
        PREFIX/…              its operations

Health and the document are for everybody.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from delay_transport.http.access import HttpAccess
from delay_transport.http.api import Api
from delay_transport.http.metric_families import Exposition
from delay_transport.http.openapi import document_json
from delay_transport.http.server import (
    METRICS_TYPE,
    json_response,
    make_application,
)
from delay_transport.http.tokens import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The answers of a server about itself; each is made when somebody asks."""

    failing: Callable[[], Sequence[str]]
    """Why it does not do its work; empty if it does."""
    status: Callable[[], dict[str, Any]]
    metrics: Callable[[], Exposition]
    are_metrics_open: bool
    """True: /metrics needs no token."""


def make_server_application(
    api: Api,
    access: HttpAccess,
    context: Callable[[], Any],
    health: Health,
    *,
    more: Sequence[Route] = (),
) -> Starlette:
    """Return the ASGI application of a server with an API."""

    async def livez(_: Request) -> Response:
        return json_response({"live": True})

    async def readyz(_: Request) -> Response:
        failing = health.failing()
        found = {"ready": not failing, "failing": failing}
        return json_response(found, 503 if failing else 200)

    async def status(request: Request) -> Response:
        access.admit(request, Role.READ, is_change=False)
        return json_response(health.status())

    async def metrics(request: Request) -> Response:
        if not health.are_metrics_open:
            access.admit(request, Role.READ, is_change=False)
        text = await anyio.to_thread.run_sync(health.metrics().render)
        return Response(text, media_type=METRICS_TYPE)

    async def openapi(_: Request) -> Response:
        return Response(document_json(api), media_type="application/json")

    return make_application(
        [
            *api.routes(access, context),
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/status", status),
            Route("/metrics", metrics),
            Route(f"{api.prefix}/openapi.json", openapi),
            *more,
        ],
        document=f"{api.prefix}/openapi.json",
    )
