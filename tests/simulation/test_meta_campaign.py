"""The ledger of the meta server's campaigns adds them up, and the page shows its sum."""

from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.campaign import PAGE, page_with
from tests.simulation.meta_campaign import (
    META_BEGIN,
    META_END,
    META_LEDGER,
    MetaCampaign,
    meta_tables,
    read_meta_ledger,
)
from tests.simulation.meta_world import MetaResult

ROOT = Path(__file__).parent.parent.parent


def result(seed: int, *, violations: tuple[str, ...] = ()) -> MetaResult:
    return MetaResult(
        seed,
        violations=list(violations),
        counts=Counter(answers=500 + seed, pushes=50),
        faults=Counter({"PowerCut": 2}),
        lives=3,
        commits=100,
        virtual_s=600.0,
    )


def campaign() -> MetaCampaign:
    made = MetaCampaign()
    made.add(result(1), 0.25)
    made.add(result(2, violations=("right: no",)), 0.25)
    made.add(result(3), 0.5)
    return made


def test_the_page_shows_the_sum_of_the_ledger() -> None:
    page = (ROOT / PAGE).read_text()
    content = meta_tables(read_meta_ledger(ROOT / META_LEDGER))
    assert page == page_with(page, content, marks=(META_BEGIN, META_END)), (
        "run `python -m tests.simulation.campaign`"
    )


def test_seeds_are_added_up_and_failed_ones_only_counted() -> None:
    made = campaign()
    assert made.seeds == 3
    assert [one.seed for one in made.failed] == [2]
    assert made.counts["answers"] == 1004
    assert made.counts["lives of the meta server"] == 6
    assert made.counts["virtual minutes"] == 20
    assert made.faults == {"PowerCut": 4}
    assert "3 seeds, 1 failed" in "\n".join(made.lines())


def test_what_is_appended_to_a_ledger_is_read_again_and_added_up(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    assert read_meta_ledger(path) == []
    entries = [
        campaign().entry(date="2026-11-22", commit="abc", first=first, seconds=2.0)
        for first in (1, 1001)
    ]
    for entry in entries:
        entry.append_to(path)
    assert read_meta_ledger(path) == entries
    text = meta_tables(entries)
    for line in (
        "| seeds | 6 |",
        "| of them failed | 2 |",
        "| answers | 2,008 |",
        "| CPU seconds a seed | 0.33 |",
        "| PowerCut | 8 |",
        "| 2026-11-22 | abc | 1001 to 1003 | 2 | 1.5 |",
    ):
        assert line in text
    assert "| seeds | 0 |" in meta_tables([])
    path.write_text('{"date": 1}\n')
    with pytest.raises(TypeError):
        read_meta_ledger(path)
