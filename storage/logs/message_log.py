"""The message_log: every accepted message, control record and fact, in the order of acceptance.

It is the truth from which everything else is derived. Files `message_log/<first sequence>.log`,
each a file header and batches (batches.py); records are numbered from 1 without gaps over all
files, and the chain of previous CRCs goes on from file to file. `message_log/durable_end` says how
far it is known to be durable (durable_end.py); recovery is in message_log_recovery.py.
"""

import contextlib
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from storage.batch.batches import (
    BatchHeader,
    Damage,
    LogBatch,
    check_columns,
    decode_batch,
    encode_batch,
    log_seed,
    walk_batches,
)
from storage.batch.columns import KINDS_WITH_ITEMS, Array, Columns, RecordKind, encode_columns
from storage.batch.file_header import LogKind
from storage.disk.disk import Bytes, Disk, size_of
from storage.disk.errors import (
    DamagedError,
    FatalDiskError,
    LogStateError,
    LogTrimmedError,
    StorageFullError,
    UnsupportedFormatError,
)
from storage.disk.read_ahead import ReadAhead
from storage.logs.log_tail import LogTail
from storage.logs.message_log_recovery import RecoveryReport, recover_message_log
from storage.logs.numbered_log import LogFile, LogWalk, PlacedBatch, files_from, log_file
from storage.logs.raw_batches import RawBatches, TailCut, decode_copied, read_batches_raw
from storage.logs.sparse_index import SparseIndex
from storage.state.durable_end import DurableEnd, DurableEndFile

__all__ = ["MESSAGE_LOG_DIRECTORY", "Draft", "MessageLog", "RecoveryReport", "Written"]

MESSAGE_LOG_DIRECTORY = "message_log"
_FILE_BYTES_MAX = 256 * 1024 * 1024
_COLUMNS_PIECE = 64 * 1024
"""Bytes read at a time where items are hopped over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One batch to be appended: everything but its place in the log.

    names, arrays: see columns.py; blob: the items in as many buffers as is convenient, their bytes
    one after another; count: records; features: bits of the batch header.
    """

    kind: RecordKind
    count: int
    names: Sequence[bytes] = ()
    arrays: Mapping[str, Array] = field(default_factory=dict)
    blob: Sequence[Bytes] = ()
    features: int = 0

    @property
    def blob_bytes(self) -> int:
        """Bytes of all items."""
        return sum(map(len, self.blob))


@dataclass(frozen=True, slots=True)
class Written:
    """Batches that are in the file of a log, durable after its `sync_written`.

    buffers: their bytes one after another, as they are there.
    """

    batches: Sequence[LogBatch]
    buffers: Sequence[Bytes]


class MessageLog:
    """An open message_log, to be used by one thread at a time; `read` may run in another.

    Invariants: everything up to `end` is durable, and the durable end file says so where the disk
    has space for it (itself durable after `sync_durable_end`). Bytes beyond `end` mean nothing; so
    what `write` has written does not until `sync_written`, and nothing else may be appended in
    between. After a FatalDiskError, or any other exception in the middle of an append, it refuses
    everything but reading.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        log_uuid: UUID,
        files: Sequence[LogFile],
        end: DurableEnd,
        durable_end: DurableEndFile,
        file_bytes_max: int,
        index: SparseIndex,
        first_sequence: int = 1,
        epoch_starts: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Take over what recovery established; others call `recover`.

        `end.position` 0 says that the file of `end.file_sequence` is still to be made.
        """
        self._disk = disk
        self._log_uuid = log_uuid
        self._seed = log_seed(log_uuid, LogKind.MESSAGE_LOG)
        self._files = tuple(files)
        self._first_sequence = first_sequence
        self._end = end
        self._durable_end = durable_end
        self._tail = LogTail(
            disk, MESSAGE_LOG_DIRECTORY, log_uuid=log_uuid, file_bytes_max=file_bytes_max
        )
        self._unsynced: tuple[Written, DurableEnd] | None = None
        """What was written and is not durable, and the end of the log once it is."""
        self.epoch_starts = tuple(epoch_starts)
        """Epoch and sequence of each EPOCH_START that recovery has met, or that came since: of all
        beyond the checkpoint, and of some before it."""
        self._index = index
        self._durable_end_behind = False
        self._failure: BaseException | None = None
        self.bytes_written = 0
        """Bytes appended since the log was opened."""
        self._messages = 0
        self._messages_before: dict[int, int] = {}
        """By first sequence of a file that was begun since: how many there were then."""

    @classmethod
    def recover(
        cls,
        disk: Disk,
        *,
        log_uuid: UUID,
        checkpoint_sequence: int,
        known_sequence: int,
        had_checkpoint: bool,
        first_sequence: int = 1,
        checkpoint_epoch: int = 0,
        copied_end: DurableEnd | None = None,
        file_bytes_max: int = _FILE_BYTES_MAX,
    ) -> tuple["MessageLog", RecoveryReport]:
        """Open the log after a stop of any kind; make it if there is none.

        checkpoint_sequence: the last record that the checkpoint covers, and checkpoint_epoch its
        epoch; known_sequence: the last one that anything else on this disk speaks of; 0 for none;
        had_checkpoint: whether there is a checkpoint: the first is written after the first recovery
        of the log, and so a log that has one must have a durable end.
        Records up to either were durable once, as were those below the durable end: bad batches
        there are reported and left as they are. Beyond, what is good and in order is kept, the
        rest is cut. first_sequence: the log is kept from here on; files before it, which may still
        be there, are none of it. copied_end: where it began, if the directory began as a copy.

        Raises UnsupportedFormatError, DataDirectoryError, LogStateError, FatalDiskError or
        StorageFullError; then nothing that was kept is lost.
        """
        durable_end = DurableEndFile(disk, MESSAGE_LOG_DIRECTORY, log_uuid=log_uuid)
        index = SparseIndex(disk, seed=log_seed(log_uuid, LogKind.MESSAGE_LOG))
        files, end, report = recover_message_log(
            disk,
            MESSAGE_LOG_DIRECTORY,
            log_uuid=log_uuid,
            durable_end=durable_end,
            index=index,
            checkpoint_sequence=checkpoint_sequence,
            known_sequence=known_sequence,
            had_checkpoint=had_checkpoint,
            first_sequence=first_sequence,
            checkpoint_epoch=checkpoint_epoch,
            copied_end=copied_end,
        )
        log = cls(
            disk,
            log_uuid=log_uuid,
            files=files,
            end=end,
            durable_end=durable_end,
            file_bytes_max=file_bytes_max,
            index=index,
            first_sequence=first_sequence,
            epoch_starts=report.epoch_starts,
        )
        if durable_end.damaged_slot is not None and durable_end.missing is None:
            # A power cut may have torn it. Whoever reads a manifest cannot know that, and a log at
            # rest would not write to the slot for long.
            log._write_durable_end()
            log.sync_durable_end()
        return log, report

    @property
    def next_sequence(self) -> int:
        """The sequence of the next record; 1 in a new log."""
        return self._end.next_sequence

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, in which appends are made; 0 in a new log."""
        return self._end.epoch

    @property
    def last_floor_minute(self) -> int:
        """The floor of the last batch."""
        return self._end.floor_minute

    @property
    def durable_end_synced(self) -> bool:
        """Whether the durable end itself is durable; it should be 20 ms after an append."""
        return self._durable_end.synced and not self._durable_end_behind

    @property
    def first_sequence(self) -> int:
        """The log is kept from this record on."""
        return self._first_sequence

    def files(self) -> Sequence[LogFile]:
        """Return the files of the log, oldest first."""
        return tuple(one for one in self._files if one.first_sequence >= self._first_sequence)

    def messages_from(self, first_sequence: int) -> int:
        """Return how many messages were appended to the file of this name and to later ones.

        Those from before the log was opened are not counted. May be called in another thread.
        """
        return self._messages - self._messages_before.get(first_sequence, 0)

    def drop_before(self, sequence: int) -> None:
        """Forget the files before this record, with which a file begins; the caller deletes them.

        May be called in another thread than the log's own.
        """
        self._first_sequence = max(self._first_sequence, sequence)

    def start_epoch(self, epoch: int, *, append_ms: int) -> LogBatch:
        """Append EPOCH_START, which must be the first record of a new log; return its batch."""
        assert epoch > self._end.epoch, f"epoch {epoch} after {self._end.epoch}"
        start = Draft(kind=RecordKind.EPOCH_START, count=1)
        written = self._write(
            [start], epoch=epoch, floor_minute=self._end.floor_minute, append_ms=append_ms
        )
        self.sync_written()
        return written.batches[0]

    def append(
        self, drafts: Sequence[Draft], *, append_ms: int, floor_minute: int | None = None
    ) -> list[LogBatch]:
        """Append batches in one write and return them as they are in the log; they are durable.

        floor_minute: of all of them; never below that of the batch before, which None repeats.
        Raises StorageFullError with nothing of it kept: the log goes on as if it had not been
        called. Raises FatalDiskError if nobody can say what is on the disk; recovery will.
        ValueError if a batch contradicts itself.
        """
        written = self.write(drafts, append_ms=append_ms, floor_minute=floor_minute)
        self.sync_written()
        return list(written.batches)

    def write(
        self, drafts: Sequence[Draft], *, append_ms: int, floor_minute: int | None = None
    ) -> Written:
        """Do the first half of `append`: the batches are in the file, and not the log's yet.

        `sync_written` does the other half. Raises what `append` does.
        """
        assert self._end.epoch > 0, "the first record of a log is EPOCH_START"
        floor_minute = self._end.floor_minute if floor_minute is None else floor_minute
        epoch = self._end.epoch
        return self._write(drafts, epoch=epoch, floor_minute=floor_minute, append_ms=append_ms)

    def _write(
        self, drafts: Sequence[Draft], *, epoch: int, floor_minute: int, append_ms: int
    ) -> Written:
        self._require_usable()
        assert floor_minute >= self._end.floor_minute, (
            f"floor {floor_minute} after {self._end.floor_minute}"
        )
        batches, buffers = _encode(
            drafts,
            after=self._end,
            seed=self._seed,
            epoch=epoch,
            floor_minute=floor_minute,
            append_ms=append_ms,
        )
        return self._write_encoded(batches, buffers)

    def append_copied(self, data: Bytes) -> list[LogBatch]:
        """Append whole batches as another node has them; return them, durable.

        Raises CopyRefusedError with nothing written unless they go on from the end of this log
        (raw_batches.py), and what `append` raises.
        """
        self._require_usable()
        batches = decode_copied(data, after=self._end, seed=self._seed)
        self._write_encoded(batches, [data])
        self.sync_written()
        return batches

    def _write_encoded(self, batches: Sequence[LogBatch], buffers: Sequence[Bytes]) -> Written:
        assert self._unsynced is None, "what was written is not synced yet"
        written = Written(batches, buffers)
        if not batches:
            return written
        last = batches[-1].header
        with self._appending():
            place = self._tail.write(self._end, _size_of(batches), buffers)
        end = replace(
            place,
            next_sequence=last.next_sequence,
            last_crc=last.crc,
            epoch=last.epoch,
            floor_minute=last.floor_minute,
        )
        self._unsynced = written, end
        return written

    def sync_written(self) -> None:
        """Make durable what `write` has written, if anything: it is of the log then.

        Raises what `append` does.
        """
        self._require_usable()
        if self._unsynced is None:
            return
        (written, end), self._unsynced = self._unsynced, None
        batches = written.batches
        with self._appending():
            self._tail.sync()
        self._settle(end)
        size = _size_of(batches)
        self.bytes_written += size
        self._write_durable_end()
        position = end.position - size
        for batch in batches:
            self._index.note(self._files[-1], position, batch.header)
            position += batch.header.size
            if batch.header.kind is RecordKind.MESSAGE:
                self._messages += batch.header.count
            elif batch.header.kind is RecordKind.EPOCH_START:
                start = batch.header.epoch, batch.header.base_sequence
                self.epoch_starts = (*self.epoch_starts, start)

    @contextlib.contextmanager
    def _appending(self) -> Iterator[None]:
        """Take back an append that found no space; refuse everything if it failed otherwise."""
        with self._stopping():
            try:
                yield
            except StorageFullError:
                self._tail.undo(self._end)
                raise

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """Refuse everything but reading from now on if this fails, but for want of space."""
        try:
            yield
        except StorageFullError:
            raise
        except BaseException as error:
            self._failure = error
            raise

    def _write_durable_end(self) -> None:
        with self._stopping():
            try:
                self._durable_end.write(self._end)
            except StorageFullError:
                # Some file systems need space even to overwrite. The batches are durable, and
                # recovery keeps good batches beyond the durable end: no reason to stop.
                self._durable_end_behind = True
            else:
                self._durable_end_behind = False

    def _settle(self, end: DurableEnd) -> None:
        """Make the end of a successful append the end of the log."""
        if not self._files or self._files[-1].first_sequence != end.file_sequence:
            files = self.files()
            kept = {file.first_sequence for file in files}
            # Never changed in place, and there before the file is: others look at both.
            self._messages_before = {
                first: count for first, count in self._messages_before.items() if first in kept
            } | {end.file_sequence: self._messages}
            self._files = (*files, log_file(MESSAGE_LOG_DIRECTORY, end.file_sequence))
        self._end = end

    def read(self, from_sequence: int) -> Iterator[LogBatch | Damage]:
        """Yield the batches that hold `from_sequence` and later records, fully checked.

        The first may begin below it. What is damaged or missing comes as Damage in its place, with
        the sequences lost by it. Ends with what was durable when the reading began. Raises
        UnsupportedFormatError or DataDirectoryError.

        What is below `first_sequence` was deleted on purpose: it is passed over in silence.
        """
        end, files = self._end, self.files()
        from_sequence = max(from_sequence, self._first_sequence)
        if from_sequence >= end.next_sequence or not files:
            return
        files = tuple(files_from(files, from_sequence))
        counted = end.position if files[0].first_sequence == end.file_sequence else None
        place = self._index.place_of(files[0], from_sequence, counted)
        walk = LogWalk(
            self._disk,
            files,
            log_uuid=self._log_uuid,
            kind=LogKind.MESSAGE_LOG,
            first_sequence=min(place.sequence, from_sequence),
            until=end.next_sequence,
            check=self._decode,
            skip_below=from_sequence,
            start=place.position,
            end=end.position or None,
        )
        for found in walk:
            yield found.content if isinstance(found, PlacedBatch) else found

    def batches_of(self, sequences: Iterable[int]) -> Iterator[LogBatch]:
        """Yield the batches that have these records, which ascend, each once and fully checked.

        What cannot be read, and what is not in the log, is left out.
        """
        end, files, left = self._end, self.files(), deque(sequences)
        while left and files and left[0] < end.next_sequence:
            wanted = left[0]
            file = files_from(files, wanted)[0]
            with contextlib.suppress(DamagedError, UnsupportedFormatError, OSError):
                yield from self._batches_in(file, left, self._bytes_of(file, end))
            if left and left[0] == wanted:
                left.popleft()

    def _batches_in(self, file: LogFile, left: deque[int], end: int) -> Iterator[LogBatch]:
        """Yield batches that have some of these records, and take them away, while they are near.

        end: bytes of the file that count.
        """
        with contextlib.closing(self._disk.open_read(file.path)) as opened:
            for position, header in self._index.headers_from(file, left[0], end):
                while left and left[0] < header.base_sequence:
                    left.popleft()
                wanted = len(left)
                while left and left[0] < header.next_sequence:
                    left.popleft()
                if len(left) < wanted:
                    data = memoryview(opened.read_at(position, header.size))
                    yield self._decode(header, data, file.path, position)
                behind = position + header.size
                if not left or self._index.place_of(file, left[0], end).position > behind:
                    return

    def read_columns(self, from_sequence: int) -> Iterator[tuple[BatchHeader, Columns]]:
        """Yield header and columns of the batches that hold `from_sequence` and later records.

        Items are not read. What is behind damage in a file is passed over in silence, as is what is
        below `first_sequence`. Ends with what was durable when the reading began. May run in
        another thread.
        """
        end, files = self._end, self.files()
        from_sequence = max(from_sequence, self._first_sequence)
        if from_sequence >= end.next_sequence or not files:
            return
        for file in files_from(files, from_sequence):
            with contextlib.suppress(DamagedError, UnsupportedFormatError, OSError):
                yield from self._columns_of(file, from_sequence, self._bytes_of(file, end))

    def _columns_of(
        self, file: LogFile, from_sequence: int, end: int
    ) -> Iterator[tuple[BatchHeader, Columns]]:
        place = self._index.place_of(file, from_sequence, end)
        with contextlib.closing(self._disk.open_read(file.path)) as opened:
            window = ReadAhead(opened, end=end, unreadable=[], piece=_COLUMNS_PIECE)
            for position, header in walk_batches(
                window.view, start=place.position, end=end, seed=self._seed, path=file.path
            ):
                if header.next_sequence > from_sequence:
                    self._index.note(file, position, header)
                    data = window.view(position, header.blob_offset)
                    yield (
                        header,
                        check_columns(
                            header, data, seed=self._seed, path=file.path, position=position
                        ),
                    )

    def first_since(self, since_ms: int) -> int:
        """Return a record behind which all are that were appended since then, and few before.

        It goes by the append times of batches, as if the clock had never been set back. 1 where the
        log has no such time. May run in another thread.
        """
        end, files = self._end, self.files()
        for file in reversed(files):
            if self._appended_ms(file, file.first_sequence, end) > since_ms:
                continue
            count = end.next_sequence - file.first_sequence
            # A thousandth of it more or less does not matter.
            records = range(file.first_sequence, end.next_sequence, max(count // 1000, 1))
            behind = bisect_right(
                records, float(since_ms), key=lambda record: self._appended_ms(file, record, end)
            )
            return records[behind - 1]
        return self._first_sequence

    def _appended_ms(self, file: LogFile, sequence: int, end: DurableEnd) -> float:
        """Return when a record of a file was appended; infinity behind it, or if it is damaged."""
        try:
            headers = self._index.headers_from(file, sequence, self._bytes_of(file, end))
            _, header = next(headers, (0, None))
        except (DamagedError, UnsupportedFormatError, OSError):
            return math.inf
        return math.inf if header is None else header.append_ms

    def read_raw(self, from_sequence: int, *, bytes_max: int) -> RawBatches:
        """Return batches as they are on disk, from the one on that holds `from_sequence`.

        At most so many bytes, of one file; but one batch whatever it has, while there is any.
        May run in another thread. Raises LogTrimmedError below `first_sequence`, DamagedError if a
        byte is not as it was written, OSError.
        """
        end, files = self._end, self.files()
        if from_sequence < self._first_sequence:
            raise LogTrimmedError(
                f"record {from_sequence} is not kept any more, the log begins with "
                f"{self._first_sequence}"
            )
        if from_sequence >= end.next_sequence or not files:
            return RawBatches(from_sequence, from_sequence, b"")
        file = files_from(files, from_sequence)[0]
        return read_batches_raw(
            self._disk,
            self._index,
            file,
            seed=self._seed,
            sequence=from_sequence,
            end=self._bytes_of(file, end),
            bytes_max=bytes_max,
        )

    def crc_before(self, sequence: int) -> int | None:
        """Return the CRC of the batch that ends right before a record; 0 before the first of all.

        None if no batch begins with it, or it is not kept any more. May run in another thread.
        Raises DamagedError where a header is not as it was written, or the file with it is gone;
        OSError.
        """
        end, files = self._end, self.files()
        if sequence == end.next_sequence:
            return end.last_crc
        if not self._first_sequence <= sequence < end.next_sequence or not files:
            return None
        file = files_from(files, sequence)[0]
        headers = self._index.headers_from(file, sequence, self._bytes_of(file, end))
        header = next((header for _, header in headers), None)
        if header is None or header.base_sequence > sequence:
            reason = f"record {sequence} is in no file"
            raise DamagedError(path=MESSAGE_LOG_DIRECTORY, position=0, reason=reason)
        return header.previous_crc if header.base_sequence == sequence else None

    def _bytes_of(self, file: LogFile, end: DurableEnd) -> int:
        """Return how many bytes of a file count, where the log ends there."""
        if file.first_sequence == end.file_sequence:
            return end.position
        return size_of(self._disk, file.path)

    def cut_to(self, epoch: int, sequence: int, *, not_below: int) -> range:
        """Give up all records of later epochs, and those from `sequence` on; return which.

        Whole batches go, and `next_sequence` says what comes next. not_below: the end of what is
        committed, which must stay. Raises LogStateError, with nothing changed, if a committed
        record would go; StorageFullError likewise; DamagedError where the log cannot be read;
        FatalDiskError.
        """
        self._require_usable()
        assert self._unsynced is None, "what was written is not synced yet"
        if not self.files():
            return range(0)
        tail = TailCut(
            self._disk,
            MESSAGE_LOG_DIRECTORY,
            files=self.files(),
            index=self._index,
            end=self._end,
        )
        left = tail.find(epoch, sequence, not_below)
        gone = range(left.next_sequence, self._end.next_sequence)
        if not gone:
            return gone
        if left.next_sequence < not_below:
            raise LogStateError(
                f"a cut of the message_log to record {left.next_sequence} was refused: all below "
                f"{not_below} is committed"
            )
        with self._stopping():
            self._tail.close()
            self._files = tuple(tail.cut(left, self._durable_end))
        self._index.forget(left.file_sequence)
        self._messages, self._messages_before = 0, {}
        self.epoch_starts = tuple(x for x in self.epoch_starts if x[1] < left.next_sequence)
        self._end = left
        return gone

    def _decode(self, header: BatchHeader, data: memoryview, path: str, position: int) -> LogBatch:
        return decode_batch(header, data, seed=self._seed, path=path, position=position)

    def sync_durable_end(self) -> None:
        """Make the durable end itself durable, as far as the disk has space. FatalDiskError."""
        self._require_usable()
        if self._durable_end_behind:
            self._write_durable_end()
        with self._stopping():
            self._durable_end.sync()

    def require_in_place(self) -> None:
        """Refuse every append from now on if the directory or the open file is elsewhere now.

        Raises FatalDiskError.
        """
        self._require_usable()
        with self._stopping():
            self._tail.require_in_place()

    def close(self) -> None:
        """Give the descriptors back; makes nothing durable."""
        self._tail.close()
        self._durable_end.close()

    def _require_usable(self) -> None:
        if self._failure is not None:
            raise FatalDiskError(
                f"the message_log stopped when an append failed ({self._failure}); a restart "
                "recovers it"
            ) from self._failure


def _encode(
    drafts: Sequence[Draft],
    *,
    after: DurableEnd,
    seed: int,
    epoch: int,
    floor_minute: int,
    append_ms: int,
) -> tuple[list[LogBatch], list[Bytes]]:
    """Return the batches that come behind the end of a log, and their bytes."""
    sequence, crc = after.next_sequence, after.last_crc
    batches: list[LogBatch] = []
    buffers: list[Bytes] = []
    for draft in drafts:
        _require_whole(draft)
        header, parts = encode_batch(
            seed=seed,
            kind=draft.kind,
            epoch=epoch,
            base_sequence=sequence,
            count=draft.count,
            floor_minute=floor_minute,
            append_ms=append_ms,
            previous_crc=crc,
            columns=encode_columns(draft.kind, draft.names, draft.arrays),
            blob=draft.blob,
            features=draft.features,
        )
        _, _, *items = parts
        blob = items[0] if len(items) == 1 else b"".join(items)
        batches.append(LogBatch(header, Columns(list(draft.names), dict(draft.arrays)), blob))
        buffers += parts
        sequence, crc = header.next_sequence, header.crc
    return batches, buffers


def _size_of(batches: Sequence[LogBatch]) -> int:
    return sum(batch.header.size for batch in batches)


def _require_whole(draft: Draft) -> None:
    """Raise ValueError unless the batch could be decoded again (encode_columns sees the rest)."""
    for name, array in draft.arrays.items():
        if len(array) != draft.count:
            raise ValueError(f"column {name} has {len(array)} rows, not {draft.count}")
    items = int(draft.arrays["size"].sum()) if draft.kind in KINDS_WITH_ITEMS else 0
    if items != draft.blob_bytes:
        raise ValueError(f"items of {items} bytes in a blob of {draft.blob_bytes}")
