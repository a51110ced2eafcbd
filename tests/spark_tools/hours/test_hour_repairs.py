"""Hours that are repaired afterwards are in the sums what hours are that knew of the repair."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_tools.hours.by_hour import HoursRequest, Outcome
from spark_tools.hours.state import HOURS, Ledger
from spark_tools.repaired.repair_audit import Answer, Audit, Intent
from spark_tools.repaired.repairs import Repairs, read_repairs
from spark_tools.run.plan import Source
from tests.seeds import each_seed
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Action, Death, Trap
from tests.spark_tools.growing_worlds import Life
from tests.spark_tools.hours_rig import HOURLY, Watcher
from tests.spark_tools.repaired.test_repair_audit import answer, intent

KINDS = ("create", "write", "sync", "rename", "sync_directory", "unlink")
ONLY_TOLD = {"repairs_given", "repairs_found", "repaired_not_lost"}
"""Of a run that knew of a repair; nothing shows them of all hours."""
NARROW = replace(HOURLY, request=replace(HOURLY.request, subjects_max=1))


def lines_of(watcher: Watcher, outcome: Outcome, source: Source) -> Iterator[list[Intent | Answer]]:
    """Yield what an audit says of each repair: of what is lost and missing."""
    whose = {"log_uuid": source.manifest.log_uuid}
    for entry in outcome.done:
        table = watcher.table(entry, "findings")
        for row in [] if table is None else table.to_pylist():
            kind, known = row["class"], dict[str, Any](whose)
            if kind not in {"lost", "missing"}:
                continue
            known |= {name: row[name] for name in ("filed_minute", "message_id")}
            yield [
                msgspec.structs.replace(
                    intent(row["sequence"], kind), due_ms=row["due_ms"], **known
                ),
                msgspec.structs.replace(answer(row["sequence"], kind=kind), **known),
            ]


def audited(path: Path, repairs: list[list[Intent | Answer]]) -> Repairs:
    with Audit(path) as audit:
        audit.append([line for lines in repairs for line in lines])
    return read_repairs([path])


def ledger_of(watcher: Watcher) -> Ledger:
    ledger = watcher.state.ledger()
    assert ledger is not None
    return ledger


def told_of(watcher: Watcher) -> dict[str, Any]:
    """Return everything that sums and summary say."""
    ledger, summary = ledger_of(watcher), watcher.json("summary.json")
    tables = {}
    for name, path in summary.pop("tables").items():
        data = watcher.disk.content(path)
        rows = pq.read_table(pa.BufferReader(data)).to_pylist()
        tables[name] = sorted(rows, key=repr)
    for hour in summary["with_findings"] + summary["not_final"]:
        del hour["repaired"]
    return {
        "summary": summary,
        "tables": tables,
        "verdicts": ledger.verdicts,
        "hours": [(one.hour, one.verdict, one.findings) for one in ledger.hours],
        "totals": [
            {name: count for name, count in one.totals.items() if name not in ONLY_TOLD and count}
            for one in ledger.groups
        ],
    }


@pytest.mark.parametrize("request_", [HOURLY, NARROW], ids=["subjects", "others"])
@each_seed(3, quick=1)
def test_what_is_repaired_afterwards_is_as_if_it_had_been_known(
    seed: int, request_: HoursRequest, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    life = Life(seed, frozenset({"no_fact", "missing", "duplicate", "doubled"}), share=0.2)
    source = life.at(255).written(tmp_path / "data")
    watcher = Watcher(request_)
    outcome = watcher.run(source)
    before = told_of(watcher)
    every = [one for one in lines_of(watcher, outcome, source) if chance.random() < 0.8]
    cut = len(every) // 2
    parts = [audited(tmp_path / "a", every[:cut]), audited(tmp_path / "b", every[cut:])]
    counts: Counter[str] = Counter()
    for repairs in parts:
        again = watcher.run(source, repairs=repairs)
        assert not again.done, "no hour is done once more"
        assert again.amendments
        for one in again.amendments:
            counts.update(one.counts)
        # What is done is found once, with the same audit or with none.
        assert not watcher.run(source, repairs=repairs).amendments
        assert not watcher.run(source).amendments
    assert counts["lost"]
    assert counts["missing"]
    knowing = Watcher(request_)
    knowing.run(source, repairs=read_repairs([tmp_path / "a", tmp_path / "b"]))
    after = told_of(watcher)
    assert after == told_of(knowing)
    assert sum(after["summary"]["findings"].values()) == (
        sum(before["summary"]["findings"].values()) - counts.total()
    )
    repaired = sum((Counter(one.repaired) for one in ledger_of(watcher).hours), Counter())
    assert repaired == counts
    # States still add up, and results of hours are what was found.
    [group] = after["summary"]["groups"]
    assert sum(group["states"].values()) == group["accepted"]
    for entry in outcome.done:
        document = watcher.document(entry)
        assert document["findings"]["lost"] == watcher.totals(entry)["lost"]
        rows = watcher.table(ledger_entry(watcher, entry.hour), "repaired")
        assert (rows is None) == (not ledger_entry(watcher, entry.hour).repaired)


def test_subjects_that_were_left_out_stay_so_whatever_is_asked_for_later(tmp_path: Path) -> None:
    life = Life(1, frozenset({"no_fact"}), share=0.4)
    source = life.at(190).written(tmp_path / "data")
    watcher = Watcher(NARROW)
    outcome = watcher.run(source)
    repairs = audited(tmp_path / "audit", list(lines_of(watcher, outcome, source)))
    before = told_of(watcher)["tables"]["subjects"]
    watcher.request = HOURLY
    assert watcher.run(source, repairs=repairs).amendments
    after = told_of(watcher)["tables"]["subjects"]
    assert [row["subject"] for row in after] == [row["subject"] for row in before]
    assert sum(row["lost"] for row in before) == sum(row["repaired"] for row in after) > 0
    assert {row["lost"] for row in after} == {0}


def ledger_entry(watcher: Watcher, hour: int) -> Any:  # noqa: ANN401 (an HourEntry)
    return next(one for one in ledger_of(watcher).hours if one.hour == hour)


def test_hours_done_between_by_runs_that_were_not_told_are_amended_too(tmp_path: Path) -> None:
    life = Life(2, frozenset({"no_fact"}), share=0.4)
    watcher, other = Watcher(), Watcher()
    last = life.at(255).written(tmp_path / "c")
    outcome = other.run(last)
    repairs = audited(tmp_path / "audit", list(lines_of(other, outcome, last)))
    watcher.run(life.at(70).written(tmp_path / "a"), repairs=repairs)
    watcher.run(life.at(190).written(tmp_path / "b"))
    assert ledger_of(watcher).findings["lost"]
    assert watcher.run(last, repairs=repairs).amendments
    assert "lost" not in ledger_of(watcher).findings


@pytest.mark.parametrize("action", [Action.KILL, Action.POWER_CUT])
def test_a_repair_that_is_taken_down_by_a_run_that_dies_is_taken_down_once(
    action: Action, tmp_path: Path
) -> None:
    life = Life(2, frozenset({"no_fact", "missing"}), share=0.3)
    source = life.at(130).written(tmp_path / "a")
    later = life.at(190).written(tmp_path / "b")
    whole = Watcher()
    outcome = whole.run(source)
    repairs = audited(tmp_path / "audit", list(lines_of(whole, outcome, source)))
    before = sum(whole.disk.counts.get(kind, 0) for kind in KINDS)
    assert whole.run(later, repairs=repairs).amendments
    total = sum(whole.disk.counts.get(kind, 0) for kind in KINDS) - before
    for seed in range(8):
        watcher = Watcher(disk=SimDisk(random.Random(seed)))
        watcher.run(source)
        skip = random.Random(seed).randrange(total)
        watcher.disk.arm(Trap(action=action, kinds=KINDS, skip=skip))
        with pytest.raises(Death):
            watcher.run(later, repairs=repairs)
        watcher.disk = watcher.disk.revive()
        watcher.run(later, repairs=repairs)
        assert told_of(watcher) == told_of(whole)
        names = [path for path in watcher.disk.contents() if path.startswith(HOURS)]
        assert names == [path for path in whole.disk.contents() if path.startswith(HOURS)]
