"""The result of a run: one JSON document, and findings and tables as Parquet."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from spark_tools.files.columns import ORIGINS
from spark_tools.files.errors import OutputError
from spark_tools.files.outputs import Output
from spark_tools.files.times import minute_text, time_text
from spark_tools.judge.account import FACT_CLASSES, FINDINGS_SCHEMA, LATEST, STATES, Tally
from spark_tools.judge.lateness import bucket_from_ms, quantile_ms
from spark_tools.judge.tasks import FOREVER, GroupName
from spark_tools.repaired.repairs import LogName
from spark_tools.run.plan import GroupPlan, Plan
from spark_tools.run.reconcile import FINDING_CLASSES, GroupResult, Result

REPORT_SCHEMA = 1
"""Counted up when a reader of an older version would misunderstand a newer one."""
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_ROWS_AT_ONCE = 65_536
TABLES = ("subjects", "targets", "subject_lateness", "target_lateness")
"""The tables of an account that a run writes down."""


class Details:
    """The Parquet files of a run in a directory: `findings.parquet`, and the tables at the end.

    All are put in their places at the end, unless it is left by an error. Raises OutputError.
    """

    def __init__(self, directory: Path | None) -> None:
        """directory: made if it is not there; None keeps nothing."""
        self._directory = directory
        self._files = contextlib.ExitStack()
        self._findings: Output | None = None
        self._writer: Any = None

    def __enter__(self) -> Self:
        """Begin the file of findings, so that there is one even without any."""
        if self._directory is None:
            return self
        with Output(self._directory).named():
            self._directory.mkdir(parents=True, exist_ok=True)
        found = self._findings = self._output("findings")
        with found.named():
            self._writer = pq.ParquetWriter(found.file, FINDINGS_SCHEMA, compression="zstd")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Put the files in their places."""
        if self._findings is not None and error is not None:
            with contextlib.suppress(OSError, ValueError):
                self._writer.close()
        elif self._findings is not None:
            try:
                with self._findings.named():
                    self._writer.close()
            except OutputError as failed:
                self._files.__exit__(type(failed), failed, failed.__traceback__)
                raise
        self._files.__exit__(kind, error, at)

    def _output(self, name: str) -> Output:
        assert self._directory is not None
        return self._files.enter_context(Output(self._directory / f"{name}.parquet"))

    def add(self, findings: pa.Table) -> None:
        """Write findings down."""
        if self._findings is not None:
            with self._findings.named():
                self._writer.write_table(findings, row_group_size=_ROWS_AT_ONCE)

    def add_tables(self, result: Result) -> None:
        """Write the tables of a run: by subject and hour, by broker group and hour, lateness."""
        if self._directory is None:
            return
        for name, table in tables_of(result):
            output = self._output(name)
            with output.named():
                pq.write_table(table, output.file, compression="zstd")


def tables_of(result: Result) -> Iterator[tuple[str, pa.Table]]:
    """Yield the tables of a run by name, those of all groups as one."""
    for name in TABLES:
        tables = [
            with_group(group.plan.name, getattr(group.account, name).table())
            for group in result.groups
        ]
        yield name, pa.concat_tables(tables)


def with_group(name: GroupName, table: pa.Table) -> pa.Table:
    """Return a table with columns that say whose it is."""
    for place, key in enumerate(name._fields):
        column = pa.repeat(pa.scalar(name[place]), table.num_rows)
        table = table.add_column(place, key, column)
    return table


def report(result: Result) -> dict[str, Any]:
    """Return the result as what JSON knows; docs/reconciliation.md says what each field is."""
    plan = result.plan
    verdict = result.verdict
    return {
        "schema": REPORT_SCHEMA,
        "verdict": verdict.name.lower(),
        "exit_code": int(verdict),
        "complete": not result.problems,
        "parameters": _parameters(plan),
        "watermark": time_text(plan.watermark_ms),
        "watermark_ms": plan.watermark_ms,
        "manifests": [one for group in plan.groups for one in _manifests(group)],
        "findings": {name: result.findings[name] for name in FINDING_CLASSES},
        "problems": [
            dict(zip(("cluster", "group", "node", "problem"), one, strict=True))
            for one in result.problems
        ],
        "repairs": _repairs(result),
        "groups": [_group(group) for group in result.groups],
        "examples": result.examples.to_pylist(),
    }


def encode_report(document: Mapping[str, Any]) -> bytes:
    """Return a report as JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _parameters(plan: Plan) -> dict[str, Any]:
    request = plan.request
    return {
        "from": minute_text(request.from_minute) if request.from_minute else None,
        "to": minute_text(request.to_minute) if request.to_minute < FOREVER else None,
        "grace_ms": request.grace_ms,
        "final": request.final,
        "max_late_ms": request.max_late_ms,
        "expected_groups": list(request.expected_groups),
        "subjects_max": request.subjects_max,
        "examples": request.examples,
        "payload_checked": request.check_payload,
    }


def _repairs(result: Result) -> dict[str, int]:
    """Return what is to be said of audits that no group can say."""
    logs = {LogName(*group.plan.name, str(group.plan.node.log_uuid)) for group in result.groups}
    others = result.repairs.logs() - logs
    return {
        "of_other_logs": sum(
            len(result.repairs.rows_of(log)) + len(result.repairs.records_of(log)) for log in others
        ),
        "damaged_lines": result.repairs.damaged_lines,
    }


def _manifests(group: GroupPlan) -> list[dict[str, Any]]:
    sources = [(group.node, group.authority.manifest, "authority")]
    sources += [(node, manifest, "replica") for node, manifest in group.replicas]
    return [
        {
            "cluster": node.name.cluster,
            "group": node.name.group,
            "node": node.node_id,
            "role": role,
            "root": node.root,
            "made": time_text(manifest.made_ms),
            "made_ms": manifest.made_ms,
            "sequence": manifest.sequence,
            "first_sequence": manifest.first_sequence,
            "log_next_sequence": manifest.log_next_sequence,
            "segments": len(manifest.segments),
            "sealed": len(manifest.sealed),
        }
        for node, manifest, role in sources
    ]


def _group(group: GroupResult) -> dict[str, Any]:
    account, plan, totals = group.account, group.plan, group.account.totals
    return {
        "cluster": plan.name.cluster,
        "group": plan.name.group,
        **figures_of(totals, {"first_sequence": plan.authority.manifest.first_sequence}),
        "deleted": plan.deleted,
        "pending_before": plan.pending_before,
        "repairs": {
            "given": totals["repairs_given"],
            "rows": totals["repaired"],
            "records": totals["repaired_records"],
            "not_lost": totals["repaired_not_lost"],
            "not_found": totals["repairs_given"] - totals["repairs_found"],
        },
        "not_compared": _not_compared(group) if plan.members.others else {},
        "replicas_differ": [
            {
                "node": one.node_id,
                "hour": minute_text(one.hour),
                "what": one.what,
                "authority": one.authority_count,
                "replica": one.replica_count,
            }
            for one in group.differing
        ],
        "books": [
            {"what": what, "found": found, "must_be": wanted}
            for what, found, wanted in account.books()
        ],
        "lateness_ms": lateness_of(account.target_lateness.table().to_pylist()),
        "by_subject": _rows(account.subjects, account.subject_lateness, "subject", account.missing),
        "by_target": _rows(account.targets, account.target_lateness, "target"),
    }


def _not_compared(group: GroupResult) -> dict[str, int]:
    """Return how much of a group was not compared with its replicas."""
    plan = group.plan
    return {
        "nodes": len(plan.uncompared_nodes),
        "hours": len(plan.uncompared_hours | group.account.unread_hours),
        "hours_of_facts": len(plan.unsealed_hours),
    }


def _rows(
    tally: Tally, lateness: Tally, key: str, more: Tally | None = None
) -> list[dict[str, Any]]:
    """Return a table as rows, with quantiles of lateness. more: other counts by the same keys."""
    late: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in lateness.table().to_pylist():
        late.setdefault((row["hour"], row[key]), []).append(row)
    cells = {(row["hour"], row[key]): row for row in tally.table().to_pylist()}
    for row in more.table().to_pylist() if more is not None else ():
        place = row["hour"], row[key]
        cells[place] = {**cells.get(place, {}), **row}
    rows = []
    for place in sorted(cells, key=lambda one: (one[0], one[1] is None, one[1] or "")):
        row = cells[place]
        kept = {name: value for name, value in row.items() if value or name == key}
        found = _quantiles(late.get((row["hour"], row[key]), ()))
        rows.append({**kept, "hour": minute_text(row["hour"]), "lateness_ms": found})
    return rows


def figures_of(totals: Counter[str], log: Mapping[str, int]) -> dict[str, Any]:
    """Return what was counted of a group. log: what else there is to be said of its message_log."""
    return {
        **{name: totals[name] for name in ORIGINS},
        "bytes": totals["bytes"],
        "states": {name: totals[name] for name in STATES},
        "facts": totals["facts"],
        "fact_classes": {name: totals[name] for name in FACT_CLASSES},
        "early": totals["early"],
        "sent_past_due": totals["sent_past_due"],
        "misfiled": totals["misfiled"] + totals["misfiled_in_log"],
        "doubled": totals["doubled"],
        "log": {
            "records": totals["records"],
            "missing": totals["missing"],
            "repaired": totals["repaired_records"],
            "unlogged": totals["unlogged"],
            "altered": totals["altered"],
            "unchecked": totals["unchecked"],
            **log,
        },
    }


def lateness_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return quantiles of lateness, and its buckets, of rows of a table of lateness."""
    counts = _counts_of(rows)
    return {
        **_quantiles(rows),
        "buckets": [
            {"from_ms": bucket_from_ms(bucket), "count": counts[bucket]}
            for bucket in sorted(counts)
        ],
    }


def _counts_of(rows: Iterable[Mapping[str, Any]]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for row in rows:
        counts[row["bucket"]] += row["count"]
    return counts


def _quantiles(rows: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    counts = _counts_of(rows)
    latest = max((row[LATEST] for row in rows), default=None)
    found = {name: quantile_ms(counts, share, latest) for name, share in _QUANTILES.items()}
    return {**found, "max": latest}


def summary(result: Result) -> Sequence[tuple[str, str]]:
    """Return what a terminal shows: names and figures."""
    lines = []
    for group in result.groups:
        totals = group.account.totals
        shown = ", ".join(f"{name} {totals[name]:,}" for name in STATES if totals[name])
        name = ".".join(group.plan.name)
        rows = ", ".join(f"{one} {totals[one]:,}" for one in ORIGINS if totals[one])
        lines.append((name, f"{rows or 'accepted 0'}: {shown or 'nothing'}"))
        if totals["facts"]:
            shown = ", ".join(f"{one} {totals[one]:,}" for one in FACT_CLASSES if totals[one])
            lines.append((name, f"facts {totals['facts']:,}: {shown}"))
    told = {name: count for name, count in _repairs(result).items() if count}
    if count := sum(group.account.totals["repaired_not_lost"] for group in result.groups):
        told["not_lost"] = count
    if told:
        shown = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in told.items())
        lines.append(("repairs", shown))
    lines += [(one, f"{count:,}") for one in FINDING_CLASSES if (count := result.findings[one])]
    return lines
