"""What became of messages, counted once more, in another way: by joins of tables in Spark.

The tasks of a run judge segment by segment with sorted arrays (`spark_tools/segments.py`). Here the
same figures come from joins and aggregations over `spark.read.format("delaywheel")`, and nothing of
that code is used: what is wrong there does not go wrong here in the same way. It shuffles all rows
and facts, so it costs several times as much.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
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

from spark_tools.account import (
    FACT_CLASSES,
    STATES,
    SUBJECT_MEASURES,
    Account,
)
from spark_tools.columns import OUTCOMES
from spark_tools.errors import ReconcileError, SparkFailedError
from spark_tools.plan import GroupPlan, extents_of
from spark_tools.reconcile import Result
from spark_tools.tasks import FOREVER
from storage.arrow import Kind
from storage.manifest import encode_manifest

_SHOWN = 5
"""Figures that differ and are named."""
_HOUR_MINUTES = 60
_LATENESS_MAX = 2**52
_Damaged = set[tuple[str, str, str]]
"""Cluster, group and file of what is not whole."""


def check_by_join(session: SparkSession, result: Result) -> None:
    """Count everything once more.

    Raises ReconcileError, which names both figures, unless all are alike; SparkFailedError.
    """
    groups = [group.plan for group in result.groups]
    with tempfile.TemporaryDirectory(prefix="delaywheel-") as directory:
        manifests = []
        for number, plan in enumerate(groups):
            file = Path(directory, f"{number}.json")
            # What was read at the beginning is read again, whatever came since.
            file.write_bytes(encode_manifest(plan.authority.manifest))
            manifests.append(f"{file}={plan.authority.node.root}")
        try:
            counted = _Counting(session, groups, json.dumps(manifests)).run()
        except (PySparkException, Py4JError) as error:
            raise SparkFailedError(f"Spark could not do the join check: {error}") from error
    wrong = []
    for number, group in enumerate(result.groups):
        found = _differences(counted, number, group.account, result.plan.request.subjects_max)
        wrong += [f"{'.'.join(group.plan.name)}: {text}" for text in found]
    if counted.late != result.findings["late"]:
        wrong.append(f"late: {result.findings['late']} by tasks, {counted.late} by joins")
    if wrong:
        raise ReconcileError(
            f"tasks and joins do not find the same, a defect of this program: {len(wrong)} "
            f"figure(s) differ: {'; '.join(wrong[:_SHOWN])}"
        )


@dataclass(frozen=True, slots=True)
class _Counted:
    """What joins have found: tables as those of accounts, with the number of the group."""

    subjects: pa.Table
    targets: pa.Table
    subject_lateness: pa.Table
    target_lateness: pa.Table
    late: int


def _differences(
    counted: _Counted, number: int, account: Account, subjects_max: int
) -> Iterator[str]:
    """Yield what is not alike in a group: totals first, then cells of the tables."""
    pairs = [
        (_of_group(getattr(counted, name), number), getattr(account, name))
        for name in ("subjects", "targets", "subject_lateness", "target_lateness")
    ]
    subjects, targets = pairs[0][0], pairs[1][0]
    for table, names in ((subjects, SUBJECT_MEASURES), (targets, ("facts", *FACT_CLASSES))):
        for name in names:
            # What is early is told by its subjects.
            found = pc.sum(table[name]).as_py() or 0
            if found != account.totals[name]:
                yield f"{name}: {account.totals[name]} by tasks, {found} by joins"
    for table, tally in pairs:
        other = tally.without_rows()
        other.add(table.select(tally.schema.names))
        if "subject" in tally.keys:
            other.fold_subjects(subjects_max)
        yield from _cells_that_differ(tally.table(), other.table(), list(tally.keys))


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


class _Counting:
    """The figures of all groups, which are numbered.

    In SQL, as each call of a DataFrame has Spark analyse again all that came before it.
    """

    def __init__(self, session: SparkSession, groups: Sequence[GroupPlan], manifests: str) -> None:
        """manifests: of the groups' authorities, as the option of the data source takes them."""
        self._session = session
        self._plans = groups
        self._rules = rules = groups[0].rules
        self._manifests = manifests
        touched = [
            one
            for plan in groups
            for one in extents_of(plan.authority.manifest)
            if rules.wants(one)
        ]
        # All of each segment: a fact in the range may be of a row that is not, and the other way.
        begin = rules.from_minute // _HOUR_MINUTES * _HOUR_MINUTES
        end = -(-rules.to_minute // _HOUR_MINUTES) * _HOUR_MINUTES
        self._begin = min([begin, *(one.start for one in touched)])
        self._end = max([end, *(one.end for one in touched)])
        bad = self._damaged(Kind.SCHEDULE) | self._damaged(Kind.DISPATCH)
        bad_tail = self._damaged(Kind.MESSAGE, unfiled="true")
        self._tables = {
            "of_groups": self._table_of_groups(bad, bad_tail),
            "segments": self._table_of_segments(bad),
        }
        self._tables["hours"] = self._sql(_HOURS)

    def run(self) -> _Counted:
        """Read, join, and count."""
        columns = "sequence,due_ms,filed_minute,subject,size"
        found = self._tables
        found["schedule"] = self._read(Kind.SCHEDULE, f"{columns},start_minute")
        found["message"] = self._read(Kind.MESSAGE, columns, unfiled="true")
        columns = "sequence,filed_minute,at_ms,target,outcome,is_filed,file"
        found["dispatch"] = self._read(Kind.DISPATCH, columns)
        kept = []
        try:
            for name, query in (("messages", _MESSAGES), ("facts", _FACTS), ("judged", _JUDGED)):
                found[name] = self._sql(query).persist(StorageLevel.DISK_ONLY)
                kept.append(found[name])
            return _Counted(
                subjects=self._sql(_SUBJECTS).toArrow(),
                targets=self._sql(_TARGETS).toArrow(),
                subject_lateness=self._sql(_LATENESS.replace("{key}", "subject")).toArrow(),
                target_lateness=self._sql(_LATENESS.replace("{key}", "target")).toArrow(),
                late=self._late(),
            )
        finally:
            for table in kept:
                table.unpersist()

    def _sql(self, query: str) -> DataFrame:
        """Run a query on the tables that it names in braces."""
        rules = self._rules
        for name, value in (
            ("from_minute", rules.from_minute),
            ("to_minute", rules.to_minute),
            ("watermark_ms", rules.watermark_ms),
            ("final", str(rules.final).lower()),
            ("outcomes", _OUTCOMES),
        ):
            query = query.replace(f"{{{name}}}", str(value))
        tables: dict[str, Any] = {
            name: table for name, table in self._tables.items() if f"{{{name}}}" in query
        }
        return self._session.sql(query, **tables)

    def _late(self) -> int:
        most = self._rules.max_late_ms
        if most is None:
            return 0
        [row] = self._sql(f"SELECT count(*) FROM {{judged}} WHERE late > {most}").collect()
        return int(row[0])

    # -- what is read ------------------------------------------------------------------------

    def _read(self, kind: Kind, columns: str, **more: str) -> DataFrame:
        """Return what the groups have; blobs are never looked at."""
        options = {"kind": str(kind), "manifests": self._manifests, "damage": "skip"}
        if self._begin > 0:
            options["from"] = _text_of(self._begin)
        if self._end < FOREVER:
            options["to"] = _text_of(self._end)
        options |= {"columns": f"cluster,group,{columns}", **more}
        return self._session.read.format("delaywheel").options(**options).load()

    def _damaged(self, kind: Kind, **more: str) -> _Damaged:
        """Return the files in which something is damaged."""
        rows = self._read(kind, "file,position", damage="only", **more).collect()
        # Without a position it is what the manifest tells of.
        return {(row[0], row[1], row[2]) for row in rows if row[3] is not None}

    def _table_of_groups(self, bad: _Damaged, bad_tail: _Damaged) -> DataFrame:
        """Return what is to be known of each group, by its names."""

        def has(damaged: _Damaged, plan: GroupPlan, directory: str) -> bool:
            files = [one[2] for one in damaged if one[:2] == plan.name]
            files += [fault.file for fault in plan.authority.manifest.faults]
            return any(file.startswith(directory) for file in files)

        table = pa.Table.from_pylist(
            [
                {
                    "cluster": plan.name.cluster,
                    "group": plan.name.group,
                    "number": number,
                    "log_next": plan.authority.manifest.log_next_sequence,
                    "filed_sequence": plan.authority.manifest.sequence,
                    "tail_missing": has(bad_tail, plan, "message_log"),
                    "journal_missing": has(bad, plan, "dispatch_log/journal"),
                    "segments_missing": has(set(), plan, "seals") or has(set(), plan, "checkpoint"),
                }
                for number, plan in enumerate(self._plans)
            ]
        )
        return self._session.createDataFrame(table)

    def _table_of_segments(self, bad: _Damaged) -> DataFrame:
        """Return the segments of all groups; counts: what is in them is asked for, and there."""
        table = pa.Table.from_pylist(
            [
                {
                    "number": number,
                    "start": one.start,
                    "end": one.end,
                    "facts_file": one.facts_file,
                    "is_sealed": one.is_sealed,
                    "counts": self._rules.wants(one) and not one.is_deleted,
                    "rows_missing": (*plan.name, one.file) in bad,
                    "facts_missing": (*plan.name, one.facts_file) in bad,
                }
                for number, plan in enumerate(self._plans)
                for one in extents_of(plan.authority.manifest)
                if one.start < self._end and one.end > self._begin
            ],
            schema=_SEGMENTS_SCHEMA,
        )
        return self._session.createDataFrame(table)


def _text_of(minute: int) -> str:
    return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%dT%H:%MZ}"


_SEGMENTS_SCHEMA = pa.schema(
    {
        "number": pa.int64(),
        "start": pa.int64(),
        "end": pa.int64(),
        "facts_file": pa.string(),
        "is_sealed": pa.bool_(),
        "counts": pa.bool_(),
        "rows_missing": pa.bool_(),
        "facts_missing": pa.bool_(),
    }
)

# -- the queries ---------------------------------------------------------------------------------

# A unit is a segment, or an hour of minutes that no segment covers; these may begin alike. What is
# loose (in no segment yet) is of the segment that covers its minute; where that is deleted, or not
# asked for, it is nobody's.

_OUTCOMES = "array(" + ", ".join(f"'{name}'" for name in OUTCOMES) + ")"

_HOURS = """
SELECT *, explode(sequence(start - pmod(start, 60), end - 1, 60L)) AS hour FROM {segments}
"""

_MESSAGES = """
SELECT /*+ BROADCAST(g), BROADCAST(s) */
    g.number, s.start * 2 + 1 AS unit, m.sequence, m.due_ms, m.filed_minute AS minute, m.subject,
    m.size, s.end, s.is_sealed, s.facts_missing OR g.journal_missing AS facts_missing, m.place
FROM (SELECT *, monotonically_increasing_id() AS place FROM {schedule} WHERE damage IS NULL) m
JOIN {of_groups} g ON m.cluster = g.cluster AND m.group = g.group
JOIN {segments} s ON s.number = g.number AND s.start = m.start_minute AND s.counts
UNION ALL
SELECT /*+ BROADCAST(g), BROADCAST(s) */
    g.number, coalesce(s.start * 2 + 1, m.hour * 2), m.sequence, m.due_ms, m.filed_minute,
    m.subject, m.size, coalesce(s.end, m.hour + 60), coalesce(s.is_sealed, false),
    coalesce(s.facts_missing, g.segments_missing) OR g.journal_missing, m.place
FROM (
    SELECT *, filed_minute - pmod(filed_minute, 60) AS hour,
        -- Behind whatever is filed.
        monotonically_increasing_id() + 4611686018427387904 AS place
    FROM {message}
    WHERE damage IS NULL AND filed_minute >= {from_minute} AND filed_minute < {to_minute}
) m
JOIN {of_groups} g ON m.cluster = g.cluster AND m.group = g.group
LEFT JOIN {hours} s
    ON s.number = g.number AND s.hour = m.hour AND m.filed_minute >= s.start
    AND m.filed_minute < s.end
WHERE s.counts IS NULL OR s.counts
"""

# Of facts that are alike in everything one counts, the others are repeated. Of those about one
# message the least `rank` counts. Where a fact without a message can have one that nobody can read,
# it is not explained.
_FACTS = """
SELECT number, unit, sequence, at_ms, outcome, target, count(*) AS times, min(minute) AS own_minute,
    first(is_explained) AS is_explained,
    struct(outcome != 1 AS is_other, at_ms, outcome, target) AS rank
FROM (
    SELECT /*+ BROADCAST(g), BROADCAST(s) */
        g.number, s.start * 2 + 1 AS unit, f.sequence, f.at_ms, f.target,
        array_position({outcomes}, f.outcome) AS outcome,
        greatest(s.start, least(f.filed_minute, s.end - 1)) AS minute,
        NOT s.rows_missing AND f.sequence < g.log_next
            AND NOT (g.tail_missing AND f.sequence > g.filed_sequence) AS is_explained
    FROM {dispatch} f
    JOIN {of_groups} g ON f.cluster = g.cluster AND f.group = g.group
    JOIN {segments} s ON s.number = g.number AND s.facts_file = f.file AND s.counts
    WHERE f.damage IS NULL AND f.is_filed
    UNION ALL
    SELECT /*+ BROADCAST(g), BROADCAST(s) */
        g.number, coalesce(s.start * 2 + 1, f.hour * 2), f.sequence, f.at_ms, f.target,
        array_position({outcomes}, f.outcome), f.filed_minute,
        NOT coalesce(s.rows_missing, g.segments_missing) AND f.sequence < g.log_next
            AND NOT (g.tail_missing AND f.sequence > g.filed_sequence)
    FROM (
        SELECT *, filed_minute - pmod(filed_minute, 60) AS hour
        FROM {dispatch} WHERE damage IS NULL AND NOT is_filed
    ) f
    JOIN {of_groups} g ON f.cluster = g.cluster AND f.group = g.group
    LEFT JOIN {hours} s
        ON s.number = g.number AND s.hour = f.hour AND f.filed_minute >= s.start
        AND f.filed_minute < s.end
    WHERE s.counts IS NULL OR s.counts
)
GROUP BY number, unit, sequence, at_ms, outcome, target
"""

_FIRST = "SELECT number, unit, sequence, min(rank) AS first FROM {facts} GROUP BY 1, 2, 3"

_JUDGED = f"""
SELECT *, CASE WHEN state = 'delivered' THEN at_ms - due_ms END AS late
FROM (
    SELECT number, minute - pmod(minute, 60) AS hour, subject, size, due_ms,
        due_ms >= end * 60000 AS is_misfiled, first.at_ms AS at_ms, first.target AS target,
        CASE
            WHEN first IS NOT NULL
                THEN coalesce(get({{outcomes}}, CAST(first.outcome - 1 AS INT)), 'unknown')
            WHEN NOT is_sealed AND due_ms > {{watermark_ms}} THEN 'waiting'
            WHEN facts_missing THEN 'unknown'
            WHEN is_sealed OR {{final}} THEN 'lost'
            ELSE 'overdue'
        END AS state
    FROM {{messages}} LEFT JOIN ({_FIRST}) USING (number, unit, sequence)
    WHERE minute >= {{from_minute}} AND minute < {{to_minute}}
)
"""

_SUBJECTS = f"""
SELECT number, hour, subject, count(*) AS accepted, sum(size) AS bytes,
    count_if(late < 0) AS early, count_if(is_misfiled) AS misfiled,
    {", ".join(f"count_if(state = '{name}') AS {name}" for name in STATES)}
FROM {{judged}} GROUP BY number, hour, subject
"""

# A fact is counted at the minute of its message: of the first row, if that is there twice.
_TARGETS = f"""
SELECT number, minute - pmod(minute, 60) AS hour, target, sum(times) AS facts,
    sum(times - 1) AS repeated,
    count_if(class = 'first' AND outcome = 1 AND at_ms < due_ms) AS early,
    {
    ", ".join(
        f"count_if(class = '{name}') AS {name}" for name in FACT_CLASSES if name != "repeated"
    )
},
    {
    ", ".join(
        f"sum(if(outcome = {number}, times, 0)) AS {name}"
        for number, name in enumerate(OUTCOMES, start=1)
    )
}
FROM (
    SELECT number, target, times, outcome, at_ms, message.due_ms AS due_ms,
        coalesce(message.minute, own_minute) AS minute,
        CASE
            WHEN message IS NULL THEN if(is_explained, 'phantom', 'unexplained')
            WHEN rank = first THEN 'first'
            WHEN outcome = 1 THEN 'duplicate'
            ELSE 'other'
        END AS class
    FROM {{facts}}
    JOIN ({_FIRST}) USING (number, unit, sequence)
    LEFT JOIN (
        SELECT number, unit, sequence, min_by(struct(minute, due_ms), place) AS message
        FROM {{messages}} GROUP BY number, unit, sequence
    ) USING (number, unit, sequence)
)
WHERE minute >= {{from_minute}} AND minute < {{to_minute}}
GROUP BY 1, 2, 3
"""

# The buckets of docs/reconciliation.md, by the digits of a number in base two.
_LATENESS = f"""
SELECT number, hour, {{key}}, bucket, count(*) AS count, max(exact) AS latest_ms
FROM (
    SELECT number, hour, {{key}}, exact,
        if(late < 8, late, 8 * digits + shiftright(late, digits - 4) - 32) AS bucket
    FROM (
        SELECT *, length(bin(late)) AS digits
        FROM (
            SELECT number, hour, {{key}}, late AS exact, least(late, {_LATENESS_MAX}) AS late
            FROM {{judged}} WHERE late >= 0
        )
    )
)
GROUP BY number, hour, {{key}}, bucket
"""
