"""The simulated disk keeps what was fsynced, loses what was not, and says which call it struck."""

import itertools
import random
from collections.abc import Callable

import pytest

from storage.disk.errors import DataDirectoryError, FatalDiskError, StorageFullError
from tests.simulation.determinism import derive
from tests.simulation.disk import SimDisk, SimFile
from tests.simulation.faults import (
    CALM,
    HARSH,
    Action,
    Death,
    FaultPlan,
    Kill,
    PowerCut,
    Stage,
    Trap,
    running,
)
from tests.simulation.trace import Trace

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


def test_a_map_stays_valid_while_its_file_grows() -> None:
    disk = make_disk()
    file = disk.open("log", create=True)
    assert bytes(disk.map("log")) == b""
    file.write_at(0, [b"first"])
    view = disk.map("log")
    for position in range(5, 50_000, 1000):
        file.write_at(position, [bytes(1000)])
    assert bytes(view) == b"first"


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


def test_without_chances_a_power_cut_loses_nothing() -> None:
    for seed in SEEDS:
        disk = make_disk(seed, CALM)
        disk.make_directory("a/b")
        disk.open("a/b/log", create=True).write_at(0, [b"x" * 2048])
        disk.power_cut()
        assert disk.revive().contents() == {"a/b/log": b"x" * 2048}


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


def test_the_ritual_of_a_checkpoint_leaves_the_old_or_the_new_one() -> None:
    seen = set()
    for seed, moment in itertools.product(range(20), range(8)):
        disk = make_disk(seed, HARSH)
        durable_file(disk, "checkpoint", b"old")
        disk.arm(Trap(action=Action.POWER_CUT, skip=moment))
        try:
            file = disk.open("checkpoint.tmp", create=True)
            file.write_at(0, [b"new"])
            file.sync()
            disk.rename("checkpoint.tmp", "checkpoint")
            disk.sync_directory("")
            done = True
            disk.exists("checkpoint")
        except PowerCut:
            done = moment > 4
        disk.power_cut()
        found = disk.revive().contents()["checkpoint"]
        assert found == b"new" if done else found in {b"old", b"new"}
        seen.add(found)
    assert seen == {b"old", b"new"}


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


def test_a_trap_waits_for_operation_path_and_label() -> None:
    disk = make_disk()
    log = durable_file(disk, "log", b"")
    other = durable_file(disk, "other", b"")
    disk.arm(
        Trap(
            action=Action.POWER_CUT,
            kinds={"sync"},
            when=lambda kind, path, label: (kind, path, label) == ("sync", "log", "split"),
            skip=1,
        )
    )
    log.sync()
    with disk.labelled("split"):
        other.sync()
        log.sync()
        log.write_at(0, [b"x"])
        with pytest.raises(PowerCut, match="sync of log"):
            log.sync()
    [fired] = disk.fired
    assert (fired.kind, fired.path, fired.label) == ("sync", "log", "split")
    assert fired.operation == disk.operations


def test_a_trap_can_wait_for_a_function_on_the_call_stack() -> None:
    class Layout:
        def split(self, file: SimFile) -> None:
            self._write(file)

        def _write(self, file: SimFile) -> None:
            file.write_at(0, [b"x"])

    disk = make_disk()
    file = durable_file(disk, "log", b"")
    disk.arm(Trap(action=Action.KILL, when=running("seal", "Layout.split")))
    Layout()._write(file)
    with pytest.raises(Kill):
        Layout().split(file)


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


@pytest.mark.parametrize("stage", [Stage.BEFORE, Stage.AFTER])
@pytest.mark.parametrize("kind", ["create", "rename", "unlink", "truncate", "make_directory"])
def test_atomic_operations_die_before_or_after(kind: str, stage: Stage) -> None:
    disk = make_disk()
    file = durable_file(disk, "a", b"xx")
    done: dict[str, tuple[Callable[[], object], Callable[[SimDisk], bool]]] = {
        "create": (lambda: disk.open("b", create=True), lambda after: after.exists("b")),
        "rename": (lambda: disk.rename("a", "c"), lambda after: after.exists("c")),
        "unlink": (lambda: disk.unlink("a"), lambda after: not after.exists("a")),
        "truncate": (lambda: file.truncate(1), lambda after: len(after.map("a")) == 1),
        "make_directory": (lambda: disk.make_directory("d/e"), lambda after: after.exists("d/e")),
    }
    operation, happened = done[kind]
    disk.arm(Trap(action=Action.KILL, kinds={kind}, stage=stage))
    with pytest.raises(Kill):
        operation()
    assert happened(disk.revive()) == (stage is Stage.AFTER)


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


def test_error_traps_pass_over_operations_that_cannot_fail_so() -> None:
    disk = make_disk()
    file = durable_file(disk, "log", b"")
    disk.arm(Trap(action=Action.FULL))
    disk.exists("log")
    file.read_at(0, 1)
    with pytest.raises(StorageFullError):
        file.write_at(0, [b"x"])


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


def test_rates_strike_now_and_then() -> None:
    rates = FaultPlan(eio_read=0.1, eio_write=0.1, eio_sync=0.1, full=0.1)
    disk = make_disk(1, rates)
    disk.plan = FaultPlan()
    file = durable_file(disk, "log", b"x" * 1000)
    disk.plan = rates
    errors: dict[str, int] = {}
    for position in range(1000):
        for operation in (
            lambda: file.write_at(position, [b"x"]),  # noqa: B023 (called at once)
            lambda: file.read_at(0, 1),
            file.sync,
        ):
            try:
                operation()
            except (FatalDiskError, StorageFullError, OSError) as error:
                name = type(error).__name__
                errors[name] = errors.get(name, 0) + 1
    assert set(errors) == {"FatalDiskError", "StorageFullError", "OSError"}
    assert min(errors.values()) > 50
    assert sum(errors.values()) == len(disk.fired)


def test_an_fsync_may_lie() -> None:
    kept = set()
    for seed in SEEDS:
        disk = make_disk(seed, FaultPlan(lose_writes=1))
        file = durable_file(disk, "log", b"")
        disk.plan = FaultPlan(sync_lies=1, lose_writes=1)
        file.write_at(0, [b"x"])
        file.sync()
        disk.power_cut()
        kept.add(len(disk.revive().map("log")))
    assert kept == {0, 1}


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


def test_operations_are_counted_and_traced() -> None:
    def use(seed: int) -> tuple[str, dict[str, int]]:
        trace = Trace()
        disk = SimDisk(random.Random(seed), trace=trace)
        file = disk.open("a", create=True)
        file.write_at(0, [b"x" * 2000])
        disk.sync_files([file, file])
        file.write_at(0, [b"y" * 2000])
        disk.prefetch("a")
        disk.power_cut()
        disk.revive().list("")
        return trace.digest(), disk.counts

    digest, counts = use(1)
    assert use(1)[0] == digest
    assert counts == {"create": 1, "write": 2, "sync": 2, "prefetch": 1, "list": 1}


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


def test_a_slow_fsync_takes_its_time_and_does_its_work() -> None:
    disk = make_disk(0, FaultPlan(lose_writes=1, slow_sync=1, slow_sync_s=(3, 4)))
    file = disk.open("log", create=True)
    disk.sync_directory("")
    file.write_at(0, [b"x" * 100])
    assert disk.extra_s == 0
    file.sync()
    assert 3 <= disk.extra_s <= 4
    assert disk.tally["fsync slow"] == 1
    disk.power_cut()
    assert bytes(disk.revive().map("log")) == b"x" * 100


def test_an_fsync_that_finds_no_space_drops_its_pages() -> None:
    disk = make_disk(0, FaultPlan(lose_writes=1, reorder=0, sync_reverts=1))
    file = durable_file(disk, "log", b"kept")
    disk.plan = FaultPlan(lose_writes=1, reorder=0, sync_reverts=1, full_sync=1)
    file.write_at(4, [b"x" * 4000])
    with pytest.raises(FatalDiskError, match="No space left"):
        file.sync()
    disk.plan = FaultPlan(lose_writes=1)
    file.sync()
    disk.power_cut()
    assert len(disk.revive().map("log")) < 4004


def test_a_misdirected_write_hits_another_file() -> None:
    hits = 0
    for seed in range(50):
        disk = make_disk(seed, CALM)
        victim = durable_file(disk, "victim", b"v" * 3000)
        file = durable_file(disk, "log", b"l" * 1000)
        disk.plan = FaultPlan(misdirected=1, lose_writes=0, lose_names=0)
        file.write_at(0, [b"x" * 1000])
        file.sync()
        assert file.read_at(0, 1000) == b"x" * 1000
        disk.power_cut()
        disk = disk.revive()
        assert bytes(disk.map("log")) == b"l" * 1000
        hits += b"x" in bytes(disk.map("victim"))
        assert disk.tally["write misdirected"] == 1
        assert victim.path == "victim"
    assert hits == 50


def test_a_full_disk_has_hardly_any_place_for_new_names() -> None:
    outcomes: dict[str, set[str]] = {}
    for kind in ("create", "make_directory", "rename"):
        for seed in SEEDS:
            disk = make_disk(seed, capacity_bytes=100)
            durable_file(disk, "a", bytes(100))
            try:
                if kind == "create":
                    disk.open("b", create=True)
                elif kind == "make_directory":
                    disk.make_directory("b")
                    disk.make_directory("b")
                else:
                    disk.rename("a", "b")
                outcomes.setdefault(kind, set()).add("done")
                assert disk.exists("b")
            except StorageFullError:
                outcomes.setdefault(kind, set()).add("full")
                assert not disk.exists("b")
    assert set(outcomes) == {"create", "make_directory", "rename"}
    assert all(found == {"done", "full"} for found in outcomes.values())


def test_a_watcher_sees_each_operation_of_its_kinds_for_one_life() -> None:
    disk = make_disk()
    seen: list[tuple[str, str, str]] = []
    disk.watch(("create", "write"), lambda *call: seen.append(call))
    with disk.labelled("work"):
        disk.open("a", create=True).write_at(0, [b"x"])
        disk.exists("a")
    assert seen == [("create", "a", "work"), ("write", "a", "work")]
    disk = disk.revive()
    disk.open("b", create=True)
    assert len(seen) == 2


def test_what_power_cuts_did_is_tallied() -> None:
    told: dict[str, int] = {}
    for seed in SEEDS:
        disk = make_disk(seed, HARSH)
        file = durable_file(disk, "log", bytes(2000))
        file.write_at(1000, [b"x" * 5000])
        file.truncate(4000)
        file.write_at(4000, [b"y" * 2000])
        disk.open("new", create=True)
        disk.power_cut()
        for what, count in disk.tally.items():
            told[what] = told.get(what, 0) + count
    assert set(told) == {
        "name lost",
        "unsynced writes lost",
        "unsynced writes reordered",
        "write torn",
        "truncate lost",
        "zero-filled",
        "bit flipped in unsynced bytes",
    }


def test_a_file_is_settled_once_its_name_is_durable() -> None:
    disk = SimDisk(random.Random(1))
    for name in ("old", "new"):
        file = disk.open(name, create=True)
        file.write_at(0, [name.encode()])
        file.sync()
    assert disk.settled() == set()
    disk.sync_directory("")
    assert disk.settled() == {"old", "new"}
    disk.rename("new", "old")
    assert disk.settled() == set()
    assert (disk.content("old"), disk.content("old", durable=True)) == (b"new", b"old")
    assert (disk.content("new"), disk.content("new", durable=True)) == (None, b"new")
    disk.sync_directory("")
    assert disk.settled() == {"old"}
    assert disk.content("old", durable=True) == b"new"


def test_the_least_that_was_free_is_known_of_each_life() -> None:
    disk = make_disk(capacity_bytes=1000)
    file = disk.open("a", create=True)
    file.write_at(0, [b"x" * 700])
    file.truncate(100)
    file.write_at(50, [b"y" * 100])
    assert disk.least_free_bytes == 300
    assert disk.revive().least_free_bytes == 850
