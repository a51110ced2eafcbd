"""The walk yields every batch that lies where it belongs, and tells of all else as damage."""

import random
import zlib

import pytest

from storage.batch.batches import HEADER_SIZE, Damage
from storage.batch.chained_file import BatchDraft, ChainedFile
from storage.batch.columns import RecordKind, encode_columns
from storage.batch.entries import SubjectTable
from storage.batch.file_header import FILE_HEADER_SIZE, FileHeader, LogKind, encode_file_header
from storage.batch.walk import walk_file, walk_headers
from storage.disk.errors import DamagedError, DataDirectoryError, UnsupportedFormatError
from storage.disk.spans import Span
from storage.schedule.segment import Segment
from tests.fuzz.memory_disk import MemoryDisk
from tests.seeds import each_seed
from tests.simulation.disk import SimDisk
from tests.storage.batch_files import HEADER, PATH, draft, numbers, written
from tests.storage.small_logs import LOG_UUID, NOW_MS, OTHER_UUID
from tests.storage.small_segments import KEY, rows_of, segment_disk


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


def good(found: list[int | str]) -> list[int]:
    """Return the batches among what was found."""
    return [entry for entry in found if isinstance(entry, int)]


def make_newer(disk: SimDisk, file: ChainedFile, position: int) -> None:
    """Give a batch a feature that nobody knows yet."""
    head = bytearray(disk.contents()[PATH][position : position + 80])
    head[8] = 2
    head[76:80] = zlib.crc32(head[:76], file.seed).to_bytes(4, "little")
    disk.damage(PATH, position, bytes(head))


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
    assert good(found) == [4, 7, 10]


def test_the_file_of_another_log_is_refused() -> None:
    disk, file, _ = written()
    other = FileHeader(
        kind=LogKind.DISPATCH_LOG, log_uuid=OTHER_UUID, span=Span.MINUTE, start_minute=23_091_840
    )
    with pytest.raises(DataDirectoryError, match="must not be mixed"):
        numbers(disk, file.length, other)


def test_a_batch_of_a_newer_version_is_hopped_over_in_a_segment_and_refused_in_a_log() -> None:
    disk, file, positions = written()
    make_newer(disk, file, positions[1])
    found = numbers(disk, file.length)
    assert [found[0], *found[2:]] == [1, 7, 10]
    assert "unknown feature bits 0x2" in str(found[1])
    log = FileHeader(kind=LogKind.MESSAGE_LOG, log_uuid=LOG_UUID, first_sequence=1)
    disk, file, positions = written(header=log)
    make_newer(disk, file, positions[1])
    with pytest.raises(UnsupportedFormatError, match="unknown feature bits 0x2"):
        numbers(disk, file.length, log)


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
        assert good(found) == [1, 10]


@pytest.mark.parametrize(
    ("place", "source", "left"), [(3, 1, [1, 4, 7, 13]), (1, 3, [1, 7, 10, 13])]
)
def test_a_batch_that_was_repeated_over_another_is_read_once_and_reported(
    place: int, source: int, left: list[int]
) -> None:
    disk, file, positions = written(5)
    data = disk.contents()[PATH]
    disk.damage(PATH, positions[place], data[positions[source] : positions[source + 1]])
    found = numbers(disk, file.length)
    assert good(found) == left
    assert "the batch does not follow the one before it" in found


def test_any_single_flipped_bit_is_noticed() -> None:
    chance = random.Random(1)
    for _ in range(300):
        disk, file, _ = written(2)
        position = chance.randrange(file.length)
        byte = disk.contents()[PATH][position]
        disk.damage(PATH, position, bytes([byte ^ (1 << chance.randrange(8))]))
        found = numbers(disk, file.length)
        assert any(isinstance(entry, str) for entry in found)


def test_the_header_of_another_files_first_batch_hides_nothing_behind_it() -> None:
    log = FileHeader(kind=LogKind.MESSAGE_LOG, log_uuid=LOG_UUID, first_sequence=1)
    disk, file, positions = written(6, header=log)
    other = segment_disk()
    long = ChainedFile(other, PATH, log)
    long.append([draft(1, count=20)])
    head = other.contents()[PATH][positions[0] : positions[0] + 100]
    disk.damage(PATH, positions[0], head)
    found = numbers(disk, file.length, log)
    assert good(found) == [4, 7, 10, 13, 16]


def test_a_blob_is_checked_when_it_is_read() -> None:
    disk = segment_disk()
    segment, _, _, positions = segment_of_batches(disk, 2)
    file = segment.file
    disk.damage(file.path, positions[1] - 1, b"\xff")
    walk = walk_file(disk, file.path, file.length, file.header)
    first = next(walk)
    assert not isinstance(first, Damage)
    with pytest.raises(DamagedError, match="the batch's blob part fails its CRC") as caught:
        first.blob()
    assert (caught.value.path, caught.value.position) == (file.path, positions[0])
    second = next(walk)
    assert not isinstance(second, Damage)
    assert len(second.blob()) == second.header.blob_raw_size
    assert list(walk) == []


def test_a_walk_over_headers_ends_at_the_first_thing_irregular() -> None:
    disk, file, positions = written(5)
    seen = list(walk_headers(disk, PATH, file.length, HEADER))
    assert [getattr(one, "base_sequence", one) for one in seen] == [1, 4, 7, 10, 13]
    disk.damage(PATH, positions[2], b"XXXX")
    *seen, damage = walk_headers(disk, PATH, file.length, HEADER)
    assert [getattr(one, "base_sequence", one) for one in seen] == [1, 4]
    assert isinstance(damage, Damage)
    data = disk.contents()[PATH]
    disk.damage(PATH, positions[1], data[positions[3] : positions[4]])
    *seen, damage = walk_headers(disk, PATH, file.length, HEADER)
    assert [getattr(one, "base_sequence", one) for one in seen] == [1]
    assert isinstance(damage, Damage)
    assert damage.reason == "the batch does not follow the one before it"
    disk.unlink(PATH)
    [damage] = walk_headers(disk, PATH, file.length, HEADER)
    assert isinstance(damage, Damage)


BLOCK_SIZES = (512, 4096)


def random_file(chance: random.Random) -> tuple[SimDisk, ChainedFile, dict[int, tuple[int, bytes]]]:
    """Return a file of batches of many sizes: of each by number where it lies, and its columns."""
    disk = segment_disk()
    file = ChainedFile(disk, PATH, HEADER)
    most = chance.choice([2, 6, 10])
    batches = {}
    number = 1
    for _ in range(chance.randrange(12, 150)):
        count = chance.randint(1, most)
        [(position, _)] = file.append([part := draft(number, count)])
        batches[number] = position, part.columns
        number += count
    file.file().sync()
    disk.sync_directory("dispatch_log")
    return disk, file, batches


def swap(data: bytearray, chance: random.Random) -> None:
    """Swap two blocks."""
    size = chance.choice([size for size in BLOCK_SIZES if 2 * size <= len(data)])
    count = len(data) // size
    first, second = (place * size for place in chance.sample(range(count), 2))
    held = data[first : first + size]
    data[first : first + size] = data[second : second + size]
    data[second : second + size] = held


def spoil(data: bytearray, before: bytes, chance: random.Random) -> None:
    """Do something else to the bytes of a file, of which there were others before."""
    size = chance.choice(BLOCK_SIZES)
    place = chance.randrange(len(data) // size + 1) * size
    match chance.randrange(4):
        case 0:
            data[place : place + size] = bytes(len(data[place : place + size]))
        case 1:
            source = chance.randrange(len(before) // size + 1) * size
            data[place : place + size] = before[source : source + len(data[place : place + size])]
        case 2:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case 3:
            del data[chance.randrange(len(data) // 2, len(data)) + 1 :]


def walked(file: ChainedFile, data: bytes) -> dict[int, bytes]:
    """Return the columns of each batch that the walk yields, having checked how it does."""
    disk = MemoryDisk({PATH: data})
    found: dict[int, bytes] = {}
    position = records = 0
    for one in walk_file(disk, PATH, file.length, HEADER):
        if isinstance(one, Damage):
            assert 0 <= one.position <= file.length
            continue
        assert one.position >= position, "batches come as they lie"
        assert one.records.start >= records, "records ascend, and none comes twice"
        position, records = one.position + one.header.size, one.records.stop
        begin = one.position + HEADER_SIZE
        found[one.header.base_sequence] = data[begin : one.position + one.header.blob_offset]
    return found


@each_seed(300)
def test_whatever_strikes_nothing_is_wrong_or_comes_twice(seed: int) -> None:
    chance = random.Random(seed)
    disk, file, batches = random_file(chance)
    before = disk.contents()[PATH]
    data = bytearray(before)
    for _ in range(chance.randint(1, 6)):
        if chance.random() < 0.5 and len(data) >= 2 * BLOCK_SIZES[0]:
            swap(data, chance)
        else:
            spoil(data, before, chance)
    for number, columns in walked(file, bytes(data)).items():
        assert columns == batches[number][1]
