"""The HTTP port over real sockets: its limits, its one protocol, and peers that take nothing."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from urllib.parse import quote

import msgspec
import pytest
import structlog
import trio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import delay_transport.http.server
from delay_transport.http.server import json_response, make_application, serve_application
from delay_transport.seams.runtime import parse_address

HEADER_BYTES_MAX = 4096


async def _hello(request: Request) -> Response:
    return PlainTextResponse(f"hello {len(await request.body())}")


async def _named(request: Request) -> Response:
    return json_response([request.path_params["name"], request.query_params.get("q")])


async def _faulty(_: Request) -> Response:
    raise ZeroDivisionError("of all things")


async def _much(_: Request) -> Response:
    return PlainTextResponse(b"x" * 50_000_000)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[str, int]]:
    """Serve on a free port; return where."""
    application = make_application(
        [
            Route("/hello", _hello, methods=["GET", "POST"]),
            Route("/much", _much),
            Route("/named/{name:path}", _named),
            Route("/number/{name:int}", _named),
            Route("/faulty", _faulty),
        ]
    )
    async with trio.open_nursery() as nursery:
        address = await nursery.start(
            lambda task_status: serve_application(
                application,
                "127.0.0.1:0",
                connections_max=10,
                header_bytes_max=HEADER_BYTES_MAX,
                task_status=task_status,
            )
        )
        yield parse_address(address)
        nursery.cancel_scope.cancel()


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    """Return what comes until the connection is closed, or reset."""
    answer = b""
    try:
        while data := await stream.receive_some():
            answer += data
    except trio.BrokenResourceError:
        pass
    return answer


def run(scenario: Callable[[tuple[str, int]], Coroutine[object, object, None]]) -> None:
    """Run a scenario against a server."""

    async def main() -> None:
        with trio.fail_after(20):
            async with serving() as address:
                await scenario(address)

    trio.run(main)


def request_of(size: int, *, filler: bytes = b"x", more: bytes = b"") -> bytes:
    """Return a request whose line and headers, and the empty line, have so many bytes."""
    head = b"GET /hello HTTP/1.1\r\nHost: x\r\n" + more + b"Connection: close\r\nX-Long: "
    tail = b"y\r\n\r\n"
    return head + filler * (size - len(head) - len(tail)) + tail


@pytest.mark.parametrize("filler", [b"x", b" "], ids=["value", "blanks"])
@pytest.mark.parametrize("piece", [100_000, 1000, 61])
@pytest.mark.parametrize(
    ("size", "code"),
    [
        (HEADER_BYTES_MAX, b"200"),
        (HEADER_BYTES_MAX + 1, b"431"),
        (2 * HEADER_BYTES_MAX, b"431"),
        (40_000, b"431"),
    ],
)
def test_headers_of_more_bytes_than_the_limit_are_answered_431_however_they_come(
    size: int, code: bytes, piece: int, filler: bytes
) -> None:
    async def scenario(address: tuple[str, int]) -> None:
        request = request_of(size, filler=filler)
        assert len(request) == size
        async with await trio.open_tcp_stream(*address) as stream:
            stream.setsockopt(6, 1, 1)  # TCP_NODELAY: pieces arrive as such
            answer = bytearray()

            async def read() -> None:
                answer.extend(await read_all(stream))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                try:
                    for start in range(0, size, piece):
                        await stream.send_all(request[start : start + piece])
                        await trio.lowlevel.checkpoint()
                except trio.BrokenResourceError:
                    assert code != b"200"
        # Of one that goes on sending the answer may be lost with the connection.
        assert answer.startswith(b"HTTP/1.1 " + code) or (code != b"200" and not answer)
        if piece >= size:
            assert answer

    run(scenario)


def test_a_body_is_no_header() -> None:
    async def scenario(address: tuple[str, int]) -> None:
        body = b"z" * 100_000
        async with await trio.open_tcp_stream(*address) as stream:
            head = f"POST /hello HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            for _ in range(3):
                # One after the other on one connection, the next one already there.
                await stream.send_all(head.encode() + b"\r\n" + body)
            await stream.send_all(head.encode() + b"Connection: close\r\n\r\n" + body)
            assert (await read_all(stream)).count(b"hello 100000") == 4

    run(scenario)


@pytest.mark.parametrize(
    ("request_", "first"),
    [
        (
            request_of(
                600,
                more=b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: \r\n",
            ),
            b"HTTP/1.1 200",
        ),
        (
            request_of(
                600,
                more=b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
            ),
            b"HTTP/1.1 200",
        ),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 100, b"HTTP/1.1 505"),
    ],
    ids=["h2c", "websocket", "prior knowledge"],
)
def test_no_other_protocol_is_spoken(request_: bytes, first: bytes) -> None:
    async def scenario(address: tuple[str, int]) -> None:
        async with await trio.open_tcp_stream(*address) as stream:
            await stream.send_all(request_)
            assert (await read_all(stream)).startswith(first)

    run(scenario)


def test_who_takes_no_answer_is_left_and_keeps_nobody_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delay_transport.http.server, "_SEND_S", 0.2)

    async def main() -> None:
        with trio.fail_after(20):
            async with serving() as address:
                stream = await trio.open_tcp_stream(*address)
                await stream.send_all(b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n")
                await trio.sleep(1)
                # Whatever was sent by then comes, and then the connection ends.
                assert len(await read_all(stream)) < 50_000_000
                await stream.aclose()
                deaf = await trio.open_tcp_stream(*address)
                await deaf.send_all(b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n")
                await trio.sleep(0.1)
        await deaf.aclose()

    trio.run(main)


def test_what_is_nearly_a_path_is_not_found_and_leads_nowhere() -> None:
    async def scenario(address: tuple[str, int]) -> None:
        async with await trio.open_tcp_stream(*address) as stream:
            await stream.send_all(
                b"GET /hello/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
            )
            answer = await read_all(stream)
        assert answer.startswith(b"HTTP/1.1 404")
        assert b"evil.example" not in answer

    run(scenario)


def answers_to(*targets: str) -> list[tuple[int, object]]:
    """Return status and JSON of the answers to requests for these targets, one after another."""
    found: list[tuple[int, object]] = []

    async def scenario(address: tuple[str, int]) -> None:
        for target in targets:
            line = f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            async with await trio.open_tcp_stream(*address) as stream:
                await stream.send_all(line.encode())
                head, _, body = (await read_all(stream)).partition(b"\r\n\r\n")
            value = msgspec.json.decode(body) if b"application/json" in head else None
            found.append((int(head.split()[1]), value))

    run(scenario)
    return found


@pytest.mark.parametrize("name", ["a", "\n", "\0\n", "a\nb", "a\n\n", "a/b/", "\r", "\u2028", "ä%"])
def test_names_in_paths_and_queries_come_through_exactly(name: str) -> None:
    escaped = quote(name, safe="")
    assert answers_to(f"/named/{escaped}?q={escaped}") == [(200, [name, name])]


def test_what_is_no_text_or_only_almost_a_path_is_refused() -> None:
    """Otherwise it would be taken for another name: a rule for it would be set."""
    codes = [
        code
        for code, _ in answers_to(
            "/named/%ff",
            "/named/a?q=%ff",
            "/named/%ed%a0%80",
            "/number/7%0a",
            "/hello%0a",
            "/number/7",
        )
    ]
    assert codes == [400, 400, 400, 404, 404, 200]


def test_a_bug_in_an_endpoint_is_logged_with_its_traceback_and_answered() -> None:
    with structlog.testing.capture_logs() as logged:
        [(code, answer)] = answers_to("/faulty?token=secret")
    assert (code, answer) == (
        500,
        {"error": {"code": "internal", "message": "an unforeseen error: the server's log has it"}},
    )
    [entry] = logged
    assert (entry["method"], entry["path"], entry["exc_info"]) == ("GET", "/faulty", True)
