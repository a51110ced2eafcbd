"""Promise: every message gets exactly one outcome, in its place, in its time, whatever happens.

The exchange does no I/O: these tests play network and clock.
"""

import math
import random
from dataclasses import dataclass, field

import pytest

from delay_client import (
    ClientClosed,
    ClientConfig,
    IllegalSubject,
    NotADelayServer,
    Outcome,
    Overloaded,
    Receipt,
    Refused,
    RetryableError,
    TimedOut,
    Unavailable,
)
from delay_client.exchange.batches import Batch, BatchLink, Collection, Waiter
from delay_client.exchange.exchange import Exchange
from delay_client.exchange.links import IllegalLinkMoveError
from delay_protocol.basics.codes import CommandCode
from delay_protocol.messages.items import Item, encode_item
from delay_protocol.messages.send_message import encode_send_reply
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_response
from tests.delay_client.conftest import HELLO, broker_reply, hello_reply
from tests.seeds import each_seed

CONFIG = ClientConfig(
    timeout_s=10,
    try_timeout_s=4,
    backoff_min_s=0.1,
    backoff_max_s=1,
    requests_in_flight_max=2,
    request_items_max=3,
    linger_s=0.001,
    idle_s=30,
)


def item_of(name: str) -> bytes:
    return encode_item(Item(2, 1000, 2000, "s", name))


def ids_in(request: Frame) -> list[str]:
    """Return the ids of the items of a request: they are all the same size but for the id."""
    names: list[str] = []
    body = request.body
    position = 0
    while position < len(body):
        size = int.from_bytes(body[position + 28 : position + 30], "big")
        names.append(body[position + 30 : position + 30 + size].decode())
        position += 34 + size
    return names


@dataclass
class Wire:
    """One link as the server sees it."""

    exchange: Exchange
    link: BatchLink
    decoder: FrameDecoder = field(default_factory=lambda: FrameDecoder(frame_bytes_max=1 << 20))
    sent: list[Frame] = field(default_factory=list)

    def connect(self, now: float) -> None:
        assert self.exchange.wants_connection(self.link, now)
        self.link.connect()
        self.greet(now)

    def greet(self, now: float) -> None:
        """Connect, and say that this is a delay server."""
        self.hello(now)
        self.exchange.received(self.link, hello_reply(), now)

    def hello(self, now: float) -> None:
        """Connect, and take the question who this is."""
        self.exchange.connected(self.link, now)
        self.decoder = FrameDecoder(frame_bytes_max=1 << 20)
        (frame,) = self.requests()
        assert (frame.code, frame.opaque) == (CommandCode.HELLO, 0)
        self.sent.clear()

    def condemned(self) -> str | None:
        return self.link.condemned

    def requests(self) -> list[Frame]:
        """Return what was written since the last call."""
        self.decoder.feed(self.link.take_outgoing())
        frames = self.decoder.frames()
        self.sent += frames
        return frames

    def answer(self, request: Frame, now: float, *, code: int = 0, body: bytes = b"") -> None:
        self.exchange.received(self.link, encode_response(request, code=code, body=body), now)

    def fail(self, request: Frame, now: float, *failures: tuple[str, int, str]) -> None:
        body = encode_send_reply([(name.encode(), code, said) for name, code, said in failures])
        self.answer(request, now, body=body)


class World:
    """An exchange with its wires, and what was handed in."""

    def __init__(self, *servers: str, config: ClientConfig = CONFIG) -> None:
        servers = servers or ("a:1",)
        self.exchange = Exchange(servers, config=config, chance=random.Random(7))
        self.wires = [Wire(self.exchange, link) for link in self.exchange.routing.links]
        self.progress = 0

    def collection(self) -> Collection:
        return Collection(self._count)

    def submit(self, *names: str, now: float = 0.0, timeout_s: float = 10.0) -> Collection:
        collection = self.collection()
        self.submit_to(collection, *names, now=now, timeout_s=timeout_s)
        return collection

    def submit_to(
        self, collection: Collection, *names: str, now: float = 0.0, timeout_s: float = 10.0
    ) -> None:
        lane = self.exchange.routing.lane_for("s", None)
        batch = Batch(collection, deadline=now + timeout_s, lane=lane)
        start = len(collection._outcomes)
        for position, name in enumerate(names, start):
            batch.add((item_of(name), name, 2000, False), "s", position)
        batch.positions = collection.expect(batch.positions)
        self.exchange.submit(batch, now)

    def offer(self, name: str, now: float, timeout_s: float = 10.0) -> Waiter:
        waiter = Waiter(self._count)
        self.exchange.offer(
            (item_of(name), name, 2000, False), waiter, timeout_s=timeout_s, now=now
        )
        return waiter

    def connect(self, now: float = 0.0) -> None:
        """Connect all links at the same time."""
        for wire in self.wires:
            assert self.exchange.wants_connection(wire.link, now)
            wire.link.connect()
        for wire in self.wires:
            wire.greet(now)

    def run(self, until: float) -> None:
        """Let time pass as a shell does: poll whenever the exchange asks for it."""
        for _ in range(1000):
            if self.exchange.wake_at > until:
                return
            self.exchange.poll(self.exchange.wake_at)
        pytest.fail(f"polled a thousand times up to {self.exchange.wake_at}: it spins")

    def _count(self) -> None:
        self.progress += 1


def asked(*names: str, timeout_s: float = 10.0) -> tuple[World, Collection, Wire, Frame]:
    """Return a world of one server at time 0, connected and asked to take these messages."""
    world = World()
    collection = world.submit(*names, timeout_s=timeout_s)
    (wire,) = world.wires
    wire.connect(0.0)
    (request,) = wire.requests()
    return world, collection, wire, request


def error_of(outcome: Outcome | None) -> RetryableError:
    assert isinstance(outcome, RetryableError)
    return outcome


# The straight way.


def test_nothing_is_connected_before_there_is_something_to_send() -> None:
    world = World()
    link = world.exchange.routing.links[0]
    assert not world.exchange.wants_connection(link, 0.0)
    assert world.exchange.wake_at == math.inf
    world.submit("m1")
    assert world.exchange.wants_connection(link, 0.0)


def test_an_empty_answer_accepts_every_item_in_order() -> None:
    world, collection, wire, request = asked("m1", "m2")
    assert (request.code, request.request_code, request.flag) == (10, 10, 0)
    assert request.body == item_of("m1") + item_of("m2")
    wire.answer(request, 0.1)
    assert collection.outcomes() == [
        Receipt("m1", 2000, "a:1", 1, subject="s"),
        Receipt("m2", 2000, "a:1", 1, subject="s"),
    ]
    assert world.progress == 1


def test_answers_may_come_in_any_order() -> None:
    world = World()
    first = world.submit("m1")
    second = world.submit("m2")
    (wire,) = world.wires
    wire.connect(0.0)
    one, two = wire.requests()
    wire.answer(two, 0.1)
    assert (first.unsettled, second.unsettled) == (1, 0)
    wire.answer(one, 0.2)
    assert first.unsettled == 0


def test_no_more_requests_are_in_flight_than_allowed() -> None:
    world = World()
    for number in range(5):
        world.submit(f"m{number}")
    (wire,) = world.wires
    wire.connect(0.0)
    one, two = wire.requests()
    wire.answer(one, 0.1)
    (three,) = wire.requests()
    assert ids_in(three) == ["m2"]
    wire.answer(two, 0.1)
    assert [ids_in(request) for request in wire.requests()] == [["m3"]]


def test_no_more_bytes_are_in_flight_than_allowed_but_one_request_always_is() -> None:
    world = World(config=ClientConfig(bytes_in_flight_max=10))
    world.submit("m1")
    world.submit("m2")
    (wire,) = world.wires
    wire.connect(0.0)
    (request,) = wire.requests()
    wire.answer(request, 0.1)
    assert len(wire.requests()) == 1


def test_an_answer_nobody_asked_for_is_dropped() -> None:
    _, collection, wire, request = asked("m1")
    stray = Frame(10, 9, 4711, 0, 10, b"")
    wire.answer(stray, 0.1)
    wire.answer(request, 0.1)
    wire.answer(request, 0.1)
    assert collection.unsettled == 0
    assert wire.condemned() is None


def test_a_request_of_the_server_is_no_answer() -> None:
    _, collection, wire, request = asked("m1")
    wire.exchange.received(wire.link, _raw(request), 0.1)
    assert collection.unsettled == 1


def _raw(request: Frame) -> bytes:
    # A frame with flag 0 and our opaque.
    return (
        bytes.fromhex("00000014 0012 dec10ade 0000 0009")
        + request.opaque.to_bytes(4, "big")
        + bytes.fromhex("00000000 000a")
    )


def test_an_answer_is_read_byte_by_byte_too() -> None:
    world, collection, wire, request = asked("m1")
    for byte in encode_response(request, code=0):
        assert collection.unsettled == 1
        world.exchange.received(wire.link, bytes([byte]), 0.1)
    assert collection.unsettled == 0


# Partial failure.


def test_each_item_has_its_own_outcome_and_only_retryable_ones_go_again() -> None:
    world, collection, wire, request = asked("ok", "bad", "dup", "full", "crc", "blocked")
    wire.fail(
        request,
        0.1,
        ("crc", 6, ""),
        ("bad", 3, "message rejected"),
        ("dup", 2, ""),
        ("full", 4, "BROKER_READ_ONLY"),
        ("blocked", 5, "no"),
    )
    assert collection.unsettled == 2
    world.run(1.0)
    (again,) = wire.requests()
    assert again.body == item_of("full") + item_of("crc")
    assert again.opaque != request.opaque
    wire.answer(again, 1.0)
    ok, bad, dup, full, crc, blocked = collection.outcomes()
    assert ok == Receipt("ok", 2000, "a:1", 1, subject="s")
    assert isinstance(bad, IllegalSubject)
    assert dup == Receipt("dup", 2000, "a:1", 1, duplicate=True, subject="s")
    assert full == Receipt("full", 2000, "a:1", 2, subject="s")
    assert crc == Receipt("crc", 2000, "a:1", 2, subject="s")
    assert isinstance(blocked, Refused)
    assert (bad.message_id, blocked.message_id) == ("bad", "blocked")


def test_an_id_given_twice_shares_the_fate_the_answer_tells() -> None:
    world = World()
    collection = world.submit("m1", "m1")
    (wire,) = world.wires
    wire.connect(0.0)
    wire.fail(wire.requests()[0], 0.1, ("m1", 5, ""))
    assert [type(outcome) for outcome in collection.outcomes()] == [Refused, Refused]


def test_a_failure_of_an_item_that_was_not_sent_changes_nothing() -> None:
    world = World()
    collection = world.submit("m1")
    (wire,) = world.wires
    wire.connect(0.0)
    wire.fail(wire.requests()[0], 0.1, ("other", 5, ""))
    assert collection.outcomes() == [Receipt("m1", 2000, "a:1", 1, subject="s")]


# Trying again.


@pytest.mark.parametrize("code", [51, 52])
def test_a_refused_request_is_tried_again_with_the_same_bytes(code: int) -> None:
    world, collection, wire, request = asked("m1", "m2")
    wire.answer(request, 0.1, code=code)
    assert wire.requests() == []
    world.run(0.3)
    (again,) = wire.requests()
    assert again.body == request.body
    wire.answer(again, 0.3)
    assert [outcome.attempts for outcome in collection.outcomes()] == [2, 2]


def test_a_lost_connection_is_made_again_and_what_was_in_flight_goes_again() -> None:
    world, collection, wire, request = asked("m1")
    world.exchange.lost(wire.link, "reset", 0.1)
    assert not world.exchange.wants_connection(wire.link, 0.1)
    world.run(0.3)
    wire.decoder = FrameDecoder(frame_bytes_max=1 << 20)
    wire.connect(0.3)
    (again,) = wire.requests()
    assert again.body == request.body
    # An answer to a request of the old connection has no meaning on the new one.
    wire.answer(again, 0.4)
    assert collection.outcomes() == [Receipt("m1", 2000, "a:1", 2, subject="s")]


def test_half_a_frame_of_the_old_connection_does_not_spoil_the_new_one() -> None:
    world, collection, wire, request = asked("m1")
    world.exchange.received(wire.link, encode_response(request, code=0)[:10], 0.1)
    world.exchange.lost(wire.link, "reset", 0.1)
    world.run(0.3)
    wire.connect(0.3)
    wire.answer(wire.requests()[0], 0.4)
    assert collection.unsettled == 0


def test_a_server_that_does_not_speak_the_protocol_is_left() -> None:
    world = World()
    collection = world.submit("m1")
    (wire,) = world.wires
    wire.connect(0.0)
    wire.requests()
    world.exchange.received(wire.link, b"HTTP/1.1 400 Bad Request\r\n\r\n", 0.1)
    assert wire.link.condemned is not None
    assert "protocol" in wire.link.condemned
    world.exchange.lost(wire.link, wire.link.condemned, 0.1)
    assert wire.condemned() is None
    world.run(20.0)
    (outcome,) = collection.outcomes()
    assert isinstance(outcome, Unavailable)
    assert "does not speak the protocol" in str(outcome)
    assert outcome.maybe_kept


# Who it is.


def test_nothing_is_sent_before_a_server_has_said_that_it_is_one() -> None:
    world = World()
    collection = world.submit("m1")
    (wire,) = world.wires
    wire.link.connect()
    wire.hello(0.0)
    world.run(0.5)
    assert not wire.requests()
    world.exchange.received(wire.link, hello_reply(), 0.5)
    wire.answer(wire.requests()[0], 0.6)
    assert collection.outcomes() == [Receipt("m1", 2000, "a:1", 1, subject="s")]


def test_a_server_that_starts_gets_messages_and_says_itself_what_it_does_with_them() -> None:
    world = World()
    world.submit("m1")
    (wire,) = world.wires
    wire.link.connect()
    wire.hello(0.0)
    world.exchange.received(wire.link, encode_response(HELLO, code=51), 0.1)
    assert ids_in(wire.requests()[0]) == ["m1"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            broker_reply(),
            "a:1 is a broker, not a delay server: give a delay server's address, or the meta",
        ),
        (encode_response(HELLO, code=3), "a:1 is not a delay server (it answers HELLO with code 3"),
        (encode_response(HELLO, code=52), "a:1 is not a delay server (it answers HELLO with code "),
        (b"HTTP/1.1 400 \r\n", "a:1 is an HTTP server, not a delay server (a meta server's goes "),
        (b"-ERR unknown command\r\n", "a:1 is not a delay server (frame length field "),
    ],
)
def test_what_is_no_delay_server_gets_nothing_and_the_error_says_what_it_is(
    answer: bytes, text: str
) -> None:
    world = World()
    collection, waiter = world.submit("m1"), world.offer("m2", 0.0)
    (wire,) = world.wires
    wire.link.connect()
    wire.hello(0.0)
    world.exchange.received(wire.link, answer, 0.1)
    for outcome in (*collection.outcomes(), waiter.outcome):
        assert isinstance(outcome, NotADelayServer)
        assert str(outcome).startswith(text)
        assert outcome.attempts == 0
    assert wire.condemned() is not None
    assert not wire.requests()
    world.exchange.lost(wire.link, str(wire.condemned()), 0.1)
    # What comes soon after is refused at once, what comes later only if it is still none.
    soon = world.submit("m3", now=0.1)
    assert isinstance(soon.outcomes()[0], NotADelayServer)
    later = world.submit("m4", now=3.0)
    wire.connect(3.0)
    wire.answer(wire.requests()[0], 3.1)
    assert later.outcomes() == [Receipt("m4", 2000, "a:1", 1, subject="s")]


def test_a_broker_among_delay_servers_is_done_without() -> None:
    world = World("a:1", "b:1")
    collection = world.submit("m1")
    broker, server = world.wires
    broker.link.connect()
    broker.hello(0.0)
    world.exchange.received(broker.link, broker_reply(), 0.0)
    assert collection.unsettled == 1
    server.connect(0.0)
    server.answer(server.requests()[0], 0.1)
    assert collection.outcomes() == [Receipt("m1", 2000, "b:1", 1, subject="s")]


def test_a_broker_and_nobody_are_both_named_at_the_end() -> None:
    world = World("a:1", "b:1")
    collection = world.submit("m1", timeout_s=0.5)
    broker, nobody = world.wires
    nobody.link.connect()
    world.exchange.lost(nobody.link, "Connection refused", 0.0)
    broker.link.connect()
    broker.hello(0.0)
    world.exchange.received(broker.link, broker_reply(), 0.0)
    world.exchange.lost(broker.link, str(broker.condemned()), 0.0)
    world.run(1.0)
    error = error_of(collection.outcomes()[0])
    assert isinstance(error, Unavailable)
    assert "a:1: is a broker, not a delay server; b:1: Connection refused" in str(error)


def test_who_does_not_say_who_it_is_is_left_and_asked_again() -> None:
    world = World()
    collection = world.submit("m1")
    (wire,) = world.wires
    wire.link.connect()
    wire.hello(0.0)
    hasty = world.submit("m2", timeout_s=1.0)
    world.run(1.0)
    assert isinstance(hasty.outcomes()[0], TimedOut)
    world.run(4.0)
    assert wire.condemned() == "silent for 4 s"
    world.exchange.lost(wire.link, "silent for 4 s", 4.0)
    world.run(4.2)
    wire.connect(4.2)
    wire.answer(wire.requests()[0], 4.3)
    assert collection.unsettled == 0


# Several servers.


@pytest.mark.parametrize("how", ["lost", "51", "52", "item 4"])
def test_another_server_is_asked_after_one_failed(how: str) -> None:
    world = World("a:1", "b:1")
    collection = world.submit("m1")
    first, second = world.wires
    world.connect()
    (request,) = first.requests()
    if how == "lost":
        world.exchange.lost(first.link, "reset", 0.1)
    elif how == "item 4":
        first.fail(request, 0.1, ("m1", 4, ""))
    else:
        first.answer(request, 0.1, code=int(how))
    world.run(0.3)
    assert first.requests() == []
    (again,) = second.requests()
    assert again.body == request.body
    second.answer(again, 0.3)
    assert collection.outcomes() == [Receipt("m1", 2000, "b:1", 2, subject="s")]


def test_a_server_whose_answers_to_probes_come_too_late_is_taken_back() -> None:
    # A backlog as long as the deadline: each probe is a message that has hardly any time left.
    world = World()
    (wire,) = world.wires
    world.submit("full", timeout_s=0.2)
    wire.connect(0.0)
    (request,) = wire.requests()
    wire.fail(request, 0.0, ("full", 4, "BROKER_READ_ONLY"))
    due = wire.link.circuit.last_resort_at
    world.submit("probe", now=due - 0.01, timeout_s=0.012)
    world.exchange.poll(due)
    (probe,) = wire.requests()
    world.exchange.poll(due + 0.003)
    world.submit("next", now=due + 0.004)
    assert wire.requests() == []
    wire.answer(probe, due + 0.005)
    assert [ids_in(request) for request in wire.requests()] == [["next"]]


def test_a_server_in_another_role_is_spared_for_a_while_and_probed_later() -> None:
    world = World("a:1", "b:1")
    first, second = world.wires
    world.submit("m1")
    world.connect()
    first.answer(first.requests()[0], 0.0, code=52)
    world.run(0.0)
    world.submit("m2", now=0.01)
    world.submit("m3", now=0.01)
    assert first.requests() == []
    assert [ids_in(frame) for frame in second.requests()] == [["m1"], ["m2"]]
    world.run(0.2)
    world.submit("m4", now=0.2)
    (probe,) = first.requests()
    assert ids_in(probe) == ["m3"]
    first.answer(probe, 0.3)
    assert [ids_in(frame) for frame in first.requests()] == [["m4"]]


def test_a_server_that_cannot_be_reached_stops_nobody() -> None:
    world = World("a:1", "b:1")
    collection = world.submit("m1")
    first, second = world.wires
    first.link.connect()
    world.exchange.lost(first.link, "Connection refused", 0.0)
    second.connect(0.0)
    second.answer(second.requests()[0], 0.1)
    assert collection.outcomes() == [Receipt("m1", 2000, "b:1", 1, subject="s")]


# Time.


def test_a_request_without_an_answer_is_tried_again_and_a_silent_connection_given_up() -> None:
    world = World()
    collection = world.submit("m1")
    (wire,) = world.wires
    wire.connect(0.0)
    wire.requests()
    world.run(3.99)
    assert wire.condemned() is None
    world.run(4.0)
    assert wire.condemned() == "silent for 4 s"
    assert not wire.requests()
    world.exchange.lost(wire.link, str(wire.condemned()), 4.0)
    world.run(4.5)
    wire.connect(4.5)
    wire.answer(wire.requests()[0], 4.6)
    assert collection.outcomes() == [Receipt("m1", 2000, "a:1", 2, subject="s")]


def test_a_connection_that_answers_others_survives_a_request_that_is_late() -> None:
    world = World()
    late = world.submit("m1")
    other = world.submit("m2")
    (wire,) = world.wires
    wire.connect(0.0)
    slow, quick = wire.requests()
    wire.answer(quick, 1.0)
    world.run(4.3)
    assert wire.condemned() is None
    (again,) = wire.requests()
    assert again.body == slow.body
    wire.answer(slow, 4.4)
    assert late.unsettled == 1
    wire.answer(again, 4.5)
    assert (late.unsettled, other.unsettled) == (0, 0)


def test_out_of_time_in_flight_is_timed_out_and_may_have_been_kept() -> None:
    world = World()
    collection = world.submit("m1", timeout_s=2.0)
    (wire,) = world.wires
    wire.connect(0.0)
    wire.requests()
    world.run(1.99)
    assert collection.unsettled == 1
    world.run(2.0)
    error = error_of(collection.outcomes()[0])
    assert isinstance(error, TimedOut)
    assert isinstance(error, TimeoutError)
    assert error.maybe_kept
    assert (error.message_id, error.attempts, error.server) == ("m1", 1, "a:1")
    assert "same message id" in str(error)


def test_what_a_server_said_is_told_also_if_it_answers_no_more() -> None:
    world, collection, wire, request = asked("m1", timeout_s=6.0)
    wire.answer(request, 0.5, code=51, body=b"this node is a slave")
    world.run(5.9)
    assert wire.requests()
    world.run(6.0)
    error = error_of(collection.outcomes()[0])
    assert isinstance(error, TimedOut)
    assert "a:1 did not answer in time" in str(error)
    assert "a:1 takes no messages (code 51): 'this node is a slave'" in str(error)


def test_out_of_time_without_a_server_is_unavailable_and_was_not_kept() -> None:
    world = World("a:1", "b:1")
    collection = world.submit("m1")
    for wire in world.wires:
        wire.link.connect()
        world.exchange.lost(wire.link, "Connection refused", 0.0)
    world.run(10.0)
    error = error_of(collection.outcomes()[0])
    assert isinstance(error, Unavailable)
    assert not error.maybe_kept
    assert error.attempts == 0
    assert "a:1: Connection refused; b:1: Connection refused" in str(error)


def test_out_of_time_after_51_is_overloaded() -> None:
    world = World()
    collection = world.submit("m1", timeout_s=0.5)
    (wire,) = world.wires
    wire.connect(0.0)
    now = 0.0
    while collection.unsettled:
        for request in wire.requests():
            wire.answer(request, now, code=51)
        now = world.exchange.wake_at
        world.exchange.poll(now)
    assert now == 0.5
    error = error_of(collection.outcomes()[0])
    assert isinstance(error, Overloaded)
    assert not error.maybe_kept
    assert error.attempts > 1


def test_out_of_time_before_it_was_its_turn_is_overloaded() -> None:
    world = World()
    world.submit("m1")
    world.submit("m2")
    collection = world.submit("m3", timeout_s=1.0)
    (wire,) = world.wires
    wire.connect(0.0)
    assert len(wire.requests()) == 2
    world.run(1.0)
    error = error_of(collection.outcomes()[0])
    assert isinstance(error, Overloaded)
    assert error.attempts == 0


def test_an_unused_connection_is_closed_without_a_grudge() -> None:
    world = World()
    collection = world.submit("m1")
    (wire,) = world.wires
    wire.connect(0.0)
    wire.answer(wire.requests()[0], 1.0)
    world.run(30.9)
    assert wire.condemned() is None
    world.run(31.0)
    assert wire.condemned() == "unused"
    world.exchange.lost(wire.link, "unused", 31.0)
    assert not world.exchange.wants_connection(wire.link, 31.0)
    world.submit("m2", now=31.0)
    assert world.exchange.wants_connection(wire.link, 31.0)
    assert collection.unsettled == 0


def test_a_week_without_a_server_is_survived() -> None:
    world = World()
    world.submit("m1", timeout_s=1e9)
    (wire,) = world.wires
    now = 0.0
    for _ in range(3000):
        wire.link.connect()
        world.exchange.lost(wire.link, "Connection refused", now)
        now += 1.0
        assert world.exchange.wants_connection(wire.link, now)


# Single messages.


def test_a_lone_message_goes_at_the_next_poll_and_takes_its_neighbours_along() -> None:
    world = World()
    waiters = [world.offer(name, 0.0) for name in ("m1", "m2")]
    assert world.exchange.wake_at == 0.0
    world.run(0.0)
    (wire,) = world.wires
    wire.connect(0.0)
    (request,) = wire.requests()
    assert ids_in(request) == ["m1", "m2"]
    wire.fail(request, 0.1, ("m2", 3, "no"))
    assert waiters[0].receipt() == Receipt("m1", 2000, "a:1", 1)
    with pytest.raises(IllegalSubject, match="no"):
        waiters[1].receipt()


def test_while_a_request_is_in_flight_messages_linger_to_share_the_next() -> None:
    world = World()
    world.submit("m0")
    (wire,) = world.wires
    wire.connect(0.0)
    wire.requests()
    world.offer("m1", 0.0)
    world.offer("m2", 0.0005)
    world.run(0.0009)
    assert wire.requests() == []
    world.run(0.001)
    assert [ids_in(frame) for frame in wire.requests()] == [["m1", "m2"]]


def test_while_nothing_can_go_out_messages_gather_until_there_is_room() -> None:
    world = World()
    world.submit("m0")
    world.submit("m00")
    (wire,) = world.wires
    wire.connect(0.0)
    one, _ = wire.requests()
    world.offer("m1", 0.0)
    world.run(0.005)
    world.offer("m2", 0.005)
    world.run(0.01)
    wire.answer(one, 0.01)
    assert [ids_in(frame) for frame in wire.requests()] == [["m1", "m2"]]


def test_while_a_server_is_spared_messages_gather() -> None:
    # Else an outage leaves a request for each call, and these go out a few at a time.
    world = World()
    (wire,) = world.wires
    world.submit("full", timeout_s=0.01)
    wire.connect(0.0)
    (request,) = wire.requests()
    wire.fail(request, 0.0, ("full", 4, "BROKER_READ_ONLY"))
    due = wire.link.circuit.last_resort_at
    world.offer("m1", due - 0.015)
    world.run(due - 0.015)
    world.offer("m2", due - 0.01)
    world.run(due - 0.01)
    world.run(due + 0.01)
    assert [ids_in(frame) for frame in wire.requests()] == [["m1", "m2"]]


def test_a_full_request_lets_nobody_in() -> None:
    world = World()
    for number in range(4):
        world.offer(f"m{number}", 0.0)
    world.run(0.0)
    (wire,) = world.wires
    wire.connect(0.0)
    assert [ids_in(frame) for frame in wire.requests()] == [["m0", "m1", "m2"], ["m3"]]


def test_messages_with_other_time_outs_travel_apart_and_end_in_their_own_time() -> None:
    world = World()
    hasty = world.offer("m1", 0.0, timeout_s=1.0)
    patient = world.offer("m2", 0.0, timeout_s=5.0)
    world.run(1.0)
    assert isinstance(hasty.outcome, Unavailable)
    assert patient.outcome is None
    world.run(5.0)
    assert isinstance(patient.outcome, Unavailable)


def test_a_cancelled_message_that_was_not_sent_yet_is_not_sent() -> None:
    world = World()
    gone = world.offer("m1", 0.0)
    stays = world.offer("m2", 0.0)
    gone.abandoned = True
    world.run(0.0)
    (wire,) = world.wires
    wire.connect(0.0)
    (request,) = wire.requests()
    assert ids_in(request) == ["m2"]
    wire.answer(request, 0.1)
    assert gone.outcome is None
    assert stays.receipt().message_id == "m2"


def test_a_cancelled_message_is_not_tried_again() -> None:
    world = World()
    waiter = world.offer("m1", 0.0)
    world.run(0.0)
    (wire,) = world.wires
    wire.connect(0.0)
    (request,) = wire.requests()
    waiter.abandoned = True
    wire.answer(request, 0.1, code=51)
    world.run(9.0)
    assert wire.requests() == []


def test_nothing_of_a_cancelled_send_many_is_sent_any_more() -> None:
    world = World()
    collection = world.submit("m1", "m2")
    collection.abandoned = True
    (wire,) = world.wires
    wire.connect(0.0)
    assert wire.requests() == []
    world.submit("m3")
    assert [ids_in(frame) for frame in wire.requests()] == [["m3"]]


# The end.


def test_closing_settles_everything_and_whatever_comes_later() -> None:
    world = World()
    flying = world.submit("m1")
    (wire,) = world.wires
    wire.connect(0.0)
    waiting = world.offer("m2", 0.0)
    world.exchange.close()
    late = world.submit("m3")
    late_waiter = world.offer("m4", 0.0)
    for outcome, name in (
        (flying.outcomes()[0], "m1"),
        (waiting.outcome, "m2"),
        (late.outcomes()[0], "m3"),
        (late_waiter.outcome, "m4"),
    ):
        assert isinstance(outcome, ClientClosed)
        assert outcome.message_id == name


def test_a_shell_that_reports_the_impossible_is_a_bug() -> None:
    world = World()
    with pytest.raises(IllegalLinkMoveError):
        world.exchange.connected(world.exchange.routing.links[0], 0.0)


@pytest.mark.parametrize("servers", [[], "a:1", ["a:1", "a:1"], ["nonsense"]])
def test_a_list_of_servers_that_cannot_work_is_refused(servers: list[str]) -> None:
    with pytest.raises(ValueError, match=r"server|address"):
        Exchange(servers, config=CONFIG, chance=random.Random(1))


@each_seed(40)
def test_whatever_servers_do_every_message_gets_one_outcome_and_receipts_are_true(
    seed: int,
) -> None:
    """Random answers, losses and silences: the server's own list says what it accepted."""
    chance = random.Random(seed)
    world = World("a:1", "b:1", "c:1")
    collection = world.collection()
    waiters: list[Waiter] = []
    accepted: set[str] = set()
    sent: dict[str, bytes] = {}
    count = 0
    now = 0.0
    for turn in range(400):
        if turn < 200:
            names = [f"m{count + n}" for n in range(chance.randrange(4))]
            count += len(names)
            if chance.random() < 0.5 and names:
                world.submit_to(collection, *names, now=now, timeout_s=3.0)
            else:
                waiters += [world.offer(name, now, timeout_s=3.0) for name in names]
        for wire in world.wires:
            _misbehave(world, wire, now=now, chance=chance, accepted=accepted, sent=sent)
        now += chance.choice([0.0, 0.001, 0.05, 0.5])
        world.run(now)
    world.run(now + 10)
    outcomes: list[Outcome | None] = [*collection.outcomes(), *(w.outcome for w in waiters)]
    assert len(outcomes) == count
    assert world.exchange.wake_at > now
    for outcome in outcomes:
        assert outcome is not None
        if isinstance(outcome, Receipt):
            assert outcome.message_id in accepted
        elif isinstance(outcome, RetryableError) and not outcome.maybe_kept:
            assert outcome.message_id not in accepted
    assert sum(isinstance(outcome, Receipt) for outcome in outcomes) > count / 5


def _misbehave(
    world: World,
    wire: Wire,
    *,
    now: float,
    chance: random.Random,
    accepted: set[str],
    sent: dict[str, bytes],
) -> None:
    link = wire.link
    if link.condemned is not None:
        world.exchange.lost(link, link.condemned, now)
    if world.exchange.wants_connection(link, now):
        wire.decoder = FrameDecoder(frame_bytes_max=1 << 20)
        link.connect()
        if chance.random() < 0.7:
            wire.hello(now)
            if chance.random() < 0.9:
                world.exchange.received(link, hello_reply(), now)
        else:
            world.exchange.lost(link, "Connection refused", now)
    for request in wire.requests():
        names = ids_in(request)
        for name in names:
            assert sent.setdefault(name, item_of(name)) in request.body
        match chance.randrange(8):
            case 0:
                wire.answer(request, now, code=51)
            case 1:
                wire.answer(request, now, code=52)
            case 2:
                pass  # Silence.
            case 3:
                accepted.update(names)  # Kept, but the answer is lost.
                world.exchange.lost(link, "reset", now)
                return
            case 4:
                failed = {name for name in names if chance.random() < 0.5}
                accepted.update(set(names) - failed)
                wire.fail(
                    request, now, *((name, chance.choice([3, 4, 5, 6]), "") for name in failed)
                )
            case _:
                accepted.update(names)
                wire.answer(request, now)
