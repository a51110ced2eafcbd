"""Promise: a producer whose clock is wrong delays by its server's (virtual time)."""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from delay_client import ClientConfig, OutgoingItem, OutgoingMessage, Receipt
from delay_client.exchange.batches import Batch, Collection, Gathering, Lane, Waiter, cut_batches
from delay_client.exchange.exchange import Exchange
from delay_client.messages import clock
from delay_client.messages.item_encoder import DUE_MS_MAX, ItemChecker, ItemEncoder
from delay_client.messages.message_ids import MessageIdMaker
from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.messages.items import (
    FLAG_DELAY,
    Item,
    ItemScan,
    decode_item,
    encode_item,
    scan_items,
)
from delay_protocol.messages.origin import DUE_KEY
from delay_protocol.messages.repeats import is_repeat
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_response
from delay_protocol.wire.hello import Hello, encode_hello

NOON_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
CONFIG = ClientConfig(linger_s=0.0, backoff_min_s=0.1, backoff_max_s=0.1)


@dataclass
class World:
    """An exchange whose machine's clock is wrong, and the one server, whose is right."""

    behind_ms: int = HOUR_MS
    now: float = 0.0
    requests: list[Frame] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.exchange = Exchange(["a:1"], config=CONFIG, chance=random.Random(7))
        self.encoder = ItemEncoder(ids=MessageIdMaker(random.Random(1)), item_bytes_max=1 << 20)
        self._decoder = FrameDecoder(frame_bytes_max=1 << 20)
        [self.link] = self.exchange.routing.links

    def server_ms(self) -> int:
        return NOON_MS + round(self.now * 1000)

    def wall_ms(self) -> int:
        return self.server_ms() - self.behind_ms

    def boot_ms(self) -> int:
        return 7_000 + round(self.now * 1000)

    def offer(self, message: OutgoingMessage) -> Waiter:
        waiter = Waiter(lambda: None)
        encoded = self.encoder.encode(message, self.wall_ms())
        self.exchange.offer(encoded, waiter, subject="s", timeout_s=15.0, now=self.now)
        self.exchange.poll(self.now)
        return waiter

    def connect(self) -> None:
        self.link.connect()
        self.exchange.connected(self.link, self.now)

    def serve(self, *, now_ms: int | None = None, code: int = 0) -> list[Item]:
        """Answer what was asked, and return the items that came."""
        self.exchange.poll(self.now)
        self._decoder.feed(self.link.take_outgoing())
        items: list[Item] = []
        for frame in self._decoder.frames():
            self.requests.append(frame)
            if frame.code == CommandCode.HELLO:
                hello = Hello(group="g", epoch=1, node_id="n", log_uuid="u", now_ms=now_ms)
                answer = encode_response(
                    frame, code=ResponseCode.BROKER_REJECT, body=encode_hello(hello)
                )
            else:
                items += items_of(frame)
                answer = encode_response(frame, code=code, body=b"")
            self.exchange.received(self.link, answer, self.now)
        return items


def items_of(frame: Frame) -> list[Item]:
    scan = ItemScan()
    scan_items(frame.body, scan)
    return [
        decode_item(frame.body[start : start + size])
        for start, size in zip(scan.starts, scan.sizes, strict=True)
    ]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    found = World()
    monkeypatch.setattr(clock, "wall_ms", found.wall_ms)
    monkeypatch.setattr(clock, "boot_ms", found.boot_ms)
    return found


@pytest.mark.parametrize("behind_ms", [HOUR_MS, -HOUR_MS])
def test_a_delay_counts_by_the_clock_of_the_server(world: World, behind_ms: int) -> None:
    """Also of the first message, which is there before any server has said what time it is."""
    world.behind_ms = behind_ms
    at = datetime(2023, 11, 15, tzinfo=UTC)
    first = world.offer(OutgoingMessage("s", "one", delay=1, tags=("t",), headers={"h": "v"}))
    fixed = world.offer(OutgoingMessage("s", "two", at=at))
    world.connect()
    world.serve(now_ms=world.server_ms())
    one, two = world.serve()
    assert (one.due_ms, one.attributes[DUE_KEY]) == (NOON_MS + 1000, str(NOON_MS + 1000))
    assert (one.tags, one.attributes["body"], one.create_ms) == (("t",), "one", world.wall_ms())
    assert two.due_ms == at.timestamp() * 1000
    receipts = first.receipt(), fixed.receipt()
    assert [receipt.due_ms for receipt in receipts] == [one.due_ms, two.due_ms]
    world.now = 10.0
    world.offer(OutgoingMessage("s", "three", delay=timedelta(seconds=2)))
    [three] = world.serve()
    assert three.due_ms == NOON_MS + 12_000


def test_many_at_once_delay_by_it_too(world: World) -> None:
    messages = [OutgoingMessage("s", str(n), delay=n) for n in range(3)]
    messages.insert(1, OutgoingMessage("s", "fixed", at=datetime(2030, 1, 1, tzinfo=UTC)))
    collection = Collection(lambda: None)
    for batch in cut_batches(
        messages,
        collection,
        encoder=world.encoder,
        config=CONFIG,
        wall_ms=world.wall_ms,
        lanes=world.exchange.routing,
    ):
        batch.deadline = 15.0
        world.exchange.submit(batch, 0.0)
    world.connect()
    world.serve(now_ms=world.server_ms())
    items = world.serve()
    due = [NOON_MS, 1_893_456_000_000, NOON_MS + 1000, NOON_MS + 2000]
    assert [item.due_ms for item in items] == due
    outcomes = collection.outcomes()
    assert [one.due_ms for one in outcomes if isinstance(one, Receipt)] == due


def test_every_try_has_the_same_bytes(world: World) -> None:
    world.offer(OutgoingMessage("s", delay=1))
    world.connect()
    world.serve(now_ms=world.server_ms())
    [before] = world.serve(code=ResponseCode.BROKER_ERROR)
    world.behind_ms = -HOUR_MS
    world.now = 1.0
    world.exchange.poll(world.now)
    assert world.serve() == [before]


def test_the_end_of_all_time_is_kept_to(world: World) -> None:
    days = (DUE_MS_MAX - world.wall_ms()) // 86_400_000
    world.offer(OutgoingMessage("s", delay=timedelta(days=days)))
    world.behind_ms = 2 * 86_400_000
    world.connect()
    world.serve(now_ms=world.server_ms())
    assert world.serve()[0].due_ms == DUE_MS_MAX


def test_a_server_that_says_no_time_leaves_the_clock_of_here(world: World) -> None:
    world.offer(OutgoingMessage("s", delay=1))
    world.connect()
    world.serve()
    assert world.serve()[0].due_ms == world.wall_ms() + 1000


def test_a_connection_in_use_asks_for_the_time_each_minute(world: World) -> None:
    world.connect()
    world.serve(now_ms=world.server_ms())
    for second in range(0, 130, 10):
        world.now = second
        world.offer(OutgoingMessage("s", delay=1))
        world.serve(now_ms=world.server_ms() + (HOUR_MS if second >= 60 else 0))
    hellos = [frame for frame in world.requests if frame.code == CommandCode.HELLO]
    assert len(hellos) == 3
    world.offer(OutgoingMessage("s", delay=1))
    assert world.serve()[0].due_ms == world.server_ms() + HOUR_MS + 1000


def test_counting_levels_leaves_an_item_alone_that_is_due_before_1970() -> None:
    """Such as only others write: it goes out byte for byte."""
    data = encode_item(Item(FLAG_DELAY, 1, -(10**11) - 3, "s", "old"))
    encoder = ItemEncoder(ids=MessageIdMaker(random.Random(1)), item_bytes_max=1 << 20)
    batch = Batch(Gathering(), deadline=0, lane=Lane())
    batch.add(ItemChecker().encode(OutgoingItem("s", data), NOON_MS), "s", 0, is_past_due=True)
    by_level = OutgoingMessage("s", level=2)
    batch.add(encoder.encode(by_level, NOON_MS), "s", 1, is_past_due=True)
    size = batch.size
    batch.count_levels((1000, 5000))
    assert batch.items[0] == data
    assert decode_item(batch.items[1]).due_ms == NOON_MS + 5000
    assert batch.due_ms == [-(10**11) - 3, NOON_MS + 5000]
    assert batch.past_due == {"old"}
    assert "dw_delay" not in decode_item(batch.items[1]).attributes
    assert (batch.size, sum(map(len, batch.items))) == (size, size)


def test_the_same_message_of_a_level_is_the_same_item_whether_the_table_was_known_or_not() -> None:
    items = []
    for levels_ms, now_ms in (((1000, 5000), NOON_MS), (None, NOON_MS + 7)):
        encoder = ItemEncoder(
            ids=MessageIdMaker(random.Random(1)),
            item_bytes_max=1 << 20,
            levels_ms=lambda table=levels_ms: table,  # type: ignore[misc]
        )
        batch = Batch(Gathering(), deadline=0, lane=Lane())
        message = OutgoingMessage("s", "x", level=2, message_id="own", attributes={"a": "b"})
        batch.add(encoder.encode(message, now_ms), "s", 0)
        batch.count_levels((1000, 5000))
        items += batch.items
    assert decode_item(items[0]).attributes["dw_delay"] == "5000"
    assert items[0] != items[1]
    assert is_repeat(items[1], items[0])
