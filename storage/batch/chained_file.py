"""One append-only file of batches in which each batch names the CRC of the one before it."""

import bisect
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from storage.batch.batches import (
    MAGIC,
    BatchHeader,
    Codec,
    Damage,
    check_blob,
    check_columns,
    contents_fault,
    decode_header,
    encode_batch,
    file_seed,
)
from storage.batch.columns import Columns, RecordKind
from storage.batch.file_header import (
    FILE_HEADER_SIZE,
    HEADER_SIZE_MAX,
    FileHeader,
    LogKind,
    decode_file_header,
    encode_file_header,
)
from storage.disk.disk import Bytes, Disk, File, ReadableDisk, ReadableFile
from storage.disk.errors import DamagedError, ReadFailedError, UnsupportedFormatError, may_pass
from storage.disk.read_ahead import PIECE, READ_BLOCK_SIZE, ReadAhead
from storage.disk.spans import Span

_PIECE = 256 * 1024
"""Read at a time: batches larger than this have blobs that are worth hopping over."""
_HEADERS_PIECE = 16 * 1024
"""Read at a time where only headers are wanted: more than one, for files of many small batches."""

_RECORDS = {
    LogKind.SCHEDULE_LOG: RecordKind.ROWS,
    LogKind.DISPATCH_LOG: RecordKind.FACTS,
    LogKind.DISPATCH_JOURNAL: RecordKind.FACTS,
    LogKind.SEALS: RecordKind.SEALS,
}
"""What a chained file of each kind holds, and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDraft:
    """A batch to be appended: everything but its place in the chain."""

    kind: RecordKind
    base_sequence: int
    count: int
    columns: bytes
    blob: Sequence[Bytes] = ()
    epoch: int = 1
    floor_minute: int = 0
    append_ms: int = 0
    codec: Codec = Codec.RAW
    item_format: int = 0
    features: int = 0


@dataclass(slots=True)
class ChainedFile:
    """A file of batches that grows at its end.

    Invariant: bytes 0 to `length` are a file header and whole batches whose last has CRC
    `last_crc`; what lies beyond is garbage of a failed write. `length` 0: there is no file yet,
    the first append makes it.
    """

    disk: Disk
    path: str
    header: FileHeader
    length: int = 0
    last_crc: int = 0
    _file: File | None = field(default=None, repr=False)

    @property
    def seed(self) -> int:
        """The seed of the file's CRCs."""
        return file_seed(self.header)

    @property
    def is_open(self) -> bool:
        """Whether a descriptor is held."""
        return self._file is not None

    def append(self, drafts: Sequence[BatchDraft]) -> list[tuple[int, BatchHeader]]:
        """Append batches in one write; return position and header of each. Not synced.

        Raises StorageFullError with nothing appended, or FatalDiskError.
        """
        file = self.file()
        buffers: list[Bytes] = [] if self.length else [encode_file_header(self.header)]
        position = self.length or FILE_HEADER_SIZE
        crc = self.last_crc
        placed = []
        for draft in drafts:
            header, parts = encode_batch(
                seed=self.seed,
                kind=draft.kind,
                epoch=draft.epoch,
                base_sequence=draft.base_sequence,
                count=draft.count,
                floor_minute=draft.floor_minute,
                append_ms=draft.append_ms,
                previous_crc=crc,
                columns=draft.columns,
                blob=draft.blob,
                codec=draft.codec,
                item_format=draft.item_format,
                features=draft.features,
            )
            buffers += parts
            placed.append((position, header))
            position += header.size
            crc = header.crc
        file.write_at(self.length, buffers)
        self.length = position
        self.last_crc = crc
        return placed

    def file(self) -> File:
        """Return the open file, opening or making it first."""
        if self._file is None:
            # A file that was lost is made anew, with a hole where its bytes were.
            make = not self.disk.exists(self.path)
            self._file = self.disk.open(self.path, create=make)
        return self._file

    def close(self) -> None:
        """Give the descriptor back; synced or not is the caller's business."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def cut(self) -> bool:
        """Cut what lies beyond `length`; say whether there was any. Not durable by itself."""
        file = self.file()
        if file.size() <= self.length:
            return False
        file.truncate(self.length)
        return True


def read_columns(
    disk: ReadableDisk,
    path: str,
    length: int,
    header: FileHeader,
    *,
    unreadable: list[tuple[str, int]] | None = None,
    patient: bool = False,
) -> Iterator[tuple[int, BatchHeader, Columns] | Damage]:
    """Yield position, header and checked columns of each batch; Damage where there is some.

    Only the first `length` bytes count. Blobs are hopped over unread. A damaged file header is
    reported like any other damage: the batches carry all that is needed to read them. A file that
    cannot be read at all is damage too, and so is a batch of a newer version in a file that covers
    a span of time: a checkpoint that this version reads cannot have meant it. Elsewhere it raises
    UnsupportedFormatError.

    As long as each batch names the one before it, they come as they lie. From the first one on that
    does not, every batch that is whole counts wherever it lies, but no record twice.

    Path and position of each block that the disk fails to read, and of a file that cannot be opened
    although it may be there, are added to `unreadable`. With
    `patient` an error of the operating system is no damage: it raises ReadFailedError instead.
    """
    blocks = [] if unreadable is None else unreadable
    with contextlib.ExitStack() as held:
        reader = _open_reader(disk, path, length, header, blocks, piece=_PIECE, patient=patient)
        if isinstance(reader, Damage):
            yield reader
            return
        held.callback(reader.close)
        yield from reader.read()


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch of a chained file whose columns are whole.

    blob: its checked, uncompressed bytes; what is wrong with them; or None where nobody asked.
    """

    position: int
    header: BatchHeader
    columns: Columns
    blob: Bytes | Damage | None


def read_batches(
    disk: ReadableDisk,
    path: str,
    length: int,
    header: FileHeader,
    *,
    with_blobs: bool,
) -> Iterator[ReadBatch | Damage]:
    """Yield the batches of a file as `read_columns` does, with their blobs if they are wanted.

    The file is opened once, whether blobs are read or not.
    """
    with contextlib.ExitStack() as held:
        piece = PIECE if with_blobs else _PIECE
        reader = _open_reader(disk, path, length, header, [], piece=piece, patient=False)
        if isinstance(reader, Damage):
            yield reader
            return
        held.callback(reader.close)
        for found in reader.read():
            if isinstance(found, Damage):
                yield found
            else:
                yield ReadBatch(*found, reader.blob(*found[:2]) if with_blobs else None)


def _open_reader(
    disk: ReadableDisk,
    path: str,
    length: int,
    header: FileHeader,
    unreadable: list[tuple[str, int]],
    *,
    piece: int,
    patient: bool,
) -> "_ChainedReader | Damage":
    try:
        file, size = _open_sized(disk, path)
    except OSError as error:
        if may_pass(error):
            if patient:
                raise ReadFailedError(path=path, error=error) from error
            unreadable.append((path, 0))
        return Damage(path=path, position=0, size=length, reason=f"cannot be read: {error}")
    window = ReadAhead(
        file, end=min(length, size), unreadable=unreadable, piece=piece, patient=patient
    )
    return _ChainedReader(file, window, header, unreadable, path=path, length=length, size=size)


def _open_sized(disk: ReadableDisk, path: str) -> tuple[ReadableFile, int]:
    file = disk.open_read(path)
    try:
        return file, file.size()
    except OSError:
        file.close()
        raise


def chained_headers(
    disk: ReadableDisk, path: str, length: int, *, seed: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of the batches as long as each follows the one before it.

    Only headers are read, of the first `length` bytes; it ends where something is irregular, or
    cannot be read: nothing is searched, as a message may hold the image of a batch. seed: of the
    batches' CRCs.
    """
    try:
        file = disk.open_read(path)
    except OSError:
        return
    try:
        end = min(length, file.size())
        window = ReadAhead(file, end=end, unreadable=[], piece=_HEADERS_PIECE)
        position = FILE_HEADER_SIZE
        before: BatchHeader | None = None
        while position < end:
            data = window.view(position, HEADER_SIZE_MAX)
            header = decode_header(data, seed=seed, path=path, position=position)
            follows = before is None or (
                header.previous_crc == before.crc and header.base_sequence > before.base_sequence
            )
            if not follows or position + header.size > end:
                return
            yield position, header
            position += header.size
            before = header
    except (OSError, DamagedError, UnsupportedFormatError):
        return
    finally:
        file.close()


def sample_raw_bytes(
    disk: Disk, path: str, length: int, header: FileHeader, *, batches: int
) -> int:
    """Return about how many bytes the blobs of a file have, uncompressed.

    Looks at the headers of its first `batches` batches, and takes the rest to be like them. What
    cannot be read counts as it lies there; nothing is reported.
    """
    position, raw, seed = FILE_HEADER_SIZE, 0, file_seed(header)
    with contextlib.suppress(OSError, DamagedError, UnsupportedFormatError):
        file = disk.open_read(path)
        try:
            for _ in range(batches):
                if position >= length:
                    return raw
                data = file.read_at(position, HEADER_SIZE_MAX)
                batch = decode_header(data, seed=seed, path=path, position=position)
                position += batch.size
                raw += batch.blob_raw_size
        finally:
            file.close()
    if position == FILE_HEADER_SIZE:
        return length
    return raw * length // position


def read_blob(
    disk: Disk,
    batch: BatchHeader,
    *,
    position: int,
    path: str,
    header: FileHeader,
    patient: bool = False,
) -> bytes:
    """Return the checked, decompressed blob of a batch.

    Raises DamagedError; with `patient` ReadFailedError for an error of the operating system.
    """
    try:
        file = disk.open_read(path)
        try:
            data = file.read_at(position, batch.size)
        finally:
            file.close()
    except OSError as error:
        if patient and may_pass(error):
            raise ReadFailedError(path=path, error=error) from error
        reason = f"cannot be read: {error}"
        raise DamagedError(path=path, position=position, reason=reason) from error
    seed = file_seed(header)
    return bytes(check_blob(batch, data, seed=seed, path=path, position=position))


@dataclass(frozen=True, slots=True)
class _Found:
    """A batch with good columns; whole: the bytes of its blob are good too, or it has none."""

    position: int
    header: BatchHeader
    records: range
    """Numbers or sequences from its first record to its last."""
    whole: bool


class TakenRecords:
    """Ranges of records that do not overlap."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def is_free(self, wanted: range) -> bool:
        """Say whether nothing of a range is taken."""
        place = bisect.bisect_left(self._ranges, (wanted.stop, 0))
        return not place or self._ranges[place - 1][1] <= wanted.start

    def take(self, free: range) -> None:
        """Take a range that is free."""
        bisect.insort(self._ranges, (free.start, free.stop))


class _ChainedReader:
    """One reading of a chained file."""

    def __init__(
        self,
        file: ReadableFile,
        window: ReadAhead,
        header: FileHeader,
        unreadable: list[tuple[str, int]],
        *,
        path: str,
        length: int,
        size: int,
    ) -> None:
        self.close = file.close
        self._path = path
        self._header = header
        self._seed = file_seed(header)
        self._first = header.first_sequence
        """Of the records of a file that is named by it; else 0."""
        self._length = length
        self._size = size
        self._end = min(length, size)
        self._window = window
        self._unreadable = unreadable

    def read(self) -> Iterator[tuple[int, BatchHeader, Columns] | Damage]:
        """Yield batches and damage."""
        yield from self._read_file_header()
        if self._size < self._length:
            yield self._damage(self._size, self._length - self._size, "the file is cut short")
        yield from self._read_batches()

    def _read_file_header(self) -> Iterator[Damage]:
        try:
            found = decode_file_header(
                self._window.view(0, HEADER_SIZE_MAX),
                kind=self._header.kind,
                log_uuid=self._header.log_uuid,
                path=self._path,
            )
        except DamagedError as error:
            yield self._damage(0, FILE_HEADER_SIZE, error.reason)
        else:
            # Its batches are none here; but only its beginning may have been put here.
            if (found.span, found.start_minute) != (self._header.span, self._header.start_minute):
                reason = f"this is the file of {found.span.name.lower()} {found.start_minute}"
                yield self._damage(0, FILE_HEADER_SIZE, reason)
            elif self._first and found.first_sequence != self._first:
                reason = f"this is the file that begins at {found.first_sequence}"
                yield self._damage(0, FILE_HEADER_SIZE, reason)

    def _read_batches(self) -> Iterator[tuple[int, BatchHeader, Columns] | Damage]:
        position, next_record, previous_crc = FILE_HEADER_SIZE, 0, 0
        while position < self._end:
            try:
                batch = self._batch_at(position)
            except (DamagedError, UnsupportedFormatError) as error:
                if isinstance(error, UnsupportedFormatError) and self._header.span is Span.NONE:
                    raise
                yield from self._read_disordered(position, next_record, error.reason)
                return
            # Another file's first batches are whole here, too, where both are named by a number.
            foreign = (
                position == FILE_HEADER_SIZE and self._first and batch.base_sequence != self._first
            )
            if batch.previous_crc != previous_crc or batch.base_sequence < next_record or foreign:
                reason = "the batch does not follow the one before it"
                yield from self._read_disordered(position, next_record, reason)
                return
            columns = self._columns(position, batch)
            if isinstance(columns, Damage):
                # Its header may be all of it that lies here.
                yield from self._read_disordered(position, next_record, columns.reason)
                return
            yield position, batch, columns
            next_record = records_of(batch, columns).stop
            position += batch.size
            previous_crc = batch.crc

    def _read_disordered(
        self, start: int, next_record: int, reason: str
    ) -> Iterator[tuple[int, BatchHeader, Columns] | Damage]:
        """Yield every batch from `start` on that has records from `next_record` on, each once.

        Of two that have the same records the one with the better blob counts, then the larger one:
        a block in the wrong place may hold the beginning of a batch that is whole elsewhere, or
        what was written before a crash and then once more, together with what followed.
        """
        chosen: list[_Found] = []
        records = TakenRecords()
        records.take(range(next_record))
        for found in sorted(self._search(start), key=_preference):
            if records.is_free(found.records):
                chosen.append(found)
                records.take(found.records)
        position = start
        for found in sorted(chosen, key=lambda one: one.position):
            if found.position > position:
                yield self._damage(position, found.position - position, reason)
            columns = self._columns(found.position, found.header)
            yield (
                (found.position, found.header, columns) if isinstance(columns, Columns) else columns
            )
            position = max(position, found.position + found.header.size)
            reason = "no batch that belongs here"
        if position < self._end:
            yield self._damage(position, self._end - position, reason)

    def _search(self, start: int) -> Iterator[_Found]:
        """Yield every batch with good columns from `start` on, but none inside of a whole one."""
        position = start
        while (position := self._window.next_data(position)) < self._end:
            chunk = bytes(self._window.view(position, _PIECE))
            offset = chunk.find(MAGIC)
            while offset >= 0:
                found = self._found_at(position + offset)
                if found is not None:
                    yield found
                skip = found.header.size if found is not None and found.whole else 1
                offset += skip
                if offset >= len(chunk):
                    break
                offset = chunk.find(MAGIC, offset)
            # A magic may lie across the edge of two pieces.
            step = len(chunk) - len(MAGIC) + 1 if position + len(chunk) < self._end else len(chunk)
            position += max(step, offset, 1)

    def _found_at(self, position: int) -> _Found | None:
        try:
            batch = self._batch_at(position)
        except (DamagedError, UnsupportedFormatError):
            return None
        columns = self._columns(position, batch)
        if not isinstance(columns, Columns):
            return None
        data = self._window.view(position, batch.size)
        whole = contents_fault(batch, data, self._seed) is None
        return _Found(position, batch, records_of(batch, columns), whole)

    def _batch_at(self, position: int) -> BatchHeader:
        """Return the header of the batch at a position, whose columns lie in the file.

        Its blob may have been cut off: what is whole of it counts.
        """
        data = self._window.view(position, HEADER_SIZE_MAX)
        batch = decode_header(data, seed=self._seed, path=self._path, position=position)
        if batch.kind is not _RECORDS[self._header.kind]:
            reason = f"batch of {batch.kind.name} in a file of {self._header.kind.name}"
            raise DamagedError(path=self._path, position=position, reason=reason)
        if position + batch.blob_offset > self._end:
            reason = f"batch of {batch.size} bytes cut off after {self._end - position}"
            raise DamagedError(path=self._path, position=position, reason=reason)
        return batch

    def _columns(self, position: int, batch: BatchHeader) -> Columns | Damage:
        data = self._window.view(position, batch.blob_offset)
        try:
            return check_columns(batch, data, seed=self._seed, path=self._path, position=position)
        except DamagedError as error:
            return self._damage(position, batch.size, error.reason, batch)

    def blob(self, position: int, batch: BatchHeader) -> Bytes | Damage:
        """Return the checked, uncompressed blob of a batch that was found, or its damage."""
        data = self._window.view(position, batch.size)
        try:
            return check_blob(batch, data, seed=self._seed, path=self._path, position=position)
        except DamagedError as error:
            return self._damage(position, batch.size, error.reason, batch)

    def _damage(
        self, position: int, size: int, reason: str, batch: BatchHeader | None = None
    ) -> Damage:
        if any(
            position - READ_BLOCK_SIZE < block < position + size for _, block in self._unreadable
        ):
            reason = f"{reason} (the disk cannot read it)"
        return Damage(self._path, position, size, reason, batch)


def _preference(found: _Found) -> tuple[bool, int, int]:
    return not found.whole, -len(found.records), found.position


def records_of(batch: BatchHeader, columns: Columns) -> range:
    """Return the numbers from the first record of a batch to the last."""
    sequence = columns.arrays["sequence"] if batch.kind is RecordKind.ROWS else None
    stop = batch.next_sequence if sequence is None else int(sequence[-1]) + 1
    return range(batch.base_sequence, stop)
