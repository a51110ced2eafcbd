"""Where the batches of a numbered log begin, without walking a file from its beginning.

    file 1     entry (sequence, position) | ~1 MiB | entry | ~1 MiB | entry ...
    file 2     entry | ~16 KiB | entry ...       one of the newest, where single records are read

Entries of the file that is being written are noted as it grows, others when a place is looked up or
a file is read. Between two entries a place is found by halving the bytes between them: whatever has
the header of a batch says which half to go on in. As a message may hold the image of a batch,
nothing that is found so is believed by itself. It is believed if the headers behind it follow one
another, by sequence, size and CRC, up to the record that is looked for and for as many bytes as a
batch has at most: no image goes on behind the batch that it lies in.
"""

import bisect
from collections.abc import Iterator
from contextlib import closing
from typing import Final, NamedTuple

from storage.batch.batches import (
    BATCH_BYTES_MAX,
    BatchHeader,
    decode_header,
    find_batch,
    walk_batches,
)
from storage.batch.file_header import FILE_HEADER_SIZE, HEADER_SIZE_MAX
from storage.disk.disk import ReadableDisk, size_of
from storage.disk.errors import DamagedError, UnsupportedFormatError
from storage.disk.read_ahead import ReadAhead
from storage.logs.numbered_log import LogFile

ENTRY_BYTES: Final = 1024 * 1024
"""Bytes of a file from one entry to the next."""

NOTED_BYTES: Final = 16 * 1024
"""The same in the newest files: a walk over so many takes less than a millisecond, and an entry
120 bytes of memory."""

_DENSE_FILES: Final = 8
"""Those: 16 MiB of entries at the most."""

BELIEVED_BYTES: Final = BATCH_BYTES_MAX
"""Bytes of batches that follow one another, from which on their first is no image in a message."""

_PIECE: Final = 64 * 1024
"""Bytes read at a time: headers lie far apart, and are hopped between."""


class Place(NamedTuple):
    """Where a batch begins, and its first record."""

    sequence: int
    position: int


class SparseIndex:
    """Positions of batches. One thread appends; others may look up meanwhile.

    An entry that comes while another thread looks one up makes it begin a little earlier at worst.
    """

    def __init__(self, disk: ReadableDisk, *, seed: int) -> None:
        """Begin without entries; `seed`: of the CRCs of the log."""
        self._disk = disk
        self._seed = seed
        self._entries: dict[int, list[Place]] = {}
        """By the first sequence of the file; ascending, the beginning of the file first."""

    def note(self, file: LogFile, position: int, header: BatchHeader) -> None:
        """Note a batch of one of the newest files, if the one noted before it is far away."""
        entries = self._entries.get(file.first_sequence)
        if entries is None:
            entries = self._entries[file.first_sequence] = self._entries_of(file)
            for first in sorted(self._entries)[:-_DENSE_FILES]:
                self._entries[first] = _thinned(self._entries[first])
        place = Place(header.base_sequence, position)
        after = bisect.bisect_right(entries, place)
        if position - entries[after - 1].position >= NOTED_BYTES:
            entries.insert(after, place)

    def forget(self, first_sequence: int) -> None:
        """Forget the files from this one on: they were cut."""
        for first in [first for first in self._entries if first >= first_sequence]:
            del self._entries[first]

    def place_of(self, file: LogFile, sequence: int, end: int | None = None) -> Place:
        """Return where a batch begins that has a record, or lies at most two entries before it.

        It is farther where that is not sure, as behind damage, or in a file that cannot be read:
        whoever walks on from the place meets it. end: bytes of the file that count; None for all.
        """
        entries = self._entries_of(file)
        after = max(bisect.bisect_right(entries, sequence, key=lambda one: one.sequence), 1)
        known, behind = entries[after - 1], entries[after : after + 1]
        try:
            end = size_of(self._disk, file.path) if end is None else end
            until = behind[0].position if behind else end
            if until - known.position <= 2 * ENTRY_BYTES:
                return known
            start = self._start(file, known, sequence, until)
            place = self._walk_to(file, start, sequence, end)
        except (DamagedError, UnsupportedFormatError, OSError):
            return known
        is_near = start == known.position
        if place is None or not (is_near or place.position - start >= BELIEVED_BYTES):
            return known
        gaps = [place.position - known.position, *(x.position - place.position for x in behind)]
        if min(gaps) >= ENTRY_BYTES:
            bisect.insort(self._entries.setdefault(file.first_sequence, entries), place)
        return place

    def headers_from(
        self, file: LogFile, sequence: int, end: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of the batches of a file from the one on that holds a record.

        end: bytes of the file that count. Raises DamagedError where a header is not as it was
        written, or does not follow; OSError.
        """
        place = self.place_of(file, sequence, end)
        for position, header in self._walk(file, place.position, end):
            if header.next_sequence > sequence:
                yield position, header

    def _entries_of(self, file: LogFile) -> list[Place]:
        beginning = Place(file.first_sequence, FILE_HEADER_SIZE)
        return self._entries.get(file.first_sequence, [beginning])

    def _start(self, file: LogFile, known: Place, sequence: int, behind: int) -> int:
        """Return where to walk from to a record between two entries: the first, or far before it.

        What is far before it need not be a batch.
        """
        with closing(self._disk.open_read(file.path)) as opened:
            window = ReadAhead(opened, end=behind, unreadable=[], piece=_PIECE)
            low, high = known.position, behind
            while high - low > ENTRY_BYTES:
                middle = (low + high) // 2
                found = self._batch_from(window, file, middle, high)
                if found is not None and found.sequence <= sequence:
                    low = found.position
                else:
                    high = middle
            # One batch begins in the first half of these bytes, so the second is walked over.
            far = self._batch_from(window, file, low - 2 * BELIEVED_BYTES, low)
        return known.position if far is None or far.position < known.position else far.position

    def _batch_from(self, window: ReadAhead, file: LogFile, start: int, end: int) -> Place | None:
        """Return what may be the first batch from a position on; None if none is near."""
        if start < FILE_HEADER_SIZE:
            return None
        # A batch begins and ends in so many bytes.
        end = min(end, start + 2 * BELIEVED_BYTES)
        position = find_batch(
            window.view, start=start, end=end, seed=self._seed, path=file.path, skip_newer=True
        )
        if position >= end:
            return None
        head = window.view(position, HEADER_SIZE_MAX)
        header = decode_header(head, seed=self._seed, path=file.path, position=position)
        return Place(header.base_sequence, position)

    def _walk_to(self, file: LogFile, start: int, sequence: int, end: int) -> Place | None:
        """Return the first batch with a record from `sequence` on; None if the file ends before."""
        for position, header in self._walk(file, start, end):
            if header.next_sequence > sequence:
                return Place(header.base_sequence, position)
        return None

    def _walk(self, file: LogFile, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        with closing(self._disk.open_read(file.path)) as opened:
            window = ReadAhead(opened, end=end, unreadable=[], piece=_PIECE)
            yield from walk_batches(
                window.view, start=start, end=end, seed=self._seed, path=file.path
            )


def _thinned(entries: list[Place]) -> list[Place]:
    """Return entries of which no two are near each other."""
    kept = entries[:1]
    for place in entries:
        if place.position - kept[-1].position >= ENTRY_BYTES:
            kept.append(place)
    return kept
