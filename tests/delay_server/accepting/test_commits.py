"""What a commit says is kept is durable, and the floor that it writes never runs ahead or back."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import cast
from unittest import mock

import numpy as np
import pytest
import trio
import trio.testing
from xxhash import xxh3_64_intdigest

from delay_protocol.messages.items import ItemScan, scan_items
from delay_server.accepting import commits
from delay_server.accepting.commits import Committer
from delay_server.accepting.disk_budget import DiskBudget
from delay_server.accepting.intake import Intake
from delay_server.clock.clock_guard import ClockGuard
from delay_server.clock.pace import Pacer
from delay_server.filing.filer import Filer
from replication.commit_queue import CommitQueue
from replication.core.commit_point import CommitPoint
from storage.batch.batches import Damage, LogBatch
from storage.batch.columns import RecordKind
from storage.disk.errors import FatalDiskError
from storage.logs.message_log import Draft, MessageLog
from storage.node.store import Store, StoreSettings
from tests.delay_server.server_rig import MINUTE_MS, PROMPT, make_item, until
from tests.simulation.clock import EPOCH_MS, SimClock
from tests.simulation.disk import SimDisk
from tests.simulation.executor import ExecutorPlan, SimExecutor
from tests.simulation.faults import CALM, HARSH, Action, Trap
from tests.storage.starting import start

MINUTE = EPOCH_MS // MINUTE_MS


class FilingDesk:
    """Stands in for a Filer: keeps what is submitted, and has room when a test says so."""

    def __init__(self) -> None:
        self.submitted: list[LogBatch] = []
        self.hour_mark = MINUTE + 120
        self.has_room = True

    def submit(self, batches: Sequence[LogBatch]) -> None:
        self.submitted += batches


class Bench:
    """A Committer on a message_log of a simulated disk."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        *,
        floor_minute: int = 0,
        plan: ExecutorPlan = PROMPT,
    ) -> None:
        self.disk = disk or SimDisk(random.Random(3), plan=CALM)
        self.clock = SimClock(is_synchronised=False)
        self.desk = FilingDesk()
        self.store = open_store(self.disk)
        self.floor_bytes = 0
        """Whether anybody may be told of a commit."""
        self.noted: list[LogBatch] = []
        self.facts_alone: list[bool] = []
        """Of each commit whether it had facts alone."""
        self.commit_point = CommitPoint(durable=self.store.message_log.next_sequence)
        executor = SimExecutor(random.Random(4), disk=self.disk, plan=plan)
        self.queue = CommitQueue(
            self.store.message_log,
            self.commit_point,
            first=self.store.message_log.next_sequence,
            executor=executor,
            submit=self.desk.submit,
            has_room=lambda: self.desk.has_room,
            on_damage=lambda damage: pytest.fail(str(damage)),
        )
        self.committer = Committer(
            message_log=self.store.message_log,
            filer=cast("Filer", self.desk),
            executor=executor,
            pacer=Pacer(self.clock, ClockGuard(step_forward_ms_max=60_000)),
            floor_minute=floor_minute,
            budget=DiskBudget(
                self.disk,
                floor_bytes=lambda _: self.floor_bytes,
                owed_bytes=lambda: self.store.owed_bytes(0, 0),
            ),
            hour_mark=lambda: self.desk.hour_mark,
            queue=self.queue,
            commit_point=self.commit_point,
            on_commit=self.facts_alone.append,
            note=self.noted.extend,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        """Commit what waits meanwhile, and until all tasks of the nursery have ended."""
        async with trio.open_nursery() as tasks:
            tasks.start_soon(self.committer.run)
            async with trio.open_nursery() as nursery:
                yield nursery
            tasks.cancel_scope.cancel()

    async def commit(self, intake: Intake) -> bool:
        """Commit messages."""
        async with self.running():
            return await self.commit_beside(lambda: intake)

    async def commit_beside(self, take: Callable[[], Intake]) -> bool:
        """Commit messages, where the committer runs already; return whether they were kept."""
        ended: list[bool] = []
        self.committer.submit(take, ended.append)
        await until(lambda: bool(ended))
        return ended[0]

    async def commit_records(self, draft: Draft) -> bool:
        """Commit records."""
        async with self.running():
            return await self.committer.commit_records(draft)

    async def append_floor(self) -> None:
        """Have a floor of the next minute be recorded."""
        async with self.running():
            await self.committer.append_floor(MINUTE + 1)

    @property
    def floors(self) -> list[int]:
        """Floor of each batch submitted."""
        return [batch.header.floor_minute for batch in self.desk.submitted]

    def log(self) -> list[tuple[RecordKind, int, int, bytes]]:
        """Return kind, first sequence, count and blob of the batches after EPOCH_START."""
        return read_log(self.store.message_log)


def open_store(disk: SimDisk) -> Store:
    store, _ = start(
        disk,
        StoreSettings(),
        chance=random.Random(5),
        now_ms=EPOCH_MS,
        on_damage=lambda damage: pytest.fail(str(damage)),
    )
    return store


def read_log(log: MessageLog) -> list[tuple[RecordKind, int, int, bytes]]:
    found = []
    for batch in log.read(1):
        assert not isinstance(batch, Damage)
        header = batch.header
        found.append((header.kind, header.base_sequence, header.count, bytes(batch.blob)))
    assert found[0][:3] == (RecordKind.EPOCH_START, 1, 1)
    return found[1:]


def intake_of(*items: bytes, batch_bytes_max: int = 4 << 20) -> Intake:
    intake = Intake(batch_bytes_max=batch_bytes_max)
    add_items(intake, items)
    return intake


def add_items(intake: Intake, items: Sequence[bytes]) -> None:
    for item in items:
        scan = ItemScan()
        scan_items(item, scan)
        intake.add_request(
            item,
            starts=scan.starts,
            sizes=scan.sizes,
            due_ms=scan.due_ms,
            id_hash=list(map(xxh3_64_intdigest, scan.ids)),
            subjects=scan.subjects,
        )


def cancel(sequence: int) -> Draft:
    arrays = {"old_sequence": np.array([sequence]), "old_minute": np.array([MINUTE], "u4")}
    return Draft(kind=RecordKind.CANCEL, count=1, arrays=arrays)


def move(sequence: int) -> Draft:
    arrays = {
        "old_sequence": np.array([sequence]),
        "due_ms": np.array([EPOCH_MS]),
        "id_hash": np.array([1], "u8"),
        "size": np.array([3], "u4"),
        "old_minute": np.array([MINUTE], "u4"),
        "subject": np.array([0], "u2"),
    }
    return Draft(kind=RecordKind.MOVE, count=1, names=[b"s"], arrays=arrays, blob=[b"abc"])


def some_items(count: int, start: int = 0) -> list[bytes]:
    return [
        make_item(f"m{number}", EPOCH_MS + number, subject=f"s{number % 3}")
        for number in range(start, start + count)
    ]


async def test_what_a_commit_kept_survives_a_power_cut() -> None:
    bench = Bench(SimDisk(random.Random(3), plan=HARSH))
    items = some_items(20)
    assert await bench.commit(intake_of(*items))
    bench.disk.power_cut()
    store = open_store(bench.disk.revive())
    assert read_log(store.message_log) == [(RecordKind.MESSAGE, 2, 20, b"".join(items))]


async def test_a_commit_is_one_write_and_one_fsync_whatever_it_holds() -> None:
    bench = Bench()
    assert await bench.commit(intake_of(*some_items(1)))
    before = dict(bench.disk.counts)
    assert await bench.commit(intake_of(*some_items(50, 1), batch_bytes_max=3000))
    assert bench.disk.counts["sync"] == before["sync"] + 1
    # The second write is that of the durable end.
    assert bench.disk.counts["write"] == before["write"] + 2
    assert len(bench.desk.submitted) > 2
    assert bench.committer.seconds.total == 2


async def test_filing_gets_what_was_kept_with_its_place_in_the_log() -> None:
    bench = Bench()
    items = some_items(30)
    assert await bench.commit(intake_of(*items[:10]))
    await trio.sleep(61)
    assert await bench.commit(intake_of(*items[10:], batch_bytes_max=2000))
    sequence = 2
    blobs, subjects = [], []
    for batch in bench.desk.submitted:
        assert batch.header.base_sequence == sequence
        assert batch.header.epoch == 1
        sequence += len(batch.columns.arrays["due_ms"])
        names = np.array(batch.columns.names)
        subjects += names[batch.columns.arrays["subject"]].tolist()
        blobs.append(batch.blob)
    assert sequence == 32
    assert b"".join(blobs) == b"".join(items)
    assert subjects == [f"s{number % 3}".encode() for number in range(30)]
    assert set(bench.floors) == {MINUTE, MINUTE + 1}
    assert [entry[3] for entry in bench.log()] == blobs


async def test_without_space_nothing_is_kept_and_the_next_commit_leaves_no_gap() -> None:
    bench = Bench()
    assert await bench.commit(intake_of(*some_items(1)))
    bench.disk.arm(Trap(action=Action.FULL, kinds={"write"}))
    assert not await bench.commit(intake_of(*some_items(5, 1)))
    assert len(bench.desk.submitted) == 1
    items = some_items(2, 6)
    assert await bench.commit(intake_of(*items))
    assert [entry[:3] for entry in bench.log()] == [
        (RecordKind.MESSAGE, 2, 1),
        (RecordKind.MESSAGE, 3, 2),
    ]
    store = open_store(bench.disk.revive())
    assert read_log(store.message_log)[1][3] == b"".join(items)


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_a_disk_that_fails_is_fatal_and_nothing_is_handed_on(kind: str) -> None:
    bench = Bench()
    bench.disk.arm(Trap(action=Action.EIO, kinds={kind}))
    for _ in range(2):
        with pytest.RaisesGroup(FatalDiskError):
            await bench.commit(intake_of(*some_items(3)))
        assert bench.desk.submitted == []


async def test_a_commit_of_items_waits_while_filing_lags_and_records_without_items_pass() -> None:
    bench = Bench()
    bench.desk.has_room = False
    kept: list[bool] = []

    async def commit() -> None:
        kept.append(await bench.commit_beside(lambda: intake_of(*some_items(1))))

    async def commit_move() -> None:
        kept.append(await bench.committer.commit_records(move(5)))

    async with bench.running() as nursery:
        nursery.start_soon(commit)
        nursery.start_soon(commit_move)
        await trio.sleep(30)
        assert bench.log() == []
        assert await bench.committer.commit_records(cancel(7))
        assert [entry[0] for entry in bench.log()] == [RecordKind.CANCEL]
        bench.desk.has_room = True
        bench.committer.look_again()
    assert kept == [True, True]


async def test_an_intake_is_taken_when_its_commit_begins() -> None:
    bench = Bench()
    intake = Intake()
    taken: list[Intake] = []

    def take() -> Intake:
        taken.append(intake)
        return intake

    async with bench.running() as nursery:
        nursery.start_soon(bench.committer.commit_records, cancel(1))
        await trio.testing.wait_all_tasks_blocked()
        # The commit of the record is under way.
        nursery.start_soon(bench.commit_beside, take)
        await trio.testing.wait_all_tasks_blocked()
        assert taken == []
        add_items(intake, some_items(3))
    assert taken == [intake]
    assert [(entry[0], entry[2]) for entry in bench.log()] == [
        (RecordKind.CANCEL, 1),
        (RecordKind.MESSAGE, 3),
    ]


async def test_all_that_waits_shares_one_fsync_and_what_has_no_items_comes_first() -> None:
    bench = Bench()
    await trio.sleep(60)
    before = bench.disk.counts["sync"]
    async with bench.running() as nursery:
        # Nothing is committed before all of them wait: the first one would go alone.
        for number in range(3):
            nursery.start_soon(bench.commit_beside, partial(intake_of, *some_items(2, 2 * number)))
            nursery.start_soon(bench.committer.commit_records, cancel(number))
        nursery.start_soon(bench.committer.append_floor, MINUTE + 1)
    syncs = bench.disk.counts["sync"] - before
    assert syncs == bench.committer.seconds.total <= 2
    kinds = [entry[0] for entry in bench.log()]
    assert Counter(kinds) == {
        RecordKind.MESSAGE: 3,
        RecordKind.CANCEL: 3,
        RecordKind.FLOOR: 1,
    }
    sequences = [batch.header.base_sequence for batch in bench.desk.submitted]
    assert sequences == sorted(sequences)
    assert len(sequences) == 7


async def test_what_found_no_space_is_not_noted_and_what_is_durable_is() -> None:
    bench = Bench()
    assert await bench.commit(intake_of(*some_items(3)))
    bench.disk.arm(Trap(action=Action.FULL, kinds={"write"}))
    assert not await bench.commit(intake_of(*some_items(2)))
    assert await bench.commit(intake_of(*some_items(1)))
    noted = [(one.header.base_sequence, one.header.count) for one in bench.noted]
    assert noted == [(2, 3), (5, 1)]


@pytest.mark.parametrize("by", ["the floor of free disk", "a write"])
async def test_records_without_items_are_kept_where_items_find_no_space(by: str) -> None:
    bench = Bench()
    await trio.sleep(60)
    kept: dict[str, bool] = {}

    async def commit(name: str, work: Draft | Intake) -> None:
        if isinstance(work, Draft):
            kept[name] = await bench.committer.commit_records(work)
        else:
            kept[name] = await bench.commit_beside(lambda: work)

    if by == "a write":
        bench.disk.arm(Trap(action=Action.FULL, kinds={"write"}))
    else:
        bench.floor_bytes = bench.disk.capacity_bytes
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit, "messages", intake_of(*some_items(3)))
        nursery.start_soon(commit, "move", move(5))
        nursery.start_soon(commit, "cancel", cancel(6))
        nursery.start_soon(bench.committer.append_floor, MINUTE + 1)
        await trio.testing.wait_all_tasks_blocked()
        async with bench.running():
            await trio.sleep(1)
    assert kept == {"messages": False, "move": False, "cancel": True}
    assert {entry[0] for entry in bench.log()} == {RecordKind.CANCEL, RecordKind.FLOOR}


async def test_the_floor_follows_the_clock_and_never_goes_back() -> None:
    bench = Bench()

    async def commit() -> int:
        assert await bench.commit(intake_of(*some_items(1)))
        return bench.floors[-1]

    assert await commit() == MINUTE
    await trio.sleep(125)
    assert await commit() == MINUTE + 2
    bench.clock.step(-10 * MINUTE_MS)
    assert await commit() == MINUTE + 2
    await trio.sleep(60 * 11)
    assert await commit() == MINUTE + 3


async def test_the_floor_begins_where_the_logs_left_it() -> None:
    bench = Bench(floor_minute=MINUTE + 7)
    assert await bench.commit(intake_of(*some_items(1)))
    assert bench.floors == [MINUTE + 7]


async def test_the_floor_does_not_follow_a_clock_that_is_not_trusted() -> None:
    bench = Bench()
    assert await bench.commit(intake_of(*some_items(1)))
    bench.clock.step(30 * MINUTE_MS)
    assert await bench.commit(intake_of(*some_items(1)))
    assert bench.floors == [MINUTE, MINUTE]
    bench.clock.step(-30 * MINUTE_MS)
    await trio.sleep(60)
    assert await bench.commit(intake_of(*some_items(1)))
    assert bench.floors[-1] == MINUTE + 1


async def test_the_floor_stays_below_the_minutes_that_are_not_split_yet() -> None:
    bench = Bench()
    bench.desk.hour_mark = MINUTE - 5
    assert await bench.commit(intake_of(*some_items(1)))
    assert bench.floors == [MINUTE - 6]


async def test_a_floor_record_is_written_once_its_minute_is_over_and_once_a_minute_at_most() -> (
    None
):
    bench = Bench()
    await bench.append_floor()
    assert bench.log() == []
    await trio.sleep(60)
    for _ in range(30):
        await bench.append_floor()
        await trio.sleep(1)
    assert [entry[0] for entry in bench.log()] == [RecordKind.FLOOR]
    await trio.sleep(31)
    await bench.append_floor()
    headers = [batch.header for batch in bench.desk.submitted]
    assert [(header.base_sequence, header.floor_minute, header.epoch) for header in headers] == [
        (2, MINUTE + 1, 1),
        (3, MINUTE + 2, 1),
    ]


async def test_a_floor_record_that_finds_no_space_is_left_for_later() -> None:
    bench = Bench()
    await trio.sleep(60)
    bench.disk.arm(Trap(action=Action.FULL, kinds={"write"}))
    await bench.append_floor()
    assert bench.desk.submitted == []
    await trio.sleep(60)
    await bench.append_floor()
    assert bench.floors == [MINUTE + 2]


async def test_what_is_not_committed_is_handed_to_nobody_and_then_all_in_order() -> None:
    bench = Bench()
    bench.commit_point.is_sole = False
    ended: list[tuple[int, bool]] = []

    def note(number: int, kept: bool) -> None:
        ended.append((number, kept))

    async with bench.running():
        for number in range(4):
            bench.committer.submit(
                partial(intake_of, *some_items(2, 2 * number)), partial(note, number)
            )
            await trio.sleep(1)
        assert bench.committer.seconds.total == 4, "a commit does not wait for the one before it"
        assert len(bench.log()) == 4
        assert bench.desk.submitted == []
        assert ended == []
        bench.commit_point.commit_to(6)
        bench.committer.hand_on()
        assert ended == [(0, True), (1, True)]
        assert [batch.header.base_sequence for batch in bench.desk.submitted] == [2, 4]
        bench.commit_point.commit_to(7)
        bench.committer.hand_on()
        assert len(ended) == 2, "half of a commit is none"
        bench.commit_point.commit_to(100)
        bench.committer.hand_on()
        assert ended == [(number, True) for number in range(4)]
    assert bench.queue.items_bytes == 0


async def test_of_what_a_log_had_before_only_what_is_committed_is_read_again() -> None:
    bench = Bench()
    for number in range(3):
        assert await bench.commit(intake_of(*some_items(2, 2 * number)))
    desk, point = FilingDesk(), CommitPoint(durable=8, is_sole=False)
    queue = CommitQueue(
        bench.store.message_log,
        point,
        first=2,
        executor=SimExecutor(random.Random(4), disk=bench.disk, plan=PROMPT),
        submit=desk.submit,
        has_room=lambda: desk.has_room,
        on_damage=lambda damage: pytest.fail(str(damage)),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.run)
        for committed, bases in ((2, []), (4, [2]), (8, [2, 4, 6])):
            point.commit_to(committed)
            queue.hand_on()
            await trio.sleep(1)
            assert [batch.header.base_sequence for batch in desk.submitted] == bases
        nursery.cancel_scope.cancel()


async def test_items_wait_while_too_much_is_not_committed_and_records_without_items_pass() -> None:
    bench = Bench()
    bench.commit_point.is_sole = False
    ended: list[bool] = []
    with mock.patch.object(commits, "UNCOMMITTED_BYTES_MAX", 10_000):
        async with bench.running():
            for number in range(100):
                bench.committer.submit(
                    partial(intake_of, *some_items(10, 10 * number)), ended.append
                )
                await trio.sleep(0.1)
            held = bench.queue.items_bytes
            batches = len(bench.log())
            assert 10_000 < held < 12_000
            assert batches < 20
            bench.committer.submit(
                lambda: commits.Records([cancel(1)]), ended.append, has_items=False
            )
            await trio.sleep(1)
            assert bench.log()[-1][0] is RecordKind.CANCEL
            while bench.queue.items_bytes:
                bench.commit_point.commit_to(10_000)
                bench.committer.hand_on()
                await trio.sleep(1)
    assert ended == [True] * 101
    assert len(bench.log()) == 101


async def test_items_wait_while_replicas_do_not_let_them_be_appended() -> None:
    """A handover: the other node is not to find in the log what nobody was told to be kept."""
    bench = Bench()
    replicas = mock.MagicMock(follow=False, why_not_append="hands over to b")
    replicas.durable = lambda end, _: bench.commit_point.durable_to(end)
    ended: list[bool] = []
    with mock.patch.object(bench.committer, "_replicas", replicas):
        async with bench.running():
            bench.committer.submit(partial(intake_of, *some_items(2)), ended.append)
            assert await bench.committer.commit_records(cancel(1))
            assert [entry[0] for entry in bench.log()] == [RecordKind.CANCEL]
            assert bench.committer.taken == 0
            replicas.why_not_append = ""
            bench.committer.look_again()
            await trio.testing.wait_all_tasks_blocked()
            # What is being written is waited for.
            assert bench.committer.taken == 1
            await trio.sleep(1)
            assert (ended, bench.committer.taken) == ([True], 0)
