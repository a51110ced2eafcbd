"""The one walk over the batches of a file: it yields them as they lie, and damage in between.

It goes forward only, and by two rules.

* As long as each batch names the one before it, is of a kind that the file holds and begins at or
  behind the record that comes next, batches come as they lie.
* From the first irregularity on every batch whose header and columns are whole may belong where it
  lies, wherever that is. Of these the run with the most bytes counts that ascends, by position and
  by record, and overlaps nowhere; left out beforehand is what has no room where it lies for the
  batches that come before it and behind it by their records.

All else is Damage. So a block in a wrong place costs at most the records of the places that it came
from and lies in now: none is ever read wrongly, or twice.
"""

import bisect
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from storage.batch.batches import (
    MAGIC,
    BatchHeader,
    Damage,
    ScannedBatch,
    check_blob,
    check_columns,
    contents_fault,
    decode_header,
    file_seed,
    walk_batches,
)
from storage.batch.columns import Columns, RecordKind
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
    LogKind.MESSAGE_LOG: frozenset(
        {
            RecordKind.MESSAGE,
            RecordKind.EPOCH_START,
            RecordKind.FLOOR,
            RecordKind.CANCEL,
            RecordKind.MOVE,
            RecordKind.DEAD,
            RecordKind.FACTS,
        }
    ),
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
) -> Iterator[ScannedBatch | Damage]:
    """Yield the batches of a file by their headers alone, up to the first thing irregular.

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
        for found in walk_batches(
            window.view,
            start=FILE_HEADER_SIZE,
            end=end,
            seed=file_seed(header),
            path=path,
            any_order=True,
            next_data=window.next_data,
        ):
            if isinstance(found, Damage) or found.chained:
                yield found
            else:
                yield Damage(path, found.position, found.header.size, _NO_FOLLOWER)
            if isinstance(found, Damage) or not found.chained:
                return


_NO_FOLLOWER = "the batch does not follow the one before it"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A batch that may belong where it lies.

    size: of what is there of it; whole_bytes: the same without a blob that is not whole.
    """

    position: int
    size: int
    records: range
    whole_bytes: int


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
        """Yield the batches as they lie as long as each follows the one before it, then others."""
        position, before = FILE_HEADER_SIZE, None
        while position < self._end:
            try:
                batch = self._batch_at(position)
                if not self._follows(batch, before):
                    raise self._error(position, _NO_FOLLOWER)
            except (DamagedError, UnsupportedFormatError) as error:
                if isinstance(error, UnsupportedFormatError) and self._header.span is Span.NONE:
                    raise
                yield from self._disordered(position, before, error.reason)
                return
            yield batch
            position, before = position + batch.header.size, batch

    def _follows(self, batch: FileBatch, before: FileBatch | None) -> bool:
        """Say whether a batch is the one that was written behind another, or first of all."""
        if before is not None:
            is_next = batch.records.start >= before.records.stop
            return is_next and batch.header.previous_crc == before.header.crc
        # Another file's first batches are whole here, too, where both are named by a number.
        if self._header.first_sequence not in {0, batch.header.base_sequence}:
            return False
        # In the message_log it names the last batch of the file before.
        return self._header.kind is LogKind.MESSAGE_LOG or not batch.header.previous_crc

    def _disordered(
        self, start: int, before: FileBatch | None, reason: str
    ) -> Iterator[FileBatch | Damage]:
        """Yield what belongs where it lies from `start` on, where something is irregular."""
        # A file that is named by a number holds none below it.
        first = before.records.stop if before is not None else self._header.first_sequence
        found = [one for one in self._search(start) if one.records.start >= first]
        position = start
        for one in _longest_run(_with_room(found, start, self._end)):
            try:
                batch = self._batch_at(one.position)
            except DamagedError as error:
                reason = error.reason  # The disk could read it just now.
                continue
            if one.position > position or not self._follows(batch, before):
                begin = min(position, one.position)
                yield self._damage(begin, one.position - begin, reason)
            yield batch
            position, before = max(position, one.position + one.size), batch
            reason = "no batch that belongs here"
        if position < self._end:
            yield self._damage(position, self._end - position, reason)

    def _search(self, start: int) -> Iterator[_Candidate]:
        """Yield every batch with good columns from `start` on, but none inside of a whole one."""
        position = start
        while (position := self._window.next_data(position)) < self._end:
            chunk = bytes(self._window.view(position, _PIECE))
            offset = chunk.find(MAGIC)
            while offset >= 0:
                found = self._candidate_at(position + offset)
                if found is None:
                    offset += 1
                else:
                    yield found
                    offset += found.size if found.whole_bytes == found.size else 1
                if offset >= len(chunk):
                    break
                offset = chunk.find(MAGIC, offset)
            # A magic may lie across the edge of two pieces.
            step = len(chunk) - len(MAGIC) + 1 if position + len(chunk) < self._end else len(chunk)
            position += max(step, offset, 1)

    def _candidate_at(self, position: int) -> _Candidate | None:
        try:
            batch = self._batch_at(position)
        except (DamagedError, UnsupportedFormatError):
            return None
        data = self._window.view(position, batch.header.size)
        whole = contents_fault(batch.header, data, self._seed) is None
        good = batch.header.size if whole else batch.header.blob_offset
        return _Candidate(position, len(data), batch.records, good)

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
            reason = f"batch of {header.size} bytes cut off after {self._end - position}"
            raise self._error(position, reason)
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


def _with_room(found: Sequence[_Candidate], start: int, end: int) -> list[_Candidate]:
    """Return those that may lie where they were written, between `start` and `end`.

    Before a batch there was room for all whose records come before its own, and behind it for all
    that come behind it: what was put too far to the front or to the end is told by that.
    """
    before, _ = _sizes(found)
    kept = [one for one in found if one.position - start >= before[one.position]]
    # What comes behind all of these may have been written behind the end, and takes no room then.
    last = max((one.records.stop for one in kept), default=0)
    before, total = _sizes([one for one in found if one.records.start < last])
    lost = end - start - total
    return [one for one in kept if one.position - start - before[one.position] <= lost]


def _sizes(found: Sequence[_Candidate]) -> tuple[dict[int, int], int]:
    """Return by position what the batches before each one by records take, and what all take.

    Of those that overlap, copies say, the smallest counts: no more of them was there for sure.
    """
    before: dict[int, int] = {}
    taken = smallest = stop = 0
    for one in sorted(found, key=lambda one: one.records.start):
        if one.records.start >= stop:
            taken, smallest = taken + smallest, one.size
        smallest = min(smallest, one.size)
        stop = max(stop, one.records.stop)
        before[one.position] = taken
    return before, taken + smallest


def _longest_run(found: Sequence[_Candidate]) -> list[_Candidate]:
    """Return those that ascend by position and records without overlaps: as many bytes as possible.

    Runs are only kept as long as none that ends before them by records has as many bytes.
    """
    ends: list[int] = []
    """Of each such run, ascending: the number behind its last record."""
    worth: list[int] = []
    """Its whole bytes, ascending as well."""
    last: list[int] = []
    previous: list[int | None] = []
    for place, one in enumerate(found):
        before = bisect.bisect_right(ends, one.records.start)
        previous.append(last[before - 1] if before else None)
        value = one.whole_bytes + (worth[before - 1] if before else 0)
        no_later = bisect.bisect_right(ends, one.records.stop)
        if no_later and worth[no_later - 1] >= value:
            continue
        begin, behind = (
            bisect.bisect_left(ends, one.records.stop),
            bisect.bisect_right(worth, value),
        )
        ends[begin:behind] = [one.records.stop]
        worth[begin:behind] = [value]
        last[begin:behind] = [place]
    run: list[_Candidate] = []
    at = last[-1] if last else None
    while at is not None:
        run.append(found[at])
        at = previous[at]
    return run[::-1]
