"""A chained file grows by whole batches and forgets failed writes."""

import pytest

from storage.batch.batches import Damage
from storage.batch.chained_file import ChainedFile
from storage.batch.file_header import FILE_HEADER_SIZE
from storage.batch.walk import walk_file
from storage.disk.errors import StorageFullError
from tests.simulation.faults import Action, Trap
from tests.storage.batch_files import HEADER, PATH, draft, numbers, written
from tests.storage.small_segments import segment_disk


def test_batches_are_read_back_in_order_and_chained() -> None:
    disk, file, positions = written()
    assert positions[0] == FILE_HEADER_SIZE
    previous = 0
    for entry, position in zip(walk_file(disk, PATH, file.length, HEADER), positions, strict=True):
        assert not isinstance(entry, Damage)
        assert entry.position == position
        assert entry.header.previous_crc == previous
        previous = entry.header.crc
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


def test_a_closed_file_is_opened_again_by_the_next_append() -> None:
    disk, file, _ = written()
    file.close()
    assert disk.open_files == 0
    file.append([draft(13)])
    assert file.is_open
    assert numbers(disk, file.length) == [1, 4, 7, 10, 13]
