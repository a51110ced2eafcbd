"""The seals log: what became of each complete segment, kept long after its files are gone.

`seals/seals.log`, one chained file of SEALS batches. A segment may have several seals: a later one
(archived, deleted, or the same again after a crash before the checkpoint) replaces an earlier one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from storage.batches import Damage
from storage.chained_file import BatchDraft, ChainedFile, read_columns
from storage.columns import LAYOUTS, Columns, RecordKind, encode_columns
from storage.disk import Disk
from storage.file_header import FileHeader, LogKind
from storage.spans import SegmentKey, Span

SEALS_DIRECTORY = "seals"
SEALS_PATH = "seals/seals.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """One complete segment."""

    key: SegmentKey
    rows: int
    distinct: int
    """Distinct sequences among its facts that are rows of it: equal to `rows`."""
    last_sequence: int
    length: int
    facts_length: int
    digest: tuple[int, int]
    """BLAKE2b-128 of four such digests, of the rows' sequence, due_ms, size and id_hash columns;
    alike on every replica, however the rows were cut into batches."""
    facts_digest: tuple[int, int]
    """BLAKE2b-128 of the distinct sequences that have a fact."""
    outcomes: tuple[int, ...]
    """Facts by outcome, Outcome 1 to 7, repeated ones included."""
    archived: bool = False
    deleted: bool = False


_OUTCOME_COLUMNS = ("delivered", "known", "dead", "cancelled", "moved", "expired", "dropped")


def seals_header(log_uuid: UUID) -> FileHeader:
    """Return the file header of the seals log."""
    return FileHeader(kind=LogKind.SEALS, log_uuid=log_uuid, first_sequence=1)


def seals_draft(seals: Sequence[Seal], *, first_number: int, append_ms: int) -> BatchDraft:
    """Return the batch that records these seals, numbered from `first_number`."""
    values: dict[str, list[int]] = {
        "rows": [seal.rows for seal in seals],
        "distinct": [seal.distinct for seal in seals],
        "last_sequence": [seal.last_sequence for seal in seals],
        "length": [seal.length for seal in seals],
        "facts_length": [seal.facts_length for seal in seals],
        "digest_0": [seal.digest[0] for seal in seals],
        "digest_1": [seal.digest[1] for seal in seals],
        "facts_digest_0": [seal.facts_digest[0] for seal in seals],
        "facts_digest_1": [seal.facts_digest[1] for seal in seals],
        "start_minute": [seal.key.start for seal in seals],
        "span": [seal.key.span for seal in seals],
        "archived": [seal.archived for seal in seals],
        "deleted": [seal.deleted for seal in seals],
    }
    for place, name in enumerate(_OUTCOME_COLUMNS):
        values[name] = [seal.outcomes[place] for seal in seals]
    arrays = {name: np.array(values[name], dtype) for name, dtype in LAYOUTS[RecordKind.SEALS]}
    return BatchDraft(
        kind=RecordKind.SEALS,
        base_sequence=first_number,
        count=len(seals),
        columns=encode_columns(RecordKind.SEALS, [], arrays),
        append_ms=append_ms,
    )


def seals_of_columns(columns: Columns) -> list[Seal]:
    """Return the seals of one batch."""
    arrays = {name: values.tolist() for name, values in columns.arrays.items()}
    return [
        Seal(
            key=SegmentKey(start, Span(span)),
            rows=arrays["rows"][place],
            distinct=arrays["distinct"][place],
            last_sequence=arrays["last_sequence"][place],
            length=arrays["length"][place],
            facts_length=arrays["facts_length"][place],
            digest=(arrays["digest_0"][place], arrays["digest_1"][place]),
            facts_digest=(arrays["facts_digest_0"][place], arrays["facts_digest_1"][place]),
            outcomes=tuple(arrays[name][place] for name in _OUTCOME_COLUMNS),
            archived=bool(arrays["archived"][place]),
            deleted=bool(arrays["deleted"][place]),
        )
        for place, (start, span) in enumerate(
            zip(arrays["start_minute"], arrays["span"], strict=True)
        )
    ]


def read_seals(disk: Disk, log_uuid: UUID, length: int) -> Iterator[Seal | Damage]:
    """Yield the seals in the first `length` bytes of the log, oldest first."""
    if not length:
        return
    for found in read_columns(disk, SEALS_PATH, length, seals_header(log_uuid)):
        if isinstance(found, Damage):
            yield found
        else:
            yield from seals_of_columns(found[2])


class SealsLog:
    """The open seals log of one node."""

    def __init__(self, disk: Disk, log_uuid: UUID, *, length: int, count: int, crc: int) -> None:
        self._file = ChainedFile(disk, SEALS_PATH, seals_header(log_uuid), length, crc)
        self._disk = disk
        self.count = count

    @property
    def length(self) -> int:
        """Bytes that count."""
        return self._file.length

    @property
    def last_crc(self) -> int:
        """CRC of the last batch."""
        return self._file.last_crc

    def append(self, seals: Sequence[Seal], *, append_ms: int) -> None:
        """Record seals; durable when this returns."""
        new = not self._file.length
        self._file.append([seals_draft(seals, first_number=self.count + 1, append_ms=append_ms)])
        self._file.file().sync()
        if new:
            self._disk.sync_directory(SEALS_DIRECTORY)
        self.count += len(seals)

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
