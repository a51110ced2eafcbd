r"""Whole batches as Arrow tables, without a loop over the records: for Spark and notebooks.

The only module that knows pyarrow, which is an optional dependency (the extra `spark`). Columns
have the types that Spark takes as they are: int64, int32, string, binary, bool and maps of strings,
all nullable.

The blob of a batch is neither read, checked nor decompressed unless a column needs it (`create_ms`,
`message_id`, `attributes`, `payload`; of dead letters what follows their items as well). What is
damaged comes as `Damage` between the batches, never as an exception: an answer without any is
complete. Of a batch of which only the blob is damaged the rows are there, with null for what was in
it, beside the Damage.

Bytes of producers are never trusted. Names that are no UTF-8 are shown with `\xff` for what is
none, as `delaywheel log dump` does; where the bytes of an item cannot be what they should be its
fields are null, and `ArrowReader.bad_items` counts it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.batch.batches import BatchHeader, Damage
from storage.batch.columns import KINDS_WITH_ITEMS, Array, Columns, RecordKind
from storage.batch.dead_rows import DeadNote, note_of_row
from storage.batch.facts import KINDS_OF_LOG, Outcome, facts_stated
from storage.batch.file_header import FileHeader, LogKind, segment_header
from storage.batch.item_formats import (
    Int64s,
    Mask,
    QmqFields,
    qmq_attributes,
    qmq_fields,
    qmq_suspects,
)
from storage.batch.rows import Origin, origin_of
from storage.batch.walk import FileBatch, walk_file
from storage.disk.disk import Bytes, ReadableDisk
from storage.disk.errors import DamagedError, StorageError, UnsupportedFormatError
from storage.disk.read_ahead import PIECE
from storage.disk.spans import (
    MINUTE_MS,
    SegmentKey,
    Span,
    dead_minute,
    dead_segment_of,
    key_of_name,
)
from storage.logs.message_log import MESSAGE_LOG_DIRECTORY
from storage.logs.numbered_log import first_of_name

_ROWS_MAX = 65_536
_BYTES_MAX = 8 * 1024 * 1024
_PIECE = 256 * 1024
"""Bytes read at a time where no blob is wanted; larger ones are hopped over."""


class Kind(StrEnum):
    """What a table is made of."""

    MESSAGE = "message"
    """Records of the message_log."""
    SCHEDULE = "schedule"
    """Rows of the schedule_log: accepted messages, by when they are due."""
    DEAD = "dead"
    """Rows of dead segments: messages that were given up."""
    DISPATCH = "dispatch"
    """Facts, filed or stated by records of the message_log: what became of messages."""


_ITEM_COLUMNS: dict[str, pa.DataType] = {
    "due_ms": pa.int64(),
    "size": pa.int32(),
    "id_hash": pa.int64(),
    "subject": pa.string(),
    "message_id": pa.string(),
    "create_ms": pa.int64(),
    "attributes": pa.map_(pa.string(), pa.string()),
}
_PLACE_COLUMNS: dict[str, pa.DataType] = {"file": pa.string(), "position": pa.int64()}
_OLD_COLUMNS: dict[str, pa.DataType] = {"old_sequence": pa.int64(), "old_minute": pa.int64()}

COLUMNS: Mapping[Kind, Mapping[str, pa.DataType]] = {
    Kind.MESSAGE: {
        "sequence": pa.int64(),
        "kind": pa.string(),
        "origin": pa.string(),
        "filed_minute": pa.int64(),
        "append_ms": pa.int64(),
        "epoch": pa.int64(),
        "floor_minute": pa.int64(),
        **_ITEM_COLUMNS,
        **_OLD_COLUMNS,
        "reason": pa.string(),
        **_PLACE_COLUMNS,
        "payload": pa.binary(),
    },
    Kind.SCHEDULE: {
        "sequence": pa.int64(),
        "origin": pa.string(),
        "filed_minute": pa.int64(),
        **_ITEM_COLUMNS,
        "segment": pa.string(),
        "start_minute": pa.int64(),
        "span": pa.string(),
        "is_sealed": pa.bool_(),
        **_PLACE_COLUMNS,
        "payload": pa.binary(),
    },
    Kind.DEAD: {
        "sequence": pa.int64(),
        **_OLD_COLUMNS,
        "dead_ms": pa.int64(),
        **_ITEM_COLUMNS,
        "reason": pa.string(),
        **_PLACE_COLUMNS,
        "payload": pa.binary(),
    },
    Kind.DISPATCH: {
        "sequence": pa.int64(),
        "filed_minute": pa.int64(),
        "at_ms": pa.int64(),
        "target": pa.string(),
        "outcome": pa.string(),
        "is_filed": pa.bool_(),
        "record": pa.int64(),
        **_PLACE_COLUMNS,
    },
}
"""The columns of each kind, in order. Minutes are since 1970, `_ms` is wall clock in ms since 1970.

filed_minute, old_minute: a filed minute, or what stands for a dead segment (storage/disk/spans.py);
that of a row is always one of its segment, however wrong its due time; `kind` of a message:
`message`, `epoch_start`, `floor`, `cancel`, `move` or `dead`; origin: `accepted`, `copy` or
`retry` (storage/batch/rows.py), null of a record that makes no such row; id_hash: the 64 bits,
signed; record: sequence of the record of the message_log that states a fact, null of one that is
filed; position: of the batch; attributes: those of the item, by name, read one item after another;
payload: the whole item as its producer sent it.
"""

ON_DEMAND: frozenset[str] = frozenset({"attributes", "payload"})
"""Columns that are there only if they are asked for: they cost most."""
_BLOB_COLUMNS = ON_DEMAND | {"message_id", "create_ms"}
_NOTE_COLUMNS = frozenset({"old_sequence", "old_minute", "dead_ms", "reason", "size"})
"""Of dead letters: told by what follows the item."""
_LOG_KINDS = {kind: kind.name.lower() for kind in KINDS_OF_LOG - {RecordKind.FACTS}}
"""Records that are rows of kind MESSAGE: all but FACTS, which are rows of kind DISPATCH."""
_FILED_KINDS = frozenset({RecordKind.MESSAGE, RecordKind.MOVE})


def _names_of(numbers: type[IntEnum]) -> pa.Array:
    """Return the name of each number of a byte."""
    known = {one.value: one.name.lower() for one in numbers}
    return pa.array([known.get(one, f"unknown ({one})") for one in range(256)], pa.string())


_ORIGINS, _OUTCOMES = _names_of(Origin), _names_of(Outcome)


def schema_of(kind: Kind, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of a table of these columns, in order; all but ON_DEMAND if None.

    ValueError for a column that the kind does not have, or that is named twice, and for none.
    """
    known = COLUMNS[kind]
    if columns is None:
        columns = [name for name in known if name not in ON_DEMAND]
    wrong = [name for name in columns if name not in known]
    if wrong:
        raise ValueError(
            f"no column {', '.join(map(repr, wrong))} in {kind}; there are {', '.join(known)}"
        )
    if len(set(columns)) < len(columns) or not columns:
        raise ValueError(f"each column must be named once, and one at least: {list(columns)}")
    return pa.schema([pa.field(name, known[name]) for name in columns])


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one batch. blob: of these rows; None where it is not wanted, bad, or not there."""

    header: BatchHeader
    position: int
    first: int
    """Sequence of the first row, in the log that counts them one by one."""
    count: int
    names: Sequence[bytes]
    arrays: Mapping[str, Array]
    blob: Bytes | None


def _part(
    header: BatchHeader,
    position: int,
    columns: Columns,
    blob: Bytes | None,
    rows: range,
) -> _Part:
    """Return the rows of a batch at the places `rows`."""
    arrays, first = columns.arrays, header.base_sequence
    if len(rows) == header.count:
        return _Part(header, position, first, header.count, columns.names, arrays, blob)
    if blob is not None:
        ends = np.cumsum(arrays["size"], dtype=np.int64)
        begin = int(ends[rows.start - 1]) if rows.start else 0
        blob = memoryview(blob)[begin : int(ends[rows.stop - 1])]
    arrays = {name: array[rows.start : rows.stop] for name, array in arrays.items()}
    return _Part(header, position, first + rows.start, len(rows), columns.names, arrays, blob)


def _stated(batch: FileBatch, rows: range) -> _Part | None:
    """Return the facts that records of a batch state, at the places `rows`; None if they do not."""
    header = batch.header
    facts = facts_stated(header, batch.columns)
    if facts is None:
        return None
    facts = facts.slice(rows.start, rows.stop)
    arrays = {**facts.arrays, "record": facts.record}
    first = header.base_sequence + rows.start
    return _Part(header, batch.position, first, len(facts), facts.targets, arrays, None)


def _without_blob(part: _Part) -> _Part:
    """Return rows of a dead segment of whose items, and what follows them, nothing is known."""
    arrays = {name: array for name, array in part.arrays.items() if name != "size"}
    return replace(part, arrays=arrays, blob=None)


def _divided(part: _Part) -> _Part | None:
    """Return rows of a dead segment with their items alone, and columns of what follows these.

    None if one has no note: whoever wrote them is not known.
    """
    assert part.blob is not None
    items: list[Bytes] = []
    notes: list[DeadNote] = []
    end = 0
    for size in part.arrays["size"].tolist():
        begin, end = end, end + size
        found = note_of_row(bytes(part.blob[begin:end]))
        if found is None:
            return None
        items.append(part.blob[begin : end - found[0]])
        notes.append(found[1])
    names = [*part.names, *dict.fromkeys(note.reason.encode() for note in notes)]
    numbers = {name: number for number, name in enumerate(names)}
    arrays = {
        **part.arrays,
        "size": np.array([len(item) for item in items], np.uint32),
        "old_sequence": np.array([note.old_sequence for note in notes], np.int64),
        "old_minute": np.array([note.old_minute for note in notes], np.int64),
        "dead_ms": np.array([note.dead_ms for note in notes], np.int64),
        "reason": np.array([numbers[note.reason.encode()] for note in notes], np.uint32),
    }
    return replace(part, names=names, arrays=arrays, blob=b"".join(items))


def _missing(damage: Damage | None, path: str, position: int, numbers: range) -> Damage:
    """Return the damage that hides records, or what tells that they are not there."""
    if damage is None:
        reason = f"records {numbers.start} to {numbers.stop - 1} are missing"
        damage = Damage(path, position, 0, reason)
    return replace(damage, first_sequence=numbers.start, next_sequence=numbers.stop)


@dataclass(frozen=True, slots=True)
class _Origin:
    """What all rows of one file have in common."""

    path: str
    key: SegmentKey | None = None
    is_sealed: bool = False
    is_filed: bool = False

    @property
    def segment(self) -> SegmentKey:
        """The segment; only where there is one."""
        assert self.key is not None
        return self.key


class ArrowReader:
    """Reads files of one data directory, all into tables of the same columns.

    Every method yields `pa.RecordBatch`es of `schema` and, between them, what is damaged; they
    raise nothing but what the arguments are to blame for. Memory is bounded by `bytes_max` and the
    4 MiB of a batch, whatever the files' sizes.
    """

    def __init__(
        self,
        disk: ReadableDisk,
        log_uuid: UUID,
        kind: Kind,
        columns: Sequence[str] | None = None,
        *,
        check_items: bool | None = None,
        rows_max: int = _ROWS_MAX,
        bytes_max: int = _BYTES_MAX,
    ) -> None:
        """Prepare to read the logs of a group, as `Identity.log_uuid` names it.

        columns: as `schema_of` takes them. check_items: whether each item's own CRC and due time
        are held against its bytes (with `payload` they are, unless something else is said); one
        that does not pass has null fields. rows_max, bytes_max: rows, and bytes of the batches on
        disk (uncompressed where blobs are read), that one table is made of; it has more only where
        a single batch does.
        """
        self.schema = schema_of(kind, columns)
        self.kind = kind
        self.bad_items = 0
        """Items so far whose bytes cannot be what they should be; counted where blobs are read."""
        names = set(self.schema.names)
        self._disk = disk
        self._log_uuid = log_uuid
        self._check_items = "payload" in names if check_items is None else check_items
        in_blobs = _BLOB_COLUMNS | _NOTE_COLUMNS if kind is Kind.DEAD else _BLOB_COLUMNS
        self._with_blobs = bool(names & in_blobs) or (
            self._check_items and kind is not Kind.DISPATCH
        )
        self._piece = PIECE if self._with_blobs else _PIECE
        self._rows_max = rows_max
        self._bytes_max = bytes_max

    # -- files -------------------------------------------------------------------------------

    def rows(
        self,
        path: str,
        *,
        length: int,
        is_sealed: bool = False,
    ) -> Iterator[pa.RecordBatch | Damage]:
        """Yield the rows in the first `length` bytes of a segment of the schedule_log.

        ValueError unless the path is one of a segment that holds what this reader is for.
        """
        key = _key_of(path, "schedule_log")
        self._require(Kind.DEAD if key.span is Span.DEAD else Kind.SCHEDULE, path)
        header = segment_header(LogKind.SCHEDULE_LOG, self._log_uuid, key)
        origin = _Origin(path, key=key, is_sealed=is_sealed)
        return self._safely(self._chained(path, length, header), origin, length)

    def filed_facts(self, path: str, *, length: int) -> Iterator[pa.RecordBatch | Damage]:
        """Yield the facts in the first `length` bytes of a segment of the dispatch_log.

        ValueError as `rows`.
        """
        key = _key_of(path, "dispatch_log")
        self._require(Kind.DISPATCH, path)
        header = segment_header(LogKind.DISPATCH_LOG, self._log_uuid, key)
        origin = _Origin(path, key=key, is_filed=True)
        return self._safely(self._chained(path, length, header), origin, length)

    def stated_facts(
        self, path: str, *, length: int, first_sequence: int, next_sequence: int
    ) -> Iterator[pa.RecordBatch | Damage]:
        """Yield the facts that records of a message_log file state.

        These are the records from `first_sequence` up to `next_sequence`. What of them is not in
        the first `length` bytes is reported, with the sequences: whether there were facts in it,
        nobody knows. ValueError unless the path is one of the message_log.
        """
        self._require(Kind.DISPATCH, path)
        return self._of_log(path, length, range(first_sequence, next_sequence), self._stated_of)

    def messages(
        self,
        path: str,
        *,
        length: int,
        first_sequence: int,
        next_sequence: int,
    ) -> Iterator[pa.RecordBatch | Damage]:
        """Yield the records from `first_sequence` up to `next_sequence` of a message_log file.

        FACTS records are passed over: they are no rows, and are not missing. What of the others is
        not in the first `length` bytes is reported, with the sequences. ValueError unless the path
        is one of the message_log.
        """
        self._require(Kind.MESSAGE, path)
        return self._of_log(path, length, range(first_sequence, next_sequence), self._records_of)

    def _of_log(
        self,
        path: str,
        length: int,
        wanted: range,
        parts_of: Callable[[str, FileBatch, range], Iterator[_Part | Damage]],
    ) -> Iterator[pa.RecordBatch | Damage]:
        first = _first_of(path, MESSAGE_LOG_DIRECTORY)
        header = FileHeader(kind=LogKind.MESSAGE_LOG, log_uuid=self._log_uuid, first_sequence=first)
        wanted = range(max(wanted.start, first), wanted.stop)
        parts = self._numbered(path, length, header, wanted, parts_of)
        return self._safely(parts, _Origin(path), length)

    def _require(self, kind: Kind, path: str) -> None:
        if kind is not self.kind:
            raise ValueError(f"{path} holds rows of kind {kind}, this reader is for {self.kind}")

    # -- batches -----------------------------------------------------------------------------

    def _chained(self, path: str, length: int, header: FileHeader) -> Iterator[_Part | Damage]:
        """Yield all batches of a file, and the damage."""
        if not length:
            return
        for found in walk_file(self._disk, path, length, header, piece=self._piece):
            if isinstance(found, Damage):
                yield found
            else:
                yield from self._parts_of(path, found, range(found.header.count))

    def _numbered(
        self,
        path: str,
        length: int,
        header: FileHeader,
        wanted: range,
        parts_of: Callable[[str, FileBatch, range], Iterator[_Part | Damage]],
    ) -> Iterator[_Part | Damage]:
        """Yield what there is of these records, and the damage before each, missing ones told."""
        expected = wanted.start
        damage: Damage | None = None
        found: FileBatch | Damage
        for found in walk_file(self._disk, path, length, header, piece=self._piece):
            if isinstance(found, Damage):
                damage = damage or found
                continue
            first = found.records.start
            begin, end = max(first, expected), min(found.records.stop, wanted.stop)
            if first >= wanted.stop:
                break
            if begin < end:
                if damage is not None or begin > expected:
                    yield _missing(damage, path, found.position, range(expected, begin))
                expected = end
                yield from parts_of(path, found, range(begin - first, end - first))
            damage = None
        if expected < wanted.stop:
            yield _missing(damage, path, length, range(expected, wanted.stop))

    def _records_of(self, path: str, batch: FileBatch, rows: range) -> Iterator[_Part | Damage]:
        """Yield some rows of a batch of the message_log, if it has any."""
        if batch.header.kind in _LOG_KINDS:
            yield from self._parts_of(path, batch, rows)

    def _stated_of(self, _path: str, batch: FileBatch, rows: range) -> Iterator[_Part | Damage]:
        """Yield the facts that some records of a batch of the message_log state."""
        part = _stated(batch, rows)
        if part is not None:
            yield part

    def _parts_of(self, path: str, batch: FileBatch, rows: range) -> Iterator[_Part | Damage]:
        """Yield some rows of a batch, after the damage of its blob where that is wanted."""
        header, blob = batch.header, None
        if self._with_blobs and header.kind in KINDS_WITH_ITEMS:
            try:
                blob = batch.blob()
            except DamagedError as error:
                records = batch.records[rows.start], batch.records[rows.stop - 1] + 1
                yield Damage(path, batch.position, header.size, error.reason, header, *records)
        part = _part(header, batch.position, batch.columns, blob, rows)
        if self.kind is Kind.DEAD:
            divided = _divided(part) if blob is not None else None
            if divided is None and blob is not None:
                reason = "an item is not followed by the note of a dead letter"
                yield Damage(path, batch.position, header.size, reason)
            part = divided or _without_blob(part)
        yield part

    # -- tables ------------------------------------------------------------------------------

    def _safely(
        self, parts: Iterator[_Part | Damage], origin: _Origin, length: int
    ) -> Iterator[pa.RecordBatch | Damage]:
        """Yield tables of what is found, and the damage as it is met; errors become damage."""
        gathered: list[_Part] = []
        rows = size = 0
        try:
            for part in parts:
                if isinstance(part, Damage):
                    yield part
                    continue
                weight = part.header.size
                if part.blob is not None:
                    weight += len(part.blob)
                if gathered and (
                    rows + part.count > self._rows_max or size + weight > self._bytes_max
                ):
                    yield self._table(gathered, origin)
                    gathered, rows, size = [], 0, 0
                gathered.append(part)
                rows, size = rows + part.count, size + weight
        except UnsupportedFormatError as error:
            place = min(error.position, length)
            yield Damage(origin.path, error.position, length - place, str(error))
        except (StorageError, OSError) as error:
            yield Damage(origin.path, 0, length, f"cannot be read: {error}")
        if gathered:
            yield self._table(gathered, origin)

    def _table(self, parts: Sequence[_Part], origin: _Origin) -> pa.RecordBatch:
        table = _Table(parts, origin, check_items=self._check_items)
        columns = [table.column(field.name, field.type) for field in self.schema]
        if self._with_blobs:
            self.bad_items += table.items.bad_count
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class _Items:
    """The items of some parts, one after the other; rows without one are empty.

    gone: rows without an item, or with a bad blob; bad_count: items whose bytes cannot be what they
    should be.
    """

    def __init__(self, parts: Sequence[_Part], *, check: bool) -> None:
        blobs = [part.blob for part in parts if part.blob is not None]
        self.data = memoryview(blobs[0] if len(blobs) == 1 else b"".join(blobs))
        sizes = [
            np.zeros(part.count, np.int64)
            if part.blob is None
            else part.arrays["size"].astype(np.int64)
            for part in parts
        ]
        self.size: Int64s = np.concatenate(sizes)
        self.begin: Int64s = np.cumsum(self.size) - self.size
        has_blob = [part.blob is not None for part in parts]
        self.gone: Mask = ~np.repeat(has_blob, [part.count for part in parts])
        bytes_ = np.frombuffer(self.data, np.uint8)
        self.fields: QmqFields = qmq_fields(bytes_, self.begin, self.size)
        self.suspects: Mask = np.zeros(len(self.size), np.bool_)
        if check:
            due_ms = np.concatenate(
                [part.arrays.get("due_ms", np.zeros(part.count, np.int64)) for part in parts]
            )
            self.suspects = qmq_suspects(self.data, self.begin, self.size, due_ms)
        bad = (self.suspects | ~self.fields.has_id) & ~self.gone
        self.bad_count = int(np.count_nonzero(bad))

    def create_ms(self) -> pa.Array:
        """Return the create time of each item."""
        missing = ~self.fields.has_head | self.suspects
        return pa.array(self.fields.create_ms, mask=missing if missing.any() else None)

    def message_id(self) -> pa.Array:
        """Return the message id of each item."""
        fields, count = self.fields, len(self.size)
        # Ids and what lies between them are one array over the whole blob; every other one is it.
        edges = np.empty(2 * count, np.int32)
        edges[::2], edges[1::2] = fields.id_begin, fields.id_end
        buffers = [None, pa.py_buffer(edges), pa.py_buffer(self.data)]
        pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
        missing = ~fields.has_id | self.suspects
        places = np.arange(0, 2 * count, 2)
        found = pieces.take(pa.array(places, mask=missing if missing.any() else None))
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array([_text(value) for value in found.to_pylist()], pa.string())

    def attributes(self, data_type: pa.DataType) -> pa.Array:
        """Return the attributes of each item, in a loop over them."""
        ends, is_there = (self.begin + self.size).tolist(), self.fields.has_id & ~self.suspects
        found: list[list[tuple[str | None, str | None]] | None] = [None] * len(ends)
        for row in np.flatnonzero(is_there).tolist():
            attributes = qmq_attributes(bytes(self.data[self.begin[row] : ends[row]]))
            found[row] = [(_text(key), _text(value)) for key, value in attributes.items()]
        return pa.array(found, data_type)

    def payload(self) -> pa.Array:
        """Return the items, without copying them."""
        edges = np.empty(len(self.size) + 1, np.int32)
        edges[:-1], edges[-1] = self.begin, len(self.data)
        missing = self.gone | self.suspects
        validity = None
        if missing.any():
            validity = pa.py_buffer(np.packbits(~missing, bitorder="little"))
        buffers = [validity, pa.py_buffer(edges), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), len(self.size), buffers)


def _text(name: bytes | None) -> str | None:
    """Return a name as it is shown, what is no UTF-8 in it included."""
    return None if name is None else name.decode(errors="backslashreplace")


class _Table:
    """The columns of some parts of one file, made when they are asked for."""

    def __init__(self, parts: Sequence[_Part], origin: _Origin, *, check_items: bool) -> None:
        self._parts = parts
        self._origin = origin
        self._check_items = check_items
        self._counts = [part.count for part in parts]
        self._rows = sum(self._counts)

    @cached_property
    def items(self) -> _Items:
        """The items; only where blobs were read."""
        return _Items(self._parts, check=self._check_items)

    def column(self, name: str, data_type: pa.DataType) -> pa.Array:
        """Return the column of this name."""
        make = _MAKERS.get(name)
        return make(self, data_type) if make is not None else self._stored(name, data_type)

    def sequence(self, _type: pa.DataType) -> pa.Array:
        """Return the sequence of each record: told by itself, or by its place in the log."""
        is_told = "sequence" in self._parts[0].arrays
        return pa.array(self._joined("sequence") if is_told else self._counted())

    def kind(self, _type: pa.DataType) -> pa.Array:
        """Return the kind of each record."""
        kinds = list(_LOG_KINDS)
        places = np.array([kinds.index(part.header.kind) for part in self._parts], np.int32)
        texts = pa.array(list(_LOG_KINDS.values()), pa.string())
        return texts.take(pa.array(self._repeated(places)))

    def origin_of_rows(self, _type: pa.DataType) -> pa.Array:
        """Return where each row comes from: told by itself, or by the kind of its record."""
        if "origin" in self._parts[0].arrays:
            return _ORIGINS.take(pa.array(self._joined("origin")))
        headers = [part.header for part in self._parts]
        told = [origin_of(one) if one.kind in _FILED_KINDS else None for one in headers]
        texts = _ORIGINS.take(pa.array(told, pa.int8()))
        return texts.take(pa.array(self._repeated(np.arange(len(told)))))

    def outcome(self, _type: pa.DataType) -> pa.Array:
        """Return what became of each message."""
        return _OUTCOMES.take(pa.array(self._joined("outcome")))

    def filed_minute(self, _type: pa.DataType) -> pa.Array:
        """Return filed minutes: a fact tells its own, a row and a record have it from due times."""
        if "minute" in self._parts[0].arrays:
            return pa.array(self._joined("minute").astype(np.int64))
        if self.origin.key is not None:
            key = self.origin.key
            return pa.array(np.clip(self._joined("due_ms") // MINUTE_MS, key.start, key.end - 1))
        minutes = np.zeros(self._rows, np.int64)
        missing = np.zeros(self._rows, np.bool_)
        end = 0
        for part in self._parts:
            rows, end = slice(end, end + part.count), end + part.count
            header = part.header
            if header.kind in _FILED_KINDS:
                due = part.arrays["due_ms"] // MINUTE_MS
                minutes[rows] = np.maximum(due, header.floor_minute)
            elif header.kind is RecordKind.DEAD:
                minutes[rows] = dead_minute(dead_segment_of(header.append_ms, header.floor_minute))
            else:
                missing[rows] = True
        return pa.array(minutes, mask=missing if missing.any() else None)

    def names(self, name: str) -> pa.Array:
        """Return a column of indexes into the batches' tables of names as the names."""
        numbers: dict[bytes, int] = {}
        found: list[npt.NDArray[Any]] = []
        names: Sequence[bytes] = ()
        places = np.empty(0, np.int32)
        for part in self._parts:
            if name not in part.arrays:
                found.append(np.zeros(part.count, np.int32))
                continue
            if part.names != names:
                names = part.names
                places = np.array(
                    [numbers.setdefault(one, len(numbers)) for one in names], np.int32
                )
            found.append(places[part.arrays[name]])
        texts = pa.array([_text(one) for one in numbers], pa.string())
        return texts.take(pa.array(np.concatenate(found), mask=self._missing(name)))

    def of_batches(self, values: Callable[[_Part], int]) -> pa.Array:
        """Return what all rows of a batch have in common."""
        found = np.fromiter(map(values, self._parts), np.int64, len(self._parts))
        return pa.array(self._repeated(found))

    def of_file(self, value: object, data_type: pa.DataType) -> pa.Array:
        """Return what all rows of a file have in common."""
        return pa.repeat(pa.scalar(value, data_type), self._rows)

    @property
    def origin(self) -> _Origin:
        """The file."""
        return self._origin

    def _repeated(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return one value per batch as one per row."""
        return np.repeat(values, self._counts)

    def _counted(self) -> Int64s:
        """Return base sequence, and so on, of each row."""
        before = np.cumsum(self._counts) - self._counts
        firsts = np.array([part.first for part in self._parts], np.int64)
        counted: Int64s = np.arange(self._rows) + self._repeated(firsts - before)
        return counted

    def _missing(self, name: str) -> Mask | None:
        """Return which rows are of batches without this column; None if none is."""
        absent = [name not in part.arrays for part in self._parts]
        return self._repeated(np.array(absent)) if any(absent) else None

    def _joined(self, name: str) -> npt.NDArray[Any]:
        """Return a column as it is stored, zeros where a batch does not have it; a copy."""
        present = [part.arrays[name] for part in self._parts if name in part.arrays]
        if len(present) == len(self._parts):
            return np.concatenate(present)
        dtype = present[0].dtype if present else np.dtype(np.int64)
        return np.concatenate(
            [part.arrays.get(name, np.zeros(part.count, dtype)) for part in self._parts]
        )

    def _stored(self, name: str, data_type: pa.DataType) -> pa.Array:
        values = self._joined(name)
        if values.dtype == np.uint64:
            values = values.view(np.int64)
        wanted = data_type.to_pandas_dtype()
        return pa.array(values.astype(wanted, copy=False), mask=self._missing(name))


_MAKERS: dict[str, Callable[[_Table, pa.DataType], pa.Array]] = {
    "sequence": _Table.sequence,
    "kind": _Table.kind,
    "origin": _Table.origin_of_rows,
    "outcome": _Table.outcome,
    "filed_minute": _Table.filed_minute,
    "subject": lambda table, _: table.names("subject"),
    "reason": lambda table, _: table.names("reason"),
    "target": lambda table, _: table.names("target"),
    "create_ms": lambda table, _: table.items.create_ms(),
    "message_id": lambda table, _: table.items.message_id(),
    "attributes": lambda table, data_type: table.items.attributes(data_type),
    "payload": lambda table, _: table.items.payload(),
    "position": lambda table, _: table.of_batches(lambda part: part.position),
    "append_ms": lambda table, _: table.of_batches(lambda part: part.header.append_ms),
    "floor_minute": lambda table, _: table.of_batches(lambda part: part.header.floor_minute),
    # An unsigned number: the same 64 bits, whatever they say.
    "epoch": lambda table, _: table.of_batches(lambda part: _signed(part.header.epoch)),
    "file": lambda table, kind: table.of_file(table.origin.path, kind),
    "segment": lambda table, kind: table.of_file(table.origin.segment.name, kind),
    "start_minute": lambda table, kind: table.of_file(table.origin.segment.start, kind),
    "span": lambda table, kind: table.of_file(table.origin.segment.span.name.lower(), kind),
    "is_sealed": lambda table, kind: table.of_file(table.origin.is_sealed, kind),
    "is_filed": lambda table, kind: table.of_file(table.origin.is_filed, kind),
}
"""How columns are made that are not stored as they are."""


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _key_of(path: str, directory: str) -> SegmentKey:
    where, _, name = path.rpartition("/")
    key = key_of_name(name)
    if where != directory or key is None:
        raise ValueError(f"{path} is no segment of {directory}")
    return key


def _first_of(path: str, directory: str) -> int:
    where, _, name = path.rpartition("/")
    first = first_of_name(name)
    if where != directory or first is None:
        raise ValueError(f"{path} is no file of {directory}")
    return first
