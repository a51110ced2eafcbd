"""Columns come back exactly as they went in, and bytes that do not fit are refused, never bent."""

import struct
from typing import Any

import numpy as np
import pytest

from storage.batch.columns import (
    LAYOUTS,
    ColumnsError,
    RecordKind,
    decode_columns,
    encode_columns,
    row_size,
)

TABLE_COLUMNS = {"subject", "target", "reason"}


def arrays_of(kind: RecordKind, count: int, names: int, seed: int = 0) -> dict[str, Any]:
    chance = np.random.default_rng(seed)
    arrays = {}
    for name, dtype in LAYOUTS[kind]:
        if name in TABLE_COLUMNS:
            arrays[name] = chance.integers(0, names, count).astype(dtype)
        else:
            info = np.iinfo(dtype)
            arrays[name] = chance.integers(info.min, info.max, count, dtype, endpoint=True)
    return arrays


def test_the_layout_is_a_table_of_names_and_then_the_arrays_in_order() -> None:
    data = encode_columns(
        RecordKind.MESSAGE,
        [b"ab", b"c"],
        {
            "subject": np.array([1, 0], "u2"),
            "size": np.array([5, 6], "u4"),
            "due_ms": np.array([-1, 2]),
            "id_hash": np.array([3, 4], "u8"),
        },
    )
    table = struct.pack("<HH2sH1s", 2, 2, b"ab", 1, b"c") + bytes(7)
    assert data == table + struct.pack("<2q2Q2I2H", -1, 2, 3, 4, 5, 6, 1, 0)
    assert len(data) == 16 + 2 * row_size(RecordKind.MESSAGE)


def test_kinds_without_columns_have_an_empty_table_only() -> None:
    for kind in (RecordKind.EPOCH_START, RecordKind.FLOOR):
        assert encode_columns(kind, [], {}) == bytes(8)
        assert decode_columns(kind, 1, bytes(8)).arrays == {}


def test_arrays_stand_widest_first_so_that_each_is_aligned() -> None:
    for layout in LAYOUTS.values():
        widths = [dtype.itemsize for _, dtype in layout]
        assert widths == sorted(widths, reverse=True)


def test_record_kinds_keep_their_numbers() -> None:
    assert {kind.name: kind.value for kind in RecordKind} == {
        "MESSAGE": 1,
        "EPOCH_START": 2,
        "FLOOR": 3,
        "CANCEL": 4,
        "MOVE": 5,
        "DEAD": 6,
        "FACTS": 33,
        "SEALS": 34,
        "ROWS": 35,
    }


def test_an_index_outside_the_table_is_refused_both_ways() -> None:
    facts = arrays_of(RecordKind.FACTS, 3, 2)
    facts["target"] = np.array([0, 1, 2], "u2")
    with pytest.raises(ColumnsError, match="entry 2 of a table of 2"):
        encode_columns(RecordKind.FACTS, [b"a", b"b"], facts)
    encoded = encode_columns(RecordKind.FACTS, [b"a", b"b", b"c"], facts)
    assert encoded[:2] == b"\x03\0"
    two = encode_columns(RecordKind.FACTS, [b"a", b"b"], facts | {"target": [0, 1, 1]})
    index = two.rindex(struct.pack("<3H", 0, 1, 1))
    spoilt = two[: index + 4] + b"\x02\0" + two[index + 6 :]
    with pytest.raises(ColumnsError, match="entry 2 of a table of 2"):
        decode_columns(RecordKind.FACTS, 3, spoilt)


def test_padding_that_is_not_zero_is_refused() -> None:
    data = encode_columns(RecordKind.CANCEL, [b"a"], arrays_of(RecordKind.CANCEL, 1, 1))
    with pytest.raises(ColumnsError, match="padded"):
        decode_columns(RecordKind.CANCEL, 1, data[:7] + b"\1" + data[8:])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"size": [1, -1]}, "does not fit"),
        ({"size": [1, 2**32]}, "does not fit"),
        ({"due_ms": [1, 0.5]}, "does not fit"),
        ({"due_ms": [1]}, "2 rows|1, not 2|not 1 rows"),
        ({"due_ms": [[1], [2]]}, "dimensions"),
        ({"due_ms": None}, "missing"),
        ({"more": [1, 2]}, "columns, not"),
    ],
)
def test_arrays_that_do_not_fit_the_layout_are_refused(change: dict[str, Any], reason: str) -> None:
    arrays = arrays_of(RecordKind.MESSAGE, 2, 1) | change
    with pytest.raises(ColumnsError, match=reason):
        encode_columns(RecordKind.MESSAGE, [b"a"], arrays)


def test_arrays_of_another_width_are_converted_where_nothing_is_lost() -> None:
    arrays = arrays_of(RecordKind.MESSAGE, 2, 1)
    wider = arrays | {"size": arrays["size"].astype("i8"), "subject": [0, 0]}
    encoded = encode_columns(RecordKind.MESSAGE, [b"a"], arrays)
    assert encode_columns(RecordKind.MESSAGE, [b"a"], wider) == encoded


def test_names_beyond_the_table_are_refused() -> None:
    with pytest.raises(ColumnsError, match="a name of 65536 bytes"):
        encode_columns(RecordKind.FLOOR, [bytes(65_536)], {})
    with pytest.raises(ColumnsError, match="65536 names"):
        encode_columns(RecordKind.FLOOR, [b""] * 65_536, {})
