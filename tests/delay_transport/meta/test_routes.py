"""The connection for routes: what it does when the meta server is slow, silent, gone or strange."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial, wraps

import pytest
import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta.requests import (
    BrokerGroupInfo,
    BrokerState,
    ClientRegisterReply,
    ClientType,
    OnlineState,
    decode_client_register,
    encode_client_register_reply,
)
from delay_protocol.meta.session import MetaSession, MetaSessionConfig
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_response
from delay_transport.meta.address import MetaLocator
from delay_transport.meta.routes import MetaRoutes
from tests.simulation.clock import EventClock
from tests.simulation.network import NetworkPlan, NodeNetwork, SimNetwork

HTTP, TCP = ("127.0.0.1", 8080), ("127.0.0.1", 20880)


def reply(subject: str, *groups: str) -> bytes:
    return encode_client_register_reply(
        ClientRegisterReply(
            timestamp_ms=5,
            subject=subject,
            consumer_group="",
            online_state=OnlineState.ONLINE,
            client_type=ClientType.PRODUCER,
            groups=tuple(
                BrokerGroupInfo(name=g, master=f"{g}:1", updated_ms=0, state=BrokerState.RW)
                for g in groups
            ),
        )
    )


def answer_all(frame: Frame) -> bytes:
    return reply(decode_client_register(frame.body).subject, "g1")


class Rig:
    """A connection, a network, and what was heard."""

    def __init__(self, nursery: trio.Nursery) -> None:
        chance = random.Random(3)
        self.network = SimNetwork(
            chance,
            plan=NetworkPlan(delay_s=(0.001, 0.001), slow_chance=0, fragment_chance=0.5),
        )
        self.nursery = nursery
        self.meta: NodeNetwork = self.network.node("meta")
        self.session = MetaSession(
            client_type=ClientType.PRODUCER,
            client_id="",
            chance=chance,
            config=MetaSessionConfig(answer_timeout_s=3, heartbeat_s=60),
        )
        self.changed: list[str] = []
        self.frames: list[Frame] = []
        self.streams: list[trio.abc.Stream] = []
        self.answers: Callable[[Frame], bytes | None] = answer_all
        own = self.network.node("server")
        self.routes = MetaRoutes(
            self.session,
            locator=MetaLocator(own, [HTTP]),
            network=own,
            chance=chance,
            on_changed=self.changed.append,
        )

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be the meta server until cancelled."""
        http = await self.meta.listen(*HTTP)
        tcp = await self.meta.listen(*TCP)
        async with http, tcp, trio.open_nursery() as nursery:
            nursery.start_soon(self._accept_http, nursery, http)
            task_status.started()
            while True:
                nursery.start_soon(self._converse, await tcp.accept())

    async def _accept_http(
        self, nursery: trio.Nursery, listener: trio.abc.Listener[trio.abc.Stream]
    ) -> None:
        while True:
            nursery.start_soon(self._discover, await listener.accept())

    async def _discover(self, stream: trio.abc.Stream) -> None:
        async with stream:
            await stream.receive_some(4096)
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n127.0.0.1:20880")

    async def _converse(self, stream: trio.abc.Stream) -> None:
        self.streams.append(stream)
        decoder = FrameDecoder(frame_bytes_max=1 << 20)
        try:
            while data := await stream.receive_some(1 << 16):
                decoder.feed(data)
                for frame in decoder.frames():
                    self.frames.append(frame)
                    if frame.code == CommandCode.HEARTBEAT:
                        await stream.send_all(encode_response(frame, code=0))
                        continue
                    body = self.answers(frame)
                    if body is not None:
                        await stream.send_all(encode_response(frame, code=0, body=body))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    def want(self, *subjects: str) -> None:
        for subject in subjects:
            assert self.session.want(subject, trio.current_time())
        self.routes.wake()

    async def push(self, subject: str, *groups: str) -> None:
        code = int(CommandCode.CLIENT_REGISTER)
        asked = Frame(code=code, version=9, opaque=0, flag=0, request_code=code, body=b"")
        await self.streams[-1].send_all(
            encode_response(asked, code=0, body=reply(subject, *groups))
        )


@asynccontextmanager
async def rig_of(*, serving: bool = True) -> AsyncIterator[Rig]:
    async with trio.open_nursery() as nursery:
        rig = Rig(nursery)
        if serving:
            await nursery.start(lambda task_status: rig.serve(task_status=task_status))
        nursery.start_soon(rig.routes.run)
        yield rig
        nursery.cancel_scope.cancel()


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**arguments: object) -> None:
        trio.run(partial(test, **arguments), clock=EventClock())

    return run


@in_virtual_time
async def test_nothing_is_connected_before_there_is_something_to_ask() -> None:
    async with rig_of() as rig:
        await trio.sleep(1000)
        assert rig.routes.connections == 0
        rig.want("a")
        await trio.sleep(1)
        assert rig.routes.peer == TCP
        assert rig.changed == ["a"]


@in_virtual_time
async def test_a_change_is_heard_by_a_push_and_each_subject_is_asked_for_once_a_minute() -> None:
    async with rig_of() as rig:
        rig.want(*(f"s{n}" for n in range(300)))
        await trio.sleep(5)
        assert sorted(rig.changed) == sorted(f"s{n}" for n in range(300))
        await rig.push("s7", "g2")
        await trio.sleep(1)
        assert rig.changed[300:] == ["s7"]
        await trio.sleep(56)
        asked = [frame for frame in rig.frames if frame.code == CommandCode.CLIENT_REGISTER]
        assert len(asked) == 600
        assert rig.routes.connections == 1


@in_virtual_time
async def test_a_meta_server_that_does_not_answer_is_left_and_tried_again_ever_less_often() -> None:
    async with rig_of() as rig:
        rig.answers = lambda _frame: None
        rig.want("a")
        await trio.sleep(100)
        assert "no answer within 3 s" in rig.routes.last_end
        assert 8 <= rig.routes.connections <= 15
        rig.answers = answer_all
        await trio.sleep(11)
        assert rig.changed == ["a"]


@in_virtual_time
async def test_where_there_is_no_meta_server_one_is_looked_for_until_there_is() -> None:
    async with rig_of(serving=False) as rig:
        rig.want("a")
        await trio.sleep(50)
        assert rig.routes.failures > 5
        assert "no meta server found" in rig.routes.last_end
        await rig.nursery.start(lambda task_status: rig.serve(task_status=task_status))
        await trio.sleep(11)
        assert rig.changed == ["a"]


@pytest.mark.parametrize("noise", [b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 100, b"\xff" * 100])
@in_virtual_time
async def test_what_is_no_meta_server_ends_the_connection_and_routes_stay(noise: bytes) -> None:
    async with rig_of() as rig:
        rig.want("a")
        await trio.sleep(1)
        await rig.streams[-1].send_all(noise)
        await trio.sleep(10)
        assert rig.routes.connections == 2
        assert rig.session.route("a")
        assert rig.changed == ["a"]
