"""The index of dead letters: what they are chosen by, in numpy columns in memory.

Rows of dead segments that have no fact are in it, ascending by sequence. It is read from the files
when somebody begins to look after dead letters (`ScheduleLog.read_dead`), and kept up to date by
the schedule_log, to whose lane all methods belong; the plain numbers may be read anywhere.

It is bounded: beyond `rows_max` rows, or _NAMES_BYTES_MAX bytes of names, dead letters are counted
by the schedule_log and not in it, until it is read anew.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from storage.batch.batches import Damage
from storage.batch.dead_rows import NOTE_BYTES_MAX, DeadNote, note_of_row
from storage.batch.number_set import Mask
from storage.batch.rows import Int64s, RowBlock
from storage.disk.disk import Bytes, Disk, ReadableFile
from storage.disk.spans import dead_minute
from storage.schedule.row_places import SequenceSet
from storage.schedule.segment import Segment, SegmentBatch

DEAD_ROW = np.dtype(
    [
        ("sequence", "<i8"),
        ("old_sequence", "<i8"),
        ("due_ms", "<i8"),
        ("dead_ms", "<i8"),
        ("id_hash", "<u8"),
        ("position", "<i8"),
        ("row_size", "<u4"),
        ("size", "<u4"),
        ("minute", "<u4"),
        ("old_minute", "<u4"),
        ("subject", "<u4"),
        ("reason", "<u4"),
        ("named", "?"),
    ]
)
"""One dead letter. old_sequence, old_minute: of the row before; position: of the row in its file;
row_size: its bytes, of which `size` are the item; minute: what stands for its segment; subject:
index into `DeadIndex.subjects`; reason: into `DeadIndex.reasons`; named: a record that settles it
is on its way. Of a row whose note is damaged old_sequence and old_minute are 0."""

_RAW = np.dtype((np.void, DEAD_ROW.itemsize))
_SUBJECT = 10
"""The place of `subject` among the columns."""

DeadRows = npt.NDArray[np.void]
"""An array of DEAD_ROW."""

_OF_NOTE = ("old_sequence", "old_minute", "dead_ms", "subject", "reason")
"""What is known of a row when its bytes are read."""

_NAMES_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of names of subjects and groups, _NAME_BYTES more for each of them."""
_NAME_BYTES = 150


_Name = TypeVar("_Name")


class LastRefusal(msgspec.Struct, frozen=True):
    """Of the reason of a dead letter what it is chosen by: item code and broker group."""

    code: int = -1
    group: str = ""


@dataclass(frozen=True, slots=True)
class DeadRow:
    """One dead letter, as the index has it: its subject, and the first columns of DEAD_ROW."""

    subject: bytes
    sequence: int
    old_sequence: int
    due_ms: int
    dead_ms: int
    id_hash: int
    position: int
    row_size: int
    size: int
    minute: int
    old_minute: int


@dataclass(slots=True)
class DeadIndex:
    """Dead letters in memory.

    Invariants: `rows` ascend by sequence; `named` counts those of them that are named.
    """

    rows_max: int = 0
    is_read: bool = False
    """Whether it was read; until then it has no rows, and takes none."""
    rows: DeadRows = field(default_factory=lambda: np.empty(0, DEAD_ROW))
    subjects: dict[bytes, int] = field(default_factory=dict)
    reasons: dict[LastRefusal, int] = field(default_factory=dict)
    named: int = 0
    oldest_ms: int | None = None
    """When the oldest was given up, wall ms; None if there is none."""
    _names_bytes: int = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    @property
    def is_full(self) -> bool:
        """Whether it takes no more rows."""
        return self._room <= 0 or self._names_bytes >= _NAMES_BYTES_MAX

    @property
    def _room(self) -> int:
        return max(self.rows_max - len(self.rows), 0)

    def add_written(self, block: RowBlock, positions: Int64s, names: list[bytes]) -> None:
        """Take rows of one dead segment that were just written; names: by number of subject."""
        if not self.is_read:
            return
        rows = _rows_of(block.sequence, block.due_ms, block.id_hash, block.size, positions)
        rows["minute"] = block.minute
        ends = np.cumsum(block.size, dtype=np.int64)
        tails = (
            block.blob[end - min(size, NOTE_BYTES_MAX) : end]
            for end, size in zip(ends.tolist(), block.size.tolist(), strict=True)
        )
        subjects = [names[number] for number in block.subject.tolist()]
        self._take([self._made(rows, subjects, tails, self._room)])

    def read(
        self, disk: Disk, segment: Segment, settled: Int64s, on_damage: Callable[[Damage], None]
    ) -> None:
        """Take the rows of a segment that are not among the settled ones."""
        if not segment.file.length:
            return
        known = SequenceSet([settled])
        path = segment.file.path
        try:
            file = disk.open_read(path)
        except OSError as error:
            on_damage(Damage(path, 0, segment.file.length, f"cannot be read: {error}"))
            return
        parts: list[DeadRows] = []
        room = self._room
        try:
            for batch in segment.read_rows(disk, segment.file.length):
                if isinstance(batch, Damage):
                    on_damage(batch)
                elif (batch.sequence[1:] <= batch.sequence[:-1]).any():
                    reason = "its rows do not ascend"
                    on_damage(Damage(path, batch.position, batch.header.size, reason))
                else:
                    wanted = ~known.contains(batch.sequence)
                    parts.append(self._read_batch(batch, wanted, file, room))
                    room -= len(parts[-1])
        except OSError as error:
            on_damage(Damage(path, 0, segment.file.length, f"cannot be read: {error}"))
        finally:
            file.close()
        self._take(parts)

    def _read_batch(
        self, batch: SegmentBatch, wanted: Mask, file: ReadableFile, room: int
    ) -> DeadRows:
        arrays, names = batch.columns.arrays, batch.columns.names
        rows = _rows_of(
            arrays["sequence"][wanted],
            arrays["due_ms"][wanted],
            arrays["id_hash"][wanted],
            arrays["size"][wanted],
            batch.item_positions()[wanted],
        )
        rows["minute"] = dead_minute(batch.segment.key)
        # As the note says it; this is for one that is damaged.
        rows["dead_ms"] = batch.header.append_ms
        sizes = np.minimum(rows["row_size"], NOTE_BYTES_MAX)
        begins = rows["position"] + rows["row_size"] - sizes
        places = zip(begins.tolist(), sizes.tolist(), strict=True)
        return self._made(
            rows,
            [names[number] for number in arrays["subject"][wanted].tolist()],
            (file.read_at(position, size) for position, size in places),
            room,
        )

    def _made(
        self, rows: DeadRows, subjects: list[bytes], tails: Iterable[Bytes], room: int
    ) -> DeadRows:
        """Return rows of these subjects, made whole by the ends of their bytes, as far as they fit.

        room: how many there may be.
        """
        found: list[tuple[int, ...]] = []
        appended_ms = rows["dead_ms"][:room].tolist()
        for subject, dead_ms, tail in zip(subjects, appended_ms, tails, strict=False):
            if self._names_bytes >= _NAMES_BYTES_MAX:
                break
            behind_item, note = note_of_row(bytes(tail)) or (0, None)
            if note is None:
                note = DeadNote(old_sequence=0, old_minute=0, dead_ms=dead_ms, reason="")
            last = _last_refusal(note.reason)
            of_subject = self._number(self.subjects, subject, len(subject))
            of_reason = self._number(self.reasons, last, len(last.group))
            told = (note.old_sequence, note.old_minute, note.dead_ms)
            found.append((behind_item, *told, of_subject, of_reason))
        rows = rows[: len(found)]
        if found:
            behind_items, *columns = zip(*found, strict=True)
            rows["size"] -= np.array(behind_items, np.uint32)
            for name, values in zip(_OF_NOTE, columns, strict=True):
                rows[name] = values
        return rows

    def _take(self, parts: list[DeadRows]) -> None:
        """Take rows that were made."""
        # Field by field it would take several times as long.
        joined = np.concatenate([part.view(_RAW) for part in (self.rows, *parts)])
        rows = joined.view(DEAD_ROW)
        if (rows["sequence"][1:] < rows["sequence"][:-1]).any():
            rows = rows[np.argsort(rows["sequence"], kind="stable")]
        self._set(rows)

    def _number(self, numbers: dict[_Name, int], name: _Name, size: int) -> int:
        if name not in numbers:
            self._names_bytes += size + _NAME_BYTES
        return numbers.setdefault(name, len(numbers))

    def _set(self, rows: DeadRows) -> None:
        self.rows = rows
        self.named = int(np.count_nonzero(rows["named"]))
        self.oldest_ms = int(rows["dead_ms"].min()) if len(rows) else None

    def forget(self, sequences: Int64s) -> None:
        """Let go of rows that have a fact; there may be others among them."""
        gone = self._places(sequences)
        if len(gone):
            self._set(np.delete(self.rows, gone))

    def name(self, sequences: Int64s, *, named: bool) -> None:
        """Note that a record which settles these is on its way, or that it was not kept."""
        self.rows["named"][self._places(sequences)] = named
        self._set(self.rows)

    def _places(self, sequences: Int64s) -> npt.NDArray[np.intp]:
        """Return where those of these are that are here."""
        if not len(self.rows):
            return np.empty(0, np.intp)
        here = self.rows["sequence"]
        places = np.minimum(np.searchsorted(here, sequences), len(here) - 1)
        return np.unique(places[here[places] == sequences])

    def chosen(self, mask: Mask, rows_max: int) -> list[DeadRow]:
        """Return the first rows of a mask."""
        subjects = list(self.subjects)
        # Behind the subject come columns that only the index knows.
        return [
            DeadRow(subjects[row[_SUBJECT]], *row[:_SUBJECT])
            for row in self.rows[np.flatnonzero(mask)[:rows_max]].tolist()
        ]


def _rows_of(
    sequence: Int64s,
    due_ms: Int64s,
    id_hash: npt.NDArray[np.uint64],
    size: npt.NDArray[np.uint32],
    position: Int64s,
) -> DeadRows:
    """Return rows with these columns, and zeros in the others."""
    rows = np.zeros(len(sequence), DEAD_ROW)
    rows["sequence"], rows["due_ms"], rows["id_hash"] = sequence, due_ms, id_hash
    rows["row_size"], rows["size"], rows["position"] = size, size, position
    return rows


def _last_refusal(reason: str) -> LastRefusal:
    try:
        return _LAST.decode(reason)
    except (msgspec.DecodeError, RecursionError):
        return LastRefusal()


_LAST = msgspec.json.Decoder(LastRefusal)
