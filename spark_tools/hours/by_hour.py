"""Runs by closed hour: each hour is reconciled once, and its result kept in a state directory.

An hour is *closed* when nothing is added to it any more and nothing of it is owed: watermark and
floor have passed its end, and each of its segments is sealed, on the authority of every group. A
run does the hours that have closed since the last one. Of the message_log it reads what was filed
since (`spark_tools/judge/log_index.py`), of the segments those of these hours.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from spark_tools.files.columns import hour_of
from spark_tools.files.errors import ReconcileError
from spark_tools.hours.state_directory import (
    RESULT,
    GroupSums,
    HourEntry,
    HourResult,
    StateDirectory,
)
from spark_tools.hours.summary import Waiting, first_undone, summary_of
from spark_tools.judge.account import LATEST, TaskResult
from spark_tools.judge.log_index import IndexTask, LogIndex
from spark_tools.judge.tasks import GroupName
from spark_tools.repaired.repairs import KINDS, LogName, Repairs
from spark_tools.run.plan import (
    Members,
    Request,
    Source,
    View,
    logs_of,
    members_of,
    plan_of,
    watermark_of,
)
from spark_tools.run.reconcile import Engine, GroupResult, Result, Verdict, reconcile
from spark_tools.run.report import Details, encode_report, report
from storage.disk.spans import MINUTE_MS

HOUR_MS = 60 * MINUTE_MS
_DAY_MINUTES = 24 * 60
_PROBLEMS_TOLD = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class HoursRequest:
    """The options of a run by hour.

    request: its range is not looked at; without_groups: those that are gone for good.
    """

    request: Request = field(default_factory=Request)
    back_hours: int = 48
    """How far back the first run goes."""
    open_hours: int = 3
    """An hour that is still open so long after its end is reconciled as it is."""
    retry_hours: int = 24
    """How long an hour with unreadable input is tried again."""
    keep_days: int = 90
    """Older hours are forgotten."""
    without_groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a run.

    results: of all hours that are kept; done: those that no summary has told of before; waiting:
    hours that are over and not closed; segments_before: that are not covered, since they lie before
    the first hour; summary: what was written.
    """

    results: dict[int, HourResult]
    done: list[HourEntry]
    waiting: list[Waiting]
    segments_before: int
    summary: dict[str, Any]

    @property
    def verdict(self) -> Verdict:
        """Return the verdict over the hours of this run: findings come first."""
        verdicts = {Verdict[one.verdict.upper()] for one in self.done}
        for found in (Verdict.FINDINGS, Verdict.INCOMPLETE):
            if found in verdicts:
                return found
        return Verdict.CLEAN


def run_hours(
    state: StateDirectory,
    sources: Callable[[int | None], Sequence[Source]],
    request: HoursRequest,
    engine: Engine,
    *,
    repairs: Repairs | None = None,
) -> Outcome:
    """Do all hours that have closed.

    sources: is told the first minute of which manifests have to tell all, None for a state
    directory that is new; repairs: what was lost, or missing, and has been sent again. Raises
    ReconcileError, StorageError or OSError.
    """
    with state.lock():
        return _Run(state, request, engine, repairs or Repairs()).run(sources)


class _Run:
    """One run."""

    def __init__(
        self, state: StateDirectory, request: HoursRequest, engine: Engine, repairs: Repairs
    ) -> None:
        self._state = state
        self._request = request
        self._engine = engine
        self._repairs = repairs
        self._results = state.results()
        self._covered_from = max(
            (one.hour.covered_from for one in self._results.values()), default=0
        )
        self._indexes: dict[GroupName, LogIndex] = {}
        self._awaited: dict[GroupName, GroupSums] = {}
        """Groups of which the newest hour is, and that are not said to be gone."""
        if self._results:
            self._awaited = {
                GroupName(one.cluster, one.group): one
                for one in self._results[max(self._results)].sums
            }

    def run(self, sources: Callable[[int | None], Sequence[Source]]) -> Outcome:
        """Reconcile the hours that are due, and write the results."""
        told_ms = self._state.summary_made_ms()
        repaired = [hour for hour, one in self._results.items() if self._is_repaired(one)]
        first = None
        if self._results:
            first = min([first_undone(self._results, self._covered_from), *repaired])
        groups = members_of(sources(first))
        now_ms = watermark_of(groups, 0)
        self._recognise(groups)
        self._covered_from = self._covering(groups, now_ms)
        todo, waiting = self._choose(groups, now_ms)
        todo += [(hour, True) for hour in repaired if _is_there(groups, hour)]
        if todo:
            self._read_logs(groups)
        for hour, is_closed in sorted(todo):
            self._do(groups, hour, now_ms, is_closed=is_closed)
        done_now = {hour for hour, _ in todo}
        summary = summary_of(
            self._results, waiting, covered_from=self._covered_from, made_ms=now_ms
        )
        self._state.write_summary(summary)
        return Outcome(
            results=self._results,
            done=[
                one.hour
                for hour, one in sorted(self._results.items())
                # A run that was killed has told of nothing.
                if hour in done_now or one.hour.last_ms > told_ms
            ],
            waiting=waiting,
            segments_before=sum(
                one.end <= self._covered_from
                for members in groups
                for one in members.authority.extents
            ),
            summary=summary,
        )

    # -- which hours -------------------------------------------------------------------------

    def _is_repaired(self, result: HourResult) -> bool:
        """Say whether more of a final hour was sent again than it was known of."""
        entry = result.hour
        if not entry.is_final or entry.findings.keys().isdisjoint(KINDS):
            return False
        given = (
            self._repairs.given(_log_of(one), entry.hour, entry.hour + 60) for one in result.sums
        )
        return sum(given) > entry.repairs

    def _recognise(self, groups: Sequence[Members]) -> None:
        """Refuse groups that are none of those before, or whose log is another."""
        there = {one.name: str(one.authority.node.log_uuid) for one in groups}
        gone = self._request.without_groups
        self._awaited = {
            name: one
            for name, one in self._awaited.items()
            if name in there or name.group not in gone
        }
        if self._awaited and there.keys().isdisjoint(self._awaited):
            raise ReconcileError(
                f"the state directory is of {_names(self._awaited)}, and what was given is of "
                f"{_names(there)}: give --root or --manifest of these, or a state directory of its "
                "own"
            )
        for name, one in self._awaited.items():
            if there.get(name, one.log_uuid) != one.log_uuid:
                raise ReconcileError(
                    f"group {name.group} of cluster {name.cluster} has another log than before: "
                    "begin with a new state directory"
                )

    def _covering(self, groups: Sequence[Members], now_ms: int) -> int:
        """Return the first hour to look at, and forget those that are too old."""
        if not self._results:
            last = hour_of(watermark_of(groups, self._request.request.grace_ms) // MINUTE_MS)
            known = [minute for one in groups for minute in _first_minutes(one.authority)]
            first = max(last - 60 * self._request.back_hours, hour_of(min(known, default=last)), 0)
            return int(first)
        old = int(hour_of(now_ms // MINUTE_MS)) - _DAY_MINUTES * self._request.keep_days
        for hour in [hour for hour in self._results if hour < old]:
            self._state.forget(hour)
            del self._results[hour]
        return max(self._covered_from, old)

    def _choose(
        self, groups: Sequence[Members], now_ms: int
    ) -> tuple[list[tuple[int, bool]], list[Waiting]]:
        """Return the hours to do, and whether each is closed; and those that are not closed."""
        todo, waiting = [], []
        hour = self._covered_from
        while (hour + 60) * MINUTE_MS <= now_ms - self._request.request.grace_ms:
            result = self._results.get(hour)
            if result is None or not result.hour.is_final:
                reason, is_empty = _why_open(groups, hour)
                late_ms = now_ms - (hour + 60) * MINUTE_MS
                is_late = not is_empty and late_ms >= self._request.open_hours * HOUR_MS
                if reason:
                    waiting.append(Waiting(hour, reason, is_late))
                if is_late or not reason:
                    todo.append((hour, not reason))
            hour += 60
        return todo, waiting

    # -- one hour ----------------------------------------------------------------------------

    def _read_logs(self, groups: Sequence[Members]) -> None:
        """Read the records of the message_log that were filed since the last run.

        What has damage is not kept in the index: the next run reads it again.
        """
        tasks: list[IndexTask] = []
        damaged: list[TaskResult] = []
        for members in groups:
            node, manifest = members.authority.node, members.authority.manifest
            index = self._indexes[members.name] = self._state.index(str(node.log_uuid))
            index.shrink(manifest.first_sequence, self._covered_from)
            missing = index.missing(logs_of(manifest), manifest.sequence)
            tasks += [IndexTask(node=node, log=log) for log in missing]
        for result in self._engine(tasks) if tasks else ():
            if result.account.damages:
                damaged.append(result)
            else:
                self._indexes[result.name].add(result.account)
        for members in groups:
            log_uuid = str(members.authority.node.log_uuid)
            self._state.write_index(log_uuid, self._indexes[members.name])
        for result in damaged:
            self._indexes[result.name].add(result.account)

    def _do(
        self,
        groups: Sequence[Members],
        hour: int,
        now_ms: int,
        *,
        is_closed: bool,
    ) -> None:
        """Reconcile one hour, and put its result in place."""
        before = self._results.get(hour)
        asked = self._request.request
        there = {one.name for one in groups}
        missing = [one for name, one in self._awaited.items() if name not in there]
        request = replace(
            asked,
            from_minute=hour,
            to_minute=hour + 60,
            expected_groups=(*asked.expected_groups, *(one.group for one in missing)),
        )
        known = {name: index.of_hour(hour) for name, index in self._indexes.items()}
        plan = plan_of(groups, request, known)
        with self._state.replacing(hour) as directory:
            with Details(directory) as details:
                result = reconcile(plan, self._engine, details.add, self._repairs)
                details.add_tables(result)
            entry = self._entry(hour, result, before, now_ms, is_closed=is_closed)
            sums = [_sums_of(group) for group in result.groups]
            sums += [
                GroupSums(cluster=one.cluster, group=one.group, log_uuid=one.log_uuid)
                for one in missing
            ]
            found = HourResult(hour=entry, sums=sums)
            document = {**report(result), **msgspec.to_builtins(found)}
            (directory / RESULT).write_bytes(encode_report(document))
        self._results[hour] = found

    def _entry(
        self,
        hour: int,
        result: Result,
        before: HourResult | None,
        now_ms: int,
        *,
        is_closed: bool,
    ) -> HourEntry:
        state = "incomplete" if is_closed else "open"
        first_ms = now_ms
        if before is not None and before.hour.state == state:
            first_ms = before.hour.first_ms
        complete = not result.problems
        if is_closed and (complete or now_ms - first_ms >= self._request.retry_hours * HOUR_MS):
            state = "final"
        return HourEntry(
            hour=hour,
            state=state,
            verdict=result.verdict.name.lower(),
            complete=complete,
            accepted=sum(group.account.totals["accepted"] for group in result.groups),
            findings={name: count for name, count in sorted(result.findings.items()) if count},
            problems=[" ".join(filter(None, one)) for one in result.problems[:_PROBLEMS_TOLD]],
            repairs=sum(group.account.totals["repairs_given"] for group in result.groups),
            first_ms=first_ms,
            last_ms=now_ms,
            covered_from=self._covered_from,
        )


def _log_of(sums: GroupSums) -> LogName:
    return LogName(sums.cluster, sums.group, sums.log_uuid)


def _sums_of(group: GroupResult) -> GroupSums:
    late = group.account.target_lateness.table().to_pylist()
    lateness: dict[int, tuple[int, int]] = {}
    for row in late:
        count, latest_ms = lateness.get(row["bucket"], (0, 0))
        lateness[row["bucket"]] = count + row["count"], max(latest_ms, row[LATEST])
    return GroupSums(
        cluster=group.plan.name.cluster,
        group=group.plan.name.group,
        log_uuid=str(group.plan.node.log_uuid),
        totals={name: count for name, count in sorted(group.account.totals.items()) if count},
        deleted=group.plan.deleted,
        lateness=lateness,
    )


def _names(groups: Iterable[GroupName]) -> str:
    return ", ".join(f"group {one.group} of cluster {one.cluster}" for one in sorted(groups))


def _first_minutes(view: View) -> Iterable[int]:
    """Return the first minute of all segments and of all messages in no segment."""
    yield from (one.start for one in view.extents)
    yield from np.unique(view.tail.loose.rows.minute).tolist()


def _is_there(groups: Sequence[Members], hour: int) -> bool:
    """Say whether no segment of an hour was deleted."""
    return not any(
        one.manifest.deleted_from_minute > hour
        or any(
            each.is_deleted and each.start < hour + 60 and each.end > hour for each in one.extents
        )
        for one in (members.authority for members in groups)
    )


def _why_open(groups: Sequence[Members], hour: int) -> tuple[str, bool]:
    """Return the reasons why an hour is open, none if it is closed; and whether it is empty."""
    reasons: list[str] = []
    is_empty = True
    for members in groups:
        view, name = members.authority, members.name.group
        mine = [one for one in view.extents if one.start < hour + 60 and one.end > hour]
        unsealed = sum(not one.is_sealed for one in mine)
        minute = view.tail.loose.rows.minute
        loose = int(np.count_nonzero((minute >= hour) & (minute < hour + 60)))
        if unsealed:
            reasons.append(f"{unsealed} segment(s) of {name} are not sealed")
        elif loose:
            reasons.append(f"{loose} record(s) of {name} are not filed")
        elif view.manifest.floor_minute < hour + 60:
            reasons.append(f"no later record of {name} has closed it yet")
        is_empty &= not mine and not loose
    return "; ".join(reasons), is_empty
