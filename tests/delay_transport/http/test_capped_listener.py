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
from delay_transport.http.server import HEADER_BYTES_MAX
from delay_transport.seams.runtime import Address
from tests.delay_transport.http.rig import CONNECTIONS_MAX, answer_to, read_all, serving

WHOLE = b"GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
HALF = b"GET /hello HTTP/1.1\r\nHost: x\r\nX-Half: "


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
    monkeypatch.setattr(delay_transport.http.server, "_REQUEST_S", 0.5)
    async with serving() as address, flooding() as flood:
        began = trio.current_time()
        await flood.open(address, 2 * CONNECTIONS_MAX, said)
        assert (await answer_to(address, WHOLE)).endswith(b"hello 0")
        assert 0.8 < trio.current_time() - began < 5


async def test_where_all_are_being_answered_one_more_waits_and_the_log_says_so_once() -> None:
    release = trio.Event()

    async def slow(_: Request) -> Response:
        await release.wait()
        return PlainTextResponse("at last")

    with structlog.testing.capture_logs() as lines:
        async with serving(Route("/slow", slow)) as address, flooding() as flood:
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
    async with serving() as address:
        began = trio.current_time()
        async with await trio.open_tcp_stream(*address) as stream:
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(said)
                while True:
                    await stream.send_all(b"x")
                    await trio.sleep(0.05)
        assert 0.35 < trio.current_time() - began < 4


@pytest.mark.parametrize("size", [1, 7])
async def test_headers_may_come_in_any_pieces(size: int) -> None:
    async with serving() as address:
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
    async with serving() as address:
        began = trio.current_time()
        assert (await answer_to(address, said, ends=ends)).startswith(b"HTTP/1.1 " + code)
        assert trio.current_time() - began < 2


@pytest.mark.parametrize(
    ("is_reset", "seconds_max"),
    [(False, 2), pytest.param(True, 10, marks=pytest.mark.long)],
    ids=["closes", "resets"],
)
async def test_whoever_is_gone_keeps_no_place(is_reset: bool, seconds_max: float) -> None:
    async with serving() as address:
        for said in (b"", HALF, WHOLE):
            for _ in range(3 * CONNECTIONS_MAX):
                async with await trio.open_tcp_stream(*address) as stream:
                    if is_reset:
                        # SO_LINGER of 0 s: the end is a reset.
                        stream.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")
                    await stream.send_all(said)
            with trio.fail_after(seconds_max):
                assert (await answer_to(address, WHOLE)).endswith(b"hello 0")
