"""The engine on Spark: tasks go to the workers, accounts come back. Nothing is shuffled.

Tasks are packed into partitions by what they read. A worker adds up the accounts of a partition, so
that one result for each group comes back, with its findings. Partitions run in waves: the driver
holds the findings of one wave at the most, four partitions for each core, however much there is.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_tools.files.errors import RemoteError, SparkFailedError
from spark_tools.judge.account import FINDINGS_SCHEMA, Account, TaskResult
from spark_tools.judge.tasks import GroupName
from spark_tools.run.reconcile import Engine, Task

PARTITION_BYTES = 128 * 1024 * 1024
_PARTITION_BYTES_MIN = 1024 * 1024
_PARTITIONS_PER_CORE = 4
_REMOTE = re.compile(r"\bRemoteError: (.*)")
"""What a worker says that a store does not let in."""


def spark_engine(session: SparkSession, *, partition_bytes: int = PARTITION_BYTES) -> Engine:
    """Return an engine that works in the executors of a session.

    partition_bytes: what the tasks of a partition read, unless a single task reads more. Running it
    raises SparkFailedError, or RemoteError of a worker.
    """
    context = session.sparkContext

    def run(tasks: Sequence[Task]) -> Iterator[TaskResult]:
        cores = context.defaultParallelism
        # As many as keep all cores busy to the end, where there is little to do.
        fair = sum(task.weight for task in tasks) // (_PARTITIONS_PER_CORE * cores)
        most = min(max(fair, _PARTITION_BYTES_MIN), partition_bytes)
        packs = list(packed(tasks, most))
        wave = _PARTITIONS_PER_CORE * cores
        for first in range(0, len(packs), wave):
            yield from _results_of(context, packs[first : first + wave])

    return run


def packed(tasks: Sequence[Task], most: int) -> Iterator[tuple[Task, ...]]:
    """Yield tasks that together read no more than so many bytes, or a single one that does."""
    gathered: list[Task] = []
    weight = 0
    for task in tasks:
        if gathered and weight + task.weight > most:
            yield tuple(gathered)
            gathered, weight = [], 0
        gathered.append(task)
        weight += task.weight
    if gathered:
        yield tuple(gathered)


@dataclass(slots=True)
class _Packed:
    """A TaskResult on its way: findings as a stream of Arrow's, compressed."""

    name: GroupName
    account: Account
    findings: bytes


def _results_of(context: SparkContext, packs: Sequence[tuple[Task, ...]]) -> list[TaskResult]:
    """Run a wave, a partition for each pack, and wait for all of it."""
    try:
        done = context.parallelize(packs, len(packs)).flatMap(_work).collect()
    except (PySparkException, Py4JError) as error:
        if (remote := _REMOTE.search(str(error))) is not None:
            raise RemoteError(remote[1]) from error
        raise SparkFailedError(f"Spark could not do the work: {error}") from error
    return [
        TaskResult(one.name, one.account, pa.ipc.open_stream(one.findings).read_all())
        for one in done
    ]


def _work(tasks: Sequence[Task]) -> list[_Packed]:
    """Do the tasks of a partition; runs in a worker."""
    accounts: dict[GroupName, Account] = {}
    findings: dict[GroupName, list[pa.Table]] = {}
    for task in tasks:
        result = task()
        accounts.setdefault(result.name, Account()).merge(result.account)
        findings.setdefault(result.name, []).append(result.findings)
    return [_Packed(name, one, _compressed(findings[name])) for name, one in accounts.items()]


def _compressed(tables: Sequence[pa.Table]) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, FINDINGS_SCHEMA, options=options) as writer:
        for table in tables:
            writer.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found
