"""Small message_logs, disks made of given bytes, and a way to read a log back for comparison."""

import random
from collections.abc import Mapping, Sequence
from uuid import UUID

import numpy as np

from storage.batch.batches import Damage, LogBatch, encode_batch
from storage.batch.columns import Columns, RecordKind, encode_columns
from storage.batch.facts import FactBlock
from storage.disk.disk import Disk
from storage.logs.message_log import Draft, MessageLog, RecoveryReport
from tests.simulation.disk import SimDisk

LOG_UUID = UUID("6a0f3c52-9d1e-4b7a-8c35-2f1e0d9c8b7a")
OTHER_UUID = UUID("00000000-0000-4000-8000-000000000001")
NOW_MS = 1_385_510_400_000

Record = tuple[int, bytes, bytes]
"""Sequence, subject and item of a message."""


def messages(items: Sequence[bytes], *, subjects: Sequence[bytes] = (b"boarding",)) -> Draft:
    """Return a batch of messages; subjects take turns."""
    count = len(items)
    return Draft(
        kind=RecordKind.MESSAGE,
        count=count,
        names=list(subjects),
        arrays={
            "due_ms": np.arange(count) * 1000 + NOW_MS,
            "id_hash": np.arange(count, dtype=np.uint64) + np.uint64(2**63),
            "size": np.array([len(item) for item in items], np.uint32),
            "subject": (np.arange(count) % len(subjects)).astype(np.uint16),
        },
        blob=list(items),
    )


def log_batch(
    kind: RecordKind,
    base_sequence: int,
    *,
    count: int = 1,
    floor_minute: int,
    columns: Columns | None = None,
    blob: bytes = b"",
    epoch: int = 1,
    append_ms: int = 0,
) -> LogBatch:
    """Return a batch as the message_log hands it on, without a log."""
    columns = columns or Columns(names=[], arrays={})
    header, _ = encode_batch(
        seed=0,
        kind=kind,
        epoch=epoch,
        base_sequence=base_sequence,
        count=next((len(array) for array in columns.arrays.values()), count),
        floor_minute=floor_minute,
        append_ms=append_ms,
        previous_crc=0,
        columns=encode_columns(kind, columns.names, columns.arrays),
        blob=[blob],
    )
    return LogBatch(header, columns, blob)


def facts_batch(base_sequence: int, facts: FactBlock, *, floor_minute: int = 0) -> LogBatch:
    """Return the batch of the message_log that states facts."""
    columns = Columns(names=list(facts.targets), arrays=facts.arrays)
    return log_batch(RecordKind.FACTS, base_sequence, floor_minute=floor_minute, columns=columns)


def unbegun(disk: Disk, *, log_uuid: UUID = LOG_UUID, file_bytes_max: int = 1 << 20) -> MessageLog:
    """Return an empty log, without its first epoch."""
    log, report = MessageLog.recover(
        disk,
        log_uuid=log_uuid,
        checkpoint_sequence=0,
        known_sequence=0,
        had_checkpoint=False,
        file_bytes_max=file_bytes_max,
    )
    assert (report.damages, report.cut) == ([], [])
    return log


def recover(
    disk: Disk,
    *,
    checkpoint_sequence: int = 0,
    known_sequence: int = 0,
    had_checkpoint: bool = False,
    file_bytes_max: int = 1 << 20,
    first_sequence: int = 1,
) -> tuple[MessageLog, RecoveryReport]:
    """Open a log the way a start does, epoch and all."""
    log, report = MessageLog.recover(
        disk,
        log_uuid=LOG_UUID,
        checkpoint_sequence=checkpoint_sequence,
        first_sequence=first_sequence,
        known_sequence=known_sequence,
        had_checkpoint=had_checkpoint,
        file_bytes_max=file_bytes_max,
    )
    if log.next_sequence == 1:
        log.start_epoch(1, append_ms=NOW_MS)
    return log, report


def new_disk(seed: int = 0) -> SimDisk:
    return SimDisk(random.Random(seed))


def disk_of(files: Mapping[str, bytes]) -> SimDisk:
    """Return a disk on which exactly these files are durable."""
    disk = new_disk()
    directories = {""}
    for path, data in files.items():
        directory = path.rpartition("/")[0]
        disk.make_directory(directory)
        directories.add(directory)
        file = disk.open(path, create=True)
        file.write_at(0, [data])
        file.sync()
        file.close()
    for directory in directories:
        disk.sync_directory(directory)
    return disk


def flipped(data: bytes, bit: int) -> bytes:
    """Return the bytes with one bit changed."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def records_of(log: MessageLog, from_sequence: int = 1) -> list[Record]:
    """Return every message that can be read, as it is on the disk."""
    records = []
    for batch in log.read(from_sequence):
        if isinstance(batch, Damage) or batch.header.kind is not RecordKind.MESSAGE:
            continue
        arrays = batch.columns.arrays
        ends = np.cumsum(arrays["size"]).tolist()
        for index, (end, size) in enumerate(zip(ends, arrays["size"].tolist(), strict=True)):
            subject = batch.columns.names[int(arrays["subject"][index])]
            item = bytes(batch.blob[end - size : end])
            records.append((batch.header.base_sequence + index, subject, item))
    return records


def damages_of(log: MessageLog, from_sequence: int = 1) -> list[Damage]:
    """Return all damage that reading meets."""
    return [found for found in log.read(from_sequence) if isinstance(found, Damage)]
