"""The ledger adds campaigns up, and the page shows its sum."""

from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.campaign import (
    BEGIN,
    END,
    LEDGER,
    PAGE,
    Campaign,
    Entry,
    page_with,
    read_ledger,
    tables,
)
from tests.simulation.world import NAMED_POINTS, WorldResult

ROOT = Path(__file__).parent.parent.parent


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


def test_the_page_shows_the_sum_of_the_ledger() -> None:
    page = (ROOT / PAGE).read_text()
    assert page == page_with(page, tables(read_ledger(ROOT / LEDGER))), (
        "run `python -m tests.simulation.campaign`"
    )


def test_seeds_are_added_up_and_failed_ones_only_counted() -> None:
    made = campaign()
    assert (made.seeds, made.messages, made.messages_min, made.crashes) == (3, 404, 201, 4)
    assert made.faults == {"PowerCut": 4, "clock set": 4}
    assert [one.seed for one in made.failed] == [2]
    assert set(made.points_missed) == set(NAMED_POINTS) - {"write", "fsync"}
    assert "3 seeds, 1 failed" in "\n".join(made.lines())


def test_what_is_appended_to_a_ledger_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    assert read_ledger(path) == []
    entries = [
        campaign().entry(date="2026-09-01", commit="abc", first=first, seconds=2.0)
        for first in (1, 1001)
    ]
    for entry in entries:
        entry.append_to(path)
    assert read_ledger(path) == entries
    path.write_text('{"date": 1}\n')
    with pytest.raises(TypeError):
        read_ledger(path)


def test_tables_hold_the_sums_and_each_campaign() -> None:
    def entry(first: int) -> Entry:
        return campaign().entry(date="2026-09-01", commit="abc", first=first, seconds=1.5)

    text = tables([entry(1), entry(1001)])
    for line in (
        "| seeds | 6 |",
        "| of them failed | 2 |",
        "| acknowledged messages | 808 |",
        "| CPU seconds a seed | 0.33 |",
        "| PowerCut | 8 |",
        "| fsync | 4 |",
        "| 2026-09-01 | abc | 1001 to 1003 | 2 | 2.0 |",
    ):
        assert line in text
    assert "| seeds | 0 |" in tables([])


def test_only_what_is_between_the_marks_is_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert page_with(page, "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    with pytest.raises(ValueError, match="no <!--"):
        page_with("nothing", "new")
