"""Walking the files of a numbered log in order, and noticing whatever is not as it was written.

The records of such a log are numbered one after another without gaps over all its files, and each
batch names the CRC of the one before it. A file is named by its first sequence, 20 digits. What
does not fit into that order is reported as Damage between the batches that do, together with the
sequences that are lost by it. A batch that is whole but in the wrong place of its file counts where
it belongs, and is reported where it lies.
"""

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar
from uuid import UUID

from storage.batch.batches import (
    BatchHeader,
    Damage,
    ScannedBatch,
    contents_fault,
    decode_header,
    find_batch,
    log_seed,
    walk_batches,
)
from storage.batch.file_header import FILE_HEADER_SIZE, HEADER_SIZE_MAX, LogKind, decode_file_header
from storage.disk.disk import ListedDisk, ReadableDisk, ReadableFile
from storage.disk.errors import DamagedError, UnsupportedFormatError
from storage.disk.read_ahead import ReadAhead

_NAME = re.compile(r"[0-9]{20}\.log", re.ASCII)
_SEQUENCE_MAX = 2**63 - 1
T = TypeVar("T")

Check = Callable[[BatchHeader, memoryview, str, int], T]
"""Turns header, bytes of the whole batch, path and position into what is wanted of the batch;
raises DamagedError unless its bytes are those that were written."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of a numbered log. Its name says that all records below its first were durable."""

    path: str
    first_sequence: int


@dataclass(frozen=True, slots=True)
class PlacedBatch(Generic[T]):
    """A batch that is where it belongs, and what was made of its bytes."""

    file: LogFile
    position: int
    header: BatchHeader
    content: T


def log_file(directory: str, first_sequence: int) -> LogFile:
    """Return the file that begins with this sequence."""
    return LogFile(f"{directory}/{first_sequence:020d}.log", first_sequence)


def list_log_files(disk: ListedDisk, directory: str) -> list[LogFile]:
    """Return the files of a log in order; what is named otherwise is none of them."""
    return [
        log_file(directory, first)
        for name in disk.list(directory)
        if (first := first_of_name(name)) is not None
    ]


def first_of_name(name: str) -> int | None:
    """Return the number that a file of a numbered log is named by, None if it is none."""
    first = int(name.removesuffix(".log")) if _NAME.fullmatch(name) else _SEQUENCE_MAX + 1
    return first if first <= _SEQUENCE_MAX else None


@dataclass(frozen=True, slots=True)
class StrayFile:
    """A file of a log's name that is no part of the log, since another one has its records."""

    path: str
    size: int
    host: str
    """The file that has them."""

    @property
    def reason(self) -> str:
        """What is wrong with it, and what to do."""
        return (
            f"no record is in this file, and {self.host} has those that it should begin with: it "
            "is no part of the log, move it away"
        )


def without_strays(
    disk: ReadableDisk, files: Sequence[LogFile], *, log_uuid: UUID, kind: LogKind
) -> tuple[list[LogFile], list[StrayFile]]:
    """Return the files that make up a log, and those that are none of it.

    A file without any record, whose first would lie inside of the file before it, must not be
    taken for the log's end, nor for the place where another file's records end. Where a file has
    records, or its place is where the one before it ends, it is one that damage or a crash befell.
    """
    kept: list[LogFile] = []
    strays: list[StrayFile] = []
    for file in files:
        size = _size_without_records(disk, file, log_seed(log_uuid, kind)) if kept else None
        if size is not None and _reaches(disk, kept[-1], file.first_sequence, log_uuid, kind):
            strays.append(StrayFile(file.path, size, kept[-1].path))
        else:
            kept.append(file)
    return kept, strays


def _size_without_records(disk: ReadableDisk, file: LogFile, seed: int) -> int | None:
    """Return the size of a file that has no batch anywhere; None if it has one."""
    try:
        opened = disk.open_read(file.path)
    except OSError:
        return None  # Whoever walks the log says so.
    try:
        size = opened.size()
        has_records = _has_records(opened, size, seed)
    except UnsupportedFormatError:
        return None
    finally:
        opened.close()
    return None if has_records else size


def _has_records(file: ReadableFile, size: int, seed: int) -> bool:
    """Say whether there is a batch in a file, or may have been one where it cannot be read."""
    unreadable: list[tuple[str, int]] = []
    window = ReadAhead(file, end=size, unreadable=unreadable, piece=HEADER_SIZE_MAX)
    head = window.view(FILE_HEADER_SIZE, HEADER_SIZE_MAX)
    with contextlib.suppress(DamagedError):
        # As good as always this is all that is read.
        decode_header(head, seed=seed, path=file.path, position=FILE_HEADER_SIZE)
        return True
    window = ReadAhead(file, end=size, unreadable=unreadable)
    start = min(FILE_HEADER_SIZE, size)
    found = find_batch(
        window.view,
        start=start,
        end=size,
        seed=seed,
        path=file.path,
        next_data=window.next_data,
    )
    return found < size or bool(unreadable)


def _reaches(
    disk: ReadableDisk, file: LogFile, sequence: int, log_uuid: UUID, kind: LogKind
) -> bool:
    """Say whether a file has a record from `sequence` on."""
    walk = LogWalk(
        disk,
        [file],
        log_uuid=log_uuid,
        kind=kind,
        first_sequence=file.first_sequence,
        until=file.first_sequence,
        check=_header_only,
    )
    return any(
        isinstance(found, PlacedBatch) and found.header.next_sequence > sequence for found in walk
    )


def _header_only(header: BatchHeader, _data: memoryview, _path: str, _position: int) -> BatchHeader:
    return header


def files_from(files: Sequence[LogFile], sequence: int) -> Sequence[LogFile]:
    """Return the files from the one on that should hold `sequence`; all if none should."""
    before = [place for place, file in enumerate(files) if file.first_sequence <= sequence]
    return files[before[-1] :] if before else files


class LogWalk(Generic[T]):
    """One walk over some files of a log, at least one.

    It looks for strays below what was durable, where `walk_file` goes forward only: a sole node has
    nothing else to repair its message_log from. That is so until there is repair from a replica.

    next_sequence: what has to come next; previous_crc: of the batch before it, None where that is
    not known (at the beginning, or behind a gap); end: the size of the file that is being walked,
    as far as it is read.
    """

    def __init__(
        self,
        disk: ReadableDisk,
        files: Sequence[LogFile],
        *,
        log_uuid: UUID,
        kind: LogKind,
        first_sequence: int,
        until: int,
        check: Check[T],
        skip_below: int = 0,
        start: int = FILE_HEADER_SIZE,
        end: int | None = None,
    ) -> None:
        """Prepare a walk over files that should hold the records from `first_sequence` to `until`.

        `until` is exclusive; there may be more. Batches whose records are all below `skip_below`
        are not checked and not yielded. `start` is where the batch with `first_sequence`
        begins in the first file: what lies before is not looked at. `end` is the size up to which
        the last file is read; None for all of it.
        """
        self._disk = disk
        self._files = files
        self._log_uuid = log_uuid
        self._kind = kind
        self._seed = log_seed(log_uuid, kind)
        self._until = until
        self._check = check
        self._skip_below = skip_below
        self._start = start
        self._last_end = end
        self._open_gap: Damage | None = None
        self._strays: list[tuple[int, BatchHeader]] | None = None
        """Position and header of each whole batch of the file, once they were looked for."""
        self._following: float = math.inf
        """First sequence of the file after the one that is walked."""
        self._goes_on = True
        """Whether the batch before this one lies where it belongs."""
        self.next_sequence = first_sequence
        # Nothing comes before the first record of all.
        self.previous_crc: int | None = 0 if first_sequence == 1 else None
        self._last_crc = self.previous_crc
        """Of the batch that ends before `next_sequence`, whatever lies behind it; None if lost."""
        self.end = 0
        self.unreadable: list[tuple[str, int]] = []
        """Path and position of blocks the disk could not read."""

    def __iter__(self) -> Iterator[PlacedBatch[T] | Damage]:
        """Yield what is in its place, and the damage in between."""
        for found in self._walk_files():
            if isinstance(found, PlacedBatch) or self._matters(found):
                yield found

    def _walk_files(self) -> Iterator[PlacedBatch[T] | Damage]:
        for place, file in enumerate(self._files, start=1):
            after = self._files[place : place + 1]
            self._following = after[0].first_sequence if after else math.inf
            yield from self._walk_file(file)
        until = max(self._until, self.next_sequence)
        yield from self._close_gap(self._files[-1], self.end, until)

    def _matters(self, damage: Damage) -> bool:
        first, after = damage.first_sequence, damage.next_sequence
        assert first is not None
        assert after is not None
        return max(after, first + 1) > self._skip_below

    def _walk_file(self, file: LogFile) -> Iterator[PlacedBatch[T] | Damage]:
        start, self._start = self._start, FILE_HEADER_SIZE
        if file.first_sequence < self.next_sequence and start == FILE_HEADER_SIZE:
            reason = f"file begins again at {file.first_sequence}, {self.next_sequence} comes next"
            yield self._damage(file, 0, 0, reason, lost=0)
            return
        yield from self._close_gap(file, 0, file.first_sequence)
        try:
            opened = self._disk.open_read(file.path)
        except FileNotFoundError:
            self._open_gap = self._damage(file, 0, 0, "the file is missing", lost=None)
            self.previous_crc = None
            return
        try:
            size = opened.size()
            if self._last_end is not None and file is self._files[-1]:
                size = min(size, self._last_end)
            window = ReadAhead(opened, end=size, unreadable=self.unreadable)
            yield from self._walk_window(file, window, start, size)
        finally:
            opened.close()

    def _walk_window(
        self, file: LogFile, window: ReadAhead, start: int, size: int
    ) -> Iterator[PlacedBatch[T] | Damage]:
        self.end = size
        self._strays = None
        fault = self._header_fault(file, window)
        if fault is not None:
            yield self._damage(file, 0, min(size, FILE_HEADER_SIZE), fault, lost=0)
        for found in walk_batches(
            window.view,
            start=start,
            end=size,
            seed=self._seed,
            path=file.path,
            sequence_min=self.next_sequence,
            next_data=window.next_data,
        ):
            if isinstance(found, ScannedBatch):
                yield from self._place(file, found, window)
            elif found.header is not None and not self._is_stray(found.header):
                # Cut off by the end of the file.
                yield from self._close_gap(file, found.position, found.header.base_sequence)
                yield self._damage(
                    file, found.position, found.size, found.reason, header=found.header
                )
            elif self._open_gap is None:
                self._open_gap = self._damage(
                    file, found.position, found.size, found.reason, lost=None
                )
                self.previous_crc = None
        # The size that a damaged batch claims may have hidden the last ones.
        yield from self._place_strays(file, self._until, window)

    def _header_fault(self, file: LogFile, window: ReadAhead) -> str | None:
        try:
            header = decode_file_header(
                window.view(0, HEADER_SIZE_MAX),
                path=file.path,
                kind=self._kind,
                log_uuid=self._log_uuid,
            )
        except DamagedError as error:
            return error.reason
        if header.first_sequence != file.first_sequence:
            return f"file header says that it begins at {header.first_sequence}"
        return None

    def _place(
        self, file: LogFile, found: ScannedBatch, window: ReadAhead
    ) -> Iterator[PlacedBatch[T] | Damage]:
        """Yield a batch if it is what comes next, or what is wrong with it."""
        header, position = found.header, found.position
        if header.base_sequence < self.next_sequence:
            reason = f"batch begins again at {header.base_sequence}"
            yield self._damage(file, position, header.size, reason, lost=0)
            self._goes_on = False
            return
        if header.base_sequence > self.next_sequence:
            yield from self._place_strays(file, header.base_sequence, window)
        if self._is_stray(header):
            if self._open_gap is None:
                reason = f"batch of {header.base_sequence} on was not written here"
                self._open_gap = self._damage(file, position, header.size, reason, lost=None)
            self.previous_crc = None
            return
        yield from self._close_gap(file, position, header.base_sequence)
        if self.previous_crc is not None and header.previous_crc != self.previous_crc:
            reason = "batch does not follow the one before it"
            yield from self._miss(file, position, header, reason, window)
            return
        if header.next_sequence <= self._skip_below:
            self._passed(header)
            return
        try:
            content = self._checked(header, window, file.path, position)
        except DamagedError as error:
            yield from self._miss(file, position, header, error.reason, window)
            return
        self._passed(header)
        yield PlacedBatch(file, position, header, content)

    def _checked(self, header: BatchHeader, window: ReadAhead, path: str, position: int) -> T:
        return self._check(header, window.view(position, header.size), path, position)

    def _is_stray(self, header: BatchHeader) -> bool:
        """Say whether a batch was written elsewhere.

        A file ends before the next one begins, and between batches that lie side by side no record
        is missing.
        """
        if header.base_sequence >= self._following:
            return True
        goes_on = self._open_gap is None and self._goes_on
        return goes_on and header.base_sequence > self.next_sequence

    def _miss(
        self, file: LogFile, position: int, header: BatchHeader, reason: str, window: ReadAhead
    ) -> Iterator[PlacedBatch[T] | Damage]:
        """Yield the damage of a batch, behind its records where they are whole somewhere else."""
        yield from self._place_strays(file, header.next_sequence, window)
        if self.next_sequence < header.next_sequence:
            yield self._damage(file, position, header.size, reason, header=header)
        else:
            yield self._damage(file, position, header.size, reason, lost=0)
            self._goes_on = False

    def _place_strays(
        self, file: LogFile, sequence: int, window: ReadAhead
    ) -> Iterator[PlacedBatch[T] | Damage]:
        """Yield the batches below `sequence` that come next but lie somewhere else in the file.

        None beyond what was durable: there only the order tells what was written.
        """
        after = min(sequence, self._until, self._following)
        if self.next_sequence >= after:
            return
        adjacent = self._open_gap is None and self._goes_on
        if self._strays is None:
            self._strays = sorted(
                self._whole_batches(file, window), key=lambda one: one[1].base_sequence
            )
        for position, header in self._strays:
            fits = self.next_sequence <= header.base_sequence and header.next_sequence <= after
            # Between two records that follow each other there is nothing, whatever lies there.
            after_last = header.base_sequence == self.next_sequence and self._last_crc is not None
            follows = not after_last or header.previous_crc == self._last_crc
            if not fits or not follows:
                continue
            try:
                content = self._checked(header, window, file.path, position)
            except DamagedError:
                continue
            yield from self._close_gap(file, position, header.base_sequence)
            self._passed(header)
            # It fills the place of others; what lies behind them may still be lost.
            self._goes_on = adjacent
            if header.next_sequence > self._skip_below:
                yield PlacedBatch(file, position, header, content)

    def _whole_batches(self, file: LogFile, window: ReadAhead) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of every batch of a file whose every byte is right."""
        position = FILE_HEADER_SIZE
        while position < self.end:
            position = find_batch(
                window.view,
                start=position,
                end=self.end,
                seed=self._seed,
                path=file.path,
                # One of a newer version is for the walk to refuse, where it lies in its way.
                any_order=True,
                next_data=window.next_data,
            )
            if position >= self.end:
                return
            head = window.view(position, min(HEADER_SIZE_MAX, self.end - position))
            header = decode_header(head, seed=self._seed, path=file.path, position=position)
            whole = contents_fault(header, window.view(position, header.size), self._seed) is None
            if whole:
                yield position, header
            position += header.size if whole else 1

    def _passed(self, header: BatchHeader) -> None:
        self.next_sequence = header.next_sequence
        self.previous_crc = self._last_crc = header.crc
        self._goes_on = True

    def _close_gap(self, file: LogFile, position: int, sequence: int) -> Iterator[Damage]:
        """Say what is lost between what came last and `sequence`, which begins here."""
        gap, self._open_gap = self._open_gap, None
        first, self.next_sequence = self.next_sequence, max(self.next_sequence, sequence)
        if sequence > first:
            self.previous_crc = self._last_crc = None
        if gap is not None:
            yield replace(gap, next_sequence=self.next_sequence)
        elif sequence > first:
            reason = f"records {first} to {sequence - 1} are missing"
            yield Damage(file.path, position, 0, reason, None, first, sequence)

    def _damage(
        self,
        file: LogFile,
        position: int,
        size: int,
        reason: str,
        *,
        lost: int | None = None,
        header: BatchHeader | None = None,
    ) -> Damage:
        """Return damage that begins at what comes next and goes on behind what it swallowed."""
        first = self.next_sequence
        after = None if lost is None else first + lost
        if header is not None:
            after = header.next_sequence
            self._passed(header)
        return Damage(file.path, position, size, reason, header, first, after)
