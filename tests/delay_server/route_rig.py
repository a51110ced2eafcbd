"""A meta server that answers for routes as it is told, and brokers to route to, in virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta.requests import (
    BrokerGroupInfo,
    BrokerState,
    ClientRegister,
    ClientRegisterReply,
    ClientType,
    OnlineState,
    decode_client_register,
    encode_client_register_reply,
)
from delay_protocol.wire.frames import Frame, encode_response
from delay_server.server import DelayServer
from delay_server.settings.config import DelayServerConfig
from tests.delay_server.meta_stub import META, FakeMeta
from tests.delay_server.server_rig import HOST, Broker, World, make_config

FIRST_BROKER_PORT = 30000


class ScriptedMeta(FakeMeta):
    """Answers CLIENT_REGISTER from `routes`, and pushes what is changed through `reroute`."""

    def __init__(self, world: World, groups: int) -> None:
        super().__init__(world)
        self.masters = {f"g{n}": f"{HOST}:{FIRST_BROKER_PORT + n}" for n in range(groups)}
        self.routes: dict[str, tuple[str, ...]] = {}
        """Groups by subject."""
        self.rest: tuple[str, ...] | None = ("g0",)
        """Those of all other subjects; None: they are not answered."""
        self.states: dict[str, BrokerState] = {}
        self.refused: set[str] = set()
        self.route_after_s = 0.0
        """Before a route is answered."""
        self.asked: list[ClientRegister] = []
        self.routes_asked_at: list[float] = []
        self._told: dict[str, list[trio.abc.Stream]] = {}
        self._sending = trio.Lock()

    def kill(self) -> None:
        """End it and all its connections."""
        self._told.clear()
        super().kill()

    async def respond(self, stream: trio.abc.Stream, frame: Frame) -> None:
        """Answer what subjects are routed to; nodes and brokers as any meta server."""
        if frame.code == CommandCode.HEARTBEAT:
            await stream.send_all(encode_response(frame, code=0))
            return
        if frame.code != CommandCode.CLIENT_REGISTER:
            await super().respond(stream, frame)
            return
        request = decode_client_register(frame.body)
        assert request.client_type == ClientType.DELAY_SERVER
        assert (request.client_id, request.app_code, request.consumer_group) == ("", "", "")
        self.asked.append(request)
        self.routes_asked_at.append(trio.current_time())
        told = self._told.setdefault(request.subject, [])
        if stream not in told:
            told.append(stream)
        await trio.sleep(self.route_after_s)
        async with self._sending:
            body = self._reply(request.subject)
            if body is not None:
                await stream.send_all(encode_response(frame, code=0, body=body))

    def _reply(self, subject: str) -> bytes | None:
        names = self.routes.get(subject, self.rest)
        if names is None:
            return None
        is_refused = subject in self.refused
        return encode_client_register_reply(
            ClientRegisterReply(
                timestamp_ms=-2 if is_refused else self.world.now_ms,
                subject=subject,
                consumer_group="",
                online_state=OnlineState.OFFLINE if is_refused else OnlineState.ONLINE,
                client_type=ClientType.DELAY_SERVER,
                groups=tuple(
                    BrokerGroupInfo(
                        name=name,
                        master=self.masters[name],
                        updated_ms=0,
                        state=self.states.get(name, BrokerState.RW),
                    )
                    for name in (() if is_refused else names)
                ),
            )
        )

    async def push(self, *subjects: str) -> None:
        """Tell everybody who asked for these what they would be answered now."""
        code = int(CommandCode.CLIENT_REGISTER)
        asked = Frame(code=code, version=9, opaque=0, flag=0, request_code=code, body=b"")
        for subject in subjects:
            for stream in list(self._told.get(subject, [])):
                async with self._sending:
                    body = self._reply(subject)
                    assert body is not None
                    with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
                        await stream.send_all(encode_response(asked, code=0, body=body))

    async def reroute(self, subject: str, *groups: str) -> None:
        """Route a subject to other groups from now on."""
        self.routes[subject] = groups
        await self.push(subject)


class RouteWorld(World):
    """A World with several brokers and a meta server that leads to them."""

    def __init__(self, groups: int = 2, *, seed: int = 7) -> None:
        super().__init__(seed=seed)
        self.meta = ScriptedMeta(self, groups)
        self.brokers = [
            Broker(
                self.network.node(f"broker {number}"), self.clock, port=FIRST_BROKER_PORT + number
            )
            for number in range(groups)
        ]

    @asynccontextmanager
    async def routing(
        self,
        config: DelayServerConfig | None = None,
        *,
        away: tuple[int, ...] = (),
    ) -> AsyncIterator[tuple[DelayServer, trio.Nursery]]:
        """Serve during the block, with a meta server and all brokers but those that are away."""
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: self.meta.run(task_status=task_status))
            for number, broker in enumerate(self.brokers):
                if number not in away:
                    await nursery.start(
                        lambda task_status, b=broker: b.run(task_status=task_status)
                    )
            async with self.serving(config or routed_config(), has_broker=False) as server:
                yield server, nursery
            self.meta.kill()
            nursery.cancel_scope.cancel()

    def ids(self) -> list[str]:
        """Ids of all deliveries anywhere."""
        return [message_id for broker in self.brokers for message_id in broker.ids]

    @property
    def taken(self) -> int:
        """How many messages the brokers have, if no two have the same."""
        return sum(len(broker.taken) for broker in self.brokers)


def routed_config(**sections: object) -> DelayServerConfig:
    """Return settings with a meta server in the place of brokers."""
    return make_config(
        **{
            "brokers": {},
            "meta": META,
            **sections,
        }
    )
