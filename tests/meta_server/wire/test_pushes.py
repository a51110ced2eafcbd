"""Whoever is connected learns of a changed route by itself, once, and is bounded if slow.

Pushes are answers that nobody asked for; here a few fake connections take them.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from delay_protocol.meta.requests import (
    BrokerGroupInfo,
    BrokerRequestType,
    BrokerState,
    ClientRegisterReply,
    ClientType,
    decode_client_register_reply,
)
from delay_protocol.wire.frames import FrameDecoder
from meta_server.groups.routing import Answer
from meta_server.settings.config import ListenerConfig, PushConfig
from meta_server.wire.pushes import Pusher
from meta_server.wire.sessions import Sessions, Subscription, Use
from tests.meta_server.meta_rig import World, broker, make_config, names, until

TO_G1 = (BrokerGroupInfo(name="g1", master="m:1", updated_ms=0, state=BrokerState.RW),)


@dataclass(eq=False)
class FakeConnection:
    """Takes answers."""

    unsent_bytes: int = 0
    is_closed: bool = False
    data: bytearray = field(default_factory=bytearray)
    takes: int = 0
    """Bytes that are taken every 50 ms; 0: all at once."""

    def reply(self, data: bytes) -> None:
        assert not self.is_closed
        self.data += data
        self.unsent_bytes += len(data) if self.takes else 0

    async def take(self) -> None:
        while True:
            await trio.sleep(0.05)
            self.unsent_bytes = max(self.unsent_bytes - self.takes, 0)

    def taken(self) -> list[ClientRegisterReply]:
        decoder = FrameDecoder(frame_bytes_max=1 << 24)
        decoder.feed(bytes(self.data))
        self.data.clear()
        return [decode_client_register_reply(frame.body) for frame in decoder.frames()]


class Rig:
    """Routes by subject, which tests change."""

    def __init__(self, limits: PushConfig | None = None, *, unsent_bytes_max: int = 100) -> None:
        self.routes: dict[str, tuple[BrokerGroupInfo, ...] | None] = {}
        self.asked: list[str] = []
        self.sessions = Sessions()
        self.pusher = Pusher(
            sessions=self.sessions,
            answer=self._answer,
            timestamp=lambda: 77,
            limits=limits or PushConfig(),
            unsent_bytes_max=unsent_bytes_max,
        )

    def _answer(self, subject: str, _: int) -> Answer | None:
        self.asked.append(subject)
        groups = self.routes.get(subject, ())
        if groups is None:
            return None
        return Answer(groups, tuple((one.name, one.master, int(one.state)) for one in groups))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.pusher.run)
            yield nursery
            nursery.cancel_scope.cancel()

    def subscribe(self, connection: FakeConnection, subject: str, *, group: str = "") -> None:
        self.pusher.note(
            self.sessions.of(connection),  # type: ignore[arg-type]
            Use(ClientType.PRODUCER, subject, group),
            Subscription(routed=subject, version=9, sent=()),
        )

    def route(self, subject: str, *groups: str, state: BrokerState = BrokerState.RW) -> None:
        self.routes[subject] = tuple(
            BrokerGroupInfo(name=name, master=f"{name}:1", updated_ms=len(self.asked), state=state)
            for name in groups
        )
        self.pusher.changed()


async def test_only_those_whose_answer_changed_hear_of_it_and_only_once() -> None:
    rig = Rig()
    one, two = FakeConnection(), FakeConnection()
    rig.subscribe(one, "a")
    rig.subscribe(two, "b")
    async with rig.running():
        rig.route("a", "g1")
        await trio.sleep(1)
        [told] = one.taken()
        assert (told.subject, told.timestamp_ms, names(told.groups)) == ("a", 77, ["g1"])
        assert two.taken() == []
        # Only the time of the row is another one.
        rig.route("a", "g1")
        await trio.sleep(1)
        assert one.taken() == []
        rig.route("a", "g1", state=BrokerState.R)
        await trio.sleep(1)
        assert len(one.taken()) == 1


async def test_changes_that_come_close_together_are_pushed_once() -> None:
    rig = Rig()
    one = FakeConnection()
    rig.subscribe(one, "a")
    async with rig.running():
        for number in range(10):
            rig.route("a", f"g{number}")
            await trio.sleep(0.001)
        await trio.sleep(1)
        assert [names(told.groups) for told in one.taken()] == [["g9"]]
        assert rig.pusher.counts.rounds <= 2


class ChangingRig(Rig):
    """The route of a changes when half of a thousand clients were looked at."""

    def _answer(self, subject: str, client_type: int) -> Answer | None:
        if len(self.asked) == 500:
            self.route("a", "g2")
        return super()._answer(subject, client_type)


async def test_a_change_in_the_middle_of_a_round_is_not_missed() -> None:
    rig = ChangingRig()
    connections = [FakeConnection() for _ in range(1000)]
    for connection in connections:
        rig.subscribe(connection, "a")
    rig.route("a", "g1")
    async with rig.running():
        await trio.sleep(1)
    told = [[names(reply.groups) for reply in peer.taken()] for peer in connections]
    assert told[0] == [["g1"], ["g2"]]
    # Who was not reached yet never hears of what was so before.
    assert told[-1] == [["g2"]]
    assert {tuple(groups[-1]) for groups in told} == {("g2",)}


async def test_of_one_subject_only_its_subscriptions_are_looked_at() -> None:
    rig = Rig()
    connections = [FakeConnection() for _ in range(3)]
    for connection, subject in zip(connections, ("a", "b", "a"), strict=True):
        rig.subscribe(connection, subject)
    async with rig.running():
        for subject in ("a", "b"):
            rig.routes[subject] = TO_G1
        rig.pusher.changed(["a", "unknown"])
        await trio.sleep(1)
        assert [len(connection.taken()) for connection in connections] == [1, 0, 1]
        assert rig.asked == ["a", "a"]
        rig.pusher.changed(["a"])
        rig.pusher.changed()
        await trio.sleep(1)
        assert [len(connection.taken()) for connection in connections] == [0, 1, 0]


async def test_while_one_client_is_deaf_nobody_else_is_looked_at_again_and_again() -> None:
    rig = Rig()
    deaf, other = FakeConnection(unsent_bytes=100), FakeConnection()
    rig.subscribe(deaf, "a")
    rig.subscribe(other, "b")
    async with rig.running():
        rig.route("a", "g1")
        await trio.sleep(10)
        assert rig.asked == ["b"]
        assert rig.pusher.counts.delayed >= 9
        deaf.unsent_bytes = 0
        await trio.sleep(2)
        assert len(deaf.taken()) == 1


async def test_who_takes_a_little_at_a_time_is_told_all_of_it_without_beginning_anew() -> None:
    rig = Rig(unsent_bytes_max=1000)
    slow = FakeConnection(takes=1000)
    subjects = [f"s{number}" for number in range(1000)]
    for subject in subjects:
        rig.subscribe(slow, subject)
    async with rig.running() as nursery:
        nursery.start_soon(slow.take)
        rig.routes = dict.fromkeys(subjects, TO_G1)
        rig.pusher.changed()
        began = trio.current_time()
        await until(lambda: rig.pusher.counts.pushes == 1000)
        # Some fourteen go at a time, with no long wait for who is taking.
        assert trio.current_time() - began < 75 * 0.1
        assert rig.pusher.counts.delayed > 30
        # Each is looked at about once, also those that come after many.
        assert len(rig.asked) < 1200
        # One that was told already, and changes in the middle, is not missed.
        rig.routes["s0"] = ()
        rig.pusher.changed(["s0"])
        await trio.sleep(5)
        told = slow.taken()
        assert [reply.subject for reply in told] == [*subjects, "s0"]


async def test_a_deaf_client_is_kept_in_mind_once_however_often_things_change() -> None:
    rig = Rig()
    deaf = FakeConnection(unsent_bytes=100)
    for number in range(50):
        rig.subscribe(deaf, f"s{number}")
    async with rig.running():
        for number in range(500):
            rig.route(f"s{number % 50}", f"g{number}")
            rig.pusher.changed()
            await trio.sleep(0.1)
            rig.pusher.changed([f"s{number % 7}", f"s{number % 50}"])
            await trio.sleep(0.1)
        assert len(rig.pusher._late) == 1
        deaf.unsent_bytes = 0
        await trio.sleep(3)
        told = {reply.subject: names(reply.groups) for reply in deaf.taken()}
        assert told == {f"s{number % 50}": [f"g{number}"] for number in range(450, 500)}
        rounds = rig.pusher.counts.rounds
        await trio.sleep(60)
        assert rig.pusher.counts.rounds <= rounds + 1


async def test_a_subject_without_a_route_is_left_alone_until_it_has_one() -> None:
    rig = Rig()
    one = FakeConnection()
    rig.subscribe(one, "a")
    rig.routes["a"] = None
    async with rig.running():
        rig.pusher.changed()
        await trio.sleep(1)
        assert rig.asked == ["a"]
        assert one.taken() == []


async def test_subscriptions_are_bounded_and_counted_and_go_with_their_connection() -> None:
    rig = Rig(PushConfig(subscriptions_max=3, subscriptions_per_connection_max=2))
    one, two = FakeConnection(), FakeConnection()
    for subject in ("a", "b", "c"):
        rig.subscribe(one, subject)
    rig.subscribe(one, "a")
    assert (rig.sessions.uses, rig.pusher.counts.unkept) == (2, 1)
    for subject in ("a", "b"):
        rig.subscribe(two, subject)
    assert (rig.sessions.uses, rig.pusher.counts.unkept) == (3, 2)
    rig.sessions.forget(one)  # type: ignore[arg-type]
    rig.sessions.forget(one)  # type: ignore[arg-type]
    assert rig.sessions.uses == 1
    two.is_closed = True
    rig.subscribe(two, "z")
    assert rig.sessions.uses == 1


async def test_trap_3_a_new_master_reaches_connected_clients_at_once(served: World) -> None:
    peer = await served.connect()
    await peer.broker(broker())
    clients = [await served.connect() for _ in range(5)]
    for client in clients:
        await client.register("a.b")
    began = trio.current_time()
    await peer.broker(broker(what=BrokerRequestType.OFFLINE))
    for client in clients:
        assert (await client.pushed()).groups == ()
    await peer.broker(broker(address="10.0.0.2:20881"))
    for client in clients:
        pushed = await client.pushed()
        assert [info.master for info in pushed.groups] == ["10.0.0.2:20881"]
    assert trio.current_time() - began < 0.5


async def test_a_client_that_never_reads_is_bounded_and_delays_nobody() -> None:
    world = World()
    config = make_config(
        listener=ListenerConfig(unsent_bytes_pause=2000, unsent_bytes_max=100_000),
        push=PushConfig(retry_ms=100),
    )
    async with world.serving(config) as server:
        peer, deaf, client = [await world.connect() for _ in range(3)]
        await peer.broker(broker())
        for number in range(30):
            await deaf.register(f"s{number}." + "x" * 100)
        await client.register("a.b")
        for _ in range(50):
            for what, told in (
                (BrokerRequestType.OFFLINE, []),
                (BrokerRequestType.ONLINE, ["10.0.0.1:20881"]),
            ):
                await peer.broker(broker(what=what))
                assert [info.master for info in (await client.pushed()).groups] == told
        assert server.listener is not None
        assert server.listener.held_bytes < 50_000
