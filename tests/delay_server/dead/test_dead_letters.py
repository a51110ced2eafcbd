"""What brokers refuse for good becomes a dead letter; people requeue it, or drop it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import trio

from delay_protocol.basics.codes import ItemCode
from delay_server import mastership
from delay_server.dead.dead_letters import Change
from delay_server.dead.reason import decode_reason
from delay_server.server import DelayServer, serve
from sender.settings.config import SenderConfig
from storage.batch.facts import Outcome
from storage.disk.spans import dead_key
from storage.readers.dead_reader import DeadItem
from storage.schedule.dead_index import DeadRow
from tests.delay_server.dead_rig import bury, send
from tests.delay_server.server_rig import World, make_config, make_item, until
from tests.simulation.faults import Action, Trap


def refuse(*ids: str) -> Callable[[bytes], int]:
    """Return how a broker answers that refuses these items for good."""
    return lambda message_id: ItemCode.BLOCK if message_id.decode() in ids else 0


async def rows_of(server: DelayServer) -> list[DeadRow]:
    """Return all dead letters."""
    await server.master.dead_letters.until_read()
    return server.master.dead_letters.listed()


async def letter_of(server: DelayServer) -> tuple[DeadRow, DeadItem]:
    """Return the only dead letter, and what its file has of it."""
    rows = await rows_of(server)
    [letter] = await server.master.dead_letters.read(rows, lambda row, item: (row, item))
    return letter


async def test_what_is_refused_for_good_becomes_a_dead_letter_and_its_neighbours_arrive() -> None:
    world = World()
    world.broker.fails = refuse("bad")
    due_ms = world.now_ms + 1000
    items = {name: make_item(name, due_ms, subject="s") for name in ("a", "bad", "z")}
    async with world.serving() as server:
        await world.keep(*items.values())
        await until(lambda: server.master.dead_letters.pending == 1)
        assert world.broker.ids == ["a", "z"]
        row, found = await letter_of(server)
        assert found.item == items["bad"]
        assert (row.subject, row.due_ms) == (b"s", due_ms)
        reason = decode_reason((found.reason or "").encode())
        assert reason is not None
        assert (reason.code, reason.group, reason.tries, reason.refused) == (5, "g1", 3, 3)
        assert len(reason.refusals) == 3
        assert due_ms <= reason.first_ms < reason.last_ms <= row.dead_ms
        await trio.sleep(600)
        assert len(world.broker.requests) == 3, "it is tried no more"
        assert server.master.fact_recorder.outcomes[Outcome.DEAD] == 1
        assert (server.node.store.schedule.pending, server.master.loader.held) == (0, 0)


async def test_a_requeued_one_is_sent_once_more_byte_for_byte() -> None:
    world = World()
    world.broker.fails = refuse("m")
    item = make_item("m", world.now_ms)
    async with world.serving() as server:
        await world.keep(item)
        letters = server.master.dead_letters
        await until(lambda: letters.pending == 1)
        # One that is refused again becomes one again.
        assert (await letters.requeue(await rows_of(server))).done == 1
        await until(lambda: letters.pending == 1)
        world.broker.fails = refuse()
        rows = await rows_of(server)
        assert (await letters.requeue(rows)).done == 1
        await until(lambda: world.broker.ids == ["m"])
        assert world.broker.deliveries[0].data == item
        assert letters.pending == 0
        assert (await letters.requeue(rows)).done == 0
        await trio.sleep(60)
        assert world.broker.ids == ["m"]


async def test_each_is_changed_once_whoever_comes_and_a_dropped_one_is_never_sent() -> None:
    world = World()
    world.broker.fails = refuse("m1", "m2")
    async with world.serving() as server:
        await world.keep(make_item("m1", world.now_ms), make_item("m2", world.now_ms))
        await until(lambda: server.master.dead_letters.pending == 2)
        world.broker.fails = refuse()
        letters = server.master.dead_letters
        first, _ = await rows_of(server)
        async with trio.open_nursery() as nursery:
            # Two operators at once, and one who wants the opposite.
            for change in (letters.drop, letters.drop, letters.requeue):
                nursery.start_soon(change, [first])
        # Whoever comes first gets it, and nobody else.
        assert letters.pending == 1
        await trio.sleep(60)
        dropped = server.master.fact_recorder.outcomes[Outcome.DROPPED]
        assert len(world.broker.deliveries) + dropped == 1
        await letters.drop(await rows_of(server))
        assert (await rows_of(server), letters.pending) == ([], 0)


async def test_they_are_listed_by_subject_and_by_the_group_that_refused_them_last() -> None:
    world = World()
    world.broker.fails = refuse("m0", "m1", "m2")
    async with world.serving() as server:
        for number, subject in enumerate(("orders.eu", "orders", "orders.eu")):
            await send(world, f"m{number}", subject=subject)
            await until(lambda n=number: server.master.dead_letters.pending == n + 1)  # type: ignore[misc]
        rows, listed = await rows_of(server), server.master.dead_letters.listed
        assert [row.subject for row in rows] == [b"orders.eu", b"orders", b"orders.eu"]
        assert listed(subject="orders.eu") == rows[::2]
        assert listed(subject="orders.") == listed(group="g2") == []
        assert listed(group="g1") == rows
        assert listed(group="g1", subject="orders") == rows[1:2]
        letters = server.master.dead_letters
        for place, oldest in ((1, rows[0]), (0, rows[2])):
            await letters.drop([rows[place]])
            assert letters.oldest_ms == oldest.dead_ms
        await letters.drop(rows)
        assert letters.oldest_ms is None


async def test_at_most_so_many_wait_and_the_rest_is_tried_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mastership, "PENDING_MAX", 5)
    world = World()
    names = [f"m{number}" for number in range(30)]
    world.broker.fails = refuse(*names)
    async with world.serving() as server:
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
            await world.keep(make_item("m", world.now_ms))
            await until(lambda: server.master.dead_letters.pending == 1)
            await trio.sleep(10)
            # Nothing may arrive twice by the crash itself.
            server.master.sender.pause()
            # Nothing that is committed is applied any more.
            server.node.queue._submit = lambda _: None
            change = getattr(server.master.dead_letters, verb)
            assert (await change(rows := await rows_of(server))).done == 1
            # Nobody names it once more while its fact is on its way.
            assert (await change(rows)).done == server.master.dead_letters.pending == 0
            assert await rows_of(server) == []
            life.cancel_scope.cancel()
        world.broker.fails = refuse()
        async with trio.open_nursery() as life:
            server = world.server(make_config())
            life.start_soon(partial(serve, server, trio.Event()))
            await until(lambda: server.is_master, step_s=0.001)
            assert await rows_of(server) == []
            assert (await server.master.dead_letters.requeue(rows)).done == 0
            await trio.sleep(30)
            assert world.broker.ids == ([] if verb == "drop" else ["m"])
            assert server.master.dead_letters.pending == 0
            life.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


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
        before, rows = server.master.committer.seconds.total, await rows_of(server)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def requeue() -> None:
                changes.append(await server.master.dead_letters.requeue(rows))

            await until(lambda: server.master.committer.seconds.total > before, step_s=0.001)
            await server.master.dead_letters.stop()
            assert changes or server.master.committer.seconds.total <= before + 2
            ended = server.master.committer.seconds.total
        assert server.master.committer.seconds.total == ended
        assert 0 < changes[0].done < 20
        assert changes[0].is_stopped
        assert server.master.dead_letters.pending == 20 - changes[0].done


async def test_what_cannot_be_read_is_damage_and_is_not_requeued() -> None:
    world = World()
    async with world.serving() as server:
        await bury(world, server, "m0", "m1")
        rows = await rows_of(server)
        path = dead_key(rows[0].minute).path

        def of_file(_kind: str, name: str, _label: str) -> bool:
            return name == path

        world.disk.arm(Trap(action=Action.EIO, kinds={"open_read"}, when=of_file))
        change = await server.master.dead_letters.requeue(rows)
        assert (change.done, change.damaged) == (1, [rows[0].sequence])
        await server.master.dead_letters.requeue(rows)
        await until(lambda: sorted(world.broker.ids) == ["m0", "m1"])
        assert server.damages.count == 1


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
        original = letters.read

        async def count(rows: Sequence[DeadRow], make: Any) -> Any:  # noqa: ANN401 (the method's own)
            read.append(sum(row.size for row in rows))
            return await original(rows, make)

        monkeypatch.setattr(letters, "read", count)
        assert (await letters.drop((await rows_of(server))[:50])).done == 50
        assert read == []
        assert (await letters.requeue(await rows_of(server))).done == 100
        assert 900_000 < max(read) <= 1024 * 1024
        await until(lambda: len(world.broker.taken) == 100)
        assert letters.pending == 0
