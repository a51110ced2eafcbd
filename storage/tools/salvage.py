"""Gets whole batches out of damaged files: `delaywheel log salvage`.

Reads a data directory, or single files of one, and changes nothing. A message is proven by the CRC
of its batch. One whose batch is damaged is lost, unless another file has it; so is one that lies in
the wrong place of a file (walk.py says which). What is known of each message:

* delivered (or crossed off otherwise): a fact says so, filed or in the message_log, or a seal;
* pending: nothing of what could say so is damaged, or it is not due yet;
* a dead letter: it was given up, and neither requeued nor dropped since; nobody should send it
  unasked;
* in doubt: it is due, and facts may be missing: the directory's manifest is not complete, or filed
  facts, seals or the message_log are damaged.

Messages whose delivery was confirmed in the last moments before a crash have no fact anywhere: what
is pending may have been delivered too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from storage.batch.batches import Damage
from storage.batch.columns import KINDS_WITH_ITEMS, RecordKind
from storage.batch.dead_rows import note_of_row
from storage.batch.facts import FactBlock, Outcome, facts_stated, filed_facts_of
from storage.batch.file_header import LogKind
from storage.batch.item_formats import qmq_message_id
from storage.batch.walk import FileBatch
from storage.disk.disk import Disk, size_of
from storage.disk.spans import (
    DEAD_MINUTES_FROM,
    MINUTE_MS,
    SegmentKey,
    Span,
    dead_minute,
    dead_segment_of,
)
from storage.logs.message_log import MESSAGE_LOG_DIRECTORY
from storage.node.store import QUARANTINE_DIRECTORY
from storage.schedule.seals import SEALS_DIRECTORY, Seal, seals_of_columns
from storage.tools.inspect import items_in, log_files, read_file, read_known

PENDING = "pending"
IN_DOUBT = "in doubt"
DEAD_LETTER = "dead letter"

_CHUNK_BITS = 16


@dataclass(frozen=True, slots=True)
class SalvagedItem:
    """A message that was found whole.

    state: PENDING, IN_DOUBT, DEAD_LETTER or what became of it (an Outcome's name in lower case, or
    "sealed"). path, position: of its batch. is_served: whether the node of this directory has it in
    a whole batch where it looks for it.
    """

    sequence: int
    due_ms: int
    subject: bytes
    message_id: bytes
    state: str
    path: str
    position: int
    is_served: bool
    data: bytes

    @property
    def is_wanted(self) -> bool:
        """Whether it is still to be delivered, as far as anybody knows."""
        return self.state in {PENDING, IN_DOUBT}


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
    """A batch that a walk stands at."""

    path: str
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

    def items(self) -> Iterator[bytes]:
        """Yield its items."""
        for view in items_in(self.batch):
            row = bytes(view)
            # Behind the item of a dead letter there is a note.
            note = note_of_row(row) if self.batch.file.span is Span.DEAD else None
            yield row if note is None else row[: -note[0]]

    def filed_minute(self, due_ms: int) -> int:
        """Return the filed minute of a row that is due then, or what stands for a dead segment."""
        minute, header = due_ms // MINUTE_MS, self.batch.header
        if self.kind is RecordKind.DEAD:
            return dead_minute(dead_segment_of(header.append_ms, header.floor_minute))
        file = self.batch.file
        if file.span is Span.NONE:
            return max(minute, header.floor_minute)
        begin, end = SegmentKey(file.start_minute, file.span).filed_minutes
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
        self._known = read_known(disk)
        self.gaps: list[Damage] = [] if files is not None else list(self._known.faults)
        """Parts of the searched files that are no whole batch, or are gone."""
        holders = log_files(disk, MESSAGE_LOG_DIRECTORY, "schedule_log", QUARANTINE_DIRECTORY)
        self.files = holders if files is None else files
        self._seen = SequenceSet()

    def items(self) -> Iterator[SalvagedItem]:
        """Yield each message once. May take its time.

        Raises NotPermittedError for a file that this user may not read: nobody should take what is
        found without it for all that is whole.
        """
        knowledge = self._learn()
        served = self._learn_served()
        for path in self.files:
            for part in self._read(path, self.gaps):
                if part.kind in KINDS_WITH_ITEMS:
                    yield from self._items_of(part, knowledge, served)

    def _learn(self) -> _Knowledge:
        """Return what filed facts, seals and records of the message_log say."""
        knowledge = _Knowledge(facts_incomplete=bool(self._known.faults))
        seals: list[Seal] = []
        whole: dict[str, int] = {}
        for path in log_files(self._disk, "dispatch_log", SEALS_DIRECTORY, MESSAGE_LOG_DIRECTORY):
            gaps: list[Damage] = []
            for part in self._read(path, gaps):
                columns, facts = part.batch.columns, None
                if part.kind is RecordKind.SEALS:
                    seals += seals_of_columns(columns)
                elif part.batch.file.kind is LogKind.MESSAGE_LOG:
                    facts = facts_stated(part.batch.header, columns)
                else:
                    facts = filed_facts_of(columns)
                if facts is not None:
                    knowledge.add(facts)
            knowledge.facts_incomplete |= bool(gaps)
            if not gaps:
                whole[path] = size_of(self._disk, path)
        # Each row of a complete segment has a fact: what has none there never was one of its rows.
        knowledge.sealed = [
            seal.key for seal in seals if whole.get(seal.key.facts_path, 0) < seal.facts_length
        ]
        return knowledge

    def _learn_served(self) -> SequenceSet:
        """Return the sequences of which the node has a copy in a whole batch where it looks for it.

        That is in the segments that the checkpoint names and, for what came after it, in the
        message_log. Without either it does not start.
        """
        served = SequenceSet()
        manifest = self._known.manifest
        if manifest is None:
            return served
        lengths = {one.file: one.length for one in (*manifest.segments, *manifest.dead_segments)}
        log = log_files(self._disk, MESSAGE_LOG_DIRECTORY)
        for path in (*lengths, *log):
            for part in self._read(path, []):
                is_counted = part.batch.position < lengths.get(path, 1 << 62)
                if is_counted and part.kind in KINDS_WITH_ITEMS:
                    for sequence in part.sequences:
                        if path in lengths or sequence > manifest.sequence:
                            served.add(sequence)
        return served

    def _items_of(
        self, part: _Part, knowledge: _Knowledge, served: SequenceSet
    ) -> Iterator[SalvagedItem]:
        columns = part.batch.columns
        dues, subjects = columns.arrays["due_ms"].tolist(), columns.arrays["subject"].tolist()
        rows = zip(part.sequences, dues, subjects, part.items(), strict=True)
        for sequence, due_ms, subject, item in rows:
            if not self._seen.add(sequence):
                continue
            minute = part.filed_minute(due_ms)
            yield SalvagedItem(
                sequence=sequence,
                due_ms=due_ms,
                subject=columns.names[subject],
                message_id=qmq_message_id(item),
                state=knowledge.state(sequence, due_ms, minute, self._now_ms),
                path=part.path,
                position=part.batch.position,
                is_served=sequence in served,
                data=item,
            )

    def _read(self, path: str, gaps: list[Damage]) -> Iterator[_Part]:
        """Yield the batches of a file; what else there is goes to `gaps`."""
        for found in read_file(self._disk, path, self._known):
            if isinstance(found, FileBatch):
                yield _Part(path, found)
            elif isinstance(found, Damage):
                gaps.append(found)
