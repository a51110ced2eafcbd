"""gateway.server: connections within limits; what one does wrong is not felt by others."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Receive, Scope, Send

from delay_transport.seams.errors import ListenError
from delay_transport.seams.runtime import parse_address
from gateway import server as module
from gateway.server import HttpServer

GOOD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
UNREAD = b"GET /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    while scope["path"] != "/unread" and (await receive()).get("more_body"):
        pass
    if scope["path"] == "/slow":
        await asyncio.sleep(0.3)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"1")]})
    await send({"type": "http.response.body", "body": b"it works"})


def play(
    test: Callable[[str, int, HttpServer], Awaitable[None]], listen: str = "127.0.0.1:0"
) -> None:
    async def main() -> None:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        server = HttpServer(answering, ready.set_result)
        serving = asyncio.create_task(server.run_at(listen))
        async with asyncio.timeout(20):
            await test(*parse_address(await ready), server)
            server.stop()
            await serving

    asyncio.run(main())


async def said(host: str, port: int, data: bytes) -> bytes:
    """Return all that is answered until the connection is closed."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(data)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def is_served(host: str, port: int) -> bool:
    return b"it works" in await said(
        host, port, GOOD.replace(b"Host", b"Connection: close\r\nHost")
    )


@pytest.mark.parametrize(
    "endless",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nX: ",
        # After the last part of a body; after each of its parts.
        CHUNKED + b"0\r\nX: ",
        CHUNKED + b"1\r\nx\r\n1;x=",
        # The same when it is answered, or nobody reads it.
        GOOD + b"GET / HTTP/1.1\r\nHost: a\r\nX: ",
        b"GET /unread HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
        b"GET /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 5000000000\r\n\r\n",
    ],
)
def test_what_has_no_end_and_is_no_body_that_is_read_is_cut_off(endless: bytes) -> None:
    async def test(host: str, port: int, _: HttpServer) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(endless)
        taken = 0
        with contextlib.suppress(ConnectionError):
            while taken < 2000:
                writer.write(b"x" * 10_000)
                await writer.drain()
                await asyncio.sleep(0)
                taken += 1
        # Less than 1 MB by the server; the kernel takes some more.
        assert taken < 1500
        assert await is_served(host, port)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await reader.read()

    play(test)


def test_a_long_body_in_small_parts_is_read_to_its_end() -> None:
    async def test(host: str, port: int, _: HttpServer) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(CHUNKED)
        for _part in range(200):
            writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        assert b"200" in await reader.readuntil(b"\r\n\r\n")
        writer.close()

    play(test)


def test_headers_that_do_not_come_in_time_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEADER_S", 0.2)
    monkeypatch.setattr(module, "IDLE_S", 1)

    async def test(host: str, port: int, _: HttpServer) -> None:
        # Nothing at all; a part; a byte now and then; a part after a whole request.
        assert await said(host, port, b"") == b""
        assert await said(host, port, GOOD[:20]) == b""
        reader, writer = await asyncio.open_connection(host, port)
        for byte in GOOD[:-4] * 100:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.05)
            if reader.at_eof():
                break
        assert reader.at_eof()
        writer.close()
        assert (await said(host, port, GOOD + GOOD[:20])).count(b"it works") == 1
        # What comes after an answer and is no request.
        for request, more in (
            (GOOD, GOOD[:20]),
            (GOOD, b"\r\n"),
            (UNREAD, b"x"),
            (UNREAD, b"x" * 100 + b"\r\n"),
            (UNREAD.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked"), b"5\r\n"),
        ):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request)
            await reader.readuntil(b"0\r\n\r\n")
            writer.write(more)
            assert await reader.read() == b""
            writer.close()
        # A request that takes longer than headers may, and a body of its own.
        slow = b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n"
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(slow)
        await asyncio.sleep(0.4)
        writer.write(b"body")
        assert b"200" in await reader.readuntil(b"\r\n\r\n")
        writer.close()

    play(test)


def test_a_connection_too_many_is_closed_and_makes_place_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 2)

    async def test(host: str, port: int, _: HttpServer) -> None:
        held = [await asyncio.open_connection(host, port) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert await said(host, port, GOOD) == b""
        held[0][1].close()
        await asyncio.sleep(0.1)
        assert await is_served(host, port)
        held[1][1].close()

    play(test)


def test_a_stop_answers_what_is_under_way() -> None:
    async def test(host: str, port: int, server: HttpServer) -> None:
        asked = asyncio.create_task(said(host, port, GOOD.replace(b"/ ", b"/slow ")))
        await asyncio.sleep(0.1)
        server.stop()
        assert b"it works" in await asked

    play(test)


def test_an_address_that_is_taken_is_named() -> None:
    async def test(host: str, port: int, _: HttpServer) -> None:
        with pytest.raises(ListenError, match=f"{port}"):
            await HttpServer(answering, print).run_at(f"{host}:{port}")

    play(test)


def test_an_address_of_ipv6_is_listened_at_and_shown() -> None:
    async def test(host: str, port: int, _: HttpServer) -> None:
        assert host == "::1"
        assert await is_served(host, port)

    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    play(test, "[::1]:0")
