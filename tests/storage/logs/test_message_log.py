"""What append returned for is durable and is read back exactly; a failed append leaves no trace."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.batch.batches import Damage, LogBatch, decode_header, log_seed
from storage.batch.columns import RecordKind
from storage.batch.file_header import LogKind
from storage.disk.disk import DirectoryDisk
from storage.disk.errors import DamagedError, FatalDiskError, StorageFullError
from storage.logs.message_log import Draft
from storage.state.durable_end import DurableEndFile
from tests.seeds import examples, seeds_in_parts
from tests.simulation.disk import SimDisk
from tests.simulation.faults import CALM, HARSH, Action, Kill, Stage, Trap
from tests.storage.qmq_items import qmq_item
from tests.storage.small_logs import (
    LOG_UUID,
    NOW_MS,
    Record,
    damages_of,
    messages,
    new_disk,
    records_of,
    recover,
    unbegun,
)
from tests.storage.worked_examples import worked_examples

END = "message_log/durable_end"


def expected_of(batches: Sequence[Sequence[bytes]], first: int = 2) -> list[Record]:
    return [
        (sequence, b"boarding", item)
        for sequence, item in enumerate(itertools.chain.from_iterable(batches), first)
    ]


FLOOR = Draft(kind=RecordKind.FLOOR, count=1)


def test_a_new_log_begins_with_its_first_epoch() -> None:
    disk = new_disk()
    log = unbegun(disk)
    assert (log.next_sequence, log.last_epoch) == (1, 0)
    assert log.files() == ()
    header = log.start_epoch(1, append_ms=NOW_MS).header
    assert (header.kind, header.base_sequence, header.epoch) == (RecordKind.EPOCH_START, 1, 1)
    assert (log.next_sequence, log.last_epoch) == (2, 1)


def test_nothing_may_come_before_the_first_epoch_and_epochs_only_grow() -> None:
    log = unbegun(new_disk())
    with pytest.raises(AssertionError, match="EPOCH_START"):
        log.append([messages([b"a"])], append_ms=NOW_MS)
    log.start_epoch(3, append_ms=NOW_MS)
    with pytest.raises(AssertionError, match="epoch 3 after 3"):
        log.start_epoch(3, append_ms=NOW_MS)
    assert log.append([messages([b"a"])], append_ms=NOW_MS)[0].header.epoch == 3


def test_columns_are_read_from_any_record_on_and_past_a_file_that_is_damaged() -> None:
    disk = new_disk()
    log, _ = recover(disk, file_bytes_max=400)
    for number in range(12):
        log.append([messages([b"item" * 30, b"another"])], append_ms=NOW_MS + 1000 * number)
    files = log.files()
    assert len(files) > 3
    whole = {
        batch.header.base_sequence: batch.columns.arrays["due_ms"].tolist()
        for batch in log.read(1)
        if isinstance(batch, LogBatch) and batch.header.kind is RecordKind.MESSAGE
    }
    for first in range(1, log.next_sequence + 1):
        found = {
            header.base_sequence: columns.arrays["due_ms"].tolist()
            for header, columns in log.read_columns(first)
            if header.kind is RecordKind.MESSAGE
        }
        assert found == {at: dues for at, dues in whole.items() if at + 2 > first}
        since_ms = NOW_MS + 500 * first
        behind = log.first_since(since_ms)
        late = [h.append_ms > since_ms for h, _ in log.read_columns(1) if h.base_sequence < behind]
        assert not any(late)
    damaged = disk.open(files[1].path)
    damaged.write_at(90, [b"\0" * 8])
    damaged.close()
    left = [header.base_sequence for header, _ in log.read_columns(1)]
    lost = range(files[1].first_sequence, files[2].first_sequence)
    assert left == [at for at in (1, *whole) if at not in lost]
    disk.unlink(files[1].path)
    assert [header.base_sequence for header, _ in log.read_columns(1)] == left
    assert log.first_since(NOW_MS + 11_000) >= files[-1].first_sequence
    assert log.first_since(NOW_MS) == 1


batch_lists = st.lists(
    st.lists(st.lists(st.binary(max_size=200), min_size=1, max_size=8), min_size=1, max_size=4),
    max_size=6,
)


@given(batch_lists, st.integers(200, 3000))
@examples(60)
def test_what_was_appended_is_read_in_order_over_all_files(
    appends: list[list[list[bytes]]], file_bytes_max: int
) -> None:
    disk = new_disk()
    log, _ = recover(disk, file_bytes_max=file_bytes_max)
    for batches in appends:
        appended = log.append([messages(items) for items in batches], append_ms=NOW_MS)
        assert [batch.header.count for batch in appended] == [len(items) for items in batches]
        assert appended[-1].header.next_sequence == log.next_sequence
    expected = expected_of([items for batches in appends for items in batches])
    assert records_of(log) == expected
    assert damages_of(log) == []
    for sequence in range(1, log.next_sequence + 2):
        records = records_of(log, sequence)
        assert records == expected[len(expected) - len(records) :]
        assert {record for record in expected if record[0] >= sequence} <= set(records)
        assert not records or records[-1][0] >= sequence


def test_reading_ends_with_what_was_durable_when_it_began() -> None:
    log, _ = recover(new_disk(), file_bytes_max=400)
    log.append([messages([b"a"])], append_ms=NOW_MS)
    reading = log.read(1)
    first = next(reading)
    assert isinstance(first, LogBatch)
    for _ in range(5):
        log.append([messages([b"later" * 20])], append_ms=NOW_MS)
    assert len(list(reading)) == 1


def test_a_batch_of_every_kind_comes_back() -> None:
    log, _ = recover(new_disk())
    item = {
        "due_ms": np.array([7]),
        "id_hash": np.array([8], "u8"),
        "size": np.array([3], "u4"),
        "subject": np.array([0], "u2"),
    }
    old = {"old_sequence": np.array([1]), "old_minute": np.array([2], "u4")}
    reason = {"reason": np.array([1], "u2")}
    drafts = [
        FLOOR,
        Draft(kind=RecordKind.CANCEL, count=1, arrays=old),
        Draft(kind=RecordKind.MOVE, count=1, names=[b"s"], arrays=old | item, blob=[b"abc"]),
        Draft(
            kind=RecordKind.DEAD, count=1, names=[b"s", b"why"],
            arrays=old | item | reason, blob=[b"a", b"bc"],
        ),
    ]  # fmt: skip
    appended = log.append(drafts, floor_minute=6, append_ms=NOW_MS)
    assert log.last_floor_minute == 6
    for batch, again, draft in zip(log.read(2), appended, drafts, strict=True):
        assert isinstance(batch, LogBatch)
        assert batch.header == again.header
        assert batch.header.kind is draft.kind
        for one in (batch, again):
            assert bytes(one.blob) == b"".join(draft.blob)
            assert {name: array.tolist() for name, array in one.columns.arrays.items()} == {
                name: array.tolist() for name, array in draft.arrays.items()
            }


def test_an_append_is_one_write_and_one_fsync_of_the_log() -> None:
    disk = new_disk()
    log, _ = recover(disk)
    before = dict(disk.counts)
    log.append([messages([b"a"]), FLOOR, messages([b"b"])], append_ms=1)
    # The second write is the durable end's.
    assert disk.counts["write"] == before["write"] + 2
    assert disk.counts["sync"] == before["sync"] + 1
    synced_before = log.durable_end_synced
    log.sync_durable_end()
    assert (synced_before, log.durable_end_synced) == (False, True)
    assert disk.counts["sync"] == before["sync"] + 2


def test_an_empty_append_does_nothing() -> None:
    disk = new_disk()
    log, _ = recover(disk)
    before = disk.operations
    assert log.append([], append_ms=1) == []
    assert disk.operations == before


@pytest.mark.parametrize("seed", range(20))
def test_what_a_start_cut_stays_cut_though_it_was_killed_before_its_fsync(seed: int) -> None:
    disk = new_disk(seed)
    log, _ = recover(disk)
    log.append([messages([b"a"] * 3)], append_ms=NOW_MS)
    log.sync_durable_end()
    path, end = log.files()[-1].path, log.next_sequence
    # What is left of an append that a power cut ended.
    file = disk.open(path)
    file.write_at(file.size(), [b"torn" * 10])
    file.sync()
    disk = disk.revive()
    disk.arm(Trap(action=Action.KILL, kinds={"truncate"}, stage=Stage.AFTER))
    with pytest.raises(Kill):
        recover(disk)
    disk = disk.revive()
    log, report = recover(disk)
    assert report.cut == []
    disk.power_cut()
    log, report = recover(disk.revive())
    assert (log.next_sequence, report.cut, report.damages) == (end, [], [])


def test_bytes_written_counts_batches() -> None:
    log, _ = recover(new_disk())
    before = log.bytes_written
    batches = log.append([messages([b"a"]), messages([b"b"])], append_ms=NOW_MS)
    assert log.bytes_written == before + sum(batch.header.size for batch in batches)


def test_a_file_is_rolled_before_it_grows_beyond_its_size() -> None:
    disk = new_disk()
    log, _ = recover(disk, file_bytes_max=1000)
    for _ in range(10):
        log.append([messages([b"a" * 300])], append_ms=NOW_MS)
    log.append([messages([b"a" * 3000])], append_ms=NOW_MS)
    log.append([messages([b"a"])], append_ms=NOW_MS)
    files = disk.contents()
    sizes = [len(files[file.path]) for file in log.files()]
    assert len(sizes) > 4
    assert [size for size in sizes if size > 1000] == [sizes[-2]]
    assert [file.first_sequence for file in log.files()][-1] == log.next_sequence - 1


@pytest.mark.parametrize("file_bytes_max", [1 << 20, 300], ids=["same file", "new file"])
@pytest.mark.parametrize("kind", ["write", "create"])
def test_a_full_disk_refuses_an_append_and_the_log_goes_on(kind: str, file_bytes_max: int) -> None:
    for skip in range(3):
        disk = new_disk(skip)
        log, _ = recover(disk, file_bytes_max=file_bytes_max)
        log.append([messages([b"before" * 20])], append_ms=NOW_MS)
        files, before = log.files(), disk.contents()
        disk.arm(
            Trap(
                action=Action.FULL,
                kinds={kind},
                skip=skip,
                when=lambda _kind, path, _label: path != END,
            )
        )
        refused = [messages([b"refused" * 30]), messages([b"this too"])]
        try:
            log.append(refused, append_ms=NOW_MS)
        except StorageFullError:
            assert (log.next_sequence, log.files()) == (3, files)
            log_bytes = {path: disk.contents()[path] for path in before if ".log" in path}
            assert log_bytes == {path: data for path, data in before.items() if ".log" in path}
            kept = [[b"before" * 20]]
        else:
            # The trap waits for more operations of its kind than an append has.
            assert disk.fired == []
            disk.disarm()
            kept = [[b"before" * 20], [b"refused" * 30], [b"this too"]]
        log.append([messages([b"after"])], append_ms=NOW_MS)
        expected = expected_of([*kept, [b"after"]])
        assert records_of(log) == expected
        disk.plan = HARSH
        disk.power_cut()
        log, report = recover(disk.revive(CALM))
        assert records_of(log) == expected
        assert (report.damages, report.cut) == ([], [])


@seeds_in_parts(60)
def test_what_a_full_disk_let_through_never_comes_back(seeds: range) -> None:
    for seed in seeds:
        disk = new_disk(seed)
        disk.plan = HARSH
        log, _ = recover(disk, file_bytes_max=700)
        log.append([messages([b"before"])], append_ms=NOW_MS)
        disk.arm(Trap(action=Action.FULL, kinds={"write"}))
        with pytest.raises(StorageFullError):
            log.append([messages([b"refused" * 20])], append_ms=NOW_MS)
        # This one goes to a new file, so that the old one is not written to any more.
        log.append([messages([b"after" * 100])], append_ms=NOW_MS)
        assert len(log.files()) == 2
        disk.power_cut()
        log, report = recover(disk.revive())
        assert records_of(log) == expected_of([[b"before"], [b"after" * 100]])
        assert (report.damages, report.cut) == ([], [])


def test_a_durable_end_that_finds_no_space_is_written_later() -> None:
    disk = new_disk()
    log, _ = recover(disk)
    log.sync_durable_end()
    for _ in range(2):
        disk.arm(
            Trap(action=Action.FULL, kinds={"write"}, when=lambda _kind, path, _label: path == END)
        )
    log.append([messages([b"kept"])], append_ms=NOW_MS)
    log.sync_durable_end()
    synced_before = log.durable_end_synced
    log.sync_durable_end()
    assert (synced_before, log.durable_end_synced) == (False, True)
    end = DurableEndFile(disk, "message_log", log_uuid=LOG_UUID).read()
    assert end is not None
    assert end.next_sequence == log.next_sequence == 3
    assert records_of(log) == expected_of([[b"kept"]])


@pytest.mark.parametrize("kind", ["write", "sync", "create", "sync_directory"])
def test_after_a_failed_write_or_fsync_it_refuses_everything(kind: str) -> None:
    disk = new_disk()
    log, _ = recover(disk, file_bytes_max=100)
    log.append([messages([b"before"])], append_ms=NOW_MS)
    disk.arm(Trap(action=Action.EIO, kinds={kind}))
    with pytest.raises(FatalDiskError):
        log.append([messages([b"failed"])], append_ms=NOW_MS)
    for _ in range(2):
        with pytest.raises(FatalDiskError, match="a restart recovers it"):
            log.append([messages([b"refused"])], append_ms=NOW_MS)
        with pytest.raises(FatalDiskError, match="a restart recovers it"):
            log.sync_durable_end()
    assert records_of(log) == expected_of([[b"before"]])


def test_a_log_that_is_not_in_its_place_takes_nothing_more() -> None:
    disk = new_disk()
    log, _ = recover(disk)
    log.require_in_place()
    log.append([messages([b"before"])], append_ms=NOW_MS)
    log.require_in_place()
    (path,) = (file.path for file in log.files())
    disk.put(path, disk.content(path))
    with pytest.raises(FatalDiskError, match="is not what this process has opened"):
        log.require_in_place()
    with pytest.raises(FatalDiskError, match="a restart recovers it"):
        log.append([messages([b"refused"])], append_ms=NOW_MS)


def test_a_failed_sync_of_the_durable_end_stops_appends_too() -> None:
    disk = new_disk()
    log, _ = recover(disk)
    log.append([messages([b"a"])], append_ms=NOW_MS)
    disk.arm(Trap(action=Action.EIO, kinds={"sync"}))
    with pytest.raises(FatalDiskError):
        log.sync_durable_end()
    with pytest.raises(FatalDiskError, match="a restart recovers it"):
        log.append([messages([b"b"])], append_ms=NOW_MS)


@seeds_in_parts(40)
def test_what_a_failed_fsync_left_in_the_page_cache_is_not_believed_after_a_restart(
    seeds: range,
) -> None:
    for seed in seeds:
        disk = new_disk(seed)
        log, _ = recover(disk)
        log.append([messages([b"before"])], append_ms=NOW_MS)
        disk.arm(Trap(action=Action.EIO, kinds={"sync"}))
        with pytest.raises(FatalDiskError):
            log.append([messages([b"uncertain" * 100])], append_ms=NOW_MS)
        disk.kill()
        disk = disk.revive(HARSH)
        log, _ = recover(disk)
        recovered = records_of(log)
        log.append([messages([b"after"])], append_ms=NOW_MS)
        disk.power_cut()
        log, report = recover(disk.revive())
        assert report.damages == []
        assert records_of(log)[:-1] == recovered
        assert records_of(log)[-1][2] == b"after"


def test_a_batch_that_contradicts_itself_is_refused_and_the_log_goes_on() -> None:
    log, _ = recover(new_disk())
    good = messages([b"one", b"two"])
    with pytest.raises(ValueError, match="2 rows, not 3"):
        log.append([replace(good, count=3)], append_ms=NOW_MS)
    with pytest.raises(ValueError, match="6 bytes in a blob of 7"):
        log.append([replace(good, blob=[b"one", b"two!"])], append_ms=NOW_MS)
    with pytest.raises(ValueError, match="a table of 0"):
        log.append([replace(good, names=[])], append_ms=NOW_MS)
    log.append([FLOOR], floor_minute=2, append_ms=NOW_MS)
    with pytest.raises(AssertionError, match="floor 1 after 2"):
        log.append([good], floor_minute=1, append_ms=NOW_MS)
    log.append([good], append_ms=NOW_MS)
    assert records_of(log) == expected_of([[b"one", b"two"]], first=3)


def test_a_sector_that_cannot_be_read_costs_its_batch_and_no_others() -> None:
    disk = new_disk()
    log, _ = recover(disk)
    for number in range(3):
        log.append([messages([bytes([number]) * 20_000])], append_ms=NOW_MS)
    disk.arm(
        Trap(action=Action.EIO, kinds={"read"}), Trap(action=Action.EIO, kinds={"read"}, skip=6)
    )
    found = list(log.read(1))
    assert [type(entry) for entry in found] == [LogBatch, LogBatch, Damage, LogBatch]


def test_it_works_on_a_real_directory(tmp_path: Path) -> None:
    log, _ = recover(DirectoryDisk(tmp_path), file_bytes_max=10_000)
    batches = [[bytes([number]) * 100] * 30 for number in range(10)]
    for items in batches:
        log.append([messages(items)], append_ms=NOW_MS)
    log.close()
    log, report = recover(DirectoryDisk(tmp_path), file_bytes_max=10_000)
    assert records_of(log) == expected_of(batches)
    assert (report.damages, report.cut, report.last_sequence) == ([], [], 301)
    log.append([messages([b"after"])], append_ms=NOW_MS)
    assert records_of(log, 302) == [(302, b"boarding", b"after")]


def test_the_worked_example_is_what_the_code_writes() -> None:
    disk = new_disk()
    log, _ = recover(disk)
    item = qmq_item(NOW_MS, b"boarding", b"UA-1523")
    log.append([messages([item])], floor_minute=NOW_MS // 60_000, append_ms=NOW_MS + 40)
    [example] = worked_examples("message_log.md")
    assert example == disk.contents()[log.files()[0].path]
    seed = log_seed(LOG_UUID, LogKind.MESSAGE_LOG)
    assert decode_header(example[64:], seed=seed, path="", position=64).next_sequence == 2


def test_messages_are_counted_from_the_file_on_in_which_they_are() -> None:
    disk = new_disk()
    log, _ = recover(disk, file_bytes_max=600)
    for _ in range(6):
        log.append([messages([b"x" * 100] * 2)], append_ms=NOW_MS)
    log.append([Draft(kind=RecordKind.FLOOR, count=1)], append_ms=NOW_MS)
    firsts = [file.first_sequence for file in log.files()]
    assert len(firsts) >= 3
    assert log.messages_from(firsts[0]) == 12
    # Each file has the records up to the next; the first has the EPOCH_START, the last the FLOOR.
    assert [log.messages_from(first) for first in firsts[1:]] == [
        14 - first for first in firsts[1:]
    ]
    log.drop_before(firsts[1])
    assert log.messages_from(firsts[1]) == 14 - firsts[1]
    log.cut_to(1, firsts[2], not_below=1)
    assert log.messages_from(firsts[1]) == 0, "what is cut is counted no more, nor what is left"


# -- an append in two steps ------------------------------------------------------------------


def test_what_is_written_is_no_part_of_the_log_before_it_is_synced() -> None:
    disk = new_disk()
    log, _ = recover(disk)
    before = records_of(log), log.next_sequence, log.last_floor_minute
    written = log.write([messages([b"a"] * 2), messages([b"b"])], append_ms=NOW_MS, floor_minute=9)
    assert [batch.header.base_sequence for batch in written.batches] == [2, 4]
    assert (records_of(log), log.next_sequence, log.last_floor_minute) == before
    assert log.read_raw(2, bytes_max=1000).data == b""
    with pytest.raises(AssertionError, match="not synced"):
        log.append([messages([b"c"])], append_ms=NOW_MS)
    with pytest.raises(AssertionError, match="not synced"):
        log.cut_to(1, 1, not_below=1)
    log.sync_written()
    assert log.read_raw(2, bytes_max=1000).data == b"".join(written.buffers)
    assert (log.next_sequence, log.last_floor_minute) == (5, 9)
    log.sync_written()
    kept = records_of(log)
    disk.power_cut()
    again, report = recover(disk.revive())
    assert (report.damages, records_of(again)) == ([], kept)


@pytest.mark.parametrize("seed", range(40))
def test_an_append_in_two_steps_is_one_in_one_step_whatever_the_disk_does(seed: int) -> None:
    """Full, or failing, at any call: both logs say the same and leave the same bytes."""
    found = []
    for in_two_steps in (False, True):
        chance = random.Random(seed)
        disk = SimDisk(random.Random(seed), plan=CALM)
        log, _ = recover(disk, file_bytes_max=600)
        said: list[object] = []
        for _ in range(12):
            drafts = [messages([bytes(chance.randrange(90))])] * chance.choice([0, 1, 2])
            floor = log.last_floor_minute + chance.choice([0, 1])
            action = chance.choice([Action.FULL] * 5 + [Action.EIO])
            kinds = {chance.choice(["create", "write", "sync", "sync_directory"])}
            kinds = {"create", "write"} if action is Action.FULL else kinds
            if chance.random() < 0.4:
                disk.arm(Trap(action=action, kinds=kinds, skip=chance.randrange(3)))
            try:
                if in_two_steps:
                    log.write(drafts, append_ms=NOW_MS, floor_minute=floor)
                    log.sync_written()
                else:
                    log.append(drafts, append_ms=NOW_MS, floor_minute=floor)
            except (StorageFullError, FatalDiskError) as error:
                said.append(type(error))
            said += [log.next_sequence, log.last_floor_minute, log.bytes_written, log.files()]
        found.append((said, disk.contents()))
    assert found[0] == found[1]


def test_the_crc_before_a_record_is_that_of_the_batch_that_ends_there() -> None:
    disk = new_disk()
    log, _ = recover(disk, file_bytes_max=700)
    chance = random.Random(2)
    for number in range(30):
        log.append([messages([bytes([number]) * 50] * chance.randint(1, 4))], append_ms=NOW_MS)
    batches = [batch for batch in log.read(1) if not isinstance(batch, Damage)]
    ends = {1: 0} | {batch.header.next_sequence: batch.header.crc for batch in batches}
    assert len(log.files()) > 4
    for sequence in range(log.next_sequence + 3):
        assert log.crc_before(sequence) == ends.get(sequence)
    first = log.files()[2].first_sequence
    log.drop_before(first)
    for sequence in range(log.next_sequence + 3):
        assert log.crc_before(sequence) == (ends.get(sequence) if sequence >= first else None)
    # Where the file with it is gone nobody knows.
    for place, at_start in ((1, []), (0, [first])):
        gone, ends_at = log.files()[place], log.next_sequence - 1
        disk.unlink(gone.path)
        reopened, report = recover(
            disk, file_bytes_max=700, first_sequence=first, checkpoint_sequence=ends_at
        )
        with pytest.raises(DamagedError, match=f"record {gone.first_sequence + 1} is in no file"):
            reopened.crc_before(gone.first_sequence + 1)
        assert [damage.first_sequence for damage in report.damages] == at_start
    empty = unbegun(new_disk())
    assert [empty.crc_before(sequence) for sequence in range(3)] == [None, 0, None]


def test_the_epochs_of_a_log_are_told_by_appends_copies_cuts_and_starts() -> None:
    disk = new_disk()
    log, _ = recover(disk)
    for epoch in (4, 9):
        log.append([messages([b"a"] * 5)], append_ms=NOW_MS)
        log.start_epoch(epoch, append_ms=NOW_MS)
    assert log.epoch_starts == ((1, 1), (4, 7), (9, 13))
    assert recover(disk)[0].epoch_starts == log.epoch_starts
    copied = unbegun(new_disk())
    copied.append_copied(log.read_raw(1, bytes_max=1 << 20).data)
    assert copied.epoch_starts == log.epoch_starts
    assert log.cut_to(4, 13, not_below=1)
    assert list(log.epoch_starts) == [(1, 1), (4, 7)]
    assert recover(disk)[0].epoch_starts == log.epoch_starts
