"""The HTTP port over real sockets: its limits, its protocols, and peers that take nothing."""

from urllib.parse import quote

import h2.connection
import h2.events
import msgspec
import pytest
import structlog
import trio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from trio.testing import wait_all_tasks_blocked

import delay_transport.http.server
from delay_transport.http.problems import Problem
from delay_transport.http.server import (
    HEADER_BYTES_MAX,
    _Connection,
    json_response,
    make_application,
    serve_application,
)
from delay_transport.seams.errors import ListenError
from tests.delay_transport.http.rig import CONNECTIONS_MAX, answer_to, read_all, serving


async def _named(request: Request) -> Response:
    return json_response([request.path_params["name"], request.query_params.get("q")])


async def _faulty(_: Request) -> Response:
    raise ZeroDivisionError("of all things")


async def _much(_: Request) -> Response:
    return PlainTextResponse(b"x" * 50_000_000)


def request_of(size: int, *, filler: bytes = b"x") -> bytes:
    """Return a request whose line and headers, and the empty line, have so many bytes."""
    head = b"GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Long: "
    tail = b"y\r\n\r\n"
    return head + filler * (size - len(head) - len(tail)) + tail


@pytest.mark.parametrize("filler", [b"x", b" "], ids=["value", "blanks"])
@pytest.mark.parametrize("piece", [1000, 61])
@pytest.mark.parametrize(
    ("size", "code"),
    [(HEADER_BYTES_MAX, b"200"), (2 * HEADER_BYTES_MAX, b"431"), (160_000, b"431")],
)
async def test_headers_that_grow_beyond_the_limit_are_answered_431(
    size: int, code: bytes, piece: int, filler: bytes
) -> None:
    async with serving() as address:
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
                        await trio.sleep(0.001)
                except trio.BrokenResourceError:
                    assert code != b"200"
        # Of one that goes on sending the answer may be lost with the connection.
        assert answer.startswith(b"HTTP/1.1 " + code) or (code != b"200" and not answer)


async def test_a_body_is_no_header() -> None:
    async with serving() as address:
        body = b"z" * 100_000
        async with await trio.open_tcp_stream(*address) as stream:
            head = f"POST /hello HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            for _ in range(3):
                # One after the other on one connection, the next one already there.
                await stream.send_all(head.encode() + b"\r\n" + body)
            await stream.send_all(head.encode() + b"Connection: close\r\n\r\n" + body)
            assert (await read_all(stream)).count(b"hello 100000") == 4


async def test_a_wish_for_a_websocket_is_refused() -> None:
    async with serving() as address, await trio.open_tcp_stream(*address) as stream:
        await stream.send_all(
            b"GET /hello HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 403")


async def test_http_2_is_answered_as_http_1_1_is() -> None:
    async with serving() as address:
        peer = h2.connection.H2Connection()
        peer.initiate_connection()
        fields = [(":method", "GET"), (":path", "/hello"), (":scheme", "http")]
        peer.send_headers(1, [*fields, (":authority", "x")], end_stream=True)
        body = b""
        async with await trio.open_tcp_stream(*address) as stream:
            await stream.send_all(peer.data_to_send())
            while b"hello" not in body:
                for event in peer.receive_data(bytes(await stream.receive_some())):
                    if isinstance(event, h2.events.DataReceived):
                        body += event.data
        assert body == b"hello 0"


@pytest.mark.parametrize(
    "noise",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
        b"PRI * HTTP/2.0\r\n\r\nnonsense",
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nHTTP2-Settings: \xff\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\0\0",
    ],
)
async def test_noise_behind_another_protocol_ends_its_connection_and_no_other(
    noise: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay_transport.http.server, "_REQUEST_S", 0.5)

    async with serving() as address:
        # More than the cap: each gives its place back.
        for _ in range(CONNECTIONS_MAX + 1):
            await answer_to(address, noise, ends=True)
        monkeypatch.undo()
        assert (await answer_to(address, request_of(600))).startswith(b"HTTP/1.1 200")


async def test_who_takes_no_answer_is_left_and_keeps_nobody_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delay_transport.http.server, "_REQUEST_S", 0.2)

    async with serving(Route("/much", _much)) as address:
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


async def test_who_sends_while_the_end_is_sent_finds_the_connection_closed() -> None:
    left, right = trio.socket.socketpair()
    stream = trio.SocketStream(left)
    with right:
        async with stream, trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, bytes(10_000_000))
            await wait_all_tasks_blocked()
            with pytest.raises(trio.ClosedResourceError):
                await _Connection(stream, trio.CancelScope()).send_all(b"refused")
            nursery.cancel_scope.cancel()


async def test_what_is_nearly_a_path_is_not_found_and_leads_nowhere() -> None:
    async with serving() as address:
        answer = await answer_to(
            address, b"GET /hello/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 404")
        assert b"evil.example" not in answer


async def answers_to(*targets: str) -> list[tuple[int, object]]:
    """Return status and JSON of the answers to requests for these targets, one after another."""
    found: list[tuple[int, object]] = []
    routes = (
        Route("/named/{name:path}", _named),
        Route("/number/{name:int}", _named),
        Route("/faulty", _faulty),
    )
    async with serving(*routes) as address:
        for target in targets:
            line = f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            head, _, body = (await answer_to(address, line.encode())).partition(b"\r\n\r\n")
            value = msgspec.json.decode(body) if b"json" in head else None
            found.append((int(head.split()[1]), value))
    return found


@pytest.mark.parametrize("name", ["a", "\n", "\0\n", "a\nb", "a\n\n", "a/b/", "\r", "\u2028", "ä%"])
async def test_names_in_paths_and_queries_come_through_exactly(name: str) -> None:
    escaped = quote(name, safe="")
    assert await answers_to(f"/named/{escaped}?q={escaped}") == [(200, [name, name])]


async def test_what_is_no_text_or_only_almost_a_path_is_refused() -> None:
    """Otherwise it would be taken for another name: a rule for it would be set."""
    codes = [
        code
        for code, _ in await answers_to(
            "/named/%ff",
            "/named/a?q=%ff",
            "/named/%ed%a0%80",
            "/number/7%0a",
            "/hello%0a",
            "/number/7",
        )
    ]
    assert codes == [400, 400, 400, 404, 404, 200]


async def test_a_bug_in_an_endpoint_is_logged_with_its_traceback_and_answered() -> None:
    with structlog.testing.capture_logs() as logged:
        [(code, answer)] = await answers_to("/faulty?token=secret")
    problem = Problem(
        status=500, code="internal", detail="an unexpected error: see the server's log"
    )
    assert (code, msgspec.convert(answer, Problem)) == (500, problem)
    [entry] = logged
    assert (entry["method"], entry["path"], entry["exc_info"]) == ("GET", "/faulty", True)


async def test_an_address_that_is_taken_is_a_typed_error() -> None:
    async with serving() as (host, port):
        with pytest.raises(ListenError, match=f"{host}:{port}"):
            await serve_application(
                make_application([], document=""), f"{host}:{port}", connections_max=1
            )
