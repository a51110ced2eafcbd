"""The files of one hour, and of the index of the message_log, in a state directory."""

import contextlib
import re
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_tools.hours.state import (
    HOURS,
    INDEX,
    GroupSums,
    HourEntry,
    HourResult,
    StateDirectory,
    hour_name,
    result_name,
)
from spark_tools.judge.account import FINDINGS_SCHEMA, LATEST
from spark_tools.judge.log_index import LogIndex
from spark_tools.judge.pieces import HourDigests, Piece
from spark_tools.judge.sequences import Sequences
from spark_tools.judge.tasks import GroupName
from spark_tools.run.reconcile import GroupResult, Result
from spark_tools.run.report import encode_report, report, tables_of, with_group

_UNPROVEN = "unproven"
_PIECE_NAME = re.compile(r"(\d{20})-(\d{20})\.parquet", re.ASCII)
_GONE = "gone.parquet"
_GONE_KEY = b"delaywheel.sequences"


class HourWriter:
    """Writes the details of one hour as they come, and then its result, with which it is done."""

    def __init__(self, state: StateDirectory, hour: int, tries: int) -> None:
        self._state = state
        self._hour = hour
        self._prefix = f"{hour_name(hour)}-{tries}-"
        self._held = contextlib.ExitStack()
        self._findings: Any = None
        self.details: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> bool | None:
        """Let go of what is open, if it was not finished."""
        return self._held.__exit__(kind, error, at)

    def add(self, findings: pa.Table) -> None:
        """Write findings down."""
        if self._findings is None:
            sink = self._held.enter_context(self._state.writing(self._path("findings")))
            self._findings = self._held.enter_context(
                pq.ParquetWriter(pa.PythonFile(sink, mode="w"), FINDINGS_SCHEMA, compression="zstd")
            )
        self._findings.write_table(findings)

    def finish(self, result: Result, entry: HourEntry) -> HourResult:
        """Write everything else, then the result; it names what there is."""
        self._held.close()
        unproven = [
            with_group(group.plan.name, pa.table({"sequence": group.unproven}))
            for group in result.groups
        ]
        for name, table in (*tables_of(result), (_UNPROVEN, pa.concat_tables(unproven))):
            if table.num_rows:
                self._state.write_table(self._path(name), table)
        self._state.sync(f"{HOURS}/")
        entry.details = self.details
        found = HourResult(hour=entry, sums=[_sums_of(group) for group in result.groups])
        document = {**report(result), **msgspec.to_builtins(found)}
        self._state.write(f"{HOURS}/{result_name(self._hour)}", encode_report(document))
        return found

    def _path(self, name: str) -> str:
        self.details[name] = f"{self._prefix}{name}.parquet"
        return f"{HOURS}/{self.details[name]}"


def _sums_of(group: GroupResult) -> GroupSums:
    totals = group.account.totals
    sums = GroupSums(
        cluster=group.plan.name.cluster,
        group=group.plan.name.group,
        log_uuid=str(group.plan.node.log_uuid),
        totals={name: count for name, count in sorted(totals.items()) if count},
        deleted=group.plan.deleted,
    )
    for row in group.account.target_lateness.table().to_pylist():
        sums.add_lateness(row["bucket"], row["count"], row[LATEST])
    return sums


def read_unproven(
    state: StateDirectory, entries: Iterable[HourEntry]
) -> dict[GroupName, Sequences]:
    """Return the rows of some hours that may be in another hour as well, by group."""
    found: dict[GroupName, Sequences] = {}
    for entry in entries:
        if _UNPROVEN not in entry.details:
            continue
        table = state.read_table(f"{HOURS}/{entry.details[_UNPROVEN]}")
        groups = table.group_by(list(GroupName._fields)).aggregate([("sequence", "list")])
        for group in groups.to_pylist():
            whose = GroupName(group["cluster"], group["group"])
            sequences = np.array(sorted(group["sequence_list"]), np.int64)
            found.setdefault(whose, Sequences()).add(sequences)
    return found


class IndexFiles:
    """The index of the message_log of one group."""

    def __init__(self, state: StateDirectory, log_uuid: UUID) -> None:
        self._state = state
        self._directory = f"{INDEX}/{log_uuid}"
        state.make_directory(self._directory)

    def read(self) -> LogIndex:
        """Return the index of the message_log as it is so far."""
        index = LogIndex()
        names = self._state.names(self._directory)
        self._remove([name for name in names if name.endswith(".tmp")])
        if _GONE in names:
            table = self._state.read_table(f"{self._directory}/{_GONE}")
            ranges = msgspec.json.decode(
                table.schema.metadata[_GONE_KEY], type=list[tuple[int, int]]
            )
            index.gone, index.gone_hours = ranges, HourDigests.from_table(table)
        for name in names:
            match = _PIECE_NAME.fullmatch(name)
            if match is None:
                continue
            first, after = int(match[1]), int(match[2])
            if any(begin <= first and after <= end for begin, end in index.gone):
                self._remove([name])
                continue
            hours = HourDigests.from_table(self._state.read_table(f"{self._directory}/{name}"))
            index.add(Piece(first=first, after=after, hours=hours))
        return index

    def add(self, piece: Piece) -> None:
        """Keep a piece if it was read whole; others are read again by the next run."""
        if not piece.damages:
            self._state.write_table(f"{self._directory}/{_name(piece)}", piece.hours.table())
            self._state.sync(f"{self._directory}/")

    def retire(self, index: LogIndex, first_sequence: int, since_hour: int) -> None:
        """Keep of pieces that have left the message_log what `LogIndex.retire` keeps."""
        left = [one for one in index.retire(first_sequence, since_hour) if not one.damages]
        if not left:
            return
        ranges = msgspec.json.encode(index.gone)
        table = index.gone_hours.table().replace_schema_metadata({_GONE_KEY: ranges})
        self._state.write_table(f"{self._directory}/{_GONE}", table)
        self._state.sync(f"{self._directory}/")
        self._remove([_name(piece) for piece in left])

    def _remove(self, names: list[str]) -> None:
        self._state.remove(self._directory, names)


def _name(piece: Piece) -> str:
    return f"{piece.first:020d}-{piece.after:020d}.parquet"
