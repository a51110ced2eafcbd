"""The files of a data directory that are looked through for damage that no read has met yet.

That is what others have a copy of: unsealed and dead segments with their facts, as far as the last
checkpoint vouches for them, and the closed files of the message_log. Sealed segments are not read,
since all in them has its outcome.
"""

from storage.batch.batches import Damage
from storage.batch.file_header import FILE_HEADER_SIZE, FileHeader, LogKind
from storage.disk.disk import ReadableDisk, size_of
from storage.node.snapshot import CopiedFile, files_of, look_through
from storage.node.store import Store

PIECE_BYTES = 1024 * 1024
"""About as many are read between two rests; a batch is read as a whole."""


def files_to_look_through(store: Store) -> dict[str, CopiedFile]:
    """Return the files by path, also those that are gone; may be called in any thread."""
    log_uuid = store.identity.log_uuid
    found = {file.path: file for file in files_of(store.checkpoint, log_uuid)}
    for one in store.message_log.files()[:-1]:
        kind, first = LogKind.MESSAGE_LOG, one.first_sequence
        header = FileHeader(kind=kind, log_uuid=log_uuid, first_sequence=first)
        size = size_of(store.disk, one.path) if store.disk.exists(one.path) else FILE_HEADER_SIZE
        found[one.path] = CopiedFile(one.path, size, None, header)
    return found


class Look:
    """One look through a file, some of it at a time."""

    def __init__(self, disk: ReadableDisk, file: CopiedFile) -> None:
        self._found = look_through(disk, file)
        self.damages: list[Damage] = []
        """The damage that was found until now."""

    def go_on(self) -> int:
        """Read some more; return how many bytes, 0 at the end."""
        read = 0
        for found in self._found:
            if isinstance(found, Damage):
                self.damages.append(found)
            else:
                read += found
            if read >= PIECE_BYTES:
                break
        return read
