"""Half requests keep nobody from being answered; what is no request is answered, or over soon."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import delay_transport.http.server
from delay_transport.http.server import make_application, serve_application
from delay_transport.seams.runtime import parse_address

CONNECTIONS_MAX = 10
HEADER_BYTES_MAX = 4096
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
                    header_bytes_max=HEADER_BYTES_MAX,
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
async def test_a_whole_request_is_answered_however_many_others_have_half_ones(said: bytes) -> None:
    async with serving() as (address, _), flooding() as flood:
        for _ in range(10):
            await flood.open(address, CONNECTIONS_MAX, said)
            assert (await answer_to(address, WHOLE)).endswith(b"hello 0")
        # Those that came first are over, for want of room and not of time.
        with trio.fail_after(2):
            for stream in flood.streams[: 5 * CONNECTIONS_MAX]:
                await read_all(stream)


async def test_an_answer_that_is_waited_for_is_given_whoever_comes() -> None:
    async with (
        serving() as (address, release),
        flooding() as flood,
        await trio.open_tcp_stream(*address) as waiting,
    ):
        await waiting.send_all(WHOLE.replace(b"/hello", b"/slow"))
        await trio.sleep(0.1)
        await flood.open(address, 3 * CONNECTIONS_MAX, HALF)
        release.set()
        assert (await read_all(waiting)).endswith(b"at last")


async def test_a_flood_takes_the_place_of_its_own() -> None:
    async with (
        serving() as (address, _),
        flooding() as flood,
        await trio.open_tcp_stream(*address) as slow,
    ):
        await slow.send_all(WHOLE[:20])
        for _ in range(3):
            await flood.open(address, CONNECTIONS_MAX, HALF, source="127.0.0.2")
            await trio.sleep(0.05)
        await slow.send_all(WHOLE[20:])
        assert (await read_all(slow)).endswith(b"hello 0")


async def test_where_all_are_being_answered_one_more_is_closed_and_room_is_given_back() -> None:
    async with serving() as (address, release), flooding() as flood:
        await flood.open(address, CONNECTIONS_MAX, WHOLE.replace(b"/hello", b"/slow"))
        await trio.sleep(0.2)
        assert await answer_to(address, WHOLE) == b""
        release.set()
        for stream in flood.streams:
            assert (await read_all(stream)).endswith(b"at last")
        assert (await answer_to(address, WHOLE)).endswith(b"hello 0")


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
