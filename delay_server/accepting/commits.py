"""The one writer of the message_log: what waits is committed with one write and one fsync.

    messages of an Ingest     an intake, taken when its commit begins     needs room and free disk
    DEAD, MOVE                items as well                               likewise
    CANCEL, FLOOR             no items                                    never refused for space
                                                                          that items would take

What is durable goes to filing, in the order of the log.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import structlog
import trio

from delay_server.accepting.disk_budget import DiskBudget
from delay_server.accepting.intake import Intake, MessageBatch
from delay_server.clock.pace import Pacer
from delay_server.filing.filer import Filer
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Executor
from storage.batch.batches import LogBatch
from storage.batch.columns import RecordKind
from storage.disk.errors import StorageFullError
from storage.disk.spans import MINUTE_MS
from storage.logs.message_log import Draft, MessageLog

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

MESSAGE_WORKER = "message_log"

Work = Intake | Draft


@dataclass(slots=True, eq=False)
class _Waiting:
    """Somebody who waits until something is durable."""

    take: Callable[[], Work]
    """Returns what it is, when its commit begins: until then an intake may grow."""
    has_items: bool
    done: trio.Event = field(default_factory=trio.Event)
    kept: bool = False


class Committer:
    """Appends messages and records, and hands what is durable to filing.

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
    ) -> None:
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
        self.commits = 0

    async def commit(self, take: Callable[[], Intake]) -> bool:
        """Make an intake durable; False if there was no space, with nothing of it kept.

        `take` is asked for the intake when its commit begins.
        """
        await self._filer.wait_for_room()
        return await self._until_durable(take, has_items=True)

    async def commit_records(self, draft: Draft) -> bool:
        """Make DEAD, MOVE or CANCEL records durable; False if there was no space for them.

        Records without items wait for nothing and pass the floor of free disk; those with items
        take space as messages do, and have to leave as much of it.
        """
        if draft.blob:
            await self._filer.wait_for_room()
        return await self._until_durable(lambda: draft, has_items=bool(draft.blob))

    async def append_floor(self, wanted_minute: int) -> None:
        """Record a floor that closes a covered segment; at most one a minute."""
        now_ms = self._pacer.now_ms()
        if now_ms // MINUTE_MS < wanted_minute:
            return
        if 0 <= now_ms - self._floor_recorded_ms < MINUTE_MS:
            return
        self._floor_recorded_ms = now_ms
        await self.commit_records(Draft(kind=RecordKind.FLOOR, count=1))

    async def _until_durable(self, take: Callable[[], Work], *, has_items: bool) -> bool:
        waiting = _Waiting(take, has_items)
        self._waiting.append(waiting)
        self._more.wake()
        try:
            await waiting.done.wait()
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        return waiting.kept

    async def run(self) -> None:
        """Commit what waits; ends only by an error of the log or cancellation."""
        while True:
            if not self._waiting:
                await self._more.sleep()
                continue
            waiting, self._waiting = self._waiting, []
            # Records without items come first: they have to be kept where items find no space.
            waiting.sort(key=lambda one: one.has_items)
            light = [one for one in waiting if not one.has_items]
            kept = await self._commit(waiting) or (
                0 < len(light) < len(waiting) and await self._commit(light)
            )
            for one in waiting:
                one.done.set()
            if kept:
                self.commits += 1

    async def _commit(self, waiting: Sequence[_Waiting]) -> bool:
        """Make all of it durable; False if there was no space, with nothing of it kept."""
        now_ms = self._pacer.now_ms()
        work = [one.take() for one in waiting]
        try:
            batches = await self._executor.run(
                MESSAGE_WORKER, self._append, work, self._next_floor(now_ms), now_ms
            )
        except StorageFullError as error:
            _log.error("no disk space for records of the message_log", error=str(error))
            return False
        for one in waiting:
            one.kept = True
        self._filer.submit(batches)
        return True

    def _append(self, work: Sequence[Work], floor_minute: int, now_ms: int) -> list[LogBatch]:
        """Append and fsync; runs in the log's worker."""
        drafts: list[Draft] = []
        for one in work:
            drafts += map(_draft_of, one.batches()) if isinstance(one, Intake) else [one]
        rows = sum(draft.count for draft in drafts if draft.blob)
        if rows:
            self._budget.require(rows, sum(draft.blob_bytes for draft in drafts))
        return self._message_log.append(drafts, floor_minute=floor_minute, append_ms=now_ms)

    def _next_floor(self, now_ms: int) -> int:
        if self._pacer.runs():
            minute = min(now_ms // MINUTE_MS, self._hour_mark() - 1)
            self._floor_minute = max(self._floor_minute, minute)
        return self._floor_minute


def _draft_of(batch: MessageBatch) -> Draft:
    arrays: dict[str, npt.NDArray[Any]] = {
        "due_ms": batch.due_ms,
        "id_hash": batch.id_hash,
        "size": batch.size,
        "subject": batch.subject,
    }
    return Draft(
        kind=RecordKind.MESSAGE,
        count=len(batch),
        names=batch.subjects,
        arrays=arrays,
        blob=batch.pieces,
    )
