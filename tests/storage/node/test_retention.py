"""Nothing leaves before its time, everything leaves after it, and in an order that a crash may cut.

The rig holds every single deletion against what is durable in its moment (`_check_unlink`).
"""

import random
from dataclasses import replace

import pytest

from storage.disk.errors import StorageFullError
from storage.disk.spans import MINUTE_MS, Span, key_of_code, key_of_minute
from storage.limits import StorageLimits
from storage.node.retention import AgedFile, Hold, hold_on, leaves_at_ms
from storage.node.store import QUARANTINE_DIRECTORY, StoreSettings
from tests.seeds import first_of
from tests.simulation.faults import HARSH, Action, Trap
from tests.storage.store_rig import START_MS, SWEPT, StoreRig, limited

DAY_MS = 24 * 60 * MINUTE_MS
KEEP_MS = SWEPT.limits.segments_keep_ms
LIMITS = StorageLimits()
OLD = AgedFile("message_log/1.log", last_sequence=100, newest_ms=1000, messages_behind=1)


def hold(
    file: AgedFile = OLD,
    *,
    age_ms: int = DAY_MS,
    replayed: int = 100,
    later: int = 1,
    limits: StorageLimits = LIMITS,
) -> Hold | None:
    return hold_on(
        replace(file, messages_behind=later),
        limits,
        now_ms=1000 + age_ms,
        replayed_sequence=replayed,
    )


def test_a_log_file_leaves_when_it_is_replayed_and_old() -> None:
    assert hold() is None
    assert hold(age_ms=DAY_MS - 1) is Hold.AGE


def test_a_log_file_that_a_restart_would_replay_stays_however_old() -> None:
    assert hold(replayed=99, age_ms=1000 * DAY_MS, later=10**9) is Hold.REPLAY


def test_what_duplicates_are_recognised_by_stays_though_nothing_else_needs_it() -> None:
    eager = StorageLimits(message_log_keep_ms=0)
    assert hold(age_ms=600_000, limits=eager) is None
    assert hold(age_ms=599_999, limits=eager) is Hold.DUPLICATES
    assert hold(age_ms=0, later=4_000_000, limits=eager) is None
    assert hold(age_ms=0, later=3_999_999, limits=eager) is Hold.DUPLICATES
    assert hold(age_ms=0, later=4_010_000) is Hold.AGE


def test_a_log_file_whose_age_is_not_known_stays() -> None:
    unknown = replace(OLD, newest_ms=None)
    assert hold(unknown) is Hold.DUPLICATES
    assert hold(unknown, later=10**9) is Hold.AGE
    assert hold(unknown, later=10**9, limits=StorageLimits(message_log_keep_ms=0)) is Hold.AGE


def test_things_leave_together_with_their_neighbours_and_never_early() -> None:
    week_ms = 7 * DAY_MS
    times = {leaves_at_ms(since_ms, week_ms) - week_ms for since_ms in range(0, 1_200_000, 1000)}
    assert times == {0, 600_000, 1_200_000}
    for keep_ms in (0, 1, 63, 64, 10_000, week_ms):
        chance = random.Random(keep_ms)
        for since_ms in (chance.randrange(10**12) for _ in range(100)):
            late_ms = leaves_at_ms(since_ms, keep_ms) - since_ms - keep_ms
            assert 0 <= late_ms < max(1, min(600_000, keep_ms // 32))


# -- in a data directory ---------------------------------------------------------------------------


def delivered(
    seed: int = 1,
    *,
    messages: int = 40,
    damage_expected: bool = False,
    settings: StoreSettings = SWEPT,
) -> StoreRig:
    """Return a rig with many small sealed segments and files of each log, none of it old."""
    rig = StoreRig(seed, settings=settings, damage_expected=damage_expected)
    rig.open()
    rig.split()
    for place in range(messages):
        rig.commit([rig.now_ms + 500 + place])
        rig.file_and_deliver()
        if place % 4 == 3:
            rig.now_ms += MINUTE_MS
            rig.commit_floor()
            rig.file()
            rig.checkpoint()
    rig.now_ms += MINUTE_MS
    rig.commit_floor()
    rig.file()
    rig.checkpoint()
    rig.sync_durable_end()
    return rig


def names(rig: StoreRig, directory: str) -> list[str]:
    """Return the files of a log."""
    there = [path for path in rig.disk.contents() if path.rpartition("/")[0] == directory]
    return sorted(path for path in there if path.endswith((".log", ".minute", ".hour", ".day")))


def wait(rig: StoreRig, ms: int) -> None:
    """Let time pass, and write a checkpoint whenever the timer says so."""
    until_ms = rig.now_ms + ms
    while (next_ms := rig.store.retention.next_ms) is not None and next_ms <= until_ms:
        rig.now_ms = max(rig.now_ms, next_ms)
        rig.checkpoint()
    rig.now_ms = until_ms


def test_segments_leave_some_time_after_they_were_sealed_and_a_grace() -> None:
    rig = delivered()
    sealed = {name: seal for name, seal in rig.seals().items() if seal.rows}
    assert len(sealed) >= 8
    first = min(seal.sealed_ms for seal in sealed.values())
    rig.now_ms = first + KEEP_MS - 1
    rig.checkpoint()
    assert not any(seal.deleted for seal in rig.seals().values())
    wait(rig, MINUTE_MS)
    marked = {name for name, seal in rig.seals().items() if seal.deleted}
    assert marked
    assert {f"schedule_log/{name}" for name in marked} <= set(names(rig, "schedule_log"))
    wait(rig, SWEPT.limits.retired_grace_ms)
    assert not {f"schedule_log/{name}" for name in marked} & set(names(rig, "schedule_log"))
    assert not {f"dispatch_log/{name}" for name in marked} & set(names(rig, "dispatch_log"))


def test_a_checkpoint_knows_the_epoch_where_the_only_file_left_is_spoilt() -> None:
    rig = delivered()
    rig.start_epoch()
    rig.file()
    wait(rig, 3 * DAY_MS)
    rig.sync_durable_end()
    [path] = names(rig, "message_log")
    next_sequence = rig.store.message_log.next_sequence
    assert rig.store.checkpoint.sequence == next_sequence - 1
    rig = rig_of_spoilt(rig, [path, "message_log/durable_end"])
    assert rig.store.message_log.next_sequence == next_sequence
    assert rig.store.message_log.last_epoch == rig.store.schedule.epoch == 2
    assert rig.damages
    rig.epoch = 2
    rig.commit([rig.now_ms + 1])
    rig.file()
    rig.checkpoint()
    rig.reopen()
    assert rig.store.message_log.next_sequence == next_sequence + 1


def rig_of_spoilt(rig: StoreRig, paths: list[str]) -> StoreRig:
    """Zero all of these files and open the directory again."""
    rig._damage_expected = True
    rig.disk = rig.disk.revive()
    for path in paths:
        rig.disk.damage(path, 0, bytes(len(rig.disk.contents()[path])))
    rig.open()
    return rig


def test_nothing_leaves_while_a_restart_would_replay_it() -> None:
    rig = delivered()
    for _ in range(60):
        rig.commit([rig.now_ms + 300 * DAY_MS])
    rig.now_ms += 10 * DAY_MS
    sequence = rig.store.checkpoint.sequence
    rig.checkpoint()
    rig.checkpoint()
    assert 1 < rig.store.message_log.first_sequence <= sequence + 1
    rig.reopen()
    rig.check_rows()
    rig.finish()


def test_a_segment_whose_seal_cannot_be_read_any_more_stays_for_good() -> None:
    rig = delivered(damage_expected=True)
    rig.reopen()
    log = rig.store.seals_log
    assert len(log.files) > 1
    oldest = log.files[0].path
    while log._closed:
        rig.checkpoint()
        log.compact()
    live = len(log.live)
    rig.disk.damage(oldest, 200, b"\xff\xff")
    wait(rig, DAY_MS)
    assert [damage.path for damage in rig.damages] == [oldest]
    kept = rig.store.checkpoint.quarantined
    assert 0 < len(kept) < 2 * live
    assert set(names(rig, "schedule_log") + names(rig, "dispatch_log")) == set(kept)
    assert rig.store.retention.next_ms is None or rig.store.retention.next_ms > rig.now_ms
    rig.reopen()
    wait(rig, DAY_MS)
    assert set(names(rig, "schedule_log") + names(rig, "dispatch_log")) == set(kept)


def test_files_whose_mark_is_damaged_are_marked_again_and_listed_once() -> None:
    rig = delivered(damage_expected=True)
    sealed = rig.seals().values()
    rig.now_ms = max(seal.sealed_ms for seal in sealed if seal.rows) + KEEP_MS + MINUTE_MS
    rig.checkpoint()
    listed = [file.path for file in rig.store.checkpoint.retired]
    marked = {path for path in listed if path.endswith(".minute")}
    assert marked
    rig.disk = rig.disk.revive()
    newest = names(rig, "seals")[-1]
    rig.disk.damage(newest, rig.disk.contents()[newest].rindex(b"DWB1") + 100, b"\xff\xff")
    rig.open()
    assert rig.damages
    live = {key_of_code(code).name for code in rig.store.seals_log.live["code"].tolist()}
    assert {path.rpartition("/")[2] for path in marked} & live
    rig.now_ms += 1000
    rig.checkpoint()
    again = [file.path for file in rig.store.checkpoint.retired]
    assert len(again) == len(set(again))
    assert set(listed) <= set(again)
    assert rig.store.seals_log.live["code"].tolist() == []


def test_what_is_in_quarantine_stays_though_its_seal_can_be_read_again() -> None:
    rig = delivered(damage_expected=True)
    rig.disk = rig.disk.revive()
    seals = names(rig, "seals")[-1]
    data = rig.disk.contents()[seals]
    rig.disk.damage(seals, data.rindex(b"DWB1") + 100, b"\xff\xff")
    rig.open()
    rig.checkpoint()
    kept = set(rig.store.checkpoint.quarantined)
    assert kept
    rig.disk = rig.disk.revive()
    rig.disk.damage(seals, 0, data)  # As it was: somebody restored it.
    rig.open()
    assert len(rig.damages) == 1
    wait(rig, 30 * DAY_MS)
    assert kept <= rig.disk.contents().keys()


def test_seals_of_segments_that_are_still_there_stay_however_old() -> None:
    rig = delivered(settings=limited(SWEPT, seals_keep_ms=MINUTE_MS))
    wait(rig, KEEP_MS - 10 * MINUTE_MS)
    assert len(names(rig, "seals")) > 1
    rig.disk.power_cut()
    rig.reopen()  # The rig fails if a seal is gone whose segment is there.
    wait(rig, DAY_MS)
    assert len(names(rig, "seals")) == 1
    rig.finish()


def test_a_clock_that_was_ahead_when_a_file_was_retired_does_not_keep_it_for_so_long() -> None:
    rig = delivered()
    rig.now_ms += KEEP_MS + 400 * DAY_MS
    rig.checkpoint()
    assert rig.store.checkpoint.retired
    rig.now_ms -= 400 * DAY_MS
    rig.checkpoint()
    rig.now_ms += SWEPT.limits.retired_grace_ms
    rig.memory.was_short = True  # Its clock was set back: the rig cannot tell ages.
    rig.checkpoint()
    assert not rig.store.checkpoint.retired


# -- crashes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [Action.POWER_CUT, Action.KILL, Action.EIO])
@pytest.mark.parametrize("part", first_of(range(3), 1))
def test_a_death_at_any_operation_of_deleting_leaves_files_named_or_gone(
    action: Action, part: int
) -> None:
    def ready(seed: int) -> StoreRig:
        rig = delivered(seed, messages=16)
        rig.seal_everything()
        return rig

    rig = ready(1)
    before = rig.disk.operations
    rig.see_files_leave()
    total = rig.disk.operations - before
    struck = 0
    kinds = {"write", "sync", "rename", "unlink", "sync_directory", "create"}
    for skip in range(part * 2, total, 6):
        rig = ready(skip)
        rig.disk.plan = HARSH
        only = kinds if action is Action.EIO else None
        rig.disk.arm(Trap(action=action, kinds=only, skip=skip))
        rig.survive([rig.see_files_leave])
        if not rig.disk.fired:
            break
        struck += 1
        if action is Action.EIO:
            rig.disk.power_cut()
        rig.reopen(plan=HARSH)
        rig.check_rows()
        rig.check_names()
        rig.finish()
    assert struck > 10


def test_a_full_disk_at_any_write_of_deleting_marks_and_deletes_nothing_twice() -> None:
    struck = 0
    for skip in range(0, 200, 2):
        rig = delivered(skip, messages=16)
        rig.seal_everything()
        kinds = {"write", "create", "rename"}
        rig.disk.arm(Trap(action=Action.FULL, kinds=kinds, skip=skip))
        rig.see_files_leave()  # The rig fails if a seal or a mark is there twice.
        if not rig.disk.fired:
            break
        struck += 1
        if skip % 4:
            rig.disk.power_cut()
        rig.reopen()
        rig.finish()
    assert struck > 5


# -- a disk that is short --------------------------------------------------------------------------


def test_no_more_leaves_early_than_a_short_disk_asks_for() -> None:
    rig = delivered()
    rig.now_ms += SWEPT.limits.duplicate_window_ms
    sealed_ms = sorted(rig.store.seals_log.live["sealed_ms"].tolist())
    assert rig.store.can_free(rig.disk.free_bytes()[0] + 1, rig.now_ms)
    rig.prepare_checkpoint(rig.disk.free_bytes()[0] + 1)
    rig.write_checkpoint()
    assert 1 <= len(rig.store.checkpoint.retired) <= 2
    left = sorted(rig.store.seals_log.live["sealed_ms"].tolist())
    assert left in (sealed_ms, sealed_ms[1:])
    rig.prepare_checkpoint(0)
    rig.write_checkpoint()
    assert 1 <= len(rig.store.checkpoint.retired) <= 2, "a disk that is not short deletes nothing"
    rig.prepare_checkpoint(1 + rig.disk.free_bytes()[0])
    rig.write_checkpoint()
    assert not rig.store.checkpoint.retired, "what was retired was more than enough"


def test_a_very_short_disk_takes_all_but_what_is_needed() -> None:
    rig = delivered()
    rig.commit([rig.now_ms + 90 * MINUTE_MS])
    rig.file()
    rig.checkpoint()
    everything = 1 << 60
    rounds = 0
    while rig.store.can_free(everything, rig.now_ms):
        rig.prepare_checkpoint(everything)
        rig.write_checkpoint()
        rounds += 1
        assert rounds < 10
    assert not len(rig.store.seals_log.live)
    [segment] = names(rig, "schedule_log")
    assert segment == rig.store.checkpoint.segments[0].key.path
    window_ms = SWEPT.limits.duplicate_window_ms
    first = rig.store.message_log.first_sequence
    assert first > 1
    kept = [rig.memory.appended_ms[s] for s in rig.memory.appended_ms if s < first]
    assert max(kept) <= rig.now_ms - window_ms
    rig.reopen()
    rig.finish()


def test_what_frees_space_is_done_before_what_needs_it() -> None:
    rig = delivered()
    rig.now_ms += DAY_MS
    rig.checkpoint()
    assert rig.store.checkpoint.retired
    # Full to the last byte: without the space that is freed there is none for a checkpoint.
    rig.disk.capacity_bytes -= rig.disk.free_bytes()[0]
    with pytest.raises(StorageFullError):
        rig.disk.open("x", create=True).write_at(0, [b"x"])
    rig.commit_floor()  # Finds no space.
    rig.prepare_checkpoint(1000)
    rig.write_checkpoint()
    assert not [f for f in rig.store.checkpoint.retired if f.since_ms < rig.now_ms]
    assert rig.disk.free_bytes()[0] > 1000


# -- seals -----------------------------------------------------------------------------------------


def test_segments_are_sealed_while_rows_wait_for_a_long_split() -> None:
    rig = StoreRig(1)
    rig.open()
    rig.split()
    rig.commit([START_MS + 180 * MINUTE_MS + place * MINUTE_MS for place in range(3)])
    rig.file()
    rig.checkpoint()
    rig.commit([START_MS + 10])
    rig.file_and_deliver()
    rig.now_ms = START_MS + 175 * MINUTE_MS
    assert rig.store.schedule.splits.begin(rig.now_ms) is not None
    rig.commit([START_MS + 182 * MINUTE_MS])  # It has to wait until the hour is split.
    rig.file()
    rig.now_ms += 1
    rig.commit_floor()
    rig.file()
    rig.checkpoint()
    assert rig.store.checkpoint.sequence < rig.store.schedule.last_filed
    assert rig.store.sealed == 1
    rig.reopen()
    rig.check_rows()
    rig.finish()


# -- records that are lost -------------------------------------------------------------------------


@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_where_the_log_lost_records_what_may_hold_their_rows_is_put_aside(named: bool) -> None:
    rig = StoreRig(1, damage_expected=True)
    rig.open()
    rig.split()
    minute = START_MS // MINUTE_MS
    if named:
        rig.commit([START_MS + 1])
        rig.file()
    rig.checkpoint()
    first = rig.store.message_log.next_sequence
    rig.commit([START_MS + 2])
    rig.commit([START_MS + 3])
    rig.file(2)
    rig.flush()
    rig.sync_durable_end()
    path = key_of_minute(minute, Span.MINUTE).path
    before = rig.disk.contents()[path]
    [log] = names(rig, "message_log")
    data = rig.disk.contents()[log]
    rig.disk.damage(log, data.rindex(b"DWB1", 0, data.rindex(b"DWB1")) + 90, b"\xff\xfe\xfd")
    rig.reopen()
    [aside] = rig.summary.quarantined
    assert aside.startswith(f"{QUARANTINE_DIRECTORY}/schedule_log.")
    assert rig.disk.contents()[aside] == before
    rig.flush()
    assert set(rig.rows_on_disk()) == ({first - 1} if named else set()) | {first + 1}
    rig.checkpoint()
    assert aside in rig.store.checkpoint.quarantined
    rig.disk.power_cut()
    rig.reopen()
    wait(rig, 30 * DAY_MS)
    assert rig.disk.contents()[aside] == before


# -- figures ---------------------------------------------------------------------------------------
