"""Messages are taken as long as there is room for all that comes of them."""

import random

import pytest

from delay_server.accepting.disk_budget import DiskBudget
from storage.disk.errors import StorageFullError
from tests.simulation.disk import SimDisk

FLOOR = 80_000


class Bench:
    """A budget on a disk whose free space is set by hand."""

    def __init__(self, free: int) -> None:
        self.disk = SimDisk(random.Random(0))
        self.disk.capacity_bytes = free
        self.owed = 0
        self.asked: list[int] = []
        self.budget = DiskBudget(
            self.disk,
            floor_bytes=self._floor_bytes,
            owed_bytes=lambda: self.owed,
        )

    def _floor_bytes(self, total_bytes: int) -> int:
        self.asked.append(total_bytes)
        return FLOOR

    def is_full(self) -> bool:
        self.budget.look()
        return self.budget.full

    def takes(self, rows: int, blob_bytes: int) -> bool:
        try:
            self.budget.require(rows, blob_bytes)
        except StorageFullError:
            return False
        return True


def test_what_is_free_beyond_floor_and_owed_may_be_given_away() -> None:
    bench = Bench(FLOOR + 10_000)
    assert bench.takes(1, 1000)
    bench.owed = 9000
    assert not bench.is_full()
    assert bench.budget.available == 1000
    assert not bench.takes(1, 1000)
    assert bench.budget.full
    assert bench.asked[-1] == bench.disk.capacity_bytes


def test_a_commit_needs_three_times_its_bytes_and_300_a_message() -> None:
    bench = Bench(FLOOR + 3 * 100_000 + 10 * 300 - 1)
    assert not bench.takes(10, 100_000)
    bench.disk.capacity_bytes += 10_000
    bench.budget.look()
    assert bench.takes(10, 100_000)


def test_once_refused_messages_are_taken_again_when_an_eighth_of_the_floor_is_free() -> None:
    bench = Bench(FLOOR - 1)
    assert bench.is_full()
    bench.disk.capacity_bytes = FLOOR + FLOOR // 8 - 1
    assert bench.is_full()
    assert not bench.takes(1, 10), "while it is full nothing is let through"
    bench.disk.capacity_bytes = FLOOR + FLOOR // 8
    assert not bench.is_full()
    bench.disk.capacity_bytes = FLOOR
    assert not bench.is_full()


def test_a_large_commit_that_was_refused_is_not_refused_anew_each_second() -> None:
    bench = Bench(FLOOR + 50_000)
    assert not bench.takes(1, 40_000)
    assert bench.is_full()
    assert bench.budget.refused_bytes > 80_000
    bench.disk.capacity_bytes = FLOOR + bench.budget.refused_bytes
    assert not bench.is_full()
    assert not bench.budget.refused_bytes
    assert bench.takes(1, 40_000)


def test_what_is_owed_is_asked_before_what_is_free() -> None:
    disk = SimDisk(random.Random(0))
    disk.capacity_bytes = FLOOR + 20_000

    def written_meanwhile() -> int:
        disk.capacity_bytes -= 15_000
        return 15_000

    budget = DiskBudget(disk, floor_bytes=lambda _: FLOOR, owed_bytes=written_meanwhile)
    budget.look()
    assert budget.available == -10_000


def test_the_sentence_says_what_is_free_and_what_for() -> None:
    bench = Bench(FLOOR)
    bench.owed = 5
    with pytest.raises(StorageFullError, match=f"^{FLOOR} bytes are free: .* need 5 of"):
        bench.budget.require(1, 1)
