"""Looks into files of a data directory without changing anything: `delaywheel log dump | verify`.

Works on a running server's directory, on a copy of one, and on a single file. Of a file that is
being written the part beyond the last whole batch is reported as a tail, not as damage; `verify` of
a whole directory believes the checkpoint, the seals and the durable end about what must be there.
Records of the message_log that are missing behind the checkpoint may have been facts: what is said
of them says how many messages may be sent again.
"""

import datetime as dt
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from uuid import UUID

import numpy as np

from storage.batch.batches import Damage
from storage.batch.columns import (
    KINDS_WITH_ITEMS,
    LAYOUTS,
    TABLE_COLUMNS,
    Columns,
    ColumnsError,
    RecordKind,
)
from storage.batch.dead_rows import DeadNote, note_of_row
from storage.batch.facts import Outcome
from storage.batch.file_header import (
    FILE_HEADER_SIZE,
    HEADER_SIZE_MAX,
    FileHeader,
    LogKind,
    decode_file_header,
)
from storage.batch.item_formats import qmq_item_fault, qmq_message_id
from storage.batch.walk import FileBatch, walk_file
from storage.disk.disk import Bytes, DirectoryDisk, Disk, size_of
from storage.disk.errors import (
    DamagedError,
    DataDirectoryError,
    NotPermittedError,
    StorageError,
    UnsupportedFormatError,
)
from storage.disk.read_ahead import PIECE
from storage.disk.spans import (
    DEAD_MINUTES_FROM,
    MINUTE_MAX,
    MINUTE_MS,
    Span,
    dead_key,
    key_of_code,
    key_of_name,
)
from storage.logs.message_log import MESSAGE_LOG_DIRECTORY
from storage.logs.message_log_recovery import no_file_left
from storage.logs.numbered_log import (
    LogFile,
    StrayFile,
    files_from,
    first_of_name,
    list_log_files,
    log_file,
    without_strays,
)
from storage.node.store import DURABLE_END_PATH, QUARANTINE_DIRECTORY
from storage.schedule.seals import SEALS_DIRECTORY, read_live, require_seals, seals_end
from storage.state.checkpoint import (
    CHECKPOINT_PATH,
    Checkpoint,
    ClockMark,
    checkpoint_if_whole,
    read_checkpoint,
)
from storage.state.controls_file import CONTROLS_PATH, controls_file
from storage.state.durable_end import (
    SLOT_POSITIONS,
    DurableEnd,
    DurableEndReader,
    decode_slot,
)
from storage.state.identity import IDENTITY_PATH, Identity, read_identity
from storage.state.promise_file import PROMISE_PATH, promise_document

Record = Mapping[str, object]

_KINDS = {
    MESSAGE_LOG_DIRECTORY: LogKind.MESSAGE_LOG,
    "schedule_log": LogKind.SCHEDULE_LOG,
    "dispatch_log": LogKind.DISPATCH_LOG,
    SEALS_DIRECTORY: LogKind.SEALS,
}
_DOCUMENTS = (CONTROLS_PATH, PROMISE_PATH)
_DAMAGES_SHOWN = 20


@dataclass(slots=True)
class _Report:
    """What verifying one file found."""

    file: str
    kind: str = "?"
    size: int = 0
    batches: int = 0
    records: int = 0
    damage: list[str] = field(default_factory=list)
    more: int = 0
    tail: int = 0

    def add(self, position: int, reason: str) -> None:
        if len(self.damage) < _DAMAGES_SHOWN:
            self.damage.append(f"{position}: {reason}")
        else:
            self.more += 1

    def record(self) -> Record:
        if self.more:
            self.damage.append(f"and {self.more} more")
        return {
            "file": self.file,
            "kind": self.kind,
            "bytes": self.size,
            "batches": self.batches,
            "records": self.records,
            "tail bytes": self.tail,
            "damage": self.damage,
        }


@dataclass(frozen=True, slots=True)
class _Place:
    """A file, seen from the root of its data directory where that is known."""

    disk: Disk
    path: str
    log_uuid: UUID | None
    vouched: int | None
    """Bytes that must be whole, where durable end or manifest say; 0 for a retired file."""
    filed: int = 0
    """The facts of records up to this one are filed, as the checkpoint says."""
    first: int | None = None
    """The first record of the message_log that is kept, if this is the first file that is left."""
    following: int | None = None
    """First record of the next file of the message_log, where there is one, or of what comes behind
    those that are known to have been durable."""
    fault: str | None = None
    """What is wrong with the place as a whole, whatever lies there."""
    last_crc: int | None = None
    """CRC of the last batch that the checkpoint counts, if it counts any."""


def verify_files(path: Path) -> Iterator[Record]:
    """Yield a report for each file; `damage` lists what is wrong, with positions.

    Raises NotPermittedError for the first file that this user may not read: whether it is damaged
    is not known. DataDirectoryError if the path is a directory and has nothing to do with logs.
    """
    for place in _places(path):
        yield _verify(place).record()


def verify_disk(disk: Disk) -> Iterator[Record]:
    """Yield a report for each file of a data directory."""
    for place in _places_on(disk, ""):
        yield _verify(place).record()


@dataclass(frozen=True, slots=True)
class _Neighbour:
    """What is known of a file of the message_log by others and by the checkpoint: see _Place."""

    first: int | None = None
    following: int | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Vouchers:
    """What a data directory says about its own files: whose they are, and how long at least.

    filed: up to which record facts are in the files of segments; last_crcs: of the last batch
    within the length.
    """

    log_uuid: UUID | None
    filed: int
    lengths: Mapping[str, int]
    last_crcs: Mapping[str, int]
    neighbours: Mapping[str, _Neighbour]


def read_vouchers(disk: Disk) -> Vouchers:
    """Return what identity, durable end, checkpoint and seals say, as far as they are readable."""
    # What is known is read before the files are listed: a running server goes on.
    known = _known(disk)
    return Vouchers(
        log_uuid=known.log_uuid,
        filed=known.filed,
        lengths=_vouched(disk, known),
        last_crcs=_last_crcs(disk, known),
        neighbours=_neighbours(disk, known),
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """What a data directory knows of its message_log, as far as it is readable."""

    log_uuid: UUID | None
    checkpoint: Checkpoint | None
    end: DurableEnd | None

    @property
    def filed(self) -> int:
        """Up to which record facts are in the files of segments."""
        return self.checkpoint.sequence if self.checkpoint is not None else 0

    @property
    def last(self) -> int:
        """The last record that is known to have been durable, 0 if none is."""
        states = self.checkpoint.segments if self.checkpoint is not None else ()
        found = [self.filed, *(max(state.last_sequence, state.last_fact) for state in states)]
        return max(*found, self.end.next_sequence - 1 if self.end is not None else 0)


def _known(disk: Disk) -> _Known:
    log_uuid = _uuid_of(disk)
    checkpoint = checkpoint_if_whole(disk, log_uuid)
    return _Known(log_uuid, checkpoint, _durable_end(disk, log_uuid))


def lost_log(disk: Disk) -> str | None:
    """Return what there is to say of a message_log of which no file is left, though it had records.

    It never loses its newest file by itself. That of a copy has none until more came.
    """
    known = _known(disk)
    first = 1 if known.checkpoint is None else known.checkpoint.first_sequence
    if known.last < first or list_log_files(disk, MESSAGE_LOG_DIRECTORY):
        return None
    return no_file_left(known.last) + _sent_again(known.last - known.filed)


def _sent_again(records: int) -> str:
    """Return what so many missing records may cost if they were facts; nothing for none."""
    return f"; up to {records} messages may be sent again" if records > 0 else ""


def facts_are_whole(disk: Disk) -> bool:
    """Say whether all that tells what became of messages is there, as it was written.

    That is what is filed beside segments, the seals and, of the message_log, what the checkpoint
    does not cover; without a checkpoint all of it.
    """
    known = _known(disk)
    # Every node makes both before it delivers anything.
    if known.log_uuid is None or not disk.exists(DURABLE_END_PATH):
        return False
    for prefix in ("dispatch_log", SEALS_DIRECTORY, DURABLE_END_PATH):
        for place in _places_on(disk, prefix):
            report = _verify(place)
            # Without a checkpoint nobody knows that what a file ends with never counted.
            if report.damage or (report.tail and known.checkpoint is None):
                return False
    try:
        return _tail_is_whole(disk, known)
    except NotPermittedError:
        raise
    except (StorageError, OSError):
        return False


def _tail_is_whole(disk: Disk, known: _Known) -> bool:
    """Say whether every record that the checkpoint does not cover can be read."""
    files, _ = message_log_files(disk, known.log_uuid)
    next_sequence, last = known.filed + 1, known.last
    if files:
        # A file is only made when all before it is durable.
        last = max(last, files[-1].first_sequence - 1)
        next_sequence = files[0].first_sequence if known.checkpoint is None else next_sequence
    for file in files_from(files, next_sequence):
        header = header_of(disk, file.path, known.log_uuid)
        for found in walk_file(disk, file.path, size_of(disk, file.path), header, piece=PIECE):
            if isinstance(found, FileBatch) and found.records.start <= next_sequence:
                next_sequence = max(next_sequence, found.records.stop)
    return next_sequence > last


def message_log_files(
    disk: Disk, log_uuid: UUID | None
) -> tuple[Sequence[LogFile], Sequence[StrayFile]]:
    """Return the files of the message_log, and those that are none of it, if the uuid is known."""
    files = list_log_files(disk, MESSAGE_LOG_DIRECTORY)
    if log_uuid is None:
        return files, []
    return without_strays(disk, files, log_uuid=log_uuid, kind=LogKind.MESSAGE_LOG)


def verify_path(disk: Disk, path: str, vouchers: Vouchers) -> Record:
    """Return the report for one file."""
    return _verify(_place(disk, path, vouchers)).record()


def dump_records(path: Path) -> Iterator[Record]:
    """Yield every readable record of a file or of all logs; damage becomes a record of its own.

    Raises what `verify_files` does.
    """
    for place in _places(path):
        if place.fault is not None:
            yield {"file": place.path, "position": 0, "damage": place.fault}
            continue
        try:
            yield from _dumper_of(place.path)(place)
        except NotPermittedError:
            raise
        except (StorageError, OSError) as error:
            # What comes behind a batch of a newer version, say, cannot be told from its contents.
            position = error.position if isinstance(error, UnsupportedFormatError) else 0
            yield {"file": place.path, "position": position, "damage": str(error)}


def _dumper_of(path: str) -> "Callable[[_Place], Iterator[Record]]":
    name = path.rpartition("/")[2]
    if not _is_small_file(path):
        return _dump_log
    if name in _DOCUMENTS:
        return _dump_document
    return _dump_checkpoint if name == "checkpoint" else _dump_small


def _is_small_file(path: str) -> bool:
    names = {"durable_end", "identity", "lock", "checkpoint", *_DOCUMENTS}
    return path.rpartition("/")[2] in names


def _places(path: Path) -> Iterator[_Place]:
    if path.is_file():
        root, name = data_directory_of(path)
        disk = DirectoryDisk(root)
        yield _place(disk, name, read_vouchers(disk))
        return
    root, prefix = (path, "") if is_data_directory(path) else data_directory_of(path)
    if not is_data_directory(root):
        raise DataDirectoryError(f"{path} is no data directory, and lies in none")
    yield from _places_on(DirectoryDisk(root), prefix)


def _places_on(disk: Disk, prefix: str) -> Iterator[_Place]:
    vouchers = read_vouchers(disk)
    vouched = vouchers.lengths
    names = [IDENTITY_PATH, CHECKPOINT_PATH, *_DOCUMENTS, DURABLE_END_PATH]
    for directory in (*_KINDS, QUARANTINE_DIRECTORY):
        names += [f"{directory}/{name}" for name in disk.list(directory)]
    names += sorted(vouched)
    # All are made before the first file of a log, the durable end before the checkpoint.
    made = any(is_log_file(name) for name in names)
    needed = {IDENTITY_PATH, CHECKPOINT_PATH, DURABLE_END_PATH} if made else set()
    if disk.exists(CHECKPOINT_PATH):
        needed.add(DURABLE_END_PATH)
    for name in dict.fromkeys(names):
        wanted = name.startswith(prefix) and not name.endswith(".tmp")
        if wanted and (name in vouched or name in needed or disk.exists(name)):
            yield _place(disk, name, vouchers)
    lost = lost_log(disk)
    if lost is not None and MESSAGE_LOG_DIRECTORY.startswith(prefix):
        yield _Place(disk, MESSAGE_LOG_DIRECTORY, vouchers.log_uuid, None, fault=lost)


def is_log_file(path: str) -> bool:
    """Say whether a file is one of a log by its place and name, in quarantine or not."""
    directory, name = _home_of(path)
    return directory in _KINDS and (
        key_of_name(name) is not None or first_of_name(name) is not None
    )


def _home_of(path: str) -> tuple[str, str]:
    """Return the directory that a file belongs in, and its name there."""
    directory, _, name = path.rpartition("/")
    if directory == QUARANTINE_DIRECTORY:
        directory, _, name = name.partition(".")
        name = name.partition(".")[2]
    return directory, name


def _place(disk: Disk, path: str, vouchers: Vouchers) -> _Place:
    neighbour = vouchers.neighbours.get(path, _Neighbour())
    return _Place(
        disk,
        path,
        vouchers.log_uuid,
        vouchers.lengths.get(path),
        vouchers.filed,
        neighbour.first,
        neighbour.following,
        neighbour.fault,
        vouchers.last_crcs.get(path),
    )


def _last_crcs(disk: Disk, known: _Known) -> dict[str, int]:
    """Return the CRC of the last batch of each file of a segment that the checkpoint counts."""
    checkpoint = checkpoint_if_whole(disk, known.log_uuid)
    crcs: dict[str, int] = {}
    for state in checkpoint.segments if checkpoint is not None else ():
        crcs |= {state.key.path: state.last_crc, state.key.facts_path: state.facts_last_crc}
    return crcs


def _neighbours(disk: Disk, known: _Known) -> dict[str, _Neighbour]:
    """Return of each file of the message_log what comes around it, or why it is none of the log."""
    files, strays = message_log_files(disk, known.log_uuid)
    found = {stray.path: _Neighbour(fault=stray.reason) for stray in strays}
    kept_from = known.checkpoint.first_sequence if known.checkpoint is not None else 0
    files = [file for file in files if file.first_sequence >= kept_from]
    following = [file.first_sequence for file in files[1:]]
    if files and files[-1].first_sequence <= known.last:
        following.append(known.last + 1)
    for file, after in zip(files, following, strict=False):
        found[file.path] = _Neighbour(following=after)
    if files and kept_from:
        path = files[0].path
        found[path] = replace(found.get(path, _Neighbour()), first=kept_from)
    return found


_DATA_DIRECTORY_NAMES = (*_KINDS, IDENTITY_PATH, CHECKPOINT_PATH)


def is_data_directory(path: Path) -> bool:
    """Say whether a directory has anything that only a data directory has."""
    return any(os.path.exists(path / name) for name in _DATA_DIRECTORY_NAMES)


def data_directory_of(path: Path) -> tuple[Path, str]:
    """Return the data directory a file or folder lies in, and its path from there."""
    for parent in path.resolve().parents:
        if is_data_directory(parent):
            return parent, path.resolve().relative_to(parent).as_posix()
    return path.resolve().parent, path.name


def _uuid_of(disk: Disk) -> UUID | None:
    try:
        identity = read_identity(disk)
    except NotPermittedError:
        raise
    except StorageError:
        return None
    return None if identity is None else identity.log_uuid


def _vouched(disk: Disk, known: _Known) -> dict[str, int]:
    """Return how long each file must be at least, by durable end, checkpoint and seals."""
    if known.log_uuid is None:
        return {}
    vouched = _vouched_by_durable_end(disk, known.end)
    # It knows which files are retired.
    vouched |= _vouched_by_checkpoint(disk, known.log_uuid, known.checkpoint)
    return vouched


def _durable_end(disk: Disk, log_uuid: UUID | None) -> DurableEnd | None:
    if log_uuid is None:
        return None
    try:
        return DurableEndReader(disk, MESSAGE_LOG_DIRECTORY, log_uuid=log_uuid).read()
    except NotPermittedError:
        raise
    except (StorageError, OSError):
        return None


def _vouched_by_durable_end(disk: Disk, end: DurableEnd | None) -> dict[str, int]:
    if end is None:
        return {}
    last = log_file(MESSAGE_LOG_DIRECTORY, end.file_sequence).path
    lengths = {last: end.position} if end.position else {}
    # Those before it were complete when it was made.
    for file in list_log_files(disk, MESSAGE_LOG_DIRECTORY):
        if file.first_sequence < end.file_sequence:
            lengths |= _whole_length(disk, file.path)
    return lengths


def _whole_length(disk: Disk, path: str) -> dict[str, int]:
    """Return how long a file is that must be whole; nothing if it cannot be opened."""
    try:
        return {path: size_of(disk, path)}
    except NotPermittedError:
        raise
    except OSError:
        return {}  # Verifying it says why.


def _vouched_by_checkpoint(
    disk: Disk, log_uuid: UUID, checkpoint: Checkpoint | None
) -> dict[str, int]:
    if checkpoint is None:
        return {}
    lengths = {}
    try:
        if checkpoint.seals_file:
            path = log_file(SEALS_DIRECTORY, checkpoint.seals_file).path
            lengths[path] = checkpoint.seals_length
        live, _ = read_live(disk, log_uuid, seals_end(checkpoint))
        columns = (live.code.tolist(), live.length.tolist(), live.facts_length.tolist())
        for code, length, facts_length in zip(*columns, strict=True):
            key = key_of_code(code)
            lengths |= {key.path: length, key.facts_path: facts_length}
    except NotPermittedError:
        raise
    except (StorageError, OSError):
        return {}
    # Nothing needs retired files, and nobody made them durable before they were replaced.
    lengths |= {file.path: 0 for file in checkpoint.retired if disk.exists(file.path)}
    for path in checkpoint.quarantined:
        # Kept because it is damaged: every byte of it matters.
        lengths |= _whole_length(disk, path)
    for state in checkpoint.segments:
        lengths |= {state.key.path: state.length} if state.length else {}
        lengths |= {state.key.facts_path: state.facts_length} if state.facts_length else {}
    return lengths


def _verify(place: _Place) -> _Report:
    report = _Report(place.path)
    if place.fault is not None:
        report.add(0, place.fault)
        return report
    if not place.disk.exists(place.path):
        if place.vouched != 0:
            report.add(0, "the file is gone")
        return report
    try:
        _verifier_of(place.path)(place, report)
    except (DamagedError, UnsupportedFormatError) as error:
        report.add(error.position, error.reason)
    except NotPermittedError:
        raise
    except StorageError as error:
        report.add(0, str(error))
    except OSError as error:
        report.add(0, f"cannot be read: {error}")
    return report


def _verifier_of(path: str) -> Callable[[_Place, _Report], None]:
    return _verify_small if _is_small_file(path) else _verify_log


def _verify_small(place: _Place, report: _Report) -> None:
    name = place.path.rpartition("/")[2]
    report.kind = name.upper()
    report.size = size_of(place.disk, place.path)
    if name == "identity":
        read_identity(place.disk)
    elif place.log_uuid is None:
        report.add(0, "cannot be checked: the directory's identity is unreadable")
    elif name == "checkpoint":
        read_checkpoint(place.disk, place.log_uuid)
    elif name in _DOCUMENTS:
        _read_document(place, place.log_uuid)
    else:
        _verify_durable_end(place, place.log_uuid, report)
    report.records = 1


def _verify_durable_end(place: _Place, log_uuid: UUID, report: _Report) -> None:
    end = DurableEndReader(place.disk, place.path.rpartition("/")[0], log_uuid=log_uuid)
    try:
        end.read()
        lost = end.doubt
    except DamagedError as error:
        lost = error
    if lost is not None:
        report.add(lost.position, f"{lost.reason}; how far the log was durable is not known")
    file = place.disk.open_read(place.path)
    try:
        data = file.read_at(0, 2 * SLOT_POSITIONS[1])
    finally:
        file.close()
    for position in SLOT_POSITIONS:
        sector = data[position : position + SLOT_POSITIONS[1]]
        try:
            decode_slot(sector, log_uuid=log_uuid, path=place.path, position=position)
        except DamagedError as error:
            if lost is None:
                report.add(position, f"{error.reason} (a power cut may leave one slot like this)")
            elif position != lost.position:
                report.add(position, error.reason)


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
        file = disk.open_read(path)
        try:
            said = decode_file_header(file.read_at(0, HEADER_SIZE_MAX), path=path)
        finally:
            file.close()
    if key is not None:
        return replace(said, span=key.span, start_minute=key.start, first_sequence=0)
    return said if first is None else replace(said, first_sequence=first)


def _verify_log(place: _Place, report: _Report) -> None:
    report.size = size_of(place.disk, place.path)
    header = header_of(place.disk, place.path, place.log_uuid)
    report.kind = header.kind.name
    unreadable: list[tuple[str, int]] = []
    if place.first is not None:
        _note_missing(place, report, 0, range(place.first, header.first_sequence))
    end, first = FILE_HEADER_SIZE, header.first_sequence
    until = 0 if place.following is None or place.vouched == 0 else place.following
    for found in walk_file(
        place.disk, place.path, report.size, header, unreadable=unreadable, piece=PIECE
    ):
        if isinstance(found, Damage):
            _note_damage(place, report, found)
            continue
        report.batches += 1
        report.records += found.header.count
        _note_missing(place, report, end, range(first, min(found.records.start, until)))
        end, first = found.position + found.header.size, found.records.stop
        if end == place.vouched and place.last_crc not in {None, found.header.crc}:
            report.add(found.position, "an older batch than the one that the checkpoint counts")
        _verify_batch(place, report, header, found)
    for _path, block in unreadable:
        report.add(block, "the disk cannot read this block")
    _note_missing(place, report, end, range(first, until))
    if place.vouched is not None and report.size < place.vouched:
        reason = f"the file is cut short, {place.vouched} bytes are vouched for"
        report.add(report.size, reason)


def _note_missing(place: _Place, report: _Report, position: int, missing: range) -> None:
    """Say which records are in no batch though they were durable, if any, and what it may cost."""
    if missing:
        unfiled = missing.stop - max(missing.start, place.filed + 1)
        reason = f"{missing.start} to {missing.stop - 1} are missing{_sent_again(unfiled)}"
        report.add(min(position, report.size), reason)


def _note_damage(place: _Place, report: _Report, damage: Damage) -> None:
    """Take bytes that nothing vouches for as a tail that is being written, or was in a crash."""
    if place.vouched is not None:
        is_tail = damage.position >= place.vouched
    elif damage.position:
        is_tail = damage.position + damage.size >= report.size
    else:
        # A file that was just made may be without a header.
        is_tail = report.size < FILE_HEADER_SIZE and place.following is None
    if is_tail:
        report.tail = max(report.tail, report.size - damage.position)
    else:
        report.add(damage.position, damage.reason)


def _verify_batch(place: _Place, report: _Report, header: FileHeader, batch: FileBatch) -> None:
    """Check what the walk does not: blob, items, and what the columns may say."""
    position, kind, columns = batch.position, batch.header.kind, batch.columns
    try:
        blob = memoryview(batch.blob())
        if kind is RecordKind.SEALS:
            require_seals(columns)
    except (DamagedError, ColumnsError) as error:
        reason = error.reason if isinstance(error, DamagedError) else str(error)
        _note_damage(place, report, Damage(place.path, position, batch.header.size, reason))
        return
    if kind in KINDS_WITH_ITEMS:
        _verify_items(report, batch, blob, header.span)
    if kind is RecordKind.ROWS and (np.diff(columns.arrays["sequence"]) <= 0).any():
        report.add(position, "the rows' sequences do not ascend")
    # When a dead letter was due says nothing about the day on which it was given up.
    if kind is RecordKind.ROWS and header.span is not Span.DEAD:
        end_ms = (header.start_minute + header.span.minutes) * MINUTE_MS
        if (columns.arrays["due_ms"] >= end_ms).any():
            report.add(position, "a row is due after the segment's end")


def _verify_items(report: _Report, batch: FileBatch, blob: memoryview, span: Span) -> None:
    for _begin, due_ms, row in items_in(batch.columns, blob):
        item, _, note_fault = _divided(row, span)
        fault = note_fault or qmq_item_fault(item, due_ms)
        if fault is not None:
            report.add(batch.position, fault)


def _divided(row: memoryview, span: Span) -> tuple[memoryview, DeadNote | None, str | None]:
    """Return the item of a row, the note behind it in a dead segment, and what is wrong with it."""
    if span is not Span.DEAD:
        return row, None, None
    found = note_of_row(bytes(row))
    if found is None:
        return row, None, "no whole note follows the item of a dead letter"
    return row[: -found[0]], found[1], None


def items_in(columns: Columns, blob: Bytes) -> Iterator[tuple[int, int, memoryview]]:
    """Yield place, due time and bytes of each item of a batch, as far as its blob goes."""
    view, begin = memoryview(blob), 0
    dues, sizes = columns.arrays["due_ms"].tolist(), columns.arrays["size"].tolist()
    for due_ms, size in zip(dues, sizes, strict=True):
        if begin + size > len(view):
            return
        yield begin, due_ms, view[begin : begin + size]
        begin += size


def _dump_log(place: _Place) -> Iterator[Record]:
    disk, path = place.disk, place.path
    header = header_of(disk, path, place.log_uuid)
    for found in walk_file(disk, path, size_of(disk, path), header, piece=PIECE):
        if isinstance(found, Damage):
            yield {"file": path, "position": found.position, "damage": found.reason}
            continue
        try:
            yield from _dump_batch(path, found, header)
        except DamagedError as error:
            yield {"file": path, "position": error.position, "damage": error.reason}


_NUMBERED = {LogKind.DISPATCH_LOG: "fact", LogKind.SEALS: "seal"}
"""What the base sequence of a batch counts, where that is no record's sequence."""
_NAMED: Mapping[str, Callable[[int], str]] = {
    "outcome": lambda number: Outcome(number).name.lower(),
    "span": lambda number: Span(number).name.lower(),
}


def _dump_batch(path: str, batch: FileBatch, file: FileHeader) -> Iterator[Record]:
    """Yield the records of a batch: each column of their layout, by its name."""
    header, columns = batch.header, batch.columns
    shown: dict[str, Sequence[object]] = {
        _NUMBERED.get(file.kind, "sequence"): range(header.base_sequence, header.next_sequence)
    }
    for name, _ in LAYOUTS[header.kind]:
        shown[_called(header.kind, name)] = _shown(header.kind, name, columns)
    if header.kind in KINDS_WITH_ITEMS:
        rows = [
            _divided(row, file.span) for _begin, _due_ms, row in items_in(columns, batch.blob())
        ]
        shown["message id"] = [_text(qmq_message_id(item)) for item, _, _ in rows]
        if file.span is Span.DEAD:
            shown["bytes"] = [len(item) for item, _, _ in rows]
            notes = [_dump_note(note) for _, note, _ in rows]
            shown |= {name: [note[name] for note in notes] for name in notes[0]}
    where = {"file": path, "position": batch.position, "kind": header.kind.name}
    appended: dict[str, object] = {"appended": _time(header.append_ms)}
    if header.kind in {RecordKind.EPOCH_START, RecordKind.FLOOR}:
        appended |= {"epoch": header.epoch, "floor": _minute(header.floor_minute)}
    for values in zip(*shown.values(), strict=True):
        yield where | dict(zip(shown, values, strict=True)) | appended


def _dump_note(note: DeadNote | None) -> dict[str, object]:
    """Return what follows the item of a dead letter, under the names that records have for it."""
    return {
        "old sequence": note.old_sequence if note else None,
        "old minute": _minute(note.old_minute) if note else None,
        "dead": _time(note.dead_ms) if note else None,
        "reason": note.reason if note else None,
    }


def _called(kind: RecordKind, name: str) -> str:
    """Return the name under which a column is shown."""
    if kind is RecordKind.FACTS and name == "sequence":
        return "of"  # A fact has a sequence, or a number, of its own.
    return "bytes" if name == "size" else name.removesuffix("_ms").replace("_", " ")


def _shown(kind: RecordKind, name: str, columns: Columns) -> Sequence[object]:
    """Return the values of a column as they are shown: times as times, names as names."""
    values: list[int] = columns.arrays[name].tolist()
    if name in TABLE_COLUMNS.get(kind, ()):
        return [_text(columns.names[value]) for value in values]
    if name.endswith("_ms"):
        return [_time(value) for value in values]
    if name.endswith("minute"):
        return [_minute(value) for value in values]
    if name in _NAMED:
        return [_name(_NAMED[name], value) for value in values]
    return values


def _name(naming: Callable[[int], str], value: int) -> str:
    try:
        return naming(value)
    except ValueError:
        return f"unknown ({value})"


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def _minute(minute: int) -> str:
    """Return the filed minute of a row, or the dead segment for which it stands."""
    if minute < DEAD_MINUTES_FROM:
        return _time(minute * MINUTE_MS)
    start = dead_key(minute).start
    return f"dead {_time(start * MINUTE_MS)[:10]}" if start <= MINUTE_MAX else f"dead {minute}"


def _dump_small(place: _Place) -> Iterator[Record]:
    """Yield what identity or durable end say; nothing of the lock, which says nothing."""
    found: Identity | DurableEnd | None = None
    if place.path.endswith(IDENTITY_PATH):
        found = read_identity(place.disk)
    elif place.path == DURABLE_END_PATH and place.log_uuid is not None:
        found = DurableEndReader(place.disk, MESSAGE_LOG_DIRECTORY, log_uuid=place.log_uuid).read()
    if found is not None:
        values = {field.name: getattr(found, field.name) for field in fields(found)}
        yield {"file": place.path} | {
            name: str(value) if isinstance(value, UUID) else value for name, value in values.items()
        }


def _read_document(place: _Place, log_uuid: UUID) -> bytes | None:
    """Return the document of controls or promise, None where there is no file."""
    if place.path == CONTROLS_PATH:
        return controls_file(place.disk, log_uuid).read()
    identity = read_identity(place.disk)
    return None if identity is None else promise_document(place.disk, identity.storage_uuid).read()


def _dump_document(place: _Place) -> Iterator[Record]:
    """Yield the document of controls or promise."""
    document = None if place.log_uuid is None else _read_document(place, place.log_uuid)
    if document is not None:
        yield {"file": place.path, "document": _text(document)}


def _dump_checkpoint(place: _Place) -> Iterator[Record]:
    checkpoint = read_checkpoint(place.disk, place.log_uuid) if place.log_uuid else None
    if checkpoint is None:
        return
    yield {
        "file": place.path,
        "sequence": checkpoint.sequence,
        "kept from": checkpoint.first_sequence,
        "floor": _time(checkpoint.floor_minute * 60_000),
        "hours split until": _time(checkpoint.hour_mark * 60_000),
        "days split until": _time(checkpoint.day_mark * 60_000),
        "written": _time(checkpoint.written_ms),
    }
    if isinstance(checkpoint.clock, ClockMark):
        yield {
            "clock trusted until": _time(checkpoint.clock.wall_ms),
            "clock held": checkpoint.clock.held,
        }
    for state in checkpoint.segments:
        yield {
            "segment": state.key.name,
            "rows": state.rows,
            "facts": state.facts,
            "bytes": state.length,
            "facts bytes": state.facts_length,
            "last sequence": state.last_sequence,
            "last fact": state.last_fact,
            "earliest due": _time(state.earliest_due_ms),
        }
    for file in checkpoint.retired:
        yield {"retired": file.path, "since": _time(file.since_ms)}
    for path in checkpoint.quarantined:
        yield {"quarantined": path}


def _time(ms: int) -> str:
    try:
        when = dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
