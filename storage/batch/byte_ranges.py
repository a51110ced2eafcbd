"""Where a large file of batches can be read from, so that several readers share it.

A cut is the beginning of a batch, found by hopping from header to header: nothing is searched, as a
message may hold the image of a batch. What lies behind the first irregular byte is not cut, so
whoever reads it finds out what is wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from storage.batch.batches import BatchHeader, decode_header
from storage.batch.file_header import FILE_HEADER_SIZE, HEADER_SIZE_MAX
from storage.disk.disk import ReadableDisk
from storage.disk.errors import DamagedError, UnsupportedFormatError
from storage.disk.read_ahead import ReadAhead

_PIECE = 16 * 1024
"""Read at a time: more than a header, for files of many small batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Batches that lie side by side in a file, from byte `start` to `end` (exclusive).

    previous_crc: of the batch before them, None if there is none; first: number or sequence of
    their first record, 0 where the file begins; after: that of the first one behind them, None for
    the last stretch of a file; count: records that their headers tell of, as far as they are
    regular.
    """

    start: int
    end: int
    previous_crc: int | None = None
    first: int = 0
    after: int | None = None
    count: int = 0

    @property
    def is_first(self) -> bool:
        """Whether the file begins with it."""
        return self.start == FILE_HEADER_SIZE


def stretches_of(
    disk: ReadableDisk, path: str, length: int, *, seed: int, size: int
) -> list[Stretch]:
    """Cut the first `length` bytes of a file into stretches of about `size` bytes, in order.

    seed: of its batches' CRCs. A stretch is larger where a batch is, and where something is
    irregular; a file that cannot be read is one stretch.
    """
    found: list[Stretch] = []
    open_one = Stretch(start=FILE_HEADER_SIZE, end=length)
    previous_crc = None
    for position, header in chained_headers(disk, path, length, seed=seed):
        if open_one.count and position - open_one.start >= size:
            found.append(replace(open_one, end=position, after=header.base_sequence))
            open_one = Stretch(
                start=position,
                end=length,
                previous_crc=previous_crc,
                first=header.base_sequence,
            )
        open_one = replace(open_one, count=open_one.count + header.count)
        previous_crc = header.crc
    return [*found, open_one]


def chained_headers(
    disk: ReadableDisk, path: str, length: int, *, seed: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of the batches as long as each follows the one before it.

    Only headers are read, of the first `length` bytes; it ends where something is irregular, or
    cannot be read. seed: as for `stretches_of`.
    """
    try:
        file = disk.open_read(path)
    except OSError:
        return
    try:
        end = min(length, file.size())
        window = ReadAhead(file, end=end, unreadable=[], piece=_PIECE)
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
