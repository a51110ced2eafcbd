"""Rows keep their bytes, their order and their numbers however they are taken, split and cut."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage.batch.columns import RecordKind, row_size
from storage.batch.entries import SubjectTable
from storage.batch.rows import (
    ROW_COLUMNS_BYTES,
    RowBlock,
    effective_due_ms,
    filed_minutes,
    join_blocks,
    segment_codes,
)
from storage.disk.spans import MINUTE_MS, Span, key_of_code, key_of_minute
from tests.storage.small_segments import rows_of

Row = tuple[int, int, bytes, bytes]


def told(block: RowBlock, table: SubjectTable) -> list[Row]:
    """Return what the block says, row by row."""
    rows = []
    begin = 0
    for place in range(len(block)):
        size = int(block.size[place])
        rows.append(
            (
                int(block.sequence[place]),
                int(block.due_ms[place]),
                table.names[int(block.subject[place])],
                bytes(block.blob[begin : begin + size]),
            )
        )
        begin += size
    assert begin == len(block.blob)
    return rows


def drawn(dues: list[int], sizes: list[int]) -> tuple[RowBlock, SubjectTable]:
    table = SubjectTable()
    subjects = [b"s%d" % (due % 5) for due in dues]
    bodies = [bytes(sizes[place % len(sizes)]) for place in range(len(dues))]
    return rows_of(dues, table, subjects=subjects, bodies=bodies), table


dues = st.lists(st.integers(0, 6000 * MINUTE_MS), min_size=1, max_size=60)
sizes = st.lists(st.integers(0, 300), min_size=1, max_size=8)


@given(dues, sizes, st.integers(0, 100), st.integers(0, 4))
def test_a_split_sends_each_row_to_its_segment_in_order(
    due_ms: list[int], bodies: list[int], hours: int, days: int
) -> None:
    block, table = drawn(due_ms, bodies)
    hour_mark, day_mark = hours * 60, max(days * 1440, hours * 60)
    found: list[Row] = []
    codes = []
    for code, part in block.split_by_segment(hour_mark=hour_mark, day_mark=day_mark):
        codes.append(code)
        key = key_of_code(code)
        assert ((part.minute >= key.start) & (part.minute < key.end)).all()
        assert (np.diff(part.sequence) > 0).all()
        for minute in part.minute.tolist():
            span = Span.MINUTE if minute < hour_mark else Span.HOUR
            assert key == key_of_minute(minute, Span.DAY if minute >= day_mark else span)
        found += told(part, table)
    assert len(codes) == len(set(codes))
    assert sorted(found) == told(block, table)


@given(dues, sizes, st.data())
def test_taking_rows_takes_their_bytes_along(
    due_ms: list[int], bodies: list[int], data: st.DataObject
) -> None:
    block, table = drawn(due_ms, bodies)
    chosen = data.draw(st.sets(st.sampled_from(range(len(block)))))
    rows = np.array(sorted(chosen), np.intp)
    expected = [told(block, table)[row] for row in rows]
    assert told(block.take_or_empty(rows), table) == expected
    above = data.draw(st.integers(0, len(block) + 3))
    assert told(block.above(above), table) == [r for r in told(block, table) if r[0] > above]


@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(1, 900), st.integers(0, 3000)),
        min_size=1,
        max_size=200,
    )
)
def test_pieces_fit_a_batch_whatever_the_mixture_of_subjects_and_sizes(
    shapes: list[tuple[int, int, int]],
) -> None:
    table = SubjectTable()
    subjects = [b"%03d" % number + b"x" * length for number, length, _ in shapes]
    bodies = [bytes(size) for _, _, size in shapes]
    block = rows_of([0] * len(shapes), table, subjects=subjects, bodies=bodies)
    bytes_max, names_bytes_max = 16_384, 2048
    pieces = list(
        block.batches(bytes_max=bytes_max, names_bytes_max=names_bytes_max, subjects=table)
    )
    assert [row for piece in pieces for row in told(piece, table)] == told(block, table)
    for piece in pieces:
        names, index = piece.names(table)
        assert [names[place] for place in index] == [row[2] for row in told(piece, table)]
        if len(piece) > 1:
            assert len(piece.blob) + ROW_COLUMNS_BYTES * len(piece) <= bytes_max
            assert sum(len(name) + 2 for name in names) <= names_bytes_max


def test_a_block_with_more_subjects_than_an_index_can_tell_apart_is_cut() -> None:
    table = SubjectTable()
    numbers = table.numbers([b"%d" % place for place in range(70_000)])
    one = rows_of([0], table, subjects=[b"0"])
    block = RowBlock(
        sequence=np.arange(1, 70_001, dtype=np.int64),
        due_ms=np.zeros(70_000, np.int64),
        id_hash=np.zeros(70_000, np.uint64),
        size=np.full(70_000, len(one.blob), np.uint32),
        subject=numbers,
        origin=np.zeros(70_000, np.uint8),
        minute=np.zeros(70_000, np.int64),
        blob=bytes(one.blob) * 70_000,
    )
    pieces = list(block.batches(bytes_max=1 << 30, names_bytes_max=1 << 30, subjects=table))
    assert len(pieces) > 1
    assert all(len(piece.names(table)[0]) < 65_536 for piece in pieces)


def test_joined_blocks_say_what_their_parts_said() -> None:
    table = SubjectTable()
    parts = [
        rows_of([5, 6], table, first=1, subjects=[b"a", b"b"]),
        rows_of([4], table, first=3, subjects=[b"c"]),
    ]
    assert told(join_blocks(parts), table) == told(parts[0], table) + told(parts[1], table)
    assert join_blocks(parts[:1]) is parts[0]


def test_the_filed_minute_is_never_before_the_floor_and_never_before_the_due_minute() -> None:
    due_ms = np.array([-5, 0, MINUTE_MS - 1, 3 * MINUTE_MS, 9 * MINUTE_MS + 1], np.int64)
    assert filed_minutes(due_ms, 3).tolist() == [3, 3, 3, 3, 9]
    minutes = filed_minutes(due_ms, 3)
    effective = effective_due_ms(due_ms, minutes)
    assert (effective // MINUTE_MS == minutes).all()
    assert effective.tolist() == [3 * MINUTE_MS] * 4 + [9 * MINUTE_MS + 1]
    assert segment_codes(minutes, hour_mark=4, day_mark=1440).tolist() == [
        key_of_minute(3, Span.MINUTE).code
    ] * 4 + [key_of_minute(9, Span.HOUR).code]


def test_what_a_row_weighs_in_the_columns_is_what_the_layout_says() -> None:
    assert row_size(RecordKind.ROWS) == ROW_COLUMNS_BYTES
