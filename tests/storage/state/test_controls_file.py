"""The document of controls comes back as it was, or what is wrong is said with its place."""

import random
from uuid import UUID

import pytest

from storage.batch.file_header import FILE_HEADER_SIZE
from storage.disk.errors import DamagedError
from storage.state.controls_file import (
    CONTROLS_PATH,
    read_controls_document,
    write_controls_document,
)
from tests.fuzz.memory_disk import MemoryDisk
from tests.seeds import each_seed

LOG = UUID(int=7)


def test_a_document_is_replaced_as_a_whole() -> None:
    disk = MemoryDisk()
    assert read_controls_document(disk, LOG) is None
    for document in (b"{}", b"x" * 5000, b""):
        write_controls_document(disk, LOG, document)
        assert read_controls_document(disk, LOG) == document
        assert list(disk.files) == [CONTROLS_PATH]


@each_seed(20)
def test_every_flipped_bit_is_found_in_its_part_of_the_file(seed: int) -> None:
    chance = random.Random(seed)
    disk = MemoryDisk()
    write_controls_document(disk, LOG, chance.randbytes(100))
    for at in range(len(disk.files[CONTROLS_PATH])):
        bit = 1 << chance.randrange(8)
        disk.files[CONTROLS_PATH][at] ^= bit
        with pytest.raises(DamagedError) as caught:
            read_controls_document(disk, LOG)
        assert caught.value.position == (0 if at < FILE_HEADER_SIZE else FILE_HEADER_SIZE)
        disk.files[CONTROLS_PATH][at] ^= bit
    with pytest.raises(DamagedError, match="another data directory"):
        read_controls_document(disk, UUID(int=8))
