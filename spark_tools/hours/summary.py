"""All hours that are done, added up: sums that a run adds its hours to, and what they say."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from spark_tools.files.times import minute_text, time_text
from spark_tools.hours.hour_repairs import Amendment, amend, amendments_of, write_down
from spark_tools.hours.state import (
    HOURS,
    SUMS,
    GroupSums,
    HourEntry,
    HourResult,
    Ledger,
    StateDirectory,
    Waiting,
    result_name,
)
from spark_tools.hours.sums import Sums
from spark_tools.judge.tasks import GroupName
from spark_tools.repaired.repairs import Repairs
from spark_tools.run.reconcile import FINDING_CLASSES
from spark_tools.run.report import TABLES, figures_of, lateness_of

SUMMARY_SCHEMA = 1
"""Counted up when a reader of an older version would misunderstand a newer one."""
SUMMARY = "summary.json"


def add_up(
    state: StateDirectory,
    ledger: Ledger,
    results: Sequence[HourResult],
    repairs: Repairs,
    *,
    subjects_max: int,
) -> list[Amendment]:
    """Add hours that are done for good to the ledger, and to tables of its next generation.

    repairs: by which these, and all that the ledger tells of, are amended. Returns how.
    """
    final = {one.hour: one for one in ledger.hours if one.is_final}
    if repairs.digest() == ledger.repairs:
        final.clear()
    # What a killed run has done may not have known of them.
    final |= {one.hour.hour: one.hour for one in results}
    amendments = amendments_of(state, final.values(), repairs, ledger.groups)
    ledger.repairs = repairs.digest()
    if not results and not amendments:
        return []
    write_down(state, amendments)
    sums = Sums()
    for name in TABLES if ledger.generation else ():
        sums.add(name, state.read_table(_sums_path(ledger.generation, name)))
    groups = {GroupName(one.cluster, one.group): one for one in ledger.groups}
    for result in results:
        entry = result.hour
        ledger.hours_summed += 1
        ledger.verdicts = _added(ledger.verdicts, {entry.verdict: 1})
        ledger.findings = _added(ledger.findings, entry.findings)
        for one in result.sums:
            whose = GroupName(one.cluster, one.group)
            known = groups.get(whose)
            if known is None:
                known = groups[whose] = GroupSums(
                    cluster=one.cluster, group=one.group, log_uuid=one.log_uuid
                )
                ledger.groups.append(known)
            known.totals = _added(known.totals, one.totals)
            known.deleted = _added(known.deleted, one.deleted)
        for table in TABLES:
            if table in entry.details:
                sums.add(table, state.read_table(f"{HOURS}/{entry.details[table]}"))
    amend(ledger, sums, amendments)
    sums.fold_subjects(subjects_max)
    ledger.generation += 1
    for table, rows in sums.tables():
        state.write_table(_sums_path(ledger.generation, table), rows)
    state.sync(f"{SUMS}/")
    return amendments


def _sums_path(generation: int, name: str) -> str:
    return f"{SUMS}/{generation}-{name}.parquet"


def _added(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted(one.keys() | other)}


def write_summary(
    state: StateDirectory, ledger: Ledger, waiting: Sequence[Waiting], *, now_ms: int
) -> None:
    """Write the summary for people and monitors; now_ms: when the manifests were made."""
    document = {
        "schema": SUMMARY_SCHEMA,
        "made": time_text(now_ms),
        "made_ms": now_ms,
        "covered_from": minute_text(ledger.covered_from),
        "done_until": minute_text(done_until(ledger)),
        "hours": {"final": ledger.hours_summed, **ledger.verdicts},
        "findings": {name: ledger.findings.get(name, 0) for name in FINDING_CLASSES},
        "groups": _groups(state, ledger),
        "tables": {name: _sums_path(ledger.generation, name) for name in TABLES}
        if ledger.generation
        else {},
        "not_final": [_told(entry) for entry in ledger.hours if not entry.is_final],
        "waiting": [
            {"hour": minute_text(one.hour), "reason": one.reason, "is_late": one.is_late}
            for one in waiting
        ],
        "with_findings": [
            _told(entry) for entry in ledger.hours if entry.is_final and entry.verdict != "clean"
        ],
    }
    state.write(SUMMARY, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def done_until(ledger: Ledger) -> int:
    """Return the first hour that is not done for good."""
    final = {entry.hour for entry in ledger.hours if entry.is_final}
    hour = ledger.dropped_before
    while hour in final:
        hour += 60
    return hour


def _groups(state: StateDirectory, ledger: Ledger) -> list[dict[str, Any]]:
    lateness = None
    if ledger.generation:
        lateness = state.read_table(_sums_path(ledger.generation, "target_lateness"))
    found = []
    for one in ledger.groups:
        told = {
            "cluster": one.cluster,
            "group": one.group,
            **figures_of(Counter(one.totals), {}),
            "deleted": one.deleted,
        }
        if lateness is not None:
            mine = [
                row
                for row in lateness.to_pylist()
                if (row["cluster"], row["group"]) == (one.cluster, one.group)
            ]
            told["lateness_ms"] = lateness_of(mine)
        found.append(told)
    return found


def _told(entry: HourEntry) -> dict[str, Any]:
    """Return the line of an hour in the summary."""
    return {
        "hour": minute_text(entry.hour),
        "state": entry.state,
        "verdict": entry.verdict,
        "complete": entry.complete,
        "findings": entry.findings,
        "repaired": entry.repaired,
        "problems": entry.problems,
        "tries": entry.tries,
        "tried_first": time_text(entry.first_ms),
        "result": f"{HOURS}/{result_name(entry.hour)}",
    }
