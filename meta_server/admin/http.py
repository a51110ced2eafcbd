"""Discovery, administration, metrics, health and status over HTTP.

GET  /meta/address        host:port of the listener, as plain text without a newline
GET  /livez               200 while the loop turns
GET  /readyz              200 when everything is answered, else 503 and what is missing
GET  /status              JSON: groups, roles, records, counts
GET  /metrics             Prometheus
     /api/v1/…            the administration's API (`meta_server/admin/api.py`)
GET  /api/v1/openapi.json what it has

Discovery, health and metrics are for everybody, everything else for those whom
`delay_transport/http/access.py` lets in.
"""

from collections.abc import Awaitable, Callable

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from delay_transport.http.access import AccessError
from delay_transport.http.server import (
    METRICS_TYPE,
    json_response,
    make_application,
    readiness_response,
)
from delay_transport.seams.runtime import Address, format_address
from meta_server.admin.admin_types import ProblemDetail
from meta_server.admin.api import (
    OPERATIONS,
    PREFIX,
    Operation,
    admit_reader,
    answer_to,
    problem,
    problem_of,
)
from meta_server.admin.entrance import Entrance
from meta_server.admin.metrics import take
from meta_server.admin.openapi import document_json
from meta_server.admin.parts import Observed
from meta_server.admin.status import failing_checks, status_of, warnings_of

Endpoint = Callable[[Request], Awaitable[Response]]


def application(entrance: Entrance, observe: Callable[[], Observed]) -> Starlette:
    """Return the ASGI application of a server; `observe` says how that is now."""

    async def address(request: Request) -> Response:
        observed = observe()
        if observed.parts is None or observed.listener is None:
            return _not_ready()
        told = observed.parts.config.listener.advertised or reachable(
            observed.listener.address, request.scope.get("server")
        )
        return PlainTextResponse(told)

    async def livez(_: Request) -> Response:
        return json_response({"live": True})

    async def readyz(_: Request) -> Response:
        observed = observe()
        return readiness_response(failing_checks(observed), warnings_of(observed))

    async def status(request: Request) -> Response:
        try:
            admit_reader(entrance, request)
        except AccessError as error:
            return problem_of(error)
        return json_response(status_of(observe()))

    async def metrics(_: Request) -> Response:
        text = await trio.to_thread.run_sync(take(observe()).render)
        return Response(text, media_type=METRICS_TYPE)

    return make_application(
        [
            Route("/meta/address", address),
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/status", status),
            Route("/metrics", metrics),
            Route(f"{PREFIX}/openapi.json", _openapi),
            *_operations(entrance, observe),
        ],
        {HTTPException: _stray},
    )


async def _openapi(_: Request) -> Response:
    return Response(document_json(), media_type="application/json")


def _operations(entrance: Entrance, observe: Callable[[], Observed]) -> list[Route]:
    """Return a route for each path of the API; the method is looked up behind it."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.method] = operation

    def endpoint(operations: dict[str, Operation]) -> Endpoint:
        async def answer(request: Request) -> Response:
            # A HEAD is a GET whose body HTTP leaves out.
            method = "GET" if request.method == "HEAD" else request.method
            return await answer_to(entrance, observe(), operations[method], request)

        return answer

    return [
        Route(PREFIX + path, endpoint(operations), methods=list(operations))
        for path, operations in by_path.items()
    ]


def _stray(request: Request, error: Exception) -> Response:
    """Answer what leads nowhere; below the API's prefix in the form of all its refusals."""
    assert isinstance(error, HTTPException)
    if not request.url.path.startswith(f"{PREFIX}/"):
        return PlainTextResponse(error.detail, error.status_code, headers=error.headers)
    kind = "method" if error.status_code == 405 else "not-found"
    detail = ProblemDetail(
        code=kind, message=f"{error.detail}: see {PREFIX}/openapi.json for what there is"
    )
    response = problem(error.status_code, detail)
    response.headers.update(error.headers or {})
    return response


def _not_ready() -> Response:
    return PlainTextResponse("not ready", 503)


def reachable(listens: Address, asked: Address | None) -> str:
    """Return the address of the listener as others reach it; `asked` is where HTTP was asked.

    QMQ's clients split it at the colon.
    """
    host, port = listens
    if host in {"0.0.0.0", "::"} and asked is not None:  # noqa: S104 (a comparison)
        host = asked[0]
    return format_address((host, port))
