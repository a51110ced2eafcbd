"""Runs by closed hour: each hour is reconciled once, and its result kept in a state directory.

An hour is *closed* when nothing is added to it any more and nothing of it is owed: watermark and
floor have passed its end, and each of its segments is sealed, on the authority of every group. A
run does the hours that have closed since the last one. Of the message_log it reads what was filed
since (`spark_tools/judge/log_index.py`), of the segments those of these hours.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from spark_tools.files.columns import hour_of
from spark_tools.files.errors import ReconcileError
from spark_tools.hours.hour_files import HourWriter, IndexFiles, read_unproven
from spark_tools.hours.hour_repairs import Amendment, amended, amendments_of
from spark_tools.hours.state import (
    GroupSums,
    HourEntry,
    HourResult,
    Ledger,
    StateDirectory,
    Waiting,
)
from spark_tools.hours.summary import add_up, write_summary
from spark_tools.judge.log_index import IndexTask, LogIndex
from spark_tools.judge.sequences import Sequences
from spark_tools.judge.tasks import GroupName
from spark_tools.repaired.repairs import Repairs
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
from spark_tools.run.reconcile import Engine, Result, Verdict, reconcile
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
    """Results of older hours are removed; their sums stay."""
    without_groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a run.

    done: hours with a new result, those of a run that was killed included; waiting: hours that are
    over and not closed; segments_before: that are not covered, since they lie before the first
    hour; amendments: what the given repairs have ended of the findings of final hours, so that the
    ledger here, which is the one of the summary, does not have them.
    """

    ledger: Ledger
    done: list[HourEntry]
    waiting: list[Waiting]
    segments_before: int
    amendments: list[Amendment]

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
    on_done: Callable[[HourEntry], None] = lambda _: None,
    *,
    repairs: Repairs | None = None,
) -> Outcome:
    """Do all hours that have closed.

    sources: is told the first minute of which manifests have to tell all, None for a state
    directory that is new; on_done: is told of each hour when its result is in place; repairs: what
    was lost, or missing, and has been sent again. Raises ReconcileError.
    """
    with state.lock():
        return _Run(state, request, engine, on_done, repairs or Repairs()).run(sources)


class _Run:
    """One run."""

    def __init__(
        self,
        state: StateDirectory,
        request: HoursRequest,
        engine: Engine,
        on_done: Callable[[HourEntry], None],
        repairs: Repairs,
    ) -> None:
        self._state = state
        self._request = request
        self._engine = engine
        self._on_done = on_done
        self._repairs = repairs
        self._done: dict[int, HourResult] = {}
        """What is new since the ledger."""
        self._entries: dict[int, HourEntry] = {}
        """Each hour that is known, from the ledger or from this run."""
        self._missing: list[str] = []
        """Why no hour is complete."""
        self._indexes: dict[GroupName, LogIndex] = {}
        self._unproven: dict[GroupName, Sequences] = {}
        self._settled: set[int] = set()

    def run(self, sources: Callable[[int | None], Sequence[Source]]) -> Outcome:
        """Reconcile the hours that are due, and write the results."""
        ledger = self._state.ledger()
        if ledger is not None:
            self._resume(ledger)
        groups = members_of(sources(None if ledger is None else self._oldest(ledger)))
        if ledger is None:
            ledger = self._begin(groups)
            # Where it begins must not depend on whether this first run is killed.
            self._state.write_ledger(ledger)
        self._recognise(ledger, groups)
        now_ms = watermark_of(groups, 0)
        todo, waiting = self._choose(ledger, groups, now_ms)
        if todo:
            self._prepare(groups, since=self._oldest(ledger))
        for hour, is_closed in todo:
            self._do(groups, hour, now_ms, is_closed=is_closed)
        self._finish(ledger, groups, now_ms)
        amendments = amendments_of(self._state, ledger, self._repairs)
        ledger = amended(ledger, amendments)
        write_summary(self._state, ledger, waiting, now_ms=now_ms)
        return Outcome(
            ledger=ledger,
            done=[self._done[hour].hour for hour in sorted(self._done)],
            waiting=waiting,
            segments_before=sum(
                one.end <= ledger.covered_from
                for members in groups
                for one in members.authority.extents
            ),
            amendments=amendments,
        )

    # -- before ------------------------------------------------------------------------------

    def _resume(self, ledger: Ledger) -> None:
        """Take over the hours that a killed run has finished."""
        self._entries = {entry.hour: entry for entry in ledger.hours}
        for result in self._state.results(ledger):
            self._note(result)
        self._state.clean(self._entries.values())

    def _note(self, result: HourResult) -> None:
        self._entries[result.hour.hour] = result.hour
        self._done[result.hour.hour] = result
        self._on_done(result.hour)

    def _begin(self, groups: Sequence[Members]) -> Ledger:
        """Return the ledger of a new state directory."""
        last = hour_of(watermark_of(groups, self._request.request.grace_ms) // MINUTE_MS)
        known = [minute for one in groups for minute in _first_minutes(one.authority)]
        first = max(last - 60 * self._request.back_hours, hour_of(min(known, default=last)), 0)
        return Ledger(covered_from=first, dropped_before=first)

    def _oldest(self, ledger: Ledger) -> int:
        """Return the first hour that is not done for good."""
        hour = ledger.dropped_before
        while hour in self._entries and self._entries[hour].is_final:
            hour += 60
        return hour

    def _recognise(self, ledger: Ledger, groups: Sequence[Members]) -> None:
        """Record the groups, and refuse a group whose log is another than before."""
        there = {one.name for one in groups}
        known = {GroupName(one.cluster, one.group): one for one in ledger.groups}
        for name, sums in known.items():
            is_gone = sums.is_gone or name.group in self._request.without_groups
            sums.is_gone = is_gone and name not in there
        awaited = [name for name, sums in known.items() if not sums.is_gone]
        if awaited and not there & known.keys():
            raise ReconcileError(
                f"the state directory is of {_names(awaited)}, and what was given is of "
                f"{_names(there)}: give --root or --manifest of these, or a state directory of its "
                "own"
            )
        self._missing = [
            f"group {name.group} of cluster {name.cluster} was reconciled before, and none of the "
            "manifests is of it: name them, or say --without-group"
            for name in sorted(known.keys() - there)
            if not known[name].is_gone
        ]
        for members in groups:
            name, log_uuid = members.name, str(members.authority.node.log_uuid)
            if name not in known:
                sums = GroupSums(cluster=name.cluster, group=name.group, log_uuid=log_uuid)
                ledger.groups.append(sums)
            elif known[name].log_uuid != log_uuid:
                raise ReconcileError(
                    f"group {name.group} of cluster {name.cluster} has another log than before: "
                    "begin with a new state directory"
                )

    # -- which hours -------------------------------------------------------------------------

    def _choose(
        self, ledger: Ledger, groups: Sequence[Members], now_ms: int
    ) -> tuple[list[tuple[int, bool]], list[Waiting]]:
        """Return the hours to do, and whether each is closed; and those that are not closed."""
        todo, waiting = [], []
        hour = self._oldest(ledger)
        while (hour + 60) * MINUTE_MS <= now_ms - self._request.request.grace_ms:
            entry = self._entries.get(hour)
            reason, is_empty = _why_open(groups, hour)
            is_wanted = entry is None or now_ms > entry.last_ms
            late_ms = now_ms - (hour + 60) * MINUTE_MS
            is_late = not is_empty and late_ms >= self._request.open_hours * HOUR_MS
            if entry is not None and entry.is_final:
                pass
            elif reason:
                waiting.append(Waiting(hour, reason, is_late))
                if is_late and is_wanted:
                    todo.append((hour, False))
            elif is_wanted or (entry is not None and entry.state == "open"):
                todo.append((hour, True))
            hour += 60
        return todo, waiting

    def _is_last_try(self, entry: HourEntry, now_ms: int) -> bool:
        waited = now_ms - entry.first_ms
        return entry.state == "incomplete" and waited >= self._request.retry_hours * HOUR_MS

    # -- one hour ----------------------------------------------------------------------------

    def _prepare(self, groups: Sequence[Members], *, since: int) -> None:
        """Read the records of the message_log that were filed since the last run."""
        files: dict[GroupName, IndexFiles] = {}
        tasks: list[IndexTask] = []
        for members in groups:
            node, manifest = members.authority.node, members.authority.manifest
            kept = files[members.name] = IndexFiles(self._state, node.log_uuid)
            index = self._indexes[members.name] = kept.read()
            kept.retire(index, manifest.first_sequence, since)
            missing = index.missing(logs_of(manifest), manifest.sequence)
            tasks += [IndexTask(node=node, log=log) for log in missing]
        for result in self._engine(tasks) if tasks else ():
            for piece in result.account.pieces:
                self._indexes[result.name].add(piece)
                files[result.name].add(piece)
        final = [one for one in self._entries.values() if one.is_final]
        there = _hours_there(groups)
        self._settled = {one.hour for one in final}
        self._unproven = read_unproven(self._state, [one for one in final if one.hour in there])

    def _do(self, groups: Sequence[Members], hour: int, now_ms: int, *, is_closed: bool) -> None:
        """Reconcile one hour, and put its result in place."""
        before = self._entries.get(hour)
        request = replace(self._request.request, from_minute=hour, to_minute=hour + 60)
        known = {
            name: index.of_hour(
                hour,
                unproven=self._unproven.get(name, Sequences()),
                settled=frozenset(self._settled),
            )
            for name, index in self._indexes.items()
        }
        plan = plan_of(groups, request, known)
        plan.problems += self._missing
        tries = 1 if before is None else before.tries + 1
        with HourWriter(self._state, hour, tries) as writer:
            result = reconcile(plan, self._engine, writer.add, self._repairs)
            entry = self._entry(hour, result, before, now_ms, is_closed=is_closed)
            self._note(writer.finish(result, entry))
        if entry.is_final:
            self._settled.add(hour)
            for group in result.groups:
                self._unproven.setdefault(group.plan.name, Sequences()).add(group.unproven)

    def _entry(
        self,
        hour: int,
        result: Result,
        before: HourEntry | None,
        now_ms: int,
        *,
        is_closed: bool,
    ) -> HourEntry:
        entry = HourEntry(
            hour=hour,
            state="incomplete" if is_closed else "open",
            verdict=result.verdict.name.lower(),
            complete=not result.problems,
            accepted=sum(group.account.totals["accepted"] for group in result.groups),
            findings={name: count for name, count in sorted(result.findings.items()) if count},
            problems=[" ".join(filter(None, one)) for one in result.problems[:_PROBLEMS_TOLD]],
            tries=1 if before is None else before.tries + 1,
            first_ms=now_ms,
            last_ms=now_ms,
            details={},
        )
        if before is not None and before.state == entry.state:
            entry.first_ms = before.first_ms
        if is_closed and (entry.complete or self._is_last_try(entry, now_ms)):
            entry.state = "final"
        return entry

    # -- afterwards --------------------------------------------------------------------------

    def _finish(self, ledger: Ledger, groups: Sequence[Members], now_ms: int) -> None:
        """Add final hours to the sums, drop old hours, and replace the ledger."""
        add_up(ledger, [one for one in self._done.values() if one.hour.is_final])
        # What a row may be doubled with is looked for as long as its segment is there.
        there = [hour for hour in _hours_there(groups) if hour >= ledger.covered_from]
        oldest = self._oldest(ledger)
        old = hour_of(now_ms // MINUTE_MS) - _DAY_MINUTES * self._request.keep_days
        ledger.dropped_before = max(ledger.dropped_before, min([old, oldest, *there]))
        ledger.hours = [
            entry for hour, entry in sorted(self._entries.items()) if hour >= ledger.dropped_before
        ]
        self._state.write_ledger(ledger)
        self._state.clean(ledger.hours)


def _names(groups: Iterable[GroupName]) -> str:
    return ", ".join(f"group {one.group} of cluster {one.cluster}" for one in sorted(groups))


def _first_minutes(view: View) -> Iterable[int]:
    """Return the first minute of all segments and of all messages in no segment."""
    yield from (one.start for one in view.extents)
    yield from np.unique(view.tail.loose.rows.minute).tolist()


def _hours_there(groups: Sequence[Members]) -> set[int]:
    """Return the hours of which some segment is there."""
    return {
        hour
        for members in groups
        for one in members.authority.extents
        if not one.is_deleted
        for hour in range(hour_of(one.start), one.end, 60)
    }


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
