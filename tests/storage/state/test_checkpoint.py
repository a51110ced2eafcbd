"""The checkpoint is the old one or the new one, and is believed only if every bit is right."""

import json
import random
import zlib
from typing import Any

import msgspec
import pytest

from storage.batch.batches import log_seed
from storage.batch.file_header import LogKind
from storage.disk.errors import (
    DamagedError,
    DataDirectoryError,
    FatalDiskError,
    StorageFullError,
    UnsupportedFormatError,
)
from storage.state.checkpoint import (
    CHECKPOINT_PATH,
    Checkpoint,
    ClockMark,
    RetiredFile,
    SegmentState,
    read_checkpoint,
    write_checkpoint,
)
from tests.seeds import each_seed
from tests.simulation.disk import SimDisk
from tests.simulation.faults import HARSH, Action, Death, Trap
from tests.storage.small_logs import LOG_UUID, NOW_MS, OTHER_UUID, disk_of, flipped
from tests.storage.small_segments import example_files
from tests.storage.worked_examples import worked_examples

CLOCK = ClockMark(boot_id="one", wall_ms=NOW_MS, boot_ms=5000, held=True)


def checkpoint_of(number: int) -> Checkpoint:
    return Checkpoint(
        written_ms=number,
        sequence=number,
        segments=tuple(
            SegmentState(
                start=place,
                span=1,
                rows=number,
                length=1,
                last_sequence=2,
                last_crc=2**32 - 1,
                earliest_due_ms=-(2**62),
                facts=3,
                facts_length=4,
                facts_last_crc=5,
                last_fact=2**62,
            )
            for place in range(number)
        ),
        retired=(RetiredFile(path="a", since_ms=1),) * (number % 3),
        quarantined=("b",) * (number % 2),
        clock=msgspec.UNSET if number % 2 else CLOCK,
    )


def new_disk(seed: int = 0) -> SimDisk:
    disk = SimDisk(random.Random(seed), plan=HARSH)
    disk.make_directory("checkpoint")
    disk.sync_directory("")
    return disk


@each_seed(80)
def test_a_death_at_any_point_leaves_the_old_one_or_the_new_one(seed: int) -> None:
    chance = random.Random(seed)
    disk = new_disk(seed)
    write_checkpoint(disk, LOG_UUID, checkpoint_of(1))
    for number in range(2, 12):
        disk.arm(
            Trap(
                action=chance.choice([Action.POWER_CUT, Action.KILL, Action.EIO]),
                kinds={"write", "sync", "rename", "create", "unlink", "sync_directory"},
                skip=chance.randrange(8),
            )
        )
        done = False
        try:
            write_checkpoint(disk, LOG_UUID, checkpoint_of(number))
            done = True
        except (Death, FatalDiskError):
            pass
        if chance.random() < 0.7:
            disk.power_cut()
        disk = disk.revive()
        found = read_checkpoint(disk, LOG_UUID)
        assert found is not None
        if done:
            assert found == checkpoint_of(number)
        assert found.written_ms <= number
        disk.sync_directory("checkpoint")
        write_checkpoint(disk, LOG_UUID, checkpoint_of(number))


def test_a_checkpoint_that_finds_no_space_leaves_the_old_one_and_the_next_goes_through() -> None:
    disk = new_disk()
    write_checkpoint(disk, LOG_UUID, checkpoint_of(1))
    for kind in ("create", "write", "rename"):
        disk.arm(Trap(action=Action.FULL, kinds={kind}))
        with pytest.raises(StorageFullError):
            write_checkpoint(disk, LOG_UUID, checkpoint_of(50))
        assert read_checkpoint(disk, LOG_UUID) == checkpoint_of(1)
    write_checkpoint(disk, LOG_UUID, checkpoint_of(2))
    assert read_checkpoint(disk, LOG_UUID) == checkpoint_of(2)


def test_any_flipped_bit_and_any_cut_is_found() -> None:
    disk = new_disk()
    write_checkpoint(disk, LOG_UUID, checkpoint_of(1))
    data = disk.contents()[CHECKPOINT_PATH]
    for bit in range(0, len(data) * 8):  # noqa: PIE808 (every bit of it)
        with pytest.raises((DamagedError, DataDirectoryError)):
            read_checkpoint(disk_of({CHECKPOINT_PATH: flipped(data, bit)}), LOG_UUID)
    for size in range(len(data)):
        with pytest.raises(DamagedError):
            read_checkpoint(disk_of({CHECKPOINT_PATH: data[:size]}), LOG_UUID)


def test_what_is_said_of_the_clock_is_as_safe_and_older_versions_pass_it_over() -> None:
    disk = new_disk()
    write_checkpoint(disk, LOG_UUID, checkpoint_of(2))
    data = disk.contents()[CHECKPOINT_PATH]
    # As they read it: what the first size and CRC tell of.
    end = 72 + int.from_bytes(data[64:68], "little")
    assert zlib.crc32(data[72:end], log_seed(LOG_UUID, LogKind.CHECKPOINT)) == int.from_bytes(
        data[68:72], "little"
    )
    assert "clock" not in json.loads(data[72:end])
    older = read_checkpoint(disk_of({CHECKPOINT_PATH: data[:end]}), LOG_UUID)
    assert older == msgspec.structs.replace(checkpoint_of(2), clock=msgspec.UNSET)
    for bit in range(end * 8, len(data) * 8):
        with pytest.raises(DamagedError):
            read_checkpoint(disk_of({CHECKPOINT_PATH: flipped(data, bit)}), LOG_UUID)
    for bad in (*(data[:size] for size in range(end + 1, len(data))), data + b"\0"):
        with pytest.raises(DamagedError):
            read_checkpoint(disk_of({CHECKPOINT_PATH: bad}), LOG_UUID)


def test_the_checkpoint_of_another_log_is_refused() -> None:
    disk = new_disk()
    write_checkpoint(disk, OTHER_UUID, checkpoint_of(1))
    with pytest.raises(DataDirectoryError, match="must not be mixed"):
        read_checkpoint(disk, LOG_UUID)


def test_a_checkpoint_that_cannot_be_read_is_damage() -> None:
    disk = new_disk()
    write_checkpoint(disk, LOG_UUID, checkpoint_of(1))
    disk.arm(Trap(action=Action.EIO, kinds={"read"}))
    with pytest.raises(DamagedError, match="cannot be read"):
        read_checkpoint(disk, LOG_UUID)


def rewritten(change: object) -> SimDisk:
    """Return a disk with a checkpoint whose JSON was changed by a newer version, CRC and all."""
    disk = new_disk()
    write_checkpoint(disk, LOG_UUID, checkpoint_of(1))
    manifest = json.loads(disk.contents()[CHECKPOINT_PATH][72:])
    assert callable(change)
    change(manifest)
    return holding(json.dumps(manifest).encode())


def holding(text: bytes) -> SimDisk:
    """Return a disk with a checkpoint of this text, its CRC right."""
    disk = new_disk()
    write_checkpoint(disk, LOG_UUID, checkpoint_of(1))
    data = disk.contents()[CHECKPOINT_PATH]
    crc = zlib.crc32(text, log_seed(LOG_UUID, LogKind.CHECKPOINT))
    prefix = len(text).to_bytes(4, "little") + crc.to_bytes(4, "little")
    return disk_of({CHECKPOINT_PATH: data[:64] + prefix + text})


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(format=5),
        lambda manifest: manifest.update(something_new=1),
        lambda manifest: manifest["segments"][0].append(7),
        lambda manifest: manifest["retired"].append(["a", 1, 2]),
        lambda manifest: manifest.update(sequence="one"),
        lambda manifest: manifest["segments"][0].__setitem__(1, 5),
    ],
)
def test_what_only_a_newer_version_can_have_written_is_refused(change: object) -> None:
    with pytest.raises(UnsupportedFormatError, match="upgrade this node"):
        read_checkpoint(rewritten(change), LOG_UUID)


def with_a_dead_segment(manifest: dict[str, Any]) -> None:
    """Make the first segment one of dead letters."""
    manifest["segments"][0][0:2] = [1440 * 20_000, 4]


def test_a_dead_segment_is_read_as_any_other() -> None:
    found = read_checkpoint(rewritten(with_a_dead_segment), LOG_UUID)
    assert found is not None
    assert found.segments[0].key.path == "schedule_log/20241004T0000Z.dead"


@pytest.mark.parametrize("format_", [1, 2, 3])
def test_a_manifest_of_an_older_format_is_refused_whatever_it_has(format_: int) -> None:
    older = rewritten(lambda manifest: manifest.update(format=format_, fact_number=7))
    with pytest.raises(
        UnsupportedFormatError, match=rf"version {format_} .*start .* on an empty data dir"
    ):
        read_checkpoint(older, LOG_UUID)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b'{"format":4,"quarantined":["\xff"]}'],
    ids=["nothing", "a beginning", "no UTF-8"],
)
def test_a_manifest_that_is_no_json_is_damage(text: bytes) -> None:
    with pytest.raises(DamagedError):
        read_checkpoint(holding(text), LOG_UUID)


@pytest.mark.parametrize(("start", "span"), [(61, 2), (60, 3), (-1, 1), (2**32 - 1, 1)])
def test_a_manifest_of_a_segment_that_cannot_exist_is_damage(start: int, span: int) -> None:
    def change(manifest: dict[str, list[list[int]]]) -> None:
        manifest["segments"][0][:2] = [start, span]

    with pytest.raises(DamagedError, match=f"span {span} from {start} on"):
        read_checkpoint(rewritten(change), LOG_UUID)


def test_the_worked_example_is_what_the_code_writes() -> None:
    assert worked_examples("checkpoint.md") == [example_files()["checkpoint.md"]]
