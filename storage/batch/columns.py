"""The columns of a batch: its own table of names, then one fixed-width array per field.

    0        2          4
    +--------+----------+- - - - -+   +- - - - -+------------------+------------------+- -
    | names  | length 1 | name 1  |...| 0 to 7  | array 1          | array 2          |
    | u16    | u16      | bytes   |   | zeros   | count * its width| count * its width|
    +--------+----------+- - - - -+   +- - - - -+------------------+------------------+- -

The table is padded with zeros to a multiple of 8; arrays follow each other without gaps, widest
first, so that each begins on a multiple of its own width. All numbers are little-endian. Which
arrays there are, and in which order, is told by the record kind alone (LAYOUTS).
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.disk.disk import Bytes

Array = npt.NDArray[Any]
"""A column. Which dtype it has is told by LAYOUTS, not by the type."""


class RecordKind(IntEnum):
    """What the records of a batch are. Numbers are on disk for good: never reuse one."""

    MESSAGE = 1
    """message_log: accepted messages."""
    EPOCH_START = 2
    """message_log: the first record of an epoch, whose number is in the batch header."""
    FLOOR = 3
    """message_log: nothing but the batch header's floor minute."""
    CANCEL = 4
    """message_log: an older message is not to be delivered."""
    MOVE = 5
    """message_log: an older message is replaced by the item in this record."""
    DEAD = 6
    """message_log: an older message was given up; carries its item."""
    FACTS = 33
    """message_log, and filed from there in the dispatch_log: what became of messages."""
    SEALS = 34
    """seals log: segments that are complete."""
    ROWS = 35
    """schedule_log segment: messages filed under one span of minutes, or given up on one day.

    32 was such a row without its origin.
    """


_I8, _U8, _U4 = np.dtype("<i8"), np.dtype("<u8"), np.dtype("<u4")
_U2, _U1 = np.dtype("<u2"), np.dtype("<u1")

_ITEM = (
    ("due_ms", _I8),
    ("id_hash", _U8),
    ("size", _U4),
)

Layout = tuple[tuple[str, np.dtype[Any]], ...]

LAYOUTS: Mapping[RecordKind, Layout] = {
    RecordKind.MESSAGE: (*_ITEM, ("subject", _U2)),
    RecordKind.EPOCH_START: (),
    RecordKind.FLOOR: (),
    RecordKind.CANCEL: (("old_sequence", _I8), ("old_minute", _U4)),
    RecordKind.MOVE: (("old_sequence", _I8), *_ITEM, ("old_minute", _U4), ("subject", _U2)),
    RecordKind.DEAD: (
        ("old_sequence", _I8),
        *_ITEM,
        ("old_minute", _U4),
        ("subject", _U2),
        ("reason", _U2),
    ),
    RecordKind.ROWS: (("sequence", _I8), *_ITEM, ("subject", _U2), ("origin", _U1)),
    RecordKind.FACTS: (
        ("sequence", _I8),
        ("at_ms", _I8),
        ("minute", _U4),
        ("target", _U2),
        ("outcome", _U1),
    ),
    RecordKind.SEALS: (
        ("rows", _I8),
        ("distinct", _I8),
        ("last_sequence", _I8),
        ("length", _I8),
        ("facts_length", _I8),
        ("digest_0", _U8),
        ("digest_1", _U8),
        ("facts_digest_0", _U8),
        ("facts_digest_1", _U8),
        ("delivered", _I8),
        ("known", _I8),
        ("dead", _I8),
        ("cancelled", _I8),
        ("moved", _I8),
        ("expired", _I8),
        ("dropped", _I8),
        ("sealed_ms", _I8),
        ("start_minute", _U4),
        ("span", _U1),
        ("reserved", _U1),
        ("deleted", _U1),
    ),
}
"""The arrays of each record kind, in the order they have on disk."""

KINDS_WITH_ITEMS = frozenset(
    {RecordKind.MESSAGE, RecordKind.MOVE, RecordKind.DEAD, RecordKind.ROWS}
)
"""Kinds whose batches have a blob; their `size` column adds up to its length."""

TABLE_COLUMNS: Mapping[RecordKind, tuple[str, ...]] = {
    RecordKind.MESSAGE: ("subject",),
    RecordKind.MOVE: ("subject",),
    RecordKind.DEAD: ("subject", "reason"),
    RecordKind.ROWS: ("subject",),
    RecordKind.FACTS: ("target",),
}
"""The columns that hold indexes into the batch's table of names."""

_ROW_SIZES = {kind: sum(dtype.itemsize for _, dtype in LAYOUTS[kind]) for kind in RecordKind}
_U16 = struct.Struct("<H")
_NO_NAMES = bytes(8)
NAMES_MAX = 65_535
NAME_SIZE_MAX = 65_535


class ColumnsError(ValueError):
    """The columns do not fit their record kind, their count or each other."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The decoded columns of one batch.

    names: the batch's own table; arrays: one read-only array of `count` per column, by name. The
    arrays are views of the bytes that were decoded and keep them alive.
    """

    names: list[bytes]
    arrays: dict[str, Array]


def row_size(kind: RecordKind) -> int:
    """Return the bytes one record takes in the columns of its kind (the table of names aside)."""
    return _ROW_SIZES[kind]


def encode_columns(
    kind: RecordKind, names: Sequence[bytes], arrays: Mapping[str, npt.ArrayLike]
) -> bytes:
    """Return the columns part of a batch; ColumnsError if names, arrays and kind do not fit.

    An array of another dtype is converted where every value keeps its meaning.
    """
    layout = LAYOUTS[kind]
    if len(arrays) != len(layout):
        raise ColumnsError(f"{kind.name} has {len(layout)} columns, not {sorted(arrays)}")
    parts: list[bytes | memoryview] = [_encode_names(names)]
    length: int | None = None
    for name, dtype in layout:
        array = _as_column(kind, name, dtype, arrays)
        if length is None:
            length = len(array)
        elif len(array) != length:
            raise ColumnsError(f"column {name} of {kind.name} has {len(array)}, not {length} rows")
        parts.append(array.data)
        if name in TABLE_COLUMNS.get(kind, ()):
            _check_indexes(name, array, len(names))
    return b"".join(parts)


def decode_columns(kind: RecordKind, count: int, data: Bytes) -> Columns:
    """Return the columns of `count` records; ColumnsError unless `data` is exactly that."""
    names, position = _decode_names(data)
    expected = position + count * _ROW_SIZES[kind]
    if len(data) != expected:
        raise ColumnsError(f"columns of {len(data)} bytes where {count} rows need {expected}")
    arrays: dict[str, Array] = {}
    for name, dtype in LAYOUTS[kind]:
        array: Array = np.frombuffer(data, dtype, count, position)
        array.flags.writeable = False
        arrays[name] = array
        position += count * dtype.itemsize
    for column in TABLE_COLUMNS.get(kind, ()):
        _check_indexes(column, arrays[column], len(names))
    return Columns(names, arrays)


def _as_column(
    kind: RecordKind,
    name: str,
    dtype: np.dtype[Any],
    arrays: Mapping[str, npt.ArrayLike],
) -> Array:
    given = arrays.get(name)
    if given is None:
        raise ColumnsError(f"column {name} of {kind.name} is missing")
    array: Array = np.asarray(given)
    if array.ndim != 1:
        raise ColumnsError(f"column {name} of {kind.name} has {array.ndim} dimensions")
    if array.dtype != dtype:
        converted = array.astype(dtype)
        if not np.array_equal(converted, array):
            raise ColumnsError(f"column {name} of {kind.name} does not fit {dtype}")
        array = converted
    return np.ascontiguousarray(array)


def _check_indexes(column: str, array: Array, names: int) -> None:
    if len(array) and int(array.max()) >= names:
        raise ColumnsError(f"column {column} names entry {array.max()} of a table of {names}")


def _encode_names(names: Sequence[bytes]) -> bytes:
    if not names:
        return _NO_NAMES
    if len(names) > NAMES_MAX:
        raise ColumnsError(f"{len(names)} names in one batch, at most {NAMES_MAX}")
    parts = [_U16.pack(len(names))]
    for name in names:
        if len(name) > NAME_SIZE_MAX:
            raise ColumnsError(f"a name of {len(name)} bytes, at most {NAME_SIZE_MAX}")
        parts += (_U16.pack(len(name)), name)
    table = b"".join(parts)
    return table + bytes(-len(table) % 8)


def _decode_names(data: Bytes) -> tuple[list[bytes], int]:
    """Return the table of names and the position behind its padding."""
    if len(data) < len(_NO_NAMES):
        raise ColumnsError(f"columns of {len(data)} bytes have no table of names")
    unpack, end = _U16.unpack_from, len(data)
    (count,) = unpack(data)
    position = 2
    names = []
    for _ in range(count):
        begin = position + 2
        if begin > end:
            raise ColumnsError("the table of names runs over the columns")
        position = begin + unpack(data, position)[0]
        names.append(bytes(data[begin:position]))
    padded = position + -position % 8
    if padded > len(data):
        raise ColumnsError("the table of names runs over the columns")
    if any(data[position:padded]):
        raise ColumnsError("the table of names is not padded with zeros")
    return names, padded
