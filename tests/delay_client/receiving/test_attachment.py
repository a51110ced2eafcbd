"""Promise: leases are renewed, verdicts are gathered, and nothing waits for ever (virtual time)."""

import random

import pytest

from delay_client import ClientConfig, ReceivedMessage, ReceiverConfig, RetryLater
from delay_client.exchange.links import LinkState
from delay_client.messages import clock
from delay_client.messages.clock import wall_ms
from delay_client.receiving.attachment import Attachment, Shared
from delay_protocol.basics.codes import CommandCode
from delay_protocol.messages.items import decode_item
from delay_protocol.receivers.attaching import (
    Attach,
    Attached,
    Flow,
    decode_flow,
    encode_attach_reply,
)
from delay_protocol.receivers.delivering import (
    Settled,
    Verdict,
    decode_settle,
    encode_settle_reply,
)
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_response
from tests.delay_client.fake_delay_server import DUE_MS, deliver, new_item

CONFIG = ReceiverConfig(
    credit_items=100,
    credit_bytes=4 << 20,
    settle_items_max=10,
    settles_in_flight_max=2,
    connecting=ClientConfig(backoff_min_s=1, backoff_max_s=4, probe_max_s=60),
)
TAKES = Flow(items=100, bytes=4 << 20)


class World:
    """An attachment, and what it writes."""

    def __init__(self, config: ReceiverConfig = CONFIG) -> None:
        self.rings = 0
        attach = Attach(name="r", instance=bytes(16))
        self.shared = Shared(
            attach, config, random.Random(1), self._ring, lambda _: False, (), backlog=100, room=100
        )
        self.attachment = Attachment("h:1", self.shared)
        self._decoder = FrameDecoder(frame_bytes_max=1 << 24)

    def _ring(self) -> None:
        self.rings += 1

    def frames(self) -> list[Frame]:
        self._decoder.feed(self.attachment.take_outgoing())
        return self._decoder.frames()

    def attach(
        self, now: float = 0.0, *, lease_s: int = 30, epoch: int = 1, now_ms: int | None = None
    ) -> None:
        self.attachment.connect()
        self.attachment.connected(now)
        [frame] = self.frames()
        assert frame.code == CommandCode.ATTACH
        reply = Attached(group="g", epoch=epoch, lease_s=lease_s, now_ms=now_ms)
        body = encode_attach_reply(reply)
        self.attachment.received(encode_response(frame, code=0, body=body), now)
        self.attachment.poll(now)

    def attached(self, now: float = 0.0, *, lease_s: int = 30, now_ms: int | None = None) -> None:
        """Attach, and read the first FLOW."""
        self.attach(now, lease_s=lease_s, now_ms=now_ms)
        [flow] = self.frames()
        assert decode_flow(flow.body) == TAKES

    def deliver(self, *sequences: int, now: float = 0.0) -> list[ReceivedMessage]:
        data = deliver([(sequence, 1, new_item(sequence)) for sequence in sequences])
        self.attachment.received(data, now)
        assert self.attachment.condemned is None
        return [self.begin() for _ in sequences]

    def receive(self, *sequences: int, now: float = 0.0) -> None:
        """Receive messages that no handler begins."""
        data = deliver([(sequence, 1, new_item(sequence)) for sequence in sequences])
        self.attachment.received(data, now)
        self.attachment.poll(now)
        assert self.attachment.condemned is None

    def attached_with(self, items: int) -> None:
        """Attach, and read the first FLOW."""
        self.attach()
        [flow] = self.frames()
        assert decode_flow(flow.body).items == items

    def begin(self) -> ReceivedMessage:
        """Take the next message, as a handler does."""
        self.attachment.begin()
        return self.shared.todo.popleft()

    def answer(self, frame: Frame, now: float, *, code: int = 0, body: bytes | None = None) -> None:
        data = encode_settle_reply(0, wall_ms()) if body is None else body
        self.attachment.received(encode_response(frame, code=code, body=data), now)
        self.attachment.poll(now)


def test_what_it_takes_is_said_again_before_the_lease_ends() -> None:
    world = World()
    world.attached()
    assert world.attachment.next_event() == 10
    world.attachment.poll(9.9)
    assert world.frames() == []
    world.attachment.poll(10)
    settle, flow = world.frames()
    assert (settle.code, flow.code) == (CommandCode.SETTLE, CommandCode.FLOW)
    world.answer(settle, 10.1)
    assert world.attachment.next_event() == 20


def test_a_server_that_falls_silent_is_left_though_nothing_is_under_way() -> None:
    world = World()
    world.attached()
    world.attachment.poll(10)
    settle, _ = world.frames()
    assert decode_settle(settle.body) == []
    assert world.attachment.next_event() == 10 + CONFIG.answer_timeout_s
    world.attachment.poll(10 + CONFIG.answer_timeout_s)
    assert world.attachment.condemned is not None
    assert world.attachment.condemned.startswith("no answer within")


def test_verdicts_that_wait_for_replicas_are_waited_for_while_the_server_answers() -> None:
    world = World()
    world.attached()
    [message] = world.deliver(1)
    world.attachment.settle(message, Verdict.DONE)
    world.attachment.poll(1)
    world.attachment.poll(1.1)
    [done] = world.frames()
    for second in range(2, 60):
        world.attachment.poll(second)
        for frame in world.frames():
            if frame.code == CommandCode.SETTLE:
                assert decode_settle(frame.body) == []
                world.answer(frame, second)
    assert world.attachment.condemned is None
    assert not world.attachment.is_settled
    world.answer(done, 59.1)
    assert world.attachment.is_settled


def test_a_short_lease_is_renewed_thrice_in_its_time() -> None:
    world = World()
    world.attached(lease_s=6)
    assert world.attachment.next_event() == 2


def test_what_it_takes_is_said_at_once_when_that_changes() -> None:
    world = World()
    world.attached()
    world.shared.pause = Flow(items=0, reason="away")
    world.attachment.poll(1)
    [frame] = world.frames()
    assert frame.is_one_way
    assert decode_flow(frame.body).reason == "away"


def test_a_process_that_stood_still_for_a_lease_leaves() -> None:
    world = World()
    world.attached()
    [message] = world.deliver(1)
    world.attachment.poll(30)
    assert world.attachment.condemned == "nothing was said to it for 30 s"
    assert world.frames() == []
    world.attachment.lost("condemned", 30)
    world.attachment.settle(message, Verdict.DONE)
    assert world.shared.counts.dropped == 1


def test_verdicts_wait_for_others_and_a_full_request_for_nobody() -> None:
    world = World()
    world.attached()
    messages = world.deliver(*range(1, 31))
    world.attachment.settle(messages[0], Verdict.DONE)
    assert world.rings == 1
    world.attachment.poll(1)
    assert world.frames() == []
    assert world.attachment.next_event() == 1.002
    world.attachment.poll(1.002)
    [first] = world.frames()
    assert decode_settle(first.body) == [Settled(1, Verdict.DONE)]
    for message in messages[1:]:
        world.attachment.settle(message, Verdict.RELEASE)
    world.attachment.poll(2)
    [second] = world.frames()
    assert len(decode_settle(second.body)) == 10
    # Two are in flight: the third goes once one is answered.
    assert world.attachment.next_event() == 1.002 + CONFIG.answer_timeout_s / 2
    world.answer(first, 3)
    assert [len(decode_settle(frame.body)) for frame in world.frames()] == [10]
    assert not world.attachment.is_settled


def test_a_message_has_one_verdict() -> None:
    world = World()
    world.attached()
    [message] = world.deliver(1)
    for verdict in (Verdict.REFUSED, Verdict.DONE):
        world.attachment.settle(message, verdict)
    world.attachment.poll(0)
    world.attachment.poll(1)
    [frame] = world.frames()
    assert decode_settle(frame.body) == [Settled(1, Verdict.REFUSED)]


def test_verdicts_that_were_not_kept_go_again_after_a_pause_before_others() -> None:
    world = World()
    world.attached()
    first, second = world.deliver(1, 2)
    world.attachment.settle(first, Verdict.DONE)
    world.attachment.poll(0)
    world.attachment.poll(1)
    [frame] = world.frames()
    world.attachment.settle(second, Verdict.DONE)
    world.answer(frame, 1, code=51, body=b"disk is full")
    again_at = world.attachment.next_event()
    assert 1.5 <= again_at <= 2
    world.attachment.poll(again_at - 0.001)
    assert world.frames() == []
    world.attachment.poll(again_at)
    [frame] = world.frames()
    assert [row.sequence for row in decode_settle(frame.body)] == [1, 2]
    assert world.shared.counts.set_back == 1
    world.answer(frame, again_at, body=encode_settle_reply(1, wall_ms()))
    assert world.attachment.is_settled
    assert world.shared.counts.unknown == 1


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (3, b"", "it answered SETTLE with code 3"),
        (0, b"\x00", "does not speak the protocol"),
        (0, b"\xff" * 4, "does not speak the protocol"),
    ],
)
def test_an_answer_to_verdicts_that_is_none_ends_the_connection(
    code: int, body: bytes, said: str
) -> None:
    world = World()
    world.attached()
    [message] = world.deliver(1)
    world.attachment.settle(message, Verdict.DONE)
    world.attachment.poll(0)
    world.attachment.poll(1)
    [frame] = world.frames()
    world.answer(frame, 1, code=code, body=body)
    assert said in (world.attachment.condemned or "")


def test_an_attach_that_is_not_answered_is_given_up() -> None:
    world = World()
    world.attachment.connect()
    world.attachment.connected(0)
    assert world.attachment.next_event() == 10
    world.attachment.poll(10)
    assert world.attachment.condemned == "no answer within 10 s"


def test_pauses_grow_and_begin_anew_after_an_attachment_that_lasted() -> None:
    world = World()
    pauses = []
    now = 0.0
    for _ in range(4):
        world.attachment.connect()
        world.attachment.lost("refused", now)
        pauses.append(world.attachment.retry_at - now)
        now = world.attachment.retry_at
        assert not world.attachment.wants_connection(now - 0.001)
        assert world.attachment.wants_connection(now)
    for pause, span in zip(pauses, (1, 2, 4, 4), strict=True):
        assert span / 2 <= pause <= span
    world.attached(now)
    world.attachment.lost("closed", now + 4)
    assert world.attachment.retry_at - now - 4 <= 1
    assert world.attachment.state is LinkState.IDLE


def test_a_server_that_says_it_takes_no_receivers_is_asked_seldom() -> None:
    world = World()
    for _ in range(8):
        world.attachment.connect()
        world.attachment.connected(0)
        [frame] = world.frames()
        world.attachment.received(encode_response(frame, code=3, body=b"what?"), 0)
        assert world.attachment.condemned == "it answered ATTACH with code 3 what?"
        world.attachment.lost("condemned", 0)
    assert world.attachment.retry_at >= 30


def test_what_comes_after_the_end_is_not_looked_at() -> None:
    world = World()
    world.attached()
    data = deliver([(1, 1, new_item(1))])
    world.attachment.received(deliver([(2, 0, b"")]) + data, 0)
    assert not world.shared.todo


def test_messages_before_the_attachment_are_no_protocol() -> None:
    world = World()
    world.attachment.connect()
    world.attachment.connected(0)
    world.attachment.received(deliver([(1, 1, new_item(1))]), 0)
    assert "a DELIVER before ATTACH was answered" in (world.attachment.condemned or "")


def test_requests_that_nobody_knows_are_passed_over() -> None:
    world = World()
    world.attached()
    world.attachment.received(encode_response(Frame(1, 9, 77, 1, 1, b""), code=0), 0)
    world.attachment.received(
        b"\x00\x00\x00\x14\x00\x12\xde\xc1\x0a\xde\x07\xd0\x00\x09" + bytes(10), 0
    )
    assert world.attachment.condemned is None


def test_a_later_that_a_server_does_not_take_becomes_a_dead_letter_and_others_go_on() -> None:
    world = World()
    world.attached()
    first, second, third = world.deliver(1, 2, 3)
    for message, verdict, rest in (
        (first, Verdict.DONE, b""),
        (second, Verdict.LATER, b"too late"),
        (third, Verdict.LATER, b"item"),
    ):
        world.attachment.settle(message, verdict, rest)
    world.attachment.poll(0)
    world.attachment.poll(1)
    done, laters = world.frames()
    assert decode_settle(done.body) == [Settled(1, Verdict.DONE)]
    world.answer(done, 1)
    world.answer(laters, 1, code=53, body=b"due beyond the horizon")
    world.attachment.poll(2)
    # Two requests may be in flight.
    one, two = world.frames()
    assert decode_settle(one.body) == [Settled(2, Verdict.LATER, b"too late")]
    assert decode_settle(two.body) == [Settled(3, Verdict.LATER, b"item")]
    world.answer(one, 2, code=53, body=b"due beyond the horizon")
    world.answer(two, 2)
    world.attachment.poll(3)
    world.attachment.poll(4)
    [frame] = world.frames()
    reason = b"given up, since it could not come again: due beyond the horizon"
    assert decode_settle(frame.body) == [Settled(2, Verdict.REFUSED, reason)]
    world.answer(frame, 4)
    assert world.attachment.is_settled
    assert world.attachment.condemned is None


def test_what_cannot_be_put_off_just_now_holds_up_nothing_else() -> None:
    world = World()
    world.attached()
    messages = world.deliver(1, 2, 3, 4)
    world.attachment.settle(messages[0], Verdict.LATER, b"item")
    world.attachment.poll(0)
    world.attachment.poll(1)
    [laters] = world.frames()
    world.answer(laters, 1, code=51, body=b"too few replicas are heard")
    for second, (message, verdict) in enumerate(
        zip(messages[1:], (Verdict.DONE, Verdict.RELEASE, Verdict.REFUSED), strict=True)
    ):
        now = 1 + second / 100
        world.attachment.settle(message, verdict)
        world.attachment.poll(now)
        world.attachment.poll(now + 0.005)
        [frame] = world.frames()
        assert [row.verdict for row in decode_settle(frame.body)] == [verdict]
        world.answer(frame, now + 0.005)
    assert not world.attachment.is_settled
    world.attachment.poll(3)
    [again] = world.frames()
    assert decode_settle(again.body) == [Settled(1, Verdict.LATER, b"item")]
    world.answer(again, 3)
    assert world.attachment.is_settled


def test_no_more_is_asked_for_than_handlers_can_begin_and_not_for_each_message() -> None:
    config = ReceiverConfig()
    world = World(config)
    world.shared.backlog = world.shared.room = 64
    world.shared.takers.extend(range(10))
    world.attach()
    [flow] = world.frames()
    assert decode_flow(flow.body).items == 74
    world.receive(*range(1, 75))
    for _ in range(10):
        # A handler that waited has begun a message.
        world.shared.takers.pop()
        world.begin()
    for number in range(10):
        world.attachment.poll(number)
        assert not [frame for frame in world.frames() if frame.code == CommandCode.FLOW]
    # A loop begins any number of them.
    for _ in range(64):
        world.begin()
    world.attachment.poll(9.5)
    [flow] = [frame for frame in world.frames() if frame.code == CommandCode.FLOW]
    assert decode_flow(flow.body).items == 74 + 64


def test_two_servers_share_what_handlers_can_begin() -> None:
    world = World(ReceiverConfig())
    world.shared.backlog = world.shared.room = 64
    world.attach()
    assert world.attachment.credit.items == 64
    other = Attachment("h:2", world.shared)
    world.shared.attached += 1
    assert (world.attachment.credit.items, other.credit.items) == (32, 32)


def test_what_no_handler_has_begun_for_30_s_goes_back_and_is_not_asked_for() -> None:
    world = World(ReceiverConfig())
    world.shared.backlog = world.shared.room = 64
    world.attached_with(64)
    world.receive(*range(1, 9), now=1)
    begun = [world.begin(), world.begin()]
    assert world.attachment.next_event() == 10
    for now in (10, 20, 30):
        world.attachment.poll(now)
        [settle] = [frame for frame in world.frames() if frame.code == CommandCode.SETTLE]
        assert decode_settle(settle.body) == []
        world.answer(settle, now)
    assert world.attachment.next_event() == 31
    world.attachment.poll(31)
    # In this order, so that they do not come back.
    flow, settle = world.frames()
    said = decode_flow(flow.body)
    assert (said.items, said.reason) == (2, "its handlers have begun nothing for 30 s")
    assert decode_settle(settle.body) == [Settled(one, Verdict.RELEASE) for one in range(3, 9)]
    world.answer(settle, 31.1)
    assert world.attachment.next_event() == 41
    # A handler ends, and asks for another: it grows from there.
    world.attachment.settle(begun[0], Verdict.DONE)
    world.shared.room = 1
    world.attachment.poll(31.2)
    flow, _ = world.frames()
    said = decode_flow(flow.body)
    assert (said.items, said.reason) == (2, "")


def test_verdicts_that_a_server_cannot_keep_do_not_take_the_place_of_messages() -> None:
    world = World(ReceiverConfig())
    world.shared.backlog = world.shared.room = 64
    world.attached_with(64)
    for message in world.deliver(*range(1, 33)):
        world.attachment.settle(message, Verdict.LATER, b"item")
    world.attachment.poll(0)
    world.attachment.poll(1)
    [laters] = [frame for frame in world.frames() if frame.code == CommandCode.SETTLE]
    world.answer(laters, 1, code=51, body=b"too few replicas are heard")
    [flow] = world.frames()
    assert decode_flow(flow.body).items == 32 + 64


@pytest.mark.parametrize("behind_ms", [3_600_000, -3_600_000])
def test_a_later_and_lateness_count_by_the_clock_of_the_server(
    monkeypatch: pytest.MonkeyPatch, behind_ms: int
) -> None:
    noon_ms = DUE_MS + 200
    monkeypatch.setattr(clock, "wall_ms", lambda: noon_ms - behind_ms)
    monkeypatch.setattr(clock, "boot_ms", lambda: 5_000)
    world = World()
    world.attached(now_ms=noon_ms)
    kept = new_item(1)
    world.attachment.received(deliver([(1, 1, kept)]), 0.0)
    message = world.begin()
    message.read()
    assert message.lateness == 0.2
    message.failed(RetryLater(1))
    world.attachment.poll(0.0)
    world.attachment.poll(1.0)
    [settle] = world.frames()
    [settled] = decode_settle(settle.body)
    assert (settled.verdict, decode_item(settled.rest).due_ms) == (Verdict.LATER, noon_ms + 1000)
    # The answer says anew what the clock shows: it was set meanwhile.
    world.answer(settle, 1.0, body=encode_settle_reply(0, noon_ms + 60_000))
    assert world.attachment.now_ms() == noon_ms + 60_000
