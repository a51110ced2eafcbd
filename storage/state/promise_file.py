"""The file `promise`: what this disk has promised as a voter, as a document (document_file.py).

    {"epoch":7,"told":{...}}

An election takes a promise for kept once it is durable here. It is the disk's own, whatever log
comes to lie on it, so the file belongs to the storage uuid. Where there is no file nothing was
ever promised.
"""

from typing import Annotated, Final
from uuid import UUID

import msgspec

from storage.batch.file_header import LogKind
from storage.disk.disk import Disk
from storage.disk.errors import DamagedError
from storage.state.document_file import DOCUMENT_AT, DocumentFile

PROMISE_PATH: Final = "promise"
_BYTES_MAX: Final = 4 * 1024 * 1024
"""Far above a record of any group. A larger file is refused, unread."""
_REMEDY: Final = (
    f"what this node has promised as a voter is unknown: restore {PROMISE_PATH} as it was last, or "
    "make the node a new replica by starting it on an empty directory; without the file it could "
    "vote twice, and so it does not start"
)


class Promised(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a disk has promised."""

    epoch: Annotated[int, msgspec.Meta(ge=0)] = 0
    """No epoch below it is served, and none is voted for that is not above it; 0 for none."""
    told: msgspec.Raw = msgspec.Raw(b"null")
    """The newest record of the group that it was told, as JSON that this package never looks into;
    null for none."""


def promise_document(disk: Disk, storage_uuid: UUID) -> DocumentFile:
    """Return the file of the promise of the data directory with this uuid."""
    return DocumentFile(
        disk, PROMISE_PATH, kind=LogKind.PROMISE, owner=storage_uuid, bytes_max=_BYTES_MAX
    )


class PromiseFile:
    """The promise of one data directory. Its calls block."""

    def __init__(self, disk: Disk, storage_uuid: UUID) -> None:
        """Prepare to read and write it; changes nothing."""
        self._disk = disk
        self._file = promise_document(disk, storage_uuid)

    def read(self) -> Promised:
        """Return what was promised.

        Raises DamagedError, with what to do: a node must not take part without it. Or
        UnsupportedFormatError, NotPermittedError or NotRegularFileError.
        """
        # Whoever put the file there may have died before its name was durable.
        self._disk.sync_directory("")
        try:
            document = self._file.read()
            return Promised() if document is None else _decoded(self._file, document)
        except DamagedError as error:
            raise self._file.damaged(error.position, f"{error.reason}; {_REMEDY}") from error

    def write(self, promised: Promised) -> None:
        """Replace the promise; durable when this returns. StorageFullError, FatalDiskError."""
        self._file.write(msgspec.json.encode(promised))


def _decoded(file: DocumentFile, document: bytes) -> Promised:
    try:
        return msgspec.json.decode(document, type=Promised)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise file.damaged(DOCUMENT_AT, str(error)) from error
