"""Every entry offered ends in one outcome, never early, whatever the brokers do meanwhile."""

import numpy as np
import pytest
import trio

from delay_protocol import ItemCode, ResponseCode
from sender import GroupState, ItemBytesError, Outcome, SenderConfig
from tests.sender.broker_rig import (
    EPOCH_MS,
    HELLO,
    FakeBroker,
    Received,
    Reply,
    Rig,
    rig_of,
    stay_silent,
    take_all,
)

QUICK = SenderConfig(retry_base_s=0.1, retry_max_s=1.0, reconnect_base_s=0.1, reconnect_max_s=1.0)


def states(rig: Rig) -> list[GroupState]:
    return [status.state for status in rig.sender.status()]


def refuse(code: int, *ids: bytes) -> Reply:
    return Reply(failures=dict.fromkeys(ids, code))


async def test_what_is_offered_is_delivered_byte_for_byte_and_reported() -> None:
    async with rig_of() as rig:
        rig.offer(3)
        await trio.sleep(1)
        (request,) = rig.brokers[0].requests
        assert request.frame.body == b"".join(rig.store.items)
        assert (request.frame.version, request.frame.flag, request.frame.request_code) == (7, 0, 10)
        assert [(f.sequence, f.group, f.outcome) for f in rig.facts] == [
            (number, "g-b0", Outcome.DELIVERED) for number in range(3)
        ]
        rig.assert_all_settled()


async def test_an_empty_offer_sends_nothing() -> None:
    async with rig_of() as rig:
        rig.offer(0)
        await trio.sleep(1)
        assert rig.brokers[0].requests == []


async def test_a_connection_begins_with_the_hello() -> None:
    async with rig_of() as rig:
        rig.offer(1)
        await trio.sleep(1)
        assert rig.brokers[0].hellos == [HELLO]


async def test_a_broker_that_knows_hello_is_sent_to_as_well() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].hello_code = ResponseCode.SUCCESS

    async with rig_of(setup=setup) as rig:
        rig.offer(1)
        await trio.sleep(1)
        rig.assert_all_settled()


async def test_a_broker_that_fences_our_epoch_gets_nothing_and_is_never_tried_again() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].hello_code = ResponseCode.BROKER_REJECT

    async with rig_of(2, setup=setup) as rig:
        rig.offer(600)
        await trio.sleep(3600)
        assert states(rig) == [GroupState.FENCED, GroupState.UP]
        assert rig.brokers[0].requests == []
        assert len(rig.brokers[0].connects) == 1
        rig.assert_all_settled()


@pytest.mark.parametrize("hello_code", [None, ResponseCode.BROKER_ERROR])
async def test_a_broker_that_fails_the_hello_gets_nothing_until_it_answers(
    hello_code: int | None,
) -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].hello_code = hello_code

    async with rig_of(config=QUICK, setup=setup) as rig:
        rig.offer(1)
        await trio.sleep(60)
        assert rig.brokers[0].requests == []
        assert rig.sender.unsent().queued == 1
        rig.brokers[0].hello_code = 3
        await trio.sleep(10)
        rig.assert_all_settled()


async def test_batches_are_limited_by_count() -> None:
    async with rig_of(config=SenderConfig(batch_items=10)) as rig:
        rig.offer(25)
        await trio.sleep(1)
        assert [len(request.ids) for request in rig.brokers[0].requests] == [10, 10, 5]
        rig.assert_all_settled()


async def test_batches_are_limited_by_bytes_and_a_larger_item_goes_alone() -> None:
    async with rig_of(config=SenderConfig(batch_bytes=400, in_flight_bytes_max=400)) as rig:
        rig.offer(5, size=100)
        rig.offer(1, size=1000)
        rig.offer(1, size=100)
        await trio.sleep(1)
        assert [len(request.ids) for request in rig.brokers[0].requests] == [2, 2, 1, 1, 1]
        rig.assert_all_settled()


async def test_small_offers_are_gathered_while_requests_are_in_flight() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: Reply(delay_s=1)

    async with rig_of(config=SenderConfig(in_flight_requests_max=2), setup=setup) as rig:
        await trio.sleep(0.1)
        for _ in range(10):
            rig.offer(1)
            await trio.sleep(0.01)
        await trio.sleep(5)
        assert [len(request.ids) for request in rig.brokers[0].requests] == [1, 1, 8]
        rig.assert_all_settled()


async def test_requests_and_bytes_in_flight_are_bounded() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: Reply(delay_s=1)

    config = SenderConfig(batch_items=1, in_flight_requests_max=5, in_flight_bytes_max=1000)
    async with rig_of(config=config, setup=setup) as rig:
        rig.offer(20, size=10)
        await trio.sleep(0.5)
        assert rig.sender.status()[0].in_flight == 5
        await trio.sleep(10)
        rig.assert_all_settled()
        rig.offer(20, size=200)
        await trio.sleep(0.5)
        status = rig.sender.status()[0]
        assert status.in_flight == 4
        assert status.in_flight_bytes == 4 * len(rig.store.items[-1]) <= 1000
        await trio.sleep(10)
        rig.assert_all_settled()


async def test_order_is_kept_while_one_group_serves_and_nothing_fails() -> None:
    async with rig_of(config=SenderConfig(batch_items=7)) as rig:
        for _ in range(10):
            rig.offer(33)
        await trio.sleep(1)
        assert rig.brokers[0].ids == [f"m{number}".encode() for number in range(330)]


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


# One group fails.


def make_refusing(broker: FakeBroker) -> None:
    broker.is_refusing = True


def make_unreachable(broker: FakeBroker) -> None:
    broker.is_unreachable = True


def make_silent(broker: FakeBroker) -> None:
    broker.script = stay_silent


def make_late(broker: FakeBroker) -> None:
    broker.script = lambda _request: Reply(delay_s=6)


def make_cutting(broker: FakeBroker) -> None:
    broker.script = lambda _request: Reply(cut=10)


def make_closing(broker: FakeBroker) -> None:
    broker.script = lambda _request: Reply(cut=0)


def make_erring(broker: FakeBroker) -> None:
    broker.script = lambda _request: Reply(code=ResponseCode.BROKER_ERROR)


def make_rejecting(broker: FakeBroker) -> None:
    broker.script = lambda _request: Reply(code=ResponseCode.BROKER_REJECT)


def make_unknowing(broker: FakeBroker) -> None:
    broker.script = lambda _request: Reply(code=ResponseCode.UNKNOWN_CODE)


def make_read_only(broker: FakeBroker) -> None:
    broker.script = lambda request: refuse(ItemCode.BROKER_READ_ONLY, *request.ids)


def make_garbage(broker: FakeBroker) -> None:
    broker.script = lambda _request: Reply(raw=b"HTTP/1.1 400 Bad Request\r\n\r\n")


def make_garbage_body(broker: FakeBroker) -> None:
    broker.script = lambda _request: Reply(body=b"\x7f\xff")


def make_deaf(broker: FakeBroker) -> None:
    broker.is_deaf = True


FAULTS = [
    make_refusing,
    make_unreachable,
    make_silent,
    make_late,
    make_cutting,
    make_closing,
    make_erring,
    make_rejecting,
    make_unknowing,
    make_read_only,
    make_garbage,
    make_garbage_body,
    make_deaf,
]


@pytest.mark.parametrize("make_bad", FAULTS)
async def test_a_dead_group_stops_no_other_and_everything_is_delivered(make_bad: object) -> None:
    def setup(rig: Rig) -> None:
        assert callable(make_bad)
        make_bad(rig.brokers[1])

    async with rig_of(4, config=QUICK, setup=setup) as rig:
        for _ in range(100):
            rig.offer(100)
            await trio.sleep(0.1)
        await trio.sleep(60)
        rig.assert_all_settled()
        assert {fact.group for fact in rig.facts} == {"g-b0", "g-b2", "g-b3"}
        # What never went to the dead group was on time, and very little went there: three requests
        # at most before it counts as failing, then one item at a time.
        offered_at = {s: EPOCH_MS + s // 100 * 100 for s in range(10_000)}
        late = [fact for fact in rig.facts if fact.at_ms > offered_at[fact.sequence] + 10]
        assert len(late) < 350


@pytest.mark.parametrize("make_bad", FAULTS)
async def test_a_group_that_was_dead_is_used_again_once_it_is_well(make_bad: object) -> None:
    def setup(rig: Rig) -> None:
        assert callable(make_bad)
        make_bad(rig.brokers[0])

    async with rig_of(config=QUICK, setup=setup) as rig:
        rig.offer(1000)
        await trio.sleep(60)
        assert rig.facts == []
        assert rig.sender.unsent().total == 1000
        broker = rig.brokers[0]
        broker.script = take_all
        broker.is_deaf = broker.is_refusing = broker.is_unreachable = False
        await trio.sleep(30)
        rig.assert_all_settled()
        assert states(rig) == [GroupState.UP]


@pytest.mark.parametrize("make_bad", FAULTS)
async def test_nothing_spins_while_all_groups_are_down(make_bad: object) -> None:
    def setup(rig: Rig) -> None:
        assert callable(make_bad)
        for broker in rig.brokers:
            make_bad(broker)

    async with rig_of(2, setup=setup) as rig:
        rig.offer(5000)
        await trio.sleep(60)
        start = trio.current_time()
        steps = _StepCounter()
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(600)
        trio.lowlevel.remove_instrument(steps)
        # Two groups, one attempt each in 5 to 10 s, and the odd retry.
        assert steps.count < 10_000, steps.count
        assert sum(len([t for t in b.connects if t > start]) for b in rig.brokers) < 300
        assert rig.sender.unsent().total == 5000


class _StepCounter(trio.abc.Instrument):
    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002
        self.count += 1


async def test_what_is_queued_for_a_group_that_fails_moves_to_another_at_once() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = stay_silent

    config = SenderConfig(batch_items=10, in_flight_requests_max=1)
    async with rig_of(2, config=config, setup=setup) as rig:
        await trio.sleep(0.1)
        rig.offer(100)
        await trio.sleep(0.1)
        status = rig.sender.status()
        assert status[0].in_flight == 10
        assert status[0].queued == 40
        await rig.brokers[0].hang_up()
        await trio.sleep(0.05)
        # All but the ten that may have been taken.
        assert len(rig.facts) == 90
        await trio.sleep(1)
        rig.assert_all_settled()


async def test_a_request_in_flight_when_its_connection_dies_is_a_possible_duplicate() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = stay_silent

    async with rig_of(config=QUICK, setup=setup) as rig:
        rig.offer(300)
        await trio.sleep(0.1)
        await rig.brokers[0].hang_up()
        rig.brokers[0].script = take_all
        await trio.sleep(10)
        counts = rig.sender.status()[0].counts
        assert counts.requests_lost == 2
        assert counts.possible_duplicates == 300
        assert sorted(rig.brokers[0].ids) == sorted([f"m{n}".encode() for n in range(300)] * 2)
        rig.assert_all_settled()


async def test_a_refused_request_is_no_possible_duplicate() -> None:
    def setup(rig: Rig) -> None:
        make_erring(rig.brokers[0])

    async with rig_of(config=QUICK, setup=setup) as rig:
        rig.offer(10)
        await trio.sleep(0.05)
        rig.brokers[0].script = take_all
        await trio.sleep(5)
        counts = rig.sender.status()[0].counts
        assert counts.possible_duplicates == 0
        assert counts.refused == 10
        rig.assert_all_settled()


async def test_an_answer_after_its_time_is_dropped_and_the_retry_counts() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda request: Reply(delay_s=5.5 if b"m0" in request.ids else 1)

    config = SenderConfig(batch_items=1)
    async with rig_of(2, config=config, setup=setup) as rig:
        await trio.sleep(0.1)
        rig.offer(1)
        await trio.sleep(4.5)
        # Keeps the connection open until the late answer has come.
        rig.offer(2)
        await trio.sleep(10)
        rig.assert_all_settled()
        counts = rig.sender.status()[0].counts
        assert counts.requests_timed_out == 1
        assert rig.sender.status()[1].counts.delivered >= 1


async def test_an_answer_that_comes_twice_counts_once() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: Reply(times=3)

    async with rig_of(setup=setup) as rig:
        rig.offer(10)
        await trio.sleep(1)
        rig.assert_all_settled()
        assert rig.sender.status()[0].state is GroupState.UP


async def test_a_time_out_retires_the_connection_but_other_answers_still_count() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda request: (
            Reply(times=0) if b"m0" in request.ids else Reply(delay_s=4.9)
        )

    async with rig_of(config=SenderConfig(batch_items=1), setup=setup) as rig:
        rig.offer(1)
        await trio.sleep(2)
        rig.offer(1)
        await trio.sleep(4)
        assert states(rig) == [GroupState.RETIRING]
        await trio.sleep(1)
        assert rig.delivered() == [1]
        assert rig.sender.status()[0].counts.possible_duplicates == 1


async def test_a_group_gets_a_single_item_after_a_failure_until_it_takes_one() -> None:
    def setup(rig: Rig) -> None:
        make_silent(rig.brokers[0])

    async with rig_of(setup=setup) as rig:
        rig.offer(1000)
        await trio.sleep(120)
        assert all(len(request.ids) == 1 for request in rig.brokers[0].requests[4:])
        rig.brokers[0].script = take_all
        await trio.sleep(120)
        rig.assert_all_settled()


async def test_the_wait_between_two_attempts_at_a_dead_group_grows_to_its_ceiling() -> None:
    def setup(rig: Rig) -> None:
        make_refusing(rig.brokers[0])

    async with rig_of(setup=setup) as rig:
        await trio.sleep(300)
        gaps = np.diff(rig.brokers[0].connects)
        assert 0.05 <= gaps[0] <= 0.11
        assert all(5 <= gap <= 10.01 for gap in gaps[8:])


async def test_a_broker_that_dies_without_a_word_is_found_out_while_idle() -> None:
    async with rig_of(2) as rig:
        rig.offer(1)
        await trio.sleep(1)
        rig.brokers[0].script = stay_silent
        await trio.sleep(21)
        assert states(rig)[0] is not GroupState.UP
        rig.offer(500)
        await trio.sleep(0.1)
        # One item may have been risked on it.
        assert len(rig.facts) >= 500
        await trio.sleep(10)
        rig.assert_all_settled()


async def test_heartbeats_keep_an_idle_connection() -> None:
    async with rig_of() as rig:
        await trio.sleep(100)
        assert len(rig.brokers[0].heartbeats) == 6
        assert len(rig.brokers[0].connects) == 1


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


# Damage.


async def test_damaged_entries_are_reported_and_their_neighbours_go_on() -> None:
    async with rig_of() as rig:
        rig.store.damaged = {1, 4}
        rig.offer(6)
        await trio.sleep(1)
        assert rig.damages == [1, 4]
        assert rig.brokers[0].ids == [b"m0", b"m2", b"m3", b"m5"]
        rig.assert_all_settled()


async def test_a_batch_of_damaged_entries_only_sends_nothing() -> None:
    async with rig_of() as rig:
        rig.store.damaged = set(range(10))
        rig.offer(10)
        await trio.sleep(1)
        assert rig.brokers[0].requests == []
        assert rig.damages == list(range(10))
        rig.assert_all_settled()


async def test_bytes_are_read_anew_for_each_try_and_damage_found_then_counts() -> None:
    def setup(rig: Rig) -> None:
        make_erring(rig.brokers[0])

    async with rig_of(config=QUICK, setup=setup) as rig:
        rig.offer(4)
        await trio.sleep(0.01)
        rig.store.damaged = {2}
        rig.brokers[0].script = take_all
        await trio.sleep(10)
        assert rig.store.reads >= 2
        assert rig.damages == [2]
        rig.assert_all_settled()


async def test_items_that_are_not_what_the_index_says_stop_the_process() -> None:
    requests: list[Received] | None = None
    with pytest.RaisesGroup(ItemBytesError, flatten_subgroups=True):
        async with rig_of() as rig:
            requests = rig.brokers[0].requests
            entries = rig.store.add([rig.wall.now_ms()] * 2)
            rig.store.items[1] = rig.store.items[1][:-1]
            rig.sender.offer(entries)
            await trio.sleep(1)
    assert requests == []


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
