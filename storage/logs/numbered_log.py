"""Walking the files of a numbered log in order, and noticing whatever is not as it was written.

The records of such a log are numbered one after another without gaps over all its files, and each
batch names the CRC of the one before it. A file is named by its first sequence, 20 digits. What
does not fit into that order is reported as Damage between the batches that do, together with the
sequences that are lost by it. Reading goes on at the next good header with later records.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Generic, TypeVar
from uuid import UUID

from storage.batch.batches import (
    NO_FOLLOWER,
    BatchHeader,
    Damage,
    decode_header,
    ends_early,
    find_batch,
    log_seed,
)
from storage.batch.file_header import FILE_HEADER_SIZE, HEADER_SIZE_MAX, LogKind, decode_file_header
from storage.disk.disk import ListedDisk, ReadableDisk
from storage.disk.errors import DamagedError
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


def files_from(files: Sequence[LogFile], sequence: int) -> Sequence[LogFile]:
    """Return the files from the one on that should hold `sequence`; all if none should."""
    before = [place for place, file in enumerate(files) if file.first_sequence <= sequence]
    return files[before[-1] :] if before else files


class LogWalk(Generic[T]):
    """One walk over some files of a log, at least one.

    next_sequence: what has to come next; previous_crc: of the batch that ends before it, None where
    that is not known (at the beginning, or if it is lost); end: the size of the file that is being
    walked, as far as it is read.
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
        self._following: float = math.inf
        """First sequence of the file after the one that is walked."""
        self.next_sequence = first_sequence
        # Nothing comes before the first record of all.
        self.previous_crc: int | None = 0 if first_sequence == 1 else None
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
            return
        with closing(opened):
            size = opened.size()
            if self._last_end is not None and file is self._files[-1]:
                size = min(size, self._last_end)
            window = ReadAhead(opened, end=size, unreadable=self.unreadable)
            yield from self._walk_window(file, window, start, size)

    def _walk_window(
        self, file: LogFile, window: ReadAhead, start: int, size: int
    ) -> Iterator[PlacedBatch[T] | Damage]:
        self.end = size
        fault = self._header_fault(file, window)
        if fault is not None:
            yield self._damage(file, 0, min(size, FILE_HEADER_SIZE), fault, lost=0)
        position = start
        while position < size:
            try:
                header = self._header_at(position, file, window)
            except DamagedError as error:
                begin, position = position, self._next(position + 1, file, window)
                if self._open_gap is None:
                    self._open_gap = self._damage(
                        file, begin, position - begin, error.reason, lost=None
                    )
                continue
            yield from self._close_gap(file, position, header.base_sequence)
            try:
                if position + header.size > size:
                    raise self._error(file, position, ends_early(header, size - position))
                if header.next_sequence > self._skip_below:
                    data = window.view(position, header.size)
                    content = self._check(header, data, file.path, position)
                    yield PlacedBatch(file, position, header, content)
                self._passed(header)
            except DamagedError as error:
                there = min(header.size, size - position)
                yield self._damage(file, position, there, error.reason, header=header)
            position += header.size

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

    def _header_at(self, position: int, file: LogFile, window: ReadAhead) -> BatchHeader:
        """Return the header of the batch that lies here. Raises DamagedError if none belongs here.

        A file ends before the next one begins, and between batches that lie side by side no record
        is missing.
        """
        head = window.view(position, min(HEADER_SIZE_MAX, self.end - position))
        header = decode_header(head, seed=self._seed, path=file.path, position=position)
        first, following = header.base_sequence, self.next_sequence
        if first < following:
            raise self._error(file, position, f"batch begins again at {first}")
        if first >= self._following or (self._open_gap is None and first > following):
            raise self._error(file, position, f"batch of {first} on was not written here")
        if first == following and self.previous_crc not in {None, header.previous_crc}:
            raise self._error(file, position, NO_FOLLOWER)
        return header

    def _next(self, start: int, file: LogFile, window: ReadAhead) -> int:
        """Return the position of the next good header with records that come next or later."""
        return find_batch(
            window.view,
            start=start,
            end=self.end,
            seed=self._seed,
            path=file.path,
            sequence_min=self.next_sequence,
            next_data=window.next_data,
        )

    def _error(self, file: LogFile, position: int, reason: str) -> DamagedError:
        return DamagedError(path=file.path, position=position, reason=reason)

    def _passed(self, header: BatchHeader) -> None:
        self.next_sequence = header.next_sequence
        self.previous_crc = header.crc

    def _close_gap(self, file: LogFile, position: int, sequence: int) -> Iterator[Damage]:
        """Say what is lost between what came last and `sequence`, which begins here."""
        gap, self._open_gap = self._open_gap, None
        first, self.next_sequence = self.next_sequence, max(self.next_sequence, sequence)
        if sequence > first:
            self.previous_crc = None
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
