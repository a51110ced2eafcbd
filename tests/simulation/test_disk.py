"""The simulated disk keeps what was fsynced, loses what was not, and says which call it struck."""

import itertools
from collections.abc import Callable

import pytest

from storage.disk.errors import DataDirectoryError, FatalDiskError, StorageFullError
from tests.simulation.determinism import derive
from tests.simulation.disk import SimDisk, SimFile
from tests.simulation.faults import (
    HARSH,
    Action,
    Death,
    FaultPlan,
    Kill,
    PowerCut,
    Stage,
    Trap,
)

SEEDS = range(200)
PREFIXES = FaultPlan(reorder=0, reorder_names=0, tear=0, zero_tail=0, flip_bits=0, lose_writes=1)


def make_disk(
    seed: int = 0, plan: FaultPlan | None = None, capacity_bytes: int = 1 << 40
) -> SimDisk:
    return SimDisk(derive(seed, "disk"), plan=plan, capacity_bytes=capacity_bytes)


def durable_file(disk: SimDisk, path: str, data: bytes) -> SimFile:
    """Create a file whose name and bytes are durable."""
    file = disk.open(path, create=True)
    file.write_at(0, [data])
    file.sync()
    disk.sync_directory("/".join(path.split("/")[:-1]))
    return file


def test_reads_and_maps_see_what_was_written() -> None:
    disk = make_disk()
    file = disk.open("log", create=True)
    assert file.write_at(0, [b"abc", memoryview(b"def"), bytearray(b"g")]) == 7
    file.write_at(10_000, [b"end"])
    assert file.size() == 10_003
    assert file.read_at(2, 5) == b"cdefg"
    assert file.read_at(9_999, 100) == b"\0end"
    assert file.read_at(20_000, 5) == b""
    view = disk.map("log")
    assert view.readonly
    assert len(view) == 10_003
    file.truncate(4)
    file.truncate(8)
    assert disk.open_read("log").read_at(0, 10) == b"abcd\0\0\0\0"
    assert bytes(disk.map("log")) == b"abcd\0\0\0\0"


def test_fsynced_data_survives_every_power_cut() -> None:
    for seed in SEEDS:
        disk = make_disk(seed, HARSH)
        file = durable_file(disk, "log", b"kept" * 1000)
        file.write_at(4000, [b"lost" * 1000])
        disk.power_cut()
        data = disk.revive().map("log")
        assert data[:4000] == b"kept" * 1000
        assert len(data) <= 8000


def test_data_not_fsynced_can_be_lost_or_kept_whole_or_in_part() -> None:
    sizes = set()
    for seed in SEEDS:
        disk = make_disk(seed, PREFIXES)
        durable_file(disk, "log", b"").write_at(0, [b"x" * 2048])
        disk.power_cut()
        data = bytes(disk.revive().map("log"))
        assert data == b"x" * len(data)
        sizes.add(len(data))
    assert sizes == {0, 512, 1024, 1536, 2048}


def test_sectors_survive_in_any_subset_and_tear() -> None:
    gaps = torn = 0
    for seed in SEEDS:
        disk = make_disk(seed, FaultPlan(lose_writes=1, reorder=1, tear=0.5, flip_bits=0))
        durable_file(disk, "log", bytes(8192)).write_at(0, [b"x" * 8192])
        disk.power_cut()
        data = bytes(disk.revive().map("log"))
        sectors = [data[start : start + 512] for start in range(0, 8192, 512)]
        whole = [sector == b"x" * 512 for sector in sectors]
        gaps += any(later and not earlier for earlier, later in itertools.pairwise(whole))
        torn += any(0 < sector.count(b"x") < 512 for sector in sectors)
    assert gaps > len(SEEDS) / 4
    assert torn > len(SEEDS) / 4


def test_a_sector_is_as_it_was_at_some_one_time() -> None:
    """Two writes into one sector: the second never gets there without the first."""
    seen = set()
    for seed in SEEDS:
        disk = make_disk(seed, FaultPlan(lose_writes=1, reorder=1, tear=0, flip_bits=0))
        file = durable_file(disk, "log", b"....")
        file.write_at(0, [b"11"])
        file.write_at(2, [b"22"])
        disk.power_cut()
        seen.add(bytes(disk.revive().map("log")))
    assert seen == {b"....", b"11..", b"1122"}


def test_a_file_can_grow_by_zeros() -> None:
    grown = 0
    for seed in SEEDS:
        disk = make_disk(seed, FaultPlan(lose_writes=1, reorder=0, zero_tail=1, flip_bits=0))
        durable_file(disk, "log", b"kept").write_at(4, [b"x" * 1000])
        disk.power_cut()
        data = bytes(disk.revive().map("log"))
        assert data[:4] == b"kept"
        grown += data.endswith(b"\0")
    assert grown > len(SEEDS) / 4


def test_bits_flip_only_among_bytes_that_were_being_written() -> None:
    flipped = 0
    for seed in SEEDS:
        disk = make_disk(seed, FaultPlan(lose_writes=0, flip_bits=1))
        file = durable_file(disk, "log", b"k" * 100)
        file.write_at(50, [b"k" * 50 + b"n" * 100])  # the first half is there already
        disk.power_cut()
        data = bytes(disk.revive().map("log"))
        assert data[:100] == b"k" * 100
        flipped += data[100:] != b"n" * 100
    assert flipped > len(SEEDS) / 4


def test_a_truncate_may_be_lost_until_it_is_synced() -> None:
    sizes = set()
    for seed in SEEDS:
        disk = make_disk(seed, FaultPlan(lose_writes=1, flip_bits=0))
        durable_file(disk, "log", b"x" * 100).truncate(10)
        disk.power_cut()
        sizes.add(len(disk.revive().map("log")))
    assert sizes == {10, 100}


def test_names_can_be_lost_without_sync_directory_even_of_fsynced_files() -> None:
    survived = set()
    for seed in SEEDS:
        disk = make_disk(seed)
        disk.make_directory("logs")
        disk.sync_directory("")
        file = disk.open("logs/a", create=True)
        file.write_at(0, [b"x"])
        file.sync()
        disk.power_cut()
        survived.add(disk.revive().exists("logs/a"))
    assert survived == {True, False}


def test_synced_names_survive_and_a_lost_directory_takes_its_files_along() -> None:
    lost = 0
    for seed in SEEDS:
        disk = make_disk(seed, HARSH)
        disk.make_directory("kept/inner")
        disk.sync_directory("")
        disk.sync_directory("kept")
        durable_file(disk, "kept/inner/a", b"x")
        disk.make_directory("maybe")
        durable_file(disk, "maybe/b", b"x")
        disk.power_cut()
        revived = disk.revive()
        assert revived.contents().get("kept/inner/a") == b"x"
        lost += not revived.exists("maybe/b")
        assert revived.exists("maybe") == revived.exists("maybe/b")
    assert 0 < lost < len(SEEDS)


def test_a_rename_is_seen_whole_or_not_at_all_and_may_precede_its_data() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make_disk(seed, PREFIXES)
        durable_file(disk, "checkpoint", b"old")
        file = disk.open("checkpoint.tmp", create=True)
        file.write_at(0, [b"new"])
        disk.rename("checkpoint.tmp", "checkpoint")
        assert disk.contents() == {"checkpoint": b"new"}
        disk.power_cut()
        seen.add(tuple(sorted(disk.revive().contents().items())))
    assert seen == {
        (("checkpoint", b"old"),),
        (("checkpoint", b"old"), ("checkpoint.tmp", b"")),
        (("checkpoint", b"old"), ("checkpoint.tmp", b"new")),
        (("checkpoint", b""),),
        (("checkpoint", b"new"),),
    }


def test_unlinked_names_can_come_back() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make_disk(seed)
        durable_file(disk, "old", b"x")
        disk.unlink("old")
        assert not disk.exists("old")
        disk.power_cut()
        seen.add(disk.revive().exists("old"))
    assert seen == {True, False}


def test_a_rename_between_directories_happens_on_both_sides_or_on_none() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make_disk(seed, HARSH)
        for directory in ("a", "b"):
            disk.make_directory(directory)
        disk.sync_directory("")
        durable_file(disk, "a/x", b"x")
        disk.rename("a/x", "b/x")
        if seed % 4 == 0:
            disk.sync_directory(("a", "b")[seed % 8 // 4])
        disk.power_cut()
        [path] = disk.revive().contents()
        assert path == "b/x" or seed % 4
        seen.add(path)
    assert seen == {"a/x", "b/x"}


def test_a_kill_keeps_the_page_cache_and_the_names() -> None:
    disk = make_disk(0, HARSH)
    disk.open("log", create=True).write_at(0, [b"cached"])
    disk.kill()
    disk = disk.revive()
    assert bytes(disk.map("log")) == b"cached"
    disk.power_cut()


@pytest.mark.parametrize("kind", [PowerCut, Kill])
def test_handles_of_a_dead_life_only_raise_its_death(kind: type[Death]) -> None:
    disk = make_disk()
    file = durable_file(disk, "log", b"x")
    if kind is PowerCut:
        disk.power_cut()
    else:
        disk.kill()
    revived = disk.revive()
    attempts: list[Callable[[], object]] = [
        lambda: file.write_at(0, [b"y"]),
        lambda: file.read_at(0, 1),
        file.sync,
        lambda: disk.open("log"),
        lambda: disk.exists("log"),
        lambda: disk.unlink("log"),
    ]
    for attempt in attempts:
        with pytest.raises(kind):
            attempt()
    file.close()
    file.close()
    assert revived.contents() == {"log": b"x"}
    assert disk.open_files == 0
    assert revived.generation == 1


def test_inside_a_write_a_part_of_it_is_in_the_page_cache() -> None:
    sizes = set()
    for seed in SEEDS:
        disk = make_disk(seed)
        file = durable_file(disk, "log", b"")
        disk.arm(Trap(action=Action.KILL, kinds={"write"}, stage=Stage.INSIDE))
        with pytest.raises(Kill):
            file.write_at(0, [b"x" * 10])
        sizes.add(len(disk.revive().map("log")))
    assert sizes == set(range(11))


@pytest.mark.parametrize(
    ("stage", "expected"),
    [(Stage.BEFORE, {0, 512, 1024}), (Stage.INSIDE, {0, 512, 1024}), (Stage.AFTER, {1024})],
)
def test_a_power_cut_around_an_fsync(stage: Stage, expected: set[int]) -> None:
    sizes = set()
    for seed in SEEDS:
        disk = make_disk(seed, PREFIXES)
        file = durable_file(disk, "log", b"")
        file.write_at(0, [b"x" * 1024])
        disk.arm(Trap(action=Action.POWER_CUT, kinds={"sync"}, stage=stage))
        with pytest.raises(PowerCut):
            file.sync()
        sizes.add(len(disk.revive().map("log")))
    assert sizes == expected


def test_a_failed_fsync_drops_its_pages_and_the_next_one_succeeds() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk = make_disk(seed, PREFIXES)
        file = durable_file(disk, "log", b"kept")
        file.write_at(4, [b"lost"])
        disk.arm(Trap(action=Action.EIO, kinds={"sync"}))
        with pytest.raises(FatalDiskError):
            file.sync()
        file.sync()
        cached = bytes(disk.map("log"))
        file.write_at(8, [b"more"])
        file.sync()
        disk.power_cut()
        durable = bytes(disk.revive().map("log"))
        assert durable[:4] == b"kept"
        assert durable[8:] == b"more"
        outcomes.add((cached, durable[4:8]))
    assert outcomes == {
        (b"keptlost", b"\0\0\0\0"),  # readable until the power cut (ext4, XFS)
        (b"kept", b"\0\0\0\0"),  # as it is on the disk at once (btrfs)
        (b"keptlost", b"lost"),  # it failed after writing these
    }


def test_errors_have_the_types_of_the_real_disk() -> None:
    disk = make_disk()
    file = durable_file(disk, "log", b"x")
    cases: list[tuple[str, Action, type[Exception], Callable[[], object]]] = [
        ("write", Action.EIO, FatalDiskError, lambda: file.write_at(1, [b"y"])),
        ("write", Action.FULL, StorageFullError, lambda: file.write_at(1, [b"y"])),
        ("read", Action.EIO, OSError, lambda: file.read_at(0, 1)),
        ("map", Action.EIO, OSError, lambda: disk.map("log")),
        ("sync", Action.FULL, FatalDiskError, file.sync),
        ("truncate", Action.EIO, FatalDiskError, lambda: file.truncate(0)),
        ("create", Action.FULL, StorageFullError, lambda: disk.open("new", create=True)),
        ("create", Action.EIO, FatalDiskError, lambda: disk.open("new", create=True)),
        ("rename", Action.EIO, FatalDiskError, lambda: disk.rename("log", "b")),
        ("unlink", Action.EIO, FatalDiskError, lambda: disk.unlink("log")),
        ("sync_directory", Action.EIO, FatalDiskError, lambda: disk.sync_directory("")),
    ]
    for kind, action, error, operation in cases:
        disk.arm(Trap(action=action, kinds={kind}))
        with pytest.raises(error):
            operation()
    assert len(disk.fired) == len(cases)
    assert disk.list("") == ["log"]
    with pytest.raises(FileNotFoundError):
        disk.open("missing")
    with pytest.raises(FileNotFoundError):
        disk.map("missing")
    for refused in (
        lambda: disk.open("log", create=True),
        lambda: disk.open("missing/log", create=True),
        lambda: disk.rename("missing", "log"),
        lambda: disk.unlink("missing"),
        lambda: disk.open_read("log").write_at(0, [b"x"]),
    ):
        with pytest.raises(FatalDiskError):
            refused()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.size()


def test_a_full_disk_takes_a_part_and_has_room_again_when_files_go() -> None:
    disk = make_disk(capacity_bytes=1000)
    first = disk.open("first", create=True)
    first.write_at(0, [b"x" * 600])
    second = disk.open("second", create=True)
    with pytest.raises(StorageFullError):
        second.write_at(0, [b"y" * 600])
    assert second.size() == 400
    assert disk.free_bytes() == (0, 1000)
    first.write_at(0, [b"z" * 600])  # in place
    disk.unlink("first")
    assert disk.free_bytes() == (600, 1000)
    second.write_at(400, [b"y" * 200])
    second.truncate(100)
    assert disk.free_bytes() == (900, 1000)
    disk.rename("second", "third")
    disk.capacity_bytes = 50
    assert disk.free_bytes() == (0, 50)
    disk.power_cut()
    assert disk.revive().free_bytes()[0] in {0, 50}


def test_damage_of_durable_bytes_shows_in_reads_and_maps() -> None:
    disk = make_disk()
    file = durable_file(disk, "log", bytes(100))
    path, position = disk.flip_bit()
    assert path == "log"
    assert file.read_at(position, 1) != b"\0"
    disk.damage("log", 10, b"zzz")
    assert bytes(disk.map("log")[10:13]) == b"zzz"
    file.write_at(0, [b"fresh"])
    disk.damage("log", 0, b"stale")
    assert file.read_at(0, 5) == b"fresh"
    with pytest.raises(ValueError, match="no 3 durable bytes"):
        disk.damage("log", 98, b"zzz")


def test_a_lock_is_exclusive_and_dies_with_its_life() -> None:
    disk = make_disk()
    with disk.lock("lock"):
        with pytest.raises(DataDirectoryError), disk.lock("lock"):
            pass
        disk.kill()
    disk = disk.revive()
    with disk.lock("lock"):
        assert disk.list("") == ["lock"]
    with disk.lock("lock"):
        pass


def test_a_short_write_is_gone_on_with_and_survives_in_parts() -> None:
    found = set()
    for seed in SEEDS:
        disk = make_disk(seed, PREFIXES)
        file = durable_file(disk, "log", b"")
        disk.plan = FaultPlan(short_write=1, reorder=0, zero_tail=0, flip_bits=0, lose_writes=1)
        assert file.write_at(0, [b"a" * 300, b"b" * 300]) == 600
        assert file.read_at(0, 600) == b"a" * 300 + b"b" * 300
        disk.power_cut()
        found.add(len(disk.revive().map("log")))
        assert disk.tally["short write"] == 1
    # Cut where no sector ends, and where nothing was torn.
    assert len(found - {0, 512, 600}) > 20
