"""The one writer of the message_log: what waits is committed with one write and one fsync.

    messages of an Ingest     an intake, taken when its commit begins     needs room and free disk
    DEAD, MOVE                items as well                               likewise
    FACTS, CANCEL, FLOOR      no items                                    never refused for space
                                                                          that items would take
    copies for names          items again (receiving/copies.py)            likewise

Facts linger for a commit that others need, and have one of their own where none comes. What is
durable waits until it is committed (replication/core/commit_point.py). Then it goes to filing, and
whoever waits is told, in the order of the log. On a sole node both are one step.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import structlog
import trio

from delay_server.accepting.disk_budget import DiskBudget
from delay_server.clock.pace import Pacer
from delay_server.distribution import Distribution
from delay_server.filing.filer import Filer
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Executor
from replication.commit_queue import CommitQueue
from replication.core.commit_point import CommitPoint
from storage.batch.batches import LogBatch
from storage.batch.columns import RecordKind
from storage.disk.errors import StorageFullError
from storage.disk.spans import MINUTE_MS
from storage.logs.message_log import Draft, MessageLog, Written

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

MESSAGE_WORKER = "message_log"

UNCOMMITTED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes that may be durable and not committed: commits of items wait beyond it. Facts do not count:
they have a bound of their own (sending/fact_recorder.py)."""

_ITEMS_BESIDE_FACTS_MAX: Final = 4 * 1024 * 1024
"""Bytes of items beside which facts do not wait for the end of the write."""

COMMIT_BUCKETS_S: Final = (
    0.0002,
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.5,
    1,
    2,
    10,
)


class Work(Protocol):
    """What one commit takes over from one of those who wait."""

    @property
    def blob_bytes(self) -> int:
        """Bytes of all items."""

    def drafts(self) -> Sequence[Draft]:
        """Return the batches; called in the log's worker."""


@dataclass(frozen=True, slots=True)
class Records:
    """Records that are batches already, in the order in which they are written."""

    batches: Sequence[Draft]

    @property
    def blob_bytes(self) -> int:
        """Bytes of all items."""
        return sum(draft.blob_bytes for draft in self.batches)

    def drafts(self) -> Sequence[Draft]:
        """Return the batches."""
        return self.batches


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What waits to be committed; see `Committer.submit`. begins_at: by the clock of trio."""

    take: Callable[[], Work]
    on_end: Callable[[bool], None]
    on_durable: Callable[[int], None]
    has_items: bool
    begins_at: float


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a commit has taken over."""

    waiting: _Waiting
    work: Work


class Replicas(Protocol):
    """Whoever copies the log to other nodes (replication/leading.py)."""

    @property
    def follow(self) -> bool:
        """Whether anybody is there who copies it."""

    @property
    def why_not_append(self) -> str:
        """Why no items may be appended for now; empty if they may be."""

    def committing(self) -> AbstractContextManager[None]:
        """Count the block as a commit, which should not take long."""

    def written(self, written: Written, /) -> None:
        """Hear of what is written, and not durable yet."""

    def took_back(self) -> None:
        """Hear that there was no space for what was written last: it is not in the log."""

    def durable(self, end: int, batches: Sequence[LogBatch], /) -> None:
        """Hear that all below `end` is durable here, the last of it in these batches."""


class Committer:
    """Appends messages and records, and hands what is committed to filing.

    Invariant: the floor of appended batches never decreases, never exceeds the trusted minute, and
    stays below the schedule's hour mark.
    """

    def __init__(
        self,
        *,
        message_log: MessageLog,
        filer: Filer,
        executor: Executor,
        pacer: Pacer,
        floor_minute: int,
        budget: DiskBudget,
        hour_mark: Callable[[], int],
        queue: CommitQueue,
        commit_point: CommitPoint,
        on_commit: Callable[[bool], None],
        replicas: Replicas | None = None,
        note: Callable[[Sequence[LogBatch]], None] = lambda _: None,
    ) -> None:
        """`on_commit` hears of each commit, with or without success.

        And whether it had facts alone, of which nobody is told that they are durable. queue: where
        what is durable waits for its commit; replicas: who copies what is appended, if any do.
        note: takes in what has become durable, in the log's worker.
        """
        self._budget = budget
        self._message_log = message_log
        self._filer = filer
        self._hour_mark = hour_mark
        self._executor = executor
        self._pacer = pacer
        self._floor_minute = floor_minute
        self._floor_recorded_ms = 0
        self._waiting: list[_Waiting] = []
        self._more = Wakeup()
        self._commit_point = commit_point
        self._on_commit = on_commit
        self._queue = queue
        self._replicas = replicas
        self._note = note
        self.taken = 0
        """How many with items were taken over and are not durable yet."""
        self.seconds = Distribution(COMMIT_BUCKETS_S)
        """How long commits took, from the encoding to the end of the fsync."""

    def submit(
        self,
        take: Callable[[], Work],
        on_end: Callable[[bool], None],
        *,
        has_items: bool = True,
        on_durable: Callable[[int], None] = lambda _: None,
        linger_s: float = 0.0,
    ) -> None:
        """Have something committed; `on_end` hears, in the order of the log, whether it was kept.

        If it was not there was no space, and nothing of it was. `take` is asked for it when its
        commit begins, since it may grow until then. What has no items waits for nothing and passes
        the floor of free disk, as copies of what was accepted do; what has some waits for room in
        filing, and has to leave disk for what was accepted. `on_durable` hears its last record as
        soon as that is durable. What may linger so many seconds has no commit begun for its sake
        before.
        """
        begins_at = trio.current_time() + linger_s if linger_s else 0.0
        self._waiting.append(_Waiting(take, on_end, on_durable, has_items, begins_at))
        self._more.wake()

    async def commit_records(
        self,
        *drafts: Draft,
        has_items: bool | None = None,
        on_durable: Callable[[int], None] = lambda _: None,
        on_no_space: Callable[[], None] = lambda: None,
    ) -> bool:
        """Commit records that are batches, at once; False if there was no space for them.

        has_items: they need room and free disk, as messages do; None: if they carry any.
        `on_durable` hears the last as soon as it is durable, which is before it is filed;
        `on_no_space` hears that there was none even if this task was cancelled meanwhile.
        """
        ended = trio.Event()
        was_kept = False

        def end(kept: bool) -> None:  # noqa: FBT001
            nonlocal was_kept
            was_kept = kept
            if not kept:
                on_no_space()
            ended.set()

        if has_items is None:
            has_items = any(draft.blob for draft in drafts)
        self.submit(lambda: Records(drafts), end, has_items=has_items, on_durable=on_durable)
        await ended.wait()
        return was_kept

    async def append_floor(self, wanted_minute: int) -> None:
        """Record a floor that closes a covered segment; at most one a minute."""
        now_ms = self._pacer.now_ms()
        if now_ms // MINUTE_MS < wanted_minute:
            return
        if 0 <= now_ms - self._floor_recorded_ms < MINUTE_MS:
            return
        self._floor_recorded_ms = now_ms
        floor, ended = Records([Draft(kind=RecordKind.FLOOR, count=1)]), trio.Event()
        # Not until it is committed: loading goes on where no other node is there to have it.
        self.submit(
            lambda: floor,
            lambda _: ended.set(),
            has_items=False,
            on_durable=lambda _: ended.set(),
        )
        await ended.wait()

    def look_again(self) -> None:
        """Go on with what had to wait for room, or until items may be appended."""
        self._queue.look_again()
        self._more.wake()

    async def run(self) -> None:
        """Commit what waits; ends only by an error of the log or cancellation."""
        while True:
            takes_items = self._takes_items()
            ready = [one for one in self._waiting if takes_items or not one.has_items]
            if not ready:
                await self._more.sleep()
                continue
            begins_at = min(one.begins_at for one in ready)
            if begins_at > trio.current_time():
                with trio.move_on_at(begins_at):
                    await self._more.sleep()
                continue
            self._waiting = [one for one in self._waiting if one.has_items and not takes_items]
            # Records without items come first: they have to be kept where items find no space.
            light = [_Taken(one, one.take()) for one in ready if not one.has_items]
            heavy = [_Taken(one, one.take()) for one in ready if one.has_items]
            self.taken = len(heavy)
            if sum(one.work.blob_bytes for one in heavy) > _ITEMS_BESIDE_FACTS_MAX:
                await self._commit_or_refuse(light, [])
                await self._commit_or_refuse([], heavy)
            else:
                await self._commit_or_refuse(light, heavy)
            self.taken = 0

    def _takes_items(self) -> bool:
        if self._replicas is not None and self._replicas.why_not_append:
            # Whoever is the master next should not find them in the log: nobody was told of them.
            return False
        return self._filer.has_room and self._queue.items_bytes <= UNCOMMITTED_BYTES_MAX

    async def _commit_or_refuse(self, light: Sequence[_Taken], heavy: Sequence[_Taken]) -> None:
        """Make it durable; without space for all of it what has no items, and refuse the rest."""
        refused = [*light, *heavy]
        if not refused or await self._commit(refused):
            return
        if light and heavy and await self._commit(light):
            refused = [*heavy]
        for one in refused:
            one.waiting.on_end(False)  # noqa: FBT003

    async def _commit(self, taken: Sequence[_Taken]) -> bool:
        """Make all of it durable; False if there was no space, with nothing of it kept."""
        now_ms, began = self._pacer.now_ms(), trio.current_time()
        under_way = nullcontext() if self._replicas is None else self._replicas.committing()
        try:
            with under_way:
                batches, ends = await self._append(taken, now_ms)
        except StorageFullError as error:
            _log.error("no disk space for records of the message_log", error=str(error))
            self._on_commit(False)  # noqa: FBT003
            return False
        self.seconds.observe(trio.current_time() - began)
        size = self._queue.add(batches, [partial(one.waiting.on_end, True) for one in taken])  # noqa: FBT003
        self._on_commit(not size)
        for one, last in zip(taken, ends, strict=True):
            one.waiting.on_durable(last)
        end = self._message_log.next_sequence
        if self._replicas is None:
            self._commit_point.durable_to(end)
        else:
            self._replicas.durable(end, batches)
        self.hand_on()
        return True

    def hand_on(self) -> None:
        """Hand on what has become committed, in the order of the log."""
        self._queue.hand_on()
        self._more.wake()

    async def _append(
        self, work: Sequence[_Taken], now_ms: int
    ) -> tuple[list[LogBatch], list[int]]:
        """Append and fsync, in the log's worker; return the last record of each, too.

        Where others copy the log they get what is written while it is fsynced here.
        """
        floor_minute, run = self._next_floor(now_ms), self._executor.run
        if self._replicas is None or not self._replicas.follow:
            return await run(MESSAGE_WORKER, self._append_alone, work, floor_minute, now_ms)
        with trio.CancelScope(shield=True):
            # What is written has to become the end of the log, or to be taken back.
            written, ends = await run(MESSAGE_WORKER, self._write, work, floor_minute, now_ms)
            self._replicas.written(written)
            try:
                await run(MESSAGE_WORKER, self._sync, written)
            except StorageFullError:
                self._replicas.took_back()
                raise
        return list(written.batches), ends

    def _append_alone(
        self, work: Sequence[_Taken], floor_minute: int, now_ms: int
    ) -> tuple[list[LogBatch], list[int]]:
        written, ends = self._write(work, floor_minute, now_ms)
        self._sync(written)
        return list(written.batches), ends

    def _sync(self, written: Written) -> None:
        """Make durable what was written last."""
        self._message_log.sync_written()
        self._note(written.batches)

    def _write(
        self, work: Sequence[_Taken], floor_minute: int, now_ms: int
    ) -> tuple[Written, list[int]]:
        """Write batches of all of it, not yet durable; return the last record of each, too."""
        drafts: list[Draft] = []
        counts: list[int] = []
        rows = blob_bytes = 0
        for one in work:
            found = one.work.drafts()
            drafts += found
            counts.append(len(drafts))
            if one.waiting.has_items:
                rows += sum(draft.count for draft in found)
                blob_bytes += one.work.blob_bytes
        if rows:
            self._budget.require(rows, blob_bytes)
        written = self._message_log.write(drafts, floor_minute=floor_minute, append_ms=now_ms)
        lasts = [0, *(batch.header.next_sequence - 1 for batch in written.batches)]
        return written, [lasts[count] for count in counts]

    def _next_floor(self, now_ms: int) -> int:
        if self._pacer.runs():
            minute = min(now_ms // MINUTE_MS, self._hour_mark() - 1)
            self._floor_minute = max(self._floor_minute, minute)
        return self._floor_minute
