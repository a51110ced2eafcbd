"""Targets for what lies on disk: headers, batches, every kind of file, and what walks them.

The first byte of most inputs says how far the rest is mended before it is read
(tests/fuzz/mending.py): a decoder sees what fails its CRC, and what does not.
"""

import contextlib
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import lz4.block
import msgspec
import numpy as np
import numpy.ma
import pyarrow.compute

from storage.batch.batches import (
    BATCH_BYTES_MAX,
    HEADER_SIZE,
    BatchHeader,
    Codec,
    Damage,
    LogBatch,
    check_blob,
    check_columns,
    contents_fault,
    decode_batch,
    decode_header,
    encode_batch,
    file_seed,
    log_seed,
    walk_batches,
)
from storage.batch.columns import (
    LAYOUTS,
    ColumnsError,
    RecordKind,
    decode_columns,
    encode_columns,
)
from storage.batch.entries import ENTRY, SubjectTable
from storage.batch.facts import STATING_KINDS, FactBlock, fact_drafts, facts_stated, filed_facts_of
from storage.batch.file_header import (
    FILE_HEADER_SIZE,
    FileHeader,
    LogKind,
    decode_file_header,
    encode_file_header,
)
from storage.batch.item_formats import QMQ_ITEM_SIZE_MIN, join_qmq_items, qmq_item_fault
from storage.batch.rows import effective_due_ms
from storage.batch.walk import FileBatch, walk_file, walk_headers
from storage.disk.errors import (
    CopyRefusedError,
    DamagedError,
    DataDirectoryError,
    StorageError,
    UnsupportedFormatError,
)
from storage.disk.spans import MINUTE_MS, SegmentKey, Span, key_of_code, key_of_minute, key_of_name
from storage.logs.message_log import MESSAGE_LOG_DIRECTORY, Draft, MessageLog
from storage.logs.numbered_log import LogFile, list_log_files
from storage.logs.raw_batches import decode_copied, read_batches_raw
from storage.logs.sparse_index import SparseIndex
from storage.readers.arrow import ArrowReader, Kind
from storage.readers.item_reader import ItemReader
from storage.schedule.seals import (
    Seal,
    SealsEnd,
    codes_of,
    columns_of_seals,
    read_last_seals,
    seals_header,
    seals_of_columns,
)
from storage.schedule.segment import Segment, SegmentBatch
from storage.state.checkpoint import CHECKPOINT_PATH, read_checkpoint, write_checkpoint
from storage.state.durable_end import (
    DURABLE_END_NAME,
    SLOT_POSITIONS,
    SLOT_SIZE,
    DurableEnd,
    DurableEndFile,
    decode_slot,
    encode_slot,
)
from storage.state.identity import IDENTITY_PATH, decode_identity, encode_identity, read_identity
from storage.tools.inspect import dump_files, read_file, read_known, verify_disk, verify_files
from tests.fuzz.memory_disk import MemoryDisk
from tests.fuzz.mending import (
    LEVELS,
    batch_crcs,
    header_crc,
    log_image,
    seeded_crc,
    whole_batches,
)
from tests.fuzz.target import attempt, byte_at, target
from tests.kit.seals import read_seals
from tests.storage.small_logs import LOG_UUID, NOW_MS

SEED: Final = log_seed(LOG_UUID, LogKind.MESSAGE_LOG)
PATH: Final = "log"
MINUTE: Final = NOW_MS // MINUTE_MS
NOT_AS_WRITTEN: Final = (DamagedError, UnsupportedFormatError)
_AT_FIRST_USE: Final = (numpy.ma, pyarrow.compute)
"""Loaded by the first table that is made, which is not to count for the input that made it."""

NOT_OURS: Final = (*NOT_AS_WRITTEN, DataDirectoryError)
MESSAGE_KINDS: Final = (
    RecordKind.MESSAGE,
    RecordKind.EPOCH_START,
    RecordKind.FLOOR,
    RecordKind.CANCEL,
    RecordKind.MOVE,
    RecordKind.DEAD,
    RecordKind.FACTS,
)


STORAGE: Final = ("storage",)


@target(decoders=(decode_file_header,), packages=STORAGE, size_max=256)
def file_header(data: bytes) -> None:
    """A file header is what was written, or an error of ours."""
    for image in (data, header_crc(data)):
        header = attempt(NOT_AS_WRITTEN, decode_file_header, image, path=PATH)
        if header is None:
            continue
        assert zlib.crc32(image[:60]) == int.from_bytes(image[60:64], "little")
        again = encode_file_header(header)
        assert decode_file_header(again, path=PATH) == header
        # The reserved bytes are nobody's yet.
        assert again[:46] == image[:46]
        attempt(
            NOT_OURS, decode_file_header, image, path=PATH, kind=LogKind.SEALS, log_uuid=LOG_UUID
        )
        if header.span is not Span.NONE:
            key = SegmentKey(header.start_minute, header.span)
            assert key_of_name(key.name) == key


@target(decoders=(decode_header,), packages=STORAGE, size_max=256)
def batch_header(data: bytes) -> None:
    """A batch header is what was written, and its sizes are within bounds before they are used."""
    for image in (data, header_crc(data, seed=SEED)):
        header = attempt(NOT_AS_WRITTEN, decode_header, image, seed=SEED, path=PATH, position=0)
        if header is not None:
            assert zlib.crc32(image[:76], SEED) == header.crc
            assert header.crc == int.from_bytes(image[76:80], "little")
            assert 0 < header.size <= BATCH_BYTES_MAX
            assert 0 <= header.base_sequence < header.next_sequence < 2**63
            assert header.blob_size <= header.blob_raw_size <= BATCH_BYTES_MAX


@target(decoders=(decode_columns,), packages=STORAGE)
def columns(data: bytes) -> None:
    """Columns that can be read are written again byte for byte."""
    kind = list(RecordKind)[byte_at(data, 0) % len(RecordKind)]
    count = byte_at(data, 1)
    body = data[2:]
    found = attempt(ColumnsError, decode_columns, kind, count, body)
    if found is not None:
        assert {name: array.dtype for name, array in found.arrays.items()} == dict(LAYOUTS[kind])
        assert all(len(array) == count for array in found.arrays.values())
        assert not any(array.flags.writeable for array in found.arrays.values())
        assert encode_columns(kind, found.names, found.arrays) == body
        for name in {"subject", "target"} & found.arrays.keys():
            assert count == 0 or int(found.arrays[name].max()) < len(found.names)


@target(
    decoders=(decode_batch, check_columns, check_blob, contents_fault),
    packages=STORAGE,
    # An lz4 block may stand for 255 times its size; decoded a few times and compared.
    memory_per_byte=1500,
)
def batch(data: bytes) -> None:
    """One batch: header, columns and blob; decoded whole, it is encoded to the same again."""
    body = data[1:]
    match byte_at(data, 0) % LEVELS:
        case 0:
            image = body
        case 1:
            image = batch_crcs(body, seed=SEED)
        case _:
            image = whole_batches(body, seed=SEED, kinds=list(RecordKind))
    where: dict[str, Any] = {"seed": SEED, "path": PATH, "position": 0}
    header = attempt(NOT_AS_WRITTEN, decode_header, image, **where)
    if header is None:
        return
    found = attempt(DamagedError, check_columns, header, image, **where)
    blob = attempt(DamagedError, check_blob, header, image, **where)
    whole = attempt(DamagedError, decode_batch, header, image, **where)
    fault = contents_fault(header, image, SEED)
    assert (whole is not None) is (found is not None and blob is not None)
    assert whole is None or fault is None
    if whole is None:
        return
    assert bytes(whole.blob) == bytes(blob or b"")
    stored = image[header.blob_offset : header.size]
    assert zlib.crc32(image[HEADER_SIZE : header.blob_offset], SEED) == header.columns_crc
    assert zlib.crc32(stored, SEED) == header.blob_crc
    assert len(whole.blob) == header.blob_raw_size
    again, buffers = encode_batch(
        seed=SEED,
        kind=header.kind,
        epoch=header.epoch,
        base_sequence=header.base_sequence,
        count=header.count,
        floor_minute=header.floor_minute,
        append_ms=header.append_ms,
        previous_crc=header.previous_crc,
        columns=encode_columns(header.kind, whole.columns.names, whole.columns.arrays),
        blob=[whole.blob] if len(whole.blob) else [],
        item_format=header.item_format,
        codec=header.codec,
    )
    assert again.columns_crc == header.columns_crc
    if header.codec is Codec.RAW:
        assert b"".join(buffers) == image[: header.size]
    else:
        raw_size = header.blob_raw_size
        assert lz4.block.decompress(stored, uncompressed_size=raw_size) == whole.blob
        assert decode_batch(again, b"".join(buffers), **where).blob == whole.blob


@target(decoders=(walk_batches,), packages=STORAGE, size_max=2048)
def batch_walk(data: bytes) -> None:
    """A walk yields batches one behind another until it ends."""
    image = _image_of_batches(data)

    def view(position: int, size: int) -> memoryview:
        return memoryview(image)[position : position + size]

    following = 0
    walk = walk_batches(view, start=0, end=len(image), seed=SEED, path=PATH)
    for position, header in _readable(walk):
        assert position == following
        following += header.size
    assert following <= len(image)


def _image_of_batches(data: bytes) -> bytes:
    """Return an image of batches of a message_log, with checksums that are right or not."""
    body = data[1:]
    match byte_at(data, 0) % LEVELS:
        case 0:
            return body
        case 1:
            return batch_crcs(body, seed=SEED)
        case _:
            return whole_batches(body, seed=SEED, kinds=MESSAGE_KINDS)


@target(decoders=(decode_identity, read_identity), packages=STORAGE, size_max=512)
def identity(data: bytes) -> None:
    """An identity is what was written, or an error of ours."""
    sealed = header_crc(data)
    if len(sealed) > FILE_HEADER_SIZE + 4:
        uuid = attempt(NOT_AS_WRITTEN, decode_file_header, sealed, path=PATH)
        seed = log_seed(uuid.log_uuid if uuid else LOG_UUID, LogKind.IDENTITY)
        sealed = sealed[:-4] + seeded_crc(sealed[FILE_HEADER_SIZE:-4], seed=seed)
    for image in (data, sealed):
        found = attempt(NOT_AS_WRITTEN, decode_identity, image, path=IDENTITY_PATH)
        assert attempt(NOT_AS_WRITTEN, read_identity, MemoryDisk({IDENTITY_PATH: image})) == found
        if found is not None:
            assert decode_identity(encode_identity(found), path=IDENTITY_PATH) == found


@target(decoders=(decode_slot, DurableEndFile.read), packages=STORAGE, size_max=1025)
def durable_end(data: bytes) -> None:
    """A slot is what was written, or an error of ours; a file with a good slot can be written."""
    epoch = byte_at(data, 0)
    image = data[1:]
    if byte_at(data, 0) & 2:
        image = b"".join(
            _sealed_slot(image[position : position + SLOT_POSITIONS[1]])
            for position in SLOT_POSITIONS
        )
    path = f"{MESSAGE_LOG_DIRECTORY}/{DURABLE_END_NAME}"
    ends = []
    for position in SLOT_POSITIONS:
        sector = image[position : position + SLOT_POSITIONS[1]]
        found = attempt(
            NOT_OURS, decode_slot, sector, log_uuid=LOG_UUID, path=path, position=position
        )
        if found is not None:
            counter, end = found
            again = encode_slot(end, log_uuid=LOG_UUID, counter=counter)
            assert decode_slot(again, log_uuid=LOG_UUID, path=path, position=0) == found
            ends.append(found)
    disk = MemoryDisk({path: image})
    file = DurableEndFile(disk, MESSAGE_LOG_DIRECTORY, log_uuid=LOG_UUID)
    newest = attempt(NOT_OURS, file.read)
    if newest is None:
        return
    assert newest == max(ends, key=lambda found: found[0])[1]
    file.write(replace(newest, epoch=epoch))
    file.sync()
    again_file = DurableEndFile(disk, MESSAGE_LOG_DIRECTORY, log_uuid=LOG_UUID)
    assert again_file.read() == replace(newest, epoch=epoch)


def _sealed_slot(sector: bytes) -> bytes:
    size = int.from_bytes(sector[6:8], "little")
    if not 36 <= size <= len(sector):
        size = SLOT_SIZE
    body = sector[: size - 4].ljust(size - 4, b"\0")
    body = body[:16] + LOG_UUID.bytes + body[32:]
    seed = log_seed(LOG_UUID, LogKind.DURABLE_END)
    return (body + seeded_crc(body, seed=seed) + sector[size:]).ljust(SLOT_POSITIONS[1], b"\0")


@target(decoders=(read_checkpoint,), packages=STORAGE, size_max=2048)
def checkpoint(data: bytes) -> None:
    """A manifest that can be read names only what can exist, and comes back as it was."""
    image = data[1:]
    if byte_at(data, 0) & 1:
        header = encode_file_header(FileHeader(kind=LogKind.CHECKPOINT, log_uuid=LOG_UUID))
        seed = log_seed(LOG_UUID, LogKind.CHECKPOINT)
        image = header + len(image).to_bytes(4, "little") + seeded_crc(image, seed=seed) + image
    disk = MemoryDisk({CHECKPOINT_PATH: image})
    found = attempt(NOT_OURS, read_checkpoint, disk, LOG_UUID)
    if found is None:
        return
    for state in found.segments:
        assert key_of_name(state.key.name) == state.key
        assert Segment.of_state(disk, LOG_UUID, state).state() == state
    write_checkpoint(disk, LOG_UUID, found)
    assert read_checkpoint(disk, LOG_UUID) == found


@target(
    decoders=(walk_file, walk_headers),
    packages=STORAGE,
    size_max=2048,
    memory_per_byte=1500,
)
def chained_file(data: bytes) -> None:
    """Columns and blobs of a file of batches are whole, or damage with a position."""
    header = FileHeader(kind=LogKind.SEALS, log_uuid=LOG_UUID, first_sequence=1)
    seed = log_seed(LOG_UUID, LogKind.SEALS)
    image = log_image(
        data[1:],
        level=byte_at(data, 0),
        header=encode_file_header(header),
        seed=seed,
        kinds=list(RecordKind),
    )
    disk = MemoryDisk({PATH: image})
    length = len(image) + byte_at(data, 0) // LEVELS
    position = records = 0
    for found in _readable(walk_file(disk, PATH, length, header)):
        assert 0 <= found.position <= length
        if isinstance(found, Damage):
            assert found.size >= 0
            continue
        assert found.position > position
        assert found.records.start >= records
        position, records = found.position, found.records.stop
        _examine_batch(found)
    headers = list(walk_headers(disk, PATH, length, header))
    assert not any(isinstance(one, Damage) for one in headers[:-1])


def _examine_batch(found: FileBatch) -> None:
    batch_of = found.header
    assert all(len(array) == batch_of.count for array in found.columns.arrays.values())
    blob = attempt(DamagedError, found.blob)
    assert blob is None or len(blob) == batch_of.blob_raw_size


def _batches_of(found: Iterator[Any]) -> Iterator[Any]:
    return (one for one in _readable(found) if not isinstance(one, Damage))


def _readable(found: Iterator[Any]) -> Iterator[Any]:
    """Yield what a reader yields until it raises an error of ours."""
    while True:
        try:
            one = next(found)
        except (StopIteration, *NOT_OURS):
            return
        yield one


_SEALS_PATH: Final = "seals/00000000000000000001.log"


@target(
    decoders=(read_last_seals, seals_of_columns),
    packages=STORAGE,
    size_max=2048,
)
def seals(data: bytes) -> None:
    """Seals come back as they were written."""
    header = seals_header(LOG_UUID, 1)
    image = log_image(
        data[1:],
        level=byte_at(data, 0),
        header=encode_file_header(header),
        seed=log_seed(LOG_UUID, LogKind.SEALS),
        kinds=(RecordKind.SEALS,) * 7 + (RecordKind.FLOOR,),
    )
    disk = MemoryDisk({_SEALS_PATH: image})
    end = SealsEnd(file=1, length=len(image), count=2**62)
    found = list(_readable(read_seals(disk, LOG_UUID, end)))
    whole = [seal for seal in found if isinstance(seal, Seal)]
    for seal in whole:
        assert key_of_name(seal.key.name) == seal.key
    with contextlib.suppress(*NOT_OURS):
        last, _, _ = read_last_seals(disk, LOG_UUID, end, retired=())
        codes = codes_of(last).tolist()
        assert set(codes) <= {seal.key.code for seal in whole}
        assert len(set(codes)) == len(codes)
    if whole:
        columns = encode_columns(RecordKind.SEALS, [], columns_of_seals(whole))
        again = decode_columns(RecordKind.SEALS, len(whole), columns)
        assert seals_of_columns(again) == whole


SPANS: Final = (Span.MINUTE, Span.HOUR, Span.DAY)


@target(
    decoders=(Segment.read_rows, SegmentBatch.rows),
    packages=STORAGE,
    size_max=2048,
    memory_per_byte=1500,
)
def segment(data: bytes) -> None:
    """Rows of a segment lie where their positions say, and can be filed again as they are."""
    key = key_of_minute(MINUTE, SPANS[byte_at(data, 0) // LEVELS % len(SPANS)])
    disk = MemoryDisk()
    fresh = Segment.new(disk, LOG_UUID, key)
    image = log_image(
        data[1:],
        level=byte_at(data, 0),
        header=encode_file_header(fresh.file.header),
        seed=fresh.file.seed,
        kinds=(RecordKind.ROWS,) * 7 + (RecordKind.MESSAGE,),
    )
    disk.files[key.path] = bytearray(image)
    table = SubjectTable()
    copy = Segment.new(MemoryDisk(), LOG_UUID, key)
    sequences: list[int] = []
    for found in _readable(fresh.read_rows(disk, len(image))):
        if isinstance(found, SegmentBatch):
            sequences += found.sequence.tolist()
            _examine_rows(found, disk, table, copy)
    reader = ArrowReader(disk, LOG_UUID, Kind.SCHEDULE, check_items=True)
    tables = _batches_of(reader.rows(key.path, length=len(image)))
    assert [row for one in tables for row in one["sequence"].to_pylist()] == sequences


def _examine_rows(
    found: SegmentBatch, disk: MemoryDisk, table: SubjectTable, copy: Segment
) -> None:
    header = found.header
    assert len(found.sequence) == len(found.due_ms) == header.count
    assert (found.effective_due_ms() >= found.segment.key.start * MINUTE_MS).all()
    block = attempt(DamagedError, found.rows, table)
    if block is None:
        return
    assert len(block.blob) == int(block.size.sum(dtype=np.int64))
    assert (block.minute >= found.segment.key.start).all()
    assert (effective_due_ms(block.due_ms, block.minute) == found.effective_due_ms()).all()
    if header.codec is Codec.RAW:
        place, size = int(found.item_positions()[-1]), int(block.size[-1])
        view = disk.map(found.segment.file.path)
        assert bytes(view[place : place + size]) == bytes(block.blob[len(block.blob) - size :])
    ascending = bool((np.diff(block.sequence) > 0).all())
    first, last = int(block.sequence[0]), int(block.sequence[-1])
    if ascending and copy.last_sequence < first and last < 2**62:
        length = copy.file.length
        copy.append(block, table, epoch=1, append_ms=NOW_MS)
        copied = [
            one.rows(table)
            for one in copy.read_rows(copy.file.disk, copy.file.length)
            if isinstance(one, SegmentBatch) and one.position >= max(length, FILE_HEADER_SIZE)
        ]
        assert sum(map(len, copied)) == len(block)
        assert b"".join(one.blob for one in copied) == bytes(block.blob)
        assert np.concatenate([one.due_ms for one in copied]).tolist() == block.due_ms.tolist()
        assert np.concatenate([one.subject for one in copied]).tolist() == block.subject.tolist()


@target(decoders=(Segment.read_facts, filed_facts_of), packages=STORAGE, size_max=2048)
def facts(data: bytes) -> None:
    """Facts filed beside a segment come back as they were written."""
    key = key_of_minute(MINUTE, Span.MINUTE)
    disk = MemoryDisk()
    fresh = Segment.new(disk, LOG_UUID, key)
    image = log_image(
        data[1:],
        level=byte_at(data, 0),
        header=encode_file_header(fresh.facts_file.header),
        seed=fresh.facts_file.seed,
        kinds=(RecordKind.FACTS,) * 7 + (RecordKind.CANCEL,),
    )
    disk.files[key.facts_path] = bytearray(image)
    fresh.facts_file.length = len(image)
    file = fresh.facts_file
    batches = [
        one.header.count
        for one in _batches_of(walk_file(disk, file.path, file.length, file.header))
    ]
    reader = ArrowReader(disk, LOG_UUID, Kind.DISPATCH)
    tables = _batches_of(reader.filed_facts(key.facts_path, length=len(image)))
    assert sum(one.num_rows for one in tables) == sum(batches)
    blocks = [one for one in _readable(fresh.read_facts(disk)) if not isinstance(one, Damage)]
    assert list(map(len, blocks)) == batches
    for block in blocks:
        columns = _filed(block)
        again = filed_facts_of(decode_columns(RecordKind.FACTS, len(block), columns))
        assert _filed(again) == columns
        minutes = [
            (minute, len(part)) for minute, part in block.split_by(block.minute.astype(np.int64))
        ]
        assert sum(count for _, count in minutes) == len(block)
        assert [minute for minute, _ in minutes] == sorted(set(block.minute.tolist()))


def _filed(block: FactBlock) -> bytes:
    """Return the columns under which facts are filed."""
    [draft] = fact_drafts(block, first_number=1, epoch=1, append_ms=NOW_MS, floor_minute=0)
    return draft.columns


_DURABLE_END_PATH: Final = f"{MESSAGE_LOG_DIRECTORY}/{DURABLE_END_NAME}"
_ITEM: Final = bytes(33)


@target(
    decoders=(MessageLog.recover, MessageLog.read, facts_stated),
    packages=STORAGE,
    size_max=2048,
    memory_per_byte=1500,
)
def message_log(data: bytes) -> None:
    """A log of any files opens or says why not; what it holds then is there after every restart."""
    level = byte_at(data, 0)
    checkpoint_sequence = byte_at(data, 1) % 8
    second = 2 + byte_at(data, 2) % 16
    witness = byte_at(data, 3)
    cut = 6 + int.from_bytes(data[4:6], "big") % max(len(data), 1)
    files = {}
    for first, part in ((1, data[6:cut]), (second, data[cut:])):
        header = FileHeader(kind=LogKind.MESSAGE_LOG, log_uuid=LOG_UUID, first_sequence=first)
        if part:
            files[f"{MESSAGE_LOG_DIRECTORY}/{first:020d}.log"] = log_image(
                part,
                level=level,
                header=encode_file_header(header),
                seed=SEED,
                kinds=MESSAGE_KINDS * 2 + (RecordKind.ROWS,),
            )
    if witness:
        end = DurableEnd(
            next_sequence=witness % 16,
            file_sequence=(1, second)[witness >> 4 & 1],
            position=FILE_HEADER_SIZE + 8 * (witness >> 5),
            last_crc=0,
            epoch=1,
            floor_minute=0,
        )
        files[_DURABLE_END_PATH] = encode_slot(end, log_uuid=LOG_UUID, counter=1).ljust(1024, b"\0")
    disk = MemoryDisk(files)
    log = attempt(StorageError, _recover_log, disk, checkpoint_sequence)
    if log is None:
        return
    kept = attempt(NOT_OURS, _contents, log)
    if kept is not None and log.last_epoch and log.next_sequence < 2**62:
        written = log.append([_message()], append_ms=NOW_MS)
        again = _recover_log(disk, checkpoint_sequence)
        assert again.next_sequence == log.next_sequence
        now = _contents(again)
        assert kept.items() <= now.items()
        # With checksums that are right over columns that are wrong, which nobody writes, recovery
        # (which looks at checksums) and reading may disagree about what came last.
        assert level % LEVELS == 1 or written[0].header.base_sequence in now


def _recover_log(disk: MemoryDisk, checkpoint_sequence: int) -> MessageLog:
    log, report = MessageLog.recover(
        disk,
        log_uuid=LOG_UUID,
        checkpoint_sequence=checkpoint_sequence,
        known_sequence=0,
        had_checkpoint=False,
        file_bytes_max=4096,
    )
    assert log.next_sequence > report.durable_sequence >= checkpoint_sequence
    return log


def _message() -> Draft:
    return Draft(
        kind=RecordKind.MESSAGE,
        count=1,
        names=[b"s"],
        arrays={
            "due_ms": np.array([NOW_MS], np.int64),
            "id_hash": np.zeros(1, np.uint64),
            "size": np.array([len(_ITEM)], np.uint32),
            "subject": np.zeros(1, np.uint16),
        },
        blob=[_ITEM],
    )


def _contents(log: MessageLog) -> dict[int, tuple[BatchHeader, bytes]]:
    """Return what can be read, by sequence; the whole range is told, as batches or as damage."""
    contents = {}
    for found in log.read(1):
        # A stray batch may lie behind the end, until the next file shows that it is one.
        if not isinstance(found, Damage) and found.header.base_sequence < log.next_sequence:
            contents[found.header.base_sequence] = found.header, bytes(found.blob)
            _examine_stated(found)
    return contents


def _examine_stated(batch: LogBatch) -> None:
    """Each record states one fact at most, and that is filed as it was stated."""
    header = batch.header
    stated = facts_stated(header, batch.columns)
    assert (stated is None) is (header.kind not in STATING_KINDS)
    if stated is None:
        return
    assert stated.record.tolist() == list(range(header.base_sequence, header.next_sequence))
    filed = filed_facts_of(decode_columns(RecordKind.FACTS, len(stated), _filed(stated)))
    assert filed.arrays.keys() == stated.arrays.keys()
    assert all((filed.arrays[name] == array).all() for name, array in stated.arrays.items())
    assert not filed.record.any()


@target(
    decoders=(decode_copied, read_batches_raw),
    packages=STORAGE,
    size_max=2048,
    memory_per_byte=1500,
)
def copied_batches(data: bytes) -> None:
    """Batches of another node go on from the end of a log or are refused; they are read as sent."""
    image = _image_of_batches(data)
    where: dict[str, Any] = {"seed": SEED, "path": PATH, "position": 0}
    first = attempt(NOT_AS_WRITTEN, decode_header, image, **where)
    after = DurableEnd(
        next_sequence=first.base_sequence if first else 2,
        file_sequence=1,
        position=FILE_HEADER_SIZE,
        last_crc=first.previous_crc if first else 0,
        epoch=first.epoch - (first.kind is RecordKind.EPOCH_START) if first else 1,
        floor_minute=first.floor_minute if first else 0,
    )
    taken = attempt(CopyRefusedError, decode_copied, image, after=after, seed=SEED)
    header = encode_file_header(FileHeader(kind=LogKind.MESSAGE_LOG, log_uuid=LOG_UUID))
    disk = MemoryDisk({PATH: header + image})
    raw = attempt(
        NOT_AS_WRITTEN,
        read_batches_raw,
        disk,
        SparseIndex(disk, seed=SEED),
        LogFile(PATH, after.next_sequence),
        seed=SEED,
        sequence=after.next_sequence,
        end=FILE_HEADER_SIZE + len(image),
        bytes_max=1 << 20,
    )
    if taken:
        assert sum(batch.header.size for batch in taken) == len(image)
        assert raw is not None
        assert (raw.first_sequence, raw.data) == (after.next_sequence, image)
        assert raw.next_sequence == taken[-1].header.next_sequence


@target(decoders=(ItemReader.read, join_qmq_items), packages=STORAGE, size_max=512)
def item_reader(data: bytes) -> None:
    """An item is handed out if it is whole and the one that is due; damage is told once each."""
    count = byte_at(data, 0) % 8
    fields = (
        np.frombuffer(data[1 : 1 + 4 * count].ljust(4 * count, b"\0"), "<u2")
        .reshape(-1, 2)
        .astype(np.int64)
    )
    image = data[1 + 4 * count :]
    entries = np.zeros(count, ENTRY)
    entries["position"] = fields[:, 0] % (len(image) + 9)
    entries["size"] = fields[:, 1] % (len(image) + 9)
    entries["minute"] = MINUTE
    whole = bytearray(image)
    for position, size in zip(entries["position"].tolist(), entries["size"].tolist(), strict=True):
        if size >= QMQ_ITEM_SIZE_MIN and position + size <= len(image) and size & 1:
            crc = _crc_of(whole[position + 8 : position + size])
            whole[position : position + 8] = crc
    key = key_of_minute(MINUTE, Span.MINUTE)
    told: list[int] = []
    reader = ItemReader(
        MemoryDisk({key.path: bytes(whole)}), lambda damage: told.append(damage.position)
    )
    found, damaged = reader.read(entries)
    assert len(found) == count
    for place, entry in enumerate(entries):
        position, size = int(entry["position"]), int(entry["size"])
        item = bytes(whole[position : position + size])
        is_good = len(item) == size and qmq_item_fault(item, 0) is None
        assert (damaged is None or not damaged[place]) is is_good
        assert bytes(found[place]) == (item if is_good else b"")
        if len(item) == size >= QMQ_ITEM_SIZE_MIN:
            at, of, due = (np.array([value], np.int64) for value in (position, size, 0))
            joined, suspects = join_qmq_items(memoryview(bytes(whole)), at, of, due)
            assert joined == item
            assert suspects.tolist() == [not is_good]
    assert len(told) == (0 if damaged is None else int(damaged.sum()))


def _crc_of(rest: bytes | bytearray) -> bytes:
    return seeded_crc(bytes(rest), seed=0)[::-1].rjust(8, b"\0")


@target(
    decoders=(key_of_name, key_of_code, key_of_minute, list_log_files),
    packages=STORAGE,
    size_max=64,
)
def names(data: bytes) -> None:
    """A file name stands for at most one segment or log file, and that one has this name."""
    text = data.decode("latin-1").replace("/", "_")
    key = key_of_name(text)
    if key is not None:
        assert key.name == text
        assert key_of_code(key.code) == key
        assert key_of_minute(key.end - 1, key.span) == key
    files = list_log_files(MemoryDisk({f"d/{text}": b""}), "d")
    assert [file.path for file in files] in ([], [f"d/{text}"])
    assert all(0 <= file.first_sequence < 2**63 for file in files)


_INSPECTED: Final[Mapping[int, tuple[str, LogKind, RecordKind]]] = {
    0: (f"{MESSAGE_LOG_DIRECTORY}/{1:020d}.log", LogKind.MESSAGE_LOG, RecordKind.MESSAGE),
    1: (SegmentKey(MINUTE, Span.MINUTE).path, LogKind.SCHEDULE_LOG, RecordKind.ROWS),
    2: (SegmentKey(MINUTE, Span.MINUTE).facts_path, LogKind.DISPATCH_LOG, RecordKind.FACTS),
    3: (f"{MESSAGE_LOG_DIRECTORY}/{1:020d}.log", LogKind.MESSAGE_LOG, RecordKind.FACTS),
    4: (_SEALS_PATH, LogKind.SEALS, RecordKind.SEALS),
    5: (CHECKPOINT_PATH, LogKind.CHECKPOINT, RecordKind.FLOOR),
    6: (_DURABLE_END_PATH, LogKind.DURABLE_END, RecordKind.FLOOR),
    7: (IDENTITY_PATH, LogKind.IDENTITY, RecordKind.FLOOR),
}
"""Where the commands find a file of each kind, and what is in it."""


@target(
    decoders=(verify_files, verify_disk, dump_files, read_known, read_file),
    packages=STORAGE,
    size_max=2048,
    memory_per_byte=1500,
)
def inspect(data: bytes) -> None:
    """The commands say something of any file, and never fall over it."""
    choice = byte_at(data, 0)
    path, kind, record_kind = _INSPECTED[choice % 8]
    span = Span.MINUTE if kind in {LogKind.SCHEDULE_LOG, LogKind.DISPATCH_LOG} else Span.NONE
    header = FileHeader(
        kind=kind,
        log_uuid=LOG_UUID,
        first_sequence=0 if span else 1,
        span=span,
        start_minute=MINUTE if span else 0,
    )
    image = log_image(
        data[1:],
        level=choice // 8,
        header=encode_file_header(header),
        seed=file_seed(header),
        kinds=(record_kind,) * 7 + tuple(RecordKind),
    )
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_MEMORY) as root:
        file = Path(root, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        Path(root, MESSAGE_LOG_DIRECTORY).mkdir(exist_ok=True)
        file.write_bytes(image)
        reports = list(verify_files(file))
        assert [report["file"] for report in reports] == [path]
        assert reports[0] in list(verify_disk(MemoryDisk({path: image})))
        for record in dump_files(file):
            msgspec.json.encode(record, enc_hook=str)


_MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - for speed only
