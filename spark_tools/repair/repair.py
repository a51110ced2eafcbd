"""Finds what a repair sends: what a run finds lost, each item read again and compared.

The run knows of the audit of the repair, so what was acknowledged before is no finding of it, and
what its node still owes is overdue, not lost. Memory is that of the findings, and of one table of
items (8 MiB of a file).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from delay_client import DelaywheelError, FatalError, Receipt
from spark_tools.files.columns import Int64s, ints, sift
from spark_tools.judge.account import FINDINGS_SCHEMA
from spark_tools.repaired.repair_audit import ACCEPTED, KNOWN, REFUSED, UNANSWERED, Answer
from spark_tools.repaired.repairs import MISSING, Repairs
from spark_tools.run.plan import Request, Source, extents_of, logs_of, make_plan, node_of
from spark_tools.run.reconcile import Engine, Result, reconcile
from storage.batch.batches import Damage
from storage.batch.item_formats import qmq_names
from storage.readers.arrow import ArrowReader, Kind
from storage.state.checkpoint import CHECKPOINT_PATH

_ROW_COLUMNS: Final = [
    "sequence", "due_ms", "id_hash", "subject", "message_id", "position", "payload",
]  # fmt: skip


class Why(Enum):
    """Why a finding is not sent."""

    SETTLED = "have a fact, though no row"
    OLD = "were due too long ago"
    UNREADABLE = "cannot be read"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that is to be repaired."""

    kind: str = msgspec.field(name="class")
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


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One that is not."""

    wanted: Wanted
    why: Why
    detail: str = ""


def found_in(
    sources: Sequence[Source], request: Request, engine: Engine, repairs: Repairs
) -> tuple[Result, pa.Table]:
    """Return what a run finds, and all its findings. Raises what `reconcile` does."""
    tables = [FINDINGS_SCHEMA.empty_table()]
    result = reconcile(make_plan(sources, request), engine, tables.append, repairs)
    return result, pa.concat_tables(tables)


def messages_of(
    sources: Sequence[Source],
    result: Result,
    findings: pa.Table,
    *,
    kinds: Sequence[str],
    due_from_ms: int | None = None,
) -> Iterator[Message | LeftOut]:
    """Yield the messages of a run's findings, those to send and those left out.

    findings: all of the run; kinds: classes that are wanted, of KINDS; due_from_ms: what was due
    before is left out.
    """
    table = findings.filter(pc.is_in(findings["class"], value_set=pa.array(kinds)))
    every = [msgspec.convert(row, Wanted) for row in table.to_pylist()]
    phantoms = findings.filter(pc.equal(findings["class"], "phantom"))
    problem = " ".join(filter(None, result.problems[0])) if result.problems else None
    for (cluster, group, node, kind, file), same in groupby(sorted(every, key=_place), _file):
        [source] = [one for one in sources if _node(one) == (cluster, group, node)]
        logs = _Logs(source)
        wanted, fault, settled = list(same), None, set[int]()
        if source.manifest.has_fault(CHECKPOINT_PATH):
            fault = f"{CHECKPOINT_PATH}, which is not whole: put it back"
        if kind == MISSING:
            # A row or a fact of it may be in what cannot be read.
            fault = fault or problem
            of_group = pc.and_(
                pc.equal(phantoms["cluster"], cluster), pc.equal(phantoms["group"], group)
            )
            settled = {*logs.stated(), *phantoms.filter(of_group)["sequence"].to_pylist()}
        chosen = []
        for one in wanted:
            if due_from_ms is not None and one.due_ms < due_from_ms:
                yield LeftOut(one, Why.OLD)
            elif one.sequence in settled:
                yield LeftOut(one, Why.SETTLED)
            elif fault is not None:
                yield LeftOut(one, Why.UNREADABLE, f"what became of it may be in {fault}")
            else:
                chosen.append(one)
        if chosen:
            yield from logs.read(file, chosen)


def _file(wanted: Wanted) -> tuple[str, str, str, str, str]:
    return wanted.cluster, wanted.group, wanted.node, wanted.kind, wanted.file


def _place(wanted: Wanted) -> tuple[tuple[str, ...], int]:
    return _file(wanted), wanted.sequence


def _node(source: Source) -> tuple[str, str, str]:
    return source.manifest.cluster, source.manifest.group, source.manifest.node_id


class _Logs:
    """The logs of one node, as its manifest commits them."""

    def __init__(self, source: Source) -> None:
        self._manifest = source.manifest
        self._node = node_of(source)
        self._disk = self._node.disk()

    def stated(self) -> Iterator[int]:
        """Yield the sequences of facts in all that is kept of the message_log."""
        reader = self._reader(Kind.DISPATCH, ["sequence"])
        for log in logs_of(self._manifest):
            found = reader.stated_facts(
                log.file,
                length=log.length,
                first_sequence=log.first_sequence,
                next_sequence=log.next_sequence,
            )
            for table in sift(found, []):
                yield from ints(table, "sequence").tolist()

    def _reader(self, kind: Kind, columns: Sequence[str]) -> ArrowReader:
        return ArrowReader(self._disk, self._node.log_uuid, kind, columns)

    def read(self, file: str, wanted: list[Wanted]) -> Iterator[Message | LeftOut]:
        """Yield the messages that are where the findings of one file say, checked."""
        by_sequence = {one.sequence: one for one in wanted}
        sequences = np.array(sorted(by_sequence), np.int64)
        damages: list[Damage] = []
        for table in self._tables(file, sequences, damages):
            chosen = np.isin(ints(table, "sequence"), sequences)
            for row in table.filter(pa.array(chosen)).to_pylist():
                one = by_sequence.get(row["sequence"])
                if one is not None and row["position"] == one.position:
                    del by_sequence[one.sequence]
                    yield self._checked(one, row)
        said = "it is not where it was found"
        if damages:
            said += f"; {damages[0].path} at {damages[0].position}: {damages[0].reason}"
        for one in by_sequence.values():
            yield LeftOut(one, Why.UNREADABLE, said)

    def _tables(
        self, file: str, sequences: Int64s, damages: list[Damage]
    ) -> Iterator[pa.RecordBatch]:
        for log in self._manifest.message_log:
            if log.file == file:
                found = self._reader(Kind.MESSAGE, _ROW_COLUMNS).messages(
                    file,
                    length=log.length,
                    first_sequence=max(int(sequences[0]), log.first_sequence),
                    next_sequence=min(int(sequences[-1]) + 1, log.next_sequence),
                )
                yield from sift(found, damages)
        for extent in extents_of(self._manifest):
            if extent.file == file:
                reader = self._reader(Kind.SCHEDULE, _ROW_COLUMNS)
                yield from sift(reader.rows(file, length=extent.length), damages)

    def _checked(self, one: Wanted, row: Mapping[str, Any]) -> Message | LeftOut:
        fault = _fault(one, row)
        if fault is not None:
            return LeftOut(one, Why.UNREADABLE, fault)
        item: bytes = row["payload"]
        log_uuid = self._manifest.log_uuid
        return Message(one, log_uuid, row["subject"], row["message_id"], item)


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
    differs = any(value is not None and value != row[name] for name, value in told.items())
    if differs or id_text != row["message_id"]:
        return "it is another message than was found"
    return None


def answer_of(
    message: Message, outcome: Receipt | DelaywheelError, *, who: str, at_ms: int
) -> Answer:
    """Return the line of an audit for what became of a message that was sent."""
    wanted, reason = message.wanted, None
    if isinstance(outcome, Receipt):
        result = KNOWN if outcome.duplicate else ACCEPTED
        if outcome.duplicate:
            reason = "the node says that it has the message, which may be the lost one"
    else:
        result = REFUSED if isinstance(outcome, FatalError) else UNANSWERED
        reason = str(outcome)
    return Answer(
        at_ms=at_ms,
        who=who,
        kind=wanted.kind,
        cluster=wanted.cluster,
        group=wanted.group,
        log_uuid=message.log_uuid,
        sequence=wanted.sequence,
        filed_minute=wanted.filed_minute,
        message_id=message.message_id,
        subject=message.subject,
        due_ms=wanted.due_ms,
        result=result,
        by=outcome.server,
        reason=reason,
    )
