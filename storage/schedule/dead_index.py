"""The index of dead letters: what they are chosen by, in memory.

It has the rows of dead segments that have no fact. The schedule_log keeps it up to date, in its
lane; a master reads it from the files when it begins (`ScheduleLog.read_dead`).
"""

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from storage.batch.batches import Damage
from storage.batch.dead_rows import NOTE_BYTES_MAX, DeadNote, note_of_row
from storage.batch.rows import Int64s, RowBlock
from storage.disk.disk import Bytes, Disk, ReadableFile
from storage.disk.spans import dead_minute
from storage.schedule.row_places import SequenceSet
from storage.schedule.segment import Segment, SegmentBatch

ROWS_MAX: Final = 20_000
"""Twice as many as a server lets there be. There are more only after damage to facts; these are
counted, and found once the index is read anew."""
_GROUP_LETTERS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRow:
    """One dead letter.

    minute: what stands for its segment; position: of the row in its file; row_size: its bytes, of
    which `size` are the item; old_sequence: of the row before; dead_ms: when it was given up, wall
    ms; group: the one that refused it last. Where the note behind the item is damaged, old_sequence
    is 0 and group is empty.
    """

    sequence: int
    due_ms: int
    id_hash: int
    minute: int
    position: int
    row_size: int
    size: int
    subject: bytes
    old_sequence: int
    dead_ms: int
    group: str


class _LastRefusal(msgspec.Struct, frozen=True):
    """What the index has of the reason of a dead letter."""

    group: str = ""


class DeadIndex:
    """Dead letters in memory."""

    def __init__(self) -> None:
        self.rows: dict[int, DeadRow] = {}
        """By sequence, at most ROWS_MAX."""
        self.leaving: set[int] = set()
        """Sequences of those that a record on its way settles."""

    def add_written(self, block: RowBlock, positions: Int64s, names: list[bytes]) -> None:
        """Take rows of one dead segment that were just written; names: by number of subject."""
        ends = np.cumsum(block.size, dtype=np.int64)
        begins = np.maximum(ends - NOTE_BYTES_MAX, ends - block.size)
        self._add(
            (block.sequence, block.due_ms, block.id_hash, block.minute, positions, block.size),
            (names[number] for number in block.subject.tolist()),
            map(block.blob.__getitem__, map(slice, begins.tolist(), ends.tolist())),
            dead_ms=0,
        )

    def read(
        self, disk: Disk, segment: Segment, settled: Int64s, on_damage: Callable[[Damage], None]
    ) -> None:
        """Take the rows of a segment that are not among the settled ones."""
        if not segment.file.length:
            return
        known, path = SequenceSet([settled]), segment.file.path
        try:
            with closing(disk.open_read(path)) as file:
                for batch in segment.read_rows(disk, segment.file.length):
                    if isinstance(batch, Damage):
                        on_damage(batch)
                    elif (batch.sequence[1:] <= batch.sequence[:-1]).any():
                        reason = "its rows do not ascend"
                        on_damage(Damage(path, batch.position, batch.header.size, reason))
                    else:
                        self._read_batch(batch, ~known.contains(batch.sequence), file)
        except OSError as error:
            on_damage(Damage(path, 0, segment.file.length, f"cannot be read: {error}"))

    def _read_batch(
        self, batch: SegmentBatch, wanted: npt.NDArray[np.bool_], file: ReadableFile
    ) -> None:
        arrays, names = batch.columns.arrays, batch.columns.names
        position, size = batch.item_positions()[wanted], arrays["size"][wanted]
        minute = np.full(len(size), dead_minute(batch.segment.key), np.int64)
        tails = np.minimum(size, NOTE_BYTES_MAX)
        plain = [arrays[name][wanted] for name in ("sequence", "due_ms", "id_hash")]
        self._add(
            (*plain, minute, position, size),
            (names[number] for number in arrays["subject"][wanted].tolist()),
            map(file.read_at, (position + size - tails).tolist(), tails.tolist()),
            dead_ms=batch.header.append_ms,
        )

    def _add(
        self,
        plain: tuple[npt.NDArray[np.integer], ...],
        subjects: Iterable[bytes],
        tails: Iterable[Bytes],
        *,
        dead_ms: int,
    ) -> None:
        """Take rows: the first six fields of DeadRow, and the ends of their bytes.

        dead_ms: of those whose note is damaged.
        """
        columns = zip(*(column.tolist() for column in plain), strict=True)
        for (sequence, due_ms, id_hash, minute, position, size), subject, tail in zip(
            columns, subjects, tails, strict=True
        ):
            if len(self.rows) >= ROWS_MAX:
                return
            behind, note = note_of_row(bytes(tail)) or (0, _NO_NOTE)
            self.rows[sequence] = DeadRow(
                sequence=sequence,
                due_ms=due_ms,
                id_hash=id_hash,
                minute=minute,
                position=position,
                row_size=size,
                size=size - behind,
                subject=subject,
                old_sequence=note.old_sequence,
                dead_ms=note.dead_ms or dead_ms,
                group=_last_group(note.reason),
            )

    def forget(self, sequences: Int64s) -> None:
        """Let go of rows that have a fact; there may be others among them."""
        for sequence in sequences.tolist():
            self.rows.pop(sequence, None)
            self.leaving.discard(sequence)


_NO_NOTE: Final = DeadNote(old_sequence=0, old_minute=0, dead_ms=0, reason="")


def _last_group(reason: str) -> str:
    try:
        return _LAST.decode(reason).group[:_GROUP_LETTERS_MAX]
    except (msgspec.DecodeError, RecursionError):
        return ""


_LAST = msgspec.json.Decoder(_LastRefusal)
