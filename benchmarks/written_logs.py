"""Logs to be reconciled, written by storage's own code."""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import numpy as np
import numpy.typing as npt

from storage.batch.columns import Array, RecordKind
from storage.batch.entries import SubjectTable
from storage.batch.facts import FactBlock
from storage.batch.rows import RowBlock
from storage.disk.spans import MINUTE_MS
from storage.logs.message_log import Draft, MessageLog
from storage.readers.manifest import Manifest, MessageLogFile, SealedSegment
from storage.schedule.segment import Segment
from tests.storage.qmq_items import qmq_item

LOG_UUID = UUID("6a0f3c52-9d1e-4b7a-8c35-2f1e0d9c8b7a")
_SUBJECTS = tuple(b"some.service.subject.%d" % number for number in range(20))
_ITEM = qmq_item(0, _SUBJECTS[0], b"260101.120000.10.0.0.1.4711.1", bytes(100))
_UNREAD = "0" * 32
"""Instead of a digest: nobody who reads logs by their manifest makes it anew."""


def append_messages(log: MessageLog, block: RowBlock, table: SubjectTable) -> None:
    """Append messages as one batch; the sequences of the block are not looked at."""
    names, subject = block.names(table)
    arrays: dict[str, Array] = {
        "due_ms": block.due_ms,
        "id_hash": block.id_hash,
        "size": block.size,
        "subject": subject,
    }
    draft = Draft(
        kind=RecordKind.MESSAGE,
        count=len(block),
        names=names,
        arrays=arrays,
        blob=[block.blob],
    )
    log.append([draft], floor_minute=0, append_ms=0)


def files_of(log: MessageLog) -> list[tuple[str, int, int]]:
    """Return the files of a log, with their first sequence and the one behind their last."""
    files = log.files()
    ends = [*(file.first_sequence for file in files[1:]), log.next_sequence]
    return [(file.path, file.first_sequence, end) for file, end in zip(files, ends, strict=True)]


def delivered(block: RowBlock, at_ms: npt.NDArray[np.int64]) -> FactBlock:
    """Return the facts that all of a block were delivered at these times, to be filed at once."""
    count = len(block)
    return FactBlock(
        sequence=block.sequence,
        minute=block.minute.astype(np.uint32),
        at_ms=at_ms,
        target=np.zeros(count, np.uint16),
        outcome=np.ones(count, np.uint8),
        record=np.zeros(count, np.int64),
        targets=[b"broker1"],
    )


def messages_of(
    sequence: np.ndarray[tuple[int], np.dtype[np.int64]],
    minute: int | np.ndarray[tuple[int], np.dtype[np.int64]],
    table: SubjectTable,
) -> RowBlock:
    """Return rows with items alike, which nobody reads. minute: the one in which each is due."""
    count = len(sequence)
    due_ms = minute * MINUTE_MS + sequence % MINUTE_MS
    numbers = table.numbers(list(_SUBJECTS))
    return RowBlock(
        sequence=sequence,
        due_ms=due_ms,
        id_hash=sequence.astype(np.uint64),
        size=np.full(count, len(_ITEM), np.uint32),
        subject=numbers[sequence % len(_SUBJECTS)],
        origin=np.zeros(count, np.uint8),
        minute=due_ms // MINUTE_MS,
        blob=_ITEM * count,
    )


def seal_of(segment: Segment) -> SealedSegment:
    """Return the seal of a segment of minutes in which all was delivered once."""
    return SealedSegment(
        file=segment.key.path,
        facts_file=segment.key.facts_path,
        start_minute=segment.key.start,
        span="minute",
        length=segment.file.length,
        facts_length=segment.facts_file.length,
        rows=segment.rows,
        distinct=segment.rows,
        last_sequence=segment.last_sequence,
        digest=_UNREAD,
        facts_digest=_UNREAD,
        outcomes={"delivered": segment.rows},
        sealed_ms=0,
        deleted=False,
    )


def manifest_of(
    where: Path,
    *,
    made_ms: int,
    sealed: Sequence[SealedSegment],
    log_files: Sequence[tuple[str, int, int]],
    log_next: int,
) -> Manifest:
    """Return the manifest of logs that are filed and sealed. log_files: as `files_of` tells."""
    return Manifest(
        made_ms=made_ms,
        cluster="c",
        group="g",
        node_id="n",
        log_uuid=str(LOG_UUID),
        storage_uuid="s",
        written_ms=0,
        sequence=log_next - 1,
        first_sequence=log_files[0][1] if log_files else log_next,
        floor_minute=0,
        hour_mark=0,
        day_mark=0,
        log_next_sequence=log_next,
        durable_next_sequence=log_next,
        deleted_from_minute=0,
        segments=(),
        dead_segments=(),
        sealed=tuple(sealed),
        dead_sealed=(),
        message_log=tuple(
            MessageLogFile(
                file=file,
                first_sequence=first,
                next_sequence=end,
                length=(where / file).stat().st_size,
            )
            for file, first, end in log_files
        ),
        retired=(),
        quarantined=(),
        faults=(),
    )
