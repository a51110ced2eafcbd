"""Findings of one task, as a table, with the message ids of those that can be read."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from spark_tools.files.columns import (
    OUTCOMES,
    Facts,
    Int32s,
    Int64s,
    Mask,
    Places,
    Rows,
    ints,
    sift,
)
from spark_tools.judge.account import FINDINGS_SCHEMA
from spark_tools.judge.tasks import Node
from storage.readers.arrow import ArrowReader, Kind

_IDS = ["sequence", "message_id"]
_LOG = "message_log/"
_AnyArrays = TypeVar("_AnyArrays", Rows, Facts)


class FindingsMaker:
    """Gathers findings, and reads what is to be said of them in one go."""

    def __init__(
        self,
        node: Node,
        subjects: Sequence[str],
        targets: Sequence[str],
        files: Sequence[str],
        lengths: Mapping[str, int],
    ) -> None:
        """subjects, targets, files: the names that numbers stand for; lengths: of files."""
        self._lengths = lengths
        self._node = node
        self._subjects = pa.array(subjects, pa.string())
        self._targets = pa.array(targets, pa.string())
        self._files = pa.array(files, pa.string())
        self._parts: list[pa.Table] = []
        self._wanted: dict[str, list[Int64s]] = {}
        """Sequences by the file in which their items are."""

    @staticmethod
    def nothing() -> pa.Table:
        """Return the table of no findings."""
        return FINDINGS_SCHEMA.empty_table()

    def add_rows(
        self,
        name: str,
        rows: Rows,
        places: Places,
        facts: Facts,
        first_of: Places,
        *,
        note: str | None = None,
    ) -> None:
        """Add rows at these places; first_of: the place of what is known of each, or -1."""
        if len(places):
            self._add(name, rows, places, facts, first_of, is_of_row=True, note=note)

    def add_facts(
        self, name: str, facts: Facts, places: Places, rows: Rows, row_of: Places
    ) -> None:
        """Add facts at these places; row_of: the place of the row of each, or -1."""
        if len(places):
            self._add(name, rows, row_of, facts, places, is_of_row=False, note=None)

    def _add(
        self,
        name: str,
        rows: Rows,
        row_of: Places,
        facts: Facts,
        fact_of: Places,
        *,
        is_of_row: bool,
        note: str | None,
    ) -> None:
        count = len(row_of)
        has_row, has_fact = row_of >= 0, fact_of >= 0
        row = _at(rows, row_of)
        fact = _at(facts, fact_of)
        self._want(row.take(has_row))
        mine, place = (row, has_row) if is_of_row else (fact, has_fact)
        self._parts.append(
            pa.table(
                {
                    "class": _same(name, count),
                    "cluster": _same(self._node.name.cluster, count),
                    "group": _same(self._node.name.group, count),
                    "node": _same(self._node.node_id, count),
                    "sequence": mine.sequence,
                    "message_id": pa.nulls(count, pa.string()),
                    "subject": _named(self._subjects, row.subject, has_row),
                    "due_ms": pa.array(row.due_ms, mask=~has_row),
                    "filed_minute": np.where(has_row, row.minute, fact.minute),
                    "at_ms": pa.array(fact.at_ms, mask=~has_fact),
                    "target": _named(self._targets, fact.target, has_fact),
                    "outcome": _named(_OUTCOMES, fact.outcome.astype(np.int32), has_fact),
                    "file": _named(self._files, mine.file, place),
                    "position": mine.position,
                    "note": _same(note, count),
                },
                schema=FINDINGS_SCHEMA,
            )
        )

    def _want(self, rows: Rows) -> None:
        for number in np.unique(rows.file).tolist():
            path = self._files[number].as_py()
            self._wanted.setdefault(path, []).append(rows.sequence[rows.file == number])

    def table(self) -> pa.Table:
        """Return all findings. Ids that cannot be read are null."""
        if not self._parts:
            return self.nothing()
        table = pa.concat_tables(self._parts)
        sequences, ids = self._ids()
        order = np.argsort(sequences, kind="stable")
        wanted = table["sequence"].to_numpy()
        if not len(order):
            return table
        places = np.searchsorted(sequences[order], wanted)
        places[places == len(order)] = 0
        found = sequences[order][places] == wanted
        column = ids.take(pa.array(order[places], mask=~found))
        return table.set_column(table.schema.get_field_index("message_id"), "message_id", column)

    def _ids(self) -> tuple[Int64s, pa.Array]:
        sequences, ids = [np.empty(0, np.int64)], [pa.array([], pa.string())]
        for path, parts in self._wanted.items():
            wanted = np.unique(np.concatenate(parts))
            reader_kind = Kind.MESSAGE if path.startswith(_LOG) else Kind.SCHEDULE
            reader = ArrowReader(self._node.disk(), self._node.log_uuid, reader_kind, _IDS)
            length = self._lengths[path]
            if reader_kind is Kind.MESSAGE:
                found = reader.messages(
                    path,
                    length=length,
                    first_sequence=int(wanted[0]),
                    next_sequence=int(wanted[-1]) + 1,
                )
            else:
                found = reader.rows(path, length=length)
            for table in sift(found, []):
                chosen = np.isin(ints(table, "sequence"), wanted)
                if chosen.any():
                    sequences.append(ints(table, "sequence")[chosen])
                    ids.append(table.column("message_id").filter(pa.array(chosen)))
        return np.concatenate(sequences), pa.concat_arrays(ids)


_OUTCOMES = pa.array(["unknown", *OUTCOMES], pa.string())


def _at(arrays: _AnyArrays, places: Places) -> _AnyArrays:
    """Return what is at these places, anything where the place is -1."""
    if len(arrays):
        return arrays.take(np.maximum(places, 0))
    return type(arrays).zeros(len(places))


def _same(value: str | None, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), count)


def _named(names: pa.Array, numbers: Int32s, is_there: Mask) -> pa.Array:
    there = is_there & (numbers >= 0)
    return names.take(pa.array(numbers, mask=~there))
