"""Each committed message is filed once and is in the wheel once and in time; idle means asleep."""

import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import TypeVar, TypeVarTuple

import numpy as np
import pytest
import trio

from delay_server.clock.clock_guard import ClockGuard
from delay_server.clock.pace import Pacer
from delay_server.filing.checkpoints import Checkpoints
from delay_server.filing.filer import (
    Filer,
)
from delay_server.filing.loader import Loader
from delay_server.filing.schedule_access import ScheduleAccess
from delay_server.holding.wheel import Wheel, WheelConfig
from delay_server.lanes.lanes import Lanes
from storage.batch.batches import Damage, LogBatch
from storage.batch.columns import Columns, RecordKind
from storage.batch.entries import Entries
from storage.batch.facts import FactBlock, Outcome
from storage.disk.spans import Span
from storage.limits import StorageLimits
from storage.node.store import StoreSettings
from storage.schedule.handout import HeldRows, held_rows
from tests.delay_server.server_rig import MINUTE_MS, PROMPT, make_item, until
from tests.simulation.clock import EPOCH_MS, SimClock
from tests.simulation.disk import SimDisk
from tests.simulation.executor import ExecutorPlan, SimExecutor, name_of
from tests.simulation.faults import CALM, Action, Trap
from tests.storage.small_logs import facts_batch, log_batch
from tests.storage.starting import start

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MINUTE = EPOCH_MS // MINUTE_MS
HOUR_MS = 60 * MINUTE_MS


class CountingExecutor(SimExecutor):
    """Counts what runs."""

    def __init__(self, disk: SimDisk, plan: ExecutorPlan) -> None:
        super().__init__(random.Random(4), disk=disk, plan=plan)
        self.calls: Counter[str] = Counter()
        self.before: Callable[[], None] | None = None
        """Called before anything but filing itself runs."""
        self.is_in_worker = False
        """True while something runs that may run in a thread beside the loop."""

    async def run(self, lane: str, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        name = name_of(fn).rpartition(".")[2]
        self.calls[name] += 1
        if self.before is not None and name != "_file":
            self.before()
        return await super().run(lane, fn, *args)

    def _make(self, worker: str, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        self.is_in_worker = True
        try:
            return super()._make(worker, fn, *args)
        finally:
            self.is_in_worker = False


class Bench:
    """A Filer and a Loader on a store of a simulated disk; its log is only a counter."""

    def __init__(
        self,
        *,
        limits: StorageLimits,
        wheel: WheelConfig,
        plan: ExecutorPlan,
    ) -> None:
        self.disk = SimDisk(random.Random(3), plan=CALM)
        self.clock = SimClock(is_synchronised=False)
        self.store, _ = start(
            self.disk,
            StoreSettings(limits=limits),
            chance=random.Random(5),
            now_ms=EPOCH_MS,
            on_damage=lambda damage: pytest.fail(str(damage)),
        )
        self.executor = CountingExecutor(self.disk, plan)
        self.wheel = Wheel()
        self.entered: Counter[int] = Counter()
        """How often each sequence entered the wheel."""
        self.outcomes: deque[tuple[int, Sequence[int]]] = deque()
        """The last record of each commit of facts, and what they are about."""
        self.held: dict[int, HeldRows] = {}
        """The row of each that entered."""
        self.grown = 0
        self.elsewhere = 0
        self.sent: list[Entries] = []
        """What a sender holds."""
        self.floors_wanted: list[int] = []
        self.next_sequence = 2
        self.due_ms: dict[int, int] = {}
        self.names: dict[int, bytes] = {}
        """The subjects of `submit_names` whose messages were not popped yet."""
        self.minutes: dict[int, int] = {}
        pacer = Pacer(self.clock, ClockGuard(step_forward_ms_max=60_000))
        self.checkpoints = Checkpoints(self.store, executor=self.executor, pacer=pacer)
        self.access = ScheduleAccess(self.executor)
        self.filer = Filer(
            store=self.store,
            checkpoints=self.checkpoints,
            access=self.access,
            pacer=pacer,
        )
        self.handout = self.store.schedule.hand_out()
        self.loader = Loader(
            store=self.store,
            handout=self.handout,
            give_back=self.handout.give_back,
            wheel=self.wheel,
            limits=wheel,
            checkpoints=self.checkpoints,
            access=self.access,
            pacer=pacer,
            lanes=Lanes(on_disk=self.handout, lane_entries_min=2000, lanes_max=256),
            held_elsewhere=self._held_elsewhere,
            on_wheel_grown=self._grown,
            append_floor=self._append_floor,
            on_facts=self._applied,
            on_shared=lambda _: None,
        )
        add = self.wheel.add

        def count(entries: Entries) -> None:
            self.entered.update(entries["sequence"].tolist())
            for place, sequence in enumerate(entries["sequence"].tolist()):
                self.held[sequence] = held_rows(entries[place : place + 1])
            add(entries)

        self.wheel.add = count  # type: ignore[method-assign]

    def _held_elsewhere(self) -> int:
        """Return what a sender holds, which is the loop's to change: a thread may not look."""
        assert not self.executor.is_in_worker
        return self.elsewhere + sum(map(len, self.sent))

    def _grown(self) -> None:
        self.grown += 1

    async def _append_floor(self, wanted_minute: int) -> None:
        self.floors_wanted.append(wanted_minute)

    def batch(self, due_ms: Sequence[int], *, size: int = 1) -> LogBatch:
        """Return the next batch of the log, with a message due at each of these times."""
        floor = self.clock.now_ms() // MINUTE_MS
        base = self.next_sequence
        self.next_sequence += len(due_ms)
        for number, due in enumerate(due_ms):
            self.due_ms[base + number] = due
            self.minutes[base + number] = max(due // MINUTE_MS, floor)
        items = [
            make_item(f"m{base + number}", due, attributes={"k": "v" * size})
            for number, due in enumerate(due_ms)
        ]
        return log_batch(
            RecordKind.MESSAGE,
            base,
            floor_minute=floor,
            columns=Columns(
                names=[b"a.b"],
                arrays={
                    "due_ms": np.array(due_ms, np.int64),
                    "id_hash": np.arange(len(due_ms), dtype=np.uint64),
                    "size": np.array(list(map(len, items)), np.uint32),
                    "subject": np.zeros(len(due_ms), np.uint16),
                },
            ),
            blob=b"".join(items),
            append_ms=self.clock.now_ms(),
        )

    def submit(self, *due_ms: int, size: int = 1) -> LogBatch:
        """Commit messages that are due at these times."""
        batch = self.batch(due_ms, size=size)
        self.filer.submit([batch])
        return batch

    def submit_names(self, names: list[bytes], due_ms: int) -> None:
        """Commit a message of each subject, all due at once; their bytes are no items."""
        base, count = self.next_sequence, len(names)
        self.next_sequence += count
        self.names |= dict(enumerate(names, base))
        batch = log_batch(
            RecordKind.MESSAGE,
            base,
            floor_minute=self.clock.now_ms() // MINUTE_MS,
            columns=Columns(
                names=names,
                arrays={
                    "due_ms": np.full(count, due_ms, np.int64),
                    "id_hash": np.zeros(count, np.uint64),
                    "size": np.ones(count, np.uint32),
                    "subject": np.arange(count, dtype=np.uint16),
                },
            ),
            blob=bytes(count),
            append_ms=self.clock.now_ms(),
        )
        self.filer.submit([batch])

    def pop_named(self, limit: int = 10**6) -> int:
        """Take out of the wheel what is due, each with its own name; return how many they are."""
        due = self.wheel.pop_due(self.clock.now_ms(), limit)
        for sequence, subject in due[["sequence", "subject"]].tolist():
            assert self.store.schedule.subjects.names[subject] == self.names.pop(sequence)
        if len(due):
            self.minutes.update(due[["sequence", "minute"]].tolist())
            self._submit_facts(due["sequence"].tolist(), self.clock.now_ms() // MINUTE_MS)
        self.loader.wheel_has_shrunk()
        return len(due)

    async def cross_off(self, *sequences: int, floor_minute: int | None = None) -> None:
        """Commit facts of these messages, with the present minute for a floor, or another one."""
        floor = self.clock.now_ms() // MINUTE_MS if floor_minute is None else floor_minute
        self._submit_facts(sequences, floor)
        await self.filer.drain()

    def _submit_facts(self, sequences: Sequence[int], floor_minute: int) -> None:
        count = len(sequences)
        facts = FactBlock(
            sequence=np.array(sequences, np.int64),
            minute=np.array([self.minutes[sequence] for sequence in sequences], np.uint32),
            at_ms=np.full(count, self.clock.now_ms(), np.int64),
            target=np.zeros(count, np.uint16),
            outcome=np.full(count, Outcome.DELIVERED, np.uint8),
            record=np.zeros(count, np.int64),
            targets=[b"g1"],
        )
        self.filer.submit([facts_batch(self.next_sequence, facts, floor_minute=floor_minute)])
        self.next_sequence += count
        self.outcomes.append((self.next_sequence - 1, sequences))

    def _applied(self, facts: Sequence[FactBlock], last: int) -> None:
        """Have rows settled whose facts are applied, of those that were handed out."""
        assert not facts
        while self.outcomes and self.outcomes[0][0] <= last:
            for sequence in self.outcomes.popleft()[1]:
                if sequence in self.held:
                    self.handout.settle(self.held.pop(sequence))

    def run_of(self, loop: str) -> Callable[[], Awaitable[None]]:
        """Return a task by its name."""
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "filing": partial(self.filer.run, self.loader),
            "loading": self.loader.run_loading,
            "collecting": self.loader.run_collecting,
            "checkpoints": self.checkpoints.run,
        }
        return loops[loop]

    def assert_each_entered_once(self) -> None:
        assert self.entered == dict.fromkeys(self.due_ms, 1)


@asynccontextmanager
async def bench(
    *,
    limits: StorageLimits | None = None,
    wheel: WheelConfig | None = None,
    plan: ExecutorPlan = PROMPT,
    loops: str = "filing loading checkpoints",
) -> AsyncIterator[Bench]:
    b = Bench(limits=limits or StorageLimits(), wheel=wheel or WheelConfig(), plan=plan)
    async with trio.open_nursery() as nursery:
        for loop in loops.split():
            nursery.start_soon(b.run_of(loop))
        yield b
        nursery.cancel_scope.cancel()


async def test_what_is_due_soon_enters_the_wheel_as_soon_as_it_is_filed() -> None:
    async with bench() as b:
        await trio.sleep(1)
        b.submit(EPOCH_MS + 5000, EPOCH_MS + 1500, EPOCH_MS - 86_400_000)
        await until(lambda: len(b.wheel) == 3, seconds=0.1, step_s=0.001)
        assert b.wheel.next_due_ms() == EPOCH_MS - 86_400_000
        assert b.grown == 1
        b.assert_each_entered_once()


async def test_what_is_due_later_is_loaded_before_its_time_and_not_long_before() -> None:
    times = [
        EPOCH_MS + delay
        for delay in (
            *(4 * MINUTE_MS, 4 * MINUTE_MS + 1, 5 * MINUTE_MS - 1, 90 * MINUTE_MS),
            *(5 * HOUR_MS, 30 * HOUR_MS, 3 * 24 * HOUR_MS, 4 * 24 * HOUR_MS + 7),
        )
    ]
    async with bench() as b:
        b.submit(*times)
        for due_ms in times:
            sequence = 2 + times.index(due_ms)
            early_s = (due_ms - 4 * MINUTE_MS - b.clock.now_ms()) / 1000 - 1
            if early_s > 0:
                await trio.sleep(early_s)
                assert sequence not in b.entered
            await trio.sleep(max(0, due_ms - MINUTE_MS - b.clock.now_ms()) / 1000)
            assert sequence in b.entered
        b.assert_each_entered_once()


async def test_what_is_filed_while_the_loader_looks_around_is_not_slept_through() -> None:
    # In the lane the loader found nothing to do. While a busy loop keeps that answer from it a
    # message of a minute that was not loaded yet is filed.
    async with bench() as b:
        b.loader._pacer.sleep_ms_max = HOUR_MS
        await trio.sleep(30 * 60)
        run = b.executor.run

        async def answer_late(lane: str, fn: Callable[[*Ts], T], *args: *Ts) -> T:
            result = await run(lane, fn, *args)
            if name_of(fn).endswith("_next_work"):
                await trio.sleep(1)
            return result

        b.executor.run = answer_late  # type: ignore[method-assign]
        b.loader.wake()
        # The first answer is to move the cursor, the second that this was all.
        await trio.sleep(1.5)
        b.submit(b.clock.now_ms() + 10 * MINUTE_MS)
        await trio.sleep(12 * 60)
        assert len(b.wheel) == 1


async def test_what_is_due_and_fills_the_pile_is_loaded_though_the_pile_is_written() -> None:
    async with bench(limits=StorageLimits(gather_bytes_max=1)) as b:
        b.loader._pacer.sleep_ms_max = HOUR_MS
        await trio.sleep(30 * 60)
        b.submit(b.clock.now_ms())
        await until(lambda: len(b.wheel) == 1, seconds=3)


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_arrives_whenever_enters_the_wheel_once_and_in_time(seed: int) -> None:
    chance = random.Random(seed)
    plan = ExecutorPlan(delay_s=(0.0005, 0.05), stall_chance=0.02, stall_s=(0.1, 3))
    limits = StorageLimits(load_step_rows=3, checkpoint_interval_ms=1000)
    async with bench(limits=limits, wheel=WheelConfig(load_ahead_ms=60_000), plan=plan) as b:
        late = 0
        for _ in range(300):
            ahead = chance.choice([0, 60_000, 120_000, 180_000, 400_000, 3 * HOUR_MS])
            b.submit(
                *(
                    b.clock.now_ms() + ahead + chance.randrange(-5000, 60_000)
                    for _ in range(chance.randint(1, 4))
                )
            )
            await trio.sleep(chance.random() * 3)
        while b.clock.now_ms() < max(b.due_ms.values()):
            await trio.sleep(20)
            now_ms = b.clock.now_ms()
            late += sum(
                due_ms < now_ms - 20_000 and sequence not in b.entered
                for sequence, due_ms in b.due_ms.items()
            )
        assert late == 0
        b.assert_each_entered_once()


async def test_each_segment_is_read_once_and_between_two_minutes_nothing_is_done() -> None:
    async with bench() as b:
        for minute in range(10):
            b.submit(*(EPOCH_MS + minute * MINUTE_MS + second * 1000 for second in range(60)))
        await trio.sleep(7.5 * 60)
        assert len(b.entered) == 600
        assert b.executor.calls["step"] <= 12
        assert b.executor.calls["_next_work"] <= 40
        b.assert_each_entered_once()


async def test_with_nothing_to_do_nothing_runs() -> None:
    async with bench() as b:
        b.submit(EPOCH_MS + 30 * HOUR_MS)
        await trio.sleep(600)
        b.executor.calls.clear()
        written = b.checkpoints.written
        await trio.sleep(3600)
        # Once a minute it is looked whether the clock was set.
        assert set(b.executor.calls) <= {"_next_work", "step"}
        assert b.executor.calls.total() <= 60 * 4
        assert b.checkpoints.written == written


async def test_the_wheel_takes_no_more_than_it_may_and_the_rest_follows() -> None:
    wheel = WheelConfig(entries_max=100)
    async with bench(limits=StorageLimits(load_step_rows=10), wheel=wheel) as b:
        for _ in range(10):
            b.submit(*(EPOCH_MS + 3 * MINUTE_MS + number for number in range(100)))
        popped = 0
        most = 0
        b.elsewhere = 40
        while b.clock.now_ms() < EPOCH_MS + 10 * MINUTE_MS:
            await trio.sleep(0.5)
            most = max(most, len(b.wheel))
            popped += len(b.wheel.pop_due(b.clock.now_ms(), 1000))
        assert popped == 1000
        # About as many as may be: what is due in the same ms cannot be told apart.
        assert most <= 80
        b.assert_each_entered_once()


async def test_commits_wait_for_room_while_filing_lags_and_the_backlog_is_bounded() -> None:
    plan = ExecutorPlan(delay_s=(1, 1), stall_chance=0)
    async with bench(limits=StorageLimits(filing_bytes_max=5000), plan=plan) as b:
        most = 0
        for _ in range(50):
            await until(lambda: b.filer.has_room)
            b.submit(EPOCH_MS + HOUR_MS, size=900)
            most = max(most, b.filer.backlog_bytes)
        assert 5000 < most < 5000 + 1100
        assert trio.current_time() > 5
        await b.filer.drain()
        assert b.filer.backlog_bytes == 0
        assert b.store.schedule.last_filed == 51


async def test_whoever_waits_for_room_hears_of_it_and_several_may_wait_for_the_end() -> None:
    plan = ExecutorPlan(delay_s=(1, 1), stall_chance=0)
    async with bench(limits=StorageLimits(filing_bytes_max=10), plan=plan, loops="filing") as b:
        rooms: list[bool] = []
        b.filer.on_room = lambda: rooms.append(b.filer.has_room)
        b.submit(EPOCH_MS + HOUR_MS)
        assert not b.filer.has_room
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(b.filer.drain)
                nursery.start_soon(b.filer.drain)
        assert rooms == [True]


async def test_checkpoints_come_at_their_interval_while_there_is_something_new() -> None:
    async with bench(limits=StorageLimits(checkpoint_interval_ms=2000)) as b:
        await trio.sleep(100)
        written = b.checkpoints.written
        for _ in range(20):
            b.submit(EPOCH_MS + HOUR_MS)
            await trio.sleep(1)
        assert 6 <= b.checkpoints.written - written <= 11
        await trio.sleep(3)
        written = b.checkpoints.written
        assert b.store.checkpoint.sequence == 21
        await trio.sleep(1000)
        assert b.checkpoints.written == written


async def test_much_that_is_filed_does_not_wait_for_the_interval() -> None:
    limits = StorageLimits(checkpoint_interval_ms=3_600_000, checkpoint_bytes=20_000)
    async with bench(limits=limits) as b:
        await trio.sleep(3700)
        written = b.checkpoints.written
        for _ in range(10):
            b.submit(EPOCH_MS + 9 * HOUR_MS, size=10_000)
            await trio.sleep(0.1)
        assert 3 <= b.checkpoints.written - written <= 6


async def test_a_floor_is_wanted_when_its_minute_is_over_though_nothing_else_happens() -> None:
    async with bench() as b:
        b.submit(EPOCH_MS + 2000)
        await trio.sleep(3)
        await b.cross_off(2)
        await trio.sleep(56)
        asked = len(b.floors_wanted)
        assert asked <= 1
        await trio.sleep(2)
        assert len(b.floors_wanted) > asked


async def test_nothing_is_loaded_or_split_by_a_clock_that_is_not_trusted() -> None:
    async with bench() as b:
        b.submit(EPOCH_MS + 10 * MINUTE_MS, EPOCH_MS + 5 * HOUR_MS)
        await trio.sleep(10)
        b.clock.step(4 * HOUR_MS)
        b.executor.calls.clear()
        await trio.sleep(200)
        assert not b.entered
        assert b.executor.calls.total() <= 210
        mark = b.loader.hour_mark
        b.clock.is_synchronised = True
        await trio.sleep(200)
        assert b.entered == {2: 1}
        assert b.loader.hour_mark > mark


async def test_facts_that_found_no_space_do_not_keep_filing_busy_afterwards() -> None:
    async with bench() as b:
        b.submit(EPOCH_MS + 5000)
        await trio.sleep(10)
        await b.cross_off(2)
        b.disk.arm(
            Trap(
                action=Action.FULL,
                kinds={"create", "write"},
                when=lambda _kind, path, _label: path.startswith("dispatch_log/"),
            )
        )
        await trio.sleep(20)
        assert b.disk.fired
        assert b.store.checkpoint.sequence == b.next_sequence - 1
        await trio.sleep(100)
        b.executor.calls.clear()
        await trio.sleep(50)
        assert not b.executor.calls["_file"]


async def test_a_checkpoint_that_finds_no_space_is_tried_again() -> None:
    async with bench() as b:
        await trio.sleep(20)
        b.disk.arm(
            Trap(
                action=Action.FULL,
                kinds={"create"},
                when=lambda _kind, path, _label: path.startswith("checkpoint/"),
            )
        )
        written = b.checkpoints.written
        b.submit(EPOCH_MS + HOUR_MS)
        await trio.sleep(20)
        assert b.disk.fired
        assert b.checkpoints.written == written + 1
        assert b.store.checkpoint.sequence == 2


async def test_a_split_without_space_does_not_hold_up_what_is_due() -> None:
    async with bench() as b:
        # Two messages in one hour that is split soon, and one that is due meanwhile.
        b.submit(EPOCH_MS + 3 * HOUR_MS, EPOCH_MS + 3 * HOUR_MS + 1, EPOCH_MS + 62 * MINUTE_MS)
        await trio.sleep(5)
        await trio.sleep(50 * 60)

        def is_split(_kind: str, path: str, label: str) -> bool:
            return label.endswith("SplitJob.step") and path.endswith(".minute")

        traps = (Trap(action=Action.FULL, kinds={"create", "write"}, when=is_split),) * 1000
        b.disk.arm(*traps)
        await trio.sleep(12 * 60)
        assert len(b.disk.fired) > 100
        assert b.entered == {4: 1}
        b.disk.disarm()
        await trio.sleep(2 * 3600)
        b.assert_each_entered_once()


async def test_what_is_thrown_out_for_room_comes_again_and_what_was_sent_does_not() -> None:
    """Rows come that are due earlier than those that the sender holds or has just delivered."""
    async with bench(wheel=WheelConfig(entries_max=40)) as b:
        await trio.sleep(31)
        now_ms = b.clock.now_ms()
        b.submit(*[now_ms] * 10)
        await trio.sleep(0.1)
        b.sent = [b.wheel.pop_due(b.clock.now_ms(), 6)]
        b.sent.append(b.wheel.pop_due(b.clock.now_ms(), 2))
        b.submit(*range(now_ms - 1000, now_ms - 900))
        await trio.sleep(0.1)
        assert len(b.wheel) + 8 <= 40
        assert b.loader.evicted
        assert b.handout.lanes.loading < (now_ms, 0)
        again: Counter[int] = Counter()
        for _ in range(100):
            again.update(b.wheel.pop_due(b.clock.now_ms(), 100)["sequence"].tolist())
            b.loader.wheel_has_shrunk()
            await trio.sleep(1)
        gone = {*chain.from_iterable(part["sequence"].tolist() for part in b.sent)}
        assert again == dict.fromkeys(b.due_ms.keys() - gone, 1)


async def test_what_is_thrown_out_is_not_loaded_again_before_there_is_room_for_a_slice() -> None:
    async with bench(wheel=WheelConfig(entries_max=80)) as b:
        await trio.sleep(1)
        now_ms = b.clock.now_ms()
        for first in range(0, 200, 10):
            b.submit(*range(now_ms + 60_000 - first, now_ms + 60_010 - first))
            await trio.sleep(0.1)
            assert len(b.wheel) <= 80
        b.executor.calls.clear()
        await trio.sleep(9)
        assert b.executor.calls.total() <= 3
        assert len(b.entered) == 200
        # Each was thrown out at most once or twice, not by every arrival anew.
        assert b.entered.total() < 2 * 200
        await trio.sleep(100)


WITH_NAMES = "filing loading checkpoints collecting"


@pytest.mark.long
async def test_200_000_subjects_that_never_come_again_take_no_more_memory_than_they_may() -> None:
    limits = StorageLimits(subjects_bytes_max=1 << 20, gather_bytes_max=100_000)
    async with bench(limits=limits, loops=WITH_NAMES) as b:
        subjects = b.store.schedule.subjects
        most_bytes = most_names = popped = 0
        for first in range(0, 200_000, 1000):
            names = [
                b"a.subject.that.is.long.%092d" % number for number in range(first, first + 1000)
            ]
            await until(lambda: b.filer.has_room)
            # Every other commit goes to disk first, some of those by way of a segment of an hour.
            due_ms = b.clock.now_ms() + (500 if first % 2000 else first // 10 * 600)
            b.submit_names(names, due_ms)
            await trio.sleep(1)
            popped += b.pop_named()
            most_bytes = max(most_bytes, subjects.bytes_held)
            most_names = max(most_names, len(subjects))
        while b.names:
            await trio.sleep(60)
            popped += b.pop_named()
            most_bytes = max(most_bytes, subjects.bytes_held)
        assert popped == 200_000
        # One commit more, and one part of the bound until there is a collection.
        bound = (1 << 20) * 9 // 8 + 1000 * 371
        assert most_bytes <= bound
        assert most_names >= 2000
        # By the bound and not by what was seen: there may have been more between two looks.
        assert len(subjects.names) <= bound // 371
        assert subjects.collections > 100
        assert not len(b.handout.lanes)


async def test_with_more_names_due_than_fit_what_is_due_last_waits_on_disk() -> None:
    limits = StorageLimits(subjects_bytes_max=100_000, load_step_rows=20)
    async with bench(limits=limits, loops=WITH_NAMES) as b:
        subjects = b.store.schedule.subjects
        due_ms = b.clock.now_ms() + 30_000
        for first in range(0, 3000, 20):
            names = [b"%044d" % number for number in range(first, first + 20)]
            b.submit_names(names, due_ms + first % 1000)
        await b.filer.drain()
        assert b.loader.evicted
        assert 100 < len(b.wheel) < 100_000 // 300
        assert subjects.bytes_held < 100_000 * 9 // 8 + 20 * 300
        most = 0
        with trio.fail_after(60):
            while b.names:
                await trio.sleep(0.05)
                b.pop_named(50)
                most = max(most, subjects.bytes_held)
        assert most < 100_000 * 9 // 8 + 20 * 300
        # Slices are as large as there is room for, so hardly any is thrown out again.
        assert b.entered.total() < 2 * 3000


async def test_what_does_not_fit_for_its_names_does_not_come_and_go_without_end() -> None:
    limits = StorageLimits(subjects_bytes_max=1_024, load_step_rows=1)
    async with bench(limits=limits, loops=WITH_NAMES) as b:
        due_ms = b.clock.now_ms() + 100_000
        b.submit_names([b"%0200d" % number for number in range(5)], due_ms)
        await trio.sleep(99)
        # Seven times is 100 s halved before it is less than a second.
        assert b.entered.total() < 7 * 5
        with trio.fail_after(2):
            while b.names:
                await trio.sleep(0.05)
                b.pop_named()


async def test_names_of_messages_that_wait_to_be_written_do_not_stop_those_that_come() -> None:
    limits = StorageLimits(subjects_bytes_max=10_000, checkpoint_interval_ms=3_600_000)
    async with bench(limits=limits, loops=WITH_NAMES) as b:
        for first in range(0, 1000, 10):
            names = [b"%044d" % number for number in range(first, first + 10)]
            b.submit_names(names, b.clock.now_ms() + 5 * HOUR_MS)
        with trio.fail_after(10):
            await b.filer.drain()
        # They are written, to have their names no longer.
        assert b.store.schedule.subjects.bytes_held <= 10_000 * 9 // 8 + 10 * 300
        b.submit_names([b"urgent"], b.clock.now_ms())
        await trio.sleep(1)
        assert b.pop_named() == 1
        while b.names:
            await trio.sleep(10)
            b.pop_named()
        assert b.store.schedule.subjects.bytes_held <= 10_000 * 9 // 8 + 10 * 300


async def test_loading_waits_for_names_no_longer_than_something_holds_them() -> None:
    limits = StorageLimits(subjects_bytes_max=30_000)
    async with bench(limits=limits, loops=WITH_NAMES) as b:
        subjects = b.store.schedule.subjects
        b.submit_names([b"%044d" % number for number in range(70)], EPOCH_MS + 60_000)
        b.submit_names([b"last"], EPOCH_MS + 170_000)
        b.submit_names([b"on disk"], EPOCH_MS + 210_000)
        await trio.sleep(10)
        collections = subjects.collections
        await trio.sleep(40)
        # Nothing has to be loaded yet, so nobody looks for names again and again.
        assert subjects.collections == collections
        await trio.sleep(100)
        assert len(b.wheel) == 71
        assert b.pop_named() == 70
        await trio.sleep(2)
        assert len(b.wheel) == 2
        collections = subjects.collections
        await trio.sleep(15)
        assert subjects.collections == collections


async def test_names_of_messages_that_wait_to_be_written_do_not_hold_loading_up() -> None:
    limits = StorageLimits(subjects_bytes_max=30_000, checkpoint_interval_ms=3_600_000)
    async with bench(limits=limits, loops=WITH_NAMES) as b:
        b.submit_names([b"on disk"], EPOCH_MS + 10 * MINUTE_MS)
        while b.clock.now_ms() < EPOCH_MS + 9 * MINUTE_MS:
            # The wheel is never empty, and there is always one name more in the pile.
            b.submit_names([b"soon"], b.clock.now_ms() + 3000)
            b.submit_names([b"%044d" % b.clock.now_ms()], EPOCH_MS + 5 * HOUR_MS)
            await trio.sleep(1)
            b.pop_named()
            assert len(b.wheel)
        assert b.entered[2] == 1


async def test_no_names_are_collected_while_hardly_any_are_new() -> None:
    async with bench(loops=WITH_NAMES) as b:
        for _ in range(100):
            b.submit_names([b"one", b"other"], b.clock.now_ms())
            await trio.sleep(1)
            b.pop_named()
        await trio.sleep(HOUR_MS / 1000)
        assert not b.executor.calls["condemn_subjects"]
        assert len(b.store.schedule.subjects) == 2


async def test_a_split_that_cannot_read_begins_anew_each_minute_until_its_deadline() -> None:
    damages: list[Damage] = []
    async with bench() as b:
        b.store.schedule.on_damage = damages.append
        await trio.sleep(1)
        b.submit(EPOCH_MS + 5 * HOUR_MS, EPOCH_MS + 6 * HOUR_MS, EPOCH_MS + 4 * MINUTE_MS)
        await until(lambda: b.store.schedule.last_filed == 4, seconds=1)
        await b.access.run(b.store.schedule.flush, b.clock.now_ms())
        key = min(
            (one.key for one in b.store.schedule.segments.values() if one.key.span is Span.HOUR),
            key=lambda key: key.start,
        )
        trap = Trap(
            action=Action.EIO,
            kinds=frozenset({"open_read"}),
            when=lambda _kind, path, _label: path == key.path,
        )
        b.disk.arm(*[trap] * 10_000)
        deadline_ms = b.store.schedule.splits.deadline_ms(key)
        await trio.sleep((deadline_ms - 60_000 - b.clock.now_ms()) / 1000)
        assert b.entered == {4: 1}
        assert 55 < len(b.disk.fired) < 61
        assert not damages
        await trio.sleep(120)
        assert [damage.path for damage in damages] == [key.path]
        assert b.store.schedule.quarantined == [key.path]
        await trio.sleep(3 * 3600)
        assert b.entered == {3: 1, 4: 1}


async def test_what_a_clock_ahead_threw_out_for_its_names_is_loaded_when_it_is_taken_back() -> None:
    limits = StorageLimits(subjects_bytes_max=1_024, load_step_rows=1)
    async with bench(limits=limits, loops=WITH_NAMES) as b:
        await trio.sleep(1)  # The clock is known before it leaps.
        due_ms = b.clock.now_ms() + 100_000
        b.submit_names([b"%0200d" % number for number in range(5)], due_ms)
        b.clock.step(24 * HOUR_MS)
        await trio.sleep(5)
        assert b.loader.evicted
        b.clock.step(-24 * HOUR_MS)
        await trio.sleep(95)
        with trio.fail_after(5):
            while b.names:
                await trio.sleep(0.05)
                b.pop_named()
