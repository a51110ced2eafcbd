"""Whatever the brokers do: one outcome each, never early, nothing lost, nothing unbounded.

For the last test hypothesis draws what each broker does over time, when messages are offered, and
when the clock is set. In the end all brokers are well. The fake broker itself checks that nothing
comes before its time, that no request is empty and that every item's CRC is right.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from trio.testing import MockClock

from delay_protocol.basics.codes import ItemCode, ResponseCode
from sender.groups.group_rules import GroupRule
from sender.groups.group_status import GroupState
from sender.outcomes.outcomes import Outcome
from sender.settings.config import SenderConfig
from tests.brokers import Received
from tests.seeds import examples
from tests.sender.broker_rig import (
    EPOCH_MS,
    FakeBroker,
    Reply,
    Rig,
    Script,
    TableRoutes,
    make_closing,
    make_erring,
    make_refusing,
    make_silent,
    make_unreachable,
    refuse,
    rig_of,
    states,
    stay_silent,
    take_all,
)

# Never early.


async def test_a_millisecond_early_is_early() -> None:
    async with rig_of() as rig:
        await trio.sleep(1)
        rig.offer(1, in_ms=1)
        await trio.sleep(0.0005)
        assert rig.brokers[0].requests == []
        await trio.sleep(0.001)
        assert rig.brokers[0].requests[0].at_ms == EPOCH_MS + 1001


async def test_a_clock_set_forward_again_releases_what_it_held_within_the_check() -> None:
    async with rig_of() as rig:
        await trio.sleep(100)
        rig.wall.step(-3_600_000)
        rig.offer(10, in_ms=3_600_000)
        await trio.sleep(10)
        rig.wall.step(3_600_000)
        await trio.sleep(1.1)
        rig.assert_all_settled()


async def test_early_entries_of_a_batch_do_not_hold_its_due_ones() -> None:
    async with rig_of() as rig:
        now = rig.wall.now_ms()
        rig.offer_due([now, now + 500, now, now + 1500, now])
        await trio.sleep(0.1)
        assert rig.delivered() == [0, 2, 4]
        await trio.sleep(0.5)
        assert rig.delivered() == [0, 2, 4, 1]
        await trio.sleep(1)
        rig.assert_all_settled()


# Items refused one by one.


async def test_what_is_tried_again_goes_before_what_waits() -> None:
    config = SenderConfig(batch_items=1, in_flight_requests_max=1, queue_items_max=2)
    async with rig_of(config=config) as rig:
        rig.brokers[0].script = lambda _request: refuse(ItemCode.STORE_ERROR, b"m0")
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
    async with rig_of() as rig:
        rig.brokers[0].script = lambda _request: refuse(ItemCode.MESSAGE_DUPLICATE, b"m1")
        rig.offer(3)
        await trio.sleep(60)
        outcomes = {fact.sequence: fact.outcome for fact in rig.facts}
        assert outcomes == {0: Outcome.DELIVERED, 1: Outcome.KNOWN, 2: Outcome.DELIVERED}
        rig.assert_all_settled()


async def test_an_answer_of_known_items_only_settles_them_all() -> None:
    async with rig_of() as rig:
        rig.brokers[0].script = lambda request: refuse(ItemCode.MESSAGE_DUPLICATE, *request.ids)
        rig.offer(300)
        await trio.sleep(60)
        assert {fact.outcome for fact in rig.facts} == {Outcome.KNOWN}
        rig.assert_all_settled()
        assert states(rig) == [GroupState.UP]


@pytest.mark.parametrize("code", [ItemCode.SUBJECT_NOT_ASSIGNED, ItemCode.BLOCK])
async def test_a_poisonous_item_is_tried_ever_less_often_and_delays_nobody(code: int) -> None:
    sent: list[float] = []

    def script(request: Received) -> Reply:
        if b"m5" in request.ids:
            sent.append(trio.current_time())
            return refuse(code, b"m5")
        return Reply()

    async with rig_of() as rig:
        rig.brokers[0].script = script
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
    config = SenderConfig(batch_items=10, in_flight_requests_start=2, in_flight_requests_max=2)
    async with rig_of(config=config) as rig:
        rig.brokers[0].script = lambda _request: Reply(delay_s=2)
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
    config = SenderConfig(batch_items=5, in_flight_requests_max=2, entries_max=100)
    async with rig_of(config=config) as rig:
        rig.brokers[0].script = lambda request: (
            refuse(ItemCode.BLOCK, *request.ids) if b"m0" in request.ids else Reply(times=0)
        )
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
        held = [entry for entries in rig.sender.held() for entry in entries["position"].tolist()]
        assert sorted(held) == list(range(30))


# Lanes.


def numbers_of(ids: Sequence[bytes]) -> list[int]:
    return [int(message_id[1:]) for message_id in ids]


SLOW = SenderConfig(
    batch_items=16,
    in_flight_requests_start=2,
    in_flight_requests_max=2,
    queue_items_max=256,
    queue_s=10,
)
"""With a broker that takes 0.1 s for each answer: 320 messages a second and group."""


def make_slow(rig: Rig) -> None:
    for broker in rig.brokers:
        broker.script = lambda _request: Reply(delay_s=0.1)


@pytest.mark.parametrize("brokers", [1, 3])
async def test_a_hot_lane_does_not_stand_before_a_few_of_another(brokers: int) -> None:
    async with rig_of(brokers, config=SLOW, setup=make_slow) as rig:
        await trio.sleep(0.1)
        rig.offer(20_000, lane=1)
        await trio.sleep(1)
        assert all(status.queued >= 128 for status in rig.sender.status())
        few = range(rig.offered, rig.offered + 10)
        rig.offer(10, lane=0)
        # An answer to what was in flight, which makes room, and one to them.
        await trio.sleep(0.21)
        assert sorted(number for number in rig.delivered() if number in few) == list(few)


@pytest.mark.parametrize("brokers", [1, 3])
async def test_what_is_on_time_does_not_stand_behind_what_is_late_of_its_lane(brokers: int) -> None:
    async with rig_of(brokers, config=SLOW, setup=make_slow) as rig:
        await trio.sleep(0.1)
        rig.offer(20_000, late=True)
        await trio.sleep(1)
        few = range(rig.offered, rig.offered + 10)
        rig.offer(10)
        assert rig.sender.queued_by_lane().keys() == {0}
        await trio.sleep(0.21)
        assert sorted(number for number in rig.delivered() if number in few) == list(few)


async def test_what_is_late_of_a_lane_goes_where_its_lane_goes() -> None:
    routes = TableRoutes({1: ["g-b0"], 4: []})
    async with rig_of(2, routes=routes) as rig:
        for subject in (1, 4):
            entries = rig.offer(300, lane=int(routes.lanes[subject]), late=True)
            entries["subject"] = subject
        await trio.sleep(1)
        assert len(came_to(rig.brokers[0])) == 300
        assert not came_to(rig.brokers[1])
        routes.groups[4] = ["g-b1"]
        rig.sender.routes_changed([4])
        await trio.sleep(1)
        assert len(came_to(rig.brokers[1])) == 300
        rig.assert_all_settled()


async def test_what_waited_for_a_group_in_a_pause_goes_where_it_belongs_by_then() -> None:
    routes = TableRoutes({1: ["g-b0"], 2: ["g-b1"]})
    async with rig_of(2, routes=routes) as rig:
        await trio.sleep(1)
        rig.sender.pause()
        rig.offer(10, lane=1)["subject"] = 1
        await trio.sleep(1)
        assert [group.queued for group in rig.sender.status()] == [10, 0]
        routes.groups[1] = ["g-b1"]
        rig.sender.routes_changed({1})
        await trio.sleep(1)
        rig.sender.resume()
        await trio.sleep(1)
        assert [len(came_to(broker)) for broker in rig.brokers] == [0, 10]
        rig.assert_all_settled()


async def test_a_lane_that_came_late_finds_room_in_a_full_queue_and_fills_no_more_of_it() -> None:
    async with rig_of(config=replace(SLOW, slow_s=60), setup=make_slow) as rig:
        await trio.sleep(0.1)
        # Its pace is known by then, and with it how much may wait.
        rig.offer(64, lane=1)
        await trio.sleep(1)
        rig.brokers[0].script = stay_silent
        for lane in range(1, 4):
            rig.offer(1_000, lane=lane)
            await trio.sleep(0.1)
        # Two batches of each lane; those of the second are where two of the first have left.
        assert rig.sender.status()[0].queued == 256 + 32
        assert rig.sender.queued_by_lane() == {1: 1_000 - 32, 2: 1_000, 3: 1_000}


async def test_a_queue_shorter_than_two_batches_is_not_overfilled_by_one_lane() -> None:
    config = SenderConfig(batch_items=16, in_flight_requests_max=1, queue_items_max=20)
    async with rig_of(config=config) as rig:
        rig.brokers[0].script = stay_silent
        await trio.sleep(0.1)
        for _ in range(5):
            rig.offer(50)
            await trio.sleep(0.1)
            assert rig.sender.status()[0].queued <= 20


def fail_requests(rig: Rig) -> None:
    make_erring(rig.brokers[0])


def refuse_half(rig: Rig) -> None:
    rig.brokers[0].script = lambda request: refuse(ItemCode.STORE_ERROR, *request.ids[::2])


def set_the_clock_back(rig: Rig) -> None:
    rig.wall.step(-1_000)


def cut_off(rig: Rig) -> None:
    make_closing(rig.brokers[0])


@pytest.mark.parametrize("spoil", [fail_requests, refuse_half, set_the_clock_back, cut_off])
async def test_what_comes_back_of_a_request_of_several_lanes_waits_in_its_own(
    spoil: Callable[[Rig], None],
) -> None:
    lanes = [0, 4, 2, 4]

    async with rig_of(config=SenderConfig(retry_max_s=1.0)) as rig:
        await trio.sleep(100)
        rig.sender.pause()
        for lane in lanes:
            rig.offer(20, lane=lane)
        await trio.sleep(0.1)
        spoil(rig)
        rig.sender.resume()
        await trio.sleep(0.05)
        settled = set(rig.delivered())
        assert len(settled) == (40 if spoil is refuse_half else 0)
        rig.sender.pause()
        # What was in flight, tried again and held comes back within this.
        await trio.sleep(8)
        left = Counter(lanes[n // 20] for n in range(80) if n not in set(rig.delivered()))
        assert rig.sender.queued_by_lane() == left
        assert left[4] >= 20
        rig.brokers[0].script = take_all
        rig.sender.resume()
        await trio.sleep(60)
        rig.assert_all_settled()


async def test_a_lane_of_poison_takes_no_turns_from_others_when_it_is_tried_again() -> None:
    poison = set(range(400))

    def script(request: Received) -> Reply:
        bad = [i for i in request.ids if int(i[1:]) in poison]
        return Reply(delay_s=0.1, failures=dict.fromkeys(bad, int(ItemCode.STORE_ERROR)))

    config = SenderConfig(
        batch_items=16,
        in_flight_requests_start=2,
        in_flight_requests_max=2,
        queue_items_max=256,
        retry_max_s=0.1,
        refusals_max=10**9,
    )
    async with rig_of(config=config) as rig:
        rig.brokers[0].script = script
        await trio.sleep(0.1)
        rig.offer(400, lane=1)
        await trio.sleep(0.1)
        rig.offer(2_000, lane=2)
        await trio.sleep(12)
        # 320 a second, of which the lane that gets nowhere has half.
        assert len(rig.facts) >= 12 * 320 * 0.45


async def test_a_group_that_fails_gives_back_each_lane_to_its_turns_elsewhere() -> None:
    def setup(rig: Rig) -> None:
        make_slow(rig)
        rig.brokers[1].is_refusing = True

    config = SenderConfig(
        batch_items=16, in_flight_requests_max=2, queue_items_max=256, reconnect_max_s=0.1
    )
    async with rig_of(2, config=config, setup=setup) as rig:
        await trio.sleep(0.1)
        rig.offer(3_000, lane=1)
        await trio.sleep(0.5)
        rig.offer(10, lane=0)
        make_refusing(rig.brokers[0])
        await rig.brokers[0].hang_up()
        await trio.sleep(0.2)
        assert {status.queued for status in rig.sender.status()} == {0}
        assert rig.sender.queued_by_lane()[0] == 10
        rig.brokers[1].is_refusing = False
        await trio.sleep(0.5)
        assert set(range(3_000, 3_010)) <= set(rig.delivered())


async def test_a_group_that_refuses_everything_for_good_gets_an_item_at_intervals() -> None:
    async with rig_of(2, config=SenderConfig(batch_items=16)) as rig:
        rig.brokers[0].script = lambda request: refuse(ItemCode.SUBJECT_NOT_ASSIGNED, *request.ids)
        await trio.sleep(0.1)
        rig.offer(2_000, lane=1)
        await trio.sleep(10)
        before = len(rig.brokers[0].ids)
        for _ in range(200):
            rig.offer(10, lane=2)
            await trio.sleep(0.1)
        assert 5 <= len(rig.brokers[0].ids) - before <= 20 / SenderConfig().reconnect_max_s
        rig.brokers[0].script = take_all
        for _ in range(30):
            rig.offer(10, lane=2)
            await trio.sleep(0.1)
        before = len(rig.brokers[0].ids)
        rig.offer(2_000, lane=1)
        await trio.sleep(5)
        assert 700 < len(rig.brokers[0].ids) - before < 1_300
        rig.assert_all_settled()


async def test_a_backlog_that_two_groups_refuse_goes_to_those_that_take_it() -> None:
    """Those that refuse always have room: nothing may become a dead letter for that."""

    async with rig_of(4, config=SenderConfig(in_flight_requests_max=2)) as rig:
        rig.sender.gives_up = True
        for number, broker in enumerate(rig.brokers):
            if number < 2:
                broker.script = lambda request: refuse(ItemCode.BLOCK, *request.ids)
            else:
                broker.script = lambda _request: Reply(delay_s=0.2)
        await trio.sleep(0.5)
        for number in range(20):
            rig.offer(1_000, subject=number % 7)
        await trio.sleep(60)
        rig.assert_all_settled()
        # One queue of each that refuses, and single items.
        assert sum(len(broker.ids) for broker in rig.brokers[:2]) < 2_000


async def test_lanes_take_turns_in_being_risked_on_a_group_that_failed() -> None:
    bad: set[bytes] = set()

    def script(request: Received) -> Reply:
        return Reply(code=ResponseCode.BROKER_ERROR if bad.intersection(request.ids) else 0)

    def setup(rig: Rig) -> None:
        rig.brokers[0].is_refusing = True
        rig.brokers[0].script = script

    config = SenderConfig(reconnect_max_s=0.1, retry_base_s=100, retry_max_s=100)
    async with rig_of(config=config, setup=setup) as rig:
        bad.update(f"m{n}".encode() for n in range(500))
        rig.offer(500, lane=1)
        rig.offer(10, lane=2)
        await trio.sleep(1)
        rig.brokers[0].is_refusing = False
        await trio.sleep(1)
        # One of the first lane was risked in vain, then one of the second.
        ids = numbers_of(rig.brokers[0].ids)
        assert ids[0] == 0
        assert ids[1] == 500


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

LANES = 3

LANE_ITEMS_MIN = CONFIG.batch_items * CONFIG.queue_lane_batches_min

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
            rig.offer(step.number % 50, size=step.number % 7 * 50, lane=step.number // 7 % LANES)
        case "offer early":
            rig.offer(step.number % 20, in_ms=step.number, lane=step.number % LANES)
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
        assert status.queued <= CONFIG.queue_items_max + (LANES - 1) * LANE_ITEMS_MIN
        total += status.in_flight
    unsent = rig.sender.unsent()
    assert unsent.in_flight == total
    assert unsent.queued == sum(rig.sender.queued_by_lane().values())
    assert unsent.total == rig.offered - len(rig.facts) - len(rig.damages)


async def run_through(brokers: int, steps: list[Step], damaged: set[int]) -> None:
    async with rig_of(brokers, config=CONFIG) as rig:
        rig.store.damaged = damaged
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
@examples(150, suppress_health_check=[HealthCheck.too_slow])
def test_every_entry_has_one_outcome_and_none_comes_early(
    brokers: int, steps: list[Step], damaged: set[int]
) -> None:
    trio.run(run_through, brokers, steps, damaged, clock=MockClock(autojump_threshold=0))


# Groups and routes that change.


def offer_of(rig: Rig, routes: TableRoutes, subject: int, count: int) -> list[int]:
    """Offer due messages of a subject in its lane; return their sequences."""
    entries = rig.offer(count, lane=int(routes.lanes[subject]))
    entries["subject"] = subject
    sequences: list[int] = entries["sequence"].tolist()
    return sequences


def came_to(broker: FakeBroker) -> set[int]:
    return {int(message_id[1:]) for message_id in broker.ids}


async def test_each_lane_goes_to_its_own_groups_and_one_without_any_stops_no_other() -> None:
    routes = TableRoutes({1: ["g-b0"], 2: ["g-b1"], 3: ["g-b0", "g-b1"], 4: [], 5: ["unheard"]})
    async with rig_of(2, routes=routes) as rig:
        sent = {subject: offer_of(rig, routes, subject, 600) for subject in (4, 5, 1, 2, 3)}
        await trio.sleep(1)
        assert came_to(rig.brokers[0]) >= set(sent[1])
        assert came_to(rig.brokers[1]) >= set(sent[2])
        assert not came_to(rig.brokers[0]) & set(sent[2])
        assert not came_to(rig.brokers[1]) & set(sent[1])
        assert rig.sender.unsent().total == 1200
        # A route that comes brings them out.
        routes.groups[4] = ["g-b1"]
        rig.sender.routes_changed([4])
        await trio.sleep(1)
        assert came_to(rig.brokers[1]) >= set(sent[4])
        assert rig.sender.unsent().total == 600
        assert rig.sender.queued_by_lane() == {5: 600}


async def test_a_group_that_comes_is_used_and_one_that_goes_gives_back_what_it_has() -> None:
    routes = TableRoutes({0: ["g-b0", "g-b1"]})
    config = SenderConfig(batch_items=10, in_flight_requests_start=2, in_flight_requests_max=2)
    async with rig_of(2, config=config, routes=routes) as rig:
        rig.brokers[0].script = lambda _request: Reply(delay_s=2)
        rig.sender.set_groups([rig.group(0)])
        await trio.sleep(1)
        offer_of(rig, routes, 0, 100)
        await trio.sleep(1)
        assert (len(rig.brokers[0].ids), rig.brokers[1].ids) == (20, [])
        rig.sender.set_groups([rig.group(1)])
        await trio.sleep(0.5)
        # What is in flight is waited for, and not sent again.
        assert len(rig.brokers[1].ids) == 80
        assert [(s.name, s.state) for s in rig.sender.status()] == [
            ("g-b0", GroupState.RETIRING),
            ("g-b1", GroupState.UP),
        ]
        await trio.sleep(2)
        rig.assert_all_settled()
        assert [s.name for s in rig.sender.status()] == ["g-b1"]
        assert (
            Counter(map(bytes, rig.brokers[0].ids + rig.brokers[1].ids)).most_common(1)[0][1] == 1
        )


async def test_a_group_that_moves_is_reached_at_its_new_address_at_once() -> None:
    config = SenderConfig(batch_items=10, in_flight_requests_start=2, in_flight_requests_max=2)
    routes = TableRoutes({0: ["g-b0"]})
    async with rig_of(2, config=config, routes=routes) as rig:
        rig.brokers[0].script = lambda _request: Reply(delay_s=1)
        rig.sender.set_groups([rig.group(0)])
        offer_of(rig, routes, 0, 100)
        await trio.sleep(0.5)
        rig.sender.set_groups([rig.group(0, at=1)])
        await trio.sleep(1)
        assert len(rig.brokers[0].ids) == 20
        assert len(rig.brokers[1].ids) == 80
        rig.assert_all_settled()
        (status,) = rig.sender.status()
        assert (status.address, status.failures) == ("b1:20881", 0)


@pytest.mark.parametrize("make", [make_unreachable, make_refusing])
async def test_a_group_that_was_not_to_be_reached_moves_without_waiting(
    make: Callable[[FakeBroker], None],
) -> None:
    routes = TableRoutes({0: ["g-b0"]})
    config = SenderConfig(reconnect_base_s=1000, reconnect_max_s=1000, connect_timeout_s=500)
    async with rig_of(
        2, config=config, setup=lambda rig: make(rig.brokers[0]), routes=routes
    ) as rig:
        offer_of(rig, routes, 0, 10)
        await trio.sleep(10)
        rig.sender.set_groups([rig.group(0, at=1)])
        await trio.sleep(1)
        rig.assert_all_settled()


async def test_what_was_refused_is_tried_again_in_the_lane_where_it_is_by_then() -> None:
    routes = TableRoutes({0: ["g-b0"], 1: ["g-b1"]})
    async with rig_of(2, routes=routes) as rig:
        rig.brokers[0].script = lambda request: refuse(
            ItemCode.SUBJECT_NOT_ASSIGNED, request.ids[0]
        )
        first, *_ = offer_of(rig, routes, 0, 3)
        await trio.sleep(0.5)
        routes.groups[7] = ["g-b1"]
        routes.lanes[0] = 7
        rig.sender.routes_changed([0, 7])
        await trio.sleep(30)
        rig.assert_all_settled()
        assert came_to(rig.brokers[1]) == {first}


async def test_there_are_no_more_groups_than_are_allowed() -> None:
    routes = TableRoutes({0: ["g-b0", "g-b1", "g-b2"]})
    async with rig_of(3, config=SenderConfig(groups_max=3), routes=routes) as rig:
        rig.sender._groups._groups_max = 2
        rig.sender.set_groups([])
        await trio.sleep(1)
        assert rig.sender.status() == []
        rig.sender.set_groups([rig.group(number) for number in range(3)])
        assert [s.name for s in rig.sender.status()] == ["g-b0", "g-b1"]
        rig.sender.set_groups([rig.group(2)])
        offer_of(rig, routes, 0, 5)
        await trio.sleep(1)
        rig.assert_all_settled()
        assert came_to(rig.brokers[2]) == set(range(5))


async def test_a_group_is_hungry_while_it_is_well_and_little_waits_for_it() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: Reply(delay_s=4.9)

    config = SenderConfig(batch_items=10, queue_items_max=40)
    async with rig_of(1, config=config, setup=setup) as rig:
        await trio.sleep(0.1)
        assert rig.sender.is_hungry()
        rig.offer(30)
        # Ten are in flight, twenty wait, of which half of the room is ten.
        assert not rig.sender.is_hungry()
        await trio.sleep(0.1)
        assert not rig.sender.is_hungry()
        rig.brokers[0].script = take_all
        await trio.sleep(10)
        rig.assert_all_settled()
    async with rig_of(1, config=config, setup=setup) as rig:
        await trio.sleep(0.1)
        rig.offer(5)
        await trio.sleep(0.2)
        assert rig.sender.is_hungry()
        rig.brokers[0].script = take_all
        await trio.sleep(0.1)
        # Nothing waits for it, but an answer has taken long by now.
        assert not rig.sender.is_hungry()
        await trio.sleep(6)
        for _ in range(5):
            rig.offer(5)
            await trio.sleep(0.1)
        assert rig.sender.is_hungry()
        rig.brokers[0].is_refusing = True
        await rig.brokers[0].hang_up()
        await trio.sleep(0.1)
        assert not rig.sender.is_hungry()


@pytest.mark.parametrize("moves", [False, True])
async def test_a_backlog_stays_late_when_a_subject_of_it_moves_to_another_lane(
    *, moves: bool
) -> None:
    routes = TableRoutes({0: ["g-b0"], 1: ["g-b0"]})
    routes.lanes[1] = 0
    routes.lanes[2] = 0
    config = SenderConfig(batch_items=100, turn_items=50)
    async with rig_of(1, config=config, routes=routes) as rig:
        rig.brokers[0].script = lambda _request: Reply(delay_s=0.1)
        await trio.sleep(1)
        # A backlog of two subjects, in turns, as one array.
        backlog = rig.store.add([rig.wall.now_ms()] * 10_000)
        backlog["subject"] = np.arange(10_000) % 2
        rig.dues_ms += [rig.wall.now_ms()] * 10_000
        rig.sender.offer(backlog, lane=0, late=True)
        await trio.sleep(0.2)
        if moves:
            # One of them becomes hot.
            routes.lanes[1] = 1
            rig.sender.routes_changed({0, 1})
        await trio.sleep(0.1)
        fresh = set(rig.offer(20, subject=2)["sequence"].tolist())
        await trio.sleep(30)
        late = [f.at_ms - rig.dues_ms[f.sequence] for f in rig.facts if f.sequence in fresh]
        assert len(late) == 20
        assert max(late) < 1000


@pytest.mark.parametrize("rate", [0.01, 1.0])
async def test_a_message_does_not_wait_for_the_rate_of_one_group_where_another_has_none(
    rate: float,
) -> None:
    async with rig_of(2) as rig:
        rig.sender.set_group_rules({"g-b0": GroupRule(rate_per_s=rate)})
        await trio.sleep(1)
        for _ in range(20):
            rig.offer(1)
            await trio.sleep(0.1)
        await trio.sleep(1)
        assert len(rig.facts) == 20


async def test_what_waits_for_a_group_goes_to_the_others_when_its_rate_is_lowered() -> None:
    async with rig_of(2) as rig:
        for broker in rig.brokers:
            broker.script = lambda _request: Reply(delay_s=0.05)
        await trio.sleep(1)
        rig.offer(20_000)
        await trio.sleep(0.1)
        rig.sender.set_group_rules({"g-b0": GroupRule(rate_per_s=1)})
        await trio.sleep(60)
        # One may wait for the next token.
        assert len(rig.facts) >= 20_000 - 1


async def test_lanes_that_avoid_a_group_are_not_looked_at_with_each_of_its_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 64
    routes = TableRoutes({**{k: ["g-b0", "g-b1"] for k in range(count)}, 300: ["g-b0"]})
    routes.lanes = np.arange(400, dtype=np.int32)
    config = SenderConfig(batch_items=100, turn_items=50, refused_base_s=1)
    async with rig_of(2, config=config, routes=routes) as rig:
        bad: set[bytes] = set()

        def script(request: Received) -> Reply:
            refused = [one for one in request.ids if one in bad]
            return refuse(ItemCode.SUBJECT_NOT_ASSIGNED, *refused)

        rig.brokers[0].script = script
        # It takes all of them, at its pace.
        rig.brokers[1].script = lambda _request: Reply(delay_s=0.09)
        await trio.sleep(1)
        for lane in range(count):
            entries = rig.offer(300, lane=lane, subject=lane)
            bad |= {b"m%d" % sequence for sequence in entries["sequence"].tolist()}
        await trio.sleep(1.5)
        choices = 0
        choose = rig.sender._routing.choose

        def counted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (the method's own)
            nonlocal choices
            choices += 1
            return choose(*args, **kwargs)

        monkeypatch.setattr(rig.sender._routing, "choose", counted)
        for _ in range(300):
            rig.offer(1, lane=300, subject=300)
            await trio.sleep(0.002)
        assert choices < 10 * 300
        await trio.sleep(60)
        rig.assert_all_settled()


@pytest.mark.parametrize("goes", [False, True])
async def test_what_a_group_refused_goes_there_again_if_nobody_else_is_well(*, goes: bool) -> None:
    """goes: the one that took it goes away meanwhile; else there was none."""
    unknown = [True]

    def script(request: Received) -> Reply:
        bad = [one for one in request.ids if int(one[1:]) < 4_000]
        return refuse(ItemCode.SUBJECT_NOT_ASSIGNED, *bad) if unknown[0] else Reply()

    def setup(rig: Rig) -> None:
        rig.brokers[0].script = script
        rig.brokers[1].script = lambda _request: Reply(delay_s=0.09)
        rig.brokers[1].is_refusing = not goes

    config = SenderConfig(
        batch_items=50,
        turn_items=50,
        in_flight_requests_max=2,
        queue_items_max=100,
        refused_base_s=0.1,
        refused_max_s=1,
    )
    async with rig_of(2, config=config, setup=setup) as rig:
        await trio.sleep(0.5)
        rig.offer(4_000, lane=1)
        await trio.sleep(2)
        assert rig.sender.unsent().total
        rig.brokers[1].is_refusing = True
        await rig.brokers[1].hang_up()
        await trio.sleep(10)
        unknown[0] = False
        for _ in range(100):
            rig.offer(10, lane=0)
            await trio.sleep(0.2)
        assert rig.sender.unsent().total == 0
