"""Recovery of the message_log: keep what may have been acknowledged, cut what cannot have been.

Four witnesses tell which records were durable once: the durable end, the checkpoint, whatever else
on this disk speaks of a record, and the names of the files (a file is only made when all before it
is durable). Below the largest of them (the *bound*) a bad batch is damage: it is reported and left,
neighbours are used, nothing is numbered anew. Beyond the bound, in the last file, lies what was
being written when the process stopped. As far as it is good and in order it is kept, since it may
have been acknowledged (the durable end itself reaches the disk a little later); the first bad batch
and all that follows is cut.

What is kept beyond the bound is written again in place and fsynced before anybody uses it: after a
failed fsync the page cache shows bytes that the disk never got.

A directory that began as a copy has a checkpoint that says behind which batch its log begins: until
the durable end says more, that counts in its place. Where nothing that is kept of a log was ever
written there is no file, and none is missing.

The durable end is made before the log's first file, and before the first checkpoint. Where there is
either it must be there; if it is not, or not as it was written, nothing is cut, since nobody knows
whether that was acknowledged: the recovery fails if something would have to be.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from storage.batch.batches import BatchHeader, Damage, contents_fault, log_seed
from storage.batch.columns import RecordKind
from storage.batch.file_header import FILE_HEADER_SIZE, FileHeader, LogKind, encode_file_header
from storage.disk.disk import Disk, File
from storage.disk.errors import DamagedError, FatalDiskError, LogStateError
from storage.disk.read_ahead import READ_BLOCK_SIZE
from storage.logs.numbered_log import (
    LogFile,
    LogWalk,
    PlacedBatch,
    files_from,
    list_log_files,
)
from storage.logs.sparse_index import SparseIndex
from storage.state.durable_end import DURABLE_END_NAME, END_IS_GONE, DurableEnd, DurableEndFile


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """What recovery found in the message_log, and what it did."""

    durable_sequence: int
    """The last record that was known to be durable."""
    last_sequence: int
    """The last record of the log as it is now."""
    damages: list[Damage] = field(default_factory=list)
    """Bytes of durable records that are not as they were written; left as they are."""
    cut: list[Damage] = field(default_factory=list)
    """What was cut, by file; the reason is why the first of it was no good."""
    kept_batches: int = 0
    """Batches beyond the durable records that were good, and written again."""
    epoch_starts: list[tuple[int, int]] = field(default_factory=list)
    """Epoch and sequence of each EPOCH_START that was walked over: all beyond the checkpoint."""


def recover_message_log(
    disk: Disk,
    directory: str,
    *,
    log_uuid: UUID,
    durable_end: DurableEndFile,
    index: SparseIndex,
    checkpoint_sequence: int,
    known_sequence: int,
    had_checkpoint: bool,
    first_sequence: int = 1,
    checkpoint_epoch: int = 0,
    copied_end: DurableEnd | None = None,
) -> tuple[Sequence[LogFile], DurableEnd, RecoveryReport]:
    """Bring the files to the state the module's docstring prescribes; return them and the end.

    `end.position` is 0 where the next append has to begin a file. The durable end is durable then.
    """
    if not disk.exists(directory):
        disk.make_directory(directory)
        disk.sync_directory("")
    bound = max(checkpoint_sequence, known_sequence) + 1
    recovery = _Recovery(disk, directory, log_uuid, bound, first_sequence)
    recovery.hear(durable_end, had_checkpoint=had_checkpoint, copied_end=copied_end)
    end = recovery.run(checkpoint_sequence, checkpoint_epoch, index)
    durable_end.write(end)
    durable_end.sync()
    return recovery.files, end, recovery.report


def no_file_left(records: int) -> str:
    """Return what there is to say of a message_log that had so many records and has no file."""
    return f"no file is left of a log that had {records} records"


class _Recovery:
    """One recovery, from witnesses to the end of the log."""

    def __init__(
        self, disk: Disk, directory: str, log_uuid: UUID, bound: int, first_sequence: int
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._log_uuid = log_uuid
        self._seed = log_seed(log_uuid, LogKind.MESSAGE_LOG)
        self._witness: DurableEnd | None = None
        self._witness_damage: DamagedError | None = None
        """Why the durable end may say less than it did."""
        self._bound = bound
        """Records below it were durable once."""
        self._first_sequence = first_sequence
        self._open_files: dict[str, File] = {}
        """Files that were changed, and have to be synced."""
        # What is kept begins with a file: those before it are deleted, now or soon.
        self.files = [
            file
            for file in list_log_files(disk, directory)
            if file.first_sequence >= first_sequence
        ]
        if self.files:
            self._bound = max(bound, self.files[-1].first_sequence)
        # The end, as far as it has been found.
        self._next = 1
        self._crc: int | None = 0
        """Of the last batch; None where that is not known."""
        self._position = 0
        self._ends_well = False
        """Whether the last thing in the last file is a good batch, so that another may follow."""
        self._epoch = 0
        self._floor = 0
        self.report = RecoveryReport(durable_sequence=0, last_sequence=0)

    def hear(
        self,
        durable_end: DurableEndFile,
        *,
        had_checkpoint: bool,
        copied_end: DurableEnd | None,
    ) -> None:
        """Learn from the durable end, if there is one that can be read, and from a copy's."""
        witness = None
        try:
            witness = durable_end.read()
            self._witness_damage = durable_end.missing
        except DamagedError as error:
            self._witness_damage = error
        is_new = not had_checkpoint and self._bound == 1 and not self.files
        if witness is None and self._witness_damage is None and not is_new:
            path = f"{self._directory}/{DURABLE_END_NAME}"
            self._witness_damage = DamagedError(path=path, position=0, reason=END_IS_GONE)
        if self._witness_damage is not None:
            damage = self._witness_damage
            self.report.damages.append(Damage(damage.path, damage.position, 0, damage.reason))
        if copied_end is not None and (
            witness is None or witness.next_sequence < copied_end.next_sequence
        ):
            witness = copied_end
        if witness is not None:
            self._witness = witness
            self._bound = max(self._bound, witness.next_sequence)
            self._epoch, self._floor = witness.epoch, witness.floor_minute

    def run(
        self, checkpoint_sequence: int, checkpoint_epoch: int, index: SparseIndex
    ) -> DurableEnd:
        """Walk, keep, cut and make durable; return the end of the log."""
        first = self._first_sequence
        if self.files and first < (begin := self.files[0].first_sequence) <= checkpoint_sequence:
            # What is missing behind the checkpoint the walk finds.
            reason = f"records {first} to {begin - 1} are in no file"
            self.report.damages.append(Damage(self._directory, 0, 0, reason, None, first, begin))
        try:
            if self.files:
                self._walk(checkpoint_sequence, index)
            elif self._bound > self._first_sequence:
                self._miss_all(checkpoint_sequence)
            elif self._bound > 1:
                self._next, self._crc = self._bound, None
            self._make_durable()
        finally:
            for file in self._open_files.values():
                file.close()
        if self._next <= checkpoint_sequence + 1:
            # No record is behind the checkpoint, so it knows the epoch if nobody else does.
            self._epoch = max(self._epoch, checkpoint_epoch)
        end = self._end()
        self.report.durable_sequence = self._bound - 1
        self.report.last_sequence = end.next_sequence - 1
        return end

    def _miss_all(self, checkpoint_sequence: int) -> None:
        first = min(checkpoint_sequence + 1, self._bound)
        reason = no_file_left(self._bound - 1)
        self.report.damages.append(Damage(self._directory, 0, 0, reason, None, first, self._bound))
        self._next, self._crc = self._bound, None

    def _walk(self, checkpoint_sequence: int, index: SparseIndex) -> None:
        """Walk the log from the checkpoint on; what lies before it is not looked at."""
        files = files_from(self.files, checkpoint_sequence)
        place = index.place_of(files[0], checkpoint_sequence)
        self._next = min(place.sequence, checkpoint_sequence + 1)
        walk = LogWalk(
            self._disk,
            files,
            log_uuid=self._log_uuid,
            kind=LogKind.MESSAGE_LOG,
            first_sequence=self._next,
            until=self._bound,
            check=self._intact,
            start=place.position,
        )
        self._crc = walk.previous_crc
        for found in walk:
            if isinstance(found, PlacedBatch):
                self._keep(found)
            elif not self._cut_here(found, walk):
                self._accept(found, walk)
            else:
                return
        self._position = walk.end

    def _intact(
        self, header: BatchHeader, data: memoryview, path: str, position: int
    ) -> memoryview:
        fault = contents_fault(header, data, self._seed)
        if fault is not None:
            raise DamagedError(path=path, position=position, reason=fault)
        return data

    def _keep(self, batch: PlacedBatch[memoryview]) -> None:
        header = batch.header
        self._next, self._crc, self._ends_well = header.next_sequence, header.crc, True
        self._epoch = max(self._epoch, header.epoch)
        self._floor = max(self._floor, header.floor_minute)
        if header.kind is RecordKind.EPOCH_START:
            self.report.epoch_starts.append((header.epoch, header.base_sequence))
        if header.next_sequence > self._bound:
            self._changed(batch.file).write_at(batch.position, [batch.content])
            self.report.kept_batches += 1

    def _accept(self, damage: Damage, walk: LogWalk[memoryview]) -> None:
        self.report.damages.append(damage)
        self._next, self._crc, self._ends_well = walk.next_sequence, walk.previous_crc, False
        if damage.header is not None:
            # What comes next must not be below what it says, and nobody else may know that.
            self._epoch = max(self._epoch, damage.header.epoch)
            self._floor = max(self._floor, damage.header.floor_minute)

    def _cut_here(self, damage: Damage, walk: LogWalk[memoryview]) -> bool:
        """Cut the log where this damage begins, unless it is of durable records; say if it was."""
        assert damage.first_sequence is not None
        if damage.path != self.files[-1].path:
            return False
        witness = self._witness
        durable_there = (
            witness is not None
            and witness.file_sequence == self.files[-1].first_sequence
            and damage.position < witness.position
        )
        if damage.first_sequence >= self._bound and not durable_there:
            self._cut(damage, damage.position, walk)
            return True
        if (
            damage.header is None
            and witness is not None
            and witness.next_sequence == self._bound
            and witness.file_sequence == self.files[-1].first_sequence
            and damage.position < witness.position < damage.position + damage.size
        ):
            # Its header is lost, so the damage of the last durable batch seems to go on into what
            # followed. But where the durable records end is known.
            size = witness.position - damage.position
            self._accept(replace(damage, size=size, next_sequence=self._bound), walk)
            self._next, self._crc = self._bound, None
            self._cut(damage, witness.position, walk)
            return True
        return False

    def _cut(self, damage: Damage, position: int, walk: LogWalk[memoryview]) -> None:
        """Cut the last file at `position`, or remove it if nothing of it is left."""
        file = self._open(damage.path)
        size = file.size()
        if self._witness_damage is not None and size > position:
            raise LogStateError(
                f"{damage.path} cannot be read from position {position} on ({damage.reason}), and "
                f"{self._witness_damage.path} cannot tell whether that was acknowledged "
                f"({self._witness_damage.reason}); send what `delaywheel log salvage` finds to a "
                "node on an empty directory (--send), or give up all from there on: keep a copy "
                f"of {damage.path} and cut it (in the data directory: `truncate -s {position} "
                f"{damage.path}`)"
            ) from self._witness_damage
        if any(path == damage.path and block + READ_BLOCK_SIZE > position
               for path, block in walk.unreadable):  # fmt: skip
            raise FatalDiskError(f"{damage.path}: read error behind position {position}")
        self.report.cut.append(replace(damage, position=position, size=size - position))
        file.truncate(position)
        self._position = position

    def _changed(self, file: LogFile) -> File:
        """Return a file to write to, its header written again if it is not known to be durable."""
        known = self._open_files.get(file.path)
        if known is not None:
            return known
        opened = self._open(file.path)
        if file.first_sequence >= self._bound:
            header = FileHeader(LogKind.MESSAGE_LOG, self._log_uuid, file.first_sequence)
            opened.write_at(0, [encode_file_header(header)])
        return opened

    def _open(self, path: str) -> File:
        file = self._open_files.get(path)
        if file is None:
            file = self._open_files[path] = self._disk.open(path)
        return file

    def _make_durable(self) -> None:
        if self.files:
            # A start that was killed may have cut it, and no disk knows of that yet.
            self._open(self.files[-1].path)
        for file in self._open_files.values():
            file.sync()
        if not self.files:
            return
        last = self.files[-1]
        never_used = last.first_sequence >= self._next
        if self._position <= FILE_HEADER_SIZE and (never_used or self.report.cut):
            # Nothing is in it: the append that needs it makes it again.
            self._disk.unlink(last.path)
            self.files.pop()
            self._ends_well = False
        self._disk.sync_directory(self._directory)

    def _end(self) -> DurableEnd:
        """Return the end, in the last file if another batch may follow there, or in a new one."""
        if self._next > 1 and self._epoch == 0:
            raise LogStateError(
                f"no batch of the {self._directory} can be read, so its epoch is not known; "
                "send what `delaywheel log salvage` finds to a node on an empty directory (--send)"
            )
        crc = self._crc
        if crc is None:
            witness = self._witness
            known = witness is not None and witness.next_sequence == self._next
            crc = witness.last_crc if witness is not None and known else 0
        goes_on = self._ends_well and bool(self.files)
        return DurableEnd(
            next_sequence=self._next,
            file_sequence=self.files[-1].first_sequence if goes_on else self._next,
            position=self._position if goes_on else 0,
            last_crc=crc,
            epoch=self._epoch,
            floor_minute=self._floor,
        )
