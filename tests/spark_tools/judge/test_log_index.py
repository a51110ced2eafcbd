"""What is remembered of the message_log: each record once, as long as a row is held against it."""

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from spark_tools.hours.by_hour import HoursRequest
from spark_tools.judge.account import Account
from spark_tools.judge.digests import Digest
from spark_tools.judge.log_index import Expected, LogIndex, piece_of
from spark_tools.judge.tasks import LogRange
from spark_tools.run.plan import Request, Source
from storage.disk.disk import DirectoryDisk, DirectoryFile
from tests.seeds import each_seed
from tests.spark_tools.growing_worlds import Life
from tests.spark_tools.hours_rig import Watcher
from tests.spark_tools.worlds import T0


def piece(first: int, after: int, *hours: int) -> Account:
    """Return what a task hands back that has read these sequences."""
    digests = {hour: Digest(1, first, 2**64 - after) for hour in hours}
    return Account(pieces=[piece_of(log(first, after), digests)])


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


def test_pieces_that_leave_are_joined_and_remembered_for_the_hours_to_come() -> None:
    index = LogIndex()
    for one in (piece(1, 10, 0, 60, 120), piece(10, 20, 60), piece(20, 30, 60, 180)):
        index.add(one)
    index.shrink(20, 60)
    assert index.ranges() == [(1, 20), (20, 30)]
    known = index.of_hour(60)
    assert known.pieces == (
        Expected(first=1, after=20, digest=Digest(2, 11, 2**64 - 30)),
        Expected(first=20, after=30, digest=Digest(1, 20, 2**64 - 30)),
    )
    assert known.kept_records() == 1
    assert [one.digest for one in index.of_hour(0).pieces] == [Digest(), Digest()], "it is over"
    index.shrink(30, 120)
    assert index.ranges() == [(1, 30)]
    assert index.of_hour(180).pieces[0].digest == Digest(1, 20, 2**64 - 30)
    again = LogIndex(index.table)
    again.shrink(30, 120)
    assert again.table.equals(index.table)


def test_a_gap_that_nobody_read_stays_one() -> None:
    index = LogIndex()
    for one in (piece(1, 10, 60), piece(20, 30, 60)):
        index.add(one)
    index.shrink(30, 0)
    assert index.ranges() == [(1, 10), (20, 30)]
    cuts = {1: Digest(1, 1, 2**64 - 10), 10: Digest(7, 7, 7), 20: Digest(1, 20, 2**64 - 30)}
    assert index.of_hour(60).edges() == (0, 1, 10, 20, 30)
    assert index.of_hour(60).differing(cuts, kept=False) == []
    del cuts[20]
    [(records, rows)] = index.of_hour(60).differing(cuts, kept=False)
    assert (records, rows) == (Digest(1, 20, 2**64 - 30), Digest())
    assert index.of_hour(60).differing(cuts, kept=True) == []


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
    watcher = Watcher(tmp_path / "state", HoursRequest(request=Request(), open_hours=100))

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
