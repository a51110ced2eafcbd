"""More is risked only beside others, a while apart; an answer overtakes what was sent before it."""

from dataclasses import dataclass

import numpy as np
import trio

from sender.groups.group_status import GroupState
from sender.health.circuit import CircuitState
from sender.health.probes import Trials
from sender.settings.config import SenderConfig
from tests.seeds import each_seed
from tests.sender.broker_rig import (
    Received,
    Reply,
    Rig,
    TableRoutes,
    rig_of,
    stay_silent,
    take_all,
)


@dataclass
class Sent:
    """A request in flight."""

    sent_at: float
    is_trial: bool = True
    is_further: bool = False
    is_overtaken: bool = False
    size: int = 7
    count: int = 1


def trials() -> Trials:
    return Trials(again_s=1.5, others_items=100)


def test_a_further_one_needs_time_since_the_newest_and_others_that_are_given_much() -> None:
    them = trials()
    them.sent(others=1000)
    first = Sent(0.0)

    def may(now: float, others: int, *in_flight: Sent | None) -> bool:
        return them.may_send_further(in_flight, others=others, now=now)

    assert may(1.5, 1100, first)
    assert not may(1.4, 1100, first)
    assert not may(9.9, 1099, first)
    assert may(3.0, 1100, first, Sent(1.5))
    assert not may(2.9, 1100, first, Sent(1.5))
    assert may(1.5, 1100, first, None)


def test_nothing_more_is_risked_beside_what_is_no_trial_or_where_nothing_waits() -> None:
    them = trials()
    for in_flight in (
        [],
        [None],
        [Sent(0.0, is_trial=False), Sent(1.0)],
        [Sent(0, is_overtaken=True)],
    ):
        assert not them.may_send_further(in_flight, others=10_000, now=100.0)


@each_seed(20)
def test_what_is_overtaken_is_counted_until_it_has_landed(seed: int) -> None:
    chance = np.random.default_rng(seed)
    them = trials()
    in_flight: list[Sent] = []
    for step in range(200):
        if chance.random() < 0.6:
            in_flight.append(
                Sent(float(step), is_further=bool(in_flight), size=int(chance.integers(1, 99)))
            )
        elif in_flight:
            place = int(chance.integers(len(in_flight)))
            request = in_flight.pop(place)
            them.landed(request)
            if chance.random() < 0.5:
                was = [one.is_overtaken for one in in_flight]
                them.answered(request, in_flight)
                tells = request.is_further and not request.is_overtaken
                assert [one.is_overtaken for one in in_flight] == [
                    before or (tells and number < place) for number, before in enumerate(was)
                ]
        overtaken = [one for one in in_flight if one.is_overtaken]
        assert them.overtaken_requests == len(overtaken)
        assert them.overtaken_items == sum(one.count for one in overtaken)
        assert them.overtaken_bytes == sum(one.size for one in overtaken)


async def offer_for(rig: Rig, seconds: float, *, per_s: int = 1000, size: int = 20) -> None:
    """Offer a steady load."""
    for _ in range(round(seconds * 100)):
        rig.offer(per_s // 100, size=size)
        await trio.sleep(0.01)


async def test_what_was_swallowed_does_not_count_against_a_group_that_answers_again() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = stay_silent

    async with rig_of(2, setup=setup) as rig:
        # The first request waits for its time; then single ones do, 1.5 s apart.
        await offer_for(rig, 7.5)
        first = rig.sender.status()[0]
        assert first.circuit is CircuitState.HALF_OPEN
        assert first.in_flight == 2
        rig.brokers[0].script = take_all
        connects = len(rig.brokers[0].connects)
        await offer_for(rig, 6.0)
        then = rig.sender.status()[0]
        # The swallowed ones have run out of time meanwhile.
        assert then.in_flight <= 10
        assert then.counts.requests_timed_out >= first.counts.requests_timed_out + 2
        assert then.circuit is CircuitState.CLOSED
        assert then.effective_weight == 1.0
        assert len(rig.brokers[0].connects) == connects
        assert then.counts.changes[CircuitState.OPEN] == first.counts.changes[CircuitState.OPEN]
        await trio.sleep(30)
        rig.assert_all_settled()


async def test_a_late_answer_to_what_is_overtaken_makes_no_group_slow_again() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: Reply(delay_s=4.9)

    async with rig_of(2, setup=setup) as rig:
        await offer_for(rig, 8.5)
        assert rig.sender.status()[0].is_slow
        rig.brokers[0].script = take_all
        await offer_for(rig, 2.5)
        for _ in range(30):
            await offer_for(rig, 0.1)
            status = rig.sender.status()[0]
            assert not status.is_slow
            assert status.answer_s < 0.1
        assert rig.sender.status()[0].effective_weight == 1.0
        await trio.sleep(30)
        rig.assert_all_settled()


async def test_further_trials_do_not_keep_a_group_from_being_connected_to_anew() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = stay_silent

    async with rig_of(2, setup=setup) as rig:
        await offer_for(rig, 11.5)
        # Of the second connection the first trial had its time; the others were not waited for.
        assert rig.brokers[0].connects[2] < 11.0
        await trio.sleep(30)
        rig.assert_all_settled()


async def test_no_more_is_risked_than_a_part_of_what_others_are_given() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: Reply(delay_s=4.9)

    async with rig_of(2, setup=setup) as rig:
        await offer_for(rig, 20.0, per_s=200)
        # One in each 4.9 s, as there are 200 in a second only.
        assert len(rig.brokers[0].requests) <= 5
    async with rig_of(2, config=SenderConfig(trial_others_items=100), setup=setup) as rig:
        await offer_for(rig, 20.0, per_s=200)
        assert 8 <= len(rig.brokers[0].requests) <= 13


async def test_the_only_group_gets_no_further_trials() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = stay_silent

    async with rig_of(1, setup=setup) as rig:
        await offer_for(rig, 9.0)
        status = rig.sender.status()[0]
        assert status.state is GroupState.UP
        assert status.in_flight == 1


async def test_the_only_group_is_not_sent_more_because_of_what_it_was_given_itself() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: Reply(delay_s=4.9)

    config = SenderConfig(in_flight_requests_max=1, trial_again_s=0.5, trial_others_items=1)
    async with rig_of(1, config=config, setup=setup) as rig:
        rig.offer(1)
        await trio.sleep(5)
        for _ in range(4):
            rig.offer(1)
            await trio.sleep(1)
        assert len(rig.brokers[0].requests) == 2


async def test_a_group_alone_in_its_lane_is_sent_single_ones_beyond_its_window() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: Reply(delay_s=4.9)

    routes = TableRoutes({0: ["g-b1"], 1: ["g-b0"]})
    config = SenderConfig(in_flight_requests_max=1)
    async with rig_of(2, config=config, routes=routes, setup=setup) as rig:
        for _ in range(2):
            rig.offer(1, lane=1, subject=1)
            await trio.sleep(5)
        # It is known to be slow by now.
        rig.offer(1, lane=1, subject=1)
        await trio.sleep(0.1)
        for _ in range(45):
            rig.offer(3, lane=1, subject=1)
            await offer_for(rig, 0.1)
        assert [len(request.ids) for request in rig.brokers[0].requests] == [1] * 5


async def test_nothing_more_is_risked_while_a_large_request_is_not_answered() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: Reply(delay_s=4.9)

    routes = TableRoutes({0: ["g-b1"], 1: ["g-b0"]})
    config = SenderConfig(in_flight_requests_max=1)
    async with rig_of(2, config=config, routes=routes, setup=setup) as rig:
        rig.offer(1, lane=1, subject=1)
        await trio.sleep(5)
        # It is known to be slow by now.
        rig.offer(50, lane=1, subject=1)
        for _ in range(45):
            await offer_for(rig, 0.1)
            rig.offer(1, lane=1, subject=1)
        assert [len(request.ids) for request in rig.brokers[0].requests] == [1, 50]


async def test_a_large_item_does_not_wait_for_what_is_overtaken() -> None:
    swallowing = True

    def script(_request: Received) -> Reply:
        return Reply(times=0) if swallowing else Reply()

    def setup(rig: Rig) -> None:
        rig.brokers[0].script = script

    config = SenderConfig(batch_bytes=2000, in_flight_bytes_max=4000)
    async with rig_of(2, config=config, setup=setup) as rig:
        await offer_for(rig, 7.5, size=3000)
        swallowing = False
        await offer_for(rig, 2.0)
        await trio.sleep(0.1)
        assert rig.sender.status()[0].in_flight == 2
        # Nor do small ones leave one by one.
        assert max(len(request.ids) for request in rig.brokers[0].requests[-20:]) > 1
        before = len(rig.brokers[0].ids)
        rig.offer(20, size=10_000)
        await trio.sleep(0.2)
        assert len(rig.brokers[0].ids) >= before + 5
        await trio.sleep(30)
        rig.assert_all_settled()
