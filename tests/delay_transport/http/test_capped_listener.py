"""At the cap accepting pauses and goes on; what is no request is answered, or over soon."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import structlog
import trio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import delay_transport.http.server
from delay_transport.http.server import HEADER_BYTES_MAX, make_application, serve_application
from delay_transport.seams.runtime import parse_address

CONNECTIONS_MAX = 10
WHOLE = b"GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
HALF = b"GET /hello HTTP/1.1\r\nHost: x\r\nX-Half: "
Address = tuple[str, int]


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Address, trio.Event]]:
    """Serve on a free port; return where, and what slow answers wait for."""
    release = trio.Event()

    async def hello(request: Request) -> Response:
        return PlainTextResponse(f"hello {len(await request.body())}")

    async def slow(_: Request) -> Response:
        await release.wait()
        return PlainTextResponse("at last")

    routes = [Route("/hello", hello, methods=["GET", "POST"]), Route("/slow", slow)]
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(
                lambda task_status: serve_application(
                    make_application(routes),
                    "127.0.0.1:0",
                    connections_max=CONNECTIONS_MAX,
                    task_status=task_status,
                )
            )
            yield parse_address(address), release
            nursery.cancel_scope.cancel()


class Flood:
    """Connections that say something and no more."""

    def __init__(self) -> None:
        self.streams: list[trio.SocketStream] = []

    async def open(self, address: Address, count: int, said: bytes, source: str = "") -> None:
        for _ in range(count):
            stream = await trio.open_tcp_stream(*address, local_address=source or None)
            self.streams.append(stream)
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(said)

    async def aclose(self) -> None:
        for stream in self.streams:
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def flooding() -> AsyncIterator[Flood]:
    flood = Flood()
    try:
        yield flood
    finally:
        await flood.aclose()


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    """Return what comes until the connection is closed, or reset."""
    answer = b""
    with contextlib.suppress(trio.BrokenResourceError):
        while data := await stream.receive_some():
            answer += data
    return answer


async def answer_to(address: Address, *parts: bytes, ends: bool = False) -> bytes:
    async with await trio.open_tcp_stream(*address) as stream:
        for part in parts:
            await stream.send_all(part)
            await trio.sleep(0.002 if len(parts) > 1 else 0)
        if ends:
            await stream.send_eof()
        return await read_all(stream)


@pytest.mark.parametrize(
    "said",
    [
        HALF,
        b"",
        WHOLE.replace(b"close", b"keep-alive"),
        b"POST /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf",
    ],
    ids=["half a header", "nothing", "one request and no further", "half a body"],
)
async def test_at_the_cap_a_request_waits_until_a_time_out_gives_it_a_place(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay_transport.http.server, "_IDLE_S", 0.5)
    monkeypatch.setattr(delay_transport.http.server, "_READ_S", 0.5)
    async with serving() as (address, _), flooding() as flood:
        await flood.open(address, 2 * CONNECTIONS_MAX, said)
        began = trio.current_time()
        assert (await answer_to(address, WHOLE)).endswith(b"hello 0")
        assert 0.8 < trio.current_time() - began < 5


async def test_below_the_cap_half_requests_keep_nobody_waiting() -> None:
    async with serving() as (address, _), flooding() as flood:
        await flood.open(address, CONNECTIONS_MAX - 1, HALF)
        began = trio.current_time()
        assert (await answer_to(address, WHOLE)).endswith(b"hello 0")
        assert trio.current_time() - began < 3


async def test_where_all_are_being_answered_one_more_waits_and_the_log_says_so_once() -> None:
    with structlog.testing.capture_logs() as lines:
        async with serving() as (address, release), flooding() as flood:
            await flood.open(address, 2 * CONNECTIONS_MAX, WHOLE.replace(b"/hello", b"/slow"))
            with trio.move_on_after(0.5):
                await answer_to(address, WHOLE)
                raise AssertionError("it was answered beyond the cap")
            release.set()
            for stream in flood.streams:
                assert (await read_all(stream)).endswith(b"at last")
            assert (await answer_to(address, WHOLE)).endswith(b"hello 0")
    told = [line for line in lines if "limit" in line["event"]]
    assert [line["connections_max"] for line in told] == [CONNECTIONS_MAX]


@pytest.mark.parametrize(
    "said",
    [HALF, b"POST /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"],
    ids=["headers", "body"],
)
async def test_a_trickle_of_bytes_does_not_hold_a_connection(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay_transport.http.server, "_IDLE_S", 0.4)
    monkeypatch.setattr(delay_transport.http.server, "_REQUEST_S", 0.6)
    async with serving() as (address, _):
        began = trio.current_time()
        async with await trio.open_tcp_stream(*address) as stream:
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(said)
                while True:
                    await stream.send_all(b"x")
                    await trio.sleep(0.05)
        assert 0.35 < trio.current_time() - began < 4


async def test_half_a_header_is_over_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay_transport.http.server, "_IDLE_S", 0.3)
    async with serving() as (address, _):
        began = trio.current_time()
        assert await answer_to(address, HALF) == b""
        assert 0.25 < trio.current_time() - began < 3


@pytest.mark.parametrize("size", [1, 7])
async def test_headers_may_come_in_any_pieces(size: int) -> None:
    async with serving() as (address, _):
        for request in (WHOLE, WHOLE.replace(b"\r\n", b"\n")):
            pieces = [request[i : i + size] for i in range(0, len(request), size)]
            assert (await answer_to(address, *pieces)).endswith(b"hello 0")


@pytest.mark.parametrize(
    ("said", "ends", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01", False, b"400"),
        (HALF, True, b"400"),
        (b"\0\0\0\x1f\0\x12\xde\xc1", False, b"400"),
        (b"no request\r\n\r\n", False, b"400"),
        (b"x" * (HEADER_BYTES_MAX + 1), False, b"431"),
    ],
    ids=["TLS", "an end", "a frame", "other words", "no end"],
)
async def test_what_is_no_request_is_told_so_at_once(said: bytes, ends: bool, code: bytes) -> None:
    async with serving() as (address, _):
        began = trio.current_time()
        assert (await answer_to(address, said, ends=ends)).startswith(b"HTTP/1.1 " + code)
        assert trio.current_time() - began < 2


async def test_whoever_resets_leaves_nothing_behind() -> None:
    async with serving() as (address, _):
        for said in (b"", HALF, WHOLE):
            for _ in range(3 * CONNECTIONS_MAX):
                stream = await trio.open_tcp_stream(*address)
                # SO_LINGER of 0 s: the end is a reset.
                stream.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")
                await stream.send_all(said) if said else None
                await trio.aclose_forcefully(stream)
        assert (await answer_to(address, WHOLE)).endswith(b"hello 0")


async def test_connections_that_their_peers_have_closed_keep_no_places() -> None:
    async with serving() as (address, _):
        for said in (b"", HALF):
            for _ in range(3 * CONNECTIONS_MAX):
                async with await trio.open_tcp_stream(*address) as stream:
                    if said:
                        await stream.send_all(said)
            with trio.fail_after(2):
                assert (await answer_to(address, WHOLE)).startswith(b"HTTP/1.1 200")
