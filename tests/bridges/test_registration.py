"""A broker is registered as QMQ's are, whatever becomes of the meta server."""

import random

import trio

from bridges.registration import Registration
from delay_protocol.meta.requests import (
    BrokerRegister,
    BrokerRequestType,
    BrokerRole,
    BrokerState,
    decode_broker_register,
)
from delay_protocol.wire.frames import Frame, encode_response
from tests.kit.meta_end import HTTP, MetaEnd
from tests.simulation.network import NetworkPlan, SimNetwork

ONLINE, HEARTBEAT, OFFLINE = BrokerRequestType


class Rig:
    """A meta server that writes down who registers, and a broker's registration."""

    def __init__(self) -> None:
        chance = random.Random(5)
        plan = NetworkPlan(delay_s=(0.001, 0.001), slow_chance=0, fragment_chance=0)
        network = SimNetwork(chance, plan=plan)
        self.meta = MetaEnd(network.node("meta"), self._answer)
        self.code = 0
        self.registration = Registration(
            group="g7",
            address=("10.0.0.9", 20881),
            meta=[HTTP],
            network=network.node("broker"),
            chance=chance,
        )

    @property
    def heard(self) -> list[BrokerRegister]:
        return [decode_broker_register(frame.body) for frame in self.meta.frames]

    @property
    def kinds(self) -> list[BrokerRequestType]:
        return [request.request_type for request in self.heard]

    def _answer(self, frame: Frame) -> bytes:
        return encode_response(frame, code=self.code, body=b"why" if self.code else b"")


async def test_it_says_that_it_is_there_how_it_is_and_that_it_goes() -> None:
    rig = Rig()
    async with trio.open_nursery() as around:
        await around.start(rig.meta.serve)
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


async def test_a_meta_server_that_comes_late_or_goes_is_looked_for() -> None:
    rig = Rig()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.registration.run)
        await trio.sleep(20)
        scope = trio.CancelScope()

        async def life(*, task_status: trio.TaskStatus[None]) -> None:
            with scope:
                await rig.meta.serve(task_status=task_status)

        await nursery.start(lambda task_status: life(task_status=task_status))
        await trio.sleep(15)
        assert rig.kinds == [ONLINE, HEARTBEAT]
        scope.cancel()
        await trio.sleep(30)
        await nursery.start(rig.meta.serve)
        await trio.sleep(5)
        assert rig.kinds == [ONLINE, HEARTBEAT, HEARTBEAT]
        nursery.cancel_scope.cancel()


async def test_a_refusal_is_no_end() -> None:
    rig = Rig()
    rig.code = 51
    async with trio.open_nursery() as nursery:
        await nursery.start(rig.meta.serve)
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
