"""A log is copied batch for batch; an end that another log contradicts is cut and kept aside."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.batch.batches import (
    HEADER_SIZE,
    Damage,
    LogBatch,
    decode_header,
    encode_batch,
    log_seed,
)
from storage.batch.columns import RecordKind
from storage.batch.file_header import LogKind
from storage.disk.errors import (
    CopyRefusedError,
    DamagedError,
    LogStateError,
    LogTrimmedError,
    StorageFullError,
)
from storage.logs import sparse_index
from storage.logs.message_log import MessageLog
from tests.simulation.disk import SimDisk
from tests.simulation.faults import CALM, HARSH, Action, PowerCut, Trap
from tests.storage.small_logs import LOG_UUID, NOW_MS, OTHER_UUID, messages, recover, unbegun

SMALL = 1200
"""Bytes of a file: a few batches."""


@pytest.fixture(autouse=True)
def _many_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an index entry for every other batch."""
    monkeypatch.setattr(sparse_index, "ENTRY_BYTES", 300)
    monkeypatch.setattr(sparse_index, "NOTED_BYTES", 300)


def new_log(disk: SimDisk, *, uuid: UUID = LOG_UUID) -> MessageLog:
    """Return an empty log of small files, without its first epoch."""
    return unbegun(disk, log_uuid=uuid, file_bytes_max=SMALL)


def new_disk(*, seed: int = 1) -> SimDisk:
    return SimDisk(random.Random(seed), plan=CALM)


def grow(log: MessageLog, chance: random.Random, steps: int) -> None:
    """Append to a log: messages mostly, sometimes a new epoch or a higher floor."""
    for _ in range(steps):
        if chance.random() < 0.15:
            log.start_epoch(log.last_epoch + chance.choice([1, 2]), append_ms=NOW_MS)
            continue
        items = [bytes(chance.randrange(90)) for _ in range(chance.randint(1, 4))]
        floor = log.last_floor_minute + chance.choice([0, 0, 1])
        drafts = [messages(items)] * chance.choice([1, 1, 2])
        log.append(drafts, floor_minute=floor, append_ms=NOW_MS)


def batches_of(log: MessageLog) -> list[LogBatch]:
    found = []
    for batch in log.read(1):
        assert not isinstance(batch, Damage)
        found.append(batch)
    return found


def headers_of(log: MessageLog) -> list[object]:
    return [batch.header for batch in batches_of(log)]


def copy(source: MessageLog, target: MessageLog, *, bytes_max: int = 500) -> None:
    """Copy what the target lacks."""
    while target.next_sequence < source.next_sequence:
        raw = source.read_raw(target.next_sequence, bytes_max=bytes_max)
        assert raw.first_sequence == target.next_sequence
        appended = target.append_copied(raw.data)
        assert appended[-1].header.next_sequence == raw.next_sequence == target.next_sequence


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(1, 3000))
def test_a_copy_is_the_same_log_batch_for_batch(seed: int, bytes_max: int) -> None:
    chance = random.Random(seed)
    source, copied = new_log(new_disk()), new_disk()
    target = new_log(copied)
    source.start_epoch(1, append_ms=NOW_MS)
    for _ in range(4):
        grow(source, chance, chance.randrange(8))
        copy(source, target, bytes_max=bytes_max)
        assert headers_of(target) == headers_of(source)
    assert [bytes(batch.blob) for batch in batches_of(target)] == [
        bytes(batch.blob) for batch in batches_of(source)
    ]
    assert (target.last_epoch, target.last_floor_minute) == (
        source.last_epoch,
        source.last_floor_minute,
    )
    # It is durable, and goes on as the log of a master does.
    again, report = recover(copied.revive(), file_bytes_max=SMALL)
    assert report.damages == []
    assert headers_of(again) == headers_of(source)
    grow(again, chance, 3)
    assert batches_of(again)[-1].header.next_sequence == again.next_sequence


def test_what_is_read_begins_with_the_batch_that_holds_the_record_and_is_bounded() -> None:
    log = new_log(new_disk())
    log.start_epoch(1, append_ms=NOW_MS)
    for number in range(40):
        log.append([messages([bytes([number]) * 50] * 3)], append_ms=NOW_MS)
    assert len(log.files()) > 5
    for sequence in range(1, log.next_sequence):
        raw = log.read_raw(sequence, bytes_max=600)
        assert raw.first_sequence <= sequence < raw.next_sequence
        assert len(raw.data) <= 600
        one = log.read_raw(sequence, bytes_max=1)
        assert one.first_sequence == raw.first_sequence
        assert raw.data.startswith(one.data)
    end = log.next_sequence
    assert log.read_raw(end, bytes_max=600).data == b""
    log.drop_before(log.files()[2].first_sequence)
    with pytest.raises(LogTrimmedError, match="not kept any more"):
        log.read_raw(1, bytes_max=600)
    assert log.read_raw(log.first_sequence, bytes_max=600).data


def test_a_byte_that_is_not_as_it_was_written_is_not_sent() -> None:
    disk = new_disk()
    log, _ = recover(disk)
    for number in range(5):
        log.append([messages([bytes([number]) * 50])], append_ms=NOW_MS)
    path = log.files()[0].path
    whole = log.read_raw(1, bytes_max=10_000).data
    for place in range(64, 64 + len(whole), 7):
        byte = disk.contents()[path][place]
        disk.damage(path, place, bytes([byte ^ 16]))
        with pytest.raises(DamagedError):
            log.read_raw(1, bytes_max=10_000)
        disk.damage(path, place, bytes([byte]))
    assert log.read_raw(1, bytes_max=10_000).data == whole


@pytest.mark.parametrize(
    ("broken", "match"),
    [
        ("another kind", "SEALS does not belong in a message_log"),
        ("again", "comes next"),
        ("gap", "comes next"),
        ("other chain", "another batch"),
        ("older epoch", "epoch 1 after epoch 3"),
        ("epoch without its start", "MESSAGE in epoch 4"),
        ("lower floor", "below"),
        ("a flipped bit", "CRC"),
        ("cut off", "cut off"),
        ("another log", "CRC"),
    ],
)
def test_what_does_not_go_on_from_the_end_is_refused_and_nothing_is_written(
    broken: str, match: str
) -> None:
    disk = new_disk()
    log = new_log(disk)
    log.start_epoch(3, append_ms=NOW_MS)
    log.append([messages([b"a"])], floor_minute=5, append_ms=NOW_MS)
    before, end = dict(disk.contents()), log.next_sequence
    with pytest.raises(CopyRefusedError, match=match):
        log.append_copied(_BROKEN[broken]())
    assert disk.contents() == before
    assert log.next_sequence == end
    log.append_copied(_sent([b"a"], [b"b"])[1])
    assert batches_of(log)[-1].header.base_sequence == end


def _sent(*items: Sequence[bytes], uuid: UUID = LOG_UUID) -> list[bytes]:
    """Return the batches of another node's log, its EPOCH_START left out."""
    log = new_log(new_disk(), uuid=uuid)
    log.start_epoch(3, append_ms=NOW_MS)
    for part in items:
        log.append([messages(list(part))], floor_minute=5, append_ms=NOW_MS)
    raw = log.read_raw(2, bytes_max=1 << 20)
    parts, position = [], 0
    for batch in batches_of(log)[1:]:
        parts.append(raw.data[position : position + batch.header.size])
        position += batch.header.size
    return parts


def _flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _another_kind() -> bytes:
    """Return a batch that goes on from the end, of a kind that no message_log has."""
    after = _sent([b"a"], [b"b"])[1]
    seed = log_seed(LOG_UUID, LogKind.MESSAGE_LOG)
    header = decode_header(after, seed=seed, path="", position=0)
    _, parts = encode_batch(
        seed=seed,
        kind=RecordKind.SEALS,
        epoch=header.epoch,
        base_sequence=header.base_sequence,
        count=header.count,
        floor_minute=header.floor_minute,
        append_ms=header.append_ms,
        previous_crc=header.previous_crc,
        columns=after[HEADER_SIZE : HEADER_SIZE + header.columns_size],
    )
    return b"".join(parts)


_BROKEN: dict[str, Callable[[], bytes]] = {
    "another kind": _another_kind,
    "again": lambda: _sent([b"a"])[0],
    "gap": lambda: _sent([b"a"], [b"b"], [b"c"])[2],
    "other chain": lambda: _sent([b"x"], [b"b"])[1],
    "older epoch": lambda: _behind(epoch=1),
    "epoch without its start": lambda: _behind(epoch=4),
    "lower floor": lambda: _behind(floor=4),
    "a flipped bit": lambda: _flipped(_sent([b"a"], [b"b"])[1]),
    "cut off": lambda: _sent([b"a"], [b"b"])[1][:-1],
    "another log": lambda: _sent([b"a"], [b"b"], uuid=OTHER_UUID)[1],
}


def _behind(*, epoch: int = 3, floor: int = 5) -> bytes:
    """Return a batch behind the log of the test, which says this of itself."""
    log = new_log(new_disk())
    log.start_epoch(3, append_ms=NOW_MS)
    log.append([messages([b"a"])], floor_minute=5, append_ms=NOW_MS)
    begin = log.next_sequence
    log._end = replace(log._end, epoch=epoch, floor_minute=floor)
    log.append([messages([b"b"])], append_ms=NOW_MS)
    return log.read_raw(begin, bytes_max=1 << 20).data


def test_a_copy_that_finds_no_space_leaves_the_log_as_it_was() -> None:
    source = new_log(new_disk())
    source.start_epoch(1, append_ms=NOW_MS)
    source.append([messages([b"a" * 80] * 3)], append_ms=NOW_MS)
    disk = new_disk()
    target = new_log(disk)
    copy(source, target)
    source.append([messages([b"b" * 80] * 3)], append_ms=NOW_MS)
    disk.arm(Trap(action=Action.FULL, kinds={"write"}))
    with pytest.raises(StorageFullError):
        copy(source, target)
    copy(source, target)
    assert headers_of(target) == headers_of(source)


# -- cut -------------------------------------------------------------------------------------


def test_what_is_cut_is_gone_and_another_end_takes_its_place() -> None:
    disk = new_disk()
    log = new_log(disk)
    chance = random.Random(3)
    log.start_epoch(1, append_ms=NOW_MS)
    grow(log, chance, 30)
    before = batches_of(log)
    middle = before[len(before) // 2].header
    files = len(log.files())
    end = log.next_sequence
    gone = log.cut_to(middle.epoch, middle.base_sequence, not_below=1)
    assert gone == range(middle.base_sequence, end)
    kept = [batch for batch in before if batch.header.next_sequence <= middle.base_sequence]
    assert headers_of(log) == [batch.header for batch in kept]
    assert log.next_sequence == middle.base_sequence
    assert len(log.files()) < files
    # What another node wrote in place of it goes on from there.
    log.start_epoch(50, append_ms=NOW_MS)
    grow(log, chance, 5)
    for sequence in range(1, log.next_sequence):
        raw = log.read_raw(sequence, bytes_max=1)
        assert raw.first_sequence <= sequence < raw.next_sequence
    after = headers_of(log)
    again, report = recover(disk.revive(), file_bytes_max=SMALL)
    assert (report.damages, report.cut) == ([], [])
    assert headers_of(again) == after


def test_what_is_committed_is_never_cut() -> None:
    disk = new_disk()
    log = new_log(disk)
    log.start_epoch(1, append_ms=NOW_MS)
    log.append([messages([b"a"] * 5)], append_ms=NOW_MS)
    log.append([messages([b"b"] * 5)], append_ms=NOW_MS)
    before = dict(disk.contents())
    with pytest.raises(LogStateError, match="committed"):
        log.cut_to(1, 7, not_below=8)
    with pytest.raises(LogStateError, match="nothing would be left"):
        log.cut_to(0, 1, not_below=1)
    assert disk.contents() == before
    assert log.cut_to(1, 7, not_below=7)


def test_without_room_for_the_lower_end_nothing_is_cut() -> None:
    disk = new_disk()
    log = new_log(disk)
    log.start_epoch(1, append_ms=NOW_MS)
    log.append([messages([b"a" * 90] * 5)], append_ms=NOW_MS)
    before = headers_of(log)
    disk.arm(Trap(action=Action.FULL, kinds={"write"}))
    with pytest.raises(StorageFullError):
        log.cut_to(1, 2, not_below=1)
    assert headers_of(log) == before
    log.append([messages([b"b"])], append_ms=NOW_MS)
    assert len(batches_of(log)) == len(before) + 1


@pytest.mark.parametrize("seed", range(60))
def test_a_crash_in_a_cut_leaves_whole_batches_that_can_be_cut_again(seed: int) -> None:
    chance = random.Random(seed)
    disk = SimDisk(chance, plan=HARSH)
    log = new_log(disk)
    log.start_epoch(1, append_ms=NOW_MS)
    grow(log, chance, chance.randint(5, 40))
    log.sync_durable_end()
    before = batches_of(log)
    at = chance.choice(before[1:]).header
    kinds = {"create", "write", "sync", "sync_directory", "unlink", "truncate"}
    disk.arm(Trap(action=Action.POWER_CUT, kinds=kinds, skip=chance.randrange(22)))
    try:
        log.cut_to(at.epoch, at.base_sequence, not_below=at.base_sequence)
    except PowerCut:
        pass
    else:
        disk.power_cut()
    disk = disk.revive()
    log, report = recover(disk, file_bytes_max=SMALL)
    assert report.damages == []
    found = headers_of(log)
    assert found == [batch.header for batch in before][: len(found)]
    assert log.next_sequence >= at.base_sequence
    log.cut_to(at.epoch, at.base_sequence, not_below=at.base_sequence)
    assert log.next_sequence == at.base_sequence
    if chance.random() < 0.5:
        # It has to go into a file of its own: nothing syncs the one that was cut any more.
        log.append([messages([bytes(1100)])], append_ms=NOW_MS)
    log.start_epoch(1000, append_ms=NOW_MS)
    grow(log, chance, 8)
    after = headers_of(log)
    for sequence in range(1, log.next_sequence):
        raw = log.read_raw(sequence, bytes_max=1)
        assert raw.first_sequence <= sequence < raw.next_sequence
    disk.power_cut()
    again, report = recover(disk.revive(), file_bytes_max=SMALL)
    assert report.damages == []
    assert headers_of(again) == after
