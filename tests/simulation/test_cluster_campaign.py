"""The ledger of the cluster's campaigns adds them up, and the page shows its sum."""

from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.campaign import PAGE, page_with
from tests.simulation.cluster_campaign import (
    CLUSTER_LEDGER,
    CLUSTER_MARKS,
    JUDGED,
    STRIKES,
    ClusterCampaign,
    cluster_tables,
    read_cluster_ledger,
)
from tests.simulation.world import WorldResult

ROOT = Path(__file__).parent.parent.parent


def result(seed: int, *, violations: tuple[str, ...] = ()) -> WorldResult:
    return WorldResult(
        seed,
        violations=list(violations),
        messages=200 + seed,
        counts=Counter({JUDGED[0]: 500 + seed}),
        faults=Counter({STRIKES[0]: 2}),
    )


def campaign() -> ClusterCampaign:
    made = ClusterCampaign()
    made.add(result(1), 0.25)
    made.add(result(2, violations=("stuck: no",)), 0.25)
    made.add(result(3), 0.5)
    return made


def test_the_page_shows_the_sum_of_the_ledger() -> None:
    page = (ROOT / PAGE).read_text()
    content = cluster_tables(read_cluster_ledger(ROOT / CLUSTER_LEDGER))
    assert page == page_with(page, content, marks=CLUSTER_MARKS), (
        "run `python -m tests.simulation.cluster_campaign`"
    )


def test_the_campaigns_of_the_ledger_saw_every_fault_strike_and_judged_all_there_is() -> None:
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for entry in read_cluster_ledger(ROOT / CLUSTER_LEDGER):
        faults.update(entry.faults)
        counts.update(entry.counts)
    assert [name for name in STRIKES if not faults[name]] == []
    assert [name for name in JUDGED if not counts[name]] == []


def test_seeds_are_added_up_and_failed_ones_only_counted() -> None:
    made = campaign()
    assert made.seeds == 3
    assert [one.seed for one in made.failed] == [2]
    assert made.messages == 404
    assert made.counts == {JUDGED[0]: 1004}
    text = "\n".join(made.lines())
    assert "3 seeds, 1 failed" in text
    assert f"judged: {JUDGED[0]} 1004" in text
    assert made.never_struck == [*STRIKES[1:], *JUDGED[1:]]
    assert f"never struck: {STRIKES[1]}, " in text


def test_what_is_appended_to_a_ledger_is_read_again_and_added_up(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    assert read_cluster_ledger(path) == []
    entries = [
        campaign().entry(date="2026-11-22", commit="abc", first=first, seconds=2.0)
        for first in (1, 1001)
    ]
    for entry in entries:
        entry.append_to(path)
    assert read_cluster_ledger(path) == entries
    text = cluster_tables(entries)
    for line in (
        f"| {JUDGED[0]} | 2,008 |",
        "| seeds | 6 |",
        "| of them failed | 2 |",
        f"| {STRIKES[0]} | 8 |",
        "| 2026-11-22 | abc | 1001 to 1003 | 2 | 1.5 |",
    ):
        assert line in text
    path.write_text('{"date": 1}\n')
    with pytest.raises(TypeError):
        read_cluster_ledger(path)
