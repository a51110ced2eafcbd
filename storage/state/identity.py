"""Who a data directory belongs to: the file `identity`.

    0                  64                 80              88         90        92        94      96
    +------------------+------------------+---------------+----------+---------+---------+-------+
    | file header      | storage uuid     | incarnation   | cluster  | group   | node id | zeros |
    | (file_header.py) | 16 bytes         | u64           | size u16 | size u16| size u16| u16   |
    +------------------+------------------+---------------+----------+---------+---------+-------+
    96
    +------------+------------+------------+---------+
    | cluster    | group      | node id    | CRC     |
    | UTF-8      | UTF-8      | UTF-8      | u32     |
    +------------+------------+------------+---------+

The log uuid is in the file header. The CRC covers everything behind that header and is seeded as a
batch's is. Cluster, group, node id and both uuids are fixed at the first start, but for the log
uuid of a directory without records (`Store.adopt_log`), and the storage uuid of one that is given
up (storage/node/aside.py); the incarnation is counted up at every start. The file is only ever
replaced whole: temporary file, fsync, rename, fsync of the directory.
"""

import random
import struct
import zlib
from dataclasses import dataclass, replace
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
from storage.disk.disk import Disk, ReadableDisk, read_small, replace_file
from storage.disk.errors import DamagedError, DataDirectoryError

IDENTITY_PATH = "identity"
_BODY = struct.Struct("<16sQHHHH")
_CRC = struct.Struct("<I")
_NAME_SIZE_MAX = 255
IDENTITY_BYTES_MAX = 4096
"""Above four times what three names of 255 bytes need. A larger file is refused, unread."""
_DEFAULT_CLUSTER = "delaywheel"
_DEFAULT_GROUP = "default"
_LOGS = ("message_log", "schedule_log", "dispatch_log", "seals", "checkpoint")
"""Directories that are only ever made after the identity is durable."""

OWN_NAMES: Final = frozenset({IDENTITY_PATH, *_LOGS})
"""Names that tell the data directory of a delay server from others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose data this is.

    log_uuid: of the group's logs, alike on all replicas; storage_uuid: of this directory alone, so
    that a wiped disk is a new replica; incarnation: number of this start, from 1.
    """

    cluster: str
    group: str
    node_id: str
    log_uuid: UUID
    storage_uuid: UUID
    incarnation: int


def open_identity(
    disk: Disk,
    *,
    cluster: str | None,
    group: str | None,
    node_id: str | None,
    chance: random.Random,
) -> Identity:
    """Return the identity of this start, durable: made at the first, counted up at every other.

    A name given must be the one fixed at the first start; None takes what is there, or a default.
    Raises DataDirectoryError for another name, or where logs are without their identity;
    DamagedError, UnsupportedFormatError, StorageFullError, FatalDiskError.
    """
    names = {"cluster": cluster, "group": group, "node id": node_id}
    for what, name in names.items():
        if name is not None and not 0 < len(name.encode()) <= _NAME_SIZE_MAX:
            raise DataDirectoryError(f"the {what} {name!r} must have 1 to {_NAME_SIZE_MAX} bytes")
    found = read_identity(disk)
    if found is None:
        _refuse_orphaned_logs(disk)
        identity = _new_identity(cluster, group, node_id, chance)
    else:
        _compare(found, names)
        identity = replace(found, incarnation=found.incarnation + 1)
    write_identity(disk, identity)
    return identity


def adopt_identity(disk: Disk, identity: Identity, log_uuid: UUID) -> None:
    """Replace the identity by one of another log; durable when this returns.

    Raises StorageFullError or FatalDiskError.
    """
    write_identity(disk, replace(identity, log_uuid=log_uuid))


def read_identity(disk: ReadableDisk, path: str = IDENTITY_PATH) -> Identity | None:
    """Return the identity as it is, or None if there is none. Changes nothing.

    Raises DamagedError, UnsupportedFormatError, NotPermittedError or NotRegularFileError.
    """
    try:
        data = read_small(disk, path, IDENTITY_BYTES_MAX)
    except FileNotFoundError:
        return None
    return decode_identity(data, path=path)


def encode_identity(identity: Identity) -> bytes:
    """Return the bytes of the identity file."""
    header = FileHeader(kind=LogKind.IDENTITY, log_uuid=identity.log_uuid)
    names = [name.encode() for name in (identity.cluster, identity.group, identity.node_id)]
    body = _BODY.pack(identity.storage_uuid.bytes, identity.incarnation, *map(len, names), 0)
    body += b"".join(names)
    crc = zlib.crc32(body, log_seed(identity.log_uuid, LogKind.IDENTITY))
    return encode_file_header(header) + body + _CRC.pack(crc)


def decode_identity(data: bytes, *, path: str) -> Identity:
    """Return the identity in `data`, exactly; DamagedError or UnsupportedFormatError."""
    header = decode_file_header(data, path=path, kind=LogKind.IDENTITY)
    body = data[FILE_HEADER_SIZE:-4]
    if len(body) < _BODY.size:
        raise DamagedError(path=path, position=len(data), reason="identity is cut off")
    (crc,) = _CRC.unpack_from(data, len(data) - 4)
    if zlib.crc32(body, log_seed(header.log_uuid, LogKind.IDENTITY)) != crc:
        raise DamagedError(path=path, position=FILE_HEADER_SIZE, reason="identity fails its CRC")
    storage_uuid, incarnation, *sizes, _ = _BODY.unpack_from(body)
    names = []
    position = _BODY.size
    for size in sizes:
        try:
            names.append(body[position : position + size].decode())
        except UnicodeDecodeError as error:
            reason = f"identity has a name that is no text ({error})"
            raise DamagedError(
                path=path, position=FILE_HEADER_SIZE + position, reason=reason
            ) from error
        position += size
    if position != len(body):
        reason = f"identity has names of {position - _BODY.size} bytes"
        raise DamagedError(path=path, position=FILE_HEADER_SIZE, reason=reason)
    return Identity(
        cluster=names[0],
        group=names[1],
        node_id=names[2],
        log_uuid=header.log_uuid,
        storage_uuid=UUID(bytes=storage_uuid),
        incarnation=incarnation,
    )


def _new_identity(
    cluster: str | None, group: str | None, node_id: str | None, chance: random.Random
) -> Identity:
    log_uuid = UUID(int=chance.getrandbits(128), version=4)
    storage_uuid = UUID(int=chance.getrandbits(128), version=4)
    return Identity(
        cluster=cluster or _DEFAULT_CLUSTER,
        group=group or _DEFAULT_GROUP,
        node_id=node_id or f"node-{storage_uuid.hex[:8]}",
        log_uuid=log_uuid,
        storage_uuid=storage_uuid,
        incarnation=1,
    )


def _refuse_orphaned_logs(disk: Disk) -> None:
    for name in _LOGS:
        if disk.exists(name):
            raise DataDirectoryError(
                f"there is a {name} but no {IDENTITY_PATH} file: whose logs these are is not "
                f"known, and a new identity would orphan them; restore {IDENTITY_PATH} from a "
                "backup, or send what `delaywheel log salvage` finds to a node on an empty "
                "directory (--send)"
            )


def _compare(found: Identity, names: dict[str, str | None]) -> None:
    fixed = {"cluster": found.cluster, "group": found.group, "node id": found.node_id}
    for what, name in names.items():
        if name is not None and name != fixed[what]:
            raise DataDirectoryError(
                f"this data directory was made for {what} {fixed[what]!r}, not {name!r}; it is "
                "fixed at the first start, use another directory for another node"
            )


def write_identity(disk: Disk, identity: Identity) -> None:
    """Replace the identity; durable when this returns. StorageFullError, FatalDiskError."""
    replace_file(disk, IDENTITY_PATH, [encode_identity(identity)])
