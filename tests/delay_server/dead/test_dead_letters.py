"""What brokers refuse for good becomes a dead letter; people requeue it, or drop it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import trio

from delay_protocol.basics.codes import ItemCode
from delay_protocol.messages.items import decode_item
from delay_server.admin.http import application
from delay_server.dead import dead_letters
from delay_server.dead.dead_letters import Change, DeadConfig, Letter, Wanted
from delay_server.dead.reason import decode_reason
from delay_server.server import DelayServer, serve
from sender.settings.config import SenderConfig
from storage.batch.facts import Outcome
from storage.batch.file_header import FileHeader, LogKind, encode_file_header
from storage.disk.errors import StorageFullError
from storage.disk.spans import Span
from storage.readers.dead_reader import DeadRow, Place
from storage.tools.inspect import verify_disk
from tests.delay_server.admin.test_admin_http import Caller
from tests.delay_server.dead_rig import bury
from tests.delay_server.server_rig import World, make_config, make_item, until
from tests.simulation.faults import Action, Trap

DAY_S = 86_400.0


def refuse(*ids: str, code: int = ItemCode.SUBJECT_NOT_ASSIGNED) -> Callable[[bytes], int]:
    """Return how a broker answers that refuses these items for good."""
    return lambda message_id: code if message_id.decode() in ids else 0


async def letters_of(server: DelayServer, wanted: Wanted | None = None) -> list[Letter]:
    """Return the pending dead letters."""
    page = await server.master.dead_letters.find(wanted or Wanted(), after=Place(), rows_max=1000)
    assert page.after is None
    return page.letters


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
        (letter,) = await letters_of(server)
        assert letter.item == items["bad"]
        assert (letter.row.subject, letter.row.due_ms) == (b"s", due_ms)
        reason = decode_reason(letter.row.reason)
        assert reason is not None
        assert (reason.code, reason.group, reason.tries, reason.refused) == (code, "g1", 3, 3)
        assert [one.code for one in reason.refusals] == [code] * 3
        assert due_ms <= reason.first_ms < reason.last_ms <= letter.row.dead_ms
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
        change = await server.master.dead_letters.requeue(Wanted(), after=Place(), rows_max=10)
        assert (change.matched, change.done, change.after) == (1, 1, None)
        await until(lambda: world.broker.ids == ["m"])
        assert world.broker.deliveries[0].data == item
        assert server.master.dead_letters.pending == 0
        again = await server.master.dead_letters.requeue(Wanted(), after=Place(), rows_max=10)
        assert (again.matched, again.done) == (0, 0)
        await trio.sleep(60)
        assert world.broker.ids == ["m"]


async def test_one_that_is_refused_again_becomes_one_again_and_its_history_is_kept() -> None:
    world = World()
    world.broker.fails = refuse("m")
    async with world.serving() as server:
        producer = await world.connect()
        await producer.send(make_item("m", world.now_ms))
        for _ in range(3):
            await until(lambda: server.master.dead_letters.pending == 1)
            await server.master.dead_letters.requeue(Wanted(), after=Place(), rows_max=10)
        await until(lambda: server.master.dead_letters.pending == 1)
        (letter,) = await letters_of(server)
        deaths = await server.master.dead_letters.deaths_of(letter, rows_max=100)
        assert [one.row.is_pending for one in deaths] == [False, False, False, True]
        assert world.broker.ids == []


async def test_each_is_changed_once_whoever_comes_and_a_dropped_one_is_never_sent() -> None:
    world = World()
    world.broker.fails = refuse("m1", "m2")
    async with world.serving() as server:
        producer = await world.connect()
        await producer.send(make_item("m1", world.now_ms), make_item("m2", world.now_ms))
        await until(lambda: server.master.dead_letters.pending == 2)
        sequences = [letter.row.sequence for letter in await letters_of(server)]
        world.broker.fails = refuse()
        letters = server.master.dead_letters
        wanted = Wanted(sequences=sequences[:1])
        async with trio.open_nursery() as nursery:
            # Two operators at once, and one who wants the opposite.
            for change in (letters.drop, letters.drop, letters.requeue):
                nursery.start_soon(partial(change, wanted, after=Place(), rows_max=10))
        # Whoever comes first gets it, and nobody else.
        assert (letters.dropped + letters.requeued, letters.pending) == (1, 1)
        await trio.sleep(60)
        assert len(world.broker.deliveries) == letters.requeued
        assert server.master.fact_recorder.outcomes[Outcome.DROPPED] == letters.dropped
        await letters.drop(Wanted(), after=Place(), rows_max=10)
        again = await letters.drop(Wanted(), after=Place(), rows_max=10)
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
            letters = await letters_of(server, wanted)
            return sorted((letter.row.due_ms - start_ms) // 1000 for letter in letters)

        assert await found(Wanted(subject=b"mail")) == [2]
        assert await found(Wanted(subject_prefix=b"orders.")) == [0, 1]
        assert await found(Wanted(subject=b"orders")) == []
        assert await found(Wanted(code=3)) == [0, 2]
        assert await found(Wanted(code=3, subject_prefix=b"orders")) == [0]
        assert await found(Wanted(group="g1")) == [0, 1, 2]
        assert await found(Wanted(group="g2")) == []
        assert await found(Wanted(message_id=b"y2")) == [1]
        assert await found(Wanted(message_id=b"y")) == []
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
            after: Place | None = Place()
            found: list[int] = []
            while after is not None:
                page = await server.master.dead_letters.find(Wanted(), after=after, rows_max=size)
                assert len(page.letters) <= size
                found += [letter.row.sequence for letter in page.letters]
                after = page.after
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
        first, second, third = await letters_of(server)
    world.broker.fails = refuse()
    async with world.serving() as server:
        assert [one.row.sequence for one in await letters_of(server)] == [
            one.row.sequence for one in (first, second, third)
        ]
        await trio.sleep(60)
        assert world.broker.ids == []
        letters = server.master.dead_letters
        await letters.drop(Wanted(sequences=[first.row.sequence]), after=Place(), rows_max=1)
        await letters.requeue(Wanted(sequences=[second.row.sequence]), after=Place(), rows_max=1)
        await until(lambda: world.broker.ids == ["m2"])
    async with world.serving() as server:
        await trio.sleep(2 * DAY_S)
        letters = server.master.dead_letters
        assert [one.row.sequence for one in await letters_of(server)] == [third.row.sequence]
        await letters.drop(Wanted(), after=Place(), rows_max=1)
        assert letters.pending == 0
        await until(lambda: not server.node.store.schedule.dead.segments, seconds=200)
        assert server.node.store.checkpoint.format == 2
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


class NoSpace:
    """A journal of facts that has no space for as long as it is full."""

    def __init__(self, server: DelayServer) -> None:
        self.is_full = True
        self._append = server.node.store.journal.append
        server.node.store.journal.append = self.append  # type: ignore[method-assign]

    def append(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 (the journal's own)
        if self.is_full:
            raise StorageFullError("no space")
        return self._append(*args, **options)


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
            NoSpace(server)
            change = getattr(server.master.dead_letters, verb)
            assert (await change(Wanted(), after=Place(), rows_max=1)).done == 1
            life.cancel_scope.cancel()
        world.broker.fails = refuse()
        async with trio.open_nursery() as life:
            server = world.server(make_config())
            life.start_soon(partial(serve, server, trio.Event()))
            await until(lambda: server.is_master, step_s=0.001)
            again = await server.master.dead_letters.requeue(Wanted(), after=Place(), rows_max=1)
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
        page = await letters.find(Wanted(), after=Place(), rows_max=5000)
        journal = NoSpace(server)
        last = Wanted(sequences=[page.letters[-1].row.sequence])
        assert (await letters.drop(last, after=Place(), rows_max=1)).done == 1
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def make_space() -> None:
                await trio.sleep(2)
                journal.is_full = False

            requeued = await letters.requeue(Wanted(), after=Place(), rows_max=10_000)
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
        before = server.master.committer.commits
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def requeue() -> None:
                changes.append(
                    await server.master.dead_letters.requeue(Wanted(), after=Place(), rows_max=100)
                )

            await until(lambda: server.master.committer.commits > before, step_s=0.001)
            await server.master.dead_letters.stop()
            assert changes or server.master.committer.commits <= before + 2
            ended = server.master.committer.commits
        assert server.master.committer.commits == ended
        assert 0 < changes[0].done < 20
        assert server.master.dead_letters.pending == 20 - changes[0].done


@pytest.mark.parametrize("verb", ["drop", "requeue"])
@pytest.mark.parametrize("of_facts", [True, False])
async def test_nothing_is_changed_while_a_file_cannot_be_read(verb: str, *, of_facts: bool) -> None:
    world = World()
    world.broker.fails = refuse("m0", "m1")
    async with world.serving() as server:
        producer = await world.connect()
        await producer.send(make_item("m0", world.now_ms), make_item("m1", world.now_ms))
        await until(lambda: server.master.dead_letters.pending == 2)
        world.broker.fails = refuse()
        first = (await letters_of(server))[0].row
        change = getattr(server.master.dead_letters, verb)
        wanted = Wanted(sequences=[first.sequence])
        assert (await change(wanted, after=Place(), rows_max=1)).done == 1
        # Until the fact is filed.
        await trio.sleep(60)
        before = list(world.broker.ids)
        path = first.key.facts_path if of_facts else first.key.path
        opened = frozenset({"open_read"})
        trap = Trap(action=Action.EIO, kinds=opened, when=lambda _kind, name, _label: name == path)
        world.disk.arm(trap)
        asked = {"filter": {}, "max": 10}
        operator = Caller(application(server.administered()))
        code, answer = await operator.ask("POST", "/dead/requeue", asked)
        assert (code, answer["done"], answer["error"]["code"]) == (503, 0, "store")
        assert "cannot be read" in answer["error"]["message"]
        assert (await operator.ask("POST", "/dead/requeue", asked))[1]["done"] == 1
        await trio.sleep(30)
        assert sorted(world.broker.ids) == sorted([*before, "m1"])


async def bury_one_by_one(world: World, server: DelayServer, names: list[str], **of: Any) -> None:  # noqa: ANN401 (what make_item takes)
    """Have each become a dead letter in a batch of its own."""
    world.broker.fails = refuse(*names)
    producer = await world.connect()
    for count, name in enumerate(names, server.master.dead_letters.pending + 1):
        await producer.send(make_item(name, world.now_ms, **of))
        await until(lambda count=count: server.master.dead_letters.pending == count)  # type: ignore[misc]
    await trio.sleep(15)


async def test_what_lies_behind_more_rows_than_one_request_looks_at_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_letters, "_STEP_ROWS", 1)
    world = World()
    names = [f"m{number}" for number in range(6)]
    async with world.serving(make_config(dead=DeadConfig(examined_rows_max=1))) as server:
        await bury_one_by_one(world, server, names)
        letters = server.master.dead_letters
        page = await letters.find(Wanted(message_id=b"m5"), after=Place(), rows_max=10)
        assert not page.letters
        assert page.after is not None, "one request looks at no more than it may"
        await letters.requeue(Wanted(), after=Place(), rows_max=1)
        await until(lambda: letters.pending == 6)
        pending: list[int] = []
        after: Place | None = Place()
        while after is not None:
            page = await letters.find(Wanted(), after=after, rows_max=10)
            pending += [letter.row.sequence for letter in page.letters]
            after = page.after
        operator = Caller(application(server.administered()))
        again = pending[-1]
        code, shown = await operator.ask("GET", f"/dead/{again}")
        assert (code, shown["message_id"], shown["pending"]) == (200, "m0", True)
        (before,) = shown["deaths"]
        assert (before["message_id"], before["pending"]) == ("m0", False)
        # The row of m0 that was requeued is settled, and so are those that are dropped now.
        await drop_in_pages(server, Wanted(sequences=pending[:-1]))
        await trio.sleep(30)
        assert letters.oldest_ms == shown["dead_ms"]


async def drop_in_pages(server: DelayServer, wanted: Wanted) -> None:
    after: Place | None = Place()
    while after is not None:
        after = (await server.master.dead_letters.drop(wanted, after=after, rows_max=1)).after


async def test_what_is_settled_before_the_oldest_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_letters, "_STEP_ROWS", 1)
    world = World()
    async with world.serving(make_config(dead=DeadConfig(examined_rows_max=1))) as server:
        await bury_one_by_one(world, server, [f"m{number}" for number in range(8)])
        letters = server.master.dead_letters
        looked: list[Place] = []
        original = letters.find

        async def find(*args: Any, **options: Any) -> Any:  # noqa: ANN401 (the method's own)
            looked.append(options["after"])
            return await original(*args, **options)

        monkeypatch.setattr(letters, "find", find)
        for name in ("m0", "m1", "m2", "m4"):
            await drop_in_pages(server, Wanted(message_id=name.encode()))
        await trio.sleep(30)
        assert looked[-1] > Place(), "three were settled"
        looked.clear()
        await drop_in_pages(server, Wanted(message_id=b"m3"))
        await trio.sleep(30)
        assert min(looked) > Place()
        monkeypatch.setattr(letters, "find", original)
        pages = [Place()]
        while not (page := await letters.find(Wanted(), after=pages[-1], rows_max=1)).letters:
            assert page.after is not None
            pages.append(page.after)
        assert decode_item(page.letters[0].item or b"").message_id == "m5"
        assert letters.oldest_ms == page.letters[0].row.dead_ms
        # As where the clock was set back: what comes now lies before what is settled.
        monkeypatch.setattr(letters, "_settled_to", Place(10**9))
        letters.oldest_ms = None
        letters.look_again()
        await trio.sleep(30)
        assert letters.oldest_ms == page.letters[0].row.dead_ms


@pytest.mark.long
async def test_what_could_not_be_read_once_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_letters, "_STEP_ROWS", 1)
    world = World()
    async with world.serving(make_config(dead=DeadConfig(examined_rows_max=1))) as server:
        await bury_one_by_one(world, server, ["today"])
        letters = server.master.dead_letters
        (oldest,) = await letters.look_through(Wanted(), rows_max=10)
        oldest_ms, path = oldest.row.dead_ms, oldest.row.key.path
        await trio.sleep(DAY_S)
        await bury_one_by_one(world, server, ["b", "c"])
        await trio.sleep(30)
        assert letters.oldest_ms == oldest_ms
        trap = Trap(
            action=Action.EIO,
            kinds=frozenset({"open_read"}),
            when=lambda _kind, name, _label: name == path,
        )
        await drop_in_pages(server, Wanted(message_id=b"b"))
        await trio.sleep(30)
        world.disk.arm(trap)
        letters.look_again()
        await trio.sleep(30)
        assert letters.oldest_ms != oldest_ms, "its segment could not be read"
        letters.look_again()
        await trio.sleep(30)
        assert letters.oldest_ms == oldest_ms


@pytest.mark.parametrize("step_rows", [1, 20_000])
async def test_a_page_has_no_more_bytes_than_it_may_and_the_next_goes_on_behind_it(
    monkeypatch: pytest.MonkeyPatch, step_rows: int
) -> None:
    monkeypatch.setattr(dead_letters, "_STEP_ROWS", step_rows)
    world = World()
    names = [f"m{number}" for number in range(20)]
    large = {"k0": "x" * 30_000}
    config = make_config(dead=DeadConfig(page_bytes_max=100_000))
    async with world.serving(config) as server:
        world.broker.fails = refuse(*names, "huge")
        producer = await world.connect()
        for first in range(0, 20, 5):
            few = names[first : first + 5]
            await producer.send(*(make_item(name, world.now_ms, attributes=large) for name in few))
            await until(lambda: server.master.dead_letters.pending >= first + 5)  # noqa: B023 (awaited)
        huge = {f"k{number}": "x" * 30_000 for number in range(5)}
        await producer.send(make_item("huge", world.now_ms, attributes=huge))
        await until(lambda: server.master.dead_letters.pending == 21)
        for wanted in (Wanted(), Wanted(subject=b"a.b")):
            pages: list[list[str]] = []
            after: Place | None = Place()
            while after is not None:
                page = await server.master.dead_letters.find(wanted, after=after, rows_max=1000)
                pages.append([])
                for letter in page.letters:
                    assert letter.item is not None
                    pages[-1].append(decode_item(letter.item).message_id)
                after = page.after
            assert [len(ids) for ids in pages if ids] == [3, 3, 3, 3, 3, 3, 2, 1]
            assert sorted(one for ids in pages for one in ids) == sorted([*names, "huge"])
        page = await server.master.dead_letters.find(
            Wanted(), after=Place(), rows_max=1000, with_items=False
        )
        assert (len(page.letters), page.after) == (21, None), "rows without items are small"


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

        def count(rows: Sequence[DeadRow], *args: Any, **options: Any) -> list[Letter]:  # noqa: ANN401
            found = original(rows, *args, **options)
            read.append(sum(len(letter.item) for letter in found if letter.item is not None))
            return found

        monkeypatch.setattr(letters, "_read", count)
        assert (await letters.drop(Wanted(), after=Place(), rows_max=50)).done == 50
        assert read == []
        change = await letters.requeue(Wanted(), after=Place(), rows_max=100)
        assert (change.matched, change.done, len(change.sequences)) == (100, 100, 100)
        assert 900_000 < max(read) <= 1024 * 1024
        await until(lambda: len(world.broker.taken) == 100)
        assert (letters.pending, letters.requeued, letters.dropped) == (0, 100, 50)


async def test_facts_under_the_header_of_another_log_are_damage_and_end_nothing() -> None:
    world = World()
    async with world.serving() as server:
        await bury(world, server, "m0", "m1")
        (first, second) = await letters_of(server)
        wanted = Wanted(sequences=[first.row.sequence])
        await server.master.dead_letters.drop(wanted, after=Place(), rows_max=1)
        # Until the fact is filed.
        await trio.sleep(60)
        assert await letters_of(server) == [second]
        path = first.row.key.facts_path
        header = FileHeader(kind=LogKind.DISPATCH_LOG, log_uuid=UUID(int=1), span=Span.DEAD)
        world.disk.damage(path, 0, encode_file_header(header))
        before = server.damages.count
        server.master.dead_letters.look_again()
        await trio.sleep(30)
        # Of the two one is dropped, and nobody can say which.
        assert len(await letters_of(server)) == 2
        assert server.damages.count > before


async def test_a_count_leaves_out_what_was_changed_and_whose_fact_is_on_its_way() -> None:
    world = World()
    async with world.serving() as server:
        await bury(world, server, "m0", "m1")
        await trio.sleep(5)
        journal = NoSpace(server)
        letters = server.master.dead_letters
        assert (await letters.drop(Wanted(), after=Place(), rows_max=1)).done == 1
        counted = await letters.count(Wanted(), after=Place(), rows_max=10)
        assert (counted.matched, len(counted.sequences)) == (1, 1)
        journal.is_full = False
