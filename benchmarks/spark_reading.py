"""Logs in Spark on two cores: messages a second through `format("delaywheel")`, and reconciled.

Warm, as in a session that goes on: a first round is not counted. What is read goes nowhere (the
format `noop`).
"""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.reconciling import write_logs
from spark_tools.join_check import check_by_join
from spark_tools.manifests import source_of_file
from spark_tools.plan import Request, make_plan
from spark_tools.reconcile import Result, reconcile
from spark_tools.session import spark_session
from spark_tools.spark_engine import spark_engine

_ROUNDS = 3
_READ = (
    ("schedule", "all columns but payload", ""),
    (
        "schedule",
        "9 columns, none of a blob",
        "cluster,group,node,sequence,filed_minute,due_ms,size,id_hash,subject",
    ),
    ("schedule", "5 columns, none of a blob", "sequence,due_ms,size,id_hash,subject"),
    ("dispatch", "all columns", ""),
    ("dispatch", "5 columns", "sequence,filed_minute,at_ms,target,outcome"),
)


def measure(directory: Path, scale: float) -> Iterator[tuple[str, object]]:
    """Write logs, read them in Spark, and yield the figures."""
    messages = int(2_000_000 * scale)
    option = f"{write_logs(directory, messages)}={directory}"
    yield "load of the machine before", f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    began = time.perf_counter()
    with spark_session(master="local[2]", conf={}, log=None) as session:
        yield "session started", f"{time.perf_counter() - began:.1f} s"
        for kind, name, columns in _READ:
            seconds = _fastest(partial(_read, session, option, kind, columns))
            yield f"{kind}, {name}", f"{messages / seconds:,.0f} rows/s"

        def run() -> Result:
            plan = make_plan([source_of_file(option)], Request())
            return reconcile(plan, spark_engine(session), lambda _: None)

        yield f"reconcile of {messages:,}, warm", f"{_fastest(run):.2f} s"
        began, result = time.perf_counter(), run()
        check_by_join(session, result)
        yield "  with --verify join, once", f"{time.perf_counter() - began:.1f} s"
    yield "load of the machine after", f"{os.getloadavg()[0]:.1f}"


def _read(session: SparkSession, manifest: str, kind: str, columns: str) -> None:
    reader = session.read.format("delaywheel").options(manifests=manifest, kind=kind)
    reader.option("columns", columns).load().write.format("noop").mode("overwrite").save()


def _fastest(run: Callable[[], object]) -> float:
    """Return the least seconds of some rounds, the first of which is not counted."""
    run()
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best
