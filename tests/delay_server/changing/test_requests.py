"""CHANGE at a whole delay server in virtual time: what is answered, and what is delivered."""

import trio
from xxhash import xxh3_64_intdigest

from delay_protocol.basics.codes import CommandCode, ItemCode, ResponseCode
from delay_protocol.messages.changes import (
    Change,
    ChangeReply,
    ChangeRequest,
    ChangeResult,
    ChangeState,
    decode_change_reply,
    encode_change,
)
from delay_protocol.messages.items import decode_item
from delay_protocol.wire.frames import Frame
from delay_server.accepting.duplicates import DuplicatesConfig
from delay_server.changing.requests import _is_meant, _Sought
from storage.readers.looking import FoundRow
from tests.delay_server.server_rig import (
    MINUTE_MS,
    Producer,
    World,
    all_sealed,
    have_rules,
    make_config,
    make_item,
    until,
)
from tests.simulation.faults import FaultPlan

HOUR_MS = 60 * MINUTE_MS


async def raw(producer: Producer, *changes: Change) -> Frame:
    """Send a CHANGE and return the answer."""
    body = encode_change(ChangeRequest(items=changes))
    return await producer.answer(await producer.post(body, code=CommandCode.CHANGE))


async def ask(producer: Producer, *changes: Change) -> ChangeReply:
    """Send a CHANGE and return what was answered."""
    answer = await raw(producer, *changes)
    assert answer.code == ResponseCode.SUCCESS, answer.body
    return decode_change_reply(answer.body)


async def states(producer: Producer, *changes: Change) -> list[ChangeState]:
    """Return the state of each result."""
    return [result.state for result in (await ask(producer, *changes)).results]


async def one(producer: Producer, change: Change) -> ChangeResult:
    """Return the one result."""
    (result,) = (await ask(producer, change)).results
    return result


def cancel(message_id: str, due_ms: int | None, *, subject: str = "a.b") -> Change:
    """Return the wish that a message is not sent."""
    return Change(subject, message_id, due_ms)


def move(message_id: str, due_ms: int | None, to_ms: int) -> Change:
    """Return the wish that a message comes at another time."""
    return Change("a.b", message_id, due_ms, to_ms)


async def test_what_is_cancelled_never_comes_wherever_it_waits() -> None:
    world = World()
    now_ms = world.now_ms
    times = {"near": 30_000, "minutes": 10 * MINUTE_MS, "hours": 5 * HOUR_MS, "days": 72 * HOUR_MS}
    async with world.serving() as server:
        items = [
            make_item(f"{name}-{kept}", now_ms + after)
            for name, after in times.items()
            for kept in ("kept", "gone")
        ]
        await world.keep(*items)
        producer = await world.connect()
        wishes = [cancel(f"{name}-gone", now_ms + after) for name, after in times.items()]
        assert await states(producer, *wishes) == [ChangeState.CANCELLED] * 4
        again = await ask(producer, *wishes)
        assert {one.state for one in again.results} == {ChangeState.CHANGED_BEFORE}
        assert {one.reason for one in again.results} <= {"cancelled", ""}
        await trio.sleep(5.1 * 3600)
        assert world.broker.ids == ["near-kept", "minutes-kept", "hours-kept"]
        assert server.node.store.schedule.pending == 1
        assert not len(server.master.cancelling)


async def test_what_is_cancelled_stays_so_after_a_restart() -> None:
    world = World()
    due_ms = world.now_ms + HOUR_MS
    async with world.serving():
        await world.keep(make_item("gone", due_ms), make_item("kept", due_ms))
        assert await states(await world.connect(), cancel("gone", due_ms)) == ["cancelled"]
    async with world.serving() as server:
        await trio.sleep(3700)
        assert world.broker.ids == ["kept"]
        assert not server.node.store.schedule.pending


async def test_a_cancelled_message_in_a_queue_is_dropped_when_its_item_is_read() -> None:
    world = World()
    due_ms = world.now_ms + 1000
    async with world.serving() as server:
        world.broker.code = int(ResponseCode.BROKER_ERROR)
        await world.keep(*(make_item(f"m{number}", due_ms) for number in range(10)))
        await until(lambda: server.master.sender.unsent().retrying == 10)
        producer = await world.connect()
        wishes = [cancel(f"m{number}", due_ms) for number in range(0, 10, 2)]
        assert await states(producer, *wishes) == [ChangeState.CANCELLED] * 5
        # Their entries wait on, and their records are applied long ago.
        await trio.sleep(5)
        world.broker.code = 0
        await all_sealed(server)
        assert sorted(world.broker.ids) == ["m1", "m3", "m5", "m7", "m9"]
        await until(lambda: not server.master.sender.unsent().total)
        await until(lambda: not len(server.master.cancelling))
        assert not server.master.cancelling.kept


async def test_what_a_broker_has_is_being_sent_then_delivered() -> None:
    world = World()
    due_ms = world.now_ms + 1000
    async with world.serving():
        world.broker.answer_after_s = 0.5
        await world.keep(make_item("m", due_ms))
        producer = await world.connect()
        await trio.sleep(1.2)
        result = await one(producer, cancel("m", due_ms))
        assert (result.state, result.to) == (ChangeState.SENDING, "g1")
        assert result.retry_after_ms
        assert due_ms <= (result.at_ms or 0) <= world.now_ms
        await trio.sleep(1)
        result = await one(producer, cancel("m", due_ms))
        assert (result.state, result.to) == (ChangeState.DELIVERED, "g1")
        assert result.at_ms == world.broker.deliveries[0].at_ms + 500


async def test_a_message_kept_twice_is_not_cancelled_while_one_of_both_is_being_sent() -> None:
    world = World()
    due_ms = world.now_ms + 1000
    no_window = DuplicatesConfig(window_ms=0)
    async with world.serving(make_config(duplicates=no_window)) as server:
        world.broker.answer_after_s = 2
        await world.keep(make_item("m", due_ms))
        await trio.sleep(1.2)
        await have_rules(server, "a.b")
        await world.keep(make_item("m", due_ms))
        producer = await world.connect()
        assert await states(producer, cancel("m", due_ms)) == [ChangeState.SENDING]
        await have_rules(server)
        await trio.sleep(60)
        assert world.broker.ids == ["m"]


async def test_what_is_unknown_where_files_cannot_be_read_is_said_to_be() -> None:
    world = World()
    due_ms = world.now_ms + 72 * HOUR_MS
    async with world.serving() as server:
        await world.keep(make_item("m", due_ms))
        await until(lambda: not server.node.store.schedule.unwritten(), seconds=120)
        producer = await world.connect()
        assert (await one(producer, cancel("other", None))).reason == ""
        world.disk.plan = FaultPlan(eio_read=1.0)
        result = await one(producer, cancel("m", None))
        assert (result.state, "cannot be read" in result.reason) == (ChangeState.UNKNOWN, True)
        world.disk.plan = FaultPlan()


async def test_what_a_broker_did_not_answer_for_is_being_sent() -> None:
    world = World()
    due_ms = world.now_ms + 1000
    async with world.serving() as server:
        world.broker.answer_after_s = 1000
        await world.keep(make_item("m", due_ms))
        await until(lambda: server.master.sender.unsent().in_doubt, seconds=120)
        result = await one(await world.connect(), cancel("m", due_ms))
        assert result.state is ChangeState.SENDING


async def test_a_dead_letter_is_told_of() -> None:
    world = World()
    due_ms = world.now_ms + 1000
    async with world.serving() as server:
        world.broker.fails = lambda _: int(ItemCode.BLOCK)
        await world.keep(make_item("m", due_ms))
        await until(lambda: server.master.dead_letters.pending, seconds=3600)
        assert (await one(await world.connect(), cancel("m", due_ms))).state is ChangeState.DEAD


async def test_a_message_that_is_not_there_is_unknown_and_so_is_one_of_another_subject() -> None:
    world = World()
    due_ms = world.now_ms + HOUR_MS
    async with world.serving():
        await world.keep(make_item("m", due_ms))
        producer = await world.connect()
        wishes = [
            cancel("m", due_ms + 1),
            cancel("m", due_ms, subject="a.c"),
            cancel("n", due_ms),
            cancel("n", None),
            cancel("n", 2**53 - 1),
            cancel("n", world.now_ms - HOUR_MS),
        ]
        assert await states(producer, *wishes) == [ChangeState.UNKNOWN] * 6


async def test_without_a_time_it_is_looked_for_at_all_times() -> None:
    world = World()
    now_ms = world.now_ms
    async with world.serving():
        await world.keep(make_item("m", now_ms + 50 * HOUR_MS), make_item("n", now_ms + 20_000))
        producer = await world.connect()
        reply = await ask(producer, cancel("m", None), cancel("n", None))
        assert [one.state for one in reply.results] == [ChangeState.CANCELLED] * 2
        assert [one.due_ms for one in reply.results] == [now_ms + 50 * HOUR_MS, now_ms + 20_000]


async def test_a_moved_message_comes_at_its_new_time_with_its_id_and_body() -> None:
    world = World()
    now_ms = world.now_ms
    due_ms = now_ms + HOUR_MS
    async with world.serving() as server:
        said = {"qmq_scheduleReceiveTime": str(due_ms)}
        items = [make_item(one, due_ms, attributes=said) for one in ("later", "sooner")]
        await world.keep(*items)
        producer = await world.connect()
        later_ms, sooner_ms = due_ms + HOUR_MS, now_ms + 5000
        reply = await ask(
            producer, move("later", due_ms, later_ms), move("sooner", due_ms, sooner_ms)
        )
        assert [one.state for one in reply.results] == [ChangeState.MOVED] * 2
        assert [one.due_ms for one in reply.results] == [later_ms, sooner_ms]
        before = await one(producer, cancel("later", due_ms))
        assert (before.state, before.due_ms) == (ChangeState.CHANGED_BEFORE, later_ms)
        await trio.sleep(2.5 * 3600)
        told = {one.message_id: one for one in world.broker.deliveries}
        assert len(world.broker.deliveries) == 2
        assert told["later"].at_ms >= later_ms > told["sooner"].at_ms >= sooner_ms
        item = decode_item(told["later"].data)
        assert (item.due_ms, item.attributes) == (later_ms, said)
        await all_sealed(server)


async def test_what_was_sent_again_after_a_cancel_and_moved_is_told_with_its_new_time() -> None:
    world = World()
    due_ms = world.now_ms + HOUR_MS
    item = make_item("m", due_ms, attributes={"qmq_scheduleReceiveTime": str(due_ms)})
    async with world.serving():
        producer = await world.connect()
        await world.keep(item)
        assert await states(producer, cancel("m", due_ms)) == [ChangeState.CANCELLED]
        await trio.sleep(30)
        await world.keep(item)
        assert await states(producer, move("m", due_ms, due_ms + HOUR_MS)) == [ChangeState.MOVED]
        await trio.sleep(30)
        told = await one(producer, cancel("m", due_ms))
        assert (told.state, told.due_ms) == (ChangeState.CHANGED_BEFORE, due_ms + HOUR_MS)


async def test_equal_changes_are_one_and_of_two_that_differ_the_first_holds() -> None:
    world = World()
    due_ms = world.now_ms + HOUR_MS
    async with world.serving():
        await world.keep(make_item("m", due_ms))
        producer = await world.connect()
        wishes = [cancel("m", due_ms), cancel("m", due_ms), move("m", due_ms, due_ms + 1)]
        assert await states(producer, *wishes) == [
            ChangeState.CANCELLED,
            ChangeState.CANCELLED,
            ChangeState.CHANGED_BEFORE,
        ]


async def test_a_move_into_the_past_or_beyond_the_horizon_is_refused() -> None:
    world = World()
    due_ms = world.now_ms + HOUR_MS
    async with world.serving():
        await world.keep(make_item("m", due_ms))
        producer = await world.connect()
        for to_ms, said in ((world.now_ms - HOUR_MS, b"past"), (10**14, b"730 days")):
            answer = await raw(producer, move("m", due_ms, to_ms))
            assert answer.code == ResponseCode.PARAM_ERROR
            assert said in answer.body
        answer = await producer.answer(await producer.post(b"no", code=CommandCode.CHANGE))
        assert answer.code == ResponseCode.PARAM_ERROR
        assert await states(producer, cancel("m", due_ms)) == [ChangeState.CANCELLED]


async def test_what_is_parked_is_cancelled_on_disk() -> None:
    world = World()
    due_ms = world.now_ms + 1000
    async with world.serving() as server:
        await have_rules(server, "a.b")
        await world.keep(*(make_item(f"m{number}", due_ms) for number in range(4)))
        await trio.sleep(120)
        producer = await world.connect()
        wishes = [cancel("m0", due_ms), cancel("m1", due_ms)]
        assert await states(producer, *wishes) == [ChangeState.CANCELLED] * 2
        await have_rules(server)
        await all_sealed(server)
        assert sorted(world.broker.ids) == ["m2", "m3"]


async def test_an_outcome_that_is_not_applied_yet_counts() -> None:
    world = World()
    async with world.serving() as server:
        due_ms = world.now_ms + 1000
        await world.keep(make_item("m", due_ms))
        server.node.commit_point.is_sole = False
        await until(lambda: world.broker.ids)
        await trio.sleep(1)
        assert server.node.store.schedule.pending == 1
        assert await states(await world.connect(), cancel("m", due_ms)) == [ChangeState.DELIVERED]
        server.node.commit_point.is_sole = True


def test_a_row_whose_id_has_the_same_hash_is_not_meant() -> None:
    for message_id in ("n", "m"):
        item = make_item(message_id, 1000)
        row = FoundRow(
            sequence=1,
            minute=0,
            due_ms=1000,
            id_hash=xxh3_64_intdigest(b"m"),
            subject=b"a.b",
            size=len(item),
            segment="",
            item=item,
        )
        meant = _is_meant(_Sought(cancel("m", 1000)), row, is_exact=True)
        assert meant is (message_id == "m")
