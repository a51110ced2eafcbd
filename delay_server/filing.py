"""Behind the commit: filing by time, loading into the wheel, splitting, checkpoints.

Everything here talks to the schedule_log through one lane of the executor, so its calls happen one
at a time and in order: that is what makes a message enter the wheel exactly once (see
storage/schedule_log.py). Nothing wakes up unless there is something to do.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

import structlog
import trio

from delay_server.pace import Pacer
from delay_server.wheel import Wheel
from delay_transport import Executor, Wakeup
from storage import Columns, Entries, FactBlock, LoadJob, SplitJob, StorageFullError, Store
from storage.spans import MINUTE_MS

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SCHEDULE_LANE = "schedule_log"
CHECKPOINT_LANE = "checkpoint"
_FULL_RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FilingLimits:
    """How filing, loading and checkpoints go about their work."""

    load_ahead_ms: int = 120_000
    """How long before they are due messages are loaded into the wheel."""

    wheel_entries_max: int = 8_000_000
    """Index entries in memory (36 bytes each, 72 while sorted); loading waits beyond it."""

    load_step_rows: int = 50_000
    """Rows loaded in one step; filing goes on between steps."""

    backlog_bytes_max: int = 128 * 1024 * 1024
    """Committed bytes that wait for filing; commits wait beyond it."""

    checkpoint_interval_ms: int = 3000
    """Time between checkpoints while there is something new."""

    checkpoint_bytes: int = 256 * 1024 * 1024
    """Bytes filed after which a checkpoint does not wait for its time."""

    def __post_init__(self) -> None:
        """Refuse nonsense."""
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A MESSAGE batch that is durable in the message_log."""

    base_sequence: int
    floor_minute: int
    epoch: int
    columns: Columns
    blob: bytes
    append_ms: int


@dataclass(frozen=True, slots=True)
class CommittedControl:
    """A control record that is durable in the message_log."""

    base_sequence: int
    floor_minute: int
    epoch: int


Committed = CommittedBatch | CommittedControl


@dataclass(frozen=True, slots=True)
class _View:
    """What the loops need to know of the schedule_log, taken in its lane."""

    next_load_ms: int | None
    next_split_ms: int | None
    wants_floor: int | None


class Filing:
    """The tasks that stand between the message_log and the wheel."""

    def __init__(
        self,
        *,
        store: Store,
        wheel: Wheel,
        limits: FilingLimits,
        executor: Executor,
        pacer: Pacer,
        on_wheel_grown: Callable[[], None],
        entries_elsewhere: Callable[[], int],
        append_floor: Callable[[int], Awaitable[None]],
    ) -> None:
        self._store = store
        self._wheel = wheel
        self._limits = limits
        self._executor = executor
        self._pacer = pacer
        self._on_wheel_grown = on_wheel_grown
        self._entries_elsewhere = entries_elsewhere
        self._append_floor = append_floor
        self._backlog: deque[Committed] = deque()
        self.backlog_bytes = 0
        self._filed_bytes = 0
        self._filing = False
        self._more = Wakeup()
        self._room = trio.Event()
        self._check_load = Wakeup()
        self._check_checkpoint = Wakeup()
        self._hurry = trio.Event()
        self._checkpointing = trio.Lock()
        self._wake_load_at_ms: float = 0
        self.hour_mark = store.schedule.hour_mark
        self.checkpoints = 0

    # -- filing ------------------------------------------------------------------------------

    def submit(self, batches: list[Committed]) -> None:
        """Take over what has been committed, in order."""
        self._backlog.extend(batches)
        self.backlog_bytes += sum(
            len(batch.blob) for batch in batches if isinstance(batch, CommittedBatch)
        )
        self._more.wake()

    async def wait_for_room(self) -> None:
        """Wait until the backlog of filing is within its bound."""
        while self.backlog_bytes > self._limits.backlog_bytes_max:
            await self._next_filed()

    async def run_filing(self) -> None:
        """File what is committed."""
        while True:
            if not self._backlog and not self._store.schedule.full:
                await self._more.sleep()
                continue
            batches = list(self._backlog)
            self._backlog.clear()
            self._filing = True
            entries, next_ms, full = await self._run(self._file, batches)
            self._filing = False
            size = sum(len(batch.blob) for batch in batches if isinstance(batch, CommittedBatch))
            self.backlog_bytes -= size
            self._filed_bytes += size
            self._room.set()
            self._take(entries)
            if next_ms is not None and next_ms - self._limits.load_ahead_ms < self._wake_load_at_ms:
                self._check_load.wake()
            if self._filed_bytes >= self._limits.checkpoint_bytes:
                self._hurry.set()
            self._check_checkpoint.wake()
            if full:
                _log.error("no space to file messages; they wait in memory and in the message_log")
                await trio.sleep(_FULL_RETRY_S)

    def _file(self, batches: list[Committed]) -> tuple[list[Entries], int | None, bool]:
        schedule, now_ms = self._store.schedule, self._pacer.now_ms()
        found = []
        for batch in batches:
            if isinstance(batch, CommittedBatch):
                entries = schedule.file(
                    base_sequence=batch.base_sequence,
                    floor_minute=batch.floor_minute,
                    epoch=batch.epoch,
                    columns=batch.columns,
                    blob=batch.blob,
                    append_ms=batch.append_ms,
                )
                if len(entries):
                    found.append(entries)
            else:
                schedule.file_control(
                    sequence=batch.base_sequence,
                    floor_minute=batch.floor_minute,
                    epoch=batch.epoch,
                    now_ms=now_ms,
                )
        if schedule.full:
            # Rows of loaded minutes found no space before; they are tried again.
            found.append(schedule.flush_near(now_ms))
        if schedule.pile_is_full:
            schedule.flush(now_ms)
        return found, schedule.pile_earliest_ms, schedule.full

    def _take(self, entries: list[Entries]) -> None:
        if entries:
            for part in entries:
                self._wheel.add(part)
            self._on_wheel_grown()

    async def note_facts(self, facts: FactBlock, last_number: int) -> None:
        """Cross off what the facts, durable by now, tell of."""
        await self._run(self._store.note_facts, facts, last_number)
        self._check_checkpoint.wake()
        self._check_load.wake()

    # -- loading and splitting ---------------------------------------------------------------

    async def run_loading(self) -> None:
        """Split coarse segments and load near ones, each in good time."""
        while True:
            view = await self._advance()
            now_ms = self._pacer.now_ms()
            self._wake_load_at_ms = self._next_wake(view, now_ms)
            with trio.move_on_after(max(self._wake_load_at_ms - now_ms, 1) / 1000):
                await self._check_load.sleep()

    def _next_wake(self, view: _View, now_ms: int) -> float:
        times: list[float] = [now_ms + self._pacer.sleep_ms_max]
        if view.next_load_ms is not None:
            at = view.next_load_ms - self._limits.load_ahead_ms
            room = self._room_in_wheel() > 0
            times.append(max(at, now_ms + (50 if room else 1000)))
        if view.next_split_ms is not None:
            times.append(max(view.next_split_ms, now_ms + 1000))
        if view.wants_floor is not None:
            times.append(max(view.wants_floor * MINUTE_MS, now_ms + 1000))
        return min(times)

    async def _advance(self) -> _View:
        """Do all splits and loads that are due now."""
        may_split = True
        while self._pacer.runs():
            found = await self._run(self._next_work, may_split)
            self.hour_mark = self._store.schedule.hour_mark
            if isinstance(found, SplitJob):
                may_split = await self._split(found)
            elif isinstance(found, LoadJob):
                await self._load(found)
            else:
                if found.wants_floor is not None and self._pacer.runs():
                    await self._append_floor(found.wants_floor)
                return found
        return await self._run(self._view)

    def _next_work(self, may_split: bool) -> SplitJob | LoadJob | _View:  # noqa: FBT001
        """Begin the next split or load that is due; if none is, look around.

        One call, since nearly always there is nothing to do.
        """
        job: SplitJob | LoadJob | None = None
        if may_split:
            job = self._store.schedule.begin_split(self._pacer.now_ms())
        if job is None:
            job = self._begin_load(self._load_until_ms())
        return self._view() if job is None else job

    async def _split(self, job: SplitJob) -> bool:
        """Split a segment; False if there was no space: loading goes on, the rest comes later."""
        try:
            while not await self._run(job.step, self._pacer.now_ms()):
                pass
        except StorageFullError as error:
            _log.error("no space to split a segment", segment=job.key.name, error=str(error))
            return False
        _log.info("segment split", segment=job.key.name)
        return True

    def _load_until_ms(self) -> int:
        """Return how far to load: to the end of a minute, since the time itself never stands still.

        So each segment is read once, and between two minutes there is nothing to do.
        """
        ahead_ms = self._pacer.now_ms() + self._limits.load_ahead_ms
        return (ahead_ms // MINUTE_MS + 1) * MINUTE_MS

    def _begin_load(self, until_ms: int) -> LoadJob | None:
        return self._store.schedule.begin_load(
            until_ms, rows_max=self._room_in_wheel(), now_ms=self._pacer.now_ms()
        )

    def _room_in_wheel(self) -> int:
        held = len(self._wheel) + self._entries_elsewhere()
        return self._limits.wheel_entries_max - held

    async def _load(self, job: LoadJob) -> None:
        done = False
        while not done:
            entries, done = await self._run(job.step, self._limits.load_step_rows)
            self._take([entries] if len(entries) else [])

    def _view(self) -> _View:
        schedule = self._store.schedule
        return _View(
            next_load_ms=schedule.next_load_ms(),
            next_split_ms=schedule.next_split_ms(),
            wants_floor=schedule.wants_floor(),
        )

    # -- checkpoints -------------------------------------------------------------------------

    async def run_checkpoints(self) -> None:
        """Write a checkpoint every few seconds while there is something new."""
        while True:
            if not self._store.needs_checkpoint(self._pacer.now_ms()):
                await self._check_checkpoint.sleep()
                continue
            with trio.move_on_after(self._limits.checkpoint_interval_ms / 1000):
                await self._hurry.wait()
            await self.checkpoint()

    async def checkpoint(self) -> None:
        """Write a checkpoint now."""
        async with self._checkpointing:
            self._hurry = trio.Event()
            self._filed_bytes = 0
            now_ms = self._pacer.now_ms()
            store = self._store
            work = await self._run(store.prepare_checkpoint, now_ms)
            try:
                await self._executor.run(CHECKPOINT_LANE, work.write)
            except StorageFullError as error:
                await self._run(store.abandon_checkpoint, work)
                _log.error("no space for a checkpoint", error=str(error))
                await trio.sleep(_FULL_RETRY_S)
                return
            await self._run(store.finish_checkpoint, work, now_ms)
            self.checkpoints += 1
            if work.seals:
                _log.info("segments sealed", count=len(work.seals))

    async def drain(self) -> None:
        """Wait until everything submitted is filed."""
        while self._backlog or self._filing:
            await self._next_filed()

    async def _next_filed(self) -> None:
        """Wait until something more is filed; several may wait."""
        if self._room.is_set():
            self._room = trio.Event()
        await self._room.wait()

    async def _run(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        return await self._executor.run(SCHEDULE_LANE, fn, *args)
