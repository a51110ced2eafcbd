"""Whatever a crash or a bad disk did: nothing acknowledged is lost silently, cut or renumbered."""

import random
import re
import struct
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.batch.batches import log_seed
from storage.batch.file_header import LogKind
from storage.disk.errors import (
    DataDirectoryError,
    FatalDiskError,
    LogStateError,
    StorageError,
    StorageFullError,
    UnsupportedFormatError,
)
from storage.logs.message_log import MessageLog
from storage.logs.numbered_log import log_file
from storage.state.durable_end import SLOT_POSITIONS, DurableEndReader
from tests.seeds import examples, seeds_in_parts
from tests.simulation.disk import SimDisk
from tests.simulation.faults import CALM, HARSH, Action, FaultPlan, PowerCut, Trap
from tests.storage.small_logs import (
    LOG_UUID,
    NOW_MS,
    OTHER_UUID,
    Record,
    damages_of,
    disk_of,
    flipped,
    messages,
    new_disk,
    records_of,
    recover,
    unbegun,
)

END = "message_log/durable_end"
SEED = log_seed(LOG_UUID, LogKind.MESSAGE_LOG)
BATCHES = [[bytes([65 + number]) * 40 * number, b"b%d" % number] for number in range(1, 8)]


class Grown:
    """A log, and what was on the disk after each of its appends.

    ends: size of the last file after each append, the epoch being append 0; files: all files then;
    records: those that were durable then.
    """

    def __init__(self, file_bytes_max: int = 1 << 20) -> None:
        disk = new_disk()
        log, _ = recover(disk, file_bytes_max=file_bytes_max)
        log.sync_durable_end()
        self.files = [disk.contents()]
        self.records: list[list[Record]] = [[]]
        for items in BATCHES:
            log.append([messages(items)], floor_minute=NOW_MS // 60_000, append_ms=NOW_MS)
            log.sync_durable_end()
            self.files.append(disk.contents())
            self.records.append(records_of(log))
        self.last_path = log.files()[-1].path
        self.ends = [len(files.get(self.last_path, b"")) for files in self.files]
        self.next_sequence = log.next_sequence

    def with_end_at(self, append: int) -> dict[str, bytes]:
        """Return all files, with the durable end of an earlier append."""
        return self.files[-1] | {END: self.files[append][END]}


ONE_FILE = Grown()
SEVERAL_FILES = Grown(file_bytes_max=600)


def starts_with(whole: list[Record], part: list[Record]) -> bool:
    return whole[: len(part)] == part


@st.composite
def spoilt_tails(draw: st.DrawFn) -> tuple[int, dict[str, bytes]]:
    """Draw how much was known to be durable, and what a crash left of the rest."""
    grown = draw(st.sampled_from([ONE_FILE, SEVERAL_FILES]))
    known = draw(st.integers(0, len(BATCHES)))
    files = grown.with_end_at(known)
    data = files[grown.last_path]
    begin = grown.ends[known]
    # The last file may have been made after the durable end was written.
    assert begin or grown is SEVERAL_FILES
    kind = draw(st.sampled_from(["cut", "zeros", "garbage", "sectors", "bit", "longer"]))
    place = draw(st.integers(begin, len(data)))
    if kind == "cut":
        data = data[:place]
    elif kind == "zeros":
        data = data[:place] + bytes(len(data) - place)
    elif kind == "garbage":
        end = draw(st.integers(place, len(data)))
        garbage = random.Random(draw(st.integers(0, 99))).randbytes(end - place)
        data = data[:place] + garbage + data[end:]
    elif kind == "sectors":
        lost = draw(st.sets(st.integers(0, len(data) // 64)))
        pieces = [
            bytes(64) if start // 64 in lost and start >= begin else data[start : start + 64]
            for start in range(0, len(data), 64)
        ]
        data = b"".join(pieces)[: len(data)]
    elif kind == "bit" and place < len(data):
        data = flipped(data, place * 8 + draw(st.integers(0, 7)))
    else:
        data += draw(st.binary(max_size=200))
    return known, files | {grown.last_path: data}


@given(spoilt_tails())
@examples(300)
def test_a_spoilt_tail_is_cut_to_a_chained_prefix_with_all_that_was_durable(
    spoilt: tuple[int, dict[str, bytes]],
) -> None:
    known, files = spoilt
    disk = disk_of(files)
    log, report = recover(disk)
    recovered = records_of(log)
    assert report.damages == damages_of(log) == []
    assert starts_with(recovered, ONE_FILE.records[known])
    assert starts_with(ONE_FILE.records[-1], recovered)
    assert log.next_sequence == (recovered[-1][0] + 1 if recovered else 2)

    # Once more: nothing left to do, and the same log.
    again = disk_of(disk.contents())
    log, report = recover(again)
    assert (report.damages, report.cut, report.kept_batches) == ([], [], 0)
    assert records_of(log) == recovered

    # And it goes on.
    log.append([messages([b"after"])], append_ms=NOW_MS)
    expected = [*recovered, (recovered[-1][0] + 1 if recovered else 2, b"boarding", b"after")]
    assert records_of(log) == expected
    log, _ = recover(disk_of(again.contents()))
    assert records_of(log) == expected


def test_what_is_kept_beyond_the_durable_end_is_written_again_and_fsynced() -> None:
    disk = disk_of(ONE_FILE.with_end_at(2))
    before = dict(disk.counts)
    log, report = recover(disk)
    assert report.kept_batches == len(BATCHES) - 2
    assert report.durable_sequence < report.last_sequence == log.next_sequence - 1
    # Each kept batch, and the slots of the durable end.
    assert disk.counts["write"] - before["write"] == report.kept_batches + 2
    assert disk.counts["sync"] - before["sync"] == 3


def batch_at(append: int) -> int:
    """Return where the batch of an append begins in the one file."""
    return ONE_FILE.ends[append - 1]


def test_records_that_anything_on_the_disk_speaks_of_are_not_cut() -> None:
    last = ONE_FILE.next_sequence - 1
    files = ONE_FILE.with_end_at(0)
    place = batch_at(len(BATCHES)) + 20
    files[ONE_FILE.last_path] = flipped(files[ONE_FILE.last_path], place * 8)
    for checkpoint_sequence, known_sequence in ((last, 0), (0, last)):
        log, report = recover(
            disk_of(files), checkpoint_sequence=checkpoint_sequence, known_sequence=known_sequence
        )
        assert report.cut == []
        # Of records below the checkpoint nobody asks here.
        assert [damage.next_sequence for damage in report.damages] == [last + 1]
        assert log.next_sequence == last + 1
    log, report = recover(disk_of(files))
    assert report.damages == []
    assert [cut.first_sequence for cut in report.cut] == [last - 1]
    assert log.next_sequence == last - 1


def test_a_file_name_is_proof_that_what_came_before_was_durable() -> None:
    files = SEVERAL_FILES.with_end_at(0)
    first = log_file("message_log", 1).path
    files[first] = files[first][:-1]
    log, report = recover(disk_of(files))
    assert report.cut == []
    assert len(report.damages) == 1
    assert log.next_sequence == SEVERAL_FILES.next_sequence


def test_the_last_file_is_not_cut_because_those_before_it_are_gone() -> None:
    kept = (SEVERAL_FILES.last_path, END)
    log, report = recover(disk_of({path: SEVERAL_FILES.files[-1][path] for path in kept}))
    assert report.cut == []
    first = log.files()[0].first_sequence
    [damage] = report.damages
    assert (damage.first_sequence, damage.next_sequence) == (1, first)
    assert records_of(log) == [record for record in SEVERAL_FILES.records[-1] if record[0] >= first]


@pytest.mark.parametrize("left", [b"", b"DWLG", bytes(64), bytes(4096)])
def test_a_file_that_was_just_being_made_is_removed(left: bytes) -> None:
    path = log_file("message_log", ONE_FILE.next_sequence).path
    disk = disk_of(ONE_FILE.files[-1] | {path: left})
    log, report = recover(disk)
    assert report.damages == []
    assert [cut.path for cut in report.cut] == [path]
    assert not disk.exists(path)
    log.append([messages([b"after"])], append_ms=NOW_MS)
    assert records_of(log)[:-1] == ONE_FILE.records[-1]


def test_a_lost_durable_header_does_not_hide_where_the_tail_begins() -> None:
    files = ONE_FILE.with_end_at(4)
    data = flipped(files[ONE_FILE.last_path], (batch_at(4) + 20) * 8)
    torn = data[: ONE_FILE.ends[4]] + bytes(len(data) - ONE_FILE.ends[4])
    log, report = recover(disk_of(files | {ONE_FILE.last_path: torn}))
    [damage], [cut] = report.damages, report.cut
    assert (damage.position, damage.size) == (batch_at(4), ONE_FILE.ends[4] - batch_at(4))
    assert (damage.first_sequence, damage.next_sequence) == (8, 10)
    assert cut.position == ONE_FILE.ends[4]
    [batch] = log.append([messages([b"after"])], append_ms=NOW_MS)
    assert batch.header.base_sequence == 10
    assert records_of(log) == [*ONE_FILE.records[3], (10, b"boarding", b"after")]


def test_a_file_cut_short_below_the_durable_end_keeps_the_numbers() -> None:
    for size in range(0, ONE_FILE.ends[-1], 13):
        files = ONE_FILE.files[-1] | {
            ONE_FILE.last_path: ONE_FILE.files[-1][ONE_FILE.last_path][:size]
        }
        disk = disk_of(files)
        log, report = recover(disk)
        assert report.cut == []
        assert report.damages[-1].next_sequence == ONE_FILE.next_sequence
        assert log.next_sequence == ONE_FILE.next_sequence
        kept = records_of(log)
        assert starts_with(ONE_FILE.records[-1], kept)
        log.append([messages([b"after"])], append_ms=NOW_MS)
        expected = [*kept, (ONE_FILE.next_sequence, b"boarding", b"after")]
        assert records_of(log) == expected
        log, _ = recover(disk_of(disk.contents()))
        assert records_of(log) == expected


def test_files_that_are_gone_are_missed() -> None:
    log, report = recover(disk_of({END: ONE_FILE.files[-1][END]}))
    [damage] = report.damages
    assert (damage.first_sequence, damage.next_sequence) == (1, ONE_FILE.next_sequence)
    [batch] = log.append([messages([b"after"])], append_ms=NOW_MS)
    assert (batch.header.base_sequence, batch.header.epoch) == (ONE_FILE.next_sequence, 1)

    files = dict(SEVERAL_FILES.files[-1])
    del files[log_file("message_log", 1).path]
    log, report = recover(disk_of(files))
    assert [damage.first_sequence for damage in report.damages] == [1]
    first = log.files()[0].first_sequence
    assert records_of(log) == [record for record in SEVERAL_FILES.records[-1] if record[0] >= first]
    # Where the checkpoint covers them, nobody needs them.
    log, report = recover(disk_of(files), checkpoint_sequence=first - 1)
    assert report.damages == []


def test_any_flipped_bit_is_reported_or_leaves_everything_as_it_was() -> None:
    for grown in (ONE_FILE, SEVERAL_FILES):
        chance = random.Random(1)
        places = [
            (path, bit) for path, data in grown.files[-1].items() for bit in range(len(data) * 8)
        ]
        for path, bit in chance.sample(places, 400):
            files = dict(grown.files[-1])
            files[path] = flipped(files[path], bit)
            log, report = recover(disk_of(files))
            assert report.cut == []
            assert log.next_sequence == grown.next_sequence
            found = records_of(log)
            lost = {
                sequence
                for damage in report.damages
                for sequence in range(damage.first_sequence or 0, damage.next_sequence or 0)
            }
            assert found == [record for record in grown.records[-1] if record[0] not in lost]
            assert report.damages or path == END
            assert damages_of(log) == report.damages


def lost(data: bytes, how: str) -> bytes | None:
    """Return what is left of a durable end; None if nothing is."""
    left = {
        "gone": None,
        "empty": b"",
        "zeros": bytes(1024),
        "short": data[:512],
        "a slot cut": data[:560],
        "bad slots": flipped(flipped(data, 90), 512 * 8 + 90),
        "other bytes": bytes(range(256)) * 4,
    }
    return left[how]


LOST = [
    "gone",
    "empty",
    "zeros",
    "short",
    "a slot cut",
    "bad slots",
    "other bytes",
]


def with_end_lost(how: str) -> dict[str, bytes]:
    """Return a log whose durable end is lost; what is left of it says less than it did."""
    files = dict(ONE_FILE.files[-1])
    end = files.pop(END)
    older, newest = sorted(
        (end[:512], end[512:]), key=lambda slot: int.from_bytes(slot[8:16], "little")
    )
    left = lost(older + newest, how)
    return files if left is None else files | {END: left}


@pytest.mark.parametrize("how", LOST)
def test_a_lost_durable_end_is_damage_and_made_anew(how: str) -> None:
    disk = disk_of(with_end_lost(how))
    log, report = recover(disk)
    assert [damage.path for damage in report.damages] == [END]
    assert report.cut == []
    assert records_of(log) == ONE_FILE.records[-1]
    assert log.append([messages([b"more"])], append_ms=NOW_MS)
    disk.power_cut()
    log, report = recover(disk.revive())
    assert (report.damages, report.cut) == ([], [])
    assert len(records_of(log)) == len(ONE_FILE.records[-1]) + 1


@pytest.mark.parametrize("how", LOST)
@pytest.mark.parametrize("end", ["cut short", "bad", "torn header", "zeros behind it"])
def test_without_its_durable_end_nothing_is_cut_off_a_log(how: str, end: str) -> None:
    files = with_end_lost(how)
    path = ONE_FILE.last_path
    data = files[path]
    if end == "cut short":
        files[path] = data[:-1]
    elif end == "bad":
        files[path] = flipped(data, batch_at(len(BATCHES)) * 8 + 300)
    elif end == "torn header":
        files[log_file("message_log", ONE_FILE.next_sequence).path] = b"DWLG"
    else:
        files[path] += bytes(100)
    disk = disk_of(files)
    with pytest.raises(LogStateError, match="cannot tell whether that was acknowl") as caught:
        recover(disk)
    assert disk.contents() == files
    said = str(caught.value)
    assert END in said
    # What it says to do, it stands by.
    found = re.search(r"`truncate -s (\d+) (\S+)`", said)
    assert found is not None
    size, cut = int(found[1]), found[2]
    _, report = recover(disk_of(files | {cut: files[cut][:size]}))
    assert [damage.path for damage in report.damages] == [END]
    assert [cut for cut in report.cut if cut.size] == []


def test_without_its_durable_end_a_log_goes_by_what_a_damaged_last_batch_says_of_itself() -> None:
    disk = new_disk()
    log, _ = recover(disk)
    log.append([messages([b"a"])], append_ms=NOW_MS)
    path, floor = log.files()[-1].path, log.last_floor_minute
    begin = len(disk.contents()[path])
    log.start_epoch(2, append_ms=NOW_MS)
    end = len(disk.contents()[path])
    log.append([messages([b"b"])], floor_minute=floor + 1, append_ms=NOW_MS)
    last = log.next_sequence - 1
    files = disk.contents()
    del files[END]
    # Of the epoch's start nothing is left, and of the last batch a bit of its item is wrong.
    data = files[path][:begin] + bytes(end - begin) + files[path][end:]
    files[path] = flipped(data, 8 * len(data) - 1)
    log, report = recover(disk_of(files), known_sequence=last, had_checkpoint=True)
    assert [damage.path for damage in report.damages] == [END, path, path]
    assert (log.next_sequence, log.last_epoch) == (last + 1, 2)
    assert log.last_floor_minute == floor + 1


@pytest.mark.parametrize("slot", SLOT_POSITIONS)
def test_a_torn_slot_is_written_again_by_the_next_start(slot: int) -> None:
    files = dict(ONE_FILE.files[-1])
    files[END] = flipped(files[END], (slot + 40) * 8)
    disk = disk_of(files)
    log, report = recover(disk, had_checkpoint=True)
    log.close()
    assert report.damages == []
    reader = DurableEndReader(disk, "message_log", log_uuid=LOG_UUID)
    end = reader.read()
    assert end is not None
    assert end.next_sequence == log.next_sequence
    assert reader.damaged_slot is None


def test_only_a_log_that_was_never_begun_may_be_without_a_durable_end() -> None:
    begun = dict(ONE_FILE.files[0])
    end = begun.pop(END)
    assert recover(new_disk())[1].damages == []
    assert [damage.path for damage in recover(disk_of(begun))[1].damages] == [END]
    found = recover(new_disk(), had_checkpoint=True)[1].damages
    assert [damage.path for damage in found] == [END]
    assert recover(disk_of({END: end}), had_checkpoint=True)[1].damages != []


def test_a_power_cut_at_any_operation_of_the_first_start_leaves_a_log_without_damage() -> None:
    for plan in (CALM, HARSH, FaultPlan(lose_writes=1, tear=1, lose_names=1)):
        for seed in range(6):
            for skip in range(30):
                disk = SimDisk(random.Random(seed), plan=plan)
                disk.arm(Trap(action=Action.POWER_CUT, skip=skip))
                acknowledged = 0
                had_checkpoint = False
                try:
                    log = unbegun(disk)
                    # The first checkpoint is written now.
                    had_checkpoint = True
                    log.start_epoch(1, append_ms=NOW_MS)
                    for _ in range(3):
                        log.append([messages([b"a"])], append_ms=NOW_MS)
                        acknowledged += 1
                except PowerCut:
                    disk = disk.revive()
                disk.disarm()
                log, report = recover(disk, had_checkpoint=had_checkpoint)
                assert report.damages == []
                assert len(records_of(log)) >= acknowledged


def test_a_log_of_which_nothing_can_be_read_is_refused() -> None:
    path = log_file("message_log", 1).path
    with pytest.raises(LogStateError, match="epoch is not known"):
        recover(disk_of({path: bytes(500)}), checkpoint_sequence=9)


def test_a_read_error_beyond_the_durable_end_cuts_nothing() -> None:
    disk = disk_of(ONE_FILE.with_end_at(0))
    before = disk.contents()
    disk.arm(
        # The two slots of the durable end, then the whole file, then its only block.
        Trap(action=Action.EIO, kinds={"read"}, skip=2),
        Trap(action=Action.EIO, kinds={"read"}, skip=2),
    )
    with pytest.raises(FatalDiskError, match="read error"):
        recover(disk)
    assert disk.contents() == before


def newer_batch(data: bytes, position: int) -> bytes:
    """Return a file in which a batch of a newer version lies at a position."""
    header = struct.pack("<4sHH", b"DWB1", 3, 96) + bytes(84)
    return data[:position] + header + struct.pack("<I", zlib.crc32(header, SEED)) + bytes(50)


def newer_file(data: bytes, _position: int) -> bytes:
    header = struct.pack("<4sHH", b"DWLG", 3, 128) + bytes(116)
    return header + struct.pack("<I", zlib.crc32(header)) + data[128:]


@pytest.mark.parametrize("known", [0, len(BATCHES)], ids=["beyond", "below"])
@pytest.mark.parametrize("newer", [newer_batch, newer_file])
def test_what_a_newer_version_wrote_is_refused_and_left_alone(
    newer: Callable[[bytes, int], bytes], known: int
) -> None:
    files = ONE_FILE.with_end_at(known)
    files[ONE_FILE.last_path] = newer(files[ONE_FILE.last_path], batch_at(3))
    disk = disk_of(files)
    with pytest.raises(UnsupportedFormatError, match=r"version 3 .* newer delaywheel, upgrade"):
        recover(disk)
    assert disk.contents() == files


def test_the_log_of_another_group_is_refused_and_left_alone() -> None:
    for path in (END, ONE_FILE.last_path):
        disk = disk_of({path: ONE_FILE.files[-1][path]})
        before = disk.contents()
        with pytest.raises(DataDirectoryError, match="belongs to log 6a0f3c52"):
            MessageLog.recover(
                disk,
                log_uuid=OTHER_UUID,
                checkpoint_sequence=0,
                known_sequence=0,
                had_checkpoint=True,
            )
        assert disk.contents() == before


def grow_until_cut(disk: SimDisk, chance: random.Random, attempts: list[bytes]) -> list[bytes]:
    """Recover, append and sync at random until the power is cut; return what was acknowledged."""
    acknowledged: list[bytes] = []
    try:
        log, _ = recover(disk, file_bytes_max=900)
        while True:
            items = [b"%d" % (len(attempts) + place) * 9 for place in range(chance.randint(1, 4))]
            attempts += items
            try:
                log.append([messages(items)], append_ms=NOW_MS)
            except StorageFullError:
                continue
            acknowledged += items
            if chance.random() < 0.3:
                log.sync_durable_end()
    except (PowerCut, FatalDiskError, StorageFullError):
        return acknowledged


@pytest.mark.parametrize("plan", [HARSH, FaultPlan(), CALM], ids=["harsh", "usual", "calm"])
@seeds_in_parts(60)
def test_whatever_was_acknowledged_survives_crash_after_crash(
    seeds: range, plan: FaultPlan
) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        disk = SimDisk(random.Random(seed + 1), plan=plan)
        attempts: list[bytes] = []
        acknowledged: list[bytes] = []
        before: list[Record] = []
        for _ in range(5):
            disk.arm(Trap(action=Action.POWER_CUT, skip=chance.randrange(60)))
            if chance.random() < 0.3:
                disk.arm(Trap(action=Action.FULL, skip=chance.randrange(30)))
            if chance.random() < 0.3:
                disk.arm(Trap(action=Action.EIO, kinds={"sync"}, skip=chance.randrange(10)))
            acknowledged += grow_until_cut(disk, chance, attempts)
            if disk.death is None:
                disk.power_cut()
            disk = disk.revive()
            log, report = recover(disk, file_bytes_max=900)
            found = records_of(log)
            items = [item for _, _, item in found]
            assert report.damages == damages_of(log) == []
            assert [sequence for sequence, _, _ in found] == list(range(2, len(found) + 2))
            assert starts_with(found, before)
            assert set(acknowledged) <= set(items) <= set(attempts)
            order = [attempts.index(item) for item in items]
            assert order == sorted(set(order))
            before = found
            if chance.random() < 0.5:
                disk.power_cut()
            disk = disk.revive()


@seeds_in_parts(120)
def test_a_crash_during_recovery_is_recovered_from(seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        known = chance.randrange(len(BATCHES) + 1)
        files = ONE_FILE.with_end_at(known)
        if chance.random() < 0.5:
            size = chance.randint(ONE_FILE.ends[known], ONE_FILE.ends[-1])
            files[ONE_FILE.last_path] = files[ONE_FILE.last_path][:size]
        disk = disk_of(files).revive(HARSH)
        records = ONE_FILE.records[known]
        for _ in range(3):
            disk.arm(Trap(action=Action.POWER_CUT, skip=chance.randrange(25)))
            try:
                recover(disk)
            except PowerCut:
                pass
            except StorageError as error:
                raise AssertionError(seed) from error
            disk = disk.revive()
        log, report = recover(disk)
        assert report.damages == []
        assert starts_with(records_of(log), records)
        assert starts_with(ONE_FILE.records[-1], records_of(log))


def test_a_file_that_was_damaged_where_the_one_before_it_ends_is_still_one_of_the_log() -> None:
    files = SEVERAL_FILES.files[-1]
    paths = sorted(path for path in files if path != END)
    struck = files | {paths[1]: bytes(len(files[paths[1]]))}
    _, report = recover(disk_of(struck))
    assert {damage.path for damage in report.damages} == {paths[1]}
    assert all("no part of the log" not in damage.reason for damage in report.damages)
    assert any(damage.next_sequence is not None for damage in report.damages)
