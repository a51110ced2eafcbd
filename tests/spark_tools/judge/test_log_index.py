"""What is remembered of the message_log: each record once, as long as a row is held against it."""

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from spark_tools.hours.by_hour import HoursRequest
from spark_tools.judge.digests import Digest
from spark_tools.judge.log_index import LogIndex
from spark_tools.judge.pieces import HourDigests, Piece
from spark_tools.judge.sequences import BLOCK, Sequences
from spark_tools.judge.tasks import LogRange
from spark_tools.run.plan import Request, Source
from storage.disk.disk import DirectoryDisk, DirectoryFile
from tests.seeds import each_seed
from tests.spark_tools.growing_worlds import Life
from tests.spark_tools.hours_rig import Watcher
from tests.spark_tools.worlds import T0


def piece(first: int, after: int, *hours: int) -> Piece:
    return Piece(
        first=first,
        after=after,
        hours=HourDigests.from_dict({hour: Digest(1, first, after) for hour in hours}),
    )


def log(first: int, after: int) -> LogRange:
    return LogRange(file=f"{first}", length=1, first_sequence=first, next_sequence=after)


def ranges(found: list[LogRange]) -> list[tuple[int, int]]:
    return [(one.first_sequence, one.next_sequence) for one in found]


@each_seed(20)
def test_what_is_missing_is_what_no_piece_has_and_a_checkpoint_has_filed(seed: int) -> None:
    chance = random.Random(seed)
    edges = sorted(chance.sample(range(1, 60), 6))
    logs = [log(*pair) for pair in pairwise(edges)]
    index, known = LogIndex(), set[int]()
    for one in logs:
        cut = chance.randrange(one.first_sequence, one.next_sequence + 1)
        for begin, end in ((one.first_sequence, cut), (cut, one.next_sequence)):
            if begin < end and chance.random() < 0.5:
                index.add(piece(begin, end))
                known |= set(range(begin, end))
    filed = chance.randrange(60)
    missing = index.missing(logs, filed)
    found = [one for begin, end in ranges(missing) for one in range(begin, end)]
    assert sorted(found) == sorted(set(range(edges[0], min(edges[-1], filed + 1))) - known)
    for one in missing:
        assert any(
            whole.file == one.file and whole.part(one.first_sequence, one.next_sequence) == one
            for whole in logs
        )
    for one in missing:
        index.add(piece(one.first_sequence, one.next_sequence))
    assert index.missing(logs, filed) == []


def test_pieces_that_leave_are_remembered_together_for_the_hours_to_come() -> None:
    index = LogIndex(pieces=[piece(1, 10, 0, 60, 120), piece(10, 20, 60), piece(20, 30, 60, 180)])
    assert [one.first for one in index.retire(20, 60)] == [1, 10]
    assert index.gone == [(1, 20)]
    assert [one.first for one in index.pieces] == [20]
    assert index.gone_hours.hour.tolist() == [60, 120], "hour 0 is done"
    assert index.gone_hours.of(60) == Digest(2, 11, 30)
    assert index.gone_hours.of(90) == index.gone_hours.of(0) == Digest()
    index.retire(30, 120)
    assert (index.gone, index.pieces) == ([(1, 30)], [])
    assert index.gone_hours.hour.tolist() == [120, 180]
    assert HourDigests.from_table(index.gone_hours.table()).dict() == index.gone_hours.dict()


def test_what_was_damaged_is_not_remembered() -> None:
    index = LogIndex(pieces=[piece(1, 10, 60), piece(20, 30, 60)])
    damaged = piece(10, 20, 60)
    index.add(Piece(first=10, after=20, hours=damaged.hours, damages=(None,)))  # type: ignore[arg-type]
    index.retire(30, 0)
    assert index.gone == [(1, 10), (20, 30)]
    assert index.gone_hours.of(60) == Digest(2, 21, 40)
    known = index.of_hour(60, unproven=Sequences(), settled=frozenset())
    assert list(known.unindexed()) == [(0, 1), (10, 20)]


@pytest.mark.parametrize("seed", range(6))
def test_sets_of_sequences_tell_what_they_have_in_common_and_within_bounds(seed: int) -> None:
    chance = random.Random(seed)
    plain: list[set[int]] = []
    found: list[Sequences] = []
    for count in (30, 5000):
        plain.append({chance.randrange(3 * BLOCK) for _ in range(count)})
        found.append(Sequences())
        found[-1].add(np.array(sorted(plain[-1]), np.int64))
    assert found[0].common(found[1]).tolist() == sorted(plain[0] & plain[1])
    first, after = sorted(chance.sample(range(4 * BLOCK), 2))
    for one, wanted in zip(found, plain, strict=True):
        inside = sorted(each for each in wanted if first <= each < after)
        assert one.within(first, after).tolist() == inside


# -- what a run costs ------------------------------------------------------------------------


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the bytes that are read of each file, 0 for one that is only opened."""
    counted = Counter[str]()
    opening, reading = DirectoryDisk.open_read, DirectoryFile.read_at

    def open_read(self: DirectoryDisk, path: str) -> DirectoryFile:
        counted[path] += 0
        return opening(self, path)

    def read_at(self: DirectoryFile, position: int, size: int) -> bytes:
        found = reading(self, position, size)
        counted[self.path] += len(found)
        return found

    monkeypatch.setattr(DirectoryDisk, "open_read", open_read)
    monkeypatch.setattr(DirectoryFile, "read_at", read_at)
    return counted


def test_a_run_costs_what_its_hour_costs(tmp_path: Path, read: Counter[str]) -> None:
    life = Life(4, before=600)
    watcher = Watcher(HoursRequest(request=Request(), open_hours=100))

    def run_at(moment: int) -> tuple[Source, list[int]]:
        source = life.at(moment).written(tmp_path / f"{moment}")
        read.clear()
        return source, [entry.hour for entry in watcher.run(source).done]

    source, hours = run_at(190)
    assert len(hours) >= 12
    first, indexed = Counter(read), source.manifest.sequence
    source, hours = run_at(260)
    assert hours == [T0 + 180]
    by_start = {one.file: one.start_minute for one in source.manifest.sealed}
    by_start |= {one.facts_file: one.start_minute for one in source.manifest.sealed}
    later = {one.file for one in source.manifest.message_log if one.next_sequence > indexed + 1}
    assert len(later) < len(source.manifest.message_log) / 3
    for path in read:
        is_of_hour = path in by_start and T0 + 180 <= by_start[path] < T0 + 240
        assert is_of_hour or path in later, path
    assert sum(read.values()) < sum(first.values()) / 5
    assert {path for path, start in by_start.items() if T0 + 180 <= start < T0 + 240} <= set(read)
    # And nothing that is new costs nothing but looking at the end.
    read.clear()
    assert not watcher.run(source).done
    assert not [path for path in read if path.startswith("schedule_log")]
