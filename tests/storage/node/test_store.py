"""What was accepted is filed once and delivered, whatever struck the disk and whenever.

The rig (store_rig.py) does what the server does, in any order, and checks every entry, item, seal
and fact that it gets against what it knows was accepted and was durable.
"""

import random
import re
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from storage.batch.batches import BATCH_BYTES_MAX, LogBatch
from storage.batch.columns import RecordKind
from storage.batch.entries import Entries
from storage.disk.errors import (
    DataDirectoryError,
    LogStateError,
    NotRegularFileError,
    StorageError,
    StorageFullError,
    UnsupportedFormatError,
)
from storage.disk.spans import MINUTE_MS, SegmentKey, Span, key_of_minute, key_of_name
from storage.node.store import Store, StoreSettings
from storage.readers.looking import FindLook, take_present
from storage.state.checkpoint import CHECKPOINT_PATH, read_checkpoint, write_checkpoint
from storage.state.controls_file import controls_file
from storage.state.identity import read_identity
from storage.state.promise_file import Promised, PromiseFile
from tests.seeds import each_seed
from tests.simulation.disk import SimDisk
from tests.simulation.faults import CALM, HARSH, Action, FaultPlan, PowerCut, Trap
from tests.storage.copying_rig import (
    begun,
    checkpoint,
    committed_in,
    grow,
    headers_from,
    told_of,
    unapplied,
)
from tests.storage.small_logs import messages
from tests.storage.starting import start
from tests.storage.store_rig import GRACE_MS, SETTINGS, START_MS, SWEPT, StoreRig, limited

_CHANGES = frozenset(
    {"write", "sync", "rename", "unlink", "sync_directory", "create", "truncate", "make_directory"}
)
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
SEALS_PATH = "seals/00000000000000000001.log"


def live(rig: StoreRig, chance: random.Random, *, steps: int) -> None:
    """Begin a life, perhaps only after some that end in recovery; live it until a fault ends it."""
    for _ in range(5):
        rig.disk = rig.disk.revive(chance.choice([HARSH, HARSH, FaultPlan()]))
        if chance.random() < 0.5:
            action = chance.choice([Action.POWER_CUT, Action.KILL, Action.FULL])
            rig.disk.arm(Trap(action=action, skip=chance.randrange(80)))
        try:
            if rig.survive([rig.open]):
                break
        except StorageFullError:
            pass
    else:
        rig.reopen()
    rig.disk.disarm()
    if chance.random() < 0.5:
        rig.check_rows()
    for _ in range(chance.randrange(4)):
        rig.disk.arm(Trap(action=Action.FULL, skip=chance.randrange(60)))
    action = chance.choice([Action.POWER_CUT, Action.KILL, Action.EIO])
    kinds = _CHANGES if action is Action.EIO else None
    rig.disk.arm(Trap(action=action, kinds=kinds, skip=chance.randrange(300)))
    rig.survive([rig.random_step] * steps)
    if chance.random() < 0.5:
        rig.disk.power_cut()


@pytest.mark.parametrize("settings", [SETTINGS, SWEPT], ids=["kept", "swept"])
@each_seed(60)
def test_whatever_strikes_everything_is_filed_once_and_leaves_and_is_sealed(
    seed: int, settings: StoreSettings
) -> None:
    rig = StoreRig(seed, plan=HARSH, settings=settings)
    chance = random.Random(seed ^ 0xABCDEF)
    for _ in range(4):
        live(rig, chance, steps=120)
    rig.reopen()
    rig.check_rows()
    rig.finish()


def play(rig: StoreRig) -> None:
    """Use every part of the store once: all spans, two splits, a slice, facts, seals, retiring."""
    rig.split()
    rig.commit([START_MS + place * 20_000 for place in range(6)])
    rig.commit([START_MS + HOUR_MS * hours for hours in (1, 2, 2, 30, 30, 55)])
    rig.file(2)
    rig.checkpoint()
    rig.load(steps=100)
    rig.commit([START_MS - 5, START_MS + 70_000, START_MS + 2 * HOUR_MS + 1])
    rig.file()
    rig.now_ms += MINUTE_MS
    rig.deliver()
    rig.cross_off()
    rig.commit_floor()
    rig.prepare_checkpoint()
    rig.file()
    rig.write_checkpoint()
    rig.now_ms += 118 * MINUTE_MS
    rig.split()
    rig.commit([rig.now_ms + 10, rig.now_ms + 2 * MINUTE_MS])
    rig.file()
    rig.checkpoint()
    rig.split(100)
    rig.sync_durable_end()
    rig.load(rows_max=3, steps=100)
    rig.now_ms += 2 * MINUTE_MS
    rig.load(steps=100)
    rig.deliver()
    rig.cross_off()
    rig.commit_floor()
    rig.file()
    rig.checkpoint()
    rig.checkpoint()


def operations_of(script: Callable[[StoreRig], None]) -> int:
    rig = StoreRig(1)
    rig.open()
    before = rig.disk.operations
    script(rig)
    return rig.disk.operations - before


@pytest.mark.parametrize("action", [Action.POWER_CUT, Action.KILL])
@pytest.mark.parametrize("part", range(4))
def test_a_death_at_any_operation_loses_nothing(action: Action, part: int) -> None:
    for skip in range(part * 3, operations_of(play), 12):
        rig = StoreRig(skip, plan=HARSH)
        rig.open()
        rig.disk.arm(Trap(action=action, skip=skip))
        rig.survive([lambda rig=rig: play(rig)])  # type: ignore[misc]
        assert rig.disk.death is not None
        rig.reopen()
        rig.check_rows()
        rig.finish()


def test_a_full_disk_at_any_write_leaves_everything_whole_and_goes_on_later() -> None:
    struck = 0
    for skip in range(0, 400, 3):
        rig = StoreRig(skip)
        rig.open()
        trap = Trap(action=Action.FULL, kinds={"write", "create", "rename"}, skip=skip)
        rig.disk.arm(trap)
        play(rig)
        if not rig.disk.fired:
            break
        struck += 1
        if skip % 2:
            rig.disk.power_cut()
            rig.reopen()
        rig.check_rows()
        rig.finish()
    assert struck > 20


def populated(seed: int = 1, *, damage_expected: bool = False) -> StoreRig:
    """Return a rig whose directory has something in every kind of file."""
    rig = StoreRig(seed, damage_expected=damage_expected)
    rig.open()
    play(rig)
    rig.commit([rig.now_ms + 1000, rig.now_ms + 100 * HOUR_MS])
    rig.file(10)
    rig.load(steps=100)
    rig.now_ms += 1000
    rig.deliver()
    rig.cross_off()
    rig.sync_durable_end()
    return rig


def test_a_death_at_any_operation_of_recovery_changes_nothing() -> None:
    before = populated().disk.operations
    rig = populated()
    rig.reopen()
    for skip in range(0, rig.disk.operations - before, 5):
        for action in (Action.POWER_CUT, Action.KILL):
            rig = populated(skip)
            rig.disk.power_cut()
            rig.disk = rig.disk.revive(HARSH)
            rig.disk.arm(Trap(action=action, skip=skip))
            rig.survive([rig.open])
            rig.reopen()
            rig.check_rows()
    rig.finish()


def test_recovering_twice_is_recovering_once() -> None:
    rig = populated()
    rig.disk.power_cut()
    rig.reopen()
    rig.check_rows()
    states = [segment.state() for segment in rig.store.schedule.segments.values()]
    files = rig.disk.contents()
    rig.reopen()
    rig.check_rows()
    assert [segment.state() for segment in rig.store.schedule.segments.values()] == states
    assert rig.disk.contents().keys() == files.keys()
    changed = {path for path, data in rig.disk.contents().items() if data != files[path]}
    assert changed <= {"identity", "message_log/durable_end"}


# -- one thing at a time ---------------------------------------------------------------------------


def test_only_files_that_nothing_names_are_deleted() -> None:
    rig = populated()
    uuid = rig.store.identity.log_uuid
    rig.reopen()
    for path in ("schedule_log/notes.txt", "schedule_log/99999999T9999Z.minute"):
        rig.disk.open(path, create=True)
    rig.disk.open("schedule_log/20990101T0000Z.day", create=True)
    rig.disk.open("dispatch_log/20990101T0000Z.day", create=True)
    checkpoint = read_checkpoint(rig.disk, uuid)
    assert checkpoint is not None
    named = {state.key.path for state in checkpoint.segments}
    named |= {file.path for file in checkpoint.retired}
    named |= {seal.key.path for seal in rig.seals().values()}
    rig.reopen()
    assert {"schedule_log/20990101T0000Z.day", "dispatch_log/20990101T0000Z.day"} <= {
        *rig.summary.orphans
    }
    assert not named & {*rig.summary.orphans}
    assert named <= rig.disk.contents().keys()
    assert "schedule_log/notes.txt" in rig.disk.contents()
    assert "schedule_log/99999999T9999Z.minute" in rig.disk.contents()


def test_one_directory_serves_one_process() -> None:
    rig = populated()
    with pytest.raises(DataDirectoryError, match="another process"):
        rig.open()


# -- what cannot be known is refused ---------------------------------------------------------------


def refused(disk: SimDisk, error: type[StorageError], match: str) -> None:
    """Open a directory that must be refused, with nothing derived cut or deleted."""
    before = disk.contents()
    with pytest.raises(error, match=match):
        Store.open(
            disk,
            SETTINGS,
            chance=random.Random(1),
            now_ms=START_MS,
            on_damage=lambda _damage: None,
        )
    after = disk.contents()
    assert after.keys() >= before.keys() - {"checkpoint/checkpoint.tmp"}
    for path, data in before.items():
        if path.startswith(("schedule_log", "dispatch_log", "seals", "checkpoint")):
            assert after[path] == data


def test_a_missing_checkpoint_beside_older_logs_is_refused() -> None:
    rig = populated()
    assert SEALS_PATH in rig.disk.contents()
    disk = rig.disk.revive()
    disk.unlink(CHECKPOINT_PATH)
    refused(disk, LogStateError, "checkpoint is missing")


def test_segments_without_any_log_they_could_be_made_from_are_refused() -> None:
    rig = StoreRig(1)
    rig.open()
    rig.split()
    rig.commit([START_MS])
    rig.file()
    rig.flush()
    disk = rig.disk.revive()
    disk.unlink(CHECKPOINT_PATH)
    for path in list(disk.contents()):
        if path.startswith("message_log/"):
            disk.unlink(path)
    refused(disk, LogStateError, "checkpoint is missing")


def newer(data: bytes) -> bytes:
    """Return the file with the header that a newer version might write."""
    head = bytearray(data[:64])
    head[4:6] = (3).to_bytes(2, "little")
    head[60:64] = zlib.crc32(head[:60]).to_bytes(4, "little")
    return bytes(head) + data[64:]


@pytest.mark.parametrize("kind", ["checkpoint", "schedule_log", "dispatch_log", "message_log/0"])
def test_a_file_of_a_newer_format_is_refused_with_a_clear_sentence(kind: str) -> None:
    rig = populated()
    named = {CHECKPOINT_PATH}
    for state in rig.store.checkpoint.segments:
        named |= {state.key.path, state.key.facts_path}
    disk = rig.disk.revive()
    files = disk.contents()
    path = [
        path
        for path, data in files.items()
        if kind in path and len(data) > 64 and (path in named or kind == "message_log/0")
    ][-1]
    disk.open(path).write_at(0, [newer(files[path])])
    refused(disk, UnsupportedFormatError, "written by a newer delaywheel, upgrade this node")


# -- damage ----------------------------------------------------------------------------------------


def test_a_damaged_coarse_segment_is_quarantined_and_not_deleted() -> None:
    rig = StoreRig(1, damage_expected=True)
    rig.open()
    rig.split()
    due_ms = START_MS + 3 * HOUR_MS
    for place in range(3):
        rig.commit([due_ms + place])
        rig.file()
        rig.checkpoint()
    [state] = rig.store.checkpoint.segments
    coarse = state.key.path
    rig.disk.damage(coarse, 64 + 80 + 20, b"\xff\xff")  # In the columns of the first batch.
    rig.now_ms = due_ms + 10
    rig.split(100)
    rig.load(steps=100)
    rig.deliver()
    assert sorted(rig.memory.deliveries) == [3, 4]
    assert [(damage.path, damage.position) for damage in rig.damages] == [(coarse, 64)]
    rig.now_ms += 2 * GRACE_MS
    rig.checkpoint()
    rig.checkpoint()
    rig.reopen()
    rig.checkpoint()
    assert rig.store.checkpoint.quarantined == (coarse,)
    search = FindLook(take_present(rig.store.schedule), [10**6])
    while not search.step():
        pass
    # It may be in there.
    assert (search.is_complete, search.unreadable) == (False, 1)
    assert coarse in rig.disk.contents()
    assert coarse not in rig.summary.orphans


@pytest.mark.parametrize("midway", [False, True])
def test_a_quarantined_segment_is_durable_before_the_checkpoint_moves_beyond_it(
    *, midway: bool
) -> None:
    rig = StoreRig(1, damage_expected=True)
    rig.open()
    rig.split()
    due_ms = START_MS + 3 * HOUR_MS
    rig.commit([due_ms])
    rig.file()
    rig.checkpoint()
    [state] = rig.store.checkpoint.segments
    coarse = state.key.path
    rig.commit([due_ms + 1])
    rig.file()
    rig.now_ms = due_ms + 10
    if midway:
        # The file is synced, then gets more rows, then whoever was split is let go.
        rig.prepare_checkpoint()
        assert rig.work is not None
        rig.work.write()
        rig.commit([due_ms + 2])
        rig.file()
    rig.disk.arm(Trap(action=Action.EIO, kinds=frozenset({"open_read"}), skip=0))
    rig.split(100)
    assert [damage.path for damage in rig.damages] == [coarse]
    whole = rig.disk.contents()[coarse]
    if midway:
        assert rig.work is not None
        rig.store.finish_checkpoint(rig.work)
        rig.work = None
    rig.checkpoint()
    assert rig.store.checkpoint.quarantined == (coarse,)
    rig.disk.power_cut()
    assert rig.disk.contents()[coarse] == whole


@pytest.mark.parametrize("kind", ["open_read", "size", "read"])
def test_a_split_that_cannot_read_is_begun_anew_and_nothing_is_damaged_or_sent_twice(
    kind: str,
) -> None:
    for skip in range(40):
        rig = StoreRig(1)
        rig.open()
        rig.split()
        due_ms = START_MS + 4 * HOUR_MS
        for place in range(3):
            rig.commit([due_ms + 61_000 * place, due_ms + place])
            rig.file()
        rig.checkpoint()
        [segment] = rig.store.schedule.segments.values()
        rig.now_ms = rig.store.schedule.splits.next_ms() or 0
        trap = Trap(action=Action.EIO, kinds=frozenset({kind}), skip=skip)
        rig.disk.arm(*[trap] * (2 if kind == "read" else 1))  # A block is read once more.
        rig.split(100)
        rig.disk.disarm()
        has_failed = list(rig.store.schedule.segments.values()) == [segment]
        if has_failed:
            assert rig.store.schedule.splits.next_ms() == rig.now_ms + MINUTE_MS
            # What comes meanwhile goes to the segment, which the next try finds whole.
            rig.commit([due_ms + 7])
            rig.file()
            rig.flush()
            assert segment.rows == 7
            rig.checkpoint()
            assert not rig.store.checkpoint.retired
            if skip % 2:
                rig.disk.power_cut()
                rig.reopen()
            rig.now_ms += MINUTE_MS
            rig.split(100)
        rig.checkpoint()
        assert rig.store.checkpoint.quarantined == ()
        assert segment.key.path in {file.path for file in rig.store.checkpoint.retired}
        rig.now_ms = due_ms + 3 * MINUTE_MS
        rig.load(steps=100)
        rig.deliver()
        assert rig.memory.deliveries == dict.fromkeys(rig.memory.accepted, 1)
        if not has_failed:
            assert skip > 0
            break
    else:
        pytest.fail("there is no end to it")


def test_a_split_that_cannot_wait_or_read_facts_sets_its_segment_aside_and_sends_none_twice() -> (
    None
):
    rig = StoreRig(1, damage_expected=True)
    rig.open()
    rig.split()
    coarse_ms = START_MS + 3 * HOUR_MS
    rig.commit([coarse_ms, coarse_ms + 2 * MINUTE_MS])
    rig.commit([coarse_ms + HOUR_MS])
    rig.file(2)
    rig.checkpoint()
    rig.now_ms = coarse_ms
    rig.split(100)
    rig.load(steps=100)
    rig.deliver()
    rig.state_facts()
    rig.reopen()  # The split is forgotten, the fact is not.
    rig.checkpoint()
    first = min(rig.store.checkpoint.segments, key=lambda state: state.key.start).key
    rig.disk.arm(
        Trap(
            action=Action.EIO,
            kinds=frozenset({"open_read"}),
            when=lambda _kind, path, _label: path == first.facts_path,
        )
    )
    rig.split(100)
    assert [damage.path for damage in rig.damages] == [first.facts_path]
    rig.checkpoint()
    assert set(rig.store.checkpoint.quarantined) == {first.path, first.facts_path}
    rig.reopen()
    rig.now_ms += 2 * HOUR_MS
    rig.split(100)
    rig.load(steps=100)
    rig.deliver()
    assert rig.memory.deliveries == Counter({2: 1, 4: 1})


def test_a_day_that_cannot_be_split_keeps_no_hour_from_it() -> None:
    rig = StoreRig(1)
    rig.open()
    rig.split()
    schedule = rig.store.schedule
    day_ms = (START_MS // DAY_MS + 4) * DAY_MS
    rig.commit([START_MS + 4 * HOUR_MS, day_ms, day_ms - HOUR_MS])
    rig.file()
    rig.flush()
    rig.now_ms = day_ms - 49 * HOUR_MS
    spans = {segment.key.span for segment in schedule.segments.values()}
    assert spans == {Span.HOUR, Span.DAY}
    day = max(schedule.segments.values(), key=lambda one: one.key.start).key
    split: set[SegmentKey] = set()
    while rig.now_ms < day_ms:
        schedule.segments[day.code].split_after_ms = rig.now_ms + 1
        while (job := schedule.splits.begin(rig.now_ms)) is not None:
            split.add(job.key)
            while not job.step(rig.now_ms):
                pass
        assert schedule.hour_mark <= day.start
        assert schedule.splits.day_mark <= day.start
        rig.now_ms += 10 * MINUTE_MS
    # All that is due before that day has minutes of its own, and nothing of the day is touched.
    coarse = [s.key for s in schedule.segments.values() if s.key.span is not Span.MINUTE]
    assert coarse == [day]
    assert day not in split
    assert schedule.splits.deadline_ms(day) < day_ms


def test_with_a_lost_seals_log_a_segment_that_is_made_again_is_not_given_up() -> None:
    rig = populated(damage_expected=True)
    due_ms = rig.now_ms + MINUTE_MS
    key = key_of_minute(due_ms // MINUTE_MS, Span.MINUTE)
    assert key not in {state.key for state in rig.store.checkpoint.segments}
    rig.commit([due_ms])
    rig.file(10)
    rig.flush()
    rig.disk = rig.disk.revive()
    assert key.path in rig.disk.contents()
    rig.disk.unlink(SEALS_PATH)
    rig.open()
    assert key.path not in rig.store.schedule.quarantined
    rig.checkpoint()
    rig.now_ms = due_ms
    rig.load(steps=10)
    rig.deliver()
    rig.cross_off()
    rig.now_ms += MINUTE_MS
    rig.commit_floor()
    rig.file(10)
    rig.checkpoint()
    assert key.name in rig.seals()
    rig.reopen()
    assert rig.summary.orphans == []
    assert {key.path, key.facts_path} <= rig.disk.contents().keys()


def lose_the_last_but_one(rig: StoreRig, *, of: bytes = b"") -> None:
    """Damage that batch of the message_log, of those that begin so, and begin another life."""
    path = min(p for p in rig.disk.contents() if p.startswith("message_log/0"))
    rig.sync_durable_end()
    data = rig.disk.contents()[path]
    places = [found.start() for found in re.finditer(b"DWB1.{12}" + of, data, re.DOTALL)]
    place = places[-2]
    rig.disk.damage(path, place + 90, b"\xff\xfe\xfd")
    rig.reopen()
    assert rig.damages


@pytest.mark.parametrize("minutes", [0, 1])
def test_facts_about_rows_that_are_lost_hide_no_message_from_the_count(minutes: int) -> None:
    rig = StoreRig(1, damage_expected=True)
    rig.open()
    rig.split()
    rig.checkpoint()
    rig.commit([START_MS])
    rig.commit([START_MS + max(minutes * MINUTE_MS, 1)])
    rig.file(5)
    rig.load(steps=10)
    rig.deliver()
    rig.state_facts()
    assert sorted(rig.memory.deliveries) == [2]
    lose_the_last_but_one(rig, of=bytes([RecordKind.MESSAGE]))
    del rig.memory.accepted[2]
    if not minutes:
        # The row that is left hides behind the fact, but not once both are looked at.
        rig.now_ms += MINUTE_MS
        rig.commit_floor()
        rig.file(5)
        rig.checkpoint()
    assert rig.store.schedule.pending == 1
    rig.now_ms += MINUTE_MS
    rig.load(steps=10)
    rig.deliver()
    rig.cross_off()
    assert sorted(rig.memory.deliveries) == [2, 3]
    assert rig.store.schedule.pending == 0
    rig.now_ms += MINUTE_MS
    rig.commit_floor()
    rig.file(5)
    rig.checkpoint()
    assert not rig.store.schedule.segments
    assert rig.store.schedule.pending == 0


def test_a_fact_that_is_told_twice_hides_no_message_from_the_count() -> None:
    rig = StoreRig(1, damage_expected=True)
    rig.open()
    rig.split()
    rig.commit([START_MS, START_MS + 1, START_MS + 2])
    rig.file()
    rig.load(steps=10)
    rig.deliver()
    rig.cross_off()
    rig.checkpoint()
    [segment] = rig.store.schedule.segments.values()
    rig.disk.damage(segment.facts_file.path, segment.facts_file.length - 3, b"\xff\xfe")
    rig.reopen()
    rig.now_ms += 2
    rig.load(steps=10)
    rig.deliver(2)
    rig.cross_off()
    assert rig.store.schedule.pending == 0
    rig.now_ms += MINUTE_MS
    rig.commit_floor()
    rig.file(5)
    rig.checkpoint()
    assert rig.memory.deliveries == Counter({2: 2, 3: 1})
    assert rig.store.schedule.pending == 1
    rig.deliver()
    rig.cross_off()
    rig.checkpoint()
    assert not rig.store.schedule.segments
    assert rig.store.schedule.pending == 0


def test_the_checkpoint_is_small_beside_the_largest_batch() -> None:
    rig = populated()
    write_checkpoint(rig.disk, rig.store.identity.log_uuid, rig.store.checkpoint)
    assert len(rig.disk.contents()[CHECKPOINT_PATH]) < BATCH_BYTES_MAX // 1000


def test_a_start_that_finds_damage_deletes_nothing_that_it_did_not_write() -> None:
    rig = populated(damage_expected=True)
    segments = rig.store.checkpoint.segments
    rig.commit([rig.now_ms + 200 * HOUR_MS])
    rig.file(10)
    rig.flush()
    orphans = {
        path: data
        for path, data in rig.disk.contents().items()
        if "/" in path
        and key_of_name(path.split("/")[1]) is not None
        and path not in {file.path for file in rig.store.checkpoint.retired}
        and path.split("/")[1] not in {state.key.name for state in segments}
        and path.split("/")[1] not in rig.seals()
    }
    assert orphans
    # Without damage they are deleted, and made again from the message_log.
    healthy = SimDisk(random.Random(1))
    for path, data in rig.disk.contents().items():
        put_file(healthy, path, data)
    _, summary = start(
        healthy, rig.settings, chance=random.Random(1), now_ms=rig.now_ms, on_damage=print
    )
    assert set(summary.orphans) == orphans.keys()
    # With some they are put aside, and all the same made again.
    gone = next(state.key.path for state in segments if state.length)
    rig.disk.unlink(gone)
    before = rig.disk.contents()
    rig.reopen()
    assert [damage.path for damage in rig.damages][:1] == [gone]
    assert rig.summary.orphans == []
    after = rig.disk.contents()
    aside = {path: data for path, data in after.items() if path.startswith("quarantine/")}
    assert sorted(aside.values()) == sorted(orphans.values())
    assert set(rig.store.schedule.quarantined) >= aside.keys()
    assert {path.split(".", 2)[2] for path in aside} == {path.split("/")[1] for path in orphans}
    assert not before.keys() - after.keys() - orphans.keys()
    rig.checkpoint()
    rig.reopen()
    assert aside.items() <= rig.disk.contents().items()


def put_file(disk: SimDisk, path: str, data: bytes) -> None:
    disk.make_directory(path.rpartition("/")[0])
    file = disk.open(path, create=not disk.exists(path))
    file.write_at(0, [data])
    file.sync()
    file.close()


def test_a_directory_in_place_of_a_file_is_refused_before_anything_is_changed() -> None:
    rig = StoreRig(1)
    rig.open()
    rig.commit()
    rig.file()
    rig.checkpoint()
    rig.store.close()
    path = key_of_minute(rig.now_ms // MINUTE_MS + 10_000, Span.MINUTE).path
    rig.disk.make_directory(path)
    before = rig.disk.contents().keys()
    with pytest.raises(NotRegularFileError, match="not a regular file"):
        rig.reopen()
    assert rig.disk.contents().keys() == before


def test_a_missing_checkpoint_is_remedied_as_the_manual_says() -> None:
    rig = StoreRig(1)
    rig.open()
    rig.commit()
    rig.file()
    rig.checkpoint()
    rig.store.close()
    rig.disk.unlink(CHECKPOINT_PATH)
    rig.disk.rename("message_log/00000000000000000001.log", "message_log/00000000000000000007.log")
    with pytest.raises(LogStateError, match=r"salvage.*--send.*must never be put back") as caught:
        rig.reopen()
    assert "replica" not in str(caught.value)


def opened(disk: SimDisk, *, begins_new_log: bool = False) -> Store:
    """Open a store whose epochs somebody else numbers."""
    settings = replace(SETTINGS, begins_new_log=begins_new_log)
    store, summary = start(
        disk,
        settings,
        chance=random.Random(1),
        now_ms=START_MS,
        on_damage=lambda damage: pytest.fail(f"{damage}"),
    )
    assert not summary.damages
    return store


def test_a_log_that_is_told_its_epochs_stays_empty_until_then_and_has_a_start_for_each() -> None:
    disk = SimDisk(random.Random(1))
    for _ in range(3):
        store = opened(disk)
        assert (store.message_log.next_sequence, store.message_log.last_epoch) == (1, 0)
        assert list(store.message_log.read(1)) == []
        store.close()
        disk = disk.revive()
    for epoch in (1, 2, 7, 8):
        store = opened(disk)
        store.start_epoch(epoch, now_ms=START_MS)
        assert (store.message_log.last_epoch, store.schedule.epoch) == (epoch, epoch)
        # Durable at once.
        disk.power_cut()
        disk = disk.revive()
    store = opened(disk)
    assert [start.epoch for start in store.schedule.epochs] == [1, 2, 7, 8]
    assert [start.first_sequence for start in store.schedule.epochs] == [1, 2, 3, 4]
    work = store.prepare_checkpoint(START_MS)
    work.write()
    store.finish_checkpoint(work)
    store.close()
    # Who is asked by nobody goes on in the epoch there is.
    store = opened(disk.revive(), begins_new_log=True)
    assert (store.message_log.next_sequence, store.message_log.last_epoch) == (5, 8)
    with pytest.raises(AssertionError, match="epoch 8 after 8"):
        store.start_epoch(8, now_ms=START_MS)


# -- facts of the log's tail -----------------------------------------------------------------------


def fill_the_disk(rig: StoreRig, path: str) -> None:
    """Have the next write to a file find no space."""
    rig.disk.arm(Trap(action=Action.FULL, when=lambda _k, found, _l: found == path))


@pytest.mark.parametrize("committed", [2, 3])
def test_nothing_is_sent_again_of_which_an_outcome_is_durable_and_not_committed(
    committed: int,
) -> None:
    rig = StoreRig(1)
    rig.open()
    rig.split()
    rig.commit([START_MS + 10])
    rig.file()
    rig.load(steps=100)
    rig.now_ms += 1000
    rig.deliver()
    rig.state_facts()
    assert rig.store.message_log.next_sequence == 4
    store, _ = Store.open(
        rig.disk.revive(),
        SETTINGS,
        chance=random.Random(1),
        now_ms=rig.now_ms,
        on_damage=lambda damage: pytest.fail(f"{damage}"),
    )
    store.apply_tail(committed, now_ms=rig.now_ms)
    assert store.recovery.known == 1
    schedule = store.schedule
    handout = schedule.hand_out()
    entries: list[Entries] = []
    assert schedule.pending == committed - 2
    while (split := schedule.splits.begin(rig.now_ms)) is not None:
        split.step(rig.now_ms)
    until_ms = rig.now_ms + MINUTE_MS
    while (load := handout.begin_load(until_ms, rows_max=9, now_ms=rig.now_ms)) is not None:
        entries.append(load.step(9)[0])
    for batch in store.message_log.read(committed):
        assert isinstance(batch, LogBatch)
        entries.append(schedule.apply(batch, now_ms=rig.now_ms).entries)
    assert sum(map(len, entries)) == 0
    assert (schedule.pending, schedule.last_filed) == (0, 3)


def test_rows_and_facts_that_are_filed_are_passed_over_by_a_replay() -> None:
    rig = StoreRig(1)
    rig.open()
    rig.split()
    rig.commit([START_MS + 10])
    rig.file()
    rig.load(steps=100)
    rig.now_ms += 1000
    rig.commit([START_MS + 60 * HOUR_MS])
    rig.commit([START_MS + 40_000])
    rig.file(2)
    rig.deliver()
    rig.cross_off()
    fill_the_disk(rig, key_of_minute(START_MS // MINUTE_MS + 60 * 60, Span.DAY).path)
    rig.checkpoint()
    [segment] = rig.store.checkpoint.segments
    assert rig.store.checkpoint.sequence == 2, "the row behind it waits"
    assert (segment.rows, segment.last_sequence) == (2, 4)
    assert (segment.facts, segment.last_fact) == (1, 5)
    rig.reopen()
    rig.flush()
    assert rig.store.schedule.pending == 2
    rig.checkpoint()
    states = rig.store.checkpoint.segments
    assert [(state.rows, state.facts) for state in states] == [(2, 1), (1, 0)]
    rig.finish()


def test_a_replay_after_a_split_passes_over_the_facts_that_were_filed_before_it() -> None:
    rig = StoreRig(1)
    rig.open()
    rig.split()
    coarse_ms = START_MS + 3 * HOUR_MS
    rig.commit([START_MS + 10, coarse_ms, coarse_ms + 2 * MINUTE_MS])
    rig.file()
    rig.checkpoint()  # Names the hour.
    rig.now_ms = coarse_ms
    rig.split(100)
    rig.load(steps=100)
    rig.deliver()
    rig.state_facts()
    rig.reopen()  # The split is forgotten, the facts are not.
    minute = key_of_minute(START_MS // MINUTE_MS, Span.MINUTE)
    fill_the_disk(rig, minute.facts_path)
    rig.checkpoint()
    states = [one for one in rig.store.checkpoint.segments if one.key != minute]
    assert [(one.span, one.rows, one.facts, one.last_fact) for one in states] == [(2, 2, 1, 6)]
    rig.split(100)
    fill_the_disk(rig, minute.facts_path)
    rig.checkpoint()
    states = [one for one in rig.store.checkpoint.segments if one.key != minute]
    assert [(one.span, one.facts, one.last_fact) for one in states] == [(1, 1, 6), (1, 0, 6)]
    assert rig.store.checkpoint.sequence == 4, "the fact behind it waits"
    rig.reopen()
    assert rig.store.schedule.pending == 1
    rig.finish()
    assert rig.memory.deliveries == Counter({2: 1, 3: 1, 4: 1})


def test_facts_of_a_segment_that_find_no_space_wait_all_of_them() -> None:
    rig = StoreRig(1)
    rig.open()
    rig.split()
    rig.commit([START_MS + 10, START_MS + 20])
    rig.file()
    rig.load(steps=100)
    rig.now_ms += 1000
    for _ in range(2):
        rig.deliver(1)
        rig.cross_off()
    fill_the_disk(rig, key_of_minute(START_MS // MINUTE_MS, Span.MINUTE).facts_path)
    rig.checkpoint()
    assert rig.store.schedule.full
    [segment] = rig.store.checkpoint.segments
    assert (segment.facts, segment.last_fact, rig.store.checkpoint.sequence) == (0, 0, 3)
    rig.reopen()
    assert rig.store.schedule.pending == 0
    rig.checkpoint()
    [segment] = rig.store.checkpoint.segments
    assert (segment.facts, segment.last_fact, rig.store.checkpoint.sequence) == (2, 5, 5)
    rig.finish()


# -- facts that are durable and not committed ------------------------------------------------------


def test_nothing_is_sealed_before_a_start_has_applied_the_tail_of_the_log() -> None:
    rig = StoreRig(5)
    rig.open()
    rig.split()
    rig.load(steps=10)
    due_ms = rig.now_ms + 1000
    rig.commit([due_ms])
    rig.file()
    rig.now_ms += 2000
    rig.deliver()
    rig.cross_off()
    rig.checkpoint()
    rig.store.schedule.facts.dead_pending = 10**15  # Rows find no space, facts do.
    rig.commit([due_ms])
    rig.file()
    minute = key_of_minute(START_MS // MINUTE_MS, Span.MINUTE)
    assert rig.store.schedule.waits(minute)
    rig.now_ms += 3 * MINUTE_MS
    rig.commit_floor()
    rig.file()
    rig.checkpoint()
    assert rig.store.checkpoint.floor_minute > minute.start
    # A node that waits for its role writes checkpoints, and makes room.
    store, _ = Store.open(
        rig.disk.revive(),
        SETTINGS,
        chance=random.Random(1),
        now_ms=rig.now_ms,
        on_damage=lambda damage: pytest.fail(str(damage)),
    )
    for wanted in (None, 10**15, 10**15):
        work = store.prepare_checkpoint(rig.now_ms, wanted)
        work.write()
        assert not work.looks
        store.finish_checkpoint(work)
        # Nor does a replica, that knows of no record that it is committed.
        store.apply_tail(store.checkpoint.sequence + 1, now_ms=rig.now_ms)
    store.apply_tail(store.message_log.next_sequence, now_ms=rig.now_ms)
    for wanted in (None, 10**15, 10**15):
        work = store.prepare_checkpoint(rig.now_ms, wanted)
        work.write()
        store.finish_checkpoint(work)
    assert store.schedule.pending == 1
    assert [state.rows for state in store.checkpoint.segments] == [2]
    store.close()


def test_a_replay_of_many_small_batches_joins_what_waits() -> None:
    rig = StoreRig(1)
    rig.open()
    rig.split()
    rig.settings = limited(gather_bytes_max=10**9)
    for place in range(600):
        rig.commit([START_MS + 200 * HOUR_MS + place])
    rig.reopen()
    schedule = rig.store.schedule
    assert schedule.pending == 600
    assert len(schedule.unwritten()) <= 300


# -- a log that is another's ----------------------------------------------------------------------

UUID_OF_GROUP = UUID("7d3c2b1a-0f9e-4d8c-8b7a-695847362514")


@each_seed(40)
def test_a_directory_whose_log_was_cut_opens_with_all_that_was_applied(seed: int) -> None:
    chance = random.Random(seed)
    disk = SimDisk(random.Random(seed), plan=CALM)
    store = begun(disk, chance)
    for _ in range(3):
        grow(store, chance, chance.randint(1, 12))
        store.apply_tail(committed_in(store, chance), now_ms=START_MS)
        log, applied = store.message_log, store.schedule.last_filed
        epoch = chance.choice([log.last_epoch, store.schedule.epoch])
        sequence = chance.randint(applied + 1, log.next_sequence)
        ends = {header.next_sequence for header in headers_from(store, 1)}
        end = log.next_sequence
        before = told_of(store)
        gone = log.cut_to(epoch, sequence, not_below=applied + 1)
        store.close()
        store = unapplied(disk)
        store.apply_tail(applied + 1, now_ms=START_MS)
        log = store.message_log
        assert log.next_sequence in ends
        assert applied < log.next_sequence <= max(sequence, applied + 1)
        assert log.last_epoch <= epoch
        assert not gone or gone == range(log.next_sequence, end)
        assert told_of(store)["applied"] == before["applied"]


@each_seed(30)
def test_a_follower_that_applies_in_any_steps_has_what_its_master_has(seed: int) -> None:
    chance = random.Random(seed)
    master = begun(SimDisk(random.Random(seed), plan=CALM), chance)
    disk = SimDisk(random.Random(seed), plan=CALM)
    follower = unapplied(disk)
    follower.apply_tail(1, now_ms=START_MS)
    for _ in range(5):
        grow(master, chance, chance.randint(1, 9))
        log = follower.message_log
        while log.next_sequence < master.message_log.next_sequence:
            raw = master.message_log.read_raw(log.next_sequence, bytes_max=1000)
            log.append_copied(raw.data)
        committed = committed_in(follower, chance)
        match chance.randrange(3):
            case 0:
                for batch in log.read(follower.schedule.last_filed + 1):
                    assert isinstance(batch, LogBatch)
                    if batch.header.base_sequence < committed:
                        follower.schedule.apply(batch, now_ms=START_MS)
            case 1:
                follower.apply_tail(committed, now_ms=START_MS)
            case _:
                checkpoint(follower)
                applied = follower.schedule.last_filed
                assert follower.checkpoint.sequence <= applied
                follower.close()
                disk.power_cut()
                disk = disk.revive()
                follower = unapplied(disk)
                follower.apply_tail(applied + 1, now_ms=START_MS)
        assert follower.epoch_starts() == master.epoch_starts()
    end = master.message_log.next_sequence
    for store in (master, follower):
        store.apply_tail(end, now_ms=START_MS)
        assert store.recovery.known == 0
    told, wanted = told_of(follower), told_of(master)
    assert told | {"files": ()} == wanted | {"files": ()}


def test_a_checkpoint_that_ends_inside_a_batch_has_all_of_it_applied() -> None:
    store = unapplied(SimDisk(random.Random(1), plan=CALM))
    store.start_epoch(1, now_ms=START_MS)
    log = store.message_log
    log.append([messages([b"a"] * 3)], append_ms=START_MS)
    end = log.next_sequence
    log.append([messages([b"b"])], append_ms=START_MS)
    store.apply_tail(end - 1, now_ms=START_MS)
    assert store.schedule.last_filed == end - 1
    assert store.schedule.pending == 3
    store.apply_tail(end - 1, now_ms=START_MS)
    assert (store.schedule.last_filed, store.schedule.pending) == (end - 1, 3)


def test_an_epoch_that_is_begun_is_durable_and_applied_when_it_is_committed() -> None:
    disk = SimDisk(random.Random(1), plan=CALM)
    store = unapplied(disk)
    store.start_epoch(1, now_ms=START_MS)
    batch = store.begin_epoch(5, now_ms=START_MS)
    assert (store.schedule.last_filed, store.schedule.epoch) == (1, 1)
    assert store.epoch_starts() == [(1, 1), (5, 2)]
    disk.power_cut()
    store = unapplied(disk.revive())
    assert store.epoch_starts() == [(1, 1), (5, 2)]
    store.apply_tail(batch.header.next_sequence, now_ms=START_MS)
    assert (store.schedule.last_filed, store.schedule.epoch) == (2, 5)


@each_seed(15)
def test_a_checkpoint_neither_names_nor_deletes_what_is_not_committed(seed: int) -> None:
    chance = random.Random(seed)
    disk = SimDisk(random.Random(seed), plan=CALM)
    store = begun(disk, chance, settings=SWEPT)
    applied = store.schedule.last_filed
    wanted = store.message_log.next_sequence
    for step in range(6):
        grow(store, chance, 15)
        checkpoint(store, START_MS + step * DAY_MS)
        assert store.checkpoint.sequence <= applied
        assert all(start.first_sequence <= applied for start in store.checkpoint.epochs)
        assert store.checkpoint.first_sequence <= applied + 1
    found = headers_from(store, applied + 1)
    assert found[0].base_sequence == applied + 1
    assert found[-1].next_sequence == store.message_log.next_sequence > wanted
    disk.power_cut()
    again = unapplied(disk.revive(), settings=SWEPT)
    again.apply_tail(applied + 1, now_ms=START_MS)
    assert headers_from(again, applied + 1) == found


# -- a directory for another log ------------------------------------------------------------------


def test_an_empty_directory_takes_over_the_log_of_its_group() -> None:
    disk = SimDisk(random.Random(1), plan=CALM)
    store = unapplied(disk)
    before = store.identity
    promise = PromiseFile(disk, before.storage_uuid)
    promise.write(Promised(epoch=4))
    controls_file(disk, before.log_uuid).write(b"{}")
    store.adopt_log(UUID_OF_GROUP)
    store = unapplied(disk)
    after = replace(before, log_uuid=UUID_OF_GROUP, incarnation=before.incarnation + 1)
    assert store.identity == after
    assert promise.read() == Promised(epoch=4)
    assert controls_file(disk, UUID_OF_GROUP).read() is None
    store.start_epoch(3, now_ms=START_MS)
    with pytest.raises(LogStateError, match="has records"):
        store.adopt_log(before.log_uuid)
    assert store.message_log.next_sequence == 2
    store.begin_epoch(4, now_ms=START_MS)
    disk.power_cut()
    store = unapplied(disk.revive())
    assert (store.identity.log_uuid, store.message_log.next_sequence) == (UUID_OF_GROUP, 3)


@pytest.mark.parametrize("action", [Action.POWER_CUT, Action.FULL])
@pytest.mark.parametrize("skip", range(16))
def test_a_directory_is_of_one_log_or_the_other_wherever_taking_over_ends(
    action: Action, skip: int
) -> None:
    disk = SimDisk(random.Random(skip), plan=HARSH)
    store = unapplied(disk)
    before = store.identity
    PromiseFile(disk, before.storage_uuid).write(Promised(epoch=4))
    controls_file(disk, before.log_uuid).write(b"{}")
    kinds = {"create", "write"}
    if action is Action.POWER_CUT:
        kinds |= {"sync", "rename", "unlink", "sync_directory"}
    disk.arm(Trap(action=action, kinds=kinds, skip=skip))
    is_done = False
    try:
        store.adopt_log(UUID_OF_GROUP)
        is_done = True
        disk.power_cut()
    except (PowerCut, StorageFullError):
        pass
    disk = disk.revive()
    store = unapplied(disk)
    found = store.identity
    assert found.log_uuid in ({UUID_OF_GROUP} if is_done else {UUID_OF_GROUP, before.log_uuid})
    assert found == replace(before, log_uuid=found.log_uuid, incarnation=found.incarnation)
    assert controls_file(disk, found.log_uuid).read() in {None, b"{}"}
    assert PromiseFile(disk, found.storage_uuid).read() == Promised(epoch=4)
    if found.log_uuid != UUID_OF_GROUP:
        store.adopt_log(UUID_OF_GROUP)
        store = unapplied(disk)
    store.start_epoch(1, now_ms=START_MS)
    store.close()
    identity = read_identity(disk)
    assert identity is not None
    assert identity.log_uuid == UUID_OF_GROUP
