"""The file `controls`: what an operator has paused and limited, as a document that counts or not.

    0                  64                 72
    +------------------+------------------+------------------------+
    | file header      | size u32, crc u32| JSON document          |
    | (file_header.py) | (seeded)         | (size bytes)           |
    +------------------+------------------+------------------------+

It is only ever replaced whole: temporary file, fsync, rename, fsync of the directory. What the
document says is none of this package's business.
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
from storage.disk.disk import Disk, read_small
from storage.disk.errors import DamagedError

CONTROLS_PATH: Final = "controls"
_TEMPORARY_PATH: Final = "controls.tmp"
_PREFIX: Final = struct.Struct("<II")
CONTROLS_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Four times the largest document that a meta server tells. A larger file is refused, unread."""
DOCUMENT_AT: Final = FILE_HEADER_SIZE + _PREFIX.size
"""Where the document begins."""


def read_controls_document(disk: Disk, log_uuid: UUID) -> bytes | None:
    """Return the document, None where there is no file.

    Raises DamagedError with the position of what is wrong, UnsupportedFormatError, or what
    `Disk.open_read` does.
    """
    try:
        file = disk.open_read(CONTROLS_PATH)
    except FileNotFoundError:
        return None
    try:
        data = read_small(file, CONTROLS_FILE_BYTES_MAX)
    except OSError as error:
        raise _damaged(0, f"cannot be read: {error}") from error
    finally:
        file.close()
    header = decode_file_header(data, path=CONTROLS_PATH, kind=LogKind.CONTROLS)
    if header.log_uuid != log_uuid:
        raise _damaged(0, "is of another data directory")
    if len(data) < DOCUMENT_AT:
        raise _damaged(len(data), "is cut off")
    size, crc = _PREFIX.unpack_from(data, FILE_HEADER_SIZE)
    document = data[DOCUMENT_AT:]
    if size != len(document):
        raise _damaged(FILE_HEADER_SIZE, f"has {len(document)} bytes of a document of {size}")
    if zlib.crc32(document, log_seed(log_uuid, LogKind.CONTROLS)) != crc:
        raise _damaged(FILE_HEADER_SIZE, "the document fails its CRC")
    # What the CRC of the header covers may still be another header than is ever written here.
    if data[:FILE_HEADER_SIZE] != _header(log_uuid):
        raise _damaged(0, "has a file header that no controls have")
    return document


def write_controls_document(disk: Disk, log_uuid: UUID, document: bytes) -> None:
    """Replace the document; durable when this returns. StorageFullError, FatalDiskError."""
    crc = zlib.crc32(document, log_seed(log_uuid, LogKind.CONTROLS))
    if disk.exists(_TEMPORARY_PATH):
        disk.unlink(_TEMPORARY_PATH)
    file = disk.open(_TEMPORARY_PATH, create=True)
    try:
        file.write_at(0, [_header(log_uuid), _PREFIX.pack(len(document), crc), document])
        file.sync()
    finally:
        file.close()
    disk.rename(_TEMPORARY_PATH, CONTROLS_PATH)
    disk.sync_directory("")


def _header(log_uuid: UUID) -> bytes:
    return encode_file_header(FileHeader(kind=LogKind.CONTROLS, log_uuid=log_uuid))


def _damaged(position: int, reason: str) -> DamagedError:
    return DamagedError(path=CONTROLS_PATH, position=position, reason=reason)
