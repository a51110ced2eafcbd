"""A server of the HTTP port's tests on a free port, and what is asked of it over a socket."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from delay_transport.http.server import make_application, serve_application
from delay_transport.seams.runtime import Address, parse_address

CONNECTIONS_MAX = 10


async def _hello(request: Request) -> Response:
    return PlainTextResponse(f"hello {len(await request.body())}")


@asynccontextmanager
async def serving(*routes: Route) -> AsyncIterator[Address]:
    """Serve /hello and these routes on a free port, 30 s at most; yield where."""
    application = make_application(
        [Route("/hello", _hello, methods=["GET", "POST"]), *routes], document="/openapi.json"
    )
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(
                lambda task_status: serve_application(
                    application,
                    "127.0.0.1:0",
                    connections_max=CONNECTIONS_MAX,
                    task_status=task_status,
                )
            )
            yield parse_address(address)
            nursery.cancel_scope.cancel()


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    """Return what comes until the connection is closed, or reset."""
    answer = b""
    with contextlib.suppress(trio.BrokenResourceError):
        while data := await stream.receive_some():
            answer += data
    return answer


async def answer_to(address: Address, *parts: bytes, ends: bool = False) -> bytes:
    """Return all that comes after these parts were sent on a connection of their own."""
    async with await trio.open_tcp_stream(*address) as stream:
        for part in parts:
            await stream.send_all(part)
            await trio.sleep(0.002 if len(parts) > 1 else 0)
        if ends:
            await stream.send_eof()
        return await read_all(stream)
