"""What brokers refuse for good becomes a dead letter; people requeue it, or drop it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import trio

from delay_protocol.basics.codes import ItemCode
from delay_server.admin.http import application
from delay_server.dead import dead_letters
from delay_server.dead.dead_letters import Change, DeadConfig
from delay_server.dead.reason import decode_reason
from delay_server.dead.wanted import Meant, Wanted
from delay_server.server import DelayServer, serve
from sender.settings.config import SenderConfig
from storage.batch.batches import LogBatch
from storage.batch.facts import Outcome
from storage.disk.errors import ReadFailedError
from storage.disk.spans import dead_key
from storage.readers.dead_reader import DeadItem
from storage.schedule.dead_index import DeadIndex, DeadRow
from storage.schedule.schedule_log import ScheduleLog
from storage.tools.inspect import verify_disk
from tests.delay_server.admin.test_admin_http import Caller
from tests.delay_server.dead_rig import bury, send
from tests.delay_server.server_rig import World, make_config, make_item, until
from tests.simulation.faults import Action, Trap

DAY_S = 86_400.0


def refuse(*ids: str, code: int = ItemCode.SUBJECT_NOT_ASSIGNED) -> Callable[[bytes], int]:
    """Return how a broker answers that refuses these items for good."""
    return lambda message_id: code if message_id.decode() in ids else 0


async def rows_of(server: DelayServer, meant: Meant | None = None) -> list[DeadRow]:
    """Return the dead letters that are meant, or all."""
    wanted = Wanted() if meant is None else meant
    return await server.master.dead_letters.find(wanted, rows_max=10_000)


async def letter_of(server: DelayServer) -> tuple[DeadRow, DeadItem]:
    """Return the only dead letter, and what its file has of it."""
    rows = await rows_of(server)
    [letter] = await server.master.dead_letters.read(rows, lambda row, item: (row, item))
    return letter


@pytest.mark.parametrize("code", [ItemCode.SUBJECT_NOT_ASSIGNED, ItemCode.BLOCK])
async def test_what_is_refused_for_good_becomes_a_dead_letter_and_its_neighbours_arrive(
    code: int,
) -> None:
    world = World()
    world.broker.fails = refuse("bad", code=code)
    due_ms = world.now_ms + 1000
    items = {name: make_item(name, due_ms, subject="s") for name in ("a", "bad", "z")}
    async with world.serving() as server:
        producer = await world.connect()
        await producer.send(*items.values())
        await until(lambda: server.master.dead_letters.pending == 1)
        assert world.broker.ids == ["a", "z"]
        row, found = await letter_of(server)
        assert found.item == items["bad"]
        assert (row.subject, row.due_ms) == (b"s", due_ms)
        reason = decode_reason((found.reason or "").encode())
        assert reason is not None
        assert (reason.code, reason.group, reason.tries, reason.refused) == (code, "g1", 3, 3)
        assert [one.code for one in reason.refusals] == [code] * 3
        assert due_ms <= reason.first_ms < reason.last_ms <= row.dead_ms
        await trio.sleep(600)
        assert len(world.broker.requests) == 3, "it is tried no more"
        assert server.master.fact_recorder.outcomes[Outcome.DEAD] == 1
        assert (server.node.store.schedule.pending, server.master.loader.held) == (0, 0)


async def test_other_refusals_and_refusals_of_requests_never_make_a_dead_letter() -> None:
    world = World()
    world.broker.fails = refuse("busy", code=ItemCode.STORE_ERROR)
    async with world.serving() as server:
        producer = await world.connect()
        await producer.send(make_item("busy", world.now_ms), make_item("a", world.now_ms))
        await trio.sleep(60)
        world.broker.code = 52
        await producer.send(make_item("b", world.now_ms))
        await trio.sleep(60)
        assert server.master.dead_letters.pending == 0
        world.broker.code, world.broker.fails = 0, refuse()
        await until(lambda: sorted(world.broker.ids) == ["a", "b", "busy"])


async def test_a_requeued_one_is_sent_once_more_byte_for_byte() -> None:
    world = World()
    world.broker.fails = refuse("m")
    item = make_item("m", world.now_ms)
    async with world.serving() as server:
        producer = await world.connect()
        await producer.send(item)
        await until(lambda: server.master.dead_letters.pending == 1)
        world.broker.fails = refuse()
        change = await server.master.dead_letters.requeue(Wanted(), rows_max=10)
        assert (change.matched, change.done, change.after) == (1, 1, None)
        await until(lambda: world.broker.ids == ["m"])
        assert world.broker.deliveries[0].data == item
        assert server.master.dead_letters.pending == 0
        again = await server.master.dead_letters.requeue(Wanted(), rows_max=10)
        assert (again.matched, again.done) == (0, 0)
        await trio.sleep(60)
        assert world.broker.ids == ["m"]


async def test_one_that_is_refused_again_becomes_one_again() -> None:
    world = World()
    world.broker.fails = refuse("m")
    async with world.serving() as server:
        producer = await world.connect()
        await producer.send(make_item("m", world.now_ms))
        for _ in range(3):
            await until(lambda: server.master.dead_letters.pending == 1)
            await server.master.dead_letters.requeue(Wanted(), rows_max=10)
        await until(lambda: server.master.dead_letters.pending == 1)
        assert len(await rows_of(server)) == 1
        assert world.broker.ids == []


async def test_each_is_changed_once_whoever_comes_and_a_dropped_one_is_never_sent() -> None:
    world = World()
    world.broker.fails = refuse("m1", "m2")
    async with world.serving() as server:
        producer = await world.connect()
        await producer.send(make_item("m1", world.now_ms), make_item("m2", world.now_ms))
        await until(lambda: server.master.dead_letters.pending == 2)
        world.broker.fails = refuse()
        letters = server.master.dead_letters
        wanted = [(await rows_of(server))[0].sequence]
        async with trio.open_nursery() as nursery:
            # Two operators at once, and one who wants the opposite.
            for change in (letters.drop, letters.drop, letters.requeue):
                nursery.start_soon(partial(change, wanted, rows_max=10))
        # Whoever comes first gets it, and nobody else.
        assert (letters.dropped + letters.requeued, letters.pending) == (1, 1)
        await trio.sleep(60)
        assert len(world.broker.deliveries) == letters.requeued
        assert server.master.fact_recorder.outcomes[Outcome.DROPPED] == letters.dropped
        await letters.drop(Wanted(), rows_max=10)
        again = await letters.drop(Wanted(), rows_max=10)
        assert (again.matched, letters.pending) == (0, 0)


async def test_a_filter_finds_by_subject_reason_group_time_and_message_id() -> None:
    world = World()
    world.broker.fails = lambda message_id: 3 if message_id.startswith(b"x") else 5
    start_ms = world.now_ms
    async with world.serving() as server:
        producer = await world.connect()
        for number, (name, subject) in enumerate(
            [("x1", "orders.eu"), ("y2", "orders.us"), ("x3", "mail")]
        ):
            await producer.send(make_item(name, start_ms + 1000 * number, subject=subject))
        await until(lambda: server.master.dead_letters.pending == 3)

        async def found(wanted: Wanted) -> list[int]:
            rows = await rows_of(server, wanted)
            return sorted((row.due_ms - start_ms) // 1000 for row in rows)

        assert await found(Wanted(subject="mail")) == [2]
        assert await found(Wanted(subject_prefix="orders.")) == [0, 1]
        assert await found(Wanted(subject="orders")) == []
        assert await found(Wanted(code=3)) == [0, 2]
        assert await found(Wanted(code=3, subject_prefix="orders")) == [0]
        assert await found(Wanted(group="g1")) == [0, 1, 2]
        assert await found(Wanted(group="g2")) == []
        assert await found(Wanted(message_id="y2")) == [1]
        assert await found(Wanted(message_id="y")) == []
        assert await found(Wanted(due_from_ms=start_ms + 1000)) == [1, 2]
        assert await found(Wanted(due_until_ms=start_ms + 1000)) == [0, 1]
        assert await found(Wanted(dead_from_ms=world.now_ms + 1)) == []
        assert await found(Wanted(dead_until_ms=world.now_ms)) == [0, 1, 2]


async def test_pages_of_any_size_show_each_once() -> None:
    world = World()
    names = [f"m{number}" for number in range(700)]
    world.broker.fails = refuse(*names)
    async with world.serving() as server:
        producer = await world.connect()
        for place in range(0, 700, 100):
            await producer.send(
                *(make_item(name, world.now_ms) for name in names[place : place + 100])
            )
        await until(lambda: server.master.dead_letters.pending == 700)
        for size in (1000, 256, 7, 1):
            found = [0]
            letters = server.master.dead_letters
            while rows := await letters.find(Wanted(), after=found[-1], rows_max=size):
                assert len(rows) <= size
                found += [row.sequence for row in rows]
            found = found[1:]
            assert len(found) == len(set(found)) == 700
            assert found == sorted(found)


async def test_at_most_so_many_wait_and_the_rest_is_tried_on() -> None:
    world = World()
    names = [f"m{number}" for number in range(30)]
    world.broker.fails = refuse(*names)
    async with world.serving(make_config(dead=DeadConfig(pending_max=5))) as server:
        producer = await world.connect()
        for name in names:
            await producer.send(make_item(name, world.now_ms))
            await trio.sleep(1)
        await trio.sleep(300)
        assert 5 <= server.master.dead_letters.pending <= 6
        assert server.node.store.schedule.pending == 30 - server.master.dead_letters.pending
        world.broker.fails = refuse()
        await trio.sleep(900)
        assert len(world.broker.deliveries) == 30 - server.master.dead_letters.pending


@pytest.mark.long
async def test_settled_days_are_sealed_and_nothing_is_sent_after_restarts() -> None:
    world = World()
    world.broker.fails = refuse("m1", "m2", "m3")
    async with world.serving() as server:
        producer = await world.connect()
        await producer.send(*(make_item(f"m{n}", world.now_ms) for n in (1, 2, 3)))
        await until(lambda: server.master.dead_letters.pending == 3)
        first, second, third = before = await rows_of(server)
    world.broker.fails = refuse()
    async with world.serving() as server:
        assert await rows_of(server) == before
        await trio.sleep(60)
        assert world.broker.ids == []
        letters = server.master.dead_letters
        await letters.drop([first.sequence], rows_max=1)
        await letters.requeue([second.sequence], rows_max=1)
        await until(lambda: world.broker.ids == ["m2"])
    async with world.serving() as server:
        await trio.sleep(2 * DAY_S)
        letters = server.master.dead_letters
        assert await rows_of(server) == [third]
        await letters.drop(Wanted(), rows_max=1)
        assert letters.pending == 0
        await until(lambda: not server.node.store.schedule.segments, seconds=200)
    async with world.serving() as server:
        assert server.master.dead_letters.pending == 0
        await trio.sleep(60)
        assert world.broker.ids == ["m2"]
    assert [report["damage"] for report in verify_disk(world.disk) if report["damage"]] == []


async def test_a_poisonous_subject_delays_no_other() -> None:
    world = World()
    world.broker.fails = lambda message_id: 3 if message_id.startswith(b"bad") else 0
    config = make_config(sender=SenderConfig(entries_max=2000))
    async with world.serving(config) as server:
        producer = await world.connect()
        due_ms = world.now_ms + 5000
        for place in range(0, 3000, 1000):
            await producer.send(
                *(make_item(f"bad{place + n}", due_ms, subject="poison") for n in range(1000))
            )
        await producer.send(*(make_item(f"ok{n}", due_ms + n, subject="fine") for n in range(500)))
        await until(lambda: len(world.broker.deliveries) == 500)
        assert world.now_ms < due_ms + 2000
        await until(lambda: server.master.dead_letters.pending == 3000, seconds=600)
        assert server.master.loader.held == 0


class StandStill:
    """Has nothing that is committed be applied until it goes on."""

    def __init__(self, server: DelayServer) -> None:
        self._batches: list[LogBatch] = []
        self._queue = server.node.queue
        self._submit = self._queue._submit
        self._queue._submit = self._batches.extend

    def go_on(self) -> None:
        self._queue._submit = self._submit
        self._submit(self._batches)


@pytest.mark.parametrize("verb", ["drop", "requeue"])
async def test_what_was_changed_before_a_crash_is_not_changed_again_as_soon_as_http_answers(
    verb: str,
) -> None:
    world = World()
    world.broker.fails = refuse("m")
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: world.broker.run(task_status=task_status))
        async with trio.open_nursery() as life:
            server = world.server(make_config())
            await life.start(partial(serve, server, trio.Event()))
            producer = await world.connect()
            await producer.send(make_item("m", world.now_ms))
            await until(lambda: server.master.dead_letters.pending == 1)
            await trio.sleep(10)
            # Nothing may arrive twice by the crash itself.
            server.master.sender.pause()
            StandStill(server)
            change = getattr(server.master.dead_letters, verb)
            assert (await change(Wanted(), rows_max=1)).done == 1
            life.cancel_scope.cancel()
        world.broker.fails = refuse()
        async with trio.open_nursery() as life:
            server = world.server(make_config())
            life.start_soon(partial(serve, server, trio.Event()))
            await until(lambda: server.is_master, step_s=0.001)
            again = await server.master.dead_letters.requeue(Wanted(), rows_max=1)
            assert (again.matched, again.done) == (0, 0)
            await trio.sleep(30)
            assert world.broker.ids == ([] if verb == "drop" else ["m"])
            assert server.master.dead_letters.pending == 0
            life.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


async def test_one_whose_fact_comes_in_the_middle_of_a_later_change_is_left_out_of_it() -> None:
    names = [f"m{number}" for number in range(1100)]
    world = World()
    world.broker.fails = refuse(*names)
    async with world.serving() as server:
        producer = await world.connect()
        for place in range(0, 1100, 100):
            items = [make_item(name, world.now_ms) for name in names[place : place + 100]]
            await producer.send(*items)
        await until(lambda: server.master.dead_letters.pending == 1100)
        await trio.sleep(5)
        world.broker.fails = refuse()
        letters = server.master.dead_letters
        filing = StandStill(server)
        last = (await rows_of(server))[-1].sequence
        assert (await letters.drop([last], rows_max=1)).done == 1
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def make_space() -> None:
                await trio.sleep(2)
                filing.go_on()

            requeued = await letters.requeue(Wanted(), rows_max=10_000)
        await trio.sleep(30)
        assert (requeued.done, len(world.broker.deliveries)) == (1099, 1099)
        assert letters.pending == 0


async def test_nothing_is_appended_once_it_is_closed_and_a_stop_waits_for_what_is() -> None:
    large = {f"k{number}": "x" * 30_000 for number in range(30)}
    names = [f"m{number}" for number in range(20)]
    world = World()
    world.broker.fails = refuse(*names)
    changes: list[Change] = []
    async with world.serving() as server:
        producer = await world.connect()
        for name in names:
            await producer.send(make_item(name, world.now_ms, attributes=large))
        await until(lambda: server.master.dead_letters.pending == 20)
        await trio.sleep(5)
        server.master.sender.pause()
        before = server.master.committer.seconds.total
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def requeue() -> None:
                changes.append(await server.master.dead_letters.requeue(Wanted(), rows_max=100))

            await until(lambda: server.master.committer.seconds.total > before, step_s=0.001)
            await server.master.dead_letters.stop()
            assert changes or server.master.committer.seconds.total <= before + 2
            ended = server.master.committer.seconds.total
        assert server.master.committer.seconds.total == ended
        assert 0 < changes[0].done < 20
        assert server.master.dead_letters.pending == 20 - changes[0].done


async def test_nothing_is_requeued_while_its_file_cannot_be_read() -> None:
    world = World()
    async with world.serving() as server:
        await bury(world, server, "m0", "m1")
        path = dead_key((await rows_of(server))[0].minute).path

        def of_file(_kind: str, name: str, _label: str) -> bool:
            return name == path

        world.disk.arm(Trap(action=Action.EIO, kinds={"open_read"}, when=of_file))
        asked = {"filter": {}, "max": 10}
        operator = Caller(application(server.administered()))
        code, answer = await operator.ask("POST", "/dead/requeue", asked)
        assert (code, answer["done"], answer["error"]["code"]) == (503, 0, "store")
        assert "cannot be read" in answer["error"]["message"]
        world.disk.arm(Trap(action=Action.EIO, kinds={"open_read"}, when=of_file))
        code, page = await operator.ask("GET", "/dead")
        assert (code, len(page["items"])) == (200, 2)
        assert "cannot be read" in page["items"][0]["fault"]
        assert (await operator.ask("POST", "/dead/requeue", asked))[1]["done"] == 2
        await until(lambda: sorted(world.broker.ids) == ["m0", "m1"])
        assert server.damages.count == 0


async def test_nothing_is_found_until_the_index_could_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    async with world.serving() as server:
        await bury(world, server, "m0")
        before = await rows_of(server)
    failures = [ReadFailedError(path="f", error=OSError(5, "I/O error"))]
    read_dead = ScheduleLog.read_dead

    def failing(schedule: ScheduleLog, rows_max: int) -> None:
        if failures:
            raise failures.pop()
        read_dead(schedule, rows_max)

    monkeypatch.setattr(ScheduleLog, "read_dead", failing)
    async with world.serving() as server:
        letters = server.master.dead_letters
        assert (letters.pending, await rows_of(server)) == (1, [])
        operator = Caller(application(server.administered()))
        code, answer = await operator.ask("GET", "/dead")
        assert (code, answer["error"]["code"]) == (503, "starting")
        await trio.sleep(10)
        assert await rows_of(server) == before


async def test_what_is_beyond_the_index_is_counted_and_listed_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_letters, "_INDEXED_MIN", 4)
    world = World()
    async with world.serving(make_config(dead=DeadConfig(pending_max=9))) as server:
        await bury(world, server, *(f"m{number}" for number in range(6)))
        before = await rows_of(server)
    async with world.serving(make_config(dead=DeadConfig(pending_max=2))) as server:
        letters = server.master.dead_letters
        assert await rows_of(server) == before[:4]
        assert letters.pending == 6
        assert not server.master.sender.gives_up
        assert (await letters.drop(Wanted(), rows_max=1)).done == 1
        assert (letters.pending, await rows_of(server)) == (5, before[1:4])
        assert (await letters.drop(Wanted(), rows_max=1)).done == 1
        await until(lambda: len(letters_index(server)) == 4, seconds=20)
        assert await rows_of(server) == before[2:]
        assert letters.oldest_ms == before[2].dead_ms


def letters_index(server: DelayServer) -> DeadIndex:
    """Return the index of a server's dead letters."""
    return server.node.store.schedule.dead


async def test_the_oldest_is_known_at_once_whatever_is_settled_before_it() -> None:
    world = World()
    async with world.serving() as server:
        letters = server.master.dead_letters
        for count, name in enumerate(("m0", "m1", "m2"), 1):
            world.broker.fails = refuse(name)
            await send(world, name)
            await until(lambda count=count: letters.pending == count)  # type: ignore[misc]
        rows = await rows_of(server)
        for place in (1, 0):
            assert letters.oldest_ms == rows[0].dead_ms
            await letters.drop([rows[place].sequence], rows_max=1)
        assert letters.oldest_ms == rows[2].dead_ms
        await letters.drop(Wanted(), rows_max=1)
        assert letters.oldest_ms is None


async def test_a_requeue_holds_the_items_of_a_part_at_a_time_and_a_drop_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    names = [f"m{number}" for number in range(150)]
    large = {"k0": "x" * 30_000}
    async with world.serving() as server:
        world.broker.fails = refuse(*names)
        producer = await world.connect()
        for place in range(0, 150, 10):
            items = [
                make_item(name, world.now_ms, attributes=large)
                for name in names[place : place + 10]
            ]
            await producer.send(*items)
        await until(lambda: server.master.dead_letters.pending == 150, seconds=300)
        world.broker.fails = refuse()
        letters = server.master.dead_letters
        read: list[int] = []
        original = letters._read

        def count(rows: Sequence[DeadRow], make: Any) -> Any:  # noqa: ANN401 (the method's own)
            read.append(sum(row.size for row in rows))
            return original(rows, make)

        monkeypatch.setattr(letters, "_read", count)
        assert (await letters.drop(Wanted(), rows_max=50)).done == 50
        assert read == []
        change = await letters.requeue(Wanted(), rows_max=100)
        assert (change.matched, change.done, len(change.sequences)) == (100, 100, 100)
        assert 900_000 < max(read) <= 1024 * 1024
        await until(lambda: len(world.broker.taken) == 100)
        assert (letters.pending, letters.requeued, letters.dropped) == (0, 100, 50)


async def test_a_count_leaves_out_what_was_changed_and_whose_fact_is_on_its_way() -> None:
    world = World()
    async with world.serving() as server:
        await bury(world, server, "m0", "m1")
        await trio.sleep(5)
        filing = StandStill(server)
        letters = server.master.dead_letters
        assert (await letters.drop(Wanted(), rows_max=1)).done == 1
        assert len(await letters.count(Wanted())) == 1
        assert len(await rows_of(server)) == letters.pending == 1
        filing.go_on()
