"""A run: tasks to an engine, accounts added up, books balanced, a verdict.

An engine is whatever calls tasks and yields their results, in any order, in any process
(`spark_tools/run/local.py`); nothing else differs between engines.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_tools.files.errors import ReconcileError
from spark_tools.judge.account import FINDINGS_SCHEMA, Account, ReplicaHour, TaskResult
from spark_tools.judge.log_index import IndexTask
from spark_tools.judge.message_log import BLOCKS_AT_ONCE, BlocksTask, LogTask
from spark_tools.judge.payload import PayloadTask
from spark_tools.judge.segments import SegmentTask
from spark_tools.judge.sequences import BLOCK
from spark_tools.judge.tasks import Node
from spark_tools.repaired.repairs import LogName, Repairs
from spark_tools.run.plan import GroupPlan, Plan

Task = SegmentTask | LogTask | BlocksTask | IndexTask | PayloadTask
Engine = Callable[[Sequence[Task]], Iterable[TaskResult]]

FINDING_CLASSES: tuple[str, ...] = (
    "lost",
    "overdue",
    "duplicate",
    "settled_twice",
    "phantom",
    "early",
    "late",
    "misfiled",
    "doubled",
    "missing",
    "unlogged",
    "altered",
    "log_differs",
    "replica_differs",
)
"""What makes a run end with findings, the worst first."""


_FOLD_EVERY = 64
"""Results after which tables are bounded again."""


class Verdict(IntEnum):
    """What a run says; the number is the exit code."""

    CLEAN = 0
    FINDINGS = 1
    INCOMPLETE = 2


@dataclass(frozen=True, slots=True)
class DifferentHour:
    """An hour of which a replica has something else; hour: minutes since 1970."""

    node_id: str
    hour: int
    what: str
    authority_count: int
    replica_count: int


@dataclass(slots=True)
class GroupResult:
    """What was found of one group."""

    plan: GroupPlan
    account: Account
    differing: list[DifferentHour] = field(default_factory=list)


@dataclass(slots=True)
class Result:
    """What was found of all groups.

    findings: how many, by class; examples: the first of each class, by group, sequence and place;
    repairs: what it was told was sent again.
    """

    plan: Plan
    groups: list[GroupResult]
    findings: Counter[str]
    examples: pa.Table
    repairs: Repairs

    @property
    def problems(self) -> list[tuple[str, str, str, str]]:
        """Why the input is not complete: cluster, group, node, and what is wrong."""
        found = [("", "", "", text) for text in self.plan.problems]
        for group in self.groups:
            cluster, name = group.plan.name
            account = group.account
            found += [(cluster, name, node, text) for node, text in account.problems]
            found += [
                (cluster, name, node, f"{one.path} at {one.position}: {one.reason}")
                for node, one in account.damages
            ]
            if account.totals["unexplained"]:
                text = f"{account.totals['unexplained']} facts are of messages nobody can read"
                found.append((cluster, name, "", text))
        return sorted(found)

    @property
    def verdict(self) -> Verdict:
        """Return what the run says: findings come before what is not complete."""
        if sum(self.findings.values()):
            return Verdict.FINDINGS
        return Verdict.INCOMPLETE if self.problems else Verdict.CLEAN


def reconcile(
    plan: Plan,
    engine: Engine,
    on_findings: Callable[[pa.Table], None],
    repairs: Repairs | None = None,
) -> Result:
    """Do what the plan says. on_findings: is handed every finding once, in tables.

    repairs: what was lost, or missing, and has been sent again.

    Raises ReconcileError if the books do not balance: then nothing that was counted is true.
    """
    kept = _Kept(plan.request.examples, on_findings)
    known = Repairs() if repairs is None else repairs
    for group in plan.groups:
        group.account.totals["repairs_given"] += _given(plan, group, known)
    _run_tasks(plan, _Running(plan, engine, known, kept))
    groups = [_result_of(group, kept) for group in plan.groups]
    return Result(plan, groups, kept.counts, kept.examples(), known)


def _run_tasks(plan: Plan, running: "_Running") -> None:
    """Do all tasks: those of the plan, and those that look again where something differs."""
    running.run([task for group in plan.groups for task in group.tasks])
    agreeing = {group.name for group in plan.groups if _agrees_with_index(group)}
    again = [one for one in plan.groups if one.known is not None and one.name not in agreeing]
    running.run([task for group in again for task in group.log_tasks()])
    running.run(
        [
            task
            for group in plan.groups
            for task in _second_look(group, is_read=group.name not in agreeing)
        ]
    )


def _agrees_with_index(group: GroupPlan) -> bool:
    """Say whether the rows are what the index has of the message_log as it is kept."""
    known = group.known
    if known is None or known.differing(group.account.cuts, kept=True):
        return False
    group.account.totals["records"] += known.kept_records()
    return True


def _result_of(group: GroupPlan, kept: "_Kept") -> GroupResult:
    """Return what was found of a group; its last findings are kept.

    Raises ReconcileError if its books do not balance.
    """
    wrong = group.account.imbalances()
    if wrong:
        raise ReconcileError(
            f"the books of group {group.name.group} do not balance, a defect of this program: "
            + "; ".join(wrong)
        )
    differing = _differing(group, group.account)
    kept.add(_table_of(group, differing))
    kept.add(_unlike_log(group))
    return GroupResult(group, group.account, differing)


class _Running:
    """Has an engine do tasks, and adds their results to the accounts of their groups."""

    def __init__(self, plan: Plan, engine: Engine, repairs: Repairs, kept: "_Kept") -> None:
        self._accounts = {group.name: group.account for group in plan.groups}
        self._subjects_max = plan.request.subjects_max
        self._engine = engine
        self._repairs = repairs
        self._kept = kept

    def run(self, tasks: Iterable[Task]) -> None:
        """Have tasks done, and their findings kept."""
        told = [_told(task, self._repairs) for task in tasks]
        # The largest first, so that none of them is left alone at the end.
        ordered = sorted(told, key=lambda task: -task.weight)
        for number, result in enumerate(self._engine(ordered), start=1):
            self._accounts[result.name].merge(result.account)
            self._kept.add(result.findings)
            if number % _FOLD_EVERY == 0:
                self._fold()
        # An engine may hand back one result of many tasks.
        self._fold()

    def _fold(self) -> None:
        for account in self._accounts.values():
            account.fold_subjects(self._subjects_max)


def _log_of(node: Node) -> LogName:
    return LogName(*node.name, str(node.log_uuid))


def _given(plan: Plan, group: GroupPlan, repairs: Repairs) -> int:
    """Return how many repairs are of a group, and of the range."""
    request = plan.request
    return repairs.given(_log_of(group.node), request.from_minute, request.to_minute)


def _told(task: Task, repairs: Repairs) -> Task:
    """Return a task that knows of those repairs that are its own, and of no others."""
    if isinstance(task, SegmentTask) and task.is_authority:
        known = repairs.rows_of(_log_of(task.node))
        if len(known):
            return replace(task, repaired=known.of_minutes(task.start, task.end))
    elif isinstance(task, BlocksTask):
        known = repairs.records_of(_log_of(task.expecting.node))
        if len(known):
            mine = np.isin(known.sequence // BLOCK, task.blocks)
            return replace(task, repaired=known.sequence[mine])
    return task


def _second_look(group: GroupPlan, *, is_read: bool) -> list[BlocksTask]:
    """Return the tasks that look into the blocks of sequences in which something is wrong.

    is_read: the records were read, and not only known to be as the rows are.
    """
    account = group.account
    filed, logged = account.filed, account.logged
    blocks = set(account.sequences.doubled)
    if is_read:
        every = filed.keys() | logged.keys()
        blocks |= {block for block in every if filed.get(block) != logged.get(block)}
    ordered = sorted(blocks)
    return [
        group.blocks_task(ordered[place : place + BLOCKS_AT_ONCE])
        for place in range(0, len(ordered), BLOCKS_AT_ONCE)
    ]


def _differing(group: GroupPlan, account: Account) -> list[DifferentHour]:
    """Return the hours in which a replica does not have what the authority has."""
    mine = group.node.node_id
    hours = {hour for _, hour in account.replicas}
    hours -= group.uncompared_hours | account.unread_hours
    found = []
    for node, _ in group.replicas:
        if not group.uncompared_nodes.isdisjoint({mine, node.node_id}):
            continue
        for hour in sorted(hours):
            wanted = account.replicas.get((mine, hour), ReplicaHour())
            has = account.replicas.get((node.node_id, hour), ReplicaHour())
            pairs = [("rows", wanted.rows, has.rows)]
            if hour not in group.unsealed_hours:
                pairs.append(("facts", wanted.facts, has.facts))
            found += [
                DifferentHour(node.node_id, hour, what, one.count, other.count)
                for what, one, other in pairs
                if one != other
            ]
    return found


def _table_of(group: GroupPlan, differing: Sequence[DifferentHour]) -> pa.Table:
    rows = [
        {
            "class": "replica_differs",
            "cluster": group.name.cluster,
            "group": group.name.group,
            "node": one.node_id,
            "filed_minute": one.hour,
            "note": f"{one.what} of this hour: {one.replica_count} here, {one.authority_count} on "
            f"{group.node.node_id}, or others",
        }
        for one in differing
    ]
    return pa.Table.from_pylist(rows, schema=FINDINGS_SCHEMA)


def _unlike_log(group: GroupPlan) -> pa.Table:
    """Return the finding that rows are not what was once read of them, if that is so."""
    known, account = group.known, group.account
    # Of a segment that is gone, or damaged, there are fewer rows for a reason that is told.
    if known is None or account.totals["unread_segments"]:
        return FINDINGS_SCHEMA.empty_table()
    differing = known.differing(account.cuts, kept=False)
    rows = [
        {
            "class": "log_differs",
            "cluster": group.name.cluster,
            "group": group.name.group,
            "node": group.node.node_id,
            "filed_minute": group.rules.from_minute,
            "note": f"of {sum(one.count for one, _ in differing)} records that have left the "
            f"message_log since they were read there are {sum(one.count for _, one in differing)} "
            "rows in this hour, or others",
        }
    ] * bool(differing)
    return pa.Table.from_pylist(rows, schema=FINDINGS_SCHEMA)


class _Kept:
    """Counts findings, hands them on, and keeps some of each class, whatever order they come in."""

    _ORDER = (
        "class",
        "cluster",
        "group",
        "sequence",
        "file",
        "position",
        "at_ms",
        "target",
        "node",
    )

    def __init__(self, most: int, on_findings: Callable[[pa.Table], None]) -> None:
        self.counts: Counter[str] = Counter()
        self._most = most
        self._on_findings = on_findings
        self._examples: dict[str, pa.Table] = {}

    def add(self, table: pa.Table) -> None:
        """Take findings."""
        if not table.num_rows:
            return
        self._on_findings(table)
        for name in pc.unique(table["class"]).to_pylist():
            mine = table.filter(pc.equal(table["class"], name))
            if name in FINDING_CLASSES:
                self.counts[name] += mine.num_rows
            if name in self._examples:
                mine = pa.concat_tables([self._examples[name], mine])
            order = [(column, "ascending") for column in self._ORDER]
            self._examples[name] = mine.take(pc.sort_indices(mine, order)[: self._most])

    def examples(self) -> pa.Table:
        """Return those that are kept."""
        tables = [table for _, table in sorted(self._examples.items())]
        return pa.concat_tables([FINDINGS_SCHEMA.empty_table(), *tables])
