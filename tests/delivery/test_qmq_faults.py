"""Faults of QMQ's own delay server that ours must not have, one test each, in its sender.

The letters and numbers are those of docs/testing.md, where the faults of other parts are as well.
"""

from collections.abc import Callable, Collection, Iterator

import numpy as np
import numpy.typing as npt
import pytest
import trio

from delay_protocol.basics.codes import ItemCode, ResponseCode
from sender.groups.taking import PatternSet
from sender.health.circuit import CircuitState
from sender.outcomes.outcomes import Outcome
from sender.queues.parcels import Entries
from sender.settings.config import SenderConfig
from tests.brokers import Received
from tests.sender.broker_rig import (
    EPOCH_MS,
    QUICK,
    FakeBroker,
    Reply,
    Rig,
    make_closing,
    make_cutting,
    make_erring,
    make_refusing,
    make_silent,
    make_unreachable,
    refuse,
    rig_of,
    stay_silent,
    take_all,
)


class ByLane:
    """Each lane is a subject, and has groups of its own."""

    def __init__(self, groups: dict[int, list[str]]) -> None:
        self._groups = groups

    def groups_of(self, lane: int) -> dict[str, None]:
        return dict.fromkeys(self._groups.get(lane, []))

    def take_sets(self, group: str, sets: Collection[PatternSet]) -> Iterator[None]:
        del group, sets
        return iter(())

    def lanes_of(self, entries: Entries) -> npt.NDArray[np.int32]:
        lanes: npt.NDArray[np.int32] = entries["subject"].astype(np.int32)
        return lanes


def offer_of(rig: Rig, subject: int, count: int) -> None:
    entries = rig.offer(count, lane=subject)
    entries["subject"] = subject


def lateness_ms(rig: Rig) -> list[int]:
    return [fact.at_ms - rig.dues_ms[fact.sequence] for fact in rig.facts]


@pytest.mark.parametrize("make_bad", [make_silent, make_closing, make_cutting, make_erring])
async def test_w1_a_retry_carries_every_byte_that_the_first_try_did(
    make_bad: Callable[[FakeBroker], None],
) -> None:
    bodies: list[bytes] = []

    def setup(rig: Rig) -> None:
        make_bad(rig.brokers[0])
        bad = rig.brokers[0].script

        def script(request: Received) -> Reply:
            bodies.append(request.frame.body)
            # The fake broker itself refuses an empty body, which QMQ's takes for a success.
            return bad(request) if len(bodies) == 1 else Reply()

        rig.brokers[0].script = script

    async with rig_of(config=QUICK, setup=setup) as rig:
        rig.offer(20)
        await trio.sleep(30)
        assert bodies[0] == b"".join(rig.store.items)
        # After the failure an item goes first, then the rest.
        assert b"".join(bodies[1:]) == bodies[0]
        rig.assert_all_settled()


async def test_d2_an_outcome_is_told_in_the_moment_in_which_its_answer_comes() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: Reply(delay_s=0.123)

    config = SenderConfig(in_flight_requests_start=4, batch_items=10)
    async with rig_of(config=config, setup=setup) as rig:
        await trio.sleep(1)
        rig.offer(40)
        await trio.sleep(0.12)
        assert rig.facts == []
        await trio.sleep(0.004)
        # What crosses them off waits for nobody: the rest of the window is the fsync of the facts.
        assert {fact.at_ms for fact in rig.facts} == {EPOCH_MS + 1123}
        rig.assert_all_settled()


async def test_s1_subjects_without_a_live_broker_stop_no_other() -> None:
    groups = {subject: ["g-b0"] for subject in range(100)}
    groups |= {subject: [] for subject in range(100, 200)}
    groups |= {200: ["g-b1"]}

    def setup(rig: Rig) -> None:
        make_refusing(rig.brokers[0])

    async with rig_of(2, setup=setup, routes=ByLane(groups)) as rig:
        for subject in range(200):
            offer_of(rig, subject, 300)
        await trio.sleep(1)
        for _ in range(50):
            offer_of(rig, 200, 10)
            await trio.sleep(0.1)
        assert len(rig.facts) == 500
        assert max(lateness_ms(rig)) <= 1
        assert rig.sender.unsent().queued == 60_000


async def test_s2_what_failed_finds_its_place_again_however_full_everything_is() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda request: (
            refuse(ItemCode.STORE_ERROR, *request.ids[::2]) if len(request.ids) > 1 else Reply()
        )
        make_erring(rig.brokers[1])

    config = SenderConfig(
        batch_items=4,
        queue_items_max=2,
        queue_lane_batches_min=1,
        entries_max=8,
        retry_base_s=0.001,
        retry_max_s=0.01,
    )
    async with rig_of(2, config=config, setup=setup) as rig:
        # Much more than it should hold, and whoever offers does not wait for anything.
        for _ in range(30):
            rig.offer(50)
        assert trio.current_time() == 0
        await trio.sleep(600)
        rig.assert_all_settled()


@pytest.mark.parametrize(
    "code", [ResponseCode.BROKER_ERROR, ResponseCode.BROKER_REJECT, ResponseCode.UNKNOWN_CODE]
)
async def test_s3_a_broker_that_refuses_every_request_is_asked_ever_less_often(code: int) -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: Reply(code=code)

    async with rig_of(setup=setup) as rig:
        rig.offer(1000)
        await trio.sleep(60)
        first = len(rig.brokers[0].requests)
        await trio.sleep(60)
        # One item for each time that the circuit lets one through, every 1 to 2 s.
        assert first < 80
        assert 25 <= len(rig.brokers[0].requests) - first <= 62
        assert rig.sender.unsent().total == 1000


@pytest.mark.parametrize(
    "code", [ItemCode.SUBJECT_NOT_ASSIGNED, ItemCode.BLOCK, ItemCode.STORE_ERROR, 99]
)
async def test_s4_poison_is_tried_ever_less_often_and_its_neighbours_are_on_time(code: int) -> None:
    tries: list[float] = []

    def script(request: Received) -> Reply:
        if b"m3" in request.ids:
            tries.append(trio.current_time())
            return refuse(code, b"m3")
        return Reply()

    def setup(rig: Rig) -> None:
        for broker in rig.brokers:
            broker.script = script

    async with rig_of(2, setup=setup) as rig:
        for _ in range(600):
            rig.offer(10)
            await trio.sleep(1)
        assert len(rig.facts) == 5999
        assert max(lateness_ms(rig)) <= 1
        assert len(tries) <= 40
        gaps = np.diff(tries)
        assert gaps.max() >= 10
        assert all(status.circuit is CircuitState.CLOSED for status in rig.sender.status())


async def test_s4_what_a_broker_has_already_is_delivered() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda request: refuse(ItemCode.MESSAGE_DUPLICATE, *request.ids)

    async with rig_of(setup=setup) as rig:
        rig.offer(10)
        await trio.sleep(3600)
        assert {fact.outcome for fact in rig.facts} == {Outcome.KNOWN}
        assert len(rig.brokers[0].requests) == 1
        rig.assert_all_settled()


@pytest.mark.parametrize("make_bad", [make_refusing, make_unreachable, make_silent])
async def test_s5_nobody_waits_in_a_row_behind_what_failed_at_a_dead_group(
    make_bad: Callable[[FakeBroker], None],
) -> None:
    groups = {1: ["g-b0", "g-b1"], 2: ["g-b0", "g-b1"], 3: ["g-b0"]}
    async with rig_of(2, routes=ByLane(groups)) as rig:
        await trio.sleep(1)
        make_bad(rig.brokers[0])
        await rig.brokers[0].hang_up()
        for _ in range(100):
            for subject in (1, 2, 3):
                offer_of(rig, subject, 10)
            await trio.sleep(0.1)
        late = [late_ms for late_ms in lateness_ms(rig) if late_ms > 10]
        # An item at a time is risked there, of all that others could take.
        assert len(late) <= 10
        assert len(rig.facts) >= 1990
        rig.brokers[0].script = take_all
        rig.brokers[0].is_refusing = rig.brokers[0].is_unreachable = False
        await trio.sleep(15)
        rig.assert_all_settled()


@pytest.mark.parametrize("make_bad", [make_refusing, make_unreachable, make_silent, make_closing])
async def test_s6_connect_errors_and_time_outs_open_the_circuit(
    make_bad: Callable[[FakeBroker], None],
) -> None:
    async with rig_of(2) as rig:
        await trio.sleep(1)
        make_bad(rig.brokers[0])
        if make_bad is not make_silent:
            await rig.brokers[0].hang_up()
        rig.offer(10)
        rig.offer(10)
        await trio.sleep(8)
        status = rig.sender.status()[0]
        assert status.counts.changes[CircuitState.OPEN] >= 1
        assert status.circuit is not CircuitState.CLOSED
        assert status.circuit_reason


async def test_s7_handing_over_takes_no_time_however_full_the_sender_is() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = stay_silent

    config = SenderConfig(queue_items_max=10, entries_max=100)
    routes = ByLane({1: ["g-b0"], 2: ["g-b1"]})
    async with rig_of(2, config=config, setup=setup, routes=routes) as rig:
        await trio.sleep(1)
        began = trio.current_time()
        offer_of(rig, 1, 20_000)
        offer_of(rig, 2, 5)
        assert trio.current_time() == began
        # Whoever offers sees that it should not go on, and waits with whatever else it has to do.
        assert rig.sender.room == 0
        await trio.sleep(0.01)
        assert len(rig.facts) == 5
        assert max(lateness_ms(rig)) <= 1
