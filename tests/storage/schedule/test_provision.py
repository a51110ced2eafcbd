"""What is owed to accepted messages is never less than what writing for them takes."""

import random

import pytest

from storage.disk.errors import StorageFullError
from storage.disk.spans import MINUTE_MS
from storage.node.store import StoreSettings
from storage.schedule.provision import Provision
from tests.simulation.disk import SimDisk
from tests.simulation.faults import CALM
from tests.storage.schedule.test_schedule_log import START_MS, Bench
from tests.storage.starting import start
from tests.storage.store_rig import StoreRig

EXACT = Provision(block_bytes=64)
"""For a disk that counts bytes."""


def test_more_of_anything_is_never_owed_less() -> None:
    numbers = {
        "pending": 100,
        "unfiled_facts": 10,
        "segments": 5,
        "sealed": 7,
        "retired": 3,
        "seals_bytes": 1000,
    }
    before = EXACT.bookkeeping(**numbers)
    for name, number in numbers.items():
        assert EXACT.bookkeeping(**{**numbers, name: number + 1}) > before
    assert EXACT.filing(2, 100) > EXACT.filing(1, 100) > EXACT.filing(1, 99)
    assert EXACT.filing(0, 0) == 0
    assert EXACT.splitting(10, 1000, 60) < EXACT.splitting(10, 1001, 60)


def test_facts_are_owed_no_more_batches_of_their_own_than_the_log_holds_commits() -> None:
    small = Provision(fact_commits_max=1000)
    numbers = {"unfiled_facts": 0, "segments": 0, "sealed": 0, "retired": 0, "seals_bytes": 0}
    grown = small.bookkeeping(pending=10_001, **numbers) - small.bookkeeping(
        pending=10_000, **numbers
    )
    assert grown < 100
    assert small.crossing_off(1) > grown


@pytest.mark.parametrize("seed", range(5))
def test_rows_in_memory_take_no_more_than_is_owed_for_them(seed: int) -> None:
    chance = random.Random(seed)
    bench = Bench()
    bench.log.owed.provision = EXACT
    for _ in range(20):
        ahead = chance.choice([3, 300, 3000, 30_000]) * MINUTE_MS
        bench.file([START_MS + chance.randrange(ahead) for _ in range(chance.randint(1, 30))])
        if chance.random() < 0.3:
            owed, used = bench.log.owed.unwritten_bytes, bench.disk.used_bytes
            assert bench.log.flush(bench.now_ms)
            assert bench.disk.used_bytes - used <= owed
            assert not bench.log.owed.unwritten_bytes


def test_a_split_takes_no_more_than_is_owed_for_it() -> None:
    bench = Bench()
    bench.log.owed.provision = EXACT
    bench.split_all()
    coarse_ms = START_MS + 170 * MINUTE_MS
    for _ in range(10):
        bench.file([coarse_ms + place * 30_000 for place in range(40)])
        bench.log.flush(bench.now_ms)
    bench.now_ms = coarse_ms - MINUTE_MS
    splits = 0
    while (job := bench.log.splits.begin(bench.now_ms)) is not None:
        owed, used = bench.log.owed.split_bytes, bench.disk.used_bytes
        while not job.step(bench.now_ms):
            assert bench.disk.used_bytes - used + bench.log.owed.split_bytes >= 0
        assert 0 < bench.disk.used_bytes - used <= owed
        splits += 1
    assert splits
    left = [one for one in bench.log.segments.values() if one.key.end - one.key.start > 1]
    assert bool(bench.log.owed.split_bytes) == bool(left)


def test_rows_leave_what_facts_and_checkpoints_need_and_are_written_when_there_is_more() -> None:
    bench = Bench()
    bench.split_all()
    bench.file([START_MS + 300 * MINUTE_MS] * 5)
    bench.log.owed.keep_free = lambda: 5000
    bench.disk.capacity_bytes = bench.disk.used_bytes + 5100
    assert not bench.log.flush(bench.now_ms)
    assert bench.log.full
    assert bench.log.owed.pile_rows == 5
    with pytest.raises(StorageFullError, match="are kept for facts and checkpoints"):
        bench.log.require_free(101)
    bench.log.require_free(100)
    bench.disk.capacity_bytes += 5000
    assert bench.log.flush(bench.now_ms)
    assert not bench.log.owed.pile_rows


def test_a_start_knows_about_how_large_a_split_will_be() -> None:
    rig = StoreRig(2)
    rig.open()
    for _ in range(3):
        rig.commit([rig.now_ms + 20 * 60 * MINUTE_MS + n for n in range(30)])
        rig.file()
    rig.checkpoint()
    before = rig.store.schedule.owed.split_bytes
    assert before
    rig.reopen()
    after = rig.store.schedule.owed.split_bytes
    assert before * 0.8 <= after <= before * 1.2


def test_an_open_store_owes_a_little_even_when_it_is_empty() -> None:
    disk = SimDisk(random.Random(1), plan=CALM)
    store, _ = start(
        disk,
        StoreSettings(provision=Provision(reserve_bytes=777)),
        chance=random.Random(1),
        now_ms=START_MS,
        on_damage=lambda damage: pytest.fail(str(damage)),
    )
    assert store.owed_bytes(0, 0) + 777 == store.keep_free() > 777
    assert store.owed_bytes(1, 100) >= store.owed_bytes(0, 0) + 100
    store.schedule.owed.unfiled_facts += 5
    assert store.owed_bytes(0, 0) + 777 == store.keep_free()
    store.close()
