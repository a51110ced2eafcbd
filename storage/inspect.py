"""Looks into files of a data directory without changing anything: `delaywheel log dump | verify`.

Works on a running server's directory, on a copy of one, and on a single file. Of a file that is
being written the part beyond the last whole batch is reported as a tail, not as damage; `verify` of
a whole directory believes the checkpoint, the seals and the durable end about what must be there.
"""

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from uuid import UUID

from storage.batches import (
    BatchHeader,
    Damage,
    ScannedBatch,
    check_blob,
    check_columns,
    log_seed,
    scan_batches,
)
from storage.checkpoint import CHECKPOINT_PATH, read_checkpoint
from storage.columns import Columns, RecordKind
from storage.disk import DirectoryDisk, Disk
from storage.dispatch_log import JOURNAL_DIRECTORY
from storage.durable_end import (
    DURABLE_END_NAME,
    SLOT_POSITIONS,
    DurableEnd,
    DurableEndFile,
    decode_slot,
)
from storage.errors import (
    DamagedError,
    DataDirectoryError,
    StorageError,
    UnsupportedFormatError,
)
from storage.facts import Outcome
from storage.file_header import FILE_HEADER_SIZE, FileHeader, LogKind, decode_file_header
from storage.identity import IDENTITY_PATH, Identity, read_identity
from storage.item_formats import qmq_item_fault, qmq_message_id
from storage.log_walk import list_log_files, log_file
from storage.message_log import MESSAGE_LOG_DIRECTORY
from storage.seals import SEALS_PATH, Seal, read_seals, seals_of_columns
from storage.spans import MINUTE_MS, SegmentKey, key_of_name

Record = Mapping[str, object]

DURABLE_END_PATH = f"{MESSAGE_LOG_DIRECTORY}/{DURABLE_END_NAME}"
_KINDS = {
    MESSAGE_LOG_DIRECTORY: LogKind.MESSAGE_LOG,
    "schedule_log": LogKind.SCHEDULE_LOG,
    "dispatch_log": LogKind.DISPATCH_LOG,
    JOURNAL_DIRECTORY: LogKind.DISPATCH_JOURNAL,
    "seals": LogKind.SEALS,
}
_DAMAGES_SHOWN = 20
_ITEM_KINDS = (RecordKind.MESSAGE, RecordKind.ROWS)


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
    following: int | None = None
    """First record of the next file of the same log, where there is one."""


def verify_files(path: Path) -> Iterator[Record]:
    """Yield a report for each file; `damage` lists what is wrong, with positions."""
    for place in _places(path):
        yield _verify(place).record()


def dump_records(path: Path) -> Iterator[Record]:
    """Yield every readable record of a file or of all logs; damage becomes a record of its own."""
    for place in _places(path):
        if place.path.endswith(CHECKPOINT_PATH.rpartition("/")[2]):
            yield from _dump_checkpoint(place)
        elif _is_small_file(place.path):
            yield from _dump_small(place)
        else:
            yield from _dump_log(place)


def _is_small_file(path: str) -> bool:
    return path.rpartition("/")[2] in {"durable_end", "identity", "lock", "checkpoint"}


def _places(path: Path) -> Iterator[_Place]:
    if path.is_file():
        root, name = _root_of(path)
        disk = DirectoryDisk(root)
        uuid = _uuid_of(disk)
        yield _Place(disk, name, uuid, _vouched(disk, uuid).get(name), _following(disk, name))
        return
    root, prefix = (path, "") if (path / "message_log").is_dir() else _root_of(path)
    disk = DirectoryDisk(root)
    uuid = _uuid_of(disk)
    vouched = _vouched(disk, uuid)
    names = [IDENTITY_PATH, CHECKPOINT_PATH, DURABLE_END_PATH]
    for directory in _KINDS:
        names += [f"{directory}/{name}" for name in disk.list(directory)]
    names += [name for name in sorted(vouched) if name not in names]
    for name in dict.fromkeys(names):
        wanted = name.startswith(prefix) and not name.endswith(".tmp")
        if wanted and not (root / name).is_dir() and (name in vouched or disk.exists(name)):
            yield _Place(disk, name, uuid, vouched.get(name), _following(disk, name))


def _following(disk: Disk, path: str) -> int | None:
    directory = path.rpartition("/")[0]
    if directory not in {MESSAGE_LOG_DIRECTORY, JOURNAL_DIRECTORY}:
        return None
    files = list_log_files(disk, directory)
    places = [place for place, file in enumerate(files[:-1]) if file.path == path]
    return files[places[0] + 1].first_sequence if places else None


def _root_of(path: Path) -> tuple[Path, str]:
    """Return the data directory a path lies in, and its name from there."""
    for parent in path.resolve().parents:
        if (parent / "message_log").is_dir():
            return parent, path.resolve().relative_to(parent).as_posix()
    return path.resolve().parent, path.name


def _uuid_of(disk: Disk) -> UUID | None:
    try:
        identity = read_identity(disk)
    except StorageError:
        return None
    return None if identity is None else identity.log_uuid


def _vouched(disk: Disk, log_uuid: UUID | None) -> dict[str, int]:
    """Return how long each file must be at least, by durable end, checkpoint and seals."""
    if log_uuid is None:
        return {}
    return _vouched_by_durable_end(disk, log_uuid) | _vouched_by_checkpoint(disk, log_uuid)


def _vouched_by_durable_end(disk: Disk, log_uuid: UUID) -> dict[str, int]:
    try:
        end = DurableEndFile(disk, MESSAGE_LOG_DIRECTORY, log_uuid=log_uuid).read()
    except (StorageError, OSError):
        return {}
    if end is None:
        return {}
    last = log_file(MESSAGE_LOG_DIRECTORY, end.file_sequence).path
    # Those before it were complete when it was made.
    lengths = {
        file.path: len(disk.map(file.path))
        for file in list_log_files(disk, MESSAGE_LOG_DIRECTORY)
        if file.first_sequence < end.file_sequence
    }
    return lengths | ({last: end.position} if end.position else {})


def _vouched_by_checkpoint(disk: Disk, log_uuid: UUID) -> dict[str, int]:
    try:
        checkpoint = read_checkpoint(disk, log_uuid)
        if checkpoint is None:
            return {}
        lengths = {SEALS_PATH: checkpoint.seals_length} if checkpoint.seals_length else {}
        for seal in read_seals(disk, log_uuid, checkpoint.seals_length):
            if isinstance(seal, Seal) and not seal.deleted:
                lengths[seal.key.path] = seal.length
                lengths[seal.key.facts_path] = seal.facts_length
    except (StorageError, OSError):
        return {}
    # Nothing needs retired files, and nobody made them durable before they were replaced.
    lengths |= {file.path: 0 for file in checkpoint.retired if disk.exists(file.path)}
    for state in checkpoint.segments:
        lengths |= {state.key.path: state.length} if state.length else {}
        lengths |= {state.key.facts_path: state.facts_length} if state.facts_length else {}
    return lengths


def _verify(place: _Place) -> _Report:
    report = _Report(place.path)
    if not place.disk.exists(place.path):
        report.add(0, "the file is gone")
        return report
    try:
        if _is_small_file(place.path):
            _verify_small(place, report)
        else:
            _verify_log(place, report)
    except (DamagedError, UnsupportedFormatError) as error:
        if isinstance(error, DamagedError) and _needs_nothing(place, report):
            report.tail = report.size
        else:
            report.add(error.position, error.reason)
    except StorageError as error:
        report.add(0, str(error))
    except OSError as error:
        report.add(0, f"cannot be read: {error}")
    return report


def _needs_nothing(place: _Place, report: _Report) -> bool:
    """Say whether a file may be unreadable: retired, or just made and still without a header."""
    unborn = place.vouched is None and report.size < FILE_HEADER_SIZE
    return place.vouched == 0 or (unborn and place.log_uuid is not None)


def _verify_small(place: _Place, report: _Report) -> None:
    name = place.path.rpartition("/")[2]
    report.kind = name.upper()
    report.size = len(place.disk.map(place.path))
    if name == "identity":
        read_identity(place.disk)
    elif place.log_uuid is None:
        report.add(0, "cannot be checked: the directory's identity is unreadable")
    elif name == "checkpoint":
        read_checkpoint(place.disk, place.log_uuid)
    else:
        _verify_durable_end(place, place.log_uuid, report)
    report.records = 1


def _verify_durable_end(place: _Place, log_uuid: UUID, report: _Report) -> None:
    data = bytes(place.disk.map(place.path))
    written = 0
    for position in SLOT_POSITIONS:
        sector = data[position : position + SLOT_POSITIONS[1]]
        try:
            found = decode_slot(sector, log_uuid=log_uuid, path=place.path, position=position)
            written += found is not None
        except DamagedError as error:
            report.add(position, f"{error.reason} (a power cut may leave one slot like this)")
    if not written and not report.damage:
        report.add(0, "no slot was ever written")


def _open_log(place: _Place, report: _Report) -> tuple[memoryview, FileHeader]:
    view = place.disk.map(place.path)
    report.size = len(view)
    header = decode_file_header(view, path=place.path)
    report.kind = header.kind.name
    if place.log_uuid is not None and header.log_uuid != place.log_uuid:
        raise DataDirectoryError(f"{place.path} belongs to another log, {header.log_uuid}")
    return view, header


def _verify_log(place: _Place, report: _Report) -> None:
    view, header = _open_log(place, report)
    _verify_place(place, header, report)
    seed = log_seed(header.log_uuid, header.kind)
    last_sequence = 0
    next_sequence = header.first_sequence
    for found in scan_batches(
        view, start=FILE_HEADER_SIZE, end=len(view), seed=seed, path=place.path
    ):
        if isinstance(found, Damage):
            _note_damage(place, report, found, len(view))
            continue
        batch = found.header
        report.batches += 1
        report.records += batch.count
        if not found.chained:
            report.add(found.position, "the batch before it is not the one it was written behind")
        try:
            columns, blob = _decode(view, found, seed, place.path)
        except DamagedError as error:
            damage = Damage(place.path, error.position, batch.size, error.reason)
            _note_damage(place, report, damage, len(view))
            continue
        next_sequence = batch.next_sequence
        if batch.kind in _ITEM_KINDS:
            _verify_items(report, found.position, columns, memoryview(blob))
        if batch.kind is RecordKind.ROWS:
            _verify_rows(report, found.position, columns, header, last_sequence)
            last_sequence = int(columns.arrays["sequence"][-1])
    if place.following is not None and next_sequence < place.following and not report.damage:
        report.add(len(view) - report.tail, f"{next_sequence} to {place.following - 1} are missing")
    if place.vouched is not None and len(view) < place.vouched:
        report.add(len(view), f"the file is cut short, {place.vouched} bytes are vouched for")


def _verify_place(place: _Place, header: FileHeader, report: _Report) -> None:
    """Report a file that is whole, but another one than its name says."""
    directory, _, name = place.path.rpartition("/")
    kind = _KINDS.get(directory)
    if kind is not None and header.kind is not kind:
        report.add(0, f"this is a {header.kind.name} file where a {kind.name} file belongs")
    key = key_of_name(name)
    if key is not None and (header.start_minute, header.span) != (key.start, key.span):
        found = SegmentKey(header.start_minute, header.span).name
        report.add(0, f"this is the file of {found}")
    if name.endswith(".log") and name[:-4].isdigit() and int(name[:-4]) != header.first_sequence:
        report.add(0, f"this is the file that begins with {header.first_sequence}")


def _note_damage(place: _Place, report: _Report, damage: Damage, size: int) -> None:
    """Take bytes that nothing vouches for as a tail that is being written, or was in a crash."""
    if place.vouched is None:
        is_tail = damage.position + damage.size >= size
    else:
        is_tail = damage.position >= place.vouched
    if is_tail:
        report.tail = max(report.tail, size - damage.position)
    else:
        report.add(damage.position, damage.reason)


def _verify_rows(
    report: _Report, position: int, columns: Columns, header: FileHeader, last_sequence: int
) -> None:
    sequence = columns.arrays["sequence"]
    if int(sequence[0]) <= last_sequence or (sequence[1:] <= sequence[:-1]).any():
        report.add(position, "the rows' sequences do not ascend")
    end_ms = (header.start_minute + header.span.minutes) * MINUTE_MS
    if (columns.arrays["due_ms"] >= end_ms).any():
        report.add(position, "a row is due after the segment's end")


def _verify_items(report: _Report, position: int, columns: Columns, blob: memoryview) -> None:
    begin = 0
    sizes, dues = columns.arrays["size"].tolist(), columns.arrays["due_ms"].tolist()
    for size, due_ms in zip(sizes, dues, strict=True):
        fault = qmq_item_fault(blob[begin : begin + size], due_ms)
        if fault is not None:
            report.add(position, fault)
        begin += size


def _decode(
    view: memoryview, found: ScannedBatch, seed: int, path: str
) -> tuple[Columns, bytes | bytearray | memoryview]:
    data = view[found.position : found.position + found.header.size]
    columns = check_columns(found.header, data, seed=seed, path=path, position=found.position)
    return columns, check_blob(found.header, data, seed=seed, path=path, position=found.position)


def _dump_log(place: _Place) -> Iterator[Record]:
    try:
        view, header = _open_log(place, _Report(place.path))
    except (StorageError, OSError) as error:
        yield {"file": place.path, "position": 0, "damage": str(error)}
        return
    seed = log_seed(header.log_uuid, header.kind)
    for found in scan_batches(
        view, start=FILE_HEADER_SIZE, end=len(view), seed=seed, path=place.path
    ):
        if isinstance(found, Damage):
            yield {"file": place.path, "position": found.position, "damage": found.reason}
            continue
        try:
            columns, blob = _decode(view, found, seed, place.path)
        except DamagedError as error:
            yield {"file": place.path, "position": error.position, "damage": error.reason}
            continue
        yield from _records(place, header, found, columns, memoryview(blob))


def _records(
    place: _Place, header: FileHeader, found: ScannedBatch, columns: Columns, blob: memoryview
) -> Iterator[Record]:
    batch = found.header
    where = {"file": place.path, "position": found.position}
    match batch.kind:
        case RecordKind.MESSAGE | RecordKind.ROWS:
            yield from _dump_items(where, batch, columns, blob)
        case RecordKind.FACTS:
            yield from _dump_facts(where, header, batch, columns)
        case RecordKind.SEALS:
            for place_in_batch, seal in enumerate(seals_of_columns(columns)):
                yield where | {
                    "seal": batch.base_sequence + place_in_batch,
                    "segment": seal.key.name,
                    "rows": seal.rows,
                    "delivered": seal.outcomes[0],
                    "facts": sum(seal.outcomes),
                    "bytes": seal.length,
                    "digest": f"{seal.digest[0]:016x}{seal.digest[1]:016x}",
                }
        case _:
            yield where | {
                "sequence": batch.base_sequence,
                "kind": batch.kind.name,
                "epoch": batch.epoch,
                "floor": _time(batch.floor_minute * 60_000),
                "appended": _time(batch.append_ms),
            }


def _dump_items(
    where: dict[str, object], batch: BatchHeader, columns: Columns, blob: memoryview
) -> Iterator[Record]:
    arrays = columns.arrays
    count = batch.count
    sequences = (
        arrays["sequence"].tolist()
        if "sequence" in arrays
        else range(batch.base_sequence, batch.base_sequence + count)
    )
    begin = 0
    for sequence, due_ms, size, subject in zip(
        sequences,
        arrays["due_ms"].tolist(),
        arrays["size"].tolist(),
        arrays["subject"].tolist(),
        strict=True,
    ):
        item = blob[begin : begin + size]
        begin += size
        yield where | {
            "sequence": sequence,
            "kind": batch.kind.name,
            "due": _time(due_ms),
            "subject": columns.names[subject].decode(errors="backslashreplace"),
            "message id": qmq_message_id(item).decode(errors="backslashreplace"),
            "bytes": size,
            "appended": _time(batch.append_ms),
        }


def _dump_facts(
    where: dict[str, object], header: FileHeader, batch: BatchHeader, columns: Columns
) -> Iterator[Record]:
    arrays = columns.arrays
    numbered = header.kind is LogKind.DISPATCH_JOURNAL
    for place, (sequence, minute, at_ms, target, outcome) in enumerate(
        zip(
            arrays["sequence"].tolist(),
            arrays["minute"].tolist(),
            arrays["at_ms"].tolist(),
            arrays["target"].tolist(),
            arrays["outcome"].tolist(),
            strict=True,
        )
    ):
        number = {"fact": batch.base_sequence + place} if numbered else {}
        yield (
            where
            | number
            | {
                "sequence": sequence,
                "filed": _time(minute * 60_000),
                "at": _time(at_ms),
                "target": columns.names[target].decode(errors="backslashreplace"),
                "outcome": Outcome(outcome).name.lower(),
            }
        )


def _dump_small(place: _Place) -> Iterator[Record]:
    """Yield what identity or durable end say; nothing of the lock, which says nothing."""
    found: Identity | DurableEnd | None = None
    try:
        if place.path.endswith(IDENTITY_PATH):
            found = read_identity(place.disk)
        elif place.path.endswith(DURABLE_END_PATH) and place.log_uuid is not None:
            found = DurableEndFile(
                place.disk, MESSAGE_LOG_DIRECTORY, log_uuid=place.log_uuid
            ).read()
    except StorageError as error:
        yield {"file": place.path, "position": 0, "damage": str(error)}
    if found is not None:
        values = {field.name: getattr(found, field.name) for field in fields(found)}
        yield {"file": place.path} | {
            name: str(value) if isinstance(value, UUID) else value for name, value in values.items()
        }


def _dump_checkpoint(place: _Place) -> Iterator[Record]:
    if place.log_uuid is None:
        return
    try:
        checkpoint = read_checkpoint(place.disk, place.log_uuid)
    except StorageError as error:
        yield {"file": place.path, "position": 0, "damage": str(error)}
        return
    if checkpoint is None:
        return
    yield {
        "file": place.path,
        "sequence": checkpoint.sequence,
        "fact": checkpoint.fact_number,
        "floor": _time(checkpoint.floor_minute * 60_000),
        "hours split until": _time(checkpoint.hour_mark * 60_000),
        "days split until": _time(checkpoint.day_mark * 60_000),
        "written": _time(checkpoint.written_ms),
    }
    for state in checkpoint.segments:
        yield {
            "segment": state.key.name,
            "rows": state.rows,
            "facts": state.facts,
            "bytes": state.length,
            "facts bytes": state.facts_length,
            "last sequence": state.last_sequence,
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
