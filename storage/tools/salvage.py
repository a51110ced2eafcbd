"""Gets out of damaged files whatever can be proven whole: `delaywheel log salvage`.

Reads a data directory, or single files of one, and changes nothing. A message is proven by the CRC
of its batch, or, where the batch's items are damaged, by its own. One whose batch has lost its
header or its columns is lost, and so is one that lies in the wrong place of a file (walk.py says
which): 4 MiB of messages at most for each such place, unless another file has them. What is known
of each message:

* delivered (or crossed off otherwise): a fact says so, filed or in the message_log, or a seal;
* pending: nothing of what could say so is damaged, or it is not due yet;
* a dead letter: it was given up, and neither requeued nor dropped since; nobody should send it
  unasked;
* in doubt: it is due, and facts are damaged or missing that may have told of it, filed ones or
  records of the message_log that the checkpoint does not cover.

Messages whose delivery was confirmed in the last moments before a crash have no fact anywhere: what
is pending may have been delivered too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from storage.batch.batches import Damage
from storage.batch.columns import KINDS_WITH_ITEMS, RecordKind
from storage.batch.facts import FactBlock, Outcome, facts_stated, filed_facts_of
from storage.batch.file_header import HEADER_SIZE_MAX, FileHeader, decode_file_header
from storage.batch.item_formats import qmq_item_fault, qmq_item_size, qmq_names
from storage.batch.walk import FileBatch, walk_file
from storage.disk.disk import Bytes, Disk, size_of
from storage.disk.errors import DamagedError, NotPermittedError, StorageError
from storage.disk.read_ahead import PIECE
from storage.disk.spans import (
    DEAD_MINUTES_FROM,
    MINUTE_MS,
    SegmentKey,
    Span,
    dead_minute,
    dead_segment_of,
)
from storage.logs.message_log import MESSAGE_LOG_DIRECTORY
from storage.logs.numbered_log import files_from
from storage.node.store import QUARANTINE_DIRECTORY
from storage.schedule.seals import SEALS_DIRECTORY, Seal, seals_of_columns
from storage.state.checkpoint import Checkpoint, checkpoint_if_whole
from storage.state.identity import read_identity
from storage.tools.inspect import (
    facts_are_whole,
    header_of,
    is_log_file,
    items_in,
    lost_log,
    message_log_files,
)

PENDING = "pending"
IN_DOUBT = "in doubt"
DEAD_LETTER = "dead letter"

_CHUNK_BITS = 16


@dataclass(frozen=True, slots=True)
class SalvagedItem:
    """A message that was found whole.

    state: PENDING, IN_DOUBT, DEAD_LETTER or what became of it (an Outcome's name in lower case, or
    "sealed"). path, position: of the item, or of its batch where that is compressed. proof: "batch"
    or "item", whose CRC it was. is_served: whether the node of this directory has a copy that is
    whole where it looks for it.
    """

    sequence: int
    due_ms: int
    subject: bytes
    message_id: bytes
    state: str
    path: str
    position: int
    proof: str
    is_served: bool
    data: bytes

    @property
    def is_wanted(self) -> bool:
        """Whether it is still to be delivered, as far as anybody knows."""
        return self.state in {PENDING, IN_DOUBT}


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes of a log file that are no whole batch."""

    path: str
    position: int
    size: int
    reason: str


class SequenceSet:
    """A set of sequences, one bit each."""

    def __init__(self) -> None:
        self._chunks: dict[int, bytearray] = {}

    def add(self, sequence: int) -> bool:
        """Add a sequence; return whether it is new."""
        chunk = self._chunks.setdefault(sequence >> _CHUNK_BITS, bytearray(1 << (_CHUNK_BITS - 3)))
        place, bit = (sequence & ((1 << _CHUNK_BITS) - 1)) >> 3, 1 << (sequence & 7)
        new = not chunk[place] & bit
        chunk[place] |= bit
        return new

    def __contains__(self, sequence: int) -> bool:
        """Say whether it was added."""
        chunk = self._chunks.get(sequence >> _CHUNK_BITS)
        if chunk is None:
            return False
        return bool(chunk[(sequence & ((1 << _CHUNK_BITS) - 1)) >> 3] & (1 << (sequence & 7)))


@dataclass(frozen=True, slots=True)
class _Part:
    """A batch that a walk stands at, of a file that should begin with this header."""

    path: str
    file: FileHeader
    batch: FileBatch

    @property
    def kind(self) -> RecordKind:
        """What its records are."""
        return self.batch.header.kind

    @property
    def sequences(self) -> Sequence[int]:
        """Of its records."""
        if self.kind is RecordKind.ROWS:
            told: list[int] = self.batch.columns.arrays["sequence"].tolist()
            return told
        return self.batch.records

    def whole(self, *, each: bool) -> Iterator[int]:
        """Yield the sequences of whole items; `each` of a batch whose blob is damaged, too."""
        if self.kind in KINDS_WITH_ITEMS:
            blob, fault = _blob_of(self.batch)
            if fault is None or each:
                sequences = self.sequences
                for row, _begin, _item in self.whole_items(blob):
                    yield sequences[row]

    def whole_items(self, blob: Bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield row, place in the blob and bytes of each item that is whole."""
        is_dead = self.file.span is Span.DEAD
        for row, (begin, due_ms, view) in enumerate(items_in(self.batch.columns, blob)):
            # Behind that of a dead letter there is a note; the item says where.
            row_bytes = bytes(view)
            item = row_bytes[: qmq_item_size(row_bytes, 0) or 0] if is_dead else row_bytes
            if qmq_item_fault(item, due_ms) is None:
                yield row, begin, item

    def filed_minute(self, due_ms: int) -> int:
        """Return the filed minute of a row that is due then, or what stands for a dead segment."""
        minute, header = due_ms // MINUTE_MS, self.batch.header
        if self.kind is RecordKind.DEAD:
            return dead_minute(dead_segment_of(header.append_ms, header.floor_minute))
        if self.file.span is Span.NONE:
            return max(minute, header.floor_minute)
        begin, end = SegmentKey(self.file.start_minute, self.file.span).filed_minutes
        return begin if end == begin + 1 else max(minute, begin)


@dataclass(slots=True)
class _Knowledge:
    """What facts and seals say, and whether some of them are damaged or missing."""

    outcomes: dict[int, SequenceSet] = field(default_factory=dict)
    sealed: list[SegmentKey] = field(default_factory=list)
    """Complete segments whose facts are not whole on disk: who knows which rows they had."""
    facts_incomplete: bool = False

    def add(self, facts: FactBlock) -> None:
        """Take what facts say."""
        told = zip(facts.sequence.tolist(), facts.outcome.tolist(), strict=True)
        for sequence, outcome in told:
            self.outcomes.setdefault(outcome, SequenceSet()).add(sequence)

    def state(self, sequence: int, due_ms: int, minute: int, now_ms: int) -> str:
        """Return what is known of a message, filed under a minute since 1970."""
        for outcome, told in self.outcomes.items():
            if sequence in told:
                return Outcome(outcome).name.lower()
        if any(begin <= minute < end for begin, end in (key.filed_minutes for key in self.sealed)):
            return "sealed"
        if minute >= DEAD_MINUTES_FROM:
            return DEAD_LETTER
        # Never early: nobody has sent yet what is not due.
        return IN_DOUBT if self.facts_incomplete and due_ms <= now_ms else PENDING


class Salvage:
    """One salvage of a data directory, or of some files in it.

    Iterate over `items()` once; `gaps` says afterwards what could not be read.
    """

    def __init__(self, disk: Disk, files: Sequence[str] | None = None, *, now_ms: int) -> None:
        """Prepare for all files on the disk, or for those of these paths.

        Facts and seals are taken from the whole directory in either case.
        now_ms: the wall clock.
        """
        self._disk = disk
        self._now_ms = now_ms
        self.gaps: list[Gap] = []
        """Bytes that are no whole batch, of the files that items were looked for in."""
        self._is_whole = files is None
        """Whether all files of the directory are looked into."""
        holders = _log_files(disk, MESSAGE_LOG_DIRECTORY, "schedule_log", QUARANTINE_DIRECTORY)
        self.files = holders if files is None else list(files)
        self.log_uuid = _uuid_of(disk, [*self.files, *holders, *_derived_files(disk)])
        self._seen = SequenceSet()

    def items(self) -> Iterator[SalvagedItem]:
        """Yield each message once. May take its time.

        Raises NotPermittedError for a file that this user may not read: nobody should take what is
        found without it for all that is whole.
        """
        checkpoint = checkpoint_if_whole(self._disk, self.log_uuid)
        knowledge = self._learn()
        if self._is_whole:
            self.gaps += self._gone(checkpoint)
        served = self._learn_served(checkpoint)
        for path in self.files:
            for part in self._read(path, self.gaps):
                if part.kind in KINDS_WITH_ITEMS:
                    yield from self._items_of(part, knowledge, served)

    # -- what became of them -----------------------------------------------------------------

    def _learn(self) -> _Knowledge:
        knowledge = _Knowledge(facts_incomplete=not facts_are_whole(self._disk))
        seals: list[Seal] = []
        whole: dict[str, int] = {}
        for path in _derived_files(self._disk):
            gaps: list[Gap] = []
            for part in self._read(path, gaps):
                columns = part.batch.columns
                if part.kind is RecordKind.SEALS:
                    seals += seals_of_columns(columns)
                else:
                    knowledge.add(filed_facts_of(columns))
            if not gaps:
                whole[path] = size_of(self._disk, path)
        # Each row of a complete segment has a fact: what has none there never was one of its rows.
        knowledge.sealed = [
            seal.key for seal in seals if whole.get(seal.key.facts_path, 0) < seal.facts_length
        ]
        self._learn_records(knowledge)
        return knowledge

    def _learn_records(self, knowledge: _Knowledge) -> None:
        """Take the facts that records of the message_log state, whether they are filed or not."""
        for path in _log_files(self._disk, MESSAGE_LOG_DIRECTORY):
            for part in self._read(path):
                facts = facts_stated(part.batch.header, part.batch.columns)
                if facts is not None:
                    knowledge.add(facts)

    def _gone(self, checkpoint: Checkpoint | None) -> Iterator[Gap]:
        """Yield the message_log and the segments that the checkpoint names, if no file is left."""
        lost = lost_log(self._disk)
        if lost is not None:
            yield Gap(MESSAGE_LOG_DIRECTORY, 0, 0, lost)
        for state in checkpoint.segments if checkpoint is not None else ():
            files = ((state.key.path, state.length), (state.key.facts_path, state.facts_length))
            for path, length in files:
                if length and not self._disk.exists(path):
                    yield Gap(path, 0, length, "the file is gone")

    def _learn_served(self, checkpoint: Checkpoint | None) -> SequenceSet:
        """Return the sequences of which the node has a copy that is whole where it looks for it.

        That is in the segments that the checkpoint names and, for what came after it, in the
        message_log. Without a checkpoint it does not start.
        """
        served = SequenceSet()
        if checkpoint is None:
            return served
        for state in checkpoint.segments:
            for part in self._read(state.key.path):
                if part.batch.position < state.length:
                    for sequence in part.whole(each=state.key.span in {Span.MINUTE, Span.DEAD}):
                        served.add(sequence)
        # A stray file would hide the one before it.
        log_files, _ = message_log_files(self._disk, self.log_uuid)
        for file in files_from(log_files, checkpoint.sequence):
            for part in self._read(file.path):
                for sequence in part.whole(each=False):
                    if sequence > checkpoint.sequence:
                        served.add(sequence)
        return served

    # -- items -------------------------------------------------------------------------------

    def _items_of(
        self, part: _Part, knowledge: _Knowledge, served: SequenceSet
    ) -> Iterator[SalvagedItem]:
        batch, sequences = part.batch, part.sequences
        header, names = batch.header, batch.columns.names
        subjects, dues = batch.columns.arrays["subject"], batch.columns.arrays["due_ms"]
        blob, fault = _blob_of(batch)
        if fault is not None:
            self.gaps.append(Gap(part.path, batch.position, header.size, fault))
        raw = header.blob_size == header.blob_raw_size
        for row, begin, item in part.whole_items(blob):
            sequence, due_ms = sequences[row], int(dues[row])
            if not self._seen.add(sequence):
                continue
            minute = part.filed_minute(due_ms)
            yield SalvagedItem(
                sequence=sequence,
                due_ms=due_ms,
                subject=names[subjects[row]],
                message_id=qmq_names(item)[1],
                state=knowledge.state(sequence, due_ms, minute, self._now_ms),
                path=part.path,
                position=batch.position + (header.blob_offset + begin if raw else 0),
                proof="batch" if fault is None else "item",
                is_served=sequence in served,
                data=item,
            )

    def _read(self, path: str, gaps: list[Gap] | None = None) -> Iterator[_Part]:
        """Yield the batches of a file; what else there is goes to `gaps`."""
        gaps = [] if gaps is None else gaps
        try:
            header = header_of(self._disk, path, self.log_uuid)
            length = size_of(self._disk, path)
            for found in walk_file(self._disk, path, length, header, piece=PIECE):
                if isinstance(found, Damage):
                    gaps.append(Gap(path, found.position, found.size, found.reason))
                else:
                    yield _Part(path, header, found)
        except NotPermittedError:
            raise
        except (StorageError, OSError) as error:
            gaps.append(Gap(path, 0, 0, f"cannot be read: {error}"))


def _blob_of(batch: FileBatch) -> tuple[Bytes, str | None]:
    """Return the blob of a batch, and what is wrong with it, whose items have to prove themselves.

    Of a damaged one that is compressed nothing is left.
    """
    try:
        return batch.blob(), None
    except DamagedError as error:
        raw = batch.header.blob_size == batch.header.blob_raw_size
        return batch.stored_blob() if raw else b"", error.reason


def _uuid_of(disk: Disk, paths: Sequence[str]) -> UUID | None:
    """Return the log's uuid from the identity, or from the first file that says it."""
    try:
        identity = read_identity(disk)
    except NotPermittedError:
        raise
    except StorageError:
        identity = None
    if identity is not None:
        return identity.log_uuid
    for path in paths:
        try:
            file = disk.open_read(path)
        except NotPermittedError:
            raise
        except OSError:
            continue
        try:
            return decode_file_header(file.read_at(0, HEADER_SIZE_MAX), path=path).log_uuid
        except (StorageError, OSError):
            continue
        finally:
            file.close()
    return None


def _derived_files(disk: Disk) -> list[str]:
    """Return the files beside the message_log that tell what became of messages."""
    return _log_files(disk, "dispatch_log", SEALS_DIRECTORY)


def _log_files(disk: Disk, *directories: str) -> list[str]:
    """Return the log files in some directories."""
    paths = [f"{directory}/{name}" for directory in directories for name in disk.list(directory)]
    return [path for path in paths if is_log_file(path)]
