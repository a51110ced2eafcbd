"""Reads the files of a data directory and changes nothing: `delaywheel log dump | verify`.

Works on a running server's directory, on a copy of one, and on a single file. How much of each file
counts is what the manifest says (storage/readers/manifest.py). Damage behind that is what is being
written, or what a crash left of it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from storage.batch.batches import COPIES, Damage
from storage.batch.columns import KINDS_WITH_ITEMS
from storage.batch.file_header import HEADER_SIZE_MAX, FileHeader, LogKind, decode_file_header
from storage.batch.item_formats import qmq_message_id
from storage.batch.walk import FileBatch, walk_file
from storage.disk.disk import DirectoryDisk, Disk, size_if_opened, size_of
from storage.disk.errors import (
    DamagedError,
    DataDirectoryError,
    NotPermittedError,
    StorageError,
    UnsupportedFormatError,
)
from storage.disk.read_ahead import PIECE
from storage.disk.spans import key_of_name
from storage.logs.message_log import MESSAGE_LOG_DIRECTORY
from storage.logs.numbered_log import first_of_name
from storage.node.store import DURABLE_END_PATH, QUARANTINE_DIRECTORY
from storage.readers.manifest import Manifest, read_manifest
from storage.schedule.seals import SEALS_DIRECTORY
from storage.state.checkpoint import CHECKPOINT_PATH, read_checkpoint
from storage.state.controls_file import CONTROLS_PATH, controls_file
from storage.state.durable_end import DurableEndReader
from storage.state.identity import IDENTITY_PATH, read_identity
from storage.state.promise_file import PROMISE_PATH, promise_document

Record = Mapping[str, object]

_KINDS = {
    MESSAGE_LOG_DIRECTORY: LogKind.MESSAGE_LOG,
    "schedule_log": LogKind.SCHEDULE_LOG,
    "dispatch_log": LogKind.DISPATCH_LOG,
    SEALS_DIRECTORY: LogKind.SEALS,
}
_DOCUMENTS = (IDENTITY_PATH, CHECKPOINT_PATH, CONTROLS_PATH, PROMISE_PATH, DURABLE_END_PATH)
_DAMAGES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a small file."""

    content: object


@dataclass(frozen=True, slots=True)
class Known:
    """What a data directory says of its files.

    log_uuid, manifest: as far as they can be read; lengths, counts: bytes that count of each file,
    and records in them; faults: what is wrong with the manifest.
    """

    log_uuid: UUID | None
    manifest: Manifest | None
    lengths: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    faults: Sequence[Damage] = ()


def verify_files(path: Path) -> Iterator[Record]:
    """Yield a report for each file; `damage` lists what is wrong, with positions.

    Raises NotPermittedError for the first file that this user may not read: whether it is damaged
    is not known. DataDirectoryError if the path is a directory and has nothing to do with logs.
    """
    disk, prefix = _opened(path)
    yield from verify_disk(disk, prefix)


def verify_disk(disk: Disk, prefix: str = "") -> Iterator[Record]:
    """Yield a report for each file of a data directory whose path begins so."""
    known = read_known(disk)
    damages: dict[str, list[Damage]] = {}
    for fault in known.faults:
        damages.setdefault(fault.path, []).append(fault)
    for path in _paths(disk, prefix):
        found = damages.pop(path, [])
        batches = records = 0
        for part in read_file(disk, path, known):
            if isinstance(part, Damage):
                found.append(part)
            elif isinstance(part, FileBatch):
                batches, records = batches + 1, records + part.header.count
        yield _report(path, found) | {"batches": batches, "records": records}
    yield from (_report(path, found) for path, found in damages.items() if path.startswith(prefix))


def _report(path: str, damages: Sequence[Damage]) -> dict[str, object]:
    shown = dict.fromkeys(f"{one.position}: {one.reason}" for one in damages[:_DAMAGES_SHOWN])
    more = len(damages) - _DAMAGES_SHOWN
    return {"file": path, "damage": [*shown, *([f"and {more} more"] if more > 0 else [])]}


def dump_files(path: Path) -> Iterator[Record]:
    """Yield what a file or all files say: a record for each batch, small file, or damage.

    Raises what `verify_files` does.
    """
    disk, prefix = _opened(path)
    known = read_known(disk)
    for name in _paths(disk, prefix):
        for part in read_file(disk, name, known):
            yield {"file": name} | _dumped(part)


def _dumped(part: FileBatch | Damage | Document) -> dict[str, object]:
    if isinstance(part, Document):
        return {"content": part.content}
    if isinstance(part, Damage):
        return {"position": part.position, "bytes": part.size, "damage": part.reason}
    header, columns = part.header, part.columns
    record: dict[str, object] = {
        "position": part.position,
        "kind": header.kind.name,
        "first": header.base_sequence,
        "count": header.count,
        "epoch": header.epoch,
        "floor_minute": header.floor_minute,
        "append_ms": header.append_ms,
        **({"copies": True} if header.features & COPIES else {}),
        "names": [name.decode(errors="backslashreplace") for name in columns.names],
        "columns": {name: array.tolist() for name, array in columns.arrays.items()},
    }
    if header.kind in KINDS_WITH_ITEMS:
        ids = [qmq_message_id(item) for item in items_in(part)]
        record["message_ids"] = [one.decode(errors="backslashreplace") for one in ids]
    return record


def items_in(batch: FileBatch) -> Iterator[memoryview]:
    """Yield the bytes of each item of a batch; only while the walk stands at it."""
    view, begin = memoryview(batch.blob()), 0
    for size in batch.columns.arrays["size"].tolist():
        yield view[begin : begin + size]
        begin += size


def read_known(disk: Disk) -> Known:
    """Return what a data directory says of its files. Raises NotPermittedError."""
    log_uuid = None
    try:
        identity = read_identity(disk)
        log_uuid = None if identity is None else identity.log_uuid
        manifest = read_manifest(disk, now_ms=0, is_final=True)
    except NotPermittedError:
        raise
    except (DamagedError, UnsupportedFormatError) as error:
        fault = Damage(error.path, error.position, 0, error.reason)
        return Known(log_uuid, None, faults=[fault])
    except StorageError as error:
        return Known(log_uuid, None, faults=[Damage(IDENTITY_PATH, 0, 0, str(error))])
    lengths = {one.file: one.length for one in manifest.message_log}
    counts = {one.file: one.next_sequence - one.first_sequence for one in manifest.message_log}
    for one in (*manifest.segments, *manifest.dead_segments):
        lengths |= {one.file: one.length, one.facts_file: one.facts_length}
        counts |= {one.file: one.rows, one.facts_file: one.facts}
    for seal in (*manifest.sealed, *manifest.dead_sealed):
        if not seal.deleted:
            lengths |= {seal.file: seal.length, seal.facts_file: seal.facts_length}
            counts |= {seal.file: seal.rows, seal.facts_file: sum(seal.outcomes.values())}
    # Nobody made them durable before they were replaced.
    lengths |= dict.fromkeys(manifest.retired, 0)
    # Kept because they are damaged: every byte of them matters.
    lengths |= {path: size_if_opened(disk, path) for path in manifest.quarantined}
    faults = [Damage(one.file, one.position, 0, one.reason) for one in manifest.faults]
    return Known(log_uuid, manifest, lengths, counts, faults)


def read_file(disk: Disk, path: str, known: Known) -> Iterator[FileBatch | Damage | Document]:
    """Yield whole batches or what a small file says, and damage where some of what counts is not.

    Raises NotPermittedError.
    """
    try:
        if path in _DOCUMENTS:
            yield Document(_content_of(disk, path, known))
        else:
            yield from _walk(disk, path, known)
    except NotPermittedError:
        raise
    except (DamagedError, UnsupportedFormatError) as error:
        yield Damage(path, error.position, 0, error.reason)
    except (StorageError, OSError) as error:
        yield Damage(path, 0, 0, f"cannot be read: {error}")


def _walk(disk: Disk, path: str, known: Known) -> Iterator[FileBatch | Damage]:
    size, counted = size_of(disk, path), known.lengths.get(path)
    length = max(size, counted or 0)
    header, missing = header_of(disk, path, known.log_uuid), known.counts.get(path, 0)
    for found in walk_file(disk, path, length, header, piece=PIECE):
        part = found if isinstance(found, Damage) else _whole(path, found)
        if isinstance(part, Damage):
            end = part.position + part.size
            if end >= length if counted is None else part.position >= counted:
                continue
            missing = 0
        elif counted is not None and part.position < counted:
            missing -= part.header.count
        yield part
    if missing > 0:
        yield Damage(path, counted or 0, 0, f"{missing} records are missing")


def _whole(path: str, batch: FileBatch) -> FileBatch | Damage:
    """Return a batch that a walk stands at, or what is wrong with its items."""
    try:
        batch.blob()
    except DamagedError as error:
        return Damage(path, batch.position, batch.header.size, error.reason)
    return batch


def _content_of(disk: Disk, path: str, known: Known) -> object:
    """Return what a small file says."""
    if path == IDENTITY_PATH:
        return read_identity(disk)
    if known.log_uuid is None:
        reason = "cannot be checked: the directory's identity is unreadable"
        raise DamagedError(path=path, position=0, reason=reason)
    if path == CHECKPOINT_PATH:
        return read_checkpoint(disk, known.log_uuid)
    if path == DURABLE_END_PATH:
        return DurableEndReader(disk, MESSAGE_LOG_DIRECTORY, log_uuid=known.log_uuid).read()
    document = controls_file(disk, known.log_uuid)
    if path == PROMISE_PATH:
        identity = read_identity(disk)
        assert identity is not None, "its uuid is known"
        document = promise_document(disk, identity.storage_uuid)
    return (document.read() or b"").decode(errors="backslashreplace")


def header_of(disk: Disk, path: str, log_uuid: UUID | None) -> FileHeader:
    """Return the header that a log file should begin with by its place, its name and the identity.

    What these do not tell is what the file itself says; raises what `decode_file_header` does then,
    and OSError.
    """
    directory, name = _home_of(path)
    kind, key, first = _KINDS.get(directory), key_of_name(name), first_of_name(name)
    if kind is not None and log_uuid is not None and (key is not None or first is not None):
        said = FileHeader(kind=kind, log_uuid=log_uuid)
    else:
        with closing(disk.open_read(path)) as file:
            said = decode_file_header(file.read_at(0, HEADER_SIZE_MAX), path=path)
    if key is not None:
        return replace(said, span=key.span, start_minute=key.start, first_sequence=0)
    return said if first is None else replace(said, first_sequence=first)


def log_files(disk: Disk, *directories: str) -> list[str]:
    """Return the log files in some directories."""
    paths = [f"{directory}/{name}" for directory in directories for name in disk.list(directory)]
    return [path for path in paths if _is_log_file(path)]


def _is_log_file(path: str) -> bool:
    directory, name = _home_of(path)
    named = key_of_name(name) is not None or first_of_name(name) is not None
    return named and directory in _KINDS


def _home_of(path: str) -> tuple[str, str]:
    """Return the directory that a file belongs in, and its name there."""
    directory, _, name = path.rpartition("/")
    if directory == QUARANTINE_DIRECTORY:
        directory, _, name = name.partition(".")
        name = name.partition(".")[2]
    return directory, name


def _opened(path: Path) -> tuple[Disk, str]:
    """Return the data directory that a path is or lies in, and the path from there."""
    if is_data_directory(path):
        return DirectoryDisk(path), ""
    root, prefix = data_directory_of(path)
    if not path.is_file() and not is_data_directory(root):
        raise DataDirectoryError(f"{path} is no data directory, and lies in none")
    return DirectoryDisk(root), prefix


def _paths(disk: Disk, prefix: str) -> list[str]:
    """Return the files whose path begins so, or the one that has it."""
    documents = [path for path in _DOCUMENTS if disk.exists(path)]
    paths = [*documents, *log_files(disk, *_KINDS, QUARANTINE_DIRECTORY)]
    return [path for path in paths if path.startswith(prefix)] or [prefix] * disk.exists(prefix)


def is_data_directory(path: Path) -> bool:
    """Say whether a directory has anything that only a data directory has."""
    return any(os.path.exists(path / name) for name in (*_KINDS, IDENTITY_PATH, CHECKPOINT_PATH))


def data_directory_of(path: Path) -> tuple[Path, str]:
    """Return the data directory a file or folder lies in, and its path from there."""
    for parent in path.resolve().parents:
        if is_data_directory(parent):
            return parent, path.resolve().relative_to(parent).as_posix()
    return path.resolve().parent, path.name
