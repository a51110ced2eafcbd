"""Sealing: a closed segment is read from end to end, and gets its seal if its facts cover its rows.

A minute of millions of rows takes seconds, and nothing that is due may wait for that. So the
worker of the schedule_log only takes down how a segment is (`Candidate`), the worker that writes
the checkpoint reads it (`look_through`), and the former hears of it at the end (`Look`). The reader
uses a copy of the segment and its files by their paths. It shares nothing with the schedule_log,
whose files grow behind the lengths that were taken down.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from storage.batch.facts import FactBlock, Outcome
from storage.batch.rows import Int64s
from storage.disk.disk import Disk
from storage.disk.errors import ReadFailedError
from storage.disk.sorting import each_once
from storage.disk.spans import SegmentKey
from storage.schedule.row_places import contained
from storage.schedule.seals import Seal
from storage.schedule.segment import Segment, SegmentBatch

_DIGESTED = ("sequence", "due_ms", "size", "id_hash")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A closed segment that may be complete, as it was when the checkpoint was prepared."""

    segment: Segment
    """A copy, which nobody changes."""
    is_patient: bool
    """Whether rows that cannot be read are tried again later, rather than taken for damage."""
    is_patient_with_facts: bool


@dataclass(slots=True)
class Look:
    """What reading a candidate came to."""

    key: SegmentKey
    facts: int
    """How many facts the segment had."""
    seal: Seal | None = None
    """None if the segment is not complete, or could not be read."""
    surplus: int | None = None
    """Facts that do not tell of one more of its rows; None where not all rows are known."""
    tried: dict[str, ReadFailedError | None] = field(default_factory=dict)
    """By path, of the files that were read: why that failed, None if it did not."""

    @property
    def has_failed(self) -> bool:
        """Whether something could not be read: the next checkpoint tries again."""
        return any(error is not None for error in self.tried.values())

    @contextlib.contextmanager
    def trying(self, path: str) -> Iterator[None]:
        """Note what becomes of an attempt to read all of a file; it may raise ReadFailedError."""
        try:
            yield
        except ReadFailedError as error:
            self.tried[path] = error
            raise
        self.tried[path] = None


def look_through(disk: Disk, candidate: Candidate, *, sealed_ms: int) -> Look:
    """Read a candidate; the look has its seal if its facts cover its rows. May take its time."""
    segment = candidate.segment
    look = Look(segment.key, segment.facts)
    with contextlib.suppress(ReadFailedError):
        look.seal = _seal_of(disk, candidate, look, sealed_ms)
    return look


def _seal_of(disk: Disk, candidate: Candidate, look: Look, sealed_ms: int) -> Seal | None:
    """Return the seal of a segment whose facts cover its rows, None if they do not.

    Raises ReadFailedError.
    """
    segment = candidate.segment
    with look.trying(segment.file.path):
        found = _read_rows(disk, segment, patient=candidate.is_patient)
    if found is None:
        return None
    rows, digest = found
    with look.trying(segment.facts_file.path):
        facts, outcomes = _read_facts(disk, segment, patient=candidate.is_patient_with_facts)
    told = each_once(facts)
    is_told = contained(rows, told)
    settled = int(np.count_nonzero(is_told))
    if len(rows) != segment.rows:
        return None
    look.surplus = segment.facts - settled
    if settled < len(rows):
        return None
    return Seal(
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


def _read_rows(
    disk: Disk, segment: Segment, *, patient: bool
) -> tuple[Int64s, tuple[int, int]] | None:
    """Return the sequences of all rows and the rows' digest; None where rows are damaged.

    Raises ReadFailedError.
    """
    digests = [hashlib.blake2b(digest_size=16) for _ in _DIGESTED]
    sequences = [np.empty(0, np.int64)]
    for batch in segment.read_rows(disk, segment.file.length, patient=patient):
        if not isinstance(batch, SegmentBatch):
            return None
        # A view would keep all that was read with it in memory: the whole file, in the end.
        sequences.append(batch.sequence.copy())
        for name, digest in zip(_DIGESTED, digests, strict=True):
            digest.update(batch.columns.arrays[name].data)
    return np.concatenate(sequences), _digest(b"".join(digest.digest() for digest in digests))


def _read_facts(disk: Disk, segment: Segment, *, patient: bool) -> tuple[Int64s, tuple[int, ...]]:
    """Return the sequences of all facts that can be read, and how many there are by outcome.

    Raises ReadFailedError.
    """
    sequences = [np.empty(0, np.int64)]
    outcomes = np.zeros(max(Outcome) + 1, np.int64)
    for block in segment.read_facts(disk, patient=patient):
        if isinstance(block, FactBlock):
            sequences.append(block.sequence.copy())
            outcomes += np.bincount(block.outcome, minlength=len(outcomes))[: len(outcomes)]
    return np.concatenate(sequences), tuple(outcomes.tolist()[1:])


def _digest(data: bytes | memoryview) -> tuple[int, int]:
    digest = hashlib.blake2b(data, digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
