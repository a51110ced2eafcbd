"""Tables of Arrow say what a plain loop over the records says; damage is told, never raised."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.messages.items import Item, encode_item
from storage.batch.batches import Damage
from storage.batch.columns import RecordKind
from storage.batch.entries import SubjectTable
from storage.batch.item_formats import qmq_item_fault
from storage.batch.rows import RowBlock
from storage.disk.disk import Disk, ReadableFile
from storage.disk.spans import key_of_name
from storage.logs.message_log import Draft
from storage.readers.arrow import COLUMNS, ON_DEMAND, ArrowReader, Kind, schema_of
from storage.readers.manifest import (
    Manifest,
    MessageLogFile,
    SealedSegment,
    UnsealedSegment,
    read_manifest,
)
from storage.schedule.segment import Segment
from tests.damage.directory import populated
from tests.seeds import examples
from tests.simulation.disk import SimDisk
from tests.storage.dead_rig import DeadRig
from tests.storage.plain_logs import (
    Row,
    batches,
    plain_create_ms,
    plain_facts,
    plain_id,
    plain_rows,
)
from tests.storage.qmq_items import qmq_item
from tests.storage.small_logs import LOG_UUID, NOW_MS, OTHER_UUID, disk_of, messages, recover
from tests.storage.small_segments import KEY, delivered, rows_of, segment_disk

Found = list[pa.RecordBatch | Damage]
Segments = UnsealedSegment | SealedSegment
Part = Segments | MessageLogFile

POPULATED = [1, 2, 3]
DEAD = [11, 12, 13]


@cache
def directory(seed: int) -> tuple[dict[str, bytes], Manifest]:
    """Return the files of a directory with something of everything, and its manifest."""
    if seed in POPULATED:
        left = populated(seed)
        files, now_ms = dict(left.files), left.now_ms
    else:
        rig = DeadRig(seed)
        rig.open()
        for _ in range(700):
            rig.random_step()
        rig.checkpoint()
        files, now_ms = rig.disk.contents(), rig.now_ms
    return files, read_manifest(disk_of(files), now_ms=now_ms)


def parts_of(manifest: Manifest) -> Iterator[tuple[Kind, str, int, Part]]:
    """Yield everything that a manifest says counts."""
    accepted: list[Segments] = [*manifest.segments, *manifest.sealed]
    dead: list[Segments] = [*manifest.dead_segments, *manifest.dead_sealed]
    for kind, segments in ((Kind.SCHEDULE, accepted), (Kind.DEAD, dead)):
        for segment in segments:
            yield kind, segment.file, segment.length, segment
            yield Kind.DISPATCH, segment.facts_file, segment.facts_length, segment
    for log in manifest.message_log:
        yield Kind.MESSAGE, log.file, log.length, log
        yield Kind.DISPATCH, log.file, log.length, log


def read(reader: ArrowReader, path: str, length: int, part: Part) -> Found:
    """Read one part with a reader for its kind."""
    match part:
        case MessageLogFile():
            whose = reader.stated_facts if reader.kind is Kind.DISPATCH else reader.messages
            found = whose(
                path,
                length=length,
                first_sequence=part.first_sequence,
                next_sequence=part.next_sequence,
            )
        case _ if reader.kind is Kind.DISPATCH:
            found = reader.filed_facts(path, length=length)
        case _:
            is_sealed = isinstance(part, SealedSegment)
            found = reader.rows(path, length=length, is_sealed=is_sealed)
    return list(found)


def all_of(kind: Kind) -> list[str]:
    return list(COLUMNS[kind])


def rows_in(found: Iterable[pa.RecordBatch | Damage]) -> list[Row]:
    rows: list[Row] = []
    for table in found:
        assert not isinstance(table, Damage), table
        table.validate(full=True)
        rows += table.to_pylist()
    return rows


def damages_in(found: Found) -> list[Damage]:
    return [one for one in found if isinstance(one, Damage)]


def tables_in(found: Found) -> list[pa.RecordBatch]:
    return [one for one in found if not isinstance(one, Damage)]


def expected_of(kind: Kind, data: bytes, path: str, length: int, part: Part) -> list[Row]:
    """Return what the plain way finds, in the columns of a table."""
    rows = []
    is_stated = kind is Kind.DISPATCH and isinstance(part, MessageLogFile)
    for row in (plain_facts if is_stated else plain_rows)(path, data, length):
        if kind is Kind.SCHEDULE:
            row["is_sealed"] = isinstance(part, SealedSegment)
            key = key_of_name(path.rpartition("/")[2])
            assert key is not None
            assert isinstance(row["due_ms"], int)
            row["filed_minute"] = min(max(row["due_ms"] // 60_000, key.start), key.end - 1)
        rows.append({name: row.get(name) for name in COLUMNS[kind]})
    return rows


# -- what is whole ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", POPULATED + DEAD)
def test_tables_say_what_a_loop_over_the_records_says(seed: int) -> None:
    files, manifest = directory(seed)
    disk, seen = disk_of(files), Counter[str]()
    assert not manifest.faults
    for kind, path, length, part in parts_of(manifest):
        if not length:
            continue
        reader = ArrowReader(disk, UUID(manifest.log_uuid), kind, all_of(kind))
        rows = rows_in(read(reader, path, length, part))
        assert rows == expected_of(kind, files[path], path, length, part)
        assert reader.bad_items == 0
        seen[kind] += len(rows)
        seen.update(str(row["kind"]) for row in rows if kind is Kind.MESSAGE)
        if isinstance(part, MessageLogFile):
            seen.update(str(row["outcome"]) for row in rows if kind is Kind.DISPATCH)
        seen.update(str(row["span"]) for row in rows if kind is Kind.SCHEDULE)
    wanted = {"message", "schedule", "dispatch", "epoch_start", "floor", "minute", "hour", "day"}
    wanted |= {"delivered"}
    if seed in DEAD:
        wanted |= {"dead", "cancel", "move", "moved", "dropped"}
    assert wanted <= seen.keys(), "the directory does not have everything"


@pytest.mark.parametrize("kind", list(Kind))
def test_each_column_is_the_same_alone_and_in_tables_of_any_size(kind: Kind) -> None:
    files, manifest = directory(DEAD[0])
    disk, chance = disk_of(files), random.Random(5)
    for its_kind, path, length, part in parts_of(manifest):
        if its_kind is not kind or not length:
            continue
        rows = expected_of(kind, files[path], path, length, part)
        for name in COLUMNS[kind]:
            reader = ArrowReader(
                disk,
                UUID(manifest.log_uuid),
                kind,
                [name],
                rows_max=chance.choice([1, 7, 10**6]),
                bytes_max=chance.choice([1, 900, 10**9]),
            )
            found = read(reader, path, length, part)
            assert [row[name] for row in rows_in(found)] == [row[name] for row in rows]
            assert all(table.schema.equals(reader.schema) for table in tables_in(found))


def test_columns_come_in_the_order_given_and_all_of_them_can_be_null() -> None:
    schema = schema_of(Kind.SCHEDULE, ["subject", "sequence"])
    assert schema.names == ["subject", "sequence"]
    for kind in Kind:
        assert "payload" not in schema_of(kind).names
        for field in schema_of(kind, all_of(kind)):
            assert field.nullable
            plain = {"int64", "int32", "string", "binary", "bool"}
            assert str(field.type) in plain | {"map<string, string>"}


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (["sequence", "colour"], "no column 'colour' in dispatch"),
        (["target", "target"], "named once"),
        ([], "one at least"),
        (["payload"], "no column 'payload' in dispatch"),
    ],
)
def test_columns_that_make_no_table_are_refused(columns: list[str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        schema_of(Kind.DISPATCH, columns)


def test_tables_stay_small_whatever_the_file_has() -> None:
    segment, _ = big_segment(batches=40, rows=30)
    whole = reader_on(segment.file.disk, Kind.SCHEDULE, ["sequence"], rows_max=100)
    found = list(whole.rows(KEY.path, length=segment.file.length))
    sizes = [table.num_rows for table in tables_in(found)]
    assert sum(sizes) == 1200
    assert max(sizes) == 90, "as many batches as fit into 100 rows"
    heavy = reader_on(segment.file.disk, Kind.SCHEDULE, ["payload"], bytes_max=20_000)
    for table in heavy.rows(KEY.path, length=segment.file.length):
        assert not isinstance(table, Damage)
        assert table.column(0).nbytes < 25_000


def test_an_empty_directory_has_no_rows_and_no_damage() -> None:
    disk = segment_disk()
    assert list(reader_on(disk, Kind.SCHEDULE).rows(KEY.path, length=0)) == []
    assert list(reader_on(disk, Kind.DISPATCH).filed_facts(KEY.facts_path, length=0)) == []
    log = reader_on(disk, Kind.MESSAGE)
    path = "message_log/00000000000000000001.log"
    assert list(log.messages(path, length=0, first_sequence=1, next_sequence=1)) == []


# -- what is read ----------------------------------------------------------------------------


class CountingDisk:
    """A disk that counts the bytes that are read."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.bytes_read = 0
        self.opened: list[str] = []

    def open_read(self, path: str) -> ReadableFile:
        self.opened.append(path)
        return _CountingFile(self, self._disk.open_read(path))


class _CountingFile:
    def __init__(self, disk: CountingDisk, file: ReadableFile) -> None:
        self._disk = disk
        self._file = file
        self.path = file.path
        self.size = file.size
        self.close = file.close

    def read_at(self, position: int, size: int) -> bytes:
        data = self._file.read_at(position, size)
        self._disk.bytes_read += len(data)
        return data


def reader_on(
    disk: Disk | CountingDisk,
    kind: Kind,
    columns: Sequence[str] | None = None,
    *,
    rows_max: int = 65_536,
    bytes_max: int = 8 << 20,
    check_items: bool | None = None,
) -> ArrowReader:
    return ArrowReader(
        disk,
        LOG_UUID,
        kind,
        columns,
        rows_max=rows_max,
        bytes_max=bytes_max,
        check_items=check_items,
    )


def big_segment(*, batches: int, rows: int, body: int = 20) -> tuple[Segment, int]:
    """Return a segment of so many batches, and the bytes of all its items."""
    table = SubjectTable()
    segment = Segment.new(segment_disk(), LOG_UUID, KEY)
    blobs = 0
    for number in range(batches):
        block = rows_of(
            [NOW_MS] * rows, table, first=1 + number * rows, bodies=[bytes(body)] * rows
        )
        segment.append(block, table, epoch=1, append_ms=NOW_MS)
        blobs += len(block.blob)
    return segment, blobs


def test_blobs_are_not_read_unless_a_column_needs_them() -> None:
    segment, blobs = big_segment(batches=5, rows=10, body=100_000)
    disk = CountingDisk(segment.file.disk)
    columns = ["sequence", "due_ms", "size", "id_hash", "subject", "file", "position"]
    found = list(reader_on(disk, Kind.SCHEDULE, columns).rows(KEY.path, length=segment.file.length))
    assert len(rows_in(found)) == 50
    assert disk.bytes_read < blobs / 2
    for column in ("message_id", "create_ms", "attributes", "payload"):
        disk = CountingDisk(segment.file.disk)
        reader = reader_on(disk, Kind.SCHEDULE, [column])
        assert len(rows_in(reader.rows(KEY.path, length=segment.file.length))) == 50
        assert blobs < disk.bytes_read < 1.5 * blobs
        assert disk.opened == [KEY.path], "opened once for a file, not for a batch"


def test_blobs_of_the_message_log_are_hopped_over_too() -> None:
    disk = log_disk([b"x" * 100_000] * 10, batches=5)
    counting = CountingDisk(disk)
    path = "message_log/00000000000000000001.log"
    length = len(disk.contents()[path])
    reader = reader_on(counting, Kind.MESSAGE, ["sequence", "due_ms", "subject"])
    found = reader.messages(path, length=length, first_sequence=1, next_sequence=52)
    assert [row["sequence"] for row in rows_in(found)] == list(range(1, 52))
    assert counting.bytes_read < length / 2


def log_disk(items: list[bytes], *, batches: int = 1) -> SimDisk:
    """Return a disk with a message_log: EPOCH_START, and these items so many times."""
    disk = segment_disk()
    disk.make_directory("message_log")
    log, _ = recover(disk, file_bytes_max=1 << 24)
    for _ in range(batches):
        log.append([messages(items)], append_ms=NOW_MS)
    return disk


@pytest.mark.parametrize(("begin", "end"), [(1, 52), (2, 12), (5, 6), (11, 35), (51, 52), (9, 9)])
def test_a_range_of_the_message_log_is_exactly_that_range(begin: int, end: int) -> None:
    items = [qmq_item(NOW_MS + place * 1000, b"boarding", b"%d" % place) for place in range(10)]
    disk = log_disk(items, batches=5)
    path = "message_log/00000000000000000001.log"
    reader = reader_on(disk, Kind.MESSAGE, all_of(Kind.MESSAGE))
    found = list(
        reader.messages(
            path,
            length=len(disk.contents()[path]),
            first_sequence=begin,
            next_sequence=end,
        )
    )
    rows = rows_in(found)
    assert [row["sequence"] for row in rows] == list(range(begin, end))
    for row in rows:
        sequence = row["sequence"]
        assert isinstance(sequence, int)
        assert row["payload"] == (items[(sequence - 2) % 10] if sequence > 1 else None)


def facts_disk() -> tuple[SimDisk, str, int]:
    """Return a disk with a message_log of three batches of four facts, its file and length.

    They are about messages 1 to 12, and two messages come behind each batch: records are 1
    (EPOCH_START), 2 to 5, 8 to 11 and 14 to 17, of 19.
    """
    disk = segment_disk()
    disk.make_directory("message_log")
    log, _ = recover(disk, file_bytes_max=1 << 24)
    for number in range(3):
        facts = delivered([4 * number + place for place in range(1, 5)])
        draft = Draft(kind=RecordKind.FACTS, count=4, names=facts.targets, arrays=facts.arrays)
        log.append([draft], append_ms=1)
        log.append([messages([b"x", b"y"])], append_ms=1)
    path = "message_log/00000000000000000001.log"
    return disk, path, len(disk.contents()[path])


@pytest.mark.parametrize(("begin", "end"), [(1, 20), (3, 5), (4, 10), (17, 18), (8, 8)])
def test_facts_of_a_range_of_the_message_log_are_those_of_its_records(begin: int, end: int) -> None:
    disk, path, length = facts_disk()
    reader = reader_on(disk, Kind.DISPATCH)
    found = reader.stated_facts(path, length=length, first_sequence=begin, next_sequence=end)
    about = dict(zip([*range(2, 6), *range(8, 12), *range(14, 18)], range(1, 13), strict=True))
    wanted = {record: about[record] for record in range(begin, end) if record in about}
    assert {row["record"]: row["sequence"] for row in rows_in(found)} == wanted


@pytest.mark.parametrize("kind", [Kind.MESSAGE, Kind.DISPATCH])
@pytest.mark.parametrize(("batch", "gone"), [(3, (8, 12)), (4, (12, 14))])
def test_records_that_are_damaged_or_missing_are_told_to_who_reads_facts_or_messages(
    kind: Kind, batch: int, gone: tuple[int, int]
) -> None:
    disk, path, length = facts_disk()
    reader = reader_on(disk, kind, ["sequence"])
    read_by = reader.stated_facts if kind is Kind.DISPATCH else reader.messages
    found = list(read_by(path, length=length, first_sequence=1, next_sequence=22))
    [damage] = damages_in(found)
    assert damage.reason == "records 20 to 21 are missing"
    positions = [position for position, _ in batches(disk.contents()[path], length)]
    disk.damage(path, positions[batch] + 20, b"\xff")
    [damage] = damages_in(list(read_by(path, length=length, first_sequence=1, next_sequence=20)))
    assert damage.position == positions[batch]
    assert (damage.first_sequence, damage.next_sequence) == gone


# -- what producers and time have done -------------------------------------------------------


def hostile_block(items: list[bytes], subjects: list[bytes], table: SubjectTable) -> RowBlock:
    count = len(items)
    return RowBlock(
        sequence=np.arange(1, count + 1, dtype=np.int64),
        due_ms=np.full(count, NOW_MS, np.int64),
        id_hash=np.full(count, 2**64 - 1, np.uint64),
        size=np.array([len(item) for item in items], np.uint32),
        subject=table.numbers(subjects),
        origin=np.zeros(count, np.uint8),
        minute=np.full(count, KEY.start, np.int64),
        blob=b"".join(items),
    )


ITEMS = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda head, sizes, rest: head + sizes + rest,
        st.binary(min_size=25, max_size=25),
        st.integers(0, 12).map(lambda size: size.to_bytes(2, "big")),
        st.binary(max_size=30),
    ),
    st.builds(
        lambda subject, message_id: qmq_item(NOW_MS, subject, message_id, b""),
        st.binary(max_size=9),
        st.binary(max_size=9),
    ),
)


@examples(400)
@given(
    items=st.lists(ITEMS, min_size=1, max_size=12),
    subjects=st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=3),
)
def test_items_of_any_bytes_give_their_fields_or_null(
    items: list[bytes], subjects: list[bytes]
) -> None:
    table = SubjectTable()
    segment = Segment.new(segment_disk(), LOG_UUID, KEY)
    names = [subjects[place % len(subjects)] for place in range(len(items))]
    segment.append(hostile_block(items, names, table), table, epoch=1, append_ms=NOW_MS)
    disk, length = segment.file.disk, segment.file.length
    reader = reader_on(disk, Kind.SCHEDULE, all_of(Kind.SCHEDULE), check_items=False)
    rows = rows_in(reader.rows(KEY.path, length=length))
    assert [row["payload"] for row in rows] == items
    assert [row["message_id"] for row in rows] == [plain_id(item) for item in items]
    assert [row["create_ms"] for row in rows] == [plain_create_ms(item) for item in items]
    assert [row["subject"] for row in rows] == [
        name.decode(errors="backslashreplace") for name in names
    ]
    assert {row["id_hash"] for row in rows} == {-1}
    assert reader.bad_items == sum(plain_id(item) is None for item in items)
    checked = reader_on(disk, Kind.SCHEDULE, all_of(Kind.SCHEDULE))
    rows = rows_in(checked.rows(KEY.path, length=length))
    bad = [plain_id(item) is None or qmq_item_fault(item, NOW_MS) is not None for item in items]
    assert checked.bad_items == sum(bad)
    for row, item in zip(rows, items, strict=True):
        whole = qmq_item_fault(item, NOW_MS) is None
        assert row["payload"] == (item if whole else None)
        assert row["message_id"] == (plain_id(item) if whole else None)


def test_attributes_are_those_of_the_item_tags_or_not() -> None:
    """The tags are those of delay_protocol's items, though storage reads them by itself."""
    attributes = {"qmq_appCode": "shop", "dw_firstDue": "5", "body": "\u00fc" * 300, "": ""}
    items = [
        encode_item(Item(flag, 1, NOW_MS, "s", "m", tags, attributes))
        for flag, tags in ((2, ()), (6, ("a", "bc")), (6, ()))
    ]
    table = SubjectTable()
    segment = Segment.new(segment_disk(), LOG_UUID, KEY)
    block = hostile_block(items, [b"s"] * 3, table)
    segment.append(block, table, epoch=1, append_ms=NOW_MS)
    reader = reader_on(segment.file.disk, Kind.SCHEDULE, ["attributes"])
    rows = rows_in(reader.rows(KEY.path, length=segment.file.length))
    assert [row["attributes"] for row in rows] == [list(attributes.items())] * 3


def test_what_costs_most_is_there_only_if_it_is_asked_for() -> None:
    for kind in Kind:
        assert set(COLUMNS[kind]) - set(schema_of(kind).names) == ON_DEMAND & set(COLUMNS[kind])


def test_names_that_are_no_utf8_are_shown_and_those_that_are_stay_as_they_are() -> None:
    subjects = [b"caf\xc3\xa9", b"caf\xe9", b"\xed\xa0\x80", b"\0"]
    items = [qmq_item(NOW_MS, name, name) for name in subjects]
    table = SubjectTable()
    segment = Segment.new(segment_disk(), LOG_UUID, KEY)
    segment.append(hostile_block(items, subjects, table), table, epoch=1, append_ms=NOW_MS)
    reader = reader_on(segment.file.disk, Kind.SCHEDULE, ["subject", "message_id"])
    rows = rows_in(reader.rows(KEY.path, length=segment.file.length))
    shown = ["café", "caf\\xe9", "\\xed\\xa0\\x80", "\0"]
    assert [row["subject"] for row in rows] == [row["message_id"] for row in rows] == shown


def test_an_outcome_that_nobody_knows_is_shown_by_its_number() -> None:
    segment = Segment.new(segment_disk(), LOG_UUID, KEY)
    told = delivered([1, 2, 3], target=b"g\xff")
    told.outcome[:] = 6, 9, 1
    segment.append_facts(told, epoch=2**64 - 1, append_ms=NOW_MS)
    reader = reader_on(segment.file.disk, Kind.DISPATCH, ["outcome", "target", "record"])
    rows = rows_in(reader.filed_facts(KEY.facts_path, length=segment.facts_file.length))
    assert [row["outcome"] for row in rows] == ["expired", "unknown (9)", "delivered"]
    assert {(row["target"], row["record"]) for row in rows} == {("g\\xff", None)}


# -- what is damaged -------------------------------------------------------------------------


def overwrite(data: bytearray, chance: random.Random) -> tuple[int, int]:
    size = min(chance.choice([1, 8, 100]), len(data) - 64)
    at = chance.randrange(64, len(data) - size + 1)
    data[at : at + size] = chance.choice([bytes(size), chance.randbytes(size)])
    return at, at + size


def cut(data: bytearray, chance: random.Random) -> tuple[int, int]:
    at, end = chance.randrange(64, len(data)), len(data)
    del data[at:]
    return at, end


def copy_over(data: bytearray, chance: random.Random) -> tuple[int, int]:
    size = chance.randrange(1, len(data) - 63)
    at, source = (chance.randrange(64, len(data) - size + 1) for _ in range(2))
    data[at : at + size] = data[source : source + size]
    return at, at + size


@pytest.mark.parametrize("harm", [overwrite, cut, copy_over])
@pytest.mark.parametrize("seed", [POPULATED[0], DEAD[0]])
def test_damage_costs_the_batches_it_hits_and_is_told(
    seed: int, harm: Callable[[bytearray, random.Random], tuple[int, int]]
) -> None:
    files, manifest = directory(seed)
    chance = random.Random(seed)
    parts = [part for part in parts_of(manifest) if part[2]]
    hit = 0
    for _ in range(150):
        kind, path, length, part = chance.choice(parts)
        expected = expected_of(kind, files[path], path, length, part)
        data = bytearray(files[path][:length])
        begin, end = harm(data, chance)
        # As they lay: what is written over them with the same bytes is whole.
        hurt = {
            position
            for position, size in batches(files[path], length)
            if data[position : position + size] != files[path][position : position + size]
        }
        assert all(position < end for position in hurt)
        hit += bool(hurt)
        disk = disk_of(files | {path: bytes(data)})
        for columns in (all_of(kind), ["sequence", "position"]):
            reader = ArrowReader(disk, UUID(manifest.log_uuid), kind, columns)
            found = read(reader, path, length, part)
            rows = rows_in(tables_in(found))
            wanted = [{name: row[name] for name in columns} for row in expected]
            sequences = [row["sequence"] for row in rows]
            assert len(sequences) == len(set(map(str, rows))), "a row was told twice"
            told = {repr(row["sequence"]) for row in rows}
            for row in wanted:
                if row["position"] not in hurt and harm is not copy_over:
                    assert row in rows
                elif repr(row["sequence"]) not in told:
                    assert damages_in(found), "a row is missing and nobody says so"
            for row in rows:
                # Of what was hit the fields in the blob may be null, or it was found elsewhere.
                like = [one for one in wanted if _agree(one, row)]
                assert like, (row, begin, end)
            has_item = [row for row in rows if row.get("size") or kind is Kind.DEAD]
            if any(row.get("payload", b"") is None for row in has_item):
                assert damages_in(found)
    assert hit > 100


def _agree(wanted: Row, row: Row) -> bool:
    blob = {"payload", "message_id", "create_ms", "attributes"}
    if "dead_ms" in row:
        blob |= {"old_sequence", "old_minute", "dead_ms", "reason", "size"}
    return all(
        row[name] == value or (name in blob and row[name] is None) or name == "position"
        for name, value in wanted.items()
    )


@pytest.mark.parametrize("kind", [Kind.SCHEDULE, Kind.MESSAGE])
def test_a_batch_of_which_only_the_blob_is_damaged_still_has_its_rows(kind: Kind) -> None:
    if kind is Kind.SCHEDULE:
        segment, _ = big_segment(batches=3, rows=4)
        disk, path, length = segment.file.disk, KEY.path, segment.file.length
        segment.file.file().sync()
        first = 1
    else:
        disk = log_disk(
            [qmq_item(NOW_MS + place * 1000, b"s", b"i") for place in range(4)], batches=3
        )
        path, first = "message_log/00000000000000000001.log", 2
        length = len(disk.contents()[path])
    assert isinstance(disk, SimDisk)
    position, size = list(batches(disk.contents()[path], length))[-2]
    disk.damage(path, position + size - 1, b"\xff")

    def found_with(columns: list[str]) -> Found:
        reader = reader_on(disk, kind, columns)
        if kind is Kind.SCHEDULE:
            return list(reader.rows(path, length=length))
        return list(reader.messages(path, length=length, first_sequence=2, next_sequence=14))

    found = found_with(["sequence", "subject", "message_id", "payload"])
    rows = rows_in(tables_in(found))
    assert [row["sequence"] for row in rows] == list(range(first, first + 12))
    bad = slice(4, 8)
    assert all(row["payload"] is None and row["message_id"] is None for row in rows[bad])
    assert all(row["subject"] for row in rows)
    assert all(row["payload"] for row in [*rows[:4], *rows[8:]])
    [damage] = damages_in(found)
    assert (damage.path, damage.position) == (path, position)
    assert "blob" in damage.reason
    assert len(rows_in(found_with(["sequence", "subject"]))) == 12, "nobody looked into the blob"


def test_a_file_that_is_gone_foreign_or_of_a_newer_version_is_damage_and_no_exception() -> None:
    segment, _ = big_segment(batches=2, rows=4)
    length = segment.file.length
    disk = segment.file.disk
    gone = list(reader_on(segment_disk(), Kind.SCHEDULE).rows(KEY.path, length=length))
    assert "cannot be read" in damages_in(gone)[0].reason
    foreign = list(ArrowReader(disk, OTHER_UUID, Kind.SCHEDULE).rows(KEY.path, length=length))
    assert [type(one) for one in foreign] == [Damage]
    assert "belongs to log" in damages_in(foreign)[0].reason
    short = list(reader_on(disk, Kind.SCHEDULE).rows(KEY.path, length=length + 10))
    assert sum(table.num_rows for table in tables_in(short)) == 8
    assert "cut short" in damages_in(short)[0].reason
    path = "message_log/00000000000000000001.log"
    log = log_disk([b"x"])
    reader = reader_on(log, Kind.MESSAGE)
    size = len(log.contents()[path])
    wanted: Any = {"length": size, "first_sequence": 1, "next_sequence": 3}
    for other in (
        ArrowReader(log, OTHER_UUID, Kind.MESSAGE).messages(path, **wanted),
        reader_on(segment_disk(), Kind.MESSAGE).messages(path, **wanted),
        reader.messages(path, length=size, first_sequence=1, next_sequence=9),
    ):
        assert damages_in(list(other))


class _FailingDisk:
    def open_read(self, path: str) -> ReadableFile:
        raise PermissionError(13, "not for you", path)


def test_an_error_of_the_operating_system_is_told_too() -> None:
    path = "message_log/00000000000000000001.log"
    log = ArrowReader(_FailingDisk(), LOG_UUID, Kind.MESSAGE)
    [damage] = log.messages(path, length=900, first_sequence=1, next_sequence=3)
    assert isinstance(damage, Damage)
    assert "not for you" in damage.reason
    rows = ArrowReader(_FailingDisk(), LOG_UUID, Kind.SCHEDULE)
    [damage] = rows.rows(KEY.path, length=900)
    assert isinstance(damage, Damage)
    assert (damage.path, damage.size) == (KEY.path, 900)


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (Kind.SCHEDULE, lambda reader: reader.rows("schedule_log/20131127T0000Z.dead", length=9)),
        (Kind.DEAD, lambda reader: reader.rows(KEY.path, length=9)),
        (Kind.SCHEDULE, lambda reader: reader.rows(KEY.facts_path, length=9)),
        (Kind.DISPATCH, lambda reader: reader.filed_facts(KEY.path, length=9)),
        (Kind.SCHEDULE, lambda reader: reader.filed_facts(KEY.facts_path, length=9)),
        (
            Kind.MESSAGE,
            lambda reader: reader.messages(
                "message_log/durable_end", length=9, first_sequence=1, next_sequence=2
            ),
        ),
        (
            Kind.DISPATCH,
            lambda reader: reader.stated_facts(
                KEY.facts_path, length=9, first_sequence=1, next_sequence=2
            ),
        ),
    ],
)
def test_a_path_of_another_kind_is_the_callers_mistake(
    kind: Kind, call: Callable[[ArrowReader], object]
) -> None:
    with pytest.raises(ValueError, match=r"log|kind"):
        call(reader_on(segment_disk(), kind))
