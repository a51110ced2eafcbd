"""A second reader of everything on disk, written from docs/formats/ and nothing else.

The checkers go by it, so that a fault in the code of `storage` cannot hide itself by being made
twice, in the writer and in the judge. It imports nothing of ours, takes bytes and returns values,
and is strict: what the pages do not allow is a `MismatchError`. A test reads every worked example
of the pages with it, and the simulation reads whole data directories, so both hold the pages to
the truth.
"""

import contextlib
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import lz4.block
import numpy as np
import xxhash

FILE_HEADER_SIZE = 64
BATCH_HEADER_SIZE = 80
BATCH_BYTES_MAX = 4_194_304
SLOT_POSITIONS = (0, 512)
_SECTOR = 512

MESSAGE_LOG, SCHEDULE_LOG = 1, 2
DISPATCH_LOG, SEALS_LOG, CHECKPOINT, DURABLE_END, IDENTITY = range(4, 9)
_KINDS_OF_FILES = {MESSAGE_LOG, SCHEDULE_LOG, *range(DISPATCH_LOG, IDENTITY + 1)}
MESSAGE, EPOCH_START, FLOOR, CANCEL, MOVE, DEAD = range(1, 7)
FACTS, SEALS, ROWS = 33, 34, 35
DEAD_SPAN = 4
SPAN_MINUTES = {1: 1, 2: 60, 3: 1440, DEAD_SPAN: 1440}
SPAN_NAMES = {"minute": 1, "hour": 2, "day": 3, "dead": DEAD_SPAN}
DELIVERED, KNOWN, WAS_DEAD, CANCELLED, MOVED, _EXPIRED, DROPPED = range(1, 8)
_OUTCOMES_OF_RECORDS = {CANCEL: CANCELLED, MOVE: MOVED, DEAD: WAS_DEAD}
DEAD_MINUTES_FROM = 4_290_772_992
"""Filed minutes from here on stand for a day's dead segment."""

_FILE_HEADER = struct.Struct("<4sHHQ16sqIBB14sI")
_BATCH_HEADER = struct.Struct("<4sHHQBBHIQqqIIIIIIII")
_SLOT = struct.Struct("<4sHHQ16sqqqQII4sI")
_IDENTITY = struct.Struct("<16sQHHHH")
_ITEM = struct.Struct(">qBqqH")
DELAY_FLAG = 2
"""The flag of an item that says when it is due."""

_MESSAGE_COLUMNS = "due_ms i8, id_hash u8, size u4, subject u2"
_OLD_ITEM = "old_sequence i8, due_ms i8, id_hash u8, size u4, old_minute u4, subject u2"
_COLUMNS = {
    MESSAGE: _MESSAGE_COLUMNS,
    EPOCH_START: "",
    FLOOR: "",
    CANCEL: "old_sequence i8, old_minute u4",
    MOVE: _OLD_ITEM,
    DEAD: f"{_OLD_ITEM}, reason u2",
    ROWS: f"sequence i8, {_MESSAGE_COLUMNS}, origin u1",
    FACTS: "sequence i8, at_ms i8, minute u4, target u2, outcome u1",
    SEALS: (
        "rows i8, distinct i8, last_sequence i8, length i8, facts_length i8, digest_0 u8, "
        "digest_1 u8, facts_digest_0 u8, facts_digest_1 u8, delivered i8, known i8, dead i8, "
        "cancelled i8, moved i8, expired i8, dropped i8, sealed_ms i8, start_minute u4, "
        "span u1, reserved u1, deleted u1"
    ),
}
_LAYOUTS = {
    kind: [tuple(column.split(" ")) for column in columns.split(", ") if column]
    for kind, columns in _COLUMNS.items()
}
_WITH_ITEMS = {MESSAGE, MOVE, DEAD, ROWS}
_KINDS_OF_LOG = {
    MESSAGE_LOG: {MESSAGE, EPOCH_START, FLOOR, CANCEL, MOVE, DEAD, FACTS},
    SCHEDULE_LOG: {ROWS},
    DISPATCH_LOG: {FACTS},
    SEALS_LOG: {SEALS},
}


class MismatchError(ValueError):
    """Bytes are not what the pages of docs/formats/ say."""


@dataclass(frozen=True, slots=True)
class FileHeader:
    """What a file says of itself; start and span are 0 where it covers no time."""

    uuid: bytes
    kind: int
    first: int
    start: int
    span: int

    @property
    def seed(self) -> int:
        """What the file's seeded CRCs begin with."""
        covered = struct.pack("<BI", self.span, self.start) if self.span else b""
        return zlib.crc32(self.uuid + bytes([self.kind]) + covered)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, all of it checked and decoded."""

    position: int
    size: int
    kind: int
    codec: int
    count: int
    epoch: int
    base: int
    append_ms: int
    floor_minute: int
    previous_crc: int
    crc: int
    names: list[bytes]
    columns: Mapping[str, list[int]]
    items: list[bytes]
    notes: list[dict[str, Any]]
    """Of dead letters: what follows the item."""


@dataclass(frozen=True, slots=True)
class Item:
    """What of a producer's item the checks need; due_ms 0 if it says no time."""

    message_id: bytes
    subject: bytes
    due_ms: int
    id_hash: int


@dataclass(frozen=True, slots=True)
class DurableEnd:
    """One slot of the durable end."""

    counter: int
    next_sequence: int
    file_first: int
    position: int
    last_crc: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as the checkpoint names it."""

    start: int
    span: int
    rows: int
    length: int
    last_sequence: int
    last_crc: int
    earliest_due_ms: int
    facts: int
    facts_length: int
    facts_last_crc: int
    last_fact: int


@dataclass(frozen=True, slots=True)
class Fact:
    """What a record of the message_log states about an older message."""

    record: int
    sequence: int
    minute: int
    """Its filed minute, or what stands for its dead segment."""
    at_ms: int
    outcome: int
    target: bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The manifest."""

    sequence: int
    first_sequence: int
    epochs: tuple[tuple[int, int], ...]
    """Each epoch and its first sequence."""
    floor_minute: int
    hour_mark: int
    day_mark: int
    seals_file: int
    seals_length: int
    seals_count: int
    seals_last_crc: int
    seals_needed: int
    segments: tuple[Segment, ...]
    retired: dict[str, int]
    """Since when, by path."""
    quarantined: tuple[str, ...]
    is_copy: bool
    """Whether the directory began as a copy: what was sealed before is not there."""


def _require(holds: object, what: str) -> None:
    if not holds:
        raise MismatchError(what)


def read_file_header(data: bytes) -> FileHeader:
    """Return the header that a log file begins with."""
    _require(len(data) >= FILE_HEADER_SIZE, f"a file of {len(data)} bytes has no header")
    fields = _FILE_HEADER.unpack_from(data)
    magic, version, size, features, uuid, first, start, kind, span, reserved, crc = fields
    _require(magic == b"DWLG", f"file magic {magic!r}")
    _require((version, size, features) == (2, FILE_HEADER_SIZE, 0), "version, size or features")
    _require(crc == zlib.crc32(data[:60]), "the file header's CRC")
    _require(not any(reserved), "reserved bytes of the file header")
    _require(kind in _KINDS_OF_FILES and span <= DEAD_SPAN, f"log kind {kind}, span {span}")
    return FileHeader(uuid, kind, first, start, span)


def read_batches(data: bytes, *, until: int | None = None) -> Iterator[Batch]:
    """Yield the batches of a file up to position `until`, each naming the CRC of the one before.

    Raises MismatchError at the first byte that is not as the pages say.
    """
    header = read_file_header(data)
    end = len(data) if until is None else until
    _require(end <= len(data), f"the file has {len(data)} bytes, {end} should count")
    position, previous = FILE_HEADER_SIZE, None
    while position < end:
        try:
            batch = read_batch(data, position, end, header)
            _require(
                previous is None or batch.previous_crc == previous,
                "the batch names another one before it",
            )
        except MismatchError as error:
            raise MismatchError(f"at {position}: {error}") from error
        yield batch
        position, previous = position + batch.size, batch.crc


def read_batch(data: bytes, position: int, end: int, header: FileHeader) -> Batch:
    """Return the batch at this position of a file with this header."""
    _require(position + BATCH_HEADER_SIZE <= end, "a batch header is cut off")
    fields = _BATCH_HEADER.unpack_from(data, position)
    magic, version, header_size, features, kind, codec, item_format, count = fields[:8]
    epoch, base, append_ms, floor_minute, previous_crc = fields[8:13]
    columns_size, blob_size, raw_size, columns_crc, blob_crc, crc = fields[13:]
    seed = header.seed
    head = data[position : position + BATCH_HEADER_SIZE - 4]
    _require(magic == b"DWB1", f"batch magic {magic!r}")
    _require((version, header_size) == (2, BATCH_HEADER_SIZE), "version or header size")
    known = {FACTS: 1, MESSAGE: 2, MOVE: 2}.get(kind, 0)
    _require(not features & ~known, f"feature bits {features} of a batch of kind {kind}")
    _require(zlib.crc32(head, seed) == crc, "the batch header's CRC")
    _require(kind in _KINDS_OF_LOG.get(header.kind, ()), f"kind {kind} in a log of {header.kind}")
    _require(count >= 1, "a batch without records")
    _require(BATCH_HEADER_SIZE + columns_size + raw_size <= BATCH_BYTES_MAX, "a batch too large")
    size = BATCH_HEADER_SIZE + columns_size + blob_size
    _require(position + size <= end, "a batch is cut off")
    body = position + BATCH_HEADER_SIZE
    columns = data[body : body + columns_size]
    blob = data[body + columns_size : position + size]
    _require(zlib.crc32(columns, seed) == columns_crc, "the CRC of the columns")
    _require(zlib.crc32(blob, seed) == blob_crc, "the CRC of the blob")
    _require(item_format == (1 if kind in _WITH_ITEMS else 0), f"item format {item_format}")
    if codec == 1:
        blob = lz4.block.decompress(blob, uncompressed_size=raw_size)
    _require(codec <= 1 and len(blob) == raw_size, f"codec {codec}, a blob of {len(blob)} bytes")
    names, values = _read_columns(columns, kind, count)
    if kind == FACTS:
        tells_of_dead = max(values["minute"]) >= DEAD_MINUTES_FROM
        _require(features == tells_of_dead, "the feature bit of facts about dead letters")
    items, notes = [], []
    if kind in _WITH_ITEMS:
        at = 0
        for item_size in values["size"]:
            items.append(blob[at : at + item_size])
            at += item_size
        _require(at == raw_size, "the sizes do not add up to the blob")
        if header.kind == SCHEDULE_LOG and header.span == DEAD_SPAN:
            items, notes = zip(*map(_read_dead_row, items), strict=True)
    else:
        _require(not raw_size, "a blob that should not be there")
    return Batch(
        position=position,
        size=size,
        kind=kind,
        codec=codec,
        count=count,
        epoch=epoch,
        base=base,
        append_ms=append_ms,
        floor_minute=floor_minute,
        previous_crc=previous_crc,
        crc=crc,
        names=names,
        columns=values,
        items=list(items),
        notes=list(notes),
    )


def _read_dead_row(row: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return the item of a dead letter, and the note behind it."""
    _require(len(row) >= 8, f"{len(row)} bytes are no dead letter")
    size, crc = struct.unpack("<II", row[-8:])
    _require(size <= len(row) - 8, f"a note of {size} bytes in a row of {len(row)}")
    end = len(row) - 8
    note = row[end - size : end]
    _require(zlib.crc32(note) == crc, "the CRC of a note")
    return row[: end - size], json.loads(note)


def _read_columns(data: bytes, kind: int, count: int) -> tuple[list[bytes], dict[str, list[int]]]:
    _require(len(data) >= 8, "no table of names")
    names, at = [], 2
    for _ in range(int.from_bytes(data[:2], "little")):
        size = int.from_bytes(data[at : at + 2], "little")
        names.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    padded = (at + 7) // 8 * 8
    _require(not any(data[at:padded]), "the table of names is not padded with zeros")
    values: dict[str, list[int]] = {}
    at = padded
    for name, form in _LAYOUTS[kind]:
        width = int(form[1])
        part = data[at : at + width * count]
        _require(len(part) == width * count, f"column {name} is cut off")
        values[name] = np.frombuffer(part, f"<{form}").tolist()
        at += len(part)
    _require(at == len(data), "bytes behind the columns")
    for name in ("subject", "target", "reason"):
        _require(max(values.get(name, [-1])) < len(names), f"a {name} that the table has not got")
    return names, values


def read_item(item: bytes) -> Item:
    """Return what an item of QMQ's SEND_MESSAGE says; its CRC has to be right."""
    _require(len(item) >= _ITEM.size, f"{len(item)} bytes are no item")
    crc, flag, _create_ms, due_ms, subject_size = _ITEM.unpack_from(item)
    _require(crc == zlib.crc32(item[8:]), "the CRC of an item")
    at = _ITEM.size + subject_size
    id_size = int.from_bytes(item[at : at + 2], "big")
    message_id = item[at + 2 : at + 2 + id_size]
    return Item(
        message_id=message_id,
        subject=item[_ITEM.size : at],
        due_ms=due_ms if flag & DELAY_FLAG else 0,
        id_hash=xxhash.xxh3_64_intdigest(message_id, 0),
    )


def essence(item: bytes) -> bytes:
    """Return what an item has in common with one that its producer sends again."""
    return item[8:9] + item[17:]


def read_durable_end(data: bytes, uuid: bytes) -> list[DurableEnd]:
    """Return the slots of a durable end that are whole, the one that counts last."""
    found = []
    seed = zlib.crc32(uuid + bytes([DURABLE_END]))
    for position in SLOT_POSITIONS:
        slot = data[position : position + _SLOT.size]
        if len(slot) < _SLOT.size:
            continue
        fields = _SLOT.unpack(slot)
        magic, version, size, counter, slot_uuid, following, first, at, _epoch, crc = fields[:10]
        if zlib.crc32(slot[:-4], seed) != fields[-1]:
            continue
        _require((magic, version, size) == (b"DWDE", 2, _SLOT.size), "a slot's first bytes")
        _require(slot_uuid == uuid and not any(fields[11]), "a slot's uuid or reserved bytes")
        _require(not any(data[position + size : position + _SECTOR]), "bytes behind a slot")
        found.append(DurableEnd(counter, following, first, at, crc))
    return sorted(found, key=lambda slot: slot.counter)


def read_checkpoint(data: bytes) -> Checkpoint:
    """Return the manifest."""
    header = read_file_header(data)
    _require(header.kind == CHECKPOINT, f"log kind {header.kind}")
    size, crc = struct.unpack_from("<II", data, FILE_HEADER_SIZE)
    text, clock = data[FILE_HEADER_SIZE + 8 :][:size], data[FILE_HEADER_SIZE + 8 + size :]
    _require(len(text) == size, f"a manifest of {len(text)} bytes, not {size}")
    _require(zlib.crc32(text, header.seed) == crc, "the CRC of the manifest")
    if clock:
        size, crc = struct.unpack_from("<II", clock)
        _require(len(clock) == 8 + size, f"a clock of {len(clock) - 8} bytes, not {size}")
        _require(zlib.crc32(clock[8:], header.seed) == crc, "the CRC of the clock")
        names = {"boot_id", "wall_ms", "boot_ms", "held"}
        _require(json.loads(clock[8:]).keys() == names, "what is said of the clock")
    manifest: dict[str, Any] = json.loads(text)
    _require(manifest["format"] == 4, f"manifest format {manifest['format']}")
    return Checkpoint(
        **{
            name: manifest[name]
            for name in Checkpoint.__slots__
            if name not in {"epochs", "segments", "retired", "quarantined", "is_copy"}
        },
        segments=tuple(Segment(*fields) for fields in manifest["segments"]),
        epochs=tuple((epoch, sequence) for epoch, sequence in manifest["epochs"]),
        retired=dict(manifest["retired"]),
        quarantined=tuple(manifest["quarantined"]),
        is_copy="copied" in manifest,
    )


def read_incarnation(data: bytes) -> tuple[bytes, int]:
    """Return the log uuid and the incarnation of an identity file."""
    header = read_file_header(data)
    _require(header.kind == IDENTITY, f"log kind {header.kind}")
    body = data[FILE_HEADER_SIZE:-4]
    _storage_uuid, incarnation, *sizes = _IDENTITY.unpack_from(body)
    _require(len(body) == _IDENTITY.size + sum(sizes), "the names of an identity")
    _require(zlib.crc32(body, header.seed) == int.from_bytes(data[-4:], "little"), "identity's CRC")
    return header.uuid, incarnation


def read_segment_name(name: str) -> tuple[int, int] | None:
    """Return start minute and span of a segment's file name; None if it is none."""
    stamp, _, span = name.rpartition(".")
    if span not in SPAN_NAMES or len(stamp) != 14:
        return None
    time = np.datetime64(f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}T{stamp[9:11]}:{stamp[11:13]}", "m")
    return int(time.astype(np.int64)), SPAN_NAMES[span]


def segment_name(start: int, span: int) -> str:
    """Return the file name of a segment."""
    stamp = str(np.datetime64(start, "m")).replace("-", "").replace(":", "")
    [word] = [word for word, number in SPAN_NAMES.items() if number == span]
    return f"{stamp}Z.{word}"


def segments_of(minute: int) -> list[tuple[int, int]]:
    """Return start and span of each segment in which rows of a filed minute may lie."""
    if minute >= DEAD_MINUTES_FROM:
        return [((minute - DEAD_MINUTES_FROM) * SPAN_MINUTES[DEAD_SPAN], DEAD_SPAN)]
    return [
        (minute - minute % SPAN_MINUTES[span], span) for span in SPAN_MINUTES if span != DEAD_SPAN
    ]


def facts_of(batch: Batch) -> Iterator[Fact]:
    """Yield the facts that a batch of the message_log states, or of a segment's facts has.

    Of the latter `record` is the number in the segment.
    """
    columns = batch.columns
    if batch.kind == FACTS:
        names = [batch.names[place] for place in columns["target"]]
        told = (columns[name] for name in ("sequence", "minute", "at_ms", "outcome"))
        for place, fact in enumerate(zip(*told, names, strict=True)):
            yield Fact(batch.base + place, *fact)
    elif batch.kind in _OUTCOMES_OF_RECORDS:
        old = zip(columns["old_sequence"], columns["old_minute"], strict=True)
        for place, (sequence, minute) in enumerate(old):
            outcome = _OUTCOMES_OF_RECORDS[batch.kind]
            if outcome == CANCELLED and minute >= DEAD_MINUTES_FROM:
                outcome = DROPPED
            yield Fact(batch.base + place, sequence, minute, batch.append_ms, outcome, b"")


def old_batches(
    data: bytes, before_ms: int, *, durable_end: bytes
) -> list[tuple[int, int, list[bytes]]]:
    """Return position, size and message ids of batches of a file that are this old.

    Of those with messages, and of those with facts.

    Only those that the durable end, itself durable, vouches for: a bit flipped in the 20 ms before
    that cannot be told from a torn write.
    """
    found: list[tuple[int, int, list[bytes]]] = []
    if len(data) < FILE_HEADER_SIZE:
        return found
    slots = read_durable_end(durable_end, read_file_header(data).uuid)
    # What cannot be read, damaged or still being written, ends the search.
    with contextlib.suppress(MismatchError):
        for batch in read_batches(data):
            if batch.append_ms > before_ms:
                break
            if not slots or batch.base + batch.count > slots[-1].next_sequence:
                break
            if batch.kind in {MESSAGE, FACTS}:
                ids = [read_item(item).message_id for item in batch.items]
                found.append((batch.position, batch.size, ids))
    return found


def lost_by(files: Mapping[str, bytes], path: str, position: int) -> set[bytes]:
    """Return the ids of the messages that may be missing once this byte of a file is damaged.

    `files` are as they were before. A batch of the message_log may lose all its messages. So may a
    batch of a segment, but for a byte of an uncompressed blob, which is one message's. Facts and
    whatever else is on disk hold no message.
    """
    data = files[path]
    with contextlib.suppress(MismatchError):
        header = read_file_header(data)
        if header.kind not in {MESSAGE_LOG, SCHEDULE_LOG}:
            return set()
        for batch in read_batches(data):
            if not batch.position <= position < batch.position + batch.size:
                continue
            at = batch.position + batch.size - sum(map(len, batch.items))
            if header.kind == SCHEDULE_LOG and batch.codec == 0 and position >= at:
                for item in batch.items:
                    if position < at + len(item):
                        return {read_item(item).message_id}
                    at += len(item)
            return {read_item(item).message_id for item in batch.items}
    return set()


def told_by(files: Mapping[str, bytes], path: str, position: int) -> set[int]:
    """Return the sequences whose facts may be forgotten once this byte of a file is damaged.

    A batch of the message_log states no fact any more that is filed by now.
    """
    data = files[path]
    with contextlib.suppress(MismatchError):
        kind = read_file_header(data).kind
        if kind not in {MESSAGE_LOG, DISPATCH_LOG}:
            return set()
        for batch in read_batches(data):
            if not batch.position <= position < batch.position + batch.size:
                continue
            filed = _filed_to(files) if kind == MESSAGE_LOG else 0
            return {fact.sequence for fact in facts_of(batch) if fact.record > filed}
    return set()


def _filed_to(files: Mapping[str, bytes]) -> int:
    """Return the record up to which all is filed, as the checkpoint says."""
    with contextlib.suppress(MismatchError):
        return read_checkpoint(files.get("checkpoint/checkpoint", b"")).sequence
    return 0
