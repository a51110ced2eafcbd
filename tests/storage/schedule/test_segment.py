"""A segment keeps rows and facts, knows what it holds, and tells where each item lies."""

from collections.abc import Iterator

import numpy as np
import pytest

from storage.batch.batches import BATCH_BYTES_MAX, Codec, Damage
from storage.batch.entries import SubjectTable
from storage.batch.facts import FactBlock
from storage.disk.errors import DamagedError, StorageFullError
from storage.disk.spans import MINUTE_MS, SegmentKey, Span, key_of_minute
from storage.schedule.segment import Segment, SegmentBatch
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Action, Trap
from tests.storage.qmq_items import qmq_item
from tests.storage.small_logs import LOG_UUID, NOW_MS
from tests.storage.small_segments import (
    KEY,
    delivered,
    example_files,
    example_segment,
    rows_of,
    segment_disk,
)
from tests.storage.worked_examples import worked_examples


def made(key: SegmentKey = KEY) -> tuple[SimDisk, Segment, SubjectTable]:
    disk = segment_disk()
    return disk, Segment.new(disk, LOG_UUID, key), SubjectTable()


def batches_of(disk: SimDisk, segment: Segment) -> list[SegmentBatch]:
    return list(reading(disk, segment))


def reading(disk: SimDisk, segment: Segment) -> Iterator[SegmentBatch]:
    """Yield the batches; of each the blob can be read while it stands there."""
    for batch in segment.read_rows(disk, segment.file.length):
        assert isinstance(batch, SegmentBatch)
        yield batch


def test_rows_come_back_with_their_bytes_and_positions() -> None:
    disk, segment, table = made()
    dues = [NOW_MS + place for place in range(100)]
    subjects = [b"s%d" % (place % 7) for place in range(100)]
    block = rows_of(dues, table, subjects=subjects)
    positions = segment.append(block, table, epoch=1, append_ms=NOW_MS).positions
    assert (segment.rows, segment.last_sequence, segment.earliest_due_ms) == (100, 101, NOW_MS)
    [batch] = batches_of(disk, segment)
    assert batch.item_positions().tolist() == positions.tolist()
    data = disk.contents()[KEY.path]
    for position, size, due, subject, sequence in zip(
        positions.tolist(), block.size.tolist(), dues, subjects, block.sequence, strict=True
    ):
        item = qmq_item(due, subject, b"UA-%d" % (1521 + sequence))
        assert data[position : position + size] == item
    other = SubjectTable()
    other.number(b"not first here")
    again = next(reading(disk, segment)).rows(other)
    assert bytes(again.blob) == bytes(block.blob)
    assert [other.names[number] for number in again.subject.tolist()] == subjects
    assert again.minute.tolist() == [KEY.start] * 100


def test_more_than_a_batch_holds_becomes_several() -> None:
    disk, segment, table = made()
    bodies = [bytes(100_000)] * 100
    block = rows_of([NOW_MS] * 100, table, bodies=bodies)
    positions = segment.append(block, table, epoch=1, append_ms=NOW_MS).positions
    batches = batches_of(disk, segment)
    assert len(batches) == 3
    assert all(batch.header.size <= BATCH_BYTES_MAX for batch in batches)
    assert np.concatenate([batch.item_positions() for batch in batches]).tolist() == [*positions]
    assert disk.counts["write"] == 1


@pytest.mark.parametrize("span", [Span.HOUR, Span.DAY])
def test_a_coarse_segment_is_compressed_and_tells_each_rows_own_minute(span: Span) -> None:
    disk, segment, table = made(key_of_minute(KEY.start, span))
    dues = [NOW_MS + MINUTE_MS * place for place in range(0, span.minutes, 7)]
    block = rows_of(dues, table, bodies=[bytes(1000)] * len(dues))
    segment.append(block, table, epoch=1, append_ms=NOW_MS)
    batch = next(batches := reading(disk, segment))
    assert batch.header.codec is Codec.LZ4
    assert batch.minutes().tolist() == [due // MINUTE_MS for due in dues]
    assert bytes(batch.rows(table).blob) == bytes(block.blob)
    assert list(batches) == []


def test_a_row_due_before_its_minute_is_loaded_at_its_minutes_start() -> None:
    disk, segment, table = made()
    block = rows_of([NOW_MS - 500_000, NOW_MS + 7], table, floor_minute=KEY.start)
    segment.append(block, table, epoch=1, append_ms=NOW_MS)
    [batch] = batches_of(disk, segment)
    assert batch.effective_due_ms().tolist() == [NOW_MS, NOW_MS + 7]
    assert segment.earliest_due_ms == NOW_MS - 500_000
    assert segment.earliest_effective_ms == NOW_MS


def test_its_state_makes_it_again() -> None:
    disk = segment_disk()
    segment = example_segment(disk)
    again = Segment.of_state(disk, LOG_UUID, segment.state())
    assert again.state() == segment.state()
    assert again.pending == 0
    table = SubjectTable()
    again.append(rows_of([NOW_MS + 1], table, first=9), table, epoch=1, append_ms=NOW_MS)
    assert [batch.sequence.tolist() for batch in batches_of(disk, again)] == [[2], [9]]


def test_an_append_that_finds_no_space_changes_nothing() -> None:
    disk, segment, table = made()
    segment.append(rows_of([NOW_MS], table), table, epoch=1, append_ms=NOW_MS)
    segment.append_facts(delivered([2]), epoch=1, append_ms=NOW_MS)
    before = segment.state()
    disk.arm(*[Trap(action=Action.FULL, kinds={"write"})] * 2)
    with pytest.raises(StorageFullError):
        segment.append(rows_of([NOW_MS], table, first=3), table, epoch=1, append_ms=NOW_MS)
    with pytest.raises(StorageFullError):
        segment.append_facts(delivered([3]), epoch=1, append_ms=NOW_MS)
    assert segment.state() == before


def test_facts_come_back_and_can_be_forgotten() -> None:
    disk, segment, _ = made()
    segment.append_facts(delivered([2, 3], first_record=7), epoch=1, append_ms=NOW_MS)
    assert segment.state().last_fact == 8
    segment.append_facts(delivered([5], first_record=12), epoch=1, append_ms=NOW_MS)
    assert (segment.state().last_fact, segment.facts) == (12, 3)
    found = [block for block in segment.read_facts(disk) if isinstance(block, FactBlock)]
    assert [block.sequence.tolist() for block in found] == [[2, 3], [5]]
    segment.forget_facts()
    assert (segment.state().last_fact, segment.facts) == (0, 0)
    assert list(segment.read_facts(disk)) == []


def test_more_facts_than_a_batch_holds_become_several_batches() -> None:
    disk, segment, _ = made()
    segment.append_facts(delivered(list(range(250_000))), epoch=1, append_ms=NOW_MS)
    found = [block for block in segment.read_facts(disk) if isinstance(block, FactBlock)]
    assert [len(block) for block in found] == [100_000, 100_000, 50_000]
    assert segment.facts == 250_000


def test_rows_with_a_damaged_blob_are_not_handed_out() -> None:
    disk, segment, table = made(key_of_minute(KEY.start, Span.DAY))
    segment.append(rows_of([NOW_MS] * 9, table), table, epoch=1, append_ms=NOW_MS)
    segment.file.file().sync()
    path = segment.key.path
    disk.damage(path, segment.file.length - 10, b"\xff\xff\xff")
    batch = next(reading(disk, segment))
    with pytest.raises(DamagedError, match="blob") as caught:
        batch.rows(table)
    assert (caught.value.path, caught.value.position) == (path, 64)


def test_a_segment_without_a_file_has_nothing_to_read() -> None:
    disk, segment, _ = made()
    assert list(segment.read_rows(disk, 0)) == []
    assert list(segment.read_facts(disk)) == []
    segment.file.length = 100
    [damage] = segment.read_rows(disk, 100)
    assert isinstance(damage, Damage)


def test_the_worked_example_is_what_the_code_writes() -> None:
    assert worked_examples("schedule_log.md") == [example_files()["schedule_log.md"]]
