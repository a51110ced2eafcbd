"""Seals come back as they were, in order, up to what counts; the live ones are found fast."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from storage.batch.batches import Damage
from storage.batch.facts import Outcome
from storage.disk.errors import StorageFullError
from storage.disk.spans import MINUTE_MS, SegmentKey, Span, ends_of, key_of_code
from storage.schedule.seals import (
    _OUTCOME_COLUMNS,
    Seal,
    Seals,
    SealsEnd,
    SealsLog,
    codes_of,
    columns_of_seals,
    marked_deleted,
    read_last_seals,
)
from tests.kit.seals import read_seals
from tests.simulation.disk import SimDisk
from tests.simulation.faults import HARSH, Action, Trap
from tests.storage.small_logs import LOG_UUID, NOW_MS
from tests.storage.small_segments import EXAMPLE_SEAL, example_files, segment_disk
from tests.storage.worked_examples import worked_examples

FIRST = "seals/00000000000000000001.log"


def opened(disk: SimDisk, end: SealsEnd | None = None, *, file_bytes_max: int = 2000) -> SealsLog:
    log, damages = SealsLog.recover(
        disk, LOG_UUID, end=end or SealsEnd(), file_bytes_max=file_bytes_max
    )
    assert not damages
    return log


def seal(place: int) -> Seal:
    chance = random.Random(place)

    def number() -> int:
        return chance.getrandbits(64)

    return Seal(
        key=SegmentKey(place * 1440, chance.choice([Span.MINUTE, Span.HOUR, Span.DAY])),
        rows=chance.getrandbits(40),
        distinct=chance.getrandbits(40),
        last_sequence=chance.getrandbits(62),
        length=chance.getrandbits(40),
        facts_length=chance.getrandbits(40),
        digest=(number(), number()),
        facts_digest=(number(), number()),
        outcomes=tuple(chance.getrandbits(30) for _ in Outcome),
        sealed_ms=NOW_MS + place,
    )


def seals(count: int, *, first: int = 0) -> list[Seal]:
    return [seal(place) for place in range(first, first + count)]


def append(log: SealsLog, found: Sequence[Seal]) -> None:
    log.append(columns_of_seals(found), append_ms=NOW_MS)


def read(disk: SimDisk, log: SealsLog) -> list[Seal | Damage]:
    return list(read_seals(disk, LOG_UUID, log.end))


def live_keys(log: SealsLog) -> list[SegmentKey]:
    return [key_of_code(code) for code in log.live["code"].tolist()]


@pytest.mark.parametrize(
    ("start", "span"), [(0, Span.NONE), (61, Span.HOUR), (2**32 - 1, Span.MINUTE)]
)
def test_a_seal_of_a_segment_that_cannot_exist_is_damage_of_its_batch(
    start: int, span: Span
) -> None:
    disk = segment_disk()
    log = opened(disk, file_bytes_max=100_000)
    append(log, seals(2))
    position = log.end.length
    append(log, [replace(seal(2), key=SegmentKey(start, span))])
    size = log.end.length - position
    append(log, seals(3, first=3))
    found = read(disk, log)
    [damage] = [one for one in found if isinstance(one, Damage)]
    assert (damage.path, damage.position, damage.size) == (FIRST, position, size)
    assert f"span {int(span)} from minute {start}" in damage.reason
    assert [one for one in found if isinstance(one, Seal)] == seals(2) + seals(3, first=3)


def test_a_log_opened_again_goes_on_where_a_checkpoint_says() -> None:
    disk = segment_disk()
    log = opened(disk)
    append(log, seals(1))
    end = log.end
    append(log, seals(2, first=1))  # Of a checkpoint that was never completed.
    again = opened(disk, end)
    append(again, seals(3, first=1))
    assert read(disk, again) == seals(1) + seals(3, first=1)
    assert len(again.live) == 4


def test_seals_that_found_no_space_are_not_there() -> None:
    disk = segment_disk()
    log = opened(disk)
    append(log, seals(1))
    log.settle()
    disk.arm(Trap(action=Action.FULL, kinds={"write"}))
    with pytest.raises(StorageFullError):
        append(log, seals(4, first=1))
    log.take_back()
    append(log, seals(2, first=1))
    assert log.end.count == 3
    assert read(disk, log) == seals(1) + seals(2, first=1)


@pytest.mark.parametrize("settled", range(12))
@pytest.mark.parametrize("taken_back", [1, 5, 30])
def test_what_is_taken_back_never_was(settled: int, taken_back: int) -> None:
    disk = segment_disk()
    log = opened(disk, file_bytes_max=600)
    for place in range(settled):
        append(log, seals(1, first=place))
        log.settle()
    before, end, live = read(disk, log), log.end, live_keys(log)
    files = disk.list("seals")
    for place in range(taken_back):
        append(log, seals(1, first=settled + place))
        log.append(marked_deleted(columns_of_seals(seals(1, first=place // 2))), append_ms=NOW_MS)
        log.take_back()
        log.take_back()
        assert (log.end, live_keys(log)) == (end, live)
        assert disk.list("seals") == files
    assert read(disk, log) == before
    append(log, seals(2, first=100))
    log.settle()
    log.compact()
    assert read(disk, log) == before + seals(2, first=100)
    assert live_keys(opened(disk, log.end)) == [*live, *(s.key for s in seals(2, first=100))]


def test_what_is_taken_back_is_not_read_when_the_next_file_begins() -> None:
    """A file that is not the newest is read to its end, whatever was taken back there."""
    disk = segment_disk()
    log = opened(disk, file_bytes_max=600)
    append(log, seals(1))
    log.settle()
    append(log, seals(40, first=1))
    log.take_back()
    count = 1
    while log.end.file == 1:
        append(log, seals(1, first=count))
        log.settle()
        count += 1
    disk.power_cut()
    assert list(read_seals(disk.revive(), LOG_UUID, log.end)) == seals(count)


def test_live_are_the_segments_whose_last_seal_does_not_say_deleted() -> None:
    disk = segment_disk()
    log = opened(disk)
    append(log, seals(6))
    found, damages = log.find(np.array([2, 5], np.int64))
    assert not damages
    log.append(marked_deleted(found), append_ms=NOW_MS + 1)
    keys = [seal.key for place, seal in enumerate(seals(6)) if place not in {1, 4}]
    assert live_keys(log) == keys
    assert log.end.needed == 1
    again = opened(disk, log.end)
    assert live_keys(again) == keys
    assert again.live["number"].tolist() == [1, 3, 4, 6]
    assert again.live["sealed_ms"].tolist() == [NOW_MS, NOW_MS + 2, NOW_MS + 3, NOW_MS + 5]
    deleted = [seal for seal in read(disk, log) if isinstance(seal, Seal) and seal.deleted]
    assert [replace(seal, deleted=False) for seal in deleted] == [seals(6)[1], seals(6)[4]]


@pytest.mark.parametrize("comes_back", [False, True])
def test_what_was_cut_does_not_count_again_once_its_file_is_closed(comes_back: bool) -> None:
    disk = segment_disk()
    disk.sync_directory("")
    log = opened(disk)
    append(log, seals(1))
    append(log, seals(1, first=1))
    log.settle()
    end = log.end
    # For a checkpoint that never came to be.
    append(log, seals(1, first=50))
    stale = disk.contents()[FIRST]
    disk = disk.revive()
    log = opened(disk, end, file_bytes_max=400)
    append(log, seals(1, first=2))
    assert len(log.files) == 2
    end = log.end
    disk.power_cut()
    disk = disk.revive()
    if comes_back:
        # As versions left it that did not sync what they had cut.
        disk.put(FIRST, stale)
    assert (disk.contents()[FIRST] == stale) is comes_back
    log = opened(disk, end, file_bytes_max=400)
    assert read(disk, log) == seals(3)
    assert live_keys(log) == [seal.key for seal in seals(3)]
    last, damages, _ = read_last_seals(disk, LOG_UUID, end, retired=())
    assert not damages
    assert codes_of(last).tolist() == log.live["code"].tolist()
    found, damages = log.find(np.array([2, 3], np.int64))
    assert not damages
    assert codes_of(found).tolist() == log.live["code"][1:].tolist()


def test_nothing_is_read_of_seals_before_the_first_that_is_needed() -> None:
    disk = segment_disk()
    log = opened(disk, file_bytes_max=500)
    for place in range(12):
        append(log, seals(1, first=place))
    log.append(marked_deleted(columns_of_seals(seals(7))), append_ms=NOW_MS)
    assert log.end.needed == 8
    read_before = [path.path for path in log.files if path.first_sequence < 7]
    for path in read_before:
        disk.damage(path, 0, bytes(200))
    again = opened(disk, log.end, file_bytes_max=500)
    assert live_keys(again) == [seal.key for seal in seals(5, first=7)]
    assert len(read_before) >= 2
    assert [file.path for file in again.files] == [file.path for file in log.files]


@pytest.mark.parametrize("seed", range(6))
def test_files_of_deleted_segments_that_ended_long_ago_are_not_read(seed: int) -> None:
    chance, disk = random.Random(seed), segment_disk()
    log = opened(disk, file_bytes_max=500)
    marked = 0
    for place in range(30):
        # None is sealed before it has ended.
        at_ms = (place + 1) * 1440 * MINUTE_MS + chance.randrange(1000)
        log.append(columns_of_seals(seals(1, first=place)), append_ms=at_ms)
        if place > 8 and chance.random() < 0.8:
            old = seals(1, first=marked)
            log.append(marked_deleted(columns_of_seals(old)), append_ms=at_ms)
            marked += 1
    whole, damages, _ = read_last_seals(disk, LOG_UUID, log.end, retired=())
    assert not damages
    least = len(whole["rows"])
    for minute in (0, *(chance.randrange(30 * 1440) for _ in range(5)), 29 * 1440):
        told, damages, begin = read_last_seals(
            disk, LOG_UUID, log.end, retired=(), deleted_from_minute=minute
        )
        assert not damages
        assert matters(told, minute) == matters(whole, minute)
        least = min(least, len(told["rows"]))
        assert begin == min(file.first_sequence for file in log.files) or minute
        if begin == 1:
            assert codes_of(told).tolist() == codes_of(whole).tolist()
    assert least < len(whole["rows"]), "all files were read"
    # One that is damaged may tell of anything, and is looked into.
    disk.damage(log.files[0].path, 70, b"XX")
    found = read_last_seals(disk, LOG_UUID, log.end, retired=(), deleted_from_minute=30 * 1440)
    damages = found.damages
    assert damages


def matters(found: Seals, minute: int) -> set[int]:
    """Return the segments that are there, or ended after a minute."""
    ends = ends_of(found["start_minute"].astype(np.int64), found["span"])
    return set(codes_of(found)[(found["deleted"] == 0) | (ends > minute)].tolist())


@pytest.mark.parametrize("restarts", [False, True])
def test_a_file_that_no_checkpoint_writes_to_is_written_again_in_one_batch(
    restarts: bool,
) -> None:
    disk = segment_disk()
    log = opened(disk)
    for place in range(12):
        append(log, seals(1, first=place))
    assert len(log.files) == 2
    log.compact()  # The last checkpoint still writes to the first file.
    many = len(disk.contents()[FIRST])
    log.settle()
    if restarts:
        log = opened(disk, log.end)
    before = read(disk, log)
    log.compact()
    data = disk.contents()[FIRST]
    assert data.count(b"DWB1") == 1
    assert len(data) < many
    assert read(disk, log) == before == [seals(1, first=place)[0] for place in range(12)]
    again = opened(disk, log.end)
    assert len(again.live) == 12
    found, _ = again.find(np.array([3, 7, 12], np.int64))
    assert found["sealed_ms"].tolist() == [NOW_MS + 2, NOW_MS + 6, NOW_MS + 11]
    disk.arm(Trap(action=Action.KILL))
    again.compact()  # There is nothing to do.


@pytest.mark.parametrize("action", [Action.POWER_CUT, Action.KILL, Action.FULL])
def test_a_file_written_again_is_the_old_one_or_the_new_one(action: Action) -> None:
    for skip in range(30):
        disk = segment_disk()
        disk.sync_directory("")
        log = opened(disk)
        for place in range(12):
            append(log, seals(1, first=place))
        log.settle()
        before = read(disk, log)
        disk.plan = HARSH
        disk.arm(
            Trap(
                action=action,
                skip=skip,
                kinds=None if action is not Action.FULL else {"write", "create", "rename"},
            )
        )
        try:
            log.compact()
        except BaseException:  # noqa: BLE001 (the death of the disk)
            assert disk.death is not None
        fired = bool(disk.fired)
        if action is Action.FULL:
            assert read(disk, log) == before
            log.compact()
            assert disk.contents()[FIRST].count(b"DWB1") == 1
        disk = disk.revive()
        again = opened(disk, log.end)
        assert read(disk, again) == before
        assert not any(name.endswith(".tmp") for name in disk.list("seals"))
        if not fired:
            break
    assert skip > 1


def test_damage_is_told_in_its_place_and_the_rest_is_read() -> None:
    disk = segment_disk()
    log = opened(disk)
    append(log, seals(1))
    second = log.end.length
    append(log, seals(2, first=1))
    append(log, seals(3, first=3))
    disk.damage(FIRST, second + 100, b"\xff")
    found = read(disk, log)
    assert [seal for seal in found if isinstance(seal, Seal)] == seals(1) + seals(3, first=3)
    [damage] = [seal for seal in found if isinstance(seal, Damage)]
    assert (damage.path, damage.position) == (FIRST, second)
    again, damages = SealsLog.recover(disk, LOG_UUID, end=log.end, file_bytes_max=500)
    assert [(damage.path, damage.position) for damage in damages] == [(FIRST, second)]
    assert live_keys(again) == [seal.key for seal in seals(1) + seals(3, first=3)]
    for place in range(20):
        append(again, seals(1, first=10 + place))
        again.settle()
        again.compact()
    assert disk.contents()[FIRST].count(b"DWB1") == 3, "what is damaged stays as it is"


def test_a_file_that_is_gone_is_damage_and_numbers_are_not_used_again() -> None:
    disk = segment_disk()
    log = opened(disk, file_bytes_max=500)
    for place in range(9):
        append(log, seals(1, first=place))
    middle, newest = log.files[1].path, log.files[-1].path
    end = log.end
    for path in (middle, newest):
        data = disk.contents()[path]
        disk.unlink(path)
        again, damages = SealsLog.recover(disk, LOG_UUID, end=end, file_bytes_max=500)
        assert len(damages) == 1
        assert len(again.live) < 9
        append(again, seals(1, first=50))
        assert again.end.count == 10
        again.settle()
        once_more, damages = SealsLog.recover(disk, LOG_UUID, end=again.end, file_bytes_max=500)
        assert len(damages) == 1
        assert live_keys(once_more)[-1] == seals(1, first=50)[0].key
        again.close()
        disk.open(path, create=True).write_at(0, [data])


def test_forgotten_files_are_none_of_the_log() -> None:
    disk = segment_disk()
    log = opened(disk, file_bytes_max=500)
    for place in range(9):
        append(log, seals(1, first=place))
    log.append(marked_deleted(columns_of_seals(seals(9))), append_ms=NOW_MS)
    log.settle()
    old = [file.path for file in log.files[:-1]]
    log.forget(old)
    disk.arm(Trap(action=Action.KILL))
    log.compact()
    disk.disarm()
    again, damages = SealsLog.recover(disk, LOG_UUID, end=log.end, retired=old)
    assert not damages
    assert [file.path for file in again.files] == [file.path for file in log.files]


def test_every_outcome_has_its_column() -> None:
    assert [name.upper() for name in _OUTCOME_COLUMNS] == [outcome.name for outcome in Outcome]
    outcomes = tuple(range(1, 8))
    disk = segment_disk()
    log = opened(disk)
    append(log, [replace(EXAMPLE_SEAL, outcomes=outcomes)])
    [seal] = read(disk, log)
    assert isinstance(seal, Seal)
    assert seal.outcomes == outcomes


def test_more_seals_than_a_batch_may_hold_are_several_batches() -> None:
    disk = segment_disk()
    log = opened(disk, file_bytes_max=1 << 30)
    many = [replace(EXAMPLE_SEAL, key=SegmentKey(place, Span.MINUTE)) for place in range(30_000)]
    append(log, many)
    again = opened(disk, log.end)
    assert len(again.live) == 30_000
    assert again.find(np.array([20_001], np.int64))[0]["start_minute"].tolist() == [20_000]


def test_the_worked_example_is_what_the_code_writes() -> None:
    assert worked_examples("seals.md") == [example_files()["seals.md"]]
