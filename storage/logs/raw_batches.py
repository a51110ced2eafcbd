"""Batches of a message_log as they are in its files: what one node copies from another.

read      whole batches from a sequence on, every byte checked
decode    batches that another node sent, if they go on from the end of this log
cut       give up the end of a log that another node's log contradicts
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from storage.batch.batches import BatchHeader, LogBatch, contents_fault, decode_batch, decode_header
from storage.batch.columns import RecordKind
from storage.batch.facts import KINDS_OF_LOG
from storage.batch.file_header import FILE_HEADER_SIZE, HEADER_SIZE_MAX
from storage.disk.disk import Bytes, Disk, ReadableDisk, size_of
from storage.disk.errors import (
    CopyRefusedError,
    DamagedError,
    LogStateError,
    UnsupportedFormatError,
)
from storage.logs.numbered_log import LogFile, files_from
from storage.logs.sparse_index import SparseIndex
from storage.state.durable_end import DurableEnd, DurableEndFile


@dataclass(frozen=True, slots=True)
class RawBatches:
    """Whole batches, one after another.

    Records from `first_sequence` on; next_sequence: behind the last; data: empty if there are none.
    """

    first_sequence: int
    next_sequence: int
    data: bytes


def read_batches_raw(
    disk: ReadableDisk,
    index: SparseIndex,
    file: LogFile,
    *,
    seed: int,
    sequence: int,
    end: int,
    bytes_max: int,
) -> RawBatches:
    """Return batches of one file, from the one on that holds a record, at most so many bytes.

    One batch comes whatever it has. end: bytes of the file that count. Raises DamagedError if a
    byte is not as it was written; OSError.
    """
    found: list[tuple[int, BatchHeader]] = []
    size = 0
    for position, header in index.headers_from(file, sequence, end):
        if found and size + header.size > bytes_max:
            break
        found.append((position, header))
        size += header.size
    if not found:
        return RawBatches(sequence, sequence, b"")
    begin = found[0][0]
    with closing(disk.open_read(file.path)) as opened:
        data = opened.read_at(begin, size)
    view = memoryview(data)
    for position, header in found:
        part = view[position - begin : position - begin + header.size]
        fault = contents_fault(header, part, seed)
        if fault is not None:
            raise DamagedError(path=file.path, position=position, reason=fault)
    return RawBatches(found[0][1].base_sequence, found[-1][1].next_sequence, data)


def decode_copied(data: Bytes, *, after: DurableEnd, seed: int) -> list[LogBatch]:
    """Return the batches in `data` if they go on from the end of a log; every byte is checked.

    Sequences without a gap, the chain of CRCs, an epoch that only EPOCH_START raises, and a floor
    that never falls. Raises CopyRefusedError.
    """
    batches: list[LogBatch] = []
    view, position = memoryview(data), 0
    sequence, crc, epoch = after.next_sequence, after.last_crc, after.epoch
    floor = after.floor_minute
    where = f"a batch that was sent as record {sequence} and on"
    while position < len(view):
        try:
            part = view[position:]
            header = decode_header(part[:HEADER_SIZE_MAX], seed=seed, path=where, position=position)
            fault = _fault_of_copy(header, sequence=sequence, crc=crc, epoch=epoch, floor=floor)
            if fault is not None:
                raise CopyRefusedError(f"{where}: {fault}")
            batch = decode_batch(
                header, part[: header.size], seed=seed, path=where, position=position
            )
        except (DamagedError, UnsupportedFormatError) as error:
            raise CopyRefusedError(str(error)) from error
        batches.append(batch)
        sequence, crc, epoch = header.next_sequence, header.crc, header.epoch
        floor, position = header.floor_minute, position + header.size
    return batches


def _fault_of_copy(
    header: BatchHeader, *, sequence: int, crc: int, epoch: int, floor: int
) -> str | None:
    if header.kind not in KINDS_OF_LOG:
        return f"a batch of {header.kind.name} does not belong in a message_log"
    if header.base_sequence != sequence:
        return f"it begins with {header.base_sequence}, and {sequence} comes next"
    if header.previous_crc != crc:
        return f"it was written behind another batch than the one before {sequence}"
    if header.epoch < epoch or (header.epoch > epoch) != (header.kind is RecordKind.EPOCH_START):
        return f"a batch of {header.kind.name} in epoch {header.epoch} after epoch {epoch}"
    if header.floor_minute < floor:
        return f"its floor {header.floor_minute} is below {floor}"
    return None


class TailCut:
    """Gives up the end of a log, in an order that is safe at each crash.

    The durable end is lowered first and fsynced; then the files behind the cut go from the last to
    the first, each with an fsync of the directory; then the file with the cut is truncated and
    fsynced. A crash in between leaves a log of which less was cut: whole batches, in order, that
    are cut when the cut is asked for again.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        files: Sequence[LogFile],
        index: SparseIndex,
        end: DurableEnd,
    ) -> None:
        """Prepare for a log with these files and this end."""
        self._disk = disk
        self._directory = directory
        self._files = list(files)
        self._index = index
        self._end = end

    def find(self, epoch: int, sequence: int, not_below: int) -> DurableEnd:
        """Return the end that is left if all is cut of later epochs, or from `sequence` on.

        Whole batches only: one that holds a record on either side goes. not_below: as a rule what
        lies before this record is not cut. Raises DamagedError where the log cannot be walked that
        far, OSError.
        """
        first = self._files[0].first_sequence
        near = max(min(sequence, not_below) - 1, first)
        left = self._find_from(near, epoch, sequence)
        if left is None and near > first:
            left = self._find_from(first, epoch, sequence)
        if left is None:
            raise LogStateError(
                "nothing would be left of the message_log: the cut is before its first record"
            )
        return left

    def _find_from(self, first: int, epoch: int, sequence: int) -> DurableEnd | None:
        """Return the same, walking from a record on; None if that goes as well."""
        kept: BatchHeader | None = None
        files = list(files_from(self._files, first))
        file, position = files[0], FILE_HEADER_SIZE
        for current in files:
            begin = max(first, current.first_sequence)
            until = self._size_of(current)
            for at, header in self._index.headers_from(current, begin, until):
                if header.epoch > epoch or header.next_sequence > sequence:
                    return self._end_behind(kept, file, position)
                kept, file, position = header, current, at + header.size
        return self._end_behind(kept, file, position)

    def _end_behind(
        self, kept: BatchHeader | None, file: LogFile, position: int
    ) -> DurableEnd | None:
        if kept is None:
            return None
        return replace(
            self._end,
            next_sequence=kept.next_sequence,
            file_sequence=file.first_sequence,
            position=position,
            last_crc=kept.crc,
            epoch=kept.epoch,
            floor_minute=kept.floor_minute,
        )

    def cut(self, left: DurableEnd, durable_end: DurableEndFile) -> list[LogFile]:
        """Take away what goes; return the files that are left.

        Raises FatalDiskError, or StorageFullError while nothing is changed.
        """
        durable_end.write(left)
        durable_end.sync()
        while self._files[-1].first_sequence > left.file_sequence:
            self._disk.unlink(self._files.pop().path)
            self._disk.sync_directory(self._directory)
        with closing(self._disk.open(self._files[-1].path)) as file:
            file.truncate(left.position)
            file.sync()
        return self._files

    def _size_of(self, file: LogFile) -> int:
        """Return how many bytes of a file count."""
        if file.first_sequence == self._end.file_sequence and self._end.position:
            return self._end.position
        return size_of(self._disk, file.path)
