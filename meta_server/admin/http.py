"""Discovery beside the administration's API, health, status and metrics.

GET  /meta/address        host:port of the listener, as plain text without a newline; a header has
                          the delays of levels (`delay.levels`)

The others are those of `delay_transport/http/application.py`, and the API's
(`meta_server/admin/api.py`). Discovery, health and metrics are for everybody, everything else for
those whom `delay_transport/http/access.py` lets in.
"""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from delay_protocol.basics.levels import LEVELS_HEADER
from delay_transport.http.access import HttpAccess
from delay_transport.http.application import Health, make_server_application
from delay_transport.http.problems import RequestError
from delay_transport.seams.runtime import Address, format_address
from meta_server.admin.api import API
from meta_server.admin.metrics import take
from meta_server.admin.parts import Observed, Parts
from meta_server.admin.status import failing_checks, status_of


def application(access: HttpAccess, observe: Callable[[], Observed]) -> Starlette:
    """Return the ASGI application of a server; `observe` returns how that is now."""

    async def address(request: Request) -> Response:
        observed = observe()
        if observed.parts is None or observed.listener is None:
            return PlainTextResponse("not ready", 503)
        config = observed.parts.config
        told = config.listener.advertised or reachable(
            observed.listener.address, request.scope.get("server")
        )
        return PlainTextResponse(told, headers={LEVELS_HEADER: config.delay.levels})

    def parts() -> Parts:
        found = observe().parts
        if found is None:
            raise RequestError(
                503, "starting", "the store has not been loaded yet", retry_after_s=1
            )
        return found

    return make_server_application(
        API,
        access,
        parts,
        Health(
            failing=lambda: failing_checks(observe()),
            status=lambda: status_of(observe()),
            metrics=lambda: take(observe()),
            are_metrics_open=True,
        ),
        more=[Route("/meta/address", address)],
    )


def reachable(listens: Address, asked: Address | None) -> str:
    """Return the address of the listener as others reach it; `asked` is where HTTP was asked.

    QMQ's clients split it at the colon.
    """
    host, port = listens
    if host in {"0.0.0.0", "::"} and asked is not None:  # noqa: S104 (a comparison)
        host = asked[0]
    return format_address((host, port))
