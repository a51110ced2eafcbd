"""What is given up is kept as it was, found, and settled once, whatever strikes in between."""

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
from storage.batch.dead_rows import NOTE_BYTES_MAX
from storage.batch.facts import Outcome
from storage.batch.file_header import FILE_HEADER_SIZE
from storage.batch.rows import Int64s
from storage.disk.spans import (
    DEAD_MINUTES_FROM,
    MINUTE_MAX,
    MINUTE_MS,
    SegmentKey,
    Span,
    dead_key,
    dead_minute,
    dead_segment_of,
    key_of_code,
    key_of_name,
)
from storage.logs.message_log import Draft
from storage.node.store import StoreSettings
from storage.schedule import dead_index
from storage.schedule.dead_index import DeadRow
from storage.schedule.seals import seals_end
from storage.schedule.segment import SegmentBatch
from storage.tools.inspect import dump_files, verify_disk, verify_files
from storage.tools.salvage import DEAD_LETTER, PENDING, Salvage
from tests.golden.directory import written
from tests.kit.dumped import records_of
from tests.kit.seals import read_seals
from tests.seeds import each_seed
from tests.simulation.faults import HARSH
from tests.storage.dead_rig import DeadRig
from tests.storage.node.test_store import live
from tests.storage.qmq_items import qmq_item
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
    rig.cross_off()


def buried(count: int = 6, *, damage_expected: bool = False) -> DeadRig:
    """Return a store in which so many were given up, their facts known."""
    rig = DeadRig(1, damage_expected=damage_expected)
    rig.open()
    rig.split()
    rig.commit([START_MS + place for place in range(count)])
    bury_what_is_due(rig)
    return rig


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


# -- reading -----------------------------------------------------------------------------------


def note_at(row: DeadRow) -> int:
    """Return where in the file the note of a row lies, behind its item."""
    return row.position + row.size


@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=6),
    data=st.data(),
)
def test_batches_in_the_wrong_places_make_no_row_wrong_or_double(
    sizes: list[int], data: st.DataObject
) -> None:
    rig = buried(sizes[0], damage_expected=True)
    for size in sizes[1:]:
        rig.commit([rig.now_ms + place for place in range(size)])
        rig.file()
        rig.load(steps=10)
        rig.now_ms += 1000
        bury_what_is_due(rig)
    rig.checkpoint()
    [key] = {row.key for row in rig.dead.rows.values()}
    [segment] = [one for one in rig.store.schedule.segments.values() if one.key == key]
    file = rig.disk.contents()[key.path]
    positions = [
        batch.position
        for batch in segment.read_rows(rig.disk, segment.file.length)
        if not isinstance(batch, Damage)
    ]
    parts = [file[begin:end] for begin, end in pairwise([*positions, len(file)])]
    order = data.draw(st.permutations(range(len(parts))))
    moved = b"".join(parts[place] for place in order)
    is_struck = data.draw(st.booleans())
    if is_struck:
        at = data.draw(st.integers(0, len(moved) - 1))
        moved = moved[:at] + bytes([moved[at] ^ 1]) + moved[at + 1 :]
    rig.disk.damage(key.path, FILE_HEADER_SIZE, moved)
    rig.store.schedule.read_dead()
    rows = rig.listed()
    for row, found in zip(rows, rig.read(rows), strict=True):
        expected = rig.dead.rows[row.sequence]
        assert found.item == expected.message.item or (is_struck and found.fault)
        assert found.reason == expected.reason or (is_struck and found.fault)
    sequences = [row.sequence for row in rows]
    assert sequences == sorted(set(sequences))
    assert set(sequences) <= rig.dead.rows.keys()
    if order == sorted(order):
        assert len(rig.dead.rows) - len(rows) <= (max(sizes) if is_struck else 0)


def test_a_damaged_row_can_be_dropped_and_hides_no_other_of_its_batch() -> None:
    rig = buried(3)
    rig.checkpoint()
    item, note, whole = rig.listed()
    path = dead_key(item.minute).path
    rig.disk.damage(path, item.position + 12, b"\xff\xff")
    rig.disk.damage(path, note_at(note) + 3, b"\xff\xff")
    found = rig.read([item, note, whole])
    assert [one.item is None for one in found] == [True, True, False]
    assert [one.reason is None for one in found] == [False, True, False]
    assert [one.fault for one in found] == [
        "the item's CRC does not match its bytes",
        "the note is damaged",
        "",
    ]
    rig.store.schedule.read_dead()
    again = rig.listed()
    assert [row.sequence for row in again] == [item.sequence, note.sequence, whole.sequence]
    assert (again[0], again[2]) == (item, whole)
    # What is known of the one without a note is what its columns say.
    assert (again[1].old_sequence, again[1].group) == (0, "")
    assert again[1].dead_ms == note.dead_ms
    rig.settle(3, requeue=False)
    rig.see_all_settled()


def test_bytes_of_another_row_are_not_taken_for_it() -> None:
    rig = buried(2)
    row, other = rig.listed()
    [found] = rig.read([replace(row, position=other.position, row_size=other.row_size)])
    assert found.item is None
    [found] = rig.read([replace(row, old_sequence=row.old_sequence + 1)])
    assert (found.reason, found.fault) == (None, "the note is damaged")


def test_what_is_cut_off_is_not_made_up() -> None:
    rig = buried(2)
    row = rig.listed()[-1]
    path = dead_key(row.minute).path
    rig.disk.put(path, rig.disk.contents()[path][: row.position + 30])
    [found] = rig.read([row])
    assert (found.item, found.reason) == (None, None)


def test_the_index_is_bounded_and_the_others_are_counted_and_found_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_index, "ROWS_MAX", 3)
    rig = buried(5)
    schedule = rig.store.schedule
    assert (schedule.dead_pending, len(rig.listed())) == (5, 3)
    schedule.read_dead()
    assert [row.sequence for row in rig.listed()] == sorted(rig.dead.rows)[:3]
    rig.settle(3, requeue=False)
    rig.file()
    rig.cross_off()
    assert (schedule.dead_pending, rig.listed()) == (2, [])
    schedule.read_dead()
    rig.check_dead()


# -- filing ------------------------------------------------------------------------------------


def given_up(old: Int64s, item: bytes, *, names: list[bytes]) -> Draft:
    """Return records about these messages, all of one item; names: its subject and the reason."""
    count = len(old)
    return Draft(
        kind=RecordKind.DEAD,
        count=count,
        names=names,
        arrays={
            "old_sequence": old,
            "due_ms": np.full(count, START_MS),
            "id_hash": np.zeros(count, np.uint64),
            "size": np.full(count, len(item), np.uint32),
            "old_minute": np.full(count, START_MS // MINUTE_MS, np.uint32),
            "subject": np.zeros(count, np.uint16),
            "reason": np.ones(count, np.uint16),
        },
        blob=[item] * count,
    )


def test_the_rows_of_a_full_batch_of_records_fit_into_batches_and_keep_their_order() -> None:
    rig = DeadRig(1)
    rig.open()
    rig.split()
    item = qmq_item(START_MS, b"boarding", b"UA-1523", body=bytes(2000))
    count = 1500
    reason = b'{"code":3,"group":"%s"}' % (b"g" * 1500)
    draft = given_up(np.arange(count), item, names=[b"boarding", reason])
    schedule = rig.store.schedule
    floor = START_MS // MINUTE_MS
    [batch] = rig.store.message_log.append([draft], floor_minute=floor, append_ms=START_MS)
    schedule.apply(batch, now_ms=START_MS)
    [segment] = schedule.segments.values()
    rows = rig.listed()
    assert [row.old_sequence for row in rows] == list(range(count))
    assert {(found.item, found.reason) for found in rig.read(rows)} == {(item, reason.decode())}
    batches = list(segment.read_rows(rig.disk, segment.file.length))
    assert len(batches) > 1
    assert all(one.header.size <= BATCH_BYTES_MAX for one in batches if one.header is not None)


def test_the_largest_item_that_is_accepted_fits_with_the_longest_note() -> None:
    reason = b'"' * 1024
    blob = bytes(4 * 1024 * 1024 - 1048 - 523 - NOTE_BYTES_MAX)
    draft = given_up(np.array([2**62]), blob, names=[b"s" * 523, reason])
    draft.arrays["old_minute"][:] = MINUTE_MAX
    rig = DeadRig(1)
    rig.open()
    [batch] = rig.store.message_log.append(
        [draft], floor_minute=START_MS // MINUTE_MS, append_ms=START_MS
    )
    rig.store.schedule.apply(batch, now_ms=START_MS)
    [segment] = rig.store.schedule.segments.values()
    [found] = segment.read_rows(rig.disk, segment.file.length)
    assert isinstance(found, SegmentBatch)
    assert len(blob) + len(reason) < found.columns.arrays["size"][0] < len(blob) + NOTE_BYTES_MAX


# -- looking into the files -----------------------------------------------------------------------


def test_dump_and_verify_know_dead_letters(tmp_path: Path) -> None:
    rig = buried(3)
    rig.settle(1, requeue=True)
    rig.settle(1, requeue=False)
    rig.file(5)
    rig.cross_off()
    rig.checkpoint()
    root = written(rig.disk.contents(), tmp_path)
    assert [report["damage"] for report in verify_files(root) if report["damage"]] == []
    records = list(records_of(dump_files(root)))
    assert {"DEAD", "MOVE", "CANCEL", "ROWS"} <= {record["kind"] for record in records}
    [cancel] = [record for record in records if record["kind"] == "CANCEL"]
    assert cancel["old_sequence"] in rig.dead.rows
    dead = next(record for record in records if record["kind"] == "DEAD")
    assert dead["reason"].startswith('{"code":')
    outcomes = {record.get("outcome") for record in records}
    assert {Outcome.DEAD, Outcome.MOVED, Outcome.DROPPED} <= outcomes


def test_salvage_takes_no_dead_letter_for_a_message_that_is_to_be_sent() -> None:
    rig = buried(4)
    rig.settle(1, requeue=True)
    rig.settle(1, requeue=False)
    rig.file(5)
    rig.cross_off()
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


def test_one_is_found_though_damaged_facts_of_others_were_told_twice() -> None:
    rig = buried(3)
    schedule = rig.store.schedule
    rows = rig.listed()
    rig.settle(2, requeue=False)
    rig.file(5)
    rig.cross_off()
    # As after damage: of two rows facts are told that were told before, of the third none.
    [segment] = [one for one in schedule.segments.values() if one.key.span is Span.DEAD]
    segment.facts_seen += 2
    left = {row.sequence for row in rows} - rig.dead.settled.keys()
    schedule.read_dead()
    assert {row.sequence for row in rig.listed()} == left
