"""Hours that are repaired afterwards are in the summary what hours are that knew of the repair."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from spark_tools.hours.by_hour import Outcome
from spark_tools.repaired.repair_audit import Answer, Audit, Intent
from spark_tools.repaired.repairs import Repairs, read_repairs
from spark_tools.run.plan import Source
from tests.seeds import each_seed
from tests.spark_tools.growing_worlds import Life
from tests.spark_tools.hours_rig import Watcher
from tests.spark_tools.repaired.test_repair_audit import answer, intent


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


def told_of(watcher: Watcher) -> dict[str, Any]:
    """Return everything that the summary says, but which findings ended by a repair."""
    summary = watcher.json("summary.json")
    for hour in summary["with_findings"] + summary["not_final"]:
        del hour["repaired"]
    return summary


@each_seed(3, quick=1)
def test_what_is_repaired_afterwards_is_as_if_it_had_been_known(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    life = Life(seed, frozenset({"no_fact", "missing", "duplicate", "doubled"}), share=0.2)
    source = life.at(255).written(tmp_path / "data")
    watcher = Watcher()
    outcome = watcher.run(source)
    before, files = told_of(watcher), watcher.disk.contents()
    every = [one for one in lines_of(watcher, outcome, source) if chance.random() < 0.8]
    repairs = audited(tmp_path / "a", every)
    again = watcher.run(source, repairs=repairs)
    assert not again.done, "no hour is done once more"
    counts = sum((Counter(one.counts) for one in again.amendments), Counter[str]())
    assert counts["lost"]
    assert counts["missing"]
    knowing = Watcher()
    knowing.run(source, repairs=repairs)
    after = told_of(watcher)
    assert after == told_of(knowing)
    assert sum(after["findings"].values()) == sum(before["findings"].values()) - counts.total()
    repaired = sum((Counter(one.repaired) for one in again.ledger.hours), Counter[str]())
    assert repaired == counts
    [group] = after["groups"]
    assert sum(group["states"].values()) == group["accepted"], "states still add up"
    now = watcher.disk.contents()
    assert {path for path in now if now[path] != files.get(path)} == {"summary.json"}, (
        "results and ledger are what was found"
    )
    watcher.run(source)
    assert told_of(watcher) == before, "a run that knows of no repair tells of none"
