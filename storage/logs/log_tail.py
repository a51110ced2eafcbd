"""Writes behind the end of a message_log: into its last file, or into a new one where it is time.

write     the bytes are in the page cache, and nobody may count on them
sync      they are durable
undo      the log is as if nothing had been written
"""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from storage.batch.file_header import FILE_HEADER_SIZE, FileHeader, LogKind, encode_file_header
from storage.disk.disk import Bytes, Disk, File
from storage.logs.numbered_log import log_file
from storage.state.durable_end import DurableEnd


class LogTail:
    """The file at the end of a log. Each `write` is followed by `sync` or `undo`."""

    def __init__(self, disk: Disk, directory: str, *, log_uuid: UUID, file_bytes_max: int) -> None:
        """Prepare for the log in `directory`; opens nothing."""
        self._disk = disk
        self._directory = directory
        self._log_uuid = log_uuid
        self._file_bytes_max = file_bytes_max
        self._file: File | None = None
        """The last file of the log, once it was written to."""
        self._new_file: File | None = None
        """The one after it, while its first append is under way."""

    def write(self, end: DurableEnd, size: int, buffers: Sequence[Bytes]) -> DurableEnd:
        """Write batches of `size` bytes behind the end of the log; return where it ends then.

        Everything else of the end stays as it was. `end.position` 0 says that its file is still to
        be made. Raises StorageFullError, to be followed by `undo`, or FatalDiskError.
        """
        if end.position > FILE_HEADER_SIZE and end.position + size > self._file_bytes_max:
            end = replace(end, file_sequence=end.next_sequence, position=0)
        if end.position == 0:
            file = self._make_file(end.file_sequence)
            buffers = [self._file_header(end.file_sequence), *buffers]
        else:
            file = self._file or self._open_file(end.file_sequence)
        written = file.write_at(end.position, buffers)
        return replace(end, position=end.position + written)

    def _make_file(self, first_sequence: int) -> File:
        place = log_file(self._directory, first_sequence)
        self._new_file = self._disk.open(place.path, create=True)
        # Its name must be durable before anything in it is said to be.
        self._disk.sync_directory(self._directory)
        return self._new_file

    def _open_file(self, first_sequence: int) -> File:
        self._file = self._disk.open(log_file(self._directory, first_sequence).path)
        return self._file

    def _file_header(self, first_sequence: int) -> bytes:
        return encode_file_header(FileHeader(LogKind.MESSAGE_LOG, self._log_uuid, first_sequence))

    def sync(self) -> None:
        """Make durable what was written. Raises FatalDiskError."""
        file = self._new_file or self._file
        assert file is not None, "nothing was written"
        file.sync()
        if self._new_file is not None:
            if self._file is not None:
                self._file.close()
            self._file, self._new_file = self._new_file, None

    def undo(self, end: DurableEnd) -> None:
        """Remove what a full disk let through behind this end: nobody was told that it was kept.

        Raises FatalDiskError.
        """
        if self._new_file is not None:
            path = self._new_file.path
            self._new_file.close()
            self._new_file = None
            self._disk.unlink(path)
            self._disk.sync_directory(self._directory)
        elif self._file is not None:
            self._file.truncate(end.position)
            # The next append may go to another file: nothing would sync this one again.
            self._file.sync()

    def require_in_place(self) -> None:
        """Raise FatalDiskError if the directory or the open file is elsewhere now."""
        self._disk.require_in_place([] if self._file is None else [self._file])

    def close(self) -> None:
        """Give the descriptors back; makes nothing durable."""
        for file in (self._file, self._new_file):
            if file is not None:
                file.close()
        self._file = self._new_file = None
