"""Sealing: a closed segment is read from end to end, and gets its seal if its facts cover its rows.

A minute of millions of rows takes seconds, and nothing that is due may wait for that. So the
worker of the schedule_log only copies the state of a segment, the worker that writes the checkpoint
reads it (`look_through`), and the former hears of it at the end (`Look`). The reader uses that copy
and the files by their paths. It shares nothing with the schedule_log,
whose files grow behind the lengths that were taken down.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from storage.batch.facts import FactBlock, Outcome
from storage.batch.rows import Int64s
from storage.disk.disk import Disk
from storage.disk.sorting import each_once
from storage.disk.spans import SegmentKey
from storage.schedule.row_places import contained
from storage.schedule.seals import Seal
from storage.schedule.segment import Segment, SegmentBatch

_DIGESTED = ("sequence", "due_ms", "size", "id_hash")


@dataclass(slots=True)
class Look:
    """What reading a segment came to."""

    key: SegmentKey
    facts: int
    """How many facts the segment had."""
    seal: Seal | None = None
    """None if the segment is not complete, or could not be read."""
    surplus: int | None = None
    """Facts that do not tell of one more of its rows; None where not all rows are known."""


def look_through(disk: Disk, segment: Segment, *, sealed_ms: int) -> Look:
    """Read a copy of a closed segment; the look has its seal if its facts cover its rows.

    May take its time.
    """
    look = Look(segment.key, segment.facts)
    found = _read_rows(disk, segment)
    if found is None:
        return look
    rows, digest = found
    facts, outcomes = _read_facts(disk, segment)
    told = each_once(facts)
    is_told = contained(rows, told)
    settled = int(np.count_nonzero(is_told))
    if len(rows) != segment.rows:
        return look
    look.surplus = segment.facts - settled
    if settled == len(rows):
        look.seal = Seal(
            key=segment.key,
            rows=len(rows),
            distinct=len(each_once(rows[is_told])),
            last_sequence=segment.last_sequence,
            length=segment.file.length,
            facts_length=segment.facts_file.length,
            digest=digest,
            facts_digest=_digest(told.data),
            outcomes=outcomes,
            sealed_ms=sealed_ms,
        )
    return look


def _read_rows(disk: Disk, segment: Segment) -> tuple[Int64s, tuple[int, int]] | None:
    """Return the sequences of all rows and the rows' digest; None where rows are damaged."""
    digests = [hashlib.blake2b(digest_size=16) for _ in _DIGESTED]
    sequences = [np.empty(0, np.int64)]
    for batch in segment.read_rows(disk, segment.file.length):
        if not isinstance(batch, SegmentBatch):
            return None
        # A view would keep all that was read with it in memory: the whole file, in the end.
        sequences.append(batch.sequence.copy())
        for name, digest in zip(_DIGESTED, digests, strict=True):
            digest.update(batch.columns.arrays[name].data)
    return np.concatenate(sequences), _digest(b"".join(digest.digest() for digest in digests))


def _read_facts(disk: Disk, segment: Segment) -> tuple[Int64s, tuple[int, ...]]:
    """Return the sequences of all facts that can be read, and how many there are by outcome."""
    sequences = [np.empty(0, np.int64)]
    outcomes = np.zeros(max(Outcome) + 1, np.int64)
    for block in segment.read_facts(disk):
        if isinstance(block, FactBlock):
            sequences.append(block.sequence.copy())
            outcomes += np.bincount(block.outcome, minlength=len(outcomes))[: len(outcomes)]
    return np.concatenate(sequences), tuple(outcomes.tolist()[1:])


def _digest(data: bytes | memoryview) -> tuple[int, int]:
    digest = hashlib.blake2b(data, digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
