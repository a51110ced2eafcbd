"""Where the batches of a numbered log begin, without walking a file from its beginning.

    file 1     entry (sequence, position) | ~1 MiB | entry | ~1 MiB | entry ...
    file 2     entry ...

Entries of the file that is being written are noted as it grows. Those of an older file are made by
one walk over its headers, when somebody reads from it for the first time.
"""

import bisect
from collections.abc import Iterator
from typing import Final

from storage.batch.batches import BatchHeader, decode_header
from storage.batch.file_header import FILE_HEADER_SIZE, HEADER_SIZE_MAX
from storage.disk.disk import ReadableDisk
from storage.disk.errors import DamagedError
from storage.disk.read_ahead import ReadAhead
from storage.logs.numbered_log import LogFile

ENTRY_BYTES: Final = 1024 * 1024
"""Bytes of a file from one entry to the next: what is walked at the most to find a batch."""

_PIECE: Final = 64 * 1024
"""Bytes read at a time: headers lie far apart, and are hopped between."""

_Entries = list[tuple[int, int]]
"""First sequence and position of some batches, ascending; never empty."""


class SparseIndex:
    """Positions of batches, an entry a MiB. One thread appends; others may look up meanwhile."""

    def __init__(self, disk: ReadableDisk, *, seed: int) -> None:
        """Begin without entries; `seed`: of the CRCs of the log."""
        self._disk = disk
        self._seed = seed
        self._entries: dict[int, _Entries] = {}
        """By the first sequence of the file."""

    def appended(self, file: LogFile, position: int, header: BatchHeader) -> None:
        """Note a batch that was appended to a file, if the one noted before it is far away."""
        entries = self._entries.get(file.first_sequence)
        if entries is None:
            if position == FILE_HEADER_SIZE:
                self._entries[file.first_sequence] = [(header.base_sequence, position)]
        elif position - entries[-1][1] >= ENTRY_BYTES:
            entries.append((header.base_sequence, position))

    def forget(self, first_sequence: int) -> None:
        """Forget the files from this one on: they were cut."""
        for first in [first for first in self._entries if first >= first_sequence]:
            del self._entries[first]

    def headers_from(
        self, file: LogFile, sequence: int, end: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of the batches of a file from the one on that holds a record.

        end: bytes of the file that count. Raises DamagedError where a header is not as it was
        written, or does not follow; OSError.
        """
        entries = self._entries.get(file.first_sequence)
        if entries is None:
            entries = self._made(file, end)
            self._entries[file.first_sequence] = entries
        place = bisect.bisect_right(entries, (sequence, end)) - 1
        for position, header in self._walk(file, entries[max(place, 0)][1], end):
            if header.next_sequence > sequence:
                yield position, header

    def _made(self, file: LogFile, end: int) -> _Entries:
        entries: _Entries = []
        for position, header in self._walk(file, FILE_HEADER_SIZE, end):
            if not entries or position - entries[-1][1] >= ENTRY_BYTES:
                entries.append((header.base_sequence, position))
        return entries or [(file.first_sequence, FILE_HEADER_SIZE)]

    def _walk(self, file: LogFile, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        opened = self._disk.open_read(file.path)
        try:
            window = ReadAhead(opened, end=end, unreadable=[], piece=_PIECE)
            position, before = start, None
            while position < end:
                header = decode_header(
                    window.view(position, HEADER_SIZE_MAX),
                    seed=self._seed,
                    path=file.path,
                    position=position,
                )
                follows = before is None or (
                    header.previous_crc == before.crc
                    and header.base_sequence == before.next_sequence
                )
                if not follows or position + header.size > end:
                    reason = "the batch does not follow the one before it, or is cut off"
                    raise DamagedError(path=file.path, position=position, reason=reason)
                yield position, header
                position, before = position + header.size, header
        finally:
            opened.close()
