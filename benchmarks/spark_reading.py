"""Logs in Spark on one core and on two: as a table, decoded in the workers alone, and reconciled.

A table is what `format("delaywheel")` gives; decoded in the workers, the JVM gets no row of it.
Warm, as in a session that goes on: a first round is not counted. What is read goes nowhere (the
format `noop`).
"""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.processes import memory_mib
from benchmarks.reconciling import write_logs
from spark_tools.run.plan import Request, make_plan
from spark_tools.run.reconcile import Result, reconcile
from spark_tools.source.manifests import source_of_file
from spark_tools.source.source import DelaywheelSource
from spark_tools.spark.engine import spark_engine
from spark_tools.spark.session import spark_session

_ROUNDS = 3
_ROW = "sequence,due_ms,size,id_hash,subject"
_FACT = "sequence,filed_minute,at_ms,target,outcome"
_READ = (
    ("schedule", "all columns but payload", ""),
    ("schedule", "9 columns, none of a blob", f"cluster,group,node,filed_minute,{_ROW}"),
    ("schedule", "5 columns, none of a blob", _ROW),
    ("dispatch", "all columns", ""),
    ("dispatch", "5 columns", _FACT),
)
_DECODED = (("schedule", _ROW), ("dispatch", _FACT))


def measure(directory: Path, scale: float) -> Iterator[tuple[str, object]]:
    """Write logs, read them in Spark, and yield the figures."""
    yield "load of the machine before", f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    messages = int(2_000_000 * scale)
    small = _written(directory / "small", messages)
    large = _written(directory / "large", 5 * messages)
    for cores in (1, 2):
        began = time.perf_counter()
        with spark_session(master=f"local[{cores}]", conf={}, log=None) as session:
            yield f"{cores} core(s): session started", f"{time.perf_counter() - began:.1f} s"
            yield from _on(session, small, messages)
            rounds = _ROUNDS if cores > 1 else 1
            seconds = _fastest(partial(_reconcile, session, large), rounds)
            yield f"  reconcile of {5 * messages:,}", _rate(5 * messages, seconds)
    # A session of its own: what one has taken it keeps.
    with spark_session(master="local[2]", conf={}, log=None) as session:
        for logs, count in ((small, messages), (large, 5 * messages)):
            _reconcile(session, logs)
            yield f"most memory until {count:,} are reconciled", _memory()
    yield "load of the machine after", f"{os.getloadavg()[0]:.1f}"


def _memory() -> str:
    """Return the most that Spark's JVM and the largest of its workers have had resident."""
    most = {"java": 0.0, "python": 0.0}
    for pid in _descendants(os.getpid()):
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
        kind = "java" if name == "java" else "python"
        most[kind] = max(most[kind], memory_mib(pid, "VmHWM"))
    return f"JVM {most['java']:.0f} MiB, largest worker {most['python']:.0f} MiB"


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text("utf-8").split():
            yield int(child)
            yield from _descendants(int(child))


def _written(where: Path, messages: int) -> str:
    """Write logs; return the option that names them."""
    where.mkdir()
    return f"{write_logs(where, messages)}={where}"


def _on(session: SparkSession, manifest: str, messages: int) -> Iterator[tuple[str, object]]:
    for kind, columns in _DECODED:
        taken = _fastest(partial(_decode, session, manifest, kind, columns))
        yield f"  {kind} decoded in the workers, 5 columns", _rate(messages, taken)
    for kind, name, columns in _READ:
        taken = _fastest(partial(_read, session, manifest, kind, columns))
        yield f"  {kind} as a table, {name}", _rate(messages, taken)
    taken = _fastest(partial(_reconcile, session, manifest))
    yield f"  reconcile of {messages:,}", _rate(messages, taken)


def _rate(messages: int, seconds: float) -> str:
    return f"{seconds:.2f} s, {messages / seconds:,.0f} messages/s"


def _reconcile(session: SparkSession, manifest: str) -> Result:
    plan = make_plan([source_of_file(manifest)], Request())
    return reconcile(plan, spark_engine(session), lambda _: None)


def _read(session: SparkSession, manifest: str, kind: str, columns: str) -> None:
    reader = session.read.format("delaywheel").options(manifests=manifest, kind=kind)
    reader.option("columns", columns).load().write.format("noop").mode("overwrite").save()


def _decode(session: SparkSession, manifest: str, kind: str, columns: str) -> None:
    """Have workers decode everything to Arrow and hand back the number of rows alone."""
    source = DelaywheelSource({"manifests": manifest, "kind": kind, "columns": columns})
    reader = source.reader(source.schema())
    partitions = list(reader.partitions())

    def rows_of(number: int) -> int:
        batches = cast("Iterator[pa.RecordBatch]", reader.read(partitions[number]))
        return sum(batch.num_rows for batch in batches)

    numbers = range(len(partitions))
    rows = session.sparkContext.parallelize(numbers, len(numbers)).map(rows_of).sum()
    if not rows:
        raise RuntimeError(f"nothing was read of {manifest}")


def _fastest(run: Callable[[], object], rounds: int = _ROUNDS) -> float:
    """Return the least seconds of some rounds, after one that is not counted."""
    run()
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best
