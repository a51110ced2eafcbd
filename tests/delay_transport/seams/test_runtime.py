"""The production seams keep what their protocols say."""

import socket
import threading
import time
from functools import partial

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from delay_transport.seams import runtime
from delay_transport.seams.errors import AddressError, ListenError
from delay_transport.seams.runtime import (
    SystemClock,
    TcpNetwork,
    ThreadExecutor,
    format_address,
    parse_address,
    parse_peer_address,
)
from tests.odd_addresses import ODD_ADDRESSES, ODD_HOSTS

# Addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:20801", ("127.0.0.1", 20801)),
        ("delay-1.example.org:1", ("delay-1.example.org", 1)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:20801", ("::1", 20801)),
        ("[2001:db8::5]:65535", ("2001:db8::5", 65535)),
        ("[fe80::1%eth0]:80", ("fe80::1%eth0", 80)),
    ],
)
def test_an_address_is_read_and_written(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert format_address(address) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the port is missing"),
        ("localhost", "the port is missing"),
        ("[::1]", "the port is missing"),
        ("::1", "in brackets"),
        ("::1:20801", "in brackets"),
        ("http://a:80", "without http://"),
        ("http://a:80/", "without http://"),
        (":20801", "the host is missing"),
        ("host:", "port '' is not a number"),
        ("host:http", "port 'http' is not a number"),
        ("host:-1", "port '-1' is not a number"),
        ("host:٣", "port '٣' is not a number"),
        ("host:65536", "from 0 to 65535"),
        ("host:" + "9" * 5000, "from 0 to 65535"),
        ("[localhost]:80", "not an IPv6 address"),
        ("[::1:80", "in brackets"),
        ("[]:80", "not an IPv6 address"),
        ("a b:80", "not a host name"),
        ("tcp//host:80", "not a host name"),
    ],
)
def test_what_is_not_an_address_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_address(text)
    assert reason in caught.value.reason
    assert caught.value.text == text


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_an_address_error(text: str) -> None:
    try:
        address = parse_address(text)
    except AddressError:
        return
    assert parse_address(format_address(address)) == address


# Clock


def test_the_clocks_tell_the_machines_time_in_ms() -> None:
    clock = SystemClock()
    assert abs(clock.now_ms() - time.time() * 1000) < 1000
    boot_ms = clock.boot_ms()
    assert abs(boot_ms - time.clock_gettime(time.CLOCK_BOOTTIME) * 1000) < 1000
    assert clock.boot_ms() >= boot_ms
    assert clock.boot_id() == SystemClock().boot_id() != ""
    assert clock.synchronised() in {True, False}


# Network


@pytest.mark.parametrize("is_looked_at", [True, False])
async def test_whatever_is_wrong_with_an_address_its_peer_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, is_looked_at: bool
) -> None:
    hosts: tuple[str, ...] = ODD_HOSTS
    if not is_looked_at:
        # Then what resolvers and sockets make of it is all there is; those that a DNS server
        # would be asked for are left out.
        monkeypatch.setattr(runtime, "host_fault", lambda _: "")
        hosts = tuple(host for host in ODD_HOSTS if _fails_at_once(host))
        assert len(hosts) > 8
    for host in hosts:
        with pytest.raises(OSError, match="cannot connect to"):
            await TcpNetwork().connect(host, 5)
    for port in (-1, 0, 65536, 1 << 70):
        with pytest.raises(OSError, match="port"):
            await TcpNetwork().connect("127.0.0.1", port)


def _fails_at_once(host: str) -> bool:
    try:
        socket.getaddrinfo(host, 5, flags=socket.AI_NUMERICHOST)
    except OSError:
        return False
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("where", ODD_ADDRESSES, ids=range(len(ODD_ADDRESSES)))
def test_no_odd_address_is_one_of_a_peer(where: str) -> None:
    with pytest.raises(AddressError):
        parse_peer_address(where)


async def test_both_ends_of_a_connection_send_at_once_and_notice_dead_peers() -> None:
    network = TcpNetwork()
    async with (
        await network.listen("127.0.0.1", 0) as listener,
        await network.connect(*listener.address) as ours,
        await listener.accept() as theirs,
    ):
        for stream in (ours, theirs):
            assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


async def test_a_name_of_several_addresses_is_listened_on_by_ipv4() -> None:
    async with await TcpNetwork().listen("localhost", 0) as listener:
        assert listener.address[0] == "127.0.0.1"


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_ipv6_addresses_work() -> None:
    network = TcpNetwork()
    try:
        listener = await network.listen("::1", 0)
    except ListenError:
        pytest.skip("no IPv6 loopback here")
    async with (
        listener,
        await network.connect(*listener.address) as ours,
        await listener.accept() as theirs,
    ):
        await ours.send_all(b"x")
        assert await theirs.receive_some() == b"x"


async def test_an_unknown_host_is_an_address_error() -> None:
    with pytest.raises(AddressError, match="not an address"):
        await TcpNetwork().listen("256.256.256.256", 1)


# Executor


async def test_calls_of_one_lane_run_one_at_a_time_in_the_order_asked() -> None:
    executor = ThreadExecutor()
    ran: list[int] = []
    running = threading.Lock()
    go = threading.Event()

    def call(number: int) -> None:
        assert running.acquire(blocking=False), "two calls of one lane at a time"
        ran.append(number)
        running.release()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(executor.run, "log", go.wait, 10))
        await trio.testing.wait_all_tasks_blocked()
        for number in range(50):
            nursery.start_soon(executor.run, "log", call, number)
            # Tasks start in no particular order: have each ask before the next one does.
            await trio.testing.wait_all_tasks_blocked()
        assert ran == []
        go.set()
    assert ran == list(range(50))


async def test_lanes_do_not_wait_for_each_other() -> None:
    executor = ThreadExecutor()
    go = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(executor.run, "slow", go.wait, 10))
        await trio.testing.wait_all_tasks_blocked()
        assert await executor.run("quick", lambda: 7) == 7
        go.set()


async def test_results_and_exceptions_pass_through() -> None:
    executor = ThreadExecutor()

    def fail(reason: str) -> None:
        raise LookupError(reason)

    assert await executor.run("log", divmod, 7, 2) == (3, 1)
    with pytest.raises(LookupError, match="gone"):
        await executor.run("log", fail, "gone")
    assert await executor.run("log", len, "abc") == 3


async def test_a_cancelled_call_is_waited_for_and_one_not_begun_is_not_made() -> None:
    executor = ThreadExecutor()
    begun, go = threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> None:
        begun.set()
        go.wait(10)
        done.append("first")

    def second() -> None:
        done.append("second")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(executor.run, "log", first)
        await trio.to_thread.run_sync(begun.wait)
        nursery.start_soon(executor.run, "log", second)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        go.set()
    assert done == ["first"]
