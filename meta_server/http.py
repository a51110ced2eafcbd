"""Discovery, metrics, health, status and QMQ's queries over HTTP. Nothing can be changed here.

GET  /meta/address        host:port of the listener, as plain text without a newline
GET  /livez               200 while the loop turns
GET  /readyz              200 when everything is answered, else 503 and what is missing
GET  /status              JSON: groups, roles, records, counts
GET  /metrics             Prometheus
GET  /slave/meta          ?groupName=: ip:port of the group's slave as plain text, or empty
GET  /subject/consumers   ?subject=: who consumes it
GET  /onoffline           ?operation=query&clientId=&subject=&consumerGroup=&state=: ON or OFF

The last three answer as QMQ's meta server does: JSON {status, message, data} with status 0, or -1
and the reason in the message.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from delay_protocol import BrokerRole, ClientType
from delay_transport.http import METRICS_TYPE, json_response, serve_application
from meta_server.metrics import take
from meta_server.status import failing_checks, status_of

if TYPE_CHECKING:
    from meta_server.config import HttpConfig
    from meta_server.server import MetaServer

_ONOFFLINE_PARAMETERS = ("clientId", "subject", "consumerGroup", "state")


def application(server: "MetaServer") -> Starlette:
    """Return the ASGI application of one server."""

    async def address(request: Request) -> Response:
        return PlainTextResponse(server.advertised(request.scope.get("server")))

    async def livez(_: Request) -> Response:
        return json_response({"live": True})

    async def readyz(_: Request) -> Response:
        failing = failing_checks(server)
        return json_response({"ready": not failing, "failing": failing}, 503 if failing else 200)

    async def status(_: Request) -> Response:
        return json_response(status_of(server))

    async def metrics(_: Request) -> Response:
        text = await trio.to_thread.run_sync(take(server).render)
        return Response(text, media_type=METRICS_TYPE)

    async def slave(request: Request) -> Response:
        return PlainTextResponse(slave_of(server, request.query_params.get("groupName", "")))

    async def consumers(request: Request) -> Response:
        subject = request.query_params.get("subject", "")
        if not subject:
            return json_response(_failed("subject is required"))
        return json_response(_done(consumers_of(server, subject)))

    async def onoffline(request: Request) -> Response:
        return json_response(query_onoffline(server, dict(request.query_params)))

    return Starlette(
        routes=[
            Route("/meta/address", _when_ready(server, address)),
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/status", status),
            Route("/metrics", metrics),
            Route("/slave/meta", _when_ready(server, slave)),
            Route("/subject/consumers", _when_ready(server, consumers)),
            Route("/onoffline", _when_ready(server, onoffline)),
        ]
    )


Endpoint = Callable[[Request], Awaitable[Response]]


def _when_ready(server: "MetaServer", endpoint: Endpoint) -> Endpoint:
    """Return an endpoint that answers 503 until everything is known."""

    async def guarded(request: Request) -> Response:
        if not server.ready.is_set():
            return PlainTextResponse("not ready", 503)
        return await endpoint(request)

    return guarded


def slave_of(server: "MetaServer", group: str) -> str:
    """Return where a group's slave is; "" if it has none.

    QMQ tells its HTTP port here. We know of no such port and tell the one that it serves on.
    """
    broker = server.registry.broker_with_role(group, BrokerRole.SLAVE, BrokerRole.DELAY_SLAVE)
    return "" if broker is None else f"{broker.ip}:{broker.serve_port}"


def consumers_of(server: "MetaServer", subject: str) -> list[dict[str, Any]]:
    """Return the consumer groups of a subject, each with the clients that were seen."""
    groups: dict[str, dict[str, Any]] = {}
    for client in server.registry.clients_of(subject):
        if client.key.client_type != ClientType.CONSUMER:
            continue
        entry = groups.setdefault(
            client.key.consumer_group,
            {
                "namespace": "",
                "prefix": subject,
                "consumerGroup": client.key.consumer_group,
                "owner": client.app_code,
                "endPoint": [],
            },
        )
        entry["endPoint"].append(client.key.client_id)
    return list(groups.values())


def query_onoffline(server: "MetaServer", parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return whether a consumer is on-line, as QMQ's meta server says it."""
    missing = [name for name in _ONOFFLINE_PARAMETERS if not parameters.get(name)]
    if missing:
        return _failed(f"{', '.join(missing)} required")
    if parameters.get("operation") != "query":
        return _failed("only operation=query is answered here: changes need a token")
    offline = server.registry.is_offline(
        parameters["clientId"], parameters["subject"], parameters["consumerGroup"]
    )
    return _done(None, "OFF" if offline else "ON")


def _done(data: object, message: str = "") -> dict[str, Any]:
    return {"status": 0, "message": message, "data": data}


def _failed(reason: str) -> dict[str, Any]:
    return {"status": -1, "message": reason, "data": None}


async def serve_http(
    server: "MetaServer",
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
        task_status=task_status,
    )
