"""A whole meta server: vectors of the protocol on a real socket, stops, restarts, old entries."""

import random
from collections.abc import Awaitable, Callable

import pytest
import trio
from msgspec.structs import replace

from delay_protocol.meta.requests import BrokerRole, BrokerState, ClientType
from delay_transport.seams.runtime import Runtime, TcpNetwork, ThreadExecutor
from meta_server.known import model
from meta_server.known.errors import StoreUnavailableError
from meta_server.server import MetaServer, serve
from meta_server.settings.config import ListenerConfig, StoreConfig
from tests.meta_server.memory_store import Medium, MemoryRecordFile, MemoryStore
from tests.meta_server.meta_rig import World, broker, make_config, names, state_of, until
from tests.simulation.clock import event_clock

NOW_MS = 0x018BCFE56800


class StoppedClock:
    """A wall clock that stands at the moment of the protocol's vectors."""

    def now_ms(self) -> int:
        return NOW_MS

    def boot_ms(self) -> int:
        return 0

    def boot_id(self) -> str:
        return "boot 1"

    def synchronised(self) -> bool:
        return True


def on_a_real_socket(
    medium: Medium, talk: Callable[[trio.SocketStream, MetaServer], Awaitable[None]]
) -> None:
    """Serve on real sockets and in threads, and talk to it."""

    async def main() -> None:
        runtime = Runtime(
            clock=StoppedClock(),
            network=TcpNetwork(),
            executor=ThreadExecutor(),
            chance=random.Random(1),
        )
        config = make_config(listener=ListenerConfig(address="127.0.0.1:0"))
        server = MetaServer(config, runtime, lambda: MemoryStore(medium), MemoryRecordFile())
        stop = trio.Event()
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                await nursery.start(
                    lambda task_status: serve(server, stop, task_status=task_status)
                )
                assert server.listener is not None
                async with await trio.open_tcp_stream(*server.listener.address) as stream:
                    await talk(stream, server)
                stop.set()

    trio.run(main)


async def exchange(stream: trio.SocketStream, request: str, answer: str) -> None:
    """Send bytes, in pieces, and expect exactly those."""
    data = bytes.fromhex(request)
    await stream.send_all(data[:30])
    await trio.sleep(0.01)
    await stream.send_all(data[30:])
    expected = bytes.fromhex(answer)
    received = b""
    while len(received) < len(expected):
        received += await stream.receive_some()
    assert received.hex() == expected.hex()


def test_vectors_6_to_9_on_a_real_socket() -> None:
    """A delay producer registers; a delay server asks who it is, and goes on-line."""
    group = model.BrokerGroup(
        name="dg1",
        kind=model.GroupKind.DELAY,
        master="10.0.0.5:20801",
        state=BrokerState.RW,
        updated_ms=NOW_MS,
    )
    broker = model.Broker(
        hostname="host1",
        serve_port=20801,
        ip="10.0.0.5",
        group="dg1",
        role=BrokerRole.DELAY_MASTER,
    )

    async def register(stream: trio.SocketStream, _: MetaServer) -> None:
        await exchange(
            stream,
            "00000076 0012 dec10ade 0023 0009 00000000 00000000 0023"
            "0006 00077375626a656374 0003612e62 000e636c69656e7454797065436f6465 000134"
            "0008636c69656e744964 000468404031 000d636f6e73756d657247726f7570 0000"
            "0007617070436f6465 0003617070 000b7265717565737454797065 000131",
            "00000045 0012 dec10ade 0000 0009 00000000 00000001 0023"
            "0000018bcfe56800 0003612e62 0000 00 04 0001 0003646731"
            "000e31302e302e302e353a3230383031 0000018bcfe56800 01",
        )

    async def acquire_and_go_online(stream: trio.SocketStream, server: MetaServer) -> None:
        await exchange(
            stream,
            "0000001f 0012 dec10ade 0028 0008 00000003 00000000 ffff 0005686f737431 00005141",
            "0000001f 0012 dec10ade 0000 0008 00000003 00000001 0028 0003646731 0000 00000005",
        )
        await exchange(
            stream,
            "00000035 0012 dec10ade 001e 0008 00000004 00000000 ffff 00000000 0003646731"
            "000e31302e302e302e353a3230383031 00000005 00000001",
            "00000014 0012 dec10ade 0000 0008 00000004 00000001 001e",
        )
        found = server.registry.groups["dg1"]
        assert replace(found, speaker="") == group

    on_a_real_socket(Medium(model.Contents(rows=(group,))), register)
    on_a_real_socket(Medium(model.Contents(rows=(broker,))), acquire_and_go_online)


async def test_a_stop_answers_what_was_asked_and_closes_the_store() -> None:
    world = World()
    async with world.serving():
        peer = await world.connect()
        await peer.broker(broker())
        reply = await peer.register("a.b")
        assert names(reply.groups) == ["g1"]
    assert world.stores[-1].is_closed


async def test_a_store_that_is_not_there_at_the_start_is_an_error() -> None:
    world = World()
    world.medium.is_down = True
    with pytest.RaisesGroup(StoreUnavailableError, flatten_subgroups=True):
        async with world.serving():
            pass
    assert world.stores[-1].is_closed


async def test_a_process_that_was_stopped_for_a_while_makes_nobody_silent() -> None:
    world = World()
    async with world.serving() as server:
        peer, client = await world.connect(), await world.connect()
        await peer.broker(broker())
        await client.register("a.b")
        await trio.sleep(20)
        # As SIGSTOP does it: time passes, nothing runs; then everything is overdue at once.
        event_clock()._now += 60
        await trio.sleep(1)
        assert server.silence.stalls == 1
        assert state_of(server, "g1") is BrokerState.RW
        await trio.sleep(31)
        assert state_of(server, "g1") is BrokerState.NRW


async def test_the_same_questions_get_the_same_answers_before_and_after_a_kill() -> None:
    world = World()
    subjects = [f"s{number}" for number in range(50)]

    async def ask() -> list[list[str]]:
        peer = await world.connect()
        return [
            names((await peer.register(subject, client_type)).groups)
            for subject in subjects
            for client_type in (ClientType.PRODUCER, ClientType.CONSUMER, ClientType.DELAY_PRODUCER)
        ]

    async with world.serving(kill=True):
        peer = await world.connect()
        for number in range(6):
            await peer.broker(broker(f"g{number}"))
            await peer.broker(broker(f"d{number}", role=BrokerRole.DELAY_MASTER))
        first = await ask()
    for _ in range(3):
        async with world.serving(kill=True):
            assert await ask() == first


# The audit

HOUR_S = 3600
DAY_MS = 24 * 3_600_000
SETTINGS = StoreConfig(audit_keep_ms=10 * DAY_MS)
ENTRY = model.AuditEntry(at_ms=0, actor="ops", action="route.set", target="a")


def fill(world: World, *ages_days: float) -> None:
    """Put entries of these ages into the audit."""
    now_ms = world.clock.now_ms()
    for age in ages_days:
        world.medium.audit_numbers += 1
        entry = replace(ENTRY, at_ms=now_ms - int(age * DAY_MS))
        world.medium.audit.append(model.AuditRow(number=world.medium.audit_numbers, entry=entry))


def ages(world: World) -> list[float]:
    """Return the ages of what is left, in days."""
    now_ms = world.clock.now_ms()
    return [round((now_ms - row.entry.at_ms) / DAY_MS, 2) for row in world.medium.audit]


async def test_what_is_older_than_it_may_be_is_forgotten_wherever_it_stands() -> None:
    world = World()
    fill(world, 9.9, 11, 3, 30, 10.1, 1)
    async with world.serving(make_config(store=SETTINGS)):
        await trio.sleep(HOUR_S + 10)
        assert ages(world) == [9.94, 3.04, 1.04]
        # The first of them is of 10 days in 1.4 hours.
        await trio.sleep(HOUR_S)
        assert len(world.medium.audit) == 3
        await trio.sleep(HOUR_S)
        assert len(world.medium.audit) == 2


async def test_a_clock_that_is_set_ahead_makes_nothing_older() -> None:
    world = World()
    fill(world, 1, 9)
    async with world.serving(make_config(store=SETTINGS)):
        for step in (1000, -2000):
            world.clock.step(step * DAY_MS)
            await trio.sleep(3 * HOUR_S)
            assert len(world.medium.audit) == 2


async def test_a_store_that_fails_is_asked_again_later_and_nothing_else_is_lost() -> None:
    world = World()
    async with world.serving(make_config(store=SETTINGS)) as server:
        fill(world, 20, 1)
        await trio.sleep(HOUR_S - 10)
        world.medium.is_down = True
        await trio.sleep(120)
        world.medium.is_down = False
        await until(lambda: not server.committer.is_stale)
        assert len(world.medium.audit) == 2
        await trio.sleep(HOUR_S)
        assert ages(world) == [1.08]
