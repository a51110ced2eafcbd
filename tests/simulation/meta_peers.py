"""The peers of a simulated meta server: QMQ's clients and brokers, and delay servers of ours.

Each is a process that lives, dies and lives again on a machine of its own, and speaks the wire
protocol as the real one does: a client registers all it uses once a minute and believes whatever
comes, a broker sends a heartbeat 10 s after the last one was answered, a delay server registers
again before its lease ends. All that they see goes to the witness.
"""

import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID

import msgspec
import trio

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.meta import requests
from delay_protocol.nodes.controls import Controls, id_of
from delay_protocol.nodes.group_changes import (
    WATCH_S,
    ControlsNews,
    NodeWatch,
    decode_watch_reply,
    encode_node_watch,
    read_document,
)
from delay_protocol.nodes.registration import (
    AppliedControls,
    NodeRegister,
    NodeRegistered,
    NodeRole,
    Refused,
    decode_node_reply,
    encode_node_register,
)
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_request
from delay_transport.seams.runtime import Address
from tests.simulation.faults import Death, Kill
from tests.simulation.meta_witness import CLUSTER, MetaWitness, Use
from tests.simulation.network import NodeNetwork, SimNetwork, SimStream

META: Address = ("10.9.0.1", 20880)
"""Where the meta server listens."""

ENDS = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
_CALL_S = 2.0
"""How long a broker waits for an answer."""
_CONNECT_S = 5.0
_HEARTBEAT_S = 10.0
_TICK_S = 60.0
_REGISTER_S = 3.2
"""How often a delay server registers: well within its lease."""
_FRAME_BYTES_MAX = 1 << 22


class Process:
    """A process on a machine of its own, that may die at any moment and be started again."""

    def __init__(self, name: str, network: SimNetwork, chance: random.Random) -> None:
        self.name = name
        self.chance = chance
        self.sim_network = network
        self.network: NodeNetwork
        self.is_alive = False
        self._scope = trio.CancelScope()

    async def live(self, body: Callable[[], Awaitable[None]]) -> None:
        """Run one life."""
        self.network = self.sim_network.node(self.name)
        self._scope = trio.CancelScope()
        self.is_alive = True
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(body)
        except* Death:
            pass
        finally:
            self.is_alive = False
            self.sim_network.cut(self.name, Kill("ended"))

    def die(self, death: Death) -> None:
        """End this life at once."""
        if self.is_alive:
            self.sim_network.cut(self.name, death)
            self._scope.cancel()


class Call:
    """Asks the meta server one thing at a time, over a connection that is made when needed."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._stream: SimStream | None = None
        self._decoder = FrameDecoder(frame_bytes_max=_FRAME_BYTES_MAX)
        self._opaque = 0

    async def ask(self, code: int, body: bytes, *, within_s: float = _CALL_S) -> Frame | None:
        """Return the answer, None if there was none in time."""
        with trio.move_on_after(within_s):
            try:
                return await self._ask(code, body)
            except ENDS:
                self.hang_up()
        return None

    def hang_up(self) -> None:
        """Close the connection; the next question makes another one."""
        if self._stream is not None:
            self._stream.close_now()
            self._stream = None

    async def _ask(self, code: int, body: bytes) -> Frame:
        if self._stream is None:
            self._stream = await self._process.network.connect(*META)
            self._decoder = FrameDecoder(frame_bytes_max=_FRAME_BYTES_MAX)
        self._opaque += 1
        await self._stream.send_all(encode_request(code=code, opaque=self._opaque, body=body))
        while True:
            data = await self._stream.receive_some()
            if not data:
                raise trio.BrokenResourceError("the meta server hung up")
            self._decoder.feed(data)
            for frame in self._decoder.frames():
                # Answers to questions that were given up come as well.
                if frame.opaque == self._opaque:
                    return frame


class Talk(Call):
    """Asks several things at a time over one connection, and hears whatever is answered first."""

    def __init__(self, process: Process, nursery: trio.Nursery) -> None:
        super().__init__(process)
        self.connection = 0
        """The number of the present connection, or of the last one."""
        self._nursery = nursery
        self._sending = trio.Lock()
        self._asked: dict[int, _Asked] = {}

    def is_on(self, connection: int) -> bool:
        """Say whether a connection is the present one."""
        return self._stream is not None and self.connection == connection

    async def ask_on(
        self, connection: int, code: int, body: bytes, *, within_s: float
    ) -> Frame | None:
        """Return the answer, None if there was none in time or this connection is over."""
        with trio.move_on_after(within_s):
            try:
                return await self._ask(code, body, connection)
            except ENDS:
                if self.is_on(connection):
                    self.hang_up()
        return None

    def hang_up(self) -> None:
        """Close the connection: nobody who waits is answered."""
        super().hang_up()
        asked, self._asked = self._asked, {}
        for one in asked.values():
            one.ended.set()

    async def _ask(self, code: int, body: bytes, connection: int | None = None) -> Frame:
        asked = _Asked()
        async with self._sending:
            if connection is not None and not self.is_on(connection):
                raise trio.BrokenResourceError("that connection is over")
            if self._stream is None:
                self._stream = await self._process.network.connect(*META)
                self.connection += 1
                self._nursery.start_soon(self._receive, self._stream)
            self._opaque += 1
            opaque = self._opaque
            self._asked[opaque] = asked
            await self._stream.send_all(encode_request(code=code, opaque=opaque, body=body))
        try:
            await asked.ended.wait()
        finally:
            self._asked.pop(opaque, None)
        if asked.answer is None:
            raise trio.BrokenResourceError("the meta server hung up")
        return asked.answer

    async def _receive(self, stream: SimStream) -> None:
        decoder = FrameDecoder(frame_bytes_max=_FRAME_BYTES_MAX)
        try:
            while data := await stream.receive_some():
                decoder.feed(data)
                for frame in decoder.frames():
                    asked = self._asked.get(frame.opaque)
                    if asked is not None:
                        asked.answer = frame
                        asked.ended.set()
        except ENDS:
            pass
        if stream is self._stream:
            self.hang_up()


@dataclass(slots=True)
class _Asked:
    """A question that was not answered yet."""

    ended: trio.Event = field(default_factory=trio.Event)
    answer: Frame | None = None


# -- clients -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Known:
    """What a client knows of one use of a subject."""

    reply: requests.ClientRegisterReply | None = None
    """The last answer, of any connection."""
    groups: tuple[str, ...] = ()
    """Those that it sends to, or consumes from."""
    asked_s: float = 0.0
    """When the question was sent that the last answer, or a push after it, came after."""
    connection: int = -1
    """On which the last answer came; -1: what comes next may be the same again."""
    blocked_since_s: float | None = None
    """Since when a producer waits for its first groups."""


@dataclass(slots=True)
class Question:
    """A CLIENT_REGISTER that was not answered yet."""

    use: Use
    sent_s: float
    floor_ms: int
    """The latest timestamp that any client had seen by then."""


_USED_BY_CONSUMERS = (requests.BrokerState.RW, requests.BrokerState.R)
_USED_BY_PRODUCERS = (requests.BrokerState.RW, requests.BrokerState.W)
_ARRIVES_S = 2.0
"""What comes when nothing is amiss was sent so long ago at most."""


class SimClient(Process):
    """A process with QMQ's client: all of its producers and consumers share one connection."""

    def __init__(
        self,
        name: str,
        *,
        network: SimNetwork,
        chance: random.Random,
        witness: MetaWitness,
        uses: list[Use],
    ) -> None:
        super().__init__(name, network, chance)
        self.known: dict[Use, Known] = {}
        self.asked: dict[int, Question] = {}
        """What was asked on the present connection and not answered."""
        self.is_ticking = True
        """Whether it asks once a minute; otherwise only pushes tell it anything."""
        self.deaf_until_s = 0.0
        """Until then it takes nothing from its connection."""
        self.connection = -1
        """The number of the present connection; -1: none."""
        self.refused = ""
        """Why the last question was not answered with a route."""
        self._witness = witness
        self._uses = uses
        self._opaque = 0
        self._connections = 0
        self._timestamp_ms = 0
        self._connection_ms = 0
        self._stream: SimStream | None = None
        self._lock = trio.Lock()
        self._nursery: trio.Nursery

    async def run(self) -> None:
        """Live and die."""
        while True:
            self._stream, self.connection = None, -1
            self._timestamp_ms = 0
            self._lock = trio.Lock()
            self.known = {}
            self.asked.clear()
            await self.live(self._live)
            await trio.sleep(self.chance.uniform(0.1, 40))

    async def _live(self) -> None:
        async with trio.open_nursery() as self._nursery:
            for use in self._uses:
                self._nursery.start_soon(self._first_use, use)
            while True:
                await trio.sleep(_TICK_S)
                if self.is_ticking:
                    await self.ask_all(requests.RegisterType.HEARTBEAT)

    async def _first_use(self, use: Use) -> None:
        # Subjects are used one after another, not all at the start.
        await trio.sleep(self.chance.choice((0.0, self.chance.uniform(0, 100))))
        known = self.known[use] = Known()
        if use.client_type in (requests.ClientType.PRODUCER, requests.ClientType.DELAY_PRODUCER):
            known.blocked_since_s = trio.current_time()
        await self._ask(use, requests.RegisterType.ONLINE)

    async def ask_all(self, why: requests.RegisterType = requests.RegisterType.HEARTBEAT) -> None:
        """Register everything that is used."""
        for use in list(self.known):
            await self._ask(use, why)

    async def _ask(self, use: Use, why: requests.RegisterType) -> None:
        request = requests.ClientRegister(
            subject=use.subject,
            client_type=use.client_type,
            client_id=use.client_id,
            consumer_group=use.consumer_group,
            app_code="app",
            register_type=why,
        )
        with trio.move_on_after(_CONNECT_S) as waiting:
            async with self._lock:
                try:
                    await self._send(use, requests.encode_client_register(request))
                except ENDS:
                    self._hang_up()
        if waiting.cancelled_caught:
            self._hang_up()

    async def _send(self, use: Use, body: bytes) -> None:
        if self._stream is None:
            self._stream = await self.network.connect(*META)
            self._connections += 1
            self.connection = self._connections
            self._connection_ms = 0
            self._nursery.start_soon(self._receive, self._stream)
        self._opaque += 1
        now = trio.current_time()
        self.asked[self._opaque] = Question(use, now, self._witness.latest_ms)
        await self._stream.send_all(
            encode_request(code=CommandCode.CLIENT_REGISTER, opaque=self._opaque, body=body)
        )

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.close_now()
            self._stream, self.connection = None, -1
        self.asked.clear()

    async def _receive(self, stream: SimStream) -> None:
        decoder = FrameDecoder(frame_bytes_max=_FRAME_BYTES_MAX)
        try:
            while data := await stream.receive_some():
                await trio.sleep_until(self.deaf_until_s)
                if stream is not self._stream:
                    # It has another connection: what came on this one is of no use.
                    return
                decoder.feed(data)
                for frame in decoder.frames():
                    self._take(frame)
        except ENDS:
            pass
        if stream is self._stream:
            self._hang_up()

    def _take(self, frame: Frame) -> None:
        question = self.asked.pop(frame.opaque, None)
        if frame.code != ResponseCode.SUCCESS:
            self._take_refusal(frame, question)
            return
        reply = requests.decode_client_register_reply(frame.body)
        use = next(
            (
                use
                for use in self.known
                if (use.client_type, use.subject, use.consumer_group)
                == (reply.client_type, reply.subject, reply.consumer_group)
            ),
            None,
        )
        if use is None or (question is not None and use != question.use):
            self._witness.complain(f"answered: {self.name} got what it did not ask for: {reply}")
            return
        known = self.known[use]
        if question is None:
            if known.connection == self.connection and known.reply is not None:
                before = known.reply
                if _seen(before) == _seen(reply):
                    self._witness.complain(f"stable: {use} was pushed what it knew: {reply}")
            since_s, floor_ms = known.asked_s, 0
            if self._witness.calm_seconds() > 60 and self.deaf_until_s + 60 < trio.current_time():
                since_s = max(since_s, trio.current_time() - _ARRIVES_S)
        else:
            known.asked_s = since_s = question.sent_s
            floor_ms = question.floor_ms
        self.refused = ""
        self._witness.answered(
            use,
            reply,
            since_s=since_s,
            floor_ms=max(floor_ms, self._connection_ms),
            pushed=question is None,
        )
        self._connection_ms = reply.timestamp_ms
        known.reply, known.connection = reply, self.connection
        self._believe(use, known, reply)

    def _take_refusal(self, frame: Frame, question: Question | None) -> None:
        self._witness.counts["refused for the moment"] += 1
        self.refused = frame.body.decode(errors="replace")
        if question is None or frame.code != ResponseCode.BROKER_ERROR or not self.refused:
            self._witness.complain(f"refused: {self.name} got {frame} and no reason")
        elif (known := self.known.get(question.use)) is not None:
            known.connection = -1
            known.asked_s = known.asked_s or question.sent_s

    def _believe(self, use: Use, known: Known, reply: requests.ClientRegisterReply) -> None:
        """Do with an answer what QMQ's client does."""
        is_consumer = use.client_type == requests.ClientType.CONSUMER
        states = _USED_BY_CONSUMERS if is_consumer else _USED_BY_PRODUCERS
        groups = tuple(
            info.name for info in reply.groups if info.name and info.master and info.state in states
        )
        # An empty list is ignored; whoever has none yet waits for one that is not.
        if groups or is_consumer:
            known.groups = groups
            known.blocked_since_s = None
        self._timestamp_ms = max(reply.timestamp_ms, self._timestamp_ms)


def _seen(reply: requests.ClientRegisterReply) -> tuple[object, ...]:
    groups = tuple((info.name, info.master, info.state) for info in reply.groups)
    return (reply.online_state, groups)


# -- brokers -------------------------------------------------------------------------------------


class SimMetaBroker(Process):
    """QMQ's broker, or delay server, that is master of its group."""

    def __init__(
        self,
        name: str,
        *,
        group: str,
        addresses: tuple[str, ...],
        role: requests.BrokerRole,
        entered: tuple[str, int] | None,
        network: SimNetwork,
        chance: random.Random,
        witness: MetaWitness,
        faults: Counter[str],
    ) -> None:
        """Draw from `addresses` at each start. `entered`: as it asks who it is, if it does."""
        super().__init__(name, network, chance)
        self.group = group
        self.role = role
        self.addresses = addresses
        self.address = addresses[0]
        self.state = requests.BrokerState.NRW
        self.is_serving = False
        """Whether it is on-line, and the meta server knows."""
        self.down_for_s: float | None = None
        """How long it is away after this life; None: drawn."""
        self._entered = entered
        self._witness = witness
        self._faults = faults
        self._stopping = trio.Event()

    async def run(self) -> None:
        """Live, vanish or stop, and come back."""
        while True:
            await self.live(self._live)
            gone_s = trio.current_time()
            self.is_serving = False
            drawn_s = self.chance.choice(
                (self.chance.uniform(0.1, 20), self.chance.uniform(20, 120))
            )
            await trio.sleep(drawn_s if self.down_for_s is None else self.down_for_s)
            self.down_for_s = None
            self._witness.gone(self.group, gone_s, trio.current_time())

    def stop(self) -> None:
        """Stop in good order."""
        self._stopping.set()

    def report(self, state: requests.BrokerState) -> None:
        """Be in this state from the next heartbeat on."""
        if self.is_serving:
            self.state = state

    async def _live(self) -> None:
        call = Call(self)
        self._stopping = trio.Event()
        self.state = requests.BrokerState.NRW
        if len(self.addresses) > 1:
            before = self.address
            self.address = self.chance.choice(self.addresses)
            self._faults["broker: another address"] += self.address != before
        await self._acquire(call)
        await self._say(call, requests.BrokerRequestType.HEARTBEAT)
        await trio.sleep(self.chance.uniform(0.05, 5))
        # QMQ's brokers go on-line once; what is not heard then, heartbeats make good.
        self.state = requests.BrokerState.RW
        self.is_serving = await self._say(call, requests.BrokerRequestType.ONLINE)
        while not self._stopping.is_set():
            with trio.move_on_after(_HEARTBEAT_S):
                await self._stopping.wait()
                break
            heard = await self._say(call, requests.BrokerRequestType.HEARTBEAT)
            self.is_serving = self.is_serving or heard
        self.state = requests.BrokerState.NRW
        self.is_serving = False
        for _ in range(3):
            await self._say(call, requests.BrokerRequestType.OFFLINE)

    async def _acquire(self, call: Call) -> None:
        while self._entered is not None:
            hostname, port = self._entered
            body = requests.encode_acquire_meta(
                requests.AcquireMeta(hostname=hostname, serve_port=port)
            )
            answer = await call.ask(CommandCode.BROKER_ACQUIRE_META, body)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                reply = requests.decode_acquire_meta_reply(answer.body)
                if (reply.group, reply.role, reply.master) != (self.group, self.role, ""):
                    self._witness.complain(f"role: {self.name} was told that it is {reply}")
                return
            if answer is not None:
                self._witness.complain(f"answered: {self.name} is entered and got {answer}")
            # The real one ends, and is started again.
            await trio.sleep(3.0)

    async def _say(self, call: Call, what: requests.BrokerRequestType) -> bool:
        """Say something; return whether it was acknowledged."""
        said = self._witness.broker_says(self.group, what, self.state, self.address)
        answer = await _register(
            call, what, group=self.group, address=self.address, role=self.role, state=self.state
        )
        if answer is None:
            return False
        if answer.code != ResponseCode.SUCCESS:
            self._witness.counts["refused for the moment"] += 1
            if not answer.body:
                self._witness.complain(f"refused: {self.name} got {answer} and no reason")
            return False
        self._witness.broker_heard(self.group, said)
        return True


async def _register(
    call: "Call",
    what: requests.BrokerRequestType,
    *,
    group: str,
    address: str,
    role: requests.BrokerRole,
    state: requests.BrokerState,
) -> Frame | None:
    """Tell how a broker group is; return the answer, or None after hanging up for want of one."""
    body = requests.encode_broker_register(
        requests.BrokerRegister(
            request_type=what, group=group, address=address, role=role, state=state
        )
    )
    answer = await call.ask(CommandCode.BROKER_REGISTER, body)
    if answer is None:
        call.hang_up()
    return answer


# -- delay servers -------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Directory:
    """What a delay server's disk says."""

    log_uuid: UUID
    storage_uuid: UUID
    incarnation: int = 0
    last_sequence: int = 0
    last_epoch: int = 0
    controls: Controls = field(default_factory=Controls)
    """What a meta server has told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a node has to be refused now, or may be."""

    why: str
    is_certain: bool = True


class SimDelayNode(Process):
    """A delay server of ours, as the meta server sees it."""

    def __init__(
        self,
        name: str,
        *,
        group: str,
        node_id: str,
        address: str,
        directory: Directory,
        network: SimNetwork,
        chance: random.Random,
        witness: MetaWitness,
        faults: Counter[str],
    ) -> None:
        super().__init__(name, network, chance)
        self.group = group
        self.node_id = node_id
        self.address = address
        self.directory = directory
        self.role: NodeRole | None = None
        """What it was told last, in this life."""
        self.refused = ""
        """Why it was refused last; "" if it was not."""
        self.heard_s = -1e9
        """When it sent the last registration that was acknowledged."""
        self.registered: tuple[UUID, int, str] | None = None
        """Storage, incarnation and address that were acknowledged last."""
        self.state = requests.BrokerState.NRW
        self.gives_state = False
        """True if this life gives a state for producers."""
        self.down_for_s: float | None = None
        """How long it is away after this life; None: drawn."""
        self.told: Controls | None = None
        """The controls that it was told last on its present connection, or the last one."""
        self.follows_since_s = math.inf
        """Since when it asks for them on its present connection."""
        self.controls_refused = ""
        """Why it was not told any; "" if it was."""
        self._renew = trio.Event()
        """Set when it is to register again before its interval is over."""
        self._witness = witness
        self._faults = faults
        self._record: tuple[int, int] = (0, 0)
        self._life = 0
        self.boot_id = UUID(int=0)
        """Of this life."""

    async def run(self) -> None:
        """Live, die and be started again on the same directory."""
        while True:
            self._life += 1
            self.directory.incarnation += 1
            self.boot_id = UUID(int=self.chance.getrandbits(128))
            self.role, self._record = None, (0, 0)
            self.told, self.follows_since_s = None, math.inf
            self.state, self.gives_state = requests.BrokerState.NRW, False
            await self.live(self._live)
            self._witness.node_ended(self)
            was_master = self.role is NodeRole.MASTER
            gone_s = trio.current_time()
            drawn_s = self.chance.choice(
                (self.chance.uniform(0.1, 12), self.chance.uniform(12, 90))
            )
            await trio.sleep(drawn_s if self.down_for_s is None else self.down_for_s)
            self.down_for_s = None
            if was_master:
                self._witness.gone(self.group, gone_s, trio.current_time())

    async def _live(self) -> None:
        async with trio.open_nursery() as nursery:
            registered = trio.Event()
            nursery.start_soon(self._register_always, nursery, registered)
            await registered.wait()
            if self.role is NodeRole.MASTER:
                await self._give_state()
            await trio.sleep_forever()

    async def _register_always(self, nursery: trio.Nursery, registered: trio.Event) -> None:
        talk = Talk(self, nursery)
        followed = 0
        while True:
            if await self.register(talk):
                registered.set()
                if talk.connection != followed:
                    followed = talk.connection
                    nursery.start_soon(self._follow, talk, followed)
            with trio.move_on_after(_REGISTER_S * self.chance.uniform(0.5, 1.0)):
                await self._renew.wait()
            self._renew = trio.Event()

    async def _follow(self, talk: Talk, connection: int) -> None:
        """Apply the controls that are sent on one connection, for as long as it is there."""
        told: Controls | None = None
        self.told, self.follows_since_s = None, trio.current_time()
        while talk.is_on(connection):
            sent_s, floor = trio.current_time(), self._witness.controls_version
            answer = await talk.ask_on(
                connection,
                CommandCode.NODE_WATCH,
                encode_node_watch(NodeWatch()),
                within_s=_CALL_S + (0 if told is None else WATCH_S),
            )
            if not talk.is_on(connection):
                return
            if answer is None:
                self._witness.controls_unanswered(self.name, sent_s)
                talk.hang_up()
            elif answer.code != ResponseCode.SUCCESS:
                self._witness.counts["refused for the moment"] += 1
                self.controls_refused = answer.body.decode(errors="replace")
                await trio.sleep(_REGISTER_S)
            else:
                news = decode_watch_reply(answer.body).controls
                told = self._hear(news, told, sent_s, floor)

    def _hear(
        self, news: ControlsNews | None, before: Controls | None, sent_s: float, floor: int
    ) -> Controls | None:
        """Take what is sent; return what was sent last on this connection."""
        document = None
        if news is not None:
            document = self.directory.controls
            if news.document is not None:
                document = read_document(news.document, news.id)
            elif id_of(document) != news.id:
                self._witness.complain(f"told: {self.name} does not apply {news.id} by itself")
        self._witness.controls_told(
            (CLUSTER, self.group, self.node_id),
            document,
            before=before,
            storage_uuid=self.directory.storage_uuid,
            sent_s=sent_s,
            floor=floor,
        )
        self.controls_refused = ""
        if document is None:
            return before
        self.told = document
        if document.version:
            self.directory.controls = document
        # As a delay server does: the meta server is to know at once what it applies.
        self._renew.set()
        return document

    def request(self) -> NodeRegister:
        """Return what it registers with now."""
        directory = self.directory
        return NodeRegister(
            cluster=CLUSTER,
            group=self.group,
            node_id=self.node_id,
            log_uuid=directory.log_uuid,
            storage_uuid=directory.storage_uuid,
            incarnation=directory.incarnation,
            boot_id=self.boot_id,
            last_sequence=directory.last_sequence,
            last_epoch=directory.last_epoch,
            address=self.address,
            http_address="",
            version="1.0",
            controls=AppliedControls(id=id_of(directory.controls)),
            state="RW" if self.gives_state else None,
        )

    async def register(self, call: Call) -> bool:
        """Register; return whether it was given a role."""
        request = self.request()
        said = None
        if self.gives_state and self.role is NodeRole.MASTER:
            heartbeat = requests.BrokerRequestType.HEARTBEAT
            said = self._witness.broker_says(self.group, heartbeat, self.state, self.address)
        sent_s, floor = trio.current_time(), self._witness.told.get(self.group, (0, 0))
        answer = await call.ask(CommandCode.NODE_REGISTER, encode_node_register(request))
        if answer is None:
            call.hang_up()
            return False
        if answer.code != ResponseCode.SUCCESS:
            self._witness.counts["refused for the moment"] += 1
            if not answer.body:
                self._witness.complain(f"refused: {self.name} got {answer} and no reason")
            return False
        reply = decode_node_reply(answer.body)
        if isinstance(reply, Refused):
            self._witness.counts["nodes refused"] += 1
            self.refused = reply.reason
            if not reply.reason:
                self._witness.complain(f"refused: {self.name} was given no reason")
            return False
        self.refused = ""
        self._take_role(request, reply, sent_s, floor)
        if said is not None and reply.state == self.state.name:
            self._witness.broker_heard(self.group, said)
        return True

    def _take_role(
        self, request: NodeRegister, reply: NodeRegistered, sent_s: float, floor: tuple[int, int]
    ) -> None:
        self._witness.node_registered(self, request, reply, sent_s=sent_s, floor=floor)
        self.heard_s = sent_s
        self.registered = (request.storage_uuid, request.incarnation, request.address)
        pair = (reply.record.epoch, reply.record.version)
        if pair < self._record:
            # A late answer to an earlier question.
            return
        is_new_epoch = pair[0] > self._record[0]
        self._record, self.role = pair, reply.role
        directory = self.directory
        if reply.role is NodeRole.MASTER and is_new_epoch:
            # It begins its epoch in its log.
            directory.last_epoch = pair[0]
            directory.last_sequence += 1

    async def _give_state(self) -> None:
        """Serve from now on, and register with that state."""
        await trio.sleep(self.chance.uniform(0.01, 3))
        self.state = requests.BrokerState.RW
        self.gives_state = True

    def wipe(self) -> None:
        """Lose the disk: the next life is another replica."""
        self.directory = fresh_directory(self.chance)


def fresh_directory(chance: random.Random, *, last_epoch: int = 0) -> Directory:
    """Return a new data directory; with an epoch it has a log already."""
    return Directory(
        log_uuid=UUID(int=chance.getrandbits(128)),
        storage_uuid=UUID(int=chance.getrandbits(128)),
        last_epoch=last_epoch,
        last_sequence=1 if last_epoch else 0,
    )


def changed(request: NodeRegister, **fields: object) -> NodeRegister:
    """Return a registration with other fields."""
    return msgspec.structs.replace(request, **fields)
