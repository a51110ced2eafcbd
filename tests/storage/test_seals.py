"""Seals come back as they were, in order, up to the length that counts."""

import random
from dataclasses import replace

import pytest

from storage.batches import Damage
from storage.errors import StorageFullError
from storage.facts import Outcome
from storage.seals import _OUTCOME_COLUMNS, SEALS_PATH, Seal, SealsLog, read_seals
from storage.spans import SegmentKey, Span
from tests.simulation.disk import SimDisk
from tests.simulation.faults import HARSH, Action, Trap
from tests.storage.small_logs import LOG_UUID, NOW_MS
from tests.storage.small_segments import EXAMPLE_SEAL, example_files, segment_disk
from tests.storage.worked_examples import worked_examples


def opened(disk: SimDisk, *, length: int = 0, count: int = 0, crc: int = 0) -> SealsLog:
    return SealsLog(disk, LOG_UUID, length=length, count=count, crc=crc)


def seals(count: int) -> list[Seal]:
    chance = random.Random(count)

    def number() -> int:
        return chance.getrandbits(64)

    return [
        Seal(
            key=SegmentKey(place * 1440, chance.choice([Span.MINUTE, Span.HOUR, Span.DAY])),
            rows=chance.getrandbits(40),
            distinct=chance.getrandbits(40),
            last_sequence=chance.getrandbits(62),
            length=chance.getrandbits(40),
            facts_length=chance.getrandbits(40),
            digest=(number(), number()),
            facts_digest=(number(), number()),
            outcomes=tuple(chance.getrandbits(30) for _ in Outcome),
            archived=chance.random() < 0.5,
            deleted=chance.random() < 0.5,
        )
        for place in range(count)
    ]


def test_seals_come_back_as_they_were() -> None:
    disk = segment_disk()
    log = opened(disk)
    log.append(seals(5), append_ms=NOW_MS)
    log.append(seals(2), append_ms=NOW_MS)
    assert log.count == 7
    assert list(read_seals(disk, LOG_UUID, log.length)) == seals(5) + seals(2)
    assert list(read_seals(disk, LOG_UUID, 0)) == []


def test_a_log_opened_again_goes_on_where_it_was() -> None:
    disk = segment_disk()
    log = opened(disk)
    log.append(seals(1), append_ms=NOW_MS)
    length, crc = log.length, log.last_crc
    log.append(seals(2), append_ms=NOW_MS)  # Of a checkpoint that was never completed.
    again = opened(disk, length=length, count=1, crc=crc)
    again.append(seals(3), append_ms=NOW_MS)
    assert list(read_seals(disk, LOG_UUID, again.length)) == seals(1) + seals(3)


def test_an_append_is_durable_when_it_returns() -> None:
    disk = SimDisk(random.Random(1), plan=HARSH)
    disk.make_directory("seals")
    disk.sync_directory("")
    log = opened(disk)
    log.append(seals(3), append_ms=NOW_MS)
    disk.power_cut()
    assert list(read_seals(disk.revive(), LOG_UUID, log.length)) == seals(3)


def test_seals_that_found_no_space_are_not_there() -> None:
    disk = segment_disk()
    log = opened(disk)
    log.append(seals(1), append_ms=NOW_MS)
    disk.arm(Trap(action=Action.FULL, kinds={"write"}))
    with pytest.raises(StorageFullError):
        log.append(seals(4), append_ms=NOW_MS)
    log.append(seals(2), append_ms=NOW_MS)
    assert log.count == 3
    assert list(read_seals(disk, LOG_UUID, log.length)) == seals(1) + seals(2)


def test_damage_is_told_in_its_place_and_the_rest_is_read() -> None:
    disk = segment_disk()
    log = opened(disk)
    log.append(seals(1), append_ms=NOW_MS)
    second = log.length
    log.append(seals(2), append_ms=NOW_MS)
    log.append(seals(3), append_ms=NOW_MS)
    disk.damage(SEALS_PATH, second + 100, b"\xff")
    found = list(read_seals(disk, LOG_UUID, log.length))
    assert [seal for seal in found if isinstance(seal, Seal)] == seals(1) + seals(3)
    [damage] = [seal for seal in found if isinstance(seal, Damage)]
    assert (damage.path, damage.position) == (SEALS_PATH, second)


def test_every_outcome_has_its_column() -> None:
    assert [name.upper() for name in _OUTCOME_COLUMNS] == [outcome.name for outcome in Outcome]
    outcomes = tuple(range(1, 8))
    disk = segment_disk()
    log = opened(disk)
    log.append([replace(EXAMPLE_SEAL, outcomes=outcomes)], append_ms=NOW_MS)
    [seal] = read_seals(disk, LOG_UUID, log.length)
    assert isinstance(seal, Seal)
    assert seal.outcomes == outcomes


def test_the_worked_example_is_what_the_code_writes() -> None:
    assert worked_examples("seals.md") == [example_files()["seals.md"]]
