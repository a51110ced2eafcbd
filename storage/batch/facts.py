"""Facts: what became of each message, as parallel arrays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.batch.batches import DEAD_MINUTES, BatchHeader
from storage.batch.chained_file import BatchDraft
from storage.batch.columns import LAYOUTS, Columns, RecordKind, encode_columns
from storage.disk.spans import DEAD_MINUTES_FROM


class Outcome(IntEnum):
    """What became of a message; the numbers are on disk."""

    DELIVERED = 1
    KNOWN = 2
    """The broker said that it had the message already."""
    DEAD = 3
    CANCELLED = 4
    MOVED = 5
    EXPIRED = 6
    DROPPED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class FactBlock:
    """Facts in the order in which they became known; all arrays have the same length.

    sequence: of the message; minute: its filed minute, or what stands for its dead segment; at_ms:
    when it happened, wall ms; target: index into `targets`, the block's table of names (the broker
    group, say); outcome: an Outcome; record: sequence of the record of the message_log that states
    it, 0 where that is not known: before it is appended, and of facts read from a segment's file.
    """

    sequence: npt.NDArray[np.int64]
    minute: npt.NDArray[np.uint32]
    at_ms: npt.NDArray[np.int64]
    target: npt.NDArray[np.uint16]
    outcome: npt.NDArray[np.uint8]
    record: npt.NDArray[np.int64]
    targets: Sequence[bytes]

    def __len__(self) -> int:
        """Return the number of facts."""
        return len(self.sequence)

    @property
    def of_dead(self) -> npt.NDArray[np.bool_]:
        """Which of them are about rows of dead segments."""
        told: npt.NDArray[np.bool_] = self.minute >= DEAD_MINUTES_FROM
        return told

    def take(self, rows: npt.NDArray[np.intp]) -> "FactBlock":
        """Return the facts at these positions."""
        arrays = {name: array[rows] for name, array in self.arrays.items()}
        return FactBlock(**arrays, record=self.record[rows], targets=self.targets)

    def above(self, record: int) -> "FactBlock":
        """Return the facts that records behind this one state; their records are known."""
        return self.take(np.flatnonzero(self.record > record))

    def slice(self, begin: int, end: int) -> "FactBlock":
        """Return the facts from position `begin` up to `end`."""
        return self.take(np.arange(begin, min(end, len(self))))

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The columns of a FACTS batch of these facts."""
        return {name: getattr(self, name) for name, _ in LAYOUTS[RecordKind.FACTS]}

    def split_by(self, codes: npt.NDArray[np.int64]) -> Iterator[tuple[int, "FactBlock"]]:
        """Yield (code, its facts) for every code, of which there is one a fact; order is kept."""
        order = np.argsort(codes, kind="stable")
        edges = np.flatnonzero(np.diff(codes[order])) + 1
        for rows in np.split(order, edges):
            if len(rows):
                yield int(codes[rows[0]]), self.take(rows)

    def parts(self) -> Iterator["FactBlock"]:
        """Yield the facts in blocks that fit into a batch each."""
        if len(self) <= _FACTS_PER_BATCH_MAX:
            yield self
            return
        for begin in range(0, len(self), _FACTS_PER_BATCH_MAX):
            yield self.slice(begin, begin + _FACTS_PER_BATCH_MAX)


def filed_facts_of(columns: Columns) -> FactBlock:
    """Return the facts of a batch of a segment's file."""
    return _facts_of(columns, np.zeros(len(columns.arrays["sequence"]), np.int64))


NAMING_KINDS = frozenset({RecordKind.CANCEL, RecordKind.MOVE, RecordKind.DEAD})
"""Records that name an older message; each states a fact about it."""

STATING_KINDS = NAMING_KINDS | {RecordKind.FACTS}
"""Records of the message_log that state facts."""

KINDS_OF_LOG = STATING_KINDS | {RecordKind.MESSAGE, RecordKind.EPOCH_START, RecordKind.FLOOR}
"""Records that a message_log may have."""

_OUTCOMES_OF_RECORDS = {
    RecordKind.DEAD: Outcome.DEAD,
    RecordKind.MOVE: Outcome.MOVED,
    RecordKind.CANCEL: Outcome.CANCELLED,
}


def facts_stated(header: BatchHeader, columns: Columns) -> FactBlock | None:
    """Return the facts that a batch of the message_log states, one a record; None if it has none.

    What DEAD, MOVE and CANCEL say of the messages that they name happened when they were appended.
    """
    if header.kind not in STATING_KINDS:
        return None
    records = np.arange(header.base_sequence, header.next_sequence, dtype=np.int64)
    if header.kind is RecordKind.FACTS:
        return _facts_of(columns, records)
    arrays = columns.arrays
    outcome = np.full(header.count, _OUTCOMES_OF_RECORDS[header.kind], np.uint8)
    if header.kind is RecordKind.CANCEL:
        outcome[arrays["old_minute"] >= DEAD_MINUTES_FROM] = Outcome.DROPPED
    return FactBlock(
        sequence=arrays["old_sequence"],
        minute=arrays["old_minute"],
        at_ms=np.full(header.count, header.append_ms, np.int64),
        target=np.zeros(header.count, np.uint16),
        outcome=outcome,
        record=records,
        targets=[b""],
    )


def _facts_of(columns: Columns, records: npt.NDArray[np.int64]) -> FactBlock:
    return FactBlock(**columns.arrays, record=records, targets=columns.names)


def join_facts(blocks: Sequence[FactBlock]) -> FactBlock:
    """Return one block with the facts of all, in the order given."""
    if len(blocks) == 1:
        return blocks[0]
    targets = list(dict.fromkeys(name for block in blocks for name in block.targets))
    place = {name: index for index, name in enumerate(targets)}
    parts = [
        block.arrays
        | {"target": np.array([place[name] for name in block.targets], np.uint16)[block.target]}
        for block in blocks
    ]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    record = np.concatenate([block.record for block in blocks])
    return FactBlock(**arrays, record=record, targets=targets)


_FACTS_PER_BATCH_MAX = 100_000
"""100,000 facts of 23 bytes stay below the 4 MiB of a batch."""


def fact_drafts(
    facts: FactBlock, *, first_number: int, epoch: int, append_ms: int, floor_minute: int
) -> list[BatchDraft]:
    """Return the batches of a segment's file for these facts, numbered from `first_number`."""
    drafts = []
    for part in facts.parts():
        drafts.append(
            BatchDraft(
                kind=RecordKind.FACTS,
                base_sequence=first_number,
                count=len(part),
                columns=encode_columns(RecordKind.FACTS, list(part.targets), part.arrays),
                epoch=epoch,
                floor_minute=floor_minute,
                append_ms=append_ms,
                features=DEAD_MINUTES if part.of_dead.any() else 0,
            )
        )
        first_number += len(part)
    return drafts
