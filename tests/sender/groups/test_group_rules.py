"""What an operator closes or narrows holds at once, and nothing else changes."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from sender.groups.group_rules import GroupRule, TokenBucket
from sender.groups.group_status import GroupState
from sender.health.circuit import CircuitState
from sender.settings.config import SenderConfig
from sender.settings.errors import SettingError
from tests.sender.broker_rig import Reply, Rig, make_refusing, rig_of

PAUSED = GroupRule(paused=True)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(SettingError, match="pause it"):
        GroupRule(rate_per_s=rate)


@given(
    st.floats(0.1, 1e6),
    st.floats(0.001, 2),
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 1000)), max_size=60),
)
def test_a_bucket_never_gives_more_than_its_rate_and_one_burst(
    rate: float, burst_s: float, happens: list[tuple[float, int]]
) -> None:
    bucket = TokenBucket(rate_per_s=rate, burst_s=burst_s)
    now = given_out = 0.0
    for passed_s, wanted in happens:
        now += passed_s
        count = min(wanted, bucket.available(now))
        bucket.take(count, now)
        given_out += count
        assert given_out <= rate * now + max(1.0, rate * burst_s) + 1e-6 * (1 + given_out)


@given(st.floats(0.1, 1e6), st.floats(0.001, 2), st.integers(1, 500))
def test_a_bucket_has_what_it_promised_when_it_promised(
    rate: float, burst_s: float, count: int
) -> None:
    bucket = TokenBucket(rate_per_s=rate, burst_s=burst_s)
    bucket.take(bucket.available(0.0), 0.0)
    count = min(count, bucket.step)
    at = bucket.ready_at(count, 0.0)
    assert bucket.available(at) >= count
    assert at <= (count + 1) / rate + 1e-5


async def test_a_paused_group_gives_back_what_waits_and_has_its_answers_counted() -> None:
    config = SenderConfig(batch_items=10, in_flight_requests_start=2)
    async with rig_of(2, config=config) as rig:
        rig.brokers[0].script = lambda _request: Reply(delay_s=0.2)
        await trio.sleep(0.1)
        rig.offer(200)
        await trio.sleep(0.05)
        assert rig.sender.status()[0].queued > 0
        rig.sender.set_group_rules({"g-b0": PAUSED})
        sent = len(rig.brokers[0].ids)
        await trio.sleep(0.05)
        assert rig.sender.status()[0].queued == 0
        assert len(rig.facts) == 200 - sent
        await trio.sleep(1)
        rig.assert_all_settled()
        rig.offer(1000)
        await trio.sleep(100)
        rig.assert_all_settled()
        assert len(rig.brokers[0].ids) == sent
        status = rig.sender.status()[0]
        assert (status.state, status.circuit) == (GroupState.UP, CircuitState.CLOSED)
        assert (status.rule, status.effective_weight) == (PAUSED, 0.0)
        assert len(rig.brokers[0].connects) == 1


async def test_where_all_groups_are_paused_all_waits_and_leaves_in_order_when_one_resumes() -> None:
    async with rig_of(2) as rig:
        rig.sender.set_group_rules({"g-b0": PAUSED, "g-b1": PAUSED})
        for _ in range(10):
            rig.offer(100)
            await trio.sleep(1)
        assert rig.facts == []
        assert rig.sender.unsent().queued == 1000
        rig.sender.set_group_rules({"g-b0": PAUSED})
        await trio.sleep(0.5)
        rig.assert_all_settled()
        assert rig.brokers[1].ids == [f"m{n}".encode() for n in range(1000)]
        assert rig.brokers[0].ids == []


async def test_a_gate_waits_for_a_group_that_is_not_there_yet() -> None:
    async with rig_of(2) as rig:
        rig.sender.set_groups([rig.group(1)])
        rig.sender.set_group_rules({"g-b0": PAUSED, "unheard of": GroupRule(rate_per_s=3)})
        rig.sender.set_groups([rig.group(0), rig.group(1)])
        await trio.sleep(0.1)
        rig.offer(5000)
        await trio.sleep(1)
        rig.assert_all_settled()
        assert rig.brokers[0].ids == []
        rig.sender.set_group_rules({})
        rig.offer(5000)
        await trio.sleep(1)
        rig.assert_all_settled()
        assert rig.brokers[0].ids


@pytest.mark.parametrize("rate", [0.5, 20.0, 3000.0])
async def test_a_rate_is_kept_smoothly_and_used_up(rate: float) -> None:
    async with rig_of() as rig:
        rig.sender.set_group_rules({"g-b0": GroupRule(rate_per_s=rate)})
        await trio.sleep(10)
        began = trio.current_time()
        count = int(rate * 12) + 1
        rig.offer(count)
        burst = max(1.0, rate * 0.05)
        while rig.sender.unsent().total:
            await trio.sleep(0.05)
            passed = trio.current_time() - began
            assert len(rig.brokers[0].ids) <= rate * passed + burst + 1
            assert len(rig.brokers[0].ids) >= min(count, rate * passed - burst - 1)
        # Not a request for each message that it allows.
        assert len(rig.brokers[0].requests) <= max(count, 12 / 0.02)
        assert len(rig.brokers[0].requests) <= count if rate < 100 else 12 / 0.02


async def test_a_rate_that_allows_what_the_bytes_in_flight_do_not_waits_for_an_answer() -> None:
    steps = 0

    class Counter(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002
            nonlocal steps
            steps += 1

    config = SenderConfig(in_flight_bytes_max=1000, batch_bytes=1000, in_flight_requests_start=4)
    async with rig_of(config=config) as rig:
        rig.brokers[0].script = lambda _request: Reply(delay_s=1)
        rig.sender.set_group_rules({"g-b0": GroupRule(rate_per_s=1000)})
        await trio.sleep(1)
        rig.offer(5, size=700)
        trio.lowlevel.add_instrument(Counter())
        await trio.sleep(20)
        rig.assert_all_settled()
        assert steps < 1000


async def test_beside_a_group_with_a_rate_the_others_take_the_rest() -> None:
    async with rig_of(2) as rig:
        rig.sender.set_group_rules({"g-b0": GroupRule(rate_per_s=10)})
        await trio.sleep(0.1)
        for _ in range(100):
            rig.offer(20)
            await trio.sleep(0.1)
        assert 60 <= len(rig.brokers[0].ids) <= 105
        late = [fact for fact in rig.facts if fact.at_ms > rig.dues_ms[fact.sequence] + 10]
        assert {fact.group for fact in late} <= {"g-b0"}
        assert all(fact.at_ms <= rig.dues_ms[fact.sequence] + 1000 for fact in late)
        await trio.sleep(1)
        rig.assert_all_settled()


async def test_a_rate_that_changes_holds_at_once_and_heartbeats_go_on() -> None:
    async with rig_of() as rig:
        rig.sender.set_group_rules({"g-b0": GroupRule(rate_per_s=0.001)})
        rig.offer(300)
        await trio.sleep(100)
        assert len(rig.brokers[0].ids) == 1
        assert len(rig.brokers[0].heartbeats) >= 5
        rig.sender.set_group_rules({"g-b0": GroupRule(rate_per_s=100)})
        await trio.sleep(1)
        assert 90 <= len(rig.brokers[0].ids) <= 110
        rig.sender.set_group_rules({})
        await trio.sleep(0.1)
        rig.assert_all_settled()


async def test_a_group_that_failed_and_is_paused_is_not_probed_with_messages() -> None:
    def setup(rig: Rig) -> None:
        make_refusing(rig.brokers[0])

    async with rig_of(setup=setup) as rig:
        rig.offer(10)
        await trio.sleep(5)
        rig.sender.set_group_rules({"g-b0": PAUSED})
        rig.brokers[0].is_refusing = False
        await trio.sleep(60)
        assert rig.brokers[0].ids == []
        assert rig.sender.status()[0].circuit is CircuitState.HALF_OPEN
        rig.sender.set_group_rules({})
        await trio.sleep(1)
        rig.assert_all_settled()


def test_more_than_can_be_saved_is_not_waited_for() -> None:
    bucket = TokenBucket(rate_per_s=10, burst_s=1)
    bucket.take(10, 0.0)
    assert bucket.ready_at(100, 0.0) == pytest.approx(1.0, abs=1e-3)
