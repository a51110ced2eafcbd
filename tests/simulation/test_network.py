"""Bytes arrive in their order or not at all; buffers are bounded; a cut node falls silent."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from delay_transport.seams.errors import ListenError
from tests.simulation.determinism import derive, run_deterministic
from tests.simulation.faults import Kill, PowerCut
from tests.simulation.network import NetworkPlan, NodeNetwork, SimNetwork, SimStream

SEEDS = range(20)
STEADY = NetworkPlan(delay_s=(0.01, 0.01), slow_chance=0, fragment_chance=0)


async def joined(
    network: SimNetwork, port: int = 7
) -> tuple[SimStream, SimStream, NodeNetwork, NodeNetwork]:
    """Return both ends of a connection between a client and a server node, and their networks."""
    client, server = network.node("client"), network.node("server")
    listener = await server.listen("10.0.0.1", port)
    near = await client.connect("10.0.0.1", port)
    return near, await listener.accept(), client, server


def run_joined(
    program: Callable[[SimStream, SimStream, SimNetwork], Awaitable[None]],
    *,
    plan: NetworkPlan = STEADY,
    seed: int = 1,
) -> None:
    """Run a program on both ends of a new connection."""

    async def main() -> None:
        network = SimNetwork(derive(seed, "network"), plan=plan)
        near, far, _, _ = await joined(network)
        await program(near, far, network)

    run_deterministic(seed, main, limit_s=86_400)


async def receive_all(stream: trio.abc.ReceiveStream, max_bytes: int | None = None) -> bytes:
    received = b""
    while data := await stream.receive_some(max_bytes):
        received += data
    return received


def test_bytes_arrive_in_order_in_both_directions_whatever_the_pieces() -> None:
    sizes: set[int] = set()

    async def program(near: SimStream, far: SimStream, network: SimNetwork) -> None:
        payload = network.chance.randbytes(300_000)

        async def send(stream: SimStream) -> None:
            start = 0
            while start < len(payload):
                end = start + network.chance.randint(1, 5000)
                await stream.send_all(memoryview(payload)[start:end])
                start = end
                await trio.sleep(network.chance.choice([0, 0, 0.001]))
            await stream.send_eof()

        async def receive(stream: SimStream) -> None:
            received = b""
            while data := await stream.receive_some(network.chance.choice([None, 1, 1000])):
                received += data
                sizes.add(len(data))
            assert received == payload
            assert await stream.receive_some() == b""

        async with trio.open_nursery() as nursery:
            for stream in (near, far):
                nursery.start_soon(send, stream)
                nursery.start_soon(receive, stream)

    for seed in SEEDS:
        run_joined(program, plan=NetworkPlan(), seed=seed)
    assert len(sizes) > 100


def test_a_sender_waits_while_the_receivers_buffer_is_full() -> None:
    plan = NetworkPlan(delay_s=(0.01, 0.01), slow_chance=0, buffer_bytes=1000)

    async def program(near: SimStream, far: SimStream, _network: SimNetwork) -> None:
        with trio.move_on_after(100) as scope:
            await near.send_all(b"x" * 1001)
        assert scope.cancelled_caught
        with trio.move_on_after(100) as scope:
            await near.wait_send_all_might_not_block()
        assert scope.cancelled_caught
        assert len(await far.receive_some()) == 1000
        await near.wait_send_all_might_not_block()
        with trio.fail_after(1):
            await near.send_all(b"y" * 1000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.send_all, b"z" * 5000)
            received = b""
            while len(received) < 6000:
                received += await far.receive_some(300)
        assert received == b"y" * 1000 + b"z" * 5000

    run_joined(program, plan=plan)


def test_closing_is_seen_after_the_last_bytes_and_sends_to_it_break() -> None:
    async def program(near: SimStream, far: SimStream, _network: SimNetwork) -> None:
        await near.send_all(b"last")
        await near.aclose()
        assert await receive_all(far) == b"last"
        with pytest.raises(trio.ClosedResourceError):
            await near.receive_some()
        with pytest.raises(trio.ClosedResourceError):
            await near.send_all(b"x")
        await far.send_all(b"nobody reads this")  # the reset comes back later
        await trio.sleep(1)
        with pytest.raises(trio.BrokenResourceError):
            await far.send_all(b"x")
        with pytest.raises(trio.BrokenResourceError):
            await far.receive_some()

    run_joined(program)


def test_tasks_blocked_on_a_stream_hear_of_its_closing() -> None:
    async def program(near: SimStream, _far: SimStream, network: SimNetwork) -> None:
        async def receive() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await near.receive_some()

        async def send() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await near.send_all(bytes(network.plan.buffer_bytes + 1))

        async with trio.open_nursery() as nursery:
            for task in (receive, send):
                nursery.start_soon(task)
            await trio.sleep(1)
            with pytest.raises(trio.BusyResourceError):
                await near.receive_some()
            with pytest.raises(trio.BusyResourceError):
                await near.send_all(b"x")
            await near.aclose()

    run_joined(program)


def test_resets_break_both_ends() -> None:
    async def program(near: SimStream, far: SimStream, network: SimNetwork) -> None:
        assert network.reset_any()
        for stream in (near, far):
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
            with pytest.raises(trio.BrokenResourceError):
                await stream.send_all(b"x")
            await stream.aclose()
        assert not network.reset_any()

    run_joined(program)
    run_joined(program, plan=NetworkPlan(reset_chance=1))


def test_addresses_are_listened_on_once_and_refused_where_nobody_listens() -> None:
    async def main() -> None:
        network = SimNetwork(derive(1, "network"), plan=STEADY)
        node = network.node("node")
        listener = await node.listen("10.0.0.1", 0)
        host, port = listener.address
        assert port > 0
        with pytest.raises(ListenError):
            await node.listen(host, port)
        with pytest.raises(ConnectionRefusedError):
            await node.connect("10.0.0.1", 1)
        waiting = await node.connect(host, port)
        async with trio.open_nursery() as nursery:

            async def accept() -> None:
                first = await listener.accept()
                assert first.peer is waiting
                assert waiting.peer_name == f"10.0.0.1:{port}"
                with pytest.raises(trio.ClosedResourceError):
                    await listener.accept()

            nursery.start_soon(accept)
            await trio.sleep(1)
            await listener.aclose()
        with pytest.raises(ConnectionRefusedError):
            await node.connect(host, port)
        again = await node.listen(host, port)
        unaccepted = await node.connect(host, port)
        await again.aclose()
        with pytest.raises(trio.BrokenResourceError):
            await unaccepted.receive_some()
        await node.listen("0.0.0.0", 9)  # noqa: S104 (nothing is bound)
        await node.connect("10.9.9.9", 9)

    run_deterministic(1, main, limit_s=1000)


def test_a_full_backlog_lets_connecting_hang_until_one_is_accepted() -> None:
    async def main() -> None:
        plan = NetworkPlan(backlog=1, slow_chance=0)
        network = SimNetwork(derive(1, "network"), plan=plan)
        node = network.node("node")
        listener = await node.listen("h", 1)
        await node.connect("h", 1)
        with pytest.raises(TimeoutError):
            await node.connect("h", 1)
        assert 127 <= trio.current_time() < 130
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.connect, "h", 1)
            await trio.sleep(5)
            await listener.accept()

    run_deterministic(1, main, limit_s=1000)


def test_after_a_kill_peers_get_what_was_sent_and_the_end() -> None:
    async def program(near: SimStream, far: SimStream, network: SimNetwork) -> None:
        await far.send_all(b"sent before")
        network.cut("server", Kill("gone"))
        assert await receive_all(near) == b"sent before"
        for attempt in (far.receive_some, far.send_eof, far.wait_send_all_might_not_block):
            with pytest.raises(Kill):
                await attempt()
        with pytest.raises(Kill):
            await far.send_all(b"x")
        with pytest.raises(ConnectionRefusedError):
            await near.owner.connect("10.0.0.1", 7)
        revived = network.node("server")
        await revived.listen("10.0.0.1", 7)
        await near.owner.connect("10.0.0.1", 7)
        await far.aclose()

    run_joined(program)


def test_after_a_power_cut_peers_hear_nothing_until_they_time_out() -> None:
    async def program(near: SimStream, far: SimStream, network: SimNetwork) -> None:
        start = trio.current_time()
        network.cut("server", PowerCut("gone"))
        await near.send_all(b"into the void")
        with pytest.raises(trio.BrokenResourceError):
            await near.receive_some()
        assert trio.current_time() == start + 30
        with pytest.raises(trio.BrokenResourceError):
            await near.send_all(b"x")
        with pytest.raises(PowerCut):
            await far.receive_some()
        with pytest.raises(TimeoutError):
            await near.owner.connect("10.0.0.1", 7)

    run_joined(program)


def test_what_was_under_way_at_a_power_cut_arrives_or_not_by_chance() -> None:
    seen: set[int] = set()

    async def program(near: SimStream, far: SimStream, network: SimNetwork) -> None:
        for _ in range(4):
            await far.send_all(b"x")
        network.cut("server", PowerCut("gone"))
        received = 0
        try:
            while True:
                received += len(await near.receive_some())
        except trio.BrokenResourceError:
            seen.add(received)

    for seed in range(50):
        run_joined(program, seed=seed)
    assert seen == {0, 1, 2, 3, 4}


def test_a_blocked_direction_stalls_and_goes_on_when_healed() -> None:
    async def program(near: SimStream, far: SimStream, network: SimNetwork) -> None:
        await near.send_all(b"a")
        network.block("client", "server")
        await near.send_all(b"b")
        await far.send_all(b"back")
        assert await near.receive_some() == b"back"
        with trio.move_on_after(10):
            await far.receive_some()
            raise AssertionError("nothing may arrive")
        with trio.move_on_after(5) as scope:
            await near.owner.connect("10.0.0.1", 7)
        assert scope.cancelled_caught
        network.heal()
        assert await far.receive_some(1) == b"a"
        assert await far.receive_some(1) == b"b"
        await trio.sleep(100)
        await near.send_all(b"c")
        assert await far.receive_some() == b"c"

    run_joined(program)


def test_a_block_that_lasts_breaks_connections() -> None:
    async def program(near: SimStream, far: SimStream, network: SimNetwork) -> None:
        network.block("server", "client")
        start = trio.current_time()
        for stream in (near, far):
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
            assert trio.current_time() == start + 30
        network.heal()
        with pytest.raises(trio.BrokenResourceError):
            await near.send_all(b"x")

    run_joined(program)


def test_a_node_has_one_life_at_a_time() -> None:
    network = SimNetwork(derive(1, "network"))
    network.node("node")
    with pytest.raises(ValueError, match="still lives"):
        network.node("node")
