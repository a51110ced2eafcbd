"""All hours that are kept, added up."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_tools.files.times import minute_text, time_text
from spark_tools.hours.state_directory import (
    HOURS,
    RESULT,
    GroupSums,
    HourEntry,
    HourResult,
    hour_name,
)
from spark_tools.judge.account import LATEST
from spark_tools.judge.tasks import GroupName
from spark_tools.run.reconcile import FINDING_CLASSES
from spark_tools.run.report import figures_of, lateness_of

SUMMARY_SCHEMA = 2
"""Counted up when a reader of an older version would misunderstand a newer one."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An hour that is over and not closed. is_late: it should have closed by now."""

    hour: int
    reason: str
    is_late: bool


def summary_of(
    results: Mapping[int, HourResult],
    waiting: Sequence[Waiting],
    *,
    covered_from: int,
    made_ms: int,
) -> dict[str, Any]:
    """Return the summary of hours; made_ms: when the manifests were made."""
    entries = [results[hour].hour for hour in sorted(results)]
    final = [entry for entry in entries if entry.is_final]
    found: Counter[str] = Counter()
    for entry in final:
        found.update(entry.findings)
    return {
        "schema": SUMMARY_SCHEMA,
        "made": time_text(made_ms),
        "made_ms": made_ms,
        "covered_from": minute_text(covered_from),
        "done_until": minute_text(first_undone(results, covered_from)),
        "hours": {"final": len(final), **Counter(entry.verdict for entry in final)},
        "findings": {name: found[name] for name in FINDING_CLASSES},
        "groups": _groups([results[entry.hour] for entry in final]),
        "not_final": [_told(entry) for entry in entries if not entry.is_final],
        "waiting": [
            {"hour": minute_text(one.hour), "reason": one.reason, "is_late": one.is_late}
            for one in waiting
        ],
        "with_findings": [_told(entry) for entry in final if entry.verdict != "clean"],
    }


def first_undone(results: Mapping[int, HourResult], covered_from: int) -> int:
    """Return the first hour that is not done for good."""
    hour = covered_from
    while hour in results and results[hour].hour.is_final:
        hour += 60
    return hour


def _groups(results: Sequence[HourResult]) -> list[dict[str, Any]]:
    """Return the groups of hours, with their counts in all of them."""
    parts: dict[GroupName, list[GroupSums]] = {}
    for result in results:
        for one in result.sums:
            parts.setdefault(GroupName(one.cluster, one.group), []).append(one)
    return [{**name._asdict(), **_figures(found)} for name, found in sorted(parts.items())]


def _figures(parts: Sequence[GroupSums]) -> dict[str, Any]:
    totals: Counter[str] = Counter()
    deleted: Counter[str] = Counter()
    for one in parts:
        totals.update(one.totals)
        deleted.update(one.deleted)
    late = [
        {"bucket": bucket, "count": count, LATEST: latest_ms}
        for one in parts
        for bucket, (count, latest_ms) in one.lateness.items()
    ]
    return {
        **figures_of(totals, {}),
        "deleted": dict(deleted),
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
        "problems": entry.problems,
        "tried_first": time_text(entry.first_ms),
        "result": f"{HOURS}/{hour_name(entry.hour)}/{RESULT}",
    }
