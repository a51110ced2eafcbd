"""Builds the records that settle rows: CANCEL, MOVE, and the fact that one is dropped."""

from collections.abc import Sequence

import numpy as np

from storage.batch.columns import RecordKind
from storage.batch.facts import Outcome
from storage.disk.disk import Bytes
from storage.logs.message_log import Draft
from storage.readers.looking import FoundRow
from storage.schedule.dead_index import DeadRow

SettledRow = FoundRow | DeadRow


def cancel_of(rows: Sequence[SettledRow]) -> Draft:
    """Return the records that end rows without a delivery."""
    return Draft(
        kind=RecordKind.CANCEL,
        count=len(rows),
        arrays={
            "old_sequence": np.array([row.sequence for row in rows], np.int64),
            "old_minute": np.array([row.minute for row in rows], np.uint32),
        },
    )


def dropped_of(rows: Sequence[SettledRow], at_ms: int) -> Draft:
    """Return the records that end rows as dropped at a time, wall ms."""
    settled = cancel_of(rows).arrays
    return Draft(
        kind=RecordKind.FACTS,
        count=len(rows),
        names=[b""],
        arrays={
            "sequence": settled["old_sequence"],
            "minute": settled["old_minute"],
            "at_ms": np.full(len(rows), at_ms, np.int64),
            "target": np.zeros(len(rows), np.uint16),
            "outcome": np.full(len(rows), Outcome.DROPPED, np.uint8),
        },
    )


def move_of(rows: Sequence[SettledRow], items: Sequence[Bytes], due_ms: Sequence[int]) -> Draft:
    """Return the records that put items in the places of rows, each with its due time."""
    subjects = [row.subject for row in rows]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(subjects))}
    return Draft(
        kind=RecordKind.MOVE,
        count=len(rows),
        names=list(numbers),
        arrays={
            **cancel_of(rows).arrays,
            "due_ms": np.array(due_ms, np.int64),
            "id_hash": np.array([row.id_hash for row in rows], np.uint64),
            "size": np.array(list(map(len, items)), np.uint32),
            "subject": np.array([numbers[name] for name in subjects], np.uint16),
        },
        blob=items,
    )
