"""A scripted broker on memory streams, and a sender in front of it: what these tests stand on.

Time is trio's MockClock, which jumps; the wall clock on top of it can be set. A FakeBroker keeps
what it received, and answers as its script says: a function of the request, given anew by a test
whenever the broker is to behave differently.
"""

import random
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import trio
from trio.testing import memory_stream_pair

from delay_protocol.basics.codes import ItemCode, ResponseCode
from delay_protocol.messages.items import FLAG_DELAY, Item, encode_item
from delay_protocol.messages.send_message import encode_send_reply
from delay_protocol.wire.frames import encode_response
from delay_protocol.wire.hello import Hello
from delay_transport.seams.runtime import Listener
from sender.groups.group_status import GroupState
from sender.groups.routing import LaneRoutes
from sender.groups.taking import PatternSet
from sender.outcomes.dead import Refusal
from sender.outcomes.outcomes import Outcome
from sender.queues.parcels import Entries, Mask
from sender.sender import Sender
from sender.settings.config import BrokerGroup, SenderConfig
from tests.brokers import Received, SharedStream, StreamBroker

EPOCH_MS = 1_700_000_000_000
"""The wall clock when trio's is 0."""

ENTRY = np.dtype(
    [
        ("sequence", "<i8"),
        ("due_ms", "<i8"),
        ("position", "<i8"),
        ("size", "<u4"),
        ("minute", "<u4"),
        ("subject", "<u4"),
    ]
)
"""As in storage, which the sender does not know."""

HELLO = Hello(group="dg1", epoch=3, node_id="n1")


QUICK = SenderConfig(retry_base_s=0.1, retry_max_s=1.0, reconnect_base_s=0.1, reconnect_max_s=1.0)
"""For tests in which something is to be tried again soon."""


class Wall:
    """A wall clock that can be set."""

    def __init__(self) -> None:
        self._offset_ms = EPOCH_MS
        self._stepped: tuple[float, int] = (-1.0, 0)

    def now_ms(self) -> int:
        return int(trio.current_time() * 1000 + 1e-6) + self._offset_ms

    def boot_ms(self) -> int:
        return int(trio.current_time() * 1000)

    def boot_id(self) -> str:
        return "boot 1"

    def synchronised(self) -> bool:
        return True

    def step(self, ms: int) -> None:
        latest_ms = self.latest_ms()
        self._offset_ms += ms
        # It may be set more than once in a moment.
        self._stepped = (trio.current_time(), max(0, latest_ms - self.now_ms()))

    def latest_ms(self) -> int:
        """The latest time the clock has shown at this moment: before it was set back, if it was."""
        at, back_ms = self._stepped
        return self.now_ms() + (back_ms if at == trio.current_time() else 0)


@dataclass
class Reply:
    """What a script wants done about one request."""

    code: int = 0
    failures: Mapping[bytes, int] = field(default_factory=dict)
    """Item codes by message id."""
    body: bytes | None = None
    """Instead of the failures: any bytes."""
    raw: bytes | None = None
    """Instead of a frame: any bytes."""
    delay_s: float = 0.0
    times: int = 1
    """How often it is answered; 0 is never."""
    cut: int | None = None
    """Close the connection after so many bytes of the answer."""


Script = Callable[[Received], Reply]


def take_all(_request: Received) -> Reply:
    return Reply()


def refuse(code: int, *ids: bytes) -> Reply:
    return Reply(failures=dict.fromkeys(ids, code))


def stay_silent(_request: Received) -> Reply:
    return Reply(times=0)


class FakeBroker(StreamBroker):
    """One broker group's only broker: does with a request what its script says."""

    def __init__(self, name: str, wall: Wall) -> None:
        super().__init__(wall.latest_ms)
        self.name = name
        self.script: Script = take_all
        self.is_refusing = False
        """Connections are refused."""
        self.is_unreachable = False
        """Connections are neither made nor refused."""
        self.connects: list[float] = []

    @property
    def ids(self) -> list[bytes]:
        """Every message id received, in order."""
        return [message_id for request in self.requests for message_id in request.ids]

    @property
    def is_silent(self) -> bool:
        """Whether it answers no HEARTBEAT either."""
        return self.script is stay_silent

    async def take(self, stream: SharedStream, request: Received, nursery: trio.Nursery) -> None:
        """Answer as the script says, beside other requests."""
        nursery.start_soon(self._answer, stream, request, self.script(request))

    async def _answer(self, stream: SharedStream, request: Received, reply: Reply) -> None:
        await trio.sleep(reply.delay_s)
        refusals = [(message_id, code, "why") for message_id, code in reply.failures.items()]
        data = reply.raw or request.answer(refusals, code=reply.code, body=reply.body)
        for _ in range(reply.times):
            if reply.cut is not None:
                await stream.send_all(data[: reply.cut])
                await stream.close()
                return
            await stream.send_all(data)


def make_refusing(broker: FakeBroker) -> None:
    broker.is_refusing = True


def make_unreachable(broker: FakeBroker) -> None:
    broker.is_unreachable = True


def make_silent(broker: FakeBroker) -> None:
    broker.script = stay_silent


def make_late(broker: FakeBroker) -> None:
    broker.script = lambda _request: Reply(delay_s=6)


def make_cutting(broker: FakeBroker) -> None:
    broker.script = lambda _request: Reply(cut=10)


def make_closing(broker: FakeBroker) -> None:
    broker.script = lambda _request: Reply(cut=0)


def make_erring(broker: FakeBroker) -> None:
    broker.script = lambda _request: Reply(code=ResponseCode.BROKER_ERROR)


def make_rejecting(broker: FakeBroker) -> None:
    broker.script = lambda _request: Reply(code=ResponseCode.BROKER_REJECT)


def make_unknowing(broker: FakeBroker) -> None:
    broker.script = lambda _request: Reply(code=ResponseCode.UNKNOWN_CODE)


def make_read_only(broker: FakeBroker) -> None:
    broker.script = lambda request: refuse(ItemCode.BROKER_READ_ONLY, *request.ids)


def make_garbage(broker: FakeBroker) -> None:
    broker.script = lambda _request: Reply(raw=b"HTTP/1.1 400 Bad Request\r\n\r\n")


def make_garbage_body(broker: FakeBroker) -> None:
    broker.script = lambda _request: Reply(body=b"\x7f\xff")


def make_unheard_of(broker: FakeBroker) -> None:
    broker.script = lambda request: refuse(99, *request.ids)


def make_answering_of_others(broker: FakeBroker) -> None:
    broker.script = lambda _request: refuse(ItemCode.BLOCK, *(b"not-m%d" % n for n in range(5)))


def make_talkative(broker: FakeBroker) -> None:
    """Answer with a row of 11 bytes for each byte of a request, which is far within its bound."""
    row = encode_send_reply([(b"abc", 1, "")])
    broker.script = lambda request: Reply(body=row * (len(request.frame.body) // len(row)))


def make_endless(broker: FakeBroker) -> None:
    """Announce 16 MB in answer to anything, and send some of it."""

    def script(request: Received) -> Reply:
        answer = encode_response(request.frame, code=0, body=bytes(1000))
        return Reply(raw=(16_000_000).to_bytes(4, "big") + answer[4:])

    broker.script = script


def make_deaf(broker: FakeBroker) -> None:
    broker.is_deaf = True


FAULTS: list[Callable[[FakeBroker], None]] = [
    make_refusing,
    make_unreachable,
    make_silent,
    make_late,
    make_cutting,
    make_closing,
    make_erring,
    make_rejecting,
    make_unknowing,
    make_read_only,
    make_garbage,
    make_garbage_body,
    make_unheard_of,
    make_answering_of_others,
    make_talkative,
    make_endless,
    make_deaf,
]


class MemoryNetwork:
    """Connects to fake brokers by host name."""

    def __init__(self, brokers: Iterable[FakeBroker], nursery: trio.Nursery) -> None:
        self._brokers = {broker.name: broker for broker in brokers}
        self._nursery = nursery

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        assert port == 20881
        broker = self._brokers[host]
        broker.connects.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if broker.is_unreachable:
            await trio.sleep_forever()
        if broker.is_refusing:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(broker.serve, theirs)
        return ours

    async def listen(self, host: str, port: int) -> Listener:
        raise NotImplementedError


class ItemStore:
    """The items on disk, and the entries that lead to them."""

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self.damaged: set[int] = set()
        """Sequences whose items cannot be read."""
        self.reads = 0

    def add(self, dues_ms: Sequence[int], *, subject: str = "a.b", size: int = 20) -> Entries:
        """Make an item and an entry for each due time."""
        entries = np.zeros(len(dues_ms), ENTRY)
        for row, due_ms in enumerate(dues_ms):
            sequence = len(self.items)
            item = encode_item(
                Item(
                    flag=FLAG_DELAY,
                    create_ms=EPOCH_MS,
                    due_ms=due_ms,
                    subject=subject,
                    message_id=f"m{sequence}",
                    tags=(),
                    attributes={"k": "v" * size},
                )
            )
            self.items.append(item)
            entries[row] = (sequence, due_ms, sequence, len(item), due_ms // 60_000, 0)
        return entries

    def read(self, entries: Entries) -> tuple["ReadItems", Mask | None]:
        self.reads += 1
        sequences = entries["sequence"].tolist()
        bad = np.array([sequence in self.damaged for sequence in sequences], np.bool_)
        items: list[bytes | memoryview] = [
            memoryview(b"" if is_bad else self.items[sequence])
            for sequence, is_bad in zip(sequences, bad, strict=True)
        ]
        return ReadItems(items), bad if bad.any() else None


class ReadItems:
    """The items of some entries."""

    def __init__(self, items: Sequence[bytes | memoryview]) -> None:
        self.joined = b"".join(items)
        self.sizes = np.array([len(item) for item in items], np.int64)


@dataclass
class Fact:
    """One call of on_outcome, for one entry."""

    sequence: int
    at_ms: int
    group: str
    outcome: Outcome


class Rig:
    """A sender, its brokers, and what came of it."""

    def __init__(
        self,
        brokers: Sequence[FakeBroker],
        nursery: trio.Nursery,
        config: SenderConfig,
        wall: Wall,
        routes: LaneRoutes | None = None,
        *,
        weights: Sequence[float] = (),
        seed: int = 7,
    ) -> None:
        self.wall = wall
        self.brokers = brokers
        self.store = ItemStore()
        self.facts: list[Fact] = []
        self.damages: list[int] = []
        self.dues_ms: list[int] = []
        """When each message offered is due."""
        self._weights = weights
        self.sender = Sender(
            [self.group(number) for number in range(len(brokers))],
            hello=HELLO,
            config=config,
            clock=wall,
            network=MemoryNetwork(brokers, nursery),
            chance=random.Random(seed),
            read_items=self.store.read,
            subject_name=lambda _number: b"a.b",
            on_outcome=self._on_outcome,
            on_damaged=lambda entries: self.damages.extend(entries["sequence"].tolist()),
            on_dead=self._given_up,
            routes=routes,
        )
        # Unless a test says otherwise what is refused for good is tried on.
        self.sender.gives_up = False
        self.dead: dict[int, tuple[Refusal, int]] = {}
        """Of what was given up the last refusal, and how often it was sent."""

    def group(self, number: int, *, at: int | None = None) -> BrokerGroup:
        """Return the group of a broker, maybe at the address of another one."""
        host = self.brokers[number if at is None else at].name
        weight = self._weights[number] if self._weights else 1.0
        return BrokerGroup(name=f"g-b{number}", host=host, port=20881, weight=weight)

    @property
    def offered(self) -> int:
        """How many messages were offered."""
        return len(self.dues_ms)

    def _given_up(
        self, entries: Entries, refusals: Sequence[Refusal], tries: Sequence[int]
    ) -> None:
        sequences = entries["sequence"].tolist()
        assert not self.dead.keys() & set(sequences)
        self.dead |= dict(zip(sequences, zip(refusals, tries, strict=True), strict=True))

    def _on_outcome(self, entries: Entries, at_ms: int, group: str, outcome: Outcome) -> None:
        assert at_ms == self.wall.now_ms()
        self.facts += [Fact(s, at_ms, group, outcome) for s in entries["sequence"].tolist()]

    def offer(
        self,
        count: int,
        *,
        in_ms: int = 0,
        size: int = 20,
        lane: int = 0,
        late: bool = False,
        subject: int = 0,
    ) -> Entries:
        """Offer messages of a subject, by its number, that became due `in_ms` from now."""
        dues_ms = [self.wall.now_ms() + in_ms] * count
        return self.offer_due(dues_ms, size=size, lane=lane, late=late, subject=subject)

    def offer_due(
        self,
        dues_ms: Sequence[int],
        *,
        size: int = 20,
        lane: int = 0,
        late: bool = False,
        subject: int = 0,
    ) -> Entries:
        """Offer messages due at these times."""
        entries = self.store.add(dues_ms, size=size)
        entries["subject"] = subject
        self.dues_ms += dues_ms
        self.sender.offer(entries, lane=lane, late=late)
        return entries

    def delivered(self) -> list[int]:
        """Sequences with an outcome, in order of time."""
        return [fact.sequence for fact in self.facts]

    def assert_all_settled(self) -> None:
        """Every entry offered has exactly one outcome (or damage), and none is left inside."""
        ended = sorted(self.delivered() + self.damages)
        assert ended == list(range(self.offered))
        assert self.sender.unsent().total == 0


class TableRoutes:
    """The lane of a subject is its number, until it is moved; the groups of a lane stand here."""

    def __init__(self, groups: dict[int, list[str]]) -> None:
        self.groups = groups
        self.lanes = np.arange(64, dtype=np.int32)

    def groups_of(self, lane: int) -> dict[str, None]:
        return dict.fromkeys(self.groups.get(lane, []))

    def take_sets(self, group: str, sets: Collection[PatternSet]) -> Iterator[None]:
        del group, sets
        return iter(())

    def lanes_of(self, entries: Entries) -> npt.NDArray[np.int32]:
        lanes: npt.NDArray[np.int32] = self.lanes[entries["subject"]]
        return lanes


@asynccontextmanager
async def rig_of(
    brokers: int = 1,
    *,
    config: SenderConfig | None = None,
    setup: Callable[[Rig], None] | None = None,
    routes: LaneRoutes | None = None,
    weights: Sequence[float] = (),
    seed: int = 7,
) -> AsyncIterator[Rig]:
    """Run a sender in front of this many brokers; `setup` is called before it starts."""
    wall = Wall()
    async with trio.open_nursery() as nursery:
        fakes = [FakeBroker(f"b{number}", wall) for number in range(brokers)]
        rig = Rig(
            fakes, nursery, config or SenderConfig(), wall, routes, weights=weights, seed=seed
        )
        if setup is not None:
            setup(rig)
        await nursery.start(lambda task_status: rig.sender.run(task_status=task_status))
        yield rig
        nursery.cancel_scope.cancel()


def states(rig: Rig) -> list[GroupState]:
    return [status.state for status in rig.sender.status()]
