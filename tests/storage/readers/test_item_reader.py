"""A message's bytes are handed out only if they are whole and due when its entry says."""

import errno
import os
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.batch.batches import Damage
from storage.batch.entries import ENTRY, Entries, SubjectTable
from storage.batch.item_formats import join_qmq_items, qmq_item_fault
from storage.disk.disk import DirectoryDisk
from storage.disk.spans import MINUTE_MS, SegmentKey, Span
from storage.readers.item_reader import ItemReader
from storage.schedule.segment import Segment
from tests.seeds import examples
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Action, Trap
from tests.storage.qmq_items import qmq_item
from tests.storage.small_logs import LOG_UUID, NOW_MS
from tests.storage.small_segments import KEY, rows_of, segment_disk


def entries_of(segment: Segment, due_ms: list[int], *, first: int = 2) -> Entries:
    """Append rows with these due times; return their entries."""
    table = SubjectTable()
    block = rows_of(due_ms, table, first=first, floor_minute=segment.key.start)
    positions = segment.append(block, table, epoch=1, append_ms=NOW_MS).positions
    entries = np.zeros(len(due_ms), ENTRY)
    entries["sequence"] = block.sequence
    entries["due_ms"] = block.due_ms
    entries["position"] = positions
    entries["size"] = block.size
    entries["minute"] = segment.key.start
    return entries


def item_of(due_ms: int, sequence: int) -> bytes:
    return qmq_item(due_ms, b"boarding", b"UA-%d" % (1521 + sequence))


def made(count: int = 5) -> tuple[SimDisk, Segment, Entries, list[Damage], ItemReader]:
    disk = segment_disk()
    segment = Segment.new(disk, LOG_UUID, KEY)
    entries = entries_of(segment, [NOW_MS + place for place in range(count)])
    segment.file.file().sync()
    found: list[Damage] = []
    return disk, segment, entries, found, ItemReader(disk, found.append)


def test_items_come_in_the_order_of_the_entries_whatever_their_segments() -> None:
    disk, segment, entries, found, reader = made()
    other = Segment.new(disk, LOG_UUID, SegmentKey(KEY.start + 1, Span.MINUTE))
    more = entries_of(other, [NOW_MS + MINUTE_MS], first=50)
    mixed = np.concatenate([entries[3:4], more, entries[:2]])
    items, damaged = reader.read(mixed)
    assert damaged is None
    assert found == []
    assert [bytes(item) for item in items] == [
        item_of(NOW_MS + 3, 5),
        item_of(NOW_MS + MINUTE_MS, 50),
        item_of(NOW_MS, 2),
        item_of(NOW_MS + 1, 3),
    ]
    assert segment.rows == 5


def test_rows_written_after_the_segment_was_mapped_are_read() -> None:
    _, segment, entries, found, reader = made()
    reader.read(entries)
    later = entries_of(segment, [NOW_MS + 50_000] * 300, first=100)
    items, damaged = reader.read(later)
    assert damaged is None
    assert found == []
    assert bytes(items[299]) == item_of(NOW_MS + 50_000, 399)


def test_a_damaged_item_is_reported_with_its_place_and_its_neighbours_are_served() -> None:
    disk, _, entries, found, reader = made()
    position = int(entries["position"][2])
    disk.damage(KEY.path, position + 30, b"\xff")
    items, damaged = reader.read(entries)
    assert damaged is not None
    assert damaged.tolist() == [False, False, True, False, False]
    assert bytes(items[2]) == b""
    assert bytes(items[3]) == item_of(NOW_MS + 3, 5)
    size = int(entries["size"][2])
    assert found == [Damage(KEY.path, position, size, "the item's CRC does not match its bytes")]


def test_a_whole_item_at_the_wrong_place_is_not_handed_out() -> None:
    disk, _, entries, found, reader = made()
    data = disk.contents()[KEY.path]
    position, size = int(entries["position"][1]), int(entries["size"][1])
    disk.damage(KEY.path, int(entries["position"][2]), data[position : position + size])
    _, damaged = reader.read(entries)
    assert damaged is not None
    assert damaged.tolist() == [False, False, True, False, False]
    assert "an intact item, but one that is due at" in found[0].reason


def test_any_flipped_bit_of_a_segment_gives_the_right_item_or_none() -> None:
    chance = random.Random(1)
    for _ in range(400):
        disk, segment, entries, found, reader = made()
        position = chance.randrange(segment.file.length)
        byte = disk.contents()[KEY.path][position]
        disk.damage(KEY.path, position, bytes([byte ^ (1 << chance.randrange(8))]))
        items, damaged = reader.read(entries)
        bad = [False] * 5 if damaged is None else damaged.tolist()
        assert sum(bad) == len(found) <= 1
        for place, item in enumerate(items):
            assert bytes(item) == (b"" if bad[place] else item_of(NOW_MS + place, place + 2))


def test_a_segment_that_is_gone_or_short_is_damage_of_its_items_only() -> None:
    disk, _, entries, found, reader = made()
    end = int(entries["position"][3])
    disk.open(KEY.path).truncate(end)
    lost = entries.copy()
    lost["minute"] += 9
    items, damaged = reader.read(np.concatenate([entries, lost]))
    assert damaged is not None
    assert damaged.tolist() == [False] * 3 + [True] * 7
    assert bytes(items[0]) == item_of(NOW_MS, 2)
    assert "the segment ends before the item does" in {damage.reason for damage in found}
    assert any("cannot be read" in damage.reason for damage in found)


def test_an_unreadable_segment_is_tried_again_the_next_time() -> None:
    disk, _, entries, found, reader = made()
    disk.arm(Trap(action=Action.EIO, kinds={"map"}))
    assert reader.read(entries)[1] is not None
    found.clear()
    assert reader.read(entries)[1] is None
    assert found == []


def test_only_so_many_segments_are_mapped_at_a_time() -> None:
    disk, _, _, found, reader = made()
    for place in range(200):
        segment = Segment.new(disk, LOG_UUID, SegmentKey(KEY.start + place + 1, Span.MINUTE))
        due_ms = segment.key.start * MINUTE_MS
        [item], damaged = reader.read(entries_of(segment, [due_ms], first=9))
        assert damaged is None
        assert bytes(item) == item_of(due_ms, 9)
    assert len(reader._views) <= 64
    assert found == []


@examples(60)
@given(
    sizes=st.lists(st.sampled_from([25, 26, 60, 61, 300]), min_size=1, max_size=80),
    more=st.lists(st.integers(25, 400), max_size=40),
    broken=st.sets(st.integers(0, 119)),
    chance=st.randoms(use_true_random=False),
)
def test_items_of_any_sizes_are_joined_in_order_and_just_the_bad_ones_are_suspects(
    sizes: list[int], more: list[int], broken: set[int], chance: random.Random
) -> None:
    items = []
    for number, size in enumerate(sizes + more):
        flag, due_ms = chance.choice([0, 2, 2]), NOW_MS + number
        rest = struct.pack(">Bqq", flag, 1, due_ms) + chance.randbytes(size - 25)
        items.append(struct.pack(">q", zlib.crc32(rest)) + rest)
    lying = [number for number in range(len(items)) if chance.random() < 0.9] or [0]
    chance.shuffle(lying)
    data, position = b"", {}
    for number in sorted(lying, key=lambda _: chance.random()):
        item = bytearray(items[number])
        if number in broken:
            item[chance.randrange(len(item))] ^= 1 << chance.randrange(8)
        items[number] = bytes(item)
        data += chance.randbytes(chance.randrange(9))
        position[number] = len(data)
        data += item
    late = {number for number in lying if chance.random() < 0.1}
    joined, suspects = join_qmq_items(
        memoryview(data),
        np.array([position[number] for number in lying], np.int64),
        np.array([len(items[number]) for number in lying], np.int64),
        np.array([NOW_MS + number + (number in late) for number in lying], np.int64),
    )
    assert joined == b"".join(items[number] for number in lying)
    faults = [qmq_item_fault(items[number], NOW_MS + number + (number in late)) for number in lying]
    assert suspects.tolist() == [fault is not None for fault in faults]


def test_no_entries_are_no_items() -> None:
    _, _, entries, _, reader = made()
    items, damaged = reader.read(entries[:0])
    assert not len(items)
    assert not len(items.joined)
    assert damaged is None


def test_what_the_disk_cannot_read_costs_its_items_and_not_the_process(tmp_path: Path) -> None:
    root = tmp_path / "data"
    (root / "schedule_log").mkdir(parents=True)
    segment = Segment.new(DirectoryDisk(root), LOG_UUID, KEY)
    entries = entries_of(segment, [NOW_MS + place for place in range(4000)])
    segment.close()
    found: list[Damage] = []
    reader = ItemReader(DirectoryDisk(root), found.append)
    _, damaged = reader.read(entries[:3])
    assert damaged is None
    # Touching a page behind the end of a mapped file is what touching a bad sector is: SIGBUS. It
    # lies between pages that nobody has looked at yet.
    end = (int(entries["position"][2]) // 4096 + 40) * 4096
    os.truncate(root / KEY.path, end)
    items, damaged = reader.read(entries)
    assert damaged is not None
    ends = entries["position"] + entries["size"]
    assert damaged.tolist() == (ends > end).tolist()
    assert 0 < damaged.sum() < len(damaged)
    assert bytes(items[0]) == item_of(NOW_MS, 2)
    assert {damage.reason for damage in found} == {"the disk cannot read it"}
    assert len(found) == damaged.sum()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_a_segment_that_cannot_be_opened_any_more_is_damaged_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    disk = DirectoryDisk(tmp_path)
    disk.make_directory("schedule_log")
    segment = Segment.new(disk, LOG_UUID, KEY)
    other = Segment.new(disk, LOG_UUID, SegmentKey(KEY.start + 1, Span.MINUTE))
    entries = entries_of(segment, [NOW_MS])
    more = entries_of(other, [NOW_MS + MINUTE_MS], first=50)
    found: list[Damage] = []
    plain = os.open

    def refuse(path: str, *rest: int) -> int:
        if path.endswith(segment.file.path):
            raise OSError(code, os.strerror(code), path)
        return plain(path, *rest)

    monkeypatch.setattr(os, "open", refuse)
    items, damaged = ItemReader(disk, found.append).read(np.concatenate([entries, more]))
    assert damaged is not None
    assert damaged.tolist() == [True, False]
    assert bytes(items[1]) == item_of(NOW_MS + MINUTE_MS, 50)
    [said] = segment.read_rows(disk, segment.file.length)
    assert isinstance(said, Damage)
    for damage in (found[0], said):
        assert damage.path == segment.file.path
        assert damage.reason.startswith("cannot be read: ")
        assert str(tmp_path / segment.file.path) in damage.reason
