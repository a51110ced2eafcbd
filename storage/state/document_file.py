"""A small file that holds one document, which counts as a whole or not at all.

    0                  64                 72
    +------------------+------------------+------------------------+
    | file header      | size u32, crc u32| document               |
    | (file_header.py) | (seeded)         | (size bytes)           |
    +------------------+------------------+------------------------+

It is only ever replaced whole: temporary file, fsync, rename, fsync of the directory. What the
document says is its user's business.
"""

import struct
import zlib
from typing import Final
from uuid import UUID

from storage.batch.batches import log_seed
from storage.batch.file_header import (
    FILE_HEADER_SIZE,
    FileHeader,
    LogKind,
    decode_file_header,
    encode_file_header,
)
from storage.disk.disk import Disk, read_small, replace_file
from storage.disk.errors import DamagedError

_PREFIX: Final = struct.Struct("<II")
DOCUMENT_AT: Final = FILE_HEADER_SIZE + _PREFIX.size
"""Where the document begins."""


class DocumentFile:
    """One such file, at the root of a data directory."""

    def __init__(
        self, disk: Disk, path: str, *, kind: LogKind, owner: UUID, bytes_max: int
    ) -> None:
        """Prepare to read and write it; changes nothing.

        owner: whose it is, in the place of the file header's log uuid; bytes_max: a larger file is
        refused, unread.
        """
        self.path = path
        self._disk = disk
        self._kind = kind
        self._bytes_max = bytes_max
        self._owner = owner
        self._header = encode_file_header(FileHeader(kind=kind, log_uuid=owner))

    def read(self) -> bytes | None:
        """Return the document, None where there is no file.

        Raises DamagedError with the position of what is wrong, UnsupportedFormatError,
        NotPermittedError or NotRegularFileError.
        """
        try:
            data = read_small(self._disk, self.path, self._bytes_max)
        except FileNotFoundError:
            return None
        header = decode_file_header(data, path=self.path, kind=self._kind)
        if header.log_uuid != self._owner:
            raise self.damaged(0, "is of another data directory")
        if len(data) < DOCUMENT_AT:
            raise self.damaged(len(data), "is cut off")
        size, crc = _PREFIX.unpack_from(data, FILE_HEADER_SIZE)
        document = data[DOCUMENT_AT:]
        if size != len(document):
            reason = f"has {len(document)} bytes of a document of {size}"
            raise self.damaged(FILE_HEADER_SIZE, reason)
        if self._crc_of(document) != crc:
            raise self.damaged(FILE_HEADER_SIZE, "the document fails its CRC")
        # What the CRC of the header covers may still be another header than is ever written here.
        if data[:FILE_HEADER_SIZE] != self._header:
            raise self.damaged(0, f"has a file header that no {self.path} has")
        return document

    def write(self, document: bytes) -> None:
        """Replace the document; durable when this returns. StorageFullError, FatalDiskError."""
        prefix = _PREFIX.pack(len(document), self._crc_of(document))
        replace_file(self._disk, self.path, [self._header, prefix, document])

    def damaged(self, position: int, reason: str) -> DamagedError:
        """Return the error that says what is wrong with the file."""
        return DamagedError(path=self.path, position=position, reason=reason)

    def _crc_of(self, document: bytes) -> int:
        return zlib.crc32(document, log_seed(self._owner, self._kind))
