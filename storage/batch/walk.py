"""The one walk over the batches of a file: it yields them as they lie, and damage in between.

It goes forward only. A batch is taken if it names the one before it, is of a kind that the file
holds and begins at or behind the record that comes next. What is none is Damage, up to the next
header that is good and whose records lie behind those of the last batch that was taken. So nothing
is read twice; a block in a wrong place may cost the records up to those that it holds.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from storage.batch.batches import (
    NO_FOLLOWER,
    BatchHeader,
    Damage,
    check_blob,
    check_columns,
    decode_header,
    ends_early,
    file_seed,
    find_batch,
    walk_batches,
)
from storage.batch.columns import Columns, RecordKind
from storage.batch.facts import KINDS_OF_LOG
from storage.batch.file_header import (
    FILE_HEADER_SIZE,
    HEADER_SIZE_MAX,
    FileHeader,
    LogKind,
    decode_file_header,
)
from storage.disk.disk import Bytes, ReadableDisk
from storage.disk.errors import DamagedError, UnsupportedFormatError, may_pass
from storage.disk.read_ahead import READ_BLOCK_SIZE, ReadAhead
from storage.disk.spans import Span

_PIECE = 256 * 1024
"""Read at a time: batches larger than this have blobs that are worth hopping over."""
_HEADERS_PIECE = 16 * 1024
"""Read at a time where only headers are wanted: more than one, for files of many small batches."""

_RECORDS = {
    LogKind.MESSAGE_LOG: KINDS_OF_LOG,
    LogKind.SCHEDULE_LOG: frozenset({RecordKind.ROWS}),
    LogKind.DISPATCH_LOG: frozenset({RecordKind.FACTS}),
    LogKind.SEALS: frozenset({RecordKind.SEALS}),
}
"""What a file of each kind holds, and nothing else."""


@dataclass(frozen=True, slots=True, eq=False)
class FileBatch:
    """A batch that belongs where it lies, with whole columns."""

    position: int
    header: BatchHeader
    columns: Columns
    records: range
    """Numbers or sequences from its first record to its last."""
    file: FileHeader
    """What the file should begin with."""
    _walk: "_Walk" = field(repr=False)

    def blob(self) -> Bytes:
        """Return the checked, uncompressed blob; only while the walk stands at this batch.

        Raises DamagedError.
        """
        return self._walk.blob(self)


def walk_file(
    disk: ReadableDisk,
    path: str,
    length: int,
    header: FileHeader,
    *,
    unreadable: list[tuple[str, int]] | None = None,
    piece: int = _PIECE,
) -> Iterator[FileBatch | Damage]:
    """Yield the batches of the first `length` bytes of a file, and the damage where there is some.

    header: what the file should begin with. Another one is reported like any other damage, and does
    not hide the batches, which carry all that is needed to read them; only the header of another
    group's log raises DataDirectoryError. A file that cannot be read at all is damage too, and so
    is a batch of a newer version in a file that covers a span of time: a checkpoint that this
    version reads cannot have meant it. Elsewhere it raises UnsupportedFormatError.

    Path and position of each block that the disk fails to read, and of a file that cannot be opened
    although it may be there, are added to `unreadable`. piece: bytes read at a time; blobs that
    nobody asks for are read only as far as they lie in one.
    """
    blocks = [] if unreadable is None else unreadable
    with contextlib.ExitStack() as held:
        try:
            file = disk.open_read(path)
            held.callback(file.close)
            size = file.size()
        except OSError as error:
            if may_pass(error):
                blocks.append((path, 0))
            yield Damage(path, 0, length, f"cannot be read: {error}")
            return
        end = min(length, size)
        window = ReadAhead(file, end=end, unreadable=blocks, piece=piece)
        walk = _Walk(window, header, blocks, path=path, end=end)
        yield from walk.file_header()
        if size < length:
            yield Damage(path, size, length - size, "the file is cut short")
        yield from walk.batches()


def walk_headers(
    disk: ReadableDisk, path: str, length: int, header: FileHeader
) -> Iterator[BatchHeader | Damage]:
    """Yield the headers of a file's batches, up to the first thing irregular.

    That comes as Damage, and ends it: for whoever only wants to know about how much there is.
    """
    with contextlib.ExitStack() as held:
        try:
            file = disk.open_read(path)
            held.callback(file.close)
            end = min(length, file.size())
        except OSError as error:
            yield Damage(path, 0, length, f"cannot be read: {error}")
            return
        window = ReadAhead(file, end=end, unreadable=[], piece=_HEADERS_PIECE)
        try:
            for _, found in walk_batches(
                window.view, start=FILE_HEADER_SIZE, end=end, seed=file_seed(header), path=path
            ):
                yield found
        except (DamagedError, UnsupportedFormatError) as error:
            yield Damage(path, error.position, end - error.position, error.reason)


class _Walk:
    """One walk over an open file, of which the first `end` bytes count."""

    def __init__(
        self,
        window: ReadAhead,
        header: FileHeader,
        unreadable: list[tuple[str, int]],
        *,
        path: str,
        end: int,
    ) -> None:
        self._window = window
        self._header = header
        self._kinds = _RECORDS.get(header.kind, frozenset())
        self._seed = file_seed(header)
        self._unreadable = unreadable
        self._path = path
        self._end = end

    def file_header(self) -> Iterator[Damage]:
        """Yield the damage of the file's header."""
        wanted = self._header
        try:
            found = decode_file_header(
                self._window.view(0, HEADER_SIZE_MAX),
                kind=wanted.kind,
                log_uuid=wanted.log_uuid,
                path=self._path,
            )
        except DamagedError as error:
            yield self._damage(0, FILE_HEADER_SIZE, error.reason)
            return
        if (found.span, found.start_minute) != (wanted.span, wanted.start_minute):
            reason = f"this is the file of {found.span.name.lower()} {found.start_minute}"
            yield self._damage(0, FILE_HEADER_SIZE, reason)
        elif wanted.first_sequence not in {0, found.first_sequence}:
            reason = f"this is the file that begins at {found.first_sequence}"
            yield self._damage(0, FILE_HEADER_SIZE, reason)

    def batches(self) -> Iterator[FileBatch | Damage]:
        """Yield the batches as they lie, and what is none of them."""
        position, before = FILE_HEADER_SIZE, None
        # A file that is named by a number holds none below it.
        following = self._header.first_sequence
        bad: DamagedError | UnsupportedFormatError | None = None
        while position < self._end:
            try:
                batch = self._batch_at(position)
                if batch.records.start < following or (
                    bad is None and not self._follows(batch, before)
                ):
                    raise self._error(position, NO_FOLLOWER)
            except (DamagedError, UnsupportedFormatError) as error:
                if isinstance(error, UnsupportedFormatError) and not self._skips_newer:
                    raise
                bad = bad or error
                position = self._next(position + 1, following)
                continue
            if bad is not None:
                yield self._damage(bad.position, position - bad.position, bad.reason)
                bad = None
            yield batch
            position, before = position + batch.header.size, batch.header
            following = batch.records.stop
        if bad is not None:
            yield self._damage(bad.position, self._end - bad.position, bad.reason)

    @property
    def _skips_newer(self) -> bool:
        """Whether a batch of a newer version is damage: in a file that covers a span of time."""
        return self._header.span is not Span.NONE

    def _follows(self, batch: FileBatch, before: BatchHeader | None) -> bool:
        """Say whether a batch is the one that was written behind another, or first of all."""
        if before is not None:
            return batch.header.previous_crc == before.crc
        # Another file's first batches are whole here, too, where both are named by a number.
        if self._header.first_sequence not in {0, batch.header.base_sequence}:
            return False
        # In the message_log it names the last batch of the file before.
        return self._header.kind is LogKind.MESSAGE_LOG or not batch.header.previous_crc

    def _next(self, start: int, following: int) -> int:
        """Return the position of the next good header with records that come next or later."""
        return find_batch(
            self._window.view,
            start=start,
            end=self._end,
            seed=self._seed,
            path=self._path,
            sequence_min=following,
            skip_newer=self._skips_newer,
            next_data=self._window.next_data,
        )

    def _batch_at(self, position: int) -> FileBatch:
        """Return the batch at a position. Raises DamagedError unless header and columns are whole.

        Its blob may have been cut off: what is whole of it counts.
        """
        path, seed = self._path, self._seed
        head = self._window.view(position, HEADER_SIZE_MAX)
        header = decode_header(head, seed=seed, path=path, position=position)
        if header.kind not in self._kinds:
            reason = f"batch of {header.kind.name} in a file of {self._header.kind.name}"
            raise self._error(position, reason)
        if position + header.blob_offset > self._end:
            raise self._error(position, ends_early(header, self._end - position))
        data = self._window.view(position, header.blob_offset)
        columns = check_columns(header, data, seed=seed, path=path, position=position)
        records = _records_of(header, columns)
        if not records:
            raise self._error(position, "the records of the batch do not ascend")
        return FileBatch(position, header, columns, records, self._header, self)

    def blob(self, batch: FileBatch) -> Bytes:
        """Return the checked, uncompressed blob of a batch. Raises DamagedError."""
        header, position = batch.header, batch.position
        data = self._window.view(position, header.size)
        try:
            return check_blob(header, data, seed=self._seed, path=self._path, position=position)
        except DamagedError as error:
            raise self._damage(position, header.size, error.reason).error() from error

    def _error(self, position: int, reason: str) -> DamagedError:
        return DamagedError(path=self._path, position=position, reason=reason)

    def _damage(self, position: int, size: int, reason: str) -> Damage:
        if any(
            position - READ_BLOCK_SIZE < block < position + size for _, block in self._unreadable
        ):
            reason = f"{reason} (the disk cannot read it)"
        return Damage(self._path, position, size, reason)


def _records_of(header: BatchHeader, columns: Columns) -> range:
    """Return the numbers from the first record of a batch to the last."""
    has_own = header.kind is RecordKind.ROWS
    stop = int(columns.arrays["sequence"][-1]) + 1 if has_own else header.next_sequence
    return range(header.base_sequence, stop)
