"""All hours that are done, added up: the sums of the ledger, and what they say."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from spark_tools.files.times import minute_text, time_text
from spark_tools.hours.state import (
    HOURS,
    GroupSums,
    HourEntry,
    HourResult,
    Ledger,
    StateDirectory,
    Waiting,
    result_name,
)
from spark_tools.judge.account import LATEST
from spark_tools.judge.tasks import GroupName
from spark_tools.run.reconcile import FINDING_CLASSES
from spark_tools.run.report import figures_of, lateness_of

SUMMARY_SCHEMA = 1
"""Counted up when a reader of an older version would misunderstand a newer one."""
SUMMARY = "summary.json"


def add_up(ledger: Ledger, results: Iterable[HourResult]) -> None:
    """Add hours that are done for good to the sums of the ledger."""
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
            for bucket, (count, latest_ms) in one.lateness.items():
                known.add_lateness(bucket, count, latest_ms)


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
        "groups": [_group(one) for one in ledger.groups],
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


def _group(sums: GroupSums) -> dict[str, Any]:
    late = [
        {"bucket": bucket, "count": count, LATEST: latest_ms}
        for bucket, (count, latest_ms) in sums.lateness.items()
    ]
    return {
        "cluster": sums.cluster,
        "group": sums.group,
        **figures_of(Counter(sums.totals), {}),
        "deleted": sums.deleted,
        "lateness_ms": lateness_of(late),
    }


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
