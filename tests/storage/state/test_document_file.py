"""A document comes back as it was, or what is wrong with its file is said with its place."""

import random
from uuid import UUID

import pytest

from storage.batch.file_header import FILE_HEADER_SIZE
from storage.disk.disk import Disk
from storage.disk.errors import DamagedError
from storage.state.controls_file import controls_file
from storage.state.document_file import DocumentFile
from storage.state.promise_file import promise_document
from tests.fuzz.memory_disk import MemoryDisk
from tests.seeds import each_seed
from tests.simulation.disk import SimDisk
from tests.simulation.faults import HARSH, Action, PowerCut, Trap

OWNER = UUID(int=7)
KINDS = (controls_file, promise_document)


def document_on(disk: Disk, owner: UUID = OWNER, kind: int = 0) -> DocumentFile:
    return KINDS[kind](disk, owner)


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_a_document_is_replaced_as_a_whole(kind: int) -> None:
    disk = MemoryDisk()
    file = document_on(disk, kind=kind)
    assert file.read() is None
    for document in (b"{}", b"x" * 5000, b""):
        file.write(document)
        assert document_on(disk, kind=kind).read() == document
        assert list(disk.files) == [file.path]


@each_seed(20)
def test_every_flipped_bit_is_found_in_its_part_of_the_file(seed: int) -> None:
    chance = random.Random(seed)
    disk = MemoryDisk()
    file = document_on(disk, kind=seed % len(KINDS))
    file.write(chance.randbytes(100))
    data = disk.files[file.path]
    for at in range(len(data)):
        bit = 1 << chance.randrange(8)
        data[at] ^= bit
        with pytest.raises(DamagedError) as caught:
            file.read()
        assert caught.value.position == (0 if at < FILE_HEADER_SIZE else FILE_HEADER_SIZE)
        data[at] ^= bit
    with pytest.raises(DamagedError, match="another data directory"):
        document_on(disk, UUID(int=8), seed % len(KINDS)).read()


@each_seed(40)
def test_a_power_cut_leaves_the_document_before_or_the_one_that_was_written(seed: int) -> None:
    chance = random.Random(seed)
    disk = SimDisk(chance, plan=HARSH)
    document_on(disk).write(b"before")
    kinds = {"create", "write", "sync", "rename", "sync_directory"}
    disk.arm(Trap(action=Action.POWER_CUT, kinds=kinds, skip=chance.randrange(6)))
    is_done = False
    try:
        document_on(disk).write(b"after")
        is_done = True
        disk.power_cut()
    except PowerCut:
        pass
    found = document_on(disk.revive()).read()
    assert found in ({b"after"} if is_done else {b"before", b"after"})
