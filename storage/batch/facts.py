"""Facts: what became of each message, as parallel arrays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from storage.batch.batches import DEAD_MINUTES
from storage.batch.chained_file import BatchDraft
from storage.batch.columns import Columns, RecordKind, encode_columns
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
    group, say); outcome: an Outcome.
    """

    sequence: npt.NDArray[np.int64]
    minute: npt.NDArray[np.uint32]
    at_ms: npt.NDArray[np.int64]
    target: npt.NDArray[np.uint16]
    outcome: npt.NDArray[np.uint8]
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
        return FactBlock(
            sequence=self.sequence[rows],
            minute=self.minute[rows],
            at_ms=self.at_ms[rows],
            target=self.target[rows],
            outcome=self.outcome[rows],
            targets=self.targets,
        )

    def slice(self, begin: int, end: int) -> "FactBlock":
        """Return the facts from position `begin` up to `end`."""
        return self.take(np.arange(begin, min(end, len(self))))

    def split_by_minute(self) -> Iterator[tuple[int, "FactBlock"]]:
        """Yield (filed minute, its facts) for every minute, each in the order known."""
        order = np.argsort(self.minute, kind="stable")
        edges = np.flatnonzero(np.diff(self.minute[order])) + 1
        for rows in np.split(order, edges):
            if len(rows):
                yield int(self.minute[rows[0]]), self.take(rows)

    def encode(self) -> bytes:
        """Return the block as the columns of a FACTS batch."""
        return encode_columns(
            RecordKind.FACTS,
            list(self.targets),
            {
                "sequence": self.sequence,
                "at_ms": self.at_ms,
                "minute": self.minute,
                "target": self.target,
                "outcome": self.outcome,
            },
        )


def facts_of_columns(columns: Columns) -> FactBlock:
    """Return the facts a FACTS batch holds."""
    arrays = columns.arrays
    return FactBlock(
        sequence=arrays["sequence"],
        minute=arrays["minute"],
        at_ms=arrays["at_ms"],
        target=arrays["target"],
        outcome=arrays["outcome"],
        targets=columns.names,
    )


def join_facts(blocks: Sequence[FactBlock]) -> FactBlock:
    """Return one block with the facts of all, in the order given."""
    if len(blocks) == 1:
        return blocks[0]
    targets = list(dict.fromkeys(name for block in blocks for name in block.targets))
    place = {name: index for index, name in enumerate(targets)}
    return FactBlock(
        sequence=np.concatenate([block.sequence for block in blocks]),
        minute=np.concatenate([block.minute for block in blocks]),
        at_ms=np.concatenate([block.at_ms for block in blocks]),
        target=np.concatenate(
            [
                np.array([place[name] for name in block.targets], np.uint16)[block.target]
                for block in blocks
            ]
        ),
        outcome=np.concatenate([block.outcome for block in blocks]),
        targets=targets,
    )


_FACTS_PER_BATCH_MAX = 100_000
"""100,000 facts of 23 bytes stay below the 4 MiB of a batch."""


def fact_drafts(
    facts: FactBlock, *, first_number: int, epoch: int, append_ms: int, floor_minute: int = 0
) -> list[BatchDraft]:
    """Return the batches that hold these facts, numbered from `first_number`."""
    drafts = []
    for begin in range(0, len(facts), _FACTS_PER_BATCH_MAX):
        part = facts
        if len(facts) > _FACTS_PER_BATCH_MAX:
            part = facts.slice(begin, begin + _FACTS_PER_BATCH_MAX)
        drafts.append(
            BatchDraft(
                kind=RecordKind.FACTS,
                base_sequence=first_number + begin,
                count=len(part),
                columns=part.encode(),
                epoch=epoch,
                floor_minute=floor_minute,
                append_ms=append_ms,
                features=DEAD_MINUTES if part.of_dead.any() else 0,
            )
        )
    return drafts
