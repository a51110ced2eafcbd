"""Promise: what audits say was repaired is no finding any more, and nothing else changes."""

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_tools.judge.account import TaskResult
from spark_tools.judge.segments import SegmentTask
from spark_tools.repaired.repair_audit import Answer, Audit
from spark_tools.repaired.repairs import LOST, MISSING, LogName, Repaired, Repairs, read_repairs
from spark_tools.run.plan import Request, Source, make_plan
from spark_tools.run.reconcile import Result, Task, Verdict, reconcile
from spark_tools.run.report import encode_report, report
from storage.readers.manifest import Manifest
from tests.spark_tools.repair_worlds import BEFORE, builder_of, run, sealed_builder
from tests.spark_tools.repaired.test_repair_audit import answer


def log_of(manifest: Manifest) -> LogName:
    return LogName(manifest.cluster, manifest.group, manifest.log_uuid)


def answers(source: Source, kind: str, rows: Iterable[tuple[int, int]]) -> list[Answer]:
    """Return that these sequences, at these minutes, were sent again and accepted."""
    log = log_of(source.manifest)
    return [
        Answer(
            at_ms=3, who="me", kind=kind, cluster=log.cluster, group=log.group,
            log_uuid=log.log_uuid, sequence=sequence, filed_minute=minute, message_id="m",
            subject="s", due_ms=7,
            result="accepted", by="a:1", reason=None,
        )
        for sequence, minute in rows
    ]  # fmt: skip


def audited(path: Path, lines: Sequence[Answer]) -> Repairs:
    with Audit(path) as audit:
        audit.append(lines)
    return read_repairs([path])


# -- reading ----------------------------------------------------------------------------------


def test_only_what_was_accepted_counts_each_once_by_log_and_class(tmp_path: Path) -> None:
    lines = [
        answer(25), answer(13), answer(13), answer(14, "known"),
        answer(15, "refused"), answer(16, "unanswered"), answer(18, kind=MISSING),
        answer(19, group="h"),
    ]  # fmt: skip
    first, second = tmp_path / "a", tmp_path / "b"
    with Audit(first) as audit:
        audit.append(lines)
    with Audit(second) as audit:
        audit.append([answer(11)])
    found = read_repairs([first, second])
    log, other = LogName("c", "g", "u"), LogName("c", "h", "u")
    assert found.logs() == {log, other}
    assert found.rows_of(log).of_minutes(0, 10).tolist() == [11, 13, 25]
    assert found.rows_of(log).of_minutes(1, 2).tolist() == [11, 13]
    assert found.records_of(log).sequence.tolist() == [18]
    assert found.rows_of(other).sequence.tolist() == [19]
    assert len(found.rows_of(LogName("c", "g", "another"))) == 0


def test_sequences_come_in_order_whatever_their_minutes() -> None:
    chance = np.random.default_rng(1)
    sequence = chance.permutation(1000)
    minute = chance.integers(0, 20, 1000)
    found = Repaired.of(minute, sequence)
    for start in range(0, 20, 3):
        wanted = np.sort(sequence[(minute >= start) & (minute < start + 3)])
        assert found.of_minutes(start, start + 3).tolist() == wanted.tolist()


# -- reconciling ------------------------------------------------------------------------------


def figures(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = report(result)["groups"][0]
    return found


def test_what_was_repaired_is_no_finding_and_the_books_balance(tmp_path: Path) -> None:
    builder = sealed_builder(lost=3, missing=2)
    source = builder.build().written(tmp_path / "data")
    sequences = [one.sequence for one in builder.messages]
    lines = answers(source, MISSING, [(one, BEFORE) for one in sequences[:2]])
    lines += answers(source, LOST, [(one, BEFORE) for one in sequences[2:5]])
    repairs = audited(tmp_path / "audit", lines)
    result = run(source, tmp_path / "details", repairs=repairs)
    assert result.verdict is Verdict.CLEAN, result.findings
    group = figures(result)
    assert group["states"]["repaired"] == 3
    assert group["states"]["lost"] == 0
    assert group["log"]["repaired"] == 2
    assert group["log"]["missing"] == 0
    assert group["repairs"] == {
        "given": 5, "rows": 3, "records": 2, "not_lost": 0, "not_found": 0
    }  # fmt: skip
    assert sum(row.get("repaired", 0) for row in group["by_subject"]) == 3
    assert report(result)["repairs"] == {"of_other_logs": 0, "damaged_lines": 0}


def test_a_repair_of_what_is_not_lost_changes_nothing_and_is_told(tmp_path: Path) -> None:
    builder = sealed_builder(lost=1)
    source = builder.build().written(tmp_path / "data")
    delivered = builder.messages[-1].sequence
    lines = answers(source, LOST, [(delivered, BEFORE), (10**6, BEFORE), (10**6 + 1, 5)])
    lines += answers(source, MISSING, [(builder.messages[0].sequence, BEFORE)])
    plain = run(source, tmp_path / "plain")
    result = run(source, tmp_path / "details", repairs=audited(tmp_path / "audit", lines))
    assert result.findings == plain.findings == Counter(lost=1)
    group = figures(result)
    assert group["states"] == figures(plain)["states"]
    assert group["repairs"]["given"] == 4
    assert group["repairs"]["not_lost"] == 1
    assert group["repairs"]["not_found"] == 3
    [row] = [one for one in result.examples.to_pylist() if one["class"] == "repaired_not_lost"]
    assert (row["sequence"], row["note"]) == (delivered, "it is delivered")


def test_what_is_overdue_stays_so(tmp_path: Path) -> None:
    builder = sealed_builder(lost=2)
    builder.sealed.clear()
    source = builder.build().written(tmp_path / "data")
    lines = answers(source, LOST, [(one.sequence, BEFORE) for one in builder.messages[:2]])
    repairs = audited(tmp_path / "audit", lines)
    result = run(source, tmp_path / "details", repairs=repairs)
    assert result.findings == Counter(overdue=2)
    assert figures(result)["repairs"]["not_lost"] == 2
    result = run(source, tmp_path / "details", Request(final=True), repairs=repairs)
    assert result.verdict is Verdict.CLEAN


def test_repairs_of_another_log_or_another_range_do_not_count(tmp_path: Path) -> None:
    builder = sealed_builder(lost=1)
    source = builder.build().written(tmp_path / "data")
    lines = answers(source, LOST, [(builder.messages[0].sequence, BEFORE)])
    lines[0].log_uuid = "another"
    repairs = audited(tmp_path / "audit", lines)
    result = run(source, tmp_path / "details", repairs=repairs)
    assert result.findings == Counter(lost=1)
    assert figures(result)["repairs"]["given"] == 0
    assert report(result)["repairs"]["of_other_logs"] == 1
    mine = audited(tmp_path / "mine", answers(source, LOST, [(builder.messages[0].sequence, 3)]))
    request = Request(from_minute=BEFORE, to_minute=BEFORE + 1)
    result = run(source, tmp_path / "details", request, repairs=mine)
    assert result.findings == Counter(lost=1)
    assert figures(result)["repairs"]["given"] == 0


@pytest.mark.parametrize("seed", range(3))
def test_any_world_is_free_of_what_was_repaired(seed: int, tmp_path: Path) -> None:
    source = builder_of(seed, frozenset({"no_fact", "missing", "duplicate"})).build()
    written = source.written(tmp_path / "data")
    request = Request(final=True)
    before = run(written, tmp_path / "details", request)
    rows = before.examples.to_pylist()
    lines = [
        one
        for kind in (LOST, MISSING)
        for one in answers(
            written,
            kind,
            [(row["sequence"], row["filed_minute"]) for row in rows if row["class"] == kind],
        )
    ]
    assert before.findings["lost"] + before.findings["missing"] <= len(lines)
    repairs = audited(tmp_path / "audit", lines)
    after = run(written, tmp_path / "details", request, repairs)
    assert after.findings["lost"] == after.findings["missing"] == 0
    assert after.findings["duplicate"] == before.findings["duplicate"]
    totals = after.groups[0].account.totals
    assert totals["repaired"] == before.findings["lost"]
    assert totals["repaired_records"] == before.findings["missing"]
    assert figures(after)["repairs"]["not_found"] == 0
    # In other processes, where tasks know their own repairs only.
    minutes = {line.sequence: line.filed_minute for line in lines}

    def engine(tasks: Sequence[Task]) -> Iterator[TaskResult]:
        for task in tasks:
            if isinstance(task, SegmentTask):
                assert all(task.start <= minutes[one] < task.end for one in task.repaired.tolist())
            yield pickle.loads(pickle.dumps(task))()  # noqa: S301

    plan = make_plan([written], request)
    there = reconcile(plan, engine, lambda _: None, repairs)
    assert encode_report(report(there)) == encode_report(report(after))
