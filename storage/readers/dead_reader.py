"""Reads dead segments: pages of dead letters, some of them by sequence, and their items.

Works on a look at what there is (`DeadExtent`, taken in the lane of the schedule_log) and on the
files, which only grow; so it may run beside everything else. A search goes forward batch by batch
in steps, each of them bounded, and can be taken up again later from the `Place` where it stopped.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import numpy.typing as npt

from storage.batch.batches import (
    BatchHeader,
    Codec,
    Damage,
    View,
    check_columns,
    file_seed,
    walk_batches,
)
from storage.batch.columns import Columns, RecordKind
from storage.batch.facts import facts_of_columns
from storage.batch.file_header import FILE_HEADER_SIZE, FileHeader, LogKind
from storage.batch.item_formats import qmq_item_fault
from storage.batch.rows import Int64s
from storage.batch.walk import read_blob, walk_file
from storage.disk.disk import Disk
from storage.disk.errors import (
    DamagedError,
    DataDirectoryError,
    ReadFailedError,
    UnsupportedFormatError,
    may_pass,
)
from storage.disk.read_ahead import ReadAhead
from storage.disk.spans import SegmentKey, Span
from storage.schedule.dead_log import DeadExtent
from storage.schedule.loading import SequenceSet

_PIECE = 1024 * 1024
"""Bytes read ahead: most of a batch is its blob, which is hopped over."""
_FOREIGN = (DataDirectoryError, UnsupportedFormatError)
"""What a first sector raises that is one of another log, or of a version that is not this one."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a search stands: behind the row `sequence` of the dead segment that begins at `start`.

    position: of the batch of that row in the file, a hint from which to read on.
    """

    start: int = 0
    sequence: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class DeadRow:
    """One dead letter.

    sequence: its own; old_sequence, old_minute: of the row that it was before; dead_ms: when it was
    given up; key: its segment; position, header: of its batch, and offset: of its item in the blob;
    place: where a search goes on behind this row.
    """

    sequence: int
    old_sequence: int
    old_minute: int
    due_ms: int
    dead_ms: int
    id_hash: int
    size: int
    subject: bytes
    reason: bytes
    is_pending: bool
    """Whether it was neither requeued nor dropped."""
    key: SegmentKey
    position: int
    header: BatchHeader
    offset: int
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFilter:
    """Which dead letters are looked for; None: any. Bounds of times are wall ms, both included."""

    sequences: Int64s | None = None
    """Ascending; so is the next."""
    old_sequences: Int64s | None = None
    """Of the rows that they were before."""
    subject: Callable[[bytes], bool] | None = None
    reason: Callable[[bytes], bool] | None = None
    id_hash: int | None = None
    due_from_ms: int | None = None
    due_until_ms: int | None = None
    dead_from_ms: int | None = None
    dead_until_ms: int | None = None
    settled: bool = False
    """Whether those count too that were requeued or dropped, as long as their segment is open."""

    def mask(self, columns: Columns) -> npt.NDArray[np.bool_]:
        """Say which rows of a batch are wanted, whatever became of them."""
        arrays = columns.arrays
        mask = np.ones(len(arrays["sequence"]), np.bool_)
        for numbers, name in ((self.sequences, "sequence"), (self.old_sequences, "old_sequence")):
            if numbers is not None:
                mask &= np.isin(arrays[name], numbers)
        if self.id_hash is not None:
            mask &= arrays["id_hash"] == np.uint64(self.id_hash)
        for bound, name, is_upper in (
            (self.due_from_ms, "due_ms", False),
            (self.due_until_ms, "due_ms", True),
            (self.dead_from_ms, "dead_ms", False),
            (self.dead_until_ms, "dead_ms", True),
        ):
            if bound is not None:
                mask &= arrays[name] <= bound if is_upper else arrays[name] >= bound
        for wanted, name in ((self.subject, "subject"), (self.reason, "reason")):
            if wanted is not None and mask.any():
                present = np.unique(arrays[name][mask])
                fits = [number for number in present.tolist() if wanted(columns.names[number])]
                mask &= np.isin(arrays[name], fits)
        return mask


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch of a dead segment.

    hint: its position where the batches up to it are in order, else 0: what follows it by sequence
    may lie before it.
    """

    key: SegmentKey
    position: int
    hint: int
    header: BatchHeader
    columns: Columns

    def rows(self, mask: npt.NDArray[np.bool_], is_settled: npt.NDArray[np.bool_]) -> list[DeadRow]:
        """Return the rows of a mask."""
        arrays, names = self.columns.arrays, self.columns.names
        begins = np.cumsum(arrays["size"], dtype=np.int64) - arrays["size"]
        return [
            DeadRow(
                sequence=int(arrays["sequence"][row]),
                old_sequence=int(arrays["old_sequence"][row]),
                old_minute=int(arrays["old_minute"][row]),
                due_ms=int(arrays["due_ms"][row]),
                dead_ms=int(arrays["dead_ms"][row]),
                id_hash=int(arrays["id_hash"][row]),
                size=int(arrays["size"][row]),
                subject=names[arrays["subject"][row]],
                reason=names[arrays["reason"][row]],
                is_pending=not is_settled[row],
                key=self.key,
                position=self.position,
                header=self.header,
                offset=int(begins[row]),
                place=Place(self.key.start, int(arrays["sequence"][row]), self.hint),
            )
            for row in np.flatnonzero(mask).tolist()
        ]


_Found = tuple[int, Place, list[DeadRow]]
"""Of a batch how many rows were examined, the place behind it, and those that fit."""


class DeadSearch:
    """Dead letters that fit a filter, oldest day first, and by sequence within a day."""

    def __init__(
        self,
        disk: Disk,
        log_uuid: UUID,
        extents: Sequence[DeadExtent],
        *,
        wanted: DeadFilter,
        after: Place = Place(),
        on_damage: Callable[[Damage], None],
        patient: bool = False,
    ) -> None:
        """Look behind `after` in what the extents say there is.

        With `patient` an error of the operating system is no damage: `step` raises ReadFailedError.
        Without the facts that it hides, what was settled would seem to be pending.
        """
        self._patient = patient
        self._disk = disk
        self._log_uuid = log_uuid
        self._extents = extents
        self._wanted = wanted
        self._on_damage = on_damage
        self.place = after
        """How far it has come."""
        self.is_done = False
        """Whether there is nothing more."""
        self._rows = self._search(after)
        self._spare: list[DeadRow] = []
        """Rows of the last batch that were found and not returned."""
        self._behind = after
        """The place behind that batch."""

    def step(self, found_max: int, examined_max: int) -> list[DeadRow]:
        """Return up to `found_max` further rows, having examined about `examined_max`."""
        found, self._spare = self._spare[:found_max], self._spare[found_max:]
        examined = 0
        while not self._spare and len(found) < found_max and examined < examined_max:
            batch = next(self._rows, None)
            if batch is None:
                self.is_done = True
                break
            count, self._behind, rows = batch
            examined += count
            missing = found_max - len(found)
            found += rows[:missing]
            self._spare = rows[missing:]
        self.place = found[-1].place if found and self._spare else self._behind
        return found

    def close(self) -> None:
        """Let go of the file that is being read."""
        self._rows.close()

    def _search(self, after: Place) -> Generator[_Found]:
        """Yield for each batch how much was examined, the place behind it, and what fits."""
        for extent in self._extents:
            # Not by counts: where facts are damaged, some are told twice and others are missing.
            if extent.key.start < after.start or not extent.length:
                continue
            begin = after if extent.key.start == after.start else Place(extent.key.start)
            yield from self._search_segment(extent, begin)

    def _search_segment(self, extent: DeadExtent, after: Place) -> Iterator[_Found]:
        path = extent.key.path
        try:
            file = self._disk.open_read(path)
        except OSError as error:
            if self._patient and may_pass(error):
                raise ReadFailedError(path=path, error=error) from error
            self._on_damage(Damage(path, 0, extent.length, f"cannot be read: {error}"))
            return
        try:
            view = ReadAhead(
                file, end=extent.length, unreadable=[], piece=_PIECE, patient=self._patient
            ).view
            settled: SequenceSet | None = None
            seen = after.sequence
            for batch in self._batches(extent, view, after):
                sequence = batch.columns.arrays["sequence"]
                # One that was seen, as is the batch of the place to go on from, counts for nothing.
                count = batch.header.count if int(sequence[-1]) > seen else 0
                mask = self._wanted.mask(batch.columns) & (sequence > seen)
                seen = max(seen, int(sequence[-1]))
                rows: list[DeadRow] = []
                if mask.any():
                    if settled is None:
                        settled = SequenceSet(self._settled(extent))
                    is_settled = settled.contains(sequence)
                    mask &= True if self._wanted.settled else ~is_settled
                    rows = batch.rows(mask, is_settled)
                yield count, Place(extent.key.start, seen, batch.hint), rows
        finally:
            file.close()

    def _batches(self, extent: DeadExtent, view: View, after: Place) -> Iterator[_Batch]:
        """Yield the batches from a place on, by sequence.

        They come as they lie as long as each names the one before it; from the first on that does
        not, those that are whole come wherever they lie: one block in the wrong place hides none.
        """
        seen = 0
        for batch in self._batches_in_order(extent, view, after):
            if batch is None:
                yield from self._batches_of_all(extent, view, max(seen, after.sequence))
                return
            seen = int(batch.columns.arrays["sequence"][-1])
            yield batch

    def _batches_in_order(
        self, extent: DeadExtent, view: View, after: Place
    ) -> Iterator[_Batch | None]:
        """Yield the batches as they lie, and None at the end where something is not as it was."""
        path, seed = extent.key.path, file_seed(self._header(extent.key, LogKind.SCHEDULE_LOG))
        start, seen = max(after.position, FILE_HEADER_SIZE), 0
        for found in walk_batches(
            view, start=start, end=extent.length, seed=seed, path=path, any_order=True
        ):
            if isinstance(found, Damage):
                yield None
                return
            header, position = found.header, found.position
            is_chained = found.chained and (position > FILE_HEADER_SIZE or not header.previous_crc)
            columns = self._columns(header, position, view, seed, path)
            first = int(columns.arrays["sequence"][0]) if columns is not None else 0
            # Somebody may have made the place up, or what lay there was written anew since.
            is_hint = position > start or start == FILE_HEADER_SIZE or first <= after.sequence
            if columns is None or not (is_chained and is_hint) or first <= seen:
                yield None
                return
            seen = int(columns.arrays["sequence"][-1])
            yield _Batch(extent.key, position, position, header, columns)

    def _batches_of_all(self, extent: DeadExtent, view: View, seen: int) -> Iterator[_Batch]:
        """Yield those batches of a damaged file that have rows above `seen`; report the damage."""
        path, header = extent.key.path, self._header(extent.key, LogKind.SCHEDULE_LOG)
        places: list[tuple[int, int, BatchHeader]] = []
        try:
            for found in walk_file(self._disk, path, extent.length, header):
                if isinstance(found, Damage):
                    self._on_damage(found)
                elif int(found.columns.arrays["sequence"][-1]) > seen:
                    places.append((found.header.base_sequence, found.position, found.header))
        except _FOREIGN as error:
            self._on_damage(Damage(path, 0, extent.length, str(error)))
        for _, position, batch in sorted(places, key=lambda place: place[:2]):
            columns = self._columns(batch, position, view, file_seed(header), path)
            if columns is None:
                # A search that went on from one of its rows might come by it for ever.
                reason = "its rows do not ascend"
                self._on_damage(Damage(path, position, batch.size, reason, batch))
                continue
            yield _Batch(extent.key, position, 0, batch, columns)

    def _columns(
        self, batch: BatchHeader, position: int, view: View, seed: int, path: str
    ) -> Columns | None:
        """Return the rows of a batch of a dead segment, None where they are no such rows."""
        if batch.kind is not RecordKind.DEAD_ROWS:
            return None
        data = view(position, batch.blob_offset)
        try:
            columns = check_columns(batch, data, seed=seed, path=path, position=position)
        except DamagedError:
            return None
        sequence = columns.arrays["sequence"]
        return columns if (sequence[1:] > sequence[:-1]).all() else None

    def _settled(self, extent: DeadExtent) -> list[Int64s]:
        """Return the sequences of a segment that have a fact."""
        found = [*extent.unfiled]
        if extent.facts_length:
            path, length = extent.key.facts_path, extent.facts_length
            header = self._header(extent.key, LogKind.DISPATCH_LOG)
            try:
                for batch in walk_file(self._disk, path, length, header, patient=self._patient):
                    if isinstance(batch, Damage):
                        self._on_damage(batch)
                    else:
                        found.append(facts_of_columns(batch.columns).sequence)
            except _FOREIGN as error:
                self._on_damage(Damage(path, 0, length, str(error)))
        return found

    def _header(self, key: SegmentKey, kind: LogKind) -> FileHeader:
        return FileHeader(
            kind=kind, log_uuid=self._log_uuid, span=Span.DEAD, start_minute=key.start
        )


class DeadItems:
    """The items of dead letters; those of one batch are read together."""

    def __init__(self, disk: Disk, log_uuid: UUID) -> None:
        self._disk = disk
        self._log_uuid = log_uuid
        self._of: tuple[SegmentKey, int] | None = None
        self._blob = b""
        self._fault: DamagedError | None = None
        """What is wrong with the blob, of which then each item has to prove itself."""

    def read(self, row: DeadRow) -> bytes:
        """Return the item of a row as the producer sent it. Raises DamagedError.

        In a damaged batch an item is proven by its own CRC and due time, as at delivery.
        """
        if self._of != (row.key, row.position):
            self._read_blob(row)
            self._of = (row.key, row.position)
        item = self._blob[row.offset : row.offset + row.size]
        if self._fault is not None and (
            len(item) != row.size or qmq_item_fault(item, row.due_ms) is not None
        ):
            raise self._fault
        return item

    def _read_blob(self, row: DeadRow) -> None:
        batch, path = row.header, row.key.path
        header = FileHeader(
            kind=LogKind.SCHEDULE_LOG,
            log_uuid=self._log_uuid,
            span=Span.DEAD,
            start_minute=row.key.start,
        )
        self._fault = None
        try:
            self._blob = read_blob(
                self._disk, batch, position=row.position, path=path, header=header
            )
        except DamagedError as error:
            self._fault, self._blob = error, b""
            if batch.codec is Codec.RAW:
                # Where it cannot be read at all, that is the fault.
                with contextlib.suppress(OSError):
                    self._blob = self._stored_blob(row)

    def _stored_blob(self, row: DeadRow) -> bytes:
        file = self._disk.open_read(row.key.path)
        try:
            return file.read_at(row.position + row.header.blob_offset, row.header.blob_size)
        finally:
            file.close()
