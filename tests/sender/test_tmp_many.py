"""Whatever the brokers do: one outcome each, never early, nothing lost, nothing unbounded.

Hypothesis draws what each broker does over time, when messages are offered, and when the clock is
set. In the end all brokers are well. The fake broker itself checks that nothing comes before its
time, that no request is empty and that every item's CRC is right.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from delay_protocol import ItemCode, ResponseCode
from sender import Outcome, SenderConfig
from tests.sender.broker_rig import FakeBroker, Received, Reply, Rig, Script, rig_of, take_all

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
@settings(max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_entry_has_one_outcome_and_none_comes_early(
    brokers: int, steps: list[Step], damaged: set[int]
) -> None:
    trio.run(run_through, brokers, steps, damaged, clock=MockClock(autojump_threshold=0))
