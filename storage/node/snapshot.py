"""A snapshot: the copy of a data directory that another node makes of a checkpoint.

    the master   a checkpoint that covers all that was applied, rewritten for the copy
    the slave    files of segments, each to its length --> every batch checked, fsynced -->
                 directories fsynced --> the checkpoint (`Store.become`)

What is copied are unsealed and dead segments with their facts. The seals, what is retired or in
quarantine, and what is known of the clock are each node's own. No message_log is copied: that of
the copy begins behind the checkpoint, empty, and goes on by following. Before the checkpoint is
durable nothing names the files: the next start deletes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec

from storage.batch.batches import Damage
from storage.batch.file_header import FileHeader, LogKind, segment_header
from storage.batch.walk import walk_file
from storage.disk.disk import Disk, File, ReadableDisk
from storage.disk.errors import CopyRefusedError, DamagedError
from storage.disk.spans import Span, can_begin
from storage.state.checkpoint import CHECKPOINT_FORMAT, Checkpoint, Copied

_DIRECTORIES: Final = ("schedule_log", "dispatch_log")


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A file of a segment, as far as a checkpoint vouches for it."""

    path: str
    length: int
    last_crc: int | None
    """Of the last batch; None: that is not known."""
    header: FileHeader


def checkpoint_of_copy(checkpoint: Checkpoint, crc: int) -> Checkpoint:
    """Return a checkpoint that covers all that was applied, as it is in a copy.

    crc: of the batch that ends with its last record.
    """
    return Checkpoint(
        written_ms=checkpoint.written_ms,
        sequence=checkpoint.sequence,
        first_sequence=checkpoint.sequence + 1,
        epochs=checkpoint.epochs,
        floor_minute=checkpoint.floor_minute,
        hour_mark=checkpoint.hour_mark,
        day_mark=checkpoint.day_mark,
        segments=checkpoint.segments,
        copied=Copied(checkpoint.sequence, crc, checkpoint.written_ms),
    )


def encode_copy(checkpoint: Checkpoint) -> bytes:
    """Return what is sent of the checkpoint of a copy."""
    return msgspec.json.encode(checkpoint)


def decode_copy(document: bytes) -> Checkpoint:
    """Return the checkpoint of a copy; raise CopyRefusedError for anything else."""
    try:
        checkpoint = msgspec.json.decode(document, type=Checkpoint)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CopyRefusedError(f"what was sent is no checkpoint: {error}") from error
    end = checkpoint.copied_end
    if checkpoint.format != CHECKPOINT_FORMAT or end is None:
        raise CopyRefusedError(
            f"a checkpoint of format {checkpoint.format}, this one reads {CHECKPOINT_FORMAT}"
            if end is not None
            else "what was sent is not the checkpoint of a copy"
        )
    if not isinstance(checkpoint.copied, Copied) or end.epoch == 0:
        raise CopyRefusedError("the checkpoint of a copy says nothing of the log before it")
    again = checkpoint_of_copy(checkpoint, checkpoint.copied.crc)
    if again != checkpoint or checkpoint.last_known != checkpoint.sequence:
        raise CopyRefusedError("the checkpoint of a copy names what is never copied")
    for state in checkpoint.segments:
        sizes = state.rows - 1, state.length - 1, state.facts, state.facts_length
        if not can_begin(state.start, Span(state.span)) or min(sizes) < 0:
            raise CopyRefusedError(f"the checkpoint of a copy has a segment {state}")
    return checkpoint


def files_of(checkpoint: Checkpoint, log_uuid: UUID) -> Iterator[CopiedFile]:
    """Yield the files that a copy consists of, beside the checkpoint."""
    for state in checkpoint.segments:
        rows = segment_header(LogKind.SCHEDULE_LOG, log_uuid, state.key)
        yield CopiedFile(state.key.path, state.length, state.last_crc, rows)
        if state.facts_length:
            path = state.key.facts_path
            facts = segment_header(LogKind.DISPATCH_LOG, log_uuid, state.key)
            yield CopiedFile(path, state.facts_length, state.facts_last_crc, facts)


class CopyWriter:
    """Writes the files of a copy, one after another, into a directory without records."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._file: File | None = None

    def begin(self) -> None:
        """Delete what is left of a copy that was broken off. Raises FatalDiskError."""
        for directory in _DIRECTORIES:
            for name in self._disk.list(directory):
                self._disk.unlink(f"{directory}/{name}")

    def write(self, path: str, position: int, data: bytes) -> None:
        """Write some of a file, from its beginning on. Raises StorageFullError, FatalDiskError."""
        if self._file is None:
            self._file = self._disk.open(path, create=True)
        self._file.write_at(position, [data])

    def finish(self, file: CopiedFile) -> list[Damage]:
        """Make a file durable and check every byte of it; return what is wrong.

        It is made anew by the next `write` after `drop`. Raises FatalDiskError.
        """
        assert self._file is not None, "nothing was written"
        self._file.sync()
        self.close()
        return [found for found in look_through(self._disk, file) if isinstance(found, Damage)]

    def drop(self, file: CopiedFile) -> None:
        """Delete a file that is not as it should be. Raises FatalDiskError."""
        self.close()
        self._disk.unlink(file.path)

    def sync_names(self) -> None:
        """Make the names of all files durable. Raises FatalDiskError."""
        for directory in _DIRECTORIES:
            self._disk.sync_directory(directory)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._file is not None:
            self._file.close()
            self._file = None


def look_through(disk: ReadableDisk, file: CopiedFile) -> Iterator[Damage | int]:
    """Check every byte of a file; yield what is wrong, and the bytes of each batch."""
    crc = 0
    for found in walk_file(disk, file.path, file.length, file.header):
        if isinstance(found, Damage):
            yield found
            continue
        try:
            found.blob()
        except DamagedError as error:
            yield Damage(file.path, found.position, found.header.size, error.reason)
        yield found.header.size
        crc = found.header.crc
    if file.last_crc not in {None, crc}:
        yield Damage(file.path, 0, file.length, "it does not end with the batch that it should")
