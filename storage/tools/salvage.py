"""Gets out of damaged files whatever can be proven whole: `delaywheel log salvage`.

Reads a data directory, or single files of one, and changes nothing. A message is proven by the CRC
of its batch, or, where the batch is damaged, by its own. What is known of each:

* delivered (or crossed off otherwise): a fact or a seal says so, or a record that makes a fact;
* pending: nothing of what could say so is damaged, or it is not due yet;
* a dead letter: it was given up, and neither requeued nor dropped since; nobody should send it
  unasked;
* in doubt: facts that may have told of it are damaged or missing, or it was found without its
  batch, and so without its sequence.

Messages whose delivery was confirmed less than 20 ms before a crash have no fact anywhere: what is
pending may have been delivered too.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from storage.batch.batches import (
    BATCH_BYTES_MAX,
    MAGIC,
    BatchHeader,
    check_blob,
    check_columns,
    decode_header,
    file_seed,
)
from storage.batch.columns import Array, Columns, RecordKind
from storage.batch.facts import Outcome
from storage.batch.file_header import (
    FILE_HEADER_SIZE,
    HEADER_SIZE_MAX,
    FileHeader,
    LogKind,
    decode_file_header,
)
from storage.batch.item_formats import qmq_item_fault, qmq_item_size, qmq_names
from storage.disk.disk import Bytes, Disk
from storage.disk.errors import (
    DamagedError,
    NotPermittedError,
    StorageError,
    UnsupportedFormatError,
)
from storage.disk.read_ahead import ReadAhead
from storage.disk.spans import (
    DEAD_MINUTES_FROM,
    MINUTE_MS,
    SegmentKey,
    Span,
    dead_minute,
    dead_segment_of,
    key_of_name,
)
from storage.logs.dispatch_log import JOURNAL_DIRECTORY, JOURNAL_END_PATH
from storage.logs.message_log import MESSAGE_LOG_DIRECTORY
from storage.logs.numbered_log import LogFile, files_from, list_log_files, without_strays
from storage.node.store import QUARANTINE_DIRECTORY
from storage.schedule.schedule_log import NAMING_KINDS, facts_of_records
from storage.schedule.seals import SEALS_DIRECTORY, seals_of_columns
from storage.state.checkpoint import Checkpoint, checkpoint_if_whole
from storage.state.durable_end import DurableEndFile
from storage.state.identity import read_identity
from storage.tools.inspect import lost_logs

PENDING = "pending"
IN_DOUBT = "in doubt"
DEAD_LETTER = "dead letter"

_LOG_KINDS = (RecordKind.MESSAGE, RecordKind.MOVE, RecordKind.DEAD)
_KINDS = (*_LOG_KINDS, RecordKind.ROWS)
_PIECE = 4 * 1024 * 1024
_CHUNK_BITS = 16
_ITEM_PATTERN = re.compile(rb"(?=\0{4}.{4}[\0-\x07]\0\0[\x01-\x0f].{5}.{8}.{2}.)", re.DOTALL)
"""The beginning of an item: a CRC below 2^32, a flag, and a create time of the years 2004 to
2527."""


@dataclass(frozen=True, slots=True)
class SalvagedItem:
    """A message that was found whole.

    sequence: None where it was found without its batch. state: PENDING, IN_DOUBT, DEAD_LETTER or
    what became of it (an Outcome's name in lower case, or "sealed"). path, position: of the item,
    or of its batch where that is compressed. proof: "batch" or "item", whose CRC it was. is_served:
    whether the node of this directory has a copy that is whole where it looks for it.
    """

    sequence: int | None
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
    """A batch whose header and columns are good. blob: None where it is damaged."""

    path: str
    position: int
    header: BatchHeader
    columns: Columns
    blob: Bytes | None
    key: SegmentKey | None

    @property
    def is_dead(self) -> bool:
        """Whether its rows are those of a dead segment."""
        return self.key is not None and self.key.span is Span.DEAD


@dataclass(frozen=True, slots=True)
class _Loose:
    """An item that was found outside of any batch that is whole."""

    path: str
    position: int
    data: bytes


@dataclass(slots=True)
class _Knowledge:
    """What facts, records and seals say, and what they cannot say."""

    outcomes: dict[int, SequenceSet] = field(default_factory=dict)
    sealed: list[SegmentKey] = field(default_factory=list)
    doubtful: list[SegmentKey] = field(default_factory=list)
    """Segments of whose filed facts some cannot be read."""
    all_doubtful: bool = False
    """The journal or the seals cannot be read as a whole, or are not there."""
    checkpoint: Checkpoint | None = None

    def state(self, sequence: int | None, due_ms: int, minute: int, now_ms: int) -> str:
        """Return what is known of a message, filed under a minute since 1970."""
        if sequence is not None:
            for outcome, told in self.outcomes.items():
                if sequence in told:
                    return Outcome(outcome).name.lower()
            if _covers(self.sealed, minute):
                return "sealed"
            if minute >= DEAD_MINUTES_FROM:
                return DEAD_LETTER
        if due_ms > now_ms:
            return PENDING  # Never early: nobody has sent it yet.
        doubtful = sequence is None or self.all_doubtful or _covers(self.doubtful, minute)
        return IN_DOUBT if doubtful else PENDING


def _covers(keys: Sequence[SegmentKey], minute: int) -> bool:
    return any(begin <= minute < end for begin, end in (key.filed_minutes for key in keys))


class Salvage:
    """One salvage of a data directory, or of some files in it.

    Iterate over `items()` once; `gaps` says afterwards what could not be read.
    """

    def __init__(self, disk: Disk, files: Sequence[str] | None = None, *, now_ms: int) -> None:
        """Prepare for all files on the disk, or for those of these paths.

        Facts, records that make some, and seals are taken from the whole directory in either case.
        now_ms: the wall clock.
        """
        self._disk = disk
        self._now_ms = now_ms
        self.gaps: list[Gap] = []
        """Bytes that are no whole batch, of the files that items were looked for in."""
        self._is_whole = True
        """Whether all files of the directory are looked into."""
        self.files = [path for path in _log_files(disk) if _holds_items(path)]
        if files is not None:
            self.files = list(files)
            self._is_whole = False
        self.log_uuid = _uuid_of(disk, [*self.files, *_log_files(disk)])
        self._seen = SequenceSet()
        self._loose: dict[tuple[int, bytes], _Loose] = {}

    def items(self) -> Iterator[SalvagedItem]:
        """Yield each message once, those without a sequence at the end. May take its time.

        Raises NotPermittedError for a file that this user may not read: nobody should take what is
        found without it for all that is whole.
        """
        knowledge = self._learn()
        if self._is_whole:
            self.gaps += self._gone(knowledge.checkpoint)
        served = self._learn_served(knowledge.checkpoint)
        for path in self.files:
            for part in self._read(path, self.gaps):
                yield from self._items_of(part, knowledge, served)
        self._drop_known()
        for loose in self._loose.values():
            yield self._loose_item(loose, knowledge)

    # -- what became of them -----------------------------------------------------------------

    def _learn(self) -> _Knowledge:
        disk, uuid = self._disk, self.log_uuid
        checkpoint = checkpoint_if_whole(disk, uuid)
        knowledge = _Knowledge(checkpoint=checkpoint)
        numbers: list[range] = []
        journal_gaps = False
        paths = [path for path in _log_files(disk) if not _holds_items(path)]
        for path in paths:
            gaps: list[Gap] = []
            journal = path.startswith(JOURNAL_DIRECTORY)
            for part in self._read(path, gaps):
                if part.header.kind is RecordKind.SEALS:
                    knowledge.sealed += [seal.key for seal in seals_of_columns(part.columns)]
                elif part.header.kind is RecordKind.FACTS:
                    arrays = part.columns.arrays
                    _learn_facts(knowledge, arrays["sequence"], arrays["outcome"])
                    if journal:
                        header = part.header
                        numbers.append(range(header.base_sequence, header.next_sequence))
            journal_gaps |= journal and bool(gaps)
            self._doubt(knowledge, checkpoint, path, gaps)
        knowledge.all_doubtful |= _journal_has_holes(
            disk, uuid, checkpoint, numbers, has_gaps=journal_gaps
        )
        self._learn_records(knowledge)
        knowledge.all_doubtful |= uuid is None or not (paths or self._told_nothing(checkpoint))
        if checkpoint is not None:
            knowledge.doubtful += [
                state.key
                for state in checkpoint.segments
                if state.facts_length and not disk.exists(state.key.facts_path)
            ]
        return knowledge

    def _told_nothing(self, checkpoint: Checkpoint | None) -> bool:
        """Say whether there was no fact yet: then no file of facts is missing."""
        return (
            checkpoint is not None
            and not checkpoint.fact_number
            and not checkpoint.seals_length
            and self._disk.exists(JOURNAL_END_PATH)
        )

    def _learn_records(self, knowledge: _Knowledge) -> None:
        """Take what records of the message_log say of older ones: a crash may leave no fact of it.

        A start would tell the fact before it sends anything.
        """
        for path in _log_files(self._disk):
            if _kind_of(path) is not LogKind.MESSAGE_LOG:
                continue
            for part in self._read(path, None):
                if part.header.kind in NAMING_KINDS:
                    facts = facts_of_records(part.header.kind, part.columns, part.header.append_ms)
                    _learn_facts(knowledge, facts.sequence, facts.outcome)

    def _gone(self, checkpoint: Checkpoint | None) -> Iterator[Gap]:
        """Yield the logs, and the segments that the checkpoint names, of which no file is left."""
        for directory, reason in lost_logs(self._disk):
            yield Gap(directory, 0, 0, reason)
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
        live = {state.key.path: state.length for state in checkpoint.segments}
        for path, length in live.items():
            for part in self._read(path, None):
                whole = part.blob is not None or path.endswith((".minute", ".dead"))
                if part.position < length and part.header.kind is RecordKind.ROWS and whole:
                    sequences = part.columns.arrays["sequence"].tolist()
                    for row, _begin, _item in self._whole_items(part):
                        served.add(sequences[row])
        for file in files_from(self._message_log_files(), checkpoint.sequence):
            for part in self._read(file.path, None):
                header = part.header
                if header.kind in _LOG_KINDS and part.blob is not None:
                    for sequence in range(
                        max(header.base_sequence, checkpoint.sequence + 1), header.next_sequence
                    ):
                        served.add(sequence)
        return served

    def _message_log_files(self) -> list[LogFile]:
        """Return the files of the message_log; a stray one would hide the one before it."""
        files = list_log_files(self._disk, MESSAGE_LOG_DIRECTORY)
        if self.log_uuid is None:
            return files
        kept, _ = without_strays(
            self._disk, files, log_uuid=self.log_uuid, kind=LogKind.MESSAGE_LOG
        )
        return kept

    def _doubt(
        self, knowledge: _Knowledge, checkpoint: Checkpoint | None, path: str, gaps: list[Gap]
    ) -> None:
        """Note that facts or seals are missing where bytes that count cannot be read."""
        if path.startswith(JOURNAL_DIRECTORY):
            return  # Its facts are numbered: holes are found by that.
        key = _key_of(path)
        if key is None:
            length = checkpoint.seals_length if checkpoint is not None else None
            knowledge.all_doubtful |= _reaches_into(gaps, length)
            knowledge.all_doubtful |= length is not None and length > _size_of(self._disk, path)
            return
        lengths = {
            state.key: state.facts_length for state in (checkpoint.segments if checkpoint else ())
        }
        length = lengths.get(key)
        short = length is not None and length > _size_of(self._disk, path)
        if short or _reaches_into(gaps, length):
            knowledge.doubtful.append(key)

    # -- items -------------------------------------------------------------------------------

    def _items_of(
        self, part: _Part, knowledge: _Knowledge, served: SequenceSet
    ) -> Iterator[SalvagedItem]:
        if part.header.kind not in _KINDS:
            return
        header, names = part.header, part.columns.names
        sequences = (
            part.columns.arrays["sequence"].tolist()
            if header.kind is RecordKind.ROWS
            else range(header.base_sequence, header.next_sequence)
        )
        subjects = part.columns.arrays["subject"].tolist()
        raw = header.blob_size == header.blob_raw_size
        for row, begin, item in self._whole_items(part):
            if not self._seen.add(sequences[row]):
                continue
            due_ms = int(part.columns.arrays["due_ms"][row])
            minute = _filed_minute(part, due_ms)
            yield SalvagedItem(
                sequence=sequences[row],
                due_ms=due_ms,
                subject=names[subjects[row]],
                message_id=qmq_names(item)[1],
                state=knowledge.state(sequences[row], due_ms, minute, self._now_ms),
                path=part.path,
                position=part.position + (header.blob_offset + begin if raw else 0),
                proof="batch" if part.blob is not None else "item",
                is_served=sequences[row] in served,
                data=item,
            )

    def _whole_items(self, part: _Part) -> Iterator[tuple[int, int, bytes]]:
        """Yield row, place in the blob and bytes of each item of a batch that is whole."""
        arrays, blob = part.columns.arrays, part.blob
        if blob is None:
            raw = part.header.blob_size == part.header.blob_raw_size
            blob = self._stored_blob(part) if raw else b""
        end = 0
        for row, (due_ms, size) in enumerate(
            zip(arrays["due_ms"].tolist(), arrays["size"].tolist(), strict=True)
        ):
            begin, end = end, end + size
            item = bytes(blob[begin:end])
            if part.is_dead:
                # A note follows, and the item says where.
                size = qmq_item_size(item, 0) or 0  # noqa: PLW2901
                item = item[:size]
            if len(item) == size and qmq_item_fault(item, due_ms) is None:
                yield row, begin, item

    def _loose_item(self, loose: _Loose, knowledge: _Knowledge) -> SalvagedItem:
        due_ms = int.from_bytes(loose.data[17:25], "big")
        subject, message_id = qmq_names(loose.data)
        return SalvagedItem(
            sequence=None,
            due_ms=due_ms,
            subject=subject,
            message_id=message_id,
            state=knowledge.state(None, due_ms, due_ms // MINUTE_MS, self._now_ms),
            path=loose.path,
            position=loose.position,
            proof="item",
            is_served=False,
            data=loose.data,
        )

    def _stored_blob(self, part: _Part) -> bytes:
        file = self._disk.open_read(part.path)
        try:
            window = ReadAhead(file, end=file.size(), unreadable=[], piece=part.header.blob_size)
            position = part.position + part.header.blob_offset
            return bytes(window.view(position, part.header.blob_size))
        finally:
            file.close()

    def _drop_known(self) -> None:
        """Forget loose items that were found in their batch, here or in another file."""
        if not self._loose:
            return
        for path in self.files:
            for part in self._read(path, None):
                if part.header.kind in _KINDS:
                    for _row, _begin, item in self._whole_items(part):
                        self._loose.pop(_identity(item), None)

    # -- reading -----------------------------------------------------------------------------

    def _read(self, path: str, gaps: list[Gap] | None) -> Iterator[_Part]:
        """Yield the batches of a file whose columns are good, wherever they lie.

        With `gaps` the bytes in between are added to it, and searched for items where the file may
        hold some.
        """
        try:
            file = self._disk.open_read(path)
        except NotPermittedError:
            raise
        except OSError as error:
            if gaps is not None:
                gaps.append(Gap(path, 0, 0, f"cannot be read: {error}"))
            return
        try:
            yield from _FileReader(self, path, ReadAhead(
                file, end=file.size(), unreadable=[], piece=_PIECE
            ), file.size(), gaps).parts()  # fmt: skip
        finally:
            file.close()

    def keep_loose(self, found: _Loose) -> None:
        """Remember an item that was found outside of its batch."""
        self._loose.setdefault(_identity(found.data), found)


class _FileReader:
    """One reading of one file, batch by batch, hopping over nothing that could be one."""

    def __init__(
        self, salvage: Salvage, path: str, window: ReadAhead, size: int, gaps: list[Gap] | None
    ) -> None:
        self._salvage = salvage
        self._path = path
        self._view, self._next_data = window.view, window.next_data
        self._size = size
        self._gaps = gaps
        self._header = self._file_header()

    def _file_header(self) -> FileHeader | None:
        """Return what the file says it is, or what its name says."""
        named = self._named_header()
        try:
            said = decode_file_header(self._view(0, HEADER_SIZE_MAX), path=self._path)
        except StorageError as error:
            self._note_header(str(error))
            return named
        if named is None or file_seed(said) == file_seed(named):
            return said
        # The beginning of another file was written over this one's, or it was renamed.
        self._note_header("the header is of another file, by its name")
        return named if self._batches_of(named) >= self._batches_of(said) else said

    def _named_header(self) -> FileHeader | None:
        uuid, kind, key = self._salvage.log_uuid, _kind_of(self._path), _key_of(self._path)
        if uuid is None or kind is None:
            return None
        if key is None:
            return FileHeader(kind=kind, log_uuid=uuid)
        return FileHeader(kind=kind, log_uuid=uuid, span=key.span, start_minute=key.start)

    def _note_header(self, reason: str) -> None:
        if self._gaps is not None:
            self._gaps.append(Gap(self._path, 0, min(self._size, FILE_HEADER_SIZE), reason))

    def _batches_of(self, header: FileHeader) -> int:
        """Return how many batches of the file belong to one with this header."""
        count, position = 0, self._next_magic(0)
        while position < self._size:
            with contextlib.suppress(DamagedError, UnsupportedFormatError):
                decode_header(
                    self._view(position, HEADER_SIZE_MAX),
                    seed=file_seed(header),
                    path=self._path,
                    position=position,
                )
                count += 1
            position = self._next_magic(position + 1)
        return count

    def parts(self) -> Iterator[_Part]:
        """Yield the batches."""
        position = FILE_HEADER_SIZE
        if self._header is None:
            self._gap(0, self._size, "the log it belongs to is not known")
            return
        begin, reason = position, ""
        while position < self._size:
            part = self._part_at(position)
            if isinstance(part, str):
                reason = reason or part
                position = self._next_magic(position + 1)
                continue
            if position > begin:
                self._gap(begin, position, reason or "no batch begins here")
            yield part
            if part.blob is None:
                # Whatever lies over its items may be whole.
                begin, reason = position, "the batch's blob is damaged"
                position = self._next_magic(position + 1)
            else:
                position = begin = position + part.header.size
                reason = ""
        if self._size > begin:
            self._gap(begin, self._size, reason or "no batch begins here")

    def _part_at(self, position: int) -> _Part | str:
        assert self._header is not None
        seed, path = file_seed(self._header), self._path
        try:
            head = self._view(position, HEADER_SIZE_MAX)
            header = decode_header(head, seed=seed, path=path, position=position)
            data = self._view(position, header.size)
            columns = check_columns(header, data, seed=seed, path=path, position=position)
        except (DamagedError, UnsupportedFormatError) as error:
            return error.reason
        try:
            blob = check_blob(header, data, seed=seed, path=path, position=position)
        except DamagedError:
            blob = None
        covered = self._header.span is not Span.NONE
        key = SegmentKey(self._header.start_minute, self._header.span) if covered else None
        return _Part(path, position, header, columns, blob, key)

    def _next_magic(self, position: int) -> int:
        while (position := self._next_data(position)) < self._size:
            chunk = bytes(self._view(position, _PIECE))
            offset = chunk.find(MAGIC)
            if offset >= 0:
                return position + offset
            if position + len(chunk) >= self._size:
                break
            position += len(chunk) - len(MAGIC) + 1
        return self._size

    def _gap(self, begin: int, end: int, reason: str) -> None:
        if self._gaps is None:
            return
        self._gaps.append(Gap(self._path, begin, end - begin, reason))
        if not _holds_items(self._path) and self._header is not None:
            return
        start = begin
        while (start := self._next_data(start)) < end:
            data = bytes(self._view(start, min(_PIECE + BATCH_BYTES_MAX, end - start)))
            for found in _ITEM_PATTERN.finditer(data, 0, min(len(data), _PIECE)):
                size = qmq_item_size(data, found.start())
                if size is None:
                    continue
                item = data[found.start() : found.start() + size]
                due_ms = int.from_bytes(item[17:25], "big")
                if qmq_item_fault(item, due_ms) is None:
                    self._salvage.keep_loose(_Loose(self._path, start + found.start(), item))
            start += _PIECE


def _identity(item: bytes) -> tuple[int, bytes]:
    return len(item), item[:64]


def _filed_minute(part: _Part, due_ms: int) -> int:
    minute = due_ms // MINUTE_MS
    if part.header.kind is RecordKind.DEAD:
        return dead_minute(dead_segment_of(part.header.append_ms, part.header.floor_minute))
    if part.key is None:
        return max(minute, part.header.floor_minute)
    begin, end = part.key.filed_minutes
    return begin if end == begin + 1 else max(minute, begin)


def _learn_facts(knowledge: _Knowledge, sequences: Array, outcomes: Array) -> None:
    for sequence, outcome in zip(sequences.tolist(), outcomes.tolist(), strict=True):
        knowledge.outcomes.setdefault(outcome, SequenceSet()).add(sequence)


def _journal_has_holes(
    disk: Disk,
    log_uuid: UUID | None,
    checkpoint: Checkpoint | None,
    numbers: list[range],
    *,
    has_gaps: bool,
) -> bool:
    """Say whether facts that are not filed yet are missing from what was read of the journal."""
    if checkpoint is None:
        # Without a checkpoint nobody knows which are filed: all that the journal still has count.
        first = min((found.start for found in numbers), default=1)
    else:
        first = checkpoint.fact_number + 1
        if checkpoint.fact_number and not list_log_files(disk, JOURNAL_DIRECTORY):
            # Its newest file never leaves: with it went what was not filed yet.
            return True
    if log_uuid is None:
        return True
    file = DurableEndFile(disk, JOURNAL_DIRECTORY, log_uuid=log_uuid, kind=LogKind.JOURNAL_END)
    try:
        end = file.read()
    except NotPermittedError:
        raise
    except StorageError:
        return True
    is_gone = end is None and list_log_files(disk, JOURNAL_DIRECTORY)
    if is_gone or file.doubt is not None or (file.damaged_slot is not None and has_gaps):
        # There is no end to go by, or the one that counts may be an older one.
        return True
    last = max((found.stop for found in numbers), default=first)
    wanted = max(last, end.next_sequence if end is not None else 1)
    known = first
    for found in sorted(numbers, key=lambda one: one.start):
        if found.start > known:
            return True
        known = max(known, found.stop)
    return known < wanted


def _reaches_into(gaps: list[Gap], length: int | None) -> bool:
    """Say whether bytes below `length` are in a gap; without a length any byte counts."""
    return any(length is None or gap.position < length for gap in gaps)


def _size_of(disk: Disk, path: str) -> int:
    """Return the size of a file; 0 if there is none that can be opened."""
    try:
        file = disk.open_read(path)
    except NotPermittedError:
        raise
    except OSError:
        return 0
    try:
        return file.size()
    finally:
        file.close()


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


def _log_files(disk: Disk) -> list[str]:
    """Return the log files of a data directory: those that hold items last."""
    found = [file.path for file in list_log_files(disk, JOURNAL_DIRECTORY)]
    found += _listed(disk, "dispatch_log")
    found += [path for path in _listed(disk, SEALS_DIRECTORY) if path.endswith(".log")]
    found += [file.path for file in list_log_files(disk, MESSAGE_LOG_DIRECTORY)]
    return found + _listed(disk, "schedule_log") + _listed(disk, QUARANTINE_DIRECTORY)


def _listed(disk: Disk, directory: str) -> list[str]:
    paths = [f"{directory}/{name}" for name in disk.list(directory)]
    if directory == SEALS_DIRECTORY:
        return paths
    return [path for path in paths if _key_of(path) is not None]


def _key_of(path: str) -> SegmentKey | None:
    """Return the segment a file is of by its name, in quarantine or not."""
    name = path.rpartition("/")[2]
    return key_of_name(".".join(name.split(".")[-2:]))


def _kind_of(path: str) -> LogKind | None:
    """Return what a file is by its name."""
    directory, _, name = path.rpartition("/")
    directory = directory.rpartition("/")[2]
    if directory == QUARANTINE_DIRECTORY:
        directory = name.split(".")[0]
    return {
        MESSAGE_LOG_DIRECTORY: LogKind.MESSAGE_LOG,
        "schedule_log": LogKind.SCHEDULE_LOG,
        "dispatch_log": LogKind.DISPATCH_LOG,
        "journal": LogKind.DISPATCH_JOURNAL,
        SEALS_DIRECTORY: LogKind.SEALS,
    }.get(directory)


def _holds_items(path: str) -> bool:
    return _kind_of(path) in {LogKind.MESSAGE_LOG, LogKind.SCHEDULE_LOG, None}
