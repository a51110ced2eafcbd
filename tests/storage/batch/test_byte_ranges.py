"""Stretches of a file together say what the whole file says; damage is told, and no row twice."""

import random
from collections import Counter
from collections.abc import Callable
from uuid import UUID

import pytest

from storage.batch.byte_ranges import Stretch
from storage.readers.arrow import ArrowReader, Kind
from storage.readers.manifest import JournalFile, MessageLogFile, SealedSegment
from tests.storage.plain_logs import Row, batches
from tests.storage.readers.test_arrow import (
    DEAD,
    POPULATED,
    CountingDisk,
    Found,
    Part,
    all_of,
    copy_over,
    cut,
    damages_in,
    directory,
    overwrite,
    parts_of,
    read,
    rows_in,
    tables_in,
)
from tests.storage.small_logs import disk_of

SIZES = [1, 700, 5000]


def read_stretch(reader: ArrowReader, path: str, length: int, part: Part, one: Stretch) -> Found:
    """Read a stretch with a reader for its kind."""
    if isinstance(part, MessageLogFile):
        found = reader.messages(
            path,
            length=length,
            first_sequence=part.first_sequence,
            next_sequence=part.next_sequence,
            stretch=one,
        )
    elif reader.kind is Kind.DISPATCH:
        found = reader.filed_facts(path, length=length, stretch=one)
    else:
        is_sealed = isinstance(part, SealedSegment)
        found = reader.rows(path, length=length, is_sealed=is_sealed, stretch=one)
    return list(found)


def cut_files(seed: int) -> list[tuple[Kind, str, int, Part]]:
    """Return the files of a directory that can be cut."""
    _, manifest = directory(seed)
    return [part for part in parts_of(manifest) if part[2] and not isinstance(part[3], JournalFile)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [POPULATED[0], DEAD[0]])
def test_stretches_together_say_what_the_file_says(seed: int, size: int) -> None:
    files, manifest = directory(seed)
    disk, most = disk_of(files), Counter[str]()
    for kind, path, length, part in cut_files(seed):
        reader = ArrowReader(disk, UUID(manifest.log_uuid), kind, all_of(kind))
        cuts = reader.stretches(path, length=length, size=size)
        assert [one.start for one in cuts] == [64, *(one.end for one in cuts[:-1])]
        assert cuts[-1].end == length
        most[kind] = max(most[kind], len(cuts))
        rows: list[Row] = []
        for one in cuts:
            mine = rows_in(read_stretch(reader, path, length, part, one))
            assert kind is Kind.MESSAGE or len(mine) == one.count
            assert one is cuts[-1] or one.end - one.start >= size
            rows += mine
        assert rows == rows_in(read(reader, path, length, part))
    assert size > 1 or min(most.values()) > 2, most


def test_a_stretch_reads_no_more_than_itself() -> None:
    files, manifest = directory(POPULATED[0])
    _, path, length, part = max(cut_files(POPULATED[0]), key=lambda part: part[2])
    reader = ArrowReader(disk_of(files), UUID(manifest.log_uuid), Kind.MESSAGE)
    cuts = reader.stretches(path, length=length, size=length // 4)
    assert len(cuts) >= 3
    disk = CountingDisk(disk_of(files))
    counting = ArrowReader(disk, UUID(manifest.log_uuid), Kind.MESSAGE)
    rows_in(read_stretch(counting, path, length, part, cuts[1]))
    assert disk.bytes_read == cuts[1].end - cuts[1].start


@pytest.mark.parametrize("harm", [overwrite, cut, copy_over])
def test_damage_is_told_by_stretches_too_and_no_row_comes_twice(
    harm: Callable[[bytearray, random.Random], tuple[int, int]],
) -> None:
    seed, hit = POPULATED[0], 0
    files, manifest = directory(seed)
    chance = random.Random(seed)
    parts = cut_files(seed)
    for _ in range(120):
        kind, path, length, part = chance.choice(parts)
        size = chance.choice(SIZES)
        whole = ArrowReader(disk_of(files), UUID(manifest.log_uuid), kind, all_of(kind))
        expected = rows_in(read(whole, path, length, part))
        data = bytearray(files[path][:length])
        harm(data, chance)
        hurt = {
            begin
            for begin, length_of in batches(files[path], length)
            if data[begin : begin + length_of] != files[path][begin : begin + length_of]
        }
        hit += bool(hurt)
        disk = disk_of(files | {path: bytes(data)})
        # Cut before the damage came, and after it.
        for cutter in (whole, ArrowReader(disk, UUID(manifest.log_uuid), kind)):
            cuts = cutter.stretches(path, length=length, size=size)
            reader = ArrowReader(disk, UUID(manifest.log_uuid), kind, ["sequence", "position"])
            found: Found = []
            for one in cuts:
                mine = read_stretch(reader, path, length, part, one)
                for damage in damages_in(mine):
                    assert one.is_first or one.start <= damage.position or not damage.size
                    assert damage.position + damage.size <= one.end or damage.header
                found += mine
            _compare(expected, found, hurt)
    assert hit > 90


def _compare(expected: list[Row], found: Found, hurt: set[int]) -> None:
    rows = Counter(row["sequence"] for row in rows_in(tables_in(found)))
    wanted = Counter(row["sequence"] for row in expected)
    assert not rows - wanted, "a row came twice, or from nowhere"
    missing = wanted - rows
    if missing:
        assert damages_in(found), "a row is missing and nobody says so"
    whole = {row["sequence"] for row in expected if row["position"] not in hurt}
    if len(hurt) == 1:
        # What lies in other batches is there; but damage may end where a stretch would.
        assert not whole & missing.keys()
