"""What a commit says is kept is durable, and the floor that it writes never runs ahead or back."""

import random
from typing import cast

import numpy as np
import pytest
import trio
from xxhash import xxh3_64_intdigest

from delay_protocol.messages.items import ItemScan, scan_items
from delay_server.accepting.commits import Committer
from delay_server.accepting.disk_budget import DiskBudget
from delay_server.accepting.intake import Intake
from delay_server.clock.clock_guard import ClockGuard
from delay_server.clock.pace import Pacer
from delay_server.filing.filer import Committed, CommittedBatch, CommittedControl, Filer
from storage.batch.batches import Damage
from storage.batch.columns import RecordKind
from storage.disk.errors import FatalDiskError
from storage.logs.message_log import MessageLog
from storage.node.store import Store, StoreSettings
from storage.schedule.provision import Provision
from tests.delay_server.server_rig import MINUTE_MS, PROMPT, make_item
from tests.simulation.clock import EPOCH_MS, SimClock
from tests.simulation.disk import SimDisk
from tests.simulation.executor import SimExecutor
from tests.simulation.faults import CALM, HARSH, Action, Trap

MINUTE = EPOCH_MS // MINUTE_MS


class FilingDesk:
    """Stands in for a Filer: keeps what is submitted, and has room when a test says so."""

    def __init__(self) -> None:
        self.submitted: list[Committed] = []
        self.hour_mark = MINUTE + 120
        self.room = trio.Event()
        self.room.set()

    def submit(self, batches: list[Committed]) -> None:
        self.submitted += batches

    async def wait_for_room(self) -> None:
        await self.room.wait()


class Bench:
    """A Committer on a message_log of a simulated disk."""

    def __init__(self, disk: SimDisk | None = None, *, floor_minute: int = 0) -> None:
        self.disk = disk or SimDisk(random.Random(3), plan=CALM)
        self.clock = SimClock(is_synchronised=False)
        self.desk = FilingDesk()
        self.store = open_store(self.disk)
        self.floor_bytes = 0
        self.committer = Committer(
            message_log=self.store.message_log,
            filer=cast("Filer", self.desk),
            executor=SimExecutor(random.Random(4), disk=self.disk, plan=PROMPT),
            pacer=Pacer(self.clock, ClockGuard(step_forward_ms_max=60_000)),
            floor_minute=floor_minute,
            budget=DiskBudget(
                self.disk,
                provision=Provision(),
                floor_bytes=lambda _: self.floor_bytes,
                owed_bytes=lambda: self.store.owed_bytes(0, 0),
            ),
            hour_mark=lambda: self.desk.hour_mark,
        )

    @property
    def floors(self) -> list[int]:
        """Floor of each batch submitted."""
        return [batch.floor_minute for batch in self.desk.submitted]

    def log(self) -> list[tuple[RecordKind, int, int, bytes]]:
        """Return kind, first sequence, count and blob of the batches after EPOCH_START."""
        return read_log(self.store.message_log)


def open_store(disk: SimDisk) -> Store:
    store, _ = Store.open(
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
    return intake


def some_items(count: int, start: int = 0) -> list[bytes]:
    return [
        make_item(f"m{number}", EPOCH_MS + number, subject=f"s{number % 3}")
        for number in range(start, start + count)
    ]


async def test_what_a_commit_kept_survives_a_power_cut() -> None:
    bench = Bench(SimDisk(random.Random(3), plan=HARSH))
    items = some_items(20)
    assert await bench.committer.commit(intake_of(*items))
    bench.disk.power_cut()
    store = open_store(bench.disk.revive())
    assert read_log(store.message_log) == [(RecordKind.MESSAGE, 2, 20, b"".join(items))]


async def test_a_commit_for_which_there_is_no_room_beyond_the_floor_writes_nothing() -> None:
    bench = Bench()
    before = bench.log()
    writes = bench.disk.counts["write"]
    bench.floor_bytes = bench.disk.capacity_bytes - bench.disk.used_bytes - 200_000
    assert not await bench.committer.commit(intake_of(*some_items(400)))
    assert bench.disk.counts["write"] == writes
    assert bench.log() == before
    assert not bench.desk.submitted
    bench.floor_bytes = 0
    assert not await bench.committer.commit(intake_of(*some_items(1))), "nobody has looked again"


async def test_a_commit_is_one_write_and_one_fsync_whatever_it_holds() -> None:
    bench = Bench()
    assert await bench.committer.commit(intake_of(*some_items(1)))
    before = dict(bench.disk.counts)
    assert await bench.committer.commit(intake_of(*some_items(50, 1), batch_bytes_max=3000))
    assert bench.disk.counts["sync"] == before["sync"] + 1
    # The second write is that of the durable end.
    assert bench.disk.counts["write"] == before["write"] + 2
    assert len(bench.desk.submitted) > 2
    assert bench.committer.commits == 2


async def test_filing_gets_what_was_kept_with_its_place_in_the_log() -> None:
    bench = Bench()
    items = some_items(30)
    assert await bench.committer.commit(intake_of(*items[:10]))
    await trio.sleep(61)
    assert await bench.committer.commit(intake_of(*items[10:], batch_bytes_max=2000))
    sequence = 2
    blobs, subjects = [], []
    for batch in bench.desk.submitted:
        assert isinstance(batch, CommittedBatch)
        assert batch.base_sequence == sequence
        assert batch.epoch == 1
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
    assert await bench.committer.commit(intake_of(*some_items(1)))
    bench.disk.arm(Trap(action=Action.FULL, kinds={"write"}))
    assert not await bench.committer.commit(intake_of(*some_items(5, 1)))
    assert len(bench.desk.submitted) == 1
    items = some_items(2, 6)
    assert await bench.committer.commit(intake_of(*items))
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
    with pytest.raises(FatalDiskError):
        await bench.committer.commit(intake_of(*some_items(3)))
    assert bench.desk.submitted == []
    with pytest.raises(FatalDiskError):
        await bench.committer.commit(intake_of(*some_items(1)))


async def test_a_commit_waits_while_filing_lags() -> None:
    bench = Bench()
    bench.desk.room = trio.Event()
    kept: list[bool] = []

    async def commit() -> None:
        kept.append(await bench.committer.commit(intake_of(*some_items(1))))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        await trio.sleep(100)
        assert bench.log() == []
        bench.desk.room.set()
    assert kept == [True]


async def test_the_floor_follows_the_clock_and_never_goes_back() -> None:
    bench = Bench()

    async def commit() -> int:
        assert await bench.committer.commit(intake_of(*some_items(1)))
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
    assert await bench.committer.commit(intake_of(*some_items(1)))
    assert bench.floors == [MINUTE + 7]


async def test_the_floor_does_not_follow_a_clock_that_is_not_trusted() -> None:
    bench = Bench()
    assert await bench.committer.commit(intake_of(*some_items(1)))
    bench.clock.step(30 * MINUTE_MS)
    assert await bench.committer.commit(intake_of(*some_items(1)))
    assert bench.floors == [MINUTE, MINUTE]
    bench.clock.step(-30 * MINUTE_MS)
    await trio.sleep(60)
    assert await bench.committer.commit(intake_of(*some_items(1)))
    assert bench.floors[-1] == MINUTE + 1


async def test_the_floor_stays_below_the_minutes_that_are_not_split_yet() -> None:
    bench = Bench()
    bench.desk.hour_mark = MINUTE - 5
    assert await bench.committer.commit(intake_of(*some_items(1)))
    assert bench.floors == [MINUTE - 6]


async def test_a_floor_record_is_written_once_its_minute_is_over_and_once_a_minute_at_most() -> (
    None
):
    bench = Bench()
    await bench.committer.append_floor(MINUTE + 1)
    assert bench.log() == []
    await trio.sleep(60)
    for _ in range(30):
        await bench.committer.append_floor(MINUTE + 1)
        await trio.sleep(1)
    assert [entry[0] for entry in bench.log()] == [RecordKind.FLOOR]
    await trio.sleep(31)
    await bench.committer.append_floor(MINUTE + 1)
    floors = [batch for batch in bench.desk.submitted if isinstance(batch, CommittedControl)]
    assert [(floor.base_sequence, floor.floor_minute, floor.epoch) for floor in floors] == [
        (2, MINUTE + 1, 1),
        (3, MINUTE + 2, 1),
    ]


async def test_a_floor_record_that_finds_no_space_is_left_for_later() -> None:
    bench = Bench()
    await trio.sleep(60)
    bench.disk.arm(Trap(action=Action.FULL, kinds={"write"}))
    await bench.committer.append_floor(MINUTE + 1)
    assert bench.desk.submitted == []
    await trio.sleep(60)
    await bench.committer.append_floor(MINUTE + 1)
    assert bench.floors == [MINUTE + 2]


async def test_commits_and_floor_records_reach_filing_in_the_order_of_the_log() -> None:
    bench = Bench()
    await trio.sleep(60)

    async def commit(number: int) -> None:
        assert await bench.committer.commit(intake_of(*some_items(3, number)))

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(commit, number)
            nursery.start_soon(bench.committer.append_floor, MINUTE + 1)
    sequences = [batch.base_sequence for batch in bench.desk.submitted]
    assert sequences == sorted(sequences)
    assert len(sequences) == 6
    assert bench.floors == sorted(bench.floors)
