"""A world for an exchange with a meta server: model servers, a model meta server, virtual time.

It does what a shell does, in steps of one event each, so a run is a function of its seed.
"""

import heapq
import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from delay_client import ClientConfig, Outcome
from delay_client.exchange.batches import Batch, BatchLink, Collection, Waiter, cut_batches
from delay_client.exchange.exchange import Exchange
from delay_client.exchange.links import LinkState
from delay_client.exchange.meta_link import MetaLink
from delay_client.exchange.routing import Line
from delay_client.messages.item_encoder import ItemEncoder
from delay_client.messages.message import OutgoingMessage
from delay_client.messages.message_ids import MessageIdMaker
from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.messages.changes import (
    ChangeReply,
    ChangeResult,
    ChangeState,
    decode_change,
    encode_change_reply,
)
from delay_protocol.messages.items import ItemScan, decode_item, scan_items
from delay_protocol.messages.send_message import encode_send_reply
from delay_protocol.meta.requests import (
    BrokerGroupInfo,
    BrokerState,
    ClientRegisterReply,
    OnlineState,
    decode_client_register,
    encode_client_register_reply,
)
from delay_protocol.receivers.masters import (
    MasterInfo,
    ReceiverRegistered,
    decode_receiver_register,
    encode_receiver_reply,
)
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_frame, encode_response
from tests.delay_client.conftest import hello_reply

META = "meta:8080"
LISTENER = "meta:20880"

CONFIG = ClientConfig(
    timeout_s=15,
    try_timeout_s=4,
    connect_timeout_s=3,
    backoff_min_s=0.1,
    backoff_max_s=1,
    requests_in_flight_max=2,
    request_items_max=3,
    linger_s=0.001,
    idle_s=30,
    same_group_s=1,
    circuit_failures=3,
    probe_max_s=8,
    meta_answer_timeout_s=5,
    meta_backoff_min_s=1,
    meta_backoff_max_s=4,
)


def group(
    name: str, address: str | None = None, state: BrokerState = BrokerState.RW
) -> BrokerGroupInfo:
    """Return a group; its master is called as it is unless told otherwise."""
    return BrokerGroupInfo(name=name, master=address or f"{name}:1", updated_ms=1, state=state)


@dataclass
class Server:
    """A delay server: what it does with connections and requests, and what it keeps."""

    address: str
    mood: str = "takes"
    """takes, refuses connections, is a hole (nothing comes back), hangs (connects, never answers),
    is a broker, answers 51, 52, 4 (items), garbage, or cuts (keeps, then closes instead of
    answering)."""
    kept: list[bytes] = field(default_factory=list)
    requests: list[tuple[float, list[str]]] = field(default_factory=list)
    connects: list[float] = field(default_factory=list)
    changes: list[tuple[float, int]] = field(default_factory=list)
    """When it was asked to change messages, and how many."""
    state: ChangeState = ChangeState.UNKNOWN
    """What it says of them."""
    delay_s: float = 0.001

    @property
    def ids(self) -> list[str]:
        """Ids of what it keeps, in order."""
        return [decode_item(item).message_id for item in self.kept]

    def greet(self, hello: Frame) -> bytes:
        """Return what it says of itself; b"" for nothing."""
        if self.mood == "broker":
            return encode_response(hello, code=ResponseCode.UNKNOWN_CODE)
        return b"" if self.mood == "hangs" else hello_reply(hello)

    def _change(self, frame: Frame, now: float) -> bytes:
        items = decode_change(frame.body).items
        self.changes.append((now, len(items)))
        if self.mood != "takes":
            return encode_response(frame, code=51) if self.mood == "51" else b""
        rows = [ChangeResult(item, self.state) for item in range(len(items))]
        body = encode_change_reply(ChangeReply(results=tuple(rows), facts_since_ms=1))
        return encode_response(frame, code=0, body=body)

    def take(self, frame: Frame, now: float) -> bytes | None:  # noqa: PLR0911 (one for each mood)
        """Return the answer to a request; b"" for none, None to close the connection."""
        if frame.code == CommandCode.HELLO:
            return self.greet(frame)
        if frame.code == CommandCode.CHANGE:
            return self._change(frame, now)
        scan = ItemScan()
        scan_items(frame.body, scan)
        ends = zip(scan.starts, scan.sizes, strict=True)
        items = [frame.body[start : start + size] for start, size in ends]
        ids = [decode_item(item).message_id for item in items]
        self.requests.append((now, ids))
        if self.mood in {"takes", "cuts", "late"}:
            self.kept += items
        if self.mood == "takes":
            return encode_response(frame, code=0)
        if self.mood in {"51", "52"}:
            return encode_response(frame, code=int(self.mood))
        if self.mood == "4":
            body = encode_send_reply([(name.encode(), 4, "disk") for name in ids])
            return encode_response(frame, code=0, body=body)
        if self.mood == "garbage":
            return b"\xff" * 40
        return None if self.mood == "cuts" else b""


@dataclass
class Meta:
    """The meta server."""

    routes: dict[str, list[BrokerGroupInfo]] = field(default_factory=dict)
    default: list[BrokerGroupInfo] = field(default_factory=list)
    mood: str = "answers"
    """answers, refuses connections, hangs, answers 51, or garbage."""
    asked: list[tuple[float, str]] = field(default_factory=list)
    connects: list[tuple[float, str]] = field(default_factory=list)
    timestamp_ms: int = 1000
    levels: str = "7s 9s"
    masters: list[dict[str, str]] = field(default_factory=list)
    """Where the master of each group was, one after the other."""
    refused: set[str] = field(default_factory=set)
    """Subjects that are refused for good."""

    def reply(self, subject: str, client_type: int) -> bytes:
        """Return the body of the answer for a subject."""
        self.timestamp_ms += 1
        return encode_client_register_reply(
            ClientRegisterReply(
                timestamp_ms=-2 if subject in self.refused else self.timestamp_ms,
                subject=subject,
                consumer_group="",
                online_state=OnlineState.ONLINE,
                client_type=client_type,
                groups=()
                if subject in self.refused
                else tuple(self.routes.get(subject, self.default)),
            )
        )


@dataclass(eq=False)
class Connection:
    """One connection as the world sees it."""

    line: Line
    address: str
    decoder: FrameDecoder = field(default_factory=lambda: FrameDecoder(frame_bytes_max=1 << 20))
    told: dict[str, int] = field(default_factory=dict)
    is_open: bool = True


class World:
    """One client, its servers and its meta server."""

    def __init__(
        self,
        *groups: str,
        config: ClientConfig = CONFIG,
        seed: int = 7,
        metas: tuple[str, ...] = (META,),
        on_trouble: Callable[[str], None] | None = None,
    ) -> None:
        self.troubles: list[tuple[float, str]] = []
        self.chance = random.Random(seed)
        self.config = config
        self.exchange = Exchange(
            meta=metas,
            client_id="h@@1",
            config=config,
            chance=random.Random(seed),
            on_trouble=on_trouble or (lambda text: self.troubles.append((self.now, text))),
        )
        masters = {name: f"{name}:1" for name in groups}
        self.meta = Meta(default=[group(name) for name in groups], masters=[masters])
        self.servers: dict[str, Server] = {}
        for name in groups:
            self.add(f"{name}:1")
        # As a clock that runs since the machine started.
        self.now = 100_000.0
        self.wall_ms = 1_700_000_000_000
        self.encoder = ItemEncoder(
            ids=MessageIdMaker(random.Random(1)),
            item_bytes_max=1 << 20,
            levels_ms=lambda: self.exchange.routing.levels_ms,
        )
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._held: list[tuple[Connection, Frame]] = []
        self._count = 0
        self._connections: dict[Line, Connection] = {}
        self.settled: dict[str, int] = defaultdict(int)
        self.waiters: dict[str, Waiter] = {}
        self.polls = 0

    def add(self, address: str) -> Server:
        """Add a server."""
        server = self.servers[address] = Server(address)
        return server

    # What the user does.

    def send(
        self,
        name: str,
        subject: str = "s",
        timeout_s: float = 15.0,
        *,
        is_id_given: bool = False,
        level: int | None = None,
    ) -> Waiter:
        """Send one message; its id counts as made by the client unless told otherwise."""

        def settled() -> None:
            self.settled[name] += 1

        waiter = Waiter(settled)
        delay = 60.0 if level is None else None
        message = OutgoingMessage(subject, "x", delay, message_id=name, level=level)
        encoded = self.encoder.encode(message, self.wall_ms)
        self.exchange.offer(
            encoded,
            waiter,
            subject=subject,
            timeout_s=timeout_s,
            now=self.now,
            is_id_given=is_id_given,
            is_past_due=encoded[2] < self.wall_ms,
        )
        self.waiters[name] = waiter
        self.look_round()
        return waiter

    def send_many(
        self,
        *named: tuple[str | None, str],
        timeout_s: float = 15.0,
        messages: Sequence[OutgoingMessage] | None = None,
    ) -> Collection:
        """Send (id, subject) pairs together; ignores congestion. Without an id one is made."""
        collection = Collection(lambda: None)
        for batch in self.batches(collection, *named, messages=messages):
            batch.deadline = self.now + timeout_s
            self.exchange.submit(batch, self.now)
        self.look_round()
        return collection

    def batches(
        self,
        collection: Collection,
        *named: tuple[str | None, str],
        messages: Sequence[OutgoingMessage] | None = None,
    ) -> list[Batch]:
        """Return the batches of a send_many() of pairs, or of messages."""
        pairs = [OutgoingMessage(subject, "x", 60.0, message_id=name) for name, subject in named]
        return list(
            cut_batches(
                pairs if messages is None else messages,
                collection,
                encoder=self.encoder,
                config=self.config,
                wall_ms=lambda: self.wall_ms,
                lanes=self.exchange.routing,
            )
        )

    def outcome(self, name: str) -> Outcome | None:
        """Return what became of a message that was sent alone."""
        assert self.settled[name] <= 1
        return self.waiters[name].outcome

    # What happens.

    def push(self) -> None:
        """Have the meta server tell everybody what is right now."""
        for connection in list(self._connections.values()):
            for subject, client_type in connection.told.items():
                body = self.meta.reply(subject, client_type)
                frame = encode_frame(Frame(0, 9, 0, 1, CommandCode.CLIENT_REGISTER, body))
                self._deliver(connection, frame, 0.001)

    def route(self, *groups: BrokerGroupInfo) -> None:
        """Change the route of all subjects that have none of their own, and push it."""
        self.meta.default = list(groups)
        self.push()

    def kill(self, address: str) -> None:
        """End a server as kill -9 does: connections are cut, new ones refused."""
        self.servers[address].mood = "refuses"
        self.cut(address)

    def cut(self, address: str) -> None:
        """Cut the connections to an address."""
        for connection in list(self._connections.values()):
            if connection.address == address and connection.is_open:
                self._close(connection, "cut")

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        for _ in range(200_000):
            self.look_round()
            at = min(
                self._events[0][0] if self._events else math.inf,
                max(self.exchange.wake_at, self.now),
            )
            if at > until:
                self.now = until
                return
            if self._events and self._events[0][0] <= at:
                self.now, _, event = heapq.heappop(self._events)
                event()
            else:
                self.now = at
                self.polls += 1
                self.exchange.poll(self.now)
        raise AssertionError("the exchange never rests")

    def look_round(self) -> None:
        """Do what a shell does after each call."""
        for line in list(self.exchange.lines):
            connection = self._connections.get(line)
            if connection is None:
                if self.exchange.wants_connection(line, self.now):
                    self._connect(line)
            elif not connection.is_open:
                continue
            elif line.condemned is not None:
                self._close(connection, line.condemned)
            elif line.has_outgoing:
                self._take(connection, line.take_outgoing())

    # The network.

    def _later(self, seconds: float, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, event))

    def _connect(self, line: Line) -> None:
        line.connect()
        address = f"{line.host}:{line.port}"
        connection = self._connections[line] = Connection(line, address, is_open=False)
        if isinstance(line, MetaLink):
            self.meta.connects.append((self.now, address))
            mood = self.meta.mood
        else:
            server = self.servers.get(address)
            mood = "refuses" if server is None else server.mood
            if server is not None:
                server.connects.append(self.now)

        def connected() -> None:
            connection.is_open = True
            self.exchange.connected(line, self.now)

        def failed() -> None:
            del self._connections[line]
            self.exchange.lost(line, "refused" if mood == "refuses" else "no answer", self.now)

        if mood == "refuses":
            self._later(0.001, failed)
        elif mood == "hole":
            self._later(self.config.connect_timeout_s, failed)
        else:
            self._later(0.001, connected)

    def _close(self, connection: Connection, reason: str) -> None:
        connection.is_open = False
        if self._connections.get(connection.line) is connection:
            del self._connections[connection.line]
            self.exchange.lost(connection.line, reason, self.now)

    def _deliver(self, connection: Connection, data: bytes, seconds: float) -> None:
        def arrive() -> None:
            if connection.is_open:
                self.exchange.received(connection.line, data, self.now)

        self._later(seconds, arrive)

    def _end(self, connection: Connection) -> None:
        def close() -> None:
            if connection.is_open:
                self._close(connection, "closed by the server")

        self._later(0.002, close)

    def _take(self, connection: Connection, data: bytes) -> None:
        if isinstance(connection.line, MetaLink):
            self._take_meta(connection, data)
            return
        server = self.servers[connection.address]
        connection.decoder.feed(data)
        for frame in connection.decoder.frames():
            answer = server.take(frame, self.now)
            if answer is None:
                self._end(connection)
                return
            if answer:
                is_hello = frame.code == CommandCode.HELLO
                self._deliver(connection, answer, 0.001 if is_hello else server.delay_s)

    def _take_meta(self, connection: Connection, data: bytes) -> None:
        meta = self.meta
        if meta.mood in {"hangs", "hole"}:
            return
        if connection.address != LISTENER:
            assert data.startswith(b"GET /meta/address HTTP/1.0\r\n")
            page = (
                f"HTTP/1.1 200 \r\nDelaywheel-Levels: {meta.levels}\r\n"
                f"content-length: {len(LISTENER)}\r\n\r\n{LISTENER}"
            )
            self._deliver(connection, page.encode(), 0.001)
            self._end(connection)
            return
        connection.decoder.feed(data)
        for frame in connection.decoder.frames():
            if frame.code == CommandCode.RECEIVER_REGISTER:
                self._take_register(connection, frame)
                continue
            request = decode_client_register(frame.body)
            meta.asked.append((self.now, request.subject))
            connection.told[request.subject] = request.client_type
            if meta.mood == "garbage":
                answer = b"\x00" * 30
            elif meta.mood == "51":
                answer = encode_response(frame, code=51, body=b"the store is down")
            else:
                body = meta.reply(request.subject, request.client_type)
                answer = encode_response(frame, code=0, body=body)
            self._deliver(connection, answer, 0.001)

    def _take_register(self, connection: Connection, frame: Frame) -> None:
        """Tell a client of the masters, at once or when there are others."""
        asked = decode_receiver_register(frame.body)
        assert not asked.name
        if asked.told == len(self.meta.masters):
            self._held.append((connection, frame))
            return
        infos = [MasterInfo(group=name, address=at) for name, at in self.meta.masters[-1].items()]
        told = ReceiverRegistered(version=len(self.meta.masters), masters=tuple(infos))
        answer = encode_response(frame, code=0, body=encode_receiver_reply(told))
        self._deliver(connection, answer, 0.001)

    def set_masters(self, **masters: str) -> None:
        """Change where the masters of groups are, and tell who asked."""
        self.meta.masters.append(masters)
        held, self._held = self._held, []
        for connection, frame in held:
            self._take_register(connection, frame)

    def links(self) -> dict[str, BatchLink]:
        """Return the links that there are, by address."""
        return {link.server: link for link in self.exchange.routing.links}

    def connected_to(self) -> list[str]:
        """Return the servers that the client has a connection to."""
        return [link.server for link in self.exchange.routing.links if link.state is LinkState.UP]
