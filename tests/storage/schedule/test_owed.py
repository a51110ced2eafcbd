"""What is owed to accepted messages covers what writing for them takes."""

import random

import pytest

from storage.disk.errors import StorageFullError
from storage.disk.spans import MINUTE_MS
from storage.schedule.owed import PENDING_BYTES, owed_for
from tests.storage.schedule.test_schedule_log import START_MS, Bench
from tests.storage.store_rig import StoreRig


@pytest.mark.parametrize("seed", range(5))
def test_rows_in_memory_take_no_more_than_is_owed_for_them(seed: int) -> None:
    chance = random.Random(seed)
    bench = Bench()
    for _ in range(20):
        ahead = chance.choice([3, 300]) * MINUTE_MS
        bench.file([START_MS + chance.randrange(ahead) for _ in range(chance.randint(300, 600))])
        rows = sum(map(len, bench.log.waiting))
        owed, used = owed_for(rows, bench.log.waiting.pile_bytes), bench.disk.used_bytes
        assert bench.log.flush(bench.now_ms)
        assert bench.disk.used_bytes - used <= owed
        assert not bench.log.waiting.pile_bytes


def test_a_split_takes_no_more_than_is_owed_for_it() -> None:
    bench = Bench()
    bench.split_all()
    coarse_ms = START_MS + 170 * MINUTE_MS
    for _ in range(10):
        bench.file([coarse_ms + place * 30_000 for place in range(40)])
        bench.log.flush(bench.now_ms)
    bench.now_ms = coarse_ms - MINUTE_MS
    splits = 0
    while (job := bench.log.splits.begin(bench.now_ms)) is not None:
        used = bench.disk.used_bytes
        owed = bench.log.splits.largest_bytes + PENDING_BYTES * bench.log.pending
        while not job.step(bench.now_ms):
            pass
        assert 0 < bench.disk.used_bytes - used <= owed
        splits += 1
    assert splits
    left = [one for one in bench.log.segments.values() if one.key.end - one.key.start > 1]
    assert bool(bench.log.splits.largest_bytes) == bool(left)


def test_rows_leave_what_facts_and_checkpoints_need_and_are_written_when_there_is_more() -> None:
    bench = Bench()
    bench.split_all()
    bench.file([START_MS + 300 * MINUTE_MS] * 5)
    bench.log.keeps_free = True
    bench.disk.capacity_bytes = bench.disk.used_bytes + 5 * PENDING_BYTES + 100
    assert not bench.log.flush(bench.now_ms)
    assert bench.log.full
    assert bench.log.waiting.pile
    with pytest.raises(StorageFullError, match="are kept for facts and checkpoints"):
        bench.log.require_free(101)
    bench.log.require_free(100)
    bench.disk.capacity_bytes += 5000
    assert bench.log.flush(bench.now_ms)
    assert not bench.log.waiting.pile


def test_a_start_knows_about_how_large_a_split_will_be() -> None:
    rig = StoreRig(2)
    rig.open()
    for _ in range(3):
        rig.commit([rig.now_ms + 20 * 60 * MINUTE_MS + n for n in range(30)])
        rig.file()
    rig.checkpoint()
    before = rig.store.schedule.splits.largest_bytes
    assert before
    assert rig.store.owed_bytes(2, 50) == owed_for(90 + 2, 50) + before
    rig.reopen()
    after = rig.store.schedule.splits.largest_bytes
    assert before * 0.8 <= after <= before * 1.2
