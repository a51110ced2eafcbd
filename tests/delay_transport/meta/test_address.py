"""A meta server is found over HTTP, whatever else answers, or the reason is said, in time."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from delay_transport.meta.address import (
    MetaAddressError,
    MetaLocator,
)
from delay_transport.seams.errors import TransportError
from delay_transport.seams.runtime import Address
from tests.delay_transport.peers import Pair, StreamNetwork

ONE: Address = ("meta1.test", 8080)
TWO: Address = ("meta2.test", 8080)
NOBODY: Address = ("gone.test", 8080)

Answer = Callable[[trio.abc.Stream], Awaitable[None]]


def ok(body: bytes, *, status: bytes = b"200 OK") -> bytes:
    """Return an answer with a length."""
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


async def asked(stream: trio.abc.Stream) -> bytes:
    """Return the request of one connection."""
    request = b""
    while b"\r\n\r\n" not in request:
        request += await stream.receive_some()
    return request


def saying(answer: bytes, *, size: int = 1 << 20, pause_s: float = 0.0) -> Answer:
    """Answer these bytes, so many at a time, and close."""

    async def say(stream: trio.abc.Stream) -> None:
        await asked(stream)
        for start in range(0, len(answer), size):
            await trio.sleep(pause_s)
            await stream.send_all(answer[start : start + size])
        await stream.aclose()

    return say


async def silence(stream: trio.abc.Stream) -> None:
    await asked(stream)
    await trio.sleep_forever()


async def close_at_once(stream: trio.abc.Stream) -> None:
    await stream.aclose()


@asynccontextmanager
async def network_of(**answers: Answer) -> AsyncIterator[StreamNetwork]:
    """Have meta1.test and meta2.test answer on their HTTP ports."""
    network = StreamNetwork()
    async with trio.open_nursery() as nursery:
        for name, answer in answers.items():
            listener = await network.listen(f"{name}.test", 8080)
            nursery.start_soon(trio.serve_listeners, answer, [listener])
        yield network
        nursery.cancel_scope.cancel()


async def test_it_asks_as_a_browser_would_and_takes_the_address() -> None:
    requests = []

    async def answer(stream: trio.abc.Stream) -> None:
        requests.append(await asked(stream))
        await stream.send_all(ok(b"10.0.0.5:20880"))

    async with network_of(meta1=answer) as network:
        assert await MetaLocator(network, [ONE]).locate() == ("10.0.0.5", 20880)
    lines = requests[0].decode().lower().split("\r\n")
    assert lines[0] == "get /meta/address http/1.1"
    assert "host: meta1.test:8080" in lines
    assert "connection: close" in lines


@pytest.mark.parametrize(
    ("answer", "address"),
    [
        (ok(b" 10.0.0.5:20880\r\n"), ("10.0.0.5", 20880)),
        (ok(b"[::1]:20880"), ("::1", 20880)),
        (b"HTTP/1.1 200 OK\r\n\r\n10.0.0.5:1", ("10.0.0.5", 1)),
        (b"HTTP/1.0 200 OK\r\n\r\n10.0.0.5:1", ("10.0.0.5", 1)),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nh:\r\n1\r\n1\r\n0\r\n\r\n",
            ("h", 1),
        ),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" + ok(b"10.0.0.5:20880"), ("10.0.0.5", 20880)),
    ],
    ids=["blanks", "IPv6", "until the end", "HTTP/1.0", "chunked", "informational"],
)
@pytest.mark.parametrize("size", [1, 1 << 20], ids=["byte by byte", "at once"])
async def test_every_form_of_answer_is_read(answer: bytes, address: Address, size: int) -> None:
    async with network_of(meta1=saying(answer, size=size)) as network:
        assert await MetaLocator(network, [ONE]).locate() == address


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (saying(ok(b"not ready", status=b"503 Service Unavailable")), "status 503"),
        (saying(ok(b"", status=b"302 Found")), "status 302"),
        (saying(ok(b"10.0.0.5")), "not an address"),
        (saying(ok(b"")), "not an address"),
        (saying(ok("мета:1".encode())), "not an address"),
        (saying(ok(b"10.0.0.5:0")), "not an address"),
        (saying(ok(b"<html>" * 1000)), "not an address"),
        (saying(ok(b"x" * 20_000)), "more than 16384 bytes"),
        (saying(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 20_000), "more than 16384 bytes"),
        (saying(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000), "more than 16384 bytes"),
        (saying(ok(b"10.0.0.5:20880")[:-4]), "the answer is not HTTP"),
        (saying(b"\x00\x00\x00\x14\x00\x12\xde\xc1\x0a\xde"), "the answer is not HTTP"),
        (saying(b""), "closed without an answer"),
        (close_at_once, "closed without an answer"),
        (silence, "no answer within 2 s"),
        (saying(ok(b"10.0.0.5:20880"), size=1, pause_s=0.1), "no answer within 2 s"),
    ],
)
async def test_what_is_no_answer_is_said(answer: Answer, reason: str) -> None:
    began = trio.current_time()
    async with network_of(meta1=answer) as network:
        with pytest.raises(MetaAddressError) as caught:
            await MetaLocator(network, [ONE]).locate()
    [(address, said)] = caught.value.reasons
    assert address == ONE
    assert reason in said
    assert isinstance(caught.value, TransportError)
    assert trio.current_time() - began < 2.5


async def test_a_port_that_takes_no_connection_costs_a_second() -> None:
    class Hanging(StreamNetwork):
        async def connect(self, host: str, port: int) -> trio.abc.Stream:  # noqa: ARG002
            await trio.sleep_forever()
            raise AssertionError

    began = trio.current_time()
    with pytest.raises(MetaAddressError, match="no connection within 1 s"):
        await MetaLocator(Hanging(), [ONE]).locate()
    assert trio.current_time() - began == pytest.approx(1)


async def test_a_connection_that_is_reset_is_said() -> None:
    def breaking_pair() -> Pair:
        ours, theirs = trio.testing.memory_stream_pair()

        async def reset() -> None:
            await trio.lowlevel.checkpoint()
            raise trio.BrokenResourceError from ConnectionResetError("reset by peer")

        ours.receive_stream.receive_some_hook = reset
        return ours, theirs

    network = StreamNetwork(breaking_pair)
    await network.listen(*ONE)
    with pytest.raises(MetaAddressError, match="connection lost: reset by peer"):
        await MetaLocator(network, [ONE]).locate()


async def test_each_address_is_asked_in_turn_and_all_reasons_are_told() -> None:
    async with network_of(meta1=silence, meta2=saying(ok(b"10.0.0.6:20880"))) as network:
        assert await MetaLocator(network, [NOBODY, ONE, TWO]).locate() == ("10.0.0.6", 20880)
        with pytest.raises(MetaAddressError) as caught:
            await MetaLocator(network, [NOBODY, ONE]).locate()
        assert [address for address, _ in caught.value.reasons] == [NOBODY, ONE]
        assert "gone.test:8080: nobody listens" in str(caught.value)
        assert "meta1.test:8080: no answer" in str(caught.value)


async def test_who_asks_again_is_told_by_the_next_server_first() -> None:
    async with network_of(
        meta1=saying(ok(b"10.0.0.5:1")), meta2=saying(ok(b"10.0.0.6:2"))
    ) as network:
        locator = MetaLocator(network, [ONE, NOBODY, TWO])
        told = [await locator.locate() for _ in range(4)]
        assert told == [("10.0.0.5", 1), ("10.0.0.6", 2)] * 2


def test_nobody_to_ask_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one HTTP address"):
        MetaLocator(StreamNetwork(), [])
