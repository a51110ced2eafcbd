"""A campaign adds its seeds up, and is one line of the ledger."""

import json
from collections import Counter
from pathlib import Path

from tests.simulation.campaign import Campaign
from tests.simulation.world import NAMED_POINTS, WorldResult

LEDGER = Path(__file__).parents[2] / "docs" / "campaigns.jsonl"


def result(seed: int, *, violations: tuple[str, ...] = ()) -> WorldResult:
    return WorldResult(
        seed,
        violations=list(violations),
        messages=200 + seed,
        segments=Counter(minute=30, hour=2, day=1),
        crashes=2,
        points=Counter({"write": 1, "fsync": 1}),
        faults=Counter({"PowerCut": 2, "clock set": seed}),
        twice=seed,
    )


def campaign() -> Campaign:
    made = Campaign()
    made.add(result(1), 0.25)
    made.add(result(2, violations=("kept: 1 lost",)), 0.25)
    made.add(result(3), 0.5)
    return made


def test_seeds_are_added_up_and_failed_ones_only_counted() -> None:
    made = campaign()
    assert (made.seeds, made.messages, made.messages_min, made.crashes) == (3, 404, 201, 4)
    assert made.faults == {"PowerCut": 4, "clock set": 4}
    assert [one.seed for one in made.failed] == [2]
    assert set(made.points_missed) == set(NAMED_POINTS) - {"write", "fsync"}
    assert "3 seeds, 1 failed" in "\n".join(made.lines())


def test_a_campaign_is_a_line_like_all_others_of_the_ledger() -> None:
    line = campaign().line(world="server", date="2026-09-01", commit="abc", first=1, seconds=2.04)
    assert line.endswith("}\n")
    assert json.loads(line) == {
        "date": "2026-09-01",
        "commit": "abc",
        "world": "server",
        "first": 1,
        "seeds": 3,
        "failed": [2],
        "cpu_s": 1.0,
        "seconds": 2.0,
    }
    for other in LEDGER.read_text(encoding="utf-8").splitlines():
        assert json.loads(other).keys() == json.loads(line).keys()
