"""What a repair sends: lost messages, each read again and held against everything known of it.

A run of reconciling said what is lost; since then time has passed. So facts and rows are looked up
once more, and what has one by now is left out, as is what its node still owes.

Memory is that of `_FINDINGS_AT_ONCE` findings, of one table of items (8 MiB of a file), and of the
sequences that have a fact in one segment; not of the messages.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from spark_tools.files.columns import Int64s, ints, sift
from spark_tools.files.errors import ReconcileError
from spark_tools.judge.account import FINDINGS_SCHEMA
from spark_tools.judge.tasks import Cover, Extent
from spark_tools.repaired.repairs import LOST, MISSING, LogName, Repairs
from spark_tools.run.plan import Source, extents_of, logs_of, node_of
from storage.batch.batches import Damage
from storage.batch.item_formats import qmq_names
from storage.disk.sorting import each_once
from storage.logs.message_log import MESSAGE_LOG_DIRECTORY
from storage.readers.arrow import ArrowReader, Kind
from storage.schedule.seals import SEALS_DIRECTORY
from storage.state.checkpoint import CHECKPOINT_PATH
from storage.tools.salvage import SequenceSet

_FINDINGS_AT_ONCE: Final = 65_536
_NONE: Final = np.empty(0, np.int64)
_LOG: Final = f"{MESSAGE_LOG_DIRECTORY}/"
_UNTOLD: Final = (
    "its segment may be a deleted one, of which the manifest does not tell: make it with more "
    "--deleted-days"
)
_ROW_COLUMNS: Final = [
    "sequence", "due_ms", "id_hash", "subject", "message_id", "position", "payload",
]  # fmt: skip


class Why(Enum):
    """Why a finding is not sent."""

    SENT_BEFORE = "were acknowledged before, by the audit"
    SETTLED = "have a fact by now"
    FILED = "have a row by now"
    TWICE = "are the same message once more"
    OLD = "were due too long ago"
    OWED = "are still owed by their node, which will deliver them"
    UNREADABLE = "cannot be read"

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do for it, or nothing was asked for."""
        return self not in {Why.OWED, Why.UNREADABLE}


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that is to be repaired."""

    kind: str
    cluster: str
    group: str
    node: str
    sequence: int
    message_id: str | None
    subject: str | None
    due_ms: int
    filed_minute: int
    file: str
    position: int


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send: `item` is what its producer sent, byte for byte."""

    wanted: Wanted
    log_uuid: str
    subject: str
    message_id: str
    item: bytes

    @property
    def log(self) -> LogName:
        """The log that the message was lost from."""
        return LogName(self.wanted.cluster, self.wanted.group, self.log_uuid)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One that is not."""

    wanted: Wanted
    why: Why
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRequest:
    """What is asked of a repair.

    kinds: `lost`, `missing`; final: nothing runs any more on these directories, so what a node
    owes, nobody will deliver; due_from_ms: what was due before is left out.
    """

    kinds: Collection[str] = (LOST,)
    final: bool = False
    due_from_ms: int | None = None


class Sent:
    """The sequences of messages that were sent and acknowledged; one bit each."""

    def __init__(self) -> None:
        self._logs: dict[tuple[LogName, str], SequenceSet] = {}

    def add(self, log: LogName, kind: str, sequence: int) -> bool:
        """Add a sequence; return whether it is new."""
        return self._logs.setdefault((log, kind), SequenceSet()).add(sequence)

    def has(self, log: LogName, kind: str, sequence: int) -> bool:
        """Return whether a sequence was added."""
        found = self._logs.get((log, kind))
        return found is not None and sequence in found

    @classmethod
    def of(cls, repairs: Repairs) -> "Sent":
        """Return what audits say was acknowledged."""
        sent = cls()
        for kind, logs in ((LOST, repairs.rows), (MISSING, repairs.records)):
            for log, known in logs.items():
                for sequence in known.sequence.tolist():
                    sent.add(log, kind, sequence)
        return sent


def findings_to_repair(details: Path, kinds: Collection[str]) -> Iterator[list[Wanted]]:
    """Yield the findings of these classes, some at a time, those of one file together.

    Raises ReconcileError for what is no `findings.parquet`, OSError for what cannot be read.
    """
    path = details / "findings.parquet"
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ReconcileError(f"{path} is no Parquet file: {error}") from error
    with file:
        missing = set(FINDINGS_SCHEMA.names) - set(file.schema_arrow.names)
        if missing:
            raise ReconcileError(
                f"{path} has no column {', '.join(sorted(missing))}: no reconciliation wrote it"
            )
        gathered: list[Wanted] = []
        for batch in file.iter_batches(_FINDINGS_AT_ONCE, columns=FINDINGS_SCHEMA.names):
            chosen = batch.filter(pc.is_in(batch["class"], value_set=pa.array(sorted(kinds))))
            gathered += [_wanted(row, path) for row in chosen.to_pylist()]
            if len(gathered) >= _FINDINGS_AT_ONCE:
                yield _by_file(gathered)
                gathered = []
        if gathered:
            yield _by_file(gathered)


def _wanted(row: dict[str, Any], path: Path) -> Wanted:
    try:
        return msgspec.convert({**row, "kind": row["class"]}, Wanted)
    except msgspec.ValidationError as error:
        raise ReconcileError(f"{path} has a finding that cannot be repaired: {error}") from error


def _by_file(wanted: list[Wanted]) -> list[Wanted]:
    wanted.sort(key=_place)
    return wanted


def _place(wanted: Wanted) -> tuple[str, str, str, str, str, int]:
    of_file = (wanted.cluster, wanted.group, wanted.node, wanted.kind, wanted.file)
    return (*of_file, wanted.sequence)


class Repair:
    """Reads the messages of findings again, and decides which of them to send."""

    def __init__(self, sources: Sequence[Source], request: RepairRequest, before: Sent) -> None:
        """before: what was acknowledged already."""
        self._request = request
        self._before = before
        self._taken = Sent()
        self._nodes = {
            (one.manifest.cluster, one.manifest.group, one.manifest.node_id): one for one in sources
        }
        self._logs: tuple[Source, _Logs] | None = None
        """Of the node that was asked last."""

    def messages(self, details: Path) -> Iterator[Message | LeftOut]:
        """Yield the messages of a run's findings, those to send and those left out.

        Raises ReconcileError or OSError if the findings cannot be read.
        """
        for some in findings_to_repair(details, self._request.kinds):
            for _, same in groupby(some, key=lambda one: _place(one)[:-1]):
                yield from self._of_file(list(same))

    def _of_file(self, wanted: list[Wanted]) -> Iterator[Message | LeftOut]:
        first = wanted[0]
        source = self._nodes.get((first.cluster, first.group, first.node))
        if source is None:
            detail = f"no --root or --manifest is of node {first.node}"
            yield from (LeftOut(one, Why.UNREADABLE, detail) for one in wanted)
            return
        if self._logs is None or self._logs[0] is not source:
            self._logs = source, _Logs(source)
        logs = self._logs[1]
        chosen = []
        for one in wanted:
            why = self._early_reason(one, logs.name)
            if why is None:
                chosen.append(one)
            else:
                yield LeftOut(one, why)
        yield from logs.look_up(chosen, final=self._request.final)

    def _early_reason(self, one: Wanted, log: LogName) -> Why | None:
        """Return why one need not even be read."""
        if self._before.has(log, one.kind, one.sequence):
            return Why.SENT_BEFORE
        if not self._taken.add(log, one.kind, one.sequence):
            return Why.TWICE
        due_from_ms = self._request.due_from_ms
        return Why.OLD if due_from_ms is not None and one.due_ms < due_from_ms else None


@dataclass(slots=True)
class _Known:
    """Sequences that something was found of, and why others may have been overlooked."""

    ascending: Int64s
    damages: list[Damage]

    @classmethod
    def of(cls, found: Iterable[pa.RecordBatch | Damage]) -> "_Known":
        damages: list[Damage] = []
        parts = [ints(table, "sequence") for table in sift(found, damages)]
        return cls(each_once(np.concatenate([_NONE, *parts])), damages)


class _Logs:
    """The logs of one node, as its manifest commits them."""

    def __init__(self, source: Source) -> None:
        self._manifest = manifest = source.manifest
        self.name = LogName(manifest.cluster, manifest.group, manifest.log_uuid)
        self._node = node_of(source)
        self._disk = self._node.disk()
        self._extents = sorted(extents_of(manifest), key=lambda one: one.start)
        self._cover = Cover.of(self._extents)
        self._by_file = {one.file: one for one in self._extents}
        self._log_files = {one.file: one for one in manifest.message_log}
        self._log: _Known | None = None
        """Facts in the message_log; None until they are asked for."""
        self._facts: tuple[str, _Known] | None = None
        """Of the segment that was asked last."""

    def look_up(self, wanted: list[Wanted], *, final: bool) -> Iterator[Message | LeftOut]:
        """Yield the messages of the findings of one class in one file."""
        left: list[Wanted] = []
        for segment, mine in self._by_segment(wanted):
            yield from self._without_the_done(segment, mine, left, final=final)
        if left:
            yield from self._read(left)

    def _by_segment(self, wanted: list[Wanted]) -> Iterator[tuple[Extent | None, list[Wanted]]]:
        """Yield the segments that cover findings, each with its own."""
        file = wanted[0].file if wanted else ""
        if not file.startswith(_LOG):
            if wanted:
                yield self._by_file.get(file), wanted
            return
        by_place: dict[int, list[Wanted]] = {}
        places = self._cover.places(np.array([one.filed_minute for one in wanted], np.int64))
        for one, place in zip(wanted, places.tolist(), strict=True):
            by_place.setdefault(place, []).append(one)
        for place, mine in sorted(by_place.items()):
            yield (None if place < 0 else self._extents[place]), mine

    def _without_the_done(
        self, segment: Extent | None, wanted: list[Wanted], left: list[Wanted], *, final: bool
    ) -> Iterator[LeftOut]:
        """Yield the findings that are left out, and add the others to `left`."""
        unknown = self._unknown(segment)
        told_from = self._manifest.deleted_from_minute if segment is None else 0
        sequences = np.array([one.sequence for one in wanted], np.int64)
        is_missing = wanted[0].kind == MISSING
        is_sealed = segment is not None and segment.is_sealed
        log, rows = self._log_facts(), list[_Known]()
        facts = [log]
        if segment is not None:
            facts.append(self._facts_of(segment))
            rows += [self._rows_of(segment)] if is_missing else []
        has_fact, has_row = (
            np.isin(sequences, np.concatenate([_NONE, *(one.ascending for one in known)]))
            for known in (facts, rows)
        )
        # Of a segment that has all its facts none is in what is damaged of the log.
        has_all = segment is not None and segment.has_all_facts
        known = [one for one in (*facts, *rows) if not (has_all and one is log)]
        damages = [damage for one in known for damage in one.damages]
        owed = not is_missing and not final and not is_sealed
        for one, fact, row in zip(wanted, has_fact.tolist(), has_row.tolist(), strict=True):
            if fact:
                yield LeftOut(one, Why.SETTLED)
            elif row:
                yield LeftOut(one, Why.FILED)
            elif unknown is not None:
                yield LeftOut(one, Why.UNREADABLE, unknown)
            elif one.filed_minute < told_from:
                yield LeftOut(one, Why.UNREADABLE, _UNTOLD)
            elif damages:
                said = f"{damages[0].path} at {damages[0].position}: {damages[0].reason}"
                yield LeftOut(one, Why.UNREADABLE, f"what became of it may be in {said}")
            elif owed:
                yield LeftOut(one, Why.OWED)
            else:
                left.append(one)

    def _unknown(self, segment: Extent | None) -> str | None:
        """Return why the outcome of messages of a segment, or of no segment, cannot be known."""
        lacking = [CHECKPOINT_PATH]
        if segment is None:
            lacking.append(SEALS_DIRECTORY)
        if segment is None or not segment.has_all_facts:
            lacking.append(MESSAGE_LOG_DIRECTORY)
        for path in lacking:
            if self._manifest.has_fault(path):
                return f"what became of it may be in {path}, which is not whole: put it back"
        return None

    def _log_facts(self) -> _Known:
        """Return what has a fact in all that is kept of the message_log, filed or not."""
        if self._log is None:
            reader = self._reader(Kind.DISPATCH, ["sequence"])
            self._log = _Known.of(
                found
                for log in logs_of(self._manifest)
                for found in reader.stated_facts(
                    log.file,
                    length=log.length,
                    first_sequence=log.first_sequence,
                    next_sequence=log.next_sequence,
                )
            )
        return self._log

    def _facts_of(self, segment: Extent) -> _Known:
        if self._facts is None or self._facts[0] != segment.facts_file:
            found = self._reader(Kind.DISPATCH, ["sequence"]).filed_facts(
                segment.facts_file, length=segment.facts_length
            )
            self._facts = segment.facts_file, _Known.of(found)
        return self._facts[1]

    def _rows_of(self, segment: Extent) -> _Known:
        reader = self._reader(Kind.SCHEDULE, ["sequence"])
        return _Known.of(reader.rows(segment.file, length=segment.length))

    def _reader(self, kind: Kind, columns: Sequence[str]) -> ArrowReader:
        return ArrowReader(self._disk, self._node.log_uuid, kind, columns)

    # -- items -------------------------------------------------------------------------------

    def _read(self, wanted: list[Wanted]) -> Iterator[Message | LeftOut]:
        """Yield the messages that are where the findings say, checked."""
        file = wanted[0].file
        by_sequence = {one.sequence: one for one in wanted}
        sequences = np.array(sorted(by_sequence), np.int64)
        damages: list[Damage] = []
        for table in self._tables(file, sequences, damages):
            chosen = np.isin(ints(table, "sequence"), sequences)
            if not chosen.any():
                continue
            for row in table.filter(pa.array(chosen)).to_pylist():
                one = by_sequence.get(row["sequence"])
                if one is None or row["position"] != one.position:
                    continue
                del by_sequence[one.sequence]
                yield self._checked(one, row)
        said = "it is not where it was found"
        if file not in self._by_file and file not in self._log_files:
            said = "the manifest does not name the file any more"
        elif damages:
            said += f"; {damages[0].path} at {damages[0].position}: {damages[0].reason}"
        for one in by_sequence.values():
            yield LeftOut(one, Why.UNREADABLE, said)

    def _tables(
        self, file: str, sequences: Int64s, damages: list[Damage]
    ) -> Iterator[pa.RecordBatch]:
        log, segment = self._log_files.get(file), self._by_file.get(file)
        if log is not None:
            found = self._reader(Kind.MESSAGE, _ROW_COLUMNS).messages(
                file,
                length=log.length,
                first_sequence=max(int(sequences[0]), log.first_sequence),
                next_sequence=min(int(sequences[-1]) + 1, log.next_sequence),
            )
        elif segment is not None:
            found = self._reader(Kind.SCHEDULE, _ROW_COLUMNS).rows(file, length=segment.length)
        else:
            return
        yield from sift(found, damages)

    def _checked(self, one: Wanted, row: Mapping[str, Any]) -> Message | LeftOut:
        fault = _fault(one, row)
        if fault is not None:
            return LeftOut(one, Why.UNREADABLE, fault)
        item: bytes = row["payload"]
        return Message(one, self.name.log_uuid, row["subject"], row["message_id"], item)


def _fault(one: Wanted, row: Mapping[str, Any]) -> str | None:
    """Return why a row is not the message of a finding, or is not whole; None if it is."""
    item = row["payload"]
    if item is None:
        return "the item fails its CRC, or is not of its row"
    subject, message_id = qmq_names(item)
    try:
        subject_text, id_text = subject.decode(), message_id.decode()
    except UnicodeDecodeError:
        return "its subject or message id is no UTF-8, which no node takes"
    if subject_text != row["subject"] or xxhash.xxh3_64_intdigest(message_id) != (
        row["id_hash"] % 2**64
    ):
        return "the item is of another message than its row"
    told = {"due_ms": one.due_ms, "subject": one.subject, "message_id": one.message_id}
    differs = [name for name, value in told.items() if value is not None and value != row[name]]
    if differs or id_text != row["message_id"]:
        return f"it is another message than was found: {', '.join(differs) or 'message_id'} differs"
    return None
