"""Commits an intake to the message_log, with one write and one fsync."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import structlog

from delay_server.accepting.disk_budget import DiskBudget
from delay_server.accepting.intake import Intake, MessageBatch
from delay_server.clock.pace import Pacer
from delay_server.filing.filer import (
    Committed,
    CommittedBatch,
    CommittedChange,
    CommittedControl,
    Filer,
)
from delay_transport.seams.runtime import Executor
from storage.batch.columns import Columns, RecordKind
from storage.disk.errors import StorageFullError
from storage.disk.spans import MINUTE_MS
from storage.logs.message_log import Append, MessageLog

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

MESSAGE_WORKER = "message_log"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamingDraft:
    """Records of one kind that name older sequences, to be appended as one batch.

    names, arrays: as storage/batch/columns.py has them for the kind; items: one for each record, or
    none.
    """

    kind: RecordKind
    count: int
    names: Sequence[bytes]
    arrays: Mapping[str, npt.NDArray[Any]]
    items: Sequence[bytes | memoryview] = ()


class Committer:
    """Appends messages and control records and hands what is durable to filing.

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
        self.commits = 0

    async def commit(self, intake: Intake) -> bool:
        """Make an intake durable; False if there was no space, with nothing of it kept."""
        await self._filer.wait_for_room()
        try:
            now_ms = self._pacer.now_ms()
            committed = await self._executor.run(
                MESSAGE_WORKER, self._append, intake, self._next_floor(now_ms), now_ms
            )
        except StorageFullError as error:
            _log.error("no disk space for messages; the messages were refused", error=str(error))
            return False
        self.commits += 1
        self._filer.submit(committed)
        return True

    def _append(self, intake: Intake, floor: int, now_ms: int) -> list[Committed]:
        """Append and fsync; runs in the log's lane."""
        self._budget.require(len(intake), intake.blob_bytes)
        batches = intake.batches()
        arrays = [_columns(batch) for batch in batches]
        appends = [
            Append(
                kind=RecordKind.MESSAGE,
                floor_minute=floor,
                names=batch.subjects,
                arrays=columns,
                blob=batch.pieces,
                count=len(batch),
            )
            for batch, columns in zip(batches, arrays, strict=True)
        ]
        headers = self._message_log.append(appends, append_ms=now_ms)
        return [
            CommittedBatch(
                base_sequence=header.base_sequence,
                floor_minute=floor,
                epoch=header.epoch,
                columns=Columns(names=batch.subjects, arrays=columns),
                blob=b"".join(batch.pieces),
                append_ms=now_ms,
            )
            for header, batch, columns in zip(headers, batches, arrays, strict=True)
        ]

    async def commit_naming(self, draft: NamingDraft) -> bool:
        """Make DEAD, MOVE or CANCEL records durable; False if there was no space for them.

        Records without items pass the floor of free disk; those with items take space as messages
        do, and have to leave as much of it.
        """
        await self._filer.wait_for_room()
        try:
            now_ms = self._pacer.now_ms()
            committed = await self._executor.run(
                MESSAGE_WORKER, self._append_naming, draft, self._next_floor(now_ms), now_ms
            )
        except StorageFullError as error:
            _log.error("no disk space for records", kind=draft.kind.name, error=str(error))
            return False
        self.commits += 1
        self._filer.submit([committed])
        return True

    def _append_naming(self, draft: NamingDraft, floor: int, now_ms: int) -> CommittedChange:
        if draft.items:
            self._budget.require(draft.count, sum(map(len, draft.items)))
        append = Append(
            kind=draft.kind,
            floor_minute=floor,
            names=draft.names,
            arrays=draft.arrays,
            blob=draft.items,
            count=draft.count,
        )
        (header,) = self._message_log.append([append], append_ms=now_ms)
        return CommittedChange(
            kind=draft.kind,
            base_sequence=header.base_sequence,
            floor_minute=floor,
            epoch=header.epoch,
            columns=Columns(names=list(draft.names), arrays=dict(draft.arrays)),
            blob=b"".join(draft.items),
            append_ms=now_ms,
        )

    def _next_floor(self, now_ms: int) -> int:
        if self._pacer.runs():
            minute = min(now_ms // MINUTE_MS, self._hour_mark() - 1)
            self._floor_minute = max(self._floor_minute, minute)
        return self._floor_minute

    async def append_floor(self, wanted_minute: int) -> None:
        """Record a floor that closes a covered segment; at most one a minute."""
        now_ms = self._pacer.now_ms()
        if now_ms // MINUTE_MS < wanted_minute:
            return
        if 0 <= now_ms - self._floor_recorded_ms < MINUTE_MS:
            return
        self._floor_recorded_ms = now_ms
        try:
            committed = await self._executor.run(
                MESSAGE_WORKER, self._append_control, self._next_floor(now_ms), now_ms
            )
        except StorageFullError as error:
            _log.error("no disk space for a floor record", error=str(error))
            return
        self._filer.submit(committed)

    def _append_control(self, floor: int, now_ms: int) -> list[Committed]:
        append = Append(
            kind=RecordKind.FLOOR, floor_minute=floor, names=[], arrays={}, blob=[], count=1
        )
        headers = self._message_log.append([append], append_ms=now_ms)
        return [
            CommittedControl(
                base_sequence=header.base_sequence, floor_minute=floor, epoch=header.epoch
            )
            for header in headers
        ]


def _columns(batch: MessageBatch) -> dict[str, npt.NDArray[Any]]:
    return {
        "due_ms": batch.due_ms,
        "id_hash": batch.id_hash,
        "size": batch.size,
        "subject": batch.subject,
    }
