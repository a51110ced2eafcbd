"""Real servers that are killed and lose power keep their promises; a broken one is found out.

A few cycles of what `make crash` runs by the hundred.
"""

from pathlib import Path

import pytest

from tests.crash.disk_layer import Unavailable, build_layer
from tests.crash.plan import CYCLES_PER_ROUND
from tests.crash.run import describe, run_round

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    try:
        return build_layer(tmp_path)
    except Unavailable as reason:
        pytest.skip(str(reason))


KILLED = 6625
"""A seed whose first cycles die in recovery, split, under load, facts, checkpoint, retention."""

CUT = 7858
"""A seed whose first cycles end under load, by a failing fsync, in recovery, checkpoint, split and
clean stop, nearly all by a power cut."""


def test_servers_that_are_killed_lose_nothing_and_send_nothing_early(tmp_path: Path) -> None:
    outcome = run_round(tmp_path, seed=KILLED, number=0, cycles=6, library=None, broken=None)
    assert outcome.violations == [], describe("SIGKILL", outcome, 0)
    assert outcome.cycles == 6
    assert outcome.acknowledged > 200
    assert outcome.delivered >= outcome.acknowledged
    assert outcome.reached.total() >= 4


@pytest.mark.long
def test_servers_that_lose_power_lose_nothing_else(tmp_path: Path, library: Path) -> None:
    outcome = run_round(tmp_path, seed=CUT, number=0, cycles=6, library=library, broken=None)
    assert outcome.violations == [], describe("power loss", outcome, 0)
    assert outcome.cuts >= 5
    assert outcome.tally.total() > 0
    assert outcome.acknowledged > 200
    assert outcome.delivered >= outcome.acknowledged


@pytest.mark.long
def test_a_server_whose_fsync_does_nothing_is_caught(tmp_path: Path, library: Path) -> None:
    outcome = run_round(
        tmp_path, seed=CUT, number=0, cycles=CYCLES_PER_ROUND, library=library, broken="fsync"
    )
    # Messages are gone, or what says whose they are: it does not start any more.
    assert outcome.violations, describe("power loss without fsync", outcome, 0)
    assert outcome.cycles <= 5


@pytest.mark.long
def test_a_server_that_answers_before_it_writes_is_caught(tmp_path: Path) -> None:
    outcome = run_round(
        tmp_path, seed=1343, number=0, cycles=CYCLES_PER_ROUND, library=None, broken="answer"
    )
    assert outcome.lost > 0, describe("SIGKILL, answers first", outcome, 0)
