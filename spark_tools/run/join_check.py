"""What became of messages, counted once more, in another way: by joins of tables in Spark.

The tasks of a run judge segment by segment with sorted arrays (`spark_tools/judge/segments.py`),
and hold records and rows against each other by digests (`spark_tools/judge/message_log.py`). Here
the same figures come from joins and aggregations (`spark_tools/run/join_queries.py`) over
`spark.read.format("delaywheel")`: what is wrong there does not go wrong here in the same way. It
shuffles all rows, facts and records, so it costs several times as much.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_tools.files.errors import ReconcileError, SparkFailedError
from spark_tools.judge.account import FACT_CLASSES, SUBJECT_MEASURES, Account
from spark_tools.judge.message_log import readable_ranges
from spark_tools.judge.tasks import FOREVER
from spark_tools.run.join_queries import (
    CELLS,
    COMPARED,
    DIFFERING,
    DOUBLED,
    FACTS,
    HOURS,
    JUDGED,
    LATE,
    LATENESS,
    LOGGED,
    MESSAGES,
    NODES_SCHEMA,
    OUTCOMES_SQL,
    READABLE_SCHEMA,
    SEGMENTS_SCHEMA,
    SIDES_SCHEMA,
    SUBJECTS,
    TARGETS,
    UNLOGGED,
)
from spark_tools.run.plan import GroupPlan, View, extents_of
from spark_tools.run.reconcile import GroupResult, Result
from storage.batch.batches import Damage
from storage.logs.message_log import MESSAGE_LOG_DIRECTORY
from storage.readers.arrow import Kind
from storage.readers.manifest import encode_manifest

_SHOWN = 5
"""Figures that differ and are named."""
_HOUR_MINUTES = 60
_Damaged = set[tuple[str, str, str, str]]
"""Cluster, group, node and file of what is not whole."""
_Differing = tuple[str, int, str, int, int]
"""Of an hour in which a replica differs: node, hour, what, how many here, how many there."""


def check_by_join(session: SparkSession, result: Result) -> None:
    """Count everything once more; of what is named, how many there are.

    Raises ReconcileError, which names both figures, unless all are alike; SparkFailedError.
    """
    groups = [group.plan for group in result.groups]
    with tempfile.TemporaryDirectory(prefix="delaywheel-") as directory:
        manifests = []
        for number, view in enumerate(view for plan in groups for view in plan.members.views):
            file = Path(directory, f"{number}.json")
            # What was read at the beginning is read again, whatever came since.
            file.write_bytes(encode_manifest(view.manifest))
            manifests.append(f"{file}={view.node.root}")
        try:
            counted = _Counting(session, groups, json.dumps(manifests), _readable(result)).run()
        except (PySparkException, Py4JError) as error:
            raise SparkFailedError(f"Spark could not do the join check: {error}") from error
    wrong = []
    for number, group in enumerate(result.groups):
        found = _differences(counted, number, group, result.plan.request.subjects_max)
        wrong += [f"{'.'.join(group.plan.name)}: {text}" for text in found]
    wrong += _findings_that_differ(counted, result)
    if wrong:
        raise ReconcileError(
            f"tasks and joins give different results, a defect of this program: {len(wrong)} "
            f"figure(s) differ: {'; '.join(wrong[:_SHOWN])}"
        )


@dataclass(frozen=True, slots=True)
class _Counted:
    """What joins have found: tables as those of accounts, with the number of the group."""

    subjects: pa.Table
    targets: pa.Table
    subject_lateness: pa.Table
    target_lateness: pa.Table
    logged: pa.Table
    unlogged: pa.Table
    doubled: pa.Table
    differing: dict[int, set[_Differing]]
    late: int


def _findings_that_differ(counted: _Counted, result: Result) -> Iterator[str]:
    """Yield the classes of findings of which not so many were named as joins have counted."""

    def total(table: pa.Table, name: str) -> int:
        return pc.sum(table[name]).as_py() or 0

    numbers = {
        **{name: total(counted.subjects, name) for name in ("lost", "overdue", "early")},
        **{
            name: total(counted.targets, name) for name in ("duplicate", "settled_twice", "phantom")
        },
        "late": counted.late,
        "doubled": total(counted.doubled, "doubled"),
        "missing": total(counted.logged, "missing"),
        "replica_differs": sum(map(len, counted.differing.values())),
    }
    if not any(_is_unsure(group.account) for group in result.groups):
        numbers["misfiled"] = total(counted.subjects, "misfiled")
        numbers["misfiled"] += total(counted.logged, "misfiled_in_log")
        numbers["unlogged"] = total(counted.unlogged, "unlogged")
        numbers["altered"] = total(counted.logged, "altered")
    for name, found in numbers.items():
        if found != result.findings[name]:
            yield f"findings {name}: {result.findings[name]} by tasks, {found} by joins"


def _readable(result: Result) -> pa.Table:
    """Return by group the sequences that the message_log can be asked about."""
    ranges = [
        {"number": number, "first": one.start, "after": one.stop}
        for number, group in enumerate(result.groups)
        for one in readable_ranges(
            group.plan.logs,
            [
                damage
                for node, damage in group.account.damages
                if node == group.plan.node.node_id and _is_of_log(damage)
            ],
        )
    ]
    return pa.Table.from_pylist(ranges, schema=READABLE_SCHEMA)


def _is_of_log(damage: Damage) -> bool:
    return damage.path.startswith(f"{MESSAGE_LOG_DIRECTORY}/")


def _is_unsure(account: Account) -> bool:
    """Say whether nobody knows which records are damaged: then no row is held against its own."""
    return any(
        _is_of_log(damage) and damage.first_sequence is None for _, damage in account.damages
    )


def _differences(
    counted: _Counted, number: int, group: GroupResult, subjects_max: int
) -> Iterator[str]:
    """Yield what is not alike in a group: totals first, then cells of the tables."""
    account = group.account
    logged, unlogged, doubled = (
        _of_group(one, number) for one in (counted.logged, counted.unlogged, counted.doubled)
    )
    missing = logged.filter(pc.greater(logged["missing"], 0))
    pairs = [
        *(
            (_of_group(getattr(counted, name), number), getattr(account, name))
            for name in ("subjects", "targets", "subject_lateness", "target_lateness")
        ),
        (missing, account.missing),
    ]
    is_sure = not _is_unsure(account)
    for table, names in (
        (pairs[0][0], SUBJECT_MEASURES),
        # What is early is told by its subjects.
        (pairs[1][0], ("facts", *FACT_CLASSES)),
        (logged, ("records", "unchecked", "missing")),
        (logged, ("altered", "misfiled_in_log") if is_sure else ()),
        (unlogged, ("unlogged",) if is_sure else ()),
        (doubled, ["doubled"]),
    ):
        for name in names:
            found = pc.sum(table[name]).as_py() or 0
            if found != account.totals[name]:
                yield f"{name}: {account.totals[name]} by tasks, {found} by joins"
    for table, tally in pairs:
        other = tally.without_rows()
        other.add(table.select(tally.schema.names))
        if "subject" in tally.keys:
            other.fold_subjects(subjects_max)
        yield from _cells_that_differ(tally.table(), other.table(), list(tally.keys))
    told = {
        (one.node_id, one.hour, one.what, one.authority_count, one.replica_count)
        for one in group.differing
    }
    found_too = counted.differing.get(number, set())
    for who, places in (("tasks", told - found_too), ("joins", found_too - told)):
        for node, hour, what, mine, theirs in sorted(places):
            yield f"replica {node}: {what} of hour {hour} differ by {who} only: {mine}, {theirs}"


def _of_group(table: pa.Table, number: int) -> pa.Table:
    return table.filter(pc.equal(table["number"], number))


def _cells_that_differ(mine: pa.Table, other: pa.Table, keys: list[str]) -> Iterator[str]:
    if mine.equals(other):
        return
    cells = [
        {tuple(row[key] for key in keys): row for row in table.to_pylist()}
        for table in (mine, other)
    ]
    for place in sorted(cells[0].keys() | cells[1].keys(), key=repr):
        found = [one.get(place, {}) for one in cells]
        for name in (name for name in mine.schema.names if name not in keys):
            first, second = (one.get(name, 0) for one in found)
            if first != second:
                where = ", ".join(f"{key} {value}" for key, value in zip(keys, place, strict=True))
                yield f"{name} of {where}: {first} by tasks, {second} by joins"


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A node with its number: that of its group, if it is the authority, or one below 0."""

    number: int
    view: View


class _Counting:
    """The figures of all groups, which are numbered.

    In SQL, as each call of a DataFrame has Spark analyse again all that came before it.
    """

    def __init__(
        self,
        session: SparkSession,
        groups: Sequence[GroupPlan],
        manifests: str,
        readable: pa.Table,
    ) -> None:
        """manifests: of the groups' nodes, as the option of the data source takes them.

        readable: sequences that the message_log can be asked about, of READABLE_SCHEMA.
        """
        self._session = session
        self._plans = groups
        self._rules = rules = groups[0].rules
        self._manifests = manifests
        self._replicas = {
            -place: (number, view)
            for place, (number, view) in enumerate(
                (
                    (number, view)
                    for number, plan in enumerate(groups)
                    for view in plan.members.others
                ),
                start=1,
            )
        }
        self._nodes = [
            *(_Numbered(number, plan.authority) for number, plan in enumerate(groups)),
            *(_Numbered(number, view) for number, (_, view) in self._replicas.items()),
        ]
        touched = [
            one
            for node in self._nodes
            for one in extents_of(node.view.manifest)
            if rules.wants(one)
        ]
        # All of each segment: a fact in the range may be of a row that is not, and the other way.
        begin = rules.from_minute // _HOUR_MINUTES * _HOUR_MINUTES
        end = -(-rules.to_minute // _HOUR_MINUTES) * _HOUR_MINUTES
        self._begin = min([begin, *(one.start for one in touched)])
        self._end = max([end, *(one.end for one in touched)])
        # What is damaged of the message_log is met among the facts of its end.
        self._bad = self._damaged(Kind.SCHEDULE) | self._damaged(Kind.DISPATCH)
        self._tables = {
            "of_nodes": self._table_of_nodes(),
            "segments": self._table_of_segments(self._bad),
            "readable": session.createDataFrame(readable),
        }
        self._tables["hours"] = self._sql(HOURS)

    def run(self) -> _Counted:
        """Read, join, and count."""
        item = "sequence,due_ms,filed_minute,subject,size,id_hash"
        found = self._tables
        found["schedule"] = self._read(Kind.SCHEDULE, f"{item},start_minute")
        found["message"] = self._read(Kind.MESSAGE, item, unfiled="true")
        found["records"] = self._load(Kind.MESSAGE, f"{item},kind", {})
        columns = "sequence,filed_minute,at_ms,target,outcome,is_filed,file"
        found["dispatch"] = self._read(Kind.DISPATCH, columns)
        kept = []
        try:
            for name, query in (("messages", MESSAGES), ("facts", FACTS)):
                found[name] = self._sql(query).persist(StorageLevel.DISK_ONLY)
                kept.append(found[name])
            found["judged"] = self._sql(JUDGED)
            found["cells"] = self._sql(CELLS).persist(StorageLevel.DISK_ONLY)
            kept.append(found["cells"])
            return _Counted(
                subjects=self._sql(SUBJECTS).toArrow(),
                targets=self._sql(TARGETS).toArrow(),
                subject_lateness=self._sql(LATENESS.replace("{key}", "subject")).toArrow(),
                target_lateness=self._sql(LATENESS.replace("{key}", "target")).toArrow(),
                logged=self._sql(LOGGED).toArrow(),
                unlogged=self._sql(UNLOGGED).toArrow(),
                doubled=self._sql(DOUBLED).toArrow(),
                differing=self._differing(),
                late=int(self._sql(LATE).collect()[0][0]),
            )
        finally:
            for table in kept:
                table.unpersist()

    def _sql(self, query: str) -> DataFrame:
        """Run a query on the tables that it names in braces."""
        rules = self._rules
        most = rules.max_late_ms
        for name, value in (
            ("from_minute", rules.from_minute),
            ("to_minute", rules.to_minute),
            ("watermark_ms", rules.watermark_ms),
            ("final", str(rules.final).lower()),
            ("outcomes", OUTCOMES_SQL),
            ("most", "CAST(NULL AS BIGINT)" if most is None else most),
        ):
            query = query.replace(f"{{{name}}}", str(value))
        tables: dict[str, Any] = {
            name: table for name, table in self._tables.items() if f"{{{name}}}" in query
        }
        return self._session.sql(query, **tables)

    def _differing(self) -> dict[int, set[_Differing]]:
        """Return by group the hours in which a replica has something else, as far as both can."""
        compared = {
            replica: (number, view)
            for replica, (number, view) in self._replicas.items()
            if self._plans[number].uncompared_nodes.isdisjoint(
                {view.node.node_id, self._plans[number].node.node_id}
            )
        }
        found: dict[int, set[_Differing]] = {}
        if not compared:
            return found
        sides = []
        for replica, (number, _) in compared.items():
            views = self._plans[number].members.views
            after = min(one.manifest.log_next_sequence for one in views)
            sides += [
                {"number": place, "replica": replica, "sign": sign, "shared_next": after}
                for place, sign in ((number, 1), (replica, -1))
            ]
        table = pa.Table.from_pylist(sides, schema=SIDES_SCHEMA)
        self._tables["of_sides"] = self._session.createDataFrame(table)
        for what, (rows, columns, shared) in COMPARED.items():
            query = DIFFERING.replace("{compared}", rows).replace("{columns}", columns)
            for row in self._sql(query.replace("{shared}", shared)).collect():
                number, view = compared[row["replica"]]
                if row["hour"] in self._uncompared(number, what):
                    continue
                counts = (row["authority_count"], row["replica_count"])
                place = (view.node.node_id, row["hour"], what, *counts)
                found.setdefault(number, set()).add(place)
        return found

    def _uncompared(self, number: int, what: str) -> set[int]:
        """Return the hours of a group that were deleted or damaged somewhere.

        Of facts those that are not sealed, too.
        """
        return {
            hour
            for view in self._plans[number].members.views
            for one in extents_of(view.manifest)
            if self._rules.wants(one)
            and (
                one.is_deleted
                or (what == "facts" and not one.is_sealed)
                or not self._bad.isdisjoint(
                    (*view.node.name, view.node.node_id, file)
                    for file in (one.file, one.facts_file)
                )
            )
            for hour in range(one.start // _HOUR_MINUTES * _HOUR_MINUTES, one.end, _HOUR_MINUTES)
        }

    # -- what is read ------------------------------------------------------------------------

    def _read(self, kind: Kind, columns: str, **more: str) -> DataFrame:
        """Return what all nodes have of the minutes that are looked at."""
        options = dict(more)
        if self._replicas:
            options["replicas"] = "all"
        if self._begin > 0:
            options["from"] = _text_of(self._begin)
        if self._end < FOREVER:
            options["to"] = _text_of(self._end)
        return self._load(kind, columns, options)

    def _load(self, kind: Kind, columns: str, more: Mapping[str, str]) -> DataFrame:
        """Return what there is, and what tells of damage; blobs are never looked at."""
        options = {"kind": str(kind), "manifests": self._manifests, "damage": "skip"}
        options |= {"columns": f"cluster,group,node,{columns}", **more}
        return self._session.read.format("delaywheel").options(**options).load()

    def _damaged(self, kind: Kind) -> _Damaged:
        """Return the files in which something is damaged."""
        rows = self._read(kind, "file,position", damage="only").collect()
        # Without a position it is what the manifest tells of.
        return {(row[0], row[1], row[2], row[3]) for row in rows if row[4] is not None}

    def _lacks_records(self, view: View) -> bool:
        """Return whether something of the message_log that may state facts cannot be read."""
        mine = (*view.node.name, view.node.node_id)
        files = [one[3] for one in self._bad if one[:3] == mine]
        files += [fault.file for fault in view.manifest.faults]
        return any(file.startswith(MESSAGE_LOG_DIRECTORY) for file in files)

    def _table_of_nodes(self) -> DataFrame:
        """Return what is to be known of each node."""
        table = pa.Table.from_pylist(
            [
                {
                    "cluster": view.node.name.cluster,
                    "group": view.node.name.group,
                    "node": view.node.node_id,
                    "number": node.number,
                    "log_next": view.manifest.log_next_sequence,
                    "filed_sequence": view.manifest.sequence,
                    "deleted_from": view.manifest.deleted_from_minute,
                    "tail_missing": self._lacks_records(view),
                    "segments_missing": view.manifest.lacks_segments,
                }
                for node in self._nodes
                for view in (node.view,)
            ],
            schema=NODES_SCHEMA,
        )
        return self._session.createDataFrame(table)

    def _table_of_segments(self, bad: _Damaged) -> DataFrame:
        """Return the segments of all nodes; counts: what is in them is asked for, and there."""
        table = pa.Table.from_pylist(
            [
                {
                    "number": node.number,
                    "start": one.start,
                    "end": one.end,
                    "facts_file": one.facts_file,
                    "last_sequence": one.last_sequence,
                    "is_sealed": one.is_sealed,
                    "is_deleted": one.is_deleted,
                    "counts": self._rules.wants(one) and not one.is_deleted,
                    "rows_missing": (*node.view.node.name, node.view.node.node_id, one.file) in bad,
                    "facts_missing": (*node.view.node.name, node.view.node.node_id, one.facts_file)
                    in bad
                    or (one.lacks_facts and self._lacks_records(node.view)),
                }
                for node in self._nodes
                for one in extents_of(node.view.manifest)
                if one.start < self._end and one.end > self._begin
            ],
            schema=SEGMENTS_SCHEMA,
        )
        return self._session.createDataFrame(table)


def _text_of(minute: int) -> str:
    return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%dT%H:%MZ}"
