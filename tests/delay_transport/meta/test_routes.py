"""The connection for routes: what it does when the meta server is slow, silent, gone or strange."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
from delay_protocol.wire.frames import Frame, encode_response
from delay_transport.meta.address import MetaLocator
from delay_transport.meta.routes import MetaRoutes
from tests.kit.meta_end import HTTP, TCP, MetaEnd
from tests.simulation.network import NetworkPlan, SimNetwork


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
    subject = decode_client_register(frame.body).subject
    return encode_response(frame, code=0, body=reply(subject, "g1"))


class Rig:
    """A connection, a meta server, and what was heard."""

    def __init__(self, nursery: trio.Nursery) -> None:
        chance = random.Random(3)
        network = SimNetwork(
            chance,
            plan=NetworkPlan(delay_s=(0.001, 0.001), slow_chance=0, fragment_chance=0.5),
        )
        self.nursery = nursery
        self.meta = MetaEnd(network.node("meta"), answer_all)
        self.session = MetaSession(
            client_type=ClientType.PRODUCER,
            client_id="",
            chance=chance,
            config=MetaSessionConfig(answer_timeout_s=3, heartbeat_s=60),
        )
        self.changed: list[str] = []
        own = network.node("server")
        self.routes = MetaRoutes(
            self.session,
            locator=MetaLocator(own, [HTTP]),
            network=own,
            chance=chance,
            on_changed=self.changed.append,
        )

    def want(self, *subjects: str) -> None:
        for subject in subjects:
            assert self.session.want(subject, trio.current_time())
        self.routes.wake()

    async def push(self, subject: str, *groups: str) -> None:
        code = int(CommandCode.CLIENT_REGISTER)
        asked = Frame(code=code, version=9, opaque=0, flag=0, request_code=code, body=b"")
        await self.meta.streams[-1].send_all(
            encode_response(asked, code=0, body=reply(subject, *groups))
        )


@asynccontextmanager
async def rig_of(*, serving: bool = True) -> AsyncIterator[Rig]:
    async with trio.open_nursery() as nursery:
        rig = Rig(nursery)
        if serving:
            await nursery.start(rig.meta.serve)
        nursery.start_soon(rig.routes.run)
        yield rig
        nursery.cancel_scope.cancel()


async def test_nothing_is_connected_before_there_is_something_to_ask() -> None:
    async with rig_of() as rig:
        await trio.sleep(1000)
        assert rig.routes.connections == 0
        rig.want("a")
        await trio.sleep(1)
        assert rig.routes.peer == TCP
        assert rig.changed == ["a"]


async def test_a_change_is_heard_by_a_push_and_each_subject_is_asked_for_once_a_minute() -> None:
    async with rig_of() as rig:
        rig.want(*(f"s{n}" for n in range(300)))
        await trio.sleep(5)
        assert sorted(rig.changed) == sorted(f"s{n}" for n in range(300))
        await rig.push("s7", "g2")
        await trio.sleep(1)
        assert rig.changed[300:] == ["s7"]
        await trio.sleep(56)
        assert len(rig.meta.frames) == 600
        assert rig.routes.connections == 1


async def test_a_meta_server_that_does_not_answer_is_left_and_tried_again_ever_less_often() -> None:
    async with rig_of() as rig:
        rig.meta.answer = lambda _frame: None
        rig.want("a")
        await trio.sleep(100)
        assert "no answer within 3 s" in rig.routes.last_end
        assert 8 <= rig.routes.connections <= 15
        rig.meta.answer = answer_all
        await trio.sleep(11)
        assert rig.changed == ["a"]


async def test_where_there_is_no_meta_server_one_is_looked_for_until_there_is() -> None:
    async with rig_of(serving=False) as rig:
        rig.want("a")
        await trio.sleep(50)
        assert rig.routes.failures > 5
        assert "no meta server found" in rig.routes.last_end
        await rig.nursery.start(rig.meta.serve)
        await trio.sleep(11)
        assert rig.changed == ["a"]


@pytest.mark.parametrize("noise", [b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 100, b"\xff" * 100])
async def test_what_is_no_meta_server_ends_the_connection_and_routes_stay(noise: bytes) -> None:
    async with rig_of() as rig:
        rig.want("a")
        await trio.sleep(1)
        await rig.meta.streams[-1].send_all(noise)
        await trio.sleep(10)
        assert rig.routes.connections == 2
        assert rig.session.route("a")
        assert rig.changed == ["a"]
