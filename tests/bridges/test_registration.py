"""A broker is registered as QMQ's are, whatever becomes of the meta server."""

import random
from collections.abc import Awaitable, Callable
from functools import partial, wraps

import trio

from bridges.registration import Registration
from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta.requests import (
    BrokerRegister,
    BrokerRequestType,
    BrokerRole,
    BrokerState,
    decode_broker_register,
)
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import Connection
from delay_transport.connections.limits import ConnectionLimits
from delay_transport.connections.listener import Dispatch, serve_connections
from tests.simulation.clock import EventClock
from tests.simulation.network import NetworkPlan, SimNetwork

HTTP, TCP = ("127.0.0.1", 8080), ("127.0.0.1", 20880)
ONLINE, HEARTBEAT, OFFLINE = BrokerRequestType


class Rig:
    """A meta server that writes down who registers, and a broker's registration."""

    def __init__(self) -> None:
        chance = random.Random(5)
        plan = NetworkPlan(delay_s=(0.001, 0.001), slow_chance=0, fragment_chance=0)
        network = SimNetwork(chance, plan=plan)
        self.meta = network.node("meta")
        self.heard: list[BrokerRegister] = []
        self.code = 0
        self.registration = Registration(
            group="g7",
            address=("10.0.0.9", 20881),
            meta=[HTTP],
            network=network.node("broker"),
            chance=chance,
        )

    @property
    def kinds(self) -> list[BrokerRequestType]:
        return [request.request_type for request in self.heard]

    def _take(self, connection: Connection, frames: list[Frame]) -> None:
        for frame in frames:
            self.heard.append(decode_broker_register(frame.body))
            connection.answer(frame, self.code, b"why" if self.code else b"")

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            dispatch = Dispatch({CommandCode.BROKER_REGISTER: self._take})
            await nursery.start(serve_connections, self.meta, TCP, dispatch, ConnectionLimits())
            listener = await self.meta.listen(*HTTP)
            task_status.started()
            async with listener:
                while True:
                    async with await listener.accept() as stream:
                        await stream.receive_some(4096)
                        await stream.send_all(
                            b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n127.0.0.1:20880"
                        )


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**arguments: object) -> None:
        trio.run(partial(test, **arguments), clock=EventClock())

    return run


@in_virtual_time
async def test_it_says_that_it_is_there_how_it_is_and_that_it_goes() -> None:
    rig = Rig()
    async with trio.open_nursery() as around:
        await around.start(lambda task_status: rig.serve(task_status=task_status))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.registration.run)
            await trio.sleep(35)
            nursery.cancel_scope.cancel()
        around.cancel_scope.cancel()
    assert rig.kinds == [ONLINE, HEARTBEAT, HEARTBEAT, HEARTBEAT, OFFLINE]
    assert {(r.group, r.address, r.role) for r in rig.heard} == {
        ("g7", "10.0.0.9:20881", BrokerRole.MASTER)
    }
    assert [r.state for r in rig.heard] == [*[BrokerState.RW] * 4, BrokerState.NRW]


@in_virtual_time
async def test_a_meta_server_that_comes_late_or_goes_is_looked_for() -> None:
    rig = Rig()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.registration.run)
        await trio.sleep(20)
        scope = trio.CancelScope()

        async def life(*, task_status: trio.TaskStatus[None]) -> None:
            with scope:
                await rig.serve(task_status=task_status)

        await nursery.start(lambda task_status: life(task_status=task_status))
        await trio.sleep(15)
        assert rig.kinds == [ONLINE, HEARTBEAT]
        scope.cancel()
        await trio.sleep(30)
        await nursery.start(lambda task_status: rig.serve(task_status=task_status))
        await trio.sleep(5)
        assert rig.kinds == [ONLINE, HEARTBEAT, HEARTBEAT]
        nursery.cancel_scope.cancel()


@in_virtual_time
async def test_a_refusal_is_no_end() -> None:
    rig = Rig()
    rig.code = 51
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: rig.serve(task_status=task_status))
        nursery.start_soon(rig.registration.run)
        await trio.sleep(40)
        # Ever less often: without that there would be about 50.
        assert 12 <= len(rig.heard) <= 18
        assert rig.registration.registered == 0
        rig.code = 0
        await trio.sleep(12)
        assert rig.registration.registered >= 2
        assert rig.kinds[-2:] == [ONLINE, HEARTBEAT]
        nursery.cancel_scope.cancel()
