"""Crashes of every kind: a server that syncs before it answers loses nothing, another one does."""

from tests.simulation.faults import Kill, PowerCut
from tests.simulation.toy_log import run_toy_log

SEEDS = range(30)


def test_what_was_answered_is_on_the_disk() -> None:
    kinds = set()
    for seed in SEEDS:
        result = run_toy_log(seed)
        assert len(result.answered) == 60
        assert result.answered <= result.found, seed
        kinds |= {type(ending.death or ending.error).__name__ for ending in result.endings}
    assert {PowerCut.__name__, Kill.__name__, "FatalDiskError"} <= kinds


def test_a_server_that_answers_before_its_fsync_is_found_out() -> None:
    lost = 0
    for seed in SEEDS:
        result = run_toy_log(seed, sync_first=False)
        lost += not result.answered <= result.found
    assert lost >= len(SEEDS) // 3
