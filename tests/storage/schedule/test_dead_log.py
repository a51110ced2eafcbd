"""What is given up is kept as it was, found, and settled once, whatever strikes in between."""

import contextlib
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.batch.batches import BATCH_BYTES_MAX, Damage
from storage.batch.columns import RecordKind
from storage.batch.facts import Outcome
from storage.batch.file_header import FILE_HEADER_SIZE
from storage.disk.errors import DamagedError
from storage.disk.spans import (
    DEAD_MINUTES_FROM,
    MINUTE_MAX,
    MINUTE_MS,
    SegmentKey,
    Span,
    dead_key,
    dead_minute,
    key_of_code,
    key_of_name,
)
from storage.node.store import StoreSettings
from storage.readers.dead_reader import DeadFilter, DeadItems, DeadSearch, Place
from storage.schedule.dead_log import DeadBlock, DeadLog, dead_segment_of
from storage.schedule.seals import read_seals, seals_end
from storage.tools.inspect import dump_records, verify_disk, verify_files
from storage.tools.salvage import DEAD_LETTER, PENDING, Salvage
from tests.golden.directory import written
from tests.seeds import each_seed
from tests.simulation.faults import HARSH, Action, Trap
from tests.storage.dead_rig import DeadRig
from tests.storage.node.test_store import live
from tests.storage.store_rig import SETTINGS, START_MS, SWEPT

DAY_MS = 24 * 60 * MINUTE_MS


@pytest.mark.parametrize("settings", [SETTINGS, SWEPT], ids=["kept", "swept"])
@each_seed(40)
def test_whatever_strikes_each_is_given_up_once_and_settled_once(
    seed: int, settings: StoreSettings
) -> None:
    rig = DeadRig(seed, plan=HARSH, settings=settings)
    chance = random.Random(seed ^ 0xDEAD)
    for _ in range(4):
        live(rig, chance, steps=150)
    rig.reopen()
    rig.check_rows()
    rig.check_dead()
    rig.see_all_settled()
    rig.finish()
    assert [report["damage"] for report in verify_disk(rig.disk) if report["damage"]] == []


def bury_what_is_due(rig: DeadRig) -> None:
    """File what was appended, give up what of it is due, and have the facts known."""
    rig.file()
    rig.load(steps=10)
    rig.now_ms += 1000
    rig.bury()
    rig.file()
    rig.journal()
    rig.note()


def buried(count: int = 6, *, seed: int = 1) -> DeadRig:
    """Return a store in which so many were given up, their facts known."""
    rig = DeadRig(seed)
    rig.open()
    rig.split()
    rig.commit([START_MS + place for place in range(count)])
    bury_what_is_due(rig)
    return rig


def steps_of(rig: DeadRig) -> list[object]:
    """Return the steps of a short story: given up, some requeued, given up again, some dropped."""
    return [
        lambda: rig.commit([START_MS + place for place in range(5)]),
        rig.file,
        lambda: rig.load(steps=10),
        lambda: setattr(rig, "now_ms", rig.now_ms + 1000),
        rig.bury,
        rig.file,
        rig.journal,
        rig.note,
        rig.checkpoint,
        lambda: rig.settle(3, requeue=True),
        rig.file,
        rig.checkpoint,
        rig.journal,
        rig.note,
        rig.bury,
        lambda: rig.settle(1, requeue=False),
        lambda: rig.file(5),
        rig.checkpoint,
        rig.journal,
        rig.note,
        rig.checkpoint,
    ]


@pytest.mark.parametrize("action", [Action.POWER_CUT, Action.KILL])
def test_a_crash_at_every_single_write_forgets_no_record_and_doubles_none(action: Action) -> None:
    skip, struck = 0, True
    while struck:
        rig = DeadRig(7, plan=HARSH)
        rig.open()
        rig.split()
        rig.disk.arm(Trap(action=action, kinds={"write", "sync", "rename"}, skip=skip))
        struck = not rig.survive(steps_of(rig))  # type: ignore[arg-type]
        rig.reopen()
        rig.check_dead()
        rig.check_rows()
        rig.see_all_settled()
        rig.seal_everything()
        skip += 1
    assert skip > 40


def with_one_buried() -> DeadRig:
    """Return a rig in which one message, due, was recorded as dead, and that was not filed."""
    rig = DeadRig(3)
    rig.open()
    rig.split()
    rig.commit([START_MS])
    rig.file()
    rig.load(steps=10)
    rig.now_ms += 1000
    rig.bury()
    return rig


def test_no_checkpoint_covers_a_record_whose_fact_is_not_durable() -> None:
    rig = with_one_buried()
    rig.file()
    rig.checkpoint()
    [record] = rig.dead.rows
    assert rig.store.checkpoint.sequence < record
    rig.journal()
    rig.note()
    rig.checkpoint()
    assert rig.store.checkpoint.sequence >= record
    assert rig.store.checkpoint.format == 2


def test_a_fact_that_a_crash_cut_off_is_told_at_the_next_start_and_never_twice() -> None:
    rig = DeadRig(3)
    rig.open()
    rig.split()
    rig.commit([START_MS, START_MS + 1])
    rig.file()
    rig.load(steps=10)
    rig.now_ms += 1000
    rig.bury(1)
    rig.file()
    rig.flush()
    rig.disk.power_cut()
    rig.reopen()
    assert rig.store.schedule.pending == 1
    rig.reopen()
    assert rig.store.untold is None
    assert rig.store.schedule.pending == 1
    rig.check_dead()


def test_a_directory_without_dead_letters_stays_in_the_first_format() -> None:
    rig = DeadRig(3)
    rig.open()
    rig.commit([START_MS])
    rig.file()
    rig.checkpoint()
    assert rig.store.checkpoint.format == 1


def test_the_format_stays_the_second_when_all_are_settled() -> None:
    rig = buried(2)
    rig.see_all_settled()
    rig.reopen()
    rig.checkpoint()
    assert rig.store.checkpoint.format == 2


def test_the_seal_of_a_settled_day_counts_what_became_of_its_rows() -> None:
    rig = buried(5)
    rig.settle(2, requeue=True)
    rig.file()
    rig.see_all_settled()
    rig.seal_everything()
    checkpoint = rig.store.checkpoint
    seals = [
        seal
        for seal in read_seals(rig.disk, rig.store.identity.log_uuid, seals_end(checkpoint))
        if not isinstance(seal, Damage) and seal.key.span is Span.DEAD
    ]
    [seal] = seals
    moved, dropped = seal.outcomes[Outcome.MOVED - 1], seal.outcomes[Outcome.DROPPED - 1]
    assert (seal.rows, seal.distinct, moved, dropped) == (5, 5, 2, 3)


def test_the_day_is_that_of_the_append_and_never_one_that_the_floor_has_passed() -> None:
    minute = START_MS // MINUTE_MS
    day = minute - minute % 1440
    assert dead_segment_of(START_MS, 0) == SegmentKey(day, Span.DEAD)
    assert dead_segment_of(START_MS - 3 * DAY_MS, minute) == SegmentKey(day, Span.DEAD)
    assert dead_segment_of(START_MS + DAY_MS, minute) == SegmentKey(day + 1440, Span.DEAD)


@given(st.integers(0, MINUTE_MAX // 1440))
def test_what_stands_for_a_dead_segment_is_no_minute_of_any_message(day: int) -> None:
    key = SegmentKey(day * 1440, Span.DEAD)
    assert MINUTE_MAX < DEAD_MINUTES_FROM <= dead_minute(key) < 2**32
    assert dead_key(dead_minute(key)) == key
    assert key_of_code(key.code) == key
    assert key_of_name(key.name) == key


def test_facts_about_dead_letters_are_not_counted_for_the_minutes_of_their_day() -> None:
    rig = buried(4)
    schedule = rig.store.schedule
    before = {code: segment.facts_seen for code, segment in schedule.segments.items()}
    pending = schedule.pending
    rig.settle(4, requeue=False)
    rig.file()
    rig.journal()
    rig.note()
    rig.checkpoint()
    assert {code: segment.facts_seen for code, segment in schedule.segments.items()} == before
    assert schedule.pending == pending
    assert schedule.dead.pending == 0


# -- reading -----------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    at_once=st.integers(1, 12),
    examined=st.integers(1, 12),
    seed=st.integers(0, 5),
)
def test_pages_of_any_size_find_what_one_search_finds(
    sizes: list[int], at_once: int, examined: int, seed: int
) -> None:
    rig = buried(sizes[0], seed=seed)
    for size in sizes[1:]:
        rig.commit([rig.now_ms + place for place in range(size)])
        rig.file()
        rig.load(steps=10)
        rig.now_ms += 10 * MINUTE_MS if size % 2 else 9 * 60 * MINUTE_MS
        rig.split(100)
        rig.load(steps=10)
        rig.bury()
        rig.file()
        rig.settle(1, requeue=False)
        rig.file()
        rig.journal()
        rig.note()
    wanted = DeadFilter()
    expected = [row.sequence for row in rig.found(wanted)]
    assert sorted(expected) == sorted(rig.dead.rows.keys() - rig.dead.settled.keys())
    found: list[int] = []
    place = Place()
    while True:
        search = DeadSearch(
            rig.disk,
            rig.store.identity.log_uuid,
            rig.store.schedule.dead_extents(),
            wanted=wanted,
            after=place,
            on_damage=lambda damage: pytest.fail(str(damage)),
        )
        rows = search.step(at_once, examined)
        assert len(rows) <= at_once
        found += [row.sequence for row in rows]
        search.close()
        if search.is_done:
            break
        assert search.place > place, "a search that does not come forward"
        place = search.place
    assert found == expected


@pytest.mark.parametrize("position", [0, 1, 63, 65, 100, 10**9])
def test_a_place_that_somebody_made_up_leads_to_rows_or_to_nothing(position: int) -> None:
    rig = buried(6)
    key = next(iter(rig.dead.rows.values())).key
    search = DeadSearch(
        rig.disk,
        rig.store.identity.log_uuid,
        rig.store.schedule.dead_extents(),
        wanted=DeadFilter(),
        after=Place(key.start, 0, position),
        on_damage=lambda _: None,
    )
    assert {row.sequence for row in search.step(99, 99)} <= rig.dead.rows.keys()


def test_a_damaged_batch_is_reported_and_the_others_are_found() -> None:
    rig = buried(3)
    rig.commit([rig.now_ms])
    bury_what_is_due(rig)
    rig.checkpoint()
    [key] = {row.key for row in rig.dead.rows.values()}
    first = rig.found()[0]
    rig.disk.damage(key.path, first.position + 90, b"\xff")
    damages: list[Damage] = []
    search = DeadSearch(
        rig.disk,
        rig.store.identity.log_uuid,
        rig.store.schedule.dead_extents(),
        wanted=DeadFilter(),
        on_damage=damages.append,
    )
    assert [row.sequence for row in search.step(99, 99)] == [max(rig.dead.rows)]
    assert damages[0].path == key.path


@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=6),
    at_once=st.integers(1, 9),
    examined=st.integers(1, 9),
    data=st.data(),
)
def test_batches_in_the_wrong_places_hide_none_and_pages_find_each_row_once(
    sizes: list[int], at_once: int, examined: int, data: st.DataObject
) -> None:
    rig = buried(sizes[0])
    for size in sizes[1:]:
        rig.commit([rig.now_ms + place for place in range(size)])
        rig.file()
        rig.load(steps=10)
        rig.now_ms += 1000
        bury_what_is_due(rig)
    rig.checkpoint()
    expected = [row.sequence for row in rig.found()]
    [key] = {row.key for row in rig.dead.rows.values()}
    file = rig.disk.contents()[key.path]
    begins = [*sorted({row.position for row in rig.found()}), len(file)]
    parts = [file[begin:end] for begin, end in pairwise(begins)]
    moved = b"".join(data.draw(st.permutations(parts)))
    is_struck = data.draw(st.booleans())
    if is_struck:
        at = data.draw(st.integers(0, len(moved) - 1))
        moved = moved[:at] + bytes([moved[at] ^ 1]) + moved[at + 1 :]
    rig.disk.damage(key.path, FILE_HEADER_SIZE, moved)
    found: list[int] = []
    place = Place()
    reader = DeadItems(rig.disk, rig.store.identity.log_uuid)
    while True:
        search = DeadSearch(
            rig.disk,
            rig.store.identity.log_uuid,
            rig.store.schedule.dead_extents(),
            wanted=DeadFilter(),
            after=place,
            on_damage=lambda _: None,
        )
        rows = search.step(at_once, examined)
        for row in rows:
            found.append(row.sequence)
            with contextlib.suppress(DamagedError) if is_struck else contextlib.nullcontext():
                assert reader.read(row) == rig.dead.rows[row.sequence].message.item
        search.close()
        if search.is_done:
            break
        assert search.place > place, "a search that does not come forward"
        place = search.place
    assert found == sorted(set(found))
    assert set(found) <= set(expected)
    assert is_struck or parts != sorted(parts, key=moved.index) or found == expected


# -- filing ------------------------------------------------------------------------------------


def test_a_full_batch_of_records_makes_rows_that_fit() -> None:
    rig = DeadRig(1)
    rig.open()
    count = 60_000
    size = (BATCH_BYTES_MAX - 80 - 36 * count - 4096) // count
    block = DeadBlock(
        sequence=np.arange(1, count + 1),
        old_sequence=np.arange(count),
        dead_ms=np.zeros(count, np.int64),
        due_ms=np.zeros(count, np.int64),
        id_hash=np.zeros(count, np.uint64),
        size=np.full(count, size, np.uint32),
        old_minute=np.zeros(count, np.uint32),
        subject=np.zeros(count, np.uint16),
        reason=np.arange(count).astype(np.uint16) % 7,
        names=[b"subject", *(b"reason %d" % number for number in range(7))],
        blob=bytes(size * count),
    )
    parts = list(block.fitting())
    assert len(parts) > 1
    assert np.concatenate([part.sequence for part in parts]).tolist() == list(range(1, count + 1))
    for part in parts:
        assert part.weight <= BATCH_BYTES_MAX
        draft = part.draft(epoch=1, floor_minute=0, append_ms=0)
        assert draft.kind is RecordKind.DEAD_ROWS
        names = [part.names[number] for number in part.reason.tolist()]
        assert names == [block.names[number] for number in block.reason[part.sequence - 1].tolist()]


def test_rows_that_find_no_space_wait_and_keep_the_checkpoint_back() -> None:
    rig = with_one_buried()

    def inside_dead(_kind: str, path: str, _label: str) -> bool:
        return path.endswith(".dead")

    rig.disk.arm(Trap(action=Action.FULL, kinds={"write", "create"}, when=inside_dead))
    rig.file()
    rig.journal()
    rig.note()
    dead: DeadLog = rig.store.schedule.dead
    assert (dead.full, dead.pending) == (True, 1)
    rig.checkpoint()
    assert rig.store.checkpoint.sequence < min(rig.dead.rows)
    rig.disk.disarm()
    rig.check_dead()
    assert not dead.full


# -- looking into the files -----------------------------------------------------------------------


def test_dump_and_verify_know_dead_letters(tmp_path: Path) -> None:
    rig = buried(3)
    rig.settle(1, requeue=True)
    rig.settle(1, requeue=False)
    rig.file(5)
    rig.journal()
    rig.note()
    rig.checkpoint()
    root = written(rig.disk.contents(), tmp_path)
    assert [report["damage"] for report in verify_files(root) if report["damage"]] == []
    records = list(dump_records(root))
    kinds = {str(record.get("kind")) for record in records}
    assert {"DEAD", "MOVE", "CANCEL", "DEAD_ROWS"} <= kinds
    [cancel] = [record for record in records if record.get("kind") == "CANCEL"]
    assert cancel["old sequence"] in rig.dead.rows
    assert str(cancel["old minute"]).startswith("dead 20")
    dead = next(record for record in records if record.get("kind") == "DEAD_ROWS")
    assert str(dead["reason"]).startswith("reason ")
    outcomes = {str(record["outcome"]) for record in records if "outcome" in record}
    assert {"dead", "moved", "dropped"} <= outcomes


def test_salvage_takes_no_dead_letter_for_a_message_that_is_to_be_sent() -> None:
    rig = buried(4)
    rig.settle(1, requeue=True)
    rig.settle(1, requeue=False)
    rig.file(5)
    rig.journal()
    rig.note()
    rig.checkpoint()
    found = {item.sequence: item for item in Salvage(rig.disk, now_ms=rig.now_ms).items()}
    states = {sequence: item.state for sequence, item in found.items()}
    for sequence, row in rig.dead.rows.items():
        assert states[row.old] == "dead"
        settled = rig.dead.settled.get(sequence)
        expected = DEAD_LETTER if settled is None else "moved"
        if settled is not None and settled not in rig.memory.accepted:
            expected = "dropped"
        assert states[sequence] == expected
        if expected == "moved":
            assert states[settled or 0] == PENDING
    assert sum(item.is_wanted for item in found.values()) == 1
    assert all(item.is_served for item in found.values() if item.state == DEAD_LETTER)


def test_salvage_knows_of_records_whose_facts_a_crash_cut_off() -> None:
    rig = buried(4)
    rig.settle(1, requeue=True)
    rig.settle(1, requeue=False)
    rig.commit([rig.now_ms])
    rig.file(5)
    rig.load(steps=10)
    rig.bury()
    # Nothing of these is in the journal.
    found = {item.sequence: item for item in Salvage(rig.disk, now_ms=rig.now_ms).items()}
    assert rig.dead.settled.keys() | rig.memory.given_up > rig.memory.attempted_facts
    for sequence, row in rig.dead.rows.items():
        assert found[row.old].state == "dead"
        settled = rig.dead.settled.get(sequence)
        expected = "moved" if settled in rig.memory.accepted else "dropped"
        assert found[sequence].state == (DEAD_LETTER if settled is None else expected)


def test_a_damaged_item_is_not_given_out_and_hides_no_other_of_its_batch() -> None:
    rig = buried(2)
    rig.checkpoint()
    row, neighbour = rig.found()
    assert row.position == neighbour.position
    rig.disk.damage(row.key.path, row.position + row.header.blob_offset + 12, b"\xff\xff")
    reader = DeadItems(rig.disk, rig.store.identity.log_uuid)
    item = rig.dead.rows[neighbour.sequence].message.item
    for _ in range(2):
        with pytest.raises(DamagedError, match="blob"):
            reader.read(row)
        assert reader.read(neighbour) == item
    with pytest.raises(DamagedError, match="blob"):
        reader.read(replace(neighbour, due_ms=neighbour.due_ms + 1))
    # What is cut off, or gone, is not made up.
    rig.disk.put(row.key.path, rig.disk.contents()[row.key.path][:-1])
    with pytest.raises(DamagedError):
        DeadItems(rig.disk, rig.store.identity.log_uuid).read(neighbour)
    rig.disk.put(row.key.path, None)
    with pytest.raises(DamagedError, match="cannot be read"):
        DeadItems(rig.disk, rig.store.identity.log_uuid).read(neighbour)


def test_one_is_found_though_damaged_facts_of_others_were_told_twice() -> None:
    rig = buried(3)
    schedule = rig.store.schedule
    rows = rig.found()
    rig.settle(2, requeue=False)
    rig.file(5)
    rig.journal()
    rig.note()
    # As after damage: of two rows facts are told that were told before, of the third none.
    [segment] = schedule.dead.segments.values()
    segment.facts_seen += 2
    assert schedule.dead.pending == 0
    left = {row.sequence for row in rows} - rig.dead.settled.keys()
    assert {row.sequence for row in rig.found()} == left
