"""A chained file grows by whole batches, forgets failed writes, and hops over what is damaged."""

import random
import zlib

import pytest

from storage.batches import Damage
from storage.chained_file import BatchDraft, ChainedFile, read_blob, read_columns
from storage.columns import RecordKind
from storage.errors import DataDirectoryError, StorageFullError, UnsupportedFormatError
from storage.file_header import FILE_HEADER_SIZE, FileHeader, LogKind
from storage.spans import Span
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Action, Trap
from tests.storage.small_logs import LOG_UUID, OTHER_UUID
from tests.storage.small_segments import delivered, segment_disk

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


def written(count: int = 4) -> tuple[SimDisk, ChainedFile, list[int]]:
    disk = segment_disk()
    file = ChainedFile(disk, PATH, HEADER)
    positions = [file.append([draft(number * 3 + 1)])[0][0] for number in range(count)]
    file.file().sync()
    disk.sync_directory("dispatch_log")
    return disk, file, positions


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
    assert numbers(disk, file.length, other) == ["this is the file of minute 23091840"]


def test_the_file_of_another_log_is_refused() -> None:
    disk, file, _ = written()
    other = FileHeader(
        kind=LogKind.DISPATCH_LOG, log_uuid=OTHER_UUID, span=Span.MINUTE, start_minute=23_091_840
    )
    with pytest.raises(DataDirectoryError, match="must not be mixed"):
        numbers(disk, file.length, other)


def test_a_batch_of_an_unknown_kind_of_feature_is_refused() -> None:
    disk, file, positions = written()
    head = bytearray(disk.contents()[PATH][positions[1] : positions[1] + 80])
    head[8] = 1
    head[76:80] = zlib.crc32(head[:76], file.seed).to_bytes(4, "little")
    disk.damage(PATH, positions[1], bytes(head))
    with pytest.raises(UnsupportedFormatError, match="unknown feature bits 0x1"):
        numbers(disk, file.length)


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
    view = disk.map(PATH)
    assert read_blob(view, batch, position=position, path=PATH, header=header) == b""
