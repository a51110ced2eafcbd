"""What a client asks of a meta server when, and what it believes, whatever is answered."""

import random
import time
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta.requests import (
    BrokerGroupInfo,
    BrokerState,
    ClientRegister,
    ClientRegisterReply,
    ClientType,
    OnlineState,
    RegisterType,
    encode_client_register_reply,
)
from delay_protocol.meta.session import MetaSession, MetaSessionConfig, RouteState
from delay_protocol.wire.frames import Frame
from tests.seeds import examples

CALM = MetaSessionConfig(
    heartbeat_s=60,
    answer_timeout_s=5,
    retry_min_s=1,
    retry_max_s=8,
    unused_s=600,
    questions_max=4,
    subjects_max=100,
)


def group(
    name: str = "d1", port: int = 20801, state: BrokerState = BrokerState.RW
) -> BrokerGroupInfo:
    return BrokerGroupInfo(name=name, master=f"10.0.0.1:{port}", updated_ms=1, state=state)


D1 = group("d1", 1)
D2 = group("d2", 2)


def answer(
    subject: str,
    *groups: BrokerGroupInfo,
    timestamp_ms: int = 1000,
    client_type: int = ClientType.DELAY_PRODUCER,
    consumer_group: str = "",
) -> ClientRegisterReply:
    return ClientRegisterReply(
        timestamp_ms=timestamp_ms,
        subject=subject,
        consumer_group=consumer_group,
        online_state=OnlineState.ONLINE,
        client_type=client_type,
        groups=groups,
    )


def session(config: MetaSessionConfig = CALM, *, seed: int = 1) -> MetaSession:
    return MetaSession(
        client_type=ClientType.DELAY_PRODUCER,
        client_id="h@@1",
        app_code="app",
        config=config,
        chance=random.Random(seed),
    )


def subjects(requests: list[ClientRegister]) -> list[str]:
    return [request.subject for request in requests]


def routed(*names: str, config: MetaSessionConfig = CALM) -> MetaSession:
    """Return a connected session that was told d1 for each of these subjects at time 0."""
    asker = session(config)
    asker.connected(0)
    for name in names:
        assert asker.want(name, 0)
        assert subjects(asker.next_requests(0)) == [name]
        assert asker.receive(answer(name, D1), 0) == name
    return asker


def run(asker: MetaSession, since: float, until: float) -> list[tuple[float, str]]:
    """Ask when the session says so, and never answer; return what was asked when."""
    asked = [(since, request.subject) for request in asker.next_requests(since)]
    now = since
    while (at := asker.next_at()) <= until:
        assert at > now, "the session wants to be called again and again"
        now = at
        asked += [(now, request.subject) for request in asker.next_requests(now)]
    return asked


def test_a_subject_is_asked_for_at_once_and_only_once() -> None:
    asker = session()
    asker.connected(0)
    assert asker.next_at() == float("inf")
    assert asker.want("a", 3)
    assert asker.want("a", 3)
    assert asker.next_at() <= 3
    assert asker.next_requests(3) == [
        ClientRegister(
            subject="a",
            client_type=ClientType.DELAY_PRODUCER,
            client_id="h@@1",
            app_code="app",
            register_type=RegisterType.ONLINE,
        )
    ]
    assert asker.next_requests(3) == []
    assert (asker.route("a"), asker.standing("a")) == (None, RouteState.UNKNOWN)


def test_nothing_is_asked_without_a_connection_and_what_was_wanted_meanwhile_at_once_on_one() -> (
    None
):
    asker = session()
    asker.want("a", 0)
    assert (asker.next_at(), asker.next_requests(0)) == (float("inf"), [])
    asker.connected(1)
    assert asker.next_at() <= 1
    assert subjects(asker.next_requests(1)) == ["a"]


def test_an_answer_is_the_route_and_the_next_question_a_heartbeat() -> None:
    asker = routed("a")
    assert (asker.route("a"), asker.standing("a")) == ((D1,), RouteState.ROUTED)
    assert 48 <= asker.next_at() <= 60.1
    [request] = asker.next_requests(61)
    assert request.register_type == RegisterType.HEARTBEAT
    assert asker.receive(answer("a", D1), 61) is None, "nothing has changed"
    assert asker.next_requests(61 + 47) == []


def test_heartbeats_of_many_clients_do_not_stay_in_step() -> None:
    at = set()
    for seed in range(20):
        asker = session(seed=seed)
        asker.connected(0)
        asker.want("a", 0)
        asker.next_requests(0)
        asker.receive(answer("a", D1), 0)
        at.add(asker.next_at())
    assert len(at) > 10
    assert max(at) - min(at) > 5


def test_a_push_changes_the_route_and_not_the_time_of_the_heartbeat() -> None:
    asker = routed("a")
    at = asker.next_at()
    assert asker.receive(answer("a", D2, timestamp_ms=1001), 10) == "a"
    assert asker.route("a") == (D2,)
    assert asker.next_at() == at


@pytest.mark.parametrize(
    ("state", "is_usable"),
    [
        (BrokerState.RW, True),
        (BrokerState.W, True),
        (BrokerState.R, False),
        (BrokerState.NRW, False),
    ],
)
def test_a_producer_keeps_the_groups_that_it_may_write_to(
    state: BrokerState, *, is_usable: bool
) -> None:
    asker = routed("a")
    other = group("d2", 2, state)
    asker.receive(answer("a", D1, other), 1)
    assert asker.route("a") == ((D1, other) if is_usable else (D1,))


def test_groups_without_a_name_or_a_master_are_left_out_and_so_are_too_many() -> None:
    asker = routed("a")
    nameless, nowhere = replace(D1, name=""), replace(D1, master="")
    many = [group(f"d{number}") for number in range(70)]
    asker.receive(answer("a", nameless, nowhere, *many), 1)
    assert asker.route("a") == tuple(many[:64])


def test_a_delay_server_keeps_groups_of_receivers_which_have_no_master() -> None:
    asker = MetaSession(
        client_type=ClientType.DELAY_SERVER, client_id="h@@1", config=CALM, chance=random.Random(1)
    )
    asker.connected(0)
    asker.want("a", 0)
    [request] = asker.next_requests(0)
    assert request.client_type == 100
    mail = replace(D1, name="mail", master="")
    readable = group("d4", state=BrokerState.R)
    told = answer("a", replace(D1, name=""), mail, readable, D2, client_type=100)
    assert asker.receive(told, 0) == "a"
    assert asker.route("a") == (mail, D2)


def test_a_question_that_is_not_answered_is_asked_again_ever_less_often() -> None:
    asker = session()
    asker.connected(0)
    asker.want("a", 0)
    asked = [at for at, _ in run(asker, 0, 200)]
    gaps = [after - before for before, after in pairwise(asked)]
    assert len(gaps) >= 5
    for failures, gap in enumerate(gaps):
        pause = min(8, 2**failures)
        assert 5 + pause / 2 <= gap <= 5 + pause + 0.2


def test_a_question_is_given_up_at_the_very_moment_that_is_named_for_it() -> None:
    # Rounded, asked_at + 5 - 5 is below asked_at.
    asked_at = 0.13436424411240122
    asker = session()
    asker.connected(asked_at)
    asker.want("a", asked_at)
    assert len(asker.next_requests(asked_at)) == 1
    asker.next_requests(asker.next_at())
    assert asker.next_at() > asked_at + CALM.answer_timeout_s


def test_a_refusal_is_told_with_its_reason_and_asked_again_after_a_pause() -> None:
    asker = session()
    asker.connected(0)
    asker.want("a", 0)
    asker.next_requests(0)
    asker.refused("a", 0, "too many subjects" + "!" * 1000)
    assert asker.standing("a") is RouteState.REFUSED
    assert asker.reason("a").startswith("too many subjects!")
    assert len(asker.reason("a")) == 200
    assert 0.5 <= asker.next_at() <= 1.1
    assert subjects(asker.next_requests(1.1)) == ["a"]
    asker.receive(answer("a", D1), 2)
    assert (asker.standing("a"), asker.reason("a")) == (RouteState.ROUTED, "")


def test_a_refused_subject_keeps_the_route_it_had() -> None:
    asker = routed("a")
    asker.next_requests(61)
    assert asker.receive(answer("a", timestamp_ms=-2), 61) is None
    assert asker.route("a") == (D1,)
    assert (asker.standing("a"), bool(asker.reason("a"))) == (RouteState.ROUTED, True)
    assert asker.next_at() <= 62.1, "asked again after a pause"


def test_a_subject_refused_for_good_is_barred_until_it_has_a_route() -> None:
    asker = session()
    asker.connected(0)
    asker.want("a", 0)
    assert subjects(asker.next_requests(0)) == ["a"]
    assert asker.receive(answer("a", timestamp_ms=-2), 0) == "a"
    assert (asker.standing("a"), asker.is_barred("a")) == (RouteState.REFUSED, True)
    assert asker.next_at() >= 48, "it is asked again at heartbeats only"
    assert subjects(asker.next_requests(60)) == ["a"]
    assert asker.receive(answer("a", timestamp_ms=-2), 60) is None
    # Of a new connection it has its turn with those that have a route.
    asker.connected(70)
    assert asker.want("b", 70)
    assert subjects(asker.next_requests(70)) == ["b", "a"]
    assert asker.receive(answer("a", D1), 70) == "a"
    assert (asker.route("a"), asker.is_barred("a")) == ((D1,), False)


def test_who_is_new_does_not_wait_for_those_that_were_put_off() -> None:
    config = replace(CALM, questions_max=1000, subjects_max=1000, retry_max_s=1)
    asker = routed("known", config=config)
    flood = [f"flood.{n}" for n in range(400)]
    for name in flood:
        asker.want(name, 0)
    assert subjects(asker.next_requests(0, 1000)) == flood
    for name in flood:
        asker.refused(name, 0, "too many are new")
    # A meta server takes 250 a second.
    asked_in = [len(asker.next_requests(now, 1000)) for now in (1, 2, 3, 4)]
    assert max(asked_in) < 180
    asker.want("new", 4)
    assert subjects(asker.next_requests(10, 1)) == ["new"]
    asker.connected(11)
    assert len(asker.next_requests(11, 1000)) == 402, "all are asked anew"


def asked(asker: MetaSession, reply: ClientRegisterReply, now: float) -> str | None:
    """Have a subject asked for on a new connection, and answered."""
    asker.disconnected(now)
    asker.connected(now)
    assert reply.subject in subjects(asker.next_requests(now))
    return asker.receive(reply, now)


def test_an_empty_answer_takes_no_route_away_but_an_empty_push_does() -> None:
    # Only a meta server that knows that the last group is gone says so unasked.
    asker = routed("a")
    assert asked(asker, answer("a"), 1) is None
    assert asker.route("a") == (D1,)
    assert 48 <= asker.next_at() - 1 <= 60.1
    assert asker.receive(answer("a"), 2) == "a"
    assert (asker.route("a"), asker.standing("a")) == ((), RouteState.NONE)
    assert asked(asker, answer("a", D1), 3) == "a"


def test_the_first_answer_is_believed_though_it_is_empty() -> None:
    asker = session()
    asker.want("a", 0)
    assert asker.receive(answer("a"), 0) == "a"
    assert asker.route("a") == ()


def test_a_list_of_groups_that_are_all_read_only_is_believed_at_once() -> None:
    asker = routed("a")
    assert asker.receive(answer("a", replace(D1, state=BrokerState.R)), 1) == "a"
    assert asker.route("a") == ()


def test_what_was_never_wanted_is_a_stray() -> None:
    asker = routed("a")
    asker.receive(answer("b", D1), 1)
    asker.receive(answer("a", D2, client_type=ClientType.PRODUCER), 1)
    asker.receive(answer("a", D2, consumer_group="g"), 1)
    asker.refused("a", 1)
    assert asker.route("a") == (D1,)


def test_on_a_new_connection_all_are_asked_anew_and_those_without_a_route_first() -> None:
    names = [f"s{number}" for number in range(10)]
    asker = routed(*names)
    asker.disconnected(1)
    asker.want("new", 1)
    assert asker.next_at() == float("inf")
    assert [asker.route(name) for name in names] == [(D1,)] * 10
    asker.connected(100)
    assert subjects(asker.next_requests(100)) == ["new", "s0", "s1", "s2"]
    assert asker.next_requests(100) == [], "so many may be unanswered"
    for number, name in enumerate(names[3:]):
        assert asker.receive(answer(names[number], D1), 100) is None
        assert subjects(asker.next_requests(100)) == [name]
    for name in names[7:]:
        asker.receive(answer(name, D1), 100)
    assert asker.next_requests(100) == [], "each is asked once"


def test_what_was_asked_on_a_lost_connection_is_asked_again_on_the_next() -> None:
    asker = session()
    asker.connected(0)
    asker.want("a", 0)
    assert asker.next_requests(0)
    asker.disconnected(1)
    asker.connected(1)
    assert subjects(asker.next_requests(1)) == ["a"]


def test_a_pause_that_one_connection_wanted_does_not_hold_on_the_next() -> None:
    asker = session()
    asker.connected(0)
    asker.want("a", 0)
    for now in range(0, 100, 10):
        asker.next_requests(now)
        asker.refused("a", now)
    asker.disconnected(91)
    asker.connected(91)
    assert subjects(asker.next_requests(91)) == ["a"]


def test_questions_are_limited_and_the_others_wait_for_answers() -> None:
    asker = session()
    asker.connected(0)
    for number in range(10):
        asker.want(f"s{number}", 0)
    assert len(asker.next_requests(0, at_most=3)) == 3
    assert len(asker.next_requests(0)) == 1
    assert asker.next_requests(0) == []
    assert asker.next_at() == 5, "when the oldest question is given up"
    asker.receive(answer("s0", D1), 1)
    assert subjects(asker.next_requests(1)) == ["s4"]


def test_subjects_are_limited() -> None:
    asker = session()
    assert all(asker.want(f"s{number}", 0) for number in range(100))
    assert not asker.want("one more", 0)
    assert asker.want("s1", 0)
    asker.drop("s2")
    assert asker.want("one more", 0)


def test_a_dropped_subject_is_not_asked_for_wherever_it_was() -> None:
    asker = routed("scheduled")
    asker.want("urgent", 1)
    asker.drop("urgent")
    asker.drop("scheduled")
    asker.drop("never wanted")
    assert asker.next_requests(100) == []
    asker.want("asked", 100)
    asker.next_requests(100)
    asker.drop("asked")
    assert asker.receive(answer("asked", D1), 101) is None
    assert run(asker, 100, 300) == []
    asker.disconnected(300)
    asker.connected(300)
    assert run(asker, 300, 400) == []


def test_a_subject_wanted_again_is_asked_for_once() -> None:
    asker = session()
    asker.connected(0)
    asker.want("a", 0)
    asker.drop("a")
    asker.want("a", 0)
    assert subjects(asker.next_requests(0)) == ["a"]


def test_what_nobody_wanted_for_long_is_forgotten() -> None:
    asker = routed("a", "b")
    asker.want("b", 500)
    assert asker.forget_unused(599) == []
    assert asker.forget_unused(600, at_most=1) in (["a"], [])
    assert set(asker.forget_unused(600) + asker.forget_unused(600)) <= {"a"}
    assert (len(asker), asker.route("a"), asker.route("b")) == (1, None, (D1,))


def test_a_connection_on_which_nothing_is_answered_is_given_up() -> None:
    asker = session()
    asker.connected(0)
    assert asker.stalls_at() == float("inf")
    asker.want("a", 7)
    asker.next_requests(7)
    assert asker.stalls_at() == 12
    asker.receive(answer("somebody else's", D1), 8)
    assert asker.stalls_at() == float("inf"), "it lives"
    asker.want("b", 9)
    asker.next_requests(9)
    asker.disconnected(10)
    assert asker.stalls_at() == float("inf")


# Frames.


def framed(reply: ClientRegisterReply) -> Frame:
    return Frame(0, 9, 1, 1, CommandCode.CLIENT_REGISTER, encode_client_register_reply(reply))


def test_it_takes_answers_pushes_and_refusals_as_frames() -> None:
    asker = session()
    asker.connected(0)
    for name in ("a", "b"):
        asker.want(name, 0)
    asker.next_requests(0)
    assert asker.answered("a", framed(answer("a", D1)), 1) == "a"
    assert asker.answered("b", Frame(51, 9, 2, 1, 35, b"not now\xff"), 1) is None
    assert asker.reason("b") == "not now\ufffd"
    assert asker.answered(None, framed(answer("a", D2)), 1) == "a"


def test_it_survives_frames_that_cannot_be_read() -> None:
    asker = session()
    asker.connected(0)
    asker.want("a", 0)
    asker.next_requests(0)
    nonsense = Frame(0, 9, 77, 1, 35, b"nonsense")
    assert asker.answered(None, nonsense, 1) is None
    assert asker.answered(None, Frame(51, 9, 77, 1, 35, b""), 1) is None
    assert asker.standing("a") is RouteState.UNKNOWN
    assert asker.answered("a", nonsense, 1) is None
    assert asker.standing("a") is RouteState.REFUSED
    assert subjects(asker.next_requests(3)) == ["a"]


# Size.


@pytest.mark.long
def test_a_hundred_thousand_subjects_are_small_and_no_call_takes_long() -> None:
    count = 100_000
    names = [f"orders.region.{number}" for number in range(count)]
    config = MetaSessionConfig()
    asker = session(config)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    asker.connected(0)
    for name in names:
        asker.want(name, 0)
    answered = 0
    while answered < count:
        for request in asker.next_requests(1, 256):
            # As decoded from a frame: objects of its own.
            reply = answer(
                request.subject, replace(D1), replace(D2), timestamp_ms=10**12 + answered
            )
            asker.receive(reply, 1)
            answered += 1
    size = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    assert size < 500
    worst = 0.0
    asker.disconnected(2)
    asker.connected(2)
    now = 2.0
    asked = 0
    while asked < count and now < 30:
        now = max(now + 0.005, min(asker.next_at(), now + 1))
        start = time.thread_time()
        found = asker.next_requests(now, 64)
        worst = max(worst, time.thread_time() - start)
        asked += len(found)
        for request in found:
            asker.receive(answer(request.subject, D1, D2, timestamp_ms=2 * 10**12), now)
    assert asked == count
    assert worst < 0.05, "64 questions take 0.1 ms of CPU"


def test_churn_does_not_fill_the_memory() -> None:
    asker = session(replace(CALM, questions_max=1000))
    asker.connected(0)
    now = 0.0
    for turn in range(20_000):
        now += 0.001
        name = f"s{turn % 50}"
        asker.want(name, now)
        for request in asker.next_requests(now):
            asker.receive(answer(request.subject, D1), now)
        asker.drop(name)
    assert len(asker._timed) < 2000


# Anything, in any order.


NAMES = st.sampled_from([f"s{number}" for number in range(6)])
GROUPS = st.lists(
    st.builds(
        group,
        st.sampled_from(["d1", "d2", ""]),
        st.integers(1, 3),
        st.sampled_from(list(BrokerState)),
    ),
    max_size=4,
)


class AnySession(RuleBasedStateMachine):
    """Whatever happens: bounds hold, nothing that is wanted is forgotten, no call loops."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.session = session(replace(CALM, subjects_max=5))
        self.wanted: dict[str, float] = {}
        self.outstanding: dict[str, float] = {}
        self.asked_at: dict[str, float] = {}
        self.known: dict[str, tuple[BrokerGroupInfo, ...]] = {}

    def expect_asked(self, requests: list[ClientRegister]) -> None:
        self.outstanding = {
            name: at
            for name, at in self.outstanding.items()
            if at + CALM.answer_timeout_s > self.now
        }
        for request in requests:
            assert request.subject in self.wanted
            assert request.subject not in self.outstanding, "asked twice"
            self.outstanding[request.subject] = self.asked_at[request.subject] = self.now
        assert len(self.outstanding) <= CALM.questions_max

    @rule(name=NAMES)
    def want(self, name: str) -> None:
        is_taken = self.session.want(name, self.now)
        assert is_taken == (name in self.wanted or len(self.wanted) < 5)
        if is_taken:
            self.wanted[name] = self.now

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        self.session.drop(name)
        for known in (self.wanted, self.outstanding, self.asked_at, self.known):
            known.pop(name, None)

    @rule()
    def connected(self) -> None:
        self.session.connected(self.now)
        self.outstanding.clear()
        self.asked_at.clear()

    @rule()
    def disconnected(self) -> None:
        self.session.disconnected(self.now)
        self.outstanding.clear()
        assert self.session.next_at() == float("inf")
        assert self.session.next_requests(self.now) == []

    @rule(at_most=st.integers(1, 5))
    def ask(self, at_most: int) -> None:
        found = self.session.next_requests(self.now, at_most)
        assert len(found) <= at_most
        self.expect_asked(found)

    @rule(name=NAMES, groups=GROUPS, timestamp_ms=st.sampled_from([-2, -1, 999, 1000, 1001, 5000]))
    def receive(self, name: str, groups: list[BrokerGroupInfo], timestamp_ms: int) -> None:
        before, was_barred = self.session.route(name), self.session.is_barred(name)
        was_asked = name in self.session._outstanding
        changed = self.session.receive(answer(name, *groups, timestamp_ms=timestamp_ms), self.now)
        after = self.session.route(name)
        self.outstanding.pop(name, None)
        usable = tuple(g for g in groups if g.name and g.state in {BrokerState.RW, BrokerState.W})
        if name not in self.wanted:
            assert (changed, after) == (None, None)
        elif timestamp_ms == -2:
            is_news = before is None and not was_barred
            assert (changed, after) == (name if is_news else None, before)
            assert self.session.is_barred(name) == (before is None)
        elif before and was_asked and not groups:
            assert (changed, after) == (None, before)
        else:
            assert (changed is not None, after) == (before != usable, usable)
        if name in self.wanted and after is not None:
            self.known[name] = after

    @rule(name=NAMES)
    def refuse(self, name: str) -> None:
        before = self.session.route(name)
        self.session.refused(name, self.now, "no")
        self.outstanding.pop(name, None)
        assert self.session.route(name) == before

    @rule(seconds=st.sampled_from([0.01, 0.3, 3.0, 11.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for forgotten in self.session.forget_unused(self.now):
            assert self.wanted.pop(forgotten) <= self.now - CALM.unused_s
            for known in (self.outstanding, self.asked_at, self.known):
                known.pop(forgotten, None)

    @rule()
    def run_for_two_heartbeats(self) -> None:
        """With a connection everything that is wanted is asked in time, without busy loops."""
        if not self.session._is_connected:
            return
        until = self.now + 125
        last: dict[str, float] = {name: self.asked_at.get(name, self.now) for name in self.wanted}
        calls = 0
        while (at := self.session.next_at()) <= until:
            calls += 1
            assert calls < 5000, "it loops"
            self.now = max(self.now, at)
            found = self.session.next_requests(self.now, 64)
            self.expect_asked(found)
            for request in found:
                last[request.subject] = self.now
                groups = self.known.get(request.subject) or (D1,)
                self.session.receive(answer(request.subject, *groups, timestamp_ms=5000), self.now)
                self.outstanding.pop(request.subject, None)
                self.known[request.subject] = groups
        self.now = until
        assert all(at >= until - 60.2 for at in last.values())
        assert all(self.session.route(name) == self.known[name] for name in self.wanted)

    @invariant()
    def bounds_hold(self) -> None:
        assert len(self.session) == len(self.wanted) <= 5
        asked = {name for name in self.wanted if name in self.session._outstanding}
        assert asked <= self.asked_at.keys()
        assert len(asked) <= CALM.questions_max
        for name, route in self.known.items():
            assert self.session.route(name) == route


AnySession.TestCase.settings = examples(150, stateful_step_count=60)
TestAnySession = AnySession.TestCase
