"""Whatever the brokers do: one outcome each, never early, nothing lost, nothing unbounded.

For the last test hypothesis draws what each broker does over time, when messages are offered, and
when the clock is set. In the end all brokers are well. The fake broker itself checks that nothing
comes before its time, that no request is empty and that every item's CRC is right.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from delay_protocol import ItemCode, ResponseCode
from sender import GroupState, Outcome, SenderConfig
from tests.sender.broker_rig import (
    EPOCH_MS,
    QUICK,
    FakeBroker,
    Received,
    Reply,
    Rig,
    Script,
    make_refusing,
    make_silent,
    make_unreachable,
    refuse,
    rig_of,
    states,
    take_all,
)

# Never early.


async def test_an_entry_offered_early_waits_for_its_time() -> None:
    async with rig_of() as rig:
        rig.offer(2)
        rig.offer(3, in_ms=5000)
        await trio.sleep(4.9)
        assert rig.delivered() == [0, 1]
        assert rig.sender.unsent().early == 3
        await trio.sleep(0.2)
        rig.assert_all_settled()
        assert rig.facts[-1].at_ms == EPOCH_MS + 5000


async def test_a_millisecond_early_is_early() -> None:
    async with rig_of() as rig:
        await trio.sleep(1)
        rig.offer(1, in_ms=1)
        await trio.sleep(0.0005)
        assert rig.brokers[0].requests == []
        await trio.sleep(0.001)
        assert rig.brokers[0].requests[0].at_ms == EPOCH_MS + 1001


async def test_a_clock_set_back_delays_what_is_queued() -> None:
    async with rig_of() as rig:
        await trio.sleep(100)
        rig.offer(1000)
        rig.wall.step(-60_000)
        await trio.sleep(59)
        assert rig.brokers[0].requests == []
        assert rig.sender.unsent().early == 1000
        await trio.sleep(2)
        rig.assert_all_settled()


async def test_a_clock_set_forward_again_releases_what_it_held_within_the_check() -> None:
    async with rig_of() as rig:
        await trio.sleep(100)
        rig.wall.step(-3_600_000)
        rig.offer(10, in_ms=3_600_000)
        await trio.sleep(10)
        rig.wall.step(3_600_000)
        await trio.sleep(1.1)
        rig.assert_all_settled()


async def test_a_retry_is_held_too_when_the_clock_was_set_back() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: Reply(code=ResponseCode.BROKER_ERROR)

    async with rig_of(config=QUICK, setup=setup) as rig:
        await trio.sleep(100)
        rig.offer(10)
        await trio.sleep(0.01)
        rig.wall.step(-30_000)
        rig.brokers[0].script = take_all
        await trio.sleep(29)
        assert rig.facts == []
        await trio.sleep(2)
        rig.assert_all_settled()


async def test_early_entries_of_a_batch_do_not_hold_its_due_ones() -> None:
    async with rig_of() as rig:
        now = rig.wall.now_ms()
        rig.sender.offer(rig.store.add([now, now + 500, now, now + 1500, now]))
        rig.offered = 5
        await trio.sleep(0.1)
        assert rig.delivered() == [0, 2, 4]
        await trio.sleep(0.5)
        assert rig.delivered() == [0, 2, 4, 1]
        await trio.sleep(1)
        rig.assert_all_settled()


# Items refused one by one.


async def test_only_the_items_an_answer_lists_are_tried_again() -> None:
    refusals = [b"m3", b"m7"]

    def script(request: Received) -> Reply:
        listed = [i for i in request.ids if i in refusals]
        return refuse(ItemCode.STORE_ERROR, *listed)

    def setup(rig: Rig) -> None:
        rig.brokers[0].script = script

    async with rig_of(config=QUICK, setup=setup) as rig:
        rig.offer(10)
        await trio.sleep(0.04)
        assert sorted(rig.delivered()) == [0, 1, 2, 4, 5, 6, 8, 9]
        assert rig.sender.unsent().retrying == 2
        refusals.clear()
        await trio.sleep(5)
        assert sorted(rig.brokers[0].ids[10:]) == [b"m3", b"m7"]
        rig.assert_all_settled()
        assert rig.sender.status()[0].counts.possible_duplicates == 0


async def test_what_is_tried_again_goes_before_what_waits() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: refuse(ItemCode.STORE_ERROR, b"m0")

    config = SenderConfig(batch_items=1, in_flight_requests_max=1, queue_items_max=2)
    async with rig_of(config=config, setup=setup) as rig:
        await trio.sleep(0.1)
        rig.offer(1)
        await trio.sleep(0.01)
        rig.brokers[0].script = lambda _request: Reply(delay_s=0.2)
        rig.offer(10)
        await trio.sleep(5)
        # Two were queued for the group already, one was in flight.
        assert rig.brokers[0].ids.index(b"m0", 1) <= 4
        rig.assert_all_settled()


async def test_an_item_the_broker_has_already_is_known_and_not_tried_again() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: refuse(ItemCode.MESSAGE_DUPLICATE, b"m1")

    async with rig_of(setup=setup) as rig:
        rig.offer(3)
        await trio.sleep(60)
        outcomes = {fact.sequence: fact.outcome for fact in rig.facts}
        assert outcomes == {0: Outcome.DELIVERED, 1: Outcome.KNOWN, 2: Outcome.DELIVERED}
        rig.assert_all_settled()


async def test_an_answer_of_known_items_only_settles_them_all() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda request: refuse(ItemCode.MESSAGE_DUPLICATE, *request.ids)

    async with rig_of(setup=setup) as rig:
        rig.offer(300)
        await trio.sleep(60)
        assert {fact.outcome for fact in rig.facts} == {Outcome.KNOWN}
        rig.assert_all_settled()
        assert states(rig) == [GroupState.UP]


async def test_a_refused_item_goes_to_another_group() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda request: refuse(ItemCode.SUBJECT_NOT_ASSIGNED, *request.ids)

    async with rig_of(2, setup=setup) as rig:
        rig.offer(100)
        await trio.sleep(60)
        assert {fact.group for fact in rig.facts} == {"g-b1"}
        rig.assert_all_settled()


@pytest.mark.parametrize("code", [ItemCode.SUBJECT_NOT_ASSIGNED, ItemCode.BLOCK])
async def test_a_poisonous_item_is_tried_ever_less_often_and_delays_nobody(code: int) -> None:
    sent: list[float] = []

    def script(request: Received) -> Reply:
        if b"m5" in request.ids:
            sent.append(trio.current_time())
            return refuse(code, b"m5")
        return Reply()

    def setup(rig: Rig) -> None:
        rig.brokers[0].script = script

    async with rig_of(setup=setup) as rig:
        for _ in range(300):
            rig.offer(10)
            await trio.sleep(5)
        assert len(rig.facts) == 2_999
        assert all(f.at_ms - EPOCH_MS <= f.sequence // 10 * 5000 + 1 for f in rig.facts)
        gaps = np.diff(sent)
        assert gaps[0] <= 1
        assert len(sent) < 25
        assert gaps.max() <= 300
        assert gaps[-1] >= 150
        assert states(rig) == [GroupState.UP]
        assert len(rig.brokers[0].connects) == 1


async def test_a_failure_listed_under_an_id_we_did_not_send_leaves_nobody_delivered() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: refuse(ItemCode.STORE_ERROR, b"m\xef\xbf\xbd")

    async with rig_of(config=QUICK, setup=setup) as rig:
        rig.offer(3)
        await trio.sleep(0.05)
        assert rig.facts == []
        assert rig.sender.status()[0].counts.possible_duplicates == 3
        rig.brokers[0].script = take_all
        await trio.sleep(10)
        rig.assert_all_settled()


async def test_a_request_refused_now_and_then_does_not_cost_the_connection() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: (
            Reply(code=51) if len(rig.brokers[0].requests) % 3 == 0 else Reply()
        )

    async with rig_of(config=SenderConfig(batch_items=1, retry_base_s=0.1), setup=setup) as rig:
        rig.offer(100)
        await trio.sleep(60)
        rig.assert_all_settled()
        assert len(rig.brokers[0].connects) == 1


# Operators.


async def test_pause_sends_nothing_until_resume() -> None:
    async with rig_of(2) as rig:
        await trio.sleep(1)
        rig.sender.pause()
        rig.offer(1000)
        await trio.sleep(100)
        assert rig.facts == []
        assert rig.sender.unsent().queued == 1000
        rig.sender.resume()
        await trio.sleep(0.1)
        rig.assert_all_settled()


async def test_drain_waits_for_what_is_in_flight_and_sends_nothing_more() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: Reply(delay_s=2)

    config = SenderConfig(batch_items=10, in_flight_requests_max=2)
    async with rig_of(config=config, setup=setup) as rig:
        rig.offer(100)
        await trio.sleep(0.5)
        assert await rig.sender.drain(deadline=trio.current_time() + 4) == 0
        assert trio.current_time() < 2.1
        assert len(rig.facts) == 20
        rig.offer(5)
        await trio.sleep(100)
        assert len(rig.brokers[0].ids) == 20
        assert rig.sender.unsent().queued == 85
        assert rig.sender.in_flight == 0


async def test_drain_gives_up_at_its_deadline_and_says_what_is_in_doubt() -> None:
    def setup(rig: Rig) -> None:
        make_silent(rig.brokers[0])
        make_unreachable(rig.brokers[1])

    async with rig_of(2, setup=setup) as rig:
        rig.offer(10)
        await trio.sleep(0.5)
        assert await rig.sender.drain(deadline=trio.current_time() + 2) == 10
        assert trio.current_time() == pytest.approx(2.5)
        assert rig.facts == []


async def test_drain_does_not_wait_for_groups_that_are_down() -> None:
    def setup(rig: Rig) -> None:
        make_refusing(rig.brokers[0])
        make_unreachable(rig.brokers[1])

    async with rig_of(2, setup=setup) as rig:
        rig.offer(10)
        await trio.sleep(30)
        start = trio.current_time()
        assert await rig.sender.drain(deadline=start + 5) == 0
        assert trio.current_time() == start
        assert rig.sender.unsent().queued == 10


async def test_drain_of_a_sender_that_never_ran_returns_at_once() -> None:
    async with rig_of() as rig:
        await rig.sender.drain(deadline=trio.current_time() + 5)
        assert await rig.sender.drain(deadline=trio.current_time() + 5) == 0


async def test_counts_say_what_each_entry_waits_for_and_room_is_what_is_left() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda request: (
            refuse(ItemCode.BLOCK, *request.ids) if b"m0" in request.ids else Reply(times=0)
        )

    config = SenderConfig(batch_items=5, in_flight_requests_max=2, entries_max=100)
    async with rig_of(config=config, setup=setup) as rig:
        rig.offer(5)
        await trio.sleep(0.1)
        rig.offer(20)
        await trio.sleep(0.1)
        rig.sender.offer(rig.store.add([rig.wall.now_ms()] * 5))
        unsent = rig.sender.unsent()
        assert (unsent.queued, unsent.in_flight, unsent.retrying) == (15, 10, 5)
        assert rig.sender.queued == 20
        assert rig.sender.room == 70
        assert unsent.total == 30


# Anything at all.

CONFIG = SenderConfig(
    batch_items=4,
    batch_bytes=1200,
    in_flight_requests_max=3,
    in_flight_bytes_max=2500,
    queue_items_max=20,
    retry_base_s=0.1,
    retry_max_s=5.0,
    refused_base_s=0.2,
    refused_max_s=10.0,
    reconnect_base_s=0.1,
    reconnect_max_s=5.0,
)

ITEM_CODES = [*(int(code) for code in ItemCode), 99, -1]
CODES = [ResponseCode.UNKNOWN_CODE, ResponseCode.BROKER_ERROR, ResponseCode.BROKER_REJECT]


def some_items(chance: random.Random, request: Received) -> Reply:
    listed = [i for i in request.ids if chance.random() < 0.3]
    return Reply(failures={i: chance.choice(ITEM_CODES) for i in listed})


def anything(chance: random.Random, request: Received) -> Reply:
    replies: list[Callable[[], Reply]] = [
        Reply,
        partial(Reply, delay_s=chance.choice([0.01, 0.3, 4.9, 5.0, 5.1, 20])),
        partial(Reply, times=chance.choice([0, 2])),
        partial(Reply, cut=chance.randrange(24)),
        partial(Reply, code=chance.choice(CODES)),
        partial(Reply, failures={b"who?": chance.choice(ITEM_CODES)}),
        partial(Reply, body=chance.randbytes(chance.randrange(1, 20))),
        partial(Reply, raw=chance.randbytes(30)),
        partial(some_items, chance, request),
    ]
    return chance.choice(replies)()


def one_kind(chance: random.Random) -> Script:
    reply = Reply(
        delay_s=chance.choice([0, 0.01, 1, 4.9, 6]),
        times=chance.choice([0, 1, 1, 1]),
        code=chance.choice([0, 0, *CODES]),
        cut=chance.choice([None, None, 0, 7]),
    )
    return lambda _request: reply


def misbehave(broker: FakeBroker, seed: int) -> None:
    """Give a broker one of many ways to be."""
    chance = random.Random(seed)
    broker.is_refusing = chance.random() < 0.2
    broker.is_unreachable = chance.random() < 0.1
    broker.is_deaf = chance.random() < 0.1
    broker.hello_code = chance.choice([0, 3, 3, 3, None, ResponseCode.BROKER_ERROR])
    scripts: list[Script] = [
        take_all,
        partial(anything, chance),
        partial(some_items, chance),
        one_kind(chance),
    ]
    broker.script = chance.choice(scripts)


def recover(broker: FakeBroker) -> None:
    broker.is_refusing = broker.is_unreachable = broker.is_deaf = False
    broker.hello_code = 3
    broker.script = take_all


@dataclass(frozen=True)
class Step:
    """One thing that happens, and the time that passes before it."""

    after_s: float
    what: str
    number: int
    """A seed, a count or milliseconds."""


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from([0.0, 0.001, 0.05, 0.7, 3.0, 11.0]),
        st.sampled_from(
            ["misbehave", "misbehave", "offer", "offer", "offer early", "clock", "hang up", "pause"]
        ),
        st.integers(0, 10_000),
    ),
    max_size=25,
)


async def play(rig: Rig, step: Step) -> None:
    broker = rig.brokers[step.number % len(rig.brokers)]
    match step.what:
        case "misbehave":
            misbehave(broker, step.number)
        case "offer":
            rig.offer(step.number % 50, size=step.number % 7 * 50)
        case "offer early":
            rig.offer(step.number % 20, in_ms=step.number)
        case "clock":
            rig.wall.step((step.number - 7_000) * 3)
        case "hang up":
            await broker.hang_up()
        case "pause":
            rig.sender.pause()
            await trio.sleep(0.5)
            rig.sender.resume()
        case _:
            raise AssertionError(step.what)


def check_bounds(rig: Rig) -> None:
    total = 0
    for status in rig.sender.status():
        assert status.in_flight <= CONFIG.batch_items * CONFIG.in_flight_requests_max
        assert status.in_flight_bytes <= CONFIG.in_flight_bytes_max
        assert status.queued <= CONFIG.queue_items_max
        total += status.in_flight
    unsent = rig.sender.unsent()
    assert unsent.in_flight == total
    assert unsent.total == rig.offered - len(rig.facts) - len(rig.damages)


async def run_through(brokers: int, steps: list[Step], damaged: set[int]) -> None:
    def setup(rig: Rig) -> None:
        rig.store.damaged = damaged

    async with rig_of(brokers, config=CONFIG, setup=setup) as rig:
        for step in steps:
            await trio.sleep(step.after_s)
            check_bounds(rig)
            await play(rig, step)
        for broker in rig.brokers:
            recover(broker)
        # The clock may be 25 times 21 s behind; then the longest time-out and backoffs.
        await trio.sleep(600)
        rig.assert_all_settled()
        assert sorted(rig.damages) == sorted(damaged & set(range(rig.offered)))
        received = {f"g-{broker.name}": set(broker.ids) for broker in rig.brokers}
        for fact in rig.facts:
            assert f"m{fact.sequence}".encode() in received[fact.group]
            assert fact.outcome in set(Outcome)
        check_no_needless_duplicate(rig)


def check_no_needless_duplicate(rig: Rig) -> None:
    """What was sent more often than once was refused before, or in doubt."""
    sent = sum(len(broker.ids) for broker in rig.brokers)
    counts = [status.counts for status in rig.sender.status()]
    again = sum(count.refused + count.possible_duplicates for count in counts)
    # Less where a request never arrived whole.
    assert sent <= len(rig.facts) + again


@given(brokers=st.integers(1, 3), steps=STEPS, damaged=st.sets(st.integers(0, 60), max_size=8))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_entry_has_one_outcome_and_none_comes_early(
    brokers: int, steps: list[Step], damaged: set[int]
) -> None:
    trio.run(run_through, brokers, steps, damaged, clock=MockClock(autojump_threshold=0))
