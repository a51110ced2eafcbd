"""What benchmarks that read logs write into them, by storage's own code."""

import numpy as np
import numpy.typing as npt

from storage.columns import Array, RecordKind
from storage.entries import SubjectTable
from storage.facts import FactBlock
from storage.message_log import Append, MessageLog
from storage.rows import RowBlock


def append_messages(
    log: MessageLog, block: RowBlock, table: SubjectTable, *, floor_minute: int
) -> None:
    """Append messages as one batch; the sequences of the block are not looked at."""
    names, subject = block.names(table)
    arrays: dict[str, Array] = {
        "due_ms": block.due_ms,
        "id_hash": block.id_hash,
        "size": block.size,
        "subject": subject,
    }
    append = Append(
        kind=RecordKind.MESSAGE,
        count=len(block),
        floor_minute=floor_minute,
        names=names,
        arrays=arrays,
        blob=[block.blob],
    )
    log.append([append], append_ms=0)


def files_of(log: MessageLog) -> list[tuple[str, int, int]]:
    """Return the files of a log, with their first sequence and the one behind their last."""
    files = log.files()
    ends = [*(file.first_sequence for file in files[1:]), log.next_sequence]
    return [(file.path, file.first_sequence, end) for file, end in zip(files, ends, strict=True)]


def delivered(block: RowBlock, at_ms: npt.NDArray[np.int64]) -> FactBlock:
    """Return the facts that all of a block were delivered at these times."""
    count = len(block)
    return FactBlock(
        sequence=block.sequence,
        minute=block.minute.astype(np.uint32),
        at_ms=at_ms,
        target=np.zeros(count, np.uint16),
        outcome=np.ones(count, np.uint8),
        targets=[b"broker1"],
    )
