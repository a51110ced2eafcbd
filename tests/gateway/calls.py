"""Operations of a gateway, called as its HTTP port calls them: their requests are checked."""

import asyncio
from typing import Any, cast
from urllib.parse import parse_qsl

import msgspec

from delay_client import Client
from delay_transport.http.access import Caller
from delay_transport.http.convert import convert_request
from delay_transport.http.operations import Call, Operation, Precondition
from delay_transport.http.tokens import Role
from gateway import app  # noqa: F401 (it has all operations)
from gateway.api import API, Parts
from gateway.cluster import Cluster
from gateway.overview import Live
from gateway.webhooks.following import Webhooks

ADMIN = Caller(name="ann", role=Role.ADMIN)
ONLY_A = Caller(name="app", role=Role.ADMIN, subjects=("a",))


def parts_of(servers: object, client: Client | None = None) -> Parts:
    """Return a gateway whose cluster is one of a test."""
    cluster = cast(Cluster, servers)
    return Parts(cast(Client, client), cluster, Webhooks(cluster), Live(cluster))


def operation(method: str, path: str) -> Operation:
    [found] = [one for one in API.operations if (one.method, one.shown_path) == (method, path)]
    return found


async def ask_operation(
    parts: Parts,
    method: str,
    path: str,
    query: str = "",
    *,
    caller: Caller = ADMIN,
    body: object = None,
    **names: str,
) -> Any:  # noqa: ANN401 (the struct of the answer)
    """Return the answer of an operation; `names` are the parts of its path."""
    asked = operation(method, path)
    return await asked.act(
        Call(
            context=parts,
            caller=caller,
            peer="",
            precondition=Precondition(),
            path=msgspec.convert(names, asked.path_type),
            query=convert_request(dict(parse_qsl(query)), asked.query_type, strict=False),
            body=None if body is None else msgspec.convert(body, asked.body_type),
            headers={},
        )
    )


def answer_of(servers: object, *asked: str, **how: Any) -> Any:  # noqa: ANN401 (the struct of the answer)
    """Return the answer of an operation of a gateway of its own, asked as ask_operation() does."""
    return asyncio.run(ask_operation(parts_of(servers), *asked, **how))
