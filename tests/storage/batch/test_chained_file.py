"""A chained file grows by whole batches, forgets failed writes, and hops over what is damaged."""

import errno
import random
import zlib
from unittest import mock

import pytest

from storage.batch.batches import Damage
from storage.batch.chained_file import BatchDraft, ChainedFile, read_blob, read_columns
from storage.batch.columns import RecordKind, encode_columns
from storage.batch.entries import SubjectTable
from storage.batch.file_header import FILE_HEADER_SIZE, FileHeader, LogKind, encode_file_header
from storage.disk.errors import (
    DamagedError,
    DataDirectoryError,
    StorageFullError,
    UnsupportedFormatError,
)
from storage.disk.read_ahead import READ_BLOCK_SIZE
from storage.disk.spans import Span
from storage.schedule.segment import Segment, SegmentBatch
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Action, Trap
from tests.storage.small_logs import LOG_UUID, NOW_MS, OTHER_UUID
from tests.storage.small_segments import KEY, delivered, rows_of, segment_disk

PATH = "dispatch_log/20131127T0000Z.minute"
HEADER = FileHeader(
    kind=LogKind.DISPATCH_LOG, log_uuid=LOG_UUID, span=Span.MINUTE, start_minute=23_091_840
)


def draft(number: int, count: int = 3) -> BatchDraft:
    facts = delivered(list(range(number, number + count)))
    return BatchDraft(
        kind=RecordKind.FACTS, base_sequence=number, count=count, columns=facts.encode()
    )


def numbers(disk: SimDisk, length: int, header: FileHeader = HEADER) -> list[int | str]:
    """Return the base sequence of each batch, and the reason of each damage in its place."""
    return [
        found.reason if isinstance(found, Damage) else found[1].base_sequence
        for found in read_columns(disk, PATH, length, header)
    ]


def written(count: int = 4, header: FileHeader = HEADER) -> tuple[SimDisk, ChainedFile, list[int]]:
    disk = segment_disk()
    file = ChainedFile(disk, PATH, header)
    positions = [file.append([draft(number * 3 + 1)])[0][0] for number in range(count)]
    file.file().sync()
    disk.sync_directory("dispatch_log")
    return disk, file, positions


def segment_of_batches(
    disk: SimDisk, count: int
) -> tuple[Segment, SubjectTable, list[int], list[int]]:
    """Return a minute segment of batches with two items each: first sequences and positions."""
    table = SubjectTable()
    segment = Segment.new(disk, LOG_UUID, KEY)
    firsts, positions = [], []
    for number in range(count):
        first = 2 + 2 * number
        positions.append(segment.file.length or FILE_HEADER_SIZE)
        block = rows_of([NOW_MS, NOW_MS + 1], table, first=first, bodies=[bytes(90)] * 2)
        segment.append(block, table, epoch=1, append_ms=NOW_MS)
        firsts.append(first)
    segment.file.file().sync()
    disk.sync_directory("schedule_log")
    return segment, table, firsts, positions


def test_batches_are_read_back_in_order_and_chained() -> None:
    disk, file, positions = written()
    assert positions[0] == FILE_HEADER_SIZE
    found = [entry for entry in read_columns(disk, PATH, file.length, HEADER)]  # noqa: C416
    previous = 0
    for entry, position in zip(found, positions, strict=True):
        assert not isinstance(entry, Damage)
        assert entry[0] == position
        assert entry[1].previous_crc == previous
        previous = entry[1].crc
    assert previous == file.last_crc


def test_several_batches_go_out_in_one_write() -> None:
    disk = segment_disk()
    file = ChainedFile(disk, PATH, HEADER)
    file.append([draft(1), draft(4), draft(7)])
    assert disk.counts["write"] == 1
    assert numbers(disk, file.length) == [1, 4, 7]


def test_an_append_that_finds_no_space_leaves_the_file_as_it_was() -> None:
    for skip in range(2):
        disk, file, _ = written(skip)
        disk.arm(Trap(action=Action.FULL, kinds={"write"}))
        before = (file.length, file.last_crc)
        with pytest.raises(StorageFullError):
            file.append([draft(100, 50)])
        assert (file.length, file.last_crc) == before
        file.append([draft(200)])
        assert numbers(disk, file.length)[skip:] == [200]


def test_what_lies_beyond_the_length_is_cut_and_until_then_not_read() -> None:
    disk, file, positions = written()
    again = ChainedFile(disk, PATH, HEADER, positions[2], 7)
    assert numbers(disk, again.length) == [1, 4]
    again.cut()
    assert len(disk.contents()[PATH]) == positions[2]
    assert file.length > positions[2]


def test_a_batch_with_damaged_columns_is_hopped_over() -> None:
    disk, file, positions = written()
    disk.damage(PATH, positions[1] + 90, b"\xff\xff")
    assert numbers(disk, file.length) == [1, "the batch's columns part fails its CRC", 7, 10]


def test_a_batch_without_a_readable_header_is_hopped_over() -> None:
    disk, file, positions = written()
    disk.damage(PATH, positions[1], b"XXXX")
    assert numbers(disk, file.length) == [1, "no batch begins here", 7, 10]


def test_a_batch_of_other_records_is_damage_though_it_is_intact() -> None:
    disk, file, _ = written(2)
    file.append(
        [
            BatchDraft(
                kind=RecordKind.CANCEL,
                base_sequence=7,
                count=1,
                columns=encode_columns(
                    RecordKind.CANCEL, [], {"old_sequence": [1], "old_minute": [2]}
                ),
            )
        ]
    )
    file.append([draft(8)])
    found = numbers(disk, file.length)
    assert found[:2] == [1, 4]
    assert "CANCEL in a file of DISPATCH_LOG" in str(found[2])
    assert found[3:] == [8]


def test_a_damaged_file_header_does_not_hide_the_batches() -> None:
    disk, file, _ = written()
    disk.damage(PATH, 20, b"\xff")
    assert numbers(disk, file.length) == ["file header fails its CRC", 1, 4, 7, 10]


def test_a_file_that_was_cut_short_is_damage_and_the_rest_is_read() -> None:
    disk, file, positions = written()
    disk.open(PATH).truncate(positions[3])
    assert numbers(disk, file.length) == ["the file is cut short", 1, 4, 7]


def test_a_file_that_cannot_be_read_is_damage() -> None:
    disk, file, _ = written()
    disk.unlink(PATH)
    [reason] = numbers(disk, file.length)
    assert "cannot be read" in str(reason)


def test_the_file_of_another_segment_is_not_taken_for_this_one() -> None:
    disk, file, _ = written()
    other = FileHeader(
        kind=LogKind.DISPATCH_LOG, log_uuid=LOG_UUID, span=Span.HOUR, start_minute=23_091_840
    )
    found = numbers(disk, file.length, other)
    assert found == ["this is the file of minute 23091840", "batch header fails its CRC"]


def test_the_beginning_of_another_file_hides_only_what_it_lies_on() -> None:
    disk, file, positions = written()
    header = FileHeader(
        kind=LogKind.DISPATCH_LOG, log_uuid=LOG_UUID, span=Span.HOUR, start_minute=23_091_840
    )
    disk.damage(PATH, 0, encode_file_header(header) + bytes(100))
    assert positions[1] > 164
    found = numbers(disk, file.length)
    assert [entry for entry in found if isinstance(entry, int)] == [4, 7, 10]


def test_the_file_of_another_log_is_refused() -> None:
    disk, file, _ = written()
    other = FileHeader(
        kind=LogKind.DISPATCH_LOG, log_uuid=OTHER_UUID, span=Span.MINUTE, start_minute=23_091_840
    )
    with pytest.raises(DataDirectoryError, match="must not be mixed"):
        numbers(disk, file.length, other)


def make_newer(disk: SimDisk, file: ChainedFile, position: int) -> None:
    """Give a batch a feature that nobody knows yet."""
    head = bytearray(disk.contents()[PATH][position : position + 80])
    head[8] = 2
    head[76:80] = zlib.crc32(head[:76], file.seed).to_bytes(4, "little")
    disk.damage(PATH, position, bytes(head))


def test_a_batch_of_a_newer_version_is_hopped_over_in_a_segment_and_refused_in_a_journal() -> None:
    disk, file, positions = written()
    make_newer(disk, file, positions[1])
    found = numbers(disk, file.length)
    assert [found[0], *found[2:]] == [1, 7, 10]
    assert "unknown feature bits 0x2" in str(found[1])
    journal = FileHeader(kind=LogKind.DISPATCH_JOURNAL, log_uuid=LOG_UUID, first_sequence=1)
    disk, file, positions = written(header=journal)
    make_newer(disk, file, positions[1])
    with pytest.raises(UnsupportedFormatError, match="unknown feature bits 0x2"):
        numbers(disk, file.length, journal)


def test_a_batch_of_another_segment_is_none_wherever_it_lies() -> None:
    for start, span in ((23_091_841, Span.MINUTE), (23_091_840, Span.HOUR)):
        other = FileHeader(
            kind=LogKind.DISPATCH_LOG, log_uuid=LOG_UUID, span=span, start_minute=start
        )
        strange, _, places = written(header=other)
        disk, file, positions = written()
        assert places == positions
        data = strange.contents()[PATH][places[1] : places[3]]
        disk.damage(PATH, positions[1], data)
        found = numbers(disk, file.length)
        assert [entry for entry in found if isinstance(entry, int)] == [1, 10]


def test_batches_that_were_swapped_are_all_read_and_each_once() -> None:
    disk, file, positions = written(6)
    data = disk.contents()[PATH]
    size = positions[1] - positions[0]
    first, last = data[positions[1] : positions[2]], data[positions[4] : positions[5]]
    assert len(first) == len(last) == size
    disk.damage(PATH, positions[1], last)
    disk.damage(PATH, positions[4], first)
    assert sorted(entry for entry in numbers(disk, file.length) if isinstance(entry, int)) == [
        1,
        4,
        7,
        10,
        13,
        16,
    ]


def test_a_batch_that_was_repeated_over_another_is_read_once_and_reported() -> None:
    disk, file, positions = written(5)
    data = disk.contents()[PATH]
    disk.damage(PATH, positions[3], data[positions[1] : positions[2]])
    found = numbers(disk, file.length)
    assert [entry for entry in found if isinstance(entry, int)] == [1, 4, 7, 13]
    assert "the batch does not follow the one before it" in found


def test_a_sector_that_cannot_be_read_costs_its_batches_only() -> None:
    disk, file, positions = written(60)
    opened = disk.open_read(PATH)

    class BadSector:
        """The file, with an unreadable block."""

        def __init__(self) -> None:
            self.path = PATH

        def size(self) -> int:
            return opened.size()

        def close(self) -> None:
            opened.close()

        def read_at(self, position: int, size: int) -> bytes:
            if position < READ_BLOCK_SIZE < position + size or position == READ_BLOCK_SIZE:
                raise OSError(errno.EIO, "Input/output error")
            return opened.read_at(position, size)

    struck = [place for place in positions if 4096 - 200 < place < 8192]
    with mock.patch.object(disk, "open_read", return_value=BadSector()):
        found = numbers(disk, file.length)
    good = [entry for entry in found if isinstance(entry, int)]
    assert len(positions) - len(struck) <= len(good) < len(positions)
    assert "(the disk cannot read it)" in str(next(entry for entry in found if entry not in good))


def test_the_beginning_of_a_batch_in_a_wrong_place_does_not_hide_the_batch() -> None:
    disk = segment_disk()
    segment, _table, block, positions = segment_of_batches(disk, 4)
    data = disk.contents()[segment.key.path]
    # Header and columns of the third batch, but not its items, over the end of the second.
    head = data[positions[2] : positions[3] - 40]
    at = positions[2] - len(head)
    assert at > positions[1]
    disk.damage(segment.key.path, at, head)
    found = list(segment.read_rows(disk, segment.file.length))
    rows = [row for batch in found if isinstance(batch, SegmentBatch) for row in batch.sequence]
    assert sorted(set(rows)) == sorted(rows)
    place = {batch.header.base_sequence: batch.position
             for batch in found if isinstance(batch, SegmentBatch)}  # fmt: skip
    assert place[int(block[2])] == positions[2]
    assert place[int(block[3])] == positions[3]


def test_a_closed_file_is_opened_again_by_the_next_append() -> None:
    disk, file, _ = written()
    file.close()
    assert disk.open_files == 0
    file.append([draft(13)])
    assert file.is_open
    assert numbers(disk, file.length) == [1, 4, 7, 10, 13]


def test_any_single_flipped_bit_is_noticed() -> None:
    chance = random.Random(1)
    for _ in range(300):
        disk, file, _ = written(2)
        position = chance.randrange(file.length)
        byte = disk.contents()[PATH][position]
        disk.damage(PATH, position, bytes([byte ^ (1 << chance.randrange(8))]))
        found = numbers(disk, file.length)
        assert any(isinstance(entry, str) for entry in found)


def test_a_blob_is_checked_when_it_is_read() -> None:
    disk = segment_disk()
    header = FileHeader(kind=LogKind.DISPATCH_LOG, log_uuid=LOG_UUID)
    file = ChainedFile(disk, PATH, header)
    [(position, batch)] = file.append([draft(1)])
    file.file().sync()
    assert read_blob(disk, batch, position=position, path=PATH, header=header) == b""
    disk.unlink(PATH)
    with pytest.raises(DamagedError, match="cannot be read"):
        read_blob(disk, batch, position=position, path=PATH, header=header)


def test_the_header_of_another_files_first_batch_hides_nothing_behind_it() -> None:
    journal = FileHeader(kind=LogKind.DISPATCH_JOURNAL, log_uuid=LOG_UUID, first_sequence=1)
    disk, file, positions = written(6, header=journal)
    other = segment_disk()
    long = ChainedFile(other, PATH, journal)
    long.append([draft(1, count=20)])
    head = other.contents()[PATH][positions[0] : positions[0] + 100]
    disk.damage(PATH, positions[0], head)
    found = numbers(disk, file.length, journal)
    assert [entry for entry in found if isinstance(entry, int)] == [4, 7, 10, 13, 16]


def test_what_was_written_again_together_with_more_counts_before_an_older_copy_of_it() -> None:
    disk, file, positions = written(3)
    old = segment_disk()
    before = ChainedFile(old, PATH, HEADER)
    for number in range(4):
        before.append([draft(number * 3 + 1)])
    older = old.contents()[PATH][before.length - (positions[1] - positions[0]) :]
    # Facts 10 to 12 were written before a crash, and 10 to 15 at once after it.
    file.append([draft(10, count=6)])
    file.file().sync()
    disk.damage(PATH, positions[1], older)
    found = numbers(disk, file.length)
    assert [entry for entry in found if isinstance(entry, int)] == [1, 7, 10]
    places = [entry[0] for entry in read_columns(disk, PATH, file.length, HEADER)
              if not isinstance(entry, Damage)]  # fmt: skip
    assert max(places) > positions[2]
