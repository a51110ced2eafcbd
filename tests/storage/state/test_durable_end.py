"""The durable end survives a power cut at any moment, and never says less than its last sync."""

import random
import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.batch.batches import log_seed
from storage.batch.file_header import LogKind
from storage.disk.errors import (
    DamagedError,
    DataDirectoryError,
    StorageFullError,
    UnsupportedFormatError,
)
from storage.state.durable_end import (
    COUNTER_BASE,
    SLOT_POSITIONS,
    SLOT_SIZE,
    DurableEnd,
    DurableEndFile,
    decode_slot,
    encode_slot,
)
from tests.seeds import seeds_in_parts
from tests.simulation.disk import SimDisk
from tests.simulation.faults import HARSH, Action, FaultPlan, PowerCut, Trap
from tests.storage.small_logs import LOG_UUID, OTHER_UUID, disk_of, flipped, new_disk
from tests.storage.worked_examples import worked_examples

PATH = "message_log/durable_end"
TORN = FaultPlan(lose_writes=1, tear=1, flip_bits=1)


def end_at(sequence: int) -> DurableEnd:
    return DurableEnd(
        next_sequence=sequence,
        file_sequence=1,
        position=64 + 100 * sequence,
        last_crc=sequence * 7,
        epoch=1,
        floor_minute=23_091_840,
    )


def opened(disk: SimDisk) -> DurableEndFile:
    return DurableEndFile(disk, "message_log", log_uuid=LOG_UUID)


def small_disk(seed: int = 0) -> SimDisk:
    disk = new_disk(seed)
    disk.make_directory("message_log")
    disk.sync_directory("")
    return disk


def synced_twice() -> bytes:
    """Return a file whose slots hold the ends at 5 and, newer, at 9."""
    disk = small_disk()
    file = opened(disk)
    for sequence in (5, 9):
        file.write(end_at(sequence))
        file.sync()
    return disk.contents(durable=True)[PATH]


def test_there_is_no_end_before_the_first_write_which_leaves_it_durable_in_both_slots() -> None:
    disk = small_disk()
    file = opened(disk)
    assert file.read() is None
    file.write(end_at(5))
    assert file.synced
    data = disk.contents(durable=True)[PATH]
    found = [
        decode_slot(data[position : position + 512], log_uuid=LOG_UUID, path=PATH, position=0)
        for position in SLOT_POSITIONS
    ]
    assert found == [(COUNTER_BASE + 2, end_at(5)), (COUNTER_BASE + 1, end_at(5))]


@pytest.mark.parametrize(
    ("data", "position", "reason"),
    [
        (b"", 0, "the file ends after 0 bytes of 1024"),
        (bytes(1024), 0, "both slots are all zeros"),
        (bytes(100), 100, "the file ends after 100 bytes"),
        (b"nonsense" * 128, 0, "no durable end is in this slot"),
    ],
)
def test_a_file_without_an_end_is_damage_and_made_anew(
    data: bytes, position: int, reason: str
) -> None:
    disk = disk_of({PATH: data})
    file = opened(disk)
    with pytest.raises(DamagedError, match=reason) as caught:
        file.read()
    assert caught.value.position == position
    file.write(end_at(7))
    assert len(disk.contents(durable=True)[PATH]) == 1024
    again = opened(disk)
    assert again.read() == end_at(7)
    assert again.missing is None


@pytest.mark.parametrize("size", [SLOT_SIZE, 511, 512, 600, 1023])
def test_a_file_that_was_cut_short_may_have_had_a_newer_end(size: int) -> None:
    disk = disk_of({PATH: synced_twice()[:size]})
    file = opened(disk)
    assert file.read() == end_at(5 if size < 592 else 9)
    assert file.missing is not None
    assert file.missing.position == size
    file.write(end_at(11))
    assert len(disk.contents(durable=True)[PATH]) == 1024
    again = opened(disk)
    assert (again.read(), again.missing) == (end_at(11), None)


def test_slots_lie_in_different_sectors() -> None:
    assert SLOT_POSITIONS == (0, 512)
    assert len(synced_twice()) == 1024


def test_any_flipped_bit_of_a_slot_leaves_the_other_one() -> None:
    data = synced_twice()
    for slot, other in ((0, 9), (512, 5)):
        for bit in range(slot * 8, (slot + SLOT_SIZE) * 8):
            assert opened(disk_of({PATH: flipped(data, bit)})).read() == end_at(other)


def test_two_bad_slots_are_damage_and_not_a_new_log() -> None:
    data = flipped(flipped(synced_twice(), 100), 512 * 8 + 100)
    with pytest.raises(DamagedError, match="durable_end at position 0"):
        opened(disk_of({PATH: data})).read()


@given(
    st.integers(0, SLOT_SIZE), st.booleans(), st.sets(st.integers(0, SLOT_SIZE * 8 - 1), max_size=8)
)
def test_a_torn_slot_leaves_the_other_one(kept: int, is_first: bool, bits: set[int]) -> None:
    before = encode_slot(end_at(5), log_uuid=LOG_UUID, counter=COUNTER_BASE + 2)
    if is_first and kept:
        # Where an older version made the file.
        before = bytes(SLOT_SIZE)
    after = encode_slot(end_at(11), log_uuid=LOG_UUID, counter=COUNTER_BASE + 4)
    slot = after[:kept] + before[kept:]
    for bit in bits:
        slot = flipped(slot, bit)
    file = opened(disk_of({PATH: slot + synced_twice()[SLOT_SIZE:]}))
    assert file.read() in {end_at(9), end_at(11)}
    assert file.missing is None


def test_a_torn_slot_beside_one_of_zeros_is_damage() -> None:
    data = encode_slot(end_at(2), log_uuid=LOG_UUID, counter=1)
    with pytest.raises(DamagedError, match="fails its CRC"):
        opened(disk_of({PATH: data[:30] + bytes(994)})).read()


def test_a_newer_version_is_refused_in_a_clear_sentence() -> None:
    body = struct.pack("<4sHHQ16s", b"DWDE", 3, 96, 1, LOG_UUID.bytes) + bytes(60)
    crc = zlib.crc32(body, log_seed(LOG_UUID, LogKind.DURABLE_END))
    with pytest.raises(UnsupportedFormatError, match=r"version 3.*newer delaywheel"):
        opened(disk_of({PATH: body + struct.pack("<I", crc) + bytes(928)})).read()


@pytest.mark.parametrize(
    ("end", "counter"),
    [
        (end_at(5), 2**64 - 1),
        (replace(end_at(5), next_sequence=-1), 1),
        (replace(end_at(5), file_sequence=-1), 1),
        (replace(end_at(5), position=-1), 1),
        (replace(end_at(5), file_sequence=6, position=0), 1),
        (replace(end_at(5), file_sequence=5), 1),
    ],
)
def test_numbers_that_nobody_wrote_are_damage_though_the_crc_is_right(
    end: DurableEnd, counter: int
) -> None:
    slot = encode_slot(end, log_uuid=LOG_UUID, counter=counter)
    with pytest.raises(DamagedError, match="nobody wrote"):
        decode_slot(slot, log_uuid=LOG_UUID, path=PATH, position=0)


def test_the_end_of_another_log_is_refused() -> None:
    data = encode_slot(end_at(2), log_uuid=OTHER_UUID, counter=1)
    with pytest.raises(DataDirectoryError, match="belongs to log 00000000"):
        opened(disk_of({PATH: data})).read()


def test_a_read_error_of_one_slot_leaves_the_other_one() -> None:
    disk = disk_of({PATH: synced_twice()})
    disk.arm(Trap(action=Action.EIO, kinds={"read"}, skip=1))
    assert opened(disk).read() == end_at(5)


@pytest.mark.parametrize("plan", [HARSH, TORN], ids=["harsh", "torn"])
@seeds_in_parts(150)
def test_a_power_cut_at_any_operation_leaves_at_least_the_last_synced_end(
    seeds: range, plan: FaultPlan
) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        disk = SimDisk(random.Random(seed + 1), plan=plan)
        disk.make_directory("message_log")
        disk.sync_directory("")
        written = synced = 1
        for _life in range(4):
            disk.arm(Trap(action=Action.POWER_CUT, skip=chance.randrange(25)))
            try:
                file = opened(disk)
                found = file.read()
                assert synced <= (found.next_sequence if found else 1) <= written
                for _ in range(20):
                    written += 1
                    if chance.random() < 0.1:
                        disk.arm(Trap(action=Action.FULL, kinds={"write"}))
                    try:
                        file.write(end_at(written))
                    except StorageFullError:
                        file.sync()
                        continue
                    if chance.random() < 0.4:
                        file.sync()
                        synced = written
            except PowerCut:
                disk = disk.revive()
                found = opened(disk).read()
                assert synced <= (found.next_sequence if found else 1) <= written
                if found is not None:
                    assert found == end_at(found.next_sequence)


def test_the_worked_example_is_what_the_code_writes() -> None:
    data = synced_twice()
    assert worked_examples("durable_end.md") == [data]
