"""Takes facts, and whole messages, out of the sealed segments of a stopped node.

What is left is whole: files are written anew by storage's own writers, each segment gets another
seal that counts what there is now, and the checkpoint names the seals. The records of the
message_log that state these facts are about a minute of long ago. Nothing but the accounts of the
node's past can tell that anything was there.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np

from storage.batch.batches import Damage, encode_batch, file_seed
from storage.batch.columns import RecordKind, encode_columns
from storage.batch.entries import SubjectTable
from storage.batch.facts import FactBlock, Outcome, join_facts
from storage.batch.file_header import FileHeader, LogKind
from storage.batch.rows import RowBlock, join_blocks
from storage.batch.walk import FileBatch, walk_file
from storage.disk.disk import Bytes, DirectoryDisk
from storage.logs.message_log import MESSAGE_LOG_DIRECTORY
from storage.logs.numbered_log import list_log_files
from storage.schedule.seals import Seal, SealsLog, columns_of_seals, seals_end
from storage.schedule.segment import Segment, SegmentBatch
from storage.state.checkpoint import read_checkpoint, write_checkpoint
from storage.state.durable_end import DurableEndFile
from storage.state.identity import read_identity
from tests.kit.seals import read_seals


def take_out(root: Path, *, facts: Collection[int], messages: Collection[int]) -> None:
    """Take out the facts of these sequences, and of these others rows and facts.

    Raises AssertionError unless all of them are in sealed segments.
    """
    disk = DirectoryDisk(root)
    identity = read_identity(disk)
    assert identity is not None
    checkpoint = read_checkpoint(disk, identity.log_uuid)
    assert checkpoint is not None
    log, damages = SealsLog.recover(disk, identity.log_uuid, end=seals_end(checkpoint))
    assert not damages
    last: dict[object, Seal] = {}
    for seal in read_seals(disk, identity.log_uuid, log.end):
        assert isinstance(seal, Seal)
        last[seal.key] = seal
    missing = set(facts) | set(messages)
    changed = []
    for seal in last.values():
        if seal.deleted:
            continue
        segment = _segment_of(disk, identity.log_uuid, seal)
        if not segment.rows:
            continue
        here = {int(one) for one in _rows(segment, disk).sequence} & missing
        if here:
            missing -= here
            changed.append(_without(segment, disk, seal, here & set(messages), here))
    _forget(disk, identity.log_uuid, {*facts, *messages})
    assert not missing, f"not in sealed segments: {sorted(missing)[:5]}"
    log.append(columns_of_seals(changed), append_ms=checkpoint.written_ms)
    end = log.end
    log.close()
    write_checkpoint(
        disk,
        identity.log_uuid,
        msgspec.structs.replace(
            checkpoint,
            seals_file=end.file,
            seals_length=end.length,
            seals_count=end.count,
            seals_last_crc=end.last_crc,
            seals_needed=end.needed,
        ),
    )


def _forget(disk: DirectoryDisk, log_uuid: UUID, rows: Collection[int]) -> None:
    """Have the message_log state no fact about these rows; its records keep their sequences."""
    end_file = DurableEndFile(disk, MESSAGE_LOG_DIRECTORY, log_uuid=log_uuid)
    end = end_file.read()
    assert end is not None
    crc: int | None = None
    for file in list_log_files(disk, MESSAGE_LOG_DIRECTORY):
        header = FileHeader(
            kind=LogKind.MESSAGE_LOG, log_uuid=log_uuid, first_sequence=file.first_sequence
        )
        opened = disk.open(file.path)
        length = end.position if file.first_sequence == end.file_sequence else opened.size()
        parts: list[tuple[int, list[Bytes]]] = []
        for batch in walk_file(disk, file.path, length, header):
            assert isinstance(batch, FileBatch)
            was, arrays = batch.header, dict(batch.columns.arrays)
            if was.kind is RecordKind.FACTS:
                gone = np.isin(arrays["sequence"], list(rows))
                for name in ("sequence", "minute"):
                    arrays[name] = np.where(gone, 1, arrays[name])
            made, buffers = encode_batch(
                seed=file_seed(header),
                kind=was.kind,
                epoch=was.epoch,
                base_sequence=was.base_sequence,
                count=was.count,
                floor_minute=was.floor_minute,
                append_ms=was.append_ms,
                previous_crc=was.previous_crc if crc is None else crc,
                columns=encode_columns(was.kind, batch.columns.names, arrays),
                blob=[bytes(batch.blob())],
            )
            assert made.size == was.size
            crc = made.crc
            parts.append((batch.position, buffers))
        for position, buffers in parts:
            opened.write_at(position, buffers)
        opened.sync()
        opened.close()
    assert crc is not None
    end_file.write(replace(end, last_crc=crc))
    end_file.sync()
    end_file.close()


def _segment_of(disk: DirectoryDisk, log_uuid: object, seal: Seal) -> Segment:
    segment = Segment.new(disk, log_uuid, seal.key)  # type: ignore[arg-type]
    segment.file.length, segment.facts_file.length = seal.length, seal.facts_length
    segment.rows = seal.rows
    return segment


def _rows(segment: Segment, disk: DirectoryDisk, table: SubjectTable | None = None) -> RowBlock:
    table = SubjectTable() if table is None else table
    blocks = []
    for batch in segment.read_rows(disk, segment.file.length):
        assert isinstance(batch, SegmentBatch)
        blocks.append(batch.rows(table))
    return join_blocks(blocks)


def _facts(segment: Segment, disk: DirectoryDisk) -> FactBlock:
    blocks = []
    for block in segment.read_facts(disk):
        assert not isinstance(block, Damage)
        blocks.append(block)
    return join_facts(blocks)


def _without(
    segment: Segment,
    disk: DirectoryDisk,
    seal: Seal,
    rows_gone: Collection[int],
    facts_gone: Collection[int],
) -> Seal:
    """Write a segment anew without some of its rows and facts; return its new seal."""
    table = SubjectTable()
    rows, facts = _rows(segment, disk, table), _facts(segment, disk)
    rows = rows.take_or_empty(np.flatnonzero(~np.isin(rows.sequence, list(rows_gone))))
    facts = facts.take(np.flatnonzero(~np.isin(facts.sequence, list(facts_gone))))
    for path in (segment.file.path, segment.facts_file.path):
        disk.unlink(path)
    anew = Segment.new(disk, segment.file.header.log_uuid, seal.key)
    if len(rows):
        anew.append(rows, table, epoch=1, append_ms=seal.sealed_ms)
        anew.file.file().sync()
    if len(facts):
        anew.append_facts(facts, epoch=1, append_ms=seal.sealed_ms)
        anew.facts_file.file().sync()
    anew.close()
    outcomes = Counter(facts.outcome.tolist())
    return replace(
        seal,
        rows=len(rows),
        distinct=len(rows),
        length=anew.file.length,
        facts_length=anew.facts_file.length,
        outcomes=tuple(outcomes[outcome] for outcome in Outcome),
    )
