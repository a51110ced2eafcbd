"""Promise: each change gets one outcome that no master contradicts; a silent group leaves doubts.

The exchange does no I/O: these tests play network and clock.
"""

import random
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from delay_client import (
    Changed,
    ChangeOutcome,
    ChangeState,
    ClientClosed,
    ClientConfig,
    MessageName,
    NoRoute,
    OtherCluster,
    Refused,
)
from delay_client.exchange.asking import ChangeCall
from delay_client.messages.cancel_tokens import Place, cluster_hash, encode_token
from delay_client.messages.changed import Named, When, wanted
from delay_protocol.basics.codes import CommandCode
from delay_protocol.messages.changes import (
    CHANGES_MAX,
    Change,
    ChangeReply,
    ChangeResult,
    decode_change,
    encode_change_reply,
)
from delay_protocol.wire.frames import Frame, encode_response
from delay_protocol.wire.hello import Hello, encode_hello
from tests.delay_client.conftest import HELLO
from tests.delay_client.exchange.test_exchange import Wire
from tests.delay_client.exchange.test_exchange import World as SendWorld
from tests.delay_client.meta_world import World as MetaWorld

NOW_MS = 1_700_000_000_000
DUE = datetime.fromtimestamp(NOW_MS / 1000 + 3600, UTC)
ONE = MessageName("s", "m1", DUE)


class World(SendWorld):
    """Calls that change messages, and the wires to the masters."""

    def change(
        self, *asked: tuple[Named, When | None], now: float = 0.0, timeout_s: float = 10.0
    ) -> ChangeCall:
        changes = [wanted(named, to, NOW_MS) for named, to in asked]
        call = ChangeCall(changes, timeout_s=timeout_s, now=now, on_progress=self._count)
        self.exchange.change(call, now)
        return call

    def cancel(self, *named: Named, now: float = 0.0) -> ChangeCall:
        return self.change(*((one, None) for one in named), now=now)

    def connect(self, now: float = 0.0) -> None:
        for wire in self.wires:
            wire.connect(now)


def answer(
    wire: Wire,
    now: float,
    *states: ChangeState,
    request: Frame | None = None,
    since_ms: int = 5,
    **more: object,
) -> None:
    """Answer a request by these states."""
    if request is None:
        [request] = wire.requests()
    rows = [ChangeResult(i, state, **more) for i, state in enumerate(states)]  # type: ignore[arg-type]
    body = encode_change_reply(ChangeReply(results=tuple(rows), facts_since_ms=since_ms))
    wire.answer(request, now, body=body)


def only(call: ChangeCall) -> ChangeOutcome:
    [outcome] = call.outcomes()
    return outcome


def state_of(call: ChangeCall) -> ChangeState:
    outcome = only(call)
    assert isinstance(outcome, Changed), outcome
    return outcome.state


S = ChangeState


def test_each_master_is_asked_over_the_link_that_takes_messages() -> None:
    world = World("a:1", "b:1")
    sent = world.submit("x")
    call = world.cancel(ONE)
    world.connect()
    frames = [wire.requests() for wire in world.wires]
    codes = [[frame.code for frame in one] for one in frames]
    assert codes == [[CommandCode.SEND_MESSAGE, CommandCode.CHANGE], [CommandCode.CHANGE]]
    asked = decode_change(frames[1][0].body)
    assert asked.items == (Change("s", "m1", NOW_MS + 3_600_000, None),)
    world.wires[0].answer(frames[0][0], 1.0)
    assert not sent.unsettled
    answer(world.wires[0], 1.0, S.UNKNOWN, request=frames[0][1])
    assert call.parts
    answer(world.wires[1], 1.0, S.CANCELLED, request=frames[1][0], due_ms=7)
    outcome = only(call)
    assert isinstance(outcome, Changed)
    assert (outcome.state, outcome.due_ms, outcome.subject) == (S.CANCELLED, 7, "s")


def test_what_no_group_has_is_unknown_and_it_is_said_how_far_back_all_of_them_know() -> None:
    world = World("a:1", "b:1")
    call = world.cancel(ONE)
    world.connect()
    answer(world.wires[0], 1.0, S.UNKNOWN, since_ms=300)
    answer(world.wires[1], 1.0, S.UNKNOWN, since_ms=100)
    outcome = only(call)
    assert isinstance(outcome, Changed)
    assert (outcome.state, outcome.facts_since_ms) == (S.UNKNOWN, 300)


def test_a_group_without_an_answer_leaves_a_doubt_unless_another_knows_the_message() -> None:
    world = World("a:1", "b:1")
    call = world.cancel(ONE)
    world.wires[0].connect(0.0)
    answer(world.wires[0], 1.0, S.UNKNOWN)
    world.exchange.poll(10.9)
    assert call.parts, "the answer put it off"
    world.exchange.poll(11.1)
    outcome = only(call)
    assert isinstance(outcome, Changed)
    assert (outcome.state, "b:1 did not answer in time" in outcome.reason) == (S.IN_DOUBT, True)

    call = world.cancel(ONE, now=20.0)
    link = world.wires[1].link
    link.connect()
    world.exchange.lost(link, "refused", 20.0)
    assert call.parts
    answer(world.wires[0], 20.0, S.DELIVERED)
    assert state_of(call) is S.DELIVERED, "at once, since that group failed already"


def test_the_only_server_that_follows_another_one_leaves_a_doubt_with_its_name() -> None:
    world = World("a:1")
    call = world.cancel(ONE)
    world.connect()
    [wire] = world.wires
    text = b"the master of this group is n2 at b:2"
    wire.answer(wire.requests()[0], 1.0, code=51, body=text)
    world.exchange.poll(2.0)
    wire.answer(wire.requests()[0], 2.0, code=51, body=text)
    world.exchange.poll(12.5)
    outcome = only(call)
    assert isinstance(outcome, Changed)
    assert (outcome.state, text.decode() in outcome.reason) == (S.IN_DOUBT, True)


def test_a_server_that_can_change_nothing_for_long_leaves_a_doubt_in_time() -> None:
    world = World("a:1")
    call = world.cancel(ONE)
    world.connect()
    [wire] = world.wires
    for now in range(1, 10):
        for request in wire.requests():
            wire.answer(request, now, code=51, body=b"too few replicas are heard")
        assert call.parts
        world.exchange.poll(now + 1)
    outcome = only(call)
    assert isinstance(outcome, Changed)
    assert outcome.state is S.IN_DOUBT
    assert "too few replicas are heard" in outcome.reason


def test_a_master_that_is_asked_already_is_not_asked_twice() -> None:
    world = World("a:1", "b:2")
    call = world.cancel(ONE)
    world.connect()
    [request] = world.wires[0].requests()
    text = b"the master of this group is n2 at b:2"
    world.wires[0].answer(request, 1.0, code=51, body=text)
    assert call.parts
    answer(world.wires[1], 1.0, S.CANCELLED)
    assert state_of(call) is S.CANCELLED


def test_servers_that_name_each_other_are_asked_after_a_pause() -> None:
    world = World("a:1", "b:1")
    call = world.cancel(ONE)
    world.connect()
    frames = [wire.requests()[0] for wire in world.wires]
    world.wires[0].answer(frames[0], 0.0, code=51, body=b"the master of this group is n at b:1")
    world.wires[1].answer(frames[1], 0.0, code=51, body=b"the master of this group is n at a:1")
    assert not any(wire.requests() for wire in world.wires)
    assert call.parts
    world.exchange.poll(1.0)
    assert [len(wire.requests()) for wire in world.wires] == [0, 1]


@pytest.mark.parametrize("ends", ["cut", "51", "overdue"])
def test_a_request_without_an_answer_is_asked_again(ends: str) -> None:
    world = World("a:1")
    call = world.cancel(ONE)
    [wire] = world.wires
    wire.connect(0.0)
    [request] = wire.requests()
    if ends == "cut":
        world.exchange.lost(wire.link, "cut", 1.0)
        world.exchange.poll(1.5)
        wire.connect(2.0)
    elif ends == "51":
        wire.answer(request, 1.0, code=51)
    else:
        wire.link.heard_at = 1.0
        world.exchange.poll(4.0)
    world.exchange.poll(5.0)
    assert [frame.body for frame in wire.requests()] == [request.body]
    answer(wire, 5.0, S.CHANGED_BEFORE, request=wire.sent[-1])
    assert state_of(call) is S.CHANGED_BEFORE


def test_a_search_at_all_times_may_take_longer_than_a_try() -> None:
    world = World("a:1")
    call = world.cancel(MessageName("s", "m1"))
    [wire] = world.wires
    wire.connect(0.0)
    world.exchange.poll(9.0)
    assert wire.condemned() is None
    answer(wire, 9.5, S.CANCELLED)
    assert state_of(call) is S.CANCELLED


def test_a_server_that_knows_no_changes_leaves_a_doubt_at_once() -> None:
    world = World("a:1")
    call = world.cancel(ONE)
    [wire] = world.wires
    wire.connect(0.0)
    [request] = wire.requests()
    wire.answer(request, 0.0, code=3)
    assert state_of(call) is S.IN_DOUBT


@pytest.mark.parametrize(
    "rows",
    [
        (),
        (ChangeResult(1, S.CANCELLED),),
        (ChangeResult(0, S.CANCELLED),) * 2 + (ChangeResult(3, S.DEAD),),
    ],
)
def test_an_answer_about_something_else_leaves_a_doubt(rows: tuple[ChangeResult, ...]) -> None:
    world = World("a:1")
    call = world.cancel(ONE)
    [wire] = world.wires
    wire.connect(0.0)
    [request] = wire.requests()
    body = encode_change_reply(ChangeReply(results=rows, facts_since_ms=1))
    wire.answer(request, 0.0, body=body)
    assert state_of(call) is S.IN_DOUBT


def test_what_a_server_cannot_read_is_in_doubt_and_the_others_are_unknown() -> None:
    world = World("a:1")
    call = world.cancel(ONE, MessageName("s", "m2", DUE))
    [wire] = world.wires
    wire.connect(0.0)
    [request] = wire.requests()
    rows = (ChangeResult(0, S.UNKNOWN), ChangeResult(1, S.UNKNOWN, reason="damaged"))
    body = encode_change_reply(ChangeReply(results=rows, facts_since_ms=1))
    wire.answer(request, 0.0, body=body)
    outcomes = [one for one in call.outcomes() if isinstance(one, Changed)]
    assert [(one.state, one.reason) for one in outcomes] == [
        (S.UNKNOWN, ""),
        (S.IN_DOUBT, "damaged"),
    ]


def test_what_is_refused_is_found_among_the_others_which_are_changed() -> None:
    world = World("a:1", config=ClientConfig())
    names = [MessageName("s", f"m{number}", DUE) for number in range(9)]
    call = world.change(*((one, DUE) for one in names))
    [wire] = world.wires
    wire.connect(0.0)
    while requests := wire.requests():
        for request in requests:
            items = decode_change(request.body).items
            if "m3" in [one.message_id for one in items]:
                wire.answer(request, 0.0, code=53, body=b"too far")
            else:
                answer(wire, 0.0, *[S.MOVED] * len(items), request=request)
    outcomes = call.outcomes()
    refused = outcomes.pop(3)
    assert isinstance(refused, Refused)
    assert ("too far" in str(refused), refused.message_id) == (True, "m3")
    assert [one.state for one in outcomes if isinstance(one, Changed)] == [S.MOVED] * 8


def test_of_several_names_the_one_that_needs_attention_counts_and_each_is_told() -> None:
    world = World("a:1")
    call = world.cancel(ONE)
    [wire] = world.wires
    wire.connect(0.0)
    rows = (
        ChangeResult(0, S.CANCELLED, "audit", 1),
        ChangeResult(0, S.SENDING, "mail", 1, 2, "mail", 1500),
        ChangeResult(0, S.DELIVERED, "sms", 1, 2, "sms"),
    )
    [request] = wire.requests()
    body = encode_change_reply(ChangeReply(results=rows, facts_since_ms=1))
    wire.answer(request, 0.0, body=body)
    outcome = only(call)
    assert isinstance(outcome, Changed)
    assert (outcome.state, outcome.to, outcome.retry_after_s) == (S.SENDING, "mail", 1.5)
    states = {name: one.state for name, one in outcome.by_name.items()}
    assert states == {"audit": S.CANCELLED, "mail": S.SENDING, "sms": S.DELIVERED}


def test_many_go_by_due_time_in_requests_of_a_thousand_and_come_back_in_order() -> None:
    world = World("a:1", config=ClientConfig())
    chance = random.Random(1)
    ids = [f"m{number}" for number in range(2 * CHANGES_MAX + 1)]
    moments = [datetime.fromtimestamp(chance.randrange(10**9), UTC) for _ in ids]
    call = world.cancel(*map(MessageName, ["s"] * len(ids), ids, moments))
    [wire] = world.wires
    wire.connect(0.0)
    frames = wire.requests()
    asked = [decode_change(frame.body).items for frame in frames]
    assert list(map(len, asked)) == [CHANGES_MAX, CHANGES_MAX, 1]
    times = [one.due_ms for items in asked for one in items]
    assert all(a is not None and b is not None and a <= b for a, b in pairwise(times))
    for frame, items in zip(frames, asked, strict=True):
        answer(wire, 0.0, *[S.CANCELLED] * len(items), request=frame)
    assert [one.message_id for one in call.outcomes() if isinstance(one, Changed)] == ids


def test_a_request_is_cut_by_bytes_as_well() -> None:
    world = World("a:1")
    named = [MessageName("s", "x" * 32_000 + str(number), DUE) for number in range(50)]
    world.cancel(*named)
    [wire] = world.wires
    wire.connect(0.0)
    assert [len(decode_change(frame.body).items) for frame in wire.requests()] == [32, 18]


def hello(wire: Wire, cluster: str) -> None:
    wire.link.connect()
    wire.exchange.connected(wire.link, 0.0)
    wire.requests()
    body = encode_hello(Hello(group="g", epoch=1, node_id="n", log_uuid="u", cluster=cluster))
    wire.exchange.received(wire.link, encode_response(HELLO, code=52, body=body), 0.0)


def test_a_token_of_another_cluster_is_refused_and_nothing_is_asked() -> None:
    world = World("a:1")
    token = encode_token(Place(cluster_hash("blue"), 1, "s", "m1"))
    mine, any_cluster = (
        encode_token(Place(cluster, 1, "s", "m1")) for cluster in (cluster_hash("red"), 0)
    )
    call = world.cancel(token, mine, any_cluster)
    [wire] = world.wires
    hello(wire, "red")
    requests = wire.requests()
    assert len(requests) == 2
    for request in requests:
        answer(wire, 0.0, S.CANCELLED, request=request)
    other, *rest = call.outcomes()
    assert isinstance(other, OtherCluster)
    assert all(isinstance(one, Changed) for one in rest)


def test_a_delay_counts_by_the_clock_of_the_server_and_a_moment_is_sent_as_it_is() -> None:
    world = World("a:1")
    world.change((ONE, 60), (ONE, DUE))
    [wire] = world.wires
    wire.link._clock.ahead_ms = lambda: 5_000  # type: ignore[method-assign]
    wire.connect(0.0)
    [request] = wire.requests()
    to = [one.to_ms for one in decode_change(request.body).items]
    assert to == [NOW_MS + 65_000, NOW_MS + 3_600_000]


def test_the_end_of_the_client_is_told() -> None:
    world = World("a:1")
    call = world.cancel(ONE)
    world.exchange.close()
    assert isinstance(only(call), ClientClosed)
    assert isinstance(only(world.cancel(ONE)), ClientClosed)


def test_a_change_alone_is_no_trouble_of_messages() -> None:
    told: list[str] = []
    world = World("a:1")
    world.exchange._trouble._on_trouble = told.append
    sent = world.submit("x")
    [wire] = world.wires
    wire.connect(0.0)
    wire.answer(wire.requests()[0], 0.0)
    assert not sent.unsettled
    world.cancel(ONE)
    world.exchange.poll(0.5)
    world.exchange.poll(3.0)
    assert told == []


def test_who_does_not_wait_any_more_has_nothing_asked() -> None:
    world = World("a:1")
    call = world.cancel(ONE)
    call.abandoned = True
    world.exchange.poll(0.0)
    [wire] = world.wires
    assert not call.parts
    assert not world.exchange.wants_connection(wire.link, 0.0)


# With a meta server, which names the masters.


def ask_all(world: MetaWorld, timeout_s: float = 15.0) -> ChangeCall:
    change = wanted(MessageName("s", "m1"), None, world.wall_ms)
    call = ChangeCall([change], timeout_s=timeout_s, now=world.now, on_progress=lambda: None)
    world.exchange.change(call, world.now)
    world.look_round()
    return call


def test_groups_that_no_route_names_are_asked_over_the_links_there_are() -> None:
    world = MetaWorld("a", "b")
    retired = world.add("old:1")
    retired.state = S.CANCELLED
    world.set_masters(a="a:1", b="b:1", old="old:1")
    world.send("m")
    call = ask_all(world)
    world.run(1)
    assert state_of(call) is S.CANCELLED
    assert [len(server.changes) for server in world.servers.values()] == [1, 1, 1]
    assert [len(server.connects) for server in world.servers.values()] == [1, 1, 1]


def test_what_no_master_has_is_unknown_at_once() -> None:
    world = MetaWorld("a", "b")
    call = ask_all(world)
    world.run(1)
    assert state_of(call) is S.UNKNOWN
    # The connections end when nothing is to be asked any more.
    world.run(200)
    assert world.connected_to() == []
    asked = len(world.meta.connects)
    world.run(100)
    assert len(world.meta.connects) == asked


def test_another_master_is_asked_as_soon_as_the_meta_server_tells_of_it() -> None:
    world = MetaWorld("a")
    world.servers["a:1"].mood = "51"
    call = ask_all(world)
    world.run(1)
    assert call.parts
    world.add("a:2").state = S.CANCELLED
    world.set_masters(a="a:2")
    world.run(0.1)
    assert state_of(call) is S.CANCELLED


def test_a_group_that_joins_meanwhile_is_asked_as_well() -> None:
    world = MetaWorld("a", "b")
    world.servers["b:1"].mood = "hangs"
    call = ask_all(world)
    world.run(1)
    world.add("c:1").state = S.MOVED
    world.set_masters(a="a:1", b="b:1", c="c:1")
    world.run(30)
    assert state_of(call) is S.MOVED
    assert len(world.servers["c:1"].changes) == 1


def test_a_group_that_is_away_leaves_a_doubt_and_ends_at_once_where_another_knows() -> None:
    world = MetaWorld("a", "b")
    world.servers["b:1"].mood = "refuses"
    call = ask_all(world)
    world.run(14)
    assert call.parts
    world.run(2)
    assert state_of(call) is S.IN_DOUBT
    world.servers["a:1"].state = S.CANCELLED
    call = ask_all(world)
    world.run(3)
    assert state_of(call) is S.CANCELLED


def test_without_a_meta_server_nothing_is_unknown() -> None:
    world = MetaWorld("a")
    world.meta.mood = "refuses"
    call = ask_all(world)
    world.run(16)
    assert isinstance(only(call), NoRoute)
    world = MetaWorld("a")
    assert ask_all(world).parts
    world.run(1)
    world.meta.mood = "refuses"
    world.cut("meta:20880")
    call = ask_all(world)
    world.run(16)
    outcome = only(call)
    assert isinstance(outcome, Changed)
    assert (outcome.state, "the meta server: " in outcome.reason) == (S.IN_DOUBT, True)
    assert len(world.servers["a:1"].changes) == 2


def test_a_cluster_without_groups_is_said() -> None:
    world = MetaWorld()
    call = ask_all(world)
    world.run(1)
    outcome = only(call)
    assert isinstance(outcome, NoRoute)
    assert "knows no delay group" in str(outcome)
