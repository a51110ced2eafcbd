"""Rows, facts and records as parallel arrays of numpy, with names as numbers.

A row takes 49 bytes, a fact 41; what they are made of is read in tables of bounded size
(`storage/readers/arrow.py`) and copied here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.batch.batches import Damage
from storage.batch.facts import Outcome
from storage.batch.rows import Origin

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int8s = npt.NDArray[np.int8]
Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]
_Minutes = TypeVar("_Minutes", int, Int64s)

ROW_COLUMNS = ["sequence", "due_ms", "size", "id_hash", "subject", "origin", "position"]
FACT_COLUMNS = ["sequence", "at_ms", "filed_minute", "target", "outcome", "position"]
RECORD_COLUMNS = [*ROW_COLUMNS, "kind", "filed_minute"]

ORIGINS: Final = ("accepted", "copies", "retries")
"""Names of the origins of rows, by the number of an `Origin`."""
OUTCOMES: tuple[str, ...] = tuple(outcome.name.lower() for outcome in Outcome)
"""Outcome 1 is the first. A number of 0 stands for what this version does not know."""
DELIVERED = int(Outcome.DELIVERED)
MAY_FOLLOW = (0, DELIVERED, int(Outcome.KNOWN))
"""Outcomes that may be told of a message again, each beside the others: a broker was sent it twice.
Any other settles a message once."""


@dataclass(slots=True)
class Names:
    """Names and the numbers that stand for them."""

    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """Return the number of a name, which may be new."""
        return self.numbers.setdefault(name, len(self.numbers))

    def of(self, column: pa.Array) -> Int32s:
        """Return the numbers of a column of names; -1 where there is none."""
        encoded = column.dictionary_encode()
        known = [self.number(name) for name in encoded.dictionary.to_pylist()]
        table = np.array([*known, -1], np.int32)
        numbers: Int32s = table[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        return numbers

    def all(self) -> list[str]:
        """Return the names by number."""
        return list(self.numbers)


@dataclass(slots=True)
class _Arrays:
    """Parallel arrays of the same length."""

    def __len__(self) -> int:
        first: npt.NDArray[Any] = getattr(self, fields(self)[0].name)
        return len(first)

    def take(self, places: Places | Mask) -> Self:
        """Return what is at these places."""
        return type(self)(*(getattr(self, one.name)[places] for one in fields(self)))

    def where(self, chosen: Mask) -> Self:
        """Return what is chosen; this very object if that is all."""
        return self if chosen.all() else self.take(chosen)

    @classmethod
    def zeros(cls, count: int) -> Self:
        """Return so many of zeros."""
        return cls(*(np.zeros(count, _DTYPES.get(one.name, np.int64)) for one in fields(cls)))

    @classmethod
    def empty(cls) -> Self:
        """Return none."""
        return cls.zeros(0)

    @classmethod
    def join(cls, parts: Iterable[Self]) -> Self:
        """Return all parts, one after the other."""
        found = [part for part in parts if len(part)]
        if not found:
            return cls.empty()
        if len(found) == 1:
            return found[0]
        return cls(
            *(np.concatenate([getattr(part, one.name) for part in found]) for one in fields(cls))
        )


_DTYPES: dict[str, type[np.signedinteger[Any]]] = {
    "subject": np.int32,
    "target": np.int32,
    "file": np.int32,
    "size": np.int32,
    "origin": np.int8,
    "outcome": np.int8,
}


@dataclass(slots=True)
class Rows(_Arrays):
    """Messages, wherever they are.

    subject, file: numbers of names; origin: places in ORIGINS; minute: filed.
    """

    sequence: Int64s
    due_ms: Int64s
    minute: Int64s
    id_hash: Int64s
    position: Int64s
    size: Int32s
    subject: Int32s
    file: Int32s
    origin: Int8s


@dataclass(slots=True)
class Facts(_Arrays):
    """What became of messages. target, file: numbers of names; minute: as the fact says."""

    sequence: Int64s
    at_ms: Int64s
    minute: Int64s
    position: Int64s
    target: Int32s
    file: Int32s
    outcome: Int8s


def rows_of(table: pa.RecordBatch, file: int, subjects: Names, minute: Int64s) -> Rows:
    """Return the rows of a table of `ROW_COLUMNS`, at these filed minutes."""
    return Rows(
        sequence=ints(table, "sequence"),
        due_ms=ints(table, "due_ms"),
        minute=minute,
        id_hash=ints(table, "id_hash"),
        position=ints(table, "position"),
        size=ints(table, "size").astype(np.int32),
        subject=subjects.of(table.column("subject")),
        file=np.full(table.num_rows, file, np.int32),
        origin=_numbers_of(table.column("origin"), Origin),
    )


def facts_of(table: pa.RecordBatch, file: int, targets: Names) -> Facts:
    """Return the facts of a table of `FACT_COLUMNS`."""
    return Facts(
        sequence=ints(table, "sequence"),
        at_ms=ints(table, "at_ms"),
        minute=ints(table, "filed_minute"),
        position=ints(table, "position"),
        target=targets.of(table.column("target")),
        file=np.full(table.num_rows, file, np.int32),
        outcome=_numbers_of(table.column("outcome"), Outcome),
    )


def _numbers_of(column: pa.Array, numbers: type[IntEnum]) -> Int8s:
    """Return the numbers of a column of names; 0 for one that this version does not know."""
    encoded = column.dictionary_encode()
    known = {one.name.lower(): one.value for one in numbers}
    table = np.array([known.get(name, 0) for name in encoded.dictionary.to_pylist()], np.int8)
    found: Int8s = table[encoded.indices.to_numpy(zero_copy_only=False)]
    return found


def hour_of(minute: _Minutes) -> _Minutes:
    """Return the first minute of the hour in which a minute, or each of some minutes, lies."""
    return minute // 60 * 60


def ints(table: pa.RecordBatch, name: str) -> Int64s:
    """Return a column of numbers, 0 where there is none."""
    column = table.column(name)
    if column.null_count:
        column = column.fill_null(0)
    found: Int64s = column.to_numpy(zero_copy_only=False)
    return found


def sift(
    found: Iterable[pa.RecordBatch | Damage], damages: list[Damage]
) -> Iterable[pa.RecordBatch]:
    """Yield the tables that a reader finds; what is damaged is added to `damages`."""
    for one in found:
        if isinstance(one, Damage):
            damages.append(one)
        else:
            yield one
