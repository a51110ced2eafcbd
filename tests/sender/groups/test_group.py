"""A group that fails harms nobody else and loses nothing; one that is well gets whole batches."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import structlog
import trio
import trio.lowlevel

from delay_protocol.basics.codes import ResponseCode
from delay_protocol.wire.hello import Hello, encode_hello
from delay_transport.seams.runtime import Network
from sender.groups.group import Group
from sender.groups.group_status import GroupState
from sender.health.circuit import CircuitState
from sender.outcomes.outcomes import Outcome
from sender.settings.config import SenderConfig
from sender.settings.errors import ItemBytesError
from tests.brokers import Received
from tests.sender.broker_rig import (
    EPOCH_MS,
    FAULTS,
    HELLO,
    QUICK,
    FakeBroker,
    Reply,
    Rig,
    make_erring,
    make_silent,
    rig_of,
    states,
    stay_silent,
    take_all,
)


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


@pytest.mark.parametrize("hello_code", [ResponseCode.UNKNOWN_CODE, ResponseCode.SUCCESS])
async def test_a_connection_begins_with_the_hello_whatever_a_broker_knows_of_it(
    hello_code: int,
) -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].hello_code = hello_code

    async with rig_of(setup=setup) as rig:
        rig.offer(1)
        await trio.sleep(1)
        assert rig.brokers[0].hellos == [HELLO]
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
        status = rig.sender.status()[0]
        assert status.circuit is CircuitState.OPEN
        assert status.circuit_reason == "fenced: epoch 3 is refused, it is never tried again"
        rig.sender.set_groups([rig.group(0, at=1), rig.group(1)])
        assert rig.sender.status()[0].circuit is CircuitState.OPEN
        rig.assert_all_settled()


@pytest.mark.parametrize("hello_code", [ResponseCode.BROKER_REJECT, ResponseCode.SUCCESS])
async def test_a_delay_server_gets_nothing_until_the_group_has_another_address(
    hello_code: int,
) -> None:
    """Whatever it got would come back when it is due, again and again."""

    def setup(rig: Rig) -> None:
        answer = Hello(group="dg2", epoch=1, node_id="n7", log_uuid="1-2-3")
        rig.brokers[0].hello_code = hello_code
        rig.brokers[0].hello_body = encode_hello(answer)

    with structlog.testing.capture_logs() as log:
        async with rig_of(3, setup=setup) as rig:
            rig.sender.set_groups([rig.group(0), rig.group(1)])
            rig.offer(600)
            await trio.sleep(3600)
            assert rig.brokers[0].requests == []
            assert len(rig.brokers[0].connects) == 1
            status = rig.sender.status()[0]
            assert status.circuit is CircuitState.OPEN
            assert "the delay server n7 of dg2, log 1-2-3" in status.circuit_reason
            assert status.counts.delivered == 0
            rig.assert_all_settled()
            (line,) = [one for one in log if one["log_level"] == "error"]
            assert (line["group"], "n7" in line["reason"]) == (rig.group(0).name, True)
            assert [one for one in log if one["log_level"] == "warning"] == []
            rig.sender.set_groups([rig.group(0, at=2), rig.group(1)])
            await trio.sleep(1)
            rig.offer(600)
            await trio.sleep(1)
            assert rig.brokers[2].requests != []
            rig.assert_all_settled()


async def test_a_group_that_moves_there_and_back_during_the_hello_says_it_once_more() -> None:
    """Whether it may be sent to is known from the answer only, and half a HELLO may be out."""

    def setup(rig: Rig) -> None:
        rig.brokers[0].hello_code = None

    async with rig_of(2, setup=setup) as rig:
        await trio.sleep(0.5)
        rig.sender.set_groups([rig.group(0, at=1), rig.group(1)])
        rig.sender.set_groups([rig.group(0), rig.group(1)])
        await trio.sleep(0.5)
        assert rig.sender.status()[0].state is not GroupState.UP
        rig.offer(100)
        await trio.sleep(1)
        assert rig.brokers[0].requests == []


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
    config = SenderConfig(in_flight_requests_start=2, in_flight_requests_max=2)
    async with rig_of(config=config) as rig:
        rig.brokers[0].script = lambda _request: Reply(delay_s=1)
        await trio.sleep(0.1)
        for _ in range(10):
            rig.offer(1)
            await trio.sleep(0.01)
        await trio.sleep(5)
        assert [len(request.ids) for request in rig.brokers[0].requests] == [1, 1, 8]
        rig.assert_all_settled()


async def test_order_is_kept_while_one_group_serves_and_nothing_fails() -> None:
    async with rig_of(config=SenderConfig(batch_items=7)) as rig:
        for _ in range(10):
            rig.offer(33)
        await trio.sleep(1)
        assert rig.brokers[0].ids == [f"m{number}".encode() for number in range(330)]


# One group fails.


@pytest.mark.parametrize("make_bad", FAULTS)
async def test_a_dead_group_stops_no_other_and_everything_is_delivered(
    make_bad: Callable[[FakeBroker], None],
) -> None:
    def setup(rig: Rig) -> None:
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
async def test_nothing_spins_while_all_groups_are_down(
    make_bad: Callable[[FakeBroker], None],
) -> None:
    def setup(rig: Rig) -> None:
        for broker in rig.brokers:
            make_bad(broker)

    async with rig_of(2, config=SenderConfig(reconnect_max_s=10), setup=setup) as rig:
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
    config = SenderConfig(batch_items=10, in_flight_requests_max=1)
    async with rig_of(2, config=config) as rig:
        rig.brokers[0].script = stay_silent
        await trio.sleep(0.1)
        rig.offer(100)
        await trio.sleep(0.1)
        status = rig.sender.status()
        assert status[0].in_flight == 10
        assert status[0].queued == 20
        await rig.brokers[0].hang_up()
        await trio.sleep(0.05)
        # All but the ten that may have been taken.
        assert len(rig.facts) == 90
        await trio.sleep(1)
        rig.assert_all_settled()


@pytest.mark.parametrize("well_again_s", [3.0, 4.98])
async def test_what_waits_for_a_stalled_group_goes_to_one_that_is_well_again_at_once(
    well_again_s: float,
) -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = stay_silent
        rig.brokers[1].is_refusing = True

    config = SenderConfig(
        batch_items=1,
        in_flight_requests_start=2,
        queue_lane_batches_min=20,
        reconnect_base_s=0.02,
        reconnect_max_s=0.02,
    )
    async with rig_of(2, config=config, setup=setup) as rig:
        rig.offer(1)
        await trio.sleep(2)
        rig.offer(11)
        await trio.sleep(well_again_s - 2)
        status = rig.sender.status()
        assert (status[0].in_flight, status[0].queued) == (2, 10)
        rig.brokers[1].is_refusing = False
        await trio.sleep(0.1)
        assert set(rig.delivered()) >= set(range(2, 12))
        # The first time-out waits for no other.
        await trio.sleep_until(5.05)
        assert states(rig) == [GroupState.RETIRING, GroupState.UP]


async def test_what_waited_for_a_group_that_stalls_goes_to_a_slow_one_if_there_is_no_other() -> (
    None
):
    async with rig_of(2, config=SenderConfig(batch_items=10)) as rig:
        rig.brokers[0].script = lambda _request: Reply(delay_s=4)
        await trio.sleep(0.1)
        rig.offer(200)
        await trio.sleep(1)
        assert rig.sender.status()[0].is_slow
        came = len(rig.brokers[0].ids)
        rig.brokers[1].script = stay_silent
        rig.offer(500)
        await trio.sleep(0.2)
        # All but what is in flight to it waits for the one that is well.
        assert rig.sender.status()[0].queued == 0
        assert len(rig.brokers[0].ids) == came
        await trio.sleep(0.1)
        assert [status.is_slow for status in rig.sender.status()] == [True, True]
        assert rig.sender.status()[0].queued > 0


async def test_a_request_in_flight_when_its_connection_dies_is_a_possible_duplicate() -> None:
    config = replace(QUICK, batch_items=256, in_flight_requests_start=2)
    async with rig_of(config=config) as rig:
        rig.brokers[0].script = stay_silent
        rig.offer(300)
        await trio.sleep(0.1)
        assert rig.sender.unsent().in_doubt == 0
        await rig.brokers[0].hang_up()
        rig.brokers[0].script = take_all
        await trio.sleep(0.001)
        in_doubt = rig.sender.unsent().in_doubt
        await trio.sleep(10)
        counts = rig.sender.status()[0].counts
        assert counts.possible_duplicates == 300
        assert (in_doubt, rig.sender.unsent().in_doubt) == (300, 0)
        sent = [f"m{number}".encode() for number in range(300)]
        assert sorted(rig.brokers[0].ids) == sorted(sent * 2)
        rig.assert_all_settled()


async def test_a_refused_request_is_no_possible_duplicate() -> None:
    async with rig_of(config=QUICK) as rig:
        make_erring(rig.brokers[0])
        rig.offer(10)
        await trio.sleep(0.05)
        rig.brokers[0].script = take_all
        await trio.sleep(5)
        counts = rig.sender.status()[0].counts
        assert counts.possible_duplicates == 0
        assert counts.refused == 10
        rig.assert_all_settled()


async def test_a_time_out_retires_the_connection_but_other_answers_still_count() -> None:
    config = SenderConfig(batch_items=1, in_flight_requests_start=2)
    async with rig_of(config=config) as rig:
        rig.brokers[0].script = lambda request: (
            Reply(times=0) if b"m0" in request.ids else Reply(delay_s=4.9)
        )
        rig.offer(1)
        await trio.sleep(2)
        rig.offer(1)
        await trio.sleep(4)
        assert states(rig) == [GroupState.RETIRING]
        await trio.sleep(1)
        assert rig.delivered() == [1]
        assert rig.sender.status()[0].counts.possible_duplicates == 1


async def test_after_a_time_out_the_window_is_as_small_as_at_first_and_grows_again() -> None:
    config = SenderConfig(batch_items=10)
    async with rig_of(config=config) as rig:
        for _ in range(2):
            rig.brokers[0].script = take_all
            rig.offer(500)
            await trio.sleep(10)
            grown = rig.sender.status()[0]
            assert grown.window_requests == config.in_flight_requests_max
            assert grown.queue_items > 2 * config.batch_items
            rig.brokers[0].script = stay_silent
            rig.offer(1)
            await trio.sleep(5.5)
            after = rig.sender.status()[0]
            assert after.circuit is CircuitState.HALF_OPEN
            assert after.window_requests == config.in_flight_requests_start == 1
            assert after.queue_items == 2 * config.batch_items


async def test_a_group_gets_a_single_item_after_a_failure_until_it_takes_one() -> None:
    async with rig_of() as rig:
        make_silent(rig.brokers[0])
        rig.offer(1000)
        await trio.sleep(120)
        assert all(len(request.ids) == 1 for request in rig.brokers[0].requests[4:])
        rig.brokers[0].script = take_all
        await trio.sleep(120)
        rig.assert_all_settled()


async def test_a_broker_that_dies_without_a_word_is_found_out_while_idle() -> None:
    async with rig_of(2) as rig:
        rig.offer(1)
        await trio.sleep(1)
        rig.brokers[0].script = stay_silent
        await trio.sleep(21)
        assert rig.sender.status()[0].circuit is not CircuitState.CLOSED
        rig.offer(500)
        await trio.sleep(0.1)
        # One item may have been risked on it.
        assert len(rig.facts) >= 500
        await trio.sleep(10)
        rig.assert_all_settled()


# Damage.


async def test_damaged_entries_are_reported_and_their_neighbours_go_on() -> None:
    async with rig_of() as rig:
        rig.store.damaged = {1, 4}
        rig.offer(6)
        await trio.sleep(1)
        assert rig.damages == [1, 4]
        assert rig.brokers[0].ids == [b"m0", b"m2", b"m3", b"m5"]
        rig.assert_all_settled()


async def test_bytes_are_read_anew_for_each_try_and_damage_found_then_counts() -> None:
    async with rig_of(config=QUICK) as rig:
        make_erring(rig.brokers[0])
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


class ToldStream(trio.abc.Stream):
    """Tells when it is closed; then others run, as while a socket is closed."""

    def __init__(self, stream: trio.abc.Stream, on_close: Callable[[], None]) -> None:
        self._stream = stream
        self._on_close = on_close

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        self._on_close()
        await self._stream.aclose()


class ToldNetwork:
    """Makes streams that tell when they are closed."""

    def __init__(self, network: Network, on_close: Callable[[], None]) -> None:
        self._network = network
        self._on_close = on_close

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        return ToldStream(await self._network.connect(host, port), self._on_close)


async def test_a_group_that_goes_while_its_connection_is_closed_gives_back_what_waits() -> None:
    def leaves() -> None:
        rig.sender.set_groups([rig.group(1)])

    def setup(made: Rig) -> None:
        group = made.sender._groups.in_use[0]
        assert isinstance(group, Group)
        connector = group._connector
        connector._network = ToldNetwork(connector._network, leaves)  # type: ignore[assignment]

    config = SenderConfig(batch_items=10, turn_items=10, in_flight_requests_max=1)
    async with rig_of(2, config=config, setup=setup) as rig:
        for broker in rig.brokers:
            broker.script = stay_silent
        await trio.sleep(1)
        rig.offer(40)
        await trio.sleep(0.1)
        assert rig.sender.unsent().total == 40
        rig.brokers[1].script = take_all
        await rig.brokers[0].hang_up()
        await trio.sleep(60)
        assert (rig.sender.unsent().total, len(rig.delivered())) == (0, 40)


async def test_the_only_group_gets_one_at_a_time_too() -> None:
    async with rig_of(1) as rig:
        rig.brokers[0].script = stay_silent
        for _ in range(900):
            rig.offer(10)
            await trio.sleep(0.01)
        status = rig.sender.status()[0]
        assert status.state is GroupState.UP
        assert status.in_flight == 1
